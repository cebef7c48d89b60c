"""What the documents name is there: files that they link to or speak of, commands, and what can be typed.

Read are all links, and of code (in backticks, or a block without a language, which is for a shell) these words:

    sharder/ tests/ docs/ experiments/...   a path from the root, `*` and {a,b} as in a shell, ::test behind it; in
                                            place of NAME and <...> stands anything
    python -m sharder.<command>             a command
    group=option, group=one,another         options of a group in sharder/conf
    section.key=value                       a key of the config; `hydra.` keys are Hydra's own
"""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from sharder.overrides import schema_keys

ROOT = Path(__file__).parent.parent
CONF = ROOT / "sharder" / "conf"
DOCUMENTS = sorted(
    path.relative_to(ROOT)
    for path in (
        *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "experiments").rglob("README.md"),
    )
)
FOLDERS = ("sharder/", "tests/", "docs/", "experiments/")
MADE_UP = ("mine", "NAME")  # what stands for a reader's own preset or option

LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"python -m sharder\.(\w+)")
ASSIGNMENT = re.compile(r"(?<![\w.=/-])([a-z][\w.]*)=([^\s'\"`]+)")
BRACES = re.compile(r"\{([^{}]*)\}")


def links(text: str) -> set[str]:
    return {link.partition("#")[0] for link in LINK.findall(text) if not re.match(r"[a-z]+:|#", link)}


def code(text: str) -> list[str]:
    """Line by line."""
    blocks = [line for language, block in BLOCK.findall(text) if not language for line in block.splitlines()]
    return [*blocks, *INLINE.findall(BLOCK.sub("", text))]


def paths(text: str) -> set[str]:
    words = [word.strip("'\"();,.") for line in code(text) for word in re.sub(r"<[^>]*>", "*", line).split()]
    return {re.sub(r"\bNAME\b", "*", word) for word in words if word.startswith(FOLDERS)}


def expanded(pattern: str) -> list[str]:
    """a/{b,c}/d as a shell has it."""
    parts = BRACES.split(pattern)  # what is outside and what is inside, in turn
    choices = [part.split(",") if number % 2 else [part] for number, part in enumerate(parts)]
    return ["".join(chosen) for chosen in product(*choices)]


def is_there(path: str) -> bool:
    path, _, test = path.partition("::")
    found = list(ROOT.glob(path.rstrip("/"))) if "*" in path else [ROOT / path]
    there = [one for one in found if one.exists()]
    return bool(there) and (not test or any(f"def {test}(" in one.read_text() for one in there))


def assignments(text: str) -> set[tuple[str, str]]:
    """(key or group, value) of each."""
    return {(key, value.rstrip(",;:)")) for line in code(text) for key, value in ASSIGNMENT.findall(line)}


@cache
def groups() -> dict[str, set[str]]:
    return {folder.name: {path.stem for path in folder.glob("*.yaml")} for folder in CONF.iterdir() if folder.is_dir()}


def wrong(key: str, value: str) -> str | None:
    """Why this cannot be typed; None: it can, or it is nothing of ours."""
    if key in groups():
        options = {one for one in value.strip("[]").split(",") if one not in MADE_UP and "<" not in one}
        unknown = options - groups()[key] - {"null"}
        return f"{key} has no option {', '.join(sorted(unknown))}" if unknown else None
    section, dot, _ = key.partition(".")
    return f"no key {key}" if dot and section in schema_keys() and key not in schema_keys() else None


@pytest.fixture(params=DOCUMENTS, ids=str)
def document(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def test_what_is_linked_to_is_there(document: Path) -> None:
    folder = (ROOT / document).parent
    assert [link for link in sorted(links((ROOT / document).read_text())) if not (folder / link).exists()] == []


def test_what_is_named_is_there(document: Path) -> None:
    named = [one for path in sorted(paths((ROOT / document).read_text())) for one in expanded(path)]
    assert [path for path in named if not is_there(path)] == []


def test_commands_exist(document: Path) -> None:
    commands = set(COMMAND.findall((ROOT / document).read_text()))
    files = {name: (ROOT / f"sharder/{name}.py", ROOT / f"sharder/{name}/__main__.py") for name in commands}
    assert [name for name, places in sorted(files.items()) if not any(place.is_file() for place in places)] == []


def test_what_is_typed_can_be_typed(document: Path) -> None:
    typed = sorted(assignments((ROOT / document).read_text()))
    assert [found for key, value in typed if (found := wrong(key, value))] == []


def test_the_readmes_table_has_every_group_and_option() -> None:
    """A group's row begins with its name, and names its options in code."""
    rows = [line.split("|") for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `")]
    told: dict[str, set[str]] = {}
    for _, names, options, *_ in rows:
        for name in set(INLINE.findall(names)) & set(groups()):
            told.setdefault(name, set()).update(INLINE.findall(options))
    missing = {name: sorted(options - told.get(name, set())) for name, options in groups().items()}
    assert {name: options for name, options in missing.items() if options and not name.startswith("_")} == {}
    assert {name: sorted(options - groups()[name]) for name, options in told.items() if options - groups()[name]} == {}


def test_nothing_is_left_to_fill_in(document: Path) -> None:
    assert re.findall(r"@[A-Z0-9]+@|\bTODO\b|\bTBD\b", (ROOT / document).read_text()) == []


def test_the_rules_themselves() -> None:
    text = """
[a](b.md#part) [far](https://x.org) `sharder/*.py`, `tests/{a,b}.py::test_c` and `experiments/NAME/<id>/x`
```
python -m sharder.train mesh=fsdp4,fsdp9 train.stps=3 data.root=../x experiment=mine hydra.launcher.partition=gpu
```
```python
f(remat=1)
```
"""
    assert links(text) == {"b.md"}
    assert paths(text) == {"sharder/*.py", "tests/{a,b}.py::test_c", "experiments/*/*/x"}
    assert expanded("a/{b,c}/{d,e}") == ["a/b/d", "a/b/e", "a/c/d", "a/c/e"]
    assert COMMAND.findall(text) == ["train"]
    found = {wrong(key, value) for key, value in assignments(text)} - {None}
    assert found == {"mesh has no option fsdp9", "no key train.stps"}
    assert is_there("tests/test_docs.py::test_the_rules_themselves") and is_there("sharder/*.py")
    assert not is_there("tests/test_docs.py::test_nothing") and not is_there("docs/*.pdf")
