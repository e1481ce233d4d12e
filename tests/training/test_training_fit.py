import copy
import math
import re
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import bayesprune as bp
from bayesprune.errors import InputError, RunFolderError
from bayesprune.gates import METHODS, gates
from bayesprune.models import LeNet500300
from bayesprune.training import Recipe, StageRecipe
from bayesprune.training.lock import sole_use

FEATURES, HIDDEN, CLASSES = 16, 20, 3
QUICK = Recipe(
    "quick",
    {
        "dense": StageRecipe(epochs=3, lr=1e-2, schedule="cosine"),
        "pruned": StageRecipe(epochs=8, lr=1e-2, gate_speed=2.0, schedule="cosine"),
        "dependent": StageRecipe(epochs=3, lr=1e-2, gate_speed=0.5, schedule="cosine"),
    },
)


def perceptron(outputs=CLASSES):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Dropout(0.1), nn.Linear(HIDDEN, outputs))


def stripes(count, seed):
    """Images whose upper half, lower half or neither is lit."""
    labels = torch.arange(count) % 3
    images = 0.3 * torch.randn(count, 1, 6, 6, generator=torch.Generator().manual_seed(seed))
    images[labels == 0, :, :3] += 1
    images[labels == 1, :, 3:] += 1
    return DataLoader(TensorDataset(images, labels), batch_size=20, shuffle=True)


@pytest.fixture
def loader(make_loader):
    return make_loader(600, features=FEATURES)


@pytest.fixture
def small(make_loader):
    return make_loader(40, features=FEATURES)


@pytest.fixture
def validation(make_loader):
    return make_loader(300, features=FEATURES, seed=1)


def same(left, right):
    left, right = left.state_dict(), right.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_learns_and_prunes(loader, validation):
    result = bp.fit(perceptron(), loader, validation=validation, recipe=QUICK, tradeoff=1.0, progress=False)
    dense, pruned, dependent = result.stages
    assert [stage["stage"] for stage in result.stages] == ["dense", "pruned", "dependent"]
    for stage in result.stages:
        assert stage["error"] < 10, "chance is 67 %"
        assert stage["seconds"] > 0
    assert dense["kept"] == []
    assert sum(pruned["kept"]) < FEATURES + HIDDEN - 4
    assert all(average <= static for average, static in zip(dependent["kept"], pruned["kept"], strict=True))
    # Only the first half of the inputs tells the classes apart.
    of_inputs = next(iter(bp.gates(result.model).values())).keep_probability()
    assert of_inputs[: FEATURES // 2].mean() > 2 * of_inputs[FEATURES // 2 :].mean()
    assert [(row["stage"], row["epoch"]) for row in result.history] == [
        (name, epoch + 1) for name, stage in QUICK.stages.items() for epoch in range(stage.epochs)
    ]
    assert result.stages[-1]["error"] == result.history[-1]["error"]
    headings, first, _, last = str(result).splitlines()
    assert headings.split() == ["stage", "epochs", "seconds", "error", "%", "units", "kept"], "only the paper's networks state xFLOPs"
    assert first.split() == ["dense", str(dense["epochs"]), f"{dense['seconds']:.1f}", f"{dense['error']:.2f}", "all"]
    assert last.split()[-1] == f"{sum(dependent['kept']):.0f}"


@pytest.mark.parametrize("before_norm", [False, True])
def test_convolutional_network(before_norm):
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 3),
    )
    loader = stripes(300, 0)
    result = bp.fit(
        model,
        loader,
        validation=stripes(150, 1),
        recipe=QUICK,
        epochs={"pruned": 5, "dependent": 2},
        example_inputs=torch.zeros(2, 1, 6, 6),
        before_norm=before_norm,
        progress=False,
    )
    assert result.stages[-1]["error"] < 15
    assert len(result.stages[1]["kept"]) == 3
    assert sum(result.stages[-1]["kept"]) < 8 + 8 + 72 - 4


