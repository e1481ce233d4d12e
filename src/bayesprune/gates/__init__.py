"""Gates: modules that multiply activations by a learned random mask, one file a method, behind one contract.

A method registers itself where it is defined: every file of this folder is imported here, so a new one needs no edit elsewhere.
"""

import importlib
import pkgutil

from bayesprune.gates.collection import gates, require_gates, unwrapped
from bayesprune.gates.contract import METHODS, Gate, Tradeoff, method_class

for _file in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_file.name}")

__all__ = ["METHODS", "Gate", "Tradeoff", "gates", "method_class", "require_gates", "unwrapped"]
