"""The result is that of the masked model, on any network, in every way, whatever the masks."""

import pytest
import torch
from gallery import GALLERY
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from per_input_networks import BOUNDS, KINDS, NETWORK_WAYS, adapt, difference, force, from_gallery

OWN_BATCH = {"vit_matmul", "static_batch_view"}
"""Written for one size of the batch."""
ANY = st.sampled_from([*KINDS, "mixed"])
MASKS = st.fixed_dictionaries({"kept": ANY, "needed": ANY, "seed": st.integers(0, 2**16)})


def batches(name, dtype, size, seed):
    """Inputs of a size, if the network takes it."""
    torch.manual_seed(seed)
    inputs = GALLERY[name].inputs()
    if name not in OWN_BATCH:
        rows = torch.arange(size) % len(inputs[0])
        inputs = tuple(each[rows] for each in inputs)
        inputs = tuple(each + 0.5 * torch.randn_like(each) if each.is_floating_point() else each for each in inputs)
    return tuple(each.to(dtype) if each.is_floating_point() else each for each in inputs)


@torch.no_grad()
def check(name, dtype, before_norm, masks, sizes, seed=1):
    staged, inputs = from_gallery(name, dtype, before_norm, **masks)
    adaptive = adapt(staged, inputs)
    for size in sizes:
        fresh = batches(name, dtype, size, seed)
        expected = staged(*fresh)
        assert difference(expected, adaptive(*fresh)) <= BOUNDS[dtype]
        for way in NETWORK_WAYS:
            force(adaptive, way, len(fresh[0]))
            assert difference(expected, adaptive(*fresh)) <= BOUNDS[dtype], (way, size)


@pytest.mark.parametrize("name", GALLERY)
def test_random_masks(name):
    @settings(max_examples=2, suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # shrinking takes minutes
    @given(dtype=st.sampled_from(list(BOUNDS)), masks=MASKS, size=st.integers(2, 65))
    def exact(dtype, masks, size):
        check(name, dtype, False, masks, (1, size))

    exact()


@pytest.mark.parametrize("masks", [{"kept": "all", "needed": "none"}, {"kept": "all", "needed": "all"}, {"kept": "none"}], ids=str)
@pytest.mark.parametrize("name", sorted(GALLERY)[::8])
def test_nothing_and_everything(name, masks):
    check(name, torch.float32, False, masks, (1, 2))


@pytest.mark.parametrize("name", sorted(GALLERY)[::8])
def test_gates_before_norms(name):
    check(name, torch.float64, True, {}, (1, 3))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("before_norm", [False, True], ids=["after", "before"])
@pytest.mark.parametrize("name", GALLERY)
def test_many_random_masks(name, before_norm, dtype):
    @settings(max_examples=15, suppress_health_check=list(HealthCheck), phases=[Phase.generate])  # shrinking takes minutes
    @given(masks=MASKS, size=st.integers(2, 65))
    def exact(masks, size):
        check(name, dtype, before_norm, masks, (1, size), masks["seed"])

    exact()
