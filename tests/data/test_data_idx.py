import contextlib
import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from bayesprune.data import read_idx
from bayesprune.errors import DataError

CODES = {"uint8": 0x08, "int8": 0x09, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}
ARRAYS = st.sampled_from(sorted(CODES)).flatmap(
    lambda name: hnp.arrays(np.dtype(name), hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5))
)


def idx_bytes(array: NDArray[Any]) -> bytes:
    head = struct.pack(f">2xBB{array.ndim}I", CODES[array.dtype.name], array.ndim, *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def written(folder: Path, content: bytes, name: str = "some-idx") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(array=ARRAYS, compressed=st.booleans())
def test_round_trip(tmp_path: Path, array: NDArray[Any], compressed: bool) -> None:
    content = idx_bytes(array)
    read = read_idx(written(tmp_path, gzip.compress(content) if compressed else content))
    assert read.dtype == array.dtype
    assert read.dtype.isnative
    np.testing.assert_array_equal(read, array)
    assert read.flags.writeable


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(content=st.binary(max_size=64) | st.binary(max_size=40).map(lambda tail: b"\0\0\x08\x02" + tail))
def test_any_bytes_give_an_array_or_a_data_error(tmp_path: Path, content: bytes) -> None:
    with contextlib.suppress(DataError):
        assert read_idx(written(tmp_path, content)).nbytes <= len(content)


@pytest.mark.parametrize("name", ["images.gz", "images"])
def test_compression_is_seen_from_the_content(tmp_path: Path, name: str) -> None:
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for content in (idx_bytes(array), gzip.compress(idx_bytes(array))):
        np.testing.assert_array_equal(read_idx(written(tmp_path, content, name)), array)


GOOD = idx_bytes(np.arange(200, dtype=np.uint8).reshape(2, 10, 10))
SQUEEZED = gzip.compress(GOOD, mtime=0)  # Without the time: it would be part of a test's name.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SQUEEZED[:-12], "gzip file is truncated"),
        (SQUEEZED[:5], "gzip file is truncated"),
        (SQUEEZED[:-8] + bytes(8), "gzip file is damaged"),
        (SQUEEZED[:12] + b"\xff" * 20 + SQUEEZED[32:], "gzip file is damaged"),
        (SQUEEZED + b"garbage", "gzip file is damaged"),
        (GOOD[:-1], "truncated: the header says"),
        (GOOD + b"\0", "followed by bytes that do not belong to it"),
        (GOOD[:9], "truncated in its header"),
        (b"\0\1" + GOOD[2:], "wrong magic number 0x00010803"),
        (b"\0\0\x0a" + GOOD[3:], "wrong magic number"),
        (b"\0\0\x08\0", "wrong magic number"),
        (b"", "empty file"),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read_idx(written(tmp_path, content))
    assert "some-idx" in str(caught.value)


def test_web_page_in_place_of_a_gzip(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="neither a gzip nor an IDX file"):
        read_idx(written(tmp_path, b"<html>404</html>", "images.gz"))


@pytest.mark.parametrize("content", [struct.pack(">2xBB4I", 0x0E, 4, *[2**32 - 1] * 4), b"\0\0\x08\xff" + bytes(4 * 255)])
def test_header_with_impossible_dimensions(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(DataError, match=r"the header says|shape in its header"):
        read_idx(written(tmp_path, content))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        read_idx(tmp_path / "nothing")


def test_folder_in_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is a folder"):
        read_idx(tmp_path)


@pytest.mark.parametrize(("error", "message"), [(PermissionError(13, "denied"), "no permission"), (OSError(5, "I/O error"), "I/O error")])
def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, message: str) -> None:
    def refuse(self: Path) -> bytes:
        raise error

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "images")
