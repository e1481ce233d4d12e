"""Where in a model's code a gate can be hooked onto an activation of its graph."""

from torch import fx, nn

from bayesprune.removal.analysis import Analysis, tensor_inputs
from bayesprune.removal.rules import rule_for
from bayesprune.removal.rules.elementwise import Activation
from bayesprune.removal.rules.layers import Convolution
from bayesprune.removal.rules.norms import ChannelNorm, GroupNorm, SpatialOperation


class Sites:
    """The calls of a model's own modules in its graph."""

    def __init__(self, model: nn.Module, analysis: Analysis) -> None:
        self.analysis = analysis
        calls = [str(node.target) for node in analysis.module.graph.nodes if node.op == "call_module"]
        modules = dict(model.named_modules(remove_duplicate=False))
        inside = tuple(f"{path}." for path, module in modules.items() if isinstance(module, nn.MultiheadAttention))
        objects = [id(modules[path]) for path in calls if path in modules]
        # A gate would multiply a copy of what such a layer writes into its input, and those who read that input would go without.
        in_place = {str(node.target) for node in analysis.module.graph.nodes if node.meta.get("read_by_another_name")}
        self._hookable = {
            path
            for path in calls
            if path in modules
            and objects.count(id(modules[path])) == 1
            and path not in in_place
            and not (inside and path.startswith(inside))
        }

    def output(self, node: fx.Node) -> str | None:
        """The module whose output this activation is, if it is called just once."""
        return str(node.target) if node.op == "call_module" and node.target in self._hookable else None

    def input(self, node: fx.Node) -> str | None:
        """The module that alone reads this activation, as its input."""
        users = list(node.users)
        if len(users) != 1 or users[0].op != "call_module" or users[0].target not in self._hookable:
            return None
        return str(users[0].target) if users[0].args and users[0].args[0] is node else None

    def along(self, block: list[fx.Node]) -> list[tuple[str, str, fx.Node]]:
        """The activations of a block that a gate can be hooked to, the last one first: module, side, activation."""
        found = []
        for node in reversed(block):
            for side, path in (("output", self.output(node)), ("input", self.input(node))):
                if path is not None:
                    found.append((path, side, node))
        return found


def block_of(analysis: Analysis, layer: fx.Node) -> list[fx.Node]:
    """A layer and the norms, activations and depthwise convolutions that follow it, as long as nobody else reads what is between.

    Pooling belongs to the block only if more of these come after it.
    """
    block, end = [layer], 1
    while len(block[-1].users) == 1:
        (following,) = block[-1].users
        rule = rule_for(analysis, following)
        belongs = isinstance(rule, (Activation, ChannelNorm, GroupNorm)) or (
            isinstance(rule, Convolution) and is_depthwise(analysis.layer(following))
        )
        if not (belongs or isinstance(rule, SpatialOperation)) or tensor_inputs(following) != [block[-1]]:
            break
        block.append(following)
        end = len(block) if belongs else end
    return block[:end]


def is_depthwise(layer: nn.Module) -> bool:
    """Whether every channel of a convolution is computed from one channel, and no two from the same."""
    groups = getattr(layer, "groups", 1)
    return groups > 1 and groups == getattr(layer, "in_channels", None) == getattr(layer, "out_channels", None)
