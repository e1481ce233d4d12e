import copy
import sys

import pytest
import torch
from torch import nn

from bayesprune.attach import placement, sparsify
from bayesprune.errors import InputError
from bayesprune.gates import METHODS, gates
from bayesprune.models import LeNet5Caffe, LeNet500300, VGGLike
from bayesprune.models.description import GatePlace

CASES = {
    "lenet-500-300": (lambda: LeNet500300(widths=(6, 5), input_shape=(1, 4, 4)), (1, 4, 4)),
    "lenet5-caffe": (lambda: LeNet5Caffe(channels=(3, 4), hidden=6), (1, 28, 28)),
    "vgg-like": (lambda: VGGLike(groups=((3, 4), (5,)), hidden=7), (3, 32, 32)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)), (4,)),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(3, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2),
        ),
        (2, 10, 10),
    ),
}  # fmt: skip


@pytest.fixture(params=list(CASES))
def case(request):
    build, shape = CASES[request.param]
    torch.manual_seed(0)
    return build(), torch.randn(3, *shape)


def open_all(gated):
    """Set every mask of a VIB model to one."""
    with torch.no_grad():
        for gate in gates(gated).values():
            gate.mu.fill_(1.0)
    return gated


def snapshot(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model, before):
    return model.state_dict().keys() == before.keys() and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_on_every_model_trains_and_evaluates(case, method):
    model, x = case
    gated = sparsify(model, method, example_inputs=x)
    assert type(gated) is type(model)
    assert gated.train()(x).isfinite().all()
    loss = gated(x).square().mean() + sum(gate.kl() for gate in gates(gated).values()) / 100
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in gated.parameters() if p.requires_grad)
    assert torch.equal(gated.eval()(x), gated(x))


@pytest.mark.parametrize("before_norm", [False, True])
def test_masks_of_one_preserve_the_function(case, before_norm):
    model, x = case
    gated = open_all(sparsify(model, "vib", example_inputs=x, before_norm=before_norm))
    torch.testing.assert_close(gated.eval()(x), model.eval()(x), rtol=0, atol=0)


def test_a_mask_reaches_every_gate(case):
    """Closing any one gate changes the output: none is attached to nothing."""
    model, x = case
    gated = open_all(sparsify(model, "vib", example_inputs=x)).eval()
    before = gated(x)
    for gate in gates(gated).values():
        with torch.no_grad():
            gate.mu.zero_()
            assert not torch.equal(gated(x), before)
            gate.mu.fill_(1.0)


def test_the_original_is_not_changed(case):
    model, x = case
    before, output = snapshot(model), model.eval()(x)
    model.train()
    gated = sparsify(model, "bb", example_inputs=x)
    with torch.no_grad():
        for parameter in gated.parameters():
            parameter += 1.0
    gated.train()(x)
    assert same(model, before)
    assert model.training
    assert gates(model) == {}
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(model.eval()(x), output)


def test_weights_keep_their_names(case):
    model, x = case
    gated = sparsify(model, "bb", example_inputs=x)
    state = gated.state_dict()
    assert {name for name in state if "_gate." not in name} == set(model.state_dict())
    assert {name.rpartition(".")[2] for name in state if "_gate." in name} == {"raw_a", "raw_b"}
    gated.load_state_dict(model.state_dict(), strict=False)


def test_gates_stand_at_the_stated_places_in_order(case):
    model, x = case
    gated = sparsify(model, "bb", example_inputs=x)
    assert [gate.position for gate in gates(gated).values()] == list(range(len(gates(gated))))
    if hasattr(model, "gate_places"):
        assert list(gates(gated)) == [place.name for place in model.gate_places()]
        assert [gate.num_units for gate in gates(gated).values()] == [place.units for place in model.gate_places()]
        assert list(gates(sparsify(model, "bb", before_norm=True))) == [place.name for place in model.gate_places(before_norm=True)]


