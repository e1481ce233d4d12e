import copy
import json
import pickle
import re
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bayesprune.attach import sparsify
from bayesprune.benchmark import Benchmark, Timing, benchmark
from bayesprune.benchmark import latency as latency_module
from bayesprune.benchmark import turns as turns_module
from bayesprune.benchmark.turns import Contender, take_turns
from bayesprune.errors import InputError
from bayesprune.models import LeNet5Caffe, LeNet500300

QUICK = {"seconds": 0.0, "repetitions": 2, "warmup": 1}


class Recorder(nn.Module):
    """Notes the shapes, the modes and its name whenever it is called."""

    def __init__(self, name="", log=None, pause=0.0):
        super().__init__()
        self.name, self.log, self.pause = name, [] if log is None else log, pause
        self.layer = nn.Linear(3, 2)

    def forward(self, x, mask=None, **more):
        self.log.append(
            SimpleNamespace(
                name=self.name,
                shapes=tuple(tuple(tensor.shape) for tensor in (x, mask, *more.values()) if tensor is not None),
                training=self.training,
                gradients=torch.is_grad_enabled(),
                inference=torch.is_inference_mode_enabled(),
                threads=torch.get_num_threads(),
            )
        )
        time.sleep(self.pause)
        return self.layer(x)


class Failing(nn.Module):
    def forward(self, x):
        if torch.is_inference_mode_enabled():
            raise RuntimeError("not\nlike this")
        return x


def test_it_measures_in_evaluation_mode_and_restores():
    model = Recorder().train()
    result = benchmark(model, torch.rand(4, 3), batch_sizes=None, **QUICK)
    assert model.training
    assert torch.is_grad_enabled()
    assert not any(call.training or call.gradients for call in model.log)
    assert all(call.inference for call in model.log[1:])
    (timing,) = result.timings
    assert (timing.model, timing.runtime, timing.batch_size, timing.device) == ("Recorder", "eager", 4, "cpu")
    assert timing.repetitions >= 2
    assert 0 < timing.p10_ms <= timing.median_ms <= timing.p90_ms


def test_repetitions_and_seconds_are_lower_bounds():
    model = Recorder(pause=0.002)
    (many,) = benchmark(model, torch.rand(1, 3), batch_sizes=None, seconds=0.0, repetitions=7, warmup=1).timings
    assert many.repetitions == 7
    (long,) = benchmark(model, torch.rand(1, 3), batch_sizes=None, seconds=0.1, repetitions=1, warmup=1).timings
    assert long.repetitions * long.p90_ms >= 50


def test_warm_up_is_not_timed():
    few, many = Recorder(), Recorder()
    for model, warmup in ((few, 1), (many, 30)):
        result = benchmark(model, torch.rand(1, 3), batch_sizes=None, seconds=0.0, repetitions=3, warmup=warmup)
        assert result.timings[0].repetitions == 3
    assert len(many.log) - len(few.log) == 29


def test_models_take_turns_in_alternating_order():
    log = []
    models = {name: Recorder(name, log) for name in "abc"}
    benchmark(models, torch.rand(1, 3), batch_sizes=None, seconds=0.0, repetitions=4, warmup=1)
    calls = "".join(call.name for call in log)
    # A check and a warm-up each, then turns of one call that does not count and one that does.
    assert calls == "aabbcc" + 2 * ("aabbcc" + "ccbbaa")


