"""Imports go one way, and the control plane never imports jax."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sharder

ROOT = Path(sharder.__file__).parent
LEVELS = [
    {"config", "errors", "validation", "stop_signals"},
    {"model", "data", "parallel", "measure", "run_folder", "provenance", "table", "early"},
    {"training", "predict", "tracking", "supervise"},
    {"compose", "overrides", "usage", "conf", "worker", "train", "evaluate", "plan", "report", "convert", "inspect"}
    | {"dashboard"},
]
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}
# Two parts of one level may need each other's nouns, in one direction each.
ACROSS = {("training", "tracking"), ("training", "supervise"), ("predict", "training")}
ACROSS |= {("compose", "overrides"), ("compose", "usage")}
ACROSS |= {("validation", "config"), ("validation", "errors")}
COMMANDS = ("train", "evaluate", "plan", "report", "convert")
ACROSS |= {(command, part) for command in COMMANDS for part in ("compose", "usage")}
WITHOUT_JAX = [
    "config",
    "errors",
    "validation",
    "data",
    "supervise",
    "compose",
    "overrides",
    "run_folder",
    "early",
    "stop_signals",
    "usage",
    "table",
    "train",
    "plan",
    "report",
    "inspect",
    "dashboard",
    "tracking",
]


def part_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The parts of sharder a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if node.module == "sharder":
                names = [f"sharder.{alias.name}" for alias in node.names]
        else:
            continue
        found |= {name.split(".")[1] for name in names if name.startswith("sharder.")}
    return found


def allowed(importer: str, imported: str) -> bool:
    return (
        imported == importer
        or LEVEL_OF.get(imported, -1) < LEVEL_OF[importer]
        or (importer, imported) in ACROSS
        or imported == "__version__"
    )


FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    assert part in LEVEL_OF, f"{part} has no place in the order"
    assert [imported for imported in imports(path) if not allowed(part, imported)] == []


def test_model_knows_only_the_config() -> None:
    outside = {name for path in (ROOT / "model").rglob("*.py") for name in imports(path)} - {
        "model",
        "config",
        "errors",
    }
    assert outside == set()


def test_order_is_enforced() -> None:
    assert not allowed("config", "model")
    assert not allowed("data", "training")
    assert not allowed("supervise", "training")
    assert not allowed("training", "compose")
    assert allowed("training", "model")


def modules(part: str) -> list[str]:
    folder = ROOT / part
    if not folder.is_dir():
        return [f"sharder.{part}"]
    return [
        f"sharder.{part}",
        *(f"sharder.{part}.{path.stem}" for path in folder.glob("*.py") if path.stem != "__init__"),
    ]


def test_control_plane_and_data_never_import_jax() -> None:
    names = [name for part in WITHOUT_JAX for name in modules(part)]
    script = f"""
import importlib, sys
for name in {names}:
    importlib.import_module(name)
    heavy = {{"jax", "jaxlib", "flax", "orbax", "optax", "torch"}} & set(sys.modules)
    assert not heavy, (name, heavy)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
