"""The command line: parses, calls, prints. One file a command, or two that belong together."""

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from bayesprune.cli.common import app, say_error, warnings_in_one_line
from bayesprune.cli.datasets import DATA_EXAMPLES, data
from bayesprune.cli.networks import BENCH_EXAMPLES, EXPORT_EXAMPLES, bench, export
from bayesprune.cli.reporting import REPORT_EXAMPLES, report
from bayesprune.cli.reproducing import REPRODUCE_EXAMPLES, reproduce
from bayesprune.cli.running import RUN_EXAMPLES, run
from bayesprune.cli.sweeping import SWEEP_EXAMPLES, sweep
from bayesprune.errors import BayespruneError, StorageError

__all__ = ["app", "as_command", "main"]

app.command(epilog=RUN_EXAMPLES)(run)
app.command(epilog=SWEEP_EXAMPLES)(sweep)
app.command(epilog=REPRODUCE_EXAMPLES)(reproduce)
app.command(epilog=BENCH_EXAMPLES)(bench)
app.command(epilog=EXPORT_EXAMPLES)(export)
app.command(epilog=REPORT_EXAMPLES)(report)
app.command(epilog=DATA_EXAMPLES)(data)


_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def main() -> None:
    """Run the command line."""
    as_command(app)


def as_command(program: Callable[[], object]) -> None:
    """Run what a person has started: our own errors become one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # Terminals that know few characters show the others as question marks.
    try:
        with warnings_in_one_line():
            program()
    except BayespruneError as error:
        say_error(error)
        sys.exit(2)
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        say_error(StorageError(f"the output cannot be written: {error.strerror}; send it elsewhere"))
        _discard_output()
        sys.exit(2)


def _discard_output() -> None:
    """Let go of what could not be written: Python would try again when it ends, and complain."""
    with Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