@pytest.mark.parametrize("method", METHODS)
def test_every_method(small, method):
    result = bp.fit(perceptron(), small, method=method, validation=small, epochs=1, progress=False)
    assert [stage["stage"] for stage in result.stages] == ["dense", "pruned", *(["dependent"] if method == "dbb" else [])]
    assert {gate.method for gate in gates(result.model).values()} == {method}
    assert all(math.isfinite(row["loss"]) for row in result.history)


def test_regression():
    inputs = torch.randn(200, FEATURES, generator=torch.Generator().manual_seed(0))
    targets = inputs[:, :2].sum(dim=1, keepdim=True)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=20, shuffle=True)
    result = bp.fit(
        perceptron(outputs=1), loader, validation=loader, loss=F.mse_loss, method="bb", recipe=QUICK, kl_scale=0.01, progress=False
    )
    assert [stage["error"] for stage in result.stages] == [None, None]
    assert F.mse_loss(bp.predict(result.model, inputs, activation=None), targets) < 0.3 * targets.var()


def test_without_validation(small):
    result = bp.fit(perceptron(), small, epochs=1, progress=False)
    assert [stage["error"] for stage in result.stages] == [None] * 3
    assert [stage["kept"] for stage in result.stages] == [[], [FEATURES, HIDDEN], [FEATURES, HIDDEN]]
    assert "error" not in str(result)


def test_trained_model_is_only_pruned(small):
    result = bp.fit(perceptron(), small, epochs=1, pretrain=False, progress=False)
    assert [stage["stage"] for stage in result.stages] == ["pruned", "dependent"]


def test_zoo_model_has_a_cost(small):
    model = LeNet500300(CLASSES, widths=(12, 8), input_shape=(FEATURES,))
    result = bp.fit(model, small, method="bb", epochs=1, progress=False)
    for stage in result.stages:
        assert (stage["speedup"], stage["memory"]) == (1.0, 100.0)
        assert stage["kept"] == [FEATURES, 12, 8]


def test_double_precision(make_clusters):
    inputs, labels = make_clusters(40, features=FEATURES)
    loader = DataLoader(TensorDataset(inputs.double(), labels), batch_size=20)
    result = bp.fit(perceptron().double(), loader, validation=loader, epochs=1, progress=False)
    assert {parameter.dtype for parameter in result.model.parameters()} == {torch.float64}


def test_own_model_is_not_changed(small, validation):
    model = perceptron()
    model.eval()
    model[2].train()
    before = copy.deepcopy(model)
    bp.fit(model, small, validation=validation, epochs=1, progress=False)
    assert same(model, before)
    assert not gates(model)
    assert [module.training for module in model.modules()] == [module.training for module in before.modules()]
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_same_seed_same_result(small):
    results = []
    for start, seed in ((1, 0), (2, 0), (3, 1)):
        model = perceptron()
        torch.manual_seed(start)
        results.append(bp.fit(model, small, epochs=1, seed=seed, progress=False).model)
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


@pytest.mark.parametrize("with_validation", [False, True])
@pytest.mark.parametrize("method", ["dbb", "l0"])
def test_global_generator_is_left_alone(small, validation, method, with_validation):
    model = perceptron()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    bp.fit(model, small, method=method, validation=validation if with_validation else None, epochs=1, progress=False)
    assert torch.equal(torch.get_rng_state(), before)


class Failing(TensorDataset):
    """A data set that cannot be read after so many samples."""

    left = math.inf

    def __getitem__(self, index):
        self.left -= 1
        if self.left < 0:
            raise ConnectionError("the network drive is gone")
        return super().__getitem__(index)


