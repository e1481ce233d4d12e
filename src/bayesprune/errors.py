"""What can go wrong, as types of our own.

Every error says what was wrong, where, and what to do about it. The command line turns any of them into one line and exit code 2.
"""

import difflib
import math
from collections.abc import Iterable


class BayespruneError(Exception):
    """The root of all errors that bayesprune raises on purpose."""


class BayespruneWarning(UserWarning):
    """Something works, but perhaps not as meant."""


class InputError(BayespruneError, ValueError):
    """An argument, option or model is not one that can be worked with."""


class DataError(BayespruneError):
    """A data set is missing, damaged or inconsistent."""


class StorageError(BayespruneError):
    """A file or folder cannot be read or written: damaged, no space, no permission."""


class RunFolderError(BayespruneError):
    """A run folder holds something other than what was asked for."""


class ResultsError(BayespruneError):
    """Rows of results are missing, incomplete, or of another kind than what a report takes."""


class DivergedError(BayespruneError, ArithmeticError):
    """Training produced a NaN or an infinity; the last good checkpoint is kept."""


class ClusterError(BayespruneError):
    """A cluster cannot be reached or used, or what it was given to do died there."""


def first_line(error: BaseException) -> str:
    """An error of somebody else's in one line."""
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


def one_line(text: str) -> str:
    """The text with line ends and whatever else a terminal would obey written out."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def is_number(value: object) -> bool:
    """Whether a value is a finite real number, of Python, numpy or torch; truth values and texts are none."""
    truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    if truth or isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        return False
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return False


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a message about an unknown name: the known one that is closest to it, if any is."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" Did you mean '{close[0]}'?" if close else ""


def how_to_install(extra: str) -> str:
    """The end of a message about a package that an extra of ours brings."""
    return f"install the extra {extra}, in a clone with pip install -e '.[{extra}]'"
