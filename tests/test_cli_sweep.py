from refusals import refused

from bayesprune.storage import read_rows


def test_sweep(command, tmp_path, digits_folder):
    grid = tmp_path / "grid.toml"
    grid.write_text('methods = ["bb", "cd"]\nseeds = [0, 1]\nepochs = 1\ndevice = "cpu"\n')
    folder = tmp_path / "sweep"
    first = command("sweep", grid, "--data-dir", digits_folder, "--out", folder)
    assert first.code == 0
    assert "4 models" in first.out
    assert len(read_rows(folder / "rows.jsonl")) == 4
    assert (folder / "tradeoffs.png").exists()
    again = command("sweep", "--resume", folder)
    assert (again.code, again.out.splitlines()[1:-1]) == (0, first.out.splitlines()[1:-1])


def test_sweep_of_nonsense(command, tmp_path):
    grid = tmp_path / "grid.toml"
    grid.write_text('metods = ["bb"]')
    assert refused(command("sweep", grid), "metods", "Did you mean 'methods'")
    grid.write_text("methods = [")
    assert refused(command("sweep", grid), "grid.toml is not a TOML file")
    assert refused(command("sweep", tmp_path / "none.toml"), "cannot read", "none.toml")
    assert refused(command("sweep", "--seeds", "0,x"), "--seeds takes", "0,x")
    assert refused(command("sweep", "--resume", tmp_path), "not a sweep's folder")
    assert refused(command("sweep", "--resume", tmp_path, "--seeds", "1"), "needs no other option")


def test_images_of_another_size(command, tmp_path, make_digits):
    folder = make_digits(tmp_path / "data", size=14)
    result = command("sweep", "--seeds", "0", "--epochs", "1", "--out", tmp_path / "sweep", "--data-dir", folder)
    assert result.code == 2
    assert "14" in result.err.splitlines()[-1]
    assert "Traceback" not in result.err


def test_folder_of_something_else_stays_as_it_is(command, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    assert refused(command("sweep", "--seeds", "0", "--epochs", "1", "--out", tmp_path), "not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
