"""How long the main job takes and what it reaches: `bayesprune run` in a process of its own, for some seeds.

Appends a row for each stage, with the wall-clock seconds of the whole command, to a JSONL file.

    .venv/bin/python benchmarks/main_job.py --seeds 0 1 2 --rows results/main-job.jsonl
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from bayesprune.cli import as_command
from bayesprune.report import stage_table
from bayesprune.storage import append_row, make_folder, read_json

SETTINGS = ("network", "dataset", "method", "recipe", "tradeoff", "shrink", "seed", "device", "hardware", "torch", "python", "version")


def main() -> None:
    """Run the main job for each seed, print its table and append its rows."""
    parser = argparse.ArgumentParser(description="Wall clock, error and xFLOPs of the main job.")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rows", type=Path, help="append raw numbers to this JSONL file")
    parser.add_argument("options", nargs="*", help="further options of `bayesprune run`, after --")
    arguments = parser.parse_args()
    console = Console()
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as parent:
            folder = Path(parent) / "run"
            started = time.perf_counter()
            command = [sys.executable, "-m", "bayesprune", "run", "--seed", str(seed), "--out", str(folder), *arguments.options]
            subprocess.run(command, check=True)
            wall = time.perf_counter() - started
            summary = read_json(folder / "summary.json")
        console.print(stage_table(summary))
        console.print(f"seed {seed}: {wall:.0f} s in all")
        if arguments.rows is not None:
            make_folder(arguments.rows.parent)
            for stage in summary["stages"]:
                row = {"benchmark": "main_job", **{key: summary[key] for key in SETTINGS}, **stage, "wall_seconds": round(wall, 1)}
                append_row(arguments.rows, row)


if __name__ == "__main__":
    as_command(main)
