"""docs/uncertainty.md and its figure, from the rows."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bayesprune.report.figures.canvas import BLUE, GREEN, INK, RED, VIOLET, YELLOW, new_figure, plain_axes, write_figure
from benchmarks.uncertainty.measuring import ANGLES, DRAWN, NARROW, SOFTMAX, TEMPERATURE, TIMED_BATCH
from benchmarks.uncertainty.networks import HELD_OUT

Row = dict[str, Any]
NAMES = {
    "dense": "dense",
    "cd": "concrete dropout",
    "bb": "BB",
    "dbb": "DBB",
    "sbp": "SBP",
    "vib": "VIB",
}
WAYS = (SOFTMAX, TEMPERATURE, DRAWN, NARROW)
SHOWN = (
    ("dense", SOFTMAX, INK, "--"),
    ("dense", TEMPERATURE, INK, "-"),
    ("cd", DRAWN, YELLOW, "-"),
    ("bb", SOFTMAX, BLUE, "--"),
    ("bb", DRAWN, BLUE, "-"),
    ("dbb", DRAWN, RED, "-"),
    ("sbp", DRAWN, GREEN, "-"),
    ("vib", DRAWN, VIOLET, "-"),
)
"""In the figure: the method, the way to predict, and the line."""
PANELS = {"nll": "negative log-likelihood, nats", "calibration_error": "calibration error, points", "error": "error, %"}

PAGE = """# Uncertainty

How far can the probabilities of a pruned network be believed? LeNet-500-300 on MNIST, the recipe `fast`, {seeds} seeds, medians. All
networks are trained on 50,000 images; the other {held_out:,} training images choose a temperature, and the 10,000 test images measure. The
dense network is trained for as many epochs as the others have before and during pruning, without gates or dropout. The page is written by
`python -m benchmarks.uncertainty --report` from `results/uncertainty.jsonl`.

- **softmax**: one forward with posterior means, `predict(gated, x)`. It is what the network of `compact` computes.
- **softmax at a temperature**: the same, its scores divided by `fit_temperature` of the held out images: one number, no draws.
- **draws**: the mean of {draws} draws of the masks, `uncertainty(gated, x, samples={draws})`.
- **draws of the narrower network**: the same after `narrow`, which removes the pruned units and leaves the gates.

## Upright digits
{upright}

The negative log-likelihood (NLL, in nats) and the Brier score are better when they are smaller. The calibration error (of 15 bins, in
percentage points) is how far confidence and accuracy are apart. The last column is the error that is left if the tenth of the images with
least confidence is not answered.

## Digits that are turned
Nothing of this was trained on: the test images are rotated, and a network that knows its limits becomes unsure.

![Negative log-likelihood, calibration error and error against rotation](figures/uncertainty.png)

{turned}

## What draws cost
{cost}

## What to make of it
- **Pruning by itself does not harm.** The softmax of BB has a calibration error of {bb_softmax} points on upright digits,
  that of the dense network {dense_softmax}; at 45° it is {bb_turned} and {dense_turned}.
- **Draws of BB and DBB are better than their means**, a little on upright digits (BB: NLL {bb_nll} to {bb_draws_nll}), clearly
  on turned ones: at 45° the calibration error falls from {bb_turned} to {bb_draws_turned} points with BB and from {dbb_turned} to
  {dbb_draws_turned} with DBB.
- **A temperature does as much on upright digits**, and for all methods (BB: NLL {bb_temperature_nll}). At 45° it leaves
  {bb_temperature_turned} points with BB and {dbb_temperature_turned} with DBB. It costs nothing and needs labelled images; where
  there are some, begin with it. Draws need none, and say beside the mean what they disagree about.
- **Nobody knows that a digit is turned.** At 45° all are wrong for nearly half of the images, and far too sure of it.
- **The narrower network draws as well as the whole one** with BB and DBB. With SBP and VIB the noise of pruned units is a
  part of what is drawn, and goes with them; the mean prediction changes little.

