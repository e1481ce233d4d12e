"""Bayesian structured sparsification for PyTorch.

Learn which units of a network are needed, take the others out without changing what the network computes, and run what is left faster.

Example:
    >>> import bayesprune as bp
    >>> gated = bp.sparsify(model, "bb", example_inputs=x)
    >>> loss = bp.negative_elbo(F.cross_entropy(gated(x), y), gated, n_data=60_000)
    >>> result = bp.compact(gated, x)
    >>> bp.save(result.model, "small.safetensors")
"""

from bayesprune.adaptive import AdaptiveModel
from bayesprune.artifact import export_onnx, load, save
from bayesprune.attach import Placement, make_dependent, placement, sparsify
from bayesprune.benchmark import Benchmark, benchmark
from bayesprune.calibration import Calibration, calibration, fit_temperature
from bayesprune.compact import Certificate, Compaction, compact
from bayesprune.cost import Cost, CostReduction, cost
from bayesprune.errors import BayespruneError, BayespruneWarning
from bayesprune.gates import Gate, gates
from bayesprune.narrowing import Narrowing, narrow
from bayesprune.objective import linear_warmup, negative_elbo, param_groups
from bayesprune.prediction import predict
from bayesprune.summary import Summary, summary
from bayesprune.training import FitResult, fit
from bayesprune.uncertainty import Uncertainty, uncertainty
from bayesprune.version import __version__

__all__ = [
    "AdaptiveModel",
    "BayespruneError",
    "BayespruneWarning",
    "Benchmark",
    "Calibration",
    "Certificate",
    "Compaction",
    "Cost",
    "CostReduction",
    "FitResult",
    "Gate",
    "Narrowing",
    "Placement",
    "Summary",
    "Uncertainty",
    "__version__",
    "benchmark",
    "calibration",
    "compact",
    "cost",
    "export_onnx",
    "fit",
    "fit_temperature",
    "gates",
    "linear_warmup",
    "load",
    "make_dependent",
    "narrow",
    "negative_elbo",
    "param_groups",
    "placement",
    "predict",
    "save",
    "sparsify",
    "summary",
    "uncertainty",
]
