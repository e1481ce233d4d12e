"""The command line: parses, calls, prints."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bayesprune.benchmark import benchmark
from bayesprune.data import describe_datasets, load_dataset
from bayesprune.data.folders import named_folder
from bayesprune.errors import BayespruneError, InputError, RunFolderError, did_you_mean, one_line
from bayesprune.example_inputs import first_line
from bayesprune.experiments import RunConfig, check_config, complete, read_config, run_main_job, with_tradeoff
from bayesprune.experiments.compacted import CERTIFICATE, NETWORK
from bayesprune.experiments.deployment import export_deployment, open_deployment
from bayesprune.experiments.engine import Engine, LocalEngine
from bayesprune.experiments.grid import expand, read_grid
from bayesprune.experiments.ray_engine import RayEngine
from bayesprune.experiments.sweep import ROWS, read_sweep, run_sweep
from bayesprune.experiments.watching import SweepBars
from bayesprune.models import build_network
from bayesprune.models.description import DescribedModel
from bayesprune.report import draw_kept_units, draw_tradeoffs, latency_lines, removal_lines, stage_table, sweep_tables
from bayesprune.storage import append_row, exists, is_folder, read_rows
from bayesprune.training.distributed import Ranks, launched
from bayesprune.training.watching import ProgressBars
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

`bayesprune bench runs/20260101-120000-lenet-500-300-dbb` — the latency of what is left, beside the dense network

`bayesprune export runs/20260101-120000-lenet-500-300-dbb` — what is left, as an ONNX file

`bayesprune data` — the data sets and where they are""",
)
out = Console()
err = Console(stderr=True)

FIGURE = "kept-units.png"
TRADEOFFS = "tradeoffs.png"
SHRINK_HELP = "Take pruned units out while training goes on, which makes it faster; by default with the recipe fast."
PRECISION_HELP = "float32 (the default) or bfloat16, to compute layers in on a GPU."


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"bayesprune {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    pass


@app.command(
    epilog="""**Examples**

`bayesprune run` — LeNet-500-300 on the embedded MNIST, all stages, minutes on a laptop

`bayesprune run --network lenet5-caffe --tradeoff 4` — stronger pruning of a convolutional network

`bayesprune run --method vib --epochs 20` — one of the paper's baselines

`bayesprune run --resume runs/20260101-120000-lenet-500-300-dbb` — go on where a run was stopped"""
)
def run(
    network: Annotated[str | None, typer.Option(help="lenet-500-300 (the default), lenet5-caffe or vgg-like.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="mnist, cifar10 or cifar100; by default the one that the network is made for.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="dbb (the default: BB, then DBB), bb, sbp, vib, l0, gd or cd.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="fast, or paper: 200 epochs a stage. By default fast on a processor, paper on a GPU.")
    ] = None,
    tradeoff: Annotated[
        float | None, typer.Option(help="The method's trade-off: for bb, dbb and sbp the factor on the KL divergence.")
    ] = None,
    kl_scale: Annotated[float | None, typer.Option(help="The factor on the KL divergence, instead of the trade-off's.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of every stage, instead of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random: any whole number; 0 by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set is; see 'bayesprune data'.")] = None,
    before_norm: Annotated[bool | None, typer.Option("--before-norm/--after-activation", help="Where convolutions are gated.")] = None,
    shrink: Annotated[bool | None, typer.Option("--shrink/--no-shrink", help=SHRINK_HELP)] = None,
    precision: Annotated[str | None, typer.Option(help=PRECISION_HELP)] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="The run's folder; by default a new one under runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder; needs no other option.")] = None,
) -> None:
    """Pretrain a network, prune it, make it input-dependent, remove what is not needed, and report every stage."""
    given = {
        "network": network,
        "dataset": dataset,
        "method": method,
        "recipe": recipe,
        "tradeoff": tradeoff,
        "kl_scale": kl_scale,
        "epochs": epochs,
        "seed": seed,
        "device": device,
        "data_dir": None if data_dir is None else _absolute(data_dir),
        "before_norm": before_norm,
        "shrink": shrink,
        "precision": precision,
    }
    given = {name: value for name, value in given.items() if value is not None}
    with launched() as ranks, _one_voice(ranks):
        config, chosen = ranks.first(lambda: _run_and_folder(given, folder, resume))
        check_config(config)
        with _stoppable("finished epochs are kept", f"bayesprune run --resume {chosen}"), ProgressBars(err) as watcher:
            summary = run_main_job(config, chosen, watcher, ranks)
        ranks.first(lambda: _report(chosen, config, summary))


def _run_and_folder(given: dict[str, Any], folder: Path | None, resume: Path | None) -> tuple[RunConfig, Path]:
    """The run that the options ask for."""
    if resume is not None:
        if folder is not None:
            raise InputError(f"--resume goes on in {resume}, --out {folder} asks for another folder; give one of them")
        return _check_same(with_tradeoff(read_config(resume)), given, resume), resume
    config = complete(given)
    return config, folder or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{config.network}-{config.method}"


