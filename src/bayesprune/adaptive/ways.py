"""The ways to compute a layer from a part of its inputs."""

from typing import Literal, TypeAlias

Way: TypeAlias = Literal["gather", "product", "whole product", "fused"]
GATHER: Way = "gather"
"""The channels that are needed and their weights are put together, and the layer is computed from them."""
PRODUCT: Way = "product"
"""Of a convolution of images: the same as one product, of patches and of weights in the order in which they lie. Where images are small, a
convolution spends most of its time on putting weights into its own order."""
WHOLE: Way = "whole product"
"""Such a product of all units, whether they are needed or not."""
FUSED: Way = "fused"
"""Of a linear layer: rows of its weights are read, scaled and added in one operation."""
NATIVE = "native"
"""Mask and layer by native code: no choice for an input but for all of them."""
NATIVE_WHOLE = "native, whole"
"""A convolution of all units by native code."""
FULL = "full"
"""As the compacted network does it, whatever an input needs."""
