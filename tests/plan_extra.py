"""For tests that compile for GPUs: skipped, and said, where the compiler is not installed."""

import pytest

from sharder.predict.available import PLUGINS, has_any

needs_plan_extra = pytest.mark.skipif(
    not has_any(PLUGINS), reason="needs the compiler for GPUs: pip install 'sharder[plan]'"
)
