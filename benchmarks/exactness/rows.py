"""A row for each case and dtype, every part of it measured in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from bayesprune.benchmark.result import machine_facts
from bayesprune.storage import make_folder, read_rows, write_rows
from benchmarks.exactness import ROOT
from benchmarks.exactness.cases import CASES, Case
from benchmarks.exactness.ours import ours
from benchmarks.exactness.reference import EXACT, SEED
from benchmarks.exactness.torch_pruning import alone, theirs

PARTS: dict[str, Callable[[Case, str], dict[str, Any]]] = {"ours": ours, "theirs": theirs, "alone": alone}


def in_a_process(part: str, case: Case, dtype: str) -> dict[str, Any]:
    """One part of a row, measured where a crash or an endless loop does no harm."""
    command = [sys.executable, "-m", "benchmarks.exactness", "--part", part, "--only", case.key, "--dtypes", dtype]
    failed = {"ours": "ours_", "theirs": "theirs_", "alone": "theirs_alone_"}[part]
    limit = case.limit_s * (10 if part == "alone" else 1)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, cwd=ROOT)
    except subprocess.TimeoutExpired:
        message = f"no answer within {limit} s"
    else:
        if done.returncode == 0:
            return dict(json.loads(done.stdout.splitlines()[-1]))
        message = (done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"])[-1]
    return {f"{failed}outcome": "fails", f"{failed}message": message}


def measure(cases: Sequence[Case], dtypes: Sequence[str], path: Path) -> None:
    """A row for each case and dtype; it takes the place of an older one."""
    make_folder(path.parent)
    facts = machine_facts("cpu")
    versions = {"torch": facts["torch"], "torch_pruning": metadata.version("torch-pruning"), "version": facts["version"]}
    order = [(case.name, case.placement, dtype) for case in CASES for dtype in EXACT]
    for case in cases:
        for dtype in dtypes:
            row = {"benchmark": "exactness", "model": case.name, "placement": case.placement, "dtype": dtype, "seed": SEED}
            row |= {"share": case.share, "load_before": round(os.getloadavg()[0], 2)}
            row |= {**in_a_process("ours", case, dtype), **in_a_process("theirs", case, dtype)}
            if case.one_by_one and dtype == "float32":
                row |= in_a_process("alone", case, dtype)
            row |= {**versions, "cpu": facts["cpu"], "threads": torch.get_num_threads(), "python": facts["python"]}
            rows = {key_of(old): old for old in (read_rows(path) if path.exists() else [])} | {key_of(row): row}
            write_rows(path, [rows[key] for key in order if key in rows])
            print(f"{case.key}, {dtype}: ours {row['ours_outcome']}, theirs {row['theirs_outcome']} {row['theirs_message']}", flush=True)


def key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    """What a row is about."""
    return row["model"], row["placement"], row["dtype"]
