"""The main job: take one of the paper's networks through all stages, in a folder from which it can be taken up at any time."""

import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.artifact import read_description
from bayesprune.data import Dataset, TensorBatches, load_dataset
from bayesprune.data.catalog import known_dataset
from bayesprune.data.folders import named_folder
from bayesprune.data.mnist import find_mnist
from bayesprune.errors import InputError, RunFolderError, StorageError
from bayesprune.experiments.compacted import NETWORK, compact_stage
from bayesprune.experiments.settings import gate_weights, hyperparameters, usual_tradeoff
from bayesprune.models import build_network
from bayesprune.models.description import DescribedModel
from bayesprune.models.zoo import known_network
from bayesprune.noise import derive_seed
from bayesprune.storage import as_path, exists, read_json, write_json
from bayesprune.training.devices import gains_from_bfloat16, usable_device
from bayesprune.training.distributed import ALONE, Ranks
from bayesprune.training.plan import Plan, make_plan
from bayesprune.training.rank_batches import shared
from bayesprune.training.rank_store import rank_store
from bayesprune.training.recipes import Recipe, find_recipe
from bayesprune.training.stages import run_stages
from bayesprune.training.store import CONFIGURATION, run_store
from bayesprune.training.watching import Watcher
from bayesprune.version import __version__

SUMMARY = "summary.json"
STAGE_RECIPES, GATE_SETTINGS = "stages", "gates"
"""Where config.json keeps what the recipe's name meant, and what the gates were set to, when the run began."""


@dataclass(frozen=True)
class RunConfig:
    """All that a run depends on; written to its folder before anything else.

    Attributes:
        network: a name of the model zoo.
        dataset: a name of the catalogue.
        method: of the gates.
        recipe: of the stages.
        tradeoff: of the method, in its own terms; None for the usual one, in whose place ``config.json`` has the number.
        kl_scale: the factor on the divergence, instead of the trade-off's.
        epochs: of every stage, instead of the recipe's.
        seed: of everything random.
        device: to train on.
        data_dir: where the data set is.
        before_norm: gates of convolutions before their norms, as in the paper.
        shrink: take units out of the network while it is trained; None for what the recipe says.
        precision: to compute layers in: ``float32`` or, about twice as fast on a GPU and on processors made for it, ``bfloat16``.
    """

    network: str = "lenet-500-300"
    dataset: str = "mnist"
    method: str = "dbb"
    recipe: str = "fast"
    tradeoff: float | None = None
    kl_scale: float | None = None
    epochs: int | None = None
    seed: int = 0
    device: str = "cpu"
    data_dir: str | None = None
    before_norm: bool = False
    shrink: bool | None = None
    precision: str = "float32"


_BEFORE: dict[str, Any] = {"shrink": False, "precision": "float32"}
"""What earlier versions did, which did not write it down."""


def read_config(folder: Path) -> RunConfig:
    """The configuration of a run folder."""
    path = folder / CONFIGURATION
    if not exists(path):
        raise RunFolderError(f"{folder} is not a run's folder: it has no {CONFIGURATION}; give the folder that an earlier run printed")
    stored = read_json(path)
    if not isinstance(stored, dict):
        raise StorageError(f"{path} is damaged: it holds no settings; put a good copy in its place or start a new run")
    for name in (STAGE_RECIPES, GATE_SETTINGS):
        stored.pop(name, None)
    return config_from(stored, path)


def config_from(stored: Mapping[str, Any], path: Path) -> RunConfig:
    """A configuration as it was written down.

    Args:
        stored: its settings, from JSON.
        path: of the file that they are from, for messages.

    Raises:
        StorageError: settings are missing, unknown or of the wrong type.
    """
    settings = read_before(stored)
    known = get_type_hints(RunConfig)
    wrong = [name for name in sorted(known.keys() | settings.keys()) if name not in known or name not in settings]
    wrong += [name for name, kind in known.items() if name in settings and not _may_stand_for(settings[name], kind)]
    if wrong:
        raise StorageError(
            f"{path} is damaged or of another version: see {', '.join(wrong)}; put a good copy in its place or start a new run"
        )
    return RunConfig(**settings)


def _may_stand_for(value: Any, kind: Any) -> bool:
    """Whether a value from JSON may stand for this type; a whole number may stand for a fraction."""
    return isinstance(value, kind) or (type(value) is int and abs(value) <= sys.float_info.max and isinstance(float(value), kind))


