"""What commands say, and outputs that cannot take it."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from bayesprune.cli import as_command
from bayesprune.errors import BayespruneWarning

FULL = Path("/dev/full")


def bayesprune(*arguments, out=subprocess.PIPE, **environment):
    return subprocess.run(
        [sys.executable, "-m", "bayesprune", *arguments],
        stdout=out,
        stderr=subprocess.PIPE,
        env=os.environ | environment,
        timeout=120,
        check=False,
    )


def test_terminal_that_knows_few_characters():
    result = bayesprune("--help", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0, result.stderr
    assert b"bayesprune data ? the data sets" in result.stdout
    assert result.stdout.isascii()


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_output_to_a_full_disk():
    with FULL.open("wb") as full:
        result = bayesprune("--version", out=full)
    assert result.returncode == 2
    assert result.stderr.decode().startswith("error: the output cannot be written: No space left on device")
    assert len(result.stderr.splitlines()) == 1


def test_our_warnings_are_one_line(capsys):
    def program():
        warnings.warn("too much is pruned", BayespruneWarning, stacklevel=1)
        warnings.warn("of others", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="of others") as passed_on:
        as_command(program)
    assert len(passed_on) == 1
    assert capsys.readouterr().err == "warning: too much is pruned\n"
