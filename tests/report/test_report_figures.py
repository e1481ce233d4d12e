import struct
import zlib

import numpy as np
import pytest

from bayesprune.errors import StorageError
from bayesprune.report import draw_kept_units
from bayesprune.report.figures.kept_units import _times


def rows_of(stages, gates, epochs=3, error=2.0):
    return [
        {
            "stage": stage,
            "epoch": epoch,
            "loss": 1.0,
            "error": error,
            "kept": [100.0 / (index + epoch) for index in range(gates)],
            "speedup": 2.0,
            "memory": 50.0,
            "seconds": 1.5 * epoch,
        }
        for stage in stages
        for epoch in range(1, epochs + 1)
    ]


def read_png(path):
    """Width, height and pixels, from the file's own chunks, whose checksums must be right."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    place, data = 8, b""
    while place < len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        kind, body = content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        (checksum,) = struct.unpack(">I", content[place + 8 + length : place + 12 + length])
        assert checksum == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height = struct.unpack(">II", body[:8])
        data += body if kind == b"IDAT" else b""
        place += 12 + length
    assert kind == b"IEND"
    return width, height, np.frombuffer(zlib.decompress(data), np.uint8)


@pytest.mark.parametrize("stages", [("dense",), ("dense", "pruned"), ("dense", "pruned", "dependent")])
@pytest.mark.parametrize("gates", [1, 3, 15])
def test_figure_is_a_picture(tmp_path, stages, gates):
    path = tmp_path / "kept.png"
    draw_kept_units(rows_of(stages, gates), [100] * gates, [f"layer{index}.input_gate" for index in range(gates)], path)
    width, height, pixels = read_png(path)
    assert 800 <= width <= 2000
    assert 500 <= height <= 1500
    assert len(np.unique(pixels)) > 20
    assert 10_000 < path.stat().st_size < 500_000
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "rows",
    [
        rows_of(("dense",), 2, epochs=1),
        rows_of(("dense", "pruned"), 2, error=None),
        rows_of(("dense", "pruned"), 2, error=0.0),
        [row | {"kept": [0, 0]} for row in rows_of(("dense", "pruned"), 2)],
        [row | {"seconds": 0.0} for row in rows_of(("dense",), 2)],
    ],
    ids=["one epoch", "no errors", "no mistakes", "nothing kept", "no time"],
)
def test_unusual_runs(tmp_path, rows):
    draw_kept_units(rows, [100, 0], ["a.input_gate", "b.c.output_gate"], tmp_path / "kept.png")
    read_png(tmp_path / "kept.png")


def test_same_rows_same_picture(tmp_path):
    for name in ("first.png", "second.png"):
        draw_kept_units(rows_of(("dense", "pruned"), 2), [100, 100], ["a", "b"], tmp_path / name)
    assert (tmp_path / "first.png").read_bytes() == (tmp_path / "second.png").read_bytes()


def test_figure_shows_the_rows(tmp_path):
    rows = rows_of(("dense", "pruned"), 2)
    for name, changes in (("base", {}), ("kept", {"kept": [1, 2]}), ("error", {"error": 99.0}), ("seconds", {"seconds": 100.0})):
        draw_kept_units([*rows[:-1], rows[-1] | changes], [100, 100], ["a", "b"], tmp_path / f"{name}.png")
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 4


def test_time_goes_on_from_stage_to_stage():
    assert _times(rows_of(("dense", "pruned", "dependent"), 1, epochs=2)) == [1.5, 3.0, 4.5, 6.0, 7.5, 9.0]


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        draw_kept_units(rows_of(("dense",), 1), [100], ["a"], tmp_path / "file" / "kept.png")
