import pytest
import torch

from bayesprune import save
from bayesprune.attach import make_dependent, sparsify
from bayesprune.errors import BayespruneWarning, StorageError
from bayesprune.experiments.evidence import save_evidence
from bayesprune.gates import gates
from bayesprune.models import build_network
from bayesprune.report import draw_model_figures


@pytest.fixture
def results(tmp_path):
    (tmp_path / "results" / "models").mkdir(parents=True)
    return tmp_path / "results"


def put_model(results, network, dataset, method="dbb"):
    torch.manual_seed(0)
    model = sparsify(build_network(network), "bb", keep_init=1.0)
    model = make_dependent(model, shift_init=0.3) if method == "dbb" else model
    for gate in gates(model).values():
        gate.prune(torch.arange(0, gate.num_units, 2))
    save_evidence(model, results / "models" / f"{network}-{dataset}-dbb.safetensors")


def test_all_figures_of_what_there_is(results, tmp_path, digits_folder):
    put_model(results, "lenet-500-300", "mnist")
    put_model(results, "lenet5-caffe", "mnist")
    drawn = draw_model_figures(results, tmp_path / "new" / "figures", data_dir=digits_folder)
    assert {path.name for path in drawn} == {
        "class-correlation-lenet-500-300.png",
        "class-correlation-lenet5-caffe.png",
        "activations-to-probabilities-lenet-500-300.png",
        "activations-to-probabilities-lenet5-caffe.png",
        "input-regions-lenet-500-300.png",
    }
    assert set(drawn) == set((tmp_path / "new" / "figures").iterdir())


def test_nothing_there_nothing_drawn(results, tmp_path):
    assert draw_model_figures(results, tmp_path / "figures") == []
    assert draw_model_figures(tmp_path / "nowhere", tmp_path / "figures") == []


def test_missing_data_set_is_told(results, tmp_path):
    put_model(results, "lenet5-caffe", "mnist")
    told = []
    assert draw_model_figures(results, tmp_path / "figures", say=told.append, data_dir=tmp_path) == []
    (message,) = told
    assert message.startswith("no figures of lenet5-caffe-mnist-dbb.safetensors: ")
    assert str(tmp_path) in message
    with pytest.warns(BayespruneWarning, match="no figures of lenet5-caffe-mnist-dbb"):
        draw_model_figures(results, tmp_path / "figures", data_dir=tmp_path)


def test_model_that_prunes_everything(results, tmp_path, digits_folder):
    model = make_dependent(sparsify(build_network("lenet5-caffe"), "bb"))
    for gate in gates(model).values():
        gate.prune(torch.arange(gate.num_units))
    save(model, results / "models" / "lenet5-caffe-mnist-dbb.safetensors")
    drawn = draw_model_figures(results, tmp_path / "figures", data_dir=digits_folder)
    assert [path.name for path in drawn] == ["class-correlation-lenet5-caffe.png"]


def test_damaged_files_are_named(results, tmp_path, digits_folder):
    path = results / "models" / "lenet-500-300-mnist-dbb.safetensors"
    path.write_bytes(b"damaged")
    with pytest.raises(StorageError, match="lenet-500-300-mnist-dbb"):
        draw_model_figures(results, tmp_path / "figures", data_dir=digits_folder)
    put_model(results, "lenet-500-300", "mnist", method="bb")
    with pytest.raises(StorageError, match=r"lenet-500-300-mnist-dbb\.safetensors holds a model with gates of the method bb"):
        draw_model_figures(results, tmp_path / "figures", data_dir=digits_folder)
