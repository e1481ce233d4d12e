"""Which units of models with gates can go, and the narrower models without them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.attach.copying import copy_of
from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs, call, tensors_in
from bayesprune.gates import Gate, gates
from bayesprune.graph.tracing import relative_difference
from bayesprune.narrowing.copies import Kept, Narrow, narrowed, unit_mask
from bayesprune.narrowing.cuts import Cuts, find_cuts
from bayesprune.prediction import evaluating
from bayesprune.state import as_before

_SAME = 1e-3
"""A narrower model whose outputs differ by more, relative to their norm, is another function; rounding stays far below."""


@dataclass(frozen=True)
class Candidate:
    """Narrower models, and the units that they have."""

    narrow: list[Narrow]
    kept: list[Kept]


class Shrinking:
    """Decides which units of models of one structure go, and makes the narrower models.

    Models that are trained side by side become as narrow as the one that needs most units: the others keep some that they have pruned.

    Args:
        models: whole, with gates.
        example_inputs: what a model computes for them, it computes without these units; two inputs are enough.
        alignment: widths are multiples of it, as far as there are so many units.
    """

    def __init__(self, models: Sequence[nn.Module], example_inputs: ExampleInputs, alignment: int = 1) -> None:
        self.models = list(models)
        self.example_inputs = example_inputs
        self.alignment = alignment
        self.narrow: list[Narrow] | None = None
        self.kept: list[Kept] = [{name: torch.arange(gate.num_units) for name, gate in gates(model).items()} for model in self.models]
        """The units that each model still has, as numbers of its whole gates."""
        self.staying: dict[str, str] = {}
        """Gates that keep the units that they have, and why."""
        self._cuts: Cuts | None = None

    @property
    def cuts(self) -> Cuts:
        """What goes with the units of the gates; found when it is first asked for."""
        if self._cuts is None:
            self._cuts = find_cuts(self.models[0], self.example_inputs)
            self.staying |= self._cuts.reasons
        return self._cuts

    @property
    def widths(self) -> list[int]:
        """How many units each gate has now, in network order."""
        model = self.models[0] if self.narrow is None else self.narrow[0].model
        return [gate.num_units for gate in gates(model).values()]

    def candidate(self, alive: Mapping[str, Tensor], pays: Callable[[nn.Module], bool] = lambda _narrow: True) -> "Candidate | None":
        """Narrower models that compute what the whole ones do; None if there is nothing to remove, or not enough.

        Units of gates for which that cannot be done stay from now on, and ``staying`` says why.

        Args:
            alive: for each gate which of the units that it has are in use, of shape (models, units).
            pays: whether a model is narrow enough, so that the others, of the same shape, are made too.
        """
        while True:
            kept = self._proposed(alive)
            if all(len(units) == len(self.kept[0][name]) for name, units in kept[0].items()):
                return None
            first = narrowed(self.models[0], self.cuts, kept[0])
            if not pays(first.model):
                return None
            made = [first, *self._made(self.models[1:], kept[1:])]
            failed = [index for index, each in enumerate(made) if not self._is_same(self.models[index], each)]
            works = not failed and self._trains_alike(made[0])
            if works and _are_of_one_size(made):
                return Candidate(made, kept)
            members = failed or [0]
            going = [group for group in self.cuts.groups() if not self.staying.keys() & set(group)]
            if works:
                culprits = [group for group in going if not _are_of_one_size([self._alone(group, *each) for each in enumerate(kept)])]
                reason = "without their pruned units the models side by side are of different sizes"
            else:
                # Those without which nothing runs are soon found, and most often all.
                culprits = [group for group in going if not self._runs_alone(group, members[0], kept[members[0]])]
                culprits = culprits or [
                    group for group in going if not all(self._works_alone(group, index, kept[index]) for index in members)
                ]
                reason = "without its pruned units the model computes something else, or nothing"
            for name in self.cuts.deciding_on(name for group in culprits or going for name in group):
                self.staying[name] = reason

    def adopt(self, candidate: "Candidate") -> None:
        """Go on from these models. Units that went with those of other gates count as pruned."""
        for model, narrow in zip(self.models, candidate.narrow, strict=True):
            for name, gate in gates(model).items():
                left = _left_of(gate, gates(narrow.model)[name])
                if not bool(left.all()):
                    gate.prune(gate.keep() & ~left)
        self.narrow, self.kept = candidate.narrow, candidate.kept

    def take_up(self, kept: list[Kept]) -> None:
        """Make the whole models as narrow as they were."""
        self.adopt(Candidate(self._made(self.models, kept), kept))

    def write_back(self) -> list[nn.Module]:
        """The whole models, with what the narrower ones have learned."""
        for narrow, model in zip(self.narrow or (), self.models, strict=False):
            narrow.write_to(model)
        return self.models

    def _proposed(self, alive: Mapping[str, Tensor]) -> list[Kept]:
        """What each model should keep of the units that it has."""
        proposal: list[dict[str, Tensor]] = [dict(kept) for kept in self.kept]
        for group in self.cuts.groups():
            if self.staying.keys() & set(group):
                continue
            present = torch.stack([self._present(group[0], kept) for kept in proposal])
            there = torch.stack([unit_mask(kept[group[0]], present.shape[1]) for kept in self.kept])
            used = there.clone()
            used[there] = torch.stack([alive[name].cpu() for name in group]).all(dim=0).flatten()
            width = self._width(int((used & present).sum(dim=1).max()), int(present.sum(dim=1).min()))
            # Those in use come first, then others, in the order of their numbers; those that no layer computes any more come last.
            order = torch.argsort(4 * (~present).int() + 2 * (~used).int() + (~there).int(), dim=1, stable=True)
            for member, kept in enumerate(proposal):
                kept |= dict.fromkeys(group, order[member, :width].sort().values)
        return list(proposal)

    def _made(self, models: Sequence[nn.Module], kept: Sequence[Kept]) -> list[Narrow]:
        return [narrowed(model, self.cuts, each) for model, each in zip(models, kept, strict=True)]

    def _present(self, gate: str, kept: Kept) -> Tensor:
        """Which units of a whole gate arrive, if layers before it are cut as proposed: those of which any channel does."""
        whole = gates(self.models[0])[gate]
        unit = torch.arange(whole.num_units) if whole.units.groups is None else whole.units.groups.cpu()
        arriving = torch.ones(len(unit), dtype=torch.bool)
        for other, owned in self.cuts.by_gate.items():
            for cut in owned:
                if self.cuts.gathers(gate) and other != gate and (cut.layer, cut.side) == (gate, "units"):
                    arriving &= unit_mask(kept[other], gates(self.models[0])[other].num_units)[cut.owner]
        return unit_mask(unit[arriving], whole.num_units)

    def _width(self, needed: int, there: int) -> int:
        """How wide a layer becomes; at least two units, because a single one would be broadcast where the model adds it to wider ones."""
        aligned = -(-max(needed, 2) // self.alignment) * self.alignment
        return min(aligned, there)

    def _alone(self, group: Sequence[str], index: int, kept: Kept) -> Narrow:
        """A model that has lost only units of these gates."""
        return narrowed(self.models[index], Cuts({name: self.cuts.by_gate[name] for name in group}), {name: kept[name] for name in group})

    @torch.no_grad()
    def _runs_alone(self, group: Sequence[str], index: int, kept: Kept) -> bool:
        """Whether a model without the units of these gates computes anything."""
        narrow = self._alone(group, index, kept).model
        with evaluating(narrow):
            return bool(self._outputs(narrow))

    def _works_alone(self, group: Sequence[str], index: int, kept: Kept) -> bool:
        """Whether a model can lose the units of these gates."""
        narrow = self._alone(group, index, kept)
        return self._is_same(self.models[index], narrow) and (index > 0 or self._trains_alike(narrow))

    @torch.no_grad()
    def _is_same(self, model: nn.Module, narrow: Narrow) -> bool:
        """Whether a narrower model computes what the whole one does; one that has diverged is not asked.

        Units that it keeps though they are pruned may come back: what they would then do has to be the same, too.
        """
        with evaluating(model), evaluating(narrow.model):
            if not self._agree(model, narrow.model):
                return False
            masks = {name: _left_of(gate, gates(narrow.model)[name]) for name, gate in gates(model).items()}
            with _in_use(model, masks), _in_use(narrow.model, {name: mask[mask] for name, mask in masks.items()}):
                return self._agree(model, narrow.model)

    def _agree(self, model: nn.Module, narrow: nn.Module) -> bool:
        """Whether two models compute the same for the example."""
        expected, found = self._computed(model), self._outputs(narrow)
        return [each.shape for each in found] == [each.shape for each in expected] and all(
            _is_close(one, other) for one, other in zip(found, expected, strict=True)
        )

    @torch.no_grad()
    def _trains_alike(self, narrow: Narrow) -> bool:
        """Whether the first model, narrower, can be trained: code that runs in training only may insist on a width."""
        whole, small = (copy_of(each).train() for each in (self.models[0], narrow.model))
        devices = {each.device for each in tensors_in(self.example_inputs) if each.device.type == "cuda"}
        with torch.random.fork_rng(devices=list(devices)):
            return [each.shape for each in self._outputs(small)] == [each.shape for each in self._outputs(whole)]

    def _outputs(self, model: nn.Module) -> list[Tensor]:
        """What a model computes for the example; nothing if it fails, which code of others may where it meets a size of ours."""
        try:
            return self._computed(model)
        except InputError:
            return []

    def _computed(self, model: nn.Module) -> list[Tensor]:
        with as_before(model):
            return tensors_in(call(model, self.example_inputs))


def _are_of_one_size(models: Sequence[Narrow]) -> bool:
    """Whether models can be trained side by side: not if each keeps other units, and those have different numbers of channels."""
    return len({tuple(tensor.shape for tensor in (*each.model.parameters(), *each.model.buffers())) for each in models}) == 1


def _left_of(gate: Gate, narrow: Gate) -> Tensor:
    """Which of the units of a gate a narrower one has; both know the numbers that theirs have in a gate that lost none."""
    device = next(gate.parameters()).device
    mine, left = gate.noise_columns, narrow.noise_columns
    if left is None:
        return torch.ones(gate.num_units, dtype=torch.bool, device=device)
    return torch.isin(torch.arange(gate.num_units, device=device) if mine is None else mine, left)


@contextmanager
def _in_use(model: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[None]:
    """Let the gates of a model pass on the units in these masks as they are, and nothing of the others."""
    handles = [gate.register_forward_hook(partial(_pass_on, masks[name])) for name, gate in gates(model).items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _pass_on(mask: Tensor, gate: Any, inputs: tuple[Any, ...], _output: Any) -> Tensor:
    (x,) = inputs
    return torch.mul(x, gate.units.spread(mask.to(x), x))


def _is_close(found: Tensor, expected: Tensor) -> bool:
    """Numbers of a model that has diverged are not asked."""
    return bool(expected.isnan().any()) or relative_difference(found, expected) <= _SAME
