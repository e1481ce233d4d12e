"""Which layers the user wants gates on, by patterns of their paths."""

import reprlib
from collections.abc import Collection, Sequence
from fnmatch import fnmatch

from torch import nn

from bayesprune.errors import InputError, did_you_mean, one_line

_SHOWN = 6


class Choice:
    """Says of a layer, by its path, whether it may be gated.

    Args:
        include: only layers that match this pattern or one of these; None for all.
        exclude: no layers that match this pattern or one of these.

    Raises:
        InputError: these are no patterns.
    """

    def __init__(self, include: str | Sequence[str] | None, exclude: str | Sequence[str] | None) -> None:
        self.include = None if include is None else _patterns("include", include)
        self.exclude = () if exclude is None else _patterns("exclude", exclude)
        self._asked: dict[str, None] = {}

    def __call__(self, path: str) -> bool:
        self._asked[path] = None
        wanted = self.include is None or any(fnmatch(path, pattern) for pattern in self.include)
        return wanted and not any(fnmatch(path, pattern) for pattern in self.exclude)

    def check_patterns(self, model: nn.Module) -> None:
        """Refuse patterns that match neither a layer that was asked about nor any other module with parameters of its own."""
        paths = list(self._asked | dict.fromkeys(_layers(model)))
        for name, patterns in (("include", self.include or ()), ("exclude", self.exclude)):
            for pattern in patterns:
                if not any(fnmatch(path, pattern) for path in paths):
                    layers = _layers_shown(pattern, paths)
                    raise InputError(f"'{pattern}' of {name} matches no layer of {type(model).__name__}. Its layers are {layers}")


def _patterns(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Collection) or not all(isinstance(each, str) for each in given):
        shown = one_line(reprlib.repr(given))
        raise InputError(f"{name} is a pattern of layers' paths or a list of them, such as ['features.*', 'fc1'], not {shown}")
    return tuple(given)


def _layers(model: nn.Module) -> list[str]:
    """The modules with parameters of their own, those behind parametrisations included."""
    return [
        path
        for path, module in model.named_modules(remove_duplicate=False)
        if ".parametrizations." not in f".{path}." and (module._parameters or hasattr(module, "parametrizations"))
    ]


def _layers_shown(pattern: str, paths: Sequence[str]) -> str:
    shown = ", ".join(f"'{path}'" for path in paths[:_SHOWN]) or "none"
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    inside = any(path.startswith(f"{pattern}.") for path in paths)
    meant = f" For the layers inside '{pattern}' give '{pattern}.*'" if inside else did_you_mean(pattern, paths, cutoff=0.4)
    return f"{shown}{more}.{meant}"