def complete(given: Mapping[str, Any]) -> RunConfig:
    """The configuration that the given settings and the defaults make."""
    settings = dict(given)
    network = settings.setdefault("network", RunConfig.network)
    settings.setdefault("dataset", known_network(network).datasets[0])
    from_environment = named_folder(None)
    if from_environment is not None and (settings["dataset"] != "mnist" or find_mnist(from_environment)):
        settings.setdefault("data_dir", str(from_environment.absolute()))
    settings.setdefault("device", "cuda" if torch.cuda.is_available() else "cpu")
    settings.setdefault("recipe", "paper" if str(settings["device"]).startswith("cuda") else "fast")
    return replace(RunConfig(), **settings)


def check_config(config: RunConfig) -> Recipe:
    """Refuse what is wrong with names and numbers before anything is read or written, and give back the recipe."""
    recipe = find_recipe(config.recipe)
    if config.epochs is not None:
        recipe = recipe.with_epochs(config.epochs)
    if config.shrink is not None:
        recipe = replace(recipe, shrink=config.shrink)
    _check_names(config)
    if config.precision == "bfloat16" and not gains_from_bfloat16(config.device):
        raise InputError(
            "bfloat16 is for GPUs, and for processors of which torch says that they have instructions for it: leave --precision out here"
        )
    plan_of(config, recipe, n_data=1)
    return recipe


def run_main_job(config: RunConfig, folder: Path, watcher: Watcher, ranks: Ranks = ALONE) -> dict[str, Any]:
    """Run, or take up, all stages of a run and write its summary.

    Args:
        config: of the run.
        folder: of the run; of several processes the first one's.
        watcher: is told of progress.
        ranks: the processes that train the network together.

    Returns:
        The summary: what the run was, and a row for each stage.
    """
    recipe = check_config(config)
    config = spelled_out(config)
    finished = ranks.first(lambda: _finished_summary(folder, config, watcher))
    if finished is not None:
        _say_folder(folder, watcher)
        return finished
    device = ranks.device(usable_device(config.device))
    data = data_of(config)
    network = build_seeded(config, data)
    plan = plan_of(config, recipe, len(data.train))
    stages = {name: stage.written() for name, stage in recipe.stages.items()}
    before = [{**each, STAGE_RECIPES: stages} for each in _written(config)]
    now = [{**each, GATE_SETTINGS: plan.gate_settings()} for each in before]
    with rank_store(ranks, lambda: run_store(folder, *now, *before)) as store:
        _say_folder(folder, watcher)
        training, test = batches_of(data, recipe, device)
        shares = shared(training, ranks), shared(test, ranks)
        (outcome,) = run_stages([network.to(device)], [plan], *shares, F.cross_entropy, store, watcher)

        def finish() -> dict[str, Any]:
            dense = build_network(config.network, data.num_classes).to(device)
            last = compact_stage(outcome.model, dense, test, F.cross_entropy, folder)
            about = surroundings(device) | ({} if ranks.alone else {"processes": ranks.size})
            summary = {**asdict(config), "status": "finished", **about, "stages": _rounded([*outcome.results, last])}
            write_json(folder / SUMMARY, summary)
            return summary

        return ranks.first(finish)


def data_of(config: RunConfig) -> Dataset:
    """The data set of a run."""
    return load_dataset(config.dataset, None if config.data_dir is None else as_path(config.data_dir))


def batches_of(data: Dataset, recipe: Recipe, device: torch.device) -> tuple[TensorBatches, TensorBatches]:
    """Batches to train on, and to evaluate on."""
    training = TensorBatches(data.train, data.mean, data.std, recipe.batch_size, device, augment=data.augment)
    return training, TensorBatches(data.test, data.mean, data.std, recipe.batch_size, device)


