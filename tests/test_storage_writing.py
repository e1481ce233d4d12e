"""Files are written whole or not at all, whatever happens meanwhile, and only where a file belongs."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bayesprune import storage
from bayesprune.errors import InputError, StorageError


@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError])
def test_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, fault):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def interrupt(_):
        raise fault

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(fault):
        storage.write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_threads_do_not_share_a_temporary_file(tmp_path):
    contents = [bytes([number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: storage.write_bytes(tmp_path / "file", content), contents * 5))
    assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_killed_writer_is_cleaned_up_after(tmp_path):
    left = [tmp_path / ".file.12.part", tmp_path / ".file.12.0a1b2c3d.part"]
    for path in (*left, tmp_path / "file.part", tmp_path / ".file.part"):
        path.touch()
    assert sorted(storage.unfinished_files(tmp_path)) == sorted(left)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664])
def test_permissions_are_kept(tmp_path, mode):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(mode)
    storage.write_bytes(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


def test_pipes_and_devices_are_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(StorageError, match="folder or a device"):
            storage.write_bytes(path, b"new")
        assert not path.is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("path", [None, 3, b"file", Path("a\0b"), "\ud800"], ids=repr)
def test_paths_that_are_none(path):
    with pytest.raises(InputError, match="is no path of a file"):
        storage.write_bytes(path, b"new")
