"""The paper's tables that can be trained again, and how each network's models are trained for them.

References:
    Lee et al., "Adaptive Network Sparsification with Dependent Variational Beta-Bernoulli Dropout", 2019, section 5 and appendix A.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ReproducedTable:
    """A network on a data set.

    Attributes:
        network: of the zoo.
        dataset: of the catalogue.
        together: the models of a method are trained side by side, as one program. A large network gains nothing by that: its models are
            trained one after the other, each in a folder of its own.
        has_norms: batch norms follow its convolutions; the paper gates these before the norms.
        n_data: what divergences are divided by, where the published code does not take the number of training images; None where it does.
            That code has no GD and no CD, for which it is the number of training images anyway.
        precision: that layers are computed in on a GPU, unless something else is asked for.
        shown: classes, by name and number, whose inputs figures show. A network with such is too large to be kept itself, and its data
            are not in the package: what figures show of it is kept instead.
        quick_images: so many training and test images ``--quick`` takes.
        quick_tradeoffs: at so many trade-offs of each method.
    """

    network: str
    dataset: str
    together: bool = True
    has_norms: bool = False
    n_data: int | None = None
    precision: str = "float32"
    shown: tuple[tuple[str, int], ...] = ()
    quick_images: tuple[int, int] = (5_000, 1_000)
    quick_tradeoffs: int = 2


def _vgg(dataset: str, *shown: tuple[str, int]) -> ReproducedTable:
    return ReproducedTable(
        "vgg-like",
        dataset,
        together=False,
        has_norms=True,
        n_data=60_000,
        precision="bfloat16",
        shown=shown,
        quick_images=(200, 100),
        quick_tradeoffs=1,
    )


SHOWN_LAYERS, SHOWN_INPUTS = (3, 8, 15), 20
"""Which layers of a large network figures show, those of the paper's figure, and how many inputs of a class."""
TABLES = {
    "lenet-500-300": ReproducedTable("lenet-500-300", "mnist"),
    "lenet5-caffe": ReproducedTable("lenet5-caffe", "mnist"),
    "vgg-cifar10": _vgg("cifar10", ("automobile", 1), ("bird", 2)),
    "vgg-cifar100": _vgg("cifar100", ("bus", 13), ("apple", 0)),
}
"""By the name under which they are offered."""


def table_name(network: str, dataset: str) -> str:
    """What the table of a network on a data set, one that the paper has, is offered as."""
    return next(name for name, table in TABLES.items() if (table.network, table.dataset) == (network, dataset))


def table_of(network: str, dataset: str) -> ReproducedTable:
    """The table of a network on a data set that the paper has."""
    return TABLES[table_name(network, dataset)]
