"""One internal graph of a model's computation, whichever tracer it came from."""

from bayesprune.graph.calls import ExampleInputs, call_arguments
from bayesprune.graph.tracing import trace

__all__ = ["ExampleInputs", "call_arguments", "trace"]
