"""What a sweep shows: bars and a table that fit the screen, or plain lines."""

from io import StringIO

import pytest
from rich.console import Console

from bayesprune.experiments.grid import expand
from bayesprune.experiments.shard import Shard, ShardProgress
from bayesprune.experiments.watching import SweepBars
from bayesprune.training.recipes import find_recipe

USUAL = find_recipe("fast").tradeoffs["bb"]
FACTORS = [1 + each / 100 for each in range(20)]
SWEEP = expand({"methods": ["bb", "vib"], "factors": FACTORS, "seeds": [0, 1, 2], "epochs": 14, "side_by_side": 6, "device": "cpu"})
EPOCH = {
    "stage": "pruned",
    "epoch": 3,
    "loss": 12.3,
    "error": 1.678,
    "kept": [400, 99.6, 30],
    "speedup": 12.34,
    "memory": 5.0,
    "seconds": 61.4,
}
PROGRESS = ShardProgress("pruned", epochs=14, steps=600, done=1900, row=EPOCH, place="process 7 on far")
SHARDS = [Shard(numbers, tuple(SWEEP.members[each] for each in numbers)) for numbers in SWEEP.shards()]


def row(number, status="finished"):
    member, sound = SWEEP.members[number], status == "finished"
    measured = {"error": 1.5 + number % 3, "speedup": 8.0, "memory": 12.5, "kept": [300, 100.0, 80]}
    return {
        "member": number, "network": member.network, "method": member.method, "tradeoff": member.tradeoff, "seed": member.seed,
        "status": status, **(measured if sound else dict.fromkeys(measured)),
    }  # fmt: skip


def bars_after(finished, going, console=None):
    bars = SweepBars(console or Console(file=StringIO(), force_terminal=True))
    bars.sweep_started(SWEEP.members, [])
    for shard in SHARDS[: finished + going]:
        bars.shard_progressed(shard, PROGRESS)
    for shard in SHARDS[:finished]:
        bars.shard_finished(shard, [row(number) for number in shard.numbers])
    return bars


def screen(bars, width=100, height=24):
    console = Console(record=True, width=width, height=height, file=StringIO(), force_terminal=True)
    console.print(bars)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_line_for_each_trade_off():
    lines = screen(bars_after(2, 2))
    assert lines[0].split() == ["network", "method", "trade-off", "models", "error", "%", "xFLOPs", "memory", "%", "kept", "units"]
    assert [line.split()[:4] for line in lines[1:5]] == [
        ["lenet-500-300", "bb", f"{USUAL * factor:.4g}", "3/3"] for factor in FACTORS[3::-1]
    ]
    assert lines[1].split()[4:] == ["2.50", "8.00", "12.50", "300-100-80"]
    assert "12 of 120 models finished" in lines[5]
    assert [line.split(",")[0] for line in lines[6:]] == ["models 13-18", "models 19-24"]
    for part in ("61%", "pruned 4/14", "error 1.68 %", "12.3x"):
        assert part in lines[6]


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("height", [6, 10, 24, 60])
@pytest.mark.parametrize(("finished", "going"), [(0, 1), (0, 20), (10, 10), (19, 1), (20, 0)])
def test_fits_the_screen(width, height, finished, going):
    lines = screen(bars_after(finished, going), width, height)
    assert len(lines) < height
    assert any(f"{6 * finished} of 120" in line for line in lines)
    bars = sum(line.startswith("models ") for line in lines)
    assert bars + sum(int(line.split()[1]) for line in lines if "more shards" in line) == going
    table = sum(line.startswith("lenet") for line in lines)
    if table:
        assert table + sum(int(line.split()[1]) for line in lines if "with finished models" in line) == 2 * finished
    elif height > 10:
        assert not finished
    assert bars or not going


def test_the_latest_come_first():
    bars = bars_after(20, 0)
    bars.standings.add([row(0, "diverged")])
    lines = screen(bars)
    assert lines[1].split()[:4] == ["lenet-500-300", "bb", f"{USUAL:.4g}", "4/3"]
    assert lines[2].split()[1] == "vib"


def test_models_that_diverged():
    bars = SweepBars(Console(file=StringIO(), force_terminal=True))
    bars.sweep_started(SWEEP.members, [row(0, "diverged")])
    assert "1/3  diverged" in screen(bars)[1]


def test_terminal_and_end():
    out = StringIO()
    with bars_after(1, 1, Console(file=out, width=100, height=24, force_terminal=True)) as bars:
        bars.say("a word")
    assert "a word" in out.getvalue()
    assert "trade-off" not in "\n".join(screen(bars))  # The table of all models follows.
    with pytest.raises(KeyboardInterrupt), bars:
        raise KeyboardInterrupt
    assert "trade-off" in "\n".join(screen(bars))


def test_log():
    log = StringIO()
    with bars_after(1, 1, Console(file=log, width=40)) as bars:
        bars.shard_progressed(SHARDS[1], PROGRESS)
        bars.shard_split(SHARDS[1])
    lines = log.getvalue().splitlines()
    assert lines[0] == "models 1-6 of 120: lenet-500-300 on mnist, bb, side by side (process 7 on far)"
    assert lines[1] == "models 1-6: pruned     epoch   3 of 14  loss 12.300  error 1.68 %  kept 400-100-30  12.3x  61 s"
    assert lines[4:] == [
        "models 1-6: finished, 6 of 120 models",
        "models 7-12: not enough memory for all of them at once, trying half as many",
    ]
    assert len(lines) == 6
