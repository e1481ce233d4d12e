"""Progress of sweeps."""

from typing import Protocol

from rich.console import Console

from bayesprune.training.watching import ProgressBars, Watcher


class SweepWatcher(Watcher, Protocol):
    """Told of what happens in a sweep."""

    def shard_started(self, number: int, shards: int, title: str, models: int, done: int) -> None:
        """A shard of so many models begins, or is taken up, when ``done`` of the sweep's have their rows."""

    def shard_finished(self) -> None:
        """The rows of a shard are written."""


class SweepBars(ProgressBars):
    """Also a bar for a whole sweep, whose models are trained in shards."""

    def __init__(self, console: Console | None = None, models: int = 0) -> None:
        super().__init__(console)
        self.models, self.done, self.shard = models, 0, 0
        self.overall = self.progress.add_task("sweep", total=models, state=f"0 of {models} models")

    def shard_started(self, number: int, shards: int, title: str, models: int, done: int) -> None:
        """A shard of so many models begins, when ``done`` of the sweep's have their rows."""
        self.shard, self.done, self.stage = models, done, None
        for task in self.progress.task_ids:
            if task != self.overall:
                self.progress.remove_task(task)
        self.say(f"shard {number} of {shards}: {title}, {models} model{'s' * (models > 1)} side by side")
        self.progress.update(self.overall, completed=done, state=f"{done} of {self.models} models")

    def shard_finished(self) -> None:
        """The rows of a shard are written."""
        self.done += self.shard
        self.progress.update(self.overall, completed=self.done, state=f"{self.done} of {self.models} models")
