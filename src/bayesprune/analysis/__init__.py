"""What a trained model does with its inputs: which units they use, and with which probabilities."""

from bayesprune.analysis.activations import unit_activations
from bayesprune.analysis.class_averages import ClassAverages, class_averages, class_correlations, mean_between_classes
from bayesprune.analysis.probabilities import ProbabilityStages, probability_stages
from bayesprune.analysis.unit_record import UnitRecord, likeness, record_units
from bayesprune.analysis.unit_use import FOR_NO_INPUT, NOT_FOR_THIS_INPUT, USED, unit_use

__all__ = [
    "FOR_NO_INPUT",
    "NOT_FOR_THIS_INPUT",
    "USED",
    "ClassAverages",
    "ProbabilityStages",
    "UnitRecord",
    "class_averages",
    "class_correlations",
    "likeness",
    "mean_between_classes",
    "probability_stages",
    "record_units",
    "unit_activations",
    "unit_use",
]
