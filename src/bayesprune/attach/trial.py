"""Would a unit really go? Asked of the very analysis that removes units later."""

from typing import cast

import torch
from torch import Tensor, fx

from bayesprune.graph.binding import spelled
from bayesprune.graph.layer_types import MIXING_NORMS
from bayesprune.removal import Analysis, analyse
from bayesprune.removal.analysis import is_number, shape_of, tensor_inputs
from bayesprune.removal.rules import rule_for
from bayesprune.removal.rules.contract import Output, Rule
from bayesprune.removal.rules.elementwise import Combination
from bayesprune.removal.rules.layers import Convolution, Linear
from bayesprune.removal.rules.movement import Movement
from bayesprune.removal.rules.norms import GroupNorm, MixingNorm
from bayesprune.removal.sharing import disagreement
from bayesprune.removal.status import along

_MIXING = (Rule, Output, MixingNorm)


class Trial:
    """What would happen to a network if some elements of an activation were zero, whatever its weights.

    Args:
        module: the traced network.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.baseline = analyse(module, generic=True)
        self._last: tuple[fx.Node, Tensor, Analysis] | None = None

    def obstacle(self, activation: fx.Node, owner: Tensor) -> str | None:
        """Why units of an activation cannot be removed; None if they can.

        Args:
            activation: where the gate would be.
            owner: the unit of each element, as a status.
        """
        count = int(owner.max()) + 1
        halves = [owner % 2 == 0, owner % 2 == 1] if count > 1 else [owner == 0]
        for zero in halves:
            analysis = self._with_zeros(activation, zero)
            reason = self._mixed(analysis, activation)
            if reason is not None:
                return reason
            if not self._spares(analysis, activation, zero, owner):
                return self._who_needs(analysis, activation, zero)
            call = disagreement(analysis)
            if call is not None:
                return self._describe(analysis, call)
        return None

    def smaller(self, activation: fx.Node, owner: Tensor) -> tuple[set[str], set[str]]:
        """What becomes smaller when units of the activation are removed.

        Returns:
            The names of layers, and of parameters that the model reads itself, of which fewer outputs are needed, and the names of layers
            that need fewer inputs.
        """
        analysis = self._with_zeros(activation, owner % 2 == 0)
        fewer_outputs, fewer_inputs = set(), set()
        for node in self.module.graph.nodes:
            if node.op not in ("call_module", "get_attr") or node in analysis.constant:
                continue
            if is_fewer(self.baseline.needed.get(node), analysis.needed.get(node)):
                fewer_outputs.add(str(node.target))
            after = analysis.parts.get(node, {})
            if any(is_fewer(part, after.get(read)) for read, part in self.baseline.parts.get(node, {}).items()):
                fewer_inputs.add(str(node.target))
        return fewer_outputs, fewer_inputs

    def _with_zeros(self, activation: fx.Node, zero: Tensor) -> Analysis:
        """The analysis with these elements at zero; the last one for even units is kept, because it is asked for twice."""
        if self._last is not None and self._last[0] is activation and torch.equal(self._last[1], zero):
            return self._last[2]
        analysis = analyse(self.module, zeros={activation: zero}, baseline=self.baseline)
        if bool(zero.flatten()[0]):
            self._last = (activation, zero, analysis)
        return analysis

    def _spares(self, analysis: Analysis, activation: fx.Node, zero: Tensor, owner: Tensor) -> bool:
        """Whether the zeroed units need not be computed any more; a few may stand for the others where zeros turn into constants."""
        needed = analysis.needed.get(activation)
        if needed is None:
            return True
        left, zeroed = (len(set(torch.where(part, owner, -1).flatten().tolist()) - {-1}) for part in (needed & zero, zero))
        return left <= max(1, zeroed // 2) if self._turns_constant(analysis, activation) else left == 0

    def _turns_constant(self, analysis: Analysis, activation: fx.Node) -> bool:
        """Whether a zero becomes another constant on its way to the layers that read it, as before a batch normalisation."""
        reached, waiting = {activation}, [activation]
        while waiting:
            for user in waiting.pop().users:
                if user in reached or not self._learned(analysis, user):
                    continue
                if bool((analysis.known[user].value != 0).any()):
                    return True
                reached.add(user)
                waiting.append(user)
        return False

    def _mixed(self, analysis: Analysis, activation: fx.Node) -> str | None:
        """The first operation downstream that takes in a zeroed unit together with others."""
        reached, waiting = {activation}, [activation]
        while waiting:
            node = waiting.pop(0)
            for user in node.users:
                if is_number(user):
                    continue
                rule = rule_for(analysis, user)
                if isinstance(rule, Linear) or (isinstance(rule, Convolution) and analysis.layer(user).groups == 1):
                    continue
                if type(rule) in _MIXING or self._splits_group(analysis, rule, node, user) or self._joins(analysis, rule, node, user):
                    return self._describe(analysis, user)
                if self._learned(analysis, user) and user not in reached:
                    reached.add(user)
                    waiting.append(user)
        return None

    def _joins(self, analysis: Analysis, rule: Rule, node: fx.Node, user: fx.Node) -> bool:
        """Whether the operation lays the units beside something that has them all."""
        units_along = [dim for dim, size in enumerate(analysis.known[node].mask.shape) if size > 1]
        if isinstance(rule, Combination) and user.target is not torch.mul:
            rank = len(shape_of(user))
            shapes = [[1] * (rank - len(shape_of(read))) + list(shape_of(read)) for read in tensor_inputs(user)]
            spread = [dim + rank - len(shape_of(node)) for dim in units_along] or range(rank)
            return any(shape[dim] != shape_of(user)[dim] for shape in shapes for dim in spread)
        return False

    def _splits_group(self, analysis: Analysis, rule: Rule, node: fx.Node, user: fx.Node) -> bool:
        """Whether only a part of what is normalised together is zero."""
        if not isinstance(rule, GroupNorm):
            return False
        channels = shape_of(user)[1]
        zero = along(analysis.known[node].zero, 1, channels).reshape(cast(int, analysis.layer(user).num_groups), -1)
        return bool((zero.any(dim=1) & ~zero.all(dim=1)).any())

    def _learned(self, analysis: Analysis, node: fx.Node) -> bool:
        """Whether more is known of a node than without the zeros."""
        now, before = analysis.known.get(node), self.baseline.known.get(node)
        return now is not None and (before is None or bool((now.mask & ~before.mask).any()))

    def _who_needs(self, analysis: Analysis, activation: fx.Node, zero: Tensor) -> str:
        """The operation for which the zeros have to be there: those on the way to it only pass them on."""
        node, asked = activation, zero
        while True:
            needing = [user for user in node.users if self._asks_for(analysis, user, node, asked)]
            if not needing:
                break
            node = needing[0]
            fact = analysis.known.get(node)
            if fact is None or not self._learned(analysis, node):
                break
            before = self.baseline.known.get(node)
            asked = fact.mask if before is None else fact.mask & ~before.mask
        while isinstance(rule_for(analysis, node), Movement) and len(node.users) == 1:
            (node,) = node.users  # A view that hides which elements are zero does not keep them either.
        return "its units are needed elsewhere" if node is activation else self._describe(analysis, node)

    def _asks_for(self, analysis: Analysis, user: fx.Node, node: fx.Node, elements: Tensor) -> bool:
        part = analysis.parts.get(user, {}).get(node)
        return part is not None and bool((part & elements).any())

    def _describe(self, analysis: Analysis, node: fx.Node) -> str:
        if node.op == "output":
            return "its units are the network's outputs"
        if node.op == "call_module":
            layer = self.module.get_submodule(str(node.target))
            kind = type(layer).__name__
            if isinstance(layer, MIXING_NORMS):
                return f"{node.target} ({kind}) normalises its units together"
            if node in analysis.rigid or node in analysis.calls:
                return f"{node.target} ({kind}), which reads its units, is used in several places"
            return f"{node.target} ({kind}) needs all of its units"
        name = spelled(node.target)
        return f"'{name}' needs all of its units"


def is_fewer(before: Tensor | None, after: Tensor | None) -> bool:
    """Whether some elements that were needed before are not any more."""
    if before is None or after is before:
        return False
    return after is None or bool((before & ~after).any())
