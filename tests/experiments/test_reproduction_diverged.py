"""Models that diverge have rows that say so; the others do not notice."""

import copy

import pytest
import torch
from reproducing import STRONG, WEAK, places, reproduce, small
from sweeping import timeless

import bayesprune.experiments.fleets as fleets
from bayesprune.storage import read_rows
from bayesprune.training.stages import run_stages

NOTHING = ("error", "kept", "speedup", "memory", "macs", "parameters", "epochs", "seconds")


def spoil(monkeypatch, stage, *spoilt):
    """Give the models of some trade-offs and seeds weights of NaN at the beginning of a stage; no trade-off stands for all."""

    def run(models, plans, *rest):
        models = list(models)
        for number, plan in enumerate(plans):
            if plan.stages == (stage,) and any(seed == plan.seed and scale in (None, plan.kl_scale) for scale, seed in spoilt):
                models[number] = copy.deepcopy(models[number])
                with torch.no_grad():
                    models[number].fc2.weight[0, 0] = float("nan")
        return run_stages(models, plans, *rest)

    monkeypatch.setattr(fleets, "run_stages", run)


@pytest.fixture(scope="module")
def through(digits_folder, tmp_path_factory):
    return reproduce(small(), tmp_path_factory.mktemp("through"), digits_folder)


def check(rows, expected):
    """These have diverged, and say so; all others are finished."""
    assert {(row["method"], row["tradeoff"], row["seed"]) for row in rows if row["status"] == "diverged"} == expected
    for row in rows:
        if row["status"] == "diverged":
            assert "fc2.weight" in row["reason"]
            assert "checkpoint" not in row["reason"]
            assert [row[name] for name in NOTHING] == [None] * len(NOTHING)
            assert row.keys().isdisjoint({"thresholds", "soft", "static_kept", "history"})
            assert (row["network"], row["recipe"], row["device"]) == ("lenet-500-300", "tiny", "cpu")
        else:
            assert row["status"] == "finished"
            assert row["error"] is not None


def test_the_pretrained_network_of_a_seed(digits_folder, tmp_path, monkeypatch):
    spoil(monkeypatch, "dense", (None, 1))
    rows = reproduce(small(), tmp_path, digits_folder)
    check(rows, {(row["method"], row["tradeoff"], 1) for row in rows})
    assert read_rows(places(tmp_path).rows) == rows
    assert not places(tmp_path).work.exists()


@pytest.mark.parametrize("side_by_side", [None, 1])
def test_all_pretrained_networks(digits_folder, tmp_path, monkeypatch, side_by_side):
    spoil(monkeypatch, "dense", (None, 0))
    rows = reproduce(small(seeds=[0]), tmp_path, digits_folder, side_by_side=side_by_side)
    assert len(rows) == 7
    check(rows, {(row["method"], row["tradeoff"], 0) for row in rows})
    assert not places(tmp_path).models.exists()


@pytest.mark.parametrize(("stage", "methods"), [("pruned", ("bb", "dbb")), ("dependent", ("dbb",))])
def test_a_model_of_bb_that_diverges_is_none_of_dbb(digits_folder, tmp_path, monkeypatch, through, stage, methods):
    spoil(monkeypatch, stage, (float(STRONG), 0))
    rows = reproduce(small(), tmp_path, digits_folder)
    check(rows, {(method, STRONG, 0) for method in methods})
    if stage == "dependent":
        assert [row for row in timeless(rows) if row["status"] == "finished"] == [
            expected for row, expected in zip(rows, timeless(through), strict=True) if row["status"] == "finished"
        ]


@pytest.mark.parametrize("tradeoffs", [(WEAK,), (WEAK, STRONG)])
def test_the_only_model_of_a_fleet(digits_folder, tmp_path, monkeypatch, tradeoffs):
    """Alone from the start, and as the last of its fleet in the stage of DBB."""
    train = fleets.StagedRun

    def run(models, plans, *rest):
        runs = run_stages(models, plans, *rest)
        if plans[0].method == "bb" and len(runs) == 2:
            runs[0] = train(runs[0].model, [{"status": "diverged", "reason": "fc2.weight"}])
        return runs

    monkeypatch.setattr(fleets, "run_stages", run)
    if len(tradeoffs) == 1:
        spoil(monkeypatch, "pruned", (float(WEAK), 0))
    asked = small(seeds=[0], tradeoffs={"dense": (None,), "bb": tradeoffs, "dbb": tradeoffs}, methods=("dense", "bb", "dbb"))
    rows = reproduce(asked, tmp_path, digits_folder)
    check(rows, {("bb", WEAK, 0), ("dbb", WEAK, 0)})
    assert {row["side_by_side"] for row in rows[1:]} == {len(tradeoffs)}
    if len(tradeoffs) == 2:
        last = rows[-1]
        assert [look["epoch"] for look in last["history"]] == [1, 2]
        assert last["static_kept"] == rows[2]["kept"]


def test_a_diverged_row_is_not_tried_again(digits_folder, tmp_path, monkeypatch):
    asked = small(seeds=[0], methods=("l0",))
    with monkeypatch.context() as patch:
        spoil(patch, "pruned", (None, 0))
        rows = reproduce(asked, tmp_path, digits_folder)
    assert [row["status"] for row in rows] == ["diverged", "diverged"]
    assert timeless(reproduce(asked, tmp_path, digits_folder)) == timeless(rows)
