import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.cost import Cost, cost, paper_cost, plain_cost
from bayesprune.cost.operators import recurrent_macs
from bayesprune.errors import InputError
from bayesprune.models import LeNet5Caffe, LeNet500300, VGGLike

CONVOLUTIONS = {
    (1, False): nn.Conv1d,
    (2, False): nn.Conv2d,
    (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d,
    (2, True): nn.ConvTranspose2d,
    (3, True): nn.ConvTranspose3d,
}


class Calls(nn.Module):
    """A module that calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def macs(model, *inputs):
    return cost(model if isinstance(model, nn.Module) else Calls(model), inputs).macs


@pytest.mark.parametrize("model", [LeNet500300(), LeNet5Caffe(), VGGLike(), VGGLike(groups=((3, 4), (5,)), hidden=6)])
def test_a_described_network_costs_what_its_description_says(model):
    found = cost(model, torch.rand(3, *model.input_shape))
    described = plain_cost(model.layers())
    assert (found.macs, found.parameters) == (described.macs, described.parameters)
    assert found.flops == 2 * described.macs
    assert found.paper == paper_cost(model.layers())


@given(
    dims=st.integers(1, 3),
    transposed=st.booleans(),
    groups=st.integers(1, 3),
    inputs=st.integers(1, 3),
    outputs=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    bias=st.booleans(),
    batch=st.integers(1, 3),
)
@settings(max_examples=60)
def test_convolutions(dims, transposed, groups, inputs, outputs, kernel, stride, padding, dilation, bias, batch):
    channels = (groups * inputs, groups * outputs)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "bias": bias}
    layer = CONVOLUTIONS[dims, transposed](*channels, kernel, **options)
    x = torch.rand(batch, channels[0], *(range(6, 6 + dims)))
    with torch.no_grad():
        y = layer(x)
    # A transposed convolution spreads every input over a kernel's worth of outputs, any other gathers for every output.
    reach = outputs if transposed else inputs
    positions = x[0].numel() if transposed else y[0].numel()
    found = cost(layer, x)
    assert found.macs == positions * reach * kernel**dims
    assert found.activation_bytes >= 4 * y[0].numel()


def test_depthwise():
    assert macs(nn.Conv2d(8, 16, 3, groups=8), torch.rand(2, 8, 6, 6)) == 16 * 4 * 4 * 9


@pytest.mark.parametrize("lead", [(5,), (5, 3), (5, 3, 2)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_work_on_the_last_dimension(lead, bias):
    assert macs(nn.Linear(4, 7, bias=bias), torch.rand(*lead, 4)) == math.prod(lead[1:]) * 4 * 7


@pytest.mark.parametrize(
    ("function", "shapes", "expected"),
    [
        (torch.bmm, [(2, 3, 4), (2, 4, 5)], 3 * 4 * 5),
        (torch.matmul, [(2, 6, 3, 4), (4, 5)], 6 * 3 * 4 * 5),
        (lambda a, b: torch.einsum("bij,bjk->bik", a, b), [(2, 3, 4), (2, 4, 5)], 3 * 4 * 5),
        (torch.mv, [(3, 4), (4,)], 4),
        (torch.addmv, [(3,), (3, 4), (4,)], 4),
        (torch.dot, [(4,), (4,)], 1),
        (torch.addbmm, [(3, 5), (2, 3, 4), (2, 4, 5)], 2 * 4 * 5),
        (torch.add, [(2, 3), (2, 3)], 0),
    ],
)
def test_products(function, shapes, expected):
    assert macs(function, *(torch.rand(shape) for shape in shapes)) == expected


def test_bilinear_layers():
    assert macs(nn.Bilinear(4, 5, 6), torch.rand(2, 4), torch.rand(2, 5)) == 4 * 5 * 6


def test_weighted_embeddings_are_a_product_and_plain_ones_are_not():
    table, indices = torch.rand(10, 4), torch.randint(0, 10, (2, 3))
    bag = Calls(lambda indices, **options: F.embedding_bag(indices, table, mode="sum", **options))
    assert cost(bag, {"indices": indices, "per_sample_weights": torch.rand(2, 3)}).macs == 3 * 4
    assert cost(bag, indices).macs == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(dtype, causal):
    query, key, value = (torch.rand(2, 3, length, size).to(dtype) for length, size in ((6, 4), (7, 4), (7, 4)))
    attend = Calls(lambda *qkv: F.scaled_dot_product_attention(*qkv, is_causal=causal))
    assert macs(attend, query, key, value) == 3 * 6 * 7 * (4 + 4)


def test_attention_with_fewer_keys_than_queries():
    attend = Calls(lambda *qkv: F.scaled_dot_product_attention(*qkv, enable_gqa=True))
    key = torch.rand(2, 2, 6, 4)
    assert macs(attend, torch.rand(2, 4, 6, 4), key, key) == 4 * 6 * 6 * 8


@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention(need_weights):
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.rand(3, 6, 8)
    expected = 6 * 8 * 24 + 6 * 8 * 8 + 2 * 6 * 6 * 8
    assert cost(layer, {"query": x, "key": x, "value": x, "need_weights": need_weights}).macs == expected


def test_transformer_layers_count_although_evaluation_mode_fuses_them():
    layer, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), torch.rand(3, 6, 8)
    expected = 6 * 8 * 24 + 6 * 8 * 8 + 2 * 6 * 6 * 8 + 2 * 6 * 8 * 16
    assert macs(layer, x) == expected
    assert macs(nn.TransformerEncoder(layer, 3), x) == 3 * expected
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(("kind", "matrices"), [(nn.RNN, 1), (nn.GRU, 3), (nn.LSTM, 4)])
def test_recurrent_layers(kind, matrices):
    layer = kind(4, 5, num_layers=2, bidirectional=True, batch_first=True)
    assert macs(layer, torch.rand(3, 7, 4)) == 7 * 2 * matrices * 5 * ((4 + 5) + (2 * 5 + 5))


def test_recurrent_layers_on_a_gpu_are_one_operator():
    weights = [(20, 4), (20, 5), (20,), (20,)]
    assert recurrent_macs([(7, 3, 4), weights, 4, None]) == 7 * 3 * 20 * (4 + 5)


def test_the_batch_can_lie_elsewhere():
    layer, x = nn.TransformerEncoderLayer(8, 2, 16), torch.rand(6, 3, 8)
    assert cost(layer, x, batch=3).macs == macs(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), x.transpose(0, 1))
    for batch in (0, -1, "2", 1.5, True):
        with pytest.raises(InputError, match=f"at least 1, not {batch!r}"):
            cost(layer, x, batch=batch)


class TestActivations:
    @staticmethod
    def of(model, *inputs):
        return cost(model, inputs).activation_bytes

    def test_what_lives_at_the_same_time(self):
        chain = nn.Sequential(nn.Linear(10, 100), nn.ReLU(), nn.Linear(100, 5))
        assert self.of(chain, torch.rand(4, 10)) == 4 * (100 + 100)

    def test_in_place_costs_nothing(self):
        chain = nn.Sequential(nn.Linear(10, 100), nn.ReLU(inplace=True), nn.Linear(100, 5))
        assert self.of(chain, torch.rand(4, 10)) == 4 * (100 + 5)

    def test_views_cost_nothing(self):
        assert self.of(Calls(lambda x: x.flatten(1).unflatten(1, (2, -1)).transpose(1, 2)[:, 1:]), torch.rand(4, 6)) == 0

    def test_a_view_keeps_alive_what_it_looks_at(self):
        def keep_a_corner(x):
            corner = (x + 1)[:, :1]
            return corner, (x * 2).sum(1)

        assert self.of(Calls(keep_a_corner), torch.rand(4, 50)) == 4 * (50 + 50 + 1)

    def test_a_long_chain_needs_no_more_than_a_short_one(self):
        def chain(length):
            return nn.Sequential(*(nn.Sigmoid() for _ in range(length)))

        assert self.of(chain(20), torch.rand(2, 30)) == self.of(chain(2), torch.rand(2, 30)) == 4 * 60

    def test_a_skip_connection_keeps_its_start(self):
        def block(x):
            start = x + 1
            return start + torch.tanh(torch.tanh(start))

        assert self.of(Calls(block), torch.rand(2, 30)) == 4 * 3 * 30

    def test_the_model_s_own_tensors_are_not_intermediate(self):
        constant = torch.rand(1000)
        assert self.of(Calls(lambda x: x + constant[:3].view(1, 3)), torch.rand(2, 3)) == 4 * 3

    def test_wider_numbers(self):
        assert self.of(nn.Sigmoid(), torch.rand(2, 3).double()) == 8 * 3

    def test_gradients_would_change_nothing(self):
        chain = nn.Sequential(nn.Linear(10, 10), nn.Tanh(), nn.Tanh(), nn.Tanh())
        assert self.of(chain, torch.rand(4, 10, requires_grad=True)) == 4 * 20


def test_tied_parameters_count_once():
    first, second, third = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    second.weight = first.weight
    third.weight = nn.Parameter(first.weight.detach())
    found = cost(nn.Sequential(first, second, third), torch.rand(2, 4))
    assert (found.macs, found.parameters, found.bytes) == (3 * 16, 16, 64)


def test_buffers_and_dtypes_are_part_of_the_bytes():
    norm = nn.BatchNorm1d(5)
    assert cost(norm, torch.rand(2, 5)).bytes == 4 * 4 * 5 + 8
    assert cost(norm.double(), torch.rand(2, 5).double()).bytes == 8 * 4 * 5 + 8
    assert cost(nn.Linear(4, 3).bfloat16(), torch.rand(2, 4).bfloat16()).bytes == 2 * 15


def test_a_model_without_parameters():
    assert cost(nn.ReLU(), torch.rand(2, 3)) == Cost(macs=0, parameters=0, bytes=0, activation_bytes=12)


def test_a_model_without_tensors():
    assert cost(Calls(lambda: torch.ones(2)), ()).activation_bytes == 8


def test_gates_change_nothing_but_the_parameters():
    model, x = LeNet5Caffe(), torch.rand(2, 1, 28, 28)
    gated = sparsify(model, "bb")
    dense = cost(model, x)
    for sparse in (gated, make_dependent(gated)):
        assert cost(sparse, x).macs == dense.macs
        assert cost(sparse, x).paper == dense.paper


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout()).train()
    model[2].eval()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert cost(model, torch.rand(2, 3)).macs == 12
    assert [module.training for module in model] == [True, True, False]
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_fused_path_comes_back_after_a_failure():
    with pytest.raises(InputError):
        cost(nn.Linear(3, 4), torch.rand(2, 5))
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (torch.rand(2, 5), r"Linear does not run on example_inputs \(\[2, 5\] torch.float32 on cpu\): mat1"),
        ((torch.rand(2, 3), torch.rand(2, 3)), "does not run"),
        ({"x": torch.rand(2, 3)}, "unexpected keyword"),
        (torch.rand(2, 3).double(), "dtype"),
        ((), "no tensors"),
        ([torch.rand(2, 3)], r"not list; a model that takes a list .* gets it as \(argument,\)"),
        (torch.rand(2, 3).numpy(), "not ndarray; .* an array becomes a tensor with torch.as_tensor"),
        (torch.rand(0, 3), "empty batch"),
    ],
)
def test_inputs_that_do_not_fit(example, message):
    with pytest.raises(InputError, match=message):
        cost(nn.Linear(3, 4), example)


def test_only_modules_have_a_cost():
    with pytest.raises(InputError, match=r"takes an nn.Module, not function"):
        cost(test_only_modules_have_a_cost, torch.rand(2, 3))


def test_relative_cost():
    x = torch.rand(2, 8)
    full, small = nn.Linear(8, 6, bias=False), nn.Linear(8, 3, bias=False)
    reduction = cost(small, x).relative_to(cost(full, x))
    assert (reduction.macs, reduction.parameters, reduction.bytes, reduction.activation_bytes) == (2, 2, 2, 2)
    said = ["MACs 48 -> 24 (2.00x)", "parameters 48 -> 24 (2.00x)", "stored 192 B -> 96 B (2.00x)", "activations 24 B -> 12 B (2.00x)"]
    assert str(reduction).split(", ") == said
    assert "parameters 24 -> 48 (0.50x)" in str(cost(full, x).relative_to(cost(small, x)))
    nothing = cost(nn.Identity(), x)
    assert nothing.relative_to(cost(full, x)).macs == math.inf
    assert str(nothing.relative_to(cost(full, x))).startswith("MACs 48 -> 0, ")
    assert nothing.relative_to(nothing).macs == 1


def test_it_prints_as_a_table():
    lines = str(cost(LeNet5Caffe(), torch.rand(2, 1, 28, 28))).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["MACs", "parameters", "stored", "activations", "paper's FLOPs"]
    assert "2,293,000  for one input; 4,586,000 FLOPs" in lines[0]
    assert "1.64 MiB" in lines[2]
    assert "90.00 KiB" in lines[3]
    assert len(str(cost(nn.Linear(3, 2), torch.rand(2, 3))).splitlines()) == 4


def test_what_is_printed_fits_any_terminal():
    full, small = cost(nn.Linear(8, 6), torch.zeros(1, 8)), cost(nn.Linear(8, 3), torch.zeros(1, 8))
    assert str(small.relative_to(full)).isascii()
