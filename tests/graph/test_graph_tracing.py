"""The internal graph computes what the model computes, whichever tracer it came from."""

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY
from torch import nn

import bayesprune as bp
from bayesprune.attach import sparsify
from bayesprune.errors import InputError
from bayesprune.example_inputs import tensors_in, with_batch_size
from bayesprune.graph import trace
from bayesprune.graph.export_tracing import export_graph
from bayesprune.graph.fx_tracing import fx_graph
from bayesprune.graph.layer_types import LAYERS
from bayesprune.graph.normalise import normalise
from bayesprune.graph.recording import record
from bayesprune.graph.tracing import relative_difference
from bayesprune.graph.vocabulary import FUNCTIONS, INT_ARITHMETIC

WORDS = {function.target for function in FUNCTIONS.values()} | set(INT_ARITHMETIC) | {getattr}  # Of which the device is asked.
FIXED_BATCH = {"vit_matmul", "static_batch_view"}
X = torch.randn(3, 6, generator=torch.Generator().manual_seed(0))


def check(graph, model, inputs):
    with torch.no_grad():
        for got, expected in zip(tensors_in(graph(*inputs)), tensors_in(model(*inputs)), strict=True):
            assert relative_difference(got, expected) < 1e-5


@pytest.mark.parametrize("name", GALLERY)
def test_same_function_in_the_vocabulary(name):
    model, inputs = GALLERY[name].build().eval(), GALLERY[name].inputs()
    graph = trace(model, inputs)
    assert graph.meta["tracer"] == ("torch.export" if name == "functional_control_flow" else "torch.fx")
    check(graph, model, inputs)
    if name not in FIXED_BATCH:
        check(graph, model, with_batch_size(inputs, 4))
    for node in graph.graph.nodes:
        assert node.op not in ("call_function", "call_method") or node.target in WORDS, node.target
        if node.op == "call_module":
            layer = graph.get_submodule(node.target)
            assert any(isinstance(layer, each) for each in LAYERS.values()), type(layer)


@pytest.mark.parametrize("name", sorted(set(GALLERY) - {"lstm_tail"}))
def test_torch_export_gives_the_same_function(name):
    model, inputs = GALLERY[name].build().eval(), GALLERY[name].inputs()
    graph = normalise(*export_graph(model, inputs, {}), inputs, {}).eval()
    check(graph, model, inputs)
    if name not in FIXED_BATCH:
        check(graph, model, with_batch_size(inputs, 4))


def test_the_model_keeps_its_parameters_and_its_mode():
    model = GALLERY["resnet_basic"].build().train()
    before = copy.deepcopy(model.state_dict())
    graph = trace(model, GALLERY["resnet_basic"].inputs())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert graph.conv1.weight is model.conv1.weight


