"""What documents show: their Python runs, their links lead somewhere."""

import re
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.main import get_command

import bayesprune as bp
from bayesprune.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", *map(str, sorted((ROOT / "docs").glob("*.md"))))
]
LINK = re.compile(r"\]\(([^)#\s]*)(#[^)\s]*)?\)")


def snippets(document):
    return re.findall(r"^```python\n(.*?)^```$", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(document):
    """Of headings, as hosts of repositories make them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {"#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture
def a_users_names():
    """What the documents say is there: a model, loaders, a batch."""
    torch.manual_seed(0)
    inputs, targets = torch.randn(48, 1, 8, 8), torch.randint(3, (48,))
    loader, test_loader = (DataLoader(TensorDataset(inputs, targets), batch_size=16) for _ in range(2))
    model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = inputs[:4], targets[:4]
    return {"torch": torch, "F": F, "bp": bp, "model": model, "loader": loader, "test_loader": test_loader, "x": x, "y": y, "epochs": 2}


@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_python_of_documents_runs(name, a_users_names, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = snippets(ROOT / name)
    assert len(found) >= 3
    for snippet in found:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", bp.BayespruneWarning)  # So short a training prunes nothing.
            exec(compile(snippet, name, "exec"), a_users_names)
    assert (tmp_path / "small.safetensors").is_file()
    assert (tmp_path / "small.onnx").is_file()
    assert "units kept" in capsys.readouterr().out


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for target, anchor in LINK.findall(document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        path = document.parent / target if target else document
        assert path.exists(), f"{document.name} refers to {target}"
        assert not anchor or path.suffix != ".md" or anchor in anchors(path), f"{document.name} refers to {target}{anchor}"


def commands():
    """Every command line of ours in the documents: the command, and its options."""
    for document in DOCUMENTS:
        for block in re.findall(r"^```\n(.*?)^```$", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL):
            for line in re.findall(r"^bayesprune (.*)$", block, flags=re.MULTILINE):
                command, *words = line.partition("  #")[0].split()
                yield command, tuple(word for word in words if word.startswith("--"))


@pytest.mark.parametrize(("command", "options"), sorted(set(commands())))
def test_commands_have_the_options_that_documents_use(command, options):
    known = {name for parameter in get_command(app).commands[command].params for name in (*parameter.opts, *parameter.secondary_opts)}
    assert set(options) <= known
