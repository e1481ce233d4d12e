"""How long, how fast and in what order to train, as data."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bayesprune.errors import InputError, did_you_mean, is_number

StageName = Literal["dense", "pruned", "dependent"]
STAGES: tuple[StageName, ...] = ("dense", "pruned", "dependent")


@dataclass(frozen=True)
class StageRecipe:
    """One stage of training, with Adam.

    Attributes:
        epochs: how many.
        lr: of the weights.
        gate_speed: factor on the gates' learning rate; at 1 it is ``lr`` times what the method was published with, 10 for most.
        weight_decay: of the weights, added to the gradient.
        schedule: ``steps`` multiplies the learning rates by 0.1 at half and again at four fifths of the epochs; ``cosine`` lets them fall
            to zero along a half cosine.
        kl_warmup: the share of the stage over which the divergence's weight rises from 0 to 1.
        consistency: weight in the loss of how far two predictions, with two draws of the masks, are apart (R-Drop). Every batch is then
            shown twice in a step, which costs up to twice the time. For classification. In the input-dependent stage it is divided by
            the trade-off's factor, if that is above 1.
        perturbation: how far, as a Euclidean distance between inputs as the network sees them, each input of the second showing is moved
            to where its loss is greater (adversarial training), which costs another pass. For classification. With zero, the default, it is
            not moved.
        kl_by_tradeoff: of the input-dependent stage: its divergence has this weight times the trade-off's factor, at most 1, so that a
            weak trade-off prunes little per input too; None for 1 whatever the trade-off, as in the paper.
        without_dropout: of pretraining: switch off the fixed dropout that a network of the paper has for it, with which it learns slowly.
    """

    epochs: int
    lr: float = 1e-3
    gate_speed: float = 1.0
    weight_decay: float = 1e-4
    schedule: Literal["steps", "cosine"] = "steps"
    kl_warmup: float = 0.0
    consistency: float = 0.0
    perturbation: float = 0.0
    kl_by_tradeoff: float | None = None
    without_dropout: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.epochs, int) or isinstance(self.epochs, bool) or self.epochs < 1:
            raise InputError(f"a stage has a whole number of epochs, at least 1, not {self.epochs!r}")
        for name in ("lr", "gate_speed"):
            value = getattr(self, name)
            if not (is_number(value) and value > 0):
                raise InputError(f"{name} must be a finite number above zero, not {value!r}")
        for name in ("weight_decay", "consistency", "perturbation"):
            value = getattr(self, name)
            if not (is_number(value) and value >= 0):
                raise InputError(f"{name} must be a finite number and not negative, not {value!r}")
        if self.kl_by_tradeoff is not None and not (is_number(self.kl_by_tradeoff) and self.kl_by_tradeoff > 0):
            raise InputError(f"kl_by_tradeoff must be a finite number above zero, or None, not {self.kl_by_tradeoff!r}")
        if not (is_number(self.kl_warmup) and 0.0 <= self.kl_warmup <= 1.0):
            raise InputError(f"kl_warmup is a share of the stage, from 0 to 1, not {self.kl_warmup!r}")
        if self.schedule not in ("steps", "cosine"):
            raise InputError(f"schedule is 'steps' or 'cosine', not '{self.schedule}'")

    @property
    def shows_twice(self) -> bool:
        """Whether every batch is shown twice in a step."""
        return self.consistency > 0 or self.perturbation > 0

    def written(self) -> dict[str, Any]:
        """As it is written down: what earlier versions did not have, only where it is used."""
        later = ("consistency", "perturbation", "kl_by_tradeoff", "without_dropout")
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in later or value}

    def rate_factor(self, progress: float) -> float:
        """The factor on the learning rates when ``progress`` of the stage, from 0 to 1, is done."""
        if self.schedule == "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0)))
        return 0.1 ** ((progress >= 0.5) + (progress >= 0.8))


@dataclass(frozen=True)
class Recipe:
    """The stages of a run.

    Attributes:
        name: under which it is offered.
        stages: pretraining (``dense``), pruning (``pruned``) and the input-dependent stage (``dependent``).
        batch_size: of all stages of the main job; ``fit`` takes what its loader gives.
        tradeoffs: by method, where none is asked for and the method's own default does not suit the recipe.
        shrink: whether units that are pruned, and stay so, are taken out of the network while it is trained.
    """

    name: str
    stages: Mapping[StageName, StageRecipe]
    batch_size: int = 100
    tradeoffs: Mapping[str, float] = field(default_factory=dict)
    shrink: bool = False

    def __post_init__(self) -> None:
        for name, stage in self.stages.items():
            if stage.kl_by_tradeoff is not None and name != "dependent":
                raise InputError(f"kl_by_tradeoff is for the stage 'dependent', not for '{name}', where the trade-off is the weight")
            if stage.without_dropout and name != "dense":
                raise InputError(f"without_dropout is for the stage 'dense', not for '{name}', where fixed dropout is off anyway")

    def with_epochs(self, epochs: int | Mapping[StageName, int]) -> "Recipe":
        """The same with another number of epochs: one for every stage, or some by name."""
        by_stage = epochs if isinstance(epochs, Mapping) else dict.fromkeys(self.stages, epochs)
        unknown = set(by_stage) - set(self.stages)
        if unknown:
            raise InputError(f"unknown stages {sorted(unknown)}; there are {', '.join(self.stages)}")
        stages = {name: dataclasses.replace(stage, epochs=by_stage.get(name, stage.epochs)) for name, stage in self.stages.items()}
        return dataclasses.replace(self, stages=stages)


PAPER = Recipe("paper", {name: StageRecipe(epochs=200) for name in STAGES})
"""The published protocol: 200 epochs a stage, learning rates 1e-3 and 1e-2."""

FAST = Recipe(
    "fast",
    {
        "dense": StageRecipe(epochs=4, lr=3e-3, schedule="cosine"),
        "pruned": StageRecipe(epochs=20, lr=4e-3, gate_speed=8.0, schedule="cosine"),
        "dependent": StageRecipe(epochs=7, lr=7e-4, gate_speed=10.0, schedule="cosine"),
    },
    batch_size=200,
    tradeoffs={"bb": 1.75},
    shrink=True,
)
"""About a minute on two processor cores: fast gates, a cosine schedule, little pretraining, and a network that shrinks as it is trained."""

CONSISTENT = Recipe(
    "consistent",
    {
        "dense": StageRecipe(epochs=200),
        "pruned": StageRecipe(epochs=300, weight_decay=1e-5, consistency=1.0),
        "dependent": StageRecipe(epochs=300, weight_decay=1e-5, consistency=1.0, kl_by_tradeoff=0.25),
    },
    tradeoffs={"bb": 3.2},
)
"""As published, but predictions with two draws of the masks must agree, weights decay less, pruning takes longer, and weak trade-offs are
weak in the input-dependent stage too. Found by experiment: benchmarks/recipe_search."""

SMOOTH = Recipe(
    "smooth",
    {
        "dense": StageRecipe(epochs=20),
        "pruned": StageRecipe(epochs=60, gate_speed=5.0, weight_decay=1e-5, consistency=1.0, perturbation=0.5),
        "dependent": StageRecipe(epochs=60, gate_speed=5.0, weight_decay=1e-5, consistency=1.0, perturbation=0.5),
    },
    tradeoffs={"bb": 11.0},
    shrink=True,
)
"""The second showing of every batch is moved to where its loss is greater, so that predictions hold around the training inputs. Much
shorter than published, with faster gates and a network that shrinks as it is trained, so that a processor will do; the divergence of the
input-dependent stage has its published weight. Found by experiment: benchmarks/recipe_search."""

BRIEF = Recipe(
    "brief",
    {
        "dense": StageRecipe(epochs=20),
        "pruned": StageRecipe(epochs=100, gate_speed=2.0),
        "dependent": StageRecipe(epochs=60, gate_speed=2.0),
    },
    tradeoffs={"bb": 7.0},
    shrink=True,
)
"""As published but for the length of the stages, gates that are faster for it, and a network that shrinks as it is trained. In the paper's
networks gates weigh as much as their units cost. Found by experiment: benchmarks/recipe_search."""

DEEP = Recipe(
    "deep",
    {
        "dense": StageRecipe(epochs=6, schedule="cosine", without_dropout=True),
        "pruned": StageRecipe(epochs=50, gate_speed=4.0, schedule="cosine"),
        "dependent": StageRecipe(epochs=12, gate_speed=4.0, schedule="cosine"),
    },
    tradeoffs={"bb": 5.0},
    shrink=True,
)
"""For deep networks, on a processor if need be: little pretraining, since the network learns on while it shrinks, and gates that are fast,
but not so fast that they decide before the layers below have learned. In VGG-like a filter weighs as the side of its map."""

RECIPES = {recipe.name: recipe for recipe in (PAPER, FAST, CONSISTENT, SMOOTH, BRIEF, DEEP)}


def find_recipe(name: str) -> Recipe:
    """A recipe by name, or an error that says which there are."""
    if name in RECIPES:
        return RECIPES[name]
    raise InputError(f"unknown recipe '{name}'; choose one of {', '.join(RECIPES)}.{did_you_mean(name, RECIPES)}")
