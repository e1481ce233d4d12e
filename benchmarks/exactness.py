"""Does removal change what a network computes? Many networks with the same masks, beside Torch-Pruning as an oracle.

Measures every case in processes of its own, writes a row for each into a JSONL file, and the page from the rows:

    .venv/bin/pip install -c constraints.txt -e ".[oracle]"
    .venv/bin/python benchmarks/exactness.py                       # all cases; --only 'ResNet*' for some
    .venv/bin/python benchmarks/exactness.py --report              # docs/exactness.md from results/exactness.jsonl
"""

import argparse
import copy
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesprune as bp
from bayesprune.benchmark.result import machine_facts
from bayesprune.compact.compaction import _take_out
from bayesprune.cost import cost
from bayesprune.example_inputs import first_line, tensors_in
from bayesprune.graph import trace
from bayesprune.graph.tracing import relative_difference
from bayesprune.models import LeNet5Caffe, VGGLike, resnet50
from bayesprune.prediction import evaluating
from bayesprune.storage import make_folder, read_rows, write_bytes, write_rows

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from gallery import GALLERY, randomise_norms  # noqa: E402  (the networks of the tests; they are not installed)

SEED = 0
DROPPED, KEPT_LOW, KEPT_RANGE = -20.0, 10.0, 20.0
"""Raw a of pruned units, and of kept ones: their posterior means are 0.91 to 0.97."""
EXACT = {"float32": 1e-5, "float64": 1e-10}
"""Up to this relative error a difference is rounding; in float32 up to twice the rounding of the reference itself, if that is more."""
CALIBRATION_BATCHES, FRESH_BATCHES = 8, 5
Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A network and which of its units are pruned.

    Attributes:
        name: of the network.
        build: gives it; draws from torch's generator.
        inputs: a batch for it; draws likewise.
        placement: which gates it gets, in words.
        before_norm: gates of convolutions before their normalisation.
        include: only the layers that match.
        share: of the units of each gate that is pruned; at least one is, and one is kept unless the share is 1.
        one_by_one: whether Torch-Pruning is asked about every gate by itself as well.
        repeats: how often ours is timed; the run with the median of the sums counts.
        limit_s: seconds that each side may take, with all that it needs beforehand; ten times as many for one gate after the other.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    placement: str = "all gates"
    before_norm: bool = False
    include: tuple[str, ...] | None = None
    share: float = 0.3
    one_by_one: bool = True
    repeats: int = 1
    limit_s: int = 60

    @property
    def key(self) -> str:
        return f"{self.name}, {self.placement}"


def images(*shape: int) -> Callable[[], Inputs]:
    """A batch of normal numbers."""
    return lambda: (torch.randn(shape),)


def from_gallery(name: str, entry: str, **settings: Any) -> Case:
    """A case with a network of the tests."""
    return Case(name, GALLERY[entry].build, GALLERY[entry].inputs, **settings)


LENET5 = (LeNet5Caffe, images(2, 1, 28, 28))
VGG = (lambda: randomise_norms(VGGLike()), images(2, 3, 32, 32))

