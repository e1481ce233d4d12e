"""Networks whose masks are chosen without training, and adaptive ones that are made to go one way."""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gallery import GALLERY
from torch import Tensor, fx, nn

import bayesprune as bp
from bayesprune.adaptive.choice import Choice, Line
from bayesprune.adaptive.layers import AdaptiveLayer
from bayesprune.adaptive.native.gated_linear import kernel
from bayesprune.adaptive.plan import ExecutionPlan
from bayesprune.adaptive.rewriting import Rewritten, rewrite
from bayesprune.adaptive.ways import FUSED, GATHER, PRODUCT, WHOLE, Way

WAYS = ("gather", "product", "whole product", "fused", "groups", "groups of products", "full")
NETWORK_WAYS = (*WAYS, "native")
"""Of whole networks: by native code where there is any, gathered where there is none."""
needs_compiler = pytest.mark.skipif(kernel(torch.float32) is None, reason="there is no C compiler")
BOUNDS = {torch.float32: 1e-5, torch.float64: 1e-12}
KINDS = ("some", "none", "all")
PRUNED = -15.0
"""A raw a that puts E[pi] far under the threshold."""


class _Grouping(Choice):
    """Takes groups wherever there are several."""

    most_groups = float("inf")

    def way_for(self, union: int, total: int | None = None) -> None:
        return None

    def groups_could_pay(self, total: int) -> bool:
        return True

    def groups_pay(self, groups: Sequence[tuple[int, int]]) -> bool:
        return True


def choice_of(way: str, layer: AdaptiveLayer, size: int) -> Choice:
    """Of one way whatever is needed; a layer that has not got it gathers."""
    if way == "full":
        return Choice(size, 1.0, 0.0, {GATHER: Line(2.0, 0.0)})
    kinds: dict[str, tuple[type[Choice], Way]] = {
        "product": (Choice, PRODUCT),
        "whole product": (Choice, WHOLE),
        "fused": (Choice, FUSED),
        "groups": (_Grouping, GATHER),
        "groups of products": (_Grouping, PRODUCT),
    }
    kind, wanted = kinds.get(way, (Choice, GATHER))
    return kind(size, 1.0, 0.0, {wanted if wanted in layer.ways else GATHER: Line(0.0, 0.0)})


def force(adaptive: bp.AdaptiveModel, way: str, *sizes: int) -> bp.AdaptiveModel:
    """Let batches of these sizes go one way through all layers."""
    for size in sizes:
        for layer in adaptive.layers:
            layer.choices[size] = choice_of(way, layer, size)
        adaptive._natively[size] = [*adaptive.natives, *adaptive.parts.convolutions] if way == "native" else []
        adaptive._programs[size] = (adaptive._with_choices(size) if way == "native" else adaptive.network).forward
    return adaptive


def natively(adaptive: bp.AdaptiveModel, *sizes: int) -> bp.AdaptiveModel:
    """Let native code compute all that it can, for batches of these sizes, as if that had been planned."""
    force(adaptive, "native", *sizes)
    for size in sizes:
        adaptive.plans[size] = ExecutionPlan(size, (), (), 2.0, 1.0)
    return adaptive


@torch.no_grad()
def set_masks(gated: nn.Module, kept: str = "some", needed: str = "some", seed: int = 0) -> nn.Module:
    """The second stage of a BB network, in evaluation mode.

    Args:
        gated: the network; its gates are set.
        kept: which units any input may need: some, none, all, or mixed, which is another of these for each gate.
        needed: which of them an input needs; if only some, that depends on the input.
        seed: of all that is random.
    """
    generator = torch.Generator().manual_seed(seed)

    def kind(asked: str) -> str:
        return KINDS[int(torch.randint(len(KINDS), (), generator=generator))] if asked == "mixed" else asked

    for gate in bp.gates(gated).values():
        limit = {"some": 0.6, "none": 0.0, "all": 1.0}[kind(kept)]
        gate.raw_a.copy_(torch.where(torch.rand(gate.num_units, generator=generator) < limit, 2.0, PRUNED))
    staged = bp.make_dependent(gated).eval()
    for gate in bp.gates(staged).values():
        level, spread = {"some": (0.0, 0.5), "none": (-100.0, 0.0), "all": (5.0, 0.0)}[kind(needed)]
        gate.shift.copy_(level + spread * torch.randn(gate.num_units, generator=generator))
        gate.scale.fill_(1.0 if spread else 1e-3)
        gate.running_mean.copy_(torch.randn(gate.num_units, generator=generator))
    return staged


