"""Layers as data: their type and the arguments of their constructor, and back."""

import inspect
import reprlib
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.utils.parametrize import is_parametrized

from bayesprune.artifact.blueprint import LayerPlan
from bayesprune.artifact.values import MalformedError
from bayesprune.errors import first_line
from bayesprune.gates.hooks import has_other_hooks
from bayesprune.graph.layer_types import LAYERS, POOLINGS

_NO_SETTINGS = frozenset(
    {"self", "args", "kwargs", "device", "dtype", "process_group", "_weight", "_freeze", "init", "min_value", "max_value"}
)
_RECURRENT = {
    "input_size": None,
    "hidden_size": None,
    "num_layers": 1,
    "bias": True,
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
}
_FURTHER: dict[str, dict[str, Any]] = {"LSTM": {"proj_size": 0}, "GRU": {}, "RNN": {"nonlinearity": "tanh"}}
_TEXTS: dict[str, frozenset[str]] = {
    "padding": frozenset({"same", "valid"}),
    "padding_mode": frozenset({"zeros", "reflect", "replicate", "circular"}),
    "mode": frozenset({"nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear"}),
    "approximate": frozenset({"none", "tanh"}),
    "nonlinearity": frozenset({"tanh", "relu"}),
}
_MOST_RECURRENT_LAYERS = 1_000
_STEPS_OF_CONVOLUTIONS = {
    "stride": (1, 1_024),
    "dilation": (1, 1_024),
    "output_padding": (0, 1_024),
    "padding": (0, 4_096),
    "groups": (1, 2**31),
}
"""Lowest and highest values. oneDNN crashes or hangs on transposed convolutions whose stride is in the ten thousands."""
_STEPS_OF_POOLINGS = {"kernel_size": (1, 2**24), "stride": (1, 2**24), "dilation": (1, 2**24), "padding": (0, 4_096)}
"""Lowest and highest values. A window walks over its padding element by element; one that covers the whole of a long signal may be."""


class UnsyncedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """What ``nn.SyncBatchNorm`` is in one process: it takes inputs of any rank, and runs on the processor too.

    ``nn.SyncBatchNorm.convert_sync_batchnorm`` makes it synchronise again.
    """

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.ndim < 2:
            raise ValueError(f"expected an input of at least 2 dimensions, got {input.ndim}")


_CLASSES: dict[str, type[nn.Module]] = {**LAYERS, "SyncBatchNorm": UnsyncedBatchNorm}
_NAMES: dict[type[nn.Module], str] = {
    **{layer: name for name, layer in LAYERS.items()},
    UnsyncedBatchNorm: "SyncBatchNorm",
    NonDynamicallyQuantizableLinear: "Linear",
}


def layer_plan(layer: nn.Module) -> LayerPlan:
    """A layer as data. A parametrised one, such as one with weight norm, is taken for what it computes now.

    Raises:
        MalformedError: it is of another type than those of the vocabulary, or something has been hooked into it.
    """
    kind = type(layer).__bases__[0] if is_parametrized(layer) else type(layer)
    if kind not in _NAMES:
        raise MalformedError(
            f"it is of type {kind.__name__}, which a saved network cannot contain; write it out in functions and layers of torch"
        )
    if has_other_hooks(layer) or "forward" in vars(layer):
        raise MalformedError("a hook changes what it computes: remove the hook first")
    name = _NAMES[kind]
    settings = {}
    for setting, default in defaults(name).items():
        if setting in vars(layer) or setting in layer._parameters:
            value = _setting(layer, setting)
            if default is inspect.Parameter.empty or value != default:
                settings[setting] = value
    return LayerPlan(name, settings)


def make_layer(plan: LayerPlan) -> nn.Module:
    """A layer without memory for its tensors.

    Raises:
        MalformedError: the settings are not ones that this type of layer takes.
    """
    options: dict[str, Any] = dict(plan.settings)
    kind = _CLASSES[plan.type]
    if _takes_device(plan.type):
        options["device"] = "meta"
    try:
        layer = kind(**options)
    except (RuntimeError, ValueError, TypeError, AssertionError, ArithmeticError, AttributeError, IndexError, KeyError) as error:
        raise MalformedError(f"a {plan.type} cannot be made with {reprlib.repr(dict(plan.settings))}: {first_line(error)}") from error
    return layer.eval()


def check_settings(type_name: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings that a layer of this type does not have, and values that no layer has."""
    known = defaults(type_name)
    for name, value in settings.items():
        if name not in known:
            raise MalformedError(f"a {type_name} has no setting {name[:60]!r}; if a newer torch has it, upgrade torch")
        if not _is_setting(name, value):
            raise MalformedError(f"the setting {name[:60]!r} is neither a number nor a sequence of numbers")
    if issubclass(_CLASSES[type_name], nn.modules.conv._ConvNd):
        _check_steps(type_name, settings, _STEPS_OF_CONVOLUTIONS)
    if issubclass(_CLASSES[type_name], POOLINGS):
        _check_steps(type_name, settings, _STEPS_OF_POOLINGS)
    if type_name in _FURTHER and settings.get("num_layers", 1) not in range(1, _MOST_RECURRENT_LAYERS + 1):
        raise MalformedError(f"a {type_name} of more than {_MOST_RECURRENT_LAYERS} layers")


def recurrent_tensors(plans: Iterable[LayerPlan]) -> int:
    """How many tensors the recurrent layers have: the only ones whose number grows with a setting."""
    every = [dict(defaults(plan.type)) | dict(plan.settings) for plan in plans if plan.type in _FURTHER]
    return sum(
        each["num_layers"] * (2 if each["bidirectional"] else 1) * (2 + 2 * bool(each["bias"]) + bool(each.get("proj_size")))
        for each in every
    )


def _check_steps(type_name: str, settings: Mapping[str, Any], limits: Mapping[str, tuple[int, int]]) -> None:
    for name, (lowest, highest) in limits.items():
        value = settings.get(name, lowest)
        for each in value if isinstance(value, tuple) else (value,):
            if not isinstance(each, str) and not (isinstance(each, int) and lowest <= each <= highest):
                raise MalformedError(f"the {name} of a {type_name} is not between {lowest} and {highest}")


def setting_text(setting: str, text: str) -> bool:
    """Whether a setting may be this string."""
    return text in _TEXTS.get(setting, ())


@cache
def defaults(type_name: str) -> Mapping[str, Any]:
    """The settings that a type of layer has, with their defaults."""
    if type_name in _FURTHER:
        required = dict.fromkeys(("input_size", "hidden_size"), inspect.Parameter.empty)
        return _RECURRENT | required | _FURTHER[type_name]
    parameters = inspect.signature(_CLASSES[type_name]).parameters
    return {name: parameter.default for name, parameter in parameters.items() if name not in _NO_SETTINGS}


@cache
def _takes_device(type_name: str) -> bool:
    return type_name in _FURTHER or "device" in inspect.signature(_CLASSES[type_name]).parameters


@cache
def forward_parameters(type_name: str) -> frozenset[str]:
    """The names of the arguments that a type of layer can be called with."""
    return frozenset(inspect.signature(_CLASSES[type_name].forward).parameters) - {"self"}


def _setting(layer: nn.Module, name: str) -> Any:
    if name in layer._parameters:  # ``bias`` is a flag for the constructor and a tensor for the layer.
        return layer._parameters[name] is not None
    value = vars(layer)[name]
    return tuple(value) if isinstance(value, list) else value


def _is_setting(name: str, value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= 100 and all(_is_setting(name, each) for each in value)
    return value is None or isinstance(value, (bool, int, float)) or (isinstance(value, str) and setting_text(name, value))