def test_gates_know_the_layer_they_control_in_copies_too(case):
    model, x = case
    gated = sparsify(model, "l0", example_inputs=x)
    for each in (gated, copy.deepcopy(gated)):
        layers = set(each.modules())
        for gate in gates(each).values():
            (controlled,) = gate.controlled
            assert controlled.layer in layers
            channels = controlled.weight.shape[controlled.unit_axis]
            assert channels == gate.num_units
    assert {id(c.layer) for g in gates(gated).values() for c in g.controlled}.isdisjoint(id(module) for module in model.modules())


def test_the_networks_own_defaults_and_what_overrides_them():
    lenet = LeNet500300(widths=(3, 2), input_shape=(4,))
    first = next(iter(gates(sparsify(lenet, "bb")).values()))
    assert first.raw_a.tolist() == [-1.0] * 4
    assert first.keep_probability().tolist() == pytest.approx([0.2385] * 4, abs=5e-5)
    assert next(iter(gates(sparsify(lenet, "bb", keep_init=0.5)).values())).raw_a.tolist() == [0.5] * 4
    assert next(iter(gates(sparsify(VGGLike(groups=((2,),), hidden=3), "bb")).values())).raw_a.tolist() == [2.0] * 2
    assert abs(next(iter(gates(sparsify(lenet, "l0")).values())).log_alpha.mean().item()) < 0.05


def test_fixed_dropout_belongs_to_pretraining():
    vgg = VGGLike(groups=((2, 2),), hidden=3)
    assert vgg.fixed_dropout
    assert not sparsify(vgg, "bb").fixed_dropout
    assert vgg.fixed_dropout


def test_include_and_exclude():
    model = VGGLike(groups=((2, 3),), hidden=4)
    names = list(gates(sparsify(model, "bb")))
    assert list(gates(sparsify(model, "bb", exclude=["features.*"]))) == names[-2:]
    assert list(gates(sparsify(model, "bb", include=["features.*"]))) == names[:-2]
    both = sparsify(model, "bb", include=["features.*", "fc1"], exclude=["features.block1.*"])
    assert list(gates(both)) == [names[1], names[2]]
    assert [gate.position for gate in gates(both).values()] == [0, 1]
    assert list(gates(sparsify(model, "bb", include="features.*", exclude=None))) == names[:-2]
    assert list(gates(sparsify(model, "bb", exclude="features.*"))) == names[-2:]
    with pytest.raises(InputError, match=r"nothing in VGGLike can be gated.*left out by include or exclude"):
        sparsify(model, "bb", exclude=["*"])


@pytest.mark.parametrize("name", ["include", "exclude"])
@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["fc1", "cf2"], r"'cf2' of {} matches no layer of VGGLike\. Its layers are '.*' and \d+ more\. Did you mean 'fc2'\?$"),
        ("features", r"'features' of {} .* For the layers inside 'features' give 'features\.\*'$"),
        ("*pool*", r"'\*pool\*' of {} matches no layer"),
        ([3], r"{} is a pattern of layers' paths or a list of them, .*, not \[3\]"),
        (3, r"{} is a pattern of layers' paths"),
    ],
    ids=str,
)
def test_patterns_that_match_nothing(name, patterns, message):
    with pytest.raises(InputError, match=message.format(name)):
        sparsify(VGGLike(groups=((2, 3),), hidden=4), "bb", **{name: patterns})


def test_patterns_of_layers_that_are_never_gated_are_no_mistake():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    assert gates(sparsify(model, "bb", example_inputs=torch.zeros(2, 3, dtype=torch.long), exclude=["0", "3"]))


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float64, torch.float64), (torch.bfloat16, torch.float32), (torch.float16, torch.float32)]
)
def test_gates_have_the_precision_of_the_model_but_no_less_than_single(dtype, expected):
    model, x = CASES["mlp"][0]().to(dtype), torch.randn(3, 4).to(dtype)
    gated = sparsify(model, "dbb", example_inputs=x)
    for gate in gates(gated).values():
        assert all(value.dtype == expected for value in gate.state_dict().values())
    assert gated.train()(x).dtype == dtype


@pytest.mark.parametrize("training", [True, False])
def test_gates_are_in_the_mode_of_the_model(training):
    model, x = CASES["mlp"][0]().train(training), torch.randn(3, 4)
    gated = sparsify(model, "bb", example_inputs=x)
    assert all(module.training is training for module in gated.modules())


