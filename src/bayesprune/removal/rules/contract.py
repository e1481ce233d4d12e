"""What removal must know about an operation."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, fx

from bayesprune.removal.analysis import Analysis, everything, tensor_inputs
from bayesprune.removal.status import Known, along

if TYPE_CHECKING:
    from bayesprune.removal.rebuild import Rebuild


class Rule:
    """An operation of which nothing is known: it reads its whole inputs and computes its whole result."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        """Which elements of the result are the same for every input."""
        return None

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        """Which elements of its inputs must exist, if these elements of its result are needed."""
        for read in node.all_input_nodes:
            yield read, analysis.unknown(read, everything(read)) if "shape" in read.meta else torch.tensor(True)

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        """Write the operation into the new graph."""
        arguments, keywords = build.arguments(node.args), build.arguments(node.kwargs)
        if node.op == "call_module":
            path = str(node.target)
            new = build.call(path, build.same(build.analysis.layer(node)), *arguments)
            new.kwargs = keywords
        else:
            new = build.graph.create_node(node.op, node.target, arguments, keywords)
        build.new[node] = new
        build.layout[node] = {}


class Placeholder(Rule):
    """A network input: it arrives whole."""

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        return iter(())

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        build.new[node] = build.graph.placeholder(str(node.target))
        build.layout[node] = {}


class Output(Rule):
    """The network's outputs, which are returned whole."""

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        build.graph.output(build.arguments(node.args[0]))


class Attribute(Rule):
    """A parameter or buffer that the model reads itself: only the needed part of it is kept."""

    def known(self, analysis: Analysis, node: fx.Node) -> Known | None:
        if not node.meta.get("constant") or analysis.tensor(node).is_complex():
            return None
        value = analysis.tensor(node).detach().cpu().double()
        return Known(torch.ones_like(value, dtype=torch.bool), value)

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        analysis = build.analysis
        value = analysis.tensor(node)
        layout = {}
        if node not in analysis.rigid:
            for dim, size in enumerate(value.shape):
                labels = along(analysis.needed[node], dim, size).nonzero().flatten()
                if len(labels) < size:
                    layout[dim] = labels
        if layout:
            part = value.detach()
            for dim, labels in layout.items():
                part = part.index_select(dim, labels.to(part.device))
            is_parameter = isinstance(value, torch.nn.Parameter)
            build.attributes[str(node.target)] = torch.nn.Parameter(part, requires_grad=value.requires_grad) if is_parameter else part
        else:
            build.attributes[str(node.target)] = build.same(value)
        build.enter(node, build.graph.get_attr(str(node.target)), layout)


class Size(Rule):
    """The size of a dimension. Where units were removed it is the size the model was written for, a number.

    A tensor of which nobody reads anything else need not be computed, unless nothing else has that size.
    """

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        if node in analysis.rigid:
            for read in tensor_inputs(node):
                yield read, everything(read)

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        (read,) = tensor_inputs(node)
        dim = cast(int, node.kwargs["dim"])
        if read in build.new and dim not in build.layout[read]:
            build.new[node] = build.say("size", build.new[read], dim=dim)
        elif node.meta["varies"]:
            build.new[node] = build.size_like(read, dim)
        else:
            build.new[node] = node.meta["value"]


class Device(Rule):
    """The device of an input, for which none of its elements is needed."""

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        return iter(())


class Number(Rule):
    """Arithmetic with sizes."""

    def needs(self, analysis: Analysis, node: fx.Node, needed: Tensor) -> Iterator[tuple[fx.Node, Tensor]]:
        for read in node.all_input_nodes:
            yield read, torch.tensor(True)

    def rebuild(self, build: "Rebuild", node: fx.Node) -> None:
        arguments = build.arguments(node.args)
        if any(isinstance(argument, fx.Node) for argument in arguments):
            build.new[node] = build.graph.create_node(node.op, node.target, arguments)
        else:
            build.new[node] = node.meta["value"]
