"""The command: train and measure, or write the page."""

import argparse
from pathlib import Path

from bayesprune.cli import as_command
from bayesprune.experiments.main_job import surroundings
from bayesprune.storage import append_row, exists, make_folder, read_rows, write_bytes
from benchmarks.uncertainty import ROOT
from benchmarks.uncertainty.measuring import rows_of
from benchmarks.uncertainty.networks import DEVICE, METHODS, NETWORK, digits, trained
from benchmarks.uncertainty.page import page, write_figure_of


def main() -> None:
    """Train and measure, or write the page."""
    parser = argparse.ArgumentParser(description="How far predictions can be believed.")
    parser.add_argument(
        "--rows", type=Path, default=ROOT / "results" / "uncertainty.jsonl", help="rows are appended; what is there is not measured again"
    )
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--work", type=Path, default=Path("runs/uncertainty"), help="where checkpoints are kept")
    parser.add_argument("--report", action="store_true", help="write the page from the rows instead of measuring")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page goes")
    arguments = parser.parse_args()
    if arguments.report:
        rows = read_rows(arguments.rows)
        make_folder(arguments.docs / "figures")
        write_figure_of(rows, arguments.docs / "figures" / "uncertainty.png")
        write_bytes(arguments.docs / "uncertainty.md", page(rows).encode())
        return
    known = {(row["method"], row["seed"]) for row in read_rows(arguments.rows)} if exists(arguments.rows) else set()
    given = digits()
    make_folder(arguments.rows.parent)
    for seed in arguments.seeds:
        for method in arguments.methods:
            if (method, seed) in known:
                continue
            model = trained(method, seed, given, arguments.work)
            about = {"benchmark": "uncertainty", "network": NETWORK, "dataset": "mnist", "method": method, "seed": seed}
            for row in list(rows_of(model, given)):  # All of them, or none.
                append_row(arguments.rows, {**about, **row, **surroundings(DEVICE)})


if __name__ == "__main__":
    as_command(main)
