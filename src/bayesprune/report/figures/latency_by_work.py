"""How long inputs take against how much is computed for them."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from bayesprune.benchmark import PerInput
from bayesprune.report.figures.canvas import BLUE, GREEN, INK, RED, VIOLET, new_figure, plain_axes, write_figure

_COLOURS = (RED, BLUE, GREEN, VIOLET)


def draw_latency_by_work(models: Sequence[PerInput], path: Path, *, title: str | None = None) -> None:
    """Draw milliseconds against multiply-accumulates, a point an input, and how the work is distributed.

    Networks that do the same for all inputs are one point each: their median.

    Args:
        models: on the same inputs.
        path: of the PNG file to write.
        title: of the figure, if it needs one.
    """
    figure = new_figure(8, 5)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    for number, each in enumerate(models):
        colour, work = _COLOURS[number % len(_COLOURS)], [macs / 1e6 for macs in each.macs]
        label = f"{each.model}: {statistics.median(each.milliseconds):.3g} ms"
        if len(set(work)) == 1:
            above.plot(work[:1], [statistics.median(each.milliseconds)], marker="D", markersize=8, linestyle="", color=colour, label=label)
            below.axvline(work[0], color=colour, linewidth=1.5)
            continue
        above.scatter(work, each.milliseconds, s=9, color=colour, alpha=0.35, linewidths=0, label=label)
        below.hist(work, bins=40, color=colour, alpha=0.8)
    slow = [statistics.quantiles(each.milliseconds, n=20)[-1] if len(each.milliseconds) > 1 else each.milliseconds[0] for each in models]
    above.set_ylim(0, 1.2 * max(slow))
    above.set_xlim(left=0)
    above.set_ylabel("milliseconds for one input")
    for handle in above.legend(frameon=False, fontsize=9).legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    below.set_ylabel("inputs")
    below.set_xlabel("million multiply-accumulates executed for an input")
    for axes in (above, below):
        plain_axes(axes)
    if title is not None:
        figure.suptitle(title, fontsize=10.5, color=INK)
    write_figure(figure, path)
