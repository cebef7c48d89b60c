"""Pages that several tests look at."""

from pathlib import Path

import pytest
from made_pages import experiments_page, run_page


@pytest.fixture(scope="session")
def page_of_experiments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return experiments_page(tmp_path_factory.mktemp("experiments"))


@pytest.fixture(scope="session")
def page_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_page(tmp_path_factory.mktemp("run"))
