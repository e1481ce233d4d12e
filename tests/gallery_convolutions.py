"""The chains and convolutional networks of the gallery, written in the many ways in which people write them."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 5))


class FunctionalMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(20, 24)
        self.fc2 = nn.Linear(24, 16)
        self.fc3 = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(x))
        x = F.tanh(self.fc2(x))
        return self.fc3(x)


class PreActBlock(nn.Module):
    """He et al.: Identity Mappings in Deep Residual Networks (arXiv:1603.05027)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        return out + shortcut


class PreActResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(PreActBlock(8, 8, 1), PreActBlock(8, 12, 2), PreActBlock(12, 12, 1))
        self.bn = nn.BatchNorm2d(12)
        self.linear = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn(self.blocks(self.conv(x))))
        out = F.avg_pool2d(out, 8)
        return self.linear(out.view(out.size(0), -1))


class SqueezeExcitation(nn.Module):
    """Hu, Shen, Sun: Squeeze-and-Excitation Networks (arXiv:1709.01507)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(nn.Linear(channels, squeezed), nn.ReLU(inplace=True), nn.Linear(squeezed, channels), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = self.avg_pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class SEBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.se = SqueezeExcitation(channels, 4)

    def forward(self, x: Tensor) -> Tensor:
        residual = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.se(self.bn2(self.conv2(out)))
        out += residual
        return self.relu(out)


class SqueezeExcitationNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, stride=2, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.blocks = nn.Sequential(SEBlock(12), SEBlock(12))
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean([2, 3]))


class InplaceResidualNet(nn.Module):
    """Adds one branch into the tensor of another."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 10, 3, padding=1)
        self.conv2 = nn.Conv2d(3, 10, 1)
        self.conv3 = nn.Conv2d(10, 14, 3, padding=1)
        self.conv4 = nn.Conv2d(14, 10, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        branch = self.conv2(x)
        x = self.conv1(x)
        x += branch
        x = self.relu(x)
        out = self.conv4(self.relu(self.conv3(x)))
        out += x
        return self.fc(F.relu_(out).amax(dim=(2, 3)))


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(4, 10, 5, padding=2),
        nn.BatchNorm1d(10),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(10, 12, 3, padding=1, bias=False),
        nn.BatchNorm1d(12),
        nn.LeakyReLU(0.1),
        nn.AvgPool1d(2),
        nn.Flatten(),
        nn.Linear(12 * 8, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(),
        nn.Linear(16, 5),
    )


def conv3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(2, 6, 3, padding=1),
        nn.BatchNorm3d(6),
        nn.ReLU(inplace=True),
        nn.MaxPool3d(2),
        nn.Conv3d(6, 8, 3, padding=1),
        nn.ELU(),
        nn.AdaptiveAvgPool3d(2),
        nn.Flatten(),
        nn.Linear(8 * 8, 5),
    )


class GroupNormNet(nn.Module):
    """Wu, He: Group Normalization (arXiv:1803.08494)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, 12)
        self.conv2 = nn.Conv2d(12, 16, 3, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(4, 16)
        self.conv3 = nn.Conv2d(16, 16, 3, padding=1)
        self.norm3 = nn.GroupNorm(1, 16)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.conv1(x)))
        x = F.relu(self.norm2(self.conv2(x)))
        x = x + F.silu(self.norm3(self.conv3(x)))
        return self.fc(x.mean(dim=(-2, -1)))


class LayerNormBlock(nn.Module):
    """Liu et al.: A ConvNet for the 2020s (arXiv:2201.03545)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.pwconv1 = nn.Linear(channels, 3 * channels)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(3 * channels, channels)
        self.gamma = nn.Parameter(0.5 + torch.rand(channels))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        x = self.gamma * self.pwconv2(self.act(self.pwconv1(x)))
        return shortcut + x.permute(0, 3, 1, 2)


class LayerNormNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 2, stride=2)
        self.stage1 = LayerNormBlock(8)
        self.downsample = nn.Conv2d(8, 12, 2, stride=2)
        self.stage2 = LayerNormBlock(12)
        self.norm = nn.LayerNorm(12, eps=1e-6)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stage1(self.stem(x))
        x = self.stage2(self.downsample(x))
        return self.head(self.norm(x.mean([-2, -1])))


