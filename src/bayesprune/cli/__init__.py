"""The command line: parses, calls, prints. One file a command, or two that belong together."""

import sys

from bayesprune.cli.common import app, say_error
from bayesprune.cli.datasets import DATA_EXAMPLES, data
from bayesprune.cli.networks import BENCH_EXAMPLES, EXPORT_EXAMPLES, bench, export
from bayesprune.cli.reporting import REPORT_EXAMPLES, report
from bayesprune.cli.reproducing import REPRODUCE_EXAMPLES, reproduce
from bayesprune.cli.running import RUN_EXAMPLES, run
from bayesprune.cli.sweeping import SWEEP_EXAMPLES, sweep
from bayesprune.errors import BayespruneError

__all__ = ["app", "main"]

app.command(epilog=RUN_EXAMPLES)(run)
app.command(epilog=SWEEP_EXAMPLES)(sweep)
app.command(epilog=REPRODUCE_EXAMPLES)(reproduce)
app.command(epilog=BENCH_EXAMPLES)(bench)
app.command(epilog=EXPORT_EXAMPLES)(export)
app.command(epilog=REPORT_EXAMPLES)(report)
app.command(epilog=DATA_EXAMPLES)(data)


def main() -> None:
    """Run the command line: our own errors become one line and exit code 2."""
    try:
        app()
    except BayespruneError as error:
        say_error(error)
        sys.exit(2)
