"""The search for a better recipe for LeNet-500-300, on the last 10,000 training images of MNIST; the test images are never looked at.

A candidate is a set of settings that differ from the paper's; each is trained with BB and then DBB at some trade-offs and seeds, many
candidates side by side. What differs between models of one program enters as tensors. Appends a row for each model and stage, with the
validation error of the last weights and of their average over the second half of the stage.

    python -m benchmarks.recipe_search --programs regularisers consistency --rows results/recipe-search.jsonl
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.data import Dataset, TensorBatches, load_dataset
from bayesprune.experiments.main_job import batches_of, surroundings
from bayesprune.models.lenet import LeNet500300
from bayesprune.noise import derive_seed
from bayesprune.objective import disagreement
from bayesprune.storage import append_row, make_folder
from bayesprune.training.evaluation import LossFunction, measure_members
from bayesprune.training.recipes import PAPER, StageRecipe
from bayesprune.training.trainer import StageTrainer

VALIDATION = 10_000
AVERAGED_FROM = 0.5


@dataclass(frozen=True)
class Candidate:
    """Settings of the loss and the gates in which models of one program may differ; the defaults are the paper's.

    Attributes:
        name: for the rows.
        weight_decay: of weights and biases.
        smoothing: of the labels.
        confidence: weight of the predictions' negative entropy (Pereyra et al., 2017).
        consistency: weight of the divergence between the predictions of two draws of the gates (R-Drop, Wu et al., 2021).
        gate_weights: on the divergences of the three gates in the stage of BB.
        second_consistency: that of the stage of DBB; None for the same.
        in_proportion: divide the consistency of the stage of DBB by the trade-off, if that is above 1, as the recipes do.
        second_weights: on the divergences of the three gates in the stage of DBB.
        rate: factor on all learning rates.
        perturbation: how far the second showing of an image is moved to where its loss is greater.
    """

    name: str
    weight_decay: float = 1e-4
    smoothing: float = 0.0
    confidence: float = 0.0
    consistency: float = 0.0
    gate_weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    second_consistency: float | None = None
    in_proportion: bool = False
    second_weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    rate: float = 1.0
    perturbation: float = 0.0

    def consistency_in(self, stage: str, gamma: float) -> float:
        """The weight of consistency in a stage."""
        if stage == "bb":
            return self.consistency
        weight = self.consistency if self.second_consistency is None else self.second_consistency
        return weight / max(gamma, 1.0) if self.in_proportion else weight


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

    @property
    def moves(self) -> bool:
        """Whether images are moved, which is up to the trainer: then candidates differ in nothing that the trainer does not know of."""
        return any(candidate.perturbation for candidate, *_ in self.tried())

    @property
    def weight_decay(self) -> float:
        """That the trainer is told: zero where every candidate's loss has its own."""
        if not self.moves:
            return 0.0
        (common,) = {(each.weight_decay, each.smoothing, each.confidence) for each, *_ in self.tried()}
        return common[0]

    def tried(self) -> list[tuple[Candidate, float, int]]:
        """Candidate, trade-off and seed of every model."""
        asked = [*((candidate, self.tradeoffs) for candidate in self.candidates), *self.more]
        return [(candidate, gamma, seed) for candidate, tradeoffs in asked for gamma in tradeoffs for seed in self.seeds]


BY_COST = (0.9, 1.35, 0.36)
"""FLOPs that a unit of each gate costs in a network of 190-105-50 units, over the mean that keeps the sum of divergences about the same."""
FEW_HIDDEN = (0.4, 1.8, 0.6)
"""DBB computes all units that BB keeps of a hidden layer, but only the pixels that an input needs: so many pixels cost little."""
FEW = Candidate("few hidden", consistency=0.5, gate_weights=FEW_HIDDEN)
LIGHT = replace(FEW, name="light", consistency=1.0, second_consistency=0.3, weight_decay=3e-5)
LIGHTER = Candidate("lighter, in proportion", weight_decay=1e-5, consistency=1.0, gate_weights=FEW_HIDDEN, in_proportion=True)


def less_in_dbb(weight: float) -> Candidate:
    """The lighter candidate with a factor below 1 on the divergences of the stage of DBB, which prunes little then."""
    return replace(LIGHTER, name="lighter, less in DBB", second_weights=(weight, weight, weight))


