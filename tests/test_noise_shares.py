"""The noise of a part of a batch is the part of the noise of the whole."""

import pytest
import torch

from bayesprune.gates import METHODS
from bayesprune.models import KeyedDropout
from bayesprune.noise import Columns, NoiseKeys, NoisyModule, Share, keyed_uniform

UNITS, TOTAL = 6, 11
PARTS = [Share(0, 4, TOTAL), Share(4, 5, TOTAL), Share(5, 11, TOTAL)]


def keyed(module):
    keys = NoiseKeys(module, 3, "cpu")
    keys.set(keys.for_steps(7, 1)[0])
    return keys


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(UNITS,), (UNITS, 2, 3)])
def test_every_method_draws_for_a_part_what_it_draws_for_the_whole(method, shape):
    gate = METHODS[method](UNITS).eval()
    gate.sampling = True  # With running statistics: those of a batch are no matter of the noise.
    keys, x = keyed(gate), torch.randn(TOTAL, *shape)
    whole = gate(x)
    for share in PARTS:
        with keys.of_share(share):
            # Vectorised functions round the last elements of a tensor differently.
            torch.testing.assert_close(gate(x[share.start : share.stop]), whole[share.start : share.stop], rtol=1e-5, atol=1e-6)
    assert gate.share is None
    assert "share" not in vars(gate)
    assert torch.equal(gate(x), whole)


def test_dropout_draws_for_a_part_what_it_draws_for_the_whole():
    dropout = KeyedDropout(0.4)
    keys, x = keyed(dropout), torch.ones(TOTAL, 3, 5)
    whole = dropout(x)
    for share in PARTS:
        with keys.of_share(share):
            assert torch.equal(dropout(x[share.start : share.stop]), whole[share.start : share.stop])


class Blocks(NoisyModule):
    noise_draws = 1

    def draw(self, batch, kind="uniform"):
        return getattr(self, kind)(0, (2 + 3 * batch, 4), torch.zeros(()), shared=2, samples=batch)


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_shared_rows_and_blocks(kind):
    module = Blocks()
    keys = keyed(module)
    whole = module.draw(TOTAL, kind)
    blocks = whole[2:].view(3, TOTAL, 4)
    for share in PARTS:
        with keys.of_share(share):
            part = module.draw(share.samples, kind)
        assert torch.equal(part[:2], whole[:2])
        assert torch.equal(part[2:].view(3, -1, 4), blocks[:, share.start : share.stop])


def test_rows_that_are_several_for_a_sample():
    share = Share(4, 6, TOTAL)
    assert share.within(2) == (4, TOTAL)
    assert share.within(6) == (12, 3 * TOTAL)
    assert share.within(5) is None


def test_rows_that_are_no_samples_are_the_same_for_all():
    """Of a sequence-first model, whose first dimension is not split."""
    module = Blocks()
    keys = keyed(module)
    whole = module.draw(7)
    with keys.of_share(Share(4, 6, TOTAL)):
        assert torch.equal(module.draw(7), whole)


def test_rows_and_columns_of_a_larger_table():
    key = torch.tensor([5, 9], dtype=torch.int32)
    whole = keyed_uniform(key, (8, 5))
    chosen = torch.tensor([0, 3], dtype=torch.int32)
    rows = [range(1), range(4, 6)]
    assert torch.equal(keyed_uniform(key, (3, 5), rows=rows), whole[[0, 4, 5]])
    assert torch.equal(keyed_uniform(key, (8, 2), columns=Columns(chosen, 5)), whole[:, [0, 3]])
    assert torch.equal(keyed_uniform(key, (3, 2), rows=rows, columns=Columns(chosen, 5)), whole[[0, 4, 5]][:, [0, 3]])
    assert torch.equal(keyed_uniform(key, (2,), columns=Columns(chosen, 5)), whole[0, [0, 3]])
