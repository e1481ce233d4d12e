"""Keyed noise: a pure function of key and place, uniform in the open interval, without visible dependence between neighbours."""

import copy
import math

import pytest
import torch
from torch import nn

from bayesprune.errors import InputError
from bayesprune.models import KeyedDropout
from bayesprune.noise import NoiseKeys, NoisyModule, derive_keys, derive_seed, keyed_uniform

WORD = 1 << 32
MULTIPLIERS = (0xED5AD4BB, 0xAC4C1B51, 0x31848BAB)
COUNT = 1 << 17


class Noisy(NoisyModule):
    noise_draws = 2

    def forward(self, x):
        return x + self.uniform(0, x.shape, x) + self.normal(1, x.shape, x)


def key_of(seed=1, step=0, stream=0):
    return derive_keys(seed, [step], stream + 1)[0, stream]


def draw(seed=1, step=0, stream=0, count=COUNT):
    return keyed_uniform(key_of(seed, step, stream), (count,), torch.float64)


def signed(word):
    return word - WORD if word >= WORD // 2 else word


def mantissa_by_hand(index, key):
    """The hash in Python's whole numbers."""
    x = (index + key[0]) % WORD
    x ^= x >> 17
    x = x * MULTIPLIERS[0] % WORD
    x ^= x >> 11
    x = (x + key[1]) * MULTIPLIERS[1] % WORD
    x ^= x >> 15
    x = x * MULTIPLIERS[2] % WORD
    return (x ^ x >> 14) >> 9


