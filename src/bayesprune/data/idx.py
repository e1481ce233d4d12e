"""The IDX format of the MNIST files, plain or compressed with gzip.

A file is two zero bytes, a type code, the number of dimensions, each dimension as a big-endian 32-bit number, then the elements in
row-major order, big-endian too. Whether it is compressed is seen from its content: a browser may unpack a download and keep the name.
"""

import gzip
import math
import struct
import zlib
from importlib.resources.abc import Traversable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesprune.data.reading import read_file
from bayesprune.errors import DataError

IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Traversable) -> NDArray[Any]:
    """The array that an IDX file holds, in the machine's own byte order.

    Args:
        path: a file on disk or a resource of the package.

    Raises:
        DataError: the file is missing, unreadable, damaged, or not an IDX file.
    """
    content = read_file(path)
    if content.startswith(GZIP_MAGIC):
        content = _decompressed(content, path)
    return _decoded(content, path)


def _decompressed(content: bytes, path: Traversable) -> bytes:
    try:
        return gzip.decompress(content)
    except EOFError as error:
        raise DataError(f"{path}: the gzip file is truncated; download or copy it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip file is damaged ({error}); download or copy it again") from error


def _decoded(content: bytes, path: Traversable) -> NDArray[Any]:
    magic = content[:4]
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in IDX_TYPES or magic[3] == 0:
        kind = "neither a gzip nor an IDX file" if path.name.endswith(".gz") else "not an IDX file"
        raise DataError(f"{path}: {kind}, wrong magic number 0x{magic.hex() or '(empty file)'}; get the original file again")
    dtype, dimensions = np.dtype(IDX_TYPES[magic[2]]), magic[3]
    header = 4 + 4 * dimensions
    if len(content) < header:
        raise DataError(f"{path}: truncated in its header ({len(content)} bytes of {header}); get the original file again")
    shape = struct.unpack(f">{dimensions}I", content[4:header])
    expected = math.prod(shape) * dtype.itemsize
    actual = len(content) - header
    if actual != expected:
        # Compared before anything is allocated: a damaged header may claim more elements than any memory holds.
        fault = "truncated" if actual < expected else "followed by bytes that do not belong to it"
        raise DataError(
            f"{path}: the data is {fault}: the header says {shape}, {expected} bytes, there are {actual}; get the original file again"
        )
    try:
        flat = np.frombuffer(content, dtype, offset=header) if expected else np.empty(0, dtype)
        return flat.reshape(shape).astype(dtype.newbyteorder("="))
    except ValueError as error:
        raise DataError(
            f"{path}: the shape in its header, {shape}, is not one that can be held ({error}); get the original file again"
        ) from error
