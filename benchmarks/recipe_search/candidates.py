"""What a search tries: settings that differ from the paper's, at some trade-offs and seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Literal


@dataclass(frozen=True)
class Candidate:
    """Settings of the loss and the gates in which models of one program may differ; the defaults are the paper's.

    Attributes:
        name: for the rows.
        weight_decay: of weights and biases.
        smoothing: of the labels.
        confidence: weight of the predictions' negative entropy (Pereyra et al., 2017).
        consistency: weight of the divergence between the predictions of two draws of the gates (R-Drop, Wu et al., 2021).
        gate_weights: on the divergences of the gates in the stage of BB.
        second_consistency: that of the stage of DBB; None for the same.
        in_proportion: divide the consistency of the stage of DBB by the trade-off, if that is above 1, as the recipes do.
        second_weights: on the divergences of the gates in the stage of DBB; None for ones.
        rate: factor on all learning rates.
        perturbation: how far the second showing of an image is moved to where its loss is greater.
    """

    name: str
    weight_decay: float = 1e-4
    smoothing: float = 0.0
    confidence: float = 0.0
    consistency: float = 0.0
    gate_weights: tuple[float, ...] = (1.0, 1.0, 1.0)
    second_consistency: float | None = None
    in_proportion: bool = False
    second_weights: tuple[float, ...] | None = None
    rate: float = 1.0
    perturbation: float = 0.0

    @property
    def weights_in_dbb(self) -> tuple[float, ...]:
        """On the divergences of the gates in the stage of DBB."""
        return self.second_weights or (1.0,) * len(self.gate_weights)

    def consistency_in(self, stage: str, gamma: float) -> float:
        """The weight of consistency in a stage."""
        if stage == "bb":
            return self.consistency
        weight = self.consistency if self.second_consistency is None else self.second_consistency
        return weight / max(gamma, 1.0) if self.in_proportion else weight


Tried = tuple[Candidate, float, int]
"""Candidate, trade-off and seed of a model."""


@dataclass(frozen=True)
class Program:
    """What is trained side by side.

    Attributes:
        candidates: what to try.
        tradeoffs: gamma of each.
        seeds: of each.
        epochs: of BB and of DBB.
        schedule: of both.
        warmup: share of BB over which the divergence's weight rises.
        twice: show every image twice, with two draws of the gates, as consistency and perturbation need it.
        gate_speed: factor on the gates' learning rates, for short stages.
        more: further candidates, each at trade-offs of its own.
        network: that they are tried on.
    """

    candidates: Sequence[Candidate]
    tradeoffs: Sequence[float] = (1.0, 2.0, 4.0)
    seeds: Sequence[int] = (0, 1, 2)
    epochs: tuple[int, int] = (150, 150)
    schedule: Literal["steps", "cosine"] = "steps"
    warmup: float = 0.0
    twice: bool = False
    gate_speed: float = 1.0
    more: Sequence[tuple[Candidate, Sequence[float]]] = ()
    network: str = "lenet-500-300"

    @property
    def up_to_trainer(self) -> bool:
        """Whether images are moved, or another network is tried: then candidates differ in nothing that the trainer does not know of."""
        return self.network != "lenet-500-300" or any(candidate.perturbation for candidate, *_ in self.tried())

    @property
    def weight_decay(self) -> float:
        """That the trainer is told: zero where every candidate's loss has its own."""
        if not self.up_to_trainer:
            return 0.0
        decays = {each.weight_decay for each, *_ in self.tried()}
        if len(decays) > 1 or any(each.smoothing or each.confidence for each, *_ in self.tried()):
            raise ValueError("candidates of such a program have one weight decay, and neither smoothing nor confidence")
        return decays.pop()

    def tried(self) -> list[Tried]:
        """Candidate, trade-off and seed of every model."""
        asked = [*((candidate, self.tradeoffs) for candidate in self.candidates), *self.more]
        return [(candidate, gamma, seed) for candidate, tradeoffs in asked for gamma in tradeoffs for seed in self.seeds]

    def alike(self) -> list[list[Tried]]:
        """The models in groups that differ in their seeds alone."""
        return [list(group) for _, group in groupby(self.tried(), key=itemgetter(0, 1))]
