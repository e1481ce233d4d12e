"""The same computation in fewer kinds of operations: pieces of a split as slices, and a shuffle of channels as one selection."""

import operator
from typing import Any

import torch
from torch import Tensor, fx

from bayesprune.graph.vocabulary import FUNCTIONS

_SPLITS = frozenset({FUNCTIONS[name].target for name in ("split", "chunk", "tensor_split", "unbind")})
_VIEWS = frozenset({FUNCTIONS[name].target for name in ("reshape", "transpose", "permute", "flatten", "unflatten", "movedim")})


def simplify(module: fx.GraphModule) -> bool:
    """Rewrite an annotated graph in place. True if it has to be annotated anew."""
    changed = _slices(module)
    changed = _selections(module) or changed
    if changed:
        module.graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))
        module.recompile()
    return changed


def _slices(module: fx.GraphModule) -> bool:
    """Replace the pieces of splits along dimensions of fixed size by slices."""
    changed = False
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in _SPLITS:
            continue
        (read,) = node.all_input_nodes if len(node.all_input_nodes) == 1 else (None,)
        users = list(node.users)
        if read is None or not all(user.target is operator.getitem and isinstance(user.args[1], int) for user in users):
            continue
        shape = read.meta["shape"]
        dim = node.kwargs.get("dim", 0) % len(shape)
        if dim in read.meta["varies"]:
            continue
        pieces = node.target(torch.arange(shape[dim]), *node.args[1:], **{k: v for k, v in node.kwargs.items() if k != "dim"})
        for user in users:
            piece = pieces[user.args[1]]
            index: Any = (
                int(piece) if node.target is torch.unbind else slice(int(piece[0]), int(piece[-1]) + 1) if len(piece) else slice(0, 0)
            )
            with module.graph.inserting_before(user):
                sliced = module.graph.call_function(operator.getitem, (read, (*[slice(None)] * dim, index)))
            sliced.meta |= user.meta  # A piece may be split again.
            user.replace_all_uses_with(sliced)
            module.graph.erase_node(user)
        module.graph.erase_node(node)
        changed = True
    return changed


def _selections(module: fx.GraphModule) -> bool:
    """Replace chains of views that together only reorder one dimension by a selection along it."""
    changed = False
    for last in list(module.graph.nodes):
        chain = _chain_to(last)
        if len(chain) < 3 or not last.users:
            continue
        source = chain[0].all_input_nodes[0]
        shape = source.meta["shape"]
        if last.meta["shape"] != shape:
            continue
        order = _order(chain, source)
        if order is None:
            continue
        dim, index = order
        name = f"shuffled_{last.name}"
        device = next(iter([*module.parameters(), *module.buffers()]), torch.empty(0)).device
        module.register_buffer(name, index.to(device))
        with module.graph.inserting_before(last):
            selected = module.graph.call_function(torch.index_select, (source,), {"dim": dim, "index": module.graph.get_attr(name)})
        selected.meta |= last.meta
        last.replace_all_uses_with(selected)
        changed = True
    return changed


def _chain_to(last: fx.Node) -> list[fx.Node]:
    """The longest chain of views that ends here and that nobody else reads in between."""
    chain: list[fx.Node] = []
    node = last
    while node.op == "call_function" and node.target in _VIEWS and (node is last or len(node.users) == 1):
        reads = [read for read in node.all_input_nodes if "shape" in read.meta]
        if len(reads) != 1:
            break
        chain.insert(0, node)
        node = reads[0]
    return chain


def _order(chain: list[fx.Node], source: fx.Node) -> tuple[int, Tensor] | None:
    """The dimension that the chain reorders and in which order; None if it does anything else."""
    shape = source.meta["shape"]
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    after = numbers
    for node in chain:
        args, kwargs = fx.map_arg((node.args[1:], node.kwargs), lambda size: size.meta["value"])
        after = node.target(after, *args, **kwargs)  # type: ignore[operator]
    for dim, size in enumerate(shape):
        if size == 1 or dim in source.meta["varies"]:
            continue
        place = [0] * len(shape)
        place[dim] = slice(None)  # type: ignore[call-overload]
        stride = numbers.stride(dim)
        index = (after[tuple(place)] // stride) % size
        if torch.equal(numbers.index_select(dim, index), after) and not torch.equal(index, torch.arange(size)):
            return dim, index
    return None