@contextmanager
def _one_voice(ranks: Ranks) -> Iterator[None]:
    """Let the first of several processes speak for all; an error that another has alone, it has to tell itself."""
    if ranks.alone:
        yield
        return
    err.quiet = out.quiet = not ranks.is_first
    try:
        yield
    except BayespruneError as error:
        if ranks.is_first:
            _say_error(error)
        if not ranks.all_stopped() and not ranks.is_first:
            err.quiet = False
            _say_error(error)
        raise typer.Exit(2) from error


def _say_error(error: BayespruneError) -> None:
    err.print(f"error: {one_line(str(error))}", style="red", highlight=False, soft_wrap=True, markup=False)


@contextmanager
def _stoppable(kept: str, command: str) -> Iterator[None]:
    """Let Ctrl-C end a job in peace, and say how to go on with it."""
    try:
        yield
    except KeyboardInterrupt as stop:
        err.print(f"stopped; {kept}: go on with {command}", highlight=False, soft_wrap=True, markup=False)
        raise typer.Exit(130) from stop


def _absolute(data_dir: Path) -> str:
    """The data folder as it is found from anywhere: a run may be taken up from another place."""
    folder = named_folder(data_dir)
    assert folder is not None
    return str(folder.absolute())


def _check_same(config: RunConfig, given: dict[str, Any], folder: Path) -> RunConfig:
    """Refuse options that contradict the run that is to be resumed."""
    stored = asdict(config)
    for name, value in given.items():
        if stored[name] != value:
            option = name.replace("_", "-")
            raise InputError(f"the run in {folder} has {option} {stored[name]}, not {value}; --resume needs no other option")
    return config


def _report(folder: Path, config: RunConfig, summary: dict[str, Any]) -> None:
    """Draw the figure and print the tables of a finished run."""
    try:
        _draw(folder, config)
        out.print(stage_table(summary))
        for line in (*removal_lines(summary), *latency_lines(summary)):
            out.print(line, highlight=False, soft_wrap=True)
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise RunFolderError(
            f"summary.json or metrics.jsonl in {folder} is damaged ({first_line(error)}): put a good copy in its place or start a new run"
        ) from error
    written = f"written to {folder}: {NETWORK}, {CERTIFICATE}, summary.json, metrics.jsonl, {FIGURE}, checkpoints/"
    out.print(written, highlight=False, soft_wrap=True, markup=False)


def _draw(folder: Path, config: RunConfig) -> None:
    model = build_network(config.network)
    assert isinstance(model, DescribedModel)
    places = model.gate_places(config.before_norm)
    draw_kept_units(
        read_rows(folder / "metrics.jsonl"), [place.units for place in places], [place.name for place in places], folder / FIGURE
    )


@app.command(
    epilog="""**Examples**

`bayesprune bench runs/20260101-120000-lenet-500-300-dbb` — a run's compacted network beside its dense one

`bayesprune bench small.safetensors --batch-sizes 1,8,64 --runtimes eager,compiled,onnxruntime` — a saved network in all runtimes"""
)
def bench(
    path: Annotated[Path, typer.Argument(help="A file that bayesprune.save wrote, or the folder of a finished run.")],
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,64",
    runtimes: Annotated[str, typer.Option(help="Of eager, compiled and onnxruntime, separated by commas.")] = "eager",
    seconds: Annotated[float, typer.Option(help="To measure each row of the table, at least.")] = 1.0,
    threads: Annotated[int | None, typer.Option(help="Processor threads; by default as many as torch uses.")] = None,
    rows: Annotated[Path | None, typer.Option(help="Append the measurements to this JSONL file.")] = None,
) -> None:
    """Measure how long a network takes: warm-up, medians and spread, batch by batch."""
    deployment = open_deployment(path)
    measured = benchmark(
        deployment.networks,
        deployment.inputs,
        batch_sizes=_parts(batch_sizes, "--batch-sizes", int),
        runtimes=_parts(runtimes, "--runtimes", str),
        seconds=seconds,
        threads=threads,
        progress=err.is_terminal,
    )
    out.print(str(measured), highlight=False, soft_wrap=True, markup=False)
    if rows is not None:
        for row in measured.rows():
            append_row(rows, {"path": path.name, **row})


@app.command(
    epilog="""**Examples**

`bayesprune export runs/20260101-120000-lenet-500-300-dbb` — the compacted network of a run, into its folder

`bayesprune export small.safetensors --out small.onnx` — a saved network"""
)
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


