"""The models of a sweep from lists of settings: networks x methods x trade-offs x seeds."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from bayesprune.errors import InputError, did_you_mean
from bayesprune.experiments.main_job import RunConfig, check_config, complete, spelled_out
from bayesprune.experiments.sweep import Sweep

_LISTS = {"networks": str, "methods": str, "factors": (int, float), "seeds": int}
_COMMON = {
    "dataset": str,
    "recipe": str,
    "epochs": int,
    "device": str,
    "data_dir": str,
    "before_norm": bool,
    "shrink": bool,
    "precision": str,
}
_OTHERS = {"tradeoffs": dict, "side_by_side": int}
_DEFAULTS: dict[str, list[Any]] = {"networks": ["lenet-500-300"], "methods": ["bb"], "factors": [1.0], "seeds": [0, 1, 2, 3, 4]}


def expand(settings: Mapping[str, Any]) -> Sweep:
    """The sweep that the settings describe.

    Args:
        settings: ``networks``, ``methods`` and ``seeds`` are lists; so are ``factors``, by which every method's usual trade-off is
            multiplied, and the values of the table ``tradeoffs``, in a method's own terms, which take their place for that method.
            ``dataset``, ``recipe``, ``epochs``, ``device``, ``data_dir``, ``before_norm``, ``shrink`` and ``precision`` hold for all
            models, as in ``RunConfig``;
            ``side_by_side`` is how many are trained at a time.

    Raises:
        InputError: a setting is unknown or of the wrong type.
    """
    known = _LISTS | _COMMON | _OTHERS
    for name in settings:
        if name not in known:
            raise InputError(f"a sweep has no setting '{name}'; there are {', '.join(known)}.{did_you_mean(name, known)}")
    lists = {name: _list(name, settings.get(name, default)) for name, default in _DEFAULTS.items()}
    common = {name: _one(name, settings[name], kind) for name, kind in _COMMON.items() if name in settings}
    tradeoffs = _one("tradeoffs", settings.get("tradeoffs", {}), dict)
    for method, values in tradeoffs.items():
        if method not in lists["methods"]:
            raise InputError(f"tradeoffs has '{method}', which is none of the methods {', '.join(lists['methods'])}")
        _list("factors", values)
    members = []
    for network, method in itertools.product(lists["networks"], lists["methods"]):
        base = complete({**common, "network": network, "method": method})
        check_config(base)
        for tradeoff in _tradeoffs(base, lists["factors"], tradeoffs.get(method)):
            members += [replace(base, tradeoff=tradeoff, seed=seed) for seed in lists["seeds"]]
    for member in members:
        check_config(member)
    side_by_side = _one("side_by_side", settings["side_by_side"], int) if "side_by_side" in settings else None
    return Sweep(tuple(members), side_by_side)


def _tradeoffs(base: RunConfig, factors: list[float], own: list[float] | None) -> Iterator[float | None]:
    usual = spelled_out(base).tradeoff
    if usual is None:  # Concrete dropout has none.
        yield None
    else:
        yield from own if own is not None else (factor * usual for factor in factors)


def _list(name: str, values: Any) -> list[Any]:
    kind = _LISTS[name]
    if not isinstance(values, (list, tuple)) or not values or not all(_is_a(value, kind) for value in values):
        raise InputError(f"{name} of a sweep is a list such as {_DEFAULTS[name]}, not {values!r}")
    return list(values)


def _one(name: str, value: Any, kind: Any) -> Any:
    if not _is_a(value, kind):
        raise InputError(f"{name} of a sweep must be of type {kind.__name__}, not {value!r}")
    return value


def _is_a(value: Any, kind: Any) -> bool:
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
