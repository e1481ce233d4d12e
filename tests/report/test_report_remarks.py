import pytest

from bayesprune.errors import ResultsError, StorageError
from bayesprune.report.comparison.remarks import REMARKS, read_remarks


def test_remarks(tmp_path):
    assert read_remarks(tmp_path) == {}
    (tmp_path / REMARKS).write_text(
        '[lenet-500-300]\nvib = """Two\nlines."""\n[vgg-like-cifar10]\nbb = "x"\n[recipes]\nsmooth = "y"', encoding="utf-8"
    )
    assert read_remarks(tmp_path) == {"lenet-500-300": {"vib": "Two lines."}, "vgg-like-cifar10": {"bb": "x"}, "recipes": {"smooth": "y"}}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[lenet-500]\nvib = "x"', "no network is called 'lenet-500'.*Did you mean 'lenet-500-300'"),
        ('[lenet-500-300]\nvibe = "x"', "lenet-500-300: no method is called 'vibe'.*Did you mean 'vib'"),
        ("[lenet-500-300]\nvib = 3", "remark on vib is no text"),
        ("lenet-500-300 = 3", "is no table: write .* for each method"),
        ("recipes = 3", "is no table: write .* for each recipe"),
        ('[recipes]\nsmoth = "x"', "recipes: no recipe is called 'smoth'.*Did you mean 'smooth'"),
    ],
)
def test_wrong_remarks(tmp_path, text, complaint):
    (tmp_path / REMARKS).write_text(text, encoding="utf-8")
    with pytest.raises(ResultsError, match=complaint):
        read_remarks(tmp_path)


def test_no_toml(tmp_path):
    (tmp_path / REMARKS).write_text("[lenet", encoding="utf-8")
    with pytest.raises(StorageError, match=f"{REMARKS} is not a TOML file"):
        read_remarks(tmp_path)
