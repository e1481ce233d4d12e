"""Files that cannot be written or read, and models that cannot be saved, say what to do."""

import errno
import os
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import fx, nn

from bayesprune import storage
from bayesprune.artifact import file, load, read_description, save
from bayesprune.errors import BayespruneError, InputError, StorageError
from bayesprune.graph import trace

X = torch.randn(2, 3)


def linear():
    return nn.Sequential(nn.Linear(3, 2))


def test_missing_folder(tmp_path):
    with pytest.raises(StorageError, match="No such file"):
        save(linear(), tmp_path / "nowhere" / "a.safetensors", example_inputs=X)


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC, errno.EROFS])
def test_disk_refuses(code, tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    save(linear(), path, example_inputs=X)
    before = path.read_bytes()

    def fail(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match=os.strerror(code)):
        save(linear(), path, example_inputs=X)
    assert path.read_bytes() == before
    assert not storage.unfinished_files(tmp_path)


def test_folder_instead_of_a_file(tmp_path):
    with pytest.raises(StorageError, match="it is a folder"):
        save(linear(), tmp_path, example_inputs=X)
    with pytest.raises(StorageError, match=r"cannot read .*: it is a folder\. Give the name of the file"):
        load(tmp_path)


def test_missing_file(tmp_path):
    with pytest.raises(StorageError, match="cannot read"):
        load(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x00" * 8, b"\xff" * 64, b"{}" * 100, (10).to_bytes(8, "little") + b"{" * 10])
def test_something_else(content, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(StorageError, match=r"a\.safetensors"):
        load(path)


@pytest.mark.parametrize("model", [linear, lambda: linear().state_dict()], ids=["model", "state"])
@pytest.mark.parametrize("archive", [True, False])
def test_file_of_torch_save(model, archive, tmp_path):
    torch.save(model(), tmp_path / "a.pt", _use_new_zipfile_serialization=archive)
    with pytest.raises(StorageError, match=r"a\.pt .* looks like a file of torch\.save\. Read it with torch\.load"):
        load(tmp_path / "a.pt")


def test_safetensors_of_another_program(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "a.safetensors", {"format": "pt"})
    with pytest.raises(StorageError, match="another program"):
        load(tmp_path / "a.safetensors")


def test_checkpoint_of_a_run(tmp_path):
    storage.write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(2)}, {"stage": "dense"})
    with pytest.raises(StorageError, match="checkpoint of a run"):
        load(tmp_path / "a.safetensors")


def test_newer_version(small_file, tmp_path, write_description):
    tensors, description = file.read(small_file)
    path = write_description(tmp_path / "a.safetensors", tensors, description, version="2")
    with pytest.raises(StorageError, match=r"newer bayesprune.*upgrade"):
        load(path)


@pytest.mark.parametrize("version", ["", "-1", "1.5", "x", "9" * 5000, "١"])
def test_version_that_is_no_number(version, small_file, tmp_path, write_description):
    tensors, description = file.read(small_file)
    with pytest.raises(StorageError):
        load(write_description(tmp_path / "a.safetensors", tensors, description, version=version))


def test_truncated_anywhere(small_file, tmp_path):
    content = small_file.read_bytes()
    path = tmp_path / "a.safetensors"
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(StorageError):
            load(path)


def test_changed_weight_is_noticed(small_file, tmp_path):
    content = bytearray(small_file.read_bytes())
    content[-3] ^= 1
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(StorageError, match="checksum"):
        load(tmp_path / "a")


def test_example_is_asked_for(tmp_path):
    with pytest.raises(InputError, match="example_inputs"):
        save(nn.Sequential(nn.Conv1d(3, 2, 1)), tmp_path / "a")
    graph = trace(linear(), X)
    for node in graph.graph.nodes:
        node.meta.clear()
    with pytest.raises(InputError, match="example_inputs"):
        save(graph, tmp_path / "a")
    save(graph, tmp_path / "a", example_inputs=X)


@pytest.mark.parametrize("model", [None, "model", torch.zeros(2), nn.Linear])
def test_not_a_module(model, tmp_path):
    with pytest.raises(InputError, match=r"nn\.Module"):
        save(model, tmp_path / "a")


class Unknown(nn.Module):
    def forward(self, x):
        return torch.special.bessel_j0(x)


class Opaque(nn.Module):
    def __init__(self):
        super().__init__()
        self.odd = nn.CosineSimilarity()

    def forward(self, x):
        return self.odd(x, x)


def hooked():
    model = linear()
    model[0].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return model


@pytest.mark.parametrize(("model", "named"), [(Unknown(), "bessel"), (Opaque(), "odd"), (hooked(), "'0'.*hook")])
def test_outside_of_the_closed_list(model, named, tmp_path):
    with pytest.raises(InputError, match=named):
        save(model, tmp_path / "a", example_inputs=X)
    assert not list(tmp_path.iterdir())


def test_graph_of_the_users_own_is_traced(tmp_path):
    model = linear()
    save(fx.symbolic_trace(model), tmp_path / "a", example_inputs=X)
    assert torch.equal(load(tmp_path / "a")(X), model(X))


def test_name_that_a_module_cannot_have(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.certificate = nn.Linear(3, 2)

        def forward(self, x):
            return self.certificate(x)

    with pytest.raises(InputError, match="certificate"):
        save(Odd(), tmp_path / "a", example_inputs=X)


@dataclass(frozen=True)
class Inner:
    kept: tuple[int, ...]
    share: float


@dataclass(frozen=True)
class Statement:
    error: float
    gates: dict[str, Inner]
    index: torch.Tensor
    count: np.int64


def test_certificate_and_cost_as_plain_json(tmp_path):
    statement = Statement(float("inf"), {"fc": Inner((1, 2), 0.5)}, torch.tensor([3, 4]), np.int64(7))
    save(linear(), tmp_path / "a", example_inputs=X, certificate=statement, cost={"macs": {1, 2}, "none": None})
    network = load(tmp_path / "a")
    expected = {"error": "inf", "gates": {"fc": {"kept": [1, 2], "share": 0.5}}, "index": [3, 4], "count": 7}
    assert network.certificate == expected == read_description(tmp_path / "a")["certificate"]
    assert network.cost_when_saved == {"macs": [1, 2], "none": None}


@pytest.mark.parametrize("statement", [3, "text", [1], {"a": object()}, {"a": lambda: 0}])
def test_statement_that_is_no_json(statement, tmp_path):
    with pytest.raises(InputError, match="certificate"):
        save(linear(), tmp_path / "a", example_inputs=X, certificate=statement)


def test_into_is_for_gates_only(small_file):
    with pytest.raises(InputError, match="without 'into'"):
        load(small_file, into=linear())


def test_larger_than_allowed(small_file):
    with pytest.raises(BayespruneError, match="max_elements"):
        load(small_file, max_elements=100)


def test_what_is_loaded_does_not_hang_on_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    model = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, 2))
    save(model, path, example_inputs=X)
    network = load(path)
    content = path.read_bytes()
    with path.open("r+b") as opened:
        opened.seek(len(content) - 40)
        opened.write(b"\xff" * 40)
        opened.truncate(len(content) // 2)
    assert torch.equal(network(X), model(X))
    assert all(parameter.data_ptr() % 16 == 0 for parameter in network.parameters())


@pytest.mark.parametrize("path", [None, 3, b"bytes", "a\0b", "\ud800"], ids=repr)
def test_paths_that_are_none(path):
    for use in (lambda: save(linear(), path, example_inputs=X), lambda: load(path), lambda: read_description(path)):
        with pytest.raises(InputError, match="is no path of a file"):
            use()


class Views(nn.Module):
    """Tensors of the same memory that are not the same numbers."""

    def __init__(self):
        super().__init__()
        numbers = torch.randn(3, dtype=torch.complex64)
        self.register_buffer("plain", numbers)
        self.register_buffer("conjugate", numbers.conj())
        self.register_buffer("imaginary", numbers.imag)
        self.register_buffer("negative", numbers.conj().imag)

    def forward(self, x):
        return x * self.plain + self.conjugate, x * self.imaginary + self.negative


def test_conjugates_and_negatives_are_not_tied(tmp_path):
    model = Views()
    save(model, tmp_path / "a", example_inputs=X)
    network = load(tmp_path / "a")
    for name, tensor in model.named_buffers():
        assert torch.equal(network.get_buffer(name), tensor), name


def test_name_that_is_too_long():
    with pytest.raises(StorageError, match="File name too long"):
        load("a" * 300)
    with pytest.raises(StorageError, match="File name too long"):
        save(linear(), "a" * 300, example_inputs=X)


def test_file_for_a_folder(tmp_path):
    (tmp_path / "f").touch()
    with pytest.raises(StorageError, match="f is not a folder: choose another one"):
        save(linear(), tmp_path / "f" / "x", example_inputs=X)


def test_cut_file_that_begins_like_a_pickle(tmp_path):
    (tmp_path / "a").write_bytes((640).to_bytes(8, "little") + b"{")
    with pytest.raises(StorageError, match="cut short"):
        load(tmp_path / "a")