CASES = (
    from_gallery("MLP", "mlp"),
    from_gallery("MLP", "mlp", placement="hidden units only", include=("3", "5")),
    Case("LeNet5-Caffe", *LENET5, placement="all four gates"),
    Case("VGG-like", *VGG, placement="after the activations"),
    Case("VGG-like", *VGG, placement="before the norms", before_norm=True),
    from_gallery("ResNet, basic blocks", "resnet_basic"),
    from_gallery("ResNet, bottlenecks", "resnet_bottleneck"),
    from_gallery("MobileNetV2", "mobilenet_v2"),
    from_gallery("DenseNet", "densenet"),
    from_gallery("ShuffleNetV2", "shufflenet_v2"),
    from_gallery("Squeeze-and-excitation", "squeeze_excitation"),
    from_gallery("U-Net", "unet"),
    from_gallery("ViT, nn.MultiheadAttention", "vit_torch"),
    from_gallery("ViT, fused attention", "vit_own"),
    from_gallery("ViT, attention by hand", "vit_matmul"),
    from_gallery("nn.TransformerEncoder", "transformer_encoder"),
    from_gallery("Conv1d net", "conv1d"),
    from_gallery("GroupNorm net", "groupnorm_net"),
    from_gallery("ConvNeXt-style", "layernorm_net"),
    Case("LeNet5-Caffe", *LENET5, placement="5 of 800 flattened inputs", include=("fc1",), share=5 / 800),
    from_gallery("ResNet, basic blocks", "resnet_basic", placement="one conv, before its norm", before_norm=True, include=("*1.0.conv1",)),
    Case("VGG-like", *VGG, placement="one conv, before its norm", before_norm=True, include=("features.block1.conv",)),
    from_gallery("ResNet, basic blocks", "resnet_basic", placement="one residual branch", include=("layer1.0.conv2",)),
    from_gallery("ResNet, basic blocks", "resnet_basic", placement="a layer with no filter left", include=("layer1.0.conv1",), share=1.0),
    from_gallery("Static view(-1, 128)", "static_view"),
    from_gallery("Static view(2, 128)", "static_batch_view"),
    Case("ResNet-50", lambda: randomise_norms(resnet50()), images(2, 3, 224, 224), one_by_one=False, repeats=5, limit_s=1200),
)  # fmt: skip


def prune_at_random(gated: nn.Module, share: float, only: str | None = None) -> None:
    """Prune this share of the units of every gate, or of one; the others get posterior means of their own."""
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for name, gate in bp.gates(gated).items():
            raw_a, order = gate.get_parameter("raw_a"), torch.randperm(gate.num_units, generator=generator)
            raw_a.copy_(KEPT_LOW + KEPT_RANGE * torch.rand(gate.num_units, generator=generator))
            pruned = gate.num_units if share == 1 else min(max(1, round(share * gate.num_units)), gate.num_units - 1)
            if only in (None, name):
                raw_a[order[:pruned]] = DROPPED


def prepared(case: Case, dtype: str) -> tuple[nn.Module, Inputs]:
    """The network in evaluation mode and a batch."""
    torch.manual_seed(SEED)
    model = case.build().eval()
    calibrate_norms(model, case.inputs)
    return model.to(getattr(torch, dtype)), tuple(x.to(getattr(torch, dtype)) for x in case.inputs())


def calibrate_norms(model: nn.Module, inputs: Callable[[], Inputs]) -> None:
    """Give batch norms the statistics of what they see, as after training; with others, whole channels are constant and hide mistakes."""
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for _ in range(CALIBRATION_BATCHES if norms else 0):
            model(*inputs())
    for norm in norms:
        norm.momentum = 0.1
        norm.eval()


def sparsified(case: Case, model: nn.Module, inputs: Inputs) -> nn.Module:
    """The network with gates that prune nothing yet."""
    return bp.sparsify(model, "bb", example_inputs=inputs, before_norm=case.before_norm, include=case.include)


def fresh_batches(case: Case, inputs: Inputs) -> list[Inputs]:
    """Random inputs that nobody has seen yet."""
    torch.manual_seed(SEED + 1)
    return [tuple(x.to(inputs[0].dtype) for x in case.inputs()) for _ in range(FRESH_BATCHES)]


def variation(case: Case, gated: nn.Module, inputs: Inputs) -> float:
    """How much the outputs depend on the inputs: the norm of their deviations from the mean over the norm of the outputs."""
    with torch.no_grad(), evaluating(gated):
        outputs = torch.cat([tensors_in(gated(*batch))[0] for batch in fresh_batches(case, inputs)])
    return float((outputs - outputs.mean(0)).norm() / outputs.norm())


