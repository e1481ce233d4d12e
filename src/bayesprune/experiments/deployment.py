"""Networks in files and run folders, ready to be measured or exported."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.artifact import LoadedNetwork, export_onnx, load, read_description
from bayesprune.artifact.values import TensorShape
from bayesprune.errors import InputError, RunFolderError
from bayesprune.experiments.compacted import NETWORK
from bayesprune.experiments.main_job import read_config
from bayesprune.models import build_network
from bayesprune.storage import exists, is_folder


@dataclass(frozen=True)
class Deployment:
    """Networks that take the same inputs, the one to deploy last.

    Attributes:
        networks: by name; a run's folder has its dense network too, to compare with.
        inputs: random ones of the shapes that the network was saved with.
    """

    networks: dict[str, nn.Module]
    inputs: tuple[Any, ...]


def open_deployment(path: Path) -> Deployment:
    """The network in a file that ``save`` wrote, or in the folder of a finished run.

    Raises:
        RunFolderError: the run is not finished.
        StorageError: the file cannot be read or is damaged.
    """
    if not is_folder(path):
        network = _load(path)
        return Deployment({path.stem: network}, example_of(network))
    config = read_config(path)
    if not exists(path / NETWORK):
        raise RunFolderError(f"{path} has no {NETWORK}: finish the run first with bayesprune run --resume {path}")
    network = _load(path / NETWORK)
    inputs = example_of(network)
    return Deployment({"dense": build_network(config.network, _classes(network, inputs, path)).eval(), "compacted": network}, inputs)


def export_deployment(path: Path, target: Path) -> None:
    """Write the network of a file or run folder as ONNX."""
    deployment = open_deployment(path)
    export_onnx(list(deployment.networks.values())[-1], deployment.inputs, target)


def example_of(network: LoadedNetwork) -> tuple[Any, ...]:
    """Random inputs of the shapes and types that a network was saved with; whole numbers, which may be indices, are zeros."""
    generator = torch.Generator().manual_seed(0)

    def drawn(example: Any) -> Any:
        if isinstance(example, TensorShape):
            if not example.dtype.is_floating_point:
                return torch.zeros(example.shape, dtype=example.dtype)
            return torch.randn(example.shape, generator=generator).to(example.dtype)
        if isinstance(example, dict):
            return {key: drawn(each) for key, each in example.items()}
        return type(example)(drawn(each) for each in example) if isinstance(example, (tuple, list)) else example

    return tuple(drawn(example) for example in network.blueprint.examples)


def _classes(network: LoadedNetwork, inputs: tuple[Any, ...], folder: Path) -> int:
    """How many scores the network of a run gives for an input."""
    with torch.no_grad():
        scores = network(*inputs)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or scores.shape[1] < 1:
        raise RunFolderError(f"{folder / NETWORK} is no network of a run, which gives a score for each class: put a good copy in its place")
    return scores.shape[1]


def _load(path: Path) -> LoadedNetwork:
    try:
        network = load(path)
    except InputError as error:
        if read_description(path).get("kind") != "gated":
            raise
        raise InputError(
            f"{path} holds a model with gates: compact it first, in Python, with the model that the gates were put into: "
            f"small = compact(load('{path}', into=model), inputs).model, then save(small, 'small.safetensors', example_inputs=inputs)"
        ) from error
    assert isinstance(network, LoadedNetwork)
    return network
