"""What Torch-Pruning makes of the masks."""

import copy
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import bayesprune as bp
from bayesprune.compact.compaction import take_gates_out
from bayesprune.cost import cost
from bayesprune.errors import first_line
from bayesprune.graph import trace
from benchmarks.exactness.cases import Case, Inputs
from benchmarks.exactness.reference import allowed, error, prepared, prune_at_random, sparsified


def folded(case: Case, gated: nn.Module, dtype: str, inputs: Inputs) -> Iterator[tuple[str, nn.Module]]:
    """The network with its masks multiplied into the weights: as our traced graph, and as the class that it was written as."""
    graph = trace(gated, inputs)
    take_gates_out(graph, bp.gates(gated))
    graph.delete_all_unused_submodules()
    for name in [name for name in graph._buffers if name.startswith("mask_of_")]:  # Factors that no weight can take, as it can prune them.
        graph.register_parameter(name, nn.Parameter(graph._buffers.pop(name)))
    yield "graph", copy.deepcopy(graph)
    written, _ = prepared(case, dtype)
    for path, layer in written.named_modules():
        try:
            changed = graph.get_submodule(path)
        except AttributeError:
            continue
        if type(changed) is type(layer) and not list(layer.children()):
            layer.load_state_dict(changed.state_dict())
    yield "class", written


class Ledger:
    """Which channels of the gated layers Torch-Pruning has taken, by the numbers that they had at first.

    A group may take channels that another gate is about; without this, the masks of later gates would mean other channels.
    """

    def __init__(self, model: nn.Module, gated: nn.Module) -> None:
        paths = {id(module): path for path, module in gated.named_modules()}
        self.gates = bp.gates(gated)
        self.paths = {name: paths[id(gate.controlled[0].layer)] for name, gate in self.gates.items()}
        self.layers = {name: model.get_submodule(path) for name, path in self.paths.items()}
        self.sides = {name: gate.controlled[0].side for name, gate in self.gates.items()}
        self.owner = {name: _unit_of_channels(gate) for name, gate in self.gates.items()}
        self.left = {name: list(range(len(owner))) for name, owner in self.owner.items()}

    def asked(self, name: str) -> set[int]:
        """The channels that a gate prunes."""
        return set((~self.gates[name].keep()[self.owner[name]]).nonzero().flatten().tolist())

    def positions(self, name: str) -> list[int]:
        """Where those of them are now that are still there."""
        asked = self.asked(name)
        return [position for position, channel in enumerate(self.left[name]) if channel in asked]

    def taken(self, name: str) -> set[int]:
        """The channels of a gate's layer that are gone."""
        return set(range(len(self.owner[name]))) - set(self.left[name])

    def enter(self, graph: Any, group: Any) -> None:
        """Write down what a group takes."""
        is_side = {"outputs": graph.is_out_channel_pruning_fn, "inputs": graph.is_in_channel_pruning_fn}
        for dependency, positions in group:
            for name, layer in self.layers.items():
                if dependency.target.module is layer and is_side[self.sides[name]](dependency.handler):
                    gone = set(positions)
                    self.left[name] = [channel for position, channel in enumerate(self.left[name]) if position not in gone]


def _unit_of_channels(gate: bp.Gate) -> Tensor:
    return torch.arange(gate.num_units) if gate.units.groups is None else gate.units.groups


def tell_heads(model: nn.Module, ledger: Ledger) -> None:
    """Attention that was written by hand is told how many heads it has left, as Torch-Pruning's examples do it."""
    for name, gate in ledger.gates.items():
        owner = model.get_submodule(ledger.paths[name].rpartition(".")[0])
        if gate.units.groups is not None and isinstance(getattr(owner, "heads", None), int):
            owner.heads = int(gate.keep().sum())  # type: ignore[assignment]


def oracle(case: Case, gated: nn.Module, model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """Let Torch-Pruning remove the masked channels of a network, gate by gate, where its own check has no objection, and compare."""
    import torch_pruning

    exact = allowed(case, gated, inputs)
    if not error(case, gated, model, inputs) <= exact:
        return {"outcome": "unsuitable", "message": "the masks cannot be written into the weights of this form"}
    refused, stage, started = 0, "while building the graph", time.perf_counter()
    try:
        graph = torch_pruning.DependencyGraph().build_dependency(model.requires_grad_(True), example_inputs=inputs, verbose=False)
        stage = "while pruning"
        ledger = Ledger(model, gated)
        for name, layer in ledger.layers.items():
            positions = ledger.positions(name)
            if not positions:
                continue
            pruner = graph.get_pruner_of_module(layer)
            function = pruner.prune_out_channels if ledger.sides[name] == "outputs" else pruner.prune_in_channels
            group = graph.get_pruning_group(layer, function, positions)
            if not graph.check_pruning_group(group):
                refused += 1
                continue
            group.prune()
            ledger.enter(graph, group)
        tell_heads(model, ledger)
        seconds = time.perf_counter() - started
        stage = "when it runs afterwards"
        difference = error(case, gated, model, inputs)
        after = cost(model, inputs)
    except Exception as problem:  # noqa: BLE001  (a library raises whatever it likes, and here that is a result)
        return {"outcome": "fails", "message": f"{stage}, {type(problem).__name__}: {first_line(problem)}"}
    asked, taken = ({name: of(name) for name in ledger.layers} for of in (ledger.asked, ledger.taken))
    return {
        "outcome": "refuses" if not any(taken.values()) else "exact" if difference <= exact else "wrong",
        "rel_error": difference if difference < float("inf") else None,
        "message": "" if difference < float("inf") else "the outputs have another shape",
        "groups_refused": refused,
        "channels_asked": sum(map(len, asked.values())),
        "channels_removed": sum(map(len, taken.values())),
        "channels_removed_unasked": sum(len(taken[name] - asked[name]) for name in taken),
        "macs": after.macs,
        "parameters": after.parameters,
        "seconds": round(seconds, 3),
    }


def best_form(case: Case, gated: nn.Module, dtype: str, inputs: Inputs) -> dict[str, Any]:
    """What Torch-Pruning makes of either form of the network; the better one counts."""
    forms = {form: oracle(case, gated, model, inputs) for form, model in folded(case, gated, dtype, inputs)}
    order = ("exact", "refuses", "wrong", "fails", "unsuitable")

    def rank(form: str) -> tuple[int, float]:
        distance = forms[form].get("rel_error")
        return order.index(forms[form]["outcome"]), float("inf") if distance is None else distance

    best = min(reversed(forms), key=rank)
    return {"form": best, **forms[best], "forms": {form: f"{each['outcome']} {each['message']}".strip() for form, each in forms.items()}}


def theirs(case: Case, dtype: str) -> dict[str, Any]:
    """What Torch-Pruning makes of all masks."""
    model, inputs = prepared(case, dtype)
    gated = sparsified(case, model, inputs)
    prune_at_random(gated, case.share)
    return {f"theirs_{name}": value for name, value in best_form(case, gated, dtype, inputs).items()}


def alone(case: Case, dtype: str) -> dict[str, Any]:
    """What Torch-Pruning makes of the mask of each gate by itself, the others pruning nothing."""
    model, inputs = prepared(case, dtype)
    gated = sparsified(case, model, inputs)
    outcomes = {}
    for name in bp.gates(gated):
        prune_at_random(gated, case.share, only=name)
        outcomes[name] = best_form(case, gated, dtype, inputs)["outcome"]
    return {"theirs_alone": outcomes}
