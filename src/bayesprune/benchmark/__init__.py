"""Measured latency of models, side by side (`benchmark`)."""

from bayesprune.benchmark.latency import benchmark
from bayesprune.benchmark.result import Benchmark, Timing
from bayesprune.benchmark.runtimes import RUNTIMES

__all__ = ["RUNTIMES", "Benchmark", "Timing", "benchmark"]
