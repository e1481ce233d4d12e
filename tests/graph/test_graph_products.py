"""Products with a parameter are linear layers, however they are written; what is not one stays what it is."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.graph import trace
from bayesprune.removal.sharing import sharing

PARAMETERS = {"wide": (6, 8), "tall": (8, 6), "bias": (8,)}
PRODUCTS = {
    "product": lambda m, x: x @ m.wide,
    "product and sum": lambda m, x: x @ m.wide + m.bias,
    "sum and product": lambda m, x: m.bias + torch.matmul(x, m.wide),
    "changed in place": lambda m, x: x.mm(m.wide).add_(m.bias),
    "in one call": lambda m, x: torch.addmm(m.bias, x, m.wide),
    "in one call, by names": lambda m, x: torch.addmm(mat2=m.wide, mat1=x, input=m.bias, beta=1, alpha=1),
    "of rows": lambda m, x: torch.addmm(m.bias, x.view(-1, x.size(-1)), m.wide).view(*x.size()[:-1], 8),
    "transposed": lambda m, x: x @ m.tall.T + m.bias,
    "transposed by a method": lambda m, x: x @ m.tall.t(),
    "transposed from the end": lambda m, x: x @ m.tall.transpose(-2, -1),
    "permuted": lambda m, x: x @ m.tall.permute(1, 0) + m.bias,
    "transposed in one call": lambda m, x: torch.addmm(m.bias, x, m.tall.mT),
    "as a function": lambda m, x: F.linear(x, m.wide.T, m.bias),
    "as a function without a bias": lambda m, x: F.linear(x, m.wide.T),
}
OTHERS = {
    "a part of the parameter": lambda m, x: x @ m.wide[:, 2:],
    "parameters alone": lambda m, x: x.sum() * (m.wide @ m.tall),
    "from the left": lambda m, x: m.tall @ x.T,
    "a buffer": lambda m, x: x @ m.fixed,
    "also read otherwise": lambda m, x: (x @ m.wide) * m.wide.sum(),
    "tied in both directions": lambda m, x: torch.relu(x @ m.wide) @ m.wide.T,
    "nothing added": lambda m, x: torch.addmm(m.bias, x, m.wide, beta=0),
}


class Written(nn.Module):
    def __init__(self, computation):
        super().__init__()
        torch.manual_seed(0)
        self.computation = computation
        for name, shape in PARAMETERS.items():
            self.register_parameter(name, nn.Parameter(torch.randn(shape, dtype=torch.float64)))
        self.register_buffer("fixed", torch.randn(6, 8, dtype=torch.float64))

    def forward(self, x):
        return self.computation(self, x)


def followed(computation):
    x = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    model = Written(computation).eval()
    graph = trace(model, x)
    torch.testing.assert_close(graph(x), model(x), rtol=1e-12, atol=1e-12)
    return model, graph, [graph.get_submodule(str(node.target)) for node in graph.graph.nodes if node.op == "call_module"]


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_layers(name):
    model, graph, layers = followed(PRODUCTS[name])
    assert [type(layer) for layer in layers] == [nn.Linear]
    assert not {node.target for node in graph.graph.nodes} & {torch.matmul, torch.add, torch.addmm, F.linear}
    held = model.tall if "transposed" in name or name == "permuted" else model.wide
    assert layers[0].weight.data_ptr() == held.data_ptr()
    assert graph.meta["inputs_first"] == ({str(graph.graph.find_nodes(op="call_module")[0].target)} if held is model.wide else set())


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_stay_what_they_are(name):
    assert followed(OTHERS[name])[2] == []


def test_what_else_is_added_is_no_bias():
    for added in (lambda m, x: torch.addmm(x[:, :1], x, m.wide), lambda m, x: torch.addmm(m.bias, x, m.wide, beta=2, alpha=3)):
        _, graph, (layer,) = followed(added)
        assert layer.bias is None
        assert any(node.target is torch.add for node in graph.graph.nodes)
    _, _, (layer,) = followed(lambda m, x: (x @ m.wide + m.bias) * m.bias)
    assert layer.bias is None


def test_a_result_that_is_read_before_the_bias_is_added_keeps_them_apart():
    _, _, (layer,) = followed(lambda m, x: (y := x @ m.wide) * (y + m.bias))
    assert layer.bias is None


def test_several_calls_are_calls_of_one_layer():
    _, graph, layers = followed(lambda m, x: torch.addmm(m.bias, torch.relu(torch.addmm(m.bias, x, m.wide))[:, 2:], m.wide))
    assert [layer.weight is layers[0].weight and layer.bias is layers[0].bias for layer in layers] == [True, True]
    tied, calls = sharing(graph)
    assert not tied
    assert len(calls) == 2


def test_a_layer_sees_what_becomes_of_the_parameter():
    model, _, (layer,) = followed(PRODUCTS["product"])
    version = layer.weight._version
    with torch.no_grad():
        model.wide.zero_()
    assert not layer.weight.any()
    assert layer.weight._version > version


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_layers_in_exported_programs_too(name):
    def branching(model, x):
        return PRODUCTS[name](model, x * 2 if x.shape[1] != 6 else x)

    _, graph, layers = followed(branching)
    assert graph.meta["tracer"] == "torch.export"
    assert [type(layer) for layer in layers] == [nn.Linear]


def test_a_product_of_a_product_reads_the_layer_that_it_became():
    _, graph, layers = followed(lambda m, x: ((h := x @ m.wide + m.bias) @ m.tall).relu() * h.sum())
    assert len(layers) == 2
    _, graph, layers = followed(lambda m, x: torch.relu(x @ m.wide) @ m.tall @ m.wide)
    assert len(layers) == 3
    assert [layer.weight is layers[0].weight for layer in layers] == [True, False, True]
    assert not {node.target for node in graph.graph.nodes} & {torch.matmul, torch.add}


def test_names_of_our_own_are_not_those_of_modules():
    class Crowded(Written):
        def __init__(self):
            super().__init__(None)
            self.matmul = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3)).double()

        def forward(self, x):
            return self.matmul[1](torch.relu(self.matmul[0](torch.relu(x @ self.wide))))

    graph = trace(Crowded().eval(), torch.randn(4, 6, dtype=torch.float64))
    assert [str(node.target) for node in graph.graph.find_nodes(op="call_module")] == ["matmul_again", "matmul.0", "matmul.1"]
