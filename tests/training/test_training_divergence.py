import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bayesprune.attach import sparsify
from bayesprune.errors import BayespruneError, DivergedError
from bayesprune.gates import METHODS, gates
from bayesprune.storage import read_tensors
from bayesprune.training import Recipe, StageRecipe, StageTrainer, make_plan, run_stages
from bayesprune.training.divergence import find_nonfinite
from bayesprune.training.store import NoStore, RunStore
from bayesprune.training.watching import Silent

RECIPE = Recipe("tiny", {name: StageRecipe(epochs=2) for name in ("dense", "pruned", "dependent")})


class Spoilt:
    """A source of batches whose inputs hold a NaN after some good epochs."""

    def __init__(self, source, value=math.nan, good_epochs=0):
        self.source, self.value, self.good_epochs = source, value, good_epochs
        self.n_data = source.n_data

    def __len__(self):
        return len(self.source)

    def in_order(self):
        return self.source.in_order()

    def epoch(self, seeds, epoch):
        for inputs, targets in self.source.epoch(seeds, epoch):
            if self.good_epochs <= 0:
                inputs[:, 3, 2] = self.value
            yield inputs, targets
        self.good_epochs -= 1


def train(model, source, loss=F.cross_entropy):
    trainer = StageTrainer([model], source, StageRecipe(epochs=2), loss)
    while not trainer.finished:
        trainer.train_epoch(lambda value: None)


def set_value(tensor, value):
    with torch.no_grad():
        tensor.view(-1)[-1] = value


@pytest.mark.parametrize("method", [None, "bb", "dbb"])
def test_input_is_named(make_network, make_source, method):
    with pytest.raises(DivergedError, match="the loss became nan in epoch 1, step 1; it began in the inputs"):
        train(make_network(method), Spoilt(make_source()))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("path", ["0.weight", "4.weight", "6.bias"])
def test_weight_is_named(make_network, make_source, path, value):
    model = make_network("bb")
    set_value(model.get_parameter(path), value)
    with pytest.raises(DivergedError, match=f"epoch 1, step 1; it began in the layer parameter {path}$"):
        train(model, make_source())


@pytest.mark.parametrize("method", METHODS)
def test_parameter_of_a_gate_is_named(make_network, make_source, method):
    model = make_network(method)
    path, gate = list(gates(model).items())[1]
    name, parameter = next(iter(gate.named_parameters()))
    set_value(parameter, math.nan)
    with pytest.raises(DivergedError, match=f"it began in the gate parameter {path}.{name}$"):
        train(model, make_source())


def test_layer_whose_output_overflows_is_named(make_source):
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        model[0].weight.fill_(1e25)
        model[2].weight.fill_(1e25)
    with pytest.raises(DivergedError, match=r"it began in the output of 2$"):
        train(model, make_source())


def test_divergence_of_a_gate_is_named(make_network, make_source):
    model = make_network("bb")
    path, gate = list(gates(model).items())[1]
    gate.alpha = math.inf
    with pytest.raises(DivergedError, match=f"the loss became (inf|nan).*it began in the divergence of the gate {path}$"):
        train(model, make_source())


def test_loss_itself_is_named(make_network, make_source):
    with pytest.raises(DivergedError, match=r"the loss became inf.*it began in the loss itself"):
        train(make_network(), make_source(), loss=lambda outputs, targets: outputs.sum() + math.inf)


def test_step_at_which_it_began(make_network, make_source):
    """A later epoch of the same stage: what was learnt before is not blamed."""
    with pytest.raises(DivergedError, match="in epoch 2, step 1; it began in the inputs"):
        train(make_network("bb"), Spoilt(make_source(), good_epochs=1))


def test_nothing_is_left_on_the_model(make_network):
    model = sparsify(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), "bb", example_inputs=torch.zeros(2, 4))
    hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    assert find_nonfinite(model, torch.ones(2, 4)) == "the loss itself"
    assert {name: len(module._forward_hooks) for name, module in model.named_modules()} == hooks


def test_divergence_is_an_arithmetic_error():
    assert issubclass(DivergedError, ArithmeticError)
    assert issubclass(DivergedError, BayespruneError)


@pytest.mark.parametrize("good_epochs", range(6))
def test_last_good_checkpoint_is_kept(make_network, make_source, tmp_path, good_epochs):
    """Whatever epoch diverges, a run that is taken up with good data ends as if nothing had happened."""
    plan = make_plan("dbb", RECIPE, 60)

    def run(source, store):
        return run_stages([make_network()], [plan], source, make_source(shuffle=False), F.cross_entropy, store, Silent())[0]

    with pytest.raises(DivergedError) as raised:
        run(Spoilt(make_source(), good_epochs=good_epochs), RunStore(tmp_path, {}))
    stage = ("dense", "pruned", "dependent")[good_epochs // 2]
    message = str(raised.value)
    assert message.startswith(
        f"stage '{stage}' stopped: the loss became nan in epoch {good_epochs % 2 + 1}, step 1; it began in the inputs;"
    )
    kept = f"the last good checkpoint is in {tmp_path / 'checkpoints'}"
    assert (kept if good_epochs else "no epoch was finished, so there is no checkpoint") in message
    files = list((tmp_path / "checkpoints").iterdir())
    assert len(files) == (good_epochs + 1) // 2
    for path in files:
        tensors, _ = read_tensors(path)
        assert all(tensor.isfinite().all() for tensor in tensors.values())

    taken_up, through = run(make_source(), RunStore(tmp_path, {})), run(make_source(), NoStore())
    state, expected = taken_up.model.state_dict(), through.model.state_dict()
    assert all(torch.equal(state[name], expected[name]) for name in expected)


class BadGradient:
    """The cross entropy, with a finite value and a NaN gradient in one of its calls in training: 0 * d sqrt(0)."""

    def __init__(self, bad_call):
        self.bad_call, self.calls = bad_call, 0

    def __call__(self, outputs, targets):
        loss = F.cross_entropy(outputs, targets)
        if torch.is_grad_enabled():
            self.calls += 1
            if self.calls == self.bad_call:
                return loss + 0.0 * (0.0 * outputs).sum().sqrt()
        return loss


@pytest.mark.parametrize("bad_call", [3, 6])
def test_bad_last_update_of_an_epoch_is_not_stored(make_network, make_source, tmp_path, bad_call):
    """The loss of the epoch was finite throughout; only its last update, the third, was not."""
    with pytest.raises(DivergedError, match=r"0\.weight"):
        run_stages(
            [make_network()], [make_plan("bb", RECIPE, 60)], make_source(), None, BadGradient(bad_call), RunStore(tmp_path, {}), Silent()
        )
    for path in (tmp_path / "checkpoints").iterdir():
        tensors, description = read_tensors(path)
        assert description["epoch"] == 1
        assert all(tensor.isfinite().all() for tensor in tensors.values())


def test_message_where_nothing_is_kept(make_network, make_source):
    with pytest.raises(DivergedError, match="no checkpoint was kept: give a folder"):
        run_stages([make_network()], [make_plan("bb", RECIPE, 60)], Spoilt(make_source()), None, F.cross_entropy, NoStore(), Silent())
