"""What comes back from `compact`: a plain network, and a certificate."""

import copy
import json
import pickle
import subprocess
import sys
import textwrap

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY
from torch import nn

import bayesprune as bp
from bayesprune.errors import InputError


@pytest.fixture
def pruned(set_gates):
    torch.manual_seed(0)
    model, inputs = GALLERY["resnet_basic"].build().eval(), GALLERY["resnet_basic"].inputs()
    return set_gates(bp.sparsify(model, "bb", example_inputs=inputs, before_norm=True), 0.5).eval(), inputs


LOAD = textwrap.dedent("""
    import sys
    class Blocked:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "bayesprune":
                raise ImportError("blocked")
    sys.meta_path.insert(0, Blocked())
    import pickle, torch
    saved = torch.load(sys.argv[1], weights_only=False)
    model = saved["model"].eval() if sys.argv[2] == "torch" else pickle.loads(saved["pickled"]).eval()
    assert not any(name.startswith("bayesprune") for name in sys.modules)
    torch.testing.assert_close(model(*saved["inputs"]), saved["outputs"], rtol=1e-5, atol=1e-5)
    print("same")
""")


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_it_is_loaded_where_bayesprune_is_not_installed(pruned, tmp_path, how):
    gated, inputs = pruned
    model = bp.compact(gated, inputs).model
    outputs = model(*inputs).detach()
    torch.save({"model": model, "pickled": pickle.dumps(model), "inputs": inputs, "outputs": outputs}, tmp_path / "model.pt")
    done = subprocess.run([sys.executable, "-c", LOAD, str(tmp_path / "model.pt"), how], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "same", done.stderr


def test_copies_and_state_dicts(pruned):
    gated, inputs = pruned
    model = bp.compact(gated, inputs).model
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            tensor.zero_()
    assert not torch.equal(twin(*inputs), model(*inputs))
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(*inputs), model(*inputs))


def test_weights_keep_the_names_of_their_layers(pruned):
    gated, inputs = pruned
    names = {name for name, _ in bp.compact(gated, inputs).model.named_parameters()}
    assert {"conv1.weight", "layer1.0.conv1.weight", "fc.weight"} <= names
    assert all(name in dict(gated.named_parameters()) or name.startswith("constant_") or name.endswith(".bias") for name in names)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_it_compiles(pruned, backend):
    gated, inputs = pruned
    model = bp.compact(gated, inputs).model.eval()
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend=backend, fullgraph=True)(*inputs), model(*inputs))


def test_frozen_parameters_stay_frozen(set_gates):
    torch.manual_seed(0)
    model, inputs = GALLERY["frozen"].build().eval(), GALLERY["frozen"].inputs()
    compacted = bp.compact(set_gates(bp.sparsify(model, "bb", example_inputs=inputs), 0.5), inputs).model
    frozen = [name for name, parameter in compacted.named_parameters() if not name.startswith("constant_")]
    assert frozen
    assert not any(dict(compacted.named_parameters())[name].requires_grad for name in frozen)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_it_works_without_gradients(set_gates, context, difference):
    torch.manual_seed(0)
    model, inputs = GALLERY["mobilenet_v2"].build().eval(), GALLERY["mobilenet_v2"].inputs()
    with context():
        gated = set_gates(bp.sparsify(model, "bb", example_inputs=inputs), 0.5)
        result = bp.compact(gated, inputs)
        assert result.certificate.after.parameters < result.certificate.before.parameters
        assert difference(gated(*inputs), result.model.eval()(*inputs)) <= 1e-5


@pytest.mark.parametrize("name", ["vit_own", "conv1d", "transformer_encoder"])
def test_an_example_of_one_input_says_nothing_about_the_batch(name, set_gates, difference):
    torch.manual_seed(0)
    model, inputs = GALLERY[name].build().eval(), GALLERY[name].inputs()
    one = tuple(each[:1] for each in inputs)
    gated = set_gates(bp.sparsify(model, "bb", example_inputs=one), 0.5).eval()
    assert difference(gated(*inputs), bp.compact(gated, one).model.eval()(*inputs)) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(set_gates, dtype):
    torch.manual_seed(0)
    model, inputs = GALLERY["lenet5"].build().eval(), GALLERY["lenet5"].inputs()
    gated = set_gates(bp.sparsify(model, "bb", example_inputs=inputs), 0.5).to(dtype).eval()
    assert all(parameter.dtype == torch.float32 for gate in bp.gates(gated).values() for parameter in gate.parameters())
    result = bp.compact(gated, tuple(each.to(dtype) for each in inputs))
    assert result.certificate.dtype == str(dtype).removeprefix("torch.")
    assert result.max_rel_error <= {torch.bfloat16: 5e-2, torch.float16: 5e-3}[dtype]
    assert all(parameter.dtype == dtype for parameter in result.model.parameters())


