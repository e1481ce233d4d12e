"""The check that every network makes of the sizes it is built with."""

from collections.abc import Mapping

from bayesprune.errors import InputError


def require_positive(sizes: Mapping[str, int]) -> None:
    """Raise `InputError` unless every size is a whole number of at least 1."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise InputError(f"{name} must be a whole number of at least 1, not {size!r}")
