"""Where the numbers of a run come from."""

import sys

import sharder
from sharder import provenance


def test_environment_takes_what_the_worker_knows() -> None:
    environment = provenance.environment({"device_kind": "cpu", "device_count": 1})
    assert environment["device_kind"] == "cpu"
    assert environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert environment["sharder"] == sharder.__version__
    assert environment["versions"]["hydra-core"].startswith("1.3")
