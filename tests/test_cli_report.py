import pytest
from refusals import refused
from reproduction import ROWS, as_printed, row, write_results

from bayesprune.report.comparison.remarks import REMARKS


def test_report(command, tmp_path):
    write_results(tmp_path / "results", as_printed())
    result = command("report", "--results", tmp_path / "results", "--out", tmp_path / "new" / "docs")
    assert result.code == 0
    (said,) = result.err.splitlines()
    assert said.endswith("lenet-500-300-mnist-dbb.safetensors: figures of lenet-500-300 on mnist that need it were not drawn")
    docs = tmp_path / "new" / "docs"
    expected = [docs / "figures" / "tradeoffs-lenet-500-300.png", docs / "results.md", docs / "report.html"]
    assert result.out.splitlines() == [f"written to {path}" for path in expected]
    assert all(path.stat().st_size > 1000 for path in expected)
    assert expected[0].read_bytes().startswith(b"\x89PNG")


def test_folders_are_results_and_docs_unless_told_otherwise(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_results(tmp_path / "results", as_printed(seeds=1))
    assert command("report").code == 0
    assert (tmp_path / "docs" / "report.html").is_file()


def test_help(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result = command("report", "--help")
    assert result.code == 0
    assert "--results" in result.out
    assert "bayesprune report --results mine" in result.out
    assert "report" in command("--help").out


def test_nothing_to_report(command, tmp_path):
    assert refused(command("report", "--results", tmp_path / "none", "--out", tmp_path / "docs"), "no folder", "--results")
    assert refused(command("report", "--results", tmp_path, "--out", tmp_path / "docs"), "no rows", ROWS)
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda folder: (folder / ROWS).write_text("{"), "damaged"),
        (lambda folder: (folder / ROWS).write_bytes(b"\xff\xfe"), "damaged"),
        (lambda folder: (folder / ROWS).write_text("\n\n"), "damaged"),
        (lambda folder: (folder / ROWS).write_text("{}\n"), "line 1: the field 'status' is missing"),
        (lambda folder: write_results(folder, [row("bb", "1", 0, 1.0, recipe="fast")]), "recipe 'fast'"),
        (lambda folder: (folder / REMARKS).write_text("[nowhere]\nbb = 'x'"), "no network is called 'nowhere'"),
    ],
)
def test_damaged_results(command, tmp_path, damage, complaint):
    folder = write_results(tmp_path / "results", as_printed(seeds=1))
    damage(folder)
    assert refused(command("report", "--results", folder, "--out", tmp_path / "docs"), complaint)
    assert not (tmp_path / "docs").exists()


def test_no_place_to_write(command, tmp_path):
    folder = write_results(tmp_path / "results", as_printed(seeds=1))
    (tmp_path / "file").write_text("")
    assert refused(command("report", "--results", folder, "--out", tmp_path / "file"), "cannot make the folder")
    (tmp_path / "docs" / "results.md").mkdir(parents=True)
    assert refused(command("report", "--results", folder, "--out", tmp_path / "docs"), "cannot write", "results.md")


def test_figure_that_cannot_be_read(command, tmp_path):
    folder = write_results(tmp_path / "results", as_printed(seeds=1))
    (tmp_path / "docs" / "figures" / "kept-units-lenet-500-300.png").mkdir(parents=True)
    assert refused(command("report", "--results", folder, "--out", tmp_path / "docs"), "cannot read", "kept-units")
