"""Functions that look at a batch as a whole, where several processes hold parts of it."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from bayesprune.errors import InputError
from bayesprune.noise import Share

_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)


class GlobalBatch(TorchFunctionMode):
    """Meanwhile batch normalisation and torch's dropouts see the batch of all processes, wherever a model calls them.

    The statistics are those of the whole batch; what is dropped is what one process would drop, if the processes' generators are in the
    same state. Dropout inside torch's attention functions is out of reach: every process draws the same there.
    """

    def __init__(self, share: Share) -> None:
        super().__init__()
        self.share = share

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return batch_norm(self.share, *args, **kwargs)
        if func in _DROPOUTS and kwargs["training"]:
            return _dropped(self.share, func, *args, **kwargs)
        return func(*args, **kwargs)


def _dropped(share: Share, dropout: Callable[..., Tensor], x: Tensor, **options: Any) -> Tensor:
    """The part of the whole batch's dropout, of which everything else is zero here."""
    found = share.within(x.shape[0])
    if found is None:
        return dropout(x, **options)
    start, total = found
    whole = x.new_zeros((total, *x.shape[1:]))
    part = slice(start, start + x.shape[0])
    whole[part] = x
    return dropout(whole, **options)[part]


def batch_norm(
    share: Share,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """``torch.nn.functional.batch_norm`` over the batch of all processes."""
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    mean, var, count = _statistics(x.detach(), share.counted)
    if x.numel() <= x.shape[1] and count.item() <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got {share.total} samples of size {tuple(x.shape[1:])}")
    with torch.no_grad():
        for running, new in ((running_mean, mean), (running_var, var * (count / (count - 1.0)))):
            if running is not None:
                running.mul_(1.0 - momentum).add_(new.to(running.dtype), alpha=momentum)
    normalised: Tensor = _Normalised.apply(x, weight, bias, mean, torch.rsqrt(var + eps), count, share.counted)  # type: ignore[no-untyped-call]
    return normalised


def _others(x: Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _along(vector: Tensor, x: Tensor) -> Tensor:
    """A vector over channels, so that it broadcasts against the input."""
    return vector.view(1, -1, *[1] * (x.ndim - 2))


def _statistics(x: Tensor, counted: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel, and how many numbers they are from, over all processes.

    Each sends its count n_i, mean m_i and sum of squared deviations from it, s_i; then m = sum n_i m_i / n and
    n var = sum (s_i + n_i (m_i - m)^2) (Chan, Golub, LeVeque, 1979), which loses no digits where the mean is large.
    """
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    var, mean = torch.var_mean(exact, dim=_others(x), correction=0)
    count = mean.new_full((1,), x.numel() // x.shape[1])
    own = torch.cat([count, mean, var * count])
    if not counted:
        own.zero_()
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, own)
    counts, means, deviations = torch.stack(gathered).tensor_split([1, 1 + x.shape[1]], dim=1)
    total = counts.sum()
    mean = (counts * means).sum(dim=0) / total
    var = (deviations + counts * (means - mean).square()).sum(dim=0) / total
    return mean, var, total


class _Normalised(torch.autograd.Function):
    """(x - mean) / std * weight + bias, with the gradient that goes through the statistics of the whole batch.

    As in one process it is w / std (g - mean(g) - y mean(g y)), y being the normalised input, with means over the whole batch.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, inverse: Tensor, count: Tensor, counted: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, inverse, count)
        ctx.counted = counted
        scale = inverse if weight is None else inverse * weight
        result = (x - _along(mean, x)) * _along(scale, x)
        return (result if bias is None else result + _along(bias, x)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, inverse, count = ctx.saved_tensors
        gradient = gradient.to(mean.dtype)
        y = (x - _along(mean, x)) * _along(inverse, x)
        of_weight, of_bias = (gradient * y).sum(dim=_others(x)), gradient.sum(dim=_others(x))
        of_x = None
        if ctx.needs_input_grad[0]:
            sums = torch.stack([of_bias, of_weight])
            if not ctx.counted:
                sums.zero_()
            dist.all_reduce(sums)
            through = (sums / count).unbind() if ctx.counted else torch.zeros_like(sums).unbind()
            scale = inverse if weight is None else inverse * weight
            of_x = ((gradient - _along(through[0], x) - y * _along(through[1], x)) * _along(scale, x)).to(x.dtype)
        of_weight = of_weight.to(weight.dtype) if ctx.needs_input_grad[1] else None
        return of_x, of_weight, of_bias if ctx.needs_input_grad[2] else None, None, None, None, None


def gathered(share: Share, part: Tensor) -> Tensor:
    """The rows of all processes, from those that belong to the samples at hand; the gradient is that of this process's rows.

    It is multiplied by the number of processes, because gradients are averaged over them afterwards.
    """
    found = share.within(part.shape[0]) if part.ndim else None
    if found is None:
        raise InputError(
            f"the first dimension of what the model returns must be that of the samples to split a batch over processes, but of "
            f"{share.samples} samples came a tensor of shape {tuple(part.shape)}"
        )
    whole: Tensor = _Gathered.apply(part, *found, share.counted)  # type: ignore[no-untyped-call]
    return whole


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, start: int, total: int, counted: bool) -> Tensor:
        ctx.rows, ctx.counted = slice(start, start + part.shape[0]), counted
        # Whole numbers of one byte stand for booleans, which cannot be added up.
        whole = part.new_zeros((total, *part.shape[1:]), dtype=torch.uint8 if part.dtype == torch.bool else part.dtype)
        if counted:
            whole[ctx.rows] = part.to(whole.dtype)
        dist.all_reduce(whole)
        return whole.to(part.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own = gradient[ctx.rows]
        return own * dist.get_world_size() if ctx.counted else torch.zeros_like(own), None, None, None
