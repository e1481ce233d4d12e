"""Sweeps that are watched by nobody, and rows without what differs each time."""


class Quiet:
    def __init__(self):
        self.finished = []

    def nothing(self, *_arguments):
        """Nothing to show."""

    say = sweep_started = shard_progressed = shard_split = nothing

    def shard_finished(self, shard, rows):
        self.finished.append(shard.numbers)


def timeless(rows):
    stages = [[{key: value for key, value in stage.items() if key != "seconds"} for stage in row["stages"]] for row in rows]
    return [{**row, "stages": own} for row, own in zip(rows, stages, strict=True)]
