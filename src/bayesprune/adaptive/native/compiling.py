"""C functions, compiled on the machine at hand by the compiler that is there."""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

import torch

Kernel: TypeAlias = Callable[..., None]
_COMPILERS = ("cc", "gcc", "clang")
_OPTIONS = ("-O3", "-ffp-contract=fast", "-shared", "-fPIC")
_FOR_THIS_MACHINE = ("-march=native",)
"""What not all compilers know, on all machines."""
_SECONDS = 60
_TYPES = {torch.float32: "float", torch.float64: "double"}


def compiled(name: str, dtype: torch.dtype, arguments: Sequence[Any]) -> Kernel | None:
    """A function of the C file of its name, for numbers of a type; None where there is no compiler, or it does not succeed.

    It is compiled anew in every process, which takes a fraction of a second: nothing is left on the disk that another machine, or somebody
    else, could come across.

    Args:
        name: of the function, and of its file in this folder.
        dtype: of its numbers.
        arguments: their types.
    """
    compiler = _compiler()
    if compiler is None or dtype not in _TYPES:
        return None
    try:
        with tempfile.TemporaryDirectory(prefix="bayesprune-") as folder:
            _write_sources(Path(folder))
            for more in (_FOR_THIS_MACHINE, ()):
                library = f"{name}{len(more)}.so"
                command = [*compiler, *_OPTIONS, *more, f"-DREAL={_TYPES[dtype]}", f"{name}.c", "-o", library]
                done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_SECONDS, check=False)
                if done.returncode == 0:
                    function: Any = getattr(ctypes.CDLL(str(Path(folder) / library)), name)
                    function.argtypes, function.restype = arguments, None
                    return function  # type: ignore[no-any-return]
    except (OSError, AttributeError, subprocess.SubprocessError):
        pass
    return None


def _write_sources(folder: Path) -> None:
    """The package may lie in an archive, where no compiler can read."""
    for file in resources.files(__package__).iterdir():
        if file.name.endswith((".c", ".h")):
            (folder / file.name).write_bytes(file.read_bytes())


def _compiler() -> list[str] | None:
    """The compiler that the environment names, or the first of the usual ones that there is."""
    try:
        named = shlex.split(os.environ.get("CC", ""))
    except ValueError:  # A quotation mark without its other.
        named = []
    if named and shutil.which(named[0]):
        return named
    found = next((name for name in _COMPILERS if shutil.which(name)), None)
    return None if found is None else [found]
