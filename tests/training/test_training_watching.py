import math
from io import StringIO

import pytest
from rich.console import Console

from bayesprune.training.watching import ProgressBars, Silent, describe_row

ROW = {
    "stage": "pruned",
    "epoch": 3,
    "loss": 12.3456,
    "error": 1.678,
    "kept": [784, 499.6, 300],
    "speedup": 12.34,
    "memory": 5.0,
    "seconds": 61.4,
}


def play(watcher):
    watcher.say("run folder: [bold]")
    watcher.stage_started("pruned", 14, 600, 2)
    for loss in (2.0, 1.0, math.pi):
        watcher.step(loss)
    watcher.epoch_finished(ROW)
    watcher.stage_finished({"stage": "pruned"})


@pytest.mark.parametrize("width", [40, 80, 200])
def test_log_has_a_line_for_each_epoch(width):
    log = StringIO()
    with ProgressBars(Console(file=log, width=width)) as bars:
        play(bars)
    said, going_on, epoch = log.getvalue().splitlines()
    assert said == "run folder: [bold]"
    assert going_on == "pruned: going on after epoch 2 of 14"
    for part in ("pruned", "epoch   3 of 14", "loss 12.346", "error 1.68 %", "kept 784-500-300", "12.3x", "61 s"):
        assert part in epoch


def test_bars_on_a_terminal():
    screen = StringIO()
    with ProgressBars(Console(file=screen, width=200, force_terminal=True)) as bars:
        play(bars)
        bars.stage_started("dependent", 2, 600, 0)
    text = screen.getvalue()
    for part in ("pruned", "dependent", " 14%", "loss 12.346", "error 1.68 %", "kept 784-500-300", "left"):
        assert part in text


def test_a_line_takes_the_place_of_a_finished_bar():
    screen = StringIO()
    with ProgressBars(Console(file=screen, width=200, force_terminal=True)) as bars:
        play(bars)
        bars.stage_finished({"stage": "pruned"})
        end = len(screen.getvalue())
        bars.say("the next one")
        bars.stage_finished({"stage": "pruned"})
    text, after = screen.getvalue(), screen.getvalue()[end:]
    assert "pruned     14 epochs  loss 12.346  error 1.68 %  kept 784-500-300  12.3x  61 s\n" in text
    assert "left" not in after, "no bar comes back"
    assert "pruned: finished before, taken from the folder" in after, "another one, of the same name"


def test_steps_before_any_stage_are_harmless():
    with ProgressBars(Console(file=StringIO())) as bars:
        bars.step(1.0)


def test_silence(capsys):
    play(Silent())
    assert capsys.readouterr() == ("", "")


def test_row_in_words():
    assert describe_row(ROW) == "loss 12.346  error 1.68 %  kept 784-500-300  12.3x"
    assert describe_row(ROW | {"error": None, "kept": [], "speedup": None}) == "loss 12.346"
