"""Fields of a row, each of the kind that it should be, or an error that says which file and line is wrong."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from bayesprune.errors import ResultsError
from bayesprune.storage import read_rows

_MISSING = object()
LARGEST = 10**12
"""More than any number in a row."""
_SHOWN = 200


@dataclass(frozen=True)
class Fields:
    """The fields of a row or of a part of it.

    Attributes:
        values: as they were read.
        place: where they stand, for messages.
    """

    values: Mapping[str, Any]
    place: str

    def refuse(self, trouble: str) -> NoReturn:
        """Say what is wrong with this row."""
        raise ResultsError(f"{self.place}: {trouble}; put a good row in its place or take it out")

    def raw(self, name: str) -> Any:
        """A field as it is, which must be there."""
        value = self.values.get(name, _MISSING)
        if value is _MISSING:
            self.refuse(f"the field '{name}' is missing")
        return value

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.values.get(name) is not None

    def text(self, name: str) -> str:
        """A field that is a text."""
        value = self.raw(name)
        if not isinstance(value, str) or not _can_be_written(value):
            self.refuse(f"'{name}' is not a text but {value!r}")
        return value

    def flag(self, name: str) -> bool:
        """A field that is true or false."""
        value = self.raw(name)
        if not isinstance(value, bool):
            self.refuse(f"'{name}' is not true or false but {_short(value)}")
        return value

    def texts(self, name: str) -> list[str]:
        """A field that is a list of texts."""
        value = self.raw(name)
        if not isinstance(value, list) or not all(isinstance(part, str) and _can_be_written(part) for part in value):
            self.refuse(f"'{name}' is not a list of texts but {_short(value)}")
        return value

    def number(self, name: str, least: float = 0.0, most: float = LARGEST) -> float:
        """A field that is a number, and one that makes sense."""
        value = self.raw(name)
        if not _is_number(value) or not least <= value <= most:
            bounds = f"of at least {least:g}" if most == LARGEST else f"from {least:g} to {most:g}"
            self.refuse(f"'{name}' is not a number {bounds} but {_short(value)}")
        return float(value)

    def whole(self, name: str, least: int = -LARGEST) -> int:
        """A field that is a whole number."""
        value = self.raw(name)
        if not _is_number(value) or not isinstance(value, int) or not least <= value <= LARGEST:
            self.refuse(f"'{name}' is not a whole number{'' if least == -LARGEST else f' of at least {least}'} but {_short(value)}")
        return value

    def units(self, name: str, most: Sequence[int]) -> tuple[float, ...]:
        """A field that is a list of counts, one for each gate, which has so many units."""
        value = self.raw(name)
        if not isinstance(value, list) or len(value) != len(most) or not all(map(_is_count, value, most)):
            there = "-".join(str(units) for units in most)
            self.refuse(f"'{name}' is not a list of the units of {len(most)} gates, at most {there}, but {_short(value)}")
        return tuple(float(count) for count in value)

    def part(self, name: str) -> "Fields":
        """A field that has fields itself."""
        value = self.raw(name)
        if not isinstance(value, dict):
            self.refuse(f"'{name}' has no fields but is {value!r}")
        return Fields(value, f"{self.place}, {name}")

    def parts(self, name: str) -> "list[Fields]":
        """A field that is a list of parts, each with fields itself."""
        value = self.raw(name)
        if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
            self.refuse(f"'{name}' is not a list of parts with fields but {value!r}")
        return [Fields(part, f"{self.place}, {name}, part {number}") for number, part in enumerate(value, start=1)]


def read_fields(path: Path, of: str) -> Iterator[Fields]:
    """The fields of every line of a JSONL file.

    Args:
        path: of the file.
        of: what its rows are of, for messages.

    Raises:
        ResultsError: a line has no fields.
        StorageError: the file cannot be read.
    """
    for number, values in enumerate(read_rows(path), start=1):
        place = f"{path}, line {number}"
        if not isinstance(values, dict):
            raise ResultsError(f"{place} is no row of {of}; put a good one in its place or take it out")
        yield Fields(values, place)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any, most: int) -> bool:
    return _is_number(value) and 0 <= value <= most


def _short(value: object) -> str:
    """A value as it is shown, if it is not too long for that."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _can_be_written(text: str) -> bool:
    """Whether a text is one in any file: half of a pair of surrogates is not."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
