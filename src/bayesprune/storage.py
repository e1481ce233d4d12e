"""Files that are either written whole or not at all, and tensors in them without pickle."""

import errno
import json
import os
import re
import reprlib
import secrets
import stat
import tomllib
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from bayesprune.errors import InputError, StorageError, one_line

_HEADER = "bayesprune"
_UNFINISHED = re.compile(r"\..+\.\d+(\.[0-9a-f]+)?\.part")


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path, which must be one that a file can have.

    Raises:
        InputError: it is no text, or has characters that no path has.
    """
    try:
        if b"\0" not in os.fsencode(Path(path)):
            return Path(path)
    except TypeError as error:
        raise InputError(
            f"{_shown(path)} is no path of a file: give a text or a pathlib.Path, not an object of type {type(path).__name__}"
        ) from error
    except ValueError as error:
        raise InputError(f"{_shown(path)} is no path of a file: {error}") from error
    raise InputError(f"{_shown(path)} is no path of a file: it contains a null character")


def _shown(path: Any) -> str:
    """Whatever was given for a path, which may be a tensor or a model, in a few words."""
    return one_line(repr(path) if isinstance(path, (str, Path)) else reprlib.repr(path))


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file durably: to a temporary name first, flushed to the disk, then renamed over the old one, whose permissions it keeps."""
    path = as_path(path)
    temporary = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part"
    try:
        permissions = _permissions(path)
        with temporary.open("xb") as file:
            if permissions is not None:
                temporary.chmod(permissions)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise StorageError(f"cannot write {path}: {error.strerror}; what was there before is untouched. {_advice(error, path)}") from error
    _sync_folder(path.parent)


def _advice(error: OSError, path: Path) -> str:
    """What to do about a file that cannot be written."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "Free some space or choose another folder"
        case errno.ENOENT:
            return f"Make the folder {path.parent} first or choose another one"
        case errno.ENOTDIR:
            return f"{path.parent} is not a folder: choose another one"
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return f"Choose a folder that you may write to, or get permission for {path.parent}"
        case errno.ENAMETOOLONG:
            return "Choose a shorter name"
        case _:
            return "Choose another folder"


def exists(path: Path) -> bool:
    """Whether there is anything at a path.

    Raises:
        StorageError: the system does not let us look.
    """
    return _mode(path) is not None


def is_folder(path: Path) -> bool:
    """Whether there is a folder at a path.

    Raises:
        StorageError: the system does not let us look.
    """
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    except OSError as error:
        raise StorageError(f"cannot look at {path}: {error.strerror}; change its permissions or choose another path") from error


def _permissions(path: Path) -> int | None:
    """Those of the file that is to be replaced; None if there is none."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise StorageError(f"cannot write {path}: it is a folder or a device, which no file can replace. Choose another name")
    return stat.S_IMODE(mode)


def files_in(folder: Path) -> list[Path]:
    """Whatever lies in a folder."""
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise StorageError(f"cannot read the folder {folder}: {error.strerror}; change its permissions or choose another one") from error


def unfinished_files(folder: Path) -> list[Path]:
    """What a process that was killed while it wrote has left in a folder."""
    return [path for path in files_in(folder) if _UNFINISHED.fullmatch(path.name)]


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed while it wrote has left in a folder."""
    for path in unfinished_files(folder):
        with suppress(OSError):
            path.unlink()


def write_json(path: Path, content: Any) -> None:
    """Write JSON durably, for people to read."""
    write_bytes(path, (json.dumps(content, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is damaged: {error}; put a good copy in its place, or choose another folder") from error


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}; give a TOML file that is there and may be read") from error
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is not a TOML file: {error}; mend it there, or give another file") from error


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one JSON row durably."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(f"cannot append to {path}: {error.strerror}") from error


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write a JSONL file durably."""
    write_bytes(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a JSONL file."""
    rows: list[dict[str, Any]] = []
    try:
        text = path.read_text(encoding="utf-8")
        for line in text.removesuffix("\n").split("\n") if text else []:
            rows.append(json.loads(line, parse_constant=_refuse_constant))  # noqa: PERF401 (their number says which line is damaged)
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StorageError(f"{path} is damaged: {error}") from error
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path} is damaged in line {len(rows) + 1}: {error}") from error
    return rows


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def make_folder(path: Path) -> None:
    """Make a folder and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {path}: {error.strerror}; choose another one") from error


def write_tensors(path: Path, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write tensors and a JSON description of them into one safetensors file, with a checksum."""
    plain = {name: plain_copy(tensor) for name, tensor in tensors.items()}
    content = {"checksum": checksum(plain, description), "description": dict(description)}
    write_bytes(path, save(plain, {_HEADER: json.dumps(content, allow_nan=False)}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read back what ``write_tensors`` wrote; nothing in the file is executed.

    Raises:
        StorageError: the file is missing, damaged, or not one of ours.
    """
    advice = "remove the file to start from what is before it, or put a good copy in its place"
    try:
        with safe_open(path, framework="pt") as file:
            tensors = own_tensors(file)
            header = json.loads((file.metadata() or {})[_HEADER])
            expected, description = header["checksum"], dict(header["description"])
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error}; {advice}") from error
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise StorageError(f"{path} is damaged: {error}; {advice}") from error
    if expected != checksum(tensors, description):
        raise StorageError(f"{path} is damaged: its checksum does not match; {advice}")
    return tensors, description


def plain_copy(tensor: Tensor) -> Tensor:
    """The elements of a tensor on the processor, in order, as they are: neither conjugated nor negated on the way."""
    return tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def own_tensors(file: Any) -> dict[str, Tensor]:
    """The tensors of an open file in memory of their own: what safetensors gives is a window onto a file that others may cut or change."""
    windows = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    copies = {name: torch.empty_like(window) for name, window in windows.items()}
    for name, copy in copies.items():
        _bytes(copy).copy_(_bytes(windows[name]))  # Not as elements: damaged booleans would be mended before the checksum sees them.
    return copies


def checksum(tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> int:
    """A number that changes with any tensor, name, type, shape or word of the description."""
    value = zlib.crc32(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        value = zlib.crc32(f"{name} {tensors[name].dtype} {tuple(tensors[name].shape)}".encode(), value)
        value = zlib.crc32(_bytes(tensors[name].detach().cpu().contiguous()).numpy().data, value)
    return value


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).view(torch.uint8)


def _sync_folder(folder: Path) -> None:
    """Make a rename durable, where the system can: Windows and some file systems have no such thing for folders."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