@functools.cache
def _gated(name: str, before_norm: bool) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    inputs = _of_type(torch.float64, GALLERY[name].inputs())
    return bp.sparsify(GALLERY[name].build().eval().double(), "bb", example_inputs=inputs, before_norm=before_norm), inputs


def _of_type(dtype: torch.dtype, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(each.to(dtype) if each.is_floating_point() else each for each in inputs)


def from_gallery(
    name: str, dtype: torch.dtype = torch.float32, before_norm: bool = False, **masks: Any
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network of the gallery with chosen masks, and inputs for it."""
    gated, inputs = _gated(name, before_norm)
    return set_masks(gated, **masks).to(dtype), _of_type(dtype, inputs)


def sparse(model: nn.Module, inputs: Any, **masks: Any) -> nn.Module:
    """Any network with chosen masks."""
    return set_masks(bp.sparsify(model.eval(), "bb", example_inputs=inputs), **masks)


def adapt(staged: nn.Module, inputs: Any, *sizes: int) -> bp.AdaptiveModel:
    """Never looks at the user's cache folder, and measures nothing if no sizes are given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bp.BayespruneWarning)
        return bp.AdaptiveModel(staged, inputs, batch_sizes=sizes, cache=None)


class _Masked(nn.Module):
    def __init__(self, channel_dim: int, rank: int, following: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.channel_dim, self.rank, self.following = channel_dim, rank, following
        self.register_buffer("most", torch.tensor(1.0))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mask = F.threshold(torch.minimum(mask, self.most), 1e-3, 0.0)
        for _ in range(self.rank - 2):
            mask = torch.unsqueeze(mask, dim=-1 if self.channel_dim == 1 else 1)
        return self.following(torch.mul(x, mask))


def masked(x: Tensor, channel_dim: int, following: Callable[[Tensor], Tensor]) -> Rewritten:
    """The adaptive form of a network that masks an activation like ``x``, as ``compact`` writes it, and goes on as ``following`` says.

    Functions are called with one tensor and keywords, as the graph has them. The inputs are the activation and the mask, of shape (batch,
    units).
    """
    network = fx.symbolic_trace(_Masked(channel_dim, x.ndim, following).to(x.dtype).eval())
    (threshold,) = network.graph.find_nodes(op="call_function", target=F.threshold)
    threshold.args, threshold.kwargs = threshold.args[:1], {"threshold": 1e-3, "value": 0.0}
    network.recompile()
    return rewrite(network.requires_grad_(False), (x, x.new_ones(x.shape[0], x.shape[channel_dim])))


def outputs(model: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """What a model computes, for use only."""
    with torch.no_grad():
        return model(*inputs)


def more(inputs: tuple[Tensor, ...], size: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Other inputs, in a batch of some size."""
    torch.manual_seed(seed)
    return tuple(torch.randn(size, *each.shape[1:], dtype=each.dtype) for each in inputs)


def difference(expected: Any, got: Any) -> float:
    """The largest relative difference (in norm) among the tensors of two results of the same structure."""
    if isinstance(expected, Tensor):
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        return float(((got - expected).double().norm() / expected.double().norm().clamp(min=1e-30)).detach())
    if isinstance(expected, Mapping):
        assert list(expected) == list(got)
        expected, got = expected.values(), got.values()
    return max(difference(a, b) for a, b in zip(expected, got, strict=True))
