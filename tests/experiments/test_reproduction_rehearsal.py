"""Programs that are compiled ahead: which, when, and that nothing else comes of it."""

import subprocess
import sys

import pytest
import torch
from reproducing import places, reproduce, small
from sweeping import timeless

import bayesprune.experiments.rehearsal as rehearsal
from bayesprune.experiments.main_job import RunConfig
from bayesprune.experiments.protocol import Fleet
from bayesprune.experiments.rehearsal import Rehearsal, Rehearsals
from bayesprune.training.watching import Silent

MEMBERS = (("0.05", 0), ("0.2", 1))
FLEETS = (Fleet("dense", "dense", ((None, 0), (None, 1))), Fleet("dbb", "dbb", MEMBERS), Fleet("l0", "l0", (("0.1/60000", 0),)))
ROW = {"stage": "pruned", "epoch": 1}


class Process:
    """Stands for another process."""

    def __init__(self, hangs=False):
        self.hangs, self.waited, self.killed = hangs, 0, False

    def wait(self, patience=None):
        self.waited += 1
        if self.hangs and not self.killed:
            raise subprocess.TimeoutExpired("rehearsal", patience)

    def kill(self):
        self.killed = True


@pytest.fixture
def asked(monkeypatch):
    """The stages that other processes were asked to rehearse, and these processes."""
    found = []

    def start(self):
        found.append((self.fleet.name, self.method, Process()))
        return found[-1][-1]

    monkeypatch.setattr(Rehearsal, "start", start)
    monkeypatch.setattr(rehearsal, "_has_room", lambda device: True)
    return found


def config(folder):
    return RunConfig(network="lenet-500-300", dataset="mnist", recipe="paper", device="cpu", data_dir=str(folder), shrink=False)


def rehearsals(device="cuda"):
    return Rehearsals(small(), config("nowhere"), torch.device(device), FLEETS, Silent())


def names(asked):
    return [(name, method) for name, method, _ in asked]


def test_the_next_stage_is_rehearsed_after_the_first_epoch(asked):
    ahead = rehearsals()
    for fleet, method, following in ((FLEETS[0], "dense", "bb"), (FLEETS[1], "bb", "dbb"), (FLEETS[1], "dbb", "l0")):
        watcher = ahead.watch(fleet, method)
        before = len(asked)
        watcher.stage_started("pruned", 3, 10, 0)
        watcher.step(1.0)
        assert len(asked) == before, "the stage itself is compiled first"
        for _ in range(3):
            watcher.epoch_finished(ROW)
        assert [method for _, method in names(asked)[before:]] == [following]
    ahead.watch(FLEETS[2], "l0").epoch_finished(ROW)
    assert names(asked) == [("dbb", "bb"), ("dbb", "dbb"), ("l0", "l0")]
    assert all(process.waited for *_, process in asked), "a stage waits for its rehearsal"


def test_stage_that_was_finished_before_starts_nothing(asked):
    ahead = rehearsals()
    ahead.watch(FLEETS[0], "dense").stage_finished({"stage": "dense"})
    ahead.watch(FLEETS[1], "bb").epoch_finished(ROW)
    assert names(asked) == [("dbb", "dbb")]


def test_rehearsal_that_hangs_is_given_up(asked):
    ahead = rehearsals()
    ahead.watch(FLEETS[0], "dense").epoch_finished(ROW)
    ((*_, process),) = asked
    process.hangs = True
    ahead.watch(FLEETS[1], "bb")
    assert process.killed


def test_nothing_is_left_running(asked):
    ahead = rehearsals()
    ahead.watch(FLEETS[0], "dense").epoch_finished(ROW)
    ahead.close()
    assert asked[0][-1].killed
    ahead.close()


def test_processors_and_full_gpus_rehearse_nothing(asked, monkeypatch):
    rehearsals("cpu").watch(FLEETS[0], "dense").epoch_finished(ROW)
    monkeypatch.setattr(rehearsal, "_has_room", lambda device: False)
    rehearsals().watch(FLEETS[0], "dense").epoch_finished(ROW)
    assert asked == []


@pytest.mark.parametrize(("fleet", "method"), [(FLEETS[1], "bb"), (FLEETS[1], "dbb"), (FLEETS[2], "l0")])
def test_rehearsal_trains_the_stage_for_an_epoch(digits_folder, monkeypatch, fleet, method):
    seen = []

    def run_stages(models, plans, training, *others):
        seen.append(([plan.seed for plan in plans], plans[0].stages, [stage.epochs for stage in plans[0].recipe.stages.values()]))
        return original(models, plans, training, *others)

    original = rehearsal.run_stages
    monkeypatch.setattr(rehearsal, "run_stages", run_stages)
    Rehearsal(small(), config(digits_folder), "cpu", fleet, method).carry_out()
    stage = "dependent" if method == "dbb" else "pruned"
    assert seen == [([seed for _, seed in fleet.members], (stage,), [1, 1, 1])]


@pytest.mark.slow
def test_in_another_process(digits_folder):
    process = Rehearsal(small(), config(digits_folder), "cpu", FLEETS[2], "l0").start()
    assert process.wait(120) == 0
    failing = Rehearsal(small(), config("nowhere"), "cpu", FLEETS[2], "l0").start()
    assert failing.wait(120) != 0


@pytest.mark.slow
def test_reproduction_with_rehearsals_has_the_same_rows(digits_folder, tmp_path, monkeypatch):
    through = reproduce(small(), tmp_path / "through", digits_folder)
    monkeypatch.setattr(Rehearsals, "_start", start_anywhere)
    assert timeless(reproduce(small(), tmp_path / "ahead", digits_folder)) == timeless(through)
    assert not places(tmp_path / "ahead").work.exists()


def start_anywhere(self, fleet, method):
    self.process = Rehearsal(self.protocol, self.common, "cpu", fleet, method).start()


def test_no_more_processes(monkeypatch):
    commands = []

    def refuse(command, **streams):
        commands.append(command)
        raise OSError("no more processes")

    monkeypatch.setattr(rehearsal, "_has_room", lambda device: True)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    ahead = rehearsals()
    ahead.watch(FLEETS[0], "dense").epoch_finished(ROW)
    ahead.watch(FLEETS[1], "bb")
    assert commands == [[sys.executable, "-m", "bayesprune.experiments.rehearsal"]]
