"""docs/exactness.md from the rows."""

from collections.abc import Sequence
from typing import Any

from benchmarks.exactness.cases import CASES, Case
from benchmarks.exactness.reference import EXACT, FRESH_BATCHES, SEED
from benchmarks.exactness.rows import key_of

PAGE = """# Exactness

Does removing units change what a network computes? Here are {cases} networks and ways to gate them. `bayesprune.compact` and
[Torch-Pruning](https://github.com/VainF/Torch-Pruning) {torch_pruning} are given the same masks. The page is written by
`python -m benchmarks.exactness --report` from `results/exactness.jsonl`.

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
        worst32=f"{max(row['ours_rel_error'] for row in single):.1e}",
        worst64=f"{max(row['ours_rel_error'] for row in double.values()):.1e}",
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
