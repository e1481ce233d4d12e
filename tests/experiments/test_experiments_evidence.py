import zlib

import pytest
import torch

from bayesprune import load, save
from bayesprune.attach import make_dependent, sparsify
from bayesprune.errors import InputError, StorageError
from bayesprune.experiments.evidence import load_evidence, save_evidence
from bayesprune.gates import gates
from bayesprune.models import LeNet5Caffe, LeNet500300, VGGLike, build_network

SMALL = {
    "lenet-500-300": lambda: LeNet500300(10, (50, 30)),
    "lenet5-caffe": lambda: LeNet5Caffe(10, (6, 8), 20),
    "vgg-like": lambda: VGGLike(10, ((8, 8), (12, 12), (12,), (12,), (12,)), 16),
}


def trained(plain, before_norm=False, seed=0):
    """A model with gates that prune half of the units, and batch statistics of its own."""
    torch.manual_seed(seed)
    model = make_dependent(sparsify(plain, "bb", keep_init=1.0, before_norm=before_norm), shift_init=0.4)
    with torch.no_grad():
        for gate in gates(model).values():
            gate.prune(torch.randperm(gate.num_units)[: gate.num_units // 2])
            gate.running_mean.normal_(0, 0.1)
        for module in model.modules():
            if isinstance(module, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)):
                module.running_mean.normal_(0, 0.1)
                module.bias.normal_()
    return model.eval()


@pytest.mark.parametrize("before_norm", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_computes_the_same_and_compresses(tmp_path, name, before_norm):
    model = trained(SMALL[name](), before_norm)
    state = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    save_evidence(model, tmp_path / "evidence.safetensors")
    save(model, tmp_path / "plain.safetensors")
    back = load(tmp_path / "evidence.safetensors", into=SMALL[name]()).eval()
    x = torch.rand(16, *model.input_shape)
    with torch.no_grad():
        torch.testing.assert_close(back(x), model(x), rtol=1e-6, atol=1e-6)
    assert all(torch.equal(state[key], tensor) for key, tensor in model.state_dict().items())
    sizes = [len(zlib.compress((tmp_path / f"{kind}.safetensors").read_bytes())) for kind in ("evidence", "plain")]
    assert sizes[0] < (0.75 if before_norm and name == "vgg-like" else 0.55) * sizes[1]


def test_gates_and_kept_weights_are_as_they_were(tmp_path):
    model = trained(SMALL["lenet-500-300"]())
    save_evidence(model, tmp_path / "evidence.safetensors")
    back = load(tmp_path / "evidence.safetensors", into=SMALL["lenet-500-300"]())
    for name, tensor in model.state_dict().items():
        if "_gate" in name:
            assert torch.equal(tensor, back.state_dict()[name]), name
    rows, columns = model.fc2.input_gate.keep(), model.fc1.input_gate.keep()
    assert torch.equal(back.fc1.weight != 0, rows[:, None] & columns)
    assert torch.equal(back.fc1.weight[rows][:, columns], model.fc1.weight[rows][:, columns])
    assert torch.equal(back.fc1.bias != 0, rows)
    assert torch.equal(back.fc3.bias, model.fc3.bias)


def test_whole_networks_come_back_by_name(tmp_path):
    model = trained(build_network("lenet-500-300"))
    save_evidence(model, tmp_path / "evidence.safetensors")
    back = load_evidence("lenet-500-300", 10, tmp_path / "evidence.safetensors")
    x = torch.rand(4, 1, 28, 28)
    assert not back.training
    torch.testing.assert_close(back(x), model(x))


def test_model_without_gates_is_refused(tmp_path):
    with pytest.raises(InputError, match="no gates"):
        save_evidence(LeNet5Caffe(), tmp_path / "evidence.safetensors")


@pytest.mark.parametrize("content", ["missing", "damaged", "another model", "another width", "no gates"])
def test_foreign_file_is_named(tmp_path, content):
    path = tmp_path / "evidence.safetensors"
    match content:
        case "damaged":
            path.write_bytes(b"no model")
        case "another model":
            save(trained(LeNet5Caffe()), path)
        case "another width":
            save(trained(LeNet500300(10, (50, 30))), path)
        case "no gates":
            save(LeNet500300(), path)
    with pytest.raises(StorageError, match=r"evidence\.safetensors"):
        load_evidence("lenet-500-300", 10, path)
