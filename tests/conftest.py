"""What every test gets: no W&B account, a cache of its own, and child processes that find this checkout's sharder."""

import os
from importlib.metadata import version
from pathlib import Path

import pytest

# These programs are small and run a few times each, so they are compiled in a hurry: in a fifth of the time, with jax
# 0.12 in half. With XLA_FLAGS= (empty, or others) before pytest they are compiled as XLA does by default.
HURRY = "--xla_backend_optimization_level=0"
if int(version("jaxlib").split(".")[1]) < 12:
    HURRY += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", HURRY)

ROOT = Path(__file__).parent.parent
DEFAULT = "not slow and not convergence and not chaos"  # as in pyproject.toml


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One a core for the default tests. Proofs have the machine to themselves: they measure, kill, or fill it."""
    return min(os.cpu_count() or 1, 8) if config.option.markexpr == DEFAULT else 0


@pytest.fixture(autouse=True)
def _isolated(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    is_proof = any(request.node.get_closest_marker(name) for name in ("slow", "convergence", "chaos"))
    if is_proof and os.environ.get("XLA_FLAGS") == HURRY:
        monkeypatch.delenv("XLA_FLAGS")  # what they start in processes of their own is what a user would run
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
