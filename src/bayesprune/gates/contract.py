"""What every gate promises, whatever its method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from bayesprune.errors import InputError, did_you_mean, is_number
from bayesprune.gates.units import Units
from bayesprune.noise import NoisyModule

METHODS: dict[str, type["Gate"]] = {}
"""Method key -> gate class, filled by the classes themselves."""


@dataclass(frozen=True)
class Tradeoff:
    """What a method's published trade-off parameter amounts to in ``negative_elbo``.

    Attributes:
        kl_scale: the factor on the divergence.
        hyperparameters: arguments for the gate.
    """

    kl_scale: float = 1.0
    hyperparameters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ControlledLayer:
    """The layer whose weights a gate's units own, and whether a unit is one of its inputs or one of its outputs.

    Held by the gate as plain data, so that the layer is not registered twice. Because it is the module and not its tensors that is held,
    the gate sees whatever ``functional_call`` puts in their place, and a deep copy of the model refers to the copied layer.
    """

    layer: nn.Module
    side: Literal["inputs", "outputs"]
    inputs_first: bool = False
    """Whether the weight holds its inputs in its first dimension although layers of its type do not."""

    @property
    def weight(self) -> Tensor:
        return cast(Tensor, self.layer.weight)

    @property
    def bias(self) -> Tensor | None:
        return cast(Tensor | None, self.layer.bias)

    @property
    def unit_axis(self) -> int:
        """The dimension of the weight along which the units lie."""
        # Of torch's own layers, transposed convolutions alone hold their inputs first.
        transposed = isinstance(self.layer, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d))
        return 0 if (self.side == "inputs") == (transposed or self.inputs_first) else 1


class Tunable:
    """A hyper-parameter in which models that are trained side by side may differ: a number to the user, a tensor to the mathematics.

    The tensor, ``NAME_tensor``, is a buffer, so that a stack of models has a stack of them, but no part of the ``state_dict``.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, gate: "Gate", owner: type) -> float:
        return gate.tuned[self.name]

    def __set__(self, gate: "Gate", value: float) -> None:
        gate.tuned[self.name] = value
        like = next(gate.parameters(recurse=False), torch.empty(()))
        gate.register_buffer(f"{self.name}_tensor", torch.tensor(float(value), device=like.device, dtype=like.dtype), persistent=False)


