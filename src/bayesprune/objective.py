"""The training objective of a gated model, and the parameter groups that it is trained with."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bayesprune.errors import BayespruneWarning, InputError, is_number
from bayesprune.gates import Gate, gates, require_gates

KLScale = float | Mapping[str, float] | Sequence[float]
"""One factor for all gates, or one for each: by the gate's name, or in network order."""


def gate_scales(model: nn.Module, kl_scale: KLScale) -> dict[str, float]:
    """The factor on the divergence of each gate, by name, checked."""
    names = list(require_gates(model))
    if isinstance(kl_scale, Mapping):
        unknown, missing = set(kl_scale) - set(names), set(names) - set(kl_scale)
        if unknown or missing:
            raise InputError(f"kl_scale must name every gate: unknown {sorted(unknown)}, missing {sorted(missing)}")
        scales = {name: kl_scale[name] for name in names}
    elif isinstance(kl_scale, Sequence) and not isinstance(kl_scale, str):
        if len(kl_scale) != len(names):
            raise InputError(f"kl_scale has {len(kl_scale)} factors, the model {len(names)} gates: {', '.join(names)}")
        scales = dict(zip(names, kl_scale, strict=True))
    else:
        scales = dict.fromkeys(names, kl_scale)
    for name, scale in scales.items():
        if not (is_number(scale) and scale >= 0):
            raise InputError(f"kl_scale must be finite and not negative; for {name} it is {scale!r}")
    return scales


def negative_elbo(nll: Tensor, model: nn.Module, n_data: int, kl_scale: KLScale = 1.0, warmup: float = 1.0) -> Tensor:
    """The negative evidence lower bound per datum: mean nll + warmup / n_data * sum over gates of kl_scale KL (equation 3, divided by N).

    Compute the outputs in training mode, where gates sample masks; a warning names gates that are about to be trained in evaluation mode.
    With a scale above one it is still a bound on the marginal likelihood. Every method's ``kl`` is in nats for the whole data set, so the
    published loss of each is this one with the scale and hyper-parameters that its ``from_tradeoff`` gives.

    Args:
        nll: the mean negative log-likelihood of a batch, or a vector of several Monte Carlo estimates of it.
        model: the gated model; its divergence is summed exactly once, however many samples were drawn.
        n_data: the size of the training set.
        kl_scale: the trade-off gamma: one for all gates, or one for each.
        warmup: a factor between 0 and 1 that rises while training starts; see ``linear_warmup``.

    Raises:
        InputError: an argument is of the wrong type or size, or a gate has parameters in half precision.

    Example:
        >>> loss = negative_elbo(F.cross_entropy(gated(x), y), gated, n_data=60_000)
    """
    if not isinstance(nll, Tensor):
        raise InputError(f"nll is the loss of a batch as a tensor, not {type(nll).__name__}: hand it over without .item() or float()")
    if not nll.is_floating_point():
        raise InputError(f"nll is a mean loss, of floating-point numbers, not of {nll.dtype}")
    if not (is_number(n_data) and n_data > 0):
        raise InputError(f"n_data is the number of training samples, above zero, not {n_data!r}")
    if not (is_number(warmup) and 0.0 <= warmup <= 1.0):
        raise InputError(f"warmup is a factor between 0 and 1, not {warmup!r}")
    scales = gate_scales(model, kl_scale)
    found = gates(model)
    _refuse_coarse(found)
    _warn_of_gates_that_draw_nothing(nll, found)
    divergence = sum(scales[name] * gate.kl() for name, gate in found.items())
    return nll.mean() + divergence * (warmup / n_data)


def _warn_of_gates_that_draw_nothing(nll: Tensor, found: Mapping[str, Gate]) -> None:
    """Gates in evaluation mode are not drawn, so their likelihood is not what the bound is about."""
    if torch.compiler.is_compiling() or not (nll.requires_grad and torch.is_grad_enabled()):
        return
    still = [name for name, gate in found.items() if not gate.is_sampling and _is_trained(gate)]
    if still:
        warnings.warn(
            f"{', '.join(still)}: in evaluation mode gates draw nothing, so that this is not the objective that they are to be trained "
            "with: call model.train() before each epoch, or requires_grad_(False) on gates that are not trained; to measure the objective "
            "alone, compute it under torch.no_grad()",
            BayespruneWarning,
            stacklevel=3,
        )


def _is_trained(gate: Gate) -> bool:
    return any(parameter.requires_grad for parameter in gate.parameters(recurse=False))


