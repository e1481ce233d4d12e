"""The ways to compute a layer from a part of its inputs."""

from typing import Literal, TypeAlias

Way: TypeAlias = Literal["gather", "fused"]
GATHER: Way = "gather"
"""The channels that are needed and their weights are put together, and the layer is computed from them."""
FUSED: Way = "fused"
"""Of a linear layer: rows of its weights are read, scaled and added in one operation."""
