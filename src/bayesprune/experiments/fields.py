"""Fields of a row, each of the kind that it should be, or an error that says which file and line is wrong."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from bayesprune.errors import ResultsError

_MISSING = object()


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
        if not isinstance(value, str):
            self.refuse(f"'{name}' is not a text but {value!r}")
        return value

    def number(self, name: str, least: float = 0.0) -> float:
        """A field that is a finite number, and not below the least that makes sense."""
        value = self.raw(name)
        if not _is_number(value) or value < least:
            self.refuse(f"'{name}' is not a number of at least {least:g} but {value!r}")
        return float(value)

    def whole(self, name: str, least: int | None = None) -> int:
        """A field that is a whole number."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int) or (least is not None and value < least):
            self.refuse(f"'{name}' is not a whole number{'' if least is None else f' of at least {least}'} but {value!r}")
        return value

    def units(self, name: str, gates: int) -> tuple[float, ...]:
        """A field that is a list of counts, one for each gate."""
        value = self.raw(name)
        if not isinstance(value, list) or len(value) != gates or not all(_is_number(count) and count >= 0 for count in value):
            self.refuse(f"'{name}' is not a list of the units of {gates} gates but {value!r}")
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
