"""Gates in a given state, and comparisons that do not rely on the certificate."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesprune.gates import Gate, gates


def set_gate(gate: Gate, kept: Sequence[bool], seed: int = 0) -> None:
    """Keep these units and prune the others, whatever the method; means of kept units are random."""
    generator = torch.Generator().manual_seed(seed)
    kept_units = torch.tensor(list(kept), dtype=torch.bool)
    noise = torch.randn(gate.num_units, generator=generator)
    raw = {
        "bb": lambda: {"raw_a": torch.where(kept_units, 2.0 + noise, -20.0)},
        "sbp": lambda: {
            "mu": torch.where(kept_units, 0.5 * noise, -20.0),
            "log_sigma": torch.where(kept_units, torch.tensor(-3.0), torch.tensor(5.0)),
        },
        "vib": lambda: {
            "mu": torch.where(kept_units, noise.sign() * (0.3 + noise.abs()), 1e-4),
            "log_variance": torch.where(kept_units, torch.tensor(-9.0), torch.tensor(5.0)),
        },
        "l0": lambda: {"log_alpha": torch.where(kept_units, noise.clamp(min=-1.0), -20.0)},
        "gd": lambda: {"raw_keep": torch.where(kept_units, 2.0 + noise, -20.0)},
        "cd": lambda: {"raw_drop": noise[:1]},
    }[gate.method]()
    with torch.no_grad():
        for name, value in raw.items():
            getattr(gate, name).copy_(value)
    assert gate.method == "cd" or gate.keep().tolist() == kept_units.tolist()


def set_gates(gated: nn.Module, share_pruned: float, seed: int = 0) -> nn.Module:
    """Prune a random share of the units of every gate."""
    generator = torch.Generator().manual_seed(seed)
    for number, gate in enumerate(gates(gated).values()):
        kept = torch.rand(gate.num_units, generator=generator) >= share_pruned
        set_gate(gate, kept.tolist(), seed + number)
    return gated


def scatter_statistics(dependent: nn.Module, seed: int = 0) -> nn.Module:
    """Running statistics, scales and shifts of input-dependent gates far from where they start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for gate in gates(dependent).values():
            for name, low, high in (("running_mean", -0.5, 0.5), ("running_var", 0.5, 2.0), ("scale", -1.0, 1.5), ("shift", -0.2, 0.9)):
                values = low + (high - low) * torch.rand(gate.num_units, generator=generator)
                getattr(gate, name).copy_(values)
    return dependent


def difference(expected: Any, got: Any) -> float:
    """The largest relative difference (in norm) among the tensors of two results of the same structure."""
    if isinstance(expected, Tensor):
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        return float(((got - expected).double().norm() / expected.double().norm().clamp(min=1e-30)).detach())
    if isinstance(expected, dict):
        assert list(expected) == list(got)
        expected, got = expected.values(), got.values()
    return max(difference(a, b) for a, b in zip(expected, got, strict=True))


@pytest.fixture(autouse=True, scope="module")
def small_kernels() -> Iterator[None]:
    """oneDNN compiles a kernel for every new shape, which takes far longer than these networks do."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@pytest.fixture(name="set_gate", scope="session")
def set_gate_fixture() -> Callable[..., None]:
    return set_gate


@pytest.fixture(name="set_gates", scope="session")
def set_gates_fixture() -> Callable[..., nn.Module]:
    return set_gates


@pytest.fixture(name="scatter_statistics", scope="session")
def scatter_statistics_fixture() -> Callable[..., nn.Module]:
    return scatter_statistics


@pytest.fixture(name="difference", scope="session")
def difference_fixture() -> Callable[[Any, Any], float]:
    return difference
