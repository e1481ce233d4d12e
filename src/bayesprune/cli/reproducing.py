"""`bayesprune reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from bayesprune.cli.common import absolute, err, one_voice, out, parts, stoppable
from bayesprune.errors import InputError
from bayesprune.experiments.main_job import complete
from bayesprune.experiments.protocol import protocol
from bayesprune.experiments.published import tradeoff_value
from bayesprune.experiments.reproduction import Places, run_reproduction
from bayesprune.report import sweep_tables
from bayesprune.training.distributed import launched
from bayesprune.training.watching import ProgressBars

RESULTS, QUICK_RESULTS, WORK = Path("results"), Path("reproductions/quick"), Path("reproductions")
REPRODUCE_EXAMPLES = """**Examples**

`bayesprune reproduce lenet-500-300` — every row of the paper's table: minutes on a large GPU

`bayesprune reproduce lenet5-caffe --methods bb,dbb` — a part of it; the same command goes on where it was stopped

`bayesprune reproduce lenet-500-300 --quick` — everything in a small form, minutes on a processor: to see it work, not to compare"""


def reproduce(
    network: Annotated[str, typer.Argument(help="lenet-500-300 or lenet5-caffe.")],
    quick: Annotated[bool, typer.Option("--quick", help="A small form of everything, on a processor; its rows say so.")] = False,
    methods: Annotated[str | None, typer.Option(help="Only these rows, separated by commas: dense, cd, gd, sbp, l0, vib, bb, dbb.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas; by default 0,1,2.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set is; see 'bayesprune data'.")] = None,
    side_by_side: Annotated[int | None, typer.Option(min=1, help="How many models are trained at a time, at most.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="The folder for rows and models; by default results, for --quick reproductions/quick.")
    ] = None,
    work: Annotated[Path | None, typer.Option(help="The folder for checkpoints; by default one under reproductions/.")] = None,
) -> None:
    """Train every row of the paper's table of a network again; rows that are there already are left alone."""
    with launched() as ranks, one_voice(ranks):
        if not ranks.alone:
            raise InputError("torchrun trains one model in several processes, not the fleets of a reproduction: start it without torchrun")
    asked = protocol(
        network,
        quick=quick,
        methods=None if methods is None else parts(methods, "--methods", str),
        seeds=None if seeds is None else parts(seeds, "--seeds", int),
    )
    chosen = results or (QUICK_RESULTS if quick else RESULTS)
    places = Places(
        rows=chosen / f"{asked.name}.jsonl",
        models=chosen / "models",
        work=work or WORK / f"{asked.name}-{asked.recipe.name}",
    )
    given = {
        "network": asked.network,
        "dataset": asked.dataset,
        "device": device,
        "data_dir": None if data_dir is None else absolute(data_dir),
    }
    common = complete({name: value for name, value in given.items() if value is not None})
    with stoppable("what is finished is kept", "the same command"), ProgressBars(err) as watcher:
        rows = run_reproduction(asked, places, watcher, device=common.device, data_dir=common.data_dir, side_by_side=side_by_side)
    numbers = [{**row, "tradeoff": None if row["tradeoff"] is None else tradeoff_value(row["tradeoff"])} for row in rows]
    for table in sweep_tables(numbers):
        out.print(table)
    if quick:
        out.print("This was --quick: a part of the data and few epochs. Its numbers say nothing about the paper's.", style="bold yellow")
    out.print(f"written to {places.rows}; bayesprune report makes tables and figures of it", highlight=False, soft_wrap=True, markup=False)