def undo_shift(x, bits):
    y = x
    for _ in range(32 // bits):
        y = x ^ y >> bits
    return y


def key_that_draws(mantissa, second_word):
    """The first word of the key whose element 0 is the given mantissa: the hash run backwards."""
    inverses = [pow(multiplier, -1, WORD) for multiplier in MULTIPLIERS]
    x = undo_shift(mantissa << 9, 14) * inverses[2] % WORD
    x = (undo_shift(x, 15) * inverses[1] - second_word) % WORD
    x = undo_shift(x, 11) * inverses[0] % WORD
    return undo_shift(x, 17)


@pytest.mark.parametrize("key", [(0, 0), (1, 2), (WORD - 1, WORD - 5), (0x9E3779B9, 0x7F4A7C15)])
def test_agrees_with_the_hash_in_whole_numbers(key):
    drawn = keyed_uniform(torch.tensor([signed(word) for word in key], dtype=torch.int32), (50,), torch.float64)
    assert drawn.tolist() == [(mantissa_by_hand(index, key) + 0.5) * 2.0**-23 for index in range(50)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mantissa", [0, 1, 2**22, 2**23 - 2, 2**23 - 1])
def test_the_most_extreme_mantissas_stay_inside_the_open_interval(mantissa, dtype):
    key = torch.tensor([signed(key_that_draws(mantissa, 12345)), 12345], dtype=torch.int32)
    (value,) = keyed_uniform(key, (1,), dtype).tolist()
    assert value == (mantissa + 0.5) * 2.0**-23
    assert 0.0 < value < 1.0


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_module_draws_within_the_open_interval_for_activations_of_any_precision(dtype, keyed):
    module = Noisy()
    if keyed:
        NoiseKeys(module, 0, "cpu")
    torch.manual_seed(0)
    like = torch.zeros((), dtype=dtype)
    u = module.uniform(0, (COUNT,), like).double()
    assert u.min() > 0.0
    assert u.max() < 1.0
    assert abs(u.mean() - 0.5) < 5 / math.sqrt(12 * COUNT) + 2e-3
    assert module.normal(1, (COUNT,), like).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_keyed_dropout_drops_at_its_rate_in_any_precision(dtype):
    dropout = KeyedDropout(0.3)
    keys = NoiseKeys(dropout, 0, "cpu")
    keys.set(keys.for_steps(0, 1)[0])
    dropped = (dropout(torch.ones(COUNT, 1, dtype=dtype)) == 0).double().mean().item()
    assert abs(dropped - 0.3) < 5 * math.sqrt(0.3 * 0.7 / COUNT)


def test_moments():
    u = draw()
    error = 1 / math.sqrt(COUNT)
    assert abs(u.mean() - 1 / 2) < 5 * error * math.sqrt(1 / 12)
    assert abs(u.square().mean() - 1 / 3) < 5 * error * math.sqrt(4 / 45)
    assert abs(u.pow(3).mean() - 1 / 4) < 5 * error * math.sqrt(9 / 112)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_uniformity(seed):
    bins = 1024
    counts = torch.histc(draw(seed), bins, 0.0, 1.0)
    chi_square = ((counts - COUNT / bins).square() / (COUNT / bins)).sum().item()
    assert abs(chi_square - (bins - 1)) < 5 * math.sqrt(2 * (bins - 1))


def test_low_bits_are_uniform_too():
    low = (draw() * 2**23 - 0.5).round().long() % 256
    counts = torch.bincount(low, minlength=256).double()
    chi_square = ((counts - COUNT / 256).square() / (COUNT / 256)).sum().item()
    assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


def correlation(a, b):
    return ((a - 0.5) * (b - 0.5)).mean().item() * 12


@pytest.mark.parametrize("lag", [1, 2, 3, 7, 64, 100, 1024])
def test_no_serial_correlation(lag):
    u = draw()
    assert abs(correlation(u[lag:], u[:-lag])) < 5 / math.sqrt(COUNT - lag)


NEIGHBOURS = [
    ({"seed": 1}, {"seed": 2}),
    ({"seed": 0}, {"seed": 1 << 32}),
    ({"step": 0}, {"step": 1}),
    ({"step": 41}, {"step": 42}),
    ({"stream": 0}, {"stream": 1}),
    ({"step": 1, "stream": 0}, {"step": 0, "stream": 1}),
    ({"seed": 1, "step": 0}, {"seed": 0, "step": 1}),
]


@pytest.mark.parametrize(("one", "other"), NEIGHBOURS)
def test_neighbours_are_independent(one, other):
    """Neither correlated, at any of several shifts, nor dependent as a chi-square over a grid of pairs sees it."""
    a, b = draw(**one), draw(**other)
    for shift in (0, 1, -1, 17):
        assert abs(correlation(a, b.roll(shift))) < 5 / math.sqrt(COUNT)
    cells = 32
    pairs = (a * cells).long() * cells + (b * cells).long()
    counts = torch.bincount(pairs, minlength=cells**2).double()
    chi_square = ((counts - COUNT / cells**2).square() / (COUNT / cells**2)).sum().item()
    assert abs(chi_square - (cells**2 - 1)) < 5 * math.sqrt(2 * (cells**2 - 1))


def test_an_element_over_many_steps_is_uniform_and_uncorrelated():
    """What one unit sees in the course of training: the first draw of each of many keys."""
    steps = 20_000
    keys = derive_keys(3, range(steps), 1)[:, 0]
    u = torch.vmap(lambda key: keyed_uniform(key, (2,), torch.float64))(keys)
    counts = torch.histc(u[:, 0], 100, 0.0, 1.0)
    assert abs(((counts - steps / 100).square() / (steps / 100)).sum().item() - 99) < 5 * math.sqrt(2 * 99)
    assert abs(correlation(u[1:, 0], u[:-1, 0])) < 5 / math.sqrt(steps)
    assert abs(correlation(u[:, 0], u[:, 1])) < 5 / math.sqrt(steps)


def test_keys_do_not_collide():
    keys = torch.cat([derive_keys(seed, range(300), 20).reshape(-1, 2) for seed in range(5)])
    assert len(keys.unique(dim=0)) == len(keys) == 5 * 300 * 20


def test_shapes_share_their_beginning():
    key = key_of()
    flat = keyed_uniform(key, (24,))
    assert torch.equal(keyed_uniform(key, (4, 6)).flatten(), flat)
    assert torch.equal(keyed_uniform(key, (2, 3, 4)).flatten(), flat)
    assert torch.equal(keyed_uniform(key, (7,)), flat[:7])
    assert torch.equal(keyed_uniform(key, (24,), torch.float64).float(), flat)
    assert keyed_uniform(key, (0, 5)).shape == (0, 5)


def test_a_table_of_steps_is_the_same_however_it_is_cut():
    whole = derive_keys(9, range(10), 3)
    assert whole.shape == (10, 3, 2)
    assert whole.dtype == torch.int32
    assert torch.equal(whole[4:7], derive_keys(9, range(4, 7), 3))
    assert torch.equal(whole[:, :2], derive_keys(9, range(10), 2))


def test_vectorised_equals_one_by_one():
    keys = derive_keys(5, range(4), 1)[:, 0]
    stacked = torch.vmap(lambda key: keyed_uniform(key, (3, 5)))(keys)
    assert torch.equal(stacked, torch.stack([keyed_uniform(key, (3, 5)) for key in keys]))


def test_compiled_equals_eager_to_the_last_bit():
    torch.compiler.reset()
    compiled = torch.compile(lambda key: keyed_uniform(key, (1000,)), fullgraph=True)
    for step in range(3):
        assert torch.equal(compiled(key_of(step=step)), keyed_uniform(key_of(step=step), (1000,)))


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(InputError, match=r"seed.*0 to 2\^63"):
        derive_keys(seed, [0], 1)


def test_seeds_for_several_purposes_differ_and_can_be_used():
    purposes = [(), ("data",), ("noise",), ("noise", 0), ("noise", 1), ("noise", "prune", 3)]
    seeds = [derive_seed(seed, *purpose) for seed in range(100) for purpose in purposes]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert derive_seed(1, "data") == derive_seed(1, "data")
    derive_keys(max(seeds), [0], 1)


def test_normal_draws():
    module = Noisy()
    keys = NoiseKeys(module, 4, "cpu")
    keys.set(keys.for_steps(0, 1)[0])
    x = module.normal(1, (COUNT,), torch.zeros((), dtype=torch.float64))
    error = 1 / math.sqrt(COUNT)
    assert abs(x.mean()) < 5 * error
    assert abs(x.square().mean() - 1) < 5 * error * math.sqrt(2)
    assert abs(x.pow(4).mean() - 3) < 5 * error * math.sqrt(96)
    assert abs((x < -1.959964).double().mean() - 0.025) < 5 * math.sqrt(0.025 * 0.975) * error


def model():
    return nn.Sequential(Noisy(), nn.Linear(3, 3), nn.Sequential(Noisy(), KeyedDropout(0.5)))


def test_the_modules_keys_are_rows_of_one_table():
    net = model()
    keys = NoiseKeys(net, seed=7, device="cpu")
    assert keys.streams == 5
    table = keys.for_steps(10, 4)
    assert table.shape == (4, 1, 5, 2)
    keys.set(table[2])
    rows = torch.cat([net[0].noise_key, net[2][0].noise_key, net[2][1].noise_key])
    assert torch.equal(rows, derive_keys(7, [12], 5)[0])
    assert rows.unique(dim=0).shape[0] == 5
    x = torch.zeros(2, 3)
    first = net(x)
    assert torch.equal(first, net(x))
    keys.set(table[3])
    assert not torch.equal(first, net(x))


def test_keys_are_buffers_that_no_state_dict_sees():
    net = model()
    plain = set(net.state_dict())
    NoiseKeys(net, 0, "cpu")
    assert set(net.state_dict()) == plain
    assert sum(name.endswith("noise_key") for name, _ in net.named_buffers()) == 3


def test_a_copy_keeps_its_own_keys():
    net = model()
    keys = NoiseKeys(net, 0, "cpu")
    keys.set(keys.for_steps(0, 1)[0])
    twin = copy.deepcopy(net)
    before = twin[0].noise_key.clone()
    keys.set(keys.for_steps(1, 1)[0])
    assert torch.equal(twin[0].noise_key, before)


def test_released_modules_draw_from_torch():
    net = model()
    keys = NoiseKeys(net, 0, "cpu")
    x = torch.zeros(2, 3)
    assert torch.equal(net(x), net(x))
    keys.release()
    assert all(module.noise_key is None for module in keys.modules.values())
    torch.manual_seed(0)
    first = net(x)
    assert not torch.equal(first, net(x))
    torch.manual_seed(0)
    assert torch.equal(first, net(x))


def test_a_model_without_noise_has_an_empty_set_of_keys():
    keys = NoiseKeys(nn.Linear(2, 2), 0, "cpu")
    keys.set(keys.for_steps(0, 1)[0])
    assert keys.streams == 0
    assert keys.modules == {}
