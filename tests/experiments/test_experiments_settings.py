import pytest

from bayesprune.attach import sparsify
from bayesprune.errors import InputError
from bayesprune.experiments.main_job import RunConfig, plan_of
from bayesprune.experiments.settings import Price, gate_weights, usual_tradeoff
from bayesprune.gates import METHODS, gates
from bayesprune.models import NETWORKS, build_network
from bayesprune.models.description import Conv
from bayesprune.training import find_recipe

PAPER, FAST = find_recipe("paper"), find_recipe("fast")


@pytest.mark.parametrize(
    ("method", "weights"),
    [("bb", (20, 8, 1, 1)), ("dbb", (20, 8, 1, 1)), ("sbp", (20, 8, 1, 1)), ("gd", (20, 8, 1, 1)), ("vib", (576, 64, 1, 1))],
)
def test_convolutions_of_lenet5_weigh_more(method, weights):
    assert gate_weights("lenet5-caffe", method) == weights
    assert len(weights) == len(build_network("lenet5-caffe").gate_places())


@pytest.mark.parametrize("recipe", ["consistent", "smooth", "brief"])
def test_own_recipes_weigh_units_by_what_they_cost(recipe):
    pixels, *hidden = gate_weights("lenet-500-300", "dbb", recipe)
    assert all(weight > pixels for weight in hidden)
    *filters, first, second = gate_weights("lenet5-caffe", "bb", recipe)
    assert filters == [20.0, 8.0]
    assert first == second < 1.0


def test_filters_of_vgg_weigh_as_the_sides_of_their_maps():
    sides = [layer.height for layer in build_network("vgg-like").layers() if isinstance(layer, Conv)]
    weights = gate_weights("vgg-like", "bb", "deep")
    assert [weight * 8 for weight in weights] == [*sides, 1, 1]
    assert gate_weights("vgg-like", "bb") is None


@pytest.mark.parametrize("method", ["l0", "cd"])
def test_penalties_on_weights_are_the_same_everywhere(method):
    assert gate_weights("lenet5-caffe", method) is None


def test_weights_of_lenet5_have_a_price_by_layer():
    plan = plan_of(RunConfig(network="lenet5-caffe", method="l0", tradeoff=0.1 / 60_000), PAPER, 60_000)
    assert plan.hyperparameters["price"] == pytest.approx((50.0, 1.5, 0.1, 1.0))
    gated = sparsify(build_network("lenet5-caffe"), "l0", **plan.hyperparameters)
    assert [gate.price for gate in gates(gated).values()] == pytest.approx([50.0, 1.5, 0.1, 1.0])
    assert plan_of(RunConfig(network="lenet-500-300", method="l0"), PAPER, 60_000).hyperparameters["price"] == pytest.approx(0.1)


def test_prices_are_fixed_or_in_proportion():
    assert [Price(10.0, fixed=True).at(tradeoff) for tradeoff in (0.1, 0.2)] == [10.0, 10.0]
    assert [Price(10.0).at(tradeoff) for tradeoff in (0.1, 0.2)] == [1.0, 2.0]
    assert [str(Price(0.5, fixed=True)), str(Price(500))] == ["0.5", "500x"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", ["lenet-500-300", "vgg-like"])
def test_other_networks_have_one_weight(network, method):
    assert gate_weights(network, method) is None


@pytest.mark.parametrize(
    ("network", "method", "tradeoff"),
    [
        ("lenet-500-300", "vib", 1e-4),
        ("lenet5-caffe", "vib", 1e-6),
        ("vgg-like", "vib", 1e-6),
        ("vgg-like", "l0", 1e-7),
        ("lenet5-caffe", "l0", 0.1 / 60_000),
        ("lenet-500-300", "bb", 1.0),
        ("lenet-500-300", "sbp", 1.0),
    ],
)
def test_published_tradeoffs(network, method, tradeoff):
    assert usual_tradeoff(network, method, PAPER) == pytest.approx(tradeoff)


@pytest.mark.parametrize("network", NETWORKS)
def test_dependent_stage_starts_from_the_same_tradeoff(network):
    for recipe in (PAPER, FAST):
        assert usual_tradeoff(network, "dbb", recipe) == usual_tradeoff(network, "bb", recipe)


def test_unknown_method():
    with pytest.raises(InputError, match="unknown method"):
        usual_tradeoff("lenet5-caffe", "nope", PAPER)
    with pytest.raises(InputError, match="unknown method"):
        gate_weights("lenet5-caffe", "nope")