class Gate(NoisyModule, ABC):
    """Multiplies its input by a mask with one random variable a unit.

    While sampling, the mask is a draw; otherwise it is the posterior mean, with the units that the method would prune set to zero. A gate
    samples when it is in training mode, unless ``sampling`` says otherwise: that switch is apart from ``training``, so that Monte Carlo
    prediction leaves batch statistics alone.

    Args:
        num_units: how many units there are.
        channel_dim: the dimension of the input along which they lie: 1, or -1 for token models.
        groups: which unit each element belongs to, where a unit covers several: a vector with an entry for each channel, or a tensor whose
            shape broadcasts against an input's shape without its batch dimension.
    """

    method: ClassVar[str]
    tradeoff_meaning: ClassVar[str]
    default_tradeoff: ClassVar[float] = 1.0
    gate_lr_factor: ClassVar[float] = 10.0
    """The published learning rate of the gates over that of the weights."""
    penalises_weights: ClassVar[bool] = False
    """Whether ``kl`` contains the weights' own regulariser, so that the optimiser must not decay them a second time."""
    depends_on_input: ClassVar[bool] = False
    """Whether the mask of the naive approximation differs between inputs."""
    signed: ClassVar[bool] = False
    """Whether a mask may be negative."""
    freezes_batch_norm: ClassVar[bool] = False
    """Whether the published method trains with the network's batch normalisation in evaluation mode."""
    pruned_values: ClassVar[Mapping[str, float]] = {}
    """Values of a unit's tensors with which the method prunes it; none for a method that prunes nothing."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "method" in cls.__dict__:
            METHODS[cls.method] = cls

    def __init__(self, num_units: int, *, channel_dim: int = 1, groups: Tensor | None = None) -> None:
        super().__init__()
        self.units = Units(num_units, channel_dim, groups)
        self.sampling: bool | None = None
        self.tuned: dict[str, float] = {}
        """The values of the ``Tunable`` hyper-parameters."""
        self.controlled: tuple[ControlledLayer, ...] = ()
        self.position = 0
        """Where the gate stands in the order of the network."""

    @property
    def num_units(self) -> int:
        return self.units.count

    @abstractmethod
    def kl(self) -> Tensor:
        """The divergence from the prior (or the method's penalty) in nats for the whole data set, summed over units: a scalar."""

    @classmethod
    def divergences(cls, gates: "Sequence[Gate]") -> list[Tensor]:
        """``kl`` of several gates of this class; a method may compute them all at once."""
        return [gate.kl() for gate in gates]

    @abstractmethod
    def keep_probability(self, x: Tensor | None = None) -> Tensor:
        """How probable it is that each unit is needed, shape ``(num_units,)``.

        Given an input, input-dependent methods answer for each of its samples, with shape ``(batch, num_units)``.
        """

    @abstractmethod
    def keep(self, x: Tensor | None = None) -> Tensor:
        """Which units the method keeps, as booleans, in the shape of ``keep_probability``."""

    @abstractmethod
    def sample_mask(self, x: Tensor) -> Tensor:
        """A draw of the mask, of shape ``(num_units,)`` or ``(batch, num_units)``."""

    @abstractmethod
    def mean_mask(self, x: Tensor) -> Tensor:
        """The mask of the naive approximation: its posterior mean, zero where a unit is not kept."""

    @classmethod
    def from_tradeoff(cls, tradeoff: float, n_data: int) -> Tradeoff:
        """Translate the published trade-off parameter; by default it is the factor on the divergence."""
        return Tradeoff(kl_scale=tradeoff)

    @property
    def is_sampling(self) -> bool:
        return self.training if self.sampling is None else self.sampling

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 1 and self.units.channel_dim == -1:  # One sample without its batch dimension, as linear layers take it.
            return self.forward(x.unsqueeze(0)).squeeze(0)
        self.units.check(x)
        mask = self.sample_mask(x) if self.is_sampling else self.mean_mask(x)
        return x * self.units.spread(mask.to(x.dtype), x)

    @torch.no_grad()
    def prune(self, units: Tensor) -> None:
        """Let these units be pruned from now on, as if training had done it.

        While sampling, pruned units of ``vib`` and ``sbp`` still pass noise; those of other methods pass next to nothing.

        Args:
            units: their numbers, or a mask.
        """
        for name, value in self.pruned_values.items():
            getattr(self, name)[units] = value

    def control(self, layer: nn.Module, side: Literal["inputs", "outputs"], inputs_first: bool = False) -> None:
        """Name the layer whose weights belong to this gate's units.

        Args:
            layer: holds a ``weight``, and may hold a ``bias``.
            side: whether a unit is one of its inputs or one of its outputs.
            inputs_first: whether its weight holds the inputs in the first dimension, as in the ``Conv1D`` of GPT-2.
        """
        controlled = ControlledLayer(layer, side, inputs_first)
        weight = getattr(layer, "weight", None)
        channels = self.units.channels
        size = weight.shape[controlled.unit_axis] if isinstance(weight, Tensor) and weight.ndim > 1 else None
        if size is None or (channels is not None and size != channels):
            raise InputError(f"a gate over {channels} channels cannot control the {side} of {layer}: the numbers do not agree")
        self.controlled = (*self.controlled, controlled)

    def require_controlled(self) -> tuple[ControlledLayer, ...]:
        """The controlled layers, for methods that cannot do without."""
        if not self.controlled:
            raise InputError(
                f"the penalty of '{self.method}' needs the weights of the layer that the gate controls: "
                "attach the gate with bayesprune.sparsify, or call gate.control(layer, 'inputs')"
            )
        return self.controlled

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Gate":
        # Half precision cannot tell probabilities apart where the threshold lies: model.half() moves everything but the gates.
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            too_coarse = moved.is_floating_point() and torch.finfo(moved.dtype).bits < 32
            return tensor.to(moved.device, torch.float32) if too_coarse else moved

        super()._apply(keep_precision, recurse)  # type: ignore[no-untyped-call]
        self.retune()
        return self

    def retune(self) -> None:
        """Make the tensors of the ``Tunable`` hyper-parameters anew, beside the parameters and as exact as these."""
        for name, value in list(self.tuned.items()):
            setattr(self, name, value)

    def extra_repr(self) -> str:
        return f"{self.num_units} units, method='{self.method}'"


def method_class(method: str) -> type[Gate]:
    """The gate class of a method key, or an error that names the keys there are."""
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    hint = did_you_mean(str(method).lower(), METHODS, cutoff=0.4)
    raise InputError(f"unknown method '{method}'; choose one of {', '.join(sorted(METHODS))}.{hint}")


def sums_by_gate(gates: Sequence[Gate], names: Sequence[str], function: Callable[..., Tensor]) -> list[Tensor]:
    """A function of gates' parameters, element by element, summed over the units of each gate.

    It is called once for all: each function of a handful of numbers is a kernel of its own on a GPU.

    Args:
        gates: of one method.
        names: of the parameters.
        function: of these tensors, for all gates one after the other.
    """
    together = (torch.cat([getattr(gate, name) for gate in gates]) for name in names)
    return [part.sum() for part in torch.split(function(*together), [gate.num_units for gate in gates])]


def require_positive(**values: float) -> None:
    """Refuse hyper-parameters that are not finite positive numbers, by name."""
    for name, value in values.items():
        if not (is_number(value) and value > 0):
            raise InputError(f"{name} must be a finite number above zero, not {value!r}")


def require_finite(**values: float) -> None:
    """Refuse hyper-parameters that are not finite numbers, by name."""
    for name, value in values.items():
        if not is_number(value):
            raise InputError(f"{name} must be a finite number, not {value!r}")


def require_probability(**values: float) -> None:
    """Refuse hyper-parameters that are not numbers between zero and one, both excluded, by name."""
    for name, value in values.items():
        if not (is_number(value) and 0 < value < 1):
            raise InputError(f"{name} must be a number between 0 and 1, not {value!r}")