def build_seeded(config: RunConfig, data: Dataset) -> nn.Module:
    """The network for the data, with the weights that a run of this seed begins with.

    Raises:
        InputError: it cannot take the data's images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "weights"))
        network = build_network(config.network, data.num_classes)
    _check_shape(config.network, network, data)
    return network


def plan_of(config: RunConfig, recipe: Recipe, n_data: int) -> Plan:
    """What a configuration asks for."""
    if config.tradeoff is not None and config.kl_scale is not None:
        raise InputError(
            "a trade-off and a factor on the divergence were given; --kl-scale takes the place of --tradeoff, so give one of them"
        )
    if config.tradeoff is not None and config.method == "cd":
        raise InputError("concrete dropout has no trade-off: leave --tradeoff out")
    tradeoff = _usual(config) if config.tradeoff is None else config.tradeoff
    return make_plan(
        config.method,
        recipe,
        n_data,
        tradeoff=tradeoff,
        kl_scale=config.kl_scale,
        gate_weights=gate_weights(config.network, config.method, recipe.name),
        hyperparameters=hyperparameters(config.network, config.method, tradeoff, n_data),
        seed=config.seed,
        before_norm=config.before_norm,
        precision=config.precision,
    )


def spelled_out(config: RunConfig) -> RunConfig:
    """The configuration with what it leaves to its recipe written out: whether to shrink and, if the run has one, the trade-off."""
    shrink = find_recipe(config.recipe).shrink if config.shrink is None else config.shrink
    has_tradeoff = config.tradeoff is None and config.kl_scale is None and config.method != "cd"
    return replace(config, shrink=shrink, tradeoff=_usual(config) if has_tradeoff else config.tradeoff)


def _usual(config: RunConfig) -> float:
    return usual_tradeoff(config.network, config.method, find_recipe(config.recipe))


def _spellings(config: RunConfig) -> tuple[RunConfig, ...]:
    """The configuration, and how earlier versions wrote it: without the usual trade-off."""
    return (config, replace(config, tradeoff=None)) if config.tradeoff == _usual(config) else (config,)


def _written(config: RunConfig) -> Iterator[dict[str, Any]]:
    """The configuration as it is written down, and how earlier versions did it: also without what they knew nothing of."""
    for each in _spellings(config):
        yield asdict(each)
    for each in _spellings(config):
        if is_as_before(each):
            yield written_before(each)


def is_as_before(config: RunConfig) -> bool:
    """Whether earlier versions knew such a configuration."""
    return _BEFORE.items() <= asdict(config).items()


def written_before(config: RunConfig) -> dict[str, Any]:
    """A configuration as earlier versions wrote it, without what they knew nothing of."""
    return {name: value for name, value in asdict(config).items() if name not in _BEFORE}


def read_before(stored: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as it is written, from one that an earlier version may have written."""
    return {**_BEFORE, **stored}


def _finished_summary(folder: Path, config: RunConfig, watcher: Watcher) -> dict[str, Any] | None:
    """The summary of a run that is complete: it needs neither its data nor its device any more."""
    path = folder / SUMMARY
    if not exists(path) or spelled_out(read_config(folder)) != config:
        return None
    summary = read_json(path)
    if not isinstance(summary, dict) or summary.get("status") != "finished":
        return None
    try:
        read_description(folder / NETWORK)
    except StorageError:
        watcher.say(
            f"{folder / NETWORK} is missing or damaged: making it again from what {folder / 'checkpoints'} holds; "
            "stages that are not there are trained again"
        )
        return None
    return summary


def _say_folder(folder: Path, watcher: Watcher) -> None:
    watcher.say(f"run folder: {folder}")


def surroundings(device: torch.device) -> dict[str, Any]:
    """Hardware and versions, for the record."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, {torch.get_num_threads()} threads"
    return {"hardware": hardware, "torch": torch.__version__, "python": platform.python_version(), "version": __version__}


def _check_names(config: RunConfig) -> None:
    """Refuse unknown networks and data sets, and a data set that the network is not made for."""
    suited = known_network(config.network).datasets
    known_dataset(config.dataset)
    if config.dataset not in suited:
        raise InputError(
            f"{config.network} is made for {', '.join(suited)}, not for {config.dataset}; choose another --network or --dataset"
        )


def _check_shape(name: str, network: nn.Module, data: Dataset) -> None:
    """Refuse images that the network cannot take."""
    assert isinstance(network, DescribedModel)
    if data.image_shape != tuple(network.input_shape):
        raise InputError(
            f"{name} takes images of shape {tuple(network.input_shape)}, but these are {data.image_shape}; choose another --data-dir"
        )


def _rounded(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The stages' rows as they go into the summary."""
    digits = {"error": 4, "speedup": 4, "memory": 4}
    return [
        {key: round(value, digits[key]) if key in digits and value is not None else value for key, value in result.items()}
        for result in results
    ]