def test_an_example_leaves_no_trace():
    model, x = CASES["mlp"][0]().train(), torch.randn(3, 4)
    with_example, without = sparsify(model, "dbb", example_inputs=x), sparsify(model, "dbb")
    assert same(with_example, snapshot(without))
    sparsify(model, "bb", example_inputs=(x,))


def test_a_model_that_has_gates_already():
    with pytest.raises(InputError, match=r"has gates already.*make_dependent"):
        sparsify(sparsify(CASES["mlp"][0](), "bb"), "bb")


@pytest.mark.parametrize(
    "example", [torch.zeros(3, 9), torch.zeros(4), (torch.zeros(3, 4), torch.zeros(3, 4)), torch.zeros(3, 4, dtype=torch.int64)]
)
def test_an_example_that_does_not_fit(example):
    with pytest.raises(InputError, match="does not run on example_inputs"):
        sparsify(CASES["mlp"][0](), "bb", example_inputs=example)


def test_unknown_names():
    model = CASES["mlp"][0]()
    with pytest.raises(InputError, match=r"unknown method 'ddb'.*Did you mean 'dbb'"):
        sparsify(model, "ddb")
    with pytest.raises(
        InputError, match=r"method 'bb' has no hyper-parameter 'treshold'; it has alpha, threshold.*Did you mean 'threshold'\?"
    ):
        sparsify(model, "bb", treshold=0.1)
    with pytest.raises(InputError, match="no hyper-parameter 'num_units'"):
        sparsify(model, "bb", num_units=3)
    with pytest.raises(InputError, match=r"takes an nn.Module, not str"):
        sparsify("model", "bb")


@pytest.mark.parametrize("threshold", [0.0, -1.0, float("nan")])
def test_hyper_parameters_are_checked(threshold):
    with pytest.raises(InputError, match="threshold must be a number between 0 and 1"):
        sparsify(CASES["mlp"][0](), "bb", threshold=threshold)


class Aside(nn.Module):
    """Runs past one of its layers."""

    def __init__(self):
        super().__init__()
        self.used, self.aside, self.last = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        return self.last(torch.relu(self.used(x)))


@pytest.fixture
def all_layers_are_places(monkeypatch):
    places = [GatePlace(path, "input", 4 if path != "last" else 5, path, "inputs", -1) for path in ("used", "aside", "last")]
    monkeypatch.setattr(sys.modules["bayesprune.attach.sparsify"], "find_places", lambda *_: (list(places), []))


@pytest.mark.usefixtures("all_layers_are_places")
def test_a_gate_that_the_model_runs_past_is_not_left_in():
    gated = sparsify(Aside(), "bb", example_inputs=torch.randn(2, 4))
    assert list(gates(gated)) == ["used.input_gate", "last.input_gate"]
    assert [row.layer for row in placement(gated).left_alone] == ["aside"]


def test_of_a_compiled_model_the_one_inside_is_taken():
    model, x = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.randn(3, 4)
    gated = sparsify(torch.compile(model, backend="eager"), "bb", example_inputs=x)
    assert type(gated) is nn.Sequential
    assert list(gates(gated)) == ["0.input_gate", "2.input_gate"]
    assert not gates(model)


@pytest.mark.filterwarnings("ignore:`?torch.nn.utils.weight_norm")
def test_a_model_that_cannot_be_copied():
    model = nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 2))
    with pytest.raises(InputError, match=r"Sequential cannot be copied.*use torch\.nn\.utils\.parametrizations\.weight_norm"):
        sparsify(model, "bb", example_inputs=torch.randn(3, 4))


def values(gated, name):
    return [getattr(gate, name) for gate in gates(gated).values()]


