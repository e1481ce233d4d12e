"""What is kept of trained models as evidence for figures: the model, made to compress well, or of a large one what the figures show."""

import copy
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from bayesprune.analysis import ClassAverages, UnitRecord
from bayesprune.artifact import load, save
from bayesprune.attach.places import stated_example
from bayesprune.errors import InputError, StorageError
from bayesprune.experiments.tables import ReproducedTable
from bayesprune.gates import Gate, require_gates
from bayesprune.gates.contract import ControlledLayer
from bayesprune.models import build_network
from bayesprune.narrowing.cuts import CHANNEL_LAYERS, find_cuts
from bayesprune.storage import read_tensors, write_tensors

_REPLACE = "put the right file in its place, or take it away"
_PHI, _PI, _USES = "phi/", "pi/", "uses/"
MODELS = "models"
"""The folder of such models beside the rows of a reproduction."""
NETWORKS = "compacted"
"""The folder of what is left of large networks without their pruned units."""


def evidence_name(table: ReproducedTable, of: str | None = None) -> str:
    """The file that figures of a network are drawn from: its DBB model or, of a large one, the record of its units.

    Args:
        table: that the network is in.
        of: what files with rows of the model are called; by default those of the paper's protocol.
    """
    return f"{of or f'{table.network}-{table.dataset}'}-{'units' if table.shown else 'dbb'}.safetensors"


def evidence_path(results: Path, table: ReproducedTable, of: str | None = None) -> Path:
    """Where that file lies in a folder of results."""
    return results / MODELS / evidence_name(table, of)


def save_record(record: UnitRecord, path: Path) -> None:
    """Write what figures show of a network.

    Raises:
        StorageError: the file cannot be written.
    """
    tensors = {"labels": record.labels}
    for name, averages in record.averages.items():
        tensors |= {f"{_PHI}{name}": averages.phi.float(), f"{_PI}{name}": averages.pi.float()}
    tensors |= {f"{_USES}{name}": uses.float() for name, uses in record.uses.items()}
    write_tensors(path, tensors, {"gates": list(record.averages), "shown": list(record.uses)})


def load_record(path: Path) -> UnitRecord:
    """What ``save_record`` wrote.

    Raises:
        StorageError: the file is missing, damaged, or holds something else.
    """
    tensors, description = read_tensors(path)
    try:
        averages = {name: ClassAverages(tensors[_PHI + name].double(), tensors[_PI + name].double()) for name in description["gates"]}
        record = UnitRecord(averages, tensors["labels"], {name: tensors[_USES + name] for name in description["shown"]})
    except (KeyError, TypeError) as error:
        raise StorageError(f"{path} holds no record of units; {_REPLACE}") from error
    fitting = [each.phi.ndim == 2 and each.phi.shape[1:] == each.pi.shape for each in averages.values()]
    fitting += [uses.ndim == 2 and uses.shape[:1] == record.labels.shape for uses in record.uses.values()]
    if not all(fitting):
        raise StorageError(f"{path} holds a record of units whose parts do not fit; {_REPLACE}")
    return record


def save_evidence(model: nn.Module, path: Path) -> None:
    """Write a gated model with zeros for the weights that only pruned units have.

    In evaluation mode it computes what it did. The file is as large as any of the model, but zeros take next to no space once it is
    compressed, as version control does. Gates are written as they are.

    Args:
        model: one of the paper's networks with gates; it is not changed.
        path: of the file.

    Raises:
        InputError: the model has no gates, or does not state its inputs.
        StorageError: the file cannot be written.
    """
    require_gates(model)
    bare = copy.deepcopy(model).cpu()
    with torch.no_grad():
        for weight, pruned in list(_superfluous(bare)):
            weight[pruned] = 0.0
    save(bare, path)


def load_evidence(network_name: str, num_classes: int, path: Path) -> nn.Module:
    """The gated model in a file that ``save_evidence`` wrote, in evaluation mode.

    Args:
        network_name: of the zoo.
        num_classes: width of its output.
        path: of the file.

    Raises:
        InputError: no network has that name.
        StorageError: the file is missing, damaged, or holds another model.
    """
    network = build_network(network_name, num_classes)
    try:
        return load(path, into=network).eval()
    except InputError as error:
        raise StorageError(f"{path} holds no {network_name} with gates: {error}; put the right file in its place") from error


def _superfluous(model: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """Weights and biases, and which of their elements matter to no input: those of the channels that pruned units own."""
    cuts = find_cuts(model, stated_example(model))
    for name, gate in require_gates(model).items():
        pruned = ~gate.keep()
        for cut in cuts.by_gate.get(name, ()):
            if cut.side != "units":
                yield from _channels(ControlledLayer(model.get_submodule(cut.layer), cut.side), pruned[cut.owner])
        for controlled in _multiplied(model, name, gate):
            groups = gate.units.groups
            yield from _channels(controlled, pruned if groups is None else pruned[groups])


def _multiplied(model: nn.Module, name: str, gate: Gate) -> Iterator[ControlledLayer]:
    """The layers whose inputs or outputs a gate multiplies itself, whatever stands behind: a normalisation, say."""
    path, _, child = name.rpartition(".")
    sides = {"input_gate": "inputs", "output_gate": "outputs"}
    for controlled in gate.controlled:
        by_channel = gate.units.groups is None or gate.units.groups.ndim == 1
        if by_channel and controlled.layer is model.get_submodule(path) and controlled.side == sides.get(child):
            yield controlled


def _channels(controlled: ControlledLayer, gone: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The elements of a layer's tensors that belong to some channels of one of its sides."""
    weight, bias = controlled.weight, controlled.bias
    if isinstance(controlled.layer, CHANNEL_LAYERS):
        return  # A few numbers, which the statistics of training may still refer to.
    shape = [1] * weight.ndim
    shape[controlled.unit_axis] = len(gone)
    yield weight, gone.view(shape).expand_as(weight)
    if bias is not None and controlled.side == "outputs":
        yield bias, gone
