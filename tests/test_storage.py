import errno
import json
import os
import stat
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

from bayesprune import storage
from bayesprune.errors import StorageError

TENSORS = {
    "float": torch.arange(6.0).reshape(2, 3),
    "double": torch.tensor([1 / 3, -0.0, 1e-300], dtype=torch.float64),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "int": torch.tensor([-1, 2**40]),
    "byte": torch.tensor([0, 255], dtype=torch.uint8),
    "bool": torch.tensor([[True], [False]]),
    "scalar": torch.tensor(7.25),
    "flag": torch.tensor(True),
    "empty": torch.zeros(0, 3),
    "not finite": torch.tensor([torch.nan, torch.inf, -torch.inf]),
}
DESCRIPTION = {"stage": "dense", "epoch": 3, "rows": [{"loss": 0.1, "kept": [1, 2.5]}], "result": None}


def same_tensors(left, right):
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and torch.allclose(left[name], right[name], rtol=0, atol=0, equal_nan=True)
        for name in left
    )


def fail_with(code):
    def fail(*arguments, **options):
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture(scope="module")
def content(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "good.safetensors"
    storage.write_tensors(path, TENSORS, DESCRIPTION)
    return path.read_bytes()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "damaged.safetensors"


WRITERS = {
    "bytes": lambda path: storage.write_bytes(path, b"new"),
    "json": lambda path: storage.write_json(path, {"new": 1}),
    "rows": lambda path: storage.write_rows(path, [{"new": 1}]),
    "tensors": lambda path: storage.write_tensors(path, {"new": torch.ones(3)}, {}),
}


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
@pytest.mark.parametrize("fault", ["fsync", "replace", "write"])
def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch, writer, fault):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        if fault == "fsync":
            patch.setattr(os, "fsync", fail_with(errno.ENOSPC))
        elif fault == "replace":
            patch.setattr(Path, "replace", fail_with(errno.ENOSPC))
            patch.setattr(os, "replace", fail_with(errno.ENOSPC))
        else:
            patch.setattr(Path, "open", fail_with(errno.ENOSPC))
        with pytest.raises(StorageError, match="No space left") as raised:
            writer(path)
    assert str(path) in str(raised.value)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    writer(path)
    assert path.read_bytes() != b"old"


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_write_where_there_is_no_folder(tmp_path, writer):
    (tmp_path / "file").write_text("a file where a folder should be")
    for path in (tmp_path / "file" / "inside", tmp_path / "missing" / "inside"):
        with pytest.raises(StorageError, match="cannot write"):
            writer(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("writer", WRITERS.values(), ids=WRITERS)
def test_write_over_a_folder(tmp_path, writer):
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(StorageError, match="cannot write"):
        writer(tmp_path / "folder")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_folders_that_cannot_be_synced_are_written_to_all_the_same(tmp_path, monkeypatch):
    """Some file systems, and Windows, do not sync folders; the file itself is safe by then."""
    sync = os.fsync

    def sync_files_only(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    storage.write_bytes(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_make_folder(tmp_path):
    storage.make_folder(tmp_path / "a" / "b")
    storage.make_folder(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="cannot make the folder"):
            storage.make_folder(path)


def test_json_round_trip(tmp_path):
    content = {"a": [1, 2.5, None, True], "é": "ü", "tiny": 5e-324, "third": 1 / 3}
    storage.write_json(tmp_path / "x.json", content)
    assert storage.read_json(tmp_path / "x.json") == content


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_nan(tmp_path, value):
    storage.write_json(tmp_path / "x.json", 1)
    with pytest.raises(ValueError, match="not JSON compliant"):
        storage.write_json(tmp_path / "x.json", {"loss": value})
    assert storage.read_json(tmp_path / "x.json") == 1


def test_rows_round_trip(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"epoch": 1, "note": "two\nlines\u2028and a separator"}, {"epoch": 2, "loss": 1 / 3}]
    storage.write_rows(path, rows[:1])
    storage.append_row(path, rows[1])
    assert storage.read_rows(path) == rows
    assert len(path.read_text().split("\n")) == 3
    storage.write_rows(path, [])
    assert storage.read_rows(path) == []


@pytest.mark.parametrize("reader", [storage.read_json, storage.read_rows])
@pytest.mark.parametrize(
    "bad", [b'{"a": 1', b"\xff\xfe\x00", b"nonsense", b'{"a": 1}\n{"a"', b"[" * 100_000], ids=lambda bad: str(bad[:20])
)
def test_damaged_json(tmp_path, reader, bad):
    path = tmp_path / "bad.json"
    path.write_bytes(bad)
    with pytest.raises(StorageError, match=r"bad\.json is damaged"):
        reader(path)


def test_toml(tmp_path):
    (tmp_path / "good.toml").write_text('x = 1\n[y]\nz = "ä"\n', encoding="utf-8")
    assert storage.read_toml(tmp_path / "good.toml") == {"x": 1, "y": {"z": "ä"}}


@pytest.mark.parametrize("bad", [b"x = [", b"x", b"\xff\xfe\x00", b"x = " + b"[" * 100_000], ids=lambda bad: str(bad[:20]))
def test_no_toml(tmp_path, bad):
    path = tmp_path / "bad.toml"
    path.write_bytes(bad)
    with pytest.raises(StorageError, match=r"bad\.toml is not a TOML file"):
        storage.read_toml(path)


@pytest.mark.parametrize("reader", [storage.read_json, storage.read_toml, storage.read_rows, storage.read_tensors])
def test_unreadable(tmp_path, reader):
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(StorageError, match=str(path)):
            reader(path)


def test_failed_append(tmp_path, monkeypatch):
    with pytest.raises(StorageError, match="cannot append"):
        storage.append_row(tmp_path / "missing" / "rows.jsonl", {"a": 1})
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO))
    with pytest.raises(StorageError, match="cannot append"):
        storage.append_row(tmp_path / "rows.jsonl", {"a": 1})


