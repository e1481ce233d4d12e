"""Progress for people: what the stages report while they run."""

from typing import Any, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from bayesprune.training.recipes import StageName


class Watcher(Protocol):
    """Told of what happens in a run."""

    def say(self, line: str) -> None:
        """Something to know beside the stages."""

    def stage_started(self, stage: StageName, epochs: int, steps: int, done: int) -> None:
        """A stage of so many epochs of so many steps begins, or goes on after ``done`` epochs."""

    def step(self, loss: float) -> None:
        """A step was made."""

    def epoch_finished(self, row: dict[str, Any]) -> None:
        """An epoch was trained, evaluated and stored."""

    def stage_finished(self, result: dict[str, Any]) -> None:
        """A stage is complete."""


class Silent:
    """Watches without a word."""

    def say(self, line: str) -> None:
        """Nothing to show."""

    def stage_started(self, stage: StageName, epochs: int, steps: int, done: int) -> None:
        """Nothing to show."""

    def step(self, loss: float) -> None:
        """Nothing to show."""

    def epoch_finished(self, row: dict[str, Any]) -> None:
        """Nothing to show."""

    def stage_finished(self, result: dict[str, Any]) -> None:
        """Nothing to show."""


class ProgressBars:
    """A bar with loss, error, units kept and the time left, and a line when the stage is finished; in a log file, a line an epoch."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.lively = self.console.is_terminal
        self.task: TaskID | None = None
        self.stage: StageName | None = None
        self.epochs = 0
        self.state = ""
        self.progress = Progress(
            TextColumn("[bold]{task.description:<9}"),
            BarColumn(bar_width=10),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
            TextColumn("left  {task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=self.console,
            disable=not self.lively,
        )

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def stage_started(self, stage: StageName, epochs: int, steps: int, done: int) -> None:
        self.stage, self.epochs, self.state = stage, epochs, ""
        self.task = self.progress.add_task(stage, total=epochs * steps, completed=done * steps, state="")
        if not self.lively and done:
            self.console.print(f"{stage}: going on after epoch {done} of {epochs}")

    def step(self, loss: float) -> None:
        if self.task is not None:
            self.progress.advance(self.task)

    def epoch_finished(self, row: dict[str, Any]) -> None:
        text = describe_row(row)
        self.state = f"{text}  {row['seconds']:.0f} s"
        if self.task is not None:
            self.progress.update(self.task, state=text)
        if not self.lively:
            self.say(f"{row['stage']:<10} epoch {row['epoch']:>3} of {self.epochs}  {self.state}")

    def stage_finished(self, result: dict[str, Any]) -> None:
        """A line takes the place of the bar; a stage that was finished before had none and is mentioned."""
        if result["stage"] != self.stage:
            self.say(f"{result['stage']}: finished before, taken from the folder")
        elif self.task is not None:
            self.progress.remove_task(self.task)
            self.progress.refresh()  # Or the next line would bring the bar back.
            self.task = self.stage = None
            if self.lively:
                self.say(f"{result['stage']:<10} {self.epochs} epoch{'s' * (self.epochs > 1)}  {self.state}")


def describe_row(row: dict[str, Any]) -> str:
    """Loss, error and units kept in a few words."""
    parts = [f"loss {row['loss']:.3f}"]
    if row["error"] is not None:
        parts.append(f"error {row['error']:.2f} %")
    elif row.get("validation_loss") is not None:
        parts.append(f"validation loss {row['validation_loss']:.4g}")
    if row["kept"]:
        parts.append("kept " + "-".join(f"{units:.0f}" for units in row["kept"]))
    if row["speedup"] is not None:
        parts.append(f"{row['speedup']:.1f}x")
    return "  ".join(parts)
