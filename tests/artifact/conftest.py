"""Files made once for the tests of artifacts, and a way to write descriptions that ``save`` never would."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save as serialise
from torch import Tensor, nn

from bayesprune.artifact import file, save

Damage = Callable[[dict[str, Any]], Any]


class Small(nn.Module):
    """A little of everything that a description can say: layers, functions, sizes, arithmetic, indices, a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(16, 6)
        self.scale = nn.Parameter(torch.rand(6))
        self.register_buffer("offset", torch.rand(6))

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = torch.nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        y = y.reshape(y.shape[0], y.shape[1] * 4)
        y = self.fc(y) * self.scale + self.offset
        first, second = y.chunk(2, dim=1)
        return {"logits": torch.cat([second, first], dim=1).clamp(min=-3.0), "pair": (y[:, 1:4:2], [first.mean(dim=1)])}


@pytest.fixture(scope="session")
def small_model() -> nn.Module:
    torch.manual_seed(0)
    return Small().eval()


@pytest.fixture(scope="session")
def small_input() -> Tensor:
    torch.manual_seed(1)
    return torch.randn(3, 1, 4, 4)


@pytest.fixture(scope="session")
def small_file(tmp_path_factory: pytest.TempPathFactory, small_model: nn.Module, small_input: Tensor) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "small.safetensors"
    save(small_model, path, example_inputs=small_input, certificate={"max_abs_error": 0.0}, cost={"macs": 12})
    return path


@pytest.fixture(scope="session")
def write_description() -> Callable[..., Path]:
    """Writes a file with any description, and a checksum that fits it."""

    def write(path: Path, tensors: dict[str, Tensor], description: Any, version: str = str(file.VERSION)) -> Path:
        text = description if isinstance(description, str) else json.dumps(description)
        header = {"format": file.FORMAT, "version": version, "description": text, "checksum": str(file._checksum(tensors, text))}
        path.write_bytes(serialise(tensors, header))
        return path

    return write


@pytest.fixture
def damaged(small_file: Path, tmp_path: Path, write_description: Callable[..., Path]) -> Callable[[Damage], Path]:
    """The small file after a change to its description; what the change returns takes the description's place."""

    def change(damage: Damage) -> Path:
        tensors, description = file.read(small_file)
        replaced = damage(description)
        return write_description(tmp_path / "damaged.safetensors", tensors, description if replaced is None else replaced)

    return change
