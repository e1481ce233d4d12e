"""Gate places in any model, found by walking its graph.

Convolutions are gated at their outputs, after the norm and activation that follow; linear layers at their inputs, as in the paper, the
network's own inputs included; attention by whole heads; the last layer of a residual branch at its outputs. A place is taken only if a
trial shows that its units can really be removed.
"""

import math
import operator
from collections.abc import Callable
from typing import Literal, cast

import torch
from torch import Tensor, fx, nn

from bayesprune.attach.sites import Sites, block_of, is_depthwise
from bayesprune.attach.trial import Trial
from bayesprune.example_inputs import ExampleInputs
from bayesprune.gates.hooks import has_other_hooks
from bayesprune.graph import trace
from bayesprune.graph.layer_types import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from bayesprune.models.description import GatePlace, LeftAlone
from bayesprune.removal.analysis import shape_of, tensor_inputs
from bayesprune.removal.factors import Factors
from bayesprune.removal.rules import rule_for
from bayesprune.removal.rules.elementwise import Activation, Combination
from bayesprune.removal.rules.layers import Convolution, Linear
from bayesprune.removal.rules.mixing import Attention, Product
from bayesprune.removal.rules.movement import Movement, moved
from bayesprune.removal.rules.norms import ChannelNorm, SpatialOperation
from bayesprune.removal.status import compressed, is_along_only, on_dimension


def discover(
    model: nn.Module,
    example_inputs: ExampleInputs,
    before_norm: bool = False,
    signed: bool = False,
    chosen: Callable[[str], bool] = lambda _: True,
) -> tuple[list[GatePlace], list[LeftAlone]]:
    """The gate places of a model in network order, and the layers that are left alone.

    Args:
        model: any module whose computation can be followed.
        example_inputs: what it is called with.
        before_norm: gate convolutions right at their outputs, as in the paper.
        signed: whether the gates multiply by negative numbers too, which do not pass an activation.
        chosen: whether a layer, by its path, may be gated.
    """
    return _Discovery(model, trace(model, example_inputs), before_norm, signed, chosen).run()


