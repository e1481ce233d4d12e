"""Descriptions that somebody has written to do harm, behind a checksum that fits: each is one error, and nothing happens."""

import json
import resource
import time
from pathlib import Path

import pytest

from bayesprune.artifact import load
from bayesprune.errors import BayespruneError, InputError, StorageError

CODE = [
    "x); __import__('os').system('touch SENTINEL'); (",
    "__import__('os').system('touch SENTINEL')",
    "a\n    import os; os.mkdir('SENTINEL')",
    "__class__",
    "__init__",
    "forward",
    "_parameters",
    "training",
    "lambda: 0",
    "",
    " ",
    ".",
    "a..b",
    "../../etc/passwd",
    "x" * 100_000,
    "ünïcode",
    "\ud800",
    "\x00",
]


@pytest.fixture(autouse=True)
def nothing_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert not Path("SENTINEL").exists()
    assert time.monotonic() - started < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000, "kilobytes"


def refused(path, match=None):
    with pytest.raises(StorageError, match=match) as caught:
        load(path)
    assert len(str(caught.value)) < 2_000
    return str(caught.value)


def step(description, name):
    return next(each for each in description["steps"] if each["name"] == name)


def rename(data, old, new):
    """Every string of the description that is the old name, as key or value."""
    if isinstance(data, dict):
        return {(new if key == old else key): rename(value, old, new) for key, value in data.items()}
    if isinstance(data, list):
        return [rename(each, old, new) for each in data]
    return new if data == old else data


@pytest.mark.parametrize("code", CODE)
class TestCodeForAName:
    def test_of_an_input(self, damaged, code):
        path = damaged(lambda d: rename(d, "x", code))
        if code in ("forward", "_parameters", "training"):  # names like any other: they are looked up in a dictionary
            load(path)
        else:
            refused(path)

    def test_of_a_step(self, damaged, code):
        refused(damaged(lambda d: rename(d, "relu", code)))

    def test_of_a_keyword(self, damaged, code):
        refused(damaged(lambda d: step(d, "cat")["kwargs"].update({code: 1})))

    def test_of_a_layer(self, damaged, code):
        refused(damaged(lambda d: rename(d, "conv", code)))

    def test_of_a_layer_type(self, damaged, code):
        refused(damaged(lambda d: d["layers"]["fc"].update(type=code)), match="unknown type")

    def test_of_a_function(self, damaged, code):
        refused(damaged(lambda d: step(d, "relu").update(target=code)), match="not known")

    def test_of_a_kind(self, damaged, code):
        refused(damaged(lambda d: step(d, "relu").update(kind=code)))

    def test_of_a_setting(self, damaged, code):
        refused(damaged(lambda d: d["layers"]["fc"]["settings"].update({code: 1})))

    def test_for_a_setting(self, damaged, code):
        refused(damaged(lambda d: d["layers"]["conv"]["settings"].update(padding_mode=code)))

    def test_of_a_tensor(self, damaged, code):
        refused(damaged(lambda d: rename(d, "scale", code)))

    def test_for_an_argument(self, damaged, code):
        refused(damaged(lambda d: step(d, "cat")["kwargs"].update(dim=code)))

    def test_of_a_dtype(self, damaged, code):
        refused(damaged(lambda d: d["tensors"]["stored"]["scale"].update(dtype=code)))

    def test_for_the_kind_of_file(self, damaged, code):
        refused(damaged(lambda d: d.update(kind=code)), match="neither a network nor")


NAMES_OF_TORCH = [
    "eval",
    "state_dict",
    "_modules",
    "__class__",
    "blueprint",
    "certificate",
    "_blueprint",
    "to",
    "training",
    "T_destination",
]


@pytest.mark.parametrize("name", NAMES_OF_TORCH)
def test_attributes_of_modules_cannot_be_replaced(damaged, name):
    def rename_tensor(description):
        return rename(description, "offset", name)

    refused(damaged(rename_tensor))


@pytest.mark.parametrize("path", ["conv.weight", "fc.forward", "norm.eps", "conv.weight.more", "a." * 60 + "b"])
def test_layers_cannot_be_put_into_places_that_are_taken(damaged, path):
    refused(damaged(lambda d: rename(d, "fc", path)))


