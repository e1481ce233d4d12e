"""Small reproductions: few images, epochs and trade-offs, in a folder of their own."""

from dataclasses import replace

from bayesprune.experiments.protocol import protocol
from bayesprune.experiments.reproduction import Places, run_reproduction
from bayesprune.training.recipes import Recipe, StageRecipe
from bayesprune.training.watching import Silent

WEAK, STRONG = "0.05", "0.2"
"""Trade-offs at which some units go, and most of them."""
WHOLE = 600
"""Training images that a folder of digits has."""
IMAGES = (500, 10_000)
EPOCHS = {"dense": 2, "pruned": 3, "dependent": 2}
RECIPE = Recipe("tiny", {name: StageRecipe(epochs=epochs, lr=2e-3, gate_speed=20.0) for name, epochs in EPOCHS.items()}, batch_size=100)
TRADEOFFS = {"dense": (None,), "l0": ("0.1/60000", "0.05/60000"), "bb": (WEAK, STRONG), "dbb": (WEAK, STRONG)}


def small(seeds=(0, 1), methods=("dense", "l0", "bb", "dbb"), **changes):
    """A protocol of a few rows of LeNet-500-300's table."""
    chosen = {"recipe": RECIPE, "seeds": tuple(seeds), "tradeoffs": TRADEOFFS, "methods": tuple(methods), "images": IMAGES}
    return replace(protocol("lenet-500-300"), **(chosen | changes))


def places(folder):
    return Places(folder / "results" / "rows.jsonl", folder / "results" / "models", folder / "results" / "compacted", folder / "work")


def reproduce(asked, folder, data, watcher=None, **options):
    return run_reproduction(asked, places(folder), watcher or Silent(), device="cpu", data_dir=str(data), **options)


class Stopping(Silent):
    """Stops, as Ctrl-C does, at an event of a kind."""

    def __init__(self, event, count):
        self.event, self.left = event, count

    def count(self, event):
        self.left -= event == self.event
        if event == self.event and self.left == 0:
            raise KeyboardInterrupt

    def say(self, line):
        self.count("say")

    def stage_started(self, stage, epochs, steps, done):
        self.count("stage_started")

    def step(self, loss):
        self.count("step")

    def epoch_finished(self, row):
        self.count("epoch_finished")

    def stage_finished(self, result):
        self.count("stage_finished")


class Untrained(Silent):
    """Nothing may be trained."""

    def step(self, loss):
        raise AssertionError("trained again")
