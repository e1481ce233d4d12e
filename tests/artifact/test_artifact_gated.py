"""Models with gates: what is learned comes back into the model that it was learned on."""

import copy

import pytest
import torch
from gallery import GALLERY
from torch import nn

from bayesprune import compact, make_dependent, sparsify
from bayesprune.artifact import file, load, read_description, save
from bayesprune.errors import BayespruneError, InputError, StorageError
from bayesprune.gates import METHODS, gates
from bayesprune.gates.beta_bernoulli import BetaBernoulli
from bayesprune.gates.hooks import put_on


def plain(name="lenet5"):
    torch.manual_seed(0)
    model = GALLERY[name].build().eval()
    torch.manual_seed(1)
    return model, GALLERY[name].inputs()


def trained(gated):
    """As if it had been trained: every parameter and buffer of floating point moved."""
    torch.manual_seed(2)
    with torch.no_grad():
        for tensor in gated.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.1 * torch.rand_like(tensor))
    return gated


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def controls(model):
    paths = {id(module): path for path, module in model.named_modules()}
    return {name: [(paths[id(each.layer)], each.side) for each in gate.controlled] for name, gate in gates(model).items()}


@pytest.fixture(params=sorted(METHODS))
def gated(request):
    model, inputs = plain()
    return trained(sparsify(model, request.param, example_inputs=inputs)).eval()


@pytest.mark.parametrize("onto", ["plain", "gated"])
def test_round_trip(gated, onto, tmp_path):
    save(gated, tmp_path / "gated.safetensors")
    model, inputs = plain()
    method = next(iter(gates(gated).values())).method
    target = model if onto == "plain" else sparsify(model, method, example_inputs=inputs)
    before = copy.deepcopy(target.state_dict())
    restored = load(tmp_path / "gated.safetensors", into=target)

    assert type(restored) is type(model)
    assert restored is not target
    assert same(target.state_dict(), before)
    assert same(restored.state_dict(), gated.state_dict())
    assert controls(restored) == controls(gated)
    for name, gate in gates(gated).items():
        other = gates(restored)[name]
        assert type(other) is type(gate)
        assert (other.position, other.num_units, other.units.channel_dim) == (gate.position, gate.num_units, gate.units.channel_dim)
        numbers = {key: value for key, value in vars(gate).items() if isinstance(value, float)}
        assert numbers.items() <= vars(other).items()
    restored.eval()
    with torch.no_grad():
        assert torch.equal(restored(*inputs), gated(*inputs))
        assert all(torch.equal(a.kl(), b.kl()) for a, b in zip(gates(restored).values(), gates(gated).values(), strict=True))
    restored.train()
    restored(*inputs).sum().backward()
    assert all(parameter.grad is not None for gate in gates(restored).values() for parameter in gate.parameters())


def test_second_stage(tmp_path):
    model, inputs = plain("vgg")
    staged = trained(make_dependent(sparsify(model, "bb", example_inputs=inputs), relaxation="single", momentum=0.3)).eval()
    save(staged, tmp_path / "staged.safetensors", certificate={"stage": 2})
    restored = load(tmp_path / "staged.safetensors", into=model).eval()
    with torch.no_grad():
        assert torch.equal(restored(*inputs), staged(*inputs))
    assert {gate.relaxation for gate in gates(restored).values()} == {"single"}
    frozen = [name for name, each in staged.named_parameters() if not each.requires_grad]
    assert frozen == [name for name, each in restored.named_parameters() if not each.requires_grad] != []
    assert read_description(tmp_path / "staged.safetensors")["certificate"] == {"stage": 2}