@pytest.mark.parametrize("reading", [False, True], ids=["torch.fx", "torch.export"])
def test_buffers_that_are_no_part_of_the_state_stay_so(reading):
    """A graph registers the tensors that it reads, which must not be in the model's own layers and gates."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)
            self.second.register_buffer("mask", torch.ones(3), persistent=False)

        def forward(self, x):
            assert not reading or len(x) > 0
            return self.second(self.first(x).relu()) * self.second.mask

    gated = sparsify(Masked(), "l0", example_inputs=X)
    assert "second.mask" not in gated.state_dict()  # Which sparsify has traced.
    before, registries = list(gated.state_dict()), [set(module._non_persistent_buffers_set) for module in gated.modules()]
    graph = trace(gated, X)
    assert graph.meta["tracer"] == ("torch.export" if reading else "torch.fx")
    assert list(gated.state_dict()) == before
    assert [set(module._non_persistent_buffers_set) for module in gated.modules()] == registries


class Steps(nn.Module):
    """A linear layer and whatever comes after it."""

    def __init__(self, after):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.after = nn.Linear(6, 6), after

    def forward(self, x):
        return self.after(self.fc(x))


def changed_in_place(y):
    z = F.relu_(y)
    y += 1
    return z * y


@pytest.mark.parametrize(
    "after",
    [
        lambda y: F.relu_(y) * y,
        lambda y: y.view(y.shape[0], 2, 3).permute(0, 2, 1).reshape(y.size(0), -1),
        lambda y: y.T.T,
        lambda y: torch.cat(y.chunk(2, dim=-1)[::-1], 1),
        lambda y: torch.stack(y.unbind(1), dim=1).sum(1, keepdim=True),
        lambda y: y.mean(1, True) + y.mean(dim=(0, 1)),
        lambda y: y.float().to(torch.float64).clamp(min=0, max=1),
        lambda y: torch.where(y > 0, y, torch.zeros_like(y)),
        lambda y: y[:, None, 1:4].squeeze(1).masked_fill(y[:, :3] > 0, 2.0),
        lambda y: (y @ y.transpose(0, 1)).softmax(-1),
        lambda y: torch.einsum("bi,bj->bij", y, y),
        lambda y: y + torch.arange(y.shape[1]),
        lambda y: y.expand_as(y).contiguous().clone().detach(),
        lambda y: {"sum": y.sum(), "parts": [y, (y, 2 * y)]},
        lambda y: 3.0 - y / 2 - (1 + y) ** 2 + 1 / (2 + y * y) + 2**y,
        lambda y: F.dropout(F.layer_norm(y, (6,)), 0.5, training=False),
        lambda y: y.unflatten(1, (2, 3)).flatten(1, -1).roll(1, 1).flip(1),
        lambda y: F.max_pool1d(y.unsqueeze(1), 2).squeeze(1),
        lambda y: F.interpolate(y[:, None], scale_factor=2.0),
        lambda y: F.pad(y, (1, 2)),
        lambda y: nn.MaxPool1d(2)(nn.Sequential(nn.ReLU(), nn.Softmax(dim=1))(y)[:, None]).type(torch.float64),
    ],
)
@pytest.mark.parametrize("tracer", [fx_graph, export_graph])
def test_ways_to_write_it(after, tracer):
    model = Steps(after).eval()
    graph = normalise(*tracer(model, (X.clone(),), {}), (X.clone(),), {}).eval()
    check(graph, model, (X.clone(),))


def test_data_of_a_tensor():
    model = Steps(lambda y: nn.ReLU()(y) + y.data.mean()).eval()
    graph = trace(model, X)
    assert graph.meta["tracer"] == "torch.fx"
    check(graph, model, (X,))


def test_changes_that_torch_fx_does_not_see_are_noticed():
    model = Steps(changed_in_place).eval()
    graph = trace(model, X)
    assert graph.meta["tracer"] == "torch.export"
    check(graph, model, (X,))


def test_keywords_defaults_and_mappings():
    class Options(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(6, 2)

        def forward(self, x, scale=None, flag=True):
            y = self.fc(x)
            return (y if scale is None else y * scale) if flag else x

    model = Options().eval()
    for example in ({"x": X}, (X,), {"x": X, "scale": torch.ones(2)}, (X, None, True)):
        graph = trace(model, example)
        assert any(node.op == "call_module" for node in graph.graph.nodes)
        tensors = tensors_in(example)
        assert torch.allclose(graph(*tensors), model(X))


def test_numbers_of_the_batch_stay_numbers_of_the_batch():
    model = Steps(lambda y: y.view(y.shape[0] * 2, 3).view(y.shape[0], 6))
    for tracer in (fx_graph, export_graph):
        graph = normalise(*tracer(model, (X,), {}), (X,), {})
        assert graph(torch.randn(7, 6)).shape == (7, 6)


class Unfollowable(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return self.fc(x) if float(x.sum()) > 0 else x


def test_code_that_depends_on_values():
    with pytest.raises(InputError, match=r"cannot be followed \(torch.fx: .*; torch.export: .*Move what depends on the values"):
        trace(Unfollowable(), X)


class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return self.fc(x) + torch.randn(6)


class AlwaysDropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return F.dropout(self.fc(x), 0.5)


@pytest.mark.parametrize("model", [Noisy(), AlwaysDropping()])
def test_code_that_draws_random_numbers(model):
    with pytest.raises(InputError, match=r"does not compute the same twice.*F\.dropout without training=self\.training"):
        trace(model, X)


@dataclass
class Result:
    logits: torch.Tensor


class Opaque:
    def __init__(self, logits):
        self.logits = logits


class Wrapping(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.fc, self.wrap = nn.Linear(6, 6), wrap

    def forward(self, x):
        return self.wrap(self.fc(x))


def test_results_that_no_graph_can_make():
    with pytest.raises(InputError, match=r"Wrapping returns objects that no graph can make: Opaque\. Let it return tensors"):
        trace(Wrapping(lambda y: (y, Opaque(y))), X)
    with pytest.raises(InputError, match=r"returns no tensors that a graph could be compared with, but Opaque"):
        trace(Wrapping(Opaque), X)


def test_what_is_in_dataclasses_is_compared():
    model = Wrapping(Result)
    torch.testing.assert_close(trace(model, X)(X).logits, model(X).logits)
    with pytest.raises(InputError, match="does not compute the same twice"):
        trace(Wrapping(lambda y: Result(F.dropout(y, 0.5))), X)


class Nested(nn.Module):
    """Takes containers, and has a branch that only ``torch.export`` gets past."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, batch, pair, *, scale, power=1.0):
        x = batch["x"]["value"] + pair[1] if x_is_large(pair[0]) else batch["x"]["value"] * pair[0]
        return self.fc2(torch.relu(self.fc1(x))) * scale["factor"] ** power


def x_is_large(x):
    return x.shape[1] > 100


