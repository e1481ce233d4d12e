"""Our removal beside an oracle: the cases of benchmarks/exactness, and the page that is made of its rows."""

from pathlib import Path

import pytest

from bayesprune.storage import read_rows
from benchmarks.exactness.cases import CASES
from benchmarks.exactness.ours import ours
from benchmarks.exactness.page import page
from benchmarks.exactness.reference import EXACT
from benchmarks.exactness.rows import key_of
from benchmarks.exactness.torch_pruning import theirs

ROOT = Path(__file__).resolve().parents[1]


def test_page_shows_the_rows():
    rows = read_rows(ROOT / "results" / "exactness.jsonl")
    assert page(rows) == (ROOT / "docs" / "exactness.md").read_text(encoding="utf-8"), "python -m benchmarks.exactness --report"


def test_every_case_has_its_rows():
    rows = read_rows(ROOT / "results" / "exactness.jsonl")
    expected = {(case.name, case.placement, dtype) for case in CASES for dtype in EXACT}
    assert {key_of(row) for row in rows} == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_exact_in_float64_and_never_larger_than_an_exact_oracle():
    pytest.importorskip("torch_pruning")
    for case in CASES:
        if not case.one_by_one:
            continue  # ResNet-50, which takes minutes in float64
        mine, oracle = ours(case, "float64"), theirs(case, "float64")
        assert mine["ours_outcome"] == "exact", case.key
        if oracle["theirs_outcome"] == "exact":
            assert mine["ours_macs"] <= oracle["theirs_macs"], case.key


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
def test_oracle_is_judged(key, outcome):
    pytest.importorskip("torch_pruning")
    case = next(case for case in CASES if case.key == key)
    assert theirs(case, "float64")["theirs_outcome"] == outcome