@pytest.mark.parametrize(
    "name", ["vit_torch", "transformer_encoder", "resnet_basic", "tied_weights", "transposed_autoencoder", "lstm_tail"]
)
def test_other_models(name, tmp_path):
    model, inputs = plain(name)
    gated = trained(sparsify(model, "bb", example_inputs=inputs)).eval()
    save(gated, tmp_path / "gated.safetensors")
    restored = load(tmp_path / "gated.safetensors", into=model).eval()
    with torch.no_grad():
        assert torch.equal(restored(*inputs), gated(*inputs))
    assert controls(restored) == controls(gated)
    tied = len(list(gated.parameters()))
    assert len(list(restored.parameters())) == tied


def test_groups_of_channels(tmp_path):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    gated = copy.deepcopy(model)
    gate = BetaBernoulli(2, channel_dim=-1, groups=torch.tensor([0, 1, 1, 0]))
    put_on(gated[2], "input", gate.eval())
    gate.control(gated[2], "inputs")
    trained(gated)
    save(gated, tmp_path / "a")
    restored = load(tmp_path / "a", into=model)
    x = torch.randn(3, 6)
    assert torch.equal(restored(x), gated(x))
    assert torch.equal(gates(restored)["2.input_gate"].units.groups, gate.units.groups)


def test_gate_in_a_place_of_its_own(tmp_path):
    """A gate that is a module like any other comes back into a model that has it."""
    model = nn.Sequential(nn.Linear(6, 4), BetaBernoulli(4)).eval()
    save(trained(model), tmp_path / "a")
    fresh = nn.Sequential(nn.Linear(6, 4), BetaBernoulli(4)).eval()
    assert same(load(tmp_path / "a", into=fresh).state_dict(), model.state_dict())
    with pytest.raises(InputError, match="plain model"):
        load(tmp_path / "a", into=nn.Sequential(nn.Linear(6, 4), nn.Identity()))


def test_double_precision(tmp_path):
    model, inputs = plain()
    gated = trained(sparsify(model.double(), "bb", example_inputs=inputs[0].double())).eval()
    save(gated, tmp_path / "a")
    restored = load(tmp_path / "a", into=model)
    assert same(restored.state_dict(), gated.state_dict())


@pytest.fixture
def saved(tmp_path):
    model, inputs = plain()
    save(sparsify(model, "bb", example_inputs=inputs), tmp_path / "gated.safetensors")
    return tmp_path / "gated.safetensors"


def test_model_is_asked_for(saved):
    with pytest.raises(InputError, match=r"LeNet5Caffe.*into=model"):
        load(saved)


@pytest.mark.parametrize(
    ("into", "why"),
    [
        ("lenet_500_300", "another model"),
        ("vgg", "another model"),
        (nn.Sequential(), "another model"),
        (torch.zeros(2), r"nn\.Module"),
        ("wider", "numbers do not agree|another model"),
    ],
)
def test_another_model(saved, into, why):
    from bayesprune.models import LeNet5Caffe

    model = LeNet5Caffe(channels=(6, 9), hidden=20) if into == "wider" else plain(into)[0] if isinstance(into, str) else into
    with pytest.raises(InputError, match=why):
        load(saved, into=model)


def test_model_with_more_gates(tmp_path):
    model, inputs = plain()
    gated = sparsify(model, "bb", example_inputs=inputs)
    fewer = sparsify(model, "bb", example_inputs=inputs, exclude=["fc*"])
    save(fewer, tmp_path / "a")
    with pytest.raises(InputError, match="that the file lacks"):
        load(tmp_path / "a", into=gated)


def test_gate_that_controls_a_stranger(tmp_path):
    model, inputs = plain()
    gated = sparsify(model, "bb", example_inputs=inputs)
    gate = next(iter(gates(gated).values()))
    gate.controlled = ()
    gate.control(nn.Linear(3, gate.num_units), "outputs")
    with pytest.raises(InputError, match="no part of the model"):
        save(gated, tmp_path / "a")


