"""`bayesprune bench` and `bayesprune export`: trained networks, measured and written for others."""

from pathlib import Path
from typing import Annotated

import typer

from bayesprune.benchmark import benchmark
from bayesprune.cli.common import err, out, parts
from bayesprune.errors import DataError, InputError
from bayesprune.experiments.compacted import NETWORK
from bayesprune.experiments.deployment import export_deployment, open_deployment
from bayesprune.experiments.per_input import has_dependent_stage, open_dependent_run, per_input_of_run
from bayesprune.report.figures.latency_by_work import draw_latency_by_work
from bayesprune.storage import append_row, exists, is_folder

FIGURE, INPUTS = "latency-by-work.png", 500
BENCH_EXAMPLES = """**Examples**

`bayesprune bench runs/20260101-120000-lenet-500-300-dbb` — a run's compacted network beside its dense one

`bayesprune bench runs/20260101-120000-lenet-500-300-dbb --inputs 2000` — a run of DBB also input by input, on so many test images

`bayesprune bench small.safetensors --batch-sizes 1,8,64 --runtimes eager,compiled,onnxruntime` — a saved network in all runtimes"""


def bench(
    path: Annotated[Path, typer.Argument(help="A file that bayesprune.save wrote, or the folder of a finished run.")],
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,64",
    runtimes: Annotated[str, typer.Option(help="Of eager, compiled and onnxruntime, separated by commas.")] = "eager",
    seconds: Annotated[float, typer.Option(help="To measure each row of the table, at least.")] = 1.0,
    threads: Annotated[int | None, typer.Option(help="Processor threads; by default as many as torch uses.")] = None,
    rows: Annotated[Path | None, typer.Option(help="Append the measurements to this JSONL file.")] = None,
    inputs: Annotated[
        int | None, typer.Option(min=0, help="For a run of DBB: how many test images to time one by one; 0 for none, by default 500.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Latency against work, as a PNG file; by default in the run's folder.")] = None,
) -> None:
    """Measure how long a network takes: in batches, and an input-dependent one also input by input."""
    deployment = open_deployment(path)
    dependent = is_folder(path) and has_dependent_stage(path)
    if not dependent and (inputs or figure is not None):
        raise InputError(f"--inputs and --figure are for the folder of a run of DBB, which {path} is not")
    _check_targets(rows, figure)
    run, why_not = None, ""
    if dependent and inputs != 0:  # Before anything is measured: what cannot be read is said at once.
        try:
            run = open_dependent_run(path)
        except DataError as error:
            if inputs is not None:
                raise
            why_not = f"not measured input by input: {error}"
    measured = benchmark(
        deployment.networks,
        deployment.inputs,
        batch_sizes=parts(batch_sizes, "--batch-sizes", int),
        runtimes=parts(runtimes, "--runtimes", str),
        seconds=seconds,
        threads=threads,
        progress=err.is_terminal,
    )
    out.print(str(measured), highlight=False, soft_wrap=True, markup=False)
    if rows is not None:
        for row in measured.rows():
            append_row(rows, {"path": path.name, **row})
    if why_not:
        err.print(why_not, highlight=False, soft_wrap=True, markup=False)
    if run is None:
        return
    by_input = per_input_of_run(run, inputs or INPUTS, threads=threads, progress=err.is_terminal)
    out.print(f"\n{by_input}", highlight=False, soft_wrap=True, markup=False)
    if rows is not None:
        for row in by_input.rows():
            append_row(rows, {"path": path.name, "benchmark": "per_input", **row})
    drawn = figure or path / FIGURE
    draw_latency_by_work(by_input.models, drawn)
    out.print(f"latency against work: {drawn}", highlight=False, soft_wrap=True, markup=False)


def _check_targets(rows: Path | None, figure: Path | None) -> None:
    """Refuse files that cannot be written before anything is measured for them."""
    if figure is not None and not is_folder(figure.parent):
        raise InputError(f"there is no folder {figure.parent} for the figure")
    if rows is not None and (is_folder(rows) or not is_folder(rows.parent)):
        raise InputError(f"the measurements cannot be appended to {rows}: give the name of a file, in a folder that is there")


EXPORT_EXAMPLES = """**Examples**

`bayesprune export runs/20260101-120000-lenet-500-300-dbb` — the compacted network of a run, into its folder

`bayesprune export small.safetensors --out small.onnx` — a saved network"""


def export(
    path: Annotated[Path, typer.Argument(help="A file that bayesprune.save wrote, or the folder of a finished run.")],
    target: Annotated[Path | None, typer.Option("--out", help="The ONNX file; by default beside the network.")] = None,
) -> None:
    """Write a network as an ONNX file that has been seen to compute the same in onnxruntime."""
    network = path / NETWORK if is_folder(path) else path
    written = target or network.with_suffix(".onnx")
    if exists(written) and exists(network) and written.samefile(network):
        raise InputError(f"{written} is the network itself, which the ONNX file would replace: give another name with --out")
    export_deployment(path, written)
    out.print(f"written to {written}", highlight=False, soft_wrap=True, markup=False)
