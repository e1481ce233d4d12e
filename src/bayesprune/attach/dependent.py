"""``make_dependent``: from beta-Bernoulli dropout to its input-dependent form."""

from typing import Any

from torch import nn

from bayesprune.attach.copying import copy_of
from bayesprune.attach.sparsify import check_hyperparameters
from bayesprune.errors import InputError
from bayesprune.gates import require_gates, unwrapped
from bayesprune.gates.beta_bernoulli import BetaBernoulli
from bayesprune.gates.dependent_beta_bernoulli import DependentBetaBernoulli
from bayesprune.graph.layer_types import BATCH_NORMS
from bayesprune.graph.surroundings import undisturbed


@undisturbed()
def make_dependent(gated: nn.Module, *, freeze_norms: bool = True, **hyperparameters: Any) -> nn.Module:
    """Stage two: a copy in which every BB gate has become a DBB gate with the same, now fixed, q(pi).

    Args:
        gated: a model that was trained with BB gates; it is not changed. Of a compiled or distributed one, the model inside is taken.
        freeze_norms: hold the scales and shifts of the network's batch norms fixed, as in the paper's experiments; their running statistics
            go on.
        **hyperparameters: of ``DependentBetaBernoulli``.
    """
    for name, gate in require_gates(gated).items():
        if not isinstance(gate, BetaBernoulli):
            raise InputError(f"make_dependent starts from BB gates, but {name} is '{gate.method}': sparsify with 'bb' and train first")
    check_hyperparameters(DependentBetaBernoulli, hyperparameters)
    staged = copy_of(unwrapped(gated))
    for name, gate in require_gates(staged).items():
        assert isinstance(gate, BetaBernoulli)
        path, _, child = name.rpartition(".")
        setattr(staged.get_submodule(path), child, DependentBetaBernoulli.from_beta_bernoulli(gate, **hyperparameters))
    if freeze_norms:
        for module in staged.modules():
            if isinstance(module, BATCH_NORMS):
                module.requires_grad_(False)
    return staged