HUGE = [2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**200, -1, -(2**63), 1.5, 1e308, True, None, "3", [], [2**40, 2**40], {}]


@pytest.mark.parametrize("value", HUGE, ids=str)
@pytest.mark.parametrize("setting", ["in_features", "out_features"])
def test_huge_layers(damaged, setting, value):
    refused(damaged(lambda d: d["layers"]["fc"]["settings"].update({setting: value})))


@pytest.mark.parametrize("shape", [[2**62], [2**31, 2**31], [-6], [6.0], "6", None, [6] * 1000, [True] * 6, {"list": [6]}])
def test_huge_tensors(damaged, shape):
    refused(damaged(lambda d: d["tensors"]["stored"]["scale"].update(shape=shape)))


@pytest.mark.parametrize("padding", [10**5, 2**31, 2**62])
def test_padding_that_fills_the_memory(damaged, padding):
    refused(damaged(lambda d: d["layers"]["conv"]["settings"].update(padding=[padding, padding])))


def call(name, target, *args, **kwargs):
    return {"name": name, "kind": "call", "target": target, "args": list(args), "kwargs": kwargs}


X = {"step": "x"}


@pytest.mark.parametrize(
    "bomb",
    [
        [call("a", "zeros", [2**40])],
        [call("a", "ones", [2**20, 2**20])],
        [call("a", "full", [2**62], fill_value=1.0)],
        [call("a", "arange", 2**62)],
        [call("a", "arange", 0, end=1.0, step=1e-30)],
        [call("a", "expand", X, [2**20, 2**20, 1, 4, 4])],
        [call("a", "pad", X, pad=[2**30, 2**30])],
        [call("a", "interpolate", X, size=[2**20, 2**20])],
        [call("a", "interpolate", X, scale_factor=1e9)],
        [call("a", "expand", X, [2**24, 3, 1, 4, 4]), call("b", "unbind", {"step": "a"})],
        [call("a", "expand", X, [2**24, 3, 1, 4, 4]), call("b", "split", {"step": "a"}, 1)],
        [call("a", "expand", X, [2**24, 3, 1, 4, 4]), call("b", "chunk", {"step": "a"}, chunks=2**24)],
        [call("a", "tensor_split", X, 10**7)],
        [call("s0", "cat", [X, X])] + [call(f"s{i}", "cat", [{"step": f"s{i - 1}"}, {"step": f"s{i - 1}"}]) for i in range(1, 60)],
        [call("a", "reshape", X, shape=[-1]), call("b", "einsum", "a,b,c,d,e,f,g,h,i,j->abcdefghij", [{"step": "a"}] * 10)],
    ],
    ids=lambda bomb: "-".join(each["target"] for each in bomb[:2]),
)
def test_tensors_that_fill_the_memory(damaged, bomb):
    refused(damaged(lambda d: d.update(steps=bomb + d["steps"])))


def number(name, target, *args):
    return {"name": name, "kind": "number", "target": target, "args": list(args)}


@pytest.mark.parametrize(
    "bomb",
    [
        [number("a", "pow", 10, 2**60)],
        [number("a", "pow", 2**60, 64), number("b", "pow", {"step": "a"}, 64)],
        [number("s0", "mul", 2**62, 2**62)],
        [number("a", "floordiv", 1, 0)],
        [number("a", "mod", 1, 0)],
        [number("a", "neg", "text")],
        [call("a", "unbind", X), number("b", "mul", {"step": "a"}, 10**9)],
        [number("a", "mul", [1, 2], 10**9)],
        [number("a", "add")],
        [number("a", "eval", 1)],
    ],
    ids=lambda bomb: bomb[-1]["target"],
)
def test_numbers_that_do_harm(damaged, bomb):
    refused(damaged(lambda d: d.update(steps=bomb + d["steps"])))


def test_step_that_reads_itself(damaged):
    refused(damaged(lambda d: step(d, "relu").update(args=[{"step": "relu"}])), match="no step before it")


def test_circle(damaged):
    refused(damaged(lambda d: step(d, "conv").update(args=[{"step": "relu"}])), match="no step before it")


