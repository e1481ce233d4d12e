"""Models side by side are evaluated now and then, and what was found is in their results, however often they were stopped."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from fleets import model, source

from bayesprune.errors import InputError
from bayesprune.gates import gates
from bayesprune.storage import read_tensors
from bayesprune.training import Recipe, StageRecipe, make_plan, run_stages
from bayesprune.training.plan import DENSE, Plan, usual_stages
from bayesprune.training.stages import is_look
from bayesprune.training.store import NoStore, RunStore
from bayesprune.training.watching import Silent

EPOCHS = {"dense": 3, "pruned": 12, "dependent": 2}
RECIPE = Recipe("tiny", {name: StageRecipe(epochs=epochs, lr=1e-2) for name, epochs in EPOCHS.items()})


class Stop(Silent):
    def __init__(self, looks):
        self.left = looks

    def epoch_finished(self, row):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def run(store, watcher=None, plans=None):
    plans = plans or [make_plan("dbb", RECIPE, 50, tradeoff=0.1 * (seed + 1), seed=seed) for seed in range(3)]
    networks = [model("dense", None, plan.seed) for plan in plans]
    return run_stages(networks, plans, source(), source(30), F.cross_entropy, store, watcher or Silent())


@pytest.fixture(scope="module")
def through():
    return run(NoStore())


def histories(runs):
    return [[[(look["epoch"], look["error"], look["kept"]) for look in result["history"]] for result in each.results] for each in runs]


@pytest.mark.parametrize("epochs", [1, 2, 5, 9, 10, 11, 15, 19, 20, 37, 150, 200, 1000])
def test_looks(epochs):
    looks = [epoch for epoch in range(1, epochs + 1) if is_look(epoch, epochs)]
    tenth = max(1, epochs // 10)
    marks = set(range(tenth, epochs + 1, tenth))
    assert marks <= set(looks)
    assert looks[0] == 1
    assert all(epoch < epochs / 10 for epoch in set(looks) - marks)
    assert len(looks) <= 30
    if epochs >= 150:
        early = [epoch for epoch in looks if epoch < epochs / 10]
        assert early[:6] == [1, 2, 3, 4, 6, 8]


def test_looks_of_the_paper():
    looks = [epoch for epoch in range(1, 201) if is_look(epoch, 200)]
    assert looks == [1, 2, 3, 4, 6, 8, 12, 16, *range(20, 201, 20)]


def test_histories_in_the_results(through):
    for run in through:
        assert [result["stage"] for result in run.results] == list(EPOCHS)
        assert run.rows == []
        for result in run.results:
            epochs = EPOCHS[result["stage"]]
            history = result["history"]
            assert [look["epoch"] for look in history] == list(range(1, epochs + 1))
            assert all(set(look) == {"epoch", "seconds", "error", "kept"} for look in history)
            assert (history[-1]["error"], history[-1]["kept"]) == (result["error"], result["kept"])
            seconds = [look["seconds"] for look in history]
            assert seconds == sorted(seconds)
            assert seconds[-1] == result["seconds"]
    assert histories(through)[0] != histories(through)[1], "each has its own"


@pytest.mark.parametrize("stops", [(1,), (3,), (5, 4), (1,) * 10, (16,)])
def test_histories_survive(through, tmp_path, monkeypatch, stops):
    monkeypatch.setattr(RunStore, "seconds_between", 0.0)
    for looks in stops:
        with pytest.raises(KeyboardInterrupt):
            run(RunStore(tmp_path, {}), Stop(looks))
    again = run(RunStore(tmp_path, {}))
    assert histories(again) == histories(through)
    for one, other in zip(again, through, strict=True):
        state = other.model.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in one.model.state_dict().items())
    _, record = read_tensors(tmp_path / "checkpoints" / "pruned.safetensors")
    assert [[look["epoch"] for look in looks] for looks in record["histories"]] == [[epoch] * 3 for epoch in range(1, 13)]


def test_without_a_checkpoint_no_look_is_counted_twice(through, tmp_path):
    """Fleets are stored once a minute: what was seen since then is seen again."""
    with pytest.raises(KeyboardInterrupt):
        run(RunStore(tmp_path, {}), Stop(7))
    assert histories(run(RunStore(tmp_path, {}))) == histories(through)


def test_one_model_has_rows_and_no_history():
    (alone,) = run(NoStore(), plans=[make_plan("bb", RECIPE, 50)])
    assert "history" not in alone.results[-1]
    assert len(alone.rows) == EPOCHS["dense"] + EPOCHS["pruned"]


def test_usual_stages():
    assert usual_stages(DENSE) == usual_stages(DENSE, pretrain=False) == ("dense",)
    assert usual_stages("bb") == ("dense", "pruned")
    assert usual_stages("dbb") == ("dense", "pruned", "dependent")
    assert usual_stages("dbb", pretrain=False) == ("pruned", "dependent")


def test_stages_one_at_a_time_are_those_of_a_whole_run(through):
    """Dense, pruned, dependent, each from what the one before gave: as a reproduction does it."""
    runs = run(NoStore(), plans=[Plan(DENSE, RECIPE, ("dense",), seed) for seed in range(3)])
    assert not any(gates(each.model) for each in runs)
    results = [runs]
    for stage, method in (("pruned", "bb"), ("dependent", "dbb")):
        plans = [make_plan(method, RECIPE, 50, tradeoff=0.1 * (seed + 1), seed=seed) for seed in range(3)]
        plans = [Plan(**{**vars(plan), "stages": (stage,)}) for plan in plans]
        runs = run_stages([each.model for each in runs], plans, source(), source(30), F.cross_entropy, NoStore(), Silent())
        results.append(runs)
    for member, whole in enumerate(through):
        assert [[part[member]] for part in map(histories, results)] == [[[stage]] for stage in histories(through)[member]]
        state = whole.model.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in runs[member].model.state_dict().items())


def test_plans_of_other_stages_are_not_trained_side_by_side():
    plans = [make_plan("bb", RECIPE, 50), make_plan("bb", RECIPE, 50, pretrain=False)]
    with pytest.raises(InputError, match="same method, stages, recipe"):
        run(NoStore(), plans=plans)


def test_single_model_that_is_rarely_evaluated():
    stages = {"dense": StageRecipe(epochs=40, lr=1e-2)}
    plan = Plan(DENSE, Recipe("tiny", stages), ("dense",), rarely_evaluated=True)
    (rarely,) = run(NoStore(), plans=[plan])
    (often,) = run(NoStore(), plans=[replace(plan, rarely_evaluated=False)])
    looks = [epoch for epoch in range(1, 41) if is_look(epoch, 40)]
    assert [row["epoch"] for row in rarely.rows] == looks
    assert [row["epoch"] for row in often.rows] == list(range(1, 41))
    assert rarely.results[0] | {"seconds": 0} == often.results[0] | {"seconds": 0}, "looking changes nothing"
