"""Fleets that start from the same pretrained networks, and the rows that come of them."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.analysis import record_units
from bayesprune.data import Dataset
from bayesprune.errors import DivergedError, InputError, RunFolderError
from bayesprune.experiments.compacted import keep_compacted
from bayesprune.experiments.evidence import evidence_name, save_evidence, save_record
from bayesprune.experiments.main_job import GATE_SETTINGS, RunConfig, batches_of, build_seeded, plan_of, surroundings
from bayesprune.experiments.other_counts import both_memories, other_counts
from bayesprune.experiments.protocol import Entry, Fleet, Protocol
from bayesprune.experiments.published import WITHOUT_TRADEOFF, tradeoff_value
from bayesprune.experiments.rows import STAGE_RECIPE
from bayesprune.experiments.tables import SHOWN_INPUTS, SHOWN_LAYERS
from bayesprune.storage import make_folder
from bayesprune.training.plan import DENSE, Plan, static_method, usual_stages
from bayesprune.training.stages import DIVERGED, FINISHED, StagedRun, is_look, run_stages
from bayesprune.training.store import RunStore
from bayesprune.training.watching import Watcher

EVIDENCE = Entry("dbb", "1", 0)
"""The model that is kept for figures; of a recipe of our own, that at the first of its trade-offs."""
_OF_OTHER_CODE = ("gd", "cd")
"""Methods that the published code with its own divisor does not have."""
_DIGITS = {"error": 4, "speedup": 4, "memory": 4, "seconds": 1}
_NUMBERS = ("error", "kept", "speedup", "memory", "macs", "parameters", "epochs", "seconds")


class Fleets:
    """Trains the fleets of a protocol on one device, in a folder with checkpoints from which it goes on.

    Args:
        protocol: what they are part of.
        common: the settings that all models share.
        data: to train and evaluate on; as many of the images as the protocol says.
        device: where.
        work: the folder for checkpoints.
        models: the folder for models that figures are drawn from; None to keep none.
        networks: the folder for the networks that are left without their pruned units; None to keep none.
        watch: who is told of the progress of a fleet in the stage of a method.
    """

    def __init__(
        self,
        protocol: Protocol,
        common: RunConfig,
        data: Dataset,
        device: torch.device,
        work: Path,
        models: Path | None,
        networks: Path | None,
        watch: Callable[[Fleet, str], Watcher],
    ) -> None:
        self.protocol, self.common, self.device = protocol, common, device
        self.work, self.models, self.networks, self.watch = work, models, networks, watch
        training, test = protocol.images or (len(data.train), len(data.test))
        self.whole = len(data.train)
        self.data = replace(data, train=data.train.first(training), test=data.test.first(test))
        self.training, self.test = batches_of(self.data, protocol.recipe, device)
        self._pretrained: dict[int, StagedRun] = {}

    def train(self, fleet: Fleet) -> dict[Entry, dict[str, Any]]:
        """The rows of a fleet: for one with DBB also those of BB, from which it starts."""
        if fleet.method == DENSE:
            return self._rows(fleet, DENSE, [self._start(seed) for _, seed in fleet.members])
        static = static_method(fleet.method)
        runs = self._run(fleet, static, [self._start(seed) for _, seed in fleet.members])
        rows = self._rows(fleet, static, runs)
        if fleet.method == "dbb":
            static_runs, runs = runs, self._run(fleet, "dbb", runs)
            rows |= self._rows(fleet, "dbb", runs, static_runs)
            self._keep_evidence(fleet, runs)
        return rows

    def forget(self, fleet: Fleet) -> None:
        """Remove the checkpoints of a fleet, once its rows are safe; other fleets need those of the pretrained networks."""
        if fleet.method != DENSE:
            for method in fleet.methods:
                shutil.rmtree(self._folder(fleet, method), ignore_errors=True)

    def network(self, seed: int) -> nn.Module:
        """The network of a seed before it has learned anything."""
        return build_seeded(replace(self.common, seed=seed), self.data).to(self.device)

    def plan(self, method: str, tradeoff: str | None, seed: int) -> Plan:
        """What to do to a member in the stage of a method."""
        if method == DENSE:
            plan = Plan(DENSE, self.protocol.recipe, ("dense",), seed, precision=self.common.precision)
        else:
            asked = replace(self.common, method=method, seed=seed, tradeoff=None if tradeoff is None else tradeoff_value(tradeoff))
            n_data = self.whole if method in _OF_OTHER_CODE else self.protocol.table.n_data or self.whole
            plan = plan_of(asked, self.protocol.recipe, n_data)
            plan = replace(plan, stages=usual_stages(method)[-1:], share=len(self.data.train) / n_data)
        quick = self.protocol.images is not None  # It is over before compiling pays, and people look at it all the time.
        return replace(plan, compiled=not quick, rarely_evaluated=not quick)

    def _start(self, seed: int) -> StagedRun:
        """The pretrained network of a seed; it is pretrained, perhaps together with others, when it is first asked for."""
        if seed not in self._pretrained:
            fleet = self.protocol.pretraining(seed)
            seeds = [each for _, each in fleet.members]
            runs = self._run(fleet, DENSE, [StagedRun(self.network(each)) for each in seeds])
            self._pretrained |= dict(zip(seeds, runs, strict=True))
        return self._pretrained[seed]

    def _run(self, fleet: Fleet, method: str, before: Sequence[StagedRun]) -> list[StagedRun]:
        """Put all models of a fleet that are sound through one stage."""
        going = [member for member, run in enumerate(before) if not run.diverged]
        runs = list(before)
        if not going:
            return runs
        plans, models = [self.plan(method, *fleet.members[member]) for member in going], [before[member].model for member in going]
        store = self._store(fleet, method, {"members": [fleet.members[member] for member in going]}, plans)
        try:
            after = run_stages(models, plans, self.training, self.test, F.cross_entropy, store, self.watch(fleet, method))
        except torch.cuda.OutOfMemoryError as error:
            fewer = f"the device has no memory for {len(models)} models side by side: give a smaller --side-by-side"
            raise InputError(fewer if len(models) > 1 else "the device has no memory for one model: choose another --device") from error
        except DivergedError as error:  # The only model of the fleet: among several it would have been set aside.
            after = [StagedRun(models[0], [{"status": DIVERGED, "reason": str(error.__cause__ or error)}])]
        for member, run in zip(going, after, strict=True):
            runs[member] = run
        return runs

    def _store(self, fleet: Fleet, method: str, members: dict[str, Any], plans: Sequence[Plan]) -> RunStore:
        """Where a fleet is kept; earlier versions did not write down what its gates are set to."""
        settings = {} if method == DENSE else {GATE_SETTINGS: [plan.gate_settings() for plan in plans]}
        try:
            return RunStore(self._folder(fleet, method), {**members, **settings}, members)
        except RunFolderError as error:
            raise RunFolderError(f"{error}, or remove this one to train its models anew") from error

    def _folder(self, fleet: Fleet, method: str) -> Path:
        variant = "" if method == DENSE else self.protocol.variant  # All start from the same pretrained networks.
        return self.work / "-".join(filter(None, (f"{method}-of-{fleet.name}", variant)))

    def _rows(
        self, fleet: Fleet, method: str, runs: Sequence[StagedRun], below: Sequence[StagedRun] | None = None
    ) -> dict[Entry, dict[str, Any]]:
        """A row for each model of a fleet after the stage of a method."""
        together = len(self.protocol.pretraining(fleet.members[0][1]).members if method == DENSE else runs)
        about = {"recipe": self.protocol.recipe.name, "side_by_side": together, **surroundings(self.device), "device": self.device.type}
        about |= {name: getattr(self.protocol, name) for name in ("placement", "shrink", "precision")}
        sound = [member for member, run in enumerate(runs) if not run.diverged]
        others = other_counts(method, [runs[member].model for member in sound], self.test, F.cross_entropy)
        more = dict(zip(sound, others, strict=True))
        rows = {}
        for member, (tradeoff, seed) in enumerate(fleet.members):
            entry = Entry(method, tradeoff, seed)
            row = {"network": self.protocol.network, "dataset": self.protocol.dataset, **asdict(entry), **_outcome(runs[member])}
            row[STAGE_RECIPE] = self.protocol.stage_of(method).written()
            if method != DENSE:
                row[GATE_SETTINGS] = self.plan(method, tradeoff, seed).gate_settings()
            if self.networks is not None and method not in WITHOUT_TRADEOFF and member in more:
                row["compacted"] = self._keep_network(entry, runs[member].model)
            if below is not None and member in more:
                row["static_kept"] = below[member].results[-1]["kept"]
                row |= both_memories(runs[member].model, row["static_kept"], row["kept"], row["memory"])
            rows[entry] = row | more.get(member, {}) | about
        return rows

    def _keep_network(self, entry: Entry, model: nn.Module) -> dict[str, Any]:
        """The network without its pruned units, as a file, and what a row says of it."""
        assert self.networks is not None
        make_folder(self.networks)
        path = self.networks / f"{self.protocol.name}-{entry.file_name}.safetensors"
        return keep_compacted(model, self.test, F.cross_entropy, path)

    def _keep_evidence(self, fleet: Fleet, runs: Sequence[StagedRun]) -> None:
        """Keep the model that figures are drawn from or, of a large one, what they show."""
        wanted = (self.protocol.tradeoffs["dbb"][0] if self.protocol.is_own else EVIDENCE.tradeoff, EVIDENCE.seed)
        if self.models is None or wanted not in fleet.members or runs[fleet.members.index(wanted)].diverged:
            return
        make_folder(self.models)
        model, path = runs[fleet.members.index(wanted)].model, self.models / evidence_name(self.protocol.table, self.protocol.name)
        if not self.protocol.table.shown:
            save_evidence(model, path)
            return
        classes = [number for _, number in self.protocol.table.shown]
        record = record_units(model, list(self.test.in_order()), self.data.num_classes, classes, SHOWN_LAYERS, SHOWN_INPUTS)
        save_record(record, path)


def _outcome(run: StagedRun) -> dict[str, Any]:
    """What a row says of a model after its last stage."""
    result = run.results[-1]
    if run.diverged:
        return {"status": DIVERGED, "reason": result["reason"], **dict.fromkeys(_NUMBERS)}
    numbers = {name: round(result[name], _DIGITS[name]) if name in _DIGITS else result[name] for name in _NUMBERS}
    looks = [row for row in run.rows if is_look(row["epoch"], result["epochs"])]  # Of a model that was trained alone.
    history = result.get("history") or [{name: row[name] for name in ("epoch", "seconds", "error", "kept")} for row in looks]
    return {"status": FINISHED, **numbers, "history": history}