def error(case: Case, gated: nn.Module, small: nn.Module, inputs: Inputs) -> float:
    """The largest relative error of an output over the example and fresh random batches; infinite where the shapes differ."""
    with torch.no_grad(), evaluating(gated), evaluating(small):
        pairs = [(tensors_in(gated(*batch)), tensors_in(small(*batch))) for batch in (inputs, *fresh_batches(case, inputs))]
    return max(relative_difference(b, a) for expected, got in pairs for a, b in zip(expected, got, strict=True))


def rounding(case: Case, gated: nn.Module, inputs: Inputs) -> float:
    """How far the reference is from itself in float64."""
    finer = copy.deepcopy(gated).double()
    with torch.no_grad(), evaluating(gated), evaluating(finer):
        pairs = [
            (tensors_in(gated(*batch)), tensors_in(finer(*(x.double() for x in batch)))) for batch in (inputs, *fresh_batches(case, inputs))
        ]
    return max(relative_difference(a.double(), b) for got, expected in pairs for a, b in zip(got, expected, strict=True))


def allowed(case: Case, gated: nn.Module, inputs: Inputs) -> float:
    """The largest error that still is rounding: two ways to compute the same may both be off by the reference's own."""
    limit = EXACT[str(inputs[0].dtype).removeprefix("torch.")]
    return limit if inputs[0].dtype == torch.float64 else max(limit, 2 * rounding(case, gated, inputs))


