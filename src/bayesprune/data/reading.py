"""Reading files of a data set, with errors that say which file and what to do."""

from importlib.resources.abc import Traversable
from pathlib import Path

from bayesprune.errors import DataError


def read_file(path: Traversable) -> bytes:
    """The whole content of a file on disk or inside the package."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file; put it there or name another folder") from error
    except IsADirectoryError as error:
        raise DataError(f"{path}: is a folder where a file was expected; name the folder that holds the files themselves") from error
    except PermissionError as error:
        raise DataError(f"{path}: no permission to read it; change its permissions or its owner") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the disk or copy the file anew") from error


def names_in(folder: Path) -> frozenset[str]:
    """What lies in a folder; nothing, where there is no such folder."""
    try:
        return frozenset(entry.name for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError as error:
        raise DataError(
            f"{folder}: the folder cannot be read ({error.strerror or error}); change its permissions or name another"
        ) from error
