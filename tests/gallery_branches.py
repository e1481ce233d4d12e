"""Networks whose branches share layers, or lie on top of each other."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class SharedAttentionNet(nn.Module):
    """One perceptron weighs the channels by their means and by their largest values, with one activation between and behind."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.squeeze = nn.Linear(8, 6)
        self.expand = nn.Linear(6, 8)
        self.act = nn.PReLU()
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.conv(x)))
        means, largest = (self.expand(self.act(self.squeeze(each))) for each in (x.mean((2, 3)), x.amax((2, 3))))
        return self.fc((x * torch.sigmoid(means + largest)[:, :, None, None]).mean((2, 3)))


class StackedBranches(nn.Module):
    """Branches on top of each other, weighed against each other channel by channel (selective kernels), and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.branches = nn.ModuleList(nn.Conv2d(6, 8, size, padding=size // 2) for size in (1, 3))
        self.squeeze, self.weigh = nn.Linear(8, 5), nn.Linear(5, 16)
        self.left, self.right, self.fc = nn.Conv2d(8, 6, 1), nn.Conv2d(8, 6, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = torch.stack([F.relu(branch(x)) for branch in self.branches], dim=1)
        weights = self.weigh(F.relu(self.squeeze(x.sum(1).mean((2, 3))))).reshape(-1, 2, 8).softmax(1)
        x = (x * weights[..., None, None]).sum(1)
        return self.fc(torch.stack((F.relu(self.left(x)), F.relu(self.right(x)))).mean(0).mean((2, 3)))


class NestedSplits(nn.Module):
    """The second half of a split goes on alone, and is split again; its parts come together by concatenation, and by a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deeper = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.merge, self.fc = nn.Conv2d(16, 12, 1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        left, right = F.relu(self.stem(x)).chunk(2, 1)
        low, high = right.split((2, 6), dim=1)
        x = F.relu(self.merge(torch.cat((left[:, :6], low, F.relu(self.deeper(torch.cat((high, low), 1)))), 1)))
        first, second = x.chunk(2, dim=1)
        return self.fc((first * second.sigmoid()).mean((2, 3)))
