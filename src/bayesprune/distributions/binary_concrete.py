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
    return torch.sigmoid((logits + torch.logit(uniform, eps=UNIT_EPS)) * (1.0 / temperature))
