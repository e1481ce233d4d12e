"""Random numbers as a pure function of a key and a place.

A gate that draws with ``torch.rand`` draws something else when it is compiled, vectorised over many models, or split over devices. Here a
draw is a hash of a 64-bit key and the element's index, in plain integer tensor operations: the same numbers everywhere, and no generator
state to save. The trainer derives the key from (seed, step, place). Where no key is given, modules fall back to torch's own generator, so
that an ordinary training loop needs to know nothing of this.

The mixing function is the three-round 32-bit hash of the Hash Prospector project (``triple32``, C. Wellons, public domain constants), with
the second word of the key added between its rounds; keys are made by SplitMix64 (Steele, Lea, Flood, 2014).
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from bayesprune.errors import InputError

Shape = Sequence[int]


def _int32(word: int) -> int:
    """The two's complement reading of an unsigned 32-bit word."""
    return word - (1 << 32) if word >= 1 << 31 else word


def _xorshift(x: Tensor, bits: int) -> Tensor:
    """x ^ (x >>> bits), the shift being a logical one, in place."""
    return x.bitwise_xor_((x >> bits).bitwise_and_((1 << (32 - bits)) - 1))


@dataclass(frozen=True)
class Columns:
    """Some columns of a table of random numbers.

    Attributes:
        chosen: their numbers, int32.
        width: how many columns the table has.
    """

    chosen: Tensor
    width: int


