import pytest
import torch
from torch.func import functional_call, vmap

from bayesprune.errors import InputError
from bayesprune.models import KeyedDropout
from bayesprune.noise import NoiseKeys, derive_keys


@pytest.mark.parametrize("p", [0.0, 0.3, 0.5, 0.9])
def test_rate_and_scale(p: float) -> None:
    dropout = KeyedDropout(p)
    NoiseKeys(dropout, seed=0, device="cpu")
    x = torch.ones(200, 500)
    out = dropout(x)
    assert torch.allclose(out[out != 0], torch.tensor(1 / (1 - p)))
    assert (out == 0).float().mean().item() == pytest.approx(p, abs=5 * (p * (1 - p) / x.numel()) ** 0.5 + 1e-9)


def test_identity_in_eval_mode_and_when_switched_off() -> None:
    dropout = KeyedDropout(0.5)
    x = torch.randn(8, 8)
    dropout.enabled = False
    assert torch.equal(dropout(x), x)
    dropout.enabled = True
    assert not torch.equal(dropout(x), x)
    assert torch.equal(dropout.eval()(x), x)


def test_key_decides_the_draw() -> None:
    dropout = KeyedDropout(0.5)
    x = torch.ones(4, 32)
    keys = NoiseKeys(dropout, seed=3, device="cpu")
    table = keys.for_steps(0, 2)
    keys.set(table[0])
    first = dropout(x)
    assert torch.equal(dropout(x), first)
    keys.set(table[1])
    assert not torch.equal(dropout(x), first)


def test_a_stack_of_models_draws_what_each_draws_alone() -> None:
    dropout = KeyedDropout(0.4)
    x = torch.randn(3, 5)
    keys = derive_keys(7, range(4), 1)
    dropout.noise_key = keys[0]
    alone = []
    for key in keys:
        dropout.noise_key = key
        alone.append(dropout(x))
    together = vmap(lambda key: functional_call(dropout, {"noise_key": key}, (x,)))(keys)
    assert torch.equal(together, torch.stack(alone))


def test_keeps_dtype_and_gradient() -> None:
    dropout = KeyedDropout(0.5)
    NoiseKeys(dropout, seed=0, device="cpu")
    x = torch.randn(16, 16, dtype=torch.float64, requires_grad=True)
    out = dropout(x)
    assert out.dtype == torch.float64
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.where(out == 0, 0.0, 2.0).to(torch.float64))


@pytest.mark.parametrize("p", [-0.1, 1.0, 2.0, float("nan")])
def test_bad_rate(p: float) -> None:
    with pytest.raises(InputError, match="dropout rate"):
        KeyedDropout(p)
