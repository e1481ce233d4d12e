"""The file of an artifact: tensors in the safetensors format, with a description in its header and a checksum over both."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as serialise
from torch import Tensor

from bayesprune.errors import InputError, StorageError, one_line
from bayesprune.storage import as_path, checksum, is_folder, own_tensors, plain_copy, write_bytes

FORMAT = "bayesprune artifact"
VERSION = 1
MAX_HEADER = 32 * 2**20
_PICKLED = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
"""How a file of ``torch.save`` begins: like an archive, and like a pickle before torch 1.6."""
_ADVICE = "Get a good copy of the file, or save the model again"


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
    """Write tensors and their description durably: the whole file or nothing."""
    target = file_to_write(path, "network.safetensors")
    text = json.dumps(description, allow_nan=False, separators=(",", ":"))
    if len(text) > MAX_HEADER // 2:
        raise InputError(f"the description of the model takes {len(text) >> 20} MB: it has too many steps for one file. Save it in parts")
    plain = {name: plain_copy(tensor) for name, tensor in tensors.items()}
    header = {"format": FORMAT, "version": str(VERSION), "checksum": str(_checksum(plain, text)), "description": text}
    write_bytes(target, serialise(plain, header))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read back what ``write`` wrote: nothing in the file is executed, and no more memory is taken than the file is long.

    Raises:
        StorageError: the file is missing, damaged, not one of ours, or from a newer version.
    """
    source = as_path(path)
    if is_folder(source):
        raise StorageError(f"cannot read {source}: it is a folder. Give the name of the file in it that bayesprune.save wrote")
    try:
        _check_header_size(source)
        with safe_open(source, framework="pt") as file:
            header = _header(source, file.metadata() or {})
            tensors = own_tensors(file)
            if header["checksum"] != str(_checksum(tensors, header["description"])):
                raise StorageError(f"{source} is damaged: its checksum does not match. {_ADVICE}")
        description = json.loads(header["description"])
    except OSError as error:
        raise StorageError(f"cannot read {source}: {error.strerror or error}. Check the path") from error
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise damaged(source, f"{str(error)[:200]}") from error
    if not isinstance(description, dict):
        raise damaged(source, "its description is no mapping")
    return tensors, description


def file_to_write(path: str | os.PathLike[str], such_as: str) -> Path:
    """The path, which must not be a folder."""
    target = as_path(path)
    if is_folder(target):
        raise StorageError(f"cannot write {target}: it is a folder. Give the name of a file in it, such as {target / such_as}")
    return target


def damaged(path: str | os.PathLike[str], reason: str) -> StorageError:
    """The error for a file that cannot be used."""
    return StorageError(f"{Path(path)} is damaged: {one_line(reason)}. {_ADVICE}")


def _checksum(tensors: Mapping[str, Tensor], text: str) -> int:
    return checksum(tensors, {"description": text})


def _check_header_size(path: Path) -> None:
    """Refuse to parse a header that is absurdly long; safetensors begins with its length in eight bytes."""
    with path.open("rb") as file:
        length = file.read(8)
        size = os.fstat(file.fileno()).st_size
    claimed = int.from_bytes(length, "little")
    if len(length) < 8 or not 2 <= claimed <= min(MAX_HEADER, size - 8):
        if claimed > MAX_HEADER and length.startswith(_PICKLED):  # A header of 640 bytes begins like a pickle too.
            raise StorageError(
                f"{path} was not written by bayesprune.save: it looks like a file of torch.save. Read it with torch.load, if you trust "
                "where it comes from, and write the model with bayesprune.save"
            )
        raise StorageError(
            f"{path} was not written by bayesprune.save, or is cut short: it does not begin like a safetensors file. {_ADVICE}"
        )


def _header(path: Path, metadata: Mapping[str, str]) -> dict[str, str]:
    if metadata.get("format") != FORMAT:
        kind = "a checkpoint of a run" if "bayesprune" in metadata else "a safetensors file of another program"
        raise StorageError(f"{path} was not written by bayesprune.save: it is {kind}. Give a file that bayesprune.save wrote")
    version = metadata.get("version", "")
    if not version.isascii() or not version.isdecimal() or len(version) > 9:
        raise damaged(path, "its version is no number")
    if int(version) > VERSION:
        raise StorageError(f"{path} was written by a newer bayesprune (format {version}, here {VERSION}): upgrade bayesprune to read it")
    return {"checksum": metadata["checksum"], "description": metadata["description"]}
