from reproduction import NETWORK, as_printed, row, write_results

import bayesprune.experiments.fields as fields
from bayesprune.report import write_report
from bayesprune.report.comparison.results import own_recipe_file


def with_history(gate_count, **others):
    kept = [10] * gate_count
    history = [{"epoch": epoch, "seconds": 2.0 * epoch, "error": 2.0, "kept": kept} for epoch in (1, 2)]
    return row("bb", "1", 0, 1.0, kept=kept, history=history, **others)


def test_histories_are_drawn_where_there_are_any(tmp_path):
    results = write_results(tmp_path / "results", [with_history(3)])
    write_results(results, as_printed("lenet5-caffe", seeds=1), "lenet5-caffe-mnist.jsonl")
    write_results(results, [with_history(15, network="vgg-like", dataset="cifar100")], "vgg-like-cifar100.jsonl")
    written = write_report(results, tmp_path / "docs")
    names = {path.name for path in written if path.name.startswith("kept-units")}
    assert names == {"kept-units-lenet-500-300.png", "kept-units-vgg-like-cifar100.png"}
    assert all(path.is_file() for path in written)


def test_every_file_of_rows_is_read_once(tmp_path, monkeypatch):
    results = write_results(tmp_path / "results", [with_history(3)])
    write_results(results, [with_history(3, recipe="consistent")], own_recipe_file("consistent", NETWORK))
    read, names = fields.read_rows, []
    monkeypatch.setattr(fields, "read_rows", lambda path: (names.append(path.name), read(path))[1])
    write_report(results, tmp_path / "docs")
    assert names == ["lenet-500-300-mnist.jsonl", own_recipe_file("consistent", NETWORK)]


def test_rows_of_our_own_recipe_alone(tmp_path):
    results = tmp_path / "results"
    write_results(results, [with_history(3, recipe="consistent")], own_recipe_file("consistent", NETWORK))
    (results / "own-recipe-notes.md").write_text("no rows")
    write_report(results, tmp_path / "docs")
    for name in ("results.md", "report.html"):
        text = (tmp_path / "docs" / name).read_text(encoding="utf-8")
        assert "A recipe of our own: consistent" in text
        assert "How many rows are reached" not in text
