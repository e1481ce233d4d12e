"""`bayesprune run`."""

from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesprune.cli.common import PRECISION_HELP, RECIPE_HELP, SHRINK_HELP, TRADEOFF_HELP, absolute, err, given, one_voice, out, stoppable
from bayesprune.errors import InputError, RunFolderError, first_line
from bayesprune.experiments import RunConfig, check_config, complete, read_config, run_main_job, spelled_out
from bayesprune.experiments.compacted import CERTIFICATE, NETWORK
from bayesprune.models import build_network
from bayesprune.models.description import DescribedModel
from bayesprune.report import draw_kept_units, latency_lines, removal_lines, stage_table
from bayesprune.storage import read_rows
from bayesprune.training.distributed import launched
from bayesprune.training.watching import ProgressBars

FIGURE = "kept-units.png"
RUN_EXAMPLES = """**Examples**

`bayesprune run` — LeNet-500-300 on the embedded MNIST, all stages, minutes on a laptop

`bayesprune run --network lenet5-caffe --tradeoff 4` — stronger pruning of a convolutional network

`bayesprune run --method vib --epochs 20` — one of the paper's baselines

`bayesprune run --resume runs/20260101-120000-lenet-500-300-dbb` — go on where a run was stopped"""


def run(
    network: Annotated[str | None, typer.Option(help="lenet-500-300 (the default), lenet5-caffe or vgg-like.")] = None,
    dataset: Annotated[
        str | None, typer.Option(help="mnist, cifar10 or cifar100; by default the one that the network is made for.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="dbb (the default: BB, then DBB), bb, sbp, vib, l0, gd or cd.")] = None,
    recipe: Annotated[str | None, typer.Option(help=RECIPE_HELP)] = None,
    tradeoff: Annotated[float | None, typer.Option(help=TRADEOFF_HELP)] = None,
    kl_scale: Annotated[float | None, typer.Option(help="The factor on the KL divergence, instead of the trade-off's.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of every stage, instead of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed, any whole number; 0 by default.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; by default a GPU if there is one.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the data set is; see 'bayesprune data'.")] = None,
    before_norm: Annotated[bool | None, typer.Option("--before-norm/--after-activation", help="Where convolutions are gated.")] = None,
    shrink: Annotated[bool | None, typer.Option("--shrink/--no-shrink", help=SHRINK_HELP)] = None,
    precision: Annotated[str | None, typer.Option(help=PRECISION_HELP)] = None,
    folder: Annotated[Path | None, typer.Option("--out", help="The run's folder; by default a new one under runs/.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Go on with the run in this folder; needs no other option.")] = None,
) -> None:
    """Pretrain a network, prune it, make it input-dependent, remove what is not needed, and report every stage."""
    options = given(
        network=network,
        dataset=dataset,
        method=method,
        recipe=recipe,
        tradeoff=tradeoff,
        kl_scale=kl_scale,
        epochs=epochs,
        seed=seed,
        device=device,
        data_dir=absolute(data_dir),
        before_norm=before_norm,
        shrink=shrink,
        precision=precision,
    )
    with launched() as ranks, one_voice(ranks):
        config, chosen = ranks.first(lambda: _run_and_folder(options, folder, resume))
        check_config(config)
        with stoppable("finished epochs are kept", f"bayesprune run --resume {chosen}"), ProgressBars(err) as watcher:
            summary = run_main_job(config, chosen, watcher, ranks)
        ranks.first(lambda: _report(chosen, config, summary))


def _run_and_folder(options: dict[str, Any], folder: Path | None, resume: Path | None) -> tuple[RunConfig, Path]:
    """The run that the options ask for."""
    if resume is not None:
        if folder is not None:
            raise InputError(f"--resume goes on in {resume}, --out {folder} asks for another folder; give one of them")
        return _check_same(spelled_out(read_config(resume)), options, resume), resume
    config = complete(options)
    return config, folder or Path("runs") / f"{datetime.now():%Y%m%d-%H%M%S}-{config.network}-{config.method}"


def _check_same(config: RunConfig, options: dict[str, Any], folder: Path) -> RunConfig:
    """Refuse options that contradict the run that is to be resumed."""
    stored = asdict(config)
    for name, value in options.items():
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
