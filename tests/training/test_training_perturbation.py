"""The second showing of a batch is moved to where its loss is greater."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bayesprune.attach import make_dependent, sparsify
from bayesprune.data import Split, TensorBatches
from bayesprune.errors import DivergedError, InputError
from bayesprune.gates import gates
from bayesprune.models.lenet import LeNet500300
from bayesprune.objective import disagreement, uphill
from bayesprune.training import Recipe
from bayesprune.training.plan import make_plan
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.sources import LoaderBatches
from bayesprune.training.stages import run_stages
from bayesprune.training.store import NoStore
from bayesprune.training.trainer import StageTrainer
from bayesprune.training.watching import Silent

IMAGE = (1, 3, 3)


def small(seed=0, method="bb"):
    torch.manual_seed(seed)
    model = sparsify(LeNet500300(widths=(7, 5), input_shape=IMAGE), "bb", keep_init=10.0)
    return make_dependent(model) if method == "dbb" else model


def batches(samples=40, batch_size=10):
    torch.manual_seed(1)
    split = Split(torch.randint(0, 255, (samples, *IMAGE), dtype=torch.uint8), torch.randint(0, 10, (samples,)))
    return TensorBatches(split, (0.5,), (0.25,), batch_size)


def trained(models, recipe, seeds, **settings):
    trainer = StageTrainer(models, batches(), recipe, F.cross_entropy, seeds=seeds, **settings)
    while not trainer.finished:
        losses = trainer.train_epoch(lambda _: None)
    return trainer.write_back(), losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(exponent=st.integers(-34, 36), samples=st.integers(1, 5), distance=st.just(0.0) | st.floats(1e-3, 100.0))
def test_uphill_is_a_step_of_the_given_length_along_the_gradient(dtype, exponent, samples, distance):
    torch.manual_seed(exponent)
    gradient = torch.randn(samples, *IMAGE, dtype=dtype) * 10.0**exponent
    step = uphill(gradient, torch.full((samples,), distance, dtype=dtype))
    assert step.shape == gradient.shape
    torch.testing.assert_close(step.flatten(1).norm(dim=1), torch.full((samples,), distance, dtype=dtype))
    cosine = F.cosine_similarity(step.double().flatten(1), gradient.double().flatten(1) * 10.0**-exponent, dim=1)
    torch.testing.assert_close(cosine, torch.full_like(cosine, float(distance > 0)), rtol=1e-5, atol=1e-5)


def test_uphill_without_a_gradient_stays():
    gradient = torch.zeros(3, 4)
    gradient[1, 2] = -2.0
    assert uphill(gradient, torch.tensor([1.0, 2.0, 3.0])).tolist() == [[0.0] * 4, [0.0, 0.0, -2.0, 0.0], [0.0] * 4]


def test_uphill_of_what_is_not_finite_is_not_finite():
    assert not uphill(torch.tensor([[1.0, float("nan")]]), torch.ones(1)).isfinite().any()


@pytest.mark.parametrize("method", ["bb", "dbb"])
def test_losses_by_hand(method):
    model = small(method=method)
    recipe = StageRecipe(epochs=1, consistency=0.7, perturbation=0.5)
    trainer = StageTrainer([model], batches(), recipe, F.cross_entropy, seeds=[3], kl_scales=[2.0])
    x, y = (part[None] for part in next(batches().in_order(10)))
    step, model = trainer.step, model.train()
    step.begin(step.keys.for_steps(0, 4), torch.ones(4), torch.ones(4))
    step.keys.attach()
    statistics = {name: tensor.clone() for name, tensor in model.named_buffers() if "running" in name}
    found = step.losses(x, y)
    after = {name: tensor.clone() for name, tensor in model.named_buffers() if "running" in name}

    model.load_state_dict(statistics, strict=False)
    here = x[0].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(here), y[0], reduction="sum"), here)
    moved = x[0] + 0.5 * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
    model.load_state_dict(statistics, strict=False)
    logits = model(torch.cat([x[0], moved]))
    divergence = sum(2.0 / 40 * gate.kl() for gate in gates(model).values())
    expected = F.cross_entropy(logits, torch.cat([y[0], y[0]])) + 0.7 * disagreement(logits) + divergence
    torch.testing.assert_close(found, expected[None])
    assert statistics if method == "dbb" else not statistics
    for name, tensor in model.named_buffers():
        if "running" in name:
            torch.testing.assert_close(after[name], tensor)
            assert not torch.equal(after[name], statistics[name])
    step.keys.release()


@pytest.mark.parametrize("method", ["bb", "dbb"])
def test_members_as_alone(method):
    recipe = StageRecipe(epochs=2, consistency=0.5, perturbation=0.3)
    (alone,), first = trained([small(1, method)], recipe, [7])
    (_, other), second = trained([small(0, method), small(1, method)], recipe, [6, 7])
    assert second[1] == pytest.approx(first[0], rel=1e-5)
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-4, atol=1e-5)


def test_members_have_distances_of_their_own():
    recipe = StageRecipe(epochs=2, consistency=0.5)
    _, still = trained([small(0)], recipe, [6])
    _, moved = trained([small(1)], StageRecipe(epochs=2, consistency=0.5, perturbation=2.0), [7])
    _, both = trained([small(0), small(1)], recipe, [6, 7], perturbation=[0.0, 2.0])
    assert both == pytest.approx([*still, *moved], rel=1e-5)


def test_without_consistency_too():
    _, still = trained([small()], StageRecipe(epochs=2, consistency=1e-9), [6])
    _, moved = trained([small()], StageRecipe(epochs=2, perturbation=2.0), [6])
    _, alike = trained([small()], StageRecipe(epochs=2, consistency=1e-9, perturbation=2.0), [6])
    assert moved == pytest.approx(alike, rel=1e-5)
    assert moved[0] > still[0] + 0.01


def test_compiled_as_it_is():
    torch.compiler.reset()
    recipe = StageRecipe(epochs=1, consistency=0.5, perturbation=0.3)
    trainer = StageTrainer([small(0, "dbb"), small(1, "dbb")], batches(), recipe, F.cross_entropy, seeds=[6, 7])
    trainer.first.train()
    step = trainer.step
    x, y = (part.expand(2, *part.shape) for part in next(batches().in_order(10)))
    found = []
    for compiled in (False, True):
        if compiled:
            step.objective = torch.compile(step.objective, dynamic=False, fullgraph=True, backend="aot_eager")
        step.begin(step.keys.for_steps(0, 4), torch.ones(4), torch.ones(4))
        step.keys.attach()
        found.append(step.losses(x, y))
    step.keys.release()
    torch.testing.assert_close(found[1], found[0])


def test_it_makes_predictions_hold_nearby():
    def loss_nearby(perturbation):
        torch.manual_seed(0)
        model = LeNet500300(widths=(30, 20), input_shape=IMAGE)
        trained([model], StageRecipe(epochs=60, lr=5e-3, perturbation=perturbation), [3])
        x, y = next(batches().in_order(40))
        here = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(F.cross_entropy(model(here), y), here)
        return F.cross_entropy(model(x + uphill(gradient, torch.full((40,), 1.0))), y).item()

    assert loss_nearby(1.0) < 0.8 * loss_nearby(1e-6)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_refused(value):
    with pytest.raises(InputError, match="perturbation"):
        StageRecipe(epochs=1, perturbation=value)


class Untouched(Silent):
    """Nothing may be trained."""

    def stage_started(self, *_):
        raise AssertionError("a stage was started")


def put_through_stages(model, inputs, watcher):
    loader = DataLoader(TensorDataset(inputs, torch.randint(0, 3, (len(inputs),))), batch_size=10)
    stages = {"dense": StageRecipe(epochs=1), "pruned": StageRecipe(epochs=1, perturbation=0.5)}
    plan = make_plan("bb", Recipe("moving", stages), len(inputs))
    return run_stages([model], [plan], LoaderBatches(loader, "cpu"), None, F.cross_entropy, NoStore(), watcher)


def test_inputs_that_cannot_be_moved_are_refused_before_the_first_stage():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 3))
    with pytest.raises(InputError, match=r"floating-point tensors then, not torch\.int64"):
        put_through_stages(model, torch.randint(0, 5, (20, 3)), Untouched())


class Frozen(nn.Module):
    """Its features are computed without a gradient."""

    def __init__(self):
        super().__init__()
        self.features, self.hidden, self.head = nn.Linear(6, 8), nn.Linear(8, 5), nn.Linear(5, 3)

    def forward(self, x):
        with torch.no_grad():
            x = self.features(x)
        return self.head(F.relu(self.hidden(x)))


def test_a_model_that_lets_no_gradient_through_is_refused_before_the_first_stage():
    with pytest.raises(InputError, match=r"no gradient reaches the model's inputs.*no_grad"):
        put_through_stages(Frozen(), torch.rand(20, 6), Untouched())


class InPlace(nn.Module):
    """Changes its input in place, and replaces a buffer whenever it is trained."""

    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.calls = self.calls + 1
        return self.head(F.relu(self.hidden(x.sub_(0.5))))


def test_models_may_work_in_place_and_replace_buffers():
    (run,) = put_through_stages(InPlace(), torch.rand(20, 6), Silent())
    assert run.model.calls == 4, "two stages of two steps"


@pytest.mark.parametrize("inputs", [torch.zeros(1, 4, 3, dtype=torch.int64), [0.0]], ids=["whole numbers", "a list"])
def test_steps_refuse_inputs_that_cannot_be_moved(inputs):
    step = StageTrainer([small()], batches(), StageRecipe(epochs=1, perturbation=0.5), F.cross_entropy).step
    with pytest.raises(InputError, match="moves every input a little"):
        step._moved(inputs, torch.zeros(1, 4, dtype=torch.int64), step.weights)


def test_a_model_that_is_not_defined_where_inputs_are_moved_to():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(torch.sqrt(x))

    split = Split(torch.randint(1, 3, (20, 6, 1, 1), dtype=torch.uint8), torch.randint(0, 3, (20,)))
    model = nn.Sequential(nn.Flatten(), Root())
    trainer = StageTrainer(
        [model], TensorBatches(split, (0.0,) * 6, (1.0,) * 6, 10), StageRecipe(epochs=1, perturbation=5.0), F.cross_entropy
    )
    with pytest.raises(DivergedError, match=r"inputs were also moved by 5, perhaps to where the model is not defined"):
        trainer.train_epoch(lambda _: None)
