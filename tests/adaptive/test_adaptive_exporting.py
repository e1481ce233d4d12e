"""Per-input execution in other runtimes: the same results, from the units that an input needs, or a clear refusal."""

import io
from types import SimpleNamespace

import onnx
import onnxruntime
import pytest
import torch
from gallery import GALLERY

import bayesprune as bp
from bayesprune.adaptive import AdaptiveModel, export_adaptive_onnx, exported_program, exporting, single_input_network
from bayesprune.adaptive.choice import Choice
from bayesprune.errors import InputError, StorageError

# For each network the gate that leaves nothing for the first input, and the layers that are gated.
NETWORKS = {
    "mlp": ("1.input_gate", None),
    "lenet_500_300": ("fc2.input_gate", None),
    "lenet5": ("conv1.output_gate", None),
    "lenet5, convolutions alone": ("conv2.output_gate", "conv*"),
    "vgg": ("features.block5.relu.output_gate", None),
    "vit_own": ("blocks.0.mlp.3.input_gate", None),
}


def dependent(name, closed=None, include=None):
    """A network with random gates of DBB, one of which may leave nothing for the first input, and inputs for it."""
    torch.manual_seed(0)
    model = GALLERY[name].build()
    x = GALLERY[name].inputs()[0] if name == "static_batch_view" else torch.cat([GALLERY[name].inputs()[0] for _ in range(2)])
    gated = bp.sparsify(model, "bb", example_inputs=x, include=include)
    with torch.no_grad():
        for gate in bp.gates(gated).values():
            gate.raw_a.copy_(torch.where(torch.rand(gate.num_units) < 0.7, 2.0, -15.0))
            gate.raw_a[0] = 2.0
        gated = bp.make_dependent(gated).eval()
        handles = []
        for path, gate in bp.gates(gated).items():
            gate.shift.copy_(torch.full((gate.num_units,), -0.01) if path == closed else 0.3 + 0.5 * torch.randn(gate.num_units))
            handles.append(gate.register_forward_pre_hook(centre_on_the_first if path == closed else centre))
        gated(x)
        for handle in handles:
            handle.remove()
    return gated, x


def centre(gate, arguments):
    activation = gate.units.mean(arguments[0])
    gate.running_mean.copy_(activation.mean(dim=0))
    gate.running_var.copy_(activation.var(dim=0) + 1e-3)


def centre_on_the_first(gate, arguments):
    centre(gate, arguments)
    gate.running_mean.copy_(gate.units.mean(arguments[0])[0])


def adaptive_model(name):
    closed, include = NETWORKS[name]
    gated, x = dependent(name.split(",")[0], closed, include)
    return gated, x, AdaptiveModel(gated, x, cache=None)


@pytest.fixture(scope="module", params=list(NETWORKS))
def exported(request, tmp_path_factory):
    gated, x, adaptive = adaptive_model(request.param)
    path = tmp_path_factory.mktemp("exported") / "network.onnx"
    export_adaptive_onnx(adaptive, path)
    return SimpleNamespace(name=request.param, gated=gated, x=x, adaptive=adaptive, path=path)


@pytest.fixture(scope="module")
def small():
    return SimpleNamespace(**dict(zip(("gated", "x", "adaptive"), adaptive_model("lenet5"), strict=True)))


@torch.no_grad()
def one_by_one(model, x):
    return torch.cat([model(each) for each in x.split(1)])


def session(model):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def assert_same(result, expected):
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


def test_example_has_different_masks(exported):
    needed = torch.stack(exported.adaptive.units_needed(exported.x))
    assert bool((needed != needed[:, :1]).any())
    assert bool((needed[:, 0] == 0).any())
    assert not bool((needed == 0).all(dim=1).any())


def test_network_for_one_input(exported):
    assert_same(one_by_one(single_input_network(exported.adaptive), exported.x), one_by_one(exported.gated, exported.x))


def test_program(exported):
    program = exported_program(exported.adaptive)
    more = torch.cat([exported.x, 3.0 * exported.x, torch.zeros_like(exported.x[:1])])
    assert_same(one_by_one(program.module(), more), one_by_one(exported.gated, more))
    assert len(program.range_constraints) == len(exported.adaptive.layers)


def test_file_computes_what_the_gated_model_does(exported):
    running = session(onnx.load(exported.path))
    (entry,) = running.get_inputs()
    assert entry.shape[0] == 1
    more = torch.cat([exported.x, 3.0 * exported.x, torch.zeros_like(exported.x[:1])])
    results = torch.cat([torch.as_tensor(running.run(None, {entry.name: each.numpy()})[0]) for each in more.split(1)])
    assert_same(results, one_by_one(exported.gated, more))


