"""One step of training of one model over several processes, with the gradient of one process."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from bayesprune.errors import InputError
from bayesprune.training.evaluation import LossFunction
from bayesprune.training.global_batch import GlobalBatch, gathered
from bayesprune.training.members import Members
from bayesprune.training.rank_batches import RankBatches
from bayesprune.training.sources import BatchSource
from bayesprune.training.step import Step


class RankStep(Step):
    """A step whose batch is split over processes.

    Each computes the outputs for its samples, with the noise and the batch statistics of the whole batch; the outputs of all are gathered,
    and the loss, whatever it is a mean over, is that of the whole batch in every process. The divergence, the same in all of them, counts
    once, because gradients are averaged. So all processes see the same loss, and decide alike where it is not finite.

    Args:
        batches: where the batches come from.
        members: a single model.
        loss: mean loss of a batch, from outputs and targets.
        **settings: see ``Step``.
    """

    def __init__(self, batches: RankBatches, members: Members, loss: LossFunction, **settings: Any) -> None:
        if not members.alone:
            raise InputError("several processes train one model, not models side by side: start without torchrun")
        super().__init__(members, partial(_loss_of_all, batches, loss), **settings)
        self.batches = batches
        self.objective = DistributedDataParallel(_Objective(members.first, self.objective), find_unused_parameters=True)
        self.objective.broadcast_buffers = False  # They change by statistics that agree. The argument of that name is deprecated.

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The objective for the batch of all, from the part of this process."""
        with self.keys.of_share(self.batches.share), GlobalBatch(self.batches.share):
            return super().losses(inputs, targets)

    def whole(self, inputs: Tensor) -> Tensor:
        """The inputs of all processes."""
        return gathered(self.batches.share, inputs[0]).unsqueeze(0)


def step_for(source: BatchSource, members: Members, loss: LossFunction, **settings: Any) -> Step:
    """A step for batches of this source; see ``Step`` for the settings."""
    return RankStep(source, members, loss, **settings) if isinstance(source, RankBatches) else Step(members, loss, **settings)


def _loss_of_all(batches: RankBatches, loss: LossFunction, outputs: Any, targets: Tensor) -> Tensor:
    whole = partial(gathered, batches.share)
    return loss(tree_map_only(Tensor, whole, outputs), whole(targets))


class _Objective(nn.Module):
    """The whole objective as a forward, so that a gradient is averaged as soon as it is known."""

    def __init__(self, model: nn.Module, objective: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.objective = model, objective
        # Models may have parameters that they do not use. Told to look out for them, torch warns if there are none: now there is one.
        self.unused = nn.Parameter(next(model.parameters()).new_zeros(1))

    def forward(self, *arguments: Tensor) -> Tensor:
        return self.objective(*arguments)
