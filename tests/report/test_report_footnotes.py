import pytest
from reproduction import DATASET, NETWORK, diverged, row, write_results

from bayesprune.errors import ResultsError
from bayesprune.report import write_report
from bayesprune.report.comparison.results import read_results, read_variants
from bayesprune.report.document.footnotes import memory_sheet, selection_sheet, soft_count_sheet, threshold_sheet
from bayesprune.report.document.latencies import LATENCIES, latency_sheet
from bayesprune.report.document.provenance import provenance_lines, seconds_sheet
from bayesprune.report.document.variants import variant_sheet


def read(folder, rows):
    return read_results(write_results(folder, rows))[NETWORK, DATASET]


def texts(sheet):
    return [[cell.text for cell in line] for line in sheet.rows]


def at(error, units, speedup):
    return {"error": error, "kept": units, "speedup": speedup, "memory": 5.0}


def test_changes_with_the_threshold(tmp_path):
    lower = at(1.5, [100, 60, 42], 10.0)
    rows = [
        row("bb", "1", seed, 1.5, kept=[100, 60, 40], thresholds={"0.01": at(1.5 + change, [90, 60, 40], 11.0), "0.0001": lower})
        for seed, change in enumerate((0.0, -0.3, 0.02))
    ]
    sheet = threshold_sheet(read(tmp_path, [*rows, diverged("bb", "1", 3), row("dbb", "1", 0, 1.5)]))
    assert texts(sheet) == [
        ["BB", "1e-4", "3", "0.00", "0.00", "+1.0 %", "0.0 %"],
        ["BB", "1e-2", "3", "0.00", "-0.30", "-5.0 %", "+10.0 %"],
    ]


def test_soft_count_beside_ours(tmp_path):
    rows = [
        row("l0", "0.1/60000", seed, 1.5, speedup, soft={"kept": [80, 40, 20], "speedup": 2 * speedup, "memory": 3.0})
        for seed, speedup in enumerate((8.0, 9.0, 30.0))
    ]
    sheet = soft_count_sheet(read(tmp_path, rows))
    assert texts(sheet) == [["0.1/60000", "16.16", "6.21", "100-50-30", "9.00", "5.00", "80-40-20", "18.00", "3.00"]]


def test_what_dbb_chooses(tmp_path):
    sheet = selection_sheet(read(tmp_path, [row("dbb", "2", 0, 1.5, kept=[50.6, 25.5, 25.9], static_kept=[100, 50, 50])]))
    assert texts(sheet) == [["2", "100-50-50", "50-25-25", "50 %"]]


def test_no_table_without_rows(tmp_path):
    rows = read(tmp_path, [row("bb", "1", 0, 1.5), row("l0", "0.1/60000", 0, 1.5)])
    assert [make(rows) for make in (threshold_sheet, soft_count_sheet, selection_sheet)] == [None] * 3


def test_seconds_are_shares_of_a_fleet(tmp_path):
    looks = [{"epoch": epoch, "seconds": 30.0 * epoch, "error": 1.5, "kept": [1, 1, 1]} for epoch in (1, 2)]
    rows = [row("bb", "1", seed, 1.5, seconds=120.0, side_by_side=60, history=looks) for seed in range(3)]
    rows += [row("dense", None, 0, 1.5, seconds=50.0, side_by_side=5, epochs=100, history=looks[1:]), diverged("bb", "2", 0)]
    sheet = seconds_sheet(read(tmp_path, rows))
    assert sheet.title == "GPU seconds"
    assert texts(sheet) == [["Original", "1", "100", "5", "10.0", "10", "0"], ["BB", "4", "200", "60", "2.0", "6", "2"]]
    assert "All 5 models together took 16 seconds (0.3 minutes), of which 2 in first epochs" in sheet.note


def test_seconds_of_a_processor_are_not_those_of_a_gpu(tmp_path):
    assert seconds_sheet(read(tmp_path, [row("bb", "1", 0, 1.5, device="cpu")])).title == "Seconds"


def test_origin(tmp_path):
    lines = provenance_lines(read(tmp_path, [row("bb", "1", 4, 1.5), diverged("bb", "1", 2, torch="2.10.0")]))
    assert lines[:3] == ["models: 2, of which 1 diverged", "seeds: 2, 4", "recipe: paper"]
    assert "torch: 2.10.0, 2.9.0" in lines


VGG = {"network": "vgg-like", "kept": [20] * 15, "dataset": "cifar10", "side_by_side": 1}


def read_vgg(folder, rows):
    return read_results(write_results(folder, rows, "vgg-like-cifar10.jsonl"))["vgg-like", "cifar10"]