def gathered_weights(graph):
    """The weights that are gathered by numbers that only running tells, on their way to a layer: names by the numbers' origin."""
    tensors = {tensor.name for tensor in graph.initializer}
    maker = {name: node for node in graph.node for name in node.output}
    found = {}
    for layer in graph.node:
        if layer.op_type not in ("Conv", "MatMul", "Gemm") or layer.input[1] in tensors:
            continue
        node = maker[layer.input[1]]
        while node.op_type in ("Reshape", "Transpose"):
            node = maker[node.input[0]]
        if node.op_type != "Gather" or node.input[0] not in tensors:
            continue
        numbers = maker[node.input[1]]
        while numbers.op_type in ("Reshape", "Squeeze", "Transpose"):
            numbers = maker[numbers.input[0]]
        assert numbers.op_type == "NonZero"
        found[numbers.output[0]] = node.output[0]
    return found


def test_file_reads_the_weights_that_an_input_needs(exported):
    model = onnx.load(exported.path)
    weights = gathered_weights(model.graph)
    assert len(weights) == len(exported.adaptive.layers) == sum(node.op_type == "NonZero" for node in model.graph.node)
    model.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in weights.values())
    running = session(model)
    needed = torch.stack(exported.adaptive.units_needed(exported.x))
    for each, expected in zip(exported.x.split(1), needed.T.tolist(), strict=True):
        _, *parts = running.run(None, {running.get_inputs()[0].name: each.numpy()})
        # One unit is always there, whether it is needed or not.
        assert all(max(count, 1) <= len(part) <= count + 1 for part, count in zip(parts, expected, strict=True))


def test_program_in_a_file(small):
    file = io.BytesIO()
    torch.export.save(exported_program(small.adaptive), file)
    file.seek(0)
    assert_same(one_by_one(torch.export.load(file).module(), small.x), one_by_one(small.gated, small.x))


def test_layers_that_were_chosen(small, monkeypatch):
    first, *others = small.adaptive.layers
    monkeypatch.setattr(first, "choices", {1: Choice(1, 1.0, 0.0)})
    for layer in others:
        monkeypatch.setattr(layer, "choices", {})
    network = single_input_network(small.adaptive, layers="chosen")
    assert sum(isinstance(module, exporting._GatheringLayer) for module in network.modules()) == 1
    assert_same(one_by_one(network, small.x), one_by_one(small.gated, small.x))


def test_plain_export_says_what_to_use(small, tmp_path):
    for model in (small.adaptive, torch.nn.Sequential(small.adaptive, torch.nn.Softmax(dim=1))):
        with pytest.raises(InputError, match=r"export_onnx cannot write an AdaptiveModel: .*export_adaptive_onnx\(model, path\)"):
            bp.export_onnx(model, small.x, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_network_that_cannot_be_exported(small, tmp_path, monkeypatch):
    real = exporting._GatheringLayer.forward
    monkeypatch.setattr(exporting._GatheringLayer, "forward", lambda self, x, mask: real(self, x if float(x.sum()) > 0 else 2 * x, mask))
    with pytest.raises(InputError, match=r"AdaptiveNetwork cannot be exported to ONNX: [^\n]*$"):
        export_adaptive_onnx(small.adaptive, tmp_path / "a.onnx")
    with pytest.raises(InputError, match=r"cannot be exported with torch\.export: [^\n]*$"):
        exported_program(small.adaptive)
    assert not list(tmp_path.iterdir())


def test_file_that_computes_something_else(small, tmp_path, monkeypatch):
    real = exporting._GatheringLayer.forward
    monkeypatch.setattr(exporting._GatheringLayer, "forward", lambda self, x, mask: 1.01 * real(self, x, mask))
    (tmp_path / "a.onnx").write_text("before")
    with pytest.raises(InputError, match=r"computes something else in onnxruntime .* Nothing was written$"):
        export_adaptive_onnx(small.adaptive, tmp_path / "a.onnx")
    assert (tmp_path / "a.onnx").read_text() == "before"
    with pytest.raises(InputError, match="the exported program computes something else: it is off by"):
        exported_program(small.adaptive)


def test_network_for_one_size_of_batch(tmp_path):
    gated, x = dependent("static_batch_view")
    adaptive = AdaptiveModel(gated, x, cache=None)
    with pytest.raises(InputError, match="takes no batches of 1"):
        export_adaptive_onnx(adaptive, tmp_path / "a.onnx")


def test_places_that_cannot_be_written(small, tmp_path):
    with pytest.raises(StorageError, match="it is a folder"):
        export_adaptive_onnx(small.adaptive, tmp_path)
    with pytest.raises(StorageError, match="No such file"):
        export_adaptive_onnx(small.adaptive, tmp_path / "nowhere" / "a.onnx")


def test_wrong_arguments(small, tmp_path):
    with pytest.raises(InputError, match="takes an AdaptiveModel, not LeNet5Caffe"):
        export_adaptive_onnx(small.gated, tmp_path / "a.onnx")
    with pytest.raises(InputError, match="layers is 'all' or 'chosen', not 'some'"):
        exported_program(small.adaptive, layers="some")
    with pytest.raises(InputError, match="no path of a file"):
        export_adaptive_onnx(small.adaptive, small.x)
