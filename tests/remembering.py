"""Models whose code writes into them when they are called, also in evaluation mode."""

import torch
from torch import nn

X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))


class _Perceptron(nn.Module):
    def __init__(self, **buffers):
        super().__init__()
        torch.manual_seed(0)
        self.fc1, self.fc2 = nn.Linear(6, 8), nn.Linear(8, 3)
        for name, value in buffers.items():
            self.register_buffer(name, value)


class Counting(_Perceptron):
    def __init__(self):
        super().__init__(steps=torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.steps += 1
        return self.fc2(torch.relu(self.fc1(x)))


class Averaging(_Perceptron):
    def __init__(self):
        super().__init__(average=torch.zeros(8))

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        self.average.mul_(0.9).add_(0.1 * h.mean(dim=0))
        return self.fc2(h)


class Replacing(_Perceptron):
    """Puts another tensor in the place of the buffer."""

    def __init__(self):
        super().__init__(average=torch.zeros(8))

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        self.average = 0.9 * self.average + 0.1 * h.mean(dim=0)
        return self.fc2(h)


class Copying(_Perceptron):
    """Needs ``torch.export``."""

    def __init__(self):
        super().__init__(average=torch.zeros(8))

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        with torch.no_grad():
            self.average.copy_(0.9 * self.average + 0.1 * h.mean(dim=0))
        return self.fc2(h)


class Caching(_Perceptron):
    def __init__(self):
        super().__init__(cache=torch.zeros(10, 8))

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        self.cache[: len(x)] = h
        return self.fc2(h)


class Bounding(_Perceptron):
    """Divides by the largest activation so far, which those of the example do not exceed."""

    def __init__(self):
        super().__init__(largest=torch.tensor(100.0))

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        self.largest = torch.maximum(self.largest, h.detach().amax(dim=(0, 1)))
        return self.fc2(h / self.largest)


class Keeping(_Perceptron):
    """Writes no buffer: what it saw is in attributes."""

    def __init__(self):
        super().__init__()
        self.calls, self.seen, self.last = 0, [], None

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        self.calls += 1
        self.seen.append(h.mean())
        self.last = h
        return self.fc2(h)


class CountingUpwards(_Perceptron):
    """Its results hardly change from call to call."""

    def __init__(self):
        super().__init__(steps=torch.tensor(1e6))

    def forward(self, x):
        self.steps += 1
        return self.steps * self.fc2(torch.relu(self.fc1(x)))


class Centring(_Perceptron):
    def __init__(self):
        super().__init__(average=torch.zeros(8))

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        self.average.mul_(0.9).add_(0.1 * h.mean(dim=0))
        return self.fc2(h - self.average)


class Recalling(_Perceptron):
    """Reads what larger batches have left behind."""

    def __init__(self):
        super().__init__(cache=torch.zeros(10, 8))

    def forward(self, x):
        h = torch.relu(self.fc1(x))
        self.cache[: len(x)] = h
        return self.fc2(h) + self.cache.mean()


class Turning(_Perceptron):
    """Goes by an attribute that is no buffer."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.fc2(torch.relu(self.fc1(x))) * (1 + self.calls)


WRITTEN = {Counting: "steps", Averaging: "average", Replacing: "average", Copying: "average", Caching: "cache", Bounding: "largest"}
"""Which buffer each model writes; what they compute for an input does not depend on earlier calls, as far as the example shows."""
GOING_BY_IT = {CountingUpwards: "steps", Centring: "average", Recalling: "cache", Turning: "calls"}
