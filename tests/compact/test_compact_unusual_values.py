"""Values of unusual types: constants without dimensions, complex numbers, whole numbers that have an order, named tuples."""

import typing

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bayesprune as bp
from bayesprune.errors import InputError


def pruned(model, example, every=3):
    torch.manual_seed(0)
    gated = bp.sparsify(model.eval(), "bb", example_inputs=example).eval()
    for gate in bp.gates(gated).values():
        gate.prune(torch.arange(gate.num_units) % every == 0)
    return gated


def compared(gated, example, *inputs):
    result = bp.compact(gated, example)
    expected, got = gated(*inputs), result.model(*inputs)
    assert expected.dtype == got.dtype
    wide = torch.complex128 if expected.is_complex() else torch.float64
    assert torch.allclose(expected.to(wide), got.to(wide), atol=1e-5)
    assert result.certificate.max_rel_error < 1e-5
    return result.certificate


FUNCTIONS = {
    "type of the result": lambda self, y: (y * 100).round().long() * self.fine,
    "half": lambda self, y: (y * 100).round().long() * self.coarse,
    "where": lambda self, y: torch.where(self.flag, y, -y),
    "logaddexp": lambda self, y: torch.logaddexp(y, self.number),
    "fmax": lambda self, y: torch.fmax(y, self.number),
    "expand": lambda self, y: y + self.number.expand(y.shape[0], 1),
    "addcmul": lambda self, y: torch.addcmul(y, y, self.number),
    "heaviside": lambda self, y: y * torch.heaviside(y, torch.tensor(0.5)),
    "scale": lambda self, y: y / torch.sqrt(torch.tensor(y.shape[-1]).float()),
    "maximum": lambda self, y: torch.maximum(y, self.number - 0.5),
    "max": lambda self, y: torch.max(y, torch.tensor(0.0)),
    "times": lambda self, y: y * self.number + self.number,
}


class WithConstants(nn.Module):
    def __init__(self, name, last):
        super().__init__()
        self.function, self.last = FUNCTIONS[name], last
        self.a, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 12), nn.Linear(12, 3)
        self.register_buffer("fine", torch.tensor(0.1, dtype=torch.float64))
        self.register_buffer("coarse", torch.tensor(0.1, dtype=torch.float16))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("number", torch.tensor(0.5))

    def forward(self, x):
        h = F.relu(self.b(F.relu(self.a(x))))
        return self.function(self, self.c(h)) if self.last else self.c(self.function(self, h))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_constants_without_dimensions(name):
    model, x = WithConstants(name, last=name in ("type of the result", "half")), torch.randn(4, 6)
    certificate = compared(pruned(model, x), x, torch.randn(7, 6))
    assert certificate.after.parameters < 0.7 * certificate.before.parameters


def test_a_single_channel_is_picked_by_a_number():
    class Picking(WithConstants):
        def __init__(self):
            super().__init__("times", last=False)
            self.register_buffer("which", torch.tensor(3))

        def forward(self, x):
            return self.c(self.b(F.relu(self.a(x))).index_select(1, self.which).expand(-1, 12))

    x = torch.randn(4, 6)
    compared(pruned(Picking(), x), x, torch.randn(7, 6))


def test_complex_results():
    class Spectrum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 16), nn.Linear(16, 8)

        def forward(self, x):
            return torch.fft.fft(self.b(F.relu(self.a(x))))

    x = torch.randn(4, 6)
    assert compared(pruned(Spectrum(), x), x, torch.randn(7, 6)).after.parameters < 220


def test_complex_layers_are_left_alone_and_named():
    class Complex(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(6, 16, dtype=torch.cfloat), nn.Linear(16, 8, dtype=torch.cfloat)
            self.c, self.d = nn.Linear(8, 16), nn.Linear(16, 2)

        def forward(self, x):
            h = self.a(x)
            return self.d(F.relu(self.c(self.b(torch.complex(F.relu(h.real), F.relu(h.imag))).abs())))

    x = torch.randn(4, 6, dtype=torch.cfloat)
    gated = pruned(Complex(), x)
    assert {row.layer: row.reason for row in bp.placement(gated).left_alone} == dict.fromkeys("ab", "its weights are complex numbers")
    certificate = compared(gated, x, torch.randn(7, 6, dtype=torch.cfloat))
    assert certificate.gates["d.input_gate"].stayed == 0


def test_whole_numbers_that_have_an_order():
    class Bags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.a, self.b = nn.EmbeddingBag(30, 12), nn.Linear(12, 16), nn.Linear(16, 3)

        def forward(self, words, offsets):
            return self.b(F.relu(self.a(self.bag(words, offsets))))

    example = (torch.randint(30, (9,)), torch.tensor([0, 3, 7]))
    assert compared(pruned(Bags(), example), example, torch.randint(30, (9,)), torch.tensor([0, 2, 5])).after.parameters < 650


class Pair(typing.NamedTuple):
    a: torch.Tensor
    b: torch.Tensor


def test_named_tuples_among_the_inputs():
    class OfPairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 16), nn.Linear(5, 16), nn.Linear(16, 3)

        def forward(self, pair):
            return self.c(F.relu(self.a(pair.a)) * torch.sigmoid(self.b(pair.b)))

    example = (Pair(torch.randn(2, 4), torch.randn(2, 5)),)
    compared(pruned(OfPairs(), example), example, Pair(torch.randn(6, 4), torch.randn(6, 5)))


class TestRefused:
    def model(self):
        return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).eval()

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    @pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.randn(2, 6))], ids=["script", "trace"])
    def test_torchscript(self, make):
        with pytest.raises(InputError, match="TorchScript"):
            bp.sparsify(make(self.model()), "bb", example_inputs=torch.randn(2, 6))

    def test_parts_called_by_words_of_python(self):
        class Heads(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.heads = nn.Linear(6, 16), nn.ModuleDict({"class": nn.Linear(16, 3), "box": nn.Linear(16, 4)})

            def forward(self, x):
                return {name: head(F.relu(self.body(x))) for name, head in self.heads.items()}

        with pytest.raises(InputError, match="class are names of its parts, and words of Python"):
            bp.sparsify(Heads(), "bb", example_inputs=torch.randn(2, 6))

    def test_tensors_without_numbers(self):
        with pytest.raises(InputError, match="meta"):
            bp.sparsify(self.model().to("meta"), "bb", example_inputs=torch.randn(2, 6, device="meta"))
        with pytest.raises(InputError, match="meta"):
            bp.compact(pruned(self.model(), torch.randn(2, 6)), torch.randn(2, 6, device="meta"))

    @pytest.mark.parametrize("inputs", [torch.randint(5, (2, 6)), torch.randn(2, 6, dtype=torch.float64)], ids=["whole", "double"])
    def test_what_a_model_does_not_predict_for(self, inputs):
        with pytest.raises(InputError, match="does not run on these inputs"):
            bp.predict(pruned(self.model(), torch.randn(2, 6)), inputs)
