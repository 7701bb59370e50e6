"""The page in a real browser: headless Chromium on the file, as a person opens it."""

import os
import time

import pytest
import torch
from benchmarks.browser import ARGUMENTS, CHROMIUM, READY, seconds_to_open
from tests.reports.nets import loss, made_up, mlp, residual
from torch import nn

import wellposed as wp

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

if "CI" in os.environ:
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "CI tests the page in a browser: install chromium"
else:
    sync_playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed").sync_playwright
    if CHROMIUM is None:
        pytest.skip("chromium is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def playwright():
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright, tmp_path_factory):
    """Open a page in a browser of its own, whose profile is new; close all of them at the end."""
    contexts = []

    def browser(viewport=DESKTOP, scheme="light", **options):
        contexts.append(
            playwright.chromium.launch_persistent_context(
                tmp_path_factory.mktemp("profile"),
                executable_path=CHROMIUM,
                headless=True,
                args=ARGUMENTS,
                viewport=viewport,
                color_scheme=scheme,
                **options,
            )
        )
        return contexts[-1]

    yield browser
    for context in contexts:
        context.close()


def wait_until(page, expression, seconds=30.0):
    """Wait for a JavaScript expression; the page's own policy keeps playwright from polling inside it."""
    until = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < until, f"still not so after {seconds} s: {expression}"
        page.wait_for_timeout(20)


def opened(context, path):
    """Open a file, wait until everything is drawn, and return the page; what went wrong is in its ``problems``."""
    page = context.new_page()
    page.problems, page.requests = [], []
    page.on("console", lambda message: page.problems.append(message.text))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("request", lambda request: page.requests.append(request.url))
    page.goto(path.as_uri())
    wait_until(page, READY)
    return page


@pytest.fixture(scope="module")
def report():
    model, example = residual(3)
    batches = [(torch.randn(8, 16), torch.randint(0, 16, (8,)))]
    return wp.report(model, example, draws=2, loss_fn=loss, batches=batches, method="autoinit")