@dataclass(frozen=True)
class Share:
    """The samples of a batch that this process has, where several processes work on one batch.

    Attributes:
        start: the first of them.
        stop: the one after the last.
        total: how many samples the batch has.
        counted: False for a process that a small batch has no sample for. It looks at one of another's, so that all go through the same
            operations, but that sample counts there and not here.
    """

    start: int
    stop: int
    total: int
    counted: bool = True

    @property
    def samples(self) -> int:
        """How many samples are at hand."""
        return self.stop - self.start

    def within(self, rows: int) -> tuple[int, int] | None:
        """The first of these rows, the same number for each sample at hand, among the rows of the whole batch, and how many those are.

        None where the rows are no samples: they do not divide evenly among those at hand.
        """
        each, rest = divmod(rows, self.samples)
        return None if rest else (self.start * each, self.total * each)

    def rows(self, count: int, shared: int, samples: int) -> list[range]:
        """Where in the noise of the whole batch that of so many rows lies; see ``NoisyModule.uniform``."""
        found = self.within(samples)
        if found is None:
            return [range(count)]
        start, total = found
        firsts = [shared + block * total + start for block in range((count - shared) // samples)]
        return [range(shared), *(range(first, first + samples) for first in firsts)]


def keyed_uniform(
    key: Tensor,
    shape: Shape,
    dtype: torch.dtype = torch.float32,
    rows: Sequence[range] | None = None,
    columns: Columns | None = None,
) -> Tensor:
    """Uniform numbers in the open interval (0, 1): multiples of 2^-23, offset by 2^-24.

    Args:
        key: two int32 words.
        shape: what to draw; element i of the flattened result depends on the key and on i alone.
        dtype: of the result.
        rows: of a larger table, instead of those from zero on.
        columns: of a wider table, instead of all.
    """
    if rows is None and columns is None:
        index = torch.arange(math.prod(shape), dtype=torch.int32, device=key.device)
    else:
        index = _places(shape, rows, columns, key.device)
    x = index + key[0]
    x = _xorshift(x, 17).mul_(_int32(0xED5AD4BB))
    x = _xorshift(x, 11).add_(key[1]).mul_(_int32(0xAC4C1B51))
    x = _xorshift(x, 15).mul_(_int32(0x31848BAB))
    x = _xorshift(x, 14)
    mantissa = (x >> 9).bitwise_and_((1 << 23) - 1)
    return mantissa.to(dtype).add_(0.5).mul_(2.0**-23).reshape(list(shape))


def _places(shape: Shape, rows: Sequence[range] | None, columns: Columns | None, device: torch.device) -> Tensor:
    """The numbers that the elements of some rows and columns of a table have in the whole of it."""
    count, width = (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, shape[0])
    chosen = [torch.arange(part.start, part.stop, dtype=torch.int32, device=device) for part in rows or (range(count),)]
    if columns is None:
        columns = Columns(torch.arange(width, dtype=torch.int32, device=device), width)
    return (torch.cat(chosen)[:, None] * columns.width + columns.chosen).flatten()


def _splitmix64(state: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        z = state + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))


def derive_keys(seed: int, steps: Sequence[int] | np.ndarray, streams: int) -> Tensor:
    """Keys of shape ``(len(steps), streams, 2)``: an independent one for each step and stream."""
    if seed < 0 or seed >= 1 << 63:
        raise InputError(f"a seed is a whole number from 0 to 2^63 - 1, not {seed}")
    root = _splitmix64(np.asarray([seed], dtype=np.uint64))
    per_step = _splitmix64(root ^ np.asarray(steps, dtype=np.uint64))
    keys = _splitmix64(per_step[:, None] ^ np.arange(1, streams + 1, dtype=np.uint64)[None, :])
    return torch.from_numpy(keys.view(np.int32).reshape(len(steps), streams, 2).copy())


def derive_seed(seed: int, *purpose: str | int) -> int:
    """A seed for one purpose out of many, from a run's seed and what it is for."""
    digest = hashlib.blake2b("/".join(map(str, (seed, *purpose))).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class NoisyModule(nn.Module):
    """A module whose forward draws random numbers.

    ``noise_draws`` is how many independent draws one forward makes. ``noise_key`` holds a key for each of them, or nothing; it is a buffer,
    so that a stack of models has a stack of keys, but no part of the ``state_dict``. ``noise_columns`` is such a buffer too: where units
    were removed, the columns of the keyed draws that are left, so that the others draw what they drew before.
    """

    noise_draws: int = 0
    noise_key: Tensor | None
    noise_columns: Tensor | None
    share: Share | None = None
    """Which samples of a batch are at hand, while several processes work on it: they draw with one key the noise of one process."""

    def __init__(self) -> None:
        super().__init__()
        self.noise_width = 0
        self.register_buffer("noise_key", None, persistent=False)
        self.register_buffer("noise_columns", None, persistent=False)

    def uniform(self, draw: int, shape: Shape, like: Tensor, *, shared: int = 0, samples: int = 0) -> Tensor:
        """Uniform numbers in (0, 1) for the given draw of this forward, on the device and with the dtype of ``like``, but at least float32.

        Half precision has no room for the open interval: 1 - 2^-24 rounds to one, and float16 overflows on the way.

        Args:
            draw: which of the draws of this forward.
            shape: what to draw.
            like: for device and dtype.
            shared: how many rows at the beginning are for the batch as a whole.
            samples: how many rows are for samples, one each; they may come in several blocks of so many. With none, all is for the batch
                as a whole.
        """
        dtype = torch.promote_types(like.dtype, torch.float32)
        if self.noise_key is None:
            return torch.rand(list(shape), dtype=dtype, device=like.device).clamp(min=2.0**-25)
        rows = self.share.rows(shape[0], shared, samples) if self.share is not None and samples else None
        columns = None if self.noise_columns is None else Columns(self.noise_columns, self.noise_width)
        return keyed_uniform(self.noise_key[draw], shape, dtype, rows, columns)

    def normal(self, draw: int, shape: Shape, like: Tensor, *, shared: int = 0, samples: int = 0) -> Tensor:
        """Standard normal numbers for the given draw of this forward; see ``uniform``."""
        if self.noise_key is None:
            return torch.randn(list(shape), dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
        standard: Tensor = torch.special.ndtri(self.uniform(draw, shape, like, shared=shared, samples=samples))
        return standard


class NoiseKeys:
    """The keys of all noisy modules of a model, as parts of one tensor: a step's noise is set by one copy.

    Args:
        model: whose modules get their keys from here.
        seed: of the noise; or one for each of the models that are stacked on this one, whose keys are then in ``buffers``.
        device: where the keys lie.
    """

    def __init__(self, model: nn.Module, seed: int | Sequence[int], device: torch.device | str) -> None:
        self.seeds = [seed] if isinstance(seed, int) else list(seed)
        self.modules = {path: module for path, module in model.named_modules() if isinstance(module, NoisyModule)}
        self.streams = sum(module.noise_draws for module in self.modules.values())
        self.current = torch.zeros((len(self.seeds), max(self.streams, 1), 2), dtype=torch.int32, device=device)
        self.buffers: dict[str, Tensor] = {}
        """The keys of each noisy module, by the name of its buffer, with a leading dimension for the models."""
        start = 0
        for path, module in self.modules.items():
            part = self.current[:, start : start + module.noise_draws]
            self.buffers[f"{path}.noise_key" if path else "noise_key"] = part
            start += module.noise_draws
        self.attach()

    def attach(self) -> None:
        """Let the modules draw with these keys."""
        for module, part in zip(self.modules.values(), self.buffers.values(), strict=True):
            module.noise_key = part[0]

    def for_steps(self, first: int, count: int) -> Tensor:
        """A table with the keys of ``count`` steps, on the device."""
        steps = range(first, first + count)
        return torch.stack([derive_keys(seed, steps, max(self.streams, 1)) for seed in self.seeds], dim=1).to(self.current.device)

    def set(self, keys: Tensor) -> None:
        self.current.copy_(keys)

    @contextmanager
    def of_share(self, share: Share) -> Iterator[None]:
        """Let the modules draw what these samples of a batch get, for a while."""
        for module in self.modules.values():
            module.share = share
        try:
            yield
        finally:
            for module in self.modules.values():
                del module.share

    def release(self) -> None:
        """Give the modules back to torch's generator."""
        for module in self.modules.values():
            module.noise_key = None
