"""Where removal usually goes wrong, one case at a time."""

import warnings

import pytest
import torch
from gallery import GALLERY, randomise_norms
from masking import prune_at_random, prune_units
from torch import nn

import bayesprune as bp
from bayesprune.gates.beta_bernoulli import BetaBernoulli
from bayesprune.gates.hooks import put_on
from bayesprune.models import LeNet5Caffe

X = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def double(*layers):
    torch.manual_seed(0)
    model = nn.Sequential(*layers).double().eval()
    randomise_norms(model)
    return model.double()


def functions(model):
    return [node.target for node in model.graph.nodes if node.op == "call_function"]


def test_features_finer_than_channels_are_gathered():
    gated = prune_units(bp.sparsify(LeNet5Caffe(), "bb"), {"fc1.input_gate": [0, 17, 333, 500, 799]})
    result = bp.compact(gated)
    assert result.kept == {"conv1.output_gate": 20, "conv2.output_gate": 50, "fc1.input_gate": 795, "fc2.input_gate": 500}
    assert tuple(result.model.fc1.weight.shape) == (500, 795)
    assert result.model.conv2.out_channels == 50
    assert torch.index_select in functions(result.model)
    assert result.max_rel_error < 1e-5


def test_constant_channels_before_a_border_become_one():
    model = double(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1), nn.Flatten(), nn.Linear(256, 2)
    )
    with torch.no_grad():
        model[1].bias.copy_(torch.linspace(0.5, 1.5, 8))
        model[1].running_mean.zero_()
    gated = prune_units(bp.sparsify(model, "bb", example_inputs=X, before_norm=True), {"0.output_gate": [1, 3, 4, 6]})
    result = bp.compact(gated, X)
    assert result.model.get_submodule("0").out_channels == 5, "four that are kept, and one that stands for the constants"
    assert result.certificate.gates["0.output_gate"].stayed == 1
    assert "constant but not zero" in result.certificate.gates["0.output_gate"].reason
    assert result.max_rel_error < 1e-12
    with torch.no_grad():
        result.model.get_submodule("3").weight[:, result.model.get_submodule("0").weight.abs().sum(dim=(1, 2, 3)) == 0] = 0
        wrong = (result.model(X) - gated.eval()(X)).norm() / gated(X).norm()
    assert wrong > 1e-3, "dropping the constants would have shown"


def test_constant_channels_without_a_border_go_into_the_bias():
    model = double(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False), nn.Flatten(), nn.Linear(64, 2))
    gated = prune_units(bp.sparsify(model, "bb", example_inputs=X, before_norm=True), {"0.output_gate": [0, 5]})
    result = bp.compact(gated, X)
    assert result.model.get_submodule("0").out_channels == 6
    assert result.model.get_submodule("3").bias is not None
    assert result.max_rel_error < 1e-12


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_borders_that_repeat_the_channel_are_no_borders(mode):
    conv = nn.Conv2d(8, 4, 3, padding=1, padding_mode=mode)
    model = double(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), conv, nn.Flatten(), nn.Linear(144, 2))
    result = bp.compact(prune_units(bp.sparsify(model, "bb", example_inputs=X, before_norm=True), {"0.output_gate": [0, 5]}), X)
    assert result.model.get_submodule("0").out_channels == 6
    assert result.max_rel_error < 1e-12


def test_a_residual_branch_is_added_to_the_channels_it_has():
    gated = bp.sparsify(
        GALLERY["resnet_basic"].build().eval(), "bb", example_inputs=GALLERY["resnet_basic"].inputs(), include=["layer1.0.conv2"]
    )
    prune_units(gated, {"layer1.0.bn2.output_gate": [0, 2, 3]})
    result = bp.compact(gated, GALLERY["resnet_basic"].inputs())
    assert functions(result.model).count(torch.index_add) == 1
    assert result.model.layer1.get_submodule("0").conv2.out_channels == 5
    assert result.model.conv1.out_channels == 8, "the stream stays"
    assert result.max_rel_error < 1e-5