class GroupedConvNet(nn.Module):
    """Xie et al.: Aggregated Residual Transformations for Deep Neural Networks (arXiv:1611.05431)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.conv1 = nn.Conv2d(12, 16, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, groups=4, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.conv3 = nn.Conv2d(16, 12, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(12)
        self.widening = nn.Conv2d(12, 24, 3, stride=2, padding=1, groups=4)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        x = self.relu(self.bn3(self.conv3(out)) + x)
        x = self.relu(self.widening(x))
        return self.fc(F.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1))


class TransposedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.ReLU()
        )
        self.bottleneck = nn.Linear(12 * 4 * 4, 10)
        self.expand = nn.Linear(10, 12 * 4 * 4)
        self.deconv1 = nn.ConvTranspose2d(12, 8, 4, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.deconv2 = nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        code = self.bottleneck(self.encoder(x).flatten(start_dim=1))
        x = F.relu(self.expand(code)).view(-1, 12, 4, 4)
        x = F.relu(self.bn(self.deconv1(x)))
        return torch.sigmoid(self.deconv2(x))


class StaticViewNet(nn.Module):
    """Flattens to sizes written as numbers; with ``batch`` 2, the batch as well."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.batch = batch
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 8, 3, padding=1)
        self.fc1 = nn.Linear(128, 16)
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(self.batch, 128)
        return self.fc2(F.relu(self.fc1(x)))


class MultiHeadOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 10, 3, padding=1), nn.BatchNorm2d(10), nn.ReLU(), nn.Conv2d(10, 12, 3, stride=2), nn.ReLU()
        )
        self.classes = nn.Linear(12, 5)
        self.boxes = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.backbone(x)
        return {"classes": self.classes(features.mean((2, 3))), "boxes": self.boxes(features)}


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.fc_b = nn.Linear(7, 6)
        self.fc1 = nn.Linear(8 * 4 + 6, 16)
        self.fc2 = nn.Linear(16, 5)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a = F.adaptive_max_pool2d(F.relu(self.conv(a)), 2).flatten(1)
        b = torch.relu(self.fc_b(b))
        return self.fc2(F.relu(self.fc1(torch.cat((a, b), dim=-1))))


class SharedLayerNet(nn.Module):
    """One convolution is used twice, and one ReLU everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(3, 8, 3, padding=1)
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.conv_out = nn.Conv2d(8, 12, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.conv_in(x))
        x = self.relu(self.shared(x))
        x = self.relu(self.shared(x))
        x = self.relu(self.conv_out(x))
        return self.fc(x.mean([2, 3]))


class WeightNormedNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = weight_norm(nn.Conv2d(8, 10, 3, padding=1))
        self.conv3 = nn.Conv2d(10, 12, 3, padding=1)
        self.fc = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.relu(self.conv3(x))
        return self.fc(x.mean([2, 3]))


def frozen() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 12), nn.ReLU()
    )
    model.append(nn.Linear(12, 5))
    return model.requires_grad_(False)


class BatchNormAfterPool(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(12)
        self.fc = nn.Linear(12 * 4 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(F.max_pool2d(self.conv1(x), 2)))
        x = F.relu(self.bn2(F.avg_pool2d(self.conv2(x), 2)))
        return self.fc(torch.flatten(x, 1))


class ControlFlowNet(nn.Module):
    """Branches in Python on shapes, which torch.fx cannot trace."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.conv2 = nn.Conv2d(8, 12, 3, padding=1)
        self.fc1 = nn.Linear(12, 16)
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            x = x.unsqueeze(0)
        x = F.relu(self.conv1(x))
        if x.shape[-1] > 8:
            x = F.max_pool2d(x, 2)
        x = F.relu(self.conv2(x)).mean([2, 3])
        x = F.relu(self.fc1(x))
        if x.shape[0] > 1:
            return self.fc2(x)
        return self.fc2(x.squeeze(0)).unsqueeze(0)
