"""Per-input execution: a network with input-dependent gates runs only what an input needs."""

from bayesprune.adaptive.exporting import export_adaptive_onnx, exported_program, single_input_network
from bayesprune.adaptive.model import AdaptiveModel
from bayesprune.adaptive.plan import ExecutionPlan, PlannedLayer

__all__ = ["AdaptiveModel", "ExecutionPlan", "PlannedLayer", "export_adaptive_onnx", "exported_program", "single_input_network"]
