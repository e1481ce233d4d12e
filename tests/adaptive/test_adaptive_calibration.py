"""Layers are measured once, and a file that is no good costs no more than the time to do it again."""

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from per_input_networks import from_gallery, masked
from torch import nn

import bayesprune as bp
from bayesprune.adaptive import calibration as module
from bayesprune.adaptive.calibration import Calibration, usual_path
from bayesprune.errors import StorageError

FOUND = {
    "full": 3.0,
    "look": 1.0,
    "ways": {"gather": [0.5, 0.25], "fused": [0.25, 0.5], "product": [0.5, 0.5], "whole product": [2.0, 0.0]},
    "native": [0.5, 0.5],
    "besides": 1.0,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["full", "look", "ways", "gather", "fused"]), inner),
    max_leaves=12,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "calibration.json"


@pytest.fixture
def measured(monkeypatch):
    """The shapes that were measured; nothing really is."""
    shapes = []

    def measure(layer, shape, native):
        shapes.append(tuple(shape))
        return json.loads(json.dumps(FOUND))

    monkeypatch.setattr(module, "_measure", measure)
    return shapes


def part(following=None, shape=(2, 8)):
    """A segment, its layer and the shape of its activation."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    parts = masked(x, 1, following or nn.Linear(8, 4))
    return parts.segments[0], parts.layers[0], x.shape


def chosen(path, *about, batch=1):
    """What a new process would choose; it writes down what it has measured."""
    calibration = Calibration(path)
    choice = calibration.choice(*(about or part()), batch)
    calibration.keep()
    return choice


def assert_is_found(choice):
    assert (choice.full, choice.look) == (3.0, 1.0)
    assert {way: (line.start, line.slope) for way, line in choice.ways.items()} == {"gather": (0.5, 0.25), "fused": (0.25, 0.5)}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("following", "shape", "ways"),
    [(nn.Linear(8, 4), (2, 8), {"gather", "fused"}), (nn.Conv2d(8, 4, 3), (2, 8, 5, 5), {"gather", "product", "whole product"})],
)
def test_a_layer_is_measured_in_all_its_ways(following, shape, ways, batch):
    choice = chosen(None, *part(following, shape), batch=batch)
    assert choice.batch == batch
    assert set(choice.ways) == ways
    numbers = [choice.full, choice.look, *(number for line in choice.ways.values() for number in (line.start, line.slope))]
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert choice.full > 0


def test_measuring_leaves_the_layer_as_it_was():
    segment, layer, shape = part(nn.Conv2d(8, 4, 3), (2, 8, 5, 5))
    weight = layer.by_unit.clone()
    state = torch.get_rng_state()
    chosen(None, segment, layer, shape)
    assert torch.equal(layer.by_unit, weight)
    assert torch.equal(torch.get_rng_state(), state)
    assert not layer.choices


def test_what_was_measured_is_not_measured_again(path, measured):
    assert_is_found(chosen(path))
    assert measured == [(1, 8)]
    assert_is_found(chosen(path))
    assert measured == [(1, 8)]


def test_without_a_file_nothing_is_written(tmp_path, measured, monkeypatch):
    monkeypatch.chdir(tmp_path)
    calibration = Calibration(None)
    for _ in range(2):
        assert_is_found(calibration.choice(*part(), 1))
    calibration.keep()
    assert measured == [(1, 8)]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "about",
    [
        lambda: (*part(), 2),
        lambda: (*part(nn.Linear(8, 5)), 1),
        lambda: (*part(shape=(2, 9), following=nn.Linear(9, 4)), 1),
        lambda: (*part(nn.Sequential(nn.ReLU(), nn.Linear(8, 4))), 1),
    ],
    ids=["batch", "outputs", "units", "between"],
)
def test_what_differs_is_measured(path, measured, about):
    chosen(path)
    *other, batch = about()
    chosen(path, *other, batch=batch)
    assert len(measured) == 2
    chosen(path)
    chosen(path, *other, batch=batch)
    assert len(measured) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3, stride=2)),
        (nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3, padding=1)),
        (nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, 3, dilation=2)),
        (nn.Conv2d(8, 4, 3), nn.Conv2d(8, 4, (3, 1))),
    ],
)
def test_convolutions_differ_in_their_options(path, measured, one, other):
    for following in (one, other, one, other):
        chosen(path, *part(following, (2, 8, 9, 9)))
    assert len(measured) == 2


def test_threads_and_types_are_measured_apart(path, measured, monkeypatch):
    segment, layer, shape = part()
    chosen(path, segment, layer, shape)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 123)
    chosen(path, segment, layer, shape)
    chosen(path, segment, layer.double(), shape)
    assert len(measured) == 3


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"7", b'"text"', b"\xff\xfe\x00", b"[" * 100_000, b'{"a": 1} and more', b"\x00" * 1000],
    ids=repr,
)
def test_a_file_that_is_none_of_ours_is_replaced(path, measured, content):
    path.parent.mkdir()
    path.write_bytes(content)
    assert_is_found(chosen(path))
    assert_is_found(chosen(path))
    assert measured == [(1, 8)]


def test_a_file_that_breaks_off_is_replaced(path, measured):
    chosen(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 17):
        path.write_bytes(whole[:length])
        assert_is_found(chosen(path))
        assert json.loads(path.read_bytes()) == json.loads(whole)
    assert len(measured) == 1 + len(range(0, len(whole), 17))


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        "text",
        {},
        FOUND | {"full": "3"},
        FOUND | {"look": None},
        FOUND | {"full": math.nan},
        FOUND | {"full": math.inf},
        FOUND | {"full": 10**400},
        FOUND | {"ways": None},
        FOUND | {"ways": {"gather": [0.5, 0.25]}},
        FOUND | {"ways": {"gather": [0.5, 0.25], "fused": [0.5]}},
        FOUND | {"ways": {"gather": [0.5, 0.25, 1.0], "fused": [0.5]}},
        FOUND | {"ways": {"gather": "ab", "fused": [0.25, 0.5]}},
        FOUND | {"ways": {"gather": 5, "fused": [0.25, 0.5]}},
    ],
    ids=lambda entry: repr(entry)[:60],
)
def test_an_entry_that_cannot_be_is_measured_again(path, measured, entry):
    chosen(path)
    path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_bytes()), entry)))
    assert_is_found(chosen(path))
    assert len(measured) == 2
    assert_is_found(chosen(path))
    assert len(measured) == 2


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entry=JSON)
def test_no_entry_is_an_error(path, measured, entry):
    chosen(path)
    path.write_text(json.dumps(dict.fromkeys(json.loads(path.read_bytes()), entry)))
    choice = chosen(path)
    assert all(math.isfinite(number) for number in (choice.full, choice.look))
    assert set(choice.ways) == {"gather", "fused"}


def test_entries_of_others_stay(path, measured):
    path.parent.mkdir()
    path.write_text('{"another machine": {"full": 1}}')
    chosen(path)
    assert json.loads(path.read_bytes())["another machine"] == {"full": 1}


def test_two_processes_at_once_lose_nothing(path, measured):
    first, second = Calibration(path), Calibration(path)
    first.choice(*part(), 1)
    second.choice(*part(), 2)
    first.keep()
    second.keep()
    assert len(json.loads(path.read_bytes())) == 2


@pytest.mark.parametrize("obstacle", ["folder in its place", "file in place of the folder", "full disk"])
def test_a_file_that_cannot_be_written_stops_nobody(path, measured, monkeypatch, obstacle):
    def full(*_):
        raise StorageError("no space")

    if obstacle == "folder in its place":
        path.mkdir(parents=True)
    elif obstacle == "file in place of the folder":
        path.parent.write_text("not a folder")
    else:
        monkeypatch.setattr(module, "write_bytes", full)
    assert_is_found(chosen(path))
    assert_is_found(chosen(path))
    assert len(measured) == 2


@pytest.mark.parametrize("as_type", [Path, str])
def test_a_second_model_measures_nothing(path, measured, as_type):
    staged, inputs = from_gallery("mlp_functional")
    for _ in range(2):
        bp.AdaptiveModel(staged, inputs, batch_sizes=[1, 3], cache=as_type(path))
        assert len(measured) == 6


def test_by_default_the_file_is_in_the_cache_folder(tmp_path, measured):
    staged, inputs = from_gallery("mlp_functional")
    bp.AdaptiveModel(staged, inputs)
    assert len(json.loads((tmp_path / "bayesprune" / "calibration.json").read_bytes())) == 3


def test_the_cache_folder_is_where_the_user_keeps_it(tmp_path, monkeypatch):
    assert usual_path() == tmp_path / "bayesprune" / "calibration.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert usual_path() == tmp_path / "home" / ".cache" / "bayesprune" / "calibration.json"


def test_a_user_without_a_home_has_no_file(monkeypatch, measured):
    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nobody)
    assert usual_path() is None
    bp.AdaptiveModel(*from_gallery("mlp_functional"))
    assert measured


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there are no such devices")
def test_a_device_is_not_read():
    assert Calibration(Path("/dev/zero"))._known == {}
