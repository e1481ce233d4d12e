"""Which word of the vocabulary a call is, and its arguments in the vocabulary's names."""

import inspect
from typing import Any

from bayesprune.graph.vocabulary import BY_ATEN, BY_CALLABLE, BY_METHOD, RESIZING, Function

_RENAMED = {
    "self": "input",
    "tensor": "input",
    "x": "input",
    "a": "input",
    "b": "other",
    "mat2": "other",
    "vec2": "other",
    "exponent": "other",
    "size": "shape",
    "split_size": "sections",
    "split_sizes": "sections",
    "split_size_or_sections": "sections",
    "indices_or_sections": "sections",
    "axis": "dim",
    "axis0": "dim0",
    "axis1": "dim1",
    "keepdims": "keepdim",
    "output_size": "size",
    "unbiased": "correction",
    "scale_factors": "scale_factor",
    "tensors": "operands",
}
"""Parameter names of torch and ATen -> ours."""


def spelled(target: Any) -> str:
    """What a call is named in torch: ``relu``, ``add_``, ``convolution.default``."""
    return str(getattr(target, "__name__", target))


def function_of(op: str, target: Any) -> Function | None:
    """The word for what an ``fx`` node calls, or None."""
    if op == "call_method":
        return BY_METHOD.get(target)
    overload = getattr(target, "_overloadname", None)
    if overload is not None:
        return BY_ATEN.get(f"{target._schema.name.removeprefix('aten::')}.{overload}") if target.namespace == "aten" else None
    try:
        return BY_CALLABLE.get(target)
    except TypeError:
        return None


def bind(function: Function, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """The arguments of a call by the parameter names of the vocabulary; None where they do not fit."""
    if function.gathers is not None:
        position = function.parameters.index(function.gathers)
        if len(args) > position and not isinstance(args[position], (tuple, list, type(None))):
            several = args[position:]
            # x.mean(1, True) is one dimension and keepdim; x.mean(1, 2) would be two.
            if function.gathers != "dim" or (len(several) > 1 and all(type(each) is int for each in several)):
                args = (*args[:position], several)
    names = _parameter_names(function, target)
    if len(args) > len(names):
        return None
    bound = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        bound[_ours(function, name)] = value
    if function.name == "arange" and "start" not in bound and "end" in bound:
        bound["start"] = bound.pop("end")  # The form with a single number.
    if function.name == "interpolate" and "mode" not in names:
        bound["mode"] = RESIZING[target._schema.name.removeprefix("aten::")]
    unknown = {name: value for name, value in bound.items() if name not in function.parameters}
    if any(value is not None and name not in _HARMLESS for name, value in unknown.items() if (name, value) != ("return_indices", False)):
        return None
    bound = {name: bound[name] for name in function.parameters if name in bound}
    missing = [name for name in function.parameters if name not in bound and name not in function.defaults]
    return None if missing else function.defaults | bound


_HARMLESS = frozenset(
    {"memory_format", "pin_memory", "implicit", "device", "layout", "_stacklevel", "requires_grad", "non_blocking", "copy"}
)


def _parameter_names(function: Function, target: Any) -> tuple[str, ...]:
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return tuple(_ours(function, argument.name) for argument in schema.arguments)
    if inspect.isfunction(target):  # Python functions of torch may order their parameters in a way of their own.
        names = tuple(_ours(function, name) for name in inspect.signature(target).parameters)
        if set(function.parameters) & set(names):
            return names
    return function.parameters


def _ours(function: Function, name: str) -> str:
    """Our name for a parameter of torch."""
    return name if name in function.parameters else _RENAMED.get(name, name)
