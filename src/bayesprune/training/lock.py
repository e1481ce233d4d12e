"""One process at a time in a run folder."""

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bayesprune.errors import RunFolderError, StorageError
from bayesprune.storage import make_folder

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".bayesprune.lock"
_BEYOND = 1 << 20
"""Windows lets nobody read bytes that are locked: the one that is lies beyond what is written."""
_held: set[int] = set()
"""The descriptors of the locks that this process has."""


@contextmanager
def sole_use(folder: Path) -> Iterator[None]:
    """Keep other processes out of a folder, which is made where there is none.

    The system lets go of the lock when the process ends, however it does; a file that a killed process leaves behind locks nobody out.
    Processes that are forked meanwhile have no part in it.

    Raises:
        RunFolderError: another process is at work in the folder.
    """
    make_folder(folder)
    path, owner = folder / LOCK, os.getpid()
    descriptor = _locked(path)
    _held.add(descriptor)
    try:
        with suppress(OSError):  # For others to read; a full disk is no reason not to begin.
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"process {owner} on {platform.node()}".encode())
        yield
    finally:
        if os.getpid() == owner:
            with suppress(OSError):  # Windows keeps files that are open; the name alone does no harm.
                path.unlink()
            _held.discard(descriptor)
            os.close(descriptor)


def _let_go() -> None:
    """Close what a forked process has inherited, which would keep the folder locked after the end of the one that locked it."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go)


def _locked(path: Path) -> int:
    """A descriptor of the file, which this process alone has locked."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}; choose another folder or change its permissions") from error
        if not _lock(descriptor):
            holder = os.read(descriptor, 200).decode(errors="replace")
            os.close(descriptor)
            raise RunFolderError(
                f"{path.parent} is in use by another process{f' ({holder})' * bool(holder)}: wait until it ends, or choose another folder"
            )
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)  # Whoever had it locked has removed it since.


def _lock(descriptor: int) -> bool:
    """Lock an open file, unless it is locked."""
    if sys.platform == "win32":
        os.lseek(descriptor, _BEYOND, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)
    else:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return True  # A file system without locks: better a run without one than none.
    return True
