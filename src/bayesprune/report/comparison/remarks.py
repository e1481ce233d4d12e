"""Remarks on differences, written by hand: ``results/remarks.toml``.

A table for each network, named as in the zoo or, where it is on several data sets, ``NETWORK-DATASET``; in it a text for each method:

```toml
[lenet-500-300]
vib = "The paper's learning rates are not stated; ours are those of ..."
```
"""

import tomllib
from pathlib import Path
from typing import Any

from bayesprune.errors import ResultsError, StorageError, did_you_mean
from bayesprune.experiments.published import METHODS, published_networks
from bayesprune.report.comparison.points import network_label
from bayesprune.storage import exists

REMARKS = "remarks.toml"


def read_remarks(results: Path) -> dict[str, dict[str, str]]:
    """The remarks by network, as in names of files, and by method; none if there is no such file.

    Raises:
        ResultsError: the file is no TOML, or names a network or method that there is not.
        StorageError: the file cannot be read.
    """
    path = results / REMARKS
    if not exists(path):
        return {}
    content = _read(path)
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


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ResultsError(f"{path} is no TOML that can be read: {error}") from error
