"""torch's tracers keep quiet while we try them, and nobody else does."""

import io
import logging
import sys
import warnings
from contextlib import redirect_stderr

import pytest
import torch
from torch import nn

from bayesprune.errors import InputError
from bayesprune.graph import trace
from bayesprune.graph.quiet import quiet_tracers

TRACERS = ("torch.export", "torch.fx.experimental.symbolic_shapes", "torch._dynamo")


class Undecided(nn.Module):
    """Goes where no tracer can follow, and says so on stderr."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        print("of the model", file=sys.stderr)  # noqa: T201
        x = self.layer(x)
        return x if float(x.sum()) > 0 else -x


def test_a_model_that_cannot_be_followed_leaves_only_its_own_words(capfd):
    with pytest.raises(InputError, match="cannot be followed"):
        trace(Undecided(), torch.randn(3, 4))
    assert set(capfd.readouterr().err.splitlines()) == {"of the model"}


@pytest.mark.parametrize("fault", [None, ValueError])
def test_everything_is_as_before(fault):
    loggers = [logging.getLogger(name) for name in TRACERS]
    before = [logger.level for logger in loggers], sys.stderr
    try:
        with quiet_tracers():
            assert not any(logger.isEnabledFor(logging.ERROR) for logger in loggers)
            if fault is not None:
                raise fault
    except ValueError:
        pass
    assert ([logger.level for logger in loggers], sys.stderr) == before


def test_others_are_heard(caplog):
    stream = io.StringIO()
    with redirect_stderr(stream), quiet_tracers():
        logging.getLogger("bayesprune").warning("logged")
        logging.getLogger("torchvision").warning("logged as well")
        sys.stderr.write("printed")
        with pytest.warns(UserWarning, match="warned"):
            warnings.warn("warned", stacklevel=1)
        assert logging.getLogger("torch.nn").isEnabledFor(logging.WARNING)
    assert stream.getvalue() == "printed"
    assert [record.message for record in caplog.records] == ["logged", "logged as well"]


def test_who_has_asked_for_logs_gets_them(monkeypatch):
    logger = logging.getLogger("torch.export")
    monkeypatch.setattr(logger, "level", logging.DEBUG)
    with quiet_tracers():
        assert logger.level == logging.DEBUG


def test_without_stderr(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with quiet_tracers():
        assert sys.stderr is None
