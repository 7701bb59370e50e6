"""The report as one self-contained page: no request leaves it, and every text of the model is escaped."""

from __future__ import annotations

import base64
import html
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources

from wellposed.rates import TransferCheck
from wellposed.rates.relative import optimizer_of
from wellposed.reports.data import coverage_source, page_data, script_json, shown
from wellposed.reports.faults import place_of
from wellposed.reports.pictures import before_after
from wellposed.reports.record import Record
from wellposed.reports.summary import (
    agreement_summary,
    alike_summary,
    check_summary,
    depth_summary,
    depth_words,
    explain_command,
    remedies,
)
from wellposed.showing import visible

PLOTLY = "plotly-basic.min.js"
SCRIPTS = ("page.js", "tables.js", "graph.js", "plots.js")
LEVELS = {"good": "✓", "fair": "!", "bad": "✗"}
_CONTENT = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""Content security policy: the browser itself refuses whatever would leave the page."""


def page(report: Record) -> str:
    """Return the page as one HTML document."""
    assets = resources.files("wellposed.reports") / "assets"
    script = "\n".join((assets / name).read_text(encoding="utf-8") for name in SCRIPTS)
    title = escape(report.model)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_CONTENT}">
<link rel="icon" href="data:,">
<title>{title}: wellposed report</title>
<style>
{(assets / "page.css").read_text(encoding="utf-8")}
</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<noscript>Plots, the graph and the large tables need JavaScript.</noscript>
{_header(report)}
<main id="main">
{_signals(report)}
{_graph(report)}
{_parameters(report)}
{_rates(report)}
{_agreement(report)}
{_off(report)}
{_coverage(report)}
{_every_signal()}
{_provenance(report)}
</main>
<script type="application/json" id="data">{script_json(shown(page_data(report)))}</script>
<script>
{script}
makeTables();
makeGraph();
</script>
<script>{(assets / PLOTLY).read_text(encoding="utf-8")}</script>
<script>makePlots();</script>
</body>
</html>
"""


def escape(text: str) -> str:
    """Return a text as HTML shows it, with what would turn the direction of others written out."""
    return html.escape(visible(text))


def frame(report: Record) -> str:
    """Return the page inside a frame, as notebooks show it: neither's styles reach the other."""
    return (
        f'<iframe title="{escape(report.model)}: wellposed report" srcdoc="{html.escape(page(report))}" '
        'style="width:100%;height:80vh;border:1px solid #8884;border-radius:8px"></iframe>'
    )


def _section(name: str, title: str, body: str, lead: str = "") -> str:
    opening = f'<p class="lead">{lead}</p>' if lead else ""
    head = f'<h2 id="{name}-title">{title}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{head}{opening}\n{body}\n</section>'


def _header(report: Record) -> str:
    """Return the head of the page: the verdict, then the numbers behind it in a fold, and links to sections."""
    said, structure = report.judgement, report.structure
    numbers = sum(math.prod(row.shape) for row in report.parameters if not row.tied)
    facts = (
        f"{len(structure.operations):,} operations, {len(report.parameters):,} parameters ({_short(numbers)} numbers), "
        f"{'training' if report.provenance.training else 'evaluation'} mode"
        + (f", plan by {report.plan.method}" if report.plan is not None else "")
    )
    failure = f'<pre class="failure" role="alert">{escape(report.failure)}</pre>' if report.failure else ""
    checks = "".join(f"<li>{escape(line)}</li>" for line in (said.figures, *check_summary(report)) if line)
    sections = {
        "signals": "Signals",
        "graph": "Graph",
        "parameters": "Parameters",
        "rates": "Learning rates",
        "agreement": "Agreement of gradients" if report.agreement else "",
        "off": "What is off" if any(item.off for item in report.initialisations) else "",
        "coverage": "Coverage",
        "every-signal": "Every signal",
        "provenance": "Provenance",
    }
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in sections.items() if title)
    return f"""<header>
<p class="brand">wellposed report</p>
<h1>{escape(report.model)}</h1>
<div class="verdict {said.level}"><p class="word"><span class="mark" aria-hidden="true">{LEVELS[said.level]}</span>
{said.word}</p>
{_answers(report)}</div>
{failure}
<details class="numbers"><summary>The same in numbers</summary><ul class="checks">{checks}<li>{escape(facts)}</li></ul>
</details>
<nav aria-label="Sections">{links}</nav>
</header>"""


def _answers(report: Record) -> str:
    """Return where, why, what to do, what that changes, and whether it will train."""
    said = report.judgement
    place = place_of(report.structure, said.where)
    where = f"<code>{escape(said.where)}</code> {f'({escape(place)})' if place else ''}" if said.where else ""
    call = "".join(f'<pre tabindex="0">{escape(one)}</pre>' for one in remedies(report))
    changes = before_after(report)
    answers = {
        "Where": where,
        "Why": f"{escape(_sentence(said.why))}",
        "What to do": f"{escape(_sentence(said.action))}{call}{changes}" if said.action else "",
        "Will it train?": escape(said.trains),
    }
    return (
        "<dl>"
        + "".join(f"<div><dt>{name}</dt><dd>{text}</dd></div>" for name, text in answers.items() if text)
        + "</dl>"
    )


