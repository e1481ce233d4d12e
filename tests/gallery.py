"""Small networks of many kinds, for tests that must hold on any model: ``from gallery import GALLERY``.

``build`` and ``inputs`` draw from torch's generator, so seed it before each. What ``build`` gives has random normalisation layers and no
parameter that is all zero, so that a mistake about any of them shows in the output. ``vit_matmul`` and ``static_batch_view`` have the
size of their batch written in the code, so they accept no other.
"""

from collections.abc import Callable
from dataclasses import dataclass

import gallery_branches as branches
import gallery_convolutions as convolutions
import gallery_tokens as tokens
import torch
from torch import Tensor, nn

from bayesprune.models import (
    BasicBlock,
    Bottleneck,
    DenseNet,
    LeNet5Caffe,
    LeNet500300,
    MobileNetV2,
    ResNet,
    ShuffleNetV2,
    UNet,
    VGGLike,
    VisionTransformer,
)


@dataclass(frozen=True)
class Example:
    """How to build a network, and a batch of two or three inputs for it."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]


def randomise_norms(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fill the statistics and affine parameters of all normalisation layers, in place; about a third of the weights become negative."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(like: Tensor, low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(like.shape, generator=generator)

    norms = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
    with torch.no_grad():
        for module in model.modules():
            if not isinstance(module, norms):
                continue
            tensors = {name: getattr(module, name, None) for name in ("running_mean", "running_var", "weight", "bias")}
            if tensors["running_mean"] is not None and tensors["running_var"] is not None:
                tensors["running_mean"].copy_(uniform(tensors["running_mean"], -0.5, 0.5))
                tensors["running_var"].copy_(uniform(tensors["running_var"], 0.5, 2.0))
            if tensors["weight"] is not None:
                sign = torch.where(uniform(tensors["weight"], 0.0, 1.0) < 1 / 3, -1.0, 1.0)
                tensors["weight"].copy_(sign * uniform(tensors["weight"], 0.5, 1.5))
            if tensors["bias"] is not None:
                tensors["bias"].copy_(uniform(tensors["bias"], -0.5, 0.5))
    return model


def _no_zeros(model: nn.Module) -> nn.Module:
    """Replace parameters that start as zeros, such as the biases of ``nn.MultiheadAttention``, by small random numbers."""
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1)
    return model


def _example(build: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]]) -> Example:
    return Example(lambda: randomise_norms(_no_zeros(build())), inputs)


def _normal(*shape: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(shape),)


def _vit(attention: tokens.AttentionBuilder) -> Callable[[], nn.Module]:
    return lambda: tokens.TinyViT(attention)


IMAGES = _normal(3, 3, 16, 16)
SEQUENCES = _normal(3, 6, 10)

GALLERY: dict[str, Example] = {
    # the package's own networks
    "lenet_500_300": _example(lambda: LeNet500300(widths=(24, 16)), _normal(3, 1, 28, 28)),
    "lenet5": _example(lambda: LeNet5Caffe(channels=(6, 8), hidden=20), _normal(3, 1, 28, 28)),
    "vgg": _example(lambda: VGGLike(groups=((6, 8), (8, 10), (12, 8, 8)), hidden=16), _normal(3, 3, 32, 32)),
    "resnet_basic": _example(lambda: ResNet(BasicBlock, (2, 1), width=8), IMAGES),
    "resnet_bottleneck": _example(lambda: ResNet(Bottleneck, (2, 1), width=4, small_stem=False), _normal(3, 3, 32, 32)),
    "mobilenet_v2": _example(lambda: MobileNetV2(((1, 8, 1, 1), (3, 12, 2, 2)), stem=8, head=24, dropout=0.2), IMAGES),
    "densenet": _example(lambda: DenseNet((2, 2), growth=4, stem=8, bottleneck=2), IMAGES),
    "shufflenet_v2": _example(lambda: ShuffleNetV2((2, 2), (12, 16), stem=8, head=24), IMAGES),
    "unet": _example(lambda: UNet(depth=2, width=6), _normal(2, 1, 16, 16)),
    "vit_own": _example(lambda: VisionTransformer(16, 8, 24, 2, 3, 32, attention="own"), IMAGES),
    "vit_torch": _example(lambda: VisionTransformer(16, 8, 24, 2, 3, 32, attention="torch"), IMAGES),
    # chains, and convolutions with all that may surround them
    "mlp": _example(convolutions.mlp, _normal(3, 1, 6, 6)),
    "mlp_functional": _example(convolutions.FunctionalMLP, _normal(3, 20)),
    "preact_resnet": _example(convolutions.PreActResNet, IMAGES),
    "squeeze_excitation": _example(convolutions.SqueezeExcitationNet, IMAGES),
    "inplace_residual": _example(convolutions.InplaceResidualNet, IMAGES),
    "conv1d": _example(convolutions.conv1d, _normal(3, 4, 32)),
    "conv3d": _example(convolutions.conv3d, _normal(2, 2, 8, 8, 8)),
    "groupnorm_net": _example(convolutions.GroupNormNet, IMAGES),
    "layernorm_net": _example(convolutions.LayerNormNet, IMAGES),
    "grouped_conv": _example(convolutions.GroupedConvNet, IMAGES),
    "transposed_autoencoder": _example(convolutions.TransposedAutoencoder, _normal(3, 1, 16, 16)),
    "static_view": _example(lambda: convolutions.StaticViewNet(batch=-1), _normal(3, 1, 16, 16)),
    "static_batch_view": _example(lambda: convolutions.StaticViewNet(batch=2), _normal(2, 1, 16, 16)),
    "multi_head_outputs": _example(convolutions.MultiHeadOutputs, IMAGES),
    "two_inputs": _example(convolutions.TwoInputs, lambda: (torch.randn(3, 3, 16, 16), torch.randn(3, 7))),
    "shared_layer": _example(convolutions.SharedLayerNet, IMAGES),
    "shared_attention": _example(branches.SharedAttentionNet, IMAGES),
    "stacked_branches": _example(branches.StackedBranches, IMAGES),
    "nested_splits": _example(branches.NestedSplits, IMAGES),
    "weight_normed": _example(convolutions.WeightNormedNet, IMAGES),
    "frozen": _example(convolutions.frozen, IMAGES),
    "batchnorm_after_pool": _example(convolutions.BatchNormAfterPool, IMAGES),
    "functional_control_flow": _example(convolutions.ControlFlowNet, IMAGES),
    # tokens and sequences
    "vit_matmul": _example(_vit(tokens.MatmulAttention), IMAGES),
    "vit_bmm": _example(_vit(tokens.BmmAttention), IMAGES),
    "einsum_attention": _example(_vit(tokens.EinsumAttention), IMAGES),
    "transformer_encoder": _example(lambda: tokens.EncoderNet(norm_first=False), SEQUENCES),
    "transformer_encoder_norm_first": _example(lambda: tokens.EncoderNet(norm_first=True), SEQUENCES),
    "swiglu": _example(tokens.SwiGLUNet, SEQUENCES),
    "positional_dropout": _example(tokens.PositionalDropoutNet, SEQUENCES),
    "tied_weights": _example(tokens.TiedWeightsNet, lambda: (torch.randint(0, 20, (3, 6)),)),
    "gpt2": _example(tokens.TinyGPT2, lambda: (torch.randint(0, 20, (3, 6)),)),
    "lstm_tail": _example(tokens.LSTMTail, _normal(3, 4, 24)),
}
