"""`bayesprune sweep`."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from bayesprune.cli.common import PRECISION_HELP, RECIPE_HELP, SHRINK_HELP, absolute, err, given, out, parts, refuse_torchrun, stoppable
from bayesprune.errors import InputError, did_you_mean
from bayesprune.experiments.engine import Engine, LocalEngine
from bayesprune.experiments.grid import expand
from bayesprune.experiments.ray_engine import RayEngine
from bayesprune.experiments.sweep import ROWS, read_sweep, run_sweep
from bayesprune.experiments.watching import SweepBars
from bayesprune.report import draw_tradeoffs, sweep_tables
from bayesprune.storage import read_toml

TRADEOFFS = "tradeoffs.png"


SWEEP_EXAMPLES = """**Examples**

`bayesprune sweep --methods bb,vib --factors 0.5,1,2 --seeds 0,1,2` — two methods, three trade-offs each, three seeds

`bayesprune sweep examples/sweep.toml` — what a file asks for

`bayesprune sweep examples/sweep.toml --engine ray` — several shards at a time, on the cores and GPUs of this machine

`bayesprune sweep examples/sweep.toml --engine ray --address 192.0.2.7:6379` — on a Ray cluster

`bayesprune sweep --resume sweeps/20260101-120000` — go on where a sweep was stopped, with any engine"""


def sweep(
    file: Annotated[Path | None, typer.Argument(help="A TOML file with the settings; options override its own.")] = None,
    networks: Annotated[str | None, typer.Option(help="Networks, separated by commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, separated by commas.")] = None,
    factors: Annotated[str | None, typer.Option(help="Factors on each method's usual trade-off, separated by commas.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas.")] = None,
    recipe: Annotated[str | None, typer.Option(help=RECIPE_HELP)] = None,
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
    refuse_torchrun("models of a sweep")
    options = given(
        networks=None if networks is None else parts(networks, "--networks", str),
        methods=None if methods is None else parts(methods, "--methods", str),
        factors=None if factors is None else parts(factors, "--factors", float),
        seeds=None if seeds is None else parts(seeds, "--seeds", int),
        recipe=recipe,
        epochs=epochs,
        device=device,
        data_dir=absolute(data_dir),
        shrink=shrink,
        precision=precision,
        side_by_side=side_by_side,
    )
    chosen = _engine(engine, address)
    if resume is not None:
        if options or file is not None or folder is not None:
            raise InputError("--resume goes on with a sweep as it is and needs no other option but --engine and --address")
        planned, folder = read_sweep(resume), resume
    else:
        planned = expand({**({} if file is None else read_toml(file)), **options})
        folder = folder or Path("sweeps") / f"{datetime.now():%Y%m%d-%H%M%S}"
    again = f"bayesprune sweep --resume {folder}" + f" --engine {engine}" * (engine != "local") + f" --address {address}" * bool(address)
    with stoppable("what is finished is kept", again), SweepBars(err) as watcher:
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
