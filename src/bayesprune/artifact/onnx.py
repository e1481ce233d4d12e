"""``export_onnx``: a model as one ONNX file that was seen to compute the same."""

import importlib
import inspect
import os
import reprlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from bayesprune.artifact.file import file_to_write
from bayesprune.artifact.network import LoadedNetwork
from bayesprune.errors import BayespruneWarning, InputError, first_line, how_to_install
from bayesprune.example_inputs import ExampleInputs, arguments, batch_size, tensors_in, with_batch_size, with_other_values, with_own_memory
from bayesprune.gates import gates
from bayesprune.graph.calls import not_updated, run_example, run_watched
from bayesprune.graph.quiet import quiet_tracers
from bayesprune.graph.surroundings import in_turn
from bayesprune.prediction import evaluating
from bayesprune.storage import write_bytes

OPSET = 20
_OPSETS = range(18, 24)
"""What torch's exporter writes for any model; it tries others, and where it fails it writes the one it likes best without an error."""
TOLERANCE = 1e-4
BATCH = "batch"
_LARGEST_FILE = 2**31


@in_turn()
def export_onnx(
    model: nn.Module,
    example_inputs: ExampleInputs,
    path: str | os.PathLike[str],
    *,
    opset: int = OPSET,
    dynamic_batch: bool = True,
    check: bool = True,
) -> None:
    """Write a model, in evaluation mode, into one ONNX file.

    Args:
        model: a model without gates.
        example_inputs: a tensor, a tuple of positional arguments or a mapping of keyword arguments that it runs on; tensors may be in
            containers, whose tensors are inputs of the file one by one.
        path: of the file; one that is there is replaced when the new one has been checked.
        opset: the version of ONNX's operators, 18 to 23; older and newer ones work for some models.
        dynamic_batch: whether the first dimension of the inputs may have any size.
        check: run the file with onnxruntime on the example and on other numbers, in a batch of another size if that may be, and compare.

    Raises:
        InputError: the model has gates, returns something else than tensors or cannot be exported, in this opset or at all, the file
            computes something else, or what ``bayesprune[onnx]`` installs is missing.
        StorageError: the file cannot be written.
    """
    _check_model(model)
    arguments(example_inputs)
    target = file_to_write(path, "network.onnx")
    if not isinstance(opset, int) or isinstance(opset, bool):
        raise InputError(f"opset is a whole number, {_OPSETS[0]} to {_OPSETS[-1]}, not {opset!r}")
    for needed in ("onnx", "onnxscript", *(("onnxruntime",) if check else ())):
        required(needed)
    example = with_batch_size(example_inputs, 2) if dynamic_batch and batch_size(example_inputs) == 1 else example_inputs
    result, written = run_watched(model, example)
    _check_result(model, result)
    with evaluating(model):
        content = onnx_content(model, example, opset, dynamic_batch)
    if check:
        elsewhere = _with_numbers(model, with_batch_size(example, batch_size(example) + 1) if dynamic_batch else example)
        fixed = "If its batch size is fixed, give dynamic_batch=False; " if dynamic_batch else ""
        check_content(model, [example, elsewhere], content, advice=f"{fixed}check=False writes it all the same")
    write_bytes(target, content)
    if written:
        warnings.warn(not_updated(model, written, "the file"), BayespruneWarning, stacklevel=3)


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"export_onnx takes an nn.Module, not {type(model).__name__}: export_onnx(model, example_inputs, path)")
    if gates(model):
        raise InputError("the model has gates: remove what they prune with bayesprune.compact first, and export what that gives")
    for module in model.modules():
        if advice := getattr(module, "export_advice", None):
            raise InputError(f"export_onnx cannot write an {type(module).__name__}: {advice}")
    check_channels(model)


def _check_result(model: nn.Module, result: Any) -> None:
    for leaf in pytree.tree_leaves(result):
        if leaf is not None and not isinstance(leaf, Tensor):
            raise InputError(
                f"{type(model).__name__} returns an object of type {type(leaf).__name__} ({reprlib.repr(leaf)}): an ONNX file gives "
                "tensors only. Export a model that returns its tensors alone; sizes can be read from their shapes"
            )


def _with_numbers(model: nn.Module, inputs: ExampleInputs) -> ExampleInputs:
    """Other numbers than these, unless the model can do nothing with them: runtimes differ in what they make of NaN."""
    other = with_other_values(inputs)
    try:
        defined = not any(bool(tensor.isnan().any()) for tensor in tensors_in(run_example(model, other)))
    except InputError:
        return inputs
    return other if defined else inputs


def check_channels(model: nn.Module) -> None:
    """That no layer is without channels.

    Raises:
        InputError: one is.
    """
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0:
            raise InputError(f"'{name}' has no elements: runtimes for ONNX hang on layers without channels. Keep at least one channel")


