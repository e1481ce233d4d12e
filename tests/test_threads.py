"""Several threads at once."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import bayesprune as bp


@pytest.fixture(autouse=True)
def often():
    """Threads take turns often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


def perceptron():
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 3))


def test_predictions_do_not_mix():
    x = torch.randn(8, 6)
    gated = bp.sparsify(perceptron(), "bb", example_inputs=x).eval()
    naive, before = bp.predict(gated, x), gated(x)

    def work(number):
        if number % 2:
            return all(torch.equal(bp.predict(gated, x), naive) for _ in range(40))
        return not any(torch.equal(bp.predict(gated, x, samples=4), naive) for _ in range(40))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert [gate.sampling for gate in bp.gates(gated).values()] == [None] * 3
    assert torch.equal(gated(x), before)


def test_models_are_gated_and_compacted_side_by_side():
    x = torch.randn(8, 6)

    def work(_):
        gated = bp.sparsify(perceptron(), "bb", example_inputs=x).eval()
        for gate in bp.gates(gated).values():
            gate.prune(torch.arange(gate.num_units) % 2 == 0)
        return torch.allclose(bp.compact(gated, x).model(x), gated(x), atol=1e-5)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(9)))


def test_predictions_within_predictions():
    x = torch.randn(8, 6)
    one, other = (bp.sparsify(perceptron(), "bb", example_inputs=x).eval() for _ in range(2))

    def work(pair):
        first, second = pair
        return [bp.predict(first, x, activation=lambda out: out + bp.predict(second, x)) for _ in range(20)]

    with ThreadPoolExecutor(2) as pool:
        results = pool.map(work, ((one, other), (other, one)), timeout=60)
        assert all(torch.equal(each, found[0]) for found in results for each in found)


def test_modules_of_others_run_while_a_model_is_followed():
    x, busy = torch.randn(8, 6), perceptron().eval()
    expected, stop = busy(x), threading.Event()

    def serve():
        while not stop.is_set():
            assert torch.equal(busy(x), expected)
        return True

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve)
        try:
            for _ in range(5):
                bp.sparsify(perceptron(), "bb", example_inputs=x)
        finally:
            stop.set()
        assert serving.result()


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), KeyError("logits")])
def test_errors_of_a_models_own_code_are_its_own(error):
    class Failing(nn.Module):
        def forward(self, x):
            raise error

    with pytest.raises(type(error)):
        bp.predict(Failing(), torch.randn(2, 3))