def _sentence(text: str) -> str:
    """Return a text with a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def _signals(report: Record) -> str:
    """Return the section of the three charts over depth, which the page's script draws."""
    captions = {
        "forward": (depth_words(report, "forward"), depth_summary(report, "forward")),
        "backward": (depth_words(report, "backward"), depth_summary(report, "backward")),
        "alike": (alike_summary(report), "It is 1 − the similarity of two samples of a batch."),
    }
    figures = "".join(
        f'<h3 id="{name}-title">{title}</h3><figure><div class="legend" id="legend-{name}"></div>'
        f'<div class="plot" id="plot-{name}" role="img" aria-labelledby="{name}-title" aria-describedby="{name}-text">'
        f'</div><figcaption id="{name}-text">{escape(captions[name][0])}<details><summary>In numbers</summary>'
        f'{escape(captions[name][1])} All are in the table <a href="#every-signal">every signal</a>.</details>'
        "</figcaption></figure>"
        for name, title in (
            ("forward", "Forward: signals"),
            ("backward", "Backward: gradients"),
            ("alike", "What differs between inputs"),
        )
    )
    controls = """<div class="controls" role="group" aria-label="What the plots show">
<label>operations <select id="plot-which"><option value="main">outputs of weights, and sums</option>
<option value="all">all</option></select></label>
<label>module <select id="plot-module"><option value="0">whole model</option></select></label>
<label>gradients <select id="plot-scale">
<option value="relative">times the signal, (‖x‖ ‖g‖)²</option><option value="element">per element, E[g²]</option>
<option value="tensor">whole tensor, ‖g‖²</option></select></label></div>"""
    merges = '<div class="table" id="table-merges"></div>' if report.structure.merges else "<p>No branches meet.</p>"
    lead = (
        "How large signals and gradients are from layer to layer, and how much of a signal differs between inputs. "
        "Level lines are good, steady slopes are not. Lines "
        "are predicted, circles are measured on real passes, and each branch of the network is a line of its own. The "
        "scale is logarithmic: E[x²] of the signals, and (‖x‖ ‖g‖)² of the gradients, which a change of scale between "
        "layers leaves alone."
    )
    return _section(
        "signals",
        "Signals and gradients over depth",
        controls + figures + "<h3>Where branches meet</h3>" + merges,
        lead,
    )


def _graph(report: Record) -> str:
    """Return the section of the graph with its controls, which the page's script draws."""
    body = """<div class="controls" role="group" aria-label="What the graph shows">
<label>colour <select id="graph-colour"></select></label>
<label>find <input id="graph-find" type="search" placeholder="name of an operation" autocomplete="off"></label>
<span class="buttons"><button type="button" id="graph-in" aria-label="Zoom in">+</button>
<button type="button" id="graph-out" aria-label="Zoom out">−</button>
<button type="button" id="graph-fit">fit</button>
<button type="button" id="graph-unfold">unfold one level</button>
<button type="button" id="graph-fold">fold all</button></span></div>
<div class="legend" id="graph-legend"></div>
<figure><svg id="graph-picture" role="group" aria-label="The model's graph, folded by module" tabindex="0"></svg>
<figcaption id="graph-details" aria-live="polite">Click a module, or press Enter on it, to unfold it. \
Drag or use two fingers to move and zoom; by keyboard, Tab and the arrows go from box to box, + and − zoom, 0 fits. \
What the graph holds is in the table <a href="#every-signal">every signal</a>.</figcaption></figure>"""
    return _section(
        "graph",
        "The graph",
        body,
        "Every operation of the forward pass, folded by module and coloured by the size of its signal. What the "
        "verdict points at has a thick edge.",
    )


def _parameters(report: Record) -> str:
    """Return the section of the table of parameters, which the page's script fills."""
    lead = (
        "“rate ×” is the plan's factor on the learning rate; “layer rate ×” is in inverse proportion to the layer's "
        "share of the neural tangent kernel, with mean 1 over parameters."
    )
    return _section("parameters", "Parameters", '<div class="table" id="table-parameters"></div>', lead)


def _rates(report: Record) -> str:
    """Return the section with each rule's relative rate, or why there is none."""
    rows = [
        (
            row.rule,
            optimizer_of(row.rule),
            "–" if row.value is None else f"{row.value:.4g}",
            "; ".join((row.reason, *row.warnings)),
        )
        for row in report.rates
    ]
    lead = (
        "Relative rates, up to one constant: only the ratio of two models' rates under one rule is "
        "meaningful (wellposed lr MODEL --base OTHER)."
    )
    body = static_table("The result of each learning-rate rule", ("rule", "for", "relative rate", "reason"), rows)
    return _section(
        "rates",
        "Learning-rate rules side by side",
        (body if rows else "<p>None was applied: the forward did not run to its end.</p>") + _transfer(report.transfer),
        lead,
    )


