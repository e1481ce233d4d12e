"""What the commands share: the application, the consoles, and how options, errors and Ctrl-C are treated."""

import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bayesprune.data.folders import named_folder
from bayesprune.errors import BayespruneError, BayespruneWarning, InputError, one_line
from bayesprune.training.distributed import Ranks, launched
from bayesprune.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Bayesian structured sparsification: learn which units of a network are needed, and take the others out.",
    epilog="""**Examples**

`bayesprune run` — prune LeNet-500-300 on the embedded MNIST, minutes on a laptop

`bayesprune run --resume runs/20260101-120000-lenet-500-300-dbb` — go on where a run was stopped

`bayesprune sweep --methods bb,vib --factors 0.5,1,2` — many models side by side

`bayesprune reproduce lenet-500-300` — every row of the paper's table, on a GPU; `--quick` to see it work

`bayesprune report` — tables, figures and a page of the rows, beside the paper's

`bayesprune bench runs/20260101-120000-lenet-500-300-dbb` — the latency of what is left, beside the dense network

`bayesprune export runs/20260101-120000-lenet-500-300-dbb` — what is left, as an ONNX file

`bayesprune data` — the data sets and where they are""",
)
out = Console()
err = Console(stderr=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"bayesprune {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    pass


SHRINK_HELP = "Take pruned units out while training goes on, which makes it faster; by default with all recipes but paper and consistent."
RECIPE_HELP = (
    "fast; paper: 200 epochs a stage; our own: consistent, smooth, brief, deep, with 300, 60, 100 and 50 epochs of pruning. "
    "By default fast; on a GPU paper."
)
TRADEOFF_HELP = (
    "The method's trade-off: for bb, dbb and sbp the factor on the KL divergence, for vib its absolute weight, for l0 the price of a "
    "weight, for gd alpha of the prior. By default what suits method and recipe: 1.75 for bb and dbb with the recipe fast."
)
PRECISION_HELP = "float32 (the default) or bfloat16, to compute layers in on a GPU, or on a processor made for it."


@contextmanager
def warnings_in_one_line() -> Iterator[None]:
    """Our own warnings are for whoever reads the screen, not for whoever reads the code that they come from."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, BayespruneWarning):
            err.print(f"warning: {one_line(str(message))}", style="yellow", highlight=False, soft_wrap=True, markup=False)
        else:
            usual(message, category, *where, **more)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


@contextmanager
def one_voice(ranks: Ranks) -> Iterator[None]:
    """Let the first of several processes speak for all; an error that another has alone, it has to tell itself."""
    if ranks.alone:
        yield
        return
    err.quiet = out.quiet = not ranks.is_first
    try:
        yield
    except BayespruneError as error:
        if ranks.is_first:
            say_error(error)
        if not ranks.all_stopped() and not ranks.is_first:
            err.quiet = False
            say_error(error)
        raise typer.Exit(2) from error


def say_error(error: BayespruneError) -> None:
    """Tell an error of our own in one line."""
    err.print(f"error: {one_line(str(error))}", style="red", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def stoppable(kept: str, command: str) -> Iterator[None]:
    """Let Ctrl-C, or a scheduler's request to terminate, end a job in peace, and say how to go on with it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt as stop:
        err.print(f"stopped; {kept}: go on with {command}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130) from stop
    finally:
        signal.signal(signal.SIGTERM, before)


def given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def refuse_torchrun(models: str) -> None:
    """Refuse several processes where models are trained side by side.

    Args:
        models: which they are.
    """
    with launched() as ranks, one_voice(ranks):
        if not ranks.alone:
            raise InputError(f"torchrun trains one model in several processes, not the {models}: start it without torchrun")


def absolute(data_dir: Path | None) -> str | None:
    """The data folder, if one is given, as it is found from anywhere: a run may be taken up from another place."""
    if data_dir is None:
        return None
    folder = named_folder(data_dir)
    assert folder is not None
    return str(folder.absolute())


def parts(text: str, option: str, kind: type[Any]) -> list[Any]:
    """What stands between the commas of an option."""
    try:
        return [kind(part.strip()) for part in text.split(",")]
    except ValueError as error:
        numbers = "whole numbers separated by commas, such as 1,64" if kind is int else "numbers separated by commas, such as 0.5,2"
        raise InputError(f"{option} takes {numbers}, not '{text}'") from error
