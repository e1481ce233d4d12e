"""Without the notes that torch's tracers leave on the terminal about models that they cannot follow: our error says it in one line."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from threading import RLock
from typing import Any

_TRACERS = ("torch.export", "torch._export", "torch.fx", "torch._dynamo", "torch._functorch", "torch._subclasses")
_LOCK = RLock()  # Levels and sys.stderr belong to the whole process: two threads at once would restore what the other has set.


class _WithoutTracers:
    """A stream that passes on what anybody but the tracers writes: torch.export prints its unfinished graph rather than logging it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        written: int = len(text) if _is_tracer(sys._getframe(1).f_globals.get("__name__", "")) else self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def quiet_tracers(*more: str) -> Iterator[None]:
    """Neither logs nor prints of torch's tracers, nor logs of ``more`` loggers; whoever has asked for more than warnings gets all of it."""
    with _LOCK:
        loggers = [logging.getLogger(name) for name in (*_TRACERS, *more)]
        before = {logger: logger.level for logger in loggers if logger.getEffectiveLevel() >= logging.WARNING}
        for logger in before:
            logger.setLevel(logging.CRITICAL)
        try:
            # A process without a console, such as pythonw, has no stderr.
            with redirect_stderr(_WithoutTracers(sys.stderr) if sys.stderr is not None else None):
                yield
        finally:
            for logger, level in before.items():
                logger.setLevel(level)


def _is_tracer(module: str) -> bool:
    return module.startswith(tuple(f"{name}." for name in _TRACERS)) or module in _TRACERS
