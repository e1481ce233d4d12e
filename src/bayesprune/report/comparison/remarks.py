"""Remarks on differences, written by hand: ``results/remarks.toml``.

A table for each network, named as in the zoo or, where it is on several data sets, ``NETWORK-DATASET``; in it a text for each method:

```toml
[lenet-500-300]
vib = "The paper's learning rates are not stated; ours are those of ..."
```
"""

from pathlib import Path

from bayesprune.errors import ResultsError, did_you_mean
from bayesprune.experiments.published import METHODS, published_networks
from bayesprune.report.comparison.points import network_label
from bayesprune.storage import exists, read_toml

REMARKS = "remarks.toml"


def read_remarks(results: Path) -> dict[str, dict[str, str]]:
    """The remarks by network, as in names of files, and by method; none if there is no such file.

    Raises:
        ResultsError: the file names a network or method that there is not.
        StorageError: the file cannot be read, or is no TOML.
    """
    path = results / REMARKS
    if not exists(path):
        return {}
    content = read_toml(path)
    known = [network_label(network, dataset) for network, dataset in published_networks()]
    for network, methods in content.items():
        if network not in known:
            raise ResultsError(f"{path}: no network is called '{network}': there are {', '.join(known)}.{did_you_mean(network, known)}")
        if not isinstance(methods, dict):
            raise ResultsError(f"{path}: '{network}' is no table: write [{network}] and a line for each method below it")
        for method, text in methods.items():
            if method not in METHODS:
                hint = did_you_mean(method, METHODS)
                raise ResultsError(f"{path}, {network}: no method is called '{method}': there are {', '.join(METHODS)}.{hint}")
            if not isinstance(text, str):
                raise ResultsError(f"{path}, {network}: the remark on {method} is no text but {text!r}")
    return {network: {method: " ".join(text.split()) for method, text in methods.items()} for network, methods in content.items()}