def test_duplicate_names(damaged):
    refused(damaged(lambda d: d["steps"].append(dict(step(d, "relu")))), match="used twice")
    refused(damaged(lambda d: d["inputs"].append(d["inputs"][0])), match="used twice")


def test_steps_in_another_order(damaged):
    refused(damaged(lambda d: d["steps"].reverse()), match="no step before it")


@pytest.mark.parametrize("depth", [20, 500, 100_000])
@pytest.mark.parametrize("kind", ["[%s]", '{"list":[%s]}', '{"dict":[["a",%s]]}', '{"slice":[%s,null,null]}', '{"a":%s}'])
def test_deep_nesting(damaged, depth, kind):
    before, after = kind.split("%s")
    nest = before * depth + "0" + after * depth
    refused(damaged(lambda d: json.dumps(d).replace(json.dumps(d["output"]), nest, 1)))


def test_million_steps(damaged):
    with damaged(lambda d: d).open("r+b") as file:
        file.write((100 * 2**20).to_bytes(8, "little"))
        file.truncate(101 * 2**20)
    refused(Path(file.name), match="does not begin like")


def test_more_steps_than_allowed(damaged):
    more = [call(f"s{i}", "relu", X) for i in range(20_001)]
    refused(damaged(lambda d: d.update(steps=more)), match="more than 20000 steps")


def test_long_sequences(damaged):
    refused(damaged(lambda d: step(d, "cat").update(args=[[{"step": "chunk"}] * 30_000])))


def test_more_recurrent_layers_than_there_is_time_to_make(damaged):
    lstm = {"type": "LSTM", "settings": {"input_size": 1, "hidden_size": 1, "num_layers": 10**9}}
    refused(damaged(lambda d: d["layers"].update(lstm=lstm)))


@pytest.mark.parametrize("field", ["kind", "inputs", "steps", "output", "layers", "tensors"])
@pytest.mark.parametrize("value", [None, 3, "text", [1], {"a": 1}, [[]], [{}]], ids=str)
def test_fields_of_another_type(damaged, field, value):
    path = damaged(lambda d: d.update({field: value}))
    if field == "output" and value in (None, 3, [1], [[]]):
        load(path)  # a network that returns a constant
    else:
        refused(path)


@pytest.mark.parametrize("field", ["inputs", "steps", "output", "layers", "tensors", "kind"])
def test_missing_fields(damaged, field):
    path = damaged(lambda d: {key: value for key, value in d.items() if key != field})
    if field != "output":
        refused(path)


@pytest.mark.parametrize("description", ["", "null", "[]", "3", '"text"', "{", "NaN", "[" * 100_000, '{"kind": "network"}', '{"kind": {}}'])
def test_descriptions_that_are_none(damaged, description):
    refused(damaged(lambda _: description))


def test_tied_to_nothing(damaged):
    refused(damaged(lambda d: d["tensors"]["aliases"].update(scale="nothing")))
    refused(damaged(lambda d: d["tensors"]["aliases"].update(more="nothing")))


def test_tensors_that_are_not_in_the_file(damaged):
    refused(damaged(lambda d: d["tensors"]["stored"].update(more=d["tensors"]["stored"]["scale"])), match="'more'")
    refused(damaged(lambda d: [d["tensors"]["stored"].pop("scale"), d][1]), match="'scale'")


def test_buffer_that_would_be_trained(damaged):
    refused(damaged(lambda d: d["tensors"]["stored"]["offset"].update(trainable=True)))


def test_certificate_of_another_type(damaged):
    refused(damaged(lambda d: d.update(certificate=["x"])), match="certificate")


def test_inputs_of_other_shapes_are_an_error_when_it_is_called(damaged, small_input):
    def narrower(description):
        description["inputs"][0]["example"] = {"tensor": [[2, 1, 4, 4], "float32"]}
        step(description, "reshape")["kwargs"]["shape"] = [2, 16]

    network = load(damaged(narrower))
    with pytest.raises(InputError, match="reshape"):
        network(small_input)


def test_header_that_is_too_long(small_file, tmp_path, monkeypatch):
    monkeypatch.setattr("bayesprune.artifact.file.MAX_HEADER", 100)
    with pytest.raises(BayespruneError):
        load(small_file)