def test_memory_of_dbb_beside_bbs(tmp_path):
    rows = [row("bb", "6", 0, 7.0, memory=8.0, **VGG), row("dbb", "6", 0, 7.0, memory=9.0, right_memory=7.5, **VGG)]
    rows += [row("dbb", "6", 1, 7.0, memory=9.2, right_memory=7.7, **VGG), row("dbb", "1", 0, 7.0, memory=12.0, right_memory=11.0, **VGG)]
    sheet = memory_sheet(read_vgg(tmp_path, rows))
    assert texts(sheet) == [["1", "", "12.00", "11.00"], ["6", "8.00", "9.10", "7.60"]]
    assert memory_sheet(read(tmp_path, [row("dbb", "1", 0, 1.5)])) is None


def test_variants_beside_the_same_models(tmp_path):
    kinds = {"after-activation": ("after activation", False), "after-activation-shrinking": ("after activation", True)}
    for name, (placement, shrink) in kinds.items():
        own = [row("bb", "4", seed, 7.2, 4.5, seconds=90.0, placement=placement, shrink=shrink, **VGG) for seed in (0, 1)]
        write_results(tmp_path, own, f"vgg-like-cifar10-{name}.jsonl")
    usual = [row("bb", "4", seed, 7.0 + seed, 4.0, seconds=200.0, placement="before norm", shrink=False, **VGG) for seed in (0, 1, 2)]
    rows = read_vgg(tmp_path, [*usual, row("bb", "1", 0, 6.5, placement="before norm", **VGG)])
    sheet = variant_sheet(rows, read_variants(tmp_path)["vgg-like", "cifar10"])
    assert texts(sheet) == [
        ["BB", "4", "before norm", "as it is", "2", "7.50", "4.00", "5.00", "200"],
        ["BB", "4", "after activation", "as it is", "2", "7.20", "4.50", "5.00", "90"],
        ["BB", "4", "after activation", "shrinks", "2", "7.20", "4.50", "5.00", "90"],
    ]
    assert variant_sheet(rows, []) is None


def test_variants_alone_are_shown_too(tmp_path):
    own = [row("bb", "4", 0, 7.2, 4.5, placement="after activation", shrink=False, **VGG)]
    write_results(tmp_path / "results", own, "vgg-like-cifar10-after-activation.jsonl")
    write_report(tmp_path / "results", tmp_path / "report", lambda _: None)
    text = (tmp_path / "report" / "results.md").read_text(encoding="utf-8")
    assert "| BB | 4 | after activation | as it is | 1 | 7.20 | 4.50 | 5.00 | 120 |" in text
    assert "not run" in text


def test_variant_in_the_wrong_file(tmp_path):
    write_results(tmp_path, [row("bb", "4", 0, 7.2, placement="before norm", **VGG)], "vgg-like-cifar10-after-activation.jsonl")
    with pytest.raises(ResultsError, match="bb at 4, seed 0 was trained in another way"):
        read_variants(tmp_path)


@pytest.mark.parametrize(("field", "value"), [("placement", "somewhere"), ("shrink", "yes"), ("precision", "float8"), ("right_memory", -1)])
def test_wrong_words_about_the_training(tmp_path, field, value):
    with pytest.raises(ResultsError, match=field):
        read_vgg(tmp_path, [row("dbb", "1", 0, 7.0, **{field: value}, **VGG)])


def timed(**others):
    about = {"network": "vgg-like", "dataset": "cifar10", "method": "bb", "tradeoff": "6", "seed": 0, "recipe": "paper"}
    sizes = {"error": 7.1, "speedup": 4.4, "macs": 70_000_000, "parameters": 1_230_000, "shrink": False, "placement": "before norm"}
    times = {"batch_size": 1, "dense_ms": 15.0, "compacted_ms": 3.0, "faster": 5.0}
    return about | sizes | times | {"cpu": "a processor", "threads": 2, "torch": "2.13.0"} | others


def test_latency_beside_the_paper_count(tmp_path):
    own = timed(recipe="deep", tradeoff="5", shrink=True, placement="after activation")
    write_results(tmp_path, [timed(), timed(batch_size=64, shrink=True), timed(dataset="cifar100"), own], LATENCIES)
    sheet = latency_sheet(tmp_path, "vgg-like", "cifar10")
    assert texts(sheet) == [
        ["BB", "6", "0", "before norm", "7.10", "4.40", "70.0", "1.23", "1", "15.00", "3.00", "5.00"],
        ["BB", "6", "0", "before norm, shrinks", "7.10", "4.40", "70.0", "1.23", "64", "15.00", "3.00", "5.00"],
    ]
    assert "a processor, 2 threads, torch 2.13.0" in sheet.note
    of_deep = latency_sheet(tmp_path, "vgg-like", "cifar10", "deep")
    assert [line[:4] for line in texts(of_deep)] == [["BB", "5", "0", "after activation, shrinks"]]
    assert latency_sheet(tmp_path, "lenet-500-300", "mnist") is None
    assert latency_sheet(tmp_path / "nowhere", "vgg-like", "cifar10") is None
    write_results(tmp_path, [timed(dense_ms="fast")], LATENCIES)
    with pytest.raises(ResultsError, match="'dense_ms' is not a number"):
        latency_sheet(tmp_path, "vgg-like", "cifar10")