def nested(batch):
    inputs = {"x": {"value": torch.randn(batch, 6), "name": None}, "unused": torch.randn(batch)}
    return {"batch": inputs, "pair": (torch.randn(batch, 6), torch.randn(batch, 6)), "scale": {"factor": torch.rand(batch, 1)}}


def test_containers_among_the_arguments():
    model = Nested().eval()
    example = nested(3)
    graph = trace(model, example)
    assert graph.meta["tracer"] == "torch.export"
    gated = bp.sparsify(model, "bb", example_inputs=example)
    small = bp.compact(gated.eval(), example).model
    for other in (example, nested(5)):
        torch.testing.assert_close(graph(**other), model(**other))
        torch.testing.assert_close(small(**other), gated(**other))


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.zeros(2, 5), r"does not run on example_inputs \(\[2, 5\]"),
        (torch.zeros(2, 6, dtype=torch.float64), "float64"),
        (torch.zeros(2, 6, dtype=torch.int64), "does not run"),
        (torch.zeros(2, 6, device="meta"), "on cpu but the example on meta"),
        ((), "does not run"),
        ({"y": X}, "does not run"),
        ("x", "example_inputs is a tensor"),
        (None, "example_inputs is a tensor"),
        (torch.zeros(0, 6), "empty batch"),
    ],
)
def test_examples_that_do_not_fit(example, message):
    with pytest.raises(InputError, match=message):
        trace(Steps(lambda y: y), example)


@pytest.mark.parametrize(
    ("rank", "options"),
    [
        (1, {"scale_factor": 2, "mode": "linear"}),
        (2, {"scale_factor": 2}),
        (2, {"size": (9, 7), "mode": "bilinear"}),
        (2, {"scale_factor": 2.0, "mode": "bilinear", "align_corners": True}),
        (2, {"scale_factor": 1.5, "mode": "bicubic"}),
        (2, {"scale_factor": 2, "mode": "nearest-exact"}),
        (3, {"scale_factor": 2, "mode": "trilinear"}),
    ],
)
def test_resizing_is_one_word_for_both_tracers(rank, options):
    class Resizing(nn.Module):
        def forward(self, x):
            return F.interpolate(x, **options)

    inputs = (torch.randn(2, 3, *[5] * rank),)
    for tracer in (fx_graph, export_graph):
        graph = normalise(*tracer(Resizing(), inputs, {}), inputs, {})
        assert [node.target for node in graph.graph.nodes if node.op == "call_function"] == [F.interpolate]
        check(graph, Resizing(), inputs)


@pytest.mark.parametrize("method", ["bb", "dbb"])
def test_gates_of_a_model_in_training_are_only_looked_at(method):
    """They draw no masks while the graph is tried, and their running statistics stay."""
    inputs = GALLERY["unet"].inputs()
    gated = sparsify(GALLERY["unet"].build(), method, example_inputs=inputs).train()
    state, noise = copy.deepcopy(gated.state_dict()), torch.get_rng_state()
    graph = trace(gated, inputs)
    assert graph.meta["other_sizes"]
    assert gated.training
    assert all(torch.equal(value, state[name]) for name, value in gated.state_dict().items())
    assert torch.equal(torch.get_rng_state(), noise)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("name", "branches"), [("resnet_basic", False), ("functional_control_flow", True)])
def test_other_sizes_are_compared_in_half_precision_too(name, branches, dtype):
    model, inputs = GALLERY[name].build().eval().to(dtype), tuple(x.to(dtype) for x in GALLERY[name].inputs())
    graph = trace(model, inputs)
    assert graph.meta.get("only_size", False) == branches
    assert bool(graph.meta["other_sizes"]) != branches


class Positions(nn.Module):
    """Makes tensors from numbers, on the device of its input."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        n, device = x.shape[0], x.device
        places = torch.arange(n, device=device)[:, None] + torch.zeros(1, 6, device=device) + torch.full((1,), 2.0, device=device)
        return torch.eye(n, device=device) @ self.fc(x + places) * torch.ones(6, device=device)


@pytest.mark.parametrize("tracer", [fx_graph, export_graph])
def test_tensors_are_made_on_the_device_of_the_input(tracer):
    """The device without memory stands for any other."""
    model = Positions().eval()
    graph = normalise(*tracer(model, (X,), {}), (X,), {})
    torch.testing.assert_close(graph(X), model(X))
    elsewhere = record(graph.to("meta"), (X.to("meta"),), {})
    assert {value.device.type for value in elsewhere.values() if isinstance(value, torch.Tensor)} == {"meta"}


def test_pieces_are_split_again():
    model = Steps(lambda y: torch.cat([part for piece in y.chunk(2, 1) for part in piece.split((1, 2), 1)[::-1]], 1)).eval()
    graph = trace(model, X)
    torch.testing.assert_close(graph(X), model(X))
    assert not {torch.chunk, torch.split, torch.Tensor.split} & {node.target for node in graph.graph.nodes}