def ours(case: Case, dtype: str) -> dict[str, Any]:
    """What ``compact`` makes of the masks."""
    model, inputs = prepared(case, dtype)
    runs = []
    for _ in range(case.repeats):
        started = time.perf_counter()
        gated = sparsified(case, model, inputs)
        sparsify_seconds = time.perf_counter() - started
        prune_at_random(gated, case.share)
        started = time.perf_counter()
        result = bp.compact(gated, inputs)
        runs.append((round(sparsify_seconds, 3), round(time.perf_counter() - started, 3)))
    median = sorted(runs, key=sum)[len(runs) // 2]
    certificate = result.certificate
    fresh = error(case, gated, result.model, inputs)
    asked = sum(outcome.units - outcome.kept for outcome in certificate.gates.values())
    limit = allowed(case, gated, inputs)
    exact = max(fresh, certificate.max_rel_error) <= limit and not certificate.note
    return {
        "input_shape": list(inputs[0].shape),
        "gates": len(certificate.gates),
        "units": sum(outcome.units for outcome in certificate.gates.values()),
        "units_asked": asked,
        "variation": variation(case, gated, inputs),
        "limit": limit,
        "ours_outcome": "exact" if exact else "refuses" if certificate.note else "wrong",
        "ours_units_removed": asked - sum(outcome.stayed for outcome in certificate.gates.values()),
        "ours_rel_error": fresh,
        "ours_certificate_rel_error": certificate.max_rel_error,
        "ours_masks_left": len(certificate.masks_left),
        "macs_before": certificate.before.macs,
        "parameters_before": cost(model, inputs).parameters,
        "ours_macs": certificate.after.macs,
        "ours_parameters": certificate.after.parameters,
        "ours_message": certificate.note,
        "sparsify_seconds": median[0],
        "compact_seconds": median[1],
        "seconds_of_runs": [round(sum(run), 3) for run in runs],
    }


def folded(case: Case, gated: nn.Module, dtype: str, inputs: Inputs) -> Iterator[tuple[str, nn.Module]]:
    """The network with its masks multiplied into the weights: as our traced graph, and as the class that it was written as."""
    graph = trace(gated, inputs)
    _take_out(graph, bp.gates(gated))
    graph.delete_all_unused_submodules()
    for name in [name for name in graph._buffers if name.startswith("mask_of_")]:  # Factors that no weight can take, as it can prune them.
        graph.register_parameter(name, nn.Parameter(graph._buffers.pop(name)))
    yield "graph", copy.deepcopy(graph)
    written, _ = prepared(case, dtype)
    for path, layer in written.named_modules():
        try:
            changed = graph.get_submodule(path)
        except AttributeError:
            continue
        if type(changed) is type(layer) and not list(layer.children()):
            layer.load_state_dict(changed.state_dict())
    yield "class", written


class Ledger:
    """Which channels of the gated layers Torch-Pruning has taken, by the numbers that they had at first.

    A group may take channels that another gate is about; without this, the masks of later gates would mean other channels.
    """

    def __init__(self, model: nn.Module, gated: nn.Module) -> None:
        paths = {id(module): path for path, module in gated.named_modules()}
        self.gates = bp.gates(gated)
        self.paths = {name: paths[id(gate.controlled[0].layer)] for name, gate in self.gates.items()}
        self.layers = {name: model.get_submodule(path) for name, path in self.paths.items()}
        self.sides = {name: gate.controlled[0].side for name, gate in self.gates.items()}
        self.owner = {name: _unit_of_channels(gate) for name, gate in self.gates.items()}
        self.left = {name: list(range(len(owner))) for name, owner in self.owner.items()}

    def asked(self, name: str) -> set[int]:
        """The channels that a gate prunes."""
        return set((~self.gates[name].keep()[self.owner[name]]).nonzero().flatten().tolist())

    def positions(self, name: str) -> list[int]:
        """Where those of them are now that are still there."""
        asked = self.asked(name)
        return [position for position, channel in enumerate(self.left[name]) if channel in asked]

    def taken(self, name: str) -> set[int]:
        """The channels of a gate's layer that are gone."""
        return set(range(len(self.owner[name]))) - set(self.left[name])

    def enter(self, graph: Any, group: Any) -> None:
        """Write down what a group takes."""
        is_side = {"outputs": graph.is_out_channel_pruning_fn, "inputs": graph.is_in_channel_pruning_fn}
        for dependency, positions in group:
            for name, layer in self.layers.items():
                if dependency.target.module is layer and is_side[self.sides[name]](dependency.handler):
                    gone = set(positions)
                    self.left[name] = [channel for position, channel in enumerate(self.left[name]) if position not in gone]


def _unit_of_channels(gate: bp.Gate) -> Tensor:
    return torch.arange(gate.num_units) if gate.units.groups is None else gate.units.groups


def tell_heads(model: nn.Module, ledger: Ledger) -> None:
    """Attention that was written by hand is told how many heads it has left, as Torch-Pruning's examples do it."""
    for name, gate in ledger.gates.items():
        owner = model.get_submodule(ledger.paths[name].rpartition(".")[0])
        if gate.units.groups is not None and isinstance(getattr(owner, "heads", None), int):
            owner.heads = int(gate.keep().sum())  # type: ignore[assignment]


def oracle(case: Case, gated: nn.Module, model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """Let Torch-Pruning remove the masked channels of a network, gate by gate, where its own check has no objection, and compare."""
    import torch_pruning

    exact = allowed(case, gated, inputs)
    if not error(case, gated, model, inputs) <= exact:
        return {"outcome": "unsuitable", "message": "the masks cannot be written into the weights of this form"}
    refused, stage, started = 0, "while building the graph", time.perf_counter()
    try:
        graph = torch_pruning.DependencyGraph().build_dependency(model.requires_grad_(True), example_inputs=inputs, verbose=False)
        stage = "while pruning"
        ledger = Ledger(model, gated)
        for name, layer in ledger.layers.items():
            positions = ledger.positions(name)
            if not positions:
                continue
            pruner = graph.get_pruner_of_module(layer)
            function = pruner.prune_out_channels if ledger.sides[name] == "outputs" else pruner.prune_in_channels
            group = graph.get_pruning_group(layer, function, positions)
            if not graph.check_pruning_group(group):
                refused += 1
                continue
            group.prune()
            ledger.enter(graph, group)
        tell_heads(model, ledger)
        seconds = time.perf_counter() - started
        stage = "when it runs afterwards"
        difference = error(case, gated, model, inputs)
        after = cost(model, inputs)
    except Exception as problem:  # noqa: BLE001  (a library raises whatever it likes, and here that is a result)
        return {"outcome": "fails", "message": f"{stage}, {type(problem).__name__}: {first_line(problem)}"}
    asked, taken = ({name: of(name) for name in ledger.layers} for of in (ledger.asked, ledger.taken))
    return {
        "outcome": "refuses" if not any(taken.values()) else "exact" if difference <= exact else "wrong",
        "rel_error": difference if difference < float("inf") else None,
        "message": "" if difference < float("inf") else "the outputs have another shape",
        "groups_refused": refused,
        "channels_asked": sum(map(len, asked.values())),
        "channels_removed": sum(map(len, taken.values())),
        "channels_removed_unasked": sum(len(taken[name] - asked[name]) for name in taken),
        "macs": after.macs,
        "parameters": after.parameters,
        "seconds": round(seconds, 3),
    }


def best_form(case: Case, gated: nn.Module, dtype: str, inputs: Inputs) -> dict[str, Any]:
    """What Torch-Pruning makes of either form of the network; the better one counts."""
    forms = {form: oracle(case, gated, model, inputs) for form, model in folded(case, gated, dtype, inputs)}
    order = ("exact", "refuses", "wrong", "fails", "unsuitable")

    def rank(form: str) -> tuple[int, float]:
        distance = forms[form].get("rel_error")
        return order.index(forms[form]["outcome"]), float("inf") if distance is None else distance

    best = min(reversed(forms), key=rank)
    return {"form": best, **forms[best], "forms": {form: f"{each['outcome']} {each['message']}".strip() for form, each in forms.items()}}


def theirs(case: Case, dtype: str) -> dict[str, Any]:
    """What Torch-Pruning makes of all masks."""
    model, inputs = prepared(case, dtype)
    gated = sparsified(case, model, inputs)
    prune_at_random(gated, case.share)
    return {f"theirs_{name}": value for name, value in best_form(case, gated, dtype, inputs).items()}


def alone(case: Case, dtype: str) -> dict[str, Any]:
    """What Torch-Pruning makes of the mask of each gate by itself, the others pruning nothing."""
    model, inputs = prepared(case, dtype)
    gated = sparsified(case, model, inputs)
    outcomes = {}
    for name in bp.gates(gated):
        prune_at_random(gated, case.share, only=name)
        outcomes[name] = best_form(case, gated, dtype, inputs)["outcome"]
    return {"theirs_alone": outcomes}


PARTS: dict[str, Callable[[Case, str], dict[str, Any]]] = {"ours": ours, "theirs": theirs, "alone": alone}


def in_a_process(part: str, case: Case, dtype: str) -> dict[str, Any]:
    """One part of a row, measured where a crash or an endless loop does no harm."""
    command = [sys.executable, __file__, "--part", part, "--only", case.key, "--dtypes", dtype]
    failed = {"ours": "ours_", "theirs": "theirs_", "alone": "theirs_alone_"}[part]
    limit = case.limit_s * (10 if part == "alone" else 1)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        message = f"no answer within {limit} s"
    else:
        if done.returncode == 0:
            return dict(json.loads(done.stdout.splitlines()[-1]))
        message = (done.stderr.strip().splitlines() or [f"the process ended with code {done.returncode}"])[-1]
    return {f"{failed}outcome": "fails", f"{failed}message": message}


def measure(cases: Sequence[Case], dtypes: Sequence[str], path: Path) -> None:
    """A row for each case and dtype; it takes the place of an older one."""
    make_folder(path.parent)
    facts = machine_facts("cpu")
    versions = {"torch": facts["torch"], "torch_pruning": metadata.version("torch-pruning"), "version": facts["version"]}
    order = [(case.name, case.placement, dtype) for case in CASES for dtype in EXACT]
    for case in cases:
        for dtype in dtypes:
            row = {"benchmark": "exactness", "model": case.name, "placement": case.placement, "dtype": dtype, "seed": SEED}
            row |= {"share": case.share, "load_before": round(os.getloadavg()[0], 2)}
            row |= {**in_a_process("ours", case, dtype), **in_a_process("theirs", case, dtype)}
            if case.one_by_one and dtype == "float32":
                row |= in_a_process("alone", case, dtype)
            row |= {**versions, "cpu": facts["cpu"], "threads": torch.get_num_threads(), "python": facts["python"]}
            rows = {key_of(old): old for old in (read_rows(path) if path.exists() else [])} | {key_of(row): row}
            write_rows(path, [rows[key] for key in order if key in rows])
            print(f"{case.key}, {dtype}: ours {row['ours_outcome']}, theirs {row['theirs_outcome']} {row['theirs_message']}", flush=True)


def key_of(row: dict[str, Any]) -> tuple[str, str, str]:
    """What a row is about."""
    return row["model"], row["placement"], row["dtype"]


PAGE = """# Exactness

Does removing units change what a network computes? Here are {cases} networks and ways to gate them. `bayesprune.compact` and
[Torch-Pruning](https://github.com/VainF/Torch-Pruning) {torch_pruning} are given the same masks. The page is written by
`python benchmarks/exactness.py --report` from `results/exactness.jsonl`.

- **Ours**: {ours}. The largest relative error is {worst32} in float32 and {worst64} in float64.
- **Torch-Pruning**, all masks of a network at once: {theirs}. One gate at a time, {gates} gates: {alone}.

{table}

MACs and parameters are what is left of them, in percent. An error is the norm of the difference over the norm of the output.
*Exact* means an error of at most {limit}, in float64 of {limit64}, {exception}; *wrong*, that the network runs but computes something else;
*fails*, that an exception was raised; *refuses*, that its own check had objections and nothing was removed. Units that "stay" with us are
constant but not zero behind a norm: one of them stands for all.

It is one draw of the masks. Before the norm of a single convolution Torch-Pruning is right in the small ResNet, where the ReLU happens to
make zeros of the constants of both pruned channels, and wrong in the VGG-like network with its {vgg_pruned}. Two rules came after a first
run, and hold for both sides: batch norms got the statistics of what they see, because with random ones the outputs of the VGG-like network
hardly depended on its inputs and mistakes did not show; and the limit got its exception, because our float32 error in the VGG-like network,
{vgg_error}, was above {limit} although the one in float64 is {vgg_error64}.

## What it said

{problems}

## Why they differ

Torch-Pruning answers another question: which layers have to shrink together so that their shapes fit again. For that it is right to
drop a channel from all of them, and fine-tuning afterwards is part of the recipe. A mask says something else: this unit is zero, and
nothing else changes. The answers agree where a zero stays a zero on its way and nobody else writes to the same channel: in chains,
inside a residual branch, in the hidden layer of a transformer's MLP, through the concatenations of a U-Net. They differ

- on a **residual stream**: that one branch does not write to a channel is no reason to take it from the others. `compact` adds the
  smaller branch to the channels that it still writes to;
- **before a norm**, where DenseNets have all their concatenations: a dead channel comes out as a constant, which is dropped with it.
  `compact` keeps one channel for all the constants;
- **behind a flattening**: some positions of a filter are pruned and not the filter. Torch-Pruning takes the whole filter, or refuses where
  that would leave none. `compact` gathers the positions that are kept;
- at the **inputs of the network**, which whoever calls it still gives in full;
- at **heads** of `nn.MultiheadAttention`, whole **groups** of a GroupNorm, **shuffled channels**, and sizes that the code states as
  **numbers**;
- where **nothing is left** of a layer: `compact` puts a constant in its place.

## How it was measured

- The gates are where `sparsify` puts them, or some of those, as the table says. {share} of the units of each gate are pruned, at random
  with seed {seed}, unless the table says otherwise; the means of the others differ from unit to unit.
- LeNet5-Caffe, VGG-like and ResNet-50 have their full size, the others are the small networks of the tests. All have random weights, and
  batch norms have the statistics of what they see: over random inputs the outputs vary by {variation} of their norm, so that a mistake
  shows.
- The reference is the gated network in evaluation mode, on the example and on {fresh} batches of fresh random inputs.
- Torch-Pruning is given the network with the masks multiplied into the weights, which computes the reference function, in two forms: the
  class as it is written, and a plain traced graph. The better outcome counts. For each gate it prunes the group of the layer that the gate
  controls with exactly the pruned indices, if `check_pruning_group` agrees. Indices are translated where an earlier group has taken
  channels of that layer, and hand-written attention is told how many heads it has left.
- Each measurement is a process of its own and may take {time_limit} s, {big_limit} s for {big}.

## Time

`sparsify` and `compact` of {big}, {big_parameters} million parameters, {big_gates} gates and an example of shape {big_shape}, take
{big_sparsify} s and {big_compact} s, **{big_total} s** together (the median of {big_runs} runs, {big_least} to
{big_most} s), on {threads} threads; the machine's load was {load} before.
The other networks take {least} to {most} s, in a new process on {other_threads}.

{versions}
"""


def page(rows: list[dict[str, Any]]) -> str:
    """The page that shows the rows."""
    single = [row for row in rows if row["dtype"] == "float32"]
    double = {key_of(row)[:2]: row for row in rows if row["dtype"] == "float64"}
    big = next(row for row in single if row["model"] == "ResNet-50")
    alone = [outcome for row in single for outcome in row.get("theirs_alone", {}).values()]
    seconds = [row["sparsify_seconds"] + row["compact_seconds"] for row in single if row is not big]
    variations = [row["variation"] for row in single]
    vgg = next(row for row in single if key_of(row)[:2] == ("VGG-like", "one conv, before its norm"))
    rule = ["---" if heading in LEFT_ALIGNED else "---:" for heading in HEADINGS]
    return PAGE.format(
        cases=len(single),
        torch_pruning=big["torch_pruning"],
        ours=counted([row["ours_outcome"] for row in single]),
        worst32=f"{max(row['ours_rel_error'] for row in single):.0e}",
        worst64=f"{max(row['ours_rel_error'] for row in double.values()):.0e}",
        theirs=counted([row["theirs_outcome"] for row in single]),
        gates=len(alone),
        alone=counted(alone),
        table="\n".join([line(HEADINGS), line(rule), *(line(cells(row, double[key_of(row)[:2]])) for row in single)]),
        limit=f"{EXACT['float32']:.0e}",
        exception=exception(single),
        limit64=f"{EXACT['float64']:.0e}",
        problems="\n".join(problem(row) for row in single if row["theirs_message"]),
        share=f"{100 * Case.share:.0f} %",
        seed=SEED,
        variation=f"{100 * min(variations):.0f} to {100 * max(variations):.0f} %",
        fresh=FRESH_BATCHES,
        time_limit=Case.limit_s,
        big_limit=CASES[-1].limit_s,
        vgg_pruned=vgg["units_asked"],
        vgg_error=f"{vgg['ours_rel_error']:.1e}",
        vgg_error64=f"{double[key_of(vgg)[:2]]['ours_rel_error']:.0e}",
        big=big["model"],
        big_parameters=f"{big['parameters_before'] / 1e6:.1f}",
        big_gates=big["gates"],
        big_shape="x".join(map(str, big["input_shape"])),
        big_sparsify=f"{big['sparsify_seconds']:.1f}",
        big_compact=f"{big['compact_seconds']:.1f}",
        big_total=f"{big['sparsify_seconds'] + big['compact_seconds']:.1f}",
        big_runs=len(big["seconds_of_runs"]),
        big_least=f"{min(big['seconds_of_runs']):.1f}",
        big_most=f"{max(big['seconds_of_runs']):.1f}",
        threads=big["threads"],
        load=big["load_before"],
        least=f"{min(seconds):.1f}",
        most=f"{max(seconds):.1f}",
        other_threads=" or ".join(sorted({f"{row['threads']} thread{'s' * (row['threads'] > 1)}" for row in single if row is not big})),
        versions=f"bayesprune {big['version']}, torch {big['torch']}, Python {big['python']}, {big['cpu']}.",
    )


HEADINGS = (
    *("network", "gates", "units pruned", "our error", "float64", "MACs", "params"),
    *("Torch-Pruning", "its error", "its MACs", "its params", "gate by gate"),
)
LEFT_ALIGNED = ("network", "gates", "Torch-Pruning", "gate by gate")


def line(cells_of_row: Sequence[str]) -> str:
    """A line of the table."""
    return f"| {' | '.join(cells_of_row)} |"


def cells(row: dict[str, Any], double: dict[str, Any]) -> list[str]:
    """What the table says about a case."""
    stayed = row["units_asked"] - row["ours_units_removed"]
    outcome = row["theirs_outcome"] if row["theirs_outcome"] == "exact" else f"**{row['theirs_outcome']}**"
    ran = row["theirs_outcome"] in ("exact", "wrong")
    refused = f", refuses {row['theirs_groups_refused']} of {row['gates']} gates" if ran and row["theirs_groups_refused"] else ""
    return [
        row["model"],
        row["placement"],
        f"{row['units_asked']} of {row['units']}" + (f", {stayed} stay" if stayed else ""),
        *(f"{each['ours_rel_error']:.0e}" if each["ours_outcome"] == "exact" else f"**{each['ours_outcome']}**" for each in (row, double)),
        percent(row["ours_macs"], row["macs_before"]),
        percent(row["ours_parameters"], row["parameters_before"]),
        outcome + refused,
        error_in_words(row.get("theirs_rel_error"), row["limit"]) if ran else "",
        percent(row["theirs_macs"], row["macs_before"]) if ran else "",
        percent(row["theirs_parameters"], row["parameters_before"]) if ran else "",
        counted(list(row.get("theirs_alone", {}).values())),
    ]


def percent(part: int, whole: int) -> str:
    """How much is left."""
    return f"{100 * part / whole:.1f}"


def error_in_words(value: float | None, limit: float) -> str:
    """Rounding errors as powers of ten, others in percent."""
    if value is None:
        return "other shape"
    return f"{value:.0e}" if value <= limit else f"{100 * value:.0f} %"


def exception(rows: list[dict[str, Any]]) -> str:
    """Where float32 itself is coarser than the limit, and what both sides are allowed there."""
    coarse = [f"{row['model']}, {row['placement']}: {row['limit']:.1e}" for row in rows if row["limit"] > EXACT["float32"]]
    return f"or of twice the reference's own float32 rounding where that is more ({'; '.join(coarse) or 'nowhere'})"


def counted(outcomes: list[str]) -> str:
    """How often each outcome occurs, in words."""
    kinds = ("exact", "wrong", "refuses", "fails")
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in kinds if kind in outcomes)


def problem(row: dict[str, Any]) -> str:
    """What Torch-Pruning said."""
    return f"- {row['model']}, {row['placement']}: {row['theirs_message']}"


def main() -> None:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(description="Exactness of removal beside Torch-Pruning.")
    parser.add_argument("--only", default="*", help="cases whose 'network, gates' match this pattern")
    parser.add_argument("--dtypes", nargs="+", choices=list(EXACT), default=list(EXACT))
    parser.add_argument("--rows", type=Path, default=ROOT / "results" / "exactness.jsonl")
    parser.add_argument("--report", action="store_true", help="write the page from the rows instead of measuring")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "exactness.md")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = [case for case in CASES if fnmatch(case.key, arguments.only)]
    if arguments.part:
        warnings.simplefilter("ignore")
        print(json.dumps(PARTS[arguments.part](cases[0], arguments.dtypes[0]), allow_nan=False))
    elif arguments.report:
        write_bytes(arguments.page, page(read_rows(arguments.rows)).encode())
    else:
        measure(cases, arguments.dtypes, arguments.rows)


if __name__ == "__main__":
    main()
