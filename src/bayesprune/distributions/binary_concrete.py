"""The binary concrete distribution: a Bernoulli variable relaxed to (0, 1).

References:
    Maddison, Mnih and Teh, "The Concrete Distribution", 2017.
    Jang, Gu and Poole, "Categorical Reparameterization with Gumbel-Softmax", 2017.
"""

import torch
from torch import Tensor

from bayesprune.distributions.stable import UNIT_EPS


def sample(logits: Tensor, uniform: Tensor, temperature: float) -> Tensor:
    """z = sigmoid((logit p + logit u) / temperature), u uniform on (0, 1).

    As the temperature falls to zero, z becomes one with probability p and zero otherwise.
    """
    scale = 1.0 / temperature
    # The logits are one vector for a whole batch as a rule: scaling them before they are spread spares two passes over the batch.
    return torch.sigmoid(torch.add(logits * scale, torch.logit(uniform, eps=UNIT_EPS), alpha=scale))
