"""What was tried on validation images: settings of baselines that no publication gives, and candidates for a recipe of our own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, variance
from typing import Any

from bayesprune.experiments.fields import Fields, read_fields
from bayesprune.experiments.published import is_printed_number, tradeoff_value
from bayesprune.experiments.rows import SLOWEST
from bayesprune.experiments.settings import LAYER_PRICES, hyperparameters
from bayesprune.report.comparison.points import method_name
from bayesprune.report.document.sheets import EMPTY, Cell, Sheet, number, sheet, words
from bayesprune.storage import exists

TUNING, SEARCH = "tuning.jsonl", "recipe-search.jsonl"
_COMPARED_AT = 30.0
_FIRST_SEARCHED = "lenet-500-300"
"""The network of rows that do not say it."""
_USUAL: Mapping[str, Any] = {
    "weight_decay": 1e-4, "smoothing": 0.0, "confidence": 0.0, "consistency": 0.0, "gate_weights": [1.0, 1.0, 1.0], "rate": 1.0,
    "second_consistency": None, "in_proportion": False, "second_weights": [1.0, 1.0, 1.0], "perturbation": 0.0,
    "gate_speed": 1.0, "pretraining": 100, "schedule": "steps", "kl_warmup": 0.0,
}  # fmt: skip
"""The paper's settings: what differs from them is named."""
_CANDIDATE = ("program", "name", *(name for name in _USUAL if name not in ("schedule", "kl_warmup")))  # The last two are of the program.
"""What tells candidates apart: those of one name may have different settings."""
_SETTING = ("network", "method", "prices", "length_scale", "entropy_weight", "epochs")
"""What tells settings of baselines apart."""
_NAMES = {
    "gate_weights": "divergence by gate",
    "rate": "rates times",
    "second_consistency": "consistency in DBB",
    "in_proportion": "consistency in DBB over the trade-off",
    "second_weights": "divergence by gate in DBB",
    "perturbation": "second showing moved by",
    "gate_speed": "gates' rates times",
    "pretraining": "epochs of pretraining",
    "kl_warmup": "warm-up",
}


@dataclass(frozen=True)
class Trial:
    """A model, measured on validation images.

    Attributes:
        fields: of its row.
        network: that was trained.
        tradeoff: zero where there is none.
        error: in percent.
        speedup: dense over pruned FLOPs.
        epochs: of its stage.
        hardware: that it was trained on.
    """

    fields: Fields
    network: str
    tradeoff: float
    error: float
    speedup: float
    epochs: int
    hardware: str


@dataclass(frozen=True)
class Mean:
    """The mean of models that differ in their seeds."""

    tradeoff: float
    error: float
    speedup: float
    seeds: int


def trial_sheets(results: Path) -> list[Sheet]:
    """A table of baselines, and one of candidates for each network, where there are any.

    Raises:
        ResultsError: a row is not what it should be.
        StorageError: a file cannot be read.
    """
    tuned, searched = read_trials(results / TUNING), read_trials(results / SEARCH)
    sheets = [_tuning_sheet(tuned)] if tuned else []
    networks = dict.fromkeys(trial.network for trial in searched)
    return [*sheets, *(_search_sheet(network, [trial for trial in searched if trial.network == network]) for network in networks)]


def read_trials(path: Path) -> list[Trial]:
    """The rows of a file; none if there is no such file."""
    trials = []
    for fields in read_fields(path, "a trial") if exists(path) else ():
        error, speedup = fields.number("validation_error", most=100.0), fields.number("speedup", SLOWEST)
        network = fields.text("network") if fields.has("network") else _FIRST_SEARCHED
        trials.append(Trial(fields, network, _tradeoff(fields), error, speedup, fields.whole("epochs", 1), fields.text("hardware")))
    return trials


def means(trials: Sequence[Trial]) -> list[Mean]:
    """Over seeds, by trade-off."""
    found = []
    for tradeoff in sorted({trial.tradeoff for trial in trials}):
        own = [trial for trial in trials if trial.tradeoff == tradeoff]
        found.append(Mean(tradeoff, fmean(trial.error for trial in own), fmean(trial.speedup for trial in own), len(own)))
    return found


def error_at(points: Sequence[Mean], speedup: float) -> float | None:
    """The error at a speed-up between two points, on the straight line over its logarithm; None beyond them."""
    for low, high in pairwise(sorted(points, key=lambda point: point.speedup)):
        if low.speedup <= speedup <= high.speedup and low.speedup < high.speedup:
            share = math.log(speedup / low.speedup) / math.log(high.speedup / low.speedup)
            return low.error + share * (high.error - low.error)
    return None


def _tradeoff(fields: Fields) -> float:
    if fields.raw("tradeoff") is None:
        return 0.0
    if not isinstance(fields.raw("tradeoff"), str):
        return fields.number("tradeoff")
    text = fields.text("tradeoff")
    if not is_printed_number(text):
        fields.refuse(f"'tradeoff' is no number but '{text}'")
    return tradeoff_value(text)