def _refuse_coarse(found: Mapping[str, Gate]) -> None:
    for name, gate in found.items():
        for parameter in gate.parameters():
            if isinstance(parameter, nn.Parameter) and parameter.dtype in (torch.float16, torch.bfloat16):
                raise InputError(
                    f"the parameters of the gate {name} are of {parameter.dtype}, in which they cannot come near their threshold: small "
                    "steps are rounded away. Give the gates float32 again with .float(), and change the type of the whole model by "
                    "model.to(dtype), .half() or .bfloat16(), which leave gates alone, rather than of its tensors one by one"
                )


def disagreement(logits: Tensor) -> Tensor:
    """How far two predictions for each input are apart: the mean of (KL(p || q) + KL(q || p)) / 2.

    Added to the loss of a model whose gates draw twice, it makes what the model predicts depend less on the draw (R-Drop).

    Args:
        logits: of all first predictions, then of all second ones.

    References:
        Liang et al., "R-Drop: Regularized Dropout for Neural Networks", 2021, equation 2.
    """
    first, second = F.log_softmax(logits, dim=-1).chunk(2)
    return 0.5 * ((first.exp() - second.exp()) * (first - second)).sum(-1).mean()


def uphill(gradient: Tensor, distance: Tensor) -> Tensor:
    """A step for each input in the direction in which its loss rises fastest: distance g / |g|, and none where the gradient is zero.

    A model that is trained there too, with the same labels, predicts the same around its training inputs (adversarial training).

    Args:
        gradient: of the loss, one for each input.
        distance: Euclidean, one for each input.

    References:
        Goodfellow et al., "Explaining and Harnessing Adversarial Examples", 2015; with the Euclidean norm, Miyato et al., "Virtual
        Adversarial Training: A Regularization Method for Supervised and Semi-Supervised Learning", 2017.
    """
    flat = gradient.flatten(1)
    tiny = torch.finfo(flat.dtype).tiny
    largest = flat.abs().amax(dim=1, keepdim=True).clamp_min(tiny)  # The squares of small numbers would vanish.
    direction = F.normalize(flat / largest, dim=1, eps=tiny)
    return (distance[:, None] * direction).view_as(gradient)


def linear_warmup(step: int, warmup_steps: int) -> float:
    """A factor that rises from 0 to 1 over the first ``warmup_steps`` steps; 1 where there are none."""
    return 1.0 if warmup_steps <= 0 else min(1.0, step / warmup_steps)


def param_groups(model: nn.Module, lr: float = 1e-3, gate_lr: float | None = None, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Parameter groups for an optimiser: the weights, and the gates with a learning rate of their own and no decay.

    Args:
        model: the gated model; parameters that do not require a gradient are left out.
        lr: of the weights.
        gate_lr: of the gates; by default ``lr`` times the factor that the method was published with, 10 for most.
        weight_decay: of the weights. Where the gates' penalty contains the weights' own regulariser (L0, CD), it is left to the layers that
            no gate controls.

    Raises:
        InputError: it is no model, or a rate is no number, or negative.
    """
    found = gates(model)
    for name, value in {"lr": lr, "gate_lr": 0.0 if gate_lr is None else gate_lr, "weight_decay": weight_decay}.items():
        if not (is_number(value) and value >= 0):
            raise InputError(f"{name} must be a finite number and not negative, not {value!r}")
    of_gates = {id(p) for gate in found.values() for p in gate.parameters(recurse=False)}
    trained = [p for p in model.parameters() if p.requires_grad]
    weights = [p for p in trained if id(p) not in of_gates]
    decayed = _uncontrolled(model) if any(gate.penalises_weights for gate in found.values()) else {id(p) for p in weights}
    groups: list[dict[str, Any]] = []
    for own, decay in ((False, 0.0), (True, weight_decay)):
        chosen = [p for p in weights if (id(p) in decayed) is own]
        if chosen:
            groups.append({"name": "weights", "params": chosen, "lr": lr, "weight_decay": decay})
    if found:
        factor = min(gate.gate_lr_factor for gate in found.values())
        rate = lr * factor if gate_lr is None else gate_lr
        groups.append({"name": "gates", "params": [p for p in trained if id(p) in of_gates], "lr": rate, "weight_decay": 0.0})
    return groups


def _uncontrolled(model: nn.Module) -> set[int]:
    """The parameters of layers with a weight matrix that no gate controls, by identity."""
    controlled = {id(each.layer) for gate in gates(model).values() for each in gate.controlled}
    layers = [module for module in model.modules() if isinstance(getattr(module, "weight", None), Tensor) and id(module) not in controlled]
    return {id(p) for layer in layers if cast(Tensor, layer.weight).ndim > 1 for p in layer.parameters(recurse=False)}
