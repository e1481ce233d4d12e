"""Gates become part of the weights.

A gate that does not depend on the input multiplies every unit by a number. That number moves into the layer that computes the unit or
into the layers that read it, through whatever lies between and lets factors pass; pruned units leave zeros there, which removal takes out.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from bayesprune.gates import Gate
from bayesprune.gates.hooks import without_gates
from bayesprune.graph.vocabulary import DROPOUTS, HOMOGENEOUS, MAX_POOLINGS, POOLINGS, TRANSPOSED_CONVOLUTIONS, UPSAMPLINGS, function_of
from bayesprune.removal.analysis import Analysis, shape_of, tensor_inputs
from bayesprune.removal.rules import rule_for
from bayesprune.removal.rules.layers import Convolution, Linear
from bayesprune.removal.rules.movement import Movement, moved, numbered
from bayesprune.removal.rules.norms import ChannelNorm, MixingNorm
from bayesprune.removal.status import compressed, is_along_only, on_dimension


class DoesNotPassError(Exception):
    """Something between gate and weights does not let the factors pass."""


Change = Callable[[], None]


def factors(gate: Gate, rank: int) -> Tensor:
    """What a gate multiplies each element by in the naive approximation, as a status of its input."""
    mask = gate.mean_mask(torch.empty(0)).detach().cpu().double()
    return spread(gate, mask, rank)


def spread(gate: Gate, per_unit: Tensor, rank: int) -> Tensor:
    """A vector over units as a status of the gate's input."""
    units = gate.units
    if units.groups is not None:
        per_unit = per_unit[units.groups.cpu()]
        if units.groups.ndim > 1:
            return per_unit.unsqueeze(0)
    return on_dimension(per_unit, units.channel_dim % rank, rank)