PROGRAMS = {
    "regularisers": Program(
        [
            Candidate("paper"),
            Candidate("no decay", weight_decay=0.0),
            Candidate("decay 3e-4", weight_decay=3e-4),
            Candidate("decay 1e-3", weight_decay=1e-3),
            Candidate("smoothing 0.05", smoothing=0.05),
            Candidate("smoothing 0.15", smoothing=0.15),
            Candidate("confidence 0.1", confidence=0.1),
            Candidate("confidence 0.4", confidence=0.4),
            Candidate("by cost", gate_weights=BY_COST),
            Candidate("smoothing 0.1, decay 3e-5", smoothing=0.1, weight_decay=3e-5),
        ]
    ),
    "consistency": Program(
        [
            Candidate("twice"),
            Candidate("consistency 0.3", consistency=0.3),
            Candidate("consistency 1", consistency=1.0),
            Candidate("consistency 4", consistency=4.0),
        ],
        tradeoffs=(1.0, 2.0),
        twice=True,
    ),
    "combinations": Program(
        [
            Candidate("consistency 1", consistency=1.0),
            Candidate("consistency 1, no decay", consistency=1.0, weight_decay=0.0),
            Candidate("consistency 1, confidence 0.1", consistency=1.0, confidence=0.1),
            Candidate("consistency 1, few hidden", consistency=1.0, gate_weights=FEW_HIDDEN),
            Candidate("consistency 0.5, few hidden", consistency=0.5, gate_weights=FEW_HIDDEN),
            Candidate("twice, few hidden", gate_weights=FEW_HIDDEN),
        ],
        tradeoffs=(1.0, 3.0, 8.0),
        seeds=(0, 1),
        twice=True,
    ),
    "refinements": Program(
        [
            FEW,
            replace(FEW, name="few hidden, pixels dear in DBB", second_weights=(3.0, 1.0, 1.0)),
            replace(FEW, name="few hidden, all dear in DBB", second_weights=(3.0, 3.0, 3.0)),
            replace(FEW, name="few hidden, consistency 0.5 then 1", second_consistency=1.0),
            replace(FEW, name="few hidden, consistency 1 then 0.3", consistency=1.0, second_consistency=0.3),
            replace(FEW, name="few hidden, decay 3e-5", weight_decay=3e-5),
            replace(FEW, name="fewer hidden", gate_weights=(0.2, 2.2, 0.6)),
            replace(FEW, name="a little fewer hidden", gate_weights=(1.0, 1.5, 0.5)),
        ],
        tradeoffs=(1.0, 3.0, 5.0),
        seeds=(0, 1),
        twice=True,
    ),
    "combined refinements": Program(
        [
            LIGHT,
            replace(LIGHT, name="light, consistency 1 then 0.5", second_consistency=0.5),
            replace(LIGHT, name="light, consistency 0.5 then 0.3", consistency=0.5),
            replace(LIGHT, name="light, decay 1e-5", weight_decay=1e-5),
            replace(LIGHT, name="light, pixels dear in DBB", second_weights=(3.0, 1.0, 1.0)),
            replace(LIGHT, name="light, a little fewer hidden", gate_weights=(1.0, 1.5, 0.5)),
        ],
        tradeoffs=(1.0, 4.0, 6.0),
        epochs=(200, 200),
        twice=True,
    ),
    "longer": Program(
        [LIGHTER],
        tradeoffs=(0.5, 1.0, 3.5, 6.0),
        epochs=(300, 300),
        twice=True,
        more=[(less_in_dbb(0.4), (1.0,))],
    ),
    "gentler": Program(
        [],
        seeds=(0, 1, 2, 3, 4),
        epochs=(300, 300),
        twice=True,
        more=[(less_in_dbb(0.2), (0.5, 1.0)), (less_in_dbb(0.4), (0.5,))],
    ),
    "longer, less regular": Program(
        [
            Candidate("paper, longer"),
            replace(LIGHTER, name="lighter, no consistency", consistency=0.0),
            replace(LIGHTER, name="lighter, consistency 0.2", consistency=0.2),
            replace(LIGHTER, name="lighter, consistency 0.2, decay 1e-4", consistency=0.2, weight_decay=1e-4),
            replace(LIGHTER, name="lighter, consistency 1 then 0", second_consistency=0.0),
        ],
        tradeoffs=(2.0,),
        epochs=(300, 300),
        twice=True,
    ),
    "moved, short": Program(
        [LIGHTER, *(replace(LIGHTER, name=f"lighter, moved {distance}", perturbation=distance) for distance in (0.25, 0.5))],
        tradeoffs=(2.0, 6.0),
        seeds=(0,),
        epochs=(60, 60),
        gate_speed=5.0,
        twice=True,
    ),
    "cosine": Program([LIGHTER], tradeoffs=(1.0, 2.0, 3.5, 5.0), schedule="cosine", twice=True),
    "warm-up": Program([LIGHTER], tradeoffs=(1.0, 2.0, 3.5, 5.0), warmup=0.1, twice=True),
}


