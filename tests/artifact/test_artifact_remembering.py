"""Models that write into themselves in evaluation mode: what their file does not do is said."""

import copy

import pytest
import torch
from remembering import GOING_BY_IT, WRITTEN, Averaging, Counting, X

import bayesprune as bp
from bayesprune.errors import BayespruneWarning, InputError

WRITERS = {
    "save": lambda model, folder: bp.save(model, folder / "network.safetensors", example_inputs=X),
    "export_onnx": lambda model, folder: bp.export_onnx(model, X, folder / "network.onnx"),
}


@pytest.fixture(params=WRITERS)
def write(request, tmp_path):
    if request.param == "export_onnx":
        pytest.importorskip("onnxruntime")
    return lambda model: WRITERS[request.param](model, tmp_path)


@pytest.mark.parametrize("kind", [Counting, Averaging])
def test_buffers_that_a_file_does_not_update_are_named(write, kind):
    model = kind().eval()
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(BayespruneWarning, match=f"{kind.__name__} updates {WRITTEN[kind]} when it is called") as told:
        write(model)
    assert [each.filename for each in told] == [__file__]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", GOING_BY_IT)
def test_models_that_go_by_what_they_wrote_are_refused(write, kind):
    with pytest.raises(InputError, match=f"wrote into {GOING_BY_IT[kind]} in earlier"):
        write(kind().eval())


def test_a_loaded_network_computes_what_the_model_did(tmp_path):
    model = Averaging().eval()
    with pytest.warns(BayespruneWarning, match="average"):
        bp.save(model, tmp_path / "network.safetensors", example_inputs=X)
    torch.testing.assert_close(bp.load(tmp_path / "network.safetensors")(X), model(X))
