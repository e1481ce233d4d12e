"""Training what a program tries, and measuring it on validation images."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.attach import make_dependent, sparsify
from bayesprune.data import Dataset, TensorBatches
from bayesprune.experiments.main_job import batches_of, surroundings
from bayesprune.models import build_network
from bayesprune.noise import derive_seed
from bayesprune.training.evaluation import LossFunction, measure_members
from bayesprune.training.recipes import PAPER, StageRecipe
from bayesprune.training.trainer import StageTrainer
from benchmarks.recipe_search.candidates import Program, Tried
from benchmarks.recipe_search.tried_network import TriedLeNet, candidate_loss

AVERAGED_FROM = 0.5
"""Of a stage: weights are averaged from there on."""


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


def search(
    name: str, program: Program, tried: Sequence[Tried], data: Dataset, pretrained: dict[int, nn.Module], device: torch.device
) -> Iterator[dict[str, Any]]:
    """The rows of some models of a program, trained side by side; if they differ in their seeds alone, they shrink on a processor."""
    training, validation = batches_of(data, PAPER, device)
    models: list[nn.Module] = []
    for candidate, _, seed in tried:
        model = (build_network(program.network) if program.up_to_trainer else TriedLeNet(candidate, program.twice)).to(device)
        model.load_state_dict({**model.state_dict(), **pretrained[seed].state_dict()})
        models.append(sparsify(model, "bb"))
    scales = [tuple(gamma * weight for weight in candidate.gate_weights) for candidate, gamma, _ in tried]
    for stage in ("bb", "dbb"):
        consistency = [candidate.consistency_in(stage, gamma) for candidate, gamma, _ in tried]
        if stage == "dbb":
            models = [make_dependent(model) for model in models]
            scales = [candidate.weights_in_dbb for candidate, *_ in tried]
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
        loss = F.cross_entropy if program.up_to_trainer else candidate_loss
        for row in _stage(stage, models, recipe, tried, scales, consistency if program.up_to_trainer else None, loss, training, validation):
            yield {"benchmark": "recipe_search", "network": program.network, "program": name, "twice": program.twice, **row}
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
    alike = all(each[:2] == tried[0][:2] for each in tried)  # Side by side no model shrinks below the widest.
    shrink = alike and next(models[0].parameters()).device.type == "cpu"
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
        compiled=True,
        shrink=shrink,
    )
    averages = None if shrink else Averages(trainer)
    started = time.perf_counter()
    while not trainer.finished:
        trainer.train_epoch(lambda _loss: None)
        if averages is not None:
            averages.look()
    last = measure_members(trainer.members, validation, loss, trainer.models[0])
    outcomes = [{"validation_error": each["error"], "kept": each["kept"], "speedup": each["speedup"]} for each in last]
    if averages is not None:
        averages.swap()
        for outcome, mean in zip(outcomes, measure_members(trainer.members, validation, loss), strict=True):
            outcome |= {f"averaged_{name}": mean[name] for name in ("error", "kept", "speedup")}
        averages.swap()
    trainer.write_back()
    seconds = time.perf_counter() - started
    for (candidate, gamma, seed), outcome in zip(tried, outcomes, strict=True):
        settings = {**asdict(candidate), "second_weights": candidate.weights_in_dbb}
        about = {"stage": stage, "tradeoff": gamma, "seed": seed, **asdict(recipe), **settings}  # Those of the candidate come last.
        yield {**about, **outcome, "seconds": round(seconds, 1), **surroundings(trainer.device)}


def pretrain(network: str, data: Dataset, seeds: Sequence[int], epochs: int, device: torch.device) -> dict[int, nn.Module]:
    """A network for each seed, trained as in the paper."""
    training, _ = batches_of(data, PAPER, device)
    networks = []
    for seed in seeds:
        torch.manual_seed(derive_seed(seed, "weights"))
        networks.append(build_network(network).to(device))
    trainer = StageTrainer(networks, training, StageRecipe(epochs=epochs), F.cross_entropy, seeds=[derive_seed(s, "dense") for s in seeds])
    while not trainer.finished:
        trainer.train_epoch(lambda _loss: None)
    trainer.write_back()
    return dict(zip(seeds, networks, strict=True))
