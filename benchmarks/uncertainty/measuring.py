"""The rows of a network: for each way to predict with it, and each rotation of the digits."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bayesprune as bp
from bayesprune.uncertainty import Uncertainty
from benchmarks.uncertainty.networks import Digits

ANGLES = (0, 15, 30, 45, 60)
DRAWS = 32
COVERAGES = (0.99, 0.95, 0.9)
CHUNK = 1000
SOFTMAX, TEMPERATURE, DRAWN, NARROW = "softmax", "softmax at a temperature", "draws", "draws of the narrower network"
TIMED, TIMED_BATCH = 15, 100


def rows_of(model: nn.Module, given: Digits) -> Iterator[dict[str, Any]]:
    """A row for each way to predict and each rotation."""
    held_out, held_labels = given.held_out
    images, labels = given.test
    temperature = bp.fit_temperature(_in_chunks(held_out, lambda x: bp.predict(model, x, activation=None)), held_labels)
    draws = bool(bp.gates(model))
    narrow = bp.narrow(model).model if draws else None
    about = {"temperature": temperature, **({} if narrow is None else _cost(model, narrow, images))}
    for angle in ANGLES:
        turned = rotated(images, angle)
        scores = _in_chunks(turned, lambda x: bp.predict(model, x, activation=None))
        ways = {SOFTMAX: torch.softmax(scores, dim=1), TEMPERATURE: torch.softmax(scores / temperature, dim=1)}
        for name, probabilities in ways.items():
            yield {"way": name, "rotation": angle, **_believed(probabilities, labels), **about}
        for name, network in ((DRAWN, model), (NARROW, narrow)) if draws else ():
            assert network is not None
            torch.manual_seed(angle)
            found = _drawn(network, turned)
            of_draws = {
                "draws": DRAWS,
                "entropy": float(found.entropy.mean()),
                "mutual_information": float(found.mutual_information.mean()),
            }
            yield {"way": name, "rotation": angle, **_believed(found.mean, labels), **of_draws, **about}


def rotated(images: Tensor, degrees: float) -> Tensor:
    """Images turned about their middle, black where nothing was."""
    if degrees == 0:
        return images
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0]])
    places = F.affine_grid(turn.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, places, align_corners=False)


def _believed(probabilities: Tensor, labels: Tensor) -> dict[str, Any]:
    """How far probabilities can be believed."""
    found = bp.calibration(probabilities, labels)
    return {
        "error": found.error,
        "nll": found.nll,
        "brier": found.brier,
        "calibration_error": found.calibration_error,
        **{f"error_at_{coverage}": found.error_at(coverage) for coverage in COVERAGES},
    }


def _in_chunks(images: Tensor, predict: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([predict(part) for part in images.split(CHUNK)])


def _drawn(model: nn.Module, images: Tensor) -> Uncertainty:
    """Of all images; each part of them has draws of its own."""
    parts = [bp.uncertainty(model, part, samples=DRAWS) for part in images.split(CHUNK)]
    mean, std = (torch.cat([getattr(part, name) for part in parts]) for name in ("mean", "std"))
    entropies = [part.expected_entropy for part in parts if part.expected_entropy is not None]
    return replace(parts[0], mean=mean, std=std, expected_entropy=torch.cat(entropies))


def _cost(model: nn.Module, narrow: nn.Module, images: Tensor) -> dict[str, Any]:
    """What the draws for a batch cost, on the whole network and on the narrower one, in turns."""
    networks = {"whole": model, "narrow": narrow}
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(TIMED):
        for name, network in networks.items():
            start = time.perf_counter()
            bp.predict(network, images[:TIMED_BATCH], samples=DRAWS)
            seconds[name].append(time.perf_counter() - start)
    sizes = {f"{name}_parameters": sum(each.numel() for each in network.parameters()) for name, network in networks.items()}
    times = {f"{name}_ms": 1000 * statistics.median(seconds[name]) for name in networks}
    kept = {"units": [gate.num_units for gate in bp.gates(narrow).values()], "threads": torch.get_num_threads()}
    return {**times, **sizes, **kept}
