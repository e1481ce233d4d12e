"""Where data sets are looked for on this machine."""

import os
from pathlib import Path

from bayesprune.errors import InputError

DATA_VARIABLE = "BAYESPRUNE_DATA"


def named_folder(data_dir: str | Path | None) -> Path | None:
    """The folder the user named: the argument, else the environment variable ``BAYESPRUNE_DATA``, else none."""
    variable = os.environ.get(DATA_VARIABLE, "")
    if data_dir is None and not variable:
        return None
    folder = _expanded(variable if data_dir is None else data_dir)
    given = f"{DATA_VARIABLE} names {folder}, which" if data_dir is None else f"the data folder {folder}"
    try:
        is_file = folder.is_file()
    except OSError as error:
        raise InputError(f"{given} cannot be looked at ({error.strerror}): change its permissions or name another folder") from error
    if is_file:
        raise InputError(f"{given} is a file: give the folder that holds the data sets' files, such as {folder.parent}")
    return folder


def cache_folder() -> Path:
    """``bayesprune`` in the user's cache folder, which is ``XDG_CACHE_HOME`` where that is set."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification has relative paths ignored.
    return (cache if cache.is_absolute() else _expanded("~/.cache")) / "bayesprune"


def _expanded(path: str | Path) -> Path:
    try:
        return Path(path).expanduser()
    except TypeError as error:
        raise InputError(f"a data folder is a text or a pathlib.Path, not an object of type {type(path).__name__}") from error
    except RuntimeError as error:
        raise InputError(f"{path}: there is no such home folder; name a data folder or set {DATA_VARIABLE}") from error
