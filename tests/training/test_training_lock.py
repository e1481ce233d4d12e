import os
import resource
import signal
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


def test_link_is_not_followed(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "thesis.tex")
    with pytest.raises(StorageError, match="cannot write"), sole_use(tmp_path / "run"):
        pass
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_disk_without_space_for_the_holders_name(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with sole_use(tmp_path):
            pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


FORK = """
import os, sys, time
from pathlib import Path
from bayesprune.training.lock import sole_use
with sole_use(Path(sys.argv[1])):
    child = os.fork()
    if child and sys.argv[2] == "leaves":
        os.waitpid(child, 0)
    if child:
        print(*os.listdir(sys.argv[1]), flush=True)
    if child or sys.argv[2] == "stays":
        time.sleep(600)
"""


@pytest.mark.parametrize("child", ["leaves", "stays"])
def test_forked_process_has_no_part_in_the_lock(child, tmp_path):
    command = [sys.executable, "-c", FORK, str(tmp_path), child]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout.readline() == f"{LOCK}\n"
            with pytest.raises(RunFolderError), sole_use(tmp_path):
                pass
            process.kill()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            with sole_use(tmp_path):
                pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)
