"""The command: measure, or write the page."""

import argparse
import json
import warnings
from fnmatch import fnmatch
from pathlib import Path

from bayesprune.cli import as_command
from bayesprune.storage import read_rows, write_bytes
from benchmarks.exactness import ROOT
from benchmarks.exactness.cases import CASES
from benchmarks.exactness.page import page
from benchmarks.exactness.reference import EXACT
from benchmarks.exactness.rows import PARTS, measure


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description="Exactness of removal beside Torch-Pruning.")
    parser.add_argument("--only", default="*", help="cases whose 'network, gates' match this pattern")
    parser.add_argument("--dtypes", nargs="+", choices=list(EXACT), default=list(EXACT))
    parser.add_argument("--rows", type=Path, default=ROOT / "results" / "exactness.jsonl")
    parser.add_argument("--report", action="store_true", help="write the page from the rows instead of measuring")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "exactness.md")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = [case for case in CASES if fnmatch(case.key, arguments.only)]
    if arguments.part:
        warnings.simplefilter("ignore")
        print(json.dumps(PARTS[arguments.part](cases[0], arguments.dtypes[0]), allow_nan=False))
    elif arguments.report:
        write_bytes(arguments.page, page(read_rows(arguments.rows)).encode())
    else:
        measure(cases, arguments.dtypes, arguments.rows)


if __name__ == "__main__":
    as_command(main)
