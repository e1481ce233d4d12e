"""Where a step cannot be compiled or captured, training goes on without."""

import pytest
import torch
import torch.nn.functional as F
from fleets import model, nothing, source

import bayesprune.training.capture as capture
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.training.recipes import StageRecipe
from bayesprune.training.trainer import StageTrainer

RECIPE = StageRecipe(epochs=2)


def trained(monkeypatch, epochs_of):
    """What a trainer gives on a machine on which an epoch is captured like this."""
    monkeypatch.setattr(capture, "CapturedEpoch", epochs_of)
    stage = StageTrainer([model("dense", "bb", 0)], source(), RECIPE, F.cross_entropy)
    stage.captures = True
    return stage, stage.train_epoch(nothing)


def refusing(*kinds):
    def make(step, batches, plan, compiled):
        if compiled in kinds:
            raise RuntimeError("no such thing here\nand much more")
        return "program"

    return make


def test_as_it_is_where_there_is_no_compiler(monkeypatch):
    monkeypatch.setattr(capture, "CapturedEpoch", refusing(True))
    with pytest.warns(BayespruneWarning, match="cannot be compiled.*no such thing here$"):
        assert capture.captured_epoch(None, None, None) == "program"


def test_plainly_where_nothing_can_be_captured(monkeypatch):
    plain = StageTrainer([model("dense", "bb", 0)], source(), RECIPE, F.cross_entropy)
    expected = plain.train_epoch(nothing)
    with pytest.warns(BayespruneWarning, match="cannot be") as warned:
        stage, losses = trained(monkeypatch, refusing(True, False))
    assert len([each for each in warned if "cannot be" in str(each.message)]) == 2
    assert losses == expected
    assert not stage.captures
    assert stage.train_epoch(nothing) == plain.train_epoch(nothing)


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError, InputError])
def test_other_errors_are_not_taken_for_that(monkeypatch, error):
    def fail(step, batches, plan, compiled):
        raise error("as it should be")

    with pytest.raises(error, match="as it should be"):
        trained(monkeypatch, fail)
