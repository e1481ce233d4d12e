"""Factors of units become part of the weights.

A number that multiplies every element of a unit moves into the layer that computes the unit or into the layers that read it, through
whatever lies between and lets factors pass. A factor of zero leaves zeros there, which removal takes out.
"""

from collections.abc import Callable
from typing import TypeAlias, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from bayesprune.gates import Gate
from bayesprune.gates.hooks import without_gates
from bayesprune.graph.binding import function_of
from bayesprune.graph.layer_types import (
    DROPOUTS,
    MAX_POOLINGS,
    POOLINGS,
    TRANSPOSED_CONVOLUTIONS,
    UPSAMPLINGS,
)
from bayesprune.graph.vocabulary import HOMOGENEOUS
from bayesprune.removal.analysis import Analysis, is_number, shape_of, tensor_inputs
from bayesprune.removal.rules import rule_for
from bayesprune.removal.rules.layers import Convolution, Linear
from bayesprune.removal.rules.mixing import Reduction
from bayesprune.removal.rules.movement import Movement, moved, numbered
from bayesprune.removal.rules.norms import ChannelNorm, MixingNorm, SpatialOperation
from bayesprune.removal.sharing import sharing
from bayesprune.removal.status import compressed, is_along_only, on_dimension

Change: TypeAlias = Callable[[], None]


class DoesNotPassError(Exception):
    """Something between factors and weights does not let them pass."""


class Factors:
    """Moves factors into the layers of a traced graph, which get new weights; those of the model are not touched.

    Args:
        module: the traced network.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.analysis = Analysis(module, frozenset(sharing(module)[1]))  # A factor of one call is no factor of another call's weights.

    def can_move(self, activation: fx.Node, scale: Tensor) -> bool:
        """Whether factors like these on an activation, for all who read it, could leave it for the weights around it."""
        return self._changes(activation, activation, scale) is not None

    def move(self, multiplication: fx.Node, scale: Tensor) -> bool:
        """Take a multiplication by these factors out of the graph. False if it had to stay, as a product with a constant."""
        (read,) = tensor_inputs(multiplication)
        changes = self._changes(read, multiplication, scale) if len(_readers(read)) == 1 else self._readers_only(multiplication, scale)
        if changes is None:
            self._multiply(multiplication, read, scale)
            return False
        for change in changes:
            change()
        multiplication.replace_all_uses_with(read)
        self.module.graph.erase_node(multiplication)
        return True

    def _changes(self, written: fx.Node, read: fx.Node, scale: Tensor) -> list[Change] | None:
        """What to do to the weights so that ``written`` comes out multiplied wherever ``read`` is used; None if nothing does it."""
        attempts: list[tuple[Callable[[fx.Node, Tensor], list[Change]], fx.Node]]
        attempts = [(self._into_readers, read), (self._into_layer, written)]
        users = _readers(read)
        if not (len(users) == 1 and isinstance(rule_for(self.analysis, users[0]), (Linear, Convolution))):
            attempts.reverse()
        for attempt, start in attempts:
            try:
                return attempt(start, scale)
            except DoesNotPassError:
                continue
        return None

    def _readers_only(self, multiplication: fx.Node, scale: Tensor) -> list[Change] | None:
        try:
            return self._into_readers(multiplication, scale)
        except DoesNotPassError:
            return None

    def _multiply(self, multiplication: fx.Node, read: fx.Node, scale: Tensor) -> None:
        name = f"mask_of_{multiplication.name}"
        device = next(iter([*self.module.parameters(), *self.module.buffers()]), torch.empty(0)).device
        self.module.register_buffer(name, scale.to(device, read.meta["dtype"]))
        with self.module.graph.inserting_before(multiplication):
            mask = self.module.graph.get_attr(name)
            mask.meta = {"constant": True, "shape": tuple(scale.shape), "dtype": read.meta["dtype"], "varies": frozenset()}
            product = self.module.graph.call_function(torch.mul, (read, mask))
            product.meta = dict(multiplication.meta)
        multiplication.replace_all_uses_with(product)
        self.module.graph.erase_node(multiplication)

    def _into_readers(self, node: fx.Node, scale: Tensor) -> list[Change]:
        """Forward: into the columns of every layer that reads the node."""
        changes: list[Change] = []
        for user in _readers(node):
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
        """Backward through a node that nobody else may read."""
        if len(_readers(node)) != 1:
            raise DoesNotPassError
        return self._into_layer(node, scale)

    def _into_layer(self, node: fx.Node, scale: Tensor) -> list[Change]:
        """Into the rows of the layer that computes the node, or further back."""
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
        if self._lets_pass(node, self._pulled(node, scale) if isinstance(rule, Reduction) else scale):
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
        if isinstance(rule, Reduction):
            dims, _ = rule.dims(node)
            return rule.is_linear(node) and all(scale.shape[dim] == 1 for dim in dims)
        not_negative = bool((scale >= 0).all())
        if node.op == "call_module":
            layer = self.analysis.layer(node)
            if isinstance(layer, (nn.Identity, *DROPOUTS[:4])) or (isinstance(layer, Gate) and not layer.depends_on_input):
                return True
            if isinstance(layer, (nn.ReLU, nn.LeakyReLU)):
                return not_negative
            by_position = all(size == 1 for size in scale.shape[2:])
            linear = not_negative or not isinstance(layer, MAX_POOLINGS)
            return isinstance(rule, SpatialOperation) and isinstance(layer, (*POOLINGS, *UPSAMPLINGS)) and by_position and linear
        function = function_of(node.op, node.target)
        return function is not None and function.name in HOMOGENEOUS and not_negative

    def _pushed(self, node: fx.Node, scale: Tensor) -> Tensor:
        rule = rule_for(self.analysis, node)
        if isinstance(rule, Reduction):
            dims, keep = rule.dims(node)
            return scale if keep else scale.mean(dim=dims)
        if not isinstance(rule_for(self.analysis, node), Movement):
            return scale
        return compressed(moved(self.analysis, node, scale.expand(shape_of(tensor_inputs(node)[0]))))

    def _pulled(self, node: fx.Node, scale: Tensor) -> Tensor:
        rule = rule_for(self.analysis, node)
        if isinstance(rule, Reduction):
            return rule.spread_back(node, scale)
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


def _readers(node: fx.Node) -> list[fx.Node]:
    """Who reads elements of a node's result, rather than asking for its size or device."""
    return [user for user in node.users if not is_number(user)]


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
