"""Up to which sizes of inputs the graph of a model holds whose caches grow with them."""

from collections.abc import Callable, Sequence

from torch import nn

from bayesprune.example_inputs import ExampleInputs, batch_size, tensors_in, with_batch_size
from bayesprune.graph.other_sizes import Trial, in_other_sizes, run_trial


def size_limits(
    model: nn.Module, example_inputs: ExampleInputs, largest: Trial, follows: Callable[[Sequence[Trial]], bool]
) -> tuple[str, ...]:
    """What inputs may be at most, a phrase for each dimension; nothing where the graph follows the model in larger sizes too.

    Args:
        model: as it is before it has seen large inputs.
        example_inputs: what the graph was made for.
        largest: inputs that the caches in the graph were made for.
        follows: whether the graph computes in these trials what the model does.
    """
    another_batch = run_trial(model, with_batch_size(largest.inputs, batch_size(largest.inputs) + 1))
    if another_batch is not None and not follows([another_batch]):
        return tuple(_phrases(example_inputs, lambda _place, _dim: True))  # Whatever grows goes by the batch as well.
    larger = [trial for trial in in_other_sizes(model, largest.inputs, largest.result) if numel(trial.inputs) > numel(largest.inputs)]
    if follows(larger):
        return ()
    before = [tensor.shape for tensor in tensors_in(example_inputs)]
    return tuple(_phrases(largest.inputs, lambda place, dim: dim > 0 and tensors_in(largest.inputs)[place].shape[dim] > before[place][dim]))


def numel(inputs: ExampleInputs) -> int:
    """How many numbers there are in inputs."""
    return sum(tensor.numel() for tensor in tensors_in(inputs))


def _phrases(inputs: ExampleInputs, limited: Callable[[int, int], bool]) -> list[str]:
    tensors = list(tensors_in(inputs))
    return [
        f"{size} along dimension {dim}{f' of input {place + 1}' if len(tensors) > 1 else ''}"
        for place, tensor in enumerate(tensors)
        for dim, size in enumerate(tensor.shape)
        if limited(place, dim)
    ]
