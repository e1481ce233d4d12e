"""Error against speed-up as an inline SVG whose points can be asked."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from bayesprune.experiments.published import METHODS, PublishedRow
from bayesprune.report.comparison.pairs import NetworkComparison
from bayesprune.report.comparison.points import Point, method_name
from bayesprune.report.figures.frame import Frame, frame_of
from bayesprune.report.tables import join_units


@dataclass(frozen=True)
class Canvas:
    """The size of a drawing, and the margins of its axes."""

    name: str
    width: int
    height: int
    left: int = 52
    right: int = 16
    top: int = 18
    bottom: int = 48


CANVASES = (Canvas("wide", 1060, 500), Canvas("narrow", 380, 400, left=42, right=10))
"""For a large and for a small screen: style sheets show one of them."""
PRINTED = "printed"
"""The class of everything that is the paper's."""


def chart(comparison: NetworkComparison) -> str:
    """The drawings of a network, and the legend that switches methods on and off."""
    drawings = "\n".join(_drawing(comparison, canvas) for canvas in CANVASES)
    buttons = [
        _switch(f"method-{method}", method_name(method), f'class="swatch" style="--c: var(--{method})"')
        for method in METHODS
        if any(point.method == method for point in comparison.points) or any(row.paper.method == method for row in comparison.distinct)
    ]
    buttons.append(_switch(PRINTED, "the paper", 'class="swatch dashed"'))
    legend = f'<div class="legend" role="group" aria-label="Methods that are shown">{"".join(buttons)}</div>'
    return f'<div class="chart">\n{drawings}\n{legend}\n</div>'


def _switch(switches: str, label: str, swatch: str) -> str:
    return f'<button type="button" aria-pressed="true" data-switches="{switches}"><span {swatch}></span>{escape(label)}</button>'


def _drawing(comparison: NetworkComparison, canvas: Canvas) -> str:
    frame = frame_of(comparison)
    across, down = _scales(frame, canvas)
    parts = [_axes(frame, canvas, across, down)]
    behind, before = [], []
    for method in METHODS:
        printed = sorted((row.paper for row in comparison.distinct if row.paper.method == method), key=lambda row: row.speedup)
        points = sorted((point for point in comparison.points if point.method == method), key=lambda point: point.speedup)
        group = f'class="method method-{method}" style="--c: var(--{method})"'
        if printed:
            places = [(across(row.speedup), down(row.error)) for row in printed]
            marks = [_point(place, _printed_lines(row), 4.5, f"point {PRINTED}") for place, row in zip(places, printed, strict=True)]
            behind.append(f'<g {group}><g class="{PRINTED}">{_curve(places, f"curve {PRINTED}")}{"".join(marks)}</g></g>')
        if points:
            places = [(across(point.speedup), down(point.error)) for point in points]
            marks = [_point(place, _own_lines(point), 5.5, "point") for place, point in zip(places, points, strict=True)]
            runs = [
                f'<circle class="run" cx="{across(outcome.speedup):.1f}" cy="{down(outcome.error):.1f}" r="2.2"/>'
                for point in points
                for outcome in point.outcomes
                if outcome.error <= frame.highest
            ]
            before.append(f"<g {group}>{''.join(runs)}{_curve(places, 'curve')}{''.join(marks)}</g>")
    label = escape(f"Test error against speed-up, {comparison.title}")
    size = f'viewBox="0 0 {canvas.width} {canvas.height}"'
    return "\n".join([f'<svg class="{canvas.name}" {size} role="group" aria-label="{label}">', *parts, *behind, *before, "</svg>"])


def _scales(frame: Frame, canvas: Canvas) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """From speed-up, on a logarithmic axis, and from error to places on the canvas."""
    width, height = canvas.width - canvas.left - canvas.right, canvas.height - canvas.top - canvas.bottom
    decades = math.log(frame.fastest / frame.slowest)

    def across(speedup: float) -> float:
        return canvas.left + width * math.log(speedup / frame.slowest) / decades

    def down(error: float) -> float:
        return canvas.top + height * (frame.highest - error) / (frame.highest - frame.lowest)

    return across, down


def _axes(frame: Frame, canvas: Canvas, across: Callable[[float], float], down: Callable[[float], float]) -> str:
    left, right, bottom = canvas.left, canvas.width - canvas.right, canvas.height - canvas.bottom
    parts = []
    for error in error_ticks(frame.lowest, frame.highest):
        height = down(error)
        parts.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{height:.1f}" y2="{height:.1f}"/>')
        parts.append(f'<text x="{left - 8}" y="{height + 4:.1f}" text-anchor="end">{error:g}</text>')
    for speedup in speedup_ticks(frame.slowest, frame.fastest):
        place = across(speedup)
        parts.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{canvas.top}" y2="{bottom}"/>')
        parts.append(f'<text x="{place:.1f}" y="{bottom + 19}" text-anchor="middle">{speedup:g}x</text>')
    parts.append(f'<line class="axis" x1="{left}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(
        f'<text x="{(left + right) / 2:.0f}" y="{canvas.height - 8}" text-anchor="middle">speed-up in FLOPs (dense over pruned)</text>'
    )
    parts.append(f'<text x="{left + 6}" y="{canvas.top + 4}">test error, %</text>')
    if frame.outside:
        beyond = f"{frame.outside} run{'s' * (frame.outside > 1)} above the frame"
        parts.append(f'<text x="{right}" y="{canvas.top + 4}" text-anchor="end">{beyond}</text>')
    return "".join(parts)


def error_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two errors, about eight."""
    rough = (high - low) / 8
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 6) for number in range(first, last + 1)]


def speedup_ticks(slowest: float, fastest: float) -> list[float]:
    """Ones, twos and fives of every decade between two speed-ups."""
    decades = range(math.floor(math.log10(slowest)), math.ceil(math.log10(fastest)) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    return [tick for tick in ticks if slowest <= tick <= fastest]


def _curve(places: Sequence[tuple[float, float]], class_: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline class="{class_}" points="{path}"/>'


def _point(place: tuple[float, float], lines: Sequence[str], radius: float, class_: str) -> str:
    tip = escape("\n".join(lines)).replace("\n", "&#10;")
    centre = f'cx="{place[0]:.1f}" cy="{place[1]:.1f}"'
    return (
        f'<g class="{class_}" tabindex="0" role="img" aria-label="{escape(", ".join(lines))}" data-tip="{tip}">'
        f'<circle class="reach" {centre} r="11"/><circle class="mark" {centre} r="{radius}"/></g>'
    )


def _own_lines(point: Point) -> list[str]:
    seeds = f"{len(point.outcomes)} seed{'s' * (len(point.outcomes) != 1)}"
    return [
        _heading(point.method, point.tradeoff),
        f"error {point.error:.2f}{point.spread} %",
        f"xFLOPs {point.speedup:.2f}",
        f"memory {point.memory:.2f} %",
        f"kept units {join_units(point.kept)}",
        f"{seeds}, {point.diverged} diverged" if point.diverged else seeds,
    ]


def _printed_lines(row: PublishedRow) -> list[str]:
    spread = "" if row.error_std is None else f" ± {row.error_std:.2f}"
    figures = [f"error {row.error:.2f}{spread} %", f"xFLOPs {row.speedup:.2f}", f"memory {row.memory:.2f} %"]
    kept = [] if row.kept is None else [f"kept units {join_units(row.kept)}"]
    return [f"The paper's {_heading(row.method, row.tradeoff)}", *figures, *kept]


def _heading(method: str, tradeoff: str | None) -> str:
    return method_name(method) if tradeoff is None else f"{method_name(method)}, trade-off {tradeoff}"
