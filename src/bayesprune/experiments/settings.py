"""The paper's settings for its networks, as data.

References:
    Lee et al., "Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout", 2019, section 5 and appendix A.
"""

from dataclasses import dataclass

from bayesprune.gates import method_class
from bayesprune.training.plan import default_tradeoff, static_method
from bayesprune.training.recipes import Recipe


@dataclass(frozen=True)
class Price:
    """What L0 takes for a weight of a layer.

    Attributes:
        value: the price times the number of training samples, or a factor on the trade-off.
        fixed: whether it is the same at all trade-offs.
    """

    value: float
    fixed: bool = False

    def at(self, tradeoff: float) -> float:
        """The price at a trade-off, both times the number of training samples."""
        return self.value if self.fixed else self.value * tradeoff

    def __str__(self) -> str:
        return f"{self.value:g}" if self.fixed else f"{self.value:g}x"


LAYER_PRICES = {"lenet5-caffe": (Price(500.0), Price(15.0), Price(1.0), Price(10.0))}
"""Of L0, layer by layer, where one for all does not do. Of the first eight sets in results/tuning.jsonl, one seed each, four come near the
speed-up of the paper's main table; of these, this one had the fewest errors there on validation images."""

_LENET5_CONVOLUTIONS = {"bb": (20.0, 8.0), "sbp": (20.0, 8.0), "gd": (20.0, 8.0), "vib": (24.0 * 24.0, 8.0 * 8.0)}
"""Factors on the penalties of LeNet5-Caffe's convolutions, whose few filters would weigh too little: the paper's 20 and 8, and for VIB the
sizes of the feature maps."""

_HYPERPARAMETERS: dict[str, dict[str, float]] = {"cd": {"length_scale": 0.3, "entropy_weight": 1.0}}
"""Of methods whose publications leave them open; those of CD were chosen on validation images, see results/tuning.jsonl."""

_TRADEOFFS = {
    ("lenet-500-300", "vib"): 1e-4,
    ("lenet5-caffe", "vib"): 1e-6,
    ("vgg-like", "vib"): 1e-6,
    ("vgg-like", "l0"): 1e-7,
}


_BY_SIDE = tuple(side / 8 for side, gates in ((32, 2), (16, 2), (8, 3), (4, 3), (2, 3), (1, 2)) for _ in range(gates))
_OF_RECIPES = {
    **{
        (recipe, network, "bb"): weights
        for recipe in ("consistent", "smooth", "brief")
        for network, weights in (("lenet-500-300", (0.4, 1.8, 0.6)), ("lenet5-caffe", (20.0, 8.0, 0.25, 0.25)))
    },
    ("deep", "vgg-like", "bb"): _BY_SIDE,
}
"""Factors of our own recipes, by what a unit costs. In LeNet-500-300 DBB computes all units of a hidden layer that BB keeps, but only the
pixels that an input needs, so it is hidden units that are dear; in LeNet5-Caffe it is filters. In VGG-like the FLOPs of a filter go with
the area of its map times the filters of the next layer: about with the side, since filters double where the side is halved, up to 512."""


def gate_weights(network: str, method: str, recipe: str = "paper") -> tuple[float, ...] | None:
    """A factor on the divergence of each gate in network order; None for one for all."""
    own = _OF_RECIPES.get((recipe, network, static_method(method)))
    if own is not None:
        return own
    if network != "lenet5-caffe" or static_method(method) not in _LENET5_CONVOLUTIONS:
        return None
    return (*_LENET5_CONVOLUTIONS[static_method(method)], 1.0, 1.0)


def hyperparameters(network: str, method: str, tradeoff: float, n_data: int) -> dict[str, float | tuple[float, ...]]:
    """What the gates of a method are set to in a network beside, or instead of, what the trade-off says; a tuple has a value a gate."""
    static = static_method(method)
    if static == "l0" and network in LAYER_PRICES:
        usual = method_class(static).from_tradeoff(tradeoff, n_data).hyperparameters["price"]
        return {"price": tuple(price.at(usual) for price in LAYER_PRICES[network])}
    return dict(_HYPERPARAMETERS.get(static, {}))


def usual_tradeoff(network: str, method: str, recipe: Recipe) -> float:
    """The trade-off of a method on a network where none is asked for."""
    return _TRADEOFFS.get((network, static_method(method)), default_tradeoff(method, recipe))