def test_tensors_round_trip(tmp_path):
    storage.write_tensors(tmp_path / "t", TENSORS, DESCRIPTION)
    tensors, description = storage.read_tensors(tmp_path / "t")
    assert same_tensors(tensors, TENSORS)
    assert description == DESCRIPTION
    storage.write_tensors(tmp_path / "none", {}, {})
    assert storage.read_tensors(tmp_path / "none") == ({}, {})


def test_tied_and_strided_tensors(tmp_path):
    tied = nn.Linear(3, 3)
    strided = torch.arange(24.0).reshape(2, 3, 4)
    tensors = {
        "tied": tied.weight,
        "tied again": tied.weight,
        "view": tied.weight[1:],
        "transposed": strided.transpose(0, 2),
        "stepped": strided[:, ::2, 1::2],
        "expanded": torch.tensor([2.0]).expand(5),
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    }
    storage.write_tensors(tmp_path / "t", tensors, {})
    found, _ = storage.read_tensors(tmp_path / "t")
    assert same_tensors(found, {name: tensor.detach() for name, tensor in tensors.items()})
    assert not any(tensor.requires_grad for tensor in found.values())


def test_read_tensors_do_not_depend_on_the_file(tmp_path):
    storage.write_tensors(tmp_path / "t", {"a": torch.ones(1000)}, {})
    tensors, _ = storage.read_tensors(tmp_path / "t")
    tensors["a"].add_(1)
    storage.write_tensors(tmp_path / "t", {"a": torch.zeros(1000)}, {})
    assert tensors["a"].eq(2).all()


def require_refused_or_right(path: Path) -> bool:
    """Damage is either noticed, with an error of our own, or has changed nothing that counts (white space, say)."""
    try:
        tensors, description = storage.read_tensors(path)
    except StorageError:
        return True
    assert same_tensors(tensors, TENSORS)
    assert description == DESCRIPTION
    return False


def test_truncated_anywhere(content, damaged):
    for length in range(len(content)):
        damaged.write_bytes(content[:length])
        assert require_refused_or_right(damaged), f"cut after {length} of {len(content)} bytes"


def test_every_byte_inverted(content, damaged):
    for place in range(len(content)):
        damaged.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        assert require_refused_or_right(damaged), f"byte {place} of {len(content)} inverted"


@given(data=st.data(), faults=st.integers(1, 3))
def test_bytes_replaced(content, damaged, data, faults):
    changed = bytearray(content)
    for _ in range(faults):
        # The header is where a change may still read well.
        place = data.draw(st.integers(0, len(content) - 1))
        changed[place] = data.draw(st.one_of(st.integers(0, 255), st.sampled_from(b'0123456789-.,:[]{}" BFIUC')))
    damaged.write_bytes(changed)
    require_refused_or_right(damaged)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'\\"epoch\\": 3', b'\\"epoch\\": 7'),
        (b'\\"stage\\": \\"dense\\"', b'\\"stage\\": \\"dance\\"'),
        (b'\\"loss\\": 0.1', b'\\"loss\\": 0.7'),
        (b'"dtype":"F32","shape":[2,3]', b'"dtype":"F32","shape":[3,2]'),
        (b'"dtype":"I64","shape":[2]', b'"dtype":"F64","shape":[2]'),
        (b'"double"', b'"dauble"'),
    ],
)
def test_header_that_reads_well_but_is_wrong(content, damaged, old, new):
    assert content.count(old) == 1
    damaged.write_bytes(content.replace(old, new))
    assert require_refused_or_right(damaged)


FOREIGN = {
    "without metadata": None,
    "of another program": {"format": "pt"},
    "not json": {"bayesprune": "{"},
    "a list": {"bayesprune": "[]"},
    "no checksum": {"bayesprune": json.dumps({"description": {}})},
    "no description": {"bayesprune": json.dumps({"checksum": 0})},
    "description not a mapping": {"bayesprune": json.dumps({"checksum": 0, "description": 3})},
    "another checksum": {"bayesprune": json.dumps({"checksum": 0, "description": {}})},
}


@pytest.mark.parametrize("metadata", FOREIGN.values(), ids=FOREIGN)
def test_foreign_safetensors(tmp_path, metadata):
    path = tmp_path / "foreign.safetensors"
    save_file({"weight": torch.ones(2)}, path, metadata)
    with pytest.raises(StorageError, match=r"foreign\.safetensors is damaged"):
        storage.read_tensors(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 64, b"PK\x03\x04 a pickle in a zip", b"\x02" + b"\0" * 7 + b"{}"])
def test_not_a_safetensors_file(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(StorageError):
        storage.read_tensors(tmp_path / "x")


def test_what_is_read_does_not_hang_on_the_file(tmp_path, content):
    path = tmp_path / "file"
    path.write_bytes(content)
    tensors, _ = storage.read_tensors(path)
    with path.open("r+b") as file:
        file.write(bytes(len(content)))
    assert same_tensors(tensors, TENSORS)


def test_conjugate_is_written_as_it_is(tmp_path):
    numbers = torch.randn(3, dtype=torch.complex64).conj()
    storage.write_tensors(tmp_path / "file", {"a": numbers, "b": numbers.imag}, {})
    tensors, _ = storage.read_tensors(tmp_path / "file")
    assert torch.equal(tensors["a"], numbers)
    assert torch.equal(tensors["b"], numbers.imag)