def test_the_certificate(pruned):
    gated, inputs = pruned
    result = bp.compact(gated, inputs)
    certificate = result.certificate
    assert certificate.inputs == 8  # The example, two random batches, three of other sizes, a larger batch, and a single input.
    assert certificate.dtype == "float32"
    assert certificate.tracer == "torch.fx"
    assert (result.max_abs_error, result.max_rel_error) == (certificate.max_abs_error, certificate.max_rel_error)
    assert 0 < certificate.max_abs_error < 1e-4
    assert certificate.after.parameters == sum(p.numel() for p in result.model.parameters())
    assert certificate.after.macs < certificate.before.macs
    read = json.loads(json.dumps(certificate.as_dict()))
    assert read["gates"]["conv1.output_gate"]["units"] == 8
    assert read["max_rel_error"] == certificate.max_rel_error
    lines = str(certificate).splitlines()
    assert any(line.startswith("conv1.output_gate") for line in lines)
    assert any("relative" in line and "8 batches in float32" in line for line in lines)


def test_an_example_by_keywords(set_gates, difference):
    torch.manual_seed(0)
    model, (a, b) = GALLERY["two_inputs"].build().eval(), GALLERY["two_inputs"].inputs()
    example = {"b": b, "a": a}
    gated = set_gates(bp.sparsify(model, "bb", example_inputs=example), 0.5).eval()
    compacted = bp.compact(gated, example).model.eval()
    assert difference(gated(a, b), compacted(a=a, b=b)) <= 1e-5


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x, scale=1.0, mask=None):
        hidden = F.relu(self.fc1(x)) * scale
        return self.fc2(hidden if mask is None else hidden * mask)


@pytest.mark.parametrize("example", [(torch.ones(3, 6), 2.0), (torch.ones(3, 6), 1.5, None), {"x": torch.ones(3, 6), "scale": 2.0}])
def test_arguments_that_are_no_tensors_are_taken_as_fixed(example, set_gates, difference):
    torch.manual_seed(0)
    gated = set_gates(bp.sparsify(Scaled(), "bb", example_inputs=example), 0.3).eval()
    result = bp.compact(gated, example)
    assert result.max_rel_error <= 1e-5
    x = torch.randn(4, 6)
    scale = example["scale"] if isinstance(example, dict) else example[1]
    assert difference(gated(x, scale), result.model.eval()(x)) <= 1e-5


def test_structures_of_outputs_are_kept(set_gates):
    torch.manual_seed(0)
    model, inputs = GALLERY["multi_head_outputs"].build().eval(), GALLERY["multi_head_outputs"].inputs()
    compacted = bp.compact(set_gates(bp.sparsify(model, "bb", example_inputs=inputs), 0.5), inputs).model.eval()
    assert list(compacted(*inputs)) == ["classes", "boxes"]


def test_a_model_that_draws_random_numbers_is_refused():
    class Noisy(nn.Sequential):
        def forward(self, x):
            return super().forward(x + 0.1 * torch.randn(3, 6))

    with pytest.raises(InputError, match="random"):
        bp.sparsify(Noisy(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)), "bb", example_inputs=torch.randn(3, 6))


def test_what_cannot_be_compacted():
    with pytest.raises(InputError, match="no gates"):
        bp.compact(nn.Linear(3, 2), torch.zeros(2, 3))
    with pytest.raises(InputError, match=r"takes an nn.Module, not str"):
        bp.compact("model", torch.zeros(2, 3))
    gated = bp.sparsify(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), "bb", example_inputs=torch.zeros(2, 3))
    with torch.no_grad():
        next(iter(bp.gates(gated).values())).raw_a[0] = -20.0
    with pytest.raises(InputError, match=r"\(2, 5\)"):
        bp.compact(gated, torch.zeros(2, 5))


def test_hooks_of_the_user_stay_on_a_layer_that_is_left_whole(set_gates):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    model[2].register_forward_hook(lambda layer, inputs, output: 2 * output)
    x = torch.randn(3, 6)
    gated = set_gates(bp.sparsify(model, "bb", example_inputs=x), 0.5).eval()
    assert {row.layer for row in bp.placement(gated).left_alone} == {"2", "4"}
    result = bp.compact(gated, x)
    assert result.max_rel_error <= 1e-5
    assert result.model.get_submodule("2").weight.shape == (7, 8)