def _transfer(check: TransferCheck | None) -> str:
    """Return whether the best rate carries over sizes: the picture, in an image of its own, and the numbers."""
    if check is None:
        return ""
    first, *found = check.summary().splitlines()
    picture = base64.b64encode(check.figure().encode()).decode()
    said = "".join(f"<li>{escape(line)}</li>" for line in found)
    return (
        f'<h3 id="transfer">Does the best rate carry over {escape(check.axis)}?</h3><p>{escape(first)}</p>'
        f'<figure class="scroll" tabindex="0" role="region" aria-label="Loss over learning rate">'
        f'<img src="data:image/svg+xml;base64,{picture}" alt="Loss over learning rate, a panel for each way and a '
        f'curve for each size; the numbers are in the table below."></figure><ul class="notes">{said}</ul>'
        + static_table("Best rates and losses by way and size", check.columns, check.rows())
    )


def _agreement(report: Record) -> str:
    """Return the section on gradients of two sub-batches; ``""`` where none were taken."""
    if not report.agreement:
        return ""
    body = (
        '<figure><div class="legend" id="legend-agreement"></div>'
        '<div class="plot" id="plot-agreement" role="img" aria-labelledby="agreement-title" '
        'aria-describedby="agreement-text"></div>'
        f'<figcaption id="agreement-text">{escape(agreement_summary(report))}</figcaption></figure>'
        '<div class="table" id="table-agreement"></div>'
    )
    lead = "GradCosine of the gradients of two sub-batches, layer by layer: 1 where they point the same way."
    return _section("agreement", "Agreement of gradients", body, lead)


LISTED = 100
"""Operations that are off and are listed, for each initialisation."""


def _off(report: Record) -> str:
    """Return what is off and why: explanations of the first, and how to ask for that of the others."""
    parts = []
    for item in report.initialisations:
        explained = {name.name: why for why in item.explanations for name in why.leaving}
        shown = []
        for comparison in item.off[:LISTED]:
            why = explained.get(comparison.name)
            if why is None:
                command = explain_command(report, item, comparison.name)
                shown.append(f"<li>{escape(str(comparison))}; why: <code>{escape(command)}</code></li>")
            else:
                shown.append(
                    f"<li><details><summary><code>{escape(comparison.name)}</code> {escape(why.sentence)}</summary>"
                    f'<pre tabindex="0">{escape(why.summary())}</pre></details></li>'
                )
        if shown:
            more = len(item.off) - len(shown)
            rest = f'<p>{more:,} more are in the table <a href="#every-signal">every signal</a>.</p>' if more else ""
            parts.append(f"<h3>{item.title}</h3><ul class='notes'>{''.join(shown)}</ul>{rest}")
    if not parts:
        return ""
    lead = (
        "Predictions off by more than allowed, in the order of execution. “Came in” and “made here”: the rule of the "
        "operation was also run on the measured signals that enter it, which separates its own error from earlier ones."
    )
    return _section("off", "What is off, and why", "".join(parts), lead)


def _coverage(report: Record) -> str:
    """Return the section that counts signals by tag, and lists those that are not exact."""
    predicted = coverage_source(report)
    if predicted is None:
        return _section("coverage", "Coverage", "<p>There is no prediction.</p>")
    counts = Counter(str(signal.tag) for signal in predicted)
    tags = ("exact", "approximate", "sampled", "assumed", "heavy")
    lists = []
    for tag in tags[1:]:
        if counts[tag]:
            names = "".join(f"<li><code>{escape(s.name)}</code> {escape(s.op)}</li>" for s in predicted if s.tag == tag)
            lists.append(f"<details><summary>{counts[tag]:,} {tag}</summary><ul class='names'>{names}</ul></details>")
    body = static_table("Signals by how they were predicted", tags, [[f"{counts[tag]:,}" for tag in tags]])
    lead = (
        "Exact rules hold in the limit of many channels; approximate ones state their source; sampled operators were "
        "run on samples of their inputs; assumed ones were taken to pass on their input's moments. A signal is tagged "
        "by the weakest rule on its way."
    )
    return _section("coverage", "Coverage", body + "".join(lists), lead)


def _every_signal() -> str:
    return _section("every-signal", "Every signal", '<div class="table" id="table-signals"></div>')


def _provenance(report: Record) -> str:
    """Return the section of notes, versions, times and the command that makes the report again."""
    provenance = report.provenance
    rows = [
        ("inputs", provenance.inputs or "–"),
        ("seed", str(provenance.seed)),
        ("measured passes", str(provenance.draws)),
        ("time", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in provenance.seconds.items())),
        *provenance.versions.items(),
    ]
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    body = static_table("How this report was made", ("what", "value"), rows)
    body += f'<h3>To make it again</h3><pre tabindex="0">{escape(provenance.command)}</pre>'
    if notes:
        body = f'<h3>Notes</h3><ul class="notes">{notes}</ul>' + body
    return _section("provenance", "Notes and provenance", body)


def static_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a small table as HTML, everything in it escaped."""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
    title = escape(caption)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table><caption>{title}'
        f"</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _short(count: int) -> str:
    """Return a count as people write it: ``25.6 M``."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return str(count)