def required(package: str) -> Any:
    """A package that export needs.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(f"export to ONNX needs the package {package} ({error}): {how_to_install('onnx')}") from error


def onnx_content(model: nn.Module, example: ExampleInputs, opset: int = OPSET, dynamic_batch: bool = False) -> bytes:
    """What an ONNX file of a model consists of.

    Args:
        model: in evaluation mode.
        example: inputs that it runs on.
        opset: the version of ONNX's operators.
        dynamic_batch: whether the first dimension of the inputs may have any size.

    Raises:
        InputError: the model cannot be exported.
    """
    args, kwargs = _arguments(model, with_own_memory(example))
    batch = batch_size(example)

    def shape(leaf: Any) -> Any:
        return {0: BATCH} if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[0] == batch else None

    given = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    shapes = pytree.tree_map(shape, dict(given)) if dynamic_batch else None
    try:
        with quiet_export():
            program = torch.onnx.export(
                model,
                (*args, {}) if not kwargs else args,  # It takes a dictionary that comes last for keyword arguments.
                kwargs=kwargs,
                dynamo=True,
                dynamic_shapes=shapes,
                opset_version=opset,
                input_names=_input_names(model, args, kwargs),
                verbose=False,
            )
            assert program is not None
            proto = program.model_proto
            content: bytes = proto.SerializeToString()
    except Exception as error:
        hint = " If its batch size is fixed, give dynamic_batch=False" if dynamic_batch else ""
        raise InputError(f"{type(model).__name__} cannot be exported to ONNX: {reason(error)}.{hint}") from error
    written = next((each.version for each in proto.opset_import if each.domain in ("", "ai.onnx")), opset)
    if written != opset:
        raise InputError(
            f"torch's exporter cannot write {type(model).__name__} in opset {opset}, and gives opset {written} instead. It writes opsets "
            f"{_OPSETS[0]} to {_OPSETS[-1]}; others work for some models only"
        )
    if len(content) >= _LARGEST_FILE:
        raise InputError(f"{type(model).__name__} takes {len(content) >> 20} MB: an ONNX file can be no larger than 2 GB")
    return content


def _arguments(model: nn.Module, example: ExampleInputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call in the order of the signature, which is the exporter's; by position for a network that takes any names."""
    args, kwargs = arguments(example)
    if isinstance(model, LoadedNetwork):
        return (*args, *(kwargs[name] for name in model.blueprint.program.inputs[len(args) :])), {}
    order = list(inspect.signature(model.forward).parameters)
    return args, {name: kwargs[name] for name in sorted(kwargs, key=lambda name: order.index(name) if name in order else len(order))}


def _input_names(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str] | None:
    """The names of the model's arguments, if each of them is a tensor."""
    named = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    names = list(model.blueprint.program.inputs if isinstance(model, LoadedNetwork) else named)
    plain = all(isinstance(value, Tensor) for value in (*args, *kwargs.values()))
    return names if plain and len(names) == len(args) + len(kwargs) else None


def check_content(model: nn.Module, examples: Sequence[ExampleInputs], content: bytes, advice: str = "") -> None:
    """That onnxruntime computes from a file's content what a model computes.

    Args:
        model: what is expected.
        examples: what to compare on.
        content: of the file.
        advice: what else a user could do if it does not.

    Raises:
        InputError: it does not run, or computes something else.
    """
    onnxruntime = required("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    what, outcome = f"the exported {type(model).__name__}", f"Nothing was written. {advice}" if advice else "Nothing was written"
    session = None
    for inputs in examples:
        expected = tensors_in(run_example(model, inputs))
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_in(inputs))
        try:
            session = session or onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            names = [each.name for each in session.get_inputs()]
            feed = {name: tensor.numpy(force=True) for name, tensor in zip(names, tensors_in(_arguments(model, inputs)), strict=True)}
            results = [torch.as_tensor(result) for result in session.run(None, feed)]
        except Exception as error:
            raise InputError(f"onnxruntime cannot run {what} on inputs of shape {shapes}: {reason(error)}. {outcome}") from error
        if len(results) != len(expected):
            raise InputError(f"{what} gives {len(results)} tensors in onnxruntime instead of {len(expected)}. {outcome}")
        off = difference(results, expected)
        if off > TOLERANCE:
            raise InputError(
                f"{what} computes something else in onnxruntime on inputs of shape {shapes}: it is off by {off:.1e} of the largest "
                f"output. {outcome}"
            )


def difference(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest difference of a tensor from the one expected, each over its largest element, or 1 if that is smaller."""
    return max((_difference(result.cpu(), wanted.cpu()) for result, wanted in zip(results, expected, strict=True)), default=0.0)


def _difference(result: Tensor, wanted: Tensor) -> float:
    """Over the largest element or 1; half precision is given its rounding."""
    if result.shape != wanted.shape:
        return float("inf")
    if wanted.numel() == 0:
        return 0.0
    a, b = result.double(), wanted.double()
    both = (a == b) | (a.isnan() & b.isnan())
    error = torch.where(both, 0.0, (a - b).abs().nan_to_num(torch.inf)).max()
    size = torch.where(b.isfinite(), b.abs(), 0.0).max().clamp(min=1.0)
    rounding = 32.0 * torch.finfo(wanted.dtype).eps if wanted.is_floating_point() and wanted.dtype.itemsize < 4 else 0.0
    return max(0.0, float(error / size) - rounding)


def reason(error: BaseException) -> str:
    """The line of an exporter's message that says what was wrong: it puts words of its own around the cause."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error).rstrip(".")


@contextmanager
def quiet_export() -> Iterator[None]:
    """Without the exporter's warnings, which are about packages and code that are not the user's."""
    with quiet_tracers("torch.onnx", "onnxscript", "onnx_ir"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
