"""Small files that would take long or fill the memory, when they are loaded or first used: each is refused at once."""

import json
import resource
import time

import pytest
import torch

from bayesprune.artifact import load
from bayesprune.errors import StorageError

X = {"step": "x"}


def call(name, target, *args, **kwargs):
    return {"name": name, "kind": "call", "target": target, "args": list(args), "kwargs": kwargs}


@pytest.fixture(autouse=True)
def quick_and_small():
    started = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert time.monotonic() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, "kilobytes"


def refused(path, match, **options):
    with pytest.raises(StorageError, match=match):
        load(path, **options)


@pytest.mark.parametrize("settings", [{"bidirectional": True}, {"bias": False}, {"proj_size": 1, "hidden_size": 2}], ids=str)
def test_many_recurrent_layers_without_their_tensors(damaged, settings):
    lstm = {"type": "LSTM", "settings": {"input_size": 1, "hidden_size": 1, "num_layers": 1_000, **settings}}
    refused(damaged(lambda d: d["layers"].update({f"l{i}": lstm for i in range(3_000)})), "more tensors than the file")


def test_more_layers_than_steps_could_call(damaged):
    relu = {"type": "ReLU", "settings": {}}
    refused(damaged(lambda d: d["layers"].update({f"l{i}": relu for i in range(20_001)})), "more than 20000 layers")


def test_more_values_than_there_is_time_to_read(damaged):
    refused(damaged(lambda d: d.update(output=[[[0] * 100] * 200] * 100)), "more than 1000000 values")


@pytest.mark.parametrize("sections", [2**17, 2**26, 2**28, 2**62])
@pytest.mark.parametrize("by_keyword", [False, True])
def test_parts_without_number(damaged, sections, by_keyword):
    split = call("a", "tensor_split", X, sections=sections) if by_keyword else call("a", "tensor_split", X, sections)
    refused(damaged(lambda d: d["steps"].append(split)), "more than 65536 parts")


def test_few_parts_are_allowed_even_if_some_are_empty(damaged):
    load(damaged(lambda d: d["steps"].append(call("a", "tensor_split", X, 7))))


def pooling(type_name, **settings):
    """A pooling of a result that nothing else reads."""

    def add(description):
        description["layers"]["pool"] = {"type": type_name, "settings": settings}
        description["steps"].append({"name": "pooled", "kind": "layer", "target": "pool", "args": [X]})
        description["output"] = {"step": "pooled"}

    return add


@pytest.mark.parametrize("half", [5_000, 10**9])
@pytest.mark.parametrize("type_name", ["MaxPool2d", "AvgPool2d"])
def test_poolings_that_walk_over_their_padding(damaged, type_name, half):
    size = [2 * half + 1, 2 * half + 1]
    refused(damaged(pooling(type_name, kernel_size=size, stride=1, padding=[half, half])), "of a .*Pool2d is not between")


@pytest.mark.parametrize("setting", ["kernel_size", "stride", "dilation"])
def test_poolings_with_huge_steps(damaged, setting):
    refused(damaged(pooling("MaxPool2d", **{"kernel_size": 2, setting: 2**30})), f"the {setting} of a MaxPool2d")


def test_poolings_that_cover_everything_are_allowed(damaged, small_input):
    network = load(damaged(pooling("AvgPool2d", kernel_size=[4, 4], stride=[5_000, 1])))
    torch.testing.assert_close(network(small_input), small_input.mean((2, 3), keepdim=True))


def many(count):
    def add(description):
        description["steps"] += [call(f"o{i}", "ones", [2**20]) for i in range(count)]
        description["output"] = [{"step": f"o{i}"} for i in range(count)]

    return add


def test_tensors_that_are_too_many_together(damaged):
    refused(damaged(many(5)), "at one time.*raise max_elements", max_elements=2**20)
    refused(damaged(many(1_100)), "at one time")
    load(damaged(many(4)), max_elements=2**20)


def test_tensors_one_after_the_other_are_not_too_many(damaged):
    def add(description):
        for i in range(20):
            description["steps"] += [call(f"o{i}", "ones", [2**20]), call(f"s{i}", "sum", {"step": f"o{i}"})]

    load(damaged(add), max_elements=2**20)


def test_messages_are_one_line_without_escapes(damaged):
    evil = "x\n\x1b[2J\x07"
    for change in (
        lambda d: d["layers"]["fc"].update(type=evil),
        lambda d: d["tensors"]["aliases"].update({evil: evil}),
        lambda d: d["steps"][0].update(target=evil),
        lambda d: d.update(kind=evil),
        lambda d: d["layers"].update({evil: d["layers"].pop("fc")}),
    ):
        with pytest.raises(StorageError) as caught:
            load(damaged(change))
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("depth", [500, 900, 960, 990])
def test_deep_nests_in_words(damaged, depth):
    refused(damaged(lambda d: json.dumps(d).replace(json.dumps(d["kind"]), "[" * depth + "]" * depth, 1)), "is damaged")
