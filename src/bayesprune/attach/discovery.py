"""Gate places in any model, found by walking its graph.

Convolutions are gated at their outputs, after the norm and activation that follow; linear layers at their inputs, as in the paper, the
network's own inputs included; attention by whole heads; the last layer of a residual branch at its outputs. Where several layers read what
a linear layer computes, or no gate on the inputs of another layer makes it compute less, it is gated at its outputs. A place is taken only
if a trial shows that its units can really be removed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, cast

import torch
from torch import Tensor, fx, nn

from bayesprune.attach import reasons, units
from bayesprune.attach.sites import Sites, block_of, is_depthwise
from bayesprune.attach.sources import Sources
from bayesprune.attach.trial import Trial
from bayesprune.example_inputs import ExampleInputs
from bayesprune.gates.hooks import has_other_hooks
from bayesprune.graph import trace
from bayesprune.graph.layer_types import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from bayesprune.models.description import GatePlace, LeftAlone
from bayesprune.removal.analysis import shape_of, tensor_inputs
from bayesprune.removal.factors import Factors
from bayesprune.removal.rules import rule_for
from bayesprune.removal.rules.elementwise import Combination
from bayesprune.removal.rules.layers import Convolution, Linear
from bayesprune.removal.rules.mixing import Attention, Product, Softmax
from bayesprune.removal.status import on_dimension


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
    module = trace(model, example_inputs)
    return _Discovery(model, module, Sites(model, module, example_inputs), before_norm, signed, chosen).run()


class _Discovery:
    def __init__(
        self, model: nn.Module, module: fx.GraphModule, sites: Sites, before_norm: bool, signed: bool, chosen: Callable[[str], bool]
    ) -> None:
        self.model, self.module, self.sites = model, module, sites
        self.paths = {path for path, _ in model.named_modules(remove_duplicate=False)}
        self.before_norm, self.signed, self.chosen = before_norm, signed, chosen
        self.trial = Trial(module)
        self.analysis = self.trial.baseline
        self.sources = Sources(self.analysis)
        self.factors = Factors(module)
        self.places: list[GatePlace] = []
        self.reasons: dict[str, str] = {}
        """Layers without a gate, and why; those that some gate makes smaller are struck out at the end."""
        self.fewer_outputs: set[str] = set()
        self.fewer_inputs: set[str] = set()

    def run(self) -> tuple[list[GatePlace], list[LeftAlone]]:
        allowed = []
        for node in self.module.graph.nodes:
            if node.op != "call_module":
                continue
            layer = self.module.get_submodule(str(node.target))
            if not any(parameter.ndim > 1 for parameter in layer.parameters()):
                continue
            reason = self._refusal(node, layer)
            if reason is None:
                allowed.append((node, layer))
                reason = self._linear(node, layer) if isinstance(layer, nn.Linear) else self._convolution(node, layer)
            if reason is not None:
                self.reasons.setdefault(str(node.target), reason)
        for node, layer in allowed:
            if isinstance(layer, nn.Linear) and str(node.target) not in self.fewer_outputs:
                self._linear_outputs(node)
        order = {str(node.target): position for position, node in enumerate(self.module.graph.nodes)}
        self.places.sort(key=lambda place: (order[place.controls], place.controls_dim == "outputs"))
        left_alone = [LeftAlone(path, reason) for path, reason in self.reasons.items() if not self._is_smaller(path)]
        return self.places, [*left_alone, *reasons.about_unseen(self.model, self.module, self.fewer_outputs)]

    def _is_smaller(self, path: str) -> bool:
        """Whether some gate makes a layer smaller where its reason says that none does: reasons of linear layers speak of their inputs."""
        gated = any(place.controls == path for place in self.places)
        is_linear = isinstance(self.module.get_submodule(path), nn.Linear)
        return gated or path in self.fewer_outputs or (is_linear and path in self.fewer_inputs)

    def _refusal(self, node: fx.Node, layer: nn.Module) -> str | None:
        """Why a layer gets no gate whatever surrounds it."""
        path = str(node.target)
        if not isinstance(layer, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS)):
            return f"{type(layer).__name__} is not a layer that sparsify knows"
        if layer.weight.is_complex():
            return "its weights are complex numbers"
        if isinstance(layer, TRANSPOSED_CONVOLUTIONS) and layer.groups > 1:
            return "it is a grouped transposed convolution, whose groups sparsify cannot gate"
        if has_other_hooks(layer):
            return "hooks of another library act on it"
        if node in self.analysis.rigid or node in self.analysis.calls:
            return "it is used in several places, or its weight is tied to another layer's"
        if not isinstance(rule_for(self.analysis, node), (Linear, Convolution)):
            return "its input has no batch dimension that sparsify can see"
        return None if self.chosen(path) else reasons.NOT_CHOSEN

    def _convolution(self, node: fx.Node, layer: nn.Module) -> str | None:
        if is_depthwise(layer):
            source = self.sources.of(tensor_inputs(node)[0])
            if isinstance(rule_for(self.analysis, source), (Linear, Convolution)):
                return f"its channels go with those of {source.target}, which feeds it"
            if str(node.target) in self.fewer_outputs:
                return None
        groups, channels = cast(int, layer.groups), cast(int, layer.out_channels)
        together = [channels // groups] if groups > 1 else []
        for following in block_of(self.analysis, node)[1:]:
            norm = self.analysis.layer(following) if following.op == "call_module" else None
            if isinstance(norm, nn.GroupNorm):
                together.append(channels // norm.num_groups)
                if norm.num_groups == 1:
                    return f"{following.target} (GroupNorm) normalises its units together"
        return self._outputs(node, torch.arange(channels) // math.lcm(*together), 1)

    def _outputs(self, node: fx.Node, owner: Tensor, channel_dim: Literal[1, -1], readers: Sequence[str] = ()) -> str | None:
        """Gate the outputs of a layer, so that it and these readers become smaller; the reason if that is not possible."""
        path = str(node.target)
        if path not in self.paths:
            return reasons.about_weight(self.model, self.module.get_submodule(path))
        block = [node] if self.before_norm else block_of(self.analysis, node)
        count = int(owner.max()) + 1
        # Features of a linear layer may lie in any order: numbered at random, no regular pattern lets the trial succeed.
        numbers = torch.randperm(count, generator=torch.Generator().manual_seed(0)) if channel_dim == -1 else torch.arange(count)

        def status_of(activation: fx.Node) -> Tensor:
            rank = len(shape_of(activation))
            return on_dimension(numbers[owner], channel_dim % rank, rank)

        def can_move(activation: fx.Node) -> bool:
            like = torch.where(status_of(activation) % 2 == 0, 1.0, -1.0 if self.signed else 0.5).double()
            return self.factors.can_move(activation, like)

        sites = [site for site in self.sites.along(block) if shape_of(site[2])[channel_dim] == len(owner)]
        if not sites:
            return "no module of its own stands where the gate would be"
        # The last place from which factors can leave for the weights, so that no multiplication is left once units are removed.
        place, side, activation = next((site for site in sites if can_move(site[2])), sites[0])
        status = status_of(activation)
        obstacle = self.trial.obstacle(activation, status)
        if obstacle is not None:
            return obstacle
        fewer_outputs, fewer_inputs = self.trial.smaller(activation, status)
        if channel_dim == -1 and not (path in fewer_outputs and fewer_inputs.issuperset(readers)):
            return "its units are needed in spite of the gate"
        found = GatePlace(place, cast(Literal["input", "output"], side), count, path, "outputs", channel_dim, _groups(owner))
        self._enter(found, activation, status)
        return None

    def _linear(self, node: fx.Node, layer: nn.Linear) -> str | None:
        reason = self._inputs(node, layer)
        # The last layer of a residual branch: what it adds to the sum can be less than the whole.
        ends = block_of(self.analysis, node)[-1]
        users = list(ends.users)
        summed = len(users) == 1 and users[0].target is torch.add and isinstance(rule_for(self.analysis, users[0]), Combination)
        summed = summed and all(shape_of(read) == shape_of(ends) for read in tensor_inputs(users[0]))
        readers = self._shared_by(node)
        if summed or readers:
            self._outputs(node, torch.arange(layer.out_features), -1, readers)
        return reason

    def _shared_by(self, node: fx.Node) -> list[str]:
        """The layers that read the units of a layer, if they are several and linear ones among them.

        Gates on the inputs of each would all have to prune a unit before it could leave.
        """
        users = [user for user, _ in self.sources.reads(node) if isinstance(rule_for(self.analysis, user), (Linear, Convolution))]
        has_linear = any(isinstance(rule_for(self.analysis, user), Linear) for user in users)
        return [str(user.target) for user in users] if len(users) > 1 and has_linear else []

    def _linear_outputs(self, node: fx.Node) -> None:
        """Gate the outputs of a linear layer that no other gate makes fewer, if that is possible."""
        if any(isinstance(rule_for(self.analysis, user), Softmax) for user, _ in self.sources.reads(node)):
            return  # A unit at zero would not be out of the competition, but have a constant part in it.
        for owner in units.of_outputs(self.sources, node):
            if self._outputs(node, owner, -1) is None:
                return

    def _inputs(self, node: fx.Node, layer: nn.Linear) -> str | None:
        """Gate the inputs of a linear layer; the reason if that is not possible."""
        (read,) = tensor_inputs(node)
        path, attention = str(node.target), self._attention_of(str(node.target))
        source = self.sources.of(read)
        kind = rule_for(self.analysis, source)
        if attention is None and not self.sites.is_given(node):
            return "its inputs are not those of a module that is called once, so that no gate can be hooked to it"
        if attention is None and (not node.args or node.args[0] is not read):
            return "it is called with a keyword, and a gate on its input needs a positional argument"
        owners = [torch.arange(layer.in_features)]
        if isinstance(kind, (Attention, Product)):
            owners = units.of_products(self.sources, read)
            if not owners:
                return "its inputs come out of attention, but not head by head"
        elif source.op == "placeholder" or (units.is_flattened(source, read) and not self._stands_in(source, path)):
            self._enter(GatePlace(path, "input", layer.in_features, path, "inputs", -1), None, owners[0])
            return None
        elif not isinstance(kind, (Linear, Convolution)):
            return reasons.about_inputs(self.module, source)
        elif self._is_controlled(source, path):
            return None
        obstacle = None
        for owner in owners:
            status = on_dimension(owner, len(shape_of(read)) - 1, len(shape_of(read)))
            obstacle = self.trial.obstacle(read, status)
            if obstacle is None:
                count, groups = int(owner.max()) + 1, _groups(owner)
                self._enter(GatePlace(attention or path, "head" if attention else "input", count, path, "inputs", -1, groups), read, status)
                return None
        return obstacle

    def _enter(self, place: GatePlace, activation: fx.Node | None, owner: Tensor) -> None:
        self.places.append(replace(place, inputs_first=place.controls in self.module.meta["inputs_first"]))
        if activation is not None:
            fewer_outputs, fewer_inputs = self.trial.smaller(activation, owner)
            self.fewer_outputs |= fewer_outputs
            self.fewer_inputs |= fewer_inputs

    def _is_controlled(self, source: fx.Node, path: str) -> bool:
        """Whether a gate at the outputs of a source makes the inputs of a layer fewer."""
        controlled = any(place.controls == source.target and place.controls_dim == "outputs" for place in self.places)
        return controlled and path in self.fewer_inputs

    def _stands_in(self, source: fx.Node, path: str) -> bool:
        """Whether one gate at the outputs of a source takes the place of gates at the inputs of several layers."""
        return path in self._shared_by(source) and self._is_controlled(source, path)

    def _attention_of(self, path: str) -> str | None:
        """The attention layer whose output projection this is."""
        owner, _, name = path.rpartition(".")
        if name.startswith("out_proj") and owner:
            module = dict(self.model.named_modules()).get(owner)
            if type(module) is nn.MultiheadAttention:
                return owner
        return None


def _groups(owner: Tensor) -> tuple[int, ...] | None:
    """The units of channels, or None where each channel is one."""
    return None if torch.equal(owner, torch.arange(len(owner))) else tuple(owner.tolist())
