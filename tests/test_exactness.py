"""Our removal beside an oracle: the cases of benchmarks/exactness.py, and the page that is made of its rows."""

import importlib.util
import sys
from pathlib import Path

import pytest

from bayesprune.storage import read_rows

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def exactness():
    """The benchmark as a module; it puts tests/ on the path, which is there already."""
    spec = importlib.util.spec_from_file_location("exactness", ROOT / "benchmarks" / "exactness.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = before
        del sys.modules[spec.name]


def test_page_shows_the_rows(exactness):
    rows = read_rows(ROOT / "results" / "exactness.jsonl")
    assert exactness.page(rows) == (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8"), "benchmarks/exactness.py --report"


def test_every_case_has_its_rows(exactness):
    rows = read_rows(ROOT / "results" / "exactness.jsonl")
    expected = {(case.name, case.placement, dtype) for case in exactness.CASES for dtype in exactness.EXACT}
    assert {exactness.key_of(row) for row in rows} == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_exact_in_float64_and_never_larger_than_an_exact_oracle(exactness):
    pytest.importorskip("torch_pruning")
    for case in exactness.CASES:
        if not case.one_by_one:
            continue  # ResNet-50, which takes minutes in float64
        ours, theirs = exactness.ours(case, "float64"), exactness.theirs(case, "float64")
        assert ours["ours_outcome"] == "exact", case.key
        if theirs["theirs_outcome"] == "exact":
            assert ours["ours_macs"] <= theirs["theirs_macs"], case.key


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("key", "outcome"),
    [
        ("MLP, hidden units only", "exact"),
        ("U-Net, all gates", "exact"),
        ("ResNet, basic blocks, one residual branch", "wrong"),
        ("ResNet, basic blocks, a layer with no filter left", "refuses"),
        ("Static view(-1, 128), all gates", "fails"),
    ],
)
def test_oracle_is_judged(exactness, key, outcome):
    pytest.importorskip("torch_pruning")
    case = next(case for case in exactness.CASES if case.key == key)
    assert exactness.theirs(case, "float64")["theirs_outcome"] == outcome
