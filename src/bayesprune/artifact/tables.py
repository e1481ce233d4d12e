"""The table of tensors as JSON, and back."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bayesprune.artifact.blueprint import TensorPlan, TensorTable
from bayesprune.artifact.checks import fields, flag, mapping, text
from bayesprune.artifact.values import MalformedError, dtype_name, dtype_named, sizes

MAX_TENSORS = 100_000


def table_to_json(table: TensorTable) -> dict[str, Any]:
    """The table as JSON."""
    stored = {
        name: {
            "shape": list(plan.shape),
            "dtype": dtype_name(plan.dtype),
            "role": plan.role,
            "trainable": plan.trainable,
            "persistent": plan.persistent,
        }
        for name, plan in table.stored.items()
    }
    return {"stored": stored, "aliases": dict(table.aliases)}


def table_from_json(data: Any) -> TensorTable:
    """The table, every entry checked."""
    given = fields(data, "tensors", {"stored", "aliases"})
    stored = {name: _plan(name, each) for name, each in mapping(given["stored"], "stored").items()}
    aliases = {name: text(each, "an alias") for name, each in mapping(given["aliases"], "aliases").items()}
    if len(stored) + len(aliases) > MAX_TENSORS:
        raise MalformedError(f"there are more than {MAX_TENSORS} tensors")
    for name, target in aliases.items():
        if name in stored or target not in stored:
            raise MalformedError(f"the tensor {name[:60]!r} is tied to {target[:60]!r}, which is not stored")
    return TensorTable(stored, aliases)


def check_stored(table: TensorTable, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a file whose tensors are not those of its table."""
    different = table.stored.keys() ^ tensors.keys()
    if different:
        raise MalformedError(f"the tensor {min(different)[:60]!r} is either not described or not stored")
    for name, plan in table.stored.items():
        found = tensors[name]
        if tuple(found.shape) != plan.shape or found.dtype != plan.dtype:
            raise MalformedError(
                f"the tensor {name[:60]!r} is described as {plan.shape} {plan.dtype} but stored as {tuple(found.shape)} {found.dtype}"
            )


def _plan(name: str, data: Any) -> TensorPlan:
    where = f"the tensor {name[:60]!r}"
    given = fields(data, where, {"shape", "dtype", "role", "trainable", "persistent"})
    role, dtype = given["role"], dtype_named(given["dtype"])
    trainable, persistent = flag(given["trainable"], where), flag(given["persistent"], where)
    if role not in ("parameter", "buffer") or (trainable and (role == "buffer" or not (dtype.is_floating_point or dtype.is_complex))):
        raise MalformedError(f"{where} is neither a parameter nor a buffer, or cannot be trained")
    return TensorPlan(sizes(given["shape"]), dtype, role, trainable, persistent)