@pytest.mark.parametrize("reads", [30, 45, 90, 130, 200])
def test_goes_on_from_a_folder_of_checkpoints(make_clusters, tmp_path, reads):
    data = Failing(*make_clusters(40, features=FEATURES))
    loader = DataLoader(data, batch_size=20, shuffle=True)
    expected = bp.fit(perceptron(), loader, epochs=2, progress=False)
    data.left = reads
    with pytest.raises(ConnectionError):
        bp.fit(perceptron(), loader, epochs=2, checkpoints=tmp_path / "kept", progress=False)
    data.left = math.inf
    result = bp.fit(perceptron(), loader, epochs=2, checkpoints=str(tmp_path / "kept"), progress=False)
    assert same(result.model, expected.model)
    assert [row["loss"] for row in result.history] == [row["loss"] for row in expected.history]
    again = bp.fit(perceptron(), loader, epochs=2, checkpoints=tmp_path / "kept", progress=False)
    assert same(again.model, result.model)
    assert again.stages == result.stages


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"epochs": 2}, "plan.recipe.stages.dense.epochs (1 there, 2 here)"),
        ({"method": "bb"}, "plan.method ('dbb' there, 'bb' here)"),
        ({"seed": 1}, "plan.seed (0 there, 1 here)"),
        ({"threshold": 0.5}, "plan.hyperparameters.threshold (None there, 0.5 here)"),
    ],
)
def test_folder_of_another_fit(small, tmp_path, changes, named):
    bp.fit(perceptron(), small, epochs=1, checkpoints=tmp_path, progress=False)
    with pytest.raises(RunFolderError, match=re.escape(f"differs in {named}")):
        bp.fit(perceptron(), small, **{"epochs": 1, "checkpoints": tmp_path, "progress": False} | changes)
    with pytest.raises(RunFolderError, match="differs in parameters"):
        bp.fit(nn.Sequential(nn.Linear(FEATURES, CLASSES)), small, epochs=1, checkpoints=tmp_path, progress=False)


def test_folder_in_use(small, tmp_path):
    with sole_use(tmp_path), pytest.raises(RunFolderError, match="in use by another process"):
        bp.fit(perceptron(), small, epochs=1, checkpoints=tmp_path, progress=False)
    bp.fit(perceptron(), small, epochs=1, checkpoints=tmp_path, progress=False)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "checkpoints", "metrics.jsonl"}


class Sixteen(nn.Module):
    """Takes batches of sixteen."""

    def __init__(self):
        super().__init__()
        self.layers = perceptron()

    def forward(self, x):
        return self.layers(x.view(16, FEATURES))


def test_model_for_another_batch_size(make_clusters):
    inputs, labels = make_clusters(32, features=FEATURES)
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=16)
    with pytest.raises(InputError, match=r"Sixteen does not run on .*\[2, "):
        bp.fit(Sixteen(), loader, example_inputs=inputs[:16], epochs=1, progress=False)


def test_own_loss_needs_no_look_at_the_outputs(small, monkeypatch):
    def refuse(*_):
        raise AssertionError

    monkeypatch.setattr(sys.modules["bayesprune.training.fit"], "label_rule", refuse)
    own = bp.fit(perceptron(), small, method="bb", loss=lambda scores, labels: F.cross_entropy(scores, labels), epochs=1, progress=False)
    assert own.stages


class Stream(IterableDataset):
    def __iter__(self):
        return iter([(torch.zeros(FEATURES), torch.tensor(0))] * 5)


BAD_LOADERS = {
    "no length": (lambda: DataLoader(Stream(), batch_size=2), "does not know its length"),
    "empty": (lambda: DataLoader(TensorDataset(torch.zeros(0, FEATURES), torch.zeros(0))), "empty"),
    "no targets": (lambda: DataLoader(TensorDataset(torch.zeros(4, FEATURES)), batch_size=2), "pairs"),
    "three parts": (lambda: DataLoader(TensorDataset(*[torch.zeros(4, FEATURES)] * 3), batch_size=2), "pairs"),
    "mappings": (lambda: DataLoader([{"x": torch.zeros(FEATURES), "y": 0}] * 4, batch_size=2), "pairs"),
}