@pytest.fixture(scope="module")
def file(report, tmp_path_factory):
    return report.to_html(tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture(scope="module")
def desktop(browser):
    return browser()


@pytest.fixture
def page(desktop, file):
    page = opened(desktop, file)
    yield page
    assert page.problems == []
    assert page.requests == [file.as_uri()]
    page.close()


def cells(page, table, column):
    return page.locator(f"#table-{table} tbody tr:not(.note) td:nth-child({column})").all_inner_texts()


@pytest.mark.slow
def test_the_plots_are_drawn_from_the_data(page):
    # Own init and plan, each predicted (a line) and measured (points), both ways; an axis with decades.
    for name in ("forward", "backward"):
        plot = page.locator(f"#plot-{name}")
        assert plot.locator(".scatterlayer .trace").count() == 4
        assert plot.locator(".scatterlayer path.js-line").count() == 2 * 4  # the trunk and three branches
        assert plot.locator(".scatterlayer .points path").count() >= 2 * 10
        assert plot.locator(".ytick").count() >= 2
    assert page.locator("#plot-agreement .barlayer .point path").count() == 2 * 7
    shown = page.evaluate("document.getElementById('plot-forward').data.map(trace => trace.name)")
    assert shown == ["current weights, predicted", "current weights, measured", "plan, predicted", "plan, measured"]
    legend = page.locator("#legend-forward > span").all_inner_texts()
    assert [text.partition(" ")[2] for text in legend] == shown


@pytest.mark.slow
def test_every_branch_is_a_line_of_its_own(page):
    paths = page.evaluate("lines(chosen()).map(path => path.map(i => OPERATIONS.name[i]))")
    assert paths == [
        ["0", "1.0:add", "1.1:add", "1.2:add"],
        ["0", "1.0.up", "1.0.down", "1.0:add"],
        ["1.0:add", "1.1.up", "1.1.down", "1.1:add"],
        ["1.1:add", "1.2.up", "1.2.down", "1.2:add"],
    ]


@pytest.mark.slow
def test_the_buttons_of_a_plot_hide_no_point_of_it(page):
    for name in ("forward", "backward"):
        box = page.evaluate(
            f"""(() => {{
              const plot = document.getElementById("plot-{name}"), bar = plot.querySelector(".modebar-group");
              return [bar.getBoundingClientRect().bottom, plot.querySelector(".nsewdrag").getBoundingClientRect().top,
                      getComputedStyle(bar).backgroundColor];
            }})()"""
        )
        assert box[0] <= box[1] + 1
        assert box[2] == "rgba(0, 0, 0, 0)"


@pytest.mark.slow
def test_the_plots_show_what_is_chosen(page):
    def shown():
        return page.evaluate(
            "document.getElementById('plot-forward').data[1].text.filter(name => name)"  # measured points
        )

    assert "1.0:relu" not in shown()
    page.select_option("#plot-which", "all")
    assert "1.0:relu" in shown()
    page.select_option("#plot-module", label="1 / 1")
    assert shown() == ["1.1.up", "1.1:relu", "1.1.down", "1.1:add"]
    page.select_option("#plot-scale", "tensor")
    assert "‖g‖²" in page.locator("#plot-backward .ytitle").text_content()


@pytest.mark.slow
def test_typing_into_a_table_s_search_leaves_the_rows_that_match(page):
    assert len(cells(page, "parameters", 1)) == 14
    page.fill("#table-parameters input", "1.1.up")
    assert cells(page, "parameters", 1) == ["1.1.up.weight", "1.1.up.bias"]
    assert page.locator("#table-parameters [role=status]").inner_text() == "2 of 2 rows that match (14 in all)"
    page.fill("#table-parameters input", "no such thing")
    assert cells(page, "parameters", 1) == []


def numbers(texts):
    return [float(text.replace("−", "-")) for text in texts if text != "–"]


@pytest.mark.slow
@pytest.mark.parametrize("screen", [DESKTOP, PHONE])
def test_reasons_of_parameters_are_not_cut_off(browser, file, report, screen):
    page = opened(browser(viewport=screen), file)
    frame = page.locator("#table-parameters .scroll").bounding_box()
    notes = page.locator("#table-parameters tr.note div")
    assert notes.all_inner_texts() == [row.reason for row in report.parameters]
    boxes = [note.bounding_box() for note in notes.all()]
    assert all(frame["x"] <= box["x"] and box["x"] + box["width"] <= frame["x"] + frame["width"] for box in boxes)


@pytest.mark.slow
def test_the_fault_is_marked_in_the_plots_and_in_the_graph(desktop, tmp_path):
    model, example = mlp(30, scale=0.3)
    report = wp.report(model, example, draws=2)
    page = opened(desktop, report.to_html(tmp_path / "report.html"))
    where = report.judgement.where
    marked = page.locator("#graph-picture .box.fault")
    assert marked.get_attribute("aria-label").startswith(f"operation {where},")
    frame, box = page.locator("#graph-picture").bounding_box(), marked.bounding_box()
    assert frame["y"] <= box["y"] <= frame["y"] + frame["height"]
    for name in ("forward", "backward"):
        assert page.locator(f"#plot-{name} .annotation-text").text_content() == f"first at fault: {where}"
    assert page.problems == []
    page.close()


@pytest.mark.slow
def test_tables_sort_by_mouse_and_by_keyboard(page):
    column = 7  # std now
    head = page.locator("#table-parameters th").nth(column - 1)
    assert head.get_attribute("aria-sort") == "none"
    before = numbers(cells(page, "parameters", column))
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert numbers(cells(page, "parameters", column)) == sorted(before, reverse=True)
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert numbers(cells(page, "parameters", column)) == sorted(before)
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")  # "rate ×", behind "std planned"
    page.keyboard.press("Space")
    assert page.locator("#table-parameters th").nth(column + 1).get_attribute("aria-sort") == "descending"
    assert head.get_attribute("aria-sort") == "none"


def boxes(page):
    return page.locator("#graph-picture .box").evaluate_all("found => found.map(box => box.getAttribute('aria-label'))")


@pytest.mark.slow
def test_the_graph_unfolds_by_mouse_and_by_keyboard(page):
    page.click("#graph-fold")
    assert len(boxes(page)) == 3  # the input, the first layer, the blocks
    folded = page.locator("#graph-picture .box.module")
    assert folded.get_attribute("aria-expanded") == "false"
    folded.click()
    assert page.locator("#graph-picture .box[aria-expanded=true]").count() == 1
    assert len(boxes(page)) == 3 + 3
    page.locator("#graph-picture .box[aria-expanded=false]").first.focus()
    page.keyboard.press("Enter")
    assert len(boxes(page)) == 3 + 3 + 4
    assert any(label.startswith("operation 1.0.up, linear, shape 8×16, E = ") for label in boxes(page))
    # An identity beside two weights: the block has an edge that goes round, and its ports.
    assert page.locator("#graph-picture .port").count() >= 3
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("operation 1.0.up")
    details = page.locator("#graph-details").inner_text()
    assert "current weights: E[x²] predicted" in details
    assert "plan: E[x²] predicted" in details
    page.click("#graph-fold")
    assert len(boxes(page)) == 3


def scale(page):
    return page.evaluate("view.scale")


@pytest.mark.slow
def test_the_graph_zooms_and_moves(page):
    begun = scale(page)
    page.click("#graph-in")
    assert scale(page) == pytest.approx(begun * 1.25)
    page.locator("#graph-picture").focus()
    page.keyboard.press("-")
    assert scale(page) == pytest.approx(begun)
    frame = page.locator("#graph-picture").bounding_box()
    page.mouse.move(frame["x"] + 20, frame["y"] + 20)
    page.mouse.wheel(0, -200)
    wait_until(page, f"view.scale > {begun * 1.1}")
    before = page.evaluate("[view.x, view.y]")
    page.mouse.down()
    page.mouse.move(frame["x"] + 70, frame["y"] + 50, steps=5)
    page.mouse.up()
    assert page.evaluate("[view.x, view.y]") == pytest.approx([before[0] + 50, before[1] + 30])
    page.keyboard.press("0")
    assert scale(page) == pytest.approx(begun)


@pytest.mark.slow
def test_the_wheel_scrolls_the_page_where_the_graph_has_no_focus(page):
    begun = scale(page)
    page.locator("#graph-picture").scroll_into_view_if_needed()
    frame = page.locator("#graph-picture").bounding_box()
    page.mouse.move(frame["x"] + 20, frame["y"] + 20)
    before = page.evaluate("scrollY")
    page.mouse.wheel(0, 200)
    wait_until(page, f"scrollY > {before}")
    assert scale(page) == begun


@pytest.mark.slow
def test_an_operation_is_found_by_name(page):
    page.fill("#graph-find", "1.2.down")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("operation 1.2.down,")
    page.fill("#graph-find", "nothing of the kind")
    page.keyboard.press("Enter")
    assert page.locator("#graph-details").inner_text() == "No operation is called nothing of the kind."


@pytest.mark.slow
def test_colours_follow_the_choice_and_show_how_far_a_signal_is_off(desktop, tmp_path):
    model, example = mlp(8, scale=0.3)
    model[16] = nn.Linear(32, 10)
    page = opened(desktop, wp.report(model, example, draws=0).to_html(tmp_path / "report.html"))

    def fill(name):
        return page.locator(f"#graph-picture .box[aria-label^='operation {name},'] > rect").evaluate(
            "rect => getComputedStyle(rect).fill.match(/\\d+/g).map(Number)"
        )

    red, _, blue = fill("16")
    assert blue > red + 50  # vanished
    options = page.locator("#graph-colour option").all_inner_texts()
    assert options[:2] == ["signals, current weights, predicted", "gradients, current weights, predicted"]
    page.select_option("#graph-colour", label="signals, plan, predicted")
    assert max(fill("14")) - min(fill("14")) < 20  # as it should be
    assert page.problems == []
    page.close()


@pytest.mark.slow
def test_infinite_and_nan_signals_are_marked(desktop, tmp_path):
    model, example = mlp(4)
    with torch.no_grad():
        model[2].weight.mul_(1e30)
        model[4].weight.mul_(1e30)
    page = opened(desktop, wp.report(model, example, draws=2).to_html(tmp_path / "report.html"))
    marked = page.evaluate("document.getElementById('plot-forward').data.find(trace => trace.name === '∞ or NaN').text")
    assert [text.split("<br>")[0] for text in marked] == ["4", "6", "8"]
    assert page.locator("#plot-forward .scatterlayer .points path[d*='L']").count() >= 3
    assert page.locator("#graph-picture .box.broken").count() >= 3
    page.fill("#table-signals input", "linear")
    assert {"∞", "NaN"} & set(page.locator("#table-signals td.off").all_inner_texts())
    assert page.problems == []
    page.close()


@pytest.mark.slow
def test_it_is_dark_where_the_system_is(browser, file):
    def ground(page):
        return page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")

    page = opened(browser(scheme="dark"), file)
    assert max(ground(page)) < 40
    text = page.evaluate("document.getElementById('plot-forward').layout.font.color")
    page.emulate_media(color_scheme="light")
    wait_until(page, f"document.getElementById('plot-forward').layout.font.color !== '{text}'")
    assert min(ground(page)) > 230
    assert page.problems == []


@pytest.mark.slow
def test_it_fits_a_phone(browser, file):
    page = opened(browser(viewport=PHONE, has_touch=True, is_mobile=True), file)
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    page.evaluate("unfoldLevel(); unfoldLevel()")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    box = page.locator("#graph-picture").bounding_box()
    assert box["width"] <= PHONE["width"]
    assert box["height"] < PHONE["height"]  # there is a way past it by touch
    page.locator("#graph-picture .box[aria-expanded=true]").first.tap(position={"x": 40, "y": 10})
    assert page.problems == []


@pytest.mark.slow
def test_every_control_has_a_name_and_a_visible_focus(page):
    unnamed = page.evaluate(
        """[...document.querySelectorAll('main button, main select, main input, main svg [tabindex], main [tabindex]')]
        .filter(e => e.offsetParent !== null || e.ownerSVGElement)
        .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || (e.labels && e.labels.length)))
        .map(e => e.outerHTML.slice(0, 100))"""
    )
    assert unnamed == []
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    page.locator("#graph-in").focus()
    page.keyboard.press("Tab")
    width = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
    assert float(width.removesuffix("px")) >= 2


@pytest.mark.slow
def test_a_thousand_operations_open_in_seconds(desktop, tmp_path):
    path = made_up(1000).to_html(tmp_path / "report.html")
    # Twice the time that is asked for (`benchmarks/report.py` holds what it takes): other work on the same core can
    # only make it slower.
    assert 0.05 < min(seconds_to_open(desktop, path) for _ in range(3)) < 4.0


@pytest.mark.slow
def test_twenty_thousand_operations_open_folded_but_for_the_way_to_the_fault(desktop, tmp_path):
    page = opened(desktop, made_up(20_000).to_html(tmp_path / "report.html"))
    assert page.evaluate("COUNT") == 20_000
    assert 2 <= page.locator("#graph-picture .box").count() <= 2 + 2 * 40
    assert page.locator("#table-signals tbody tr").count() == 100
    assert page.locator("#plot-forward .scatterlayer .trace").count() == 4
    page.click("#table-signals >> text=show more")
    assert page.locator("#table-signals tbody tr").count() == 500
    page.fill("#graph-find", "stages.50.7.down")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("operation stages.50.7.down,")
    assert page.locator("#graph-picture .box").count() < 200
    assert page.problems == []
    page.close()
