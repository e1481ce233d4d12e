from io import StringIO

import pytest
from rich.console import Console

from bayesprune.report import draw_tradeoffs, sweep_tables


def row(method, tradeoff, seed, error, speedup, status="finished", network="lenet-500-300"):
    sound = status == "finished"
    return {
        "network": network, "method": method, "tradeoff": tradeoff, "seed": seed, "status": status, "error": error if sound else None,
        "speedup": speedup if sound else None, "memory": 10.0 if sound else None, "kept": [300, 100.0, 80] if sound else None,
    }  # fmt: skip


ROWS = [
    *(row("bb", tradeoff, seed, 1.5 + 0.1 * seed, 5.0 * tradeoff) for tradeoff in (1.0, 4.0) for seed in range(3)),
    row("vib", 1e-5, 0, 1.7, 9.0), row("vib", 1e-5, 1, 9.0, 9.0, status="diverged"), row("cd", None, 0, 1.4, 1.0),
    row("bb", 2.0, 0, 0.8, 7.5, network="lenet5-caffe"),
]  # fmt: skip


def test_tables():
    console = Console(width=80, record=True, file=StringIO())
    tables = sweep_tables(ROWS)
    for table in tables:
        console.print(table)
    text = console.export_text()
    assert len(tables) == 2
    assert "1.60 ±0.10" in text
    assert "5.00 ±0.00" in text
    assert "300-100-80" in text
    assert "9 models, 1 of them diverged" in text
    assert "…" not in text


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], [row("bb", 1.0, 0, 1.0, 1.0, status="diverged")]])
def test_figure(rows, tmp_path):
    draw_tradeoffs(rows, tmp_path / "tradeoffs.png")
    assert (tmp_path / "tradeoffs.png").read_bytes().startswith(b"\x89PNG")
