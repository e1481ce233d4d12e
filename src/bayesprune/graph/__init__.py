"""One internal graph of a model's computation, whichever tracer it came from."""

from bayesprune.graph.tracing import trace

__all__ = ["trace"]
