import pytest
from reproduction import NETWORK, as_printed, row, write_results

from bayesprune.experiments.protocol import OWN_TARGETS, Target
from bayesprune.report import write_report
from bayesprune.report.comparison.pairs import compare
from bayesprune.report.comparison.points import points_of
from bayesprune.report.comparison.results import own_recipe_file, read_own_recipes
from bayesprune.report.document.own_recipe import attempts, own_recipe_sheets
from bayesprune.report.figures.own_recipe_curves import draw_own_recipes
from bayesprune.report.figures.tradeoff_axes import colour_of

RECIPE = "consistent"


def read(folder, rows):
    return read_own_recipes(write_results(folder, rows, own_recipe_file(RECIPE, NETWORK)))[RECIPE]


def by_network(rows):
    return {network: points_of([row for row in rows if row.network == network]) for network in sorted({row.network for row in rows})}


def five(tradeoff, errors, speedup):
    return [row("dbb", tradeoff, seed, error, speedup, recipe=RECIPE) for seed, error in enumerate(errors)]


TARGETS = (Target(1.26, 13.4, "1"), Target(1.40, 38.7, "3"), Target(1.59, 47.1, "5"))


@pytest.mark.parametrize("recipe", OWN_TARGETS)
def test_targets_are_the_papers_best(recipe):
    targets = {network: [(target.error, target.speedup) for target in own] for network, own in OWN_TARGETS[recipe].items()}
    best = {"lenet-500-300": [(1.26, 13.4), (1.40, 38.7), (1.59, 47.1)], "lenet5-caffe": [(0.86, 13.8)], "vgg-cifar10": [(7.52, 5.57)]}
    assert targets
    assert targets == {network: best[network] for network in targets}


def test_each_target_has_the_point_that_was_chosen_for_it(tmp_path):
    better = [row("bb", "1", seed, 0.9, 60.0, recipe=RECIPE) for seed in range(5)]
    rows = [*five("1", [1.10] * 5, 13.3), *five("2", [0.80] * 5, 60.0), *five("3", [1.22] * 5, 38.7), *better]
    first, second, third = attempts(points_of(read(tmp_path, rows)), TARGETS)
    assert (first.point.method, first.point.tradeoff) == ("dbb", "1")
    assert second.point.tradeoff == "3"
    assert third.point is None
    assert [first.beaten, second.beaten, third.beaten] == [False, True, False], "the first is not fast enough"


@pytest.mark.parametrize(("middle", "beaten"), [(1.24, True), (1.25, False), (1.26, False)])
def test_beaten_by_more_than_the_standard_error(tmp_path, middle, beaten):
    errors = [middle - 0.04, middle - 0.02, middle, middle + 0.02, middle + 0.04]
    (point,) = points_of(read(tmp_path, five("1", errors, 14.0)))
    assert point.standard_error == pytest.approx(0.0141421, rel=1e-4)
    assert attempts([point], TARGETS)[0].beaten is beaten


def test_one_seed_beats_nothing(tmp_path):
    (point,) = points_of(read(tmp_path, five("1", [0.5], 60.0)))
    assert not any(attempt.beaten for attempt in attempts([point], TARGETS))


def test_tables(tmp_path):
    targets, points = own_recipe_sheets(RECIPE, by_network(read(tmp_path, five("1", [1.1, 1.1, 1.2, 1.1, 1.0], 14.0))))
    assert [cell.text for cell in targets.rows[0]] == ["below 1.26", "13.4 or more", "DBB at 1", "1.10 ± 0.03", "14.00", "5.00", "5", "yes"]
    assert [line[-1].text for line in targets.rows] == ["yes", "no", "no"]
    assert [cell.text for cell in points.rows[0]] == ["DBB", "1", "1.10 ± 0.03", "14.00", "5.00", "100-50-30", "5"]
    assert own_recipe_sheets(RECIPE, {}) == []


def test_each_network_has_its_targets(tmp_path):
    write_results(tmp_path, five("1", [1.1] * 5, 14.0), own_recipe_file(RECIPE, NETWORK))
    others = [row("dbb", "9", seed, 0.8, 14.0, kept=[4] * 4, network="lenet5-caffe", recipe=RECIPE) for seed in range(5)]
    write_results(tmp_path, others, own_recipe_file(RECIPE, "lenet5-caffe"))
    first, _, second, points = own_recipe_sheets(RECIPE, by_network(read_own_recipes(tmp_path)[RECIPE]))
    assert [first.title, second.title, points.title] == [
        "Targets on lenet-500-300",
        "Targets on lenet5-caffe",
        "All points on lenet5-caffe",
    ]
    assert [line[0].text for line in second.rows] == ["below 0.86"]
    assert [line[2].text for line in [first.rows[0], second.rows[0]]] == ["DBB at 1", "DBB at 9"]
    assert [line[1].text for line in points.rows] == ["9"]


