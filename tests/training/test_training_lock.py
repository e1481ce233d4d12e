import os
import subprocess
import sys

import pytest

from bayesprune.errors import RunFolderError, StorageError
from bayesprune.training import lock
from bayesprune.training.lock import LOCK, sole_use
from bayesprune.training.store import RunStore

HOLD = """
import sys, time
from pathlib import Path
from bayesprune.training.lock import sole_use
with sole_use(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_other_processes_are_kept_out_until_the_first_is_gone(holder, tmp_path):
    with (
        pytest.raises(RunFolderError, match=rf"in use by another process \(process {holder.pid} on .*\): wait"),
        sole_use(tmp_path / "run"),
    ):
        pass
    holder.kill()
    holder.wait()
    assert (tmp_path / "run" / LOCK).exists()
    with sole_use(tmp_path / "run"):
        RunStore(tmp_path / "run", {})
    assert not (tmp_path / "run" / LOCK).exists()


def test_nested_use_is_refused_and_leaves_the_first_in_force(tmp_path):
    with sole_use(tmp_path):
        for _ in range(2):
            with pytest.raises(RunFolderError, match=f"process {os.getpid()} "), sole_use(tmp_path):
                pass
    assert list(tmp_path.iterdir()) == []


def test_it_is_given_back_after_an_error(tmp_path):
    with pytest.raises(KeyboardInterrupt), sole_use(tmp_path):
        raise KeyboardInterrupt
    with sole_use(tmp_path):
        pass


def test_lock_that_its_owner_removes_meanwhile(tmp_path, monkeypatch):
    """What was opened before the owner let go is no lock any more: the next process would make a file of its own."""
    real, removed = lock._lock, []

    def late(descriptor):
        if not removed:
            removed.append((tmp_path / LOCK).unlink())
        return real(descriptor)

    monkeypatch.setattr(lock, "_lock", late)
    with sole_use(tmp_path), pytest.raises(RunFolderError), sole_use(tmp_path):
        pass


def test_file_system_without_locks(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(95, "not supported")

    monkeypatch.setattr("bayesprune.training.lock.fcntl.flock", fail)
    with sole_use(tmp_path):
        pass


def test_place_that_cannot_be_written(tmp_path):
    (tmp_path / LOCK).mkdir()
    with pytest.raises(StorageError, match="cannot write"), sole_use(tmp_path):
        pass