class PreciseStream(nn.Module):
    """A residual stream in a type of its own, as models in half precision have it."""

    def __init__(self, stream):
        super().__init__()
        torch.manual_seed(0)
        self.stream, self.fc1, self.fc2, self.fc3 = stream, nn.Linear(6, 8), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x):
        y = x.to(self.stream)
        y = y + self.fc2(torch.relu(self.fc1(y.to(x.dtype))))
        return y, self.fc3(y.to(x.dtype))


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize(("stream", "branch"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_a_residual_stream_may_be_of_another_type_than_its_branches(stream, branch, share):
    model, x = PreciseStream(stream).to(branch).eval(), torch.randn(4, 6, dtype=branch)
    gated = bp.sparsify(model, "bb", example_inputs=x, include="fc2")
    prune_units(gated, {name: range(int(share * gate.num_units)) for name, gate in bp.gates(gated).items()})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.errors.BayespruneWarning)  # Where everything is pruned.
        small = bp.compact(gated.eval(), x).model
    assert [each.dtype for each in small(x)] == [each.dtype for each in gated(x)]
    torch.testing.assert_close(small(x), gated(x), rtol=1e-5, atol=1e-5)


def test_a_dead_branch_leaves_the_stream_alone():
    inputs = GALLERY["resnet_basic"].inputs()
    gated = bp.sparsify(GALLERY["resnet_basic"].build().eval(), "bb", example_inputs=inputs, include=["layer1.0.*"])
    prune_at_random(gated, 1.0)
    result = bp.compact(gated, inputs)
    assert not any(name.startswith("layer1.0.") for name, _ in result.model.named_parameters())
    assert result.max_rel_error < 1e-5


def test_a_network_of_which_nothing_is_left_is_a_constant():
    inputs = GALLERY["lenet5"].inputs()
    gated = prune_at_random(bp.sparsify(GALLERY["lenet5"].build().eval(), "bb", example_inputs=inputs), 1.0)
    result = bp.compact(gated, inputs)
    assert result.certificate.after.macs == 0
    assert not any(isinstance(module, nn.Conv2d) for module in result.model.modules())
    for batch in (1, 7):
        assert torch.equal(result.model(torch.rand(batch, *inputs[0].shape[1:]))[0], gated(torch.rand(1, *inputs[0].shape[1:]))[0])


def test_no_layer_without_inputs_or_outputs():
    for name in ("resnet_bottleneck", "densenet", "mobilenet_v2", "unet", "vit_own"):
        inputs = GALLERY[name].inputs()
        gated = prune_at_random(bp.sparsify(GALLERY[name].build().eval(), "bb", example_inputs=inputs), 0.95, seed=4)
        result = bp.compact(gated, inputs)
        assert all(parameter.numel() for parameter in result.model.parameters()), name


def test_whole_model_comes_back_with_a_warning():
    gated = bp.sparsify(GALLERY["mlp"].build(), "bb", example_inputs=GALLERY["mlp"].inputs())
    with pytest.warns(bp.BayespruneWarning, match="no unit is under its gate's threshold"):
        result = bp.compact(gated, GALLERY["mlp"].inputs())
    assert result.certificate.after.parameters == result.certificate.before.parameters
    assert result.certificate.after.bytes == result.certificate.before.bytes


def test_grouped_convolutions_lose_whole_groups():
    inputs = GALLERY["grouped_conv"].inputs()
    gated = bp.sparsify(GALLERY["grouped_conv"].build().eval(), "bb", example_inputs=inputs, include=["conv2"])
    (name,) = bp.gates(gated)
    result = bp.compact(prune_units(gated, {name: [1, 2]}), inputs)
    assert result.model.conv2.groups == 2
    assert result.max_rel_error < 1e-5


def test_group_norm_loses_whole_groups():
    inputs = GALLERY["groupnorm_net"].inputs()
    gated = bp.sparsify(GALLERY["groupnorm_net"].build().eval(), "bb", example_inputs=inputs, include=["conv1"])
    result = bp.compact(prune_units(gated, {"conv2.input_gate": [0]}), inputs)
    assert result.model.norm1.num_groups == 3
    assert result.max_rel_error < 1e-5


@pytest.mark.parametrize("name", ["vit_own", "vit_matmul", "vit_bmm", "vit_torch", "transformer_encoder"])
def test_heads_leave_queries_keys_and_values(name):
    inputs = GALLERY[name].inputs()
    gated = bp.sparsify(GALLERY[name].build().eval(), "bb", example_inputs=inputs)
    heads = [gate for gate, each in bp.gates(gated).items() if each.units.groups is not None]
    result = bp.compact(prune_units(gated, {gate: [1] for gate in heads}), inputs)
    gate = bp.gates(gated)[heads[0]]
    embedding = gate.controlled[0].weight.shape[1]
    left = embedding // gate.num_units * (gate.num_units - 1)
    widths = {layer.out_features for layer in result.model.modules() if isinstance(layer, nn.Linear)}
    assert widths & {left, 3 * left}, "queries, keys and values, in one layer or in three"
    assert result.max_rel_error < 1e-5


def test_heads_are_gated_although_the_encoder_has_a_fast_path():
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, dropout=0.0)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)).eval()
    x = torch.randn(2, 5, 16)
    gated = bp.sparsify(model, "bb", example_inputs=x, include=["*out_proj"])
    assert [name for name in bp.gates(gated) if name.endswith("head_gate")]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = gated(x)
        prune_at_random(gated, 1.0)
        assert not torch.allclose(gated(x), before)