def test_figure(tmp_path, monkeypatch):
    drawn = {}
    monkeypatch.setattr("bayesprune.report.figures.own_recipe_curves.write_figure", lambda figure, path: drawn.update({path: figure}))
    rows = [*five("1", [1.1, 1.1, 1.2, 1.1, 1.0], 14.0), *five("4", [1.4] * 5, 40.0), row("bb", "1", 0, 1.0, 9.0, recipe=RECIPE)]
    results = write_results(tmp_path / "results", as_printed())
    write_results(results, rows, own_recipe_file(RECIPE, NETWORK))
    write_report(results, tmp_path / "docs")
    ((path, figure),) = drawn.items()
    assert path.name == "own-recipes-lenet-500-300.png"
    (axes,) = figure.axes
    curves = {
        (line.get_marker(), line.get_color()): list(zip(*line.get_data(), strict=True)) for line in axes.lines if line.get_marker() == "s"
    }
    assert curves == {("s", colour_of("dbb")): [(14.0, 1.1), (40.0, 1.4)], ("s", colour_of("bb")): [(9.0, 1.0)]}
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["BB", "DBB", "the paper", "the paper's recipe, ours", RECIPE]
    assert len(axes.containers) == 2, "a single model has no standard error"


def test_figure_is_part_of_the_report(tmp_path):
    results = write_results(tmp_path / "results", as_printed())
    assert not any("own-recipes" in path.name for path in write_report(results, tmp_path / "docs"))
    write_results(results, five("1", [1.1] * 5, 14.0), own_recipe_file(RECIPE, NETWORK))
    assert tmp_path / "docs" / "figures" / "own-recipes-lenet-500-300.png" in write_report(results, tmp_path / "docs")
    assert "](figures/own-recipes-lenet-500-300.png)" in (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")


def test_network_without_rows_of_the_papers_recipe(tmp_path):
    about = {"network": "vgg-like", "dataset": "cifar10", "kept": [9] * 15, "recipe": "deep", "placement": "after activation"}
    looks = [{"epoch": epoch, "seconds": 9.0 * epoch, "error": 9.0, "kept": [60 - epoch] * 15} for epoch in (1, 2)]
    rows = [row(method, "5", 0, 7.0, 6.0, **about, history=looks, epochs=2) for method in ("bb", "dbb")]
    rows[1] |= {"right_memory": 4.5, "static_kept": [10] * 15}
    results = write_results(tmp_path / "results", rows, own_recipe_file("deep", "vgg-cifar10"))
    said = []
    written = {path.name for path in write_report(results, tmp_path / "docs", said.append)}
    assert [line.rpartition("/")[2].partition(":")[0] for line in said] == ["own-recipe-deep-vgg-cifar10-units.safetensors"]
    figures = {"own-recipes-vgg-like-cifar10.png", "kept-units-own-recipe-deep-vgg-cifar10.png"}
    assert figures <= written
    text, html = ((tmp_path / "docs" / name).read_text(encoding="utf-8") for name in ("results.md", "report.html"))
    assert "### Targets on vgg-cifar10" in text
    assert all(text.count(f"](figures/{name})") == 1 for name in figures)
    assert html.count("<figure") == 2
    assert "What DBB chooses among BB's units" in text
    assert "Two ways to count DBB's memory" in text
    write_results(results, as_printed())
    write_report(results, tmp_path / "both", said.append)
    assert "](figures/own-recipes-vgg-like-cifar10.png)" in (tmp_path / "both" / "results.md").read_text(encoding="utf-8")


def test_figures_stay_where_they_belong_when_rows_of_the_papers_recipe_come(tmp_path):
    about = {"network": "vgg-like", "dataset": "cifar10", "kept": [9] * 15}
    looks = [{"epoch": epoch, "seconds": 9.0 * epoch, "error": 9.0, "kept": [60 - epoch] * 15} for epoch in (1, 2)]
    own = [row(each, "5", 0, 7.0, 6.0, **about, recipe="deep", placement="after activation", history=looks) for each in ("bb", "dbb")]
    results = write_results(tmp_path / "results", own, own_recipe_file("deep", "vgg-cifar10"))
    write_results(results, [row("dense", None, 0, 7.0, 1.0, **about, placement="before norm")], "vgg-like-cifar10.jsonl")
    write_report(results, tmp_path / "docs", [].append)
    text = (tmp_path / "docs" / "results.md").read_text(encoding="utf-8")
    network, recipe = text.split("## A recipe of our own")
    assert "](figures/own-recipes-vgg-like-cifar10.png)" in network
    assert "](figures/kept-units-own-recipe-deep-vgg-cifar10.png)" in recipe


@pytest.mark.parametrize(("methods", "legend"), [(("bb", "dbb"), ["BB", "DBB", "the paper", "deep"]), (("dense",), None)])
def test_legend_names_only_what_is_drawn(tmp_path, monkeypatch, methods, legend):
    drawn = []
    monkeypatch.setattr("bayesprune.report.figures.own_recipe_curves.write_figure", lambda figure, path: drawn.append(figure))
    about = {"network": "vgg-like", "dataset": "cifar10", "kept": [9] * 15, "recipe": "deep", "placement": "after activation"}
    rows = [row(method, None if method == "dense" else "5", 0, 7.0, 6.0, **about) for method in methods]
    points = points_of(read_own_recipes(write_results(tmp_path, rows, own_recipe_file("deep", "vgg-cifar10")))["deep"])
    paper = compare("vgg-like", "cifar10", [])
    assert draw_own_recipes(paper, {"deep": points}, tmp_path / "figure.png") is (legend is not None)
    assert [[text.get_text() for text in figure.axes[0].get_legend().get_texts()] for figure in drawn] == ([legend] if legend else [])
