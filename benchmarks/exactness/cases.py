"""The networks, their gates and the share of units that is pruned."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesprune.models import LeNet5Caffe, VGGLike, resnet50
from benchmarks.exactness import ROOT

sys.path.insert(0, str(ROOT / "tests"))
from gallery import GALLERY, randomise_norms

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """A network and which of its units are pruned.

    Attributes:
        name: of the network.
        build: gives it; draws from torch's generator.
        inputs: a batch for it; draws likewise.
        placement: which gates it gets, in words.
        before_norm: gates of convolutions before their normalisation.
        include: only the layers that match.
        share: of the units of each gate that is pruned; at least one is, and one is kept unless the share is 1.
        one_by_one: whether Torch-Pruning is asked about every gate by itself as well.
        repeats: how often ours is timed; the run with the median of the sums counts.
        limit_s: seconds that each side may take, with all that it needs beforehand; ten times as many for one gate after the other.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    placement: str = "all gates"
    before_norm: bool = False
    include: tuple[str, ...] | None = None
    share: float = 0.3
    one_by_one: bool = True
    repeats: int = 1
    limit_s: int = 60

    @property
    def key(self) -> str:
        return f"{self.name}, {self.placement}"


def images(*shape: int) -> Callable[[], Inputs]:
    """A batch of normal numbers."""
    return lambda: (torch.randn(shape),)


def from_gallery(name: str, entry: str, **settings: Any) -> Case:
    """A case with a network of the tests."""
    return Case(name, GALLERY[entry].build, GALLERY[entry].inputs, **settings)


LENET5 = (LeNet5Caffe, images(2, 1, 28, 28))
VGG = (lambda: randomise_norms(VGGLike()), images(2, 3, 32, 32))

CASES = (
    from_gallery("MLP", "mlp"),
    from_gallery("MLP", "mlp", placement="hidden units only", include=("3", "5")),
    Case("LeNet5-Caffe", *LENET5, placement="all four gates"),
    Case("VGG-like", *VGG, placement="after the activations"),
    Case("VGG-like", *VGG, placement="before the norms", before_norm=True),
    from_gallery("ResNet, basic blocks", "resnet_basic"),
    from_gallery("ResNet, bottlenecks", "resnet_bottleneck"),
    from_gallery("MobileNetV2", "mobilenet_v2"),
    from_gallery("DenseNet", "densenet"),
    from_gallery("ShuffleNetV2", "shufflenet_v2"),
    from_gallery("Squeeze-and-excitation", "squeeze_excitation"),
    from_gallery("U-Net", "unet"),
    from_gallery("ViT, nn.MultiheadAttention", "vit_torch"),
    from_gallery("ViT, fused attention", "vit_own"),
    from_gallery("ViT, attention by hand", "vit_matmul"),
    from_gallery("nn.TransformerEncoder", "transformer_encoder"),
    from_gallery("Conv1d net", "conv1d"),
    from_gallery("GroupNorm net", "groupnorm_net"),
    from_gallery("ConvNeXt-style", "layernorm_net"),
    Case("LeNet5-Caffe", *LENET5, placement="5 of 800 flattened inputs", include=("fc1",), share=5 / 800),
    from_gallery("ResNet, basic blocks", "resnet_basic", placement="one conv, before its norm", before_norm=True, include=("*1.0.conv1",)),
    Case("VGG-like", *VGG, placement="one conv, before its norm", before_norm=True, include=("features.block1.conv",)),
    from_gallery("ResNet, basic blocks", "resnet_basic", placement="one residual branch", include=("layer1.0.conv2",)),
    from_gallery("ResNet, basic blocks", "resnet_basic", placement="a layer with no filter left", include=("layer1.0.conv1",), share=1.0),
    from_gallery("Static view(-1, 128)", "static_view"),
    from_gallery("Static view(2, 128)", "static_batch_view"),
    Case("ResNet-50", lambda: randomise_norms(resnet50()), images(2, 3, 224, 224), one_by_one=False, repeats=5, limit_s=1200),
)  # fmt: skip
