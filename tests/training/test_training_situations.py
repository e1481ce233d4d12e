"""Situations in which users call ``fit``: samplers, frozen parts, losses and labels of their own."""

import copy
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset

import bayesprune as bp
from bayesprune.data import TensorBatches
from bayesprune.data.dataset import Split
from bayesprune.errors import BayespruneWarning, DivergedError, InputError
from bayesprune.training import Recipe, StageRecipe, make_plan, run_stages, stages
from bayesprune.training.sources import LoaderBatches
from bayesprune.training.store import NoStore
from bayesprune.training.watching import Silent


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, outputs))


def samples(count=60):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 8, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(dim=1))


def loader(count=60, **options):
    return DataLoader(samples(count), batch_size=20, **options)


def quietly(model, data, **options):
    return bp.fit(model, data, **{"method": "bb", "epochs": 1, "progress": False} | options)


def test_gates_are_put_in_with_the_users_example(monkeypatch):
    seen = []

    def spy(model, method, *, example_inputs, **options):
        seen.append(example_inputs)
        return bp.sparsify(model, method, example_inputs=example_inputs, **options)

    monkeypatch.setattr(stages, "sparsify", spy)
    quietly(network(), loader(), example_inputs=torch.full((5, 8), 7.0))
    assert len(seen) == 2
    assert all(torch.equal(each, torch.full((5, 8), 7.0)) for each in seen)