{versions}
"""
HEADINGS = ("network", "prediction", "error %", "NLL", "Brier", "calibration error", "error at 90 % answered")
TURNED = ("network", "prediction", *(f"{angle}°" for angle in ANGLES if angle))
COST = ("method", "parameters", "narrower", "ms", "ms, narrower", "faster")


def page(rows: Sequence[Row]) -> str:
    """The page that shows the rows."""
    some = rows[0]
    draws = {row["draws"] for row in rows if "draws" in row}
    return PAGE.format(
        seeds=len({row["seed"] for row in rows}),
        held_out=HELD_OUT,
        draws=" or ".join(map(str, sorted(draws))),
        upright=_table(HEADINGS, [_upright(rows, method, way) for method, way in _pairs(rows)]),
        turned="NLL:\n\n" + _table(TURNED, [_turned(rows, method, way) for method, way in _pairs(rows) if way != NARROW]),
        cost=_costs(rows),
        **_verdict(rows),
        versions=f"{some['hardware']}; bayesprune {some['version']}, torch {some['torch']}, Python {some['python']}.",
    )


def _verdict(rows: Sequence[Row]) -> dict[str, str]:
    """The figures that the text speaks of."""

    def points(method: str, way: str, angle: int) -> str:
        return f"{median(_of(rows, method, way, angle), 'calibration_error'):.{1 if angle else 2}f}"

    def nll(way: str) -> str:
        return f"{median(_of(rows, 'bb', way, 0), 'nll'):.4f}"

    return {
        "dense_softmax": points("dense", SOFTMAX, 0),
        "dense_turned": points("dense", SOFTMAX, 45),
        "bb_softmax": points("bb", SOFTMAX, 0),
        "bb_nll": nll(SOFTMAX),
        "bb_draws_nll": nll(DRAWN),
        "bb_temperature_nll": nll(TEMPERATURE),
        **{f"{method}_turned": points(method, SOFTMAX, 45) for method in ("bb", "dbb")},
        **{f"{method}_draws_turned": points(method, DRAWN, 45) for method in ("bb", "dbb")},
        **{f"{method}_temperature_turned": points(method, TEMPERATURE, 45) for method in ("bb", "dbb")},
    }


def write_figure_of(rows: Sequence[Row], path: Path) -> None:
    """What happens to predictions when digits are turned."""
    figure = new_figure(11.0, 3.8)
    panels = figure.subplots(1, len(PANELS))
    for axes, (quantity, title) in zip(panels, PANELS.items(), strict=True):
        for method, way, colour, style in SHOWN:
            values = [median(_of(rows, method, way, angle), quantity) for angle in ANGLES]
            axes.plot(ANGLES, values, style, color=colour, linewidth=1.6, label=f"{NAMES[method]}, {way}")
        axes.set_title(title, loc="left", fontsize=10, color=INK)
        axes.set_xlabel("degrees of rotation")
        axes.set_xticks(ANGLES)
        axes.set_ylim(bottom=0)
        plain_axes(axes)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)
    write_figure(figure, path)


def median(rows: Sequence[Row], quantity: str) -> float:
    """Over seeds."""
    return statistics.median(row[quantity] for row in rows)


def _pairs(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Methods and ways to predict of which there are rows, in the order of the page."""
    there = {(row["method"], row["way"]) for row in rows}
    return [(method, way) for method in NAMES for way in WAYS if (method, way) in there]


def _of(rows: Sequence[Row], method: str, way: str, angle: int) -> list[Row]:
    return [row for row in rows if (row["method"], row["way"], row["rotation"]) == (method, way, angle)]


def _upright(rows: Sequence[Row], method: str, way: str) -> list[str]:
    found = _of(rows, method, way, 0)
    figures = (("error", ".2f"), ("nll", ".4f"), ("brier", ".4f"), ("calibration_error", ".2f"), ("error_at_0.9", ".2f"))
    return [NAMES[method], way, *(f"{median(found, name):{form}}" for name, form in figures)]


def _turned(rows: Sequence[Row], method: str, way: str) -> list[str]:
    return [NAMES[method], way, *(f"{median(_of(rows, method, way, angle), 'nll'):.3f}" for angle in ANGLES if angle)]


def _costs(rows: Sequence[Row]) -> str:
    cells = []
    for method in NAMES:
        found = _of(rows, method, DRAWN, 0)
        if found:
            whole, narrow = median(found, "whole_ms"), median(found, "narrow_ms")
            sizes = (f"{median(found, name):,.0f}" for name in ("whole_parameters", "narrow_parameters"))
            cells.append([NAMES[method], *sizes, f"{whole:.1f}", f"{narrow:.1f}", f"{whole / narrow:.1f}x"])
    threads = " or ".join(sorted({str(row["threads"]) for row in rows if "threads" in row}))
    draws = max(row.get("draws", 0) for row in rows)
    head = (
        f"{draws} draws for a batch of {TIMED_BATCH} images, {threads} thread{'s' if threads != '1' else ''}, medians of the seeds, while "
        "the other core was busy.\n\n"
    )
    return head + _table(COST, cells)


def _table(headings: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    rule = ["---" if heading in ("network", "prediction", "method") else "---:" for heading in headings]
    return "\n".join(f"| {' | '.join(row)} |" for row in (headings, rule, *cells))