@app.command(
    epilog="""**Examples**

`bayesprune sweep --methods bb,vib --factors 0.5,1,2 --seeds 0,1,2` — two methods, three trade-offs each, three seeds

`bayesprune sweep examples/sweep.toml` — the same from a file

`bayesprune sweep examples/sweep.toml --engine ray` — several shards at a time, on the cores and GPUs of this machine

`bayesprune sweep examples/sweep.toml --engine ray --address 192.0.2.7:6379` — on a Ray cluster

`bayesprune sweep --resume sweeps/20260101-120000` — go on where a sweep was stopped, with any engine"""
)
def sweep(
    file: Annotated[Path | None, typer.Argument(help="A TOML file with the settings; options take the place of its own.")] = None,
    networks: Annotated[str | None, typer.Option(help="Networks, separated by commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, separated by commas.")] = None,
    factors: Annotated[str | None, typer.Option(help="Factors on each method's usual trade-off, separated by commas.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    recipe: Annotated[str | None, typer.Option(help="fast or paper; by default fast on a processor, paper on a GPU.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of every stage, instead of the recipe's.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set is; see 'bayesprune data'.")] = None,
    shrink: Annotated[bool | None, typer.Option("--shrink/--no-shrink", help=SHRINK_HELP)] = None,
    precision: Annotated[str | None, typer.Option(help=PRECISION_HELP)] = None,
    side_by_side: Annotated[int | None, typer.Option(help="How many models are trained at a time, at most.")] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="The sweep's folder; by default a new one under sweeps/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the sweep in this folder; needs no other option.")] = None,
    engine: Annotated[
        str, typer.Option(help="local: one shard after another; ray: as many at a time as a cluster has room for.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster: host:port, ray://host:port or auto; by default one is started here.")
    ] = None,
) -> None:
    """Train networks x methods x trade-offs x seeds side by side, and draw error against speed-up."""
    with launched() as ranks, _one_voice(ranks):
        if not ranks.alone:
            raise InputError("torchrun trains one model in several processes, not the models of a sweep: start it without torchrun")
    given = {
        "networks": None if networks is None else _parts(networks, "--networks", str),
        "methods": None if methods is None else _parts(methods, "--methods", str),
        "factors": None if factors is None else _parts(factors, "--factors", float),
        "seeds": None if seeds is None else _parts(seeds, "--seeds", int),
        "recipe": recipe,
        "epochs": epochs,
        "device": device,
        "data_dir": None if data_dir is None else _absolute(data_dir),
        "shrink": shrink,
        "precision": precision,
        "side_by_side": side_by_side,
    }
    given = {name: value for name, value in given.items() if value is not None}
    chosen = _engine(engine, address)
    if resume is not None:
        if given or file is not None or folder is not None:
            raise InputError("--resume goes on with a sweep as it is and needs no other option but --engine and --address")
        planned, folder = read_sweep(resume), resume
    else:
        planned = expand({**({} if file is None else read_grid(file)), **given})
        folder = folder or Path("sweeps") / f"{datetime.now():%Y%m%d-%H%M%S}"
    again = f"bayesprune sweep --resume {folder}" + f" --engine {engine}" * (engine != "local") + f" --address {address}" * bool(address)
    with _stoppable("what is finished is kept", again), SweepBars(err) as watcher:
        rows = run_sweep(planned, folder, watcher, chosen)
    draw_tradeoffs(rows, folder / TRADEOFFS)
    for table in sweep_tables(rows):
        out.print(table)
    out.print(f"written to {folder}: {ROWS}, {TRADEOFFS}", highlight=False, soft_wrap=True, markup=False)


def _engine(name: str, address: str | None) -> Engine:
    """Who trains the shards of a sweep."""
    if name == "ray":
        return RayEngine(address)
    if name != "local":
        raise InputError(f"unknown engine '{name}': there are local and ray.{did_you_mean(name, ('local', 'ray'))}")
    if address is not None:
        raise InputError(f"--address {address} is that of a Ray cluster: give --engine ray with it")
    return LocalEngine()


def _parts(text: str, option: str, kind: type[Any]) -> list[Any]:
    """What stands between the commas of an option."""
    try:
        return [kind(part.strip()) for part in text.split(",")]
    except ValueError as error:
        numbers = "whole numbers separated by commas, such as 1,64" if kind is int else "numbers separated by commas, such as 0.5,2"
        raise InputError(f"{option} takes {numbers}, not '{text}'") from error


@app.command(
    epilog="""**Examples**

`bayesprune data` — what there is

`bayesprune data --download cifar10` — fetch a data set from its official address"""
)
def data(
    download: Annotated[str | None, typer.Option(help="Download this data set: cifar10 or cifar100.")] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="The folder for data sets; by default $BAYESPRUNE_DATA or the cache folder.")
    ] = None,
) -> None:
    """Show the data sets and where they are, or download one."""
    if download is not None:
        loaded = load_dataset(download, data_dir, download=True)
        out.print(f"{loaded.name}: {len(loaded.train):,} training and {len(loaded.test):,} test images are in place", highlight=False)
        return
    table = Table()
    for heading in ("data set", "images", "classes", "where"):
        table.add_column(heading, overflow="fold")
    for row in describe_datasets(data_dir):
        table.add_row(row.name, row.images, str(row.classes), escape(row.where))
    out.print(table)


def main() -> None:
    """Run the command line: our own errors become one line and exit code 2."""
    try:
        app()
    except BayespruneError as error:
        _say_error(error)
        sys.exit(2)


if __name__ == "__main__":
    main()