class Folding:
    """Moves the factors of gates into the layers of a traced graph, which get new weights; the model's own are not touched."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.analysis = Analysis(module)

    def fold(self, gate: fx.Node, scale: Tensor) -> bool:
        """Take a gate out of the graph. False if its factors had to stay behind as a multiplication."""
        (read,) = tensor_inputs(gate)
        attempts = [(self._into_readers, gate), (self._into_writer, read)]
        users = list(gate.users)
        if not (len(users) == 1 and isinstance(rule_for(self.analysis, users[0]), (Linear, Convolution))):
            attempts.reverse()
        for attempt, start in attempts:
            try:
                changes = attempt(start, scale)
            except DoesNotPassError:
                continue
            for change in changes:
                change()
            gate.replace_all_uses_with(read)
            self.module.graph.erase_node(gate)
            return True
        self._multiply(gate, read, scale)
        return False

    def _multiply(self, gate: fx.Node, read: fx.Node, scale: Tensor) -> None:
        name = f"mask_of_{gate.name}"
        parameters = [*self.module.parameters(), *self.module.buffers()]
        device = parameters[0].device if parameters else torch.device("cpu")
        self.module.register_buffer(name, scale.to(device, read.meta["dtype"]))
        with self.module.graph.inserting_before(gate):
            mask = self.module.graph.get_attr(name)
            mask.meta = {"constant": True, "shape": tuple(scale.shape), "dtype": read.meta["dtype"], "varies": frozenset()}
            product = self.module.graph.call_function(torch.mul, (read, mask))
            product.meta = dict(gate.meta)
        gate.replace_all_uses_with(product)
        self.module.graph.erase_node(gate)

    def _into_readers(self, node: fx.Node, scale: Tensor) -> list[Change]:
        """Forward: into the columns of every layer that reads the node."""
        changes: list[Change] = []
        for user in node.users:
            rule = rule_for(self.analysis, user)
            if isinstance(rule, Linear) and is_along_only(scale, -1):
                changes.append(self._scaled(user, weight=scale.flatten()))
            elif isinstance(rule, Convolution) and is_along_only(scale, 1):
                changes.append(self._scaled(user, weight=self._columns(user, scale.flatten())))
            elif self._lets_pass(user, scale):
                changes += self._into_readers(user, self._pushed(user, scale))
            else:
                raise DoesNotPassError
        if not changes:
            raise DoesNotPassError
        return changes

    def _into_writer(self, node: fx.Node, scale: Tensor) -> list[Change]:
        """Backward: into the rows of the layer that computes the node, which nobody else may read."""
        if len(node.users) != 1:
            raise DoesNotPassError
        rule = rule_for(self.analysis, node)
        rank = len(shape_of(node))
        if isinstance(rule, Linear) and is_along_only(scale, -1):
            return [self._scaled(node, weight=scale.reshape(-1, 1), bias=scale.flatten())]
        if isinstance(rule, Convolution) and is_along_only(scale, 1):
            return [self._scaled(node, weight=self._rows(node, scale.flatten()), bias=scale.flatten())]
        layer = self.analysis.layer(node) if node.op == "call_module" else None
        if isinstance(rule, ChannelNorm) and not isinstance(layer, nn.PReLU) and is_along_only(scale, 1):
            return [self._norm(node, scale.flatten())]
        if isinstance(rule, MixingNorm):
            weight = getattr(layer, "weight", None)
            if is_along_only(scale, 1 if isinstance(layer, nn.GroupNorm) else rank - 1) and weight is not None and weight.ndim == 1:
                return [self._norm(node, scale.flatten())]
        if self._lets_pass(node, scale):
            return self._into_writer(tensor_inputs(node)[0], self._pulled(node, scale))
        if node.target is torch.mul and len(tensor_inputs(node)) == 2:
            return self._into_factor(node, scale)
        raise DoesNotPassError

    def _into_factor(self, node: fx.Node, scale: Tensor) -> list[Change]:
        for factor in tensor_inputs(node):
            if shape_of(factor) == shape_of(node):
                try:
                    return self._into_writer(factor, scale)
                except DoesNotPassError:
                    continue
        raise DoesNotPassError

    def _lets_pass(self, node: fx.Node, scale: Tensor) -> bool:
        """Whether f(s x) = s f(x) for these factors."""
        if len(tensor_inputs(node)) != 1 or node in self.analysis.rigid:
            return False
        rule = rule_for(self.analysis, node)
        if isinstance(rule, Movement):
            return True
        not_negative = bool((scale >= 0).all())
        if node.op == "call_module":
            layer = self.analysis.layer(node)
            if isinstance(layer, (nn.Identity, *DROPOUTS[:4])):
                return True
            if isinstance(layer, (nn.ReLU, nn.LeakyReLU)):
                return not_negative
            by_position = all(size == 1 for size in scale.shape[2:])
            return isinstance(layer, (*POOLINGS, *UPSAMPLINGS)) and by_position and (not_negative or not isinstance(layer, MAX_POOLINGS))
        function = function_of(node.op, node.target)
        return function is not None and function.name in HOMOGENEOUS and not_negative

    def _pushed(self, node: fx.Node, scale: Tensor) -> Tensor:
        if not isinstance(rule_for(self.analysis, node), Movement):
            return scale
        return compressed(moved(self.analysis, node, scale.expand(shape_of(tensor_inputs(node)[0]))))

    def _pulled(self, node: fx.Node, scale: Tensor) -> Tensor:
        if not isinstance(rule_for(self.analysis, node), Movement):
            return scale
        (read,) = tensor_inputs(node)
        numbers = moved(self.analysis, node, numbered(read))
        if numbers.numel() != numbered(read).numel():
            raise DoesNotPassError
        before = torch.empty(numbers.numel(), dtype=torch.float64)
        before[numbers.flatten()] = scale.expand(shape_of(node)).flatten()
        return compressed(before.reshape(shape_of(read)))

    def _rows(self, node: fx.Node, scale: Tensor) -> Tensor:
        layer = self.analysis.layer(node)
        weight = cast(Tensor, layer.weight)
        if not isinstance(layer, TRANSPOSED_CONVOLUTIONS):
            return on_dimension(scale, 0, weight.ndim)
        per_group = scale.expand(weight.shape[1] * layer.groups).reshape(layer.groups, -1)
        spread_out = per_group.repeat_interleave(weight.shape[0] // layer.groups, dim=0)
        return spread_out.reshape(*spread_out.shape, *[1] * (weight.ndim - 2))

    def _columns(self, node: fx.Node, scale: Tensor) -> Tensor:
        layer = self.analysis.layer(node)
        weight = cast(Tensor, layer.weight)
        groups = cast(int, layer.groups)
        scale = scale.expand(cast(int, layer.in_channels))
        if isinstance(layer, TRANSPOSED_CONVOLUTIONS):
            return on_dimension(scale, 0, weight.ndim)
        columns = scale.reshape(groups, -1).repeat_interleave(weight.shape[0] // groups, dim=0)
        return columns.reshape(*columns.shape, *[1] * (weight.ndim - 2))

    def _norm(self, node: fx.Node, scale: Tensor) -> Change:
        layer = self.analysis.layer(node)
        if getattr(layer, "weight", None) is None:
            raise DoesNotPassError
        return self._scaled(node, weight=scale, bias=scale)

    def _scaled(self, node: fx.Node, **scales: Tensor) -> Change:
        """Give the node a layer with scaled parameters."""

        def change() -> None:
            path = str(node.target)
            layer = _plain(self.module.get_submodule(path))
            for name, scale in scales.items():
                parameter = getattr(layer, name, None)
                if parameter is None:
                    continue
                value = (parameter.detach().double() * scale.to(parameter.device)).to(parameter.dtype)
                layer._parameters[name] = nn.Parameter(value, requires_grad=parameter.requires_grad)
            self.module.set_submodule(path, layer)

        return change


def _plain(layer: nn.Module) -> nn.Module:
    """A copy of a layer whose parameters can be replaced; where they are computed (parametrised), what they are now."""
    copied = without_gates(layer)
    copied.__dict__["_parameters"] = dict(layer._parameters)
    if parametrize.is_parametrized(layer):
        computed = list(layer.parametrizations)  # type: ignore[arg-type]
        copied.__class__ = type(layer).__mro__[1]
        copied.__dict__["_modules"] = {name: child for name, child in layer._modules.items() if name != "parametrizations"}
        for name in computed:
            copied._parameters[name] = nn.Parameter(getattr(layer, name).detach())
    return copied
