"""What is saved comes back: the same function, the same names, trainable, and without the class it had."""

import copy
import operator
import pickle
import warnings

import pytest
import torch
from gallery import GALLERY
from torch import fx, nn
from torch.utils import _pytree as pytree

from bayesprune.artifact import LoadedNetwork, load, read_description, save
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.graph import trace


def leaves(output):
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]


def same(left, right):
    return pytree.tree_structure(left) == pytree.tree_structure(right) and all(
        torch.equal(a, b) for a, b in zip(leaves(left), leaves(right), strict=True)
    )


def example(name):
    torch.manual_seed(0)
    model = GALLERY[name].build().eval()
    torch.manual_seed(1)
    return model, GALLERY[name].inputs()


def round_trip(model, path, **options):
    save(model, path, **options)
    return load(path)


@pytest.mark.parametrize("name", GALLERY)
def test_gallery(name, tmp_path):
    model, inputs = example(name)
    traced = trace(model, inputs)
    network = round_trip(traced, tmp_path / "network.safetensors")
    with torch.no_grad():
        assert same(network(*inputs), traced(*inputs))
    if name != "weight_normed":  # its parametrisation is written as the weight that it gives
        assert network.state_dict().keys() == traced.state_dict().keys()
        expected = {key: (value.dtype, value.requires_grad) for key, value in traced.named_parameters(remove_duplicate=False)}
        assert {key: (value.dtype, value.requires_grad) for key, value in network.named_parameters(remove_duplicate=False)} == expected
    assert not network.training

    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    sum(leaf.float().sum() for leaf in leaves(network.train()(*inputs))).backward() if trainable else None
    assert all(parameter.grad is not None for parameter in trainable)

    again = round_trip(copy.deepcopy(network).eval(), tmp_path / "again.safetensors")
    assert read_description(tmp_path / "again.safetensors") == read_description(tmp_path / "network.safetensors")
    with torch.no_grad():
        assert same(again(*inputs), network.eval()(*inputs))


def test_model_of_any_class_is_traced(small_model, small_input, small_file):
    network = load(small_file)
    assert isinstance(network, LoadedNetwork)
    with torch.no_grad():
        assert same(network(small_input), small_model(small_input))
        assert same(network(x=small_input), small_model(small_input))
    assert network.certificate == {"max_abs_error": 0.0}
    assert network.cost_when_saved == {"macs": 12}
    assert network.state_dict().keys() == small_model.state_dict().keys()
    assert "3 steps" not in repr(network)


def test_model_that_states_its_shape_needs_no_example(tmp_path):
    model, inputs = example("lenet5")
    network = round_trip(model, tmp_path / "lenet.safetensors")
    with torch.no_grad():
        assert same(network(*inputs), model(*inputs))


def test_compiled_model_is_saved_as_what_was_compiled(small_model, small_input, tmp_path):
    network = round_trip(torch.compile(small_model, backend="eager"), tmp_path / "a", example_inputs=small_input)
    assert same(network(small_input), small_model(small_input))


def test_tied_parameters_stay_tied(tmp_path):
    model, inputs = example("tied_weights")
    network = round_trip(model, tmp_path / "tied.safetensors", example_inputs=inputs)
    assert network.get_submodule("embedding").weight is network.get_submodule("head").weight
    assert len(list(network.parameters())) == len(list(model.parameters()))
    copied = copy.deepcopy(network)
    assert copied.get_submodule("embedding").weight is copied.get_submodule("head").weight


