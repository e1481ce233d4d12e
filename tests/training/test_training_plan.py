import math

import pytest

from bayesprune.errors import InputError
from bayesprune.gates import METHODS
from bayesprune.training import Plan, find_recipe, make_plan
from bayesprune.training.plan import default_tradeoff, static_method

PAPER, FAST, CONSISTENT = find_recipe("paper"), find_recipe("fast"), find_recipe("consistent")
N = 60_000


@pytest.mark.parametrize("method", METHODS)
def test_stages(method):
    last = ("dependent",) if method == "dbb" else ()
    assert make_plan(method, PAPER, N).stages == ("dense", "pruned", *last)
    assert make_plan(method, PAPER, N, pretrain=False).stages == ("pruned", *last)


@pytest.mark.parametrize("method", METHODS)
def test_method_of_the_pruning_stage(method):
    assert static_method(method) == ("bb" if method == "dbb" else method)


@pytest.mark.parametrize(
    ("method", "scale", "hyperparameters"),
    [
        ("bb", 0.5, {}),
        ("dbb", 0.5, {}),
        ("sbp", 0.5, {}),
        ("vib", 0.5 * N, {}),
        ("l0", 1.0, {"price": 0.5 * N, "precision": 1e-4 * N}),
        ("gd", 1.0, {"alpha": 0.5}),
        ("cd", 1.0, {}),
    ],
)
def test_tradeoff_in_terms_of_the_objective(method, scale, hyperparameters):
    plan = make_plan(method, PAPER, N, tradeoff=0.5)
    assert plan.kl_scale == pytest.approx(scale)
    assert plan.hyperparameters == pytest.approx(hyperparameters)


def test_default_tradeoffs():
    assert default_tradeoff("bb", PAPER) == 1.0
    assert default_tradeoff("dbb", FAST) == FAST.tradeoffs["bb"]
    assert default_tradeoff("l0", FAST) == pytest.approx(0.1 / 60_000)
    assert make_plan("dbb", FAST, N).kl_scale == FAST.tradeoffs["bb"]


def test_kl_scale_instead_of_the_tradeoffs():
    assert make_plan("bb", PAPER, N, tradeoff=3.0, kl_scale=0.25).kl_scale == 0.25
    assert make_plan("bb", PAPER, N, kl_scale=0).kl_scale == 0
    plan = make_plan("l0", PAPER, N, tradeoff=0.5, kl_scale=2.0)
    assert plan.kl_scale == 2.0
    assert plan.hyperparameters["price"] == 0.5 * N


def test_weights_of_single_gates():
    assert make_plan("bb", PAPER, N, tradeoff=2.0, gate_weights=(20.0, 8.0, 1.0)).kl_scale == (40.0, 16.0, 2.0)
    assert make_plan("bb", PAPER, N, kl_scale=0.5, gate_weights=(20.0, 8.0)).kl_scale == (10.0, 4.0)
    assert make_plan("bb", PAPER, N, kl_scale={"a": 1.0}, gate_weights=(20.0,)).kl_scale == {"a": 1.0}


@pytest.mark.parametrize("tradeoff", [0.1, 1.0, 3.0, 4.0, 9.0])
def test_weight_of_the_input_dependent_stage(tradeoff):
    weights = (0.4, 1.8, 0.6)
    assert make_plan("dbb", PAPER, N, tradeoff=tradeoff, gate_weights=weights).scale("dependent") == 1.0
    plan = make_plan("dbb", CONSISTENT, N, tradeoff=tradeoff, gate_weights=weights)
    assert plan.scale("dependent") == pytest.approx(min(1.0, 0.25 * tradeoff))
    assert plan.scale("pruned") == tuple(tradeoff * weight for weight in weights)


def test_own_hyperparameters_win():
    plan = make_plan("l0", PAPER, N, hyperparameters={"price": 0.7, "keep_init": 1.0})
    assert plan.hyperparameters == {"price": 0.7, "precision": pytest.approx(6.0), "keep_init": 1.0}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tradeoff", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_bad_tradeoff(method, tradeoff):
    with pytest.raises(InputError, match="trade-off is a finite number above zero"):
        make_plan(method, PAPER, N, tradeoff=tradeoff)


@pytest.mark.parametrize("kl_scale", [-1.0, math.nan, math.inf, -1])
@pytest.mark.parametrize("gate_weights", [None, (20.0, 8.0)])
def test_bad_kl_scale(kl_scale, gate_weights):
    with pytest.raises(InputError, match="kl_scale must be finite and not negative"):
        make_plan("bb", PAPER, N, kl_scale=kl_scale, gate_weights=gate_weights)


def test_unknown_method():
    for call in (lambda: make_plan("ddb", PAPER, N), lambda: static_method("ddb"), lambda: default_tradeoff("ddb", PAPER)):
        with pytest.raises(InputError, match=r"unknown method 'ddb'.*Did you mean 'dbb'"):
            call()


def test_plans_do_not_share_state():
    assert Plan("bb", PAPER, ()).hyperparameters is not Plan("bb", PAPER, ()).hyperparameters
