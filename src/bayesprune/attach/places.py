"""Where the gates of a model can go."""

from torch import nn

from bayesprune.attach.chain import LeftAlone, chain_places
from bayesprune.models.description import DescribedModel, GatePlace


def find_places(model: nn.Module, before_norm: bool = False) -> tuple[list[GatePlace], list[LeftAlone]]:
    """The gate places of a model in network order, and the layers that are left alone.

    A model that states its places is taken at its word; any other must be a plain chain.
    """
    if isinstance(model, DescribedModel):
        return list(model.gate_places(before_norm)), []
    return chain_places(model, before_norm)
