"""Every registered method: what its masks look like, on every kind of input."""

import math

import pytest
import torch

RANGES = {"cd": (0.0, math.inf), "vib": (-math.inf, math.inf)}
"""Where a drawn mask lies; within [0, 1] for every method that is not named. CD divides by the keep rate, VIB's noise is Gaussian."""

DRAWN = {"bb": "sample", "dbb": "sample", "vib": "sample", "gd": "sample", "cd": "sample", "sbp": "batch", "l0": "batch"}
"""Whether a mask is drawn for each sample or once a batch, as published."""

SHAPES = {2: (5, 6), 3: (5, 6, 3), 4: (5, 6, 3, 2), 5: (5, 6, 2, 3, 2)}


def inputs(shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype) + 0.5


def laid_out(mask, x, channel_dim):
    """The product of x with a mask over its channels, by moving the channels last."""
    moved = x.movedim(channel_dim, -1)
    if mask.ndim == 2:
        mask = mask.reshape(mask.shape[0], *[1] * (x.ndim - 2), mask.shape[1])
    return (moved * mask).movedim(-1, channel_dim)


@pytest.fixture(params=[True, False], ids=["training", "evaluation"])
def training(request):
    return request.param


def mask_of(gate, x):
    return gate.sample_mask(x) if gate.training else gate.mean_mask(x)


@pytest.mark.parametrize("ndim", list(SHAPES))
def test_inputs_of_two_to_five_dimensions(make_gate, ndim, training):
    gate, x = make_gate().train(training), inputs(SHAPES[ndim])
    torch.testing.assert_close(gate(x), laid_out(mask_of(gate, x), x, 1))


@pytest.mark.parametrize("ndim", list(SHAPES))
def test_channels_last(make_gate, ndim, training):
    gate, x = make_gate(channel_dim=-1).train(training), inputs(SHAPES[ndim]).movedim(1, -1)
    torch.testing.assert_close(gate(x), laid_out(mask_of(gate, x), x, -1))


def test_channels_last_is_the_same_gate(make_gate, training):
    x = inputs(SHAPES[4])
    first, last = make_gate().train(training), make_gate(channel_dim=-1).train(training)
    torch.testing.assert_close(last(x.movedim(1, -1)).movedim(-1, 1), first(x))


@pytest.mark.parametrize("ndim", list(SHAPES))
@pytest.mark.parametrize("channel_dim", [1, -1])
def test_a_vector_of_groups_shares_units_between_channels(make_gate, ndim, channel_dim, training):
    groups = torch.tensor([0, 2, 0, 1, 1, 0])
    gate = make_gate(3, groups=groups, channel_dim=channel_dim).train(training)
    x = inputs(SHAPES[ndim]).movedim(1, channel_dim)
    mask = mask_of(gate, x)
    assert mask.shape[-1] == 3
    torch.testing.assert_close(gate(x), laid_out(mask[..., groups], x, channel_dim))


@pytest.mark.parametrize("shape", [(3, 4), (3, 1), (1, 4), (2, 3, 4), (1, 3, 1)])
def test_a_tensor_of_groups_names_the_unit_of_each_element(make_gate, shape, training):
    groups = torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(1))
    gate = make_gate(5, groups=groups).train(training)
    x = inputs((6, *[{2: (3, 4), 3: (2, 3, 4)}[len(shape)]][0]))
    everywhere = groups.expand(x.shape[1:])
    torch.testing.assert_close(gate(x), x * mask_of(gate, x)[..., everywhere])


def test_drawn_masks_lie_in_their_range(make_gate, method):
    low, high = RANGES.get(method, (0.0, 1.0))
    x = inputs((64, 50))
    for seed in range(10):
        mask = make_gate(50, spread=5.0, seed=seed).train().sample_mask(x)
        assert mask.isfinite().all()
        assert mask.min() >= low
        assert mask.max() <= high


def test_the_mean_mask_is_deterministic(make_gate):
    gate, x = make_gate(40, spread=5.0, keyed=False).eval(), inputs((8, 40))
    first = gate(x)
    assert torch.equal(first, gate(x))
    mask = gate.mean_mask(x)
    assert torch.equal(first, x * gate.units.spread(mask, x))


def test_kept_units_are_those_whose_mask_is_not_zero(make_gate, method):
    gate, x = make_gate(200, spread=6.0).eval(), inputs((8, 200))
    keep, mask = gate.keep(x), gate.mean_mask(x)
    assert keep.dtype == torch.bool
    assert torch.equal(keep, mask != 0)
    assert gate.keep().shape == gate.keep_probability().shape == (200,)
    assert keep.any()
    assert method == "cd" or not keep.all()
    if method != "dbb":
        assert torch.equal(gate.keep(), keep)


def test_keeping_is_monotone_in_the_keep_probability(make_gate):
    gate, x = make_gate(300, spread=6.0).eval(), inputs((8, 300))
    for probability, keep in [(gate.keep_probability(), gate.keep()), (gate.keep_probability(x), gate.keep(x))]:
        assert (probability >= 0).all()
        assert (probability <= 1).all()
        kept, pruned = probability[keep], probability[~keep]
        assert len(kept)
        assert not len(pruned) or pruned.max() <= kept.min()


def test_the_sampling_switch_is_apart_from_training(make_gate):
    gate, x = make_gate(keyed=False), inputs(SHAPES[2])
    for training, sampling, random in [
        (True, None, True), (False, None, False), (True, False, False), (False, True, True), (True, True, True), (False, False, False),
    ]:  # fmt: skip
        gate.train(training)
        gate.sampling = sampling
        assert gate.is_sampling is random
        assert gate.training is training
        assert torch.equal(gate(x), gate(x)) is not random


def test_noise_is_drawn_for_each_sample_or_once_a_batch_as_published(make_gate, method):
    gate, x = make_gate(10, spread=0.0).train(), torch.ones(7, 10) + torch.arange(7.0)[:, None] % 2 / 2
    mask = gate(x) / x
    shared = torch.allclose(mask, mask[:1].expand_as(mask))
    assert shared is (DRAWN.get(method, "sample" if not shared else "batch") == "batch")
    if DRAWN.get(method) == "sample":
        assert len(gate(x).unique(dim=0)) == 7


@pytest.mark.parametrize("shape", [(1, 6), (1, 6, 3, 3)])
def test_a_batch_of_one(make_gate, shape, training):
    gate, x = make_gate().train(training), inputs(shape)
    y = gate(x)
    assert y.shape == x.shape
    assert y.isfinite().all()


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.parametrize("shape", [(3, 0), (3, 0, 4, 4)])
def test_no_units_at_all(make_gated, shape, training):
    gate = make_gated(0).train(training).gate
    assert gate(torch.zeros(shape)).shape == shape
    assert gate.kl().shape == ()
    assert gate.kl().isfinite()
    assert gate.keep().shape == (0,)


def test_an_empty_batch(make_gate):
    gate = make_gate().eval()
    assert gate(torch.zeros(0, 6)).shape == (0, 6)


def test_pruned_by_hand(make_gate):
    gate = make_gate()
    before = gate.keep()
    gate.prune(torch.tensor([1, 4]))
    if gate.method == "cd":
        assert torch.equal(gate.keep(), before)  # It prunes nothing.
        return
    assert not gate.keep()[[1, 4]].any()
    assert torch.equal(gate.keep()[[0, 2, 3, 5]], before[[0, 2, 3, 5]])
    assert torch.isfinite(gate.kl())
