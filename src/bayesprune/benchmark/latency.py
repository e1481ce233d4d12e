"""``benchmark``: how long one model takes for a batch, or several compared."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from torch import nn

from bayesprune.benchmark.result import Benchmark, Timing, machine_facts
from bayesprune.benchmark.runtimes import RUNTIMES, fresh_compiler, prepare
from bayesprune.benchmark.turns import Contender, take_turns
from bayesprune.errors import InputError, did_you_mean, first_line
from bayesprune.example_inputs import ExampleInputs, batch_size, call, tensors_in, with_batch_size
from bayesprune.prediction import evaluating

_MOST_THREADS = 256
_MOST_ELEMENTS = 2**30


def benchmark(
    models: nn.Module | Mapping[str, nn.Module],
    example_inputs: ExampleInputs,
    *,
    batch_sizes: Sequence[int] | None = (1, 64),
    runtimes: Sequence[str] = ("eager",),
    seconds: float = 1.0,
    repetitions: int = 20,
    warmup: int = 5,
    threads: int | None = None,
    compare: str | None = None,
    progress: bool = False,
) -> Benchmark:
    """Measure how long models take for a batch, in evaluation mode and without gradients.

    Models and runtimes take turns, a part of their time each and in alternating order, so that a machine that slows down slows all alike.
    A call is timed from its start until its result is there, on a GPU too; the inputs are on the device before the clock starts.

    Args:
        models: a model, or several by name; all get the same inputs. Afterwards they are in the mode that they were in.
        example_inputs: a tensor, a tuple of positional arguments or a dictionary of keyword arguments, on the models' device.
        batch_sizes: to which the inputs are repeated or cut along dimension 0; None leaves them as they are.
        runtimes: of ``eager``, ``compiled`` and ``onnxruntime``. Compiling is not timed, is done for each batch size, and makes torch
            forget what it compiled before.
        seconds: of timed calls for each row of the result, at least.
        repetitions: timed calls for each row of the result, at least.
        warmup: calls before that are not timed.
        threads: processor threads for an operator; by default as many as torch is set to.
        compare: the model against which speed-ups are stated; the first by default.
        progress: show a bar with the time left.

    Raises:
        InputError: an argument cannot be worked with, or a model does not run in a runtime.

    Example:
        >>> print(benchmark({"dense": model, "compacted": small}, x, batch_sizes=(1, 64)))
    """
    named = named_models(models)
    baseline = _baseline(compare, named)
    _check_runtimes(runtimes)
    _check_numbers(seconds=seconds, repetitions=repetitions, warmup=warmup)
    sizes = [batch_size(example_inputs)] if batch_sizes is None else _checked_sizes(batch_sizes, example_inputs)
    timings: list[Timing] = []
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for model in named.values():
            stack.enter_context(evaluating(model))
        used = stack.enter_context(with_threads(threads))
        show = stack.enter_context(progress_bar(len(sizes), progress))
        for position, size in enumerate(sizes):
            show(position, f"batch {size}, warming up")
            inputs = _resized(example_inputs, size)
            with fresh_compiler(len(named)) if "compiled" in runtimes else nullcontext():
                contenders = [_contender(name, model, runtime, inputs, warmup) for runtime in runtimes for name, model in named.items()]
                for share in take_turns(contenders, seconds, repetitions):
                    show(position + share, f"batch {size}")
            timings += [contender.timing(size, used) for contender in contenders]
    return Benchmark(tuple(timings), baseline, machine_facts(timings[0].device))


def _contender(name: str, model: nn.Module, runtime: str, inputs: ExampleInputs, warmup: int) -> Contender:
    call(model, inputs)
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers(), *tensors_in(inputs))), torch.device("cpu"))
    return Contender(name, runtime, prepare(name, model, runtime, inputs, warmup), device)


@contextmanager
def with_threads(wanted: int | None) -> Iterator[int]:
    """So many processor threads for an operator, for a while; as many as torch is set to by default.

    Raises:
        InputError: there can be no such number.
    """
    check_count("threads", 1 if wanted is None else wanted)
    most = max(_MOST_THREADS, os.cpu_count() or 1)
    if wanted is not None and wanted > most:
        raise InputError(f"threads must be a whole number of at most {most}, not {wanted}: more than there are processors do not help")
    before = torch.get_num_threads()
    if wanted is not None:
        torch.set_num_threads(wanted)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


@contextmanager
def progress_bar(total: int, visible: bool) -> Iterator[Callable[[float, str], None]]:
    """A bar with the time left, if it is to be seen, and a function that moves it and says what is going on."""
    columns = (
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not visible, transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(completed: float, text: str) -> None:
            bar.update(task, completed=completed, description=text)

        yield show


def named_models(models: nn.Module | Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Models by name; a single one has that of its class.

    Raises:
        InputError: they are something else.
    """
    if isinstance(models, nn.Module):
        return {type(models).__name__: models}
    if not isinstance(models, Mapping) or not models:
        raise InputError(f"benchmark takes an nn.Module or a dictionary of some by name, not {models!r}")
    for name, model in models.items():
        if not isinstance(name, str):
            raise InputError(f"the names of models are text, not {name!r}")
        if not isinstance(model, nn.Module):
            raise InputError(f"'{name}' is not an nn.Module but {type(model).__name__}")
    return dict(models)


def _baseline(wanted: str | None, named: Mapping[str, nn.Module]) -> str:
    if wanted is None:
        return next(iter(named))
    if not isinstance(wanted, str) or wanted not in named:
        raise InputError(f"no model is called {wanted!r}: compare with one of {', '.join(named)}.{did_you_mean(str(wanted), named)}")
    return wanted


def _check_runtimes(runtimes: Sequence[str]) -> None:
    if isinstance(runtimes, str) or not isinstance(runtimes, Sequence) or not runtimes:
        raise InputError(f"runtimes is a sequence of names, such as ('eager',), not {runtimes!r}")
    for runtime in runtimes:
        if not isinstance(runtime, str) or runtime not in RUNTIMES:
            hint = did_you_mean(str(runtime), RUNTIMES)
            raise InputError(f"no runtime is called {runtime!r}: choose from {', '.join(RUNTIMES)}.{hint}")


def _check_numbers(*, seconds: float, repetitions: int, warmup: int) -> None:
    if not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
        raise InputError(f"seconds is how long to measure each row, 0 or more, not {seconds!r}")
    check_count("repetitions", repetitions)
    check_count("warmup", warmup)


def check_count(name: str, count: object) -> None:
    """Refuse what is no whole number of at least 1."""
    if not isinstance(count, int) or count < 1:
        raise InputError(f"{name} must be a whole number of at least 1, not {count!r}")


def _checked_sizes(sizes: Sequence[int], example_inputs: ExampleInputs) -> list[int]:
    whole = isinstance(sizes, Sequence) and all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    if not whole or not sizes:
        raise InputError(f"batch_sizes is a sequence of whole numbers of at least 1, such as (1, 64), or None, not {sizes!r}")
    for size in sizes:
        if size * sum(tensor.numel() for tensor in tensors_in(example_inputs)) > _MOST_ELEMENTS * batch_size(example_inputs):
            raise InputError(f"a batch of {size} of these inputs has more than {_MOST_ELEMENTS} elements: choose smaller batch_sizes")
    return list(dict.fromkeys(sizes))


def _resized(example_inputs: ExampleInputs, size: int) -> ExampleInputs:
    try:
        return with_batch_size(example_inputs, size)
    except RuntimeError as error:  # torch's way to say that the memory is full
        raise InputError(f"a batch of {size} of these inputs cannot be made: {first_line(error)}. Choose smaller batch_sizes") from error
