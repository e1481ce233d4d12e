import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesprune.data import Split, TensorBatches, crop_and_flip, plan_epoch
from bayesprune.errors import InputError

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


def split(count: int = 23, channels: int = 3, height: int = 8, width: int = 6) -> Split:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, channels, height, width), generator=generator, dtype=torch.uint8)
    return Split(images, torch.arange(count))


def batches(augment: bool = False, count: int = 23, dtype: torch.dtype = torch.float32, batch_size: int = 5) -> TensorBatches:
    return TensorBatches(split(count), MEAN, STD, batch_size, dtype=dtype, augment=augment)


def epoch_of(made: TensorBatches, seed: int, epoch: int) -> list[tuple[Tensor, Tensor]]:
    """The batches of one model."""
    return [(images[0], labels[0]) for images, labels in made.epoch([seed], epoch)]


def naive_normalise(image: Tensor) -> Tensor:
    return torch.stack([(plane.double() / 255 - m) / s for plane, m, s in zip(image, MEAN, STD, strict=True)])


def naive_crop(image: Tensor, top: int, left: int, flip: bool, padding: int = 4) -> Tensor:
    channels, height, width = image.shape
    padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=image.dtype)
    padded[:, padding : padding + height, padding : padding + width] = image
    cut = padded[:, top : top + height, left : left + width]
    return cut.flip(2) if flip else cut


def test_sizes() -> None:
    made = batches()
    assert (made.n_data, len(made)) == (23, 5)
    assert [len(labels) for _, labels in epoch_of(made, 0, 0)] == [5, 5, 5, 5, 3]
    assert len(batches(count=20)) == 4
    assert [len(labels) for _, labels in made.in_order(10)] == [10, 10, 3]


@pytest.mark.parametrize("augment", [False, True])
def test_every_image_once_with_its_own_label(augment: bool) -> None:
    labels = torch.cat([labels for _, labels in epoch_of(batches(augment), 3, 1)])
    assert sorted(labels.tolist()) == list(range(23))
    assert labels.tolist() != list(range(23))


def test_batches_without_augmentation_are_the_normalised_images() -> None:
    source = split()
    for images, labels in epoch_of(batches(), 0, 0):
        for image, label in zip(images, labels, strict=True):
            torch.testing.assert_close(image.double(), naive_normalise(source.images[label]), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("augment", [False, True])
def test_in_order_gives_whole_images(augment: bool) -> None:
    images = torch.cat([images for images, _ in batches(augment).in_order(7)])
    expected = torch.stack([naive_normalise(image) for image in split().images])
    torch.testing.assert_close(images.double(), expected, atol=1e-6, rtol=1e-6)
    assert torch.equal(torch.cat([labels for _, labels in batches(augment).in_order(7)]), torch.arange(23))


def test_augmented_batches_pad_with_black_before_normalising() -> None:
    made, source = batches(augment=True, dtype=torch.float64), split()
    plan = made.plan([7], epoch=2)
    position = 0
    for images, labels in epoch_of(made, 7, 2):
        for image, label in zip(images, labels, strict=True):
            top, left = plan.offsets[0, position].tolist()
            raw = naive_crop(source.images[label], top, left, bool(plan.flips[0, position]))
            torch.testing.assert_close(image, naive_normalise(raw), atol=1e-12, rtol=1e-12)
            position += 1
    assert position == 23


def test_mnist_normalisation_scales_only() -> None:
    made = TensorBatches(Split(torch.tensor([[[[0, 255, 51]]]], dtype=torch.uint8), torch.tensor([0])), (0.0,), (1.0,), 1)
    images, _ = next(made.in_order())
    torch.testing.assert_close(images.flatten(), torch.tensor([0.0, 1.0, 0.2]))


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    padding=st.integers(0, 4),
    dtype=st.sampled_from(["uint8", "float32"]),
)
def test_crop_and_flip_equals_the_naive_one(data: st.DataObject, height: int, width: int, padding: int, dtype: str) -> None:
    images = torch.randint(1, 256, (3, 2, height, width)).to(getattr(torch, dtype))
    places = st.integers(0, 2 * padding)
    offsets = torch.tensor(data.draw(st.lists(st.tuples(places, places), min_size=3, max_size=3)))
    flips = torch.tensor(data.draw(st.lists(st.booleans(), min_size=3, max_size=3)))
    each = zip(images, offsets.tolist(), flips.tolist(), strict=True)
    expected = [naive_crop(image, top, left, flip, padding) for image, (top, left), flip in each]
    assert torch.equal(crop_and_flip(images, offsets, flips, padding), torch.stack(expected))


def test_offset_of_the_padding_changes_nothing() -> None:
    images = split().images
    assert torch.equal(crop_and_flip(images, torch.full((23, 2), 4), torch.zeros(23, dtype=torch.bool)), images)


def drawn(made: TensorBatches, seed: int, epoch: int) -> Tensor:
    return torch.cat([images.flatten(1) for images, _ in epoch_of(made, seed, epoch)])


@pytest.mark.parametrize("augment", [False, True])
def test_an_epoch_depends_on_seed_and_number_alone(augment: bool) -> None:
    made = batches(augment)
    first = drawn(made, 5, 3)
    torch.rand(10)
    drawn(made, 5, 4)
    assert torch.equal(drawn(made, 5, 3), first)
    assert torch.equal(drawn(batches(augment, batch_size=7), 5, 3), first)
    assert not torch.equal(drawn(made, 3, 5), first)
    assert not torch.equal(drawn(made, 6, 2), first)


def test_order_is_the_same_with_and_without_augmentation() -> None:
    orders = [torch.cat([labels for _, labels in epoch_of(batches(augment), 1, 1)]) for augment in (False, True)]
    assert torch.equal(*orders)


def test_drawing_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    drawn(batches(augment=True), 0, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_plan_is_uniform() -> None:
    plan = plan_epoch(90_000, [0], epoch=0)
    assert torch.equal(plan.order[0].sort().values, torch.arange(90_000))
    for column in plan.offsets[0].T:
        counts = column.bincount(minlength=9)
        assert len(counts) == 9
        # Ten thousand expected in each cell, with a deviation of about 94.
        assert (counts - 10_000).abs().max() < 500
    assert abs(plan.flips.double().mean().item() - 0.5) < 0.01


def test_plan_of_large_seeds() -> None:
    plans = plan_epoch(50, (0, 2**32, 2**62, -1), 0).order
    assert len({tuple(order.tolist()) for order in plans}) == 4


@pytest.mark.parametrize("size", [0, -3])
def test_batch_size_must_be_positive(size: int) -> None:
    with pytest.raises(InputError, match="at least one image"):
        TensorBatches(split(), MEAN, STD, size)
    with pytest.raises(InputError, match="at least one image"):
        next(batches().in_order(size))