@pytest.mark.parametrize("with_example", [True, False])
@pytest.mark.parametrize(
    ("method", "name"),
    [("l0", "price"), ("cd", "length_scale"), ("gd", "alpha"), ("bb", "threshold"), ("bb", "alpha"), ("sbp", "threshold")],
)
def test_a_list_has_a_value_for_each_gate(method, name, with_example):
    build, shape = CASES["lenet5-caffe"]
    model, listed = build(), [0.1, 0.2, 0.3, 0.4]
    gated = sparsify(model, method, example_inputs=torch.randn(2, *shape) if with_example else None, **{name: listed})
    assert list(gates(gated)) == [place.name for place in model.gate_places()]
    assert values(gated, name) == listed
    assert listed == [0.1, 0.2, 0.3, 0.4]
    for gate, value in zip(gates(gated).values(), listed, strict=True):
        alone = sparsify(model, method, **{name: value})
        twin = list(gates(alone).values())[gate.position]
        twin.load_state_dict(gate.state_dict())
        assert torch.equal(gate.kl(), twin.kl())
        assert torch.equal(gate.keep(), twin.keep())


@pytest.mark.parametrize("case", ["mlp", "cnn"])
def test_a_list_for_gates_that_were_found(case):
    build, shape = CASES[case]
    x = torch.randn(3, *shape)
    count = len(gates(sparsify(build(), "l0", example_inputs=x)))
    listed = tuple(float(number + 1) for number in range(count))
    gated = sparsify(build(), "l0", example_inputs=x, price=listed, precision=2.0)
    assert values(gated, "price") == list(listed)
    assert values(gated, "precision") == [2.0] * count
    assert [gate.position for gate in gates(gated).values()] == list(range(count))


def test_lists_beside_numbers_and_the_networks_own_defaults():
    lenet = LeNet500300(widths=(3, 2), input_shape=(4,))
    gated = sparsify(lenet, "bb", keep_init=[0.5, 1.5, 2.5], alpha=0.2)
    assert [gate.raw_a[0].item() for gate in gates(gated).values()] == [0.5, 1.5, 2.5]
    assert values(gated, "alpha") == [0.2] * 3
    gated = sparsify(lenet, "bb", alpha=[0.1, 0.2, 0.3])
    assert [gate.raw_a[0].item() for gate in gates(gated).values()] == [-1.0] * 3
    assert values(sparsify(lenet, "l0", price=[1.0, 2.0], exclude=["fc2"]), "price") == [1.0, 2.0]


@pytest.mark.parametrize("with_example", [True, False])
@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_a_list_of_another_length(count, with_example):
    lenet = LeNet500300(widths=(3, 2), input_shape=(4,))
    example = torch.randn(2, 4) if with_example else None
    with pytest.raises(InputError, match=rf"price has {count} values, but there are 3 gates, on fc1, fc2, fc3: give one for each"):
        sparsify(lenet, "l0", example_inputs=example, price=[1.0] * count)
    assert not gates(lenet)


def test_a_list_where_nothing_can_be_gated():
    with pytest.raises(InputError, match="nothing in LeNet500300 can be gated"):
        sparsify(LeNet500300(widths=(3, 2), input_shape=(4,)), "l0", exclude="*", price=[1.0, 2.0])


@pytest.mark.parametrize("wrong", [[0.1, -1.0, 0.1], [0.1, None, 0.1], [0.1, "a", 0.1], [0.1, [0.1], 0.1], [0.1, float("nan"), 0.1]])
def test_the_values_of_a_list_are_checked(wrong):
    with pytest.raises(InputError, match="length_scale"):
        sparsify(LeNet500300(widths=(3, 2), input_shape=(4,)), "cd", length_scale=wrong)


@pytest.mark.usefixtures("all_layers_are_places")
def test_a_list_is_for_the_gates_that_stay():
    """One that the model runs past has no value."""
    gated = sparsify(Aside(), "l0", example_inputs=torch.randn(2, 4), price=[1.0, 2.0])
    assert {name: gate.price for name, gate in gates(gated).items()} == {"used.input_gate": 1.0, "last.input_gate": 2.0}
    with pytest.raises(InputError, match="price has 3 values, but there are 2 gates, on used, last"):
        sparsify(Aside(), "l0", example_inputs=torch.randn(2, 4), price=[1.0, 2.0, 3.0])
