"""What the tests of adaptive networks share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from bayesprune.adaptive.calibration import Calibration
from bayesprune.adaptive.choice import Choice, Line
from bayesprune.adaptive.native import gated_convolution, gated_linear


@pytest.fixture(autouse=True, scope="module")
def small_kernels() -> Iterator[None]:
    """oneDNN compiles a kernel for every new shape, which takes far longer than these networks do."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the user's cache folder, even if it forgets to say so."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what is found out about every layer, instead of measuring."""

    def set_lines(full: float, look: float, **ways: Line) -> None:
        def choice(_calibration, _segment, layer, _shape, batch, _native=None):
            return Choice(batch, full, look, {way: ways[way] for way in layer.ways if way in ways})

        monkeypatch.setattr(Calibration, "choice", choice)
        monkeypatch.setattr(Calibration, "convolution", lambda *_: (full, full))

    return set_lines


@pytest.fixture
def anew() -> Iterator[None]:
    """Everything is compiled anew, and again after the test."""
    kernels = (gated_linear.kernel, gated_convolution.kernel)
    for each in kernels:
        each.cache_clear()
    yield
    for each in kernels:
        each.cache_clear()