@pytest.mark.parametrize(("make", "message"), BAD_LOADERS.values(), ids=BAD_LOADERS)
def test_bad_loader(make, message, small):
    for loaders in ({"loader": make()}, {"loader": small, "validation": make()}):
        with pytest.raises(InputError, match=message):
            bp.fit(perceptron(), epochs=1, progress=False, **loaders)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ddb"}, "Did you mean 'dbb'"),
        ({"recipe": "fats"}, "Did you mean 'fast'"),
        ({"epochs": 0}, "epoch"),
        ({"epochs": {"dense": 0}}, "epoch"),
        ({"epochs": {"first": 1}}, "unknown stages"),
        ({"tradeoff": -1.0}, "trade-off"),
        ({"tradeoff": math.nan}, "trade-off"),
        ({"kl_scale": math.nan}, "kl_scale"),
        ({"kl_scale": -1.0}, "kl_scale"),
        ({"kl_scale": (1.0, 2.0, 3.0)}, "3 factors, the model 2 gates"),
        ({"kl_scale": (1.0, -2.0)}, "not negative"),
        ({"kl_scale": {"first": 1.0}}, "kl_scale must name every gate"),
        ({"treshold": 0.1}, "Did you mean 'threshold'"),
        ({"epoch": 1}, "fit has no option 'epoch'. Did you mean 'epochs'"),
        ({"lr": 1}, "no hyper-parameter 'lr'"),
        ({"threshold": -0.1}, "threshold"),
        ({"n_data": 0}, "n_data is the number of training samples, at least 1, not 0"),
        ({"example_inputs": torch.zeros(2, 3)}, "does not run on example_inputs"),
        ({"device": "nonsense"}, "device 'nonsense' cannot be used"),
        ({"device": "meta"}, "device 'meta' cannot be used"),
    ],
    ids=str,
)
def test_bad_option_is_found_before_training(options, message, small, tmp_path):
    read = []

    class Counted(TensorDataset):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    loader = DataLoader(Counted(*small.dataset.tensors), batch_size=20)
    with pytest.raises(InputError, match=message):
        bp.fit(perceptron(), loader, **{"epochs": 1, "progress": False, "checkpoints": tmp_path / "kept"} | options)
    assert len(read) <= 20, "more than a batch, the example, was read before the error showed"
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize("model", [nn.ReLU(), nn.Sequential(), nn.Sequential(nn.Flatten(), nn.ReLU())], ids=str)
def test_model_without_parameters(model, small):
    with pytest.raises(InputError, match="no parameters"):
        bp.fit(model, small, progress=False)


def test_model_that_cannot_be_gated(small):
    with pytest.raises(InputError, match=r"nothing in LSTM can be gated\. the model itself: its parameters"):
        bp.fit(nn.LSTM(FEATURES, 3), small, progress=False)


def test_progress_is_shown(small, capsys):
    bp.fit(perceptron(), small, method="bb", validation=small, epochs=1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "dense" in captured.err
    assert "error" in captured.err


def test_layers_can_be_computed_in_bfloat16(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))
    seen = set()
    monkeypatch.setattr(F, "linear", lambda *args, linear=F.linear: seen.add(linear(*args).dtype) or linear(*args))
    options = {"recipe": QUICK, "epochs": {"dense": 4, "pruned": 4, "dependent": 1}, "shrink": True, "progress": False}
    result = bp.fit(model, stripes(300, 0), validation=stripes(150, 1), precision="bfloat16", **options)
    assert seen == {torch.bfloat16, torch.float32}  # Evaluation is in float32.
    assert {tensor.dtype for tensor in result.model.parameters()} == {torch.float32}
    assert [stage["error"] < 20 for stage in result.stages] == [True] * 3
    with pytest.raises(InputError, match="precision is float32 or bfloat16, not 'half'"):
        bp.fit(model, stripes(20, 0), precision="half", progress=False)


def test_results_in_containers_can_be_computed_in_bfloat16(small):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = perceptron()

        def forward(self, x):
            scores = self.net(x)
            return {"scores": scores, "best": scores.argmax(1)}

    types = set()

    def loss(outputs, targets):
        types.update({outputs["scores"].dtype, outputs["best"].dtype})
        return F.cross_entropy(outputs["scores"], targets)

    bp.fit(Both(), small, loss=loss, recipe=QUICK, epochs=1, precision="bfloat16", progress=False)
    assert types == {torch.float32, torch.int64}
