"""What a model's code writes into the model is noticed, and undone."""

import copy
import weakref
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import bayesprune as bp
from bayesprune.state import State, as_before


class Cache:
    """An object of somebody's own, which knows itself."""

    def __init__(self):
        self.last, self.table, self.again = torch.zeros(2), {"a": torch.zeros(2)}, self


class Remembering(nn.Module):
    """Writes in the way that it is given."""

    def __init__(self, write=lambda _model: None):
        super().__init__()
        self.fc = nn.Linear(2, 2)
        self.register_buffer("steps", torch.zeros(3))
        self.register_buffer("undefined", torch.tensor([float("nan"), 1.0]))
        self.register_buffer("missing", None)
        self.register_buffer("links", torch.eye(3).to_sparse())
        self.own = torch.zeros(2)
        self.calls, self.seen, self.named, self.last = 0, [], {"a": 1}, deque([1], maxlen=2)
        self.nested, self.listed, self.counts = {"a": {"b": [1]}}, [torch.zeros(2), (torch.zeros(3),)], Counter(a=2)
        self.array, self.memory, self.helpers = np.zeros(3), Cache(), [nn.BatchNorm1d(2)]
        self.write = write

    def forward(self, x):
        self.write(self)
        return self.fc(x)


def assign(name, value):
    return lambda model: setattr(model, name, value)


WAYS = {
    "in place": (lambda model: model.steps.add_(1), ["steps"]),
    "a part": (lambda model: model.steps[1:].fill_(2.0), ["steps"]),
    "the same value": (lambda model: model.steps.mul_(1.0), ["steps"]),
    "behind torch's back": (lambda model: model.steps.data.add_(1), ["steps"]),
    "another tensor": (assign("steps", torch.ones(3)), ["steps"]),
    "something else than a tensor": (lambda model: model._buffers.update(steps="proxy"), ["steps"]),
    "another size": (lambda model: setattr(model.steps, "data", torch.ones(7)), ["steps"]),
    "one that was missing": (assign("missing", torch.ones(1)), ["missing"]),
    "a new one": (lambda model: model.register_buffer("cache", torch.ones(2)), ["cache"]),
    "below": (lambda model: model.fc.register_buffer("cache", torch.ones(2)), ["fc.cache"]),
    "a tensor of its own": (lambda model: model.own.add_(1), ["own"]),
    "a number": (assign("calls", 1000), ["calls"]),
    "a new attribute": (assign("activation", torch.ones(2)), ["activation"]),
    "a list": (lambda model: model.seen.append(1), ["seen"]),
    "a dictionary": (lambda model: model.named.update(a=2, b=3), ["named"]),
    "a queue": (lambda model: model.last.extend([2, 3]), ["last"]),
    "a dictionary in a dictionary": (lambda model: model.nested["a"].update(c=3), ["nested"]),
    "a list in it": (lambda model: model.nested["a"]["b"].append(3), ["nested"]),
    "a tensor in a list": (lambda model: model.listed[0].add_(1), ["listed"]),
    "a tensor in a tuple": (lambda model: model.listed[1][0].add_(1), ["listed"]),
    "counts": (lambda model: model.counts.update(a=3, b=1), ["counts"]),
    "an array": (lambda model: model.array.__iadd__(1), ["array"]),
    "an object's attribute": (lambda model: setattr(model.memory, "last", torch.ones(2)), ["memory"]),
    "what is in an object": (lambda model: model.memory.table["a"].add_(1), ["memory"]),
    "a module that is no child": (lambda model: model.helpers[0].running_mean.add_(1), ["helpers"]),
}


def everything(model):
    tensors = {name: tensor.to_dense().nan_to_num(7.0) for name, tensor in model.state_dict().items()}
    others = ("write", "_buffers", "_modules", "_parameters", "own", "listed", "array", "memory", "helpers")
    attributes = {name: value for name, value in vars(model).items() if name not in others}
    deep = [*model.listed[:1], *model.listed[1], model.memory.last, model.memory.table["a"], *model.helpers[0].state_dict().values()]
    numbers = [model.own.tolist(), model.array.tolist(), [tensor.tolist() for tensor in deep]]
    return tensors, copy.deepcopy(attributes), numbers, sorted(model._buffers), sorted(model.fc._buffers)


