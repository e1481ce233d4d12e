"""LeNet-500-300 whose loss has the terms of a candidate, so that models side by side may differ in them."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bayesprune.models.lenet import LeNet500300
from bayesprune.objective import disagreement
from benchmarks.recipe_search.candidates import Candidate


class TriedLeNet(LeNet500300):
    """LeNet-500-300 that in training hands the loss what the candidate's loss needs beside the logits."""

    settings: Tensor

    def __init__(self, candidate: Candidate, twice: bool) -> None:
        super().__init__()
        self.twice = twice
        numbers = [candidate.weight_decay, candidate.smoothing, candidate.confidence, candidate.consistency]
        self.register_buffer("settings", torch.tensor(numbers))

    def forward(self, x: Tensor) -> Any:
        if not self.training:
            return super().forward(x)
        squares = torch.stack([p.square().sum() for layer in (self.fc1, self.fc2, self.fc3) for p in (layer.weight, layer.bias)]).sum()
        return super().forward(torch.cat([x, x]) if self.twice else x), self.settings, squares


def candidate_loss(outputs: Any, targets: Tensor) -> Tensor:
    """Cross-entropy, in training with the terms of the candidate."""
    if isinstance(outputs, Tensor):
        return F.cross_entropy(outputs, targets)
    logits, settings, squares = outputs
    decay, smoothing, confidence, consistency = settings.unbind()
    logs = F.log_softmax(logits, dim=1)
    twice = len(logits) == 2 * len(targets)
    wanted = torch.cat([targets, targets]) if twice else targets
    nll = -logs.gather(1, wanted[:, None]).mean()
    loss = (1.0 - smoothing) * nll - smoothing * logs.mean() + 0.5 * decay * squares + confidence * (logs.exp() * logs).sum(1).mean()
    if twice:
        loss = loss + consistency * disagreement(logits)
    return loss
