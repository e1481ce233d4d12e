"""What to do to a model: method, recipe and trade-off, brought into the terms of the objective."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bayesprune.errors import InputError, is_number
from bayesprune.gates import method_class
from bayesprune.objective import KLScale
from bayesprune.training.recipes import Recipe, StageName

DENSE = "dense"
"""Stands in the place of a method for a network that is pretrained and gets no gates."""
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""What layers can be computed in, by name; weights and gates are float32 anyway."""


@dataclass(frozen=True)
class Plan:
    """What to do to a model.

    Attributes:
        method: of the gates; ``dbb`` is BB followed by its input-dependent stage, ``dense`` pretraining alone.
        recipe: of all stages.
        stages: what to do, in order; see ``usual_stages``.
        seed: of everything random.
        kl_scale: factors on the divergence in the pruning stage.
        hyperparameters: of the gates in the pruning stage.
        strength: the factor on the divergence before it was weighed by gate, or the mean of factors that were given by gate.
        share: the part of the data set that is trained on; divergences weigh as they would with all of it.
        before_norm: where the gates of convolutions go; see ``sparsify``.
        precision: the type to compute layers in, by name.
        compiled: compile steps on a processor too, where that pays; see ``StageTrainer``.
        rarely_evaluated: evaluate a single model after some epochs only, as models side by side are, instead of after every one.
    """

    method: str
    recipe: Recipe
    stages: tuple[StageName, ...]
    seed: int = 0
    kl_scale: KLScale = 1.0
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    strength: float = 1.0
    share: float = 1.0
    before_norm: bool = False
    precision: str = "float32"
    compiled: bool = False
    rarely_evaluated: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InputError(f"precision is {' or '.join(PRECISIONS)}, not '{self.precision}'")

    def scale(self, stage: StageName) -> KLScale:
        """Factors on the divergence in a stage; the input-dependent one weighs it at most once, whatever the trade-off."""
        slope = self.recipe.stages[stage].kl_by_tradeoff
        scale = self.kl_scale if stage == "pruned" else 1.0 if slope is None else min(1.0, slope * self.strength)
        if isinstance(scale, Mapping):
            return {name: self.share * factor for name, factor in scale.items()}
        return tuple(self.share * factor for factor in scale) if isinstance(scale, Sequence) else self.share * scale

    def gate_settings(self) -> dict[str, Any]:
        """What the gates are set to in the pruning stage, as it is written down."""
        return {"kl_scale": self.kl_scale, **self.hyperparameters}

    def consistency(self, stage: StageName) -> float:
        """The weight of consistency in a stage. The stronger the first stage prunes, the less it weighs in the input-dependent one."""
        weight = self.recipe.stages[stage].consistency
        return weight / max(self.strength, 1.0) if stage == "dependent" else weight


def usual_stages(method: str, pretrain: bool = True) -> tuple[StageName, ...]:
    """Pretrain, prune, and for DBB make dependent; a model that is trained already is not pretrained."""
    if method == DENSE:
        return ("dense",)
    first: tuple[StageName, ...] = ("dense",) if pretrain else ()
    return (*first, "pruned", "dependent") if method == "dbb" else (*first, "pruned")


def static_method(method: str) -> str:
    """The method of the pruning stage: DBB starts from BB."""
    method_class(method)
    return "bb" if method == "dbb" else method


def default_tradeoff(method: str, recipe: Recipe) -> float:
    """The trade-off of a method where none is asked for."""
    static = static_method(method)
    return recipe.tradeoffs.get(static, method_class(static).default_tradeoff)


def make_plan(
    method: str,
    recipe: Recipe,
    n_data: int,
    *,
    tradeoff: float | None = None,
    kl_scale: KLScale | None = None,
    gate_weights: tuple[float, ...] | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
    seed: int = 0,
    before_norm: bool = False,
    pretrain: bool = True,
    precision: str = "float32",
) -> Plan:
    """A plan, with the trade-off translated into a factor on the divergence and hyper-parameters of the gates.

    Args:
        method: a method key.
        recipe: of the stages.
        n_data: the size of the training set.
        tradeoff: in the method's own terms; by default the recipe's.
        kl_scale: the factor on the divergence, instead of the trade-off's.
        gate_weights: a further factor for each gate in network order.
        hyperparameters: of the gates, over those of the trade-off.
        seed: of everything random.
        before_norm: see ``sparsify``.
        pretrain: whether to train the model before gates are put in.
        precision: see ``Plan``.
    """
    chosen = default_tradeoff(method, recipe) if tradeoff is None else tradeoff
    if not (is_number(chosen) and chosen > 0):
        raise InputError(f"a trade-off is a finite number above zero, not {chosen!r}")
    meaning = method_class(static_method(method)).from_tradeoff(chosen, n_data)
    scale: KLScale = meaning.kl_scale if kl_scale is None else kl_scale
    if isinstance(scale, (Mapping, Sequence)):
        factors = list(scale.values() if isinstance(scale, Mapping) else scale)
        if isinstance(scale, str) or not all(is_number(factor) for factor in factors):
            raise InputError(f"kl_scale is a number, or a number for each gate, not {scale!r}")
        strength = math.fsum(factors) / max(len(factors), 1)
    else:
        if not (is_number(scale) and scale >= 0):
            raise InputError(f"kl_scale must be finite and not negative, a number or one for each gate, not {scale!r}")
        scale = strength = float(scale)
        if gate_weights is not None:
            scale = tuple(scale * weight for weight in gate_weights)
    settings = {**meaning.hyperparameters, **(hyperparameters or {})}
    stages = usual_stages(method, pretrain)
    missing = [stage for stage in stages if stage not in recipe.stages]
    if missing:
        raise InputError(f"the recipe '{recipe.name}' does not say how to train the stage {missing[0]}, which {method} has")
    return Plan(
        method,
        recipe,
        stages,
        seed,
        scale,
        settings,
        strength=strength,
        before_norm=before_norm,
        precision=precision,
    )
