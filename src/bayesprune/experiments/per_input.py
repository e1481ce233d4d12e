"""A finished run with input-dependent gates, measured input by input: dense, compacted and adaptive."""

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesprune.adaptive import AdaptiveModel
from bayesprune.attach import make_dependent
from bayesprune.benchmark import PerInputBenchmark, benchmark_per_input
from bayesprune.benchmark.latency import with_threads
from bayesprune.errors import RunFolderError
from bayesprune.experiments.main_job import batches_of, build_seeded, check_config, data_of, plan_of, read_config
from bayesprune.storage import exists, read_tensors
from bayesprune.training.loading import load_members
from bayesprune.training.members import Members
from bayesprune.training.recipes import STAGES
from bayesprune.training.stages import put_gates_in
from bayesprune.training.store import finished_stage

EXAMPLES = 200
"""Test images whose masks tell what to expect: the last ones, since it is the first that are timed."""


def has_dependent_stage(folder: Path) -> bool:
    """Whether a run trains input-dependent gates."""
    return read_config(folder).method == "dbb"


@dataclass(frozen=True, eq=False)
class DependentRun:
    """A finished run of DBB.

    Attributes:
        dense: its pretrained network.
        gated: its last one.
        images: of the test.
        labels: of these.
    """

    dense: nn.Module
    gated: nn.Module
    images: Tensor
    labels: Tensor


def open_dependent_run(folder: Path) -> DependentRun:
    """The networks and test images of a finished run of DBB.

    Raises:
        RunFolderError: a stage of it is not there.
        DataError: its data set is not.
        StorageError: a file is damaged.
    """
    config = read_config(folder)
    recipe, data = check_config(config), data_of(config)
    kept = {stage: finished_stage(folder, stage) for stage in STAGES}
    for path in kept.values():
        if not exists(path):
            raise RunFolderError(f"{folder} has no {path.relative_to(folder)}: finish the run first with bayesprune run --resume {folder}")
    _, test = batches_of(data, recipe, torch.device("cpu"))
    images, labels = next(iter(test.in_order(len(data.test))))
    dense = build_seeded(config, data)
    static = put_gates_in(copy.deepcopy(dense), plan_of(config, recipe, len(data.train)), images[:2])
    model = make_dependent(static)
    load_members(Members([dense]), read_tensors(kept["dense"])[0])
    load_members(Members([model]), read_tensors(kept["dependent"])[0])
    return DependentRun(dense.eval(), model.eval(), images, labels)


def per_input_of_run(run: DependentRun, inputs: int, *, threads: int | None = None, progress: bool = False) -> PerInputBenchmark:
    """Time the networks of a run on test images, one by one.

    Args:
        run: of DBB.
        inputs: how many of the first test images, at most.
        threads: processor threads for an operator.
        progress: show a bar with the time left.
    """
    with with_threads(threads):  # Ways are chosen as they are timed.
        adaptive = AdaptiveModel(run.gated, run.images[-EXAMPLES:])
        networks: dict[str, nn.Module] = {
            "compacted": adaptive.compacted,
            "compacted, light": adaptive.plain,
            "adaptive": adaptive,
            "gated": run.gated,
            "dense": run.dense,
        }
        return benchmark_per_input(networks, run.images[:inputs], run.labels[:inputs], threads=threads, progress=progress)