class _Discovery:
    def __init__(self, model: nn.Module, module: fx.GraphModule, before_norm: bool, signed: bool, chosen: Callable[[str], bool]) -> None:
        self.model, self.module = model, module
        self.before_norm, self.signed, self.chosen = before_norm, signed, chosen
        self.trial = Trial(module)
        self.analysis = self.trial.baseline
        self.sites = Sites(model, self.analysis)
        self.factors = Factors(module)
        self.places: list[GatePlace] = []
        self.reasons: dict[str, str] = {}
        """Layers without a gate, and why; those that some gate makes smaller are struck out at the end."""
        self.touched: set[str] = set()

    def run(self) -> tuple[list[GatePlace], list[LeftAlone]]:
        for node in self.module.graph.nodes:
            if node.op != "call_module":
                continue
            layer = self.module.get_submodule(str(node.target))
            if not any(parameter.ndim > 1 for parameter in layer.parameters()):
                continue
            reason = self._refusal(node, layer)
            if reason is None:
                reason = self._linear(node, layer) if isinstance(layer, nn.Linear) else self._convolution(node, layer)
            if reason is not None:
                self.reasons.setdefault(str(node.target), reason)
        left_alone = [LeftAlone(path, reason) for path, reason in self.reasons.items() if path not in self.touched]
        return self.places, left_alone

    def _refusal(self, node: fx.Node, layer: nn.Module) -> str | None:
        """Why a layer gets no gate whatever surrounds it."""
        path = str(node.target)
        if not isinstance(layer, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)):
            return f"{type(layer).__name__} is not a layer that sparsify knows"
        if isinstance(layer, TRANSPOSED_CONVOLUTIONS) and layer.groups > 1:
            return "it is a grouped transposed convolution, whose groups sparsify cannot gate"
        if has_other_hooks(layer):
            return "hooks of another library act on it"
        if node in self.analysis.rigid:
            return "it is used in several places, or its weight is tied to another layer's"
        if not isinstance(rule_for(self.analysis, node), (Linear, Convolution)):
            return "its input has no batch dimension that sparsify can see"
        return None if self.chosen(path) else "excluded when the gates were put in"

    def _convolution(self, node: fx.Node, layer: nn.Module) -> str | None:
        if is_depthwise(layer):
            return "its channels go with those of the convolution that feeds it"
        groups, channels = cast(int, layer.groups), cast(int, layer.out_channels)
        together = [channels // groups] if groups > 1 else []
        for following in block_of(self.analysis, node)[1:]:
            norm = self.analysis.layer(following) if following.op == "call_module" else None
            if isinstance(norm, nn.GroupNorm):
                together.append(channels // norm.num_groups)
                if norm.num_groups == 1:
                    return f"{following.target} (GroupNorm) normalises its units together"
        return self._outputs(node, torch.arange(channels) // math.lcm(*together), 1)

    def _outputs(self, node: fx.Node, owner: Tensor, channel_dim: Literal[1, -1]) -> str | None:
        """Gate the outputs of a layer; the reason if that is not possible."""
        path = str(node.target)
        block = [node] if self.before_norm else block_of(self.analysis, node)
        rank = len(shape_of(node))
        status = on_dimension(owner, channel_dim % rank, rank)
        like = torch.where(status % 2 == 0, 1.0, -1.0 if self.signed else 0.5).double()
        sites = self.sites.along(block)
        if not sites:
            return "no module of its own stands where the gate would be"
        # The last place from which factors can leave for the weights, so that no multiplication is left once units are removed.
        place, side, activation = next((site for site in sites if self.factors.can_move(site[2], like)), sites[0])
        obstacle = self.trial.obstacle(activation, status)
        if obstacle is not None:
            return obstacle
        units = int(owner.max()) + 1
        found = GatePlace(place, cast(Literal["input", "output"], side), units, path, "outputs", channel_dim, _groups(owner))
        self._enter(found, activation, status)
        return None

    def _linear(self, node: fx.Node, layer: nn.Linear) -> str | None:
        reason = self._inputs(node, layer)
        # The last layer of a residual branch: what it adds to the sum can be less than the whole.
        ends = block_of(self.analysis, node)[-1]
        users = list(ends.users)
        summed = len(users) == 1 and users[0].target is torch.add and isinstance(rule_for(self.analysis, users[0]), Combination)
        if summed and all(shape_of(read) == shape_of(ends) for read in tensor_inputs(users[0])):
            self._outputs(node, torch.arange(layer.out_features), -1)
        return reason

    def _inputs(self, node: fx.Node, layer: nn.Linear) -> str | None:
        """Gate the inputs of a linear layer; the reason if that is not possible."""
        (read,) = tensor_inputs(node)
        path, attention = str(node.target), self._attention_of(str(node.target))
        source = self._source(read)
        kind = rule_for(self.analysis, source)
        rank = len(shape_of(read))
        if attention is None and self.sites.output(node) is None:
            return "it is not called as a module, so that no gate can be hooked to it"
        if attention is None and (not node.args or node.args[0] is not read):
            return "it is called with a keyword, and a gate on its input needs a positional argument"
        owner = torch.arange(layer.in_features)
        if isinstance(kind, (Attention, Product)):
            heads = self._heads(source, read)
            if heads is None:
                return "its inputs come out of attention, but not head by head"
            owner = heads
        if source.op == "placeholder":
            status = on_dimension(owner, rank - 1, rank)
            self._enter(GatePlace(path, "input", layer.in_features, path, "inputs", -1), None, status)
            self.touched.add(path)
            return None
        if owner.equal(torch.arange(layer.in_features)) and self._is_flattened(source, read):
            self._enter(GatePlace(path, "input", layer.in_features, path, "inputs", -1), None, owner)
            self.touched.add(path)
            return None
        if isinstance(kind, Convolution) and str(source.target) in self._controlled():
            self.touched.add(path)
            return None
        if not isinstance(kind, (Linear, Convolution, Attention, Product)):
            return _origin(source)
        status = on_dimension(owner, rank - 1, rank)
        obstacle = self.trial.obstacle(read, status)
        if obstacle is not None:
            return obstacle
        groups = _groups(owner)
        place = GatePlace(attention or path, "head" if attention else "input", int(owner.max()) + 1, path, "inputs", -1, groups)
        self._enter(place, read, status)
        return None

    def _enter(self, place: GatePlace, activation: fx.Node | None, owner: Tensor) -> None:
        self.places.append(place)
        self.touched.add(place.controls)
        if activation is not None:
            self.touched |= self.trial.touched(activation, owner)

    def _controlled(self) -> set[str]:
        return {place.controls for place in self.places if place.controls_dim == "outputs"}

    def _attention_of(self, path: str) -> str | None:
        """The attention layer whose output projection this is."""
        owner, _, name = path.rpartition(".")
        if name.startswith("out_proj") and owner:
            module = dict(self.model.named_modules()).get(owner)
            if type(module) is nn.MultiheadAttention:
                return owner
        return None

    def _source(self, node: fx.Node) -> fx.Node:
        """What computes an activation, seen through whatever treats its elements one by one."""
        while True:
            rule = rule_for(self.analysis, node)
            reads = tensor_inputs(node)
            if node.target is torch.mul and len(reads) == 2:
                linear = [each for each in map(self._source, reads) if isinstance(rule_for(self.analysis, each), Linear)]
                if not linear:
                    return node
                node = linear[0]
                continue
            averaged = getattr(node.target, "__name__", "") == "mean"
            if len(reads) != 1 or not (averaged or isinstance(rule, (Activation, ChannelNorm, Movement, SpatialOperation))):
                return node
            node = reads[0]

    def _is_flattened(self, source: fx.Node, read: fx.Node) -> bool:
        """Whether channels and positions, or positions and features, have become one dimension: units finer than those of any layer."""
        return len(shape_of(read)) == 2 < len(shape_of(source)) and shape_of(read)[1] > max(shape_of(source)[1], shape_of(source)[-1])

    def _heads(self, source: fx.Node, read: fx.Node) -> Tensor | None:
        """The head that each input feature comes from; None if features of several heads are mixed."""
        shape = shape_of(source)
        width, features = shape[-1], shape_of(read)[-1]
        if features % width:
            return None
        heads = features // width
        leading = torch.arange(torch.Size(shape[:-2]).numel()) % heads
        labels = leading.reshape(*shape[:-2], 1, 1).expand(shape)
        chain: list[fx.Node] = []
        node = read
        while node is not source:
            chain.insert(0, node)
            node = tensor_inputs(node)[0]
        for step in chain:
            if isinstance(rule_for(self.analysis, step), Movement):
                labels = moved(self.analysis, step, labels)
        status = compressed(labels)
        if not is_along_only(status, -1):
            return None
        return status.flatten().expand(features).clone() if heads > 1 else torch.zeros(features, dtype=torch.int64)


def _groups(owner: Tensor) -> tuple[int, ...] | None:
    """The units of channels, or None where each channel is one."""
    return None if torch.equal(owner, torch.arange(len(owner))) else tuple(owner.tolist())


def _origin(source: fx.Node) -> str:
    """Why the inputs of a layer, coming from here, are no units of their own."""
    if source.op == "call_module":
        return f"its inputs come from {source.target}, which needs all of its own"
    while source.target is operator.getitem:
        source = source.all_input_nodes[0]
        if source.op == "call_module":
            return _origin(source)
    name = getattr(source.target, "__name__", str(source.target))
    meaning = {
        "add": "its inputs are a residual stream, the sum of several branches",
        "cat": "its inputs are the outputs of several layers side by side",
    }
    return meaning.get(name, f"its inputs come from '{name}', whose results are not units")
