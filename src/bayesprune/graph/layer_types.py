"""The closed list of layers that the internal graph is written in, by what they do."""

from torch import nn

LINEARS = (nn.Linear,)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED_CONVOLUTIONS = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
MIXING_NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.LocalResponseNorm)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
ACTIVATIONS = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardtanh, nn.Tanh,
    nn.Sigmoid, nn.Hardsigmoid, nn.Softplus, nn.Softsign, nn.Softshrink, nn.Hardshrink, nn.Tanhshrink, nn.LogSigmoid, nn.Threshold,
)  # fmt: skip
MAX_POOLINGS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
PADDED_AVERAGE_POOLINGS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)
ADAPTIVE_AVERAGE_POOLINGS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
POOLINGS = (*MAX_POOLINGS, *PADDED_AVERAGE_POOLINGS, *ADAPTIVE_AVERAGE_POOLINGS)
UPSAMPLINGS = (nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d)
PADDINGS = (
    nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d, nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d, nn.ReflectionPad1d, nn.ReflectionPad2d,
    nn.ReflectionPad3d, nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d, nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d,
)  # fmt: skip
MOVEMENT_LAYERS = (nn.Flatten, nn.Unflatten, nn.PixelShuffle, nn.PixelUnshuffle, nn.ChannelShuffle)
OTHER_LAYERS = (
    nn.Embedding, nn.PReLU, nn.GLU, nn.Softmax, nn.LogSoftmax, nn.Softmax2d, nn.Softmin, nn.LSTM, nn.GRU, nn.RNN, nn.Bilinear,
    nn.MaxUnpool1d, nn.MaxUnpool2d, nn.MaxUnpool3d,
)  # fmt: skip

LAYERS: dict[str, type[nn.Module]] = {
    layer.__name__: layer
    for layer in (
        *LINEARS, *CONVOLUTIONS, *TRANSPOSED_CONVOLUTIONS, *BATCH_NORMS, *INSTANCE_NORMS, *MIXING_NORMS, *DROPOUTS, *ACTIVATIONS, *POOLINGS,
        *UPSAMPLINGS, *PADDINGS, *MOVEMENT_LAYERS, *OTHER_LAYERS,
    )
}  # fmt: skip
"""Layer types by name."""


def positional_dimensions(layer: nn.Module) -> int | None:
    """How many dimensions of positions a pooling or padding works on, the last ones; None for another layer.

    Two more are the sample and the channel. Given a tensor with one fewer it takes the channel for a position: it accepts single inputs.
    """
    return next((int(kind.__name__[-2]) for kind in type(layer).__mro__ if kind in (*POOLINGS, *PADDINGS)), None)
