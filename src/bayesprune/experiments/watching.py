"""Progress of sweeps: bars and a table on a terminal, lines in a log."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from bayesprune.experiments.main_job import RunConfig
from bayesprune.experiments.shard import Shard, ShardProgress
from bayesprune.experiments.standings import Standings
from bayesprune.training.recipes import StageName
from bayesprune.training.watching import describe_row

_SECONDS_BETWEEN = 1.0
"""Between two looks at the whole: rich keeps a thousand of them to tell the time left, which should reach back for minutes."""
_FRAME = 4
"""Lines that are no bars and none of the table: its heading and caption, the one about further shards, and the cursor's."""
_FEWEST, _WHOLE = 2, 1000
"""Bars on the smallest screen, and what a bar counts to."""


class SweepWatcher(Protocol):
    """Told of what happens in a sweep."""

    def say(self, line: str) -> None:
        """Something to know beside the shards."""

    def sweep_started(self, members: Sequence[RunConfig], rows: Sequence[dict[str, Any]]) -> None:
        """A sweep of these models begins, or is taken up, when there are these rows."""

    def shard_progressed(self, shard: Shard, progress: ShardProgress) -> None:
        """A shard is so far; perhaps further than at the last time, perhaps less far, if it was begun again."""

    def shard_finished(self, shard: Shard, rows: Sequence[dict[str, Any]]) -> None:
        """The rows of a shard are written."""

    def shard_split(self, shard: Shard) -> None:
        """A shard has no place on its device: two others take its place."""


class _InProgress:
    """A shard on the screen."""

    def __init__(self, shard: Shard, task: TaskID) -> None:
        self.models, self.stages, self.task = len(shard.numbers), shard.stages, task
        self.share = 0.0
        self.seen: tuple[StageName | None, int] = (None, 0)


class SweepBars:
    """A bar for each shard in progress and for the whole, and a table of what is finished; in a log file, lines instead."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.lively = self.console.is_terminal
        self.standings = Standings()
        self.models = self.done = 0
        self.shards: dict[Shard, _InProgress] = {}
        self.with_table = True
        self._overall: TaskID | None = None
        self._looked = 0.0
        self.progress = Progress(
            TextColumn("[bold]{task.description}", table_column=Column(no_wrap=True)),
            BarColumn(bar_width=10, table_column=Column(min_width=10)),
            TaskProgressColumn(table_column=Column(min_width=4)),
            TimeRemainingColumn(compact=True, table_column=Column(min_width=5, no_wrap=True)),
            TextColumn("left  {task.fields[state]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=self.console,
            speed_estimate_period=120.0,
        )
        self.live = Live(self, console=self.console, refresh_per_second=4)

    def __enter__(self) -> Self:
        if self.lively:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exception: object) -> None:
        """What stays on the screen of a finished sweep are the bars: the table of all models follows."""
        self.with_table = kind is not None
        if self.lively:
            self.live.stop()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = console.size.height
        lines = len(self.standings.rows) if self.with_table else 0
        bars = max(_FEWEST, height - _FRAME - min(lines, height // 2))
        shown = self._choose(bars - 1)
        table = self.standings.table(height - _FRAME - shown - 1) if self.with_table else None
        if table is not None:
            yield table
        yield self.progress.get_renderable()
        if len(self.shards) > shown:
            yield Text(f"and {len(self.shards) - shown} more shards in progress", style="dim", no_wrap=True)

    def _choose(self, bars: int) -> int:
        """Show the bars of so many shards at most, the earliest; how many that are."""
        for place, shard in enumerate(list(self.shards.values())):
            with suppress(KeyError):  # Frames are drawn in a thread of their own, and the shard may be finished by now.
                self.progress.update(shard.task, visible=place < bars)
        return min(bars, len(self.shards))

    def say(self, line: str) -> None:
        self.console.print(line, highlight=False, soft_wrap=True, markup=False)

    def sweep_started(self, members: Sequence[RunConfig], rows: Sequence[dict[str, Any]]) -> None:
        self.models, self.done = len(members), len(rows)
        self.standings.expect(members)
        self.standings.add(rows)
        self._overall = self.progress.add_task("all", total=self.models, completed=self.done, state="")
        self._look()
        if rows:
            self.say(f"going on with a sweep: {self.done} of {_models(self.models)} are finished")

    def shard_progressed(self, shard: Shard, progress: ShardProgress) -> None:
        known = self.shards.get(shard)
        if known is None:
            description = f"{shard.label}, {shard.members[0].method}"
            begun = round(progress.share(shard.stages) * _WHOLE)
            known = _InProgress(shard, self.progress.add_task(description, total=_WHOLE, completed=begun, state=""))
            self.shards[shard] = known
            if not self.lively:
                self.say(f"{shard.label} of {self.models}: {shard.title}{', side by side' * (known.models > 1)}{_at(progress)}")
        known.share = progress.share(known.stages)
        self.progress.update(known.task, completed=known.share * _WHOLE, state=describe_progress(progress))
        row = progress.row
        if row is not None and known.seen != (row["stage"], row["epoch"]):
            known.seen = (row["stage"], row["epoch"])
            if not self.lively:
                which = f"{shard.label}: {row['stage']:<10} epoch {row['epoch']:>3} of {progress.epochs}"
                self.say(f"{which}  {describe_row(row)}  {row['seconds']:.0f} s")
        if time.monotonic() - self._looked > _SECONDS_BETWEEN:
            self._look()

    def shard_finished(self, shard: Shard, rows: Sequence[dict[str, Any]]) -> None:
        self._remove(shard)
        self.done += len(rows)
        self.standings.add(rows)
        self._look()
        if not self.lively:
            self.say(f"{shard.label}: finished, {self.done} of {_models(self.models)}")

    def shard_split(self, shard: Shard) -> None:
        self._remove(shard)
        self.say(f"{shard.label}: not enough memory for all of them at once, trying half as many")

    def _remove(self, shard: Shard) -> None:
        known = self.shards.pop(shard, None)
        if known is not None:
            self.progress.remove_task(known.task)

    def _look(self) -> None:
        """Move the bar of the whole sweep, in which shards in progress count for what is done of them."""
        self._looked = time.monotonic()
        if self._overall is not None:
            begun = sum(shard.share * shard.models for shard in self.shards.values())
            state = f"{self.done} of {_models(self.models)} finished"
            self.progress.update(self._overall, completed=self.done + begun, state=state)


def describe_progress(progress: ShardProgress) -> str:
    """Stage, epoch, and what the models were like when they were last evaluated."""
    if progress.stage is None:
        return "beginning"
    text, row = f"{progress.stage} {progress.epoch}/{progress.epochs}", progress.row
    if row is not None:
        text += "" if row["error"] is None else f"  error {row['error']:.2f} %"
        text += "" if row["speedup"] is None else f"  {row['speedup']:.1f}x"
    return text


def _at(progress: ShardProgress) -> str:
    return f" ({progress.place})" if progress.place else ""


def _models(count: int) -> str:
    return f"{count} model{'s' * (count != 1)}"