class TriedLeNet(LeNet500300):
    """LeNet-500-300 that in training hands the loss what the candidate's loss needs beside the logits."""

    settings: Tensor

    def __init__(self, candidate: Candidate, twice: bool) -> None:
        super().__init__()
        self.twice = twice
        numbers = [candidate.weight_decay, candidate.smoothing, candidate.confidence, candidate.consistency]
        self.register_buffer("settings", torch.tensor(numbers))

    def forward(self, x: Tensor) -> Any:
        if not self.training:
            return super().forward(x)
        squares = torch.stack([p.square().sum() for layer in (self.fc1, self.fc2, self.fc3) for p in (layer.weight, layer.bias)]).sum()
        return super().forward(torch.cat([x, x]) if self.twice else x), self.settings, squares


def candidate_loss(outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy, in training with the terms of the candidate."""
    if isinstance(outputs, Tensor):
        return F.cross_entropy(outputs, targets)
    logits, settings, squares = outputs
    decay, smoothing, confidence, consistency = settings.unbind()
    logs = F.log_softmax(logits, dim=1)
    twice = len(logits) == 2 * len(targets)
    wanted = torch.cat([targets, targets]) if twice else targets
    nll = -logs.gather(1, wanted[:, None]).mean()
    loss = (1.0 - smoothing) * nll - smoothing * logs.mean() + 0.5 * decay * squares + confidence * (logs.exp() * logs).sum(1).mean()
    if twice:
        loss = loss + consistency * disagreement(logits)
    return loss


class Averages:
    """The mean of the models' parameters over the last part of a stage, an epoch a sample."""

    def __init__(self, trainer: StageTrainer) -> None:
        self.trainer, self.count, self.means = trainer, 0, [torch.zeros_like(p) for p in trainer.members.parameters.values()]

    @torch.no_grad()
    def look(self) -> None:
        if self.trainer.epoch > AVERAGED_FROM * self.trainer.recipe.epochs:
            self.count += 1
            for mean, parameter in zip(self.means, self.trainer.members.parameters.values(), strict=True):
                mean += (parameter - mean) / self.count

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the models' parameters and the means."""
        for mean, parameter in zip(self.means, self.trainer.members.parameters.values(), strict=True):
            last = parameter.clone()
            parameter.copy_(mean)
            mean.copy_(last)


Tried = tuple[Candidate, float, int]


def search(
    name: str, program: Program, tried: Sequence[Tried], data: Dataset, pretrained: dict[int, nn.Module], device: torch.device
) -> Iterator[dict[str, Any]]:
    """The rows of some models of a program, trained side by side; a single one shrinks on a processor."""
    training, validation = batches_of(data, PAPER, device)
    models: list[nn.Module] = []
    for candidate, _, seed in tried:
        model = (LeNet500300() if program.moves else TriedLeNet(candidate, program.twice)).to(device)
        model.load_state_dict({**model.state_dict(), **pretrained[seed].state_dict()})
        models.append(sparsify(model, "bb"))
    scales = [tuple(gamma * weight for weight in candidate.gate_weights) for candidate, gamma, _ in tried]
    for stage in ("bb", "dbb"):
        consistency = [candidate.consistency_in(stage, gamma) for candidate, gamma, _ in tried]
        if stage == "dbb":
            models = [make_dependent(model) for model in models]
            scales = [candidate.second_weights for candidate, *_ in tried]
        for model, weight in zip(models, consistency, strict=True):
            if isinstance(model, TriedLeNet):
                model.settings[-1] = weight
        recipe = StageRecipe(
            epochs=program.epochs[stage == "dbb"],
            gate_speed=program.gate_speed,
            weight_decay=program.weight_decay,
            schedule=program.schedule,
            kl_warmup=program.warmup * (stage == "bb"),
        )
        loss = F.cross_entropy if program.moves else candidate_loss
        for row in _stage(stage, models, recipe, tried, scales, consistency if program.moves else None, loss, training, validation):
            yield {"benchmark": "recipe_search", "program": name, "twice": program.twice, **row}
        print(f"{name}, {stage}: {len(models)} models, {row['seconds']:.0f} s", flush=True)


def _stage(
    stage: str,
    models: list[nn.Module],
    recipe: StageRecipe,
    tried: Sequence[Tried],
    scales: Any,
    consistency: Sequence[float] | None,
    loss: LossFunction,
    training: TensorBatches,
    validation: TensorBatches,
) -> Iterator[dict[str, Any]]:
    shrink = len(models) == 1 and next(models[0].parameters()).device.type == "cpu"
    trainer = StageTrainer(
        models,
        training,
        recipe,
        loss,
        kl_scales=scales,
        seeds=[derive_seed(seed, stage) for *_, seed in tried],
        rate_factors=[candidate.rate for candidate, *_ in tried],  # All ones cost nothing.
        consistency=consistency,
        perturbation=[candidate.perturbation for candidate, *_ in tried],
        shrink=shrink,
    )
    averages = None if shrink else Averages(trainer)
    started = time.perf_counter()
    while not trainer.finished:
        trainer.train_epoch(lambda _loss: None)
        if averages is not None:
            averages.look()
    last = measure_members(trainer.members, validation, loss, trainer.models[0])
    averaged = last
    if averages is not None:
        averages.swap()
        averaged = measure_members(trainer.members, validation, loss)
        averages.swap()
    trainer.write_back()
    seconds = time.perf_counter() - started
    for (candidate, gamma, seed), end, mean in zip(tried, last, averaged, strict=True):
        about = {"stage": stage, "tradeoff": gamma, "seed": seed, **asdict(recipe), **asdict(candidate)}  # Those of the loss come last.
        outcome = {"validation_error": end["error"], "kept": end["kept"], "speedup": end["speedup"]}
        if averages is not None:
            outcome |= {"averaged_error": mean["error"], "averaged_kept": mean["kept"], "averaged_speedup": mean["speedup"]}
        yield {**about, **outcome, "seconds": round(seconds, 1), **surroundings(trainer.device)}


def pretrain(data: Dataset, seeds: Sequence[int], epochs: int, device: torch.device) -> dict[int, nn.Module]:
    """A network for each seed, trained as in the paper."""
    training, _ = batches_of(data, PAPER, device)
    networks = []
    for seed in seeds:
        torch.manual_seed(derive_seed(seed, "weights"))
        networks.append(LeNet500300().to(device))
    trainer = StageTrainer(networks, training, StageRecipe(epochs=epochs), F.cross_entropy, seeds=[derive_seed(s, "dense") for s in seeds])
    while not trainer.finished:
        trainer.train_epoch(lambda _loss: None)
    trainer.write_back()
    return dict(zip(seeds, networks, strict=True))


def main() -> None:
    """Train the programs that are asked for, and append the rows."""
    parser = argparse.ArgumentParser(description="Candidates for a recipe, on validation images.")
    parser.add_argument("--programs", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rows", type=Path, required=True, help="append raw numbers to this JSONL file")
    parser.add_argument("--pretraining", type=int, default=100, help="epochs of the networks that all start from")
    parser.add_argument("--first", type=int, default=0, help="of the models that are trained one by one: begin with this one")
    parser.add_argument("--of", type=int, default=1, help="and take one of so many; for several processes")
    arguments = parser.parse_args()
    make_folder(arguments.rows.parent)
    device, data = torch.device(arguments.device), load_dataset("mnist", None).for_tuning(VALIDATION)
    seeds = sorted({seed for name in arguments.programs for seed in PROGRAMS[name].seeds})
    pretrained = pretrain(data, seeds, arguments.pretraining, device)
    for name in arguments.programs:
        program = PROGRAMS[name]
        # On a processor models are trained one by one: side by side none could shrink below the widest.
        fleets = [[each] for each in program.tried()] if device.type == "cpu" else [program.tried()]
        for fleet in fleets[arguments.first :: arguments.of]:
            for row in search(name, program, fleet, data, pretrained, device):
                append_row(arguments.rows, row)


if __name__ == "__main__":
    main()
