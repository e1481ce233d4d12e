import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, SequentialSampler, SubsetRandomSampler, TensorDataset

from bayesprune.errors import InputError
from bayesprune.training.labels import LabelRule
from bayesprune.training.sources import LoaderBatches


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(3), torch.tensor(0))] * 5)


class StreamOfKnownLength(Stream):
    def __len__(self):
        return 5


def test_batches_of_a_loader(make_clusters):
    inputs, labels = make_clusters(50)
    source = LoaderBatches(DataLoader(TensorDataset(inputs, labels), batch_size=20), "cpu")
    assert (len(source), source.n_data) == (3, 50)
    for found in (list(source.in_order()), [(x[0], y[0]) for x, y in source.epoch([0], 0)]):
        assert torch.equal(torch.cat([x for x, _ in found]), inputs)
        assert torch.equal(torch.cat([y for _, y in found]), labels)


def test_number_of_data_can_be_given(make_loader):
    assert LoaderBatches(make_loader(), "cpu", n_data=1000).n_data == 1000


def test_stream(make_loader):
    with pytest.raises(InputError, match="does not know its length"):
        LoaderBatches(DataLoader(Stream(), batch_size=2), "cpu")
    source = LoaderBatches(DataLoader(StreamOfKnownLength(), batch_size=2), "cpu", n_data=5)
    assert len(list(source.in_order())) == len(source) == 3


@pytest.mark.parametrize("given", [torch.zeros(4, 3), [(torch.zeros(4, 3), torch.zeros(4))], TensorDataset(torch.zeros(4, 3))])
def test_no_loader(given):
    with pytest.raises(InputError, match=rf"is a torch\.utils\.data\.DataLoader .*, not {type(given).__name__}: DataLoader\(TensorDataset"):
        LoaderBatches(given, "cpu", n_data=4)


@pytest.mark.parametrize("n_data", [0, -3])
def test_no_data(make_loader, n_data):
    with pytest.raises(InputError, match=f"number of training samples, at least 1, not {n_data}"):
        LoaderBatches(make_loader(), "cpu", n_data=n_data)


def test_empty_loader():
    empty = TensorDataset(torch.zeros(0, 3), torch.zeros(0))
    with pytest.raises(InputError, match="empty"):
        LoaderBatches(DataLoader(empty, batch_size=2), "cpu")
    with pytest.raises(InputError, match="empty"):
        LoaderBatches(DataLoader(TensorDataset(torch.zeros(3, 3), torch.zeros(3)), batch_size=8, drop_last=True), "cpu")


@pytest.mark.parametrize(
    "sample",
    [
        torch.zeros(3),
        (torch.zeros(3),),
        (torch.zeros(3), torch.zeros(1), torch.zeros(1)),
        {"x": torch.zeros(3), "y": torch.zeros(1)},
        (torch.zeros(3), "label"),
    ],
    ids=["tensor", "one", "three", "mapping", "text"],
)
def test_batches_that_are_not_pairs(sample):
    source = LoaderBatches(DataLoader([sample] * 4, batch_size=2), "cpu")
    with pytest.raises(InputError, match="pairs"):
        list(source.in_order())


def test_a_generator_of_the_loaders_own_is_seeded():
    data = TensorDataset(torch.arange(20.0)[:, None], torch.zeros(20))
    source = LoaderBatches(DataLoader(data, batch_size=5, shuffle=True, generator=torch.Generator()), "cpu")
    orders = [torch.cat([x for x, _ in source.epoch([3], epoch)]).flatten().tolist() for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]


def test_samples_are_those_that_the_sampler_goes_through():
    data = TensorDataset(torch.zeros(40, 1), torch.zeros(40))
    assert LoaderBatches(DataLoader(data, batch_size=5, sampler=SubsetRandomSampler(range(10))), "cpu").n_data == 10


@pytest.mark.parametrize(("says", "gives"), [(3, 2), (2, 3), (1, 0)])
def test_a_loader_that_miscounts(says, gives):
    class Miscounting(DataLoader):
        def __len__(self):
            return says

        def __iter__(self):
            return iter([(torch.zeros(2, 1), torch.zeros(2))] * gives)

    source = LoaderBatches(Miscounting(TensorDataset(torch.zeros(4, 1), torch.zeros(4))), "cpu")
    with pytest.raises(InputError, match=f"says that it has {says} batches"):
        list(source.epoch([0], 0))


def test_labels_that_the_sampler_leaves_out_may_be_anything():
    data = TensorDataset(torch.zeros(60, 3), torch.cat([torch.zeros(40), torch.full((20,), 9)]).long())
    rule = LabelRule((2, 3), -100)
    LoaderBatches(DataLoader(data, batch_size=20, sampler=SequentialSampler(range(40))), "cpu").expect(rule)
    with pytest.raises(InputError, match="a label is 9"):
        LoaderBatches(DataLoader(data, batch_size=20, sampler=SequentialSampler(data)), "cpu").expect(rule)
