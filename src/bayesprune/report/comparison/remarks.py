"""Remarks on differences, written by hand: ``results/remarks.toml``.

A table for each network, named as in the zoo or, where it is on several data sets, ``NETWORK-DATASET``; in it a text for each method. One
more table, ``recipes``, has a text for each recipe of our own:

```toml
[lenet-500-300]
vib = "The paper's learning rates are not stated; ours are those of ..."
[recipes]
consistent = "As published, but ..."
```
"""

from collections.abc import Collection
from pathlib import Path

from bayesprune.errors import ResultsError, did_you_mean
from bayesprune.experiments.protocol import OWN_TARGETS
from bayesprune.experiments.published import METHODS, published_networks
from bayesprune.report.comparison.points import network_label
from bayesprune.storage import exists, read_toml

REMARKS, RECIPES = "remarks.toml", "recipes"


def read_remarks(results: Path) -> dict[str, dict[str, str]]:
    """The remarks by network, as in names of files, and by method, and those on recipes; none if there is no such file.

    Raises:
        ResultsError: the file names a network, method or recipe that there is not.
        StorageError: the file cannot be read, or is no TOML.
    """
    path = results / REMARKS
    if not exists(path):
        return {}
    content = read_toml(path)
    known: dict[str, Collection[str]] = {network_label(network, dataset): METHODS for network, dataset in published_networks()}
    known[RECIPES] = OWN_TARGETS
    for table, texts in content.items():
        if table not in known:
            names = ", ".join(name for name in known if name != RECIPES)
            hint = did_you_mean(table, known)
            raise ResultsError(f"{path}: no network is called '{table}': there are {names}; recipes have the table '{RECIPES}'.{hint}")
        kind = "recipe" if table == RECIPES else "method"
        if not isinstance(texts, dict):
            raise ResultsError(f"{path}: '{table}' is no table: write [{table}] and a line for each {kind} below it")
        for name, text in texts.items():
            if name not in known[table]:
                hint = did_you_mean(name, known[table])
                raise ResultsError(f"{path}, {table}: no {kind} is called '{name}': there are {', '.join(known[table])}.{hint}")
            if not isinstance(text, str):
                raise ResultsError(f"{path}, {table}: the remark on {name} is no text but {text!r}")
    return {table: {name: " ".join(text.split()) for name, text in texts.items()} for table, texts in content.items()}
