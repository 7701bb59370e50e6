"""The page of the papers' claims, generated from the results: no row is left out because it failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import wellposed as wp
from experiments.registry import SCALES, Experiment, Judgement, experiments, find
from experiments.results import FOLDER, Result, found
from experiments.settings import as_plain, describe_scale, from_plain, load_settings

_HEAD = """# The papers' claims

*Written by `python -m experiments papers` from the files in `experiments/results/`; not by hand.* Each row can be run
again: `python -m experiments run A3 --scale laptop --data PATH`. What the scales mean, and how an experiment is
written, is said in `experiments/README.md`.

Three papers are tested: AutoInit ([arXiv:2109.08958](https://arxiv.org/abs/2109.08958)), architecture-aware scaling,
"topology" ([arXiv:2402.17440](https://arxiv.org/abs/2402.17440)), and NIO (Yang et al., NeurIPS 2022). Where a paper's
own numbers were not at hand its claim is put in words. *Smoke* results are no evidence and are not shown.

- *Agrees*: the claim holds at the scale that was run, beyond what chance would give. *In direction*: its main part
  does. *Does not agree*: its main part fails, or its opposite is beyond chance. *Not decided*: chance alone could have
  given what was found. None of them speaks of the paper's own scale.
- A ± is one standard error of a mean; an octave is a factor of 2. A difference counts where chance would give one as
  large in less than 5 % of cases. Chance classifies a tenth of CIFAR-10's images rightly.
- What is tested is this library's version of a method: `autoinit` follows correlations that the paper takes to be
  absent (`state="independent"` is the paper's), NIO and GradInit choose their bound on the gradient by themselves
  ([reproduce](reproduce.md) says how to have the papers' own). `glorot_uniform` is the default of Keras, on which
  AutoInit's experiments ran; `default` is what PyTorch's layers do by themselves. `paths` is the topology paper's rule
  for the learning rate, `ntk` and `maximal_update` are this library's ([learning rates](learning-rates.md)).
"""


def judged(result: Result) -> Judgement:
    """Return what an experiment says of its result."""
    return find(result.experiment).judge(from_plain(result.settings), result.rows)


def best(results: Sequence[Result], name: str) -> Result | None:
    """Return an experiment's result at the largest scale that has one: this version's where there is one."""
    mine = [result for result in results if result.experiment == name and result.scale != "smoke"]
    return max(mine, key=lambda r: (r.current, SCALES.index(r.scale), r.date), default=None)


def page(folder: Path = FOLDER, figures: Path = Path("docs/figures")) -> str:
    """Return the page as markdown."""
    results = found(folder)
    known = experiments()
    chosen = {name: best(results, name) for name in known}
    lines = [_HEAD, "| id | claim | source | scale | outcome |", "|---|---|---|---|---|"]
    for name, experiment in known.items():
        result = chosen[name]
        outcome = "not run" if result is None else judged(result).agreement
        scale = "–" if result is None else result.scale
        lines.append(f"| [{name}](#{name.lower()}) | {experiment.title} | {experiment.source} | {scale} | {outcome} |")
    for name, experiment in known.items():
        lines += ["", *_section(name, experiment, chosen[name], figures)]
    return "\n".join(lines) + "\n"


def _section(name: str, experiment: Experiment, result: Result | None, figures: Path) -> list[str]:
    lines = [
        f"## {name}",
        "",
        f"**{experiment.title}** ({experiment.source})",
        "",
        f"- Claim: {experiment.claim}",
        f"- Paper: {experiment.paper}",
    ]
    if result is None:
        return [*lines, "- Ours: not run at any scale."]
    judgement = judged(result)
    where = result.environment.get("gpu", result.environment["cpu"])
    made = (
        "" if result.current else f"; **made by wellposed {result.environment['wellposed']}**, this is {wp.__version__}"
    )
    now = as_plain(load_settings(name, result.scale))
    size = describe_scale(name, result.scale) if result.settings == now else "with settings that have changed since."
    lines += [
        f"- Scale ({result.scale}): {size}",
        f"- Ours: {judgement.ours}",
        f"- Outcome: **{judgement.agreement}**. {judgement.sentence}",
        f"- Run: data {result.data}, {len(result.rows)} units, {result.seconds / 60:.1f} minutes in all, {where}, "
        f"wellposed {result.environment['wellposed']}, torch {result.environment['torch']}, {result.date} UTC{made}.",
    ]
    if judgement.table:
        head, *body = judgement.table
        lines += ["", *(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *body))]
    if (figures / f"{name.lower()}.png").exists():
        lines += ["", f"![{experiment.title}](figures/{name.lower()}.png)"]
    return lines
