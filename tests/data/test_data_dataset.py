import pytest
import torch

from bayesprune.data import Dataset, Split
from bayesprune.errors import DataError, InputError


def split(count: int = 6, size: int = 4, classes: int = 3) -> Split:
    return Split(torch.arange(count * size * size).reshape(count, 1, size, size).to(torch.uint8), torch.arange(count) % classes)


def dataset(train: Split, test: Split, num_classes: int = 3, mean: tuple[float, ...] = (0.0,), std: tuple[float, ...] = (1.0,)) -> Dataset:
    return Dataset("toy", train, test, num_classes, mean, std, augment=False)


def test_good_dataset() -> None:
    made = dataset(split(), split(2))
    assert made.image_shape == (1, 4, 4)
    assert len(made.train) == 6


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(4, dtype=torch.int64), "3 images but 4 labels"),
        (torch.zeros(0, 1, 2, 2, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), "empty"),
        (torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64), "images must be uint8"),
        (torch.zeros(3, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), "images must be uint8 of shape"),
        (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3), "labels must be int64"),
        (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, 1, dtype=torch.int64), "labels must be int64 of shape"),
    ],
)
def test_bad_splits(images: torch.Tensor, labels: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Split(images, labels)


def test_label_out_of_range_names_the_image() -> None:
    with pytest.raises(DataError, match="label 2 of test image 2 is out of range"):
        dataset(split(classes=2), split(classes=3), num_classes=2)
    negative = Split(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), torch.tensor([-1]))
    with pytest.raises(DataError, match="label -1 of training image 0"):
        dataset(negative, split())


def test_splits_of_different_sizes_of_image() -> None:
    with pytest.raises(DataError, match="do not belong together"):
        dataset(split(size=4), split(size=5))


@pytest.mark.parametrize(("mean", "std"), [((0.0, 0.0), (1.0,)), ((0.0,), (1.0, 1.0)), ((0.0,), (0.0,))])
def test_normalisation_that_does_not_fit(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="channels need"):
        dataset(split(), split(), mean=mean, std=std)


def test_split_off_takes_the_last_ones() -> None:
    whole = split(6)
    train, validation = whole.split_off(2)
    assert (len(train), len(validation)) == (4, 2)
    assert torch.equal(torch.cat([train.images, validation.images]), whole.images)
    assert torch.equal(validation.labels, whole.labels[4:])


@pytest.mark.parametrize("count", [0, 6, -1])
def test_split_off_leaves_something_on_both_sides(count: int) -> None:
    with pytest.raises(InputError, match="from 1 to 5"):
        split(6).split_off(count)


def test_for_tuning_the_last_training_images_take_the_place_of_the_test_images() -> None:
    whole = dataset(split(6), split(2), mean=(0.3,), std=(0.5,))
    tuning = whole.for_tuning(2)
    assert torch.equal(tuning.train.images, whole.train.images[:4])
    assert torch.equal(tuning.test.images, whole.train.images[4:])
    assert torch.equal(tuning.test.labels, whole.train.labels[4:])
    assert (tuning.name, tuning.num_classes, tuning.mean, tuning.std) == (whole.name, 3, (0.3,), (0.5,))
    assert (len(whole.train), len(whole.test)) == (6, 2)


@pytest.mark.parametrize("count", [0, 6, 7, -1])
def test_for_tuning_leaves_images_to_train_on(count: int) -> None:
    with pytest.raises(InputError, match="from 1 to 5"):
        dataset(split(6), split(2)).for_tuning(count)


def test_the_first_images_at_most() -> None:
    split = Split(torch.arange(3, dtype=torch.uint8).view(3, 1, 1, 1), torch.arange(3))
    assert split.first(2).labels.tolist() == [0, 1]
    assert split.first(2).images.flatten().tolist() == [0, 1]
    assert len(split.first(10)) == 3
