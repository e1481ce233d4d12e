import base64
import math
import re
from html.parser import HTMLParser

import pytest
from reproduction import NETWORK, as_printed, diverged, row, write_results

from bayesprune.report import write_report
from bayesprune.report.comparison.remarks import REMARKS
from bayesprune.report.comparison.results import own_recipe_file
from bayesprune.report.page.curves import error_ticks, speedup_ticks

VOID = {"meta", "link", "img", "br", "circle", "line", "polyline"}
EVIL = '<script>alert("1")</script>&\'x'


class Reader(HTMLParser):
    """Every tag with its attributes, and whether all that was opened is closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def having(text, class_):
    return [attributes for _, attributes in Reader(text).tags if class_ in attributes.get("class", "").split()]


@pytest.fixture
def page_of(tmp_path):
    def make(rows, remark="", own=(), figures=()):
        results, out = write_results(tmp_path / "results", rows), tmp_path / "docs"
        if remark:
            (results / REMARKS).write_text(f"[lenet-500-300]\nvib = '''{remark}'''\n", encoding="utf-8")
        if own:
            write_results(results, own, own_recipe_file("consistent", NETWORK))
        for name in figures:
            (out / "figures").mkdir(parents=True, exist_ok=True)
            (out / "figures" / name).write_bytes(name.encode())
        write_report(results, out)
        return (out / "report.html").read_text(encoding="utf-8")

    return make


def test_page_is_sound_and_loads_nothing(page_of):
    text = page_of(as_printed(), figures=["kept-units-lenet-500-300.png"])
    for tag, attributes in Reader(text).tags:
        assert tag not in ("iframe", "object", "embed", "base")
        assert tag != "script" or "src" not in attributes
        for name in ("src", "href", "xlink:href", "srcset", "poster", "data", "action"):
            assert attributes.get(name, "data:").startswith("data:"), (tag, attributes)
    assert not re.search(r"url\(|@import|https?:|//[a-z]", re.sub(r"base64,[\w+/=]+", "", text).replace("// ", ""))
    assert "default-src 'none'" in text


def test_points_say_what_is_known(page_of):
    text = page_of([*as_printed(), row("bb", "3", 0, 1.31, 17.5, 6.0, [250, 110, 70]), diverged("bb", "3", 1)])
    tips = [point["data-tip"] for point in having(text, "point") if "printed" not in point["class"]]
    assert tips.count("BB, trade-off 3\nerror 1.31 %\nxFLOPs 17.50\nmemory 6.00 %\nkept units 250-110-70\n1 seed, 1 diverged") == 2
    printed = [point["data-tip"] for point in having(text, "point") if "printed" in point["class"]]
    assert "The paper's BB, trade-off 1\nerror 1.26 ± 0.04 %\nxFLOPs 13.38\nmemory 7.48 %" in printed
    assert len(tips) == 2 * 32
    assert len(printed) == 2 * 31


def test_numbers_can_be_sorted(page_of):
    text = page_of(as_printed())
    cells = [attributes for tag, attributes in Reader(text).tags if tag == "td" and attributes.get("class") == "number"]
    values = [cell["data-value"] for cell in cells if "data-value" in cell]
    assert len(values) > 200
    assert all(math.isfinite(float(value)) for value in values)
    assert repr(0.1 / 60000) in values
    headings = [attributes for tag, attributes in Reader(text).tags if tag == "th"]
    assert all(attributes["aria-sort"] == "none" for attributes in headings)


def test_everything_is_escaped(page_of):
    rows = [one | {"hardware": EVIL} for one in as_printed()]
    rows.append(diverged("vib", "1e-4", 9, EVIL, hardware=EVIL))
    text = page_of(rows, EVIL.replace("'", ""), [row("bb", "1", 0, 1.0, recipe="consistent", hardware=EVIL)])
    assert "<script>alert" not in text
    assert text.count("&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;") >= 4
    assert sum(tag == "script" for tag, _ in Reader(text).tags) == 1


def test_remarks_may_have_code(page_of):
    assert "<p>It is <code>1e-3 &lt; 2</code>.</p>" in page_of(as_printed(), "It is `1e-3 < 2`.")


def test_figures_are_inside(page_of):
    name = "class-correlation-lenet-500-300.png"
    text = page_of(as_printed(), figures=[name, "input-regions-lenet5-caffe.png"])
    assert f'src="data:image/png;base64,{base64.b64encode(name.encode()).decode()}"' in text
    assert text.count("<figure>") == 1
    assert text.count("How alike the units are") == 2


def test_quick_page_is_marked(page_of):
    text = page_of(as_printed(recipe="quick"))
    assert "<title>[QUICK, NOT THE REAL THING]" in text
    assert '<p class="banner" role="alert"' in text
    assert text.count('<p class="quick-mark">') == text.count("<table>") >= 4
    assert "<h2>[QUICK, NOT THE REAL THING] lenet-500-300 on mnist</h2>" in text


def test_real_page_is_not_marked(page_of):
    text = page_of(as_printed())
    assert 'class="banner"' not in text
    assert 'class="quick-mark"' not in text
    assert "QUICK" not in text


def test_own_recipe_has_a_part(page_of):
    text = page_of(as_printed(), own=[row("dbb", "1", seed, 1.2, 14.0, recipe="consistent") for seed in range(5)])
    assert '<section id="recipe-consistent">' in text
    assert 'aria-controls="recipe-consistent"' in text
    assert "<h2>A recipe of our own: consistent</h2>" in text
    assert 'class="better" data-value="yes">yes ▲</td>' in text


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(1.1, 1.9, [1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9]), (28.0, 34.0, [28, 29, 30, 31, 32, 33, 34])]
)
def test_error_ticks(low, high, ticks):
    assert error_ticks(low, high) == ticks


def test_speedup_ticks():
    assert speedup_ticks(0.9, 60.0) == [1, 2, 5, 10, 20, 50]
