"""The rows that a reproduction writes, a JSON object a line: what each says of one trained model, and how they are read."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesprune.errors import ResultsError, did_you_mean
from bayesprune.experiments.fields import Fields, read_fields
from bayesprune.experiments.protocol import PLACEMENTS, Entry
from bayesprune.experiments.published import METHODS, WITHOUT_TRADEOFF, is_printed_number
from bayesprune.models.zoo import NETWORKS, gate_places
from bayesprune.training.plan import PRECISIONS
from bayesprune.training.stages import DIVERGED, FINISHED


@dataclass(frozen=True)
class Size:
    """What is left of a network.

    Attributes:
        kept: units of each gate.
        speedup: dense over pruned FLOPs, as the paper counts them.
        memory: in percent of the dense network's.
    """

    kept: tuple[float, ...]
    speedup: float
    memory: float


@dataclass(frozen=True)
class Outcome(Size):
    """What is left of a network, and its test error in percent."""

    error: float


@dataclass(frozen=True)
class Look:
    """A look at a model while it was trained.

    Attributes:
        epoch: after which it was taken.
        seconds: since the beginning of the stage.
        error: of the test, in percent.
        kept: units of each gate.
    """

    epoch: int
    seconds: float
    error: float
    kept: tuple[float, ...]


@dataclass(frozen=True)
class ResultRow:
    """One trained model.

    Attributes:
        network: of the zoo.
        dataset: of the catalogue.
        method: key, or ``dense``.
        tradeoff: as the paper prints it; None where there is none.
        seed: of everything random.
        recipe: that it was trained by.
        outcome: None if it diverged.
        reason: why it diverged.
        epochs: of its stage; None if it diverged and does not say.
        seconds: of the stage of the fleet it was trained in; None if it diverged and does not say.
        side_by_side: how many models that fleet had.
        software: hardware, device and versions by name.
        thresholds: the same model, pruned at other thresholds.
        soft: the same model, by the paper's soft count.
        static_kept: units of the static gates below input-dependent ones.
        right_memory: of DBB, in percent, where the paper's count is one gate off; None where it is right.
        placement: of gates beside norms; None for a network without any.
        shrink: whether it was trained on a network that shrinks.
        precision: that its layers were computed in.
        history: looks at it, in the order of epochs; empty if none were kept.
        written: the row as it stands in the file, with whatever else it says.
    """

    network: str
    dataset: str
    method: str
    tradeoff: str | None
    seed: int
    recipe: str
    outcome: Outcome | None
    reason: str | None
    epochs: int | None
    seconds: float | None
    side_by_side: int
    software: Mapping[str, str]
    thresholds: Mapping[str, Outcome]
    soft: Size | None
    static_kept: tuple[float, ...] | None
    right_memory: float | None
    placement: str | None
    shrink: bool
    precision: str
    history: tuple[Look, ...]
    written: dict[str, Any]

    @property
    def entry(self) -> Entry:
        """Which row of the tables it is."""
        return Entry(self.method, self.tradeoff, self.seed)


SLOWEST = 1e-3
"""No network becomes slower by more."""
STAGE_RECIPE = "stage_recipe"
"""Where a row says what its recipe's name meant for its stage; earlier versions did not write it down."""
_ORIGIN = ("hardware", "device", "torch", "python", "version")


def read_result_rows(path: Path) -> list[ResultRow]:
    """The rows of a file, one for each of its lines.

    Raises:
        ResultsError: a line is no such row, or is there a second time.
        StorageError: the file cannot be read.
    """
    rows, seen = [], set()
    for fields in read_fields(path, "a reproduction"):
        row = _parse(fields)
        identity = (row.network, row.dataset, row.entry)
        if identity in seen:
            raise ResultsError(f"{fields.place} has {row.entry.title} a second time; take one of them out")
        seen.add(identity)
        rows.append(row)
    return rows


def _parse(fields: Fields) -> ResultRow:
    finished = _known(fields, "status", (FINISHED, DIVERGED)) == FINISHED
    network, method = _known(fields, "network", NETWORKS), _known(fields, "method", METHODS)
    gates = [place.units for place in gate_places(network)]
    return ResultRow(
        network=network,
        dataset=fields.text("dataset"),
        method=method,
        tradeoff=_tradeoff(fields, method),
        seed=fields.whole("seed"),
        recipe=fields.text("recipe"),
        outcome=_outcome(fields, gates) if finished else None,
        reason=None if finished else fields.text("reason"),
        epochs=fields.whole("epochs", 0) if finished or fields.has("epochs") else None,
        seconds=fields.number("seconds") if finished or fields.has("seconds") else None,
        side_by_side=fields.whole("side_by_side", 1),
        software={name: fields.text(name) for name in _ORIGIN},
        thresholds=_thresholds(fields.part("thresholds"), gates) if finished and fields.has("thresholds") else {},
        soft=_size(fields.part("soft"), gates) if finished and fields.has("soft") else None,
        static_kept=fields.units("static_kept", gates) if finished and fields.has("static_kept") else None,
        right_memory=fields.number("right_memory") if finished and fields.has("right_memory") else None,
        placement=_known(fields, "placement", PLACEMENTS) if fields.has("placement") else None,
        shrink=fields.has("shrink") and fields.flag("shrink"),
        precision=_known(fields, "precision", PRECISIONS) if fields.has("precision") else "float32",
        history=tuple(_look(look, gates) for look in fields.parts("history")) if finished and fields.has("history") else (),
        written=dict(fields.values),
    )


def _known(fields: Fields, name: str, known: Collection[str]) -> str:
    value = fields.text(name)
    if value not in known:
        fields.refuse(f"no {name} is called '{value}': there are {', '.join(known)}.{did_you_mean(value, known)}")
    return value


def _tradeoff(fields: Fields, method: str) -> str | None:
    if method in WITHOUT_TRADEOFF:
        if fields.raw("tradeoff") is not None:
            fields.refuse(f"{method} has no 'tradeoff'")
        return None
    text = fields.text("tradeoff")
    if not is_printed_number(text):
        fields.refuse(f"'tradeoff' is not a number as the paper prints them, such as 0.1/60000, but '{text}'")
    return text


def _thresholds(fields: Fields, gates: Sequence[int]) -> dict[str, Outcome]:
    for name in fields.values:
        if not is_printed_number(name):
            fields.refuse(f"'{name}' is no threshold")
    return {name: _outcome(fields.part(name), gates) for name in fields.values}


def _outcome(fields: Fields, gates: Sequence[int]) -> Outcome:
    size = _size(fields, gates)
    return Outcome(size.kept, size.speedup, size.memory, fields.number("error", most=100.0))


def _size(fields: Fields, gates: Sequence[int]) -> Size:
    return Size(fields.units("kept", gates), fields.number("speedup", SLOWEST), fields.number("memory"))


def _look(fields: Fields, gates: Sequence[int]) -> Look:
    return Look(fields.whole("epoch", 0), fields.number("seconds"), fields.number("error", most=100.0), fields.units("kept", gates))
