"""A blueprint as JSON, and back with every word checked."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from keyword import iskeyword
from typing import Any

from bayesprune.artifact.blueprint import Blueprint, LayerPlan, Program, Step
from bayesprune.artifact.checks import entries, fields, mapping, shown, text
from bayesprune.artifact.layers import check_settings, forward_parameters, setting_text
from bayesprune.artifact.network import NUMBER_WORDS
from bayesprune.artifact.tables import table_from_json, table_to_json
from bayesprune.artifact.values import MalformedError, at_most, decode, encode, references
from bayesprune.graph.layer_types import LAYERS
from bayesprune.graph.vocabulary import FUNCTIONS

MAX_STEPS = 20_000
MAX_VALUES = 1_000_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}", re.ASCII)
_EQUATION = re.compile(r"[A-Za-z,.\s]{1,200}(->[A-Za-z.\s]{0,100})?", re.ASCII)
_TEXTS: dict[str, Callable[[str], Any]] = {
    "equation": _EQUATION.fullmatch,
    "index": _NAME.fullmatch,  # of a mapping that is an input
    "mode": {
        "nearest", "nearest-exact", "linear", "bilinear", "bicubic", "trilinear", "area", "constant", "reflect", "replicate", "circular",
    }.__contains__,
    "rounding_mode": {"trunc", "floor"}.__contains__,
    "approximate": {"none", "tanh"}.__contains__,
}  # fmt: skip


def to_json(blueprint: Blueprint) -> dict[str, Any]:
    """The description of a blueprint."""
    program = blueprint.program
    return {
        "inputs": [{"name": name, "example": encode(example)} for name, example in zip(program.inputs, blueprint.examples, strict=True)],
        "steps": [_step_to_json(step) for step in program.steps],
        "output": encode(program.output),
        "layers": {path: {"type": plan.type, "settings": _each(encode, plan.settings)} for path, plan in blueprint.layers.items()},
        "tensors": table_to_json(blueprint.tensors),
    }


def from_json(description: Mapping[str, Any]) -> Blueprint:
    """The blueprint that a description stands for.

    Raises:
        MalformedError: something in it is not what a description may say.
    """
    _check_lengths(description)
    layers = {path: _layer(path, data) for path, data in mapping(description.get("layers"), "layers").items()}
    tensors = table_from_json(description.get("tensors"))
    names, examples = _inputs(description.get("inputs"))
    known = set(names)
    words = {"layer": layers.keys(), "tensor": set(tensors.names()), "call": FUNCTIONS.keys(), "number": NUMBER_WORDS.keys()}
    steps = []
    for data in description["steps"]:
        step = _step(data, words, layers)
        _check_new(step.name, known)
        _check_known(step.reads(), known, f"the step '{step.name}'")
        known.add(step.name)
        steps.append(step)
    output = decode(description.get("output"))
    _check_known(references(output), known, "the output")
    return Blueprint(Program(tuple(names), tuple(steps), output), tuple(examples), layers, tensors)


def _check_lengths(description: Mapping[str, Any]) -> None:
    """Refuse what would take long to read. Every layer is called by a step, so there are no more of them."""
    if len(entries(description.get("steps"), "steps")) > MAX_STEPS:
        raise MalformedError(f"there are more than {MAX_STEPS} steps")
    if len(mapping(description.get("layers"), "layers")) > MAX_STEPS:
        raise MalformedError(f"there are more than {MAX_STEPS} layers")
    if not at_most(MAX_VALUES, [description.get(part) for part in ("inputs", "steps", "output", "layers")]):
        raise MalformedError(f"there are more than {MAX_VALUES} values")


def _step_to_json(step: Step) -> dict[str, Any]:
    data: dict[str, Any] = {"name": step.name, "kind": step.kind, "target": step.target}
    if step.args:
        data["args"] = [encode(value) for value in step.args]
    if step.kwargs:
        data["kwargs"] = _each(encode, step.kwargs)
    return data


def _each(function: Callable[[Any], Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: function(value) for name, value in values.items()}


def _inputs(data: Any) -> tuple[list[str], list[Any]]:
    names: list[str] = []
    examples = []
    for each in entries(data, "inputs"):
        given = fields(each, "an input", {"name", "example"})
        name = text(given["name"], "the name of an input")
        _check_new(name, names)
        names.append(name)
        examples.append(decode(given["example"]))
        if list(references(examples[-1])):
            raise MalformedError(f"the example of the input '{name}' refers to a step")
    return names, examples


def _layer(path: str, data: Any) -> LayerPlan:
    given = fields(data, f"the layer {path[:60]!r}", {"type", "settings"})
    if not isinstance(given["type"], str) or given["type"] not in LAYERS:
        raise MalformedError(f"the layer {path[:60]!r} is of an unknown type, {shown(given['type'])}")
    settings = {
        name: decode(value, lambda word, name=name: setting_text(name, word))  # type: ignore[misc]
        for name, value in mapping(given["settings"], "settings").items()
    }
    check_settings(given["type"], settings)
    return LayerPlan(given["type"], settings)


def _step(data: Any, words: Mapping[str, Collection[str]], layers: Mapping[str, LayerPlan]) -> Step:
    given = fields(data, "a step", {"name", "kind", "target"}, {"args", "kwargs"})
    name, kind, target = (text(given[key], f"the {key} of a step") for key in ("name", "kind", "target"))
    args, kwargs = entries(given.get("args", []), "args"), mapping(given.get("kwargs", {}), "kwargs")
    if kind not in words or target not in words[kind]:
        raise MalformedError(f"the step {name[:60]!r} calls the {kind[:20]!r} {target[:60]!r}, which is not known")
    positional, keywords = _parameters(kind, target, layers, len(args))
    unknown = [keyword for keyword in kwargs if keyword not in keywords]
    if unknown or positional is None:
        wrong = f"the argument {unknown[0][:60]!r}" if unknown else f"{len(args)} arguments"
        raise MalformedError(f"the step {name[:60]!r} gives {wrong} to {target[:60]!r}, which does not take that")
    return Step(
        name,
        kind,  # type: ignore[arg-type]
        target,
        tuple(_argument(parameter, value) for parameter, value in zip(positional, args, strict=True)),
        {keyword: _argument(keyword, value) for keyword, value in kwargs.items()},
    )


def _parameters(kind: str, target: str, layers: Mapping[str, LayerPlan], count: int) -> tuple[list[str] | None, Collection[str]]:
    """What the positional arguments are called, or None if there are too many, and which keywords may follow."""
    if kind == "call":
        parameters = [parameter for parameter in FUNCTIONS[target].parameters if parameter != "inplace"]
        return (parameters[:count] if count <= len(parameters) else None), parameters[count:]
    most = {"layer": 4, "number": 2, "tensor": 0}[kind]
    return (["input"] * count if count <= most else None), forward_parameters(layers[target].type) if kind == "layer" else ()


def _argument(parameter: str, data: Any) -> Any:
    allowed = _TEXTS.get(parameter)
    return decode(data, (lambda word: bool(allowed(word))) if allowed is not None else lambda _: False)


def _check_new(name: str, known: Collection[str]) -> None:
    if not _NAME.fullmatch(name) or name.startswith("__") or iskeyword(name) or name in known:
        raise MalformedError(f"{name[:60]!r} is no name for an input or a step, or is used twice")


def _check_known(names: Iterable[str], known: Collection[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise MalformedError(f"{where} refers to {name[:60]!r}, which no step before it computes")