def test_a_gate_that_cannot_move_stays_as_a_product():
    class Smooth(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.act, self.head = nn.Conv2d(3, 6, 3), nn.GELU(), nn.Conv2d(6, 2, 1)
            torch.manual_seed(1)

        def forward(self, x):
            y = self.act(self.conv(x))
            return self.head(y) + torch.tanh(y).sum(dim=1, keepdim=True)

    gated = Smooth().double().eval()
    put_on(gated.act, "output", BetaBernoulli(6).double())
    prune_units(gated, {"act.output_gate": [2]})
    result = bp.compact(gated.eval(), X)
    assert result.certificate.masks_left == ("act.output_gate",)
    assert torch.mul in functions(result.model)
    assert result.max_rel_error < 1e-12
    assert "still multiplied" in str(result.certificate)


@pytest.mark.parametrize("change", [lambda m: m.requires_grad_(False), lambda m: m.train(), lambda m: m])
def test_gradients_and_modes_do_not_matter(change):
    inputs = GALLERY["resnet_basic"].inputs()
    with torch.no_grad():
        gated = prune_at_random(bp.sparsify(change(GALLERY["resnet_basic"].build()), "bb", example_inputs=inputs), 0.5)
        result = bp.compact(gated, inputs)
    assert result.model.training == gated.training
    assert result.certificate.after.parameters < result.certificate.before.parameters / 1.5


def test_one_input_is_example_enough():
    for name in ("resnet_basic", "vit_bmm", "lenet5", "shufflenet_v2"):
        inputs = tuple(each[:1] for each in GALLERY[name].inputs())
        gated = prune_at_random(bp.sparsify(GALLERY[name].build().eval(), "bb", example_inputs=inputs), 0.4)
        result = bp.compact(gated, inputs)
        assert result.max_rel_error < 1e-5
        whole = GALLERY[name].inputs()
        with torch.no_grad():
            assert torch.allclose(result.model(*whole), gated(*whole), atol=1e-4), name


@pytest.mark.parametrize("before_norm", [False, True])
def test_a_branch_with_nothing_left_does_not_fix_the_size_of_feature_maps(before_norm):
    class Beside(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.both = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3), nn.Conv2d(16, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)

        def forward(self, x):
            return self.both(torch.cat([torch.relu(self.left(x)), self.norm(self.right(x))], dim=1))

    model = randomise_norms(Beside()).double().eval()
    gated = bp.sparsify(model, "bb", example_inputs=X, before_norm=before_norm)
    name = "right.output_gate" if before_norm else "norm.output_gate"
    result = bp.compact(prune_units(gated, {name: range(8)}), X)
    assert not hasattr(result.model, "right")
    larger = torch.randn(2, 3, 12, 9, dtype=torch.float64)
    torch.testing.assert_close(result.model(larger), gated(larger), rtol=1e-12, atol=1e-12)
