"""C functions, compiled on the machine at hand by the compiler that is there."""

import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch

_COMPILERS = ("cc", "gcc", "clang")
_OPTIONS = ("-O3", "-ffp-contract=off", "-shared", "-fPIC")
_FOR_THIS_MACHINE = ("-march=native",)
"""What not all compilers know, on all machines."""
_SECONDS = 60
_TYPES = {torch.float32: "float", torch.float64: "double"}


@cache
def compiled(name: str, dtype: torch.dtype) -> Any:
    """A function of the C file of its name, for numbers of a type; None where there is no compiler, or it does not succeed.

    It is compiled anew in every process, which takes a fraction of a second: nothing is left on the disk that another machine, or somebody
    else, could come across.
    """
    compiler = _compiler()
    if compiler is None or dtype not in _TYPES:
        return None
    source = resources.files(__package__).joinpath(f"{name}.c").read_text()
    try:
        with tempfile.TemporaryDirectory(prefix="bayesprune-") as folder:
            for more in (_FOR_THIS_MACHINE, ()):
                library = Path(folder) / f"{name}{len(more)}.so"
                command = [*compiler, *_OPTIONS, *more, f"-DREAL={_TYPES[dtype]}", "-x", "c", "-", "-o", str(library)]
                done = subprocess.run(command, input=source.encode(), capture_output=True, timeout=_SECONDS, check=False)
                if done.returncode == 0:
                    return getattr(ctypes.CDLL(str(library)), name)
    except (OSError, AttributeError, subprocess.SubprocessError):
        pass
    return None


def _compiler() -> list[str] | None:
    """The compiler that the environment names, or the first of the usual ones that there is."""
    named = shlex.split(os.environ.get("CC", ""))
    if named and shutil.which(named[0]):
        return named
    found = next((name for name in _COMPILERS if shutil.which(name)), None)
    return None if found is None else [found]
