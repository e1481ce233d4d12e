"""The figures of a reproduction that need its models."""

import math
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesprune.analysis import UnitRecord, class_averages, probability_stages, unit_activations
from bayesprune.data import Dataset, TensorBatches, load_dataset
from bayesprune.data.catalog import known_dataset
from bayesprune.errors import BayespruneWarning, DataError, StorageError
from bayesprune.experiments.evidence import evidence_path, load_evidence, load_record
from bayesprune.experiments.protocol import OWN_TARGETS, own_name
from bayesprune.experiments.published import published_networks
from bayesprune.experiments.tables import SHOWN_LAYERS, TABLES, ReproducedTable, table_of
from bayesprune.gates import gates
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from bayesprune.prediction import predict
from bayesprune.report.comparison.points import network_label
from bayesprune.report.figures.canvas import gate_title
from bayesprune.report.figures.class_correlation import draw_class_correlation
from bayesprune.report.figures.filter_use import draw_filter_use
from bayesprune.report.figures.input_regions import average_use, class_examples, draw_input_regions, input_regions
from bayesprune.report.figures.probabilities import draw_probabilities
from bayesprune.storage import exists, make_folder

_DIGITS = (0, 1, 4, 7)
"""Four classes of different shapes: a ring, a stroke, a cup and an angle."""
_CORRELATIONS = "{}: correlations between the class averages of E[π] φ(x), over the units that BB kept"
_INPUTS = 1000
"""How many test images the histograms of activations show."""


def tell_as_warning(message: str) -> None:
    """Pass on a message about a figure that was left out, where nobody listens."""
    warnings.warn(message, BayespruneWarning, stacklevel=3)


def draw_model_figures(
    results: Path, figures: Path, *, say: Callable[[str], None] = tell_as_warning, data_dir: Path | None = None
) -> list[Path]:
    """Draw what there is of the figures that need trained models.

    For each published network they come from ``results/models/NETWORK-DATASET-dbb.safetensors``, or of a large one from the record of its
    units, ``NETWORK-DATASET-units.safetensors``; where the file is not there, they are not drawn. Records of networks that a recipe of our
    own trained are called after its rows.

    Args:
        results: the folder of a reproduction.
        figures: the folder to draw into; it is made if need be.
        say: is told which figures were left out although their file is there, and why: a data set is missing.
        data_dir: where the data sets are.

    Returns:
        The files that were drawn.

    Raises:
        StorageError: the file of a model is damaged or holds something else, or a figure cannot be written.
    """
    make_folder(figures)
    drawn: list[Path] = []
    for network, dataset in published_networks():
        table, label = table_of(network, dataset), network_label(network, dataset)
        model = evidence_path(results, table)
        if exists(model) and table.shown:
            drawn += _draw_record(load_record(model), table, label, figures)
        elif exists(model):
            trained = _dependent_model(network, known_dataset(dataset).classes, model)
            try:
                data = load_dataset(dataset, data_dir)
            except DataError as error:
                say(f"no figures of {model.name}: {error}")
                continue
            drawn += _draw_model(trained, data, f"{network} on {dataset}", label, figures)
    for recipe, targets in OWN_TARGETS.items():
        for table, label in ((TABLES[name], own_name(recipe, name)) for name in targets):
            record = evidence_path(results, table, label)
            if table.shown and exists(record):
                drawn += _draw_record(load_record(record), table, label, figures)
    return drawn


def _dependent_model(network: str, num_classes: int, path: Path) -> nn.Module:
    model = load_evidence(network, num_classes, path)
    others = {gate.method for gate in gates(model).values() if not isinstance(gate, DependentBetaBernoulli)}
    if others:
        raise StorageError(f"{path} holds a model with gates of the method {', '.join(sorted(others))}, not dbb; put the right one there")
    return model


def _draw_record(record: UnitRecord, table: ReproducedTable, suffix: str, figures: Path) -> list[Path]:
    title = f"{table.network} on {table.dataset}"
    drawn = [figures / f"class-correlation-{suffix}.png", figures / f"filter-use-{suffix}.png"]
    draw_class_correlation(record.averages, _CORRELATIONS.format(title), drawn[0])
    what = f"{title}: units that DBB uses for test images of {' and '.join(f'the class {name}' for name, _ in table.shown)}"
    draw_filter_use(record, SHOWN_LAYERS, table.shown, what, drawn[1])
    return drawn


def _draw_model(model: nn.Module, data: Dataset, title: str, suffix: str, figures: Path) -> list[Path]:
    batches = TensorBatches(data.test, data.mean, data.std, _INPUTS)
    inputs = next(batches.in_order(_INPUTS))[0]
    first = next(iter(gates(model).values()))
    drawn = [figures / f"class-correlation-{suffix}.png"]
    averages = class_averages(model, batches.in_order(_INPUTS), data.num_classes)
    draw_class_correlation(averages, _CORRELATIONS.format(title), drawn[0])
    drawn += _draw_probabilities(model, inputs, title, figures / f"activations-to-probabilities-{suffix}.png")
    if isinstance(first, DependentBetaBernoulli) and data.image_shape[0] == 1 and first.num_units == math.prod(data.image_shape):
        images = torch.cat([images for images, _ in batches.in_order(_INPUTS)])
        drawn += _draw_regions(model, first, images, data.test.labels, figures / f"input-regions-{suffix}.png")
    return drawn


def _draw_probabilities(model: nn.Module, inputs: Tensor, title: str, path: Path) -> list[Path]:
    """The last gate that keeps a unit, where units differ most in what they stand for; nothing if no gate does."""
    arrived = unit_activations(model, inputs)
    for name, gate in reversed(gates(model).items()):
        kept = gate.keep()
        if isinstance(gate, DependentBetaBernoulli) and bool(kept.any()):
            what = f"{title}, {gate_title(name)}: {int(kept.sum())} units that BB kept, {len(inputs)} test images"
            draw_probabilities(probability_stages(gate, arrived[name]).of(kept), kept.nonzero().flatten(), what, path)
            return [path]
    return []


def _draw_regions(model: nn.Module, gate: DependentBetaBernoulli, images: Tensor, labels: Tensor, path: Path) -> list[Path]:
    """Four images; nothing if the test set has none of their classes."""
    predicted = torch.cat([predict(model, part).argmax(dim=1) for part in torch.split(images, _INPUTS)])
    chosen = class_examples(labels, predicted, _DIGITS)
    if not chosen:
        return []
    regions = input_regions(gate, images[chosen], labels[chosen], predicted[chosen])
    draw_input_regions(regions, average_use(gate, images), path)
    return [path]