def change(data, **values):
    data["gates"][0].update(values)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: change(d, method="__import__('os')"),
        lambda d: change(d, method="dbb"),
        lambda d: change(d, units=2**62),
        lambda d: change(d, units=-1),
        lambda d: change(d, units=1.0),
        lambda d: change(d, units=7),
        lambda d: change(d, channel_dim=5),
        lambda d: change(d, channel_dim="1"),
        lambda d: change(d, position=-1),
        lambda d: change(d, name="__class__"),
        lambda d: change(d, name="conv1.__class__"),
        lambda d: change(d, name=3),
        lambda d: change(d, settings={"groups": 3}),
        lambda d: change(d, settings={"self": 3}),
        lambda d: change(d, settings={"threshold": -1.0}),
        lambda d: change(d, settings={"threshold": None}),
        lambda d: change(d, settings={"threshold": "x"}),
        lambda d: change(d, settings={"__class__": 1}),
        lambda d: change(d, settings=[]),
        lambda d: change(d, controls=[["nothing", "inputs"]]),
        lambda d: change(d, controls=[["conv1", "__class__"]]),
        lambda d: change(d, controls=[["conv1"]]),
        lambda d: change(d, controls=3),
        lambda d: d.update(gates=3),
        lambda d: d.update(gates=[]),
        lambda d: d.update(gates=d["gates"] * 2),
        lambda d: d.update(gates=[{}]),
        lambda d: d.update(tensors={}),
        lambda d: d.update(fixed_dropout="yes"),
    ],
)
def test_damaged_descriptions(saved, damage, tmp_path, write_description):
    tensors, description = file.read(saved)
    damage(description)
    path = write_description(tmp_path / "damaged", tensors, description)
    with pytest.raises(BayespruneError) as caught:
        load(path, into=plain()[0])
    assert isinstance(caught.value, (StorageError, InputError))


def test_state_that_is_no_tensor(tmp_path):
    class Extra(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

        def set_extra_state(self, state):
            pass

    model = nn.Sequential(Extra(3, 4), BetaBernoulli(4))
    with pytest.raises(InputError, match="extra_state"):
        save(model, tmp_path / "a")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("l0", {"price": [1.0, 2.0, 3.0, 4.0], "precision": 0.5}),
        ("gd", {"alpha": 0.3, "beta": [0.5, 0.6, 0.7, 0.8]}),
        ("cd", {"length_scale": [0.1, 0.2, 0.3, 0.4], "entropy_weight": 2.0}),
        ("bb", {"threshold": [0.1, 0.2, 0.3, 0.4], "alpha": 0.2}),
    ],
)
def test_settings_of_every_gate_come_back(tmp_path, method, settings):
    """Also those in which models that are trained side by side may differ."""
    model, inputs = plain()
    gated = sparsify(model, method, example_inputs=inputs, **settings)
    save(gated, tmp_path / "gated.safetensors")
    back = load(tmp_path / "gated.safetensors", into=plain()[0])
    for (name, gate), twin in zip(gates(gated).items(), gates(back).values(), strict=True):
        assert {key: getattr(twin, key) for key in settings} == {key: getattr(gate, key) for key in settings}, name
        assert torch.equal(gate.kl(), twin.kl()), name


class Asserting(nn.Module):
    """Which torch.fx cannot follow."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 10), nn.Linear(10, 3)

    def forward(self, x):
        assert len(x) > 0
        return self.b(torch.relu(self.a(x)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore:no unit is under")
def test_a_model_that_was_compacted_before(method, tmp_path):
    """To look at a model leaves it as it was, and what is saved of it fits the model that it was made from."""
    torch.manual_seed(0)
    model, x = Asserting().eval(), torch.randn(4, 6)
    gated = sparsify(model, method, example_inputs=x).eval()
    before = {name: value.clone() for name, value in gated.state_dict().items()}
    assert compact(gated, x).certificate.tracer == "torch.export"
    assert same(gated.state_dict(), before)
    save(gated, tmp_path / "gated")
    assert same(load(tmp_path / "gated", into=model).state_dict(), before)
