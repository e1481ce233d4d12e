"""The rows of a reproduction: what they say, and of which models."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from reproducing import EPOCHS, IMAGES, STRONG, TRADEOFFS, WEAK, WHOLE, places, reproduce, small
from sweeping import timeless

import bayesprune.experiments.fleets as fleets
from bayesprune.attach import make_dependent, sparsify
from bayesprune.cost import relative_cost
from bayesprune.data import load_dataset
from bayesprune.experiments.evidence import load_evidence
from bayesprune.experiments.main_job import batches_of
from bayesprune.experiments.other_counts import THRESHOLDS, at_other_thresholds, other_counts, soft_count
from bayesprune.experiments.protocol import Entry
from bayesprune.experiments.published import tradeoff_value
from bayesprune.gates import gates
from bayesprune.models import LeNet500300
from bayesprune.storage import read_rows
from bayesprune.training.evaluation import evaluate
from bayesprune.training.recipes import PAPER
from bayesprune.training.stages import run_stages

FIELDS = {
    "network", "dataset", "method", "tradeoff", "seed", "status", "error", "memory", "kept", "speedup", "macs", "parameters", "epochs",
    "seconds", "side_by_side", "recipe", "hardware", "device", "torch", "python", "version", "history", "placement", "shrink", "precision",
}  # fmt: skip
MORE = {"bb": {"thresholds"}, "dbb": {"thresholds", "static_kept"}, "l0": {"soft"}}
ASKED = small(methods=("dense", "cd", "l0", "bb", "dbb"), tradeoffs={"dense": (None,), "cd": (None,), **TRADEOFFS})


@pytest.fixture(scope="module")
def done(digits_folder, tmp_path_factory):
    """The rows, and for every stage that was trained the models before and after it with their plans."""
    folder, stages = tmp_path_factory.mktemp("reproduction"), []

    def watched(models, plans, *rest):
        before = copy.deepcopy(models)
        runs = run_stages(models, plans, *rest)
        stages.append((before, plans, [run.model for run in runs]))
        return runs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleets, "run_stages", watched)
        patch.setattr(fleets, "EVIDENCE", Entry("dbb", WEAK, 0))
        rows = reproduce(ASKED, folder, digits_folder)
    return folder, rows, stages


@pytest.fixture(scope="module")
def batches(digits_folder):
    return batches_of(load_dataset("mnist", digits_folder), PAPER, torch.device("cpu"))[1]


def of(rows, method):
    return [row for row in rows if row["method"] == method]


def same(one, other):
    theirs = other.state_dict()
    return one.state_dict().keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def test_rows_are_those_of_the_tables_in_order(done):
    folder, rows, _ = done
    expected = [(entry.method, entry.tradeoff, entry.seed) for entry in ASKED.all_entries()]
    assert [(row["method"], row["tradeoff"], row["seed"]) for row in rows] == expected
    assert len(rows) == 2 + 2 + 4 + 4 + 4
    assert read_rows(places(folder).rows) == rows
    assert not places(folder).work.exists()


def test_fields(done):
    _, rows, _ = done
    for row in rows:
        assert set(row) == FIELDS | MORE.get(row["method"], set()) | ({"gates"} if row["method"] != "dense" else set()) | {"stage_recipe"}
        assert (row["network"], row["dataset"], row["recipe"], row["status"]) == ("lenet-500-300", "mnist", "tiny", "finished")
        assert row["device"] == "cpu"
        assert 0 <= row["error"] <= 100
        assert len(row["kept"]) == 3
        assert row["seconds"] > 0
        assert all(type(row[name]) is int for name in ("macs", "parameters", "epochs", "side_by_side", "seed"))
        stage = {"dense": "dense", "dbb": "dependent"}.get(row["method"], "pruned")
        assert row["epochs"] == row["stage_recipe"]["epochs"] == EPOCHS[stage]
        assert row["side_by_side"] == (2 if row["method"] in ("dense", "cd") else 4)
        assert [set(look) for look in row["history"]] == [{"epoch", "seconds", "error", "kept"}] * EPOCHS[stage]
        assert [look["epoch"] for look in row["history"]] == list(range(1, EPOCHS[stage] + 1))
        assert (row["history"][-1]["error"], row["history"][-1]["kept"]) == (pytest.approx(row["error"], abs=1e-4), row["kept"])
    for row in of(rows, "dense"):
        assert (row["kept"], row["speedup"], row["memory"], row["tradeoff"]) == ([784, 500, 300], 1.0, 100.0, None)


def test_every_fleet_starts_from_the_same_pretrained_networks(done, batches):
    _, rows, stages = done
    (_, dense_plans, pretrained), *others = stages
    assert [plan.method for plan in dense_plans] == ["dense", "dense"]
    assert [plans[0].method for _, plans, _ in others] == ["bb", "dbb", "l0", "cd"]
    by_seed = {plan.seed: network for plan, network in zip(dense_plans, pretrained, strict=True)}
    assert not same(by_seed[0], by_seed[1])
    for before, plans, _ in others:
        if plans[0].method != "dbb":
            assert all(same(model, by_seed[plan.seed]) for model, plan in zip(before, plans, strict=True))
    for row in of(rows, "dense"):
        assert row["error"] == pytest.approx(evaluate(by_seed[row["seed"]], batches, F.cross_entropy).error, abs=1e-4)
    assert of(rows, "dense")[0]["error"] < 60, "the networks have learned something"


def test_dbb_goes_on_with_the_models_of_bb(done):
    _, rows, stages = done
    (_, _, static), (before, plans, after) = stages[1:3]
    assert all(same(one, other) for one, other in zip(before, static, strict=True))
    by_entry = {(row["method"], row["tradeoff"], row["seed"]): row for row in rows}
    for row in of(rows, "dbb"):
        below = by_entry["bb", row["tradeoff"], row["seed"]]
        assert row["static_kept"] == below["kept"]
        assert all(used <= kept + 1e-3 for used, kept in zip(row["kept"], below["kept"], strict=True))
        assert rows.index(below) < rows.index(row)
        if row["tradeoff"] == WEAK:
            assert all(0 < used < kept < whole for used, kept, whole in zip(row["kept"], below["kept"], (784, 500, 300), strict=True))
    assert len(after) == len(plans) == 4


def test_rows_say_what_the_gates_are_set_to(done):
    _, rows, _ = done
    for row in of(rows, "bb") + of(rows, "dbb"):
        assert row["gates"] == {"kl_scale": float(row["tradeoff"])}
    for row in of(rows, "l0"):
        assert row["gates"]["price"] == pytest.approx(tradeoff_value(row["tradeoff"]) * WHOLE)


def test_tradeoffs_arrive(done):
    _, _, stages = done
    share = IMAGES[0] / WHOLE
    scales = sorted({plan.scale("pruned") for plan in stages[1][1]})
    assert scales == pytest.approx([share * float(WEAK), share * float(STRONG)])
    assert {plan.scale("dependent") for plan in stages[2][1]} == {share}, "an image weighs what it does among all"
    prices = sorted({plan.scale("pruned") * plan.hyperparameters["price"] / IMAGES[0] for plan in stages[3][1]})
    assert prices == pytest.approx([0.05 / 60_000, 0.1 / 60_000]), "a weight has its price, whatever part of the images is used"


@pytest.mark.parametrize("method", ["bb", "dbb"])
def test_other_thresholds_by_hand(done, batches, method):
    _, rows, stages = done
    _, plans, models = stages[1 if method == "bb" else 2]
    own = of(rows, method)
    for model, row in zip(models, own, strict=True):
        assert set(row["thresholds"]) == {"0.01", "0.0001"}
        for text, counted in row["thresholds"].items():
            by_hand = copy.deepcopy(model)
            for gate in gates(by_hand).values():
                assert gate.threshold == 1e-3
                gate.threshold = float(text)
            found = evaluate(by_hand, batches, F.cross_entropy)
            assert counted["error"] == pytest.approx(found.error, abs=1e-4)
            assert counted["kept"] == pytest.approx(found.used, abs=1e-2)
            kept = [int(gate.keep().sum()) for gate in gates(by_hand).values()]
            cost = relative_cost(model.layers(), kept, None if method == "bb" else found.used)
            assert (counted["speedup"], counted["memory"]) == (
                pytest.approx(cost.speedup, rel=1e-3), pytest.approx(cost.memory_percent, rel=1e-3),
            )  # fmt: skip
    assert len(plans) == len(own)


def test_thresholds_come_back_also_after_an_error(batches):
    models = [sparsify(LeNet500300(), "bb", threshold=[0.1, 0.2, 0.3]) for _ in range(2)]

    def broken(outputs, targets):
        raise RuntimeError("no loss")

    with pytest.raises(RuntimeError, match="no loss"):
        at_other_thresholds(models, batches, broken)
    at_other_thresholds([make_dependent(models[0])], batches, F.cross_entropy)
    assert [gate.threshold for model in models for gate in gates(model).values()] == [0.1, 0.2, 0.3] * 2
    assert THRESHOLDS == (1e-2, 1e-4)


def test_other_counts_of_no_models(batches):
    for method in ("bb", "l0", "cd"):
        assert other_counts(method, [], batches, F.cross_entropy) == []
    assert other_counts("sbp", [None, None], batches, F.cross_entropy) == [{}, {}]


def test_soft_count_by_hand():
    """A gate's value at test time is min(1, max(0, sigmoid(log alpha) (zeta - gamma) + gamma)) with gamma, zeta = -0.1, 1.1."""
    model = sparsify(LeNet500300(), "l0")
    values = {784: 0.3, 500: 0.05, 300: -1.0}
    with torch.no_grad():
        for gate, logit in zip(gates(model).values(), values.values(), strict=True):
            gate.log_alpha.fill_(logit)
    kept = [math.floor(units * (1.2 / (1 + math.exp(-logit)) - 0.1)) for units, logit in values.items()]
    cost = relative_cost(model.layers(), kept)
    found = soft_count(model)["soft"]
    assert found == {"kept": kept, "speedup": round(cost.speedup, 4), "memory": round(cost.memory_percent, 4)}
    assert 0 < found["kept"][2] < 300


