"""Thousands of damaged files: each loads and runs, or is one of our errors; nothing hangs, fills the memory or is executed."""

import copy
import json
import random
import resource
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from bayesprune import sparsify
from bayesprune.artifact import file, load, save
from bayesprune.errors import BayespruneError

SENTINEL = "SENTINEL"
CODE = [
    f"__import__('os').mkdir('{SENTINEL}')",
    f"x=open('{SENTINEL}','w')",
    "__class__",
    "__dict__",
    "forward",
    "x",
    "conv",
    "weight",
    "",
    "a.b",
    "\ud800",
]
EXTREME = [
    *(0, 1, -1, 2, 3, 7, 64, 1000, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 2**64, 10**300),
    *(0.0, -0.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan")),
    *(True, False, None, [], {}, [[]]),
    *({"step": "x"}, {"float": "nan"}, {"list": []}, {"ellipsis": True}, {"dtype": "int64"}, {"dtype": "complex64"}),
    *({"slice": [None, None, 0]}, {"slice": [0, 2**62, 1]}, {"tensor": [[2**31, 2**31], "float32"]}),
]


class Varied(nn.Module):
    """Kinds of layers and functions that the small network lacks."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8, padding_idx=0)
        self.conv = nn.Conv1d(8, 8, 3, padding=1, padding_mode="circular")
        self.up = nn.ConvTranspose1d(8, 8, 2, stride=2)
        self.lstm = nn.LSTM(8, 4, bidirectional=True, batch_first=True)
        self.norm = nn.GroupNorm(2, 8)
        self.pool = nn.AdaptiveAvgPool1d(4)
        self.head = nn.Linear(8, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]))

    def forward(self, tokens):
        x = self.embedding(tokens).transpose(1, 2)
        x = self.up(self.norm(self.conv(x)))
        x = nn.functional.interpolate(x, scale_factor=2.0)
        x = nn.functional.pad(self.pool(x), (1, 1)).transpose(1, 2)
        y = self.lstm(x)[0]
        q, k, v = (
            y.unflatten(-1, (2, 4)).permute(0, 2, 1, 3),
            x.unflatten(-1, (2, 4)).transpose(1, 2),
            y.unflatten(-1, (2, -1)).transpose(1, 2),
        )
        z = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        scores = torch.einsum("bid,bjd->bij", z, x).softmax(dim=-1)
        z = torch.cat((scores @ z, z.roll(1, dims=1)), dim=1).index_select(1, self.order)
        first = z.split(2, dim=1)[0]
        return self.head(first.expand(-1, 2, 8).masked_fill(first > 0.5, float("-inf")).clamp(min=-5.0)), z[:, -1, None, ::2]


def gated_model():
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)
    ).eval()
    return model, sparsify(model, "bb", example_inputs=torch.randn(2, 1, 4, 4))


@pytest.fixture(scope="module")
def originals(tmp_path_factory, small_file, small_input):
    """Name -> file, what to load it into, and inputs."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("originals")
    tokens = torch.randint(0, 7, (3, 5))
    save(Varied().eval(), folder / "varied", example_inputs=tokens, certificate={"a": [1, {"b": 2.5}]})
    model, gated = gated_model()
    save(gated, folder / "gated")
    return {
        "small": (small_file, None, small_input),
        "varied": (folder / "varied", None, tokens),
        "gated": (folder / "gated", model, torch.randn(3, 1, 4, 4)),
    }


def damage_bytes(content, draw):
    content = bytearray(content)
    header = 8 + int.from_bytes(content[:8], "little")
    kind = draw.randrange(5)
    if kind == 0:
        for _ in range(draw.choice((1, 1, 2, 8))):
            content[draw.randrange(header if draw.random() < 0.8 else len(content))] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del content[draw.randrange(len(content)) :]
    elif kind == 2:
        start = draw.randrange(header)
        del content[start : start + draw.randrange(1, 40)]
    elif kind == 3:
        start, source = draw.randrange(header), draw.randrange(len(content))
        content[start:start] = content[source : source + draw.randrange(1, 40)]
    else:
        content[: draw.randrange(1, 9)] = draw.randbytes(8)
    return bytes(content)


def places(data, found=None):
    """Every container of a nest of JSON with each of its keys or indices."""
    found = [] if found is None else found
    if not isinstance(data, (dict, list)):
        return found
    for key in data if isinstance(data, dict) else range(len(data)):
        found.append((data, key))
        places(data[key], found)
    return found


def damage_json(description, draw):
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        every = places(description)
        inner = [place for key in ("steps", "layers", "gates", "inputs") for place in places(description.get(key, []))]
        container, key = draw.choice(inner or every) if draw.random() < 0.6 else draw.choice(every)
        other, place = draw.choice(every)
        kind = draw.randrange(9)
        if kind <= 2:
            container[key] = copy.deepcopy(draw.choice(EXTREME))
        elif kind == 3:
            container[key] = draw.choice(CODE)
        elif kind == 4:
            container[key] = copy.deepcopy(other[place])
        elif kind == 5:
            del container[key]
        elif kind == 6 and isinstance(container, dict):
            container[draw.choice(CODE) if draw.random() < 0.5 else str(place)] = container.pop(key)
        elif isinstance(container[key], list):
            draw.shuffle(container[key]) if kind == 7 else container[key].extend(copy.deepcopy(container[key]))
        elif isinstance(container[key], (int, float)) and not isinstance(container[key], bool):
            container[key] = container[key] * draw.choice((-1, 2, 10**3, 10**6)) + draw.choice((0, 1))


def try_it(path, into, inputs):
    """How it went: loaded and ran, or refused."""
    try:
        model = load(path, into=into)
        with torch.no_grad():
            model(inputs)
    except BayespruneError as error:
        return "refused" if 0 < len(str(error)) < 5_000 else "refused in a strange way"
    return "ran"


@pytest.fixture(autouse=True)
def nothing_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert not Path(SENTINEL).exists()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 2 * 2**30, f"the memory grew by {grown >> 20} MB"


def outcomes(count, seed, once):
    draw = random.Random(seed)
    seen = {"ran": 0, "refused": 0}
    for _ in range(count):
        started = time.monotonic()
        seen[once(draw)] += 1
        assert time.monotonic() - started < 10
    return seen


def bytes_damaged(originals, path, name, count, seed):
    original, into, inputs = originals[name]
    content = original.read_bytes()

    def once(draw):
        path.write_bytes(damage_bytes(content, draw))
        return try_it(path, into, inputs)

    return outcomes(count, seed, once)


def json_damaged(originals, path, name, count, seed, write_description):
    original, into, inputs = originals[name]
    tensors, description = file.read(original)
    text = json.dumps(description)

    def once(draw):
        changed = json.loads(text)
        damage_json(changed, draw)
        return try_it(write_description(path, tensors, changed), into, inputs)

    return outcomes(count, seed, once)


@pytest.mark.parametrize("name", ["small", "varied", "gated"])
def test_damaged_bytes(name, originals, tmp_path):
    seen = bytes_damaged(originals, tmp_path / "damaged", name, 700, seed=0)
    assert seen["refused"] > 600


@pytest.mark.parametrize("name", ["small", "varied", "gated"])
def test_damaged_descriptions(name, originals, tmp_path, write_description):
    seen = json_damaged(originals, tmp_path / "damaged", name, 1_200, seed=0, write_description=write_description)
    assert seen["refused"] > 400
    assert seen["ran"] > 50, "what is changed must be small enough to pass now and then"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("name", ["small", "varied", "gated"])
def test_many_more(name, seed, originals, tmp_path, write_description):
    bytes_damaged(originals, tmp_path / "damaged", name, 1_000, seed)
    json_damaged(originals, tmp_path / "damaged", name, 3_000, seed, write_description)
