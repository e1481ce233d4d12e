"""torch.export takes every compacted network, for any batch size that the model itself takes."""

import pytest
import torch
from gallery import GALLERY
from masking import prune_at_random
from torch.export import Dim

import bayesprune as bp
from bayesprune.example_inputs import tensors_in, with_batch_size
from bayesprune.graph.tracing import relative_difference

FIXED_BATCH = {"vit_matmul", "static_batch_view"}


@pytest.mark.parametrize("dependent", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", GALLERY)
def test_exported(name, dependent):
    torch.manual_seed(0)
    inputs = GALLERY[name].inputs()
    gated = prune_at_random(bp.sparsify(GALLERY[name].build().eval(), "bb", example_inputs=inputs), 0.5)
    small = bp.compact(bp.make_dependent(gated).eval() if dependent else gated, inputs).model.eval()
    fixed = name in FIXED_BATCH
    shapes = None if fixed else tuple({0: Dim.AUTO} for _ in inputs)
    program = torch.export.export(small, inputs, dynamic_shapes=shapes, strict=False)
    other = inputs if fixed else with_batch_size(inputs, 5)
    with torch.no_grad():
        for got, expected in zip(tensors_in(program.module()(*other)), tensors_in(small(*other)), strict=True):
            assert relative_difference(got, expected) <= 1e-5
