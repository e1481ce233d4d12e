"""Models that write into themselves in evaluation mode: what the compacted network does not do any more is said."""

import copy
import warnings

import pytest
import torch
from masking import prune_units
from remembering import GOING_BY_IT, WRITTEN, Keeping, X

import bayesprune as bp
from bayesprune.errors import BayespruneWarning, InputError
from bayesprune.gates.beta_bernoulli import BetaBernoulli
from bayesprune.gates.hooks import put_on


def gated(kind):
    model = bp.sparsify(kind(), "bb", example_inputs=X).eval()
    return prune_units(model, {name: [0, 1] for name in bp.gates(model)})


@pytest.mark.parametrize("kind", WRITTEN)
def test_buffers_that_are_not_updated_any_more_are_named(kind):
    model, name = gated(kind), WRITTEN[kind]
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(BayespruneWarning, match=f"{kind.__name__} updates {name} when it is called.*the compacted network does not") as told:
        result = bp.compact(model, X)
    assert [each.filename for each in told] == [__file__]
    assert result.certificate.not_updated == (name,)
    assert f"{name}: no longer updated" in str(result.certificate)
    assert result.certificate.as_dict()["not_updated"] == [name]
    assert result.max_rel_error < 1e-5
    for path, value in model.state_dict().items():
        assert torch.equal(value, before[path]), "the gated model is not changed"
    torch.testing.assert_close(result.model(X), model(X))


@pytest.mark.parametrize("kind", GOING_BY_IT)
def test_models_that_go_by_what_they_wrote_are_refused(kind):
    model = kind().eval()
    message = f"{kind.__name__} does not compute the same twice.*wrote into {GOING_BY_IT[kind]} in earlier"
    with pytest.raises(InputError, match=message):
        bp.sparsify(model, example_inputs=X)
    put_on(model.fc2, "input", BetaBernoulli(8))
    with pytest.raises(InputError, match=message):
        bp.compact(model, X)


def test_models_that_keep_what_they_saw_in_attributes_are_left_as_they_were():
    model = gated(Keeping)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = bp.compact(model, X)
    assert result.certificate.not_updated == ()
    assert (model.calls, model.seen, model.last) == (0, [], None)
    copy.deepcopy(model)(X)


def test_batch_statistics_are_not_updated_in_evaluation_mode_either_way():
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).train()
    whole = bp.sparsify(model, "bb", example_inputs=X)
    result = bp.compact(prune_units(whole, {name: [0] for name in bp.gates(whole)}), X)
    assert result.certificate.not_updated == ()
