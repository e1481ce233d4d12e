"""Models from checkpoints."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.errors import StorageError
from bayesprune.training.members import Members
from bayesprune.training.store import MODEL


@torch.no_grad()
def load_members(members: Members, tensors: Mapping[str, Any]) -> None:
    """Give models what a checkpoint has of them: their part of its tensors, stacked where there are several."""
    state = {name.removeprefix(MODEL): tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    if members.alone:
        _load(members.first, state)
        return
    for index, model in enumerate(members.models):
        _load(model, {name: tensor[index] for name, tensor in state.items()})
    for name, stacked in (members.parameters | members.buffers).items():
        if name in state:
            stacked.copy_(state[name])


def _load(model: nn.Module, state: dict[str, Tensor]) -> None:
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise StorageError(f"the checkpoint does not belong to this model: {' '.join(str(error).split())}") from error