def _tuning_sheet(trials: Sequence[Trial]) -> Sheet:
    lines = []
    for own in _grouped(trials, *_SETTING):
        fields = own[0].fields
        what = [words(own[0].network), words(method_name(fields.text("method"))), words(_baseline_setting(fields))]
        chosen = words("yes") if _is_chosen(fields) else EMPTY
        lines.append([*what, number(own[0].epochs, 0), _points(means(own)), chosen])
    headings = ("network", "method", "setting", "#epochs", "error % at xFLOPs, a trade-off after the other", "chosen")
    return sheet("Settings of baselines that no publication gives", headings, lines, _note(trials, _SETTING))


def _baseline_setting(fields: Fields) -> str:
    if fields.text("method") == "l0":
        return f"prices {', '.join(fields.texts('prices'))}"
    return f"length scale {fields.number('length_scale'):g}, entropy times {fields.number('entropy_weight'):g}"


def _is_chosen(fields: Fields) -> bool:
    """Whether these are the settings that `experiments/settings.py` has."""
    if fields.text("method") == "l0":
        prices = LAYER_PRICES.get(fields.text("network"))
        return prices is not None and fields.texts("prices") == [str(price) for price in prices]
    chosen = hyperparameters(fields.text("network"), fields.text("method"), 1.0, 1)
    return all(fields.raw(name) == value for name, value in chosen.items())


def _search_sheet(network: str, trials: Sequence[Trial]) -> Sheet:
    lines = []
    for own in _grouped(trials, *_CANDIDATE):
        bb, dbb = (means([trial for trial in own if trial.fields.text("stage") == stage]) for stage in ("bb", "dbb"))
        fields = own[0].fields
        there = error_at(dbb, _COMPARED_AT)
        tradeoffs = ", ".join(f"{tradeoff:g}" for tradeoff in sorted({trial.tradeoff for trial in own}))
        lines.append(
            [
                words(", ".join(_differing(fields)) or "the paper's"),
                words(fields.text("program")),
                Cell(" + ".join(dict.fromkeys(str(trial.epochs) for trial in own)), own[0].epochs),
                number(max(point.seeds for point in [*bb, *dbb]), 0),
                words(tradeoffs),
                _points(bb),
                _points(dbb),
                EMPTY if there is None else number(there),
            ]
        )
    headings = ("settings", "program", "#epochs", "#seeds", "trade-offs", "BB", "DBB", f"#DBB at {_COMPARED_AT:g}x")
    note = (
        f"{_note(trials, _CANDIDATE)} BB and DBB: mean error in percent at xFLOPs, a trade-off after the other; the last column is on the "
        f"line between two of them.{_noise(trials)}{_averaging(trials)}"
    )
    return sheet(f"Candidates for a recipe of our own, on {network}", headings, lines, note)


def _differing(fields: Fields) -> list[str]:
    """What a candidate has that the paper has not."""
    found = ["every image twice"] if fields.values.get("twice") and not fields.values.get("consistency") else []
    for name, usual in _USUAL.items():
        value = fields.values.get(name, usual)
        if value != usual and not (isinstance(value, list) and all(each == 1.0 for each in value)):
            title = _NAMES.get(name, name.replace("_", " "))
            found.append(title if value is True else f"{title} {_shown(value)}")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return _joined(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _noise(trials: Sequence[Trial]) -> str:
    """The standard error of the mean over seeds of an error, of all groups together, where there are several seeds."""
    groups = [[trial.error for trial in own] for own in _grouped(trials, *_CANDIDATE, "stage", "tradeoff")]
    several = [errors for errors in groups if len(errors) > 1]
    if not several:
        return ""
    error = math.sqrt(fmean(variance(errors) / len(errors) for errors in several))
    return f" Where there are several seeds, the standard error of a mean is about {error:.2f} points."


def _averaging(trials: Sequence[Trial]) -> str:
    """What averaging the weights over the second half of a stage did to the error, where rows say it."""
    changes = [trial.fields.number("averaged_error") - trial.error for trial in trials if trial.fields.has("averaged_error")]
    return f" Averaging the weights over the second half of a stage changes the error by {fmean(changes):+.3f} points." if changes else ""


def _points(points: Sequence[Mean]) -> Cell:
    """One after the other, each on one line."""
    return Cell(
        ", ".join(f"{point.error:.2f}\N{NO-BREAK SPACE}at\N{NO-BREAK SPACE}{point.speedup:.1f}x" for point in points),
        points[0].error if points else None,
    )


def _note(trials: Sequence[Trial], settings: Sequence[str]) -> str:
    models = _grouped(trials, *settings, "tradeoff", "seed")  # A model may have a row for each of its stages.
    hardware = sorted({trial.hardware for trial in trials})
    return (
        f"{len(models)} model{'s' * (len(models) != 1)} on {' and on '.join(hardware)}, trained without the last 10,000 training images "
        "and measured on them: no test image was looked at."
    )


def _grouped(trials: Sequence[Trial], *names: str) -> list[list[Trial]]:
    """Trials that agree in these fields, where they have them."""
    groups: dict[tuple[str, ...], list[Trial]] = {}
    for trial in trials:
        groups.setdefault(tuple(repr(trial.fields.values.get(name, _USUAL.get(name))) for name in names), []).append(trial)
    return list(groups.values())


def _joined(values: Sequence[float]) -> str:
    return "-".join(f"{value:g}" for value in values)