def test_tied_by_memory_alone(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = nn.Parameter(model[0].weight.data)
    network = round_trip(model, tmp_path / "tied.safetensors", example_inputs=torch.randn(2, 4))
    assert network.get_submodule("0").weight is network.get_submodule("1").weight


def test_views_of_one_memory_are_separate(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    both = torch.randn(8, 4)
    model[0].weight, model[1].weight = nn.Parameter(both[:4]), nn.Parameter(both[4:].t().contiguous().t())
    network = round_trip(model, tmp_path / "views.safetensors", example_inputs=torch.randn(2, 4))
    assert torch.equal(network.get_submodule("1").weight, both[4:])
    assert network.get_submodule("1").weight.is_contiguous()


def test_training_goes_on(small_input, small_file):
    network = load(small_file).train()
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    before = network.get_buffer("norm.running_mean").clone()
    losses = []
    for _ in range(5):
        loss = network(small_input)["logits"].square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert not torch.equal(network.get_buffer("norm.running_mean"), before)


def test_copies_and_pickles(small_input, small_file):
    network = load(small_file)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert same(other(small_input), network(small_input))
        other.get_parameter("scale").data.zero_()
        assert not same(other(small_input), network(small_input))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_precision_is_kept(dtype, small_model, small_input, tmp_path):
    model = copy.deepcopy(small_model).to(dtype)
    network = round_trip(model, tmp_path / "a", example_inputs=small_input.to(dtype))
    assert network.get_parameter("conv.weight").dtype == dtype
    assert same(network(small_input.to(dtype)), model(small_input.to(dtype)))


def test_other_batch_sizes(small_model, small_file):
    network = load(small_file)
    for batch in (1, 2, 7):
        x = torch.randn(batch, 1, 4, 4)
        assert same(network(x), small_model(x))


def test_frozen_parameters_stay_frozen(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].requires_grad_(False)
    network = round_trip(model, tmp_path / "a", example_inputs=torch.randn(2, 3))
    assert [name for name, each in network.named_parameters() if not each.requires_grad] == ["1.weight", "1.bias"]


class Mapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def forward(self, image, weight):
        return [self.fc(image) * weight]


def test_keyword_inputs(tmp_path):
    model = Mapped()
    inputs = {"image": torch.randn(2, 3), "weight": torch.rand(2, 1)}
    network = round_trip(model, tmp_path / "a", example_inputs=inputs)
    assert same(network(**inputs), model(**inputs))
    assert same(network(inputs["image"], weight=inputs["weight"]), model(**inputs))


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"image": 2}), ((1, 2), {"other": 3}), ((1,), {"other": 2})]
)
def test_wrong_arguments_are_refused(args, kwargs, tmp_path):
    network = round_trip(Mapped(), tmp_path / "a", example_inputs=(torch.randn(2, 3), torch.rand(2, 1)))
    with pytest.raises(InputError, match="takes the arguments image, weight"):
        network(*args, **kwargs)


def test_inputs_that_do_not_fit_name_the_step(small_file):
    with pytest.raises(InputError, match=r"at the step 'conv' .*\(2, 3, 4, 4\)|\(2, 3, 4, 4\).* at the step 'conv'"):
        load(small_file)(torch.randn(2, 3, 4, 4))


def creating_graph():
    """x + arange(n) + zeros(1) + tril(ones(n, n)) + full((1,), 2), with n the size of x."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    size = graph.call_method("size", (x,), {"dim": 0})
    doubled = graph.call_function(operator.mul, (size, 2))
    half = graph.call_function(operator.floordiv, (doubled, 2))
    parts = [
        graph.call_function(torch.arange, (0,), {"end": half, "dtype": torch.float32}),
        graph.call_function(torch.zeros, ((1,),)),
        graph.call_function(torch.tril, (graph.call_function(torch.ones, ((size, half),)),)),
        graph.call_function(torch.full, ((1,),), {"fill_value": 2.0}),
    ]
    for part in parts:
        x = graph.call_function(torch.add, (x, part))
    graph.output(x)
    return fx.GraphModule({}, graph)


def test_tensors_that_are_made_on_the_way(tmp_path):
    model, x = creating_graph(), torch.randn(5, 5)
    network = round_trip(model, tmp_path / "a", example_inputs=x)
    assert same(network(x), model(x))
    assert network(x.to("meta")).device.type == "meta"


def test_numbers_that_are_not_finite(tmp_path):
    class Fills(nn.Module):
        def forward(self, x):
            return x.masked_fill(x > 0, float("-inf")).clamp(max=float("inf"))

    x = torch.randn(2, 5)
    assert same(round_trip(Fills(), tmp_path / "a", example_inputs=x)(x), Fills()(x))


def test_buffer_that_is_no_part_of_the_state(tmp_path):
    class Holds(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kept", torch.rand(3))
            self.register_buffer("temporary", torch.rand(3), persistent=False)

        def forward(self, x):
            return x + self.kept * self.temporary

    model, x = Holds(), torch.randn(2, 3)
    traced = trace(model, x)
    network = round_trip(traced, tmp_path / "a")
    assert same(network(x), model(x))
    assert network.state_dict().keys() == traced.state_dict().keys()


@pytest.mark.parametrize("size", [8, 16], ids=["above the example", "below it"])
def test_a_model_that_branches_on_its_size_says_so(size, tmp_path):
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.fc(2 * x if x.shape[-1] > 10 else x)

    with pytest.warns(BayespruneWarning, match="what is saved is for inputs of the example's size") as caught:
        save(Branching(), tmp_path / "network", example_inputs=torch.randn(2, 3, size, size))
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("name", ["resnet_basic", "lenet5", "lstm_tail"])
def test_a_model_that_does_not_says_nothing(name, tmp_path):
    model, inputs = example(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BayespruneWarning)
        save(model, tmp_path / "network", example_inputs=inputs)
