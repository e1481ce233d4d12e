"""What is of the wrong type is refused in our own words, not by whatever comes across it first."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesprune as bp
from bayesprune.errors import InputError, is_number

X = torch.randn(6, 5)


def model():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def gated():
    torch.manual_seed(0)
    return bp.sparsify(model(), "bb", example_inputs=X)


@pytest.fixture
def staged(gated):
    return bp.make_dependent(gated).eval()


@pytest.mark.parametrize("value", [0, -1.5, np.float32(2.0), np.int64(3), torch.tensor(1.5), torch.tensor(2)])
def test_numbers(value):
    assert is_number(value)


@pytest.mark.parametrize(
    "value", [None, "1", b"1", True, np.True_, torch.tensor(True), [1.0], float("nan"), float("inf"), torch.randn(2), 10**400, 1j, object()]
)
def test_no_numbers(value):
    assert not is_number(value)


@pytest.mark.parametrize("wrong", [None, "model", torch.randn(2)], ids=["None", "str", "Tensor"])
@pytest.mark.parametrize("function", [bp.gates, bp.placement, bp.param_groups, bp.summary, bp.make_dependent])
def test_no_model(function, wrong):
    with pytest.raises(InputError, match=rf"nn\.Module, not {type(wrong).__name__}"):
        function(wrong)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_data": "60000"}, "n_data is the number of training samples, above zero, not '60000'"),
        ({"n_data": None}, "n_data is the number of training samples"),
        ({"kl_scale": None}, "kl_scale must be finite"),
        ({"kl_scale": "1"}, "kl_scale must be finite"),
        ({"warmup": "1"}, "warmup is a factor"),
        ({"warmup": None}, "warmup is a factor"),
        ({"nll": torch.tensor(3)}, r"nll is a mean loss, of floating-point numbers, not of torch\.int64"),
        ({"model": None}, r"nn\.Module, not NoneType"),
    ],
)
def test_objective(gated, options, words):
    with pytest.raises(InputError, match=words):
        bp.negative_elbo(**({"nll": torch.tensor(1.0), "model": gated, "n_data": 10} | options))


@pytest.mark.parametrize("options", [{"lr": "a"}, {"lr": -1.0}, {"gate_lr": float("nan")}, {"gate_lr": "x"}, {"weight_decay": -1e-4}])
def test_rates(gated, options):
    with pytest.raises(InputError, match=f"{next(iter(options))} must be a finite number and not negative"):
        bp.param_groups(gated, **options)


@pytest.mark.parametrize("samples", ["2", 2.5, True])
def test_numbers_of_samples(gated, samples):
    with pytest.raises(InputError, match="samples is a number of masks"):
        bp.predict(gated, X, samples=samples)


def test_predictions_of_several_tensors(gated):
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = gated

        def forward(self, x):
            return {"logits": self.inner(x)}

    with pytest.raises(InputError, match="return one tensor, and Named returns dict: wrap it"):
        bp.predict(Named(), X)
    with pytest.raises(InputError, match="activation is a function"):
        bp.predict(gated, X, activation="softmax")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": None}, r"fit takes an nn\.Module, not NoneType"),
        ({"loss": None}, "loss is a function of outputs and targets"),
        ({"loss": "mse"}, "loss is a function of outputs and targets"),
        ({"tradeoff": "a"}, "a trade-off is a finite number above zero, not 'a'"),
    ],
)
def test_fit(options, words):
    loader = DataLoader(TensorDataset(X, torch.zeros(6, dtype=torch.int64)), 3)
    with pytest.raises(InputError, match=words):
        bp.fit(**({"model": model(), "loader": loader, "loss": F.cross_entropy, "progress": False, "epochs": 1} | options))


@pytest.mark.parametrize(
    "x", [torch.randn(1, 4, 5), torch.randn(5), np.zeros((1, 5), np.float32), None], ids=["rank", "flat", "numpy", "None"]
)
def test_inputs_of_adaptive_networks(staged, x):
    """Those of another rank would go through, and mean something else."""
    adaptive = bp.AdaptiveModel(staged, X, cache=None)
    with pytest.raises(InputError, match=r"does not take inputs of shape .*: its example's were \(6, 5\)"):
        adaptive(x)
    with pytest.raises(InputError, match="does not take inputs of shape"):
        adaptive(X, X)


def test_weights_that_are_no_numbers_are_not_certified(gated):
    with torch.no_grad():
        gated[2].weight[1, 2] = torch.nan
    with pytest.raises(InputError, match=r"2\.weight of Sequential is not a number \(NaN\): its training has diverged"):
        bp.compact(gated, X)


def test_nor_are_statistics_that_are_none(staged):
    """The gate computes something with them, the network that is left nothing."""
    next(iter(bp.gates(staged).values())).running_mean[0] = torch.nan
    with pytest.raises(InputError, match=r"running_mean of Sequential is not a number \(NaN\)"):
        bp.compact(staged, X)


def test_nor_is_an_example_that_is_none(gated):
    with pytest.raises(InputError, match=r"the example has values that are not numbers \(NaN\)"):
        bp.compact(gated, torch.full((2, 5), torch.nan))


@pytest.mark.parametrize("use", [bp.compact, lambda *arguments: bp.AdaptiveModel(*arguments, cache=None)], ids=["compact", "adaptive"])
def test_input_dependent_gates_need_a_batch(staged, use):
    with pytest.raises(InputError, match="looks at batches: give an example with a first dimension"):
        use(staged, X[0])
