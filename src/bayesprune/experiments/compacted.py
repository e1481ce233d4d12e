"""The last stage of a run: the network that is left, as a file, with its certificate and its measured latency."""

import copy
import time
import warnings
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from bayesprune.artifact import save
from bayesprune.benchmark import benchmark
from bayesprune.compact import Compaction, compact
from bayesprune.cost import relative_cost
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.models.description import DescribedModel
from bayesprune.storage import write_json
from bayesprune.training.evaluation import LossFunction, evaluate
from bayesprune.training.sources import BatchSource, first_inputs

STAGE = "compacted"
NETWORK = "compacted.safetensors"
CERTIFICATE = "certificate.json"
BATCH_SIZES = (1, 64)


def compact_stage(gated: nn.Module, dense: nn.Module, test: BatchSource, loss: LossFunction, folder: Path) -> dict[str, Any]:
    """Remove the pruned units of a trained model, keep what is left in the run's folder, and measure it against the dense network.

    Args:
        gated: the model after the last stage of training.
        dense: the network without gates, to compare the latency with.
        test: to evaluate on; the certificate's example comes from it.
        loss: of a batch.
        folder: of the run.

    Returns:
        The stage's row: error on the test set, units kept, cost in the paper's convention, and measured milliseconds by batch size.
    """
    started = time.perf_counter()
    inputs = first_inputs(test)
    result = _compact_into(gated, inputs, folder / NETWORK)
    write_json(folder / CERTIFICATE, result.certificate.as_dict())
    evaluation = evaluate(result.model, test, loss)
    return {
        "stage": STAGE,
        "error": evaluation.error,
        **_size(gated, result),
        "difference": result.max_rel_error,
        "latency": _latency(dense, result.model, inputs),
        "seconds": round(time.perf_counter() - started, 3),
    }


def keep_compacted(gated: nn.Module, test: BatchSource, loss: LossFunction, path: Path) -> dict[str, Any]:
    """Remove the pruned units of a trained model and keep what is left, as a file.

    The removal is carried out and certified on a processor, where nothing is rounded to fewer digits; the model stays where it is.

    Args:
        gated: the trained model; it is not changed.
        test: to evaluate on.
        loss: of a batch.
        path: of the file.

    Returns:
        What a row says of it: the file's name, the error, multiply-accumulates, parameters, and how far it is from the gated model. If that
        is too far, why there is no file: hours of training are not to be lost by it.
    """
    inputs = first_inputs(test)
    try:
        result = _compact_into(copy.deepcopy(gated).cpu(), inputs.cpu(), path)
    except InputError as error:
        return {"reason": str(error)}
    evaluation = evaluate(result.model.to(inputs.device), test, loss)
    after = result.certificate.after
    return {
        "file": path.name,
        "error": evaluation.error,
        "macs": after.macs,
        "parameters": after.parameters,
        "difference": result.max_rel_error,
    }


def _compact_into(gated: nn.Module, inputs: Tensor, path: Path) -> Compaction:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no unit is under", BayespruneWarning)  # The table says as much.
        result = compact(gated, inputs)
    save(result.model, path, example_inputs=inputs, certificate=result.certificate.as_dict(), cost=result.certificate.after)
    return result


def _size(gated: nn.Module, result: Compaction) -> dict[str, Any]:
    """Units and cost of what physically exists: input-dependent gates count with all units that some input may use."""
    kept = list(result.kept.values())
    paper = relative_cost(gated.layers(), kept) if isinstance(gated, DescribedModel) else None
    return {
        "kept": kept,
        "speedup": None if paper is None else paper.speedup,
        "memory": None if paper is None else paper.memory_percent,
        "macs": result.certificate.after.macs,
        "parameters": result.certificate.after.parameters,
    }


def _latency(dense: nn.Module, small: nn.Module, inputs: Tensor) -> list[dict[str, Any]]:
    """Median milliseconds of both networks, by batch size."""
    measured = benchmark({"dense": dense, STAGE: small}, inputs, batch_sizes=BATCH_SIZES, seconds=0.25)
    return [
        {
            "batch_size": size,
            **{timing.model: round(timing.median_ms, 4) for timing in measured.timings if timing.batch_size == size},
            "faster": round(next(measured.speedup(t) for t in measured.timings if t.batch_size == size and t.model == STAGE), 3),
        }
        for size in BATCH_SIZES
    ]