def test_soft_count_in_the_rows(done):
    _, rows, stages = done
    for row, model in zip(of(rows, "l0"), stages[3][2], strict=True):
        assert {"soft": row["soft"]} == soft_count(model)
        assert all(soft <= kept for soft, kept in zip(row["soft"]["kept"], row["kept"], strict=True))


def test_the_model_for_figures(done, batches):
    folder, rows, _ = done
    (path,) = places(folder).models.iterdir()
    assert path.name == "lenet-500-300-mnist-dbb.safetensors"
    model = load_evidence("lenet-500-300", 10, path)
    row = next(row for row in of(rows, "dbb") if (row["tradeoff"], row["seed"]) == (WEAK, 0))
    found = evaluate(model, batches, F.cross_entropy)
    assert found.error == pytest.approx(row["error"], abs=1e-4)
    assert found.used == pytest.approx(row["kept"], abs=1e-3)


def test_models_one_at_a_time_have_a_history_too(digits_folder, tmp_path):
    asked = small(seeds=[0], methods=("dense", "bb"))
    rows = reproduce(asked, tmp_path, digits_folder, side_by_side=1)
    assert [row["side_by_side"] for row in rows] == [1, 1, 1]
    for row in rows:
        assert [set(look) for look in row["history"]] == [{"epoch", "seconds", "error", "kept"}] * row["epochs"]
        assert row["history"][-1]["kept"] == row["kept"]


def test_pretraining_is_never_split(digits_folder, tmp_path, done):
    rows = reproduce(small(methods=("dense",)), tmp_path, digits_folder, side_by_side=1)
    assert [row["side_by_side"] for row in rows] == [2, 2]
    assert timeless(rows) == timeless(of(done[1], "dense"))
