"""Measured latency of models, side by side (`benchmark`)."""

from bayesprune.benchmark.latency import benchmark
from bayesprune.benchmark.per_input import PerInput, PerInputBenchmark, benchmark_per_input
from bayesprune.benchmark.result import Benchmark, Timing
from bayesprune.benchmark.runtimes import RUNTIMES

__all__ = ["RUNTIMES", "Benchmark", "PerInput", "PerInputBenchmark", "Timing", "benchmark", "benchmark_per_input"]
