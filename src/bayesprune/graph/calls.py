"""Running a model on its example."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bayesprune.errors import InputError
from bayesprune.example_inputs import ExampleInputs, call, tensors_in
from bayesprune.graph.transformers import attention_written_out
from bayesprune.prediction import evaluating


def run_example(model: nn.Module, example_inputs: ExampleInputs) -> Any:
    """What the model computes for the example, in evaluation mode and without gradients.

    Raises:
        InputError: the model does not run on it.
    """
    devices = {tensor.device for tensor in [*model.parameters(), *model.buffers()]}
    for tensor in tensors_in(example_inputs):
        if len(devices) == 1 and tensor.device not in devices:
            raise InputError(f"the model is on {next(iter(devices))} but the example on {tensor.device}: move one of them with .to(device)")
    with torch.no_grad(), evaluating(model), attention_written_out():
        return call(model, tree_map_only(Tensor, torch.clone, example_inputs))  # A layer may write into its input.
