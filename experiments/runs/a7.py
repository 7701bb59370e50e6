"""A7: random activation functions, by default, AutoInit and AutoInit++."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from experiments.activations import PLUS, RELU, trained
from experiments.data import load_images
from experiments.numbers import mean, percent
from experiments.pangaea import random_function
from experiments.registry import TRAINED, Experiment, Judgement, Row, Settings, Unit, experiment
from experiments.training import checkpoint_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Scores = NDArray[np.float64]
CHANCE = 0.1


@experiment("A7")
class RandomActivationFunctions(Experiment):
    """How many random functions train, and how many beat ReLU, under each initialisation."""

    title = "Random PANGAEA activation functions: default, AutoInit, AutoInit++"
    source = "AutoInit, section 11, figures 8 and 10"
    claim = (
        "With AutoInit more random activation functions train, and more beat ReLU, than by default; AutoInit++ more "
        "still; the distributions of accuracies differ significantly."
    )
    paper = (
        "of 200 functions 149 (default), 130 (AutoInit), 117 (AutoInit++) stay at chance, and 22, 26, 50 beat ReLU's "
        "89.10 %; Kolmogorov–Smirnov D 0.105, 0.191, 0.122 (AutoInit–default, ++–default, ++–AutoInit)"
    )
    use = "Activations that nobody has tuned for: `autoinit`, and AutoInit++ (`center=True`) for more of them still."
    reversal = (
        "more functions, where Mann and Whitney's test of AutoInit is near 5 %, and another rate, of which all "
        "arms share one"
    )
    stated: ClassVar[dict[str, Any]] = {"functions": 200}
    held = ("functions",)

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield ReLU under several seeds, then each random function, under each initialisation."""
        for seed in range(settings.relu_seeds):
            for method in settings.methods:
                yield {"function": "relu", "method": method, "seed": settings.seed + seed}
        for index in range(settings.functions):
            for method in settings.methods:
                yield {"function": index, "method": method, "seed": settings.seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Train All-CNN-C with the function; chance where no plan can be made, as where every signal is zero."""
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        index = unit["function"]
        function = RELU if index == "relu" else random_function(settings.seed + index, settings.mutations)
        kept = checkpoint_of(self.name, settings, data, unit)
        _, found = trained(function, settings, unit["method"], images, unit["seed"], checkpoint=kept)
        return {"text": str(function), **found}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Count what trains and what beats ReLU's mean under the default; test the distributions against each other."""
        from scipy import stats

        scores = _scores(settings, rows)
        base, *others = settings.methods
        relu = mean(r["accuracy"] for r in rows if r["function"] == "relu" and r["method"] == base)
        trains = {m: int((v > CHANCE + TRAINED).sum()) for m, v in scores.items()}
        beats = {m: int((v > relu).sum()) for m, v in scores.items()}
        ours = f"of {settings.functions} functions " + "; ".join(
            f"{m}: {settings.functions - trains[m]} stay at chance, {beats[m]} beat ReLU's {percent(relu)}"
            for m in settings.methods
        )
        distances = ", ".join(
            f"{stats.ks_2samp(scores[a], scores[b]).statistic:.3f} ({a}–{b})"
            for a, b in (("autoinit", base), (PLUS, base), (PLUS, "autoinit"))
        )
        ours += f" (under {base}); Kolmogorov–Smirnov D {distances}"
        tests, differ, pairs, losing = [], {}, {}, False
        for method in others:
            mine, its = scores[method], scores[base]
            rank = stats.mannwhitneyu(mine, its, alternative="greater").pvalue
            smirnov = stats.ks_2samp(mine, its, alternative="less").pvalue
            pairs[method] = _signed_rank(mine, its)
            losing = losing or _signed_rank(its, mine) < 0.05 / len(others)
            differ[method] = rank < 0.05
            tests.append(
                f"{method}: Mann–Whitney p = {rank:.2g}, Kolmogorov–Smirnov {smirnov:.2g}, "
                f"{_epps_singleton(mine, its)}; function by function, Wilcoxon {pairs[method]:.2g}"
            )
        more = all(trains[m] > trains[base] and beats[m] > beats[base] for m in others)
        still = trains[PLUS] >= trains["autoinit"] and beats[PLUS] >= beats["autoinit"]
        sentence = f"Compared with {base}, {'. '.join(tests)} (one-sided except Epps–Singleton's)."
        if more and still and all(differ.values()):
            return Judgement(ours, "agrees", sentence)
        if losing:
            return Judgement(ours, "does not agree", sentence)
        sure = more and all(p < 0.05 for p in pairs.values())
        return Judgement(ours, "agrees in direction" if sure else "not decided at this scale", sentence)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw the empirical distribution functions of the accuracies."""
        panel = figure.subplots()
        for index, (method, values) in enumerate(_scores(settings, rows).items()):
            panel.ecdf(100 * values, color=f"C{index}", label=method)
            relu = [r["accuracy"] for r in rows if (r["function"], r["method"]) == ("relu", method)]
            panel.axvline(100 * mean(relu), color=f"C{index}", ls=":", lw=0.8)
        panel.set(xlabel="test accuracy (%); dotted: ReLU", ylabel="share of the functions at or below")
        panel.legend(fontsize=7)


def _scores(settings: Settings, rows: Sequence[Row]) -> dict[str, Scores]:
    """Return the random functions' accuracies for each initialisation."""
    return {
        m: np.array([r["accuracy"] for r in rows if r["method"] == m and r["function"] != "relu"], dtype=np.float64)
        for m in settings.methods
    }


def _signed_rank(mine: Scores, its: Scores) -> float:
    """Return Wilcoxon's one-sided p of pairs, 0.5 where no pair differs."""
    from scipy import stats

    return float(stats.wilcoxon(mine, its, alternative="greater").pvalue) if (mine != its).any() else 0.5


def _epps_singleton(mine: Scores, its: Scores) -> str:
    """Return the Epps–Singleton test in words; it takes five values a side, and some spread among them."""
    from scipy import stats

    try:
        return (
            f"Epps–Singleton {stats.epps_singleton_2samp(mine, its).pvalue:.2g}"
            if len(its) >= 5
            else "too few for Epps–Singleton"
        )
    except (ValueError, np.linalg.LinAlgError):
        return "Epps–Singleton not defined"
