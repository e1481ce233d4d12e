"""Training: recipes, the stages of a run, checkpoints, and ``fit`` for a user's own model and data."""

from bayesprune.training.fit import FitResult, fit
from bayesprune.training.plan import Plan, make_plan
from bayesprune.training.recipes import RECIPES, STAGES, Recipe, StageRecipe, find_recipe
from bayesprune.training.stages import StagedRun, run_stages
from bayesprune.training.trainer import StageTrainer

__all__ = [
    "RECIPES",
    "STAGES",
    "FitResult",
    "Plan",
    "Recipe",
    "StageRecipe",
    "StageTrainer",
    "StagedRun",
    "find_recipe",
    "fit",
    "make_plan",
    "run_stages",
]
