"""What is said about a model beside it: certificates and costs as plain JSON."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

from bayesprune.errors import InputError


def plain_statement(statement: Any, name: str) -> dict[str, Any] | None:
    """A mapping or dataclass as JSON: tensors become lists, and numbers that are not finite the strings "inf", "-inf" and "nan"."""
    if statement is None:
        return None
    plain = _plain(statement, name)
    if not isinstance(plain, dict):
        raise InputError(f"{name} is a mapping or a dataclass, not {type(statement).__name__}")
    return plain


def _plain(value: Any, where: str) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return _plain(value.tolist(), where)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name), f"{where}.{field.name}") for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each, f"{where}.{key}") for key, each in value.items()}
    if isinstance(value, Set):
        return [_plain(each, where) for each in sorted(value)]
    if isinstance(value, Sequence):
        return [_plain(each, where) for each in value]
    raise InputError(f"{where} is of type {type(value).__name__}, which cannot be saved: give numbers, strings, lists and mappings")
