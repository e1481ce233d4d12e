"""Models in files: saved and loaded without pickle and without their class, and exported to ONNX."""

from bayesprune.artifact.loading import load, read_description
from bayesprune.artifact.network import LoadedNetwork
from bayesprune.artifact.onnx import export_onnx
from bayesprune.artifact.saving import save

__all__ = ["LoadedNetwork", "export_onnx", "load", "read_description", "save"]
