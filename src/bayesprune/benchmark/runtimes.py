"""What can run a model: torch as it is, ``torch.compile``, and onnxruntime."""

import importlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import nn

from bayesprune.errors import InputError, first_line, how_to_install
from bayesprune.example_inputs import ExampleInputs, arguments, tensors_in

Run: TypeAlias = Callable[[], object]


@dataclass(frozen=True)
class Runtime:
    """One way to run a model.

    Attributes:
        prepare: takes a model and its inputs, gives a call without arguments.
        advice: what to do where it fails.
    """

    prepare: Callable[[nn.Module, ExampleInputs], Run]
    advice: str


def prepare(name: str, model: nn.Module, runtime: str, inputs: ExampleInputs, warmup: int) -> Run:
    """A call without arguments that runs the model; it has been made so many times already.

    Raises:
        InputError: the runtime is not installed, or the model does not run in it.
    """
    try:
        run = RUNTIMES[runtime].prepare(model, inputs)
        with torch.inference_mode():
            for _ in range(warmup):
                run()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"'{name}' does not run in the runtime '{runtime}': {first_line(error)}. {RUNTIMES[runtime].advice}") from error
    return run


@contextmanager
def fresh_compiler(models: int) -> Iterator[None]:
    """Room for so many compiled models: torch would otherwise give up after some recompilations of a class and run it eagerly."""
    import torch._dynamo

    torch.compiler.reset()
    try:
        with torch._dynamo.config.patch(recompile_limit=8 + models):
            yield
    finally:
        torch.compiler.reset()


def _eager(model: nn.Module, inputs: ExampleInputs) -> Run:
    args, kwargs = arguments(inputs)
    return lambda: model(*args, **kwargs)


def _compiled(model: nn.Module, inputs: ExampleInputs) -> Run:
    compiled = torch.compile(model, dynamic=False)
    args, kwargs = arguments(inputs)
    return lambda: compiled(*args, **kwargs)


def _onnxruntime(model: nn.Module, inputs: ExampleInputs) -> Run:
    try:
        onnxruntime = importlib.import_module("onnxruntime")

        from bayesprune.artifact.onnx import export_onnx
    except ImportError as error:
        raise InputError(f"the runtime 'onnxruntime' is not there ({error}): {how_to_install('onnx')}") from error
    if any(tensor.device.type != "cpu" for tensor in tensors_in(inputs)):
        raise InputError("the runtime 'onnxruntime' is measured on the processor: move the model and example_inputs there with .cpu()")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(model, inputs, path)
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    _, kwargs = arguments(inputs)
    tensors = [kwargs[name] for name in names] if kwargs.keys() >= set(names) else tensors_in(inputs)
    feed = {name: tensor.numpy(force=True) for name, tensor in zip(names, tensors, strict=True)}
    return lambda: session.run(None, feed)


RUNTIMES: Mapping[str, Runtime] = MappingProxyType(
    {
        "eager": Runtime(_eager, "See whether it runs under torch.inference_mode()"),
        "compiled": Runtime(
            _compiled,
            "torch.compile needs a C++ compiler (g++ or clang), and Triton on a GPU: install them, or leave 'compiled' out of runtimes",
        ),
        "onnxruntime": Runtime(_onnxruntime, "Try bayesprune.export_onnx on it, or leave 'onnxruntime' out of runtimes"),
    }
)
