"""The page in a real browser: what a reader does with it works, and it asks nobody for anything."""

import json
import re
import shutil
import subprocess

import pytest
from matplotlib.image import imread
from reproduction import as_printed, row, write_results

from bayesprune.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path to open the page with")]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-device-scale-factor=1",
)  # fmt: skip

READER = """
<script>
window.addEventListener("load", () => {
  const found = {};
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));
  const network = document.getElementById("lenet-500-300");
  const table = all("table", network)[1];
  const headings = all("th", table);
  const column = (index) => all("tbody tr", table).map((line) => line.cells[index].textContent);
  const sort = (index) => { headings[index].querySelector("button").click(); return [column(index), headings.map((one) => one.ariaSort)]; };
  found.headings = headings.map((one) => one.textContent);
  found.speedups = sort(5);
  found.speedups_again = sort(5);
  found.tradeoffs = sort(1);
  found.methods = sort(0);
  headings[0].querySelector("button").focus();
  found.focused = document.activeElement.tagName;

  const tip = document.getElementById("tip");
  const point = all("svg.wide .method-bb .point:not(.printed)", network)[0];
  found.hidden_before = getComputedStyle(tip).display;
  point.dispatchEvent(new MouseEvent("mouseenter", {bubbles: false}));
  found.tip = [getComputedStyle(tip).display, tip.textContent, tip.querySelectorAll("*").length];
  const box = tip.getBoundingClientRect();
  found.tip_inside = box.left >= 0 && box.right <= document.documentElement.clientWidth;
  point.dispatchEvent(new MouseEvent("mouseleave"));
  found.hidden_after = getComputedStyle(tip).display;
  point.focus();
  found.tip_by_keyboard = getComputedStyle(tip).display;
  document.dispatchEvent(new KeyboardEvent("keydown", {key: "Escape"}));
  found.hidden_by_escape = getComputedStyle(tip).display;

  const shown = (selector) => all(selector, network).filter((one) => one.getClientRects().length > 0).length;
  const legend = (name) => all(".legend button", network).find((one) => one.dataset.switches === name);
  const look = () => ["svg.wide .method-bb .point", "svg.wide .method-vib .point", "svg.wide .point.printed"].map(shown);
  found.points = [look()];
  legend("method-bb").click();
  found.points.push(look());
  found.pressed = legend("method-bb").getAttribute("aria-pressed");
  legend("method-bb").click();
  legend("printed").click();
  found.points.push(look());

  const toggle = document.querySelector('.menu button[aria-controls="lenet-500-300"]');
  toggle.click();
  found.network_after_toggle = network.getClientRects().length;
  toggle.click();
  found.network_again = network.getClientRects().length;

  found.width = [document.documentElement.scrollWidth, document.documentElement.clientWidth];
  found.requests = performance.getEntriesByType("resource").map((one) => one.name).filter((name) => !name.startsWith("data:"));
  parent.postMessage(JSON.stringify(found), "*");
});
</script>
</body>"""
FRAME = """<!DOCTYPE html>
<body style="margin: 0">
<script>
addEventListener("message", (event) => {
  const outcome = document.createElement("pre");
  outcome.id = "outcome";
  outcome.textContent = event.data;
  document.body.append(outcome);
});
</script>
<iframe src="page.html" style="width: WIDTHpx; height: 900px; border: 0"></iframe>
</body>
"""
"""A window of any width around the page: the browser's own has a least one."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    rows = [*as_printed(), row("bb", "1e-1", 0, 1.2, 9.5)]
    write_results(folder / "results", rows)
    write_report(folder / "results", folder / "docs")
    return folder / "docs" / "report.html"


def browse(page, folder, *flags):
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def read(page, folder, width):
    text = page.read_text(encoding="utf-8")
    assert text.count("</body>") == 1
    (folder / "page.html").write_text(text.replace("</body>", READER), encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    shown = browse(frame, folder, "--window-size=1400,1000", "--virtual-time-budget=5000", "--dump-dom")
    outcome = re.search(r'<pre id="outcome">(.*?)</pre>', shown, re.DOTALL)
    assert outcome, "the page's script or the reader's has failed"
    return json.loads(outcome[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


@pytest.fixture(scope="module")
def found(page, tmp_path_factory):
    return read(page, tmp_path_factory.mktemp("wide"), 1200)


def test_numbers_are_sorted_as_numbers(found):
    values, sorts = found["speedups"]
    assert found["headings"][5] == "xFLOPs, ours"
    numbers = [float(value.split()[0]) for value in values]
    assert len(numbers) == 31
    assert numbers == sorted(numbers)
    assert numbers != [float(value) for value in sorted(map(str, numbers))]
    assert sorts[5] == "ascending"
    assert set(sorts[:5] + sorts[6:]) == {"none"}


def test_second_click_turns_the_order_round(found):
    values, sorts = found["speedups_again"]
    assert values == sorted(values, key=lambda value: -float(value.split()[0]))
    assert sorts[5] == "descending"


def test_empty_cells_are_last_and_tradeoffs_are_numbers(found):
    values, _ = found["tradeoffs"]
    assert values[-1] == ""
    assert values[0] == "0.005/60000"
    assert values.index("1e-3") < values.index("1e-1") < values.index("1") < values.index("8")


def test_words_are_sorted_as_words(found):
    values, _ = found["methods"]
    assert values == sorted(values)
    assert found["focused"] == "BUTTON"


def test_points_answer_to_mouse_and_keyboard(found):
    assert found["hidden_before"] == found["hidden_after"] == found["hidden_by_escape"] == "none"
    display, text, elements = found["tip"]
    assert display == "block"
    assert text == "BB, trade-off 1e-1error 1.20 %\nxFLOPs 9.50\nmemory 5.00 %\nkept units 100-50-30\n1 seed"
    assert elements == 1
    assert found["tip_inside"]
    assert found["tip_by_keyboard"] == "block"


def test_legend_switches_methods_and_the_paper(found):
    before, without_bb, without_paper = found["points"]
    assert before == [11, 10, 31]
    assert without_bb == [0, 10, 26]
    assert found["pressed"] == "false"
    assert without_paper == [6, 5, 0]


def test_menu_hides_and_shows_a_network(found):
    assert (found["network_after_toggle"], found["network_again"]) == (0, 1)


@pytest.mark.parametrize("width", [1200, 420])
def test_page_fits_the_window_and_loads_nothing(page, tmp_path, width):
    seen = read(page, tmp_path, width)
    assert seen["requests"] == []
    assert seen["width"][1] == width
    assert seen["width"][0] <= width


@pytest.mark.parametrize(("width", "scheme", "bright"), [(1200, 1, True), (420, 1, True), (1200, 0, False)])
def test_page_is_drawn(page, tmp_path, width, scheme, bright):
    picture = tmp_path / "page.png"
    setting = f"--blink-settings=preferredColorScheme={scheme}"
    browse(page, tmp_path, f"--window-size={width},1600", setting, f"--screenshot={picture}")
    pixels = imread(picture)[..., :3]
    assert pixels.shape == (1600, width, 3)
    corner = pixels[2, 2].mean()
    assert corner > 0.9 if bright else corner < 0.2
    coloured = pixels.max(-1) - pixels.min(-1) > 0.3
    assert coloured.sum() > 500
    assert len({tuple(pixel) for pixel in pixels[::4, ::4].reshape(-1, 3)}) > 50
