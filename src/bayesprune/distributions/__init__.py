"""The distributions that the gates are made of, as pure functions of tensors.

Nothing here holds state or draws random numbers: a sample is a function of parameters and of uniform or normal noise that the caller
brings, so every function can be vectorised with ``torch.vmap``, compiled, and checked against numerical integration.
"""

from bayesprune.distributions import binary_concrete, hard_concrete, kumaraswamy, normal, truncated_log_normal

__all__ = ["binary_concrete", "hard_concrete", "kumaraswamy", "normal", "truncated_log_normal"]