def same(some, others):
    return (
        some[0].keys() == others[0].keys()
        and all(torch.equal(tensor, others[0][name]) for name, tensor in some[0].items())
        and some[1] == others[1]
        and some[2:] == others[2:]
    )


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written(way):
    write, names = WAYS[way]
    model = Remembering(write)
    buffers, before = dict(model.named_buffers()), everything(model)
    with as_before(model) as state:
        assert state.written() == []
        model(torch.ones(1, 2))
        assert state.written() == names
    assert same(before, everything(model))
    assert all(model.get_buffer(name) is buffer for name, buffer in buffers.items())


def test_nothing_is_written():
    model = Remembering()
    with as_before(model) as state:
        model(torch.ones(1, 2)).sum().backward()
    assert state.written() == []
    assert model.fc.weight.grad is not None


def test_an_error_undoes_it_too():
    model = Remembering(lambda model: model.steps.add_(1))
    with pytest.raises(RuntimeError), as_before(model):
        model(torch.ones(1, 3))
    assert torch.equal(model.steps, torch.zeros(3))


def test_batch_statistics_are_written_in_training_only():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = State(model.eval())
    model(torch.randn(4, 2))
    assert state.written() == []
    model.train()(torch.randn(4, 2))
    assert {"1.running_mean", "1.running_var", "1.num_batches_tracked"} <= set(state.written())


def test_layers_that_find_out_their_sizes_keep_them():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()).eval()
    with as_before(model):
        model(torch.randn(4, 2))
    assert model[0].weight.shape == (3, 2)
    assert model(torch.randn(5, 2)).shape == (5, 3)


def test_tensors_of_inference_mode():
    with torch.inference_mode():
        model = Remembering(lambda model: model.steps.add_(1))
        with as_before(model) as state:
            model(torch.ones(1, 2))
            assert state.written() == ["steps"]
        assert torch.equal(model.steps, torch.zeros(3))


def test_an_object_that_a_tracer_wrote_into():
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last, self.cache = nn.Linear(6, 8), nn.Linear(8, 3), Cache()

        def forward(self, x):
            h = torch.relu(self.first(x))
            self.cache.last = 0.9 * self.cache.last + 0.1 * h.detach().mean()
            return self.last(h)

    x = torch.rand(4, 6)
    gated = bp.sparsify(Averaging(), "bb", example_inputs=x).eval()
    bp.compact(gated, x)
    assert torch.equal(gated.cache.last, torch.zeros(2))
    copy.deepcopy(gated)


def test_what_is_large_is_data_and_left_alone():
    model = Remembering()
    model.words = {"table": {str(number): number for number in range(20_000)}, "few": {"a": 1}}
    with as_before(model) as state:
        model.words["table"]["0"] = 7
        assert state.written() == []
        model.words["few"]["a"] = 2
        assert state.written() == ["words"]
    assert model.words["table"]["0"] == 7
    assert model.words["few"] == {"a": 1}


def test_objects_that_answer_nothing():
    class Silent:
        __slots__ = ()

        def __getattr__(self, name):
            raise RuntimeError(name)

    class Refusing(dict):
        def items(self):
            raise RuntimeError("items")

    model = Remembering(lambda model: model.own.add_(1))
    gone = weakref.proxy(Remembering())
    model.odd, model.repeated = [Silent(), gone, Refusing(a=1), nn.LazyLinear(3)], model.steps[:1].expand(3)
    vars(model).update(zip(("silent", "gone", "refusing"), model.odd, strict=False))  # As what they referred to went later.
    model.namespace = SimpleNamespace(count=1)
    model.array = [np.zeros(2)]
    with as_before(model) as state:
        model.namespace.count = 2
        model.steps.add_(1)
        model.array[0].resize(5, refcheck=False)
        model(torch.ones(1, 2))
        assert {"own", "steps", "namespace", "array"} <= set(state.written())
    assert model.namespace.count == 1
    assert torch.equal(model.steps, torch.zeros(3))
