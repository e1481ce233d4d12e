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
_OPTIONS = ("-O3", "-ffp-contract=fast", "-fPIC")
_FOR_THIS_MACHINE = ("-march=native",)
"""What not all compilers know, on all machines."""
_THREADED = ("-fopenmp",)
_RUNTIMES = ("libgomp", "libomp", "libiomp5")
"""Of OpenMP. Native code must share torch's: threads of two would be in each other's way."""
_LOADED = Path("/proc/self/maps")
_SECONDS = 60
_TYPES = {torch.float32: "float", torch.float64: "double"}


def compiled(name: str, dtype: torch.dtype, arguments: Sequence[Any], threaded: bool = False) -> Kernel | None:
    """A function of the C file of its name, for numbers of a type; None where there is no compiler, or it does not succeed.

    It is compiled anew in every process, which takes a fraction of a second: nothing is left on the disk that another machine, or somebody
    else, could come across.

    Args:
        name: of the function, and of its file in this folder.
        dtype: of its numbers.
        arguments: their types.
        threaded: whether it has parts that several threads can compute, which they do if torch's threads can be had.
    """
    compiler = _compiler()
    if compiler is None or dtype not in _TYPES:
        return None
    runtime = _openmp() if threaded else None
    ways = [(_FOR_THIS_MACHINE, runtime), (_FOR_THIS_MACHINE, None), ((), None)]
    try:
        with tempfile.TemporaryDirectory(prefix="bayesprune-") as folder:
            _write_sources(Path(folder))
            for number, (more, threads) in enumerate(ways[0 if runtime else 1 :]):
                options = (*_OPTIONS, *more, *(_THREADED if threads else ()), f"-DREAL={_TYPES[dtype]}")
                library = _built(compiler, options, Path(folder), name, f"{name}{number}", threads)
                if library is not None:
                    function: Any = getattr(ctypes.CDLL(str(library)), name)
                    function.argtypes, function.restype = arguments, None
                    return function  # type: ignore[no-any-return]
    except (OSError, AttributeError, subprocess.SubprocessError):
        pass
    return None


def _built(compiler: list[str], options: Sequence[str], folder: Path, source: str, name: str, runtime: str | None) -> Path | None:
    """A library of a source file; None if the compiler does not succeed. What is missing in it shows now, not when it is called."""
    compiling = [*compiler, *options, "-c", f"{source}.c", "-o", f"{name}.o"]
    linking = [*compiler, "-shared", f"{name}.o", *(() if runtime is None else (runtime, "-Wl,-z,defs")), "-o", f"{name}.so"]
    for command in (compiling, linking):
        if subprocess.run(command, cwd=folder, capture_output=True, timeout=_SECONDS, check=False).returncode != 0:
            return None
    return folder / f"{name}.so"


def _openmp() -> str | None:
    """The path of the OpenMP library that torch has loaded; None if that cannot be told, or if there are several."""
    try:
        lines = _LOADED.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    paths = (words[5] for words in (line.split(maxsplit=5) for line in lines) if len(words) == 6)
    found = {path for path in paths if Path(path).name.startswith(_RUNTIMES)}
    return found.pop() if len(found) == 1 else None


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
