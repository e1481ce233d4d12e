"""Models on which per-input execution could go wrong in its own ways."""

import io

import pytest
import torch
import torch.nn.functional as F
from per_input_networks import difference, force, masked, set_masks
from torch import nn

import bayesprune as bp
from bayesprune.adaptive.example_batches import needs_of_batches
from bayesprune.errors import InputError


class WithArgument(nn.Module):
    """Has an input called like the method that tells sizes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x, size):
        return self.second(torch.relu(self.first(x))) + size


class WithLayer(WithArgument):
    """Has a layer called so."""

    def __init__(self):
        super().__init__()
        self.size = nn.Linear(6, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) + self.size(x)


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 4, 3)

    def forward(self, x):
        return self.second(F.max_pool2d(F.relu(self.first(x)), 2))


def adaptive_of(model, x, needed="some", sizes=(1,)):
    gated = set_masks(bp.sparsify(model.eval(), "bb", example_inputs=x), kept="all", needed=needed)
    return gated, bp.AdaptiveModel(gated, x, batch_sizes=sizes, cache=None)


@pytest.mark.parametrize("kind", [WithArgument, WithLayer])
def test_what_is_called_size_need_not_be_one(kind):
    torch.manual_seed(0)
    inputs = (torch.randn(5, 6), torch.randn(5, 4))[: 2 if kind is WithArgument else 1]
    gated, adaptive = adaptive_of(kind(), inputs, needed="none")
    force(adaptive, "gather", 1)
    with torch.no_grad():
        for number in range(5):
            one = tuple(each[number : number + 1] for each in inputs)
            assert difference(gated(*one), adaptive(*one)) <= 1e-5


@pytest.mark.parametrize("pooling", [nn.MaxPool2d((3, 1), stride=1, padding=(1, 0)), nn.MaxPool1d(3, stride=1, padding=1)])
def test_a_pooling_that_takes_channels_for_positions_is_no_way_through(pooling):
    torch.manual_seed(0)
    found = masked(torch.randn(4, 8, 10), 1, nn.Sequential(nn.ReLU(), pooling, nn.Conv1d(8, 6, 3)))
    assert len(found.segments) == isinstance(pooling, nn.MaxPool1d)


def test_autocast_leaves_no_trace_in_results():
    torch.manual_seed(0)
    x = torch.randn(6, 20)
    _, adaptive = adaptive_of(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)), x, needed="none")
    force(adaptive, "fused", 1)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            assert adaptive(x[:1]).dtype == adaptive.compacted(x[:1]).dtype == torch.bfloat16
        assert adaptive(x[:1]).dtype == torch.float32


def test_functions_between_mask_and_layer_can_be_pickled():
    torch.manual_seed(0)
    x = torch.randn(3, 1, 12, 12)
    _, adaptive = adaptive_of(Functional(), x)
    file = io.BytesIO()
    torch.save(adaptive, file)
    file.seek(0)
    copy = torch.load(file, weights_only=False)
    with torch.no_grad():
        assert torch.equal(copy.network(x), adaptive.network(x))


def test_an_example_smaller_than_a_batch_is_not_taken_for_all_there_is():
    needed = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0]]).bool()
    assert needs_of_batches(needed, 1) == [(2, 2), (2, 2)]
    assert needs_of_batches(needed, 2) == [(3, 4)]
    assert needs_of_batches(needed[:1], 2) == [(2, 4)]
    assert needs_of_batches(needed, 8) == [(3, 16)]  # 1 + 2 (1 - 2^-8) units, and 8 times two of them.
    often = torch.rand(10, 1000, generator=torch.Generator().manual_seed(0)) < 0.1
    ((union, total),) = needs_of_batches(often, 40)
    assert 400 < union < 1000, "more than the ten inputs need, of which none is asked twice"
    assert total == pytest.approx(4 * int(often.sum()), abs=1)


@pytest.mark.parametrize("cache", [3, 1.5, [], object()])
def test_a_cache_that_is_no_path(cache):
    x = torch.randn(3, 8)
    gated = set_masks(bp.sparsify(nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)), "bb", example_inputs=x))
    with pytest.raises(bp.BayespruneError, match="cache is the path of a file, or None"):
        bp.AdaptiveModel(gated, x, cache=cache)


@pytest.mark.parametrize("batch", [1, 3])
def test_inputs_of_another_shape(batch):
    torch.manual_seed(0)
    _, adaptive = adaptive_of(nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4)), torch.randn(6, 20))
    with pytest.raises(InputError, match=rf"does not take inputs of shape \({batch}, 21\): its example's were \(6, 20\)"):
        adaptive(torch.randn(batch, 21))
    with pytest.raises(RuntimeError, match="dtype"):
        adaptive(torch.randn(batch, 20).double())
