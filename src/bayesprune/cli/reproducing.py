"""`bayesprune reproduce`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from bayesprune.cli.common import absolute, err, given, out, parts, refuse_torchrun, stoppable
from bayesprune.errors import InputError
from bayesprune.experiments.evidence import MODELS, NETWORKS
from bayesprune.experiments.main_job import check_config, complete
from bayesprune.experiments.protocol import Protocol, own_protocol, protocol
from bayesprune.experiments.published import tradeoff_value
from bayesprune.experiments.reproduction import Places, run_reproduction
from bayesprune.experiments.rows import read_result_rows
from bayesprune.report import sweep_tables
from bayesprune.report.comparison.pairs import compare
from bayesprune.report.comparison.results import as_in_tables
from bayesprune.report.document.terminal import comparison_table
from bayesprune.storage import exists, read_rows
from bayesprune.training.recipes import PAPER
from bayesprune.training.watching import ProgressBars

RESULTS, QUICK_RESULTS, WORK = Path("results"), Path("reproductions/quick"), Path("reproductions")
REPRODUCE_EXAMPLES = """**Examples**

`bayesprune reproduce lenet-500-300` — every row of the paper's table: minutes on a large GPU

`bayesprune reproduce lenet5-caffe --methods bb,dbb` — a part of it; the same command goes on where it was stopped

`bayesprune reproduce lenet-500-300 --recipe consistent` — our own recipe for BB and DBB, with five seeds, in a file of its own

`bayesprune reproduce vgg-cifar10 --recipe deep --precision bfloat16` — VGG-like by a recipe for processors too, made for bfloat16: hours

`bayesprune reproduce vgg-cifar10 --main-table --seeds 0` — the rows of the paper's main table, one model after the other

`bayesprune reproduce vgg-cifar10 --methods bb --tradeoffs 4 --after-activation --shrink` — gates in another place, on networks that shrink

`bayesprune reproduce lenet-500-300 --quick` — everything in a small form, minutes on a processor: to see it work, not to compare"""


def reproduce(
    network: Annotated[str, typer.Argument(help="lenet-500-300, lenet5-caffe, vgg-cifar10 or vgg-cifar100.")],
    quick: Annotated[bool, typer.Option("--quick", help="A small form of everything, on a processor; its rows say so.")] = False,
    methods: Annotated[str | None, typer.Option(help="Only these rows, separated by commas: dense, cd, gd, sbp, l0, vib, bb, dbb.")] = None,
    recipe: Annotated[str | None, typer.Option(help="A recipe of our own, for BB and DBB: consistent, smooth, brief or deep.")] = None,
    tradeoffs: Annotated[str | None, typer.Option(help="Only these trade-offs, as they are printed, separated by commas.")] = None,
    main_table: Annotated[bool, typer.Option("--main-table", help="Only the trade-offs that the paper's main table shows.")] = False,
    after_activation: Annotated[
        bool, typer.Option("--after-activation", help="Gate convolutions after their activations, not before their norms.")
    ] = False,
    shrink: Annotated[bool, typer.Option("--shrink", help="Take pruned units out of the networks while they are trained.")] = False,
    precision: Annotated[
        str | None, typer.Option(help="float32 or, on a GPU or a processor made for it, bfloat16; by default that for VGG on a GPU.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, separated by commas; by default three, for our own recipes five.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set is; see 'bayesprune data'.")] = None,
    side_by_side: Annotated[int | None, typer.Option(min=1, help="How many models are trained at a time, at most.")] = None,
    results: Annotated[
        Path | None, typer.Option(help="The folder for rows and models; by default results, for --quick reproductions/quick.")
    ] = None,
    work: Annotated[Path | None, typer.Option(help="The folder for checkpoints; by default one under reproductions/.")] = None,
) -> None:
    """Train every row of the paper's table of a network again; rows that are there already are left alone."""
    refuse_torchrun("fleets of a reproduction")
    chosen_seeds = None if seeds is None else parts(seeds, "--seeds", int)
    if recipe is None:
        chosen_methods = None if methods is None else parts(methods, "--methods", str)
        about = {"quick": quick, "after_activation": after_activation, "shrink": shrink}
        asked = protocol(network, methods=chosen_methods, seeds=chosen_seeds, precision=precision, **about)
    else:
        asked = own_protocol(network, recipe, chosen_seeds, precision)
        others = {"quick": quick, "methods": methods, "main-table": main_table, "after-activation": after_activation}
        in_the_way = [f"--{name}" for name, value in (others | {"shrink": shrink}).items() if value]
        if in_the_way:
            raise InputError(f"--recipe trains BB and DBB with a recipe of our own: leave {', '.join(in_the_way)} out")
    if main_table:
        asked = asked.of_main_table()
    if tradeoffs is not None:
        asked = asked.at(parts(tradeoffs, "--tradeoffs", str))
    chosen = results or (QUICK_RESULTS if quick else RESULTS)
    places = Places(
        rows=chosen / f"{asked.name}.jsonl",
        models=chosen / MODELS,
        networks=chosen / NETWORKS,
        work=work or WORK / (asked.name if asked.is_own else f"{asked.network}-{asked.dataset}-{asked.recipe.name}"),
    )
    common = complete(given(network=asked.network, dataset=asked.dataset, device=device, data_dir=absolute(data_dir), precision=precision))
    check_config(common)
    before = read_rows(places.rows) if exists(places.rows) else []
    with stoppable("what is finished is kept", "the same command"), ProgressBars(err) as watcher:
        rows = run_reproduction(asked, places, watcher, device=common.device, data_dir=common.data_dir, side_by_side=side_by_side)
    for table in _tables(asked, places.rows, rows):
        out.print(table)
    if rows and len(rows) == len(before):
        out.print("These rows were there: nothing was trained. To train them again, name another folder with --results.")
    if quick:
        out.print("This was --quick: a part of the data and few epochs. Its numbers say nothing about the paper's.", style="bold yellow")
    report = "bayesprune report" if chosen == RESULTS else f"bayesprune report --results {chosen} --out {chosen / 'report'}"
    out.print(f"written to {places.rows}; tables and figures: {report}", highlight=False, soft_wrap=True, markup=False)


def _tables(asked: Protocol, path: Path, rows: list[dict[str, Any]]) -> list[Table]:
    """The rows beside the paper's, where they are comparable."""
    if asked.recipe.name == PAPER.name:
        comparison = compare(asked.network, asked.dataset, as_in_tables(read_result_rows(path)))
        return [comparison_table(comparison)]
    return sweep_tables([{**row, "tradeoff": None if row["tradeoff"] is None else tradeoff_value(row["tradeoff"])} for row in rows])
