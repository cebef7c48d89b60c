"""What the processes of a run compare before they compile: a difference is named by field and process."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import jax
import pytest

import sharder
from sharder.errors import UserError
from sharder.parallel.fingerprint import agree, of_installation

Fields = Mapping[str, object]


class Others:
    """Hosts whose other processes send what they are told to."""

    def __init__(self, index: int, fields: list[Fields]) -> None:
        self.index, self.count = index, len(fields)
        self.texts = [json.dumps(dict(own)) for own in fields]
        self.names: list[str] = []

    def exchange(self, name: str, text: str) -> list[str]:
        self.names.append(name)
        assert text == self.texts[self.index]
        return self.texts


def refusals(fields: list[Fields], what: str = "fingerprint") -> list[str]:
    """What each process says."""
    said = []
    for index, own in enumerate(fields):
        with pytest.raises(UserError) as refusal:
            agree(Others(index, fields), what, own)
        said.append(str(refusal.value))
    return said


def test_processes_that_agree_go_on() -> None:
    hosts = Others(1, [{"seed": 1, "XLA_FLAGS": ""}, {"XLA_FLAGS": "", "seed": 1}])
    agree(hosts, "the train step", {"XLA_FLAGS": "", "seed": 1})
    assert hosts.names == ["the train step"]


def test_one_process_asks_nobody() -> None:
    hosts = Others(0, [{"seed": 1}])
    agree(hosts, "fingerprint", {"seed": 1})
    assert hosts.names == []


def test_all_name_the_field_both_values_and_the_process() -> None:
    fields = [{"seed": 1, "XLA_FLAGS": flags} for flags in ("", "", "--xla_dump_to=/tmp/x")]
    assert refusals(fields, "the train step") == 3 * [
        "the train step: the processes of this run differ in XLA_FLAGS: '' in process 0, '--xla_dump_to=/tmp/x' in "
        "process 2; start all with the same"
    ]


def test_a_field_that_only_one_process_has_is_a_difference() -> None:
    for fields in ([{"NCCL_DEBUG": "INFO"}, {}], [{}, {"NCCL_DEBUG": "INFO"}]):
        values = [repr(own.get("NCCL_DEBUG")) for own in fields]
        assert f"NCCL_DEBUG: {values[0]} in process 0, {values[1]} in process 1;" in refusals(fields)[0]


def test_many_differences_are_counted_and_long_values_cut() -> None:
    ours, theirs = ({f"field {number}": f"{who}{'x' * 900}" for number in range(5)} for who in "ab")
    said = refusals([ours, theirs])[0]
    assert "\n" not in said and len(said) < 2000
    assert all(f"field {number}: 'axxx" in said for number in range(3))
    assert "field 3" not in said and "(and 2 more)" in said
    assert f"'b{'x' * 198}... in process 1" in said


def test_the_installation_is_code_packages_and_what_changes_a_program() -> None:
    environ = {"XLA_FLAGS": "--xla_mine", "NCCL_DEBUG": "INFO", "JAX_ENABLE_X64": "1", "HOME": "/h", "NPROC": "4"}
    fields = of_installation(environ)
    assert fields["XLA_FLAGS"] == "--xla_mine"
    assert fields["NCCL_DEBUG"] == "INFO"
    assert fields["JAX_ENABLE_X64"] == "1"
    assert fields["NPROC"] == "4"
    assert fields["version of jax"] == jax.__version__
    assert fields["version of python"].startswith("3.")
    assert "HOME" not in fields
    assert of_installation({})["XLA_FLAGS"] == ""


def test_what_is_a_processs_own_by_nature_is_left_out() -> None:
    own = {"JAX_PROCESS_ID": "3", "JAX_COORDINATOR_ADDRESS": "localhost:1", "JAX_COMPILATION_CACHE_DIR": "/a"}
    own |= {"JAX_LOCAL_DEVICE_IDS": "3", "NCCL_SOCKET_IFNAME": "eth3", "JAX_COORDINATOR_BIND_ADDRESS": "[::]:1"}
    assert of_installation(own) == of_installation({})


def test_the_digest_of_the_code_changes_with_any_file_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a copy elsewhere, so that the same code at another place counts as the same."""
    here = of_installation({})["code of sharder"]
    copy = tmp_path / "sharder"
    shutil.copytree(Path(sharder.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(sharder, "__file__", str(copy / "__init__.py"))
    assert of_installation({})["code of sharder"] == here
    (copy / "notes.txt").write_text("not code")
    assert of_installation({})["code of sharder"] == here
    deep = copy / "model" / "gemma.py"
    deep.write_text(deep.read_text() + "\n")
    changed = of_installation({})["code of sharder"]
    assert changed != here
    deep.rename(copy / "model" / "gemma2.py")
    assert of_installation({})["code of sharder"] not in (here, changed)
