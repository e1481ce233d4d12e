"""Finding out where a NaN or an infinity came from."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.gates import Gate, gates


@torch.no_grad()
def find_nonfinite(model: nn.Module, inputs: Tensor) -> str:
    """Name the first parameter, divergence, or layer of a model that is not finite for these inputs."""
    for name, parameter in model.named_parameters():
        if not parameter.isfinite().all():
            owner = model.get_submodule(name.rpartition(".")[0])
            return f"the {'gate' if isinstance(owner, Gate) else 'layer'} parameter {name}"
    for name, gate in gates(model).items():
        if not gate.kl().isfinite():
            return f"the divergence of the gate {name}"
    if not inputs.isfinite().all():
        return "the inputs"
    reached: list[str] = []
    hooks = [module.register_forward_hook(partial(_record, reached, name)) for name, module in model.named_modules()]
    try:
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return f"the output of {reached[0] or 'the model'}" if reached else "the loss itself"


def _record(reached: list[str], name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
    if isinstance(output, Tensor) and not output.isfinite().all():
        reached.append(name)
