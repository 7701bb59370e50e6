"""The page of the papers' claims, generated from the results: no row is left out because it failed."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

import wellposed as wp
from experiments.answers import answers
from experiments.initialise import STEADY
from experiments.numbers import mean, paired, percent, points
from experiments.registry import SCALES, Experiment, Judgement, experiments, find
from experiments.results import FOLDER, Result, found
from experiments.settings import as_plain, describe_scale, from_plain, load_settings

_HEAD = """# The papers' claims

*`python -m experiments papers` generates this page from the files in `experiments/results/`. It is not edited by hand.*
Each row can be run again: `python -m experiments run A3 --scale laptop --data PATH`. `experiments/README.md` describes
the scales, and how to write an experiment.

Three papers are tested, the abstract of a fourth, and claims of our own (W1 to W3): AutoInit
([arXiv:2109.08958](https://arxiv.org/abs/2109.08958)), architecture-aware scaling, "topology"
([arXiv:2402.17440](https://arxiv.org/abs/2402.17440)), NIO (Yang et al., NeurIPS 2022), and Tailored Activation
Transformations ([arXiv:2203.08120](https://arxiv.org/abs/2203.08120)). Where a paper has a figure
and no number, its claim is described in words. *Smoke* results are no evidence and are not shown.

- *Agrees*: the claim holds at the scale that was run, beyond chance. *In direction*: its main part does, or most of its
  parts. *Does not agree*: its main part fails, or its opposite holds beyond chance. *No difference*: chance could
  explain the result, and whatever gain or loss there is lies within two points (95 % interval). *Not decided*: chance
  could explain it, and a larger difference too, or the claim's premise does not hold. None of these outcomes applies to
  the paper's own scale.
- A ± is one standard error of a mean. An octave is a factor of 2. A difference counts if chance would give one as large
  in less than 5 % of cases. Chance accuracy on CIFAR-10 is 10 %.
- The experiments test this library's version of a method. `autoinit` follows correlations that the paper assumes to be
  absent (`state="independent"` is the paper's). NIO and GradInit choose their bound on the gradient automatically
  ([how to use the papers' bounds](reproduce.md)). `glorot_uniform` is the default of Keras, on which AutoInit's
  experiments ran. `default` is PyTorch's own initialisation. `published` is the topology paper's rule for the learning
  rate as its authors' code counts depths, `paths` the same by its equation. `kernel`, `ntk` and `maximal_update` are
  this library's ([learning rates](learning-rates.md)).
- *Our start* is what `wp.initialize_` does (`steady`, [plans](plans.md)). It is one more arm where it applies, and no
  claim is judged by it. It is held against the best of the other arms, refinements on data among them.
- Where a rule is compared with maximal rates, the maximal rate is the largest whose loss is within a standard error of
  the smallest, and a rule's constant is fixed by the first net. The paper's r is compared with the 95 % interval
  (Fisher's z) of that of its rule, which stands in square brackets. In round brackets stands r for the rate of the
  smallest loss itself.
"""

ARMS = ("method", "recipe", "way", "arm", "form")
"""The keys of units that tell arms apart; an experiment has one of them at most."""
LISTED = 12
"""Up to how many rates are listed one by one."""
_ANSWERS = """## Which method helps me

Gains are in accuracy over the start or the rates that stand under *in place of*, each arm at the best of its rates by
training loss where it has several, in the short trainings of the rows. *Helps* counts what chance would give in less
than 5 % of cases. `default` is the model's own weights, `he_normal` what its paper takes, `fixed` one rate for all."""
_PLACES = {1: "first", 0: "not told apart from the best", -1: "behind the best"}
_SEMICOLON = re.compile(r"; (?![^(]*\))")
"""Between clauses, and not within brackets."""


def judged(result: Result) -> Judgement:
    """Return what an experiment says of its claim; the library's own start has no part in it."""
    listed = {"methods": [m for m in methods if m != STEADY]} if (methods := result.settings.get("methods")) else {}
    rows = [row for row in result.rows if row.get("method") != STEADY]
    return find(result.experiment).judge(from_plain(result.settings | listed), rows)


def standing(result: Result) -> tuple[str, str]:
    """Return where the library's own start stands among the arms of a result, in a word and in a sentence.

    It is held against the arm with the largest mean accuracy, pair by pair; where it is no arm, both are empty.
    """
    arms = dict(find(result.experiment).arms(from_plain(result.settings), result.rows))
    mine = arms.pop(STEADY, None)
    if not mine:
        return "", ""
    best = max(arms, key=lambda arm: mean(arms[arm]))
    gap = paired(mine, arms[best])
    word = _PLACES[gap.sign(len(arms))]
    told = f"{percent(mean(mine))}, {points(gap)} from {best}, the best of the others, over {gap.count} pairs"
    return word, f"**{word}**. {told}."


def arms_of(result: Result) -> str:
    """Return the arms of a result, the rates at which they were trained, and the draws, in words."""
    told = [", ".join(f"`{name}`" for name in dict.fromkeys(_named(result))) or "one"]
    rates = _rates(result)
    if rates:
        several = "s" * (len(rates) > 1)
        each = ", ".join(f"{rate:g}" for rate in rates)
        many = f"at rates from {rates[0]:.2g} to {rates[-1]:.2g}"
        told.append(f"at the rate{several} {each}" if len(rates) <= LISTED else many)
    draws = len({row["seed"] for row in result.rows if "seed" in row}) or result.settings.get("draws")
    if draws:
        told.append(f"in {draws} draw{'s' * (draws != 1)}")
    return ", ".join(told)


def _named(result: Result) -> list[str]:
    """Return the arm of each row, or the arms that the experiment or its settings know."""
    rows, settings = result.rows, result.settings
    key = next((key for key in ARMS if key in rows[0]), None)
    if key:
        return [str(row[key]) for row in rows]
    known = find(result.experiment).arms(from_plain(settings), rows)
    return list(known) or [str(name) for name in settings.get("rules", settings.get("forms", []))]


def _rates(result: Result) -> list[float]:
    """Return the rates of all trainings, or the one of the settings."""
    runs = [run for row in result.rows for run in (row["runs"] if isinstance(row.get("runs"), list) else [row])]
    known = {float(run[key]) for run in runs for key in ("rate", "at") if isinstance(run.get(key), float)}
    usual = result.settings.get("train", {}).get("rate")
    if known and usual in result.settings.get("rates", ()):  # rows at the usual rate do not write it down
        known.add(float(usual))
    return sorted(known or ([] if usual is None else [float(usual)]))


def best(results: Sequence[Result], name: str) -> Result | None:
    """Return an experiment's result at the largest scale that has one: this version's where there is one."""
    mine = [result for result in results if result.experiment == name and result.scale != "smoke"]
    return max(mine, key=lambda r: (r.current, SCALES.index(r.scale), r.date), default=None)


def _others(results: Sequence[Result], shown: Result) -> list[str]:
    """Return a line for each other scale that this version has a result of."""
    lines = []
    for scale in SCALES[1:]:
        mine = [r for r in results if r.experiment == shown.experiment and r.scale == scale and r.current]
        if scale != shown.scale and mine:
            judgement = judged(max(mine, key=lambda r: r.date))
            lines += _listed(f"At scale {scale}: **{judgement.agreement}**. {judgement.ours}")
    return lines


def page(folder: Path = FOLDER, figures: Path = Path("docs/figures")) -> str:
    """Return the page as markdown."""
    results = found(folder)
    known = experiments()
    chosen = {name: best(results, name) for name in known}
    lines = [_HEAD, *_ANSWERS.splitlines(), "", *answers(chosen), "", "## What became of the claims", ""]
    lines += ["| id | claim | source | scale | outcome | our start | so do this |", f"|{'---|' * 7}"]
    for name, experiment in known.items():
        result = chosen[name]
        outcome = "not run" if result is None else judged(result).agreement
        scale = "–" if result is None else result.scale
        start = standing(result)[0] if result is not None else ""
        told = (experiment.title, experiment.source, scale, outcome, start or "–", experiment.use)
        lines.append(f"| [{name}](#{name.lower()}) | {' | '.join(told)} |")
    for name, experiment in known.items():
        lines += ["", *_section(name, experiment, chosen[name], results, figures)]
    return "\n".join(lines) + "\n"


def _section(
    name: str, experiment: Experiment, result: Result | None, results: Sequence[Result], figures: Path
) -> list[str]:
    lines = [
        f"## {name}",
        "",
        *_filled(f"**{experiment.title}** ({experiment.source})"),
        "",
        *_filled(f"- Claim: {experiment.claim}"),
        *_listed(f"Paper: {experiment.paper}"),
    ]
    if result is None:
        return [*lines, "- Ours: not run at any scale."]
    judgement = judged(result)
    start = standing(result)[1]
    where = result.environment.get("gpu", result.environment["cpu"])
    made = (
        "" if result.current else f", **made by wellposed {result.environment['wellposed']}**, this is {wp.__version__}"
    )
    kept = f"; arms that were there before were run by {result.earlier}" if result.earlier else ""
    now = as_plain(load_settings(name, result.scale))
    size = describe_scale(name, result.scale) if result.settings == now else "with settings that have changed since."
    lines += [
        *_listed(f"Scale ({result.scale}): {size}"),
        *_listed(f"Ours: {judgement.ours}"),
        *_listed(f"Outcome: **{judgement.agreement}**. {judgement.sentence}"),
        *_filled(f"- Our start, `{STEADY}`: {start}" if start else ""),
        *_filled(f"- Arms: {arms_of(result)}."),
        *_filled(f"- What would change the verdict: {experiment.reversal}."),
        *_filled(
            f"- Run: data {result.data}, {len(result.rows)} units, {result.seconds / 60:.1f} minutes in all, "
            f"{where}, wellposed {result.environment['wellposed']}, "
            f"torch {result.environment['torch']}, {result.date} UTC{made}{kept}."
        ),
        *_others(results, result),
    ]
    if judgement.table:
        head, *body = judgement.table
        lines += ["", *(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))]
    if (figures / f"{name.lower()}.png").exists():
        lines += ["", f"![{experiment.title}](figures/{name.lower()}.png)"]
    return lines


def _listed(text: str) -> list[str]:
    """Return an item of the list of an experiment: what semicolons divide stands below it, an item each."""
    label, _, told = text.partition(": ")
    parts = _SEMICOLON.split(told)
    if len(parts) == 1:
        return _filled(f"- {text}")
    marked = re.match(r"\*\*[^*]+\*\*\. ", told)  # the outcome, which stays beside its label
    if marked:
        label, parts[0] = f"{label}: {marked[0].rstrip()}", parts[0][marked.end() :]
    return [f"- {label}" if marked else f"- {label}:", *(line for part in parts for line in _filled(f"    - {part}"))]


def _filled(text: str) -> list[str]:
    """Return a paragraph or a list's item as lines of the pages' width."""
    indent = " " * (text.index("- ") + 2) if text.lstrip().startswith("- ") else ""
    return textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