def test_drift_hits_all_alike(monkeypatch):
    """A machine that becomes slower all the time: measured one after the other, the second model would look twice as slow."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(
        turns_module, "time", SimpleNamespace(perf_counter=lambda: clock.now, perf_counter_ns=lambda: round(clock.now * 1e9))
    )

    def run():
        clock.now += 0.001 * (1 + clock.now)

    contenders = [Contender(name, "eager", run, torch.device("cpu")) for name in ("first", "second")]
    shares = list(take_turns(contenders, seconds=1.0, repetitions=20))
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    first, second = (contender.timing(1, 1) for contender in contenders)
    assert second.median_ms / first.median_ms == pytest.approx(1.0, abs=0.1)
    assert first.p90_ms / first.p10_ms > 1.5


def test_a_model_that_takes_twice_as_long_is_measured_so():
    models = {"slow": Recorder(pause=0.008), "fast": Recorder(pause=0.004)}
    result = benchmark(models, torch.rand(1, 3), batch_sizes=(1,), seconds=0.1, repetitions=10)
    slow, fast = result.timings
    assert result.speedup(slow) == 1
    assert 1.5 < result.speedup(fast) < 2.5
    assert 8 <= slow.median_ms < 16
    other = benchmark(models, torch.rand(1, 3), batch_sizes=(1,), seconds=0.0, repetitions=5, compare="fast")
    assert 0.4 < other.speedup(other.timings[0]) < 0.67


def test_more_work_takes_longer():
    models = {"wide": nn.Linear(1500, 1500), "narrow": nn.Linear(1500, 100)}
    result = benchmark(models, torch.rand(1, 1500), batch_sizes=(32,), seconds=0.1)
    assert result.speedup(result.timings[1]) > 2


def test_gated_models_run_without_noise():
    result = benchmark({"plain": LeNet500300(), "gated": sparsify(LeNet500300(), "bb").train()}, torch.rand(2, 784), **QUICK)
    assert [timing.model for timing in result.timings] == ["plain", "gated"] * 2


@pytest.mark.parametrize("given", [1, 2, 5])
def test_batches_are_repeated_and_cut(given):
    model = Recorder()
    result = benchmark(model, torch.rand(given, 3), batch_sizes=(1, 4, 7), **QUICK)
    assert [timing.batch_size for timing in result.timings] == [1, 4, 7]
    assert list(dict.fromkeys(call.shapes for call in model.log)) == [((1, 3),), ((4, 3),), ((7, 3),)]


def test_only_what_belongs_to_the_batch_is_resized():
    model, x = Recorder(), torch.rand(2, 3)
    benchmark(model, (x, torch.rand(5, 5)), batch_sizes=(4,), **QUICK)
    assert model.log[-1].shapes == ((4, 3), (5, 5))
    benchmark(model, {"x": x, "mask": torch.rand(2, 1), "scale": torch.tensor(1.0)}, batch_sizes=(4,), **QUICK)
    assert model.log[-1].shapes == ((4, 3), (4, 1), ())


def test_repeated_inputs_are_the_given_ones():
    seen = []
    layer = nn.Identity()
    layer.register_forward_hook(lambda module, inputs, output: seen.append(output.clone()))
    x = torch.rand(2, 3)
    benchmark(layer, x, batch_sizes=(5,), **QUICK)
    assert torch.equal(seen[-1], torch.cat([x, x, x])[:5])


def test_threads_are_set_for_the_time_being():
    model, before = Recorder(), torch.get_num_threads()
    result = benchmark(model, torch.rand(1, 3), batch_sizes=None, threads=before + 1, **QUICK)
    assert {call.threads for call in model.log} == {before + 1} == {result.timings[0].threads}
    assert torch.get_num_threads() == before
    assert benchmark(model, torch.rand(1, 3), batch_sizes=None, **QUICK).timings[0].threads == before


def test_an_accelerator_is_waited_for(monkeypatch):
    waits = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    device = torch.device("cuda")
    contender = Contender("model", "eager", lambda: None, device)
    contender.take_turn(0.0)
    assert waits == [device] * 2
    assert len(contender.nanoseconds) == 1


def test_rows_are_ready_for_a_file():
    result = benchmark(LeNet5Caffe(), torch.rand(1, 1, 28, 28), **QUICK)
    rows = [json.loads(json.dumps(row)) for row in result.rows()]
    assert [row["batch_size"] for row in rows] == [1, 64]
    for row in rows:
        assert row["torch"] == torch.__version__
        assert row["cpu"] == row["device_name"] != ""
        assert row["threads"] == torch.get_num_threads()
        assert (row["model"], row["baseline"], row["speedup"]) == ("LeNet5Caffe", "LeNet5Caffe", 1.0)


def test_it_prints_as_a_table():
    timings = (Timing("dense", "eager", 1, 2.0, 1.5, 3.0, 20, 2, "cpu"), Timing("small", "eager", 1, 0.5, 0.4, 0.6, 80, 2, "cpu"))
    text = str(Benchmark(timings, "dense", {"device_name": "a processor", "torch": "2.13.0"}))
    assert [line.split() for line in text.splitlines()[1:3]] == [
        ["dense", "eager", "1", "2.000", "1.500", "3.000", "20", "1.00x"],
        ["small", "eager", "1", "0.500", "0.400", "0.600", "80", "4.00x"],
    ]
    assert "against dense" in text.splitlines()[0]
    assert text.splitlines()[3] == "a processor, 2 threads, torch 2.13.0"


def test_a_single_model_is_compared_with_nothing():
    timing = Timing("small", "eager", 1, 0.5, 0.4, 0.6, 80, 2, "cpu")
    header, row, _ = str(Benchmark((timing,), "small", {"device_name": "a processor", "torch": "2.13.0"})).splitlines()
    assert header.endswith("calls")
    assert row.split() == ["small", "eager", "1", "0.500", "0.400", "0.600", "80"]


def test_progress_goes_to_the_error_stream_and_only_if_asked(capsys):
    benchmark(Recorder(), torch.rand(1, 3), **QUICK)
    assert capsys.readouterr() == ("", "")
    benchmark(Recorder(), torch.rand(1, 3), progress=True, **QUICK)
    assert capsys.readouterr().out == ""


def test_compiled_models_are_compiled():
    models = {"wide": nn.Sequential(nn.Linear(3, 8), nn.ReLU()), "narrow": nn.Sequential(nn.Linear(3, 2), nn.ReLU())}
    result = benchmark(models, torch.rand(2, 3), batch_sizes=(2,), runtimes=("eager", "compiled"), **QUICK)
    assert [(timing.model, timing.runtime) for timing in result.timings] == [
        ("wide", "eager"),
        ("narrow", "eager"),
        ("wide", "compiled"),
        ("narrow", "compiled"),
    ]


def test_a_compiler_that_is_not_there(monkeypatch):
    def no_compiler(model, **options):
        def call(*args):
            raise RuntimeError("No working C++ compiler found\nin a long trace")

        return call

    monkeypatch.setattr(torch, "compile", no_compiler)
    with pytest.raises(InputError, match=r"'Linear' does not run in the runtime 'compiled': No working C\+\+ compiler found. .*install"):
        benchmark(nn.Linear(3, 2), torch.rand(1, 3), runtimes=("compiled",), **QUICK)


@pytest.mark.parametrize("example", [torch.rand(2, 3), {"mask": torch.rand(2, 1), "x": torch.rand(2, 3)}])
def test_onnxruntime_gets_the_exported_model_and_its_inputs(monkeypatch, example):
    model, feeds, options_seen = Recorder(), [], []

    def export_onnx(exported, example_inputs, path):
        assert exported is model
        assert not torch.is_inference_mode_enabled()
        path.write_text("graph")

    class Session:
        def __init__(self, path, options, providers):
            assert providers == ["CPUExecutionProvider"]
            assert path.endswith("model.onnx")
            options_seen.append(options.intra_op_num_threads)

        def get_inputs(self):
            return [SimpleNamespace(name=name) for name in (["x", "mask"] if isinstance(example, dict) else ["input"])]

        def run(self, outputs, feed):
            feeds.append({name: array.shape for name, array in feed.items()})

    monkeypatch.setitem(sys.modules, "onnxruntime", SimpleNamespace(SessionOptions=SimpleNamespace, InferenceSession=Session))
    monkeypatch.setitem(sys.modules, "bayesprune.artifact.onnx", SimpleNamespace(export_onnx=export_onnx))
    benchmark(model, example, batch_sizes=(4,), runtimes=("onnxruntime",), threads=1, **QUICK)
    assert feeds[-1] == ({"x": (4, 3), "mask": (4, 1)} if isinstance(example, dict) else {"input": (4, 3)})
    assert options_seen == [1]


def test_onnxruntime_is_an_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=re.escape("pip install -e '.[onnx]'")):
        benchmark(nn.Linear(3, 2), torch.rand(1, 3), runtimes=("onnxruntime",), **QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sizes": (0,)}, "at least 1"),
        ({"batch_sizes": ()}, "at least 1"),
        ({"batch_sizes": (1.5,)}, "whole numbers"),
        ({"batch_sizes": 8}, r"such as \(1, 64\), or None, not 8"),
        ({"runtimes": ("compile",)}, "no runtime is called 'compile'.* Did you mean 'compiled'?"),
        ({"runtimes": "eager"}, "a sequence of names"),
        ({"runtimes": ()}, "a sequence of names"),
        ({"runtimes": 3}, "a sequence of names"),
        ({"compare": []}, r"no model is called \[\]"),
        ({"seconds": -1.0}, "0 or more"),
        ({"seconds": float("nan")}, "0 or more"),
        ({"repetitions": 0}, "repetitions must be"),
        ({"warmup": 0}, "warmup must be"),
        ({"threads": 0}, "threads must be"),
        ({"seconds": "1"}, "0 or more, not '1'"),
        ({"seconds": None}, "0 or more, not None"),
        ({"runtimes": [[]]}, r"no runtime is called \[\]"),
        ({"runtimes": [5]}, "no runtime is called 5"),
        ({"threads": 1_000_000}, "threads must be a whole number of at most"),
        ({"threads": 10**11}, "threads must be a whole number of at most"),
        ({"threads": "2"}, "threads must be"),
        ({"batch_sizes": (1, 10**11)}, "a batch of 100000000000 of these inputs has more than"),
        ({"batch_sizes": (10**30,)}, "choose smaller batch_sizes"),
        ({"compare": "liner"}, "no model is called 'liner': compare with one of Linear"),
    ],
)
def test_arguments_that_cannot_be_worked_with(options, message):
    with pytest.raises(InputError, match=message):
        benchmark(nn.Linear(3, 2), torch.rand(1, 3), **options)


def test_models_that_cannot_be_measured():
    with pytest.raises(InputError, match="does not run on example_inputs"):
        benchmark(nn.Linear(3, 2), torch.rand(1, 4))
    with pytest.raises(InputError, match=r"'odd' does not run in the runtime 'eager': not\. See"):
        benchmark({"odd": Failing()}, torch.rand(1, 4))
    with pytest.raises(InputError, match=r"'b' is not an nn.Module but int"):
        benchmark({"a": nn.Linear(3, 2), "b": 3}, torch.rand(1, 3))
    with pytest.raises(InputError, match="a dictionary of some by name"):
        benchmark({}, torch.rand(1, 3))
    with pytest.raises(InputError, match="the names of models are text, not 1"):
        benchmark({1: nn.Linear(3, 2)}, torch.rand(1, 3))


def test_batches_that_the_memory_does_not_hold(monkeypatch):
    def full(*_):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(latency_module, "with_batch_size", full)
    with pytest.raises(InputError, match="a batch of 64 of these inputs cannot be made: can't allocate memory"):
        benchmark(nn.Linear(3, 2), torch.rand(1, 3), batch_sizes=(64,))


def test_a_result_can_be_copied_and_kept():
    measured = benchmark({"linear": nn.Linear(3, 2)}, torch.zeros(2, 3), **QUICK)
    for again in (copy.deepcopy(measured), pickle.loads(pickle.dumps(measured))):
        assert again.rows() == measured.rows()
