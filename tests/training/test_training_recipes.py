import math

import pytest

from bayesprune.errors import InputError
from bayesprune.training import RECIPES, STAGES, Recipe, StageRecipe, find_recipe


@pytest.mark.parametrize(("progress", "factor"), [(0, 1), (0.25, 1), (0.4999, 1), (0.5, 0.1), (0.7999, 0.1), (0.8, 0.01), (1, 0.01)])
def test_steps_at_half_and_four_fifths(progress, factor):
    assert StageRecipe(epochs=1, schedule="steps").rate_factor(progress) == pytest.approx(factor)


@pytest.mark.parametrize(("progress", "factor"), [(0, 1), (1 / 3, 0.75), (0.5, 0.5), (2 / 3, 0.25), (1, 0), (1.5, 0)])
def test_half_cosine(progress, factor):
    assert StageRecipe(epochs=1, schedule="cosine").rate_factor(progress) == pytest.approx(factor)


def test_paper_recipe():
    """200 epochs a stage, learning rates 1e-3 and ten times that, 0.1 at half and four fifths, weight decay 1e-4, batches of 100."""
    paper = find_recipe("paper")
    assert paper.batch_size == 100
    assert tuple(paper.stages) == STAGES
    for stage in paper.stages.values():
        assert (stage.epochs, stage.lr, stage.gate_speed, stage.weight_decay, stage.schedule) == (200, 1e-3, 1.0, 1e-4, "steps")


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_recipes_have_all_stages(recipe):
    assert tuple(recipe.stages) == ("dense", "pruned", "dependent")
    assert find_recipe(recipe.name) is recipe


@pytest.mark.parametrize(
    ("name", "hint"), [("fsat", "Did you mean 'fast'"), ("papers", "Did you mean 'paper'"), ("", "fast"), ("FAST", "fast")]
)
def test_unknown_recipe(name, hint):
    with pytest.raises(InputError, match="choose one of paper, fast") as raised:
        find_recipe(name)
    assert hint in str(raised.value)


def test_same_epochs_for_every_stage():
    fast = find_recipe("fast")
    changed = fast.with_epochs(3)
    assert [stage.epochs for stage in changed.stages.values()] == [3, 3, 3]
    assert changed.stages["pruned"].gate_speed == fast.stages["pruned"].gate_speed
    assert changed.tradeoffs == fast.tradeoffs
    assert [stage.epochs for stage in fast.stages.values()] != [3, 3, 3]


def test_epochs_by_stage():
    fast = find_recipe("fast")
    changed = fast.with_epochs({"dependent": 2})
    assert changed.stages["dependent"].epochs == 2
    assert changed.stages["dense"] == fast.stages["dense"]
    with pytest.raises(InputError, match=r"unknown stages \['dens'\]; there are dense, pruned, dependent"):
        fast.with_epochs({"dens": 2})


@pytest.mark.parametrize("epochs", [0, -1, {"pruned": 0}, 1.5, {"pruned": 1.5}, "3"])
def test_bad_epochs(epochs):
    with pytest.raises(InputError, match="epoch"):
        find_recipe("fast").with_epochs(epochs)


@pytest.mark.parametrize(
    "setting",
    [{name: value} for name in ("lr", "gate_speed") for value in (0.0, -1e-3, math.nan, math.inf)]
    + [{"weight_decay": value} for value in (-1e-4, math.nan, math.inf)]
    + [{"kl_warmup": value} for value in (-0.1, 1.1, math.nan)]
    + [{"kl_by_tradeoff": value} for value in (0.0, -0.1, math.nan, math.inf)]
    + [{"schedule": "cosin"}],
    ids=str,
)
def test_bad_settings_of_a_stage(setting):
    with pytest.raises(InputError, match=next(iter(setting))):
        StageRecipe(epochs=1, **setting)


def test_recipe_of_ones_own():
    own = Recipe("own", {"pruned": StageRecipe(epochs=3)}, batch_size=7)
    assert own.with_epochs(5).stages["pruned"].epochs == 5
    with pytest.raises(InputError):
        own.with_epochs({"dense": 1})


@pytest.mark.parametrize("stage", ["dense", "pruned"])
def test_the_weight_by_tradeoff_is_for_the_input_dependent_stage(stage):
    with pytest.raises(InputError, match=f"not for '{stage}'"):
        Recipe("mine", {stage: StageRecipe(epochs=1, kl_by_tradeoff=0.5)})


@pytest.mark.parametrize("stage", ["pruned", "dependent"])
def test_fixed_dropout_is_for_pretraining(stage):
    with pytest.raises(InputError, match=f"not for '{stage}'"):
        Recipe("mine", {stage: StageRecipe(epochs=1, without_dropout=True)})
