import errno
import os
import threading
from pathlib import Path

import pytest

from sharder.data.cache import cache_dir, cached_folder, is_whole
from sharder.errors import UserError


def test_cache_dir_follows_the_users_setting(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/sharder")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == Path("/home/someone/.cache/sharder")


def test_a_folder_is_built_once(tmp_path):
    builds = []

    def build(folder):
        builds.append(folder)
        (folder / "numbers").write_text("1 2 3")

    for _ in range(3):
        assert (cached_folder(tmp_path, "name", build) / "numbers").read_text() == "1 2 3"
    assert len(builds) == 1
    assert os.listdir(tmp_path) == ["name"]


def test_a_failed_build_leaves_nothing(tmp_path):
    def build(folder):
        (folder / "half").write_text("")
        raise UserError("wrong")

    with pytest.raises(UserError, match="wrong"):
        cached_folder(tmp_path, "name", build)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_one_line(tmp_path):
    def build(folder):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match=r"No space left on device.*XDG_CACHE_HOME"):
        cached_folder(tmp_path, "name", build)


@pytest.mark.parametrize("before", ["nothing", "damaged folder", "file"])
def test_builders_at_once_all_get_a_whole_folder(tmp_path, before):
    if before == "damaged folder":
        (tmp_path / "name").mkdir()
        (tmp_path / "name" / "numbers").write_text("1 2")
    elif before == "file":
        (tmp_path / "name").write_text("")
    together = threading.Barrier(8)
    whole = []

    def build(folder):
        (folder / "numbers").write_text("1 2 3")
        together.wait()  # all publish at once

    def one():
        folder = cached_folder(tmp_path, "name", build)
        whole.append(is_whole(folder) and (folder / "numbers").read_text() == "1 2 3")

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert whole == [True] * 8
    assert os.listdir(tmp_path) == ["name"]


def test_one_changed_byte_is_noticed(tmp_path):
    folder = cached_folder(tmp_path, "name", lambda folder: (folder / "numbers").write_text("1 2 3"))
    assert is_whole(folder)
    (folder / "numbers").write_text("1 2 4")
    assert not is_whole(folder)
