"""The way to a Ray cluster, without its words in the terminal and without reports to its makers."""

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import Any, TextIO, cast
from urllib.parse import urlsplit

from bayesprune.errors import ClusterError, first_line, how_to_install

_SECONDS_TO_ANSWER = 5.0
_SECONDS_TO_CONNECT = 30.0
_TRIAL = """
import logging, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
except BaseException as error:
    sys.exit(" ".join(str(error).split()) or type(error).__name__)
"""
_OBJECT_STORE = 100 * 2**20
"""Rows and progress are all that is sent; Ray would set a third of the memory aside."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
_ADVICE = "or leave --address out to start one on this machine"


def import_ray(address: str | None) -> Any:
    """Ray, seen to be installed, and the address seen to answer."""
    try:
        import ray
    except ImportError as error:
        raise ClusterError(f"the engine 'ray' needs the package ray ({error}): {how_to_install('ray')}") from error
    if address not in (None, "local", "auto"):
        _knock(address)
    return ray


def _knock(address: str) -> None:
    """See that somebody answers at an address: Ray itself would try for more than a minute and then end the process."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("", "ray") or not host or port is None:
        raise ClusterError(f"'{address}' is no address of a Ray cluster: give host:port, ray://host:port or auto")
    try:
        socket.create_connection((host, port), timeout=_SECONDS_TO_ANSWER).close()
    except OSError as error:
        raise ClusterError(f"no Ray cluster answers at {address} ({error.strerror or error}): see 'ray status' there, {_ADVICE}") from error


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray with a connection to a cluster: the one this process has already, the one at the address, or one that ends with the context."""
    ray = import_ray(address)
    if ray.is_initialized():
        yield ray
        return
    with _quiet():
        own = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE} if address in (None, "local") else {}
        if address is not None and not own:
            _try(address)
        on_termination = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **own)
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, on_termination)  # Ray would print a stack of its own.
        # Ray raises SystemExit where it gives up on a cluster.
        except (ray.exceptions.RayError, OSError, RuntimeError, ValueError, ImportError, SystemExit) as error:
            ray.shutdown()
            raise _useless(None if own else address, first_line(error) or type(error).__name__) from error
    with redirect_stdout(cast(Any, _WithoutRay(sys.stdout))):
        try:
            yield ray
        finally:
            with redirect_stdout(StringIO()):  # In the end this thread prints what that of Ray has kept back as a repetition.
                ray.shutdown()


class _WithoutRay:
    """A stream on which threads of Ray's have no voice: one prints whatever dies on the cluster, for which Ray has no option."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return len(text) if threading.current_thread().name.startswith("ray_") else self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _try(address: str) -> None:
    """Connect in another process first: to something that is no Ray cluster, or one of another version, Ray may wait without end."""
    try:
        trial = subprocess.run(
            [sys.executable, "-P", "-c", _TRIAL, address], capture_output=True, text=True, timeout=_SECONDS_TO_CONNECT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise _useless(address, f"nothing like one answers within {_SECONDS_TO_CONNECT:g} s") from error
    if trial.returncode != 0:
        raise _useless(address, (trial.stderr.strip().splitlines() or [f"a trial ended with code {trial.returncode}"])[-1])


def _useless(address: str | None, reason: str) -> ClusterError:
    if "ray[client]" in reason:
        remedy = "pip install 'ray[client]'"
    else:
        remedy = (
            "see whether 'ray start --head' works" if address is None else f"give the address that 'ray start --head' printed, {_ADVICE}"
        )
    what = "no Ray cluster can be started here" if address is None else f"the Ray cluster at {address} cannot be used"
    return ClusterError(f"{what} ({reason}): {remedy}")


@contextmanager
def _quiet() -> Iterator[None]:
    """Have the processes that Ray starts meanwhile, and Ray in this one, say errors alone."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update(_QUIET)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
