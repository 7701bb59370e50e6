"""The page: one file, everything in it escaped, nothing outside asked for, whole or not written at all."""

import base64
import json
import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from tests.reports.nets import Dies, loss, made_up, mlp, plotly, residual
from torch import nn

import wellposed as wp
from wellposed.errors import OptionError
from wellposed.reports.data import number, page_data, script_json
from wellposed.reports.html import page
from wellposed.reports.spans import SIGNALS, factor_text, moment, sensitivity, span, span_of
from wellposed.reports.structure import GROUP, Operation, Structure
from wellposed.showing import visible
from wellposed.signals import Signal, Signals

HOSTILE = "</script><script>alert('&quot;\u2028')</script>"


class Reader(HTMLParser):
    """Tags with their attributes, and the text inside chosen elements."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.texts, self.stack = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.stack.append(tag)

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop() != tag:
            pass

    def handle_data(self, text):
        self.texts.append((self.stack[-1] if self.stack else "", text))

    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]


@pytest.fixture(scope="module")
def report():
    model, example = residual()
    batches = [(torch.randn(8, 16), torch.randint(0, 16, (8,)))]
    return wp.report(model, example, draws=2, loss_fn=loss, batches=batches)


@pytest.fixture(scope="module")
def text(report):
    return page(report)


def data_of(text):
    raw = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL).group(1)
    return json.loads(raw, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def without_plotly(text):
    assert text.count(plotly()) == 1
    return text.replace(plotly(), "")


@pytest.mark.slow
def test_it_is_one_file_that_asks_for_nothing(text):
    own = Reader(without_plotly(text))
    for tag, attributes in own.tags:
        assert "src" not in attributes
        if "href" in attributes:
            assert attributes["href"].startswith("#") or (tag, attributes["href"]) == ("link", "data:,")
    assert "url(" not in without_plotly(text).replace("url(#arrow)", "")
    policy = next(a["content"] for t, a in own.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_it_has_landmarks_headings_and_texts_for_the_plots(report, text):
    own = Reader(without_plotly(text))
    tags = [tag for tag, _ in own.tags]
    assert (tags.count("header"), tags.count("main"), tags.count("nav"), tags.count("h1")) == (1, 1, 1, 1)
    ids = own.ids()
    assert len(ids) == len(set(ids))
    for tag, attributes in own.tags:
        if tag == "section":
            assert attributes["aria-labelledby"] in ids
        for name in ("aria-labelledby", "aria-describedby"):
            assert attributes.get(name, ids[0]) in ids
        if tag in ("select", "input"):
            assert "id" in attributes
        if tag == "a":
            assert attributes["href"][1:] in ids
    plots = [attributes for _, attributes in own.tags if attributes.get("class") == "plot"]
    assert len(plots) == 4
    assert all(plot["role"] == "img" and plot["aria-describedby"] for plot in plots)
    assert {"width=device-width, initial-scale=1"} <= {a.get("content") for t, a in own.tags if t == "meta"}


def test_its_data_are_the_report(report, text):
    data = data_of(text)
    own, plan = data["initialisations"]
    assert [own["title"], plan["title"]] == ["current weights", "plan"]
    names = data["operations"]["name"]
    for item, shown in zip(report.initialisations, (own, plan), strict=True):
        for key, signals in (
            ("forward_predicted", item.predicted),
            ("forward_measured", item.measured),
            ("backward_predicted", item.predicted.gradients),
            ("backward_measured", item.measured.gradients),
        ):
            for name, value in zip(names, shown[key], strict=True):
                assert value == pytest.approx(signals[name].second_moment, rel=1e-3)
        for key, signals in (("alike_predicted", item.predicted), ("alike_measured", item.measured)):
            shares = {s.name: max(0.0, 1.0 - s.similarity) for s in signals if math.isfinite(s.similarity)}
            told = {name: share for name, share in zip(names, shown[key], strict=True) if share is not None}
            assert told == pytest.approx(shares, rel=1e-3)
    assert len(data["tables"]["parameters"]["rows"]) == len(report.parameters)
    assert [row[0] for row in data["tables"]["merges"]["rows"]] == ["1.0:add", "1.1:add", "1.2:add"]
    assert [row[0] for row in data["tables"]["agreement"]["rows"]] == list(report.agreement["own"].parts)


def test_merges_tell_what_each_branch_brings(report):
    table = page_data(report)["tables"]["merges"]
    row = dict(zip((column for column, _ in table["columns"]), table["rows"][0], strict=True))
    trunk, branch = (report.initialisations[0].measured[name].second_moment for name in ("0", "1.0.down"))
    assert row["branches, the oldest first"] == "0, 1.0.down"
    assert row["E[x²] of each, current weights"] == f"{trunk:.3g}, {branch:.3g}"
    assert row["newest / oldest, current weights"] == pytest.approx(branch / trunk, rel=1e-3)


def test_whatever_the_model_says_is_escaped():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module(HOSTILE.replace(".", ""), nn.Linear(4, 4))

        def forward(self, x):
            return next(self.children())(x)

    Named.__name__ = Named.__qualname__ = HOSTILE
    found = wp.report(Named(), torch.randn(8, 4), draws=2)
    found = replace(found, notes=(HOSTILE,), failure=HOSTILE)
    text = without_plotly(page(found))
    assert "alert('&" not in text.replace("alert('&amp;", "").replace("alert('&quot;", "")
    own = Reader(text)
    assert [attributes.get("type") for tag, attributes in own.tags if tag == "script"] == [
        "application/json", None, None, None,
    ]  # fmt: skip
    assert not any("alert(" in content for tag, content in own.texts if tag == "script" and "makeTables" in content)
    assert visible(HOSTILE) in data_of(page(found))["operations"]["name"][0]
    frame = Reader(found._repr_html_())
    assert [tag for tag, _ in frame.tags] == ["iframe"]


@pytest.fixture(scope="module")
def transfer():
    """A check of ways whose names are no markup."""

    def way(model, size, lr, batch):
        return torch.optim.SGD(model.parameters(), lr=lr / size)

    def mean(model, batch):
        return model(batch).square().mean()

    batches = list(torch.randn(12, 16, 4, generator=torch.Generator().manual_seed(0)))
    rates = [2.0**k for k in range(-4, 3)]
    return wp.check_transfer(
        lambda size: nn.Linear(4, size), [2, 8], mean, batches, {HOSTILE: way}, axis="<width>", rates=rates,
        progress=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_check_of_transfer_stands_with_the_rates(report, transfer):
    text = without_plotly(page(replace(report, transfer=transfer)))
    own = Reader(text)
    (picture,) = (attributes for tag, attributes in own.tags if tag == "img")
    assert base64.b64decode(picture["src"].partition("base64,")[2]).decode() == transfer.figure()
    assert "transfer" in own.ids()
    cells = {content for tag, content in own.texts if tag == "td"}
    assert {cell for row in transfer.rows() for cell in map(visible, row) if cell} <= cells
    said = [content for tag, content in own.texts if tag == "li"]
    assert set(map(visible, transfer.summary().splitlines()[1:])) <= set(said)
    assert "<width>" not in text
    assert "alert('&" not in text.replace("alert('&amp;", "").replace("alert('&quot;", "")
    assert "<img" not in page(report)


@pytest.mark.slow
def test_a_report_is_given_a_check_of_transfer(transfer):
    model, example = residual()
    assert wp.report(model, example, draws=0, transfer=transfer).transfer is transfer
    with pytest.raises(OptionError, match=r"transfer takes the result of wellposed.check_transfer, not str"):
        wp.report(model, example, draws=0, transfer=transfer.to_json())


def test_texts_cannot_leave_their_script():
    said = {"<!--": HOSTILE, "n": [None, 1.5, "inf"]}
    raw = script_json(said)
    assert not set("<>&\u2028") & set(raw)
    assert json.loads(raw) == said
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_json(math.nan)


def test_infinities_and_nan_are_told_as_such():
    assert [number(v) for v in (math.inf, -math.inf, math.nan, None, 0.123456)] == ["inf", "-inf", "nan", None, 0.1235]
    model, example = mlp(4)
    with torch.no_grad():
        model[2].weight.mul_(1e30)
        model[4].weight.mul_(1e30)
    found = wp.report(model, example, draws=2)
    data = data_of(page(found))
    column = data["initialisations"][0]["forward_measured"]
    names = data["operations"]["name"]
    assert {name for name, value in zip(names, column, strict=True) if value in ("inf", "nan")} >= {"4", "6", "8"}
    assert "infinite or NaN, the first at 4" in page(found)


def test_an_odd_number_in_a_further_output_is_not_lost():
    class Halves(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1.0, 1e30]))

        def forward(self, x):
            left, right = (x * self.scale * self.scale).chunk(2, 1)
            return left, right

    found = wp.report(Halves(), torch.randn(8, 2), draws=2)
    data = page_data(found)
    at = data["operations"]["name"].index("chunk")
    assert data["initialisations"][0]["forward_measured"][at] in ("inf", "nan")


def test_a_forward_that_died_is_shown_with_its_error(tmp_path):
    found = wp.report(Dies(), torch.randn(4, 8), draws=2)
    text = found.to_html(tmp_path / "dies.html").read_text()
    assert "mat1 and mat2 shapes cannot be multiplied" in text
    assert data_of(text)["operations"]["name"] == ["first", "relu", "second", "relu#2"]


def test_a_small_report_stays_small(text):
    assert len(text.encode()) < 1.5e6
    assert len(without_plotly(text).encode()) < 0.2e6


def test_a_thousand_operations_stay_below_two_megabytes():
    assert len(page(made_up(1000)).encode()) < 2e6


@pytest.mark.slow
def test_twenty_thousand_operations_are_folded_and_stay_below_ten_megabytes():
    found = made_up(20_000)
    assert len(found.structure.operations) == 20_000
    assert len(page(found).encode()) < 10e6
    children = Counter(group.parent for group in found.structure.groups)
    children.update(operation.group for operation in found.structure.operations)
    assert max(children.values()) <= GROUP


# ---- writing --------------------------------------------------------------------------------------------------------


def test_it_is_written_whole_or_not_at_all(report, tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    assert report.to_html(path) == path
    first = path.read_text()
    assert first.startswith("<!doctype html>")
    assert first.rstrip().endswith("</html>")

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(OptionError, match=r"cannot write a report to .* No space left on device"):
        report.to_html(path)
    assert path.read_text() == first
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("place", "message"),
    [("missing/report.html", "No such file or directory"), (".", "it is a folder")],
)
def test_a_path_that_cannot_be_written_is_our_error(report, tmp_path, place, message):
    with pytest.raises(OptionError, match=rf"cannot write a report to .*{message}"):
        report.to_html(tmp_path / place)
    assert list(tmp_path.iterdir()) == []


# ---- words ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("factor", "text"), [(1.0, "1"), (3.14159, "3.1"), (87.3, "87"), (1234.5, "1,234"), (4.5e14, "4.5×10¹⁴")]
)
def test_factors_are_told_as_people_write_them(factor, text):
    assert factor_text(factor) == text


def signals(*moments):
    return [Signal(f"n{i}", "", "linear.default", (2,), 0.0, m, "exact") for i, m in enumerate(moments)]


def chain(*weighted):
    """Operations one after the other, some of them of weights, and a readout."""
    operations = [
        Operation(f"n{i}", "", "", "linear.default", "", (2,), (f"n{i}",), (i - 1,), 0, use, True)
        for i, use in enumerate((*weighted, True))
    ]
    return Structure(tuple(operations), (), ("0",), (len(operations) - 1,), (), ())


@pytest.mark.parametrize(
    ("moments", "level"),
    [
        ((1.0, 2.0), "good"),
        ((1.0, 0.0, 2.0), "good"),
        ((1.0, SIGNALS[0] * 1.01), "fair"),
        ((0.99 / SIGNALS[1], 1.0), "bad"),
        ((1.0, math.nan), "bad"),
        ((1.0, 1e160), "bad"),
        ((0.0, 0.0), "bad"),
        ((), "good"),
    ],
)
def test_levels_follow_the_ratio(moments, level):
    assert span_of([(moment(signal), signal.name) for signal in signals(*moments)]).level == level


def test_only_outputs_of_weights_count():
    found = span(chain(True, False, True), signals(1.0, 1e9, 4.0))
    assert (found.low, found.high, found.count) == ((1.0, "n0"), (4.0, "n2"), 2)


def test_where_norms_rescale_everything_nothing_lies_apart():
    structure = chain(True, True)
    normed = replace(structure, operations=tuple(replace(op, normed=True) for op in structure.operations))
    found = span(normed, signals(1.0, 1e9, 4.0))
    assert (found.level, found.ratio, found.whole, found.high) == ("good", 1.0, 1e9, (1e9, "n1"))


def test_gradients_count_relative_to_their_signals():
    both = Signals(tuple(signals(1.0, 1e9, 3.0)), gradients=Signals(tuple(signals(2.0, 1e9, 5.0))))
    found = sensitivity(chain(True, False, True), both)
    assert (found.low, found.high) == ((8.0, "n0"), (60.0, "n2"))  # E[x²] E[g²] 2²


def test_what_is_odd_is_told_apart_from_the_extremes():
    found = span(chain(True, True, True, True, True), signals(1.0, math.inf, 0.0, 2.0, math.nan))
    assert (found.low, found.high) == ((1.0, "n0"), (2.0, "n3"))
    assert (found.broken, found.zeros, found.count, found.dead) == (("n1", "n4"), 1, 5, ("n2",))
