"""Input-dependent gates written out in plain operations, so that the network that is left needs no part of bayesprune.

The mask E[z|x] = E[pi] clamp(scale (x - mu) / sigma + shift) of a unit is a mean, a batch normalisation with E[pi] in its scale and shift,
and a bound from above and below; units whose E[pi] is under the threshold get an exact zero, which removal takes out.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bayesprune.errors import InputError
from bayesprune.gates.dependent_beta_bernoulli import PHI_EDGE, DependentBetaBernoulli
from bayesprune.removal.analysis import shape_of, tensor_inputs


def write_out(module: fx.GraphModule, node: fx.Node, gate: DependentBetaBernoulli) -> None:
    """Replace the node of an input-dependent gate by the operations that it consists of."""
    with module.graph.inserting_before(node):
        product = _Writer(module, node, gate).product()
    node.replace_all_uses_with(product)
    module.graph.erase_node(node)


class _Writer:
    def __init__(self, module: fx.GraphModule, node: fx.Node, gate: DependentBetaBernoulli) -> None:
        self.module, self.node, self.gate = module, node, gate
        (self.read,) = tensor_inputs(node)
        self.rank = len(shape_of(self.read))
        if self.rank < 2:
            raise InputError("an input-dependent gate looks at batches: give an example with a first dimension for the inputs of a batch")

    def product(self) -> fx.Node:
        gate, read = self.gate, self.read
        pi = torch.where(gate.keep(), gate.keep_probability(), 0.0).detach()
        norm = self._layer("statistics", _statistics(gate, pi))
        activation = self._as(self._mean(), pi.dtype)
        probability = self.module.graph.call_module(norm, (activation,))
        bounded = self._call(torch.minimum, probability, self._constant("probability", pi * (1.0 - PHI_EDGE)))
        # What the clamp raises to its lower edge is under the threshold, and zero either way.
        mask = self._call(F.threshold, bounded, threshold=gate.threshold, value=0.0)
        return self._call(torch.mul, read, self._spread(self._as(mask, read.meta["dtype"])))

    def _as(self, node: fx.Node, dtype: torch.dtype) -> fx.Node:
        """The result in another type, where gates and activations differ in theirs."""
        return node if self.read.meta["dtype"] == self.gate.scale.dtype else self.module.graph.call_method("to", (node,), {"dtype": dtype})

    def _mean(self) -> fx.Node:
        """The average of each unit's elements, sample by sample."""
        units = self.gate.units
        if units.groups is not None and units.groups.ndim > 1:
            owners = units.groups.expand(shape_of(self.read)[1:]).flatten()
            return self._averaged(self._call(torch.flatten, self.read, start_dim=1), owners)
        channel = units.channel_dim % self.rank
        others = tuple(dim for dim in range(1, self.rank) if dim != channel)
        means = self._call(torch.mean, self.read, dim=others) if others else self.read
        return means if units.groups is None else self._averaged(means, units.groups)

    def _averaged(self, elements: fx.Node, owners: Tensor) -> fx.Node:
        """The averages of elements over their units: a linear layer, which loses units like any other."""
        shares = F.one_hot(owners, self.gate.num_units).T.to(self.read.meta["dtype"])
        layer = nn.Linear(len(owners), self.gate.num_units, bias=False, device="meta")
        layer.weight = nn.Parameter(shares / shares.sum(dim=1, keepdim=True).clamp(min=1.0), requires_grad=False)
        return self.module.graph.call_module(self._layer("average", layer), (elements,))

    def _spread(self, mask: fx.Node) -> fx.Node:
        """The mask in a shape that multiplies the input."""
        units = self.gate.units
        if units.groups is not None:
            index = self._constant("owner", units.groups.flatten())
            mask = self._call(torch.index_select, mask, dim=1, index=index)
            if units.groups.ndim > 1:
                return self._call(torch.unflatten, mask, dim=1, sizes=tuple(units.groups.shape))
        for _ in range(self.rank - 2):
            mask = self._call(torch.unsqueeze, mask, dim=1 if units.channel_dim == -1 else -1)
        return mask

    def _call(self, function: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        return self.module.graph.call_function(function, arguments, keywords)

    def _constant(self, name: str, value: Tensor) -> fx.Node:
        path = f"{self.node.name}_{name}"
        self.module.register_buffer(path, value.detach().clone())
        node = self.module.graph.get_attr(path)
        node.meta["constant"] = name == "probability"
        return node

    def _layer(self, name: str, layer: nn.Module) -> str:
        path = f"{self.node.name}_{name}"
        self.module.add_submodule(path, layer)
        return path


def _statistics(gate: DependentBetaBernoulli, pi: Tensor) -> nn.BatchNorm1d:
    """The normalisation behind phi, with E[pi] as part of its scale and shift."""
    norm = nn.BatchNorm1d(gate.num_units, momentum=gate.momentum, device=gate.scale.device, dtype=gate.scale.dtype)
    state = {"weight": gate.scale * pi, "bias": gate.shift * pi, "running_mean": gate.running_mean, "running_var": gate.running_var}
    norm.load_state_dict({name: tensor.detach() for name, tensor in state.items()}, strict=False)
    return norm.eval()
