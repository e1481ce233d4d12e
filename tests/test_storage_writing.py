"""Files are written whole or not at all, whatever happens meanwhile, and only where a file belongs."""

import errno
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        *((code, "Free some space") for code in (errno.ENOSPC, errno.EDQUOT)),
        (errno.ENOENT, "Make the folder .* first"),
        (errno.ENOTDIR, "is not a folder"),
        *((code, "folder that you may write to") for code in (errno.EACCES, errno.EPERM, errno.EROFS)),
        (errno.ENAMETOOLONG, "shorter name"),
        (errno.EIO, r"untouched\. Choose another folder$"),
    ],
)
def test_advice_fits_the_cause(tmp_path, monkeypatch, code, advice):
    def fail(_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=advice):
        storage.write_bytes(tmp_path / "file", b"new")


@pytest.mark.parametrize("path", [None, 3, b"file", Path("a\0b"), "\ud800"], ids=repr)
def test_paths_that_are_none(path):
    with pytest.raises(InputError, match="is no path of a file"):
        storage.write_bytes(path, b"new")


@pytest.mark.parametrize("path", [torch.randn(30, 30), nn.Sequential(nn.Linear(2, 2))], ids=["tensor", "model"])
def test_what_is_no_path_is_shown_on_one_short_line(path):
    with pytest.raises(InputError, match=rf"of type {type(path).__name__}$") as raised:
        storage.as_path(path)
    assert len(str(raised.value)) < 160
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("look", [storage.exists, storage.is_folder])
def test_looking_where_the_system_does_not_let_us(look, tmp_path, monkeypatch):
    assert look(tmp_path)
    (tmp_path / "file").touch()
    assert not any(look(tmp_path / name) for name in ("missing", "file/inside", "null\0"))
    with pytest.raises(StorageError, match=r"cannot look at .*: File name too long"):
        look(tmp_path / ("a" * 300))

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(StorageError, match=r"cannot look at .*: Permission denied"):
        look(tmp_path)
