"""Several processes train one model: they compute what one process computes."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rank_work
import torch
import torch.distributed as dist

from bayesprune.experiments import RunConfig, run_main_job
from bayesprune.storage import read_tensors
from bayesprune.training.distributed import ALONE, Ranks, launched
from bayesprune.training.watching import Silent

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch was built without distributed")

STAGES = ("dense", "pruned")


def in_processes(world, name, folder):
    """What each of so many processes gives."""
    torch.multiprocessing.spawn(rank_work.start, args=(world, name, str(folder)), nprocs=world)
    return [torch.load(folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(world)]


@pytest.fixture(scope="module", autouse=True)
def paths():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), *sys.path]))
        yield


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return in_processes(3, "gradients", tmp_path_factory.mktemp("gradients"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_digits):
    folder = tmp_path_factory.mktemp("runs")
    make_digits(folder / "digits")
    return folder


@pytest.fixture(scope="module")
def two(folder):
    return in_processes(2, "runs", folder)


def close(left, right, name):
    if right is None or left is None:
        assert left is right, name
    else:
        torch.testing.assert_close(left, right, rtol=1e-12, atol=1e-13, msg=lambda text: f"{name}: {text}")


def test_gradients_and_statistics_are_those_of_one_process(three):
    """The divergence counted twice, another slice of the noise or statistics of a part would all show here.

    All cases in one test, because each worker that gets a test of three processes starts them anew.
    """
    alone = rank_work.all_gradients()
    assert alone.keys() == {*map(str, rank_work.CASES), "tensors", "weighted"}
    for rank, case in itertools.product(range(3), alone):
        found, first = three[rank]["gradients"][case], three[0]["gradients"][case]
        assert len(found) == len(alone[case]) == 4
        for step, (mine, expected) in enumerate(zip(found, alone[case], strict=True)):
            assert mine[0] == pytest.approx(expected[0], rel=1e-12), (case, rank, step)
            for part in (1, 2):
                assert mine[part].keys() == expected[part].keys()
                for name, tensor in mine[part].items():
                    close(tensor, expected[part][name], f"{case}, rank {rank}, step {step}, {name}")
                    assert tensor is None or torch.equal(tensor, first[step][part][name])


def test_evaluation_is_that_of_one_process(three):
    expected = rank_work.evaluations()
    for found in three:
        for mine, one in zip(found["evaluations"], expected, strict=True):
            assert mine.error == one.error
            assert mine.used == pytest.approx(one.used, rel=1e-12)
            assert mine.loss == pytest.approx(one.loss, rel=1e-12)
    assert expected[2].error is None


def checkpoint(folder, stage):
    return read_tensors(folder / "checkpoints" / f"{stage}.safetensors")[0]


def rows(folder):
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in found]


def test_a_run_is_that_of_one_process(two, folder):
    config = RunConfig(method="bb", epochs=2, tradeoff=0.1, data_dir=str(folder / "digits"))
    expected = run_main_job(config, folder / "alone", Silent())
    found = json.loads((folder / "through" / "summary.json").read_text())
    assert found["processes"] == 2
    assert [stage["stage"] for stage in found["stages"]] == ["dense", "pruned", "compacted"]
    for mine, one in zip(found["stages"], expected["stages"], strict=True):
        assert mine["error"] == pytest.approx(one["error"], abs=0.05)
        assert mine["kept"] == one["kept"]
    assert [row["loss"] for row in rows(folder / "through")] == pytest.approx([row["loss"] for row in rows(folder / "alone")], rel=1e-4)


def test_a_run_that_was_stopped_ends_the_same(two, folder):
    assert rows(folder / "stopped") == rows(folder / "through")
    for stage in STAGES:
        expected = checkpoint(folder / "through", stage)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in checkpoint(folder / "stopped", stage).items())
    names = {path.name for path in (folder / "through").rglob("*")} - {"kept-units.png"}
    assert {path.name for path in (folder / "stopped").rglob("*")} == names


def test_a_run_is_taken_up_by_another_number_of_processes(two, folder):
    config = RunConfig(method="bb", epochs=2, tradeoff=0.1, data_dir=str(folder / "digits"))
    assert len(rows(folder / "handed")) == 1
    run_main_job(config, folder / "handed", Silent())
    assert [row["loss"] for row in rows(folder / "handed")] == pytest.approx([row["loss"] for row in rows(folder / "through")], rel=1e-4)


def test_fit_ends_with_the_same_bits_in_all_processes(two):
    (state, history, kept), (other, _, other_kept) = (found["fit"] for found in two)
    assert kept == other_kept
    assert all(torch.equal(tensor, other[name]) for name, tensor in state.items())
    assert all(found["again"] for found in two)
    one = rank_work.fitted()
    assert [row["loss"] for row in history] == pytest.approx([row["loss"] for row in one.history], rel=1e-4)
    assert [row["error"] for row in history] == pytest.approx([row["error"] for row in one.history], abs=0.05)


def test_a_model_is_its_own_again_after_fit(two):
    """Nothing that averages gradients stays with it."""
    first, second = (found["gradient"] for found in two)
    assert not torch.allclose(first, second)


def test_a_sample_that_is_not_a_number_stops_all_processes(two):
    messages = {found["refusals"]["diverged"] for found in two}
    assert len(messages) == 1
    (message,) = messages
    assert message.startswith("DivergedError: stage 'dense' stopped: the loss became nan in epoch 1, step 1; it began in the inputs")


@pytest.mark.parametrize(
    ("case", "words"),
    [("sampler", "leave DistributedSampler out"), ("options", "given different"), ("folder", "is not empty and not a run's folder")],
)
def test_what_all_processes_refuse(two, case, words):
    for found in two:
        assert words in found["refusals"][case]


@pytest.mark.parametrize(("case", "words"), [("unknown", "nonsense"), ("sweep", "without torchrun")])
def test_one_process_says_what_is_wrong(two, case, words):
    (code, out, err), *others = (found[case] for found in two)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert len(err.splitlines()) == 1
    assert others == [(2, "", "")]


def test_one_process_reports_a_run_that_is_finished(two):
    (code, out, _), *others = (found["finished"] for found in two)
    assert code == 0
    assert "pruned" in out
    assert others == [(0, "", "")]


def test_without_torchrun_a_process_is_alone(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with launched() as ranks:
        assert ranks is ALONE


@pytest.mark.parametrize("total", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_shares_are_neighbours_and_cover_a_batch_once(total, size):
    shares = [Ranks(rank, size).share(total) for rank in range(size)]
    counted = [share for share in shares if share.counted]
    assert [index for share in counted for index in range(share.start, share.stop)] == list(range(total))
    assert max(share.samples for share in counted) - min(share.samples for share in counted) <= 1
    assert all(share.samples == 1 for share in shares if not share.counted)


def torchrun(*arguments, processes=2, program=("-m", "bayesprune")):
    """The command, or another program, in several processes."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.Popen(
        [*launcher, *map(str, program), *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_torchrun_starts_a_run(tmp_path, digits_folder):
    options = ("run", "--method", "bb", "--epochs", 1, "--tradeoff", 0.1, "--device", "cpu", "--data-dir", digits_folder)
    process = torchrun(*options, "--out", tmp_path / "run")
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    assert out.count("compacted.safetensors") == 1
    assert err.count("run folder:") == 1
    assert "Warning" not in err
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["processes"] == 2


FIT_AGAIN = """
import os
import rank_work
from pathlib import Path
kept = [[stage["error"] for stage in rank_work.fitted().stages] for _ in range(3)]
Path(os.environ["FOLDER"], os.environ["RANK"]).write_text(str(all(each == kept[0] for each in kept)))
"""


def test_a_script_may_fit_several_times(tmp_path, monkeypatch):
    """The addresses of the processes' first meeting are no good for the second."""
    (tmp_path / "script.py").write_text(FIT_AGAIN)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    process = torchrun(program=[tmp_path / "script.py"])
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["True", "True"]


FIT_IN_A_SECOND_LIFE = """
import os
import rank_work
from pathlib import Path
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
rank_work.fitted()
if first and os.environ["RANK"] == "1":
    os._exit(1)
rank_work.fitted()
Path(os.environ["FOLDER"], os.environ["RANK"]).write_text(os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


@pytest.mark.slow
def test_processes_that_torchrun_starts_anew_meet_again(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(FIT_IN_A_SECOND_LIFE)
    monkeypatch.setenv("FOLDER", str(tmp_path))
    process = torchrun(program=["--max-restarts=1", tmp_path / "script.py"])
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["1", "1"]


@pytest.mark.slow
def test_killed_processes_are_taken_up(tmp_path, make_digits):
    options = ("--method", "bb", "--epochs", 8, "--tradeoff", 0.1, "--device", "cpu", "--data-dir", make_digits(tmp_path / "digits", 3000))
    through = torchrun("run", *options, "--out", tmp_path / "through")
    assert through.wait(300) == 0, through.stderr.read()
    killed = torchrun("run", *options, "--out", tmp_path / "killed")
    while not (tmp_path / "killed" / "checkpoints" / "current.safetensors").exists():
        assert killed.poll() is None, killed.stderr.read()
        time.sleep(0.05)
    first_process = int((tmp_path / "killed" / ".bayesprune.lock").read_text().split()[1])
    os.kill(first_process, signal.SIGKILL)
    killed.communicate(timeout=120)
    assert killed.returncode != 0
    assert not (tmp_path / "killed" / "summary.json").exists()
    again = torchrun("run", "--resume", tmp_path / "killed")
    assert again.wait(300) == 0, again.stderr.read()
    assert rows(tmp_path / "killed") == rows(tmp_path / "through")
    for stage in STAGES:
        expected = checkpoint(tmp_path / "through", stage)
        assert all(torch.equal(tensor, expected[name]) for name, tensor in checkpoint(tmp_path / "killed", stage).items())


@pytest.mark.slow
def test_bad_input_under_torchrun_is_said_once(tmp_path):
    process = torchrun("run", "--network", "nonsense", processes=3)
    _, err = process.communicate(timeout=250)
    assert process.returncode != 0
    assert err.count("error: no network is called") == 1