class TestBatchSamplers:
    @pytest.mark.parametrize("place", ["sampler", "batch_sampler", "loader"])
    def test_their_generators_are_seeded_for_each_epoch(self, place):
        data, generator = samples(), torch.Generator()
        sampler = RandomSampler(data, generator=generator)
        given = {
            "sampler": lambda: DataLoader(data, sampler=sampler, batch_size=20),
            "batch_sampler": lambda: DataLoader(data, batch_sampler=BatchSampler(sampler, 20, drop_last=False)),
            "loader": lambda: DataLoader(data, batch_size=20, shuffle=True, generator=generator),
        }[place]()
        source = LoaderBatches(given, "cpu")
        first, again, other = (torch.cat([x[0] for x, _ in source.epoch([0], epoch)]) for epoch in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_they_say_how_many_samples_there_are(self):
        data = samples(100)
        some = BatchSampler(SubsetRandomSampler(range(30)), 10, drop_last=False)
        assert LoaderBatches(DataLoader(data, batch_sampler=some), "cpu").n_data == 30

    @pytest.mark.parametrize(("drop_last", "smallest"), [(False, 1), (True, 20)])
    def test_they_say_how_small_batches_are(self, drop_last, smallest):
        data = samples(61)
        batches = BatchSampler(RandomSampler(data), 20, drop_last=drop_last)
        assert LoaderBatches(DataLoader(data, batch_sampler=batches), "cpu").smallest_batch == smallest

    def test_others_are_not_looked_into(self):
        class ByClass(BatchSampler):
            """Draws classes, and gives batches of samples of these."""

            def __init__(self):
                super().__init__(RandomSampler(range(3)), 1, drop_last=False)

            def __iter__(self):
                return iter(torch.arange(60).reshape(3, 20).tolist())

        source = LoaderBatches(DataLoader(samples(), batch_sampler=ByClass()), "cpu")
        assert source.n_data == 60
        assert source.smallest_batch is None

    def test_generators_that_are_not_torchs_are_left_alone(self):
        sampler = RandomSampler(samples())
        sampler.generator = np.random.default_rng(0)
        list(zip(LoaderBatches(DataLoader(samples(), batch_sampler=[[0, 1], [2, 3]]), "cpu").epoch([0], 0), range(2), strict=True))
        batches = BatchSampler(range(60), 20, drop_last=False)
        batches.generator = np.random.default_rng(0)
        assert len(list(LoaderBatches(DataLoader(samples(), batch_sampler=batches), "cpu").epoch([0], 0))) == 3

    def test_a_list_of_batches_is_one(self):
        source = LoaderBatches(DataLoader(samples(), batch_sampler=[[0, 1, 2], [3], [4, 5]]), "cpu")
        assert source.smallest_batch == 1
        with pytest.raises(InputError, match="single sample"):
            quietly(network(), source.loader)


class TestMessagesNameTheCulprit:
    @pytest.mark.parametrize("n_data", [-5, 0.5, 0])
    def test_number_of_samples(self, n_data):
        with pytest.raises(InputError, match="n_data is the number of training samples"):
            quietly(network(), loader(), n_data=n_data)

    def test_validation(self):
        with pytest.raises(InputError, match="the validation loader is empty"):
            quietly(network(), loader(), validation=loader(0))

    def test_divergence_before_the_first_checkpoint(self, tmp_path):
        broken = DataLoader(TensorDataset(torch.full((20, 8), torch.nan), torch.zeros(20, dtype=torch.long)), batch_size=20)
        with pytest.raises(DivergedError, match="no epoch was finished, so there is no checkpoint"):
            quietly(network(), broken, checkpoints=tmp_path)


class TestFrozenParts:
    def statistics_after(self, change, **options):
        model = network()
        change(model)
        before = model[1].running_mean.clone()
        after = quietly(model, loader(), **options).model[1].running_mean
        return torch.equal(before, after)

    def freeze(self, model):
        model[:2].requires_grad_(False).eval()

    @pytest.mark.parametrize("method", ["bb", "dbb", "sbp"])
    @pytest.mark.parametrize("shrink", [False, True])
    def test_they_stay_in_evaluation_mode(self, method, shrink):
        assert self.statistics_after(self.freeze, method=method, shrink=shrink)

    def test_in_wrapped_models(self):
        model = network()
        self.freeze(model)
        before = model[1].running_mean.clone()
        assert torch.equal(quietly(nn.DataParallel(model), loader()).model[1].running_mean, before)

    def test_others_do_not(self):
        assert not self.statistics_after(lambda model: model.eval())
        assert not self.statistics_after(lambda model: model[:2].requires_grad_(False))

    def test_of_a_model_that_is_frozen_and_resting_the_gates_are_trained(self):
        model = network().requires_grad_(False).eval()
        result = quietly(model, loader(), pretrain=False)
        fresh = bp.sparsify(model, "bb", example_inputs=torch.zeros(2, 8))
        for name, gate in bp.gates(result.model).items():
            assert not torch.equal(gate.raw_a, bp.gates(fresh)[name].raw_a)
        assert torch.equal(result.model[1].running_mean, model[1].running_mean)

    def test_batches_of_one_are_fine_where_norms_rest(self):
        model = network()
        self.freeze(model)
        quietly(model, loader(61), epochs=1)


def test_the_result_is_in_evaluation_mode_wherever_it_comes_from(tmp_path):
    model = network().eval()
    trained, taken = (quietly(copy.deepcopy(model), loader(), checkpoints=tmp_path).model for _ in range(2))
    assert not any(module.training for each in (trained, taken) for module in each.modules())
    x = torch.randn(4, 8)
    assert torch.equal(trained(x), taken(x))


class TestLosses:
    def test_ignored_labels_are_no_errors(self):
        inputs, labels = samples().tensors
        labels = labels.clone()
        labels[::3] = -100

        class Right(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(8, 3)

            def forward(self, x):
                return 50 * x[:, :3] + 0 * self.layer(x)

        data = DataLoader(TensorDataset(inputs, labels), batch_size=20)
        assert quietly(Right(), data, validation=data).stages[0]["error"] == 0.0

    def test_a_single_output_has_no_cross_entropy(self):
        with pytest.raises(InputError, match="single output, whose cross entropy is always zero"):
            quietly(network(1), DataLoader(TensorDataset(torch.randn(40, 8), torch.randn(40, 1)), batch_size=20))

    def test_targets_of_validation_are_tried_before_the_first_step(self):
        inputs, labels = samples().tensors
        column = DataLoader(TensorDataset(inputs, labels[:, None].float()), batch_size=20)
        flat = DataLoader(TensorDataset(inputs, labels.float()), batch_size=20)
        with pytest.raises(InputError, match="loss does not take the targets of the validation loader"):
            quietly(network(1), column, validation=flat, loss=nn.BCEWithLogitsLoss())

    def test_without_classes_there_is_a_validation_loss(self):
        inputs, _ = samples().tensors
        data = DataLoader(TensorDataset(inputs, inputs[:, :3]), batch_size=20)
        result = quietly(network(), data, validation=data, loss=F.mse_loss, epochs=2)
        assert all(row["error"] is None and row["validation_loss"] > 0 for row in (*result.stages, *result.history))
        last = sum(float(F.mse_loss(result.model(x), y)) * len(x) for x, y in data) / 60
        assert result.stages[-1]["validation_loss"] == pytest.approx(last)
        assert "validation loss" in str(result)
        assert "validation_loss" not in quietly(network(), loader(), validation=loader()).stages[0]

    def test_a_validation_loss_that_is_no_number_is_none(self, tmp_path):
        inputs, _ = samples().tensors
        targets = inputs[:, :3].clone()
        data = DataLoader(TensorDataset(inputs, targets), batch_size=20)
        targets = targets.clone()
        targets[0] = torch.nan
        spoilt = DataLoader(TensorDataset(inputs, targets), batch_size=20)
        result = quietly(network(), data, validation=spoilt, loss=F.mse_loss, checkpoints=tmp_path)
        assert result.stages[-1]["validation_loss"] is None
        assert str(result)

    def test_their_own_parameters_would_not_be_trained(self):
        class Weighed(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(()))

            def forward(self, outputs, targets):
                return self.weight * F.cross_entropy(outputs, targets)

        with pytest.warns(BayespruneWarning, match="parameters of its own"):
            quietly(network(), loader(), loss=Weighed())
        with warnings.catch_warnings():
            warnings.simplefilter("error", BayespruneWarning)
            quietly(network(), loader(), loss=Weighed().requires_grad_(False))


class TestPlans:
    @pytest.mark.parametrize("scale", ["1", [1, "a"], {"x": None}, None.__class__, True])
    def test_scales_are_numbers(self, scale):
        with pytest.raises(InputError, match="kl_scale"):
            quietly(network(), loader(), kl_scale=scale)

    def test_a_recipe_has_every_stage(self):
        mine = Recipe("mine", {"dense": StageRecipe(1), "pruned": StageRecipe(1)})
        with pytest.raises(InputError, match="'mine' does not say how to train the stage dependent"):
            bp.fit(network(), loader(), method="dbb", recipe=mine, progress=False)

    @pytest.mark.parametrize("setting", [{"lr": "x"}, {"gate_speed": None}, {"weight_decay": "0"}, {"kl_warmup": "a"}, {"epochs": True}])
    def test_numbers_of_a_stage(self, setting):
        with pytest.raises(InputError, match=next(iter(setting))):
            StageRecipe(**{"epochs": 1} | setting)


class Rows(Silent):
    def __init__(self):
        self.rows = []

    def epoch_finished(self, row):
        self.rows.append(row)


@pytest.mark.parametrize(("scales", "epochs"), [((1.0, 3e38), 3), ((3e38, 3e38), 1)])
def test_members_that_diverge_are_in_no_median_and_without_any_left_a_stage_ends(scales, epochs):
    images, labels = torch.randint(256, (60, 1, 4, 2), dtype=torch.uint8), torch.arange(60) % 3
    source = TensorBatches(Split(images, labels), (0.5,), (0.5,), 20, torch.device("cpu"))
    recipe = Recipe("short", {name: StageRecipe(3) for name in ("dense", "pruned")})
    plans = [make_plan("bb", recipe, 60, kl_scale=scale, pretrain=False, seed=seed) for seed, scale in enumerate(scales)]
    models = [nn.Sequential(nn.Flatten(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)) for _ in scales]
    watcher = Rows()
    runs = run_stages(models, plans, source, source, F.cross_entropy, NoStore(), watcher)
    assert [run.diverged for run in runs] == [scale > 1e30 for scale in scales]
    assert len(watcher.rows) == epochs
    if epochs == 3:
        assert all(row["loss"] < 1e3 for row in watcher.rows)
