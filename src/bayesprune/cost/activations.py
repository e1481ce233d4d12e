"""How much memory the intermediate results of a forward need at once."""

import weakref
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class ActivationMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, adds up the storages that operators make and that are still alive; ``peak`` is the most there ever were, in bytes.

    A view or an operator in place makes no storage and costs nothing. What an operator did not make, such as inputs, parameters and
    buffers, is not counted, and neither is what a kernel allocates for itself while it runs.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive = 0
        # The weak references of all living storages seen so far, by address: while they are held here they tell when a storage goes.
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        for leaf in tree_leaves((args, kwargs)):
            self._meet(leaf, made=False)
        result = func(*args, **kwargs)
        for leaf in tree_leaves(result):
            self._meet(leaf, made=True)
        self.peak = max(self.peak, self._alive)
        return result

    def _meet(self, leaf: object, made: bool) -> None:
        if not isinstance(leaf, Tensor) or leaf.layout != torch.strided:
            return
        storage = leaf.untyped_storage()
        address = storage._cdata
        if address in self._known:
            return
        size = storage.nbytes() if made else 0
        self._alive += size
        self._known[address] = weakref.ref(storage, partial(self._part, address, size))

    def _part(self, address: int, size: int, _: object) -> None:
        self._alive -= size
        del self._known[address]
