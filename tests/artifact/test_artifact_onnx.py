"""Export to ONNX: the file computes the same in onnxruntime, for any batch size, and says what is wrong otherwise."""

import importlib
import inspect
import logging

import onnx
import onnxruntime
import pytest
import torch
from gallery import GALLERY
from own_models import TwoInputs
from torch import nn
from torch.utils import _pytree as pytree

from bayesprune import sparsify
from bayesprune.artifact import export_onnx, load, save
from bayesprune.artifact.onnx import OPSET
from bayesprune.errors import InputError, StorageError


def run(path, inputs):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {each.name: value.numpy() for each, value in zip(session.get_inputs(), inputs, strict=True)}
    return [torch.as_tensor(result) for result in session.run(None, feed)]


def example(name):
    torch.manual_seed(0)
    model = GALLERY[name].build().eval()
    torch.manual_seed(1)
    return model, GALLERY[name].inputs()


@pytest.mark.parametrize("name", ["mobilenet_v2", "vit_torch", "lstm_tail", "two_inputs"])
def test_export(name, tmp_path, capfd):
    model, inputs = example(name)
    path = tmp_path / "network.onnx"
    export_onnx(model, inputs, path)
    more = tuple(torch.cat([each, each]) for each in inputs)
    for batch in (inputs, more, tuple(each[:1] for each in inputs)):
        with torch.no_grad():
            expected = pytree.tree_leaves(model(*batch))
        for a, b in zip(run(path, batch), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert [each.name for each in tmp_path.iterdir()] == ["network.onnx"]
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "torchvision" not in printed.err


def test_loaded_network(small_file, small_input, tmp_path):
    network = load(small_file)
    export_onnx(network, {"x": small_input}, tmp_path / "small.onnx")
    file = onnx.load(tmp_path / "small.onnx")
    assert [each.name for each in file.graph.input] == ["x"]
    assert file.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert file.opset_import[0].version == OPSET
    with torch.no_grad():
        expected = pytree.tree_leaves(network(small_input))
    for a, b in zip(run(tmp_path / "small.onnx", (small_input,)), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_keywords_in_any_order(tmp_path):
    model, (image, vector) = example("two_inputs")
    names = list(inspect.signature(model.forward).parameters)
    export_onnx(model, {names[1]: vector, names[0]: image}, tmp_path / "a.onnx")
    assert [each.name for each in onnx.load(tmp_path / "a.onnx").graph.input] == names


def test_example_of_one_sample_still_gives_any_batch(small_model, small_input, tmp_path):
    export_onnx(small_model, small_input[:1], tmp_path / "small.onnx")
    assert run(tmp_path / "small.onnx", (small_input,))[0].shape[0] == 3


def test_fixed_batch(tmp_path):
    model, inputs = example("static_batch_view")
    with pytest.raises(InputError, match="dynamic_batch=False"):
        export_onnx(model, inputs, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
    export_onnx(model, inputs, tmp_path / "a.onnx", dynamic_batch=False)
    torch.testing.assert_close(run(tmp_path / "a.onnx", inputs)[0], model(*inputs).detach(), rtol=1e-4, atol=1e-4)


def test_mode_is_as_before(small_model, small_input, tmp_path):
    small_model.train()
    try:
        export_onnx(small_model, small_input, tmp_path / "a.onnx")
        assert all(module.training for module in small_model.modules())
    finally:
        small_model.eval()


def test_gates_are_to_be_removed_first(tmp_path):
    model, inputs = example("lenet5")
    with pytest.raises(InputError, match="compact"):
        export_onnx(sparsify(model, "bb", example_inputs=inputs), inputs, tmp_path / "a.onnx")


def test_layer_without_channels(tmp_path):
    with pytest.warns(UserWarning, match="zero-element"):
        model = nn.Sequential(nn.Linear(3, 0), nn.Linear(0, 2))
    with pytest.raises(InputError, match="no elements"):
        export_onnx(model, torch.randn(2, 3), tmp_path / "a.onnx")


@pytest.mark.parametrize("missing", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_package(missing, small_model, small_input, tmp_path, monkeypatch):
    real = importlib.import_module

    def refuse(name, *arguments):
        if name == missing:
            raise ImportError(f"No module named '{name}'")
        return real(name, *arguments)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(InputError, match=r"pip install -e '\.\[onnx\]'"):
        export_onnx(small_model, small_input, tmp_path / "a.onnx")


def test_file_that_computes_something_else(small_model, small_input, tmp_path, monkeypatch):
    module = importlib.import_module("bayesprune.artifact.onnx")
    real = module.onnx_content

    def wrong(model, *arguments):
        changed = onnx.load_from_string(real(model, *arguments))
        for tensor in changed.graph.initializer:
            if "scale" in tensor.name:
                tensor.raw_data = bytes(len(tensor.raw_data))
        return changed.SerializeToString()

    monkeypatch.setattr(module, "onnx_content", wrong)
    with pytest.raises(InputError, match="computes something else"):
        export_onnx(small_model, small_input, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
    export_onnx(small_model, small_input, tmp_path / "a.onnx", check=False)


def test_example_that_does_not_run(small_model, tmp_path):
    with pytest.raises(InputError, match="does not run"):
        export_onnx(small_model, torch.randn(2, 3), tmp_path / "a.onnx")


def test_model_that_cannot_be_exported(tmp_path):
    class Odd(nn.Module):
        def forward(self, x):
            return x if float(x.sum()) > 0 else -x

    with pytest.raises(InputError, match="cannot be exported"):
        export_onnx(Odd(), torch.ones(2, 3), tmp_path / "a.onnx")


def test_folder(small_model, small_input, tmp_path):
    with pytest.raises(StorageError, match="folder"):
        export_onnx(small_model, small_input, tmp_path)
    with pytest.raises(StorageError, match="No such file"):
        export_onnx(small_model, small_input, tmp_path / "nowhere" / "a.onnx", check=False)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("path model example", r"takes an nn\.Module, not str: export_onnx\(model, example_inputs, path\)"),
        ("example model path", r"takes an nn\.Module, not Tensor"),
        ("model path example", "example_inputs is a tensor, .* not str"),
        ("model example example", "is no path of a file: .* not an object of type Tensor"),
    ],
)
def test_arguments_the_wrong_way_round(order, message, tmp_path):
    given = {"model": nn.Linear(2, 2), "example": torch.ones(2, 2), "path": str(tmp_path / "a.onnx")}
    with pytest.raises(InputError, match=message):
        export_onnx(*(given[name] for name in order.split()))


@pytest.mark.parametrize("opset", [3, 9, 99])
def test_opset_that_is_not_written(opset, tmp_path, caplog):
    with pytest.raises(InputError, match=rf"cannot write Sequential in opset {opset}, .*opset 18 instead\. It writes opsets 18 to 23"):
        export_onnx(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), torch.ones(2, 2), tmp_path / "a.onnx", opset=opset)
    assert not list(tmp_path.iterdir())
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("opset", [None, "18", 18.0, True])
def test_opset_that_is_no_number(opset, tmp_path):
    with pytest.raises(InputError, match="opset is a whole number, 18 to 23"):
        export_onnx(nn.Linear(2, 2), torch.ones(2, 2), tmp_path / "a.onnx", opset=opset)


@pytest.mark.parametrize("opset", [*range(18, 24)])
def test_opset_that_is_written(opset, tmp_path):
    export_onnx(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU()), torch.ones(2, 1, 4, 4), tmp_path / "a.onnx", opset=opset)
    assert onnx.load(tmp_path / "a.onnx").opset_import[0].version == opset


def test_same_weights_as_the_artifact(small_model, small_input, tmp_path):
    save(small_model, tmp_path / "a.safetensors", example_inputs=small_input)
    export_onnx(load(tmp_path / "a.safetensors"), small_input, tmp_path / "a.onnx", opset=18)
    assert onnx.load(tmp_path / "a.onnx").opset_import[0].version == 18


def test_the_same_tensor_twice(tmp_path):
    model, (x, y) = TwoInputs().eval(), torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))
    export_onnx(model, (x, x), tmp_path / "a.onnx")
    torch.testing.assert_close(run(tmp_path / "a.onnx", (x, y))[0], model(x, y).detach(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dynamic_batch", [True, False])
def test_the_check_is_not_on_the_example_alone(dynamic_batch, tmp_path, monkeypatch):
    """A file that takes its two inputs for one computes the same as long as they are equal."""
    module = importlib.import_module("bayesprune.artifact.onnx")
    real = module.onnx_content

    def wrong(model, *arguments):
        changed = onnx.load_from_string(real(model, *arguments))
        for node in changed.graph.node:
            node.input[:] = ["x" if name == "y" else name for name in node.input]
        return changed.SerializeToString()

    monkeypatch.setattr(module, "onnx_content", wrong)
    x = torch.randn(3, 6)
    with pytest.raises(InputError, match="computes something else"):
        export_onnx(TwoInputs().eval(), (x, x), tmp_path / "a.onnx", dynamic_batch=dynamic_batch)


def test_a_model_for_certain_numbers_is_checked_on_the_example(tmp_path):
    """Of negative numbers the logarithm is not a number, of which runtimes make what they like."""

    class Logarithm(nn.Module):
        def forward(self, x):
            return torch.relu(torch.log(x))

    export_onnx(Logarithm(), torch.rand(3, 6) + 0.5, tmp_path / "a.onnx")


@pytest.mark.parametrize("result", [lambda x: (x + 1, x.shape[0]), lambda x: {"y": x + 1, "scale": 2.0}, lambda x: [x + 1, "text"]])
def test_a_model_that_returns_more_than_tensors(result, tmp_path):
    class Returns(nn.Module):
        def forward(self, x):
            return result(x)

    with pytest.raises(InputError, match=r"Returns returns an object of type \w+ \(.*\): an ONNX file gives tensors only"):
        export_onnx(Returns(), torch.ones(2, 3), tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_that_returns_nothing_beside_a_tensor(tmp_path):
    class Returns(nn.Module):
        def forward(self, x):
            return x + 1, None

    export_onnx(Returns(), torch.ones(2, 3), tmp_path / "a.onnx")
    assert torch.equal(run(tmp_path / "a.onnx", (torch.ones(2, 3),))[0], torch.full((2, 3), 2.0))


@pytest.mark.parametrize("form", [lambda given: (given,), lambda given: {"given": given}])
def test_a_dictionary_as_the_only_argument(form, tmp_path):
    class Takes(nn.Module):
        def forward(self, given):
            return given["q"] - 2 * given["p"]

    first, second = torch.randn(2, 3, 6)
    export_onnx(Takes(), form({"q": first, "p": first}), tmp_path / "a.onnx")
    torch.testing.assert_close(run(tmp_path / "a.onnx", (first, second))[0], first - 2 * second)
