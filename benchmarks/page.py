"""The opening table and the pictures of the benchmarks' page, from the results that the other scripts have stored.

    python benchmarks/page.py [--results docs/results] [--out docs]

Writes ``results/summary.md`` and ``images/benchmarks/*.svg`` below ``--out``; nothing is measured. The same results
give the same bytes.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from charts import BLUE, GREY, NARROW, ORANGE, PURPLE, TEAL, Chart, Key, Scale
from many_layers import LIMITS, MANY
from rates_tables import GOAL, OF_CEILING, against_goals, base_of, default_rule, measures, told_of, true_of
from starts.figure import draw_starts

DOCS = Path(__file__).resolve().parents[1] / "docs"
Rows = list[dict[str, Any]]
Results = Mapping[str, Rows]

NORMS, PLAIN, UNSTABLE = ("normalised", "cells"), ("plain", "plain cells"), ("unstable",)
TOPOLOGIES, OTHERS = ("std128", "mf64", "exact64", "gelu64", "mixed64"), ("residual64", "vit", "batchnorm64", "cnn")
OCTAVES = (0.01, 0.1, 1, 10, 100)

# The goals, where the stored rows do not hold them.
FACTOR = 2
SPEED_MEDIAN, SPEED_MOST = 0.7, 1
GROWTH_DEPTH, GROWTH_SECONDS, GROWTH_POWER = 164, 0.5, 1.1  # a power up to 1.1 counts as linear
SIZE_SECONDS, SIZE_MB = 10, 1500
SHIFT, CARRIED_LOSS, TRANSFER_COST = 0.5, 0.02, 1.2
SEARCH_RATIO, SAME_ANSWER = 3, 0.075  # octaves: a tenth of the step of the search's grid
NIO_TIME, MEMORY, LOOP_RATIO = 3, 2, 3
WATCHING = 5
NAMED, ALARMED = 95, 5
PAGE_MB = {1000: 8, 20000: 20}
OPEN_SECONDS, BUILD_SECONDS = 2, 10  # at 1,000 and at 20,000 operations
REACH = {
    "torchvision classification": 100,
    "torchvision segmentation": 100,
    "torchvision video": 100,
    "timm": 100,
    "transformers": 94,
}
EVOLVED, EVOLVED_SIZE = 95, 18000
SAME_ESTIMATE = 0.02  # octaves, one of the two being sampled
LANGUAGE_MODELS, OTHER_LIBRARIES, OTHER_MODELS = 60, 15, 150
PLANNED, CHECKED, OTHER_P95 = 98, 90, 0.2  # per cent, per cent, octaves
NETS = {
    "resnet": "ResNet",
    "densenet": "DenseNet",
    "wrn": "wide ResNet",
    "resnet_bn": "ResNet, batch norm",
    "densenet_bn": "DenseNet, batch norm",
    "wrn_bn": "wide ResNet, batch norm",
    "swin": "Swin transformer",
}


def load(folder: Path) -> Results:
    """Return the rows of every benchmark, by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8"))["rows"] for path in sorted(folder.glob("*.json"))}


# -------------------------------------------------------------------------------------------------------- the figures


def of_groups(rows: Rows, groups: Sequence[str]) -> Rows:
    """Return the rows of some groups of nets."""
    return [row for row in rows if row["group"] in groups]


def power_of_growth(rows: Rows) -> float:
    """Return the power of the number of operators as which the time grows."""
    return float(np.polyfit(*(np.log([row[key] for row in rows]) for key in ("nodes", "total_s")), 1)[0])


def families(rows: Rows) -> dict[str, Rows]:
    """Return the rows of the learning rates by family."""
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row["family"], []).append(row)
    return found


def cost(rows: Rows, what: str, engine: str) -> dict[str, Any]:
    """Return the row of an engine at the default division of the batch, which is the first in the table."""
    return next(row for row in rows if row["what"].endswith(what) and row.get("engine") == engine)


def single_samples(rows: Rows) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return for each net the rows of sample-wise GradCosine, batched and one sample after the other."""
    found = [row for row in rows if row["what"].endswith("sample-wise GradCosine")]
    loops = {row["what"]: row for row in found if row["engine"] == "loop"}
    return [(row, loops[row["what"]]) for row in found if row["engine"] == "batched"]


def reach(rows: Rows) -> dict[str, dict[str, int]]:
    """Return by library (torchvision by kind) how many architectures count, are traced, planned, and set aside."""
    found: dict[str, dict[str, int]] = {}
    for row in rows:
        name = f"torchvision {row['family']}" if row["library"] == "torchvision" else row["library"]
        counts = found.setdefault(name, dict.fromkeys(("counted", "traced", "planned", "aside"), 0))
        counts["aside" if row["outcome"] == "no example" else "counted"] += 1
        counts["traced"] += row["outcome"] == "traced"
        counts["planned"] += row["planned"]
    return found


def at(rows: Rows, key: str, value: Any) -> dict[str, Any]:
    """Return the row that has a value."""
    return next(row for row in rows if row[key] == value)


# ---------------------------------------------------------------------------------------------------------- the table


def figure(value: float, decimals: int) -> str:
    """Return a number with so many decimals, and a minus sign."""
    return f"{value:,.{decimals}f}".replace("-", "−")


def between(values: Iterable[float], decimals: int) -> str:
    """Return the least and the largest of some numbers."""
    found = sorted(values)
    least, largest = figure(found[0], decimals), figure(found[-1], decimals)
    return least if least == largest else f"{least} to {largest}"


def share(marks: Iterable[bool]) -> str:
    """Return how many of some marks are true."""
    found = list(marks)
    return f"{sum(found)} of {len(found)}"


def verdict(*parts: bool) -> str:
    """Return whether a goal is met: all its parts, some, or none."""
    return "yes" if all(parts) else "in part" if any(parts) else "**no**"


def accuracy(results: Results, groups: Sequence[str], also: Rows) -> tuple[str, str]:
    rows = of_groups(results["accuracy"], groups)
    met = [row["reached"] for row in rows]
    told = f"{share(met)} nets × inputs, p95 {between((row['full'] for row in rows), 2)} octaves"
    if also:
        again = [row["reached"] for row in also]
        told += f"; of the nets measured again with {also[0]['draws']} draws {share(again)}"
        met += again
    if groups == PLAIN:  # those without a goal of their own, too
        rows = rows + of_groups(results["accuracy"], UNSTABLE)
    below = [row["not_above"] for row in [*rows, *also]]
    return f"{told}; not above `independent` in {share(below)}", verdict(*met, *below)


def backward(results: Results) -> tuple[str, str]:
    rows = [row for row in results["backward"] if row["goal"] is not None]
    parts = [
        f"{share(row['reached'] for row in of_groups(rows, groups))} {name}"
        for groups, name in ((NORMS, "with normalisation layers"), (PLAIN, "without"))
    ]
    return f"{', '.join(parts)} at the forward goals", verdict(*(row["reached"] for row in rows))


def spread(results: Results) -> tuple[str, str]:
    unstable = {row["net"] for row in of_groups(results["accuracy"], UNSTABLE)}
    rows = [row for row in results["spread"] if row["net"] in unstable]
    within = [float(row["within"].removesuffix(" %")) for row in rows]
    warned = [row["warned"] for row in rows]
    told = f"{between(within, 0)} % of a net's nodes within it, median {figure(median(within), 0)} %"
    return f"{told}; {share(warned)} warned", verdict(min(within) == 100, all(warned))


def teeth_marks(rows: Rows) -> dict[str, list[bool]]:
    """Return what every check of some nets came to: false alarms under a plan and own weights, and faults named.

    Nets that are predicted wrongly are left out; a wrong spread is no reason not to name a fault.
    """
    right = [row for row in rows if row["right"] == "yes"]
    marks = {key: [pair["first"] is not None for row in right for pair in row[key]] for key in ("alarms", "own")}
    return marks | {"found": [case["found"] for row in rows if row["right"] != "no" for case in row["sabotage"]]}


def percent(marks: Sequence[bool]) -> float:
    """Return the share of marks that are true, in per cent; 0 of none."""
    return 100 * sum(marks) / max(len(marks), 1)


def teeth(results: Results) -> tuple[str, str]:
    rows = results["teeth"]
    marks = teeth_marks(rows)
    told = (
        f"{share(marks['found'])} named; false alarms in {share(marks['alarms'])} checks of a plan and "
        f"{share(marks['own'])} of own weights; {sum(row['right'] != 'yes' for row in rows)} of {len(rows)} nets are "
        "predicted wrongly, and set aside"
    )
    quiet = (percent(marks[key]) <= ALARMED for key in ("alarms", "own"))
    return told, verdict(percent(marks["found"]) >= NAMED, *quiet)


def speed(results: Results) -> tuple[str, str]:
    ratios = [row["ratio"] for row in results["speed"]]
    middle, most = median(ratios), max(ratios)
    return (
        f"median {figure(middle, 2)}×, largest {figure(most, 2)}×",
        verdict(middle <= SPEED_MEDIAN, most <= SPEED_MOST),
    )


def growth(results: Results) -> tuple[str, str]:
    power = power_of_growth(results["growth"])
    seconds = at(results["growth"], "depth", GROWTH_DEPTH)["total_s"]
    told = f"time ∝ operators to the power {figure(power, 2)}; ResNet-{GROWTH_DEPTH} in {figure(seconds, 2)} s"
    return told, verdict(power <= GROWTH_POWER, seconds <= GROWTH_SECONDS)


def many_layers(results: Results) -> tuple[str, str]:
    rows = [row for row in results["many_layers"] if row["layers"] == MANY]
    most = {name: max(row[name] for row in rows) for name in LIMITS}
    told = ", ".join(f"{name.removesuffix('_s')} {figure(value, 1)} s" for name, value in most.items())
    return told, verdict(*(value <= LIMITS[name] for name, value in most.items()))


def size(results: Results) -> tuple[str, str]:
    (row,) = results["size"]
    told = f"{figure(row['plan_s'], 1)} s, {figure(row['peak_mb'] / 1000, 2)} GB"
    return told, verdict(row["plan_s"] <= SIZE_SECONDS, row["peak_mb"] <= SIZE_MB)


def giants(results: Results) -> tuple[str, str]:
    row = max(results["giants"], key=lambda row: float(row["parameters"]))
    told = (
        f"{figure(row['processor_s'], 1)} s of processor time, {figure(row['peak_mb'] / 1000, 2)} GB; "
        f"{row['assumed']} of {row['signals']} signals assumed"
    )
    within = row["processor_s"] <= SIZE_SECONDS and row["peak_mb"] <= SIZE_MB
    return told, verdict(within, not row["assumed"])


def on_meta(results: Results) -> tuple[str, str]:
    rows = [row for row in results["meta"] if row["how"] == "by name"]
    alike = [bool(row.get("same") or row.get("by_chance")) for row in rows]
    return f"{share(alike)} models of a sample of the zoo", verdict(all(alike))


def rules(results: Results) -> tuple[str, str]:
    groups = families(results["rates"])
    met = [against_goals(family, nets)["met"] == "yes" for family, nets in groups.items()]
    found = [measures(nets, default_rule(nets)) for nets in groups.values()]
    r, octaves = (sorted(each[key] for each in found) for key in ("r_log", "median"))
    told = (
        f"met in {share(met)} families ([each of them](#goals-by-family)): r {between(r, 2)}, median "
        f"{figure(median(r), 2)}; {between(octaves, 2)} octaves, median {figure(median(octaves), 2)}"
    )
    return told, verdict(*met)


def search(results: Results) -> tuple[str, str]:
    ratios = [row["ratio"] for row in results["search"]]
    apart = max(row["difference"] for row in results["search"])
    faster = [ratio >= SEARCH_RATIO for ratio in ratios]
    told = (
        f"{between(ratios, 1)}× faster, {share(faster)} settings at {SEARCH_RATIO}×; answers within {figure(apart, 2)}"
    )
    return f"{told} octaves", verdict(*faster, apart <= SAME_ANSWER)


def width(results: Results) -> tuple[str, str]:
    def told(way: str) -> str:
        rows = [row for row in results["width"] if row["way"] == way]
        return ", ".join(
            f"{figure(row['shift'], 2)} ({'SGD' if row['optimizer'] == 'sgd' else 'Adam'})" for row in rows
        )

    shifts = [abs(row["shift"]) for row in results["width"] if row["way"] == "plan, mup"]
    said = f"moves by {told('plan, mup')} octaves, a step being 1; microsoft/mup {told('microsoft/mup')}"
    return said, verdict(*(shift <= 1 for shift in shifts))


def transfer(results: Results) -> tuple[str, str]:
    def of(family: str) -> dict[str, dict[str, Any]]:
        return {row["way"]: row for row in results["transfer"] if row["family"] == family}

    told, met, rest = [], [], []
    for family in dict.fromkeys(row["family"] for row in results["transfer"]):
        rows = of(family)
        ours = rows["complete_p, α = 1"]
        others = [row["carried"] for way, row in rows.items() if not way.startswith("complete_p")]
        low, high = ours["interval"]
        lower = ours["carried"] <= min(others, default=ours["carried"])
        met += [
            abs(ours["shift"]) <= SHIFT,
            low is not None and high is not None and -SHIFT <= low <= high <= SHIFT,
            lower,
            ours["carried"] - ours["best"] <= CARRIED_LOSS,
        ]
        if family not in ("depth of a GPT", "width of a GPT"):
            rest.append((ours["shift"], ours["carried"] - ours["best"], bool(others) and lower, bool(others)))
            continue
        told.append(
            f"{family}: {figure(ours['shift'], 1)} octaves, loss {figure(ours['carried'], 3)}, "
            f"{figure(ours['best'], 3)} at its own best rate"
            + (f", {figure(min(others), 3)} by the best of the others" if others else "")
        )
    if rest:
        shifts, gaps, lowers, compared = zip(*rest, strict=True)
        told.append(
            f"{len(rest)} other families: {between(shifts, 1)} octaves, at most {figure(max(*gaps, 0), 3)} above "
            f"their own best, below the others at their carried rates in {sum(lowers)} of {sum(compared)}"
        )
    ratios = [row["ratio"] for row in results["transfer_cost"]]
    met += [ratio <= TRANSFER_COST for ratio in ratios]
    return f"{'; '.join(told)}; {between(ratios, 2)}× mup's plan", verdict(*met)


def refinement(results: Results) -> tuple[str, str]:
    rows = results["gradients"]
    exact, pairs = cost(rows, "NIO iteration", "double_backward"), single_samples(rows)
    faster = [loop["time_ratio"] / batched["time_ratio"] for batched, loop in pairs]
    held = [batched["held_ratio"] for batched, _ in pairs]
    told = (
        f"NIO {figure(exact['time_ratio'], 2)}× the time, {figure(exact['held_ratio'], 2)}× the memory held; "
        f"GradCosine {between(held, 2)}× the memory held, {between(faster, 1)}× faster than a loop"
    )
    met = (
        exact["time_ratio"] <= NIO_TIME,
        exact["held_ratio"] <= MEMORY,
        max(held) <= MEMORY,
        min(faster) >= LOOP_RATIO,
    )
    return told, verdict(*met)


def watching(results: Results) -> tuple[str, str]:
    most = max(row["overhead"] for row in results["watching"])
    return f"at most {figure(most, 1)} %", verdict(most < WATCHING)


def report(results: Results) -> tuple[str, str]:
    few, many = (at(results["report"], "operations", count) for count in PAGE_MB)
    told = (
        f"{figure(few['megabytes'], 1)} MB and {figure(few['open_s'], 1)} s; {figure(many['megabytes'], 1)} MB, "
        f"its page built in {figure(many['page_s'], 1)} s after {figure(many['report_s'], 0)} s of finding out"
    )
    met = (
        few["megabytes"] < PAGE_MB[1000],
        few["open_s"] < OPEN_SECONDS,
        many["megabytes"] < PAGE_MB[20000],
        many["report_s"] + many["page_s"] < BUILD_SECONDS,
    )
    return told, verdict(*met)


def zoo(results: Results) -> tuple[str, str]:
    found = reach(results["zoo"])

    def told(*names: str) -> str:
        counts = {key: sum(found[name][key] for name in names) for key in found[names[0]]}
        if counts["planned"] == counts["counted"]:
            shown = "100 %"
        else:
            traced, planned = (figure(100 * counts[key] / counts["counted"], 1) for key in ("traced", "planned"))
            shown = f"{traced} % traced, {planned} % planned"
        left = f" ({counts['aside']} more set aside)" if counts["aside"] else ""
        return f"{shown} of {counts['counted']}{left}"

    vision = [name for name in REACH if name.startswith("torchvision")]
    shown = f"timm {told('timm')}; torchvision {told(*vision)}; transformers {told('transformers')}"
    met = [100 * found[name]["planned"] >= least * found[name]["counted"] for name, least in REACH.items()]
    return shown, verdict(*met)


def was_judged(rows: Rows) -> Rows:
    """Return the rows of the models that were judged to the end."""
    return [row for row in rows if row["stage"] == "done"]


def language_models(results: Results) -> tuple[str, str]:
    rows = was_judged(results["language_models"])
    close, spread = ([row[key] for row in rows] for key in ("close", "spread_within"))
    warned = sum(bool(row["false"]) for row in rows)
    told = (
        f"{share(close)} within the goal, {share(spread)} with the spread within a factor of {FACTOR}; false warnings "
        f"in {warned}; {len(results['language_models']) - len(rows)} more not judged"
    )
    return told, verdict(all(close), all(spread), not warned, len(rows) >= LANGUAGE_MODELS)


def evolved(results: Results) -> tuple[str, str]:
    rows = results["evolved"]
    most = max(row["nodes"] for row in rows)
    told = f"{between((row['ok'] for row in rows), 1)} % in {len(rows)} networks of up to {most:,} operators"
    largest = all(max(row["size"] for row in own) >= EVOLVED_SIZE for own in families(rows).values())
    return told, verdict(largest, all(row["ok"] >= EVOLVED for row in rows))


def hub_backbones(results: Results) -> tuple[str, str]:
    met = [not row["off"] and not row["assumed"] for row in results["hub_backbones"]]
    return share(met), verdict(all(met), any(met))


def keras_networks(results: Results) -> tuple[str, str]:
    met = [not row["off"] for row in results["keras_layers"]]
    return share(met), verdict(all(met), any(met))


def original(results: Results) -> tuple[str, str]:
    rows = results["original_autoinit"]
    faster = [row["seconds_original"] / row["seconds"] for row in rows]
    told = (
        f"{between(faster, 0)} × faster; estimates within {max(row['estimates'] for row in rows):.2f} octaves; "
        f"{sum(row['off'] for row in rows)} of {sum(row['layers'] for row in rows):,} layers off, the package's own "
        f"{sum(row['off_original'] for row in rows)}"
    )
    near = [row["estimates"] <= SAME_ESTIMATE for row in rows]
    return told, verdict(all(one > 1 for one in faster), all(near), not any(row["off"] for row in rows))


def outsiders(results: Results) -> tuple[str, str]:
    tried = [row for row in results["outsiders"] if row["stage"] not in ("build", "forward")]
    rows = was_judged(tried)
    planned = [row["stage"] not in ("trace", "plan") for row in tried]
    checked = [row["ok"] for row in rows]
    silent = sum(bool(row["silent_nodes"]) for row in rows)
    libraries = len({row["library"] for row in tried})
    middle = median(float(row["p95"]) for row in rows)
    told = (
        f"{libraries} libraries; planned {share(planned)}, checked {share(checked)}, median p95 {figure(middle, 2)}; "
        f"nodes off unnamed in {silent}"
    )
    met = (
        libraries >= OTHER_LIBRARIES and len(tried) >= OTHER_MODELS,
        100 * sum(planned) >= PLANNED * len(planned),
        100 * sum(checked) >= CHECKED * len(checked),
        middle <= OTHER_P95,
        not silent,
    )
    return told, verdict(*met)


def summary(results: Results) -> str:
    """Return how many goals are met, and the table of goals, what was reached, and whether that meets them."""
    again = of_groups(results["accuracy_many"], PLAIN)
    goals: list[tuple[str, str, str, tuple[str, str]]] = [
        (
            "[accuracy with normalisation layers](#accuracy)",
            "95th percentile over nodes of \\|log2(predicted / measured second moment)\\|, input prior known, "
            "measured mean over ≥ 16 weight draws",
            "≤ 0.15 octaves; ≤ 0.4 for a ViT on images and squeeze-and-excite nets; ≤ 0.25 for NAS-Bench-201 cells; "
            'within 2 standard errors; never above `state="independent"`',
            accuracy(results, NORMS, []),
        ),
        (
            "[accuracy without](#accuracy)",
            "the same",
            "≤ 0.35 octaves, or 1.5 standard errors",
            accuracy(results, PLAIN, again),
        ),
        (
            "[backward signals](#backward-signals)",
            "the same of gradients, with respect to every node, parameter and input",
            "reported against the forward goals",
            backward(results),
        ),
        (
            "[where no expectation can hold](#where-no-expectation-can-hold)",
            "predicted spread of every node, against the measured one",
            "within a factor of 2, and a warning",
            spread(results),
        ),
        (
            "[checks](#checks)",
            "one weight drawn 4 times too large, unknown to the prediction: `check` names the node or the first after "
            "it; and nets that are predicted rightly",
            f"≥ {NAMED} % of ≥ 200 named; ≤ {ALARMED} % of ≥ 200 called off",
            teeth(results),
        ),
        (
            "[speed](#speed)",
            "trace + plan + apply, against the time in which PyTorch constructs the same model",
            f"≤ {SPEED_MEDIAN}× (median over models), none above {SPEED_MOST}×",
            speed(results),
        ),
        (
            "[growth](#growth)",
            "trace + plan of pre-activation ResNet-56, -164, -812",
            f"linear in layers; ResNet-{GROWTH_DEPTH} in ≤ {GROWTH_SECONDS} s",
            growth(results),
        ),
        (
            "[many layers](#growth)",
            f"processor time to trace, plan, write and check chains of {MANY:,} small layers",
            ", ".join(f"{name.removesuffix('_s')} ≤ {limit:g} s" for name, limit in LIMITS.items()),
            many_layers(results),
        ),
        (
            "[size](#size)",
            "a plan for a Llama of 70 billion parameters on meta",
            f"≤ {SIZE_SECONDS} s, ≤ {SIZE_MB / 1000} GB",
            size(results),
        ),
        (
            "[very large models](#size)",
            "a plan for a mixture of experts of 10¹² parameters on meta",
            f"≤ {SIZE_SECONDS} s, ≤ {SIZE_MB / 1000} GB, nothing assumed",
            giants(results),
        ),
        (
            "[on meta](#size)",
            "plans of models on meta against those of the same models on the CPU, tags included",
            "within 1e-6, or what two models on the CPU differ by",
            on_meta(results),
        ),
        (
            "[rate rules](#learning-rates)",
            "rules against the best rate of a grid, on CIFAR-10: correlation of logs, median error in octaves",
            f"in each family r ≥ {GOAL[0]}, or {OF_CEILING} of the ceiling, a median ≤ {GOAL[1]} octaves, and no "
            "net that does not learn",
            rules(results),
        ),
        (
            "[finding a rate](#learning-rates)",
            "the search as one ensemble, against one run after the other",
            f"≥ {SEARCH_RATIO}× faster, same answer",
            search(results),
        ),
        (
            "[rates over width](#learning-rates)",
            "best rate at width 64 and 1024, against microsoft/mup",
            "within one grid step",
            width(results),
        ),
        (
            "[transfer](#transfer)",
            "best rate of language models over depth 2 to 32 and width 32 to 256, and of other families, by "
            "`complete_p`, α = 1; "
            "loss of the largest at the carried rate; cost of planning",
            f"moves ≤ {SHIFT} octaves, with an interval that says so; loss below that of all others, and within "
            f"{CARRIED_LOSS} of its own best; ≤ {TRANSFER_COST}× mup's",
            transfer(results),
        ),
        (
            "[refinement](#refinement)",
            "cost of scores and of an iteration of NIO, against a training step",
            f"NIO ≤ {NIO_TIME}× the time and ≤ {MEMORY}× the memory; sample-wise GradCosine ≤ {MEMORY}× the memory, "
            f"≥ {LOOP_RATIO}× faster than a loop",
            refinement(results),
        ),
        (
            "[watching](#watching)",
            "a training that is watched every 100 steps, against one that is not",
            f"< {WATCHING} %",
            watching(results),
        ),
        (
            "[reports](#reports)",
            "the page of `wp.report`: size, and the time to open it in Chromium",
            f"< {PAGE_MB[1000]} MB and < {OPEN_SECONDS} s at 1,000 operations; < {PAGE_MB[20000]} MB at 20,000, "
            f"built in < {BUILD_SECONDS} s",
            report(results),
        ),
        (
            "[reach](#reach)",
            "share of architectures that are traced and planned",
            f"timm {REACH['timm']} %; torchvision classification, segmentation and video 100 %; "
            f"transformers ≥ {REACH['transformers']} %",
            zoo(results),
        ),
        (
            "[language models](#language-models)",
            "p95 of every causal architecture of transformers that builds from a small configuration, 16 layers; ratio "
            "of predicted to measured spread; warnings that the measurement does not bear out",
            f"≥ {LANGUAGE_MODELS} architectures; ≤ 0.25 octaves each, ≤ 0.5 for state spaces and experts; median ratio "
            f"within a factor of {FACTOR}; no false warning",
            language_models(results),
        ),
        (
            "[other libraries](#other-libraries)",
            "models of libraries that the tests do not know: share planned, share that `check` confirms, median p95, "
            "nodes tagged exact or approximate that are off by an octave and not named",
            f"≥ {OTHER_MODELS} models of ≥ {OTHER_LIBRARIES} libraries; ≥ {PLANNED} %; ≥ {CHECKED} %; ≤ {OTHER_P95} "
            "octaves; none",
            outsiders(results),
        ),
        (
            "[evolved networks](#keras)",
            "nodes as predicted, of networks of 200 to 18,000 operators in the JSON of Keras 2",
            f"≥ {EVOLVED} % of each, of every family and size",
            evolved(results),
        ),
        (
            "[keras-hub](#keras)",
            "backbones from small configurations, all of whose nodes are as predicted, none assumed",
            "all",
            hub_backbones(results),
        ),
        (
            "[AutoInit's own package](#keras)",
            "processor time to initialise networks of its paper; distance of its estimates from ours under its "
            "assumptions; layers whose measured second moment is not the predicted one",
            f"faster; ≤ {SAME_ESTIMATE} octaves; none",
            original(results),
        ),
        (
            "[Keras applications](#keras)",
            "networks of `keras.applications` all of whose nodes are as predicted",
            "all",
            keras_networks(results),
        ),
    ]
    lines = ["| what | measure | goal | reached | met |", "|---|---|---|---|---|"]
    lines += [f"| {what} | {measure} | {goal} | {told} | {met} |" for what, measure, goal, (told, met) in goals]
    marks = [met for *_, (_, met) in goals]
    counts = (
        f"Of {len(marks)} goals {marks.count('yes')} are met, {marks.count('in part')} are met in part, and "
        f"{marks.count('**no**')} are missed."
    )
    return "\n".join([counts, "", *lines]) + "\n"


# ------------------------------------------------------------------------------------------------------- the pictures


def by_net(rows: Rows) -> dict[str, Rows]:
    """Return rows by net, in their order."""
    found: dict[str, Rows] = {}
    for row in rows:
        found.setdefault(row["net"], []).append(row)
    return found


def draw_nets(title: str, rows: Rows, x: Scale, series: Mapping[str, tuple[str, str]], about: str) -> Chart:
    """Draw two figures of every net, each with pictures (square) and with other inputs (dot), and its goals.

    ``series`` maps keys of the rows to labels and colours; the first is what the goal is for: an outline where it is
    missed.
    """
    nets = by_net(rows)
    judged = next(iter(series))
    legend = [Key("bar", colour, label) for label, colour in series.values()]
    legend += [Key("dot", GREY, "white or tokens"), Key("square", GREY, "pictures")]
    legend += [Key("dot", GREY, "misses the goal", hollow=True), Key("goal", GREY, "goal")]
    chart = Chart(title, about, x, rows=list(nets), legend=legend, width=NARROW, left=122)
    for number, inputs in enumerate(nets.values()):
        for goal in {row["goal"] for row in inputs} - {None}:
            chart.goal(goal, number, number + 1)
        for key in reversed(series):
            for row in inputs:
                shape = "square" if row["input"] == "image" else "dot"
                hollow = key == judged and row["reached"] is False
                height = chart.row(number) + (-2.5 if key == judged else 2.5)
                chart.dot(row[key], height, series[key][1], shape=shape, hollow=hollow, size=2.8)
    return chart


def draw_accuracy(results: Results) -> dict[str, Chart]:
    x = Scale("p95 of |log2(predicted / measured)| (octaves)", 0.004, 250, OCTAVES, log=True)
    series = {"full": ("full state", TEAL), "independent": ("independent", ORANGE)}
    about = "95th percentile over nodes of the error of the predicted second moment, and the goal, by net and input."
    rows = results["accuracy"]
    return {
        "accuracy-norms": draw_nets("With normalisation layers", of_groups(rows, NORMS), x, series, about),
        "accuracy-plain": draw_nets(
            "Without; at the bottom, where no goal is set", of_groups(rows, PLAIN) + of_groups(rows, UNSTABLE), x,
            series, about,
        ),
    }  # fmt: skip


def draw_backward(results: Results) -> dict[str, Chart]:
    x = Scale("p95 of |log2(predicted / measured)| (octaves)", 0.03, 250, OCTAVES[1:], log=True)
    series = {"p95": ("all gradients", TEAL), "standard_error": ("standard error of that", PURPLE)}
    about = "95th percentile of the error of predicted gradients, its standard error, and the forward goal, by net."
    rows = results["backward"]
    return {
        "backward-norms": draw_nets("Gradients, with normalisation layers", of_groups(rows, NORMS), x, series, about),
        "backward-plain": draw_nets(
            "Without; at the bottom, where no goal is set", of_groups(rows, PLAIN) + of_groups(rows, UNSTABLE), x,
            series, about,
        ),
    }  # fmt: skip


def draw_similarity(results: Results) -> dict[str, Chart]:
    x = Scale("p95 of |predicted - measured|", 0.0001, 1, (0.0001, 0.001, 0.01, 0.05, 1), log=True)
    told = [row for row in results["similarity"] if row["nodes"]]
    rows = [row | {"goal": 0.05, "reached": row["beyond_chance"] >= 0.9} for row in told]
    series = {"p95": ("all nodes", TEAL), "error": ("standard error, median", PURPLE)}
    about = "95th percentile over nodes of the difference of predicted and measured similarity, by net and input."
    return {"similarity": draw_nets("Similarity of two samples", rows, x, series, about)}


def draw_spread(results: Results) -> dict[str, Chart]:
    rows = results["spread"]
    kinds = {"white": "white", "image": "pictures"}
    x = Scale(
        "predicted / measured standard deviation of log2 of the second moment", 0.1, 10, (0.1, 0.5, 1, 2, 10), True
    )
    legend = [Key("dot", TEAL, "median over nodes"), Key("line", TEAL, "5th to 95th percentile")]
    legend.append(Key("bar", "#76767633", f"goal: a factor of {FACTOR}"))
    about = "Ratio of the predicted to the measured spread over draws, by net and input: median and percentiles."
    names = [f"{row['net']}, {kinds[row['input']]}" for row in rows]
    chart = Chart("Spread over draws", about, x, rows=names, legend=legend, left=168)
    chart.band(1 / FACTOR, FACTOR)
    for number, row in enumerate(rows):
        chart.span(number, max(row["low"], x.low), row["high"], TEAL)  # 0: nodes without spread; off to the left
        chart.dot(row["median"], chart.row(number), TEAL, size=3.4)
    return {"spread": chart}


def draw_teeth(results: Results) -> dict[str, Chart]:
    rows = results["teeth"]
    kinds = {(row["kind"], row["norms"]) for row in rows if row["right"] != "no"}
    groups = [(kind, norms) for kind in dict.fromkeys(row["kind"] for row in rows) for norms in (True, False)]
    groups = [group for group in groups if group in kinds]
    names = [f"{kind}, {'norms' if norms else 'no norms'}" for kind, norms in groups]
    x = Scale("share of checks (%)", 0, 100, (0, 20, 40, 60, 80, 100))
    legend = [Key("bar", TEAL, "faults named"), Key("dot", ORANGE, "false alarms, plan")]
    legend += [Key("dot", PURPLE, "false alarms, own weights", hollow=True), Key("goal", GREY, "goal")]
    about = "Share of faults that are named, and of checks of right nets that call them off, by kind of net."
    chart = Chart("Checks: teeth, and false alarms", about, x, rows=names, legend=legend, left=160, pitch=20)
    for number, group in enumerate(groups):
        marks = teeth_marks([row for row in rows if (row["kind"], row["norms"]) == group])
        chart.bar(number, 0, percent(marks["found"]), TEAL, 10)
        chart.dot(percent(marks["alarms"]), chart.row(number), ORANGE, size=3.2)
        chart.dot(percent(marks["own"]), chart.row(number), PURPLE, hollow=True, size=4.6)
    for goal in (ALARMED, NAMED):
        chart.goal(goal)
    return {"teeth": chart}


def draw_speed(results: Results) -> dict[str, Chart]:
    rows = results["speed"]
    x = Scale("time / time in which PyTorch constructs the model", 0, 12, (0, 1, 2, 4, 6, 8, 10, 12))
    legend = [Key("bar", TEAL, "trace + plan"), Key("bar", PURPLE, "apply")]
    legend.append(Key("goal", GREY, f"goals: median {SPEED_MEDIAN}, largest {SPEED_MOST}"))
    about = "Time to trace, plan and apply, over the time of construction, by model."
    chart = Chart("From model to weights", about, x, rows=[r["model"] for r in rows], legend=legend, left=118, pitch=20)
    for number, row in enumerate(rows):
        planned = row["plan_s"] / row["construct_s"]
        chart.bar(number, 0, planned, TEAL, 10)
        chart.bar(number, planned, row["ratio"], PURPLE, 10)
    chart.goal(SPEED_MEDIAN)
    chart.goal(SPEED_MOST)
    return {"speed": chart}


def draw_growth(results: Results) -> dict[str, Chart]:
    rows = results["growth"]
    x = Scale("operators", 200, 5000, (200, 500, 1000, 2000, 5000), log=True)
    y = Scale("seconds", 0.02, 4, (0.02, 0.1, 0.5, 2), log=True)
    legend = [Key("line", TEAL, "trace + plan"), Key("line", PURPLE, "trace"), Key("goal", GREY, "in proportion")]
    legend.append(Key("square", GREY, f"goal for depth {GROWTH_DEPTH}", hollow=True))
    chart = Chart("Pre-activation ResNets", "Seconds to trace and plan, over operators.", x, y, legend=legend)
    first = rows[0]
    chart.line([(r["nodes"], first["total_s"] / first["nodes"] * r["nodes"]) for r in rows], GREY, goal=True)
    for key, colour in (("total_s", TEAL), ("trace_s", PURPLE)):
        chart.line([(row["nodes"], row[key]) for row in rows], colour)
        for row in rows:
            chart.dot(row["nodes"], chart.y(row[key]), colour)
    judged = at(rows, "depth", GROWTH_DEPTH)
    chart.dot(judged["nodes"], chart.y(GROWTH_SECONDS), GREY, shape="square", hollow=True, size=4)
    for row in rows:
        chart.note(chart.x(row["nodes"]) + 6, chart.y(row["trace_s"]) + 14, f"depth {row['depth']}")
    return {"growth": chart}


def draw_size(results: Results) -> dict[str, Chart]:
    (row,) = results["size"]
    x = Scale("share of the goal's limit (%)", 0, 105, (0, 25, 50, 75, 100))
    about = "Time to trace and plan, and peak memory, as a share of the goal's limits."
    rows = ["trace + plan", "peak memory"]
    legend = [Key("bar", TEAL, "measured"), Key("goal", GREY, "goal")]
    chart = Chart(row["model"], about, x, rows=rows, legend=legend, left=90, pitch=24)
    parts = (
        (row["plan_s"] / SIZE_SECONDS, f"{row['plan_s']:.1f} of {SIZE_SECONDS} s"),
        (row["peak_mb"] / SIZE_MB, f"{row['peak_mb']:,.0f} of {SIZE_MB:,} MB"),
    )
    for number, (part, told) in enumerate(parts):
        chart.bar(number, 0, 100 * part, TEAL, 12)
        chart.note(chart.x(100 * part) + 6, chart.row(number) + 4, told)
    chart.goal(100)
    return {"size": chart}


def draw_rules(results: Results) -> dict[str, Chart]:
    found = families(results["rates"])
    panels = {
        "rates-topologies": (
            "Topologies: perceptrons in five families",
            dict(zip(TOPOLOGIES, (TEAL, ORANGE, PURPLE, BLUE, GREY), strict=True)),
            (0.015, 0.25, (0.02, 0.05, 0.1, 0.2)),
        ),
        "rates-depth": (
            "Residual nets, transformers, batch norms, kernels",
            dict(zip(OTHERS, (TEAL, ORANGE, GREY, PURPLE), strict=True)),
            (0.015, 1.5, (0.02, 0.05, 0.1, 0.3, 1)),
        ),
    }
    charts = {}
    for name, (title, colours, ends) in panels.items():
        x, y = (Scale(f"{which} rate", *ends, log=True) for which in ("the default rule's", "best"))
        legend = [
            Key(
                "dot",
                colour,
                text=f"{family}, r = {figure(measures(found[family], default_rule(found[family]))['r_log'], 2)}",
            )
            for family, colour in colours.items()
        ]
        legend.append(Key("goal", GREY, "equal"))
        about = "Best learning rate of a grid, over the rate of the default rule, net by net."
        chart = Chart(title, about, x, y, legend=legend, width=NARROW, height=230)
        chart.line([(x.low, x.low), (x.high, x.high)], GREY, goal=True)
        for family, colour in colours.items():
            nets = found[family]
            told, true = told_of(nets, default_rule(nets)), true_of(nets)
            base = base_of(nets)
            for n in range(len(nets)):
                if n != base:  # which the rule is given
                    rate = 2.0 ** float(told[n] - told[base] + true[base])
                    rate = min(max(rate, x.low), x.high)
                    chart.dot(rate, chart.y(nets[n]["true"]), colour, size=2.8)
        charts[name] = chart
    return charts


def draw_search(results: Results) -> dict[str, Chart]:
    rows = results["search"]
    x = Scale("time one by one / time together", 1, 20, (1, 2, 3, 5, 10, 20), log=True)
    names = [f"{row['net']}, {row['batches'].replace('decoded by the loader', 'decoded')}" for row in rows]
    legend = [Key("bar", TEAL, "measured"), Key("goal", GREY, "goal")]
    about = "How many times faster the search is as one ensemble than run by run."
    chart = Chart("The search as one ensemble", about, x, rows=names, legend=legend, left=216, pitch=18)
    for number, row in enumerate(rows):
        chart.bar(number, 1, row["ratio"], TEAL)
    chart.goal(SEARCH_RATIO)
    return {"search": chart}


def draw_width(results: Results) -> dict[str, Chart]:
    rows = results["width"]
    x = Scale("best rate at width 1024 / at width 64 (octaves)", -4, 1.5, (-4, -3, -2, -1, 0, 1))
    names = [f"{'SGD' if row['optimizer'] == 'sgd' else 'Adam'}: {row['way']}" for row in rows]
    legend = [Key("dot", TEAL, "μP of this library"), Key("dot", GREY, "others")]
    legend.append(Key("bar", "#76767633", "goal: one grid step"))
    chart = Chart(
        "From width 64 to 1024", "How far the best rate moves over width.", x, rows=names, legend=legend, left=140,
        pitch=20,
    )  # fmt: skip
    chart.band(-1, 1)
    for number, row in enumerate(rows):
        colour = TEAL if row["way"] == "plan, mup" else GREY
        chart.span(number, *sorted((0, row["shift"])), colour)
        chart.dot(row["shift"], chart.row(number), colour, size=3.6)
    return {"width": chart}


def subject_of(family: str) -> str:
    """Return what a family of models is, without the axis: ``GPT, SGD`` of ``depth of a GPT, SGD``."""
    return re.sub(r"^(depth|width) of an? ", "", family)


def draw_transfer(results: Results) -> dict[str, Chart]:
    charts = {}
    for axis in ("depth", "width"):
        rows = [row for row in results["transfer"] if row["family"].startswith(axis)]
        if not rows:
            continue
        names = [f"{subject_of(row['family'])}: {row['way']}" for row in rows]
        x = Scale(f"best rate of the largest / of the smallest over {axis} (octaves)", -5, 3, range(-5, 4))
        legend = [Key("dot", TEAL, "complete_p"), Key("dot", GREY, "others"), Key("bar", "#76767633", "goal")]
        title = f"From the smallest to the largest {axis}"
        chart = Chart(title, "How far the best rate moves.", x, rows=names, legend=legend, left=240, pitch=20)
        chart.band(-SHIFT, SHIFT)
        for number, row in enumerate(rows):
            colour = TEAL if row["way"].startswith("complete_p") else GREY
            low, high = (
                edge if given is None else min(max(given, -5), 3)
                for given, edge in zip(row["interval"], (-5, 3), strict=True)
            )
            chart.span(number, low, high, colour)
            chart.dot(row["shift"], chart.row(number), colour, size=3.6)
        charts[f"transfer-{axis}"] = chart
    return charts


def draw_costs(results: Results) -> dict[str, Chart]:
    rows = results["gradients"]
    engines = ("double_backward", "two_pass", "finite_difference")
    shown = [(f"NIO: {engine}", cost(rows, "NIO iteration", engine)) for engine in engines]
    for row in rows:
        if row["what"].endswith("sample-wise GradCosine"):
            net = row["what"].split(",")[0].replace("MLP 3072-", "MLP ").removesuffix("-10")
            shown.append((f"{net}: {row['engine']}", row))
    judged = ("double_backward", "batched")
    legend = [Key("dot", TEAL, "what the goal is for"), Key("dot", GREY, "other engines"), Key("goal", GREY, "goal")]
    scales = {
        "time_ratio": Scale("processor time / a training step's", 0.9, 200, (1, 3, 10, 30, 100), log=True),
        "held_ratio": Scale("memory held / a training step's", 0.1, 10, (0.1, 0.3, 1, 2, 10), log=True),
    }
    titles = {"time_ratio": "Time of an iteration, or a score", "held_ratio": "Memory of the same"}
    charts = {}
    for key, name in (("time_ratio", "refinement-time"), ("held_ratio", "refinement-memory")):
        about = f"{scales[key].label}, of NIO and of sample-wise GradCosine, by engine."
        chart = Chart(
            titles[key], about, scales[key], rows=[name for name, _ in shown], legend=legend, width=NARROW, left=138
        )
        for number, (_, row) in enumerate(shown):
            colour = TEAL if row["engine"] in judged else GREY
            chart.span(number, *sorted((1, row[key])), colour)  # from a training step
            chart.dot(row[key], chart.row(number), colour, size=3.4)
        for number, (_, row) in enumerate(shown):
            if row["engine"] in judged:
                goal = MEMORY if key == "held_ratio" else NIO_TIME
                if key == "time_ratio" and row["engine"] == "batched":
                    loop = next(r for b, r in single_samples(rows) if b is row)
                    goal = loop[key] / LOOP_RATIO
                chart.goal(goal, number, number + 1)
        charts[name] = chart
    return charts


def draw_published(results: Results) -> dict[str, Chart]:
    rows = [row for row in results["gradinit_published"] if row["steps"] is not None]
    x = Scale("cost of the plan (training steps)", 0, 1350, (0, 200, 400, 600, 800, 1000))
    about = "Cost of a plan by GradInit as published and by this library, and the training loss after it."
    names = [row["method"] for row in rows]
    chart = Chart("ResNet-20 without norms: cost of a plan", about, x, rows=names, left=116, pitch=20)
    for number, row in enumerate(rows):
        chart.bar(number, 0, row["steps"], ORANGE if "published" in row["method"] else TEAL, 10)
        chart.note(chart.x(row["steps"]) + 6, chart.row(number) + 4, f"{row['steps']}; training loss {row['loss']:.2f}")
    return {"gradinit": chart}


def draw_benefit(results: Results) -> dict[str, Chart]:
    rows = [row for row in results["benefit"] if "accuracy" in row]
    colours = {"kaiming": PURPLE, "nio": TEAL, "gradient_norm": BLUE, "gradinit": ORANGE}
    x = Scale("test accuracy after two epochs (%), mean of three seeds", 8, 44, (10, 15, 20, 25, 30, 35, 40))
    legend = [Key("dot", colour, method) for method, colour in colours.items()]
    legend += [Key("dot", GREY, "the other methods", hollow=True), Key("goal", GREY, "chance")]
    about = "Test accuracy by net and method, each at its best rate."
    chart = Chart("What it does for training", about, x, rows=list(NETS.values()), legend=legend, left=150, pitch=26)
    chart.goal(10)
    for number, net in enumerate(NETS):
        mine = {row["method"]: 100 * row["accuracy"] for row in rows if row["net"] == net}
        for method, value in mine.items():
            if method not in colours:
                chart.dot(value, chart.row(number), GREY, hollow=True, size=2.6)
        for line, (method, colour) in enumerate(colours.items()):
            chart.dot(mine[method], chart.row(number) + 5 * (line - 1.5), colour, size=3.2)
    return {"benefit": chart}


def draw_watching(results: Results) -> dict[str, Chart]:
    rows = results["watching"]
    x = Scale("time added to a training that is watched every 100 steps (%)", 0, 5.5, (0, 1, 2, 3, 4, 5))
    legend = [Key("bar", TEAL, "measured"), Key("goal", GREY, "goal")]
    names = [row["model"] for row in rows]
    chart = Chart("Cost of watching", "Time added, by model.", x, rows=names, legend=legend, left=90, pitch=20)
    for number, row in enumerate(rows):
        chart.bar(number, 0, row["overhead"], TEAL, 10)
    chart.goal(WATCHING)
    return {"watching": chart}


def draw_report(results: Results) -> dict[str, Chart]:
    rows = results["report"]
    x = Scale("operations", 150, 30000, (200, 1000, 5000, 20000), log=True)
    panels: dict[str, tuple[str, Scale, dict[str, tuple[str, str]], dict[int, tuple[float, str]]]] = {
        "report-size": (
            "Size of the page",
            Scale("MB", 0, 22, (0, 5, 10, 15, 20)),
            {"megabytes": ("size", TEAL)},
            {count: (most, "") for count, most in PAGE_MB.items()},
        ),
        "report-time": (
            "Time",
            Scale("processor seconds", 0.01, 500, (0.1, 1, 10, 100), log=True),
            {"report_s": ("finding out", ORANGE), "page_s": ("building", TEAL), "open_s": ("opening", PURPLE)},
            {1000: (OPEN_SECONDS, "open"), 20000: (BUILD_SECONDS, "built")},
        ),
    }
    charts = {}
    for name, (title, y, series, goals) in panels.items():
        legend = [Key("line", colour, label) for label, colour in series.values()]
        legend.append(Key("square", GREY, "goal", hollow=True))
        about = f"{y.label} of a report, over operations."
        chart = Chart(title, about, x, y, legend=legend, width=NARROW)
        for key, (_, colour) in series.items():
            chart.line([(row["operations"], row[key]) for row in rows], colour)
            for row in rows:
                chart.dot(row["operations"], chart.y(row[key]), colour)
        for count, (most, told) in goals.items():
            chart.dot(count, chart.y(most), GREY, shape="square", hollow=True, size=4)
            chart.note(chart.x(count) - 8, chart.y(most) - 6, told, anchor="end")
        charts[name] = chart
    return charts


def draw_reach(results: Results) -> dict[str, Chart]:
    found = reach(results["zoo"])
    x = Scale("share of architectures (%)", 0, 100, (0, 20, 40, 60, 80, 100))
    legend = [Key("bar", TEAL, "planned"), Key("bar", PURPLE, "traced only"), Key("bar", ORANGE, "not traced")]
    legend.append(Key("goal", GREY, "goal"))
    names = [f"{name.replace('_', ' ')} ({counts['counted']})" for name, counts in found.items()]
    about = "Share of architectures that are traced and planned, by library."
    chart = Chart("Reach", about, x, rows=names, legend=legend, left=186, pitch=20)
    for number, (name, counts) in enumerate(found.items()):
        planned, traced = (100 * counts[key] / counts["counted"] for key in ("planned", "traced"))
        chart.bar(number, 0, planned, TEAL, 10)
        chart.bar(number, planned, traced, PURPLE, 10)
        chart.bar(number, traced, 100, ORANGE, 10)
        if name in REACH:
            chart.goal(REACH[name], number, number + 1)
    return {"reach": chart}


HIGHEST = 10.0
"""Octaves at the right end of the pictures of models; what is further off lies on it."""


def draw_language_models(results: Results) -> dict[str, Chart]:
    rows = was_judged(results["language_models"])
    x = Scale("p95 of |log2(predicted / measured)| (octaves)", 0.02, HIGHEST, (0.02, 0.1, 0.25, 0.5, 1, 10), log=True)
    y = Scale("share of architectures (%)", 0, 100, (0, 25, 50, 75, 100))
    colours = {"attention": TEAL, "experts": ORANGE, "state space": PURPLE}
    kinds = {kind: [row for row in rows if row["kind"] == kind] for kind in colours}
    legend = [Key("line", colours[kind], f"{kind} ({len(found)})") for kind, found in kinds.items()]
    legend += [Key("goal", GREY, "goal: 0.25, and 0.5 for experts and state spaces")]
    about = "Share of architectures whose 95th percentile is at most so many octaves, by kind."
    chart = Chart("Language models at 16 layers", about, x, y, legend=legend)
    for kind, found in kinds.items():
        within = sorted(min(max(float(row["p95"]), x.low), HIGHEST) for row in found)
        steps = [(value, 100 * (number + 1) / len(within)) for number, value in enumerate(within)]
        chart.line(steps, colours[kind])
    for goal in sorted({row["goal"] for row in rows}):
        chart.line([(goal, 0), (goal, 100)], GREY, goal=True)
    return {"language-models": chart}


def draw_outsiders(results: Results) -> dict[str, Chart]:
    found: dict[str, Rows] = {}
    for row in was_judged(results["outsiders"]):
        found.setdefault(row["library"], []).append(row)
    x = Scale("p95 of |log2(predicted / measured)| (octaves)", 0.01, HIGHEST, (0.01, 0.1, 0.2, 1, 10), log=True)
    names = [f"{library.replace('_', '-')} ({len(rows)})" for library, rows in found.items()]
    legend = [
        Key("dot", TEAL, "check confirms the plan"),
        Key("dot", ORANGE, "it names a node that is off", hollow=True),
    ]
    legend.append(Key("goal", GREY, "goal for the median"))
    about = "95th percentile of the error of every model, by library."
    chart = Chart("Models of other libraries", about, x, rows=names, legend=legend, left=216)
    for number, rows in enumerate(found.values()):
        for row in rows:
            value = min(max(float(row["p95"]), x.low), HIGHEST)
            chart.dot(value, chart.row(number), TEAL if row["ok"] else ORANGE, hollow=not row["ok"], size=2.8)
    chart.goal(OTHER_P95)
    return {"outsiders": chart}


def draw_evolved(results: Results) -> dict[str, Chart]:
    rows = results["evolved"]
    x = Scale("operators", 50, 25000, (100, 1000, 10000), log=True)
    y = Scale("seconds", 0.1, 100, (0.1, 1, 10, 100), log=True)
    found = families(rows)
    colours = dict(zip(found, (TEAL, ORANGE, PURPLE, BLUE, GREY), strict=False))
    legend = [Key("line", colour, family) for family, colour in colours.items()]
    chart = Chart("Evolved networks", "Seconds to trace and plan, over operators.", x, y, legend=legend)
    for family, own in found.items():
        points = [(row["nodes"], row["trace"] + row["plan"]) for row in own]
        chart.line(points, colours[family])
        for nodes, seconds in points:
            chart.dot(nodes, chart.y(seconds), colours[family])
    return {"evolved": chart}


SHOWN = 0.02
"""Octaves, over all nets, from which on a mechanism is drawn."""
FARTHEST_SUM = 60.0


def draw_ablation(results: Results) -> dict[str, Chart]:
    rows = [row for row in results["ablation"] if row["lines"] and float(row["worth"]) >= SHOWN]
    x = Scale("p95 without it, summed over nets (octaves)", SHOWN, FARTHEST_SUM, (0.02, 0.1, 1, 10), log=True)
    legend = [Key("bar", TEAL, "many nets"), Key("bar", ORANGE, "few nets")]
    about = "By how much the 95th percentile of the error grows, over all nets, when one mechanism is switched off."
    names = [f"{row['mechanism']} ({row['lines']} lines)" for row in rows]
    chart = Chart("What each mechanism is worth", about, x, rows=names, legend=legend, left=230)
    for number, row in enumerate(rows):
        colour = TEAL if row["class"] == "carries weight" else ORANGE
        chart.bar(number, x.low, min(float(row["worth"]), FARTHEST_SUM), colour)
    return {"ablation": chart}


PICTURES: Sequence[Callable[[Results], dict[str, Chart]]] = (
    draw_accuracy,
    draw_backward,
    draw_similarity,
    draw_spread,
    draw_teeth,
    draw_speed,
    draw_growth,
    draw_size,
    draw_rules,
    draw_search,
    draw_width,
    draw_transfer,
    draw_costs,
    draw_published,
    draw_benefit,
    draw_watching,
    draw_report,
    draw_reach,
    draw_language_models,
    draw_outsiders,
    draw_evolved,
    draw_ablation,
    draw_starts,
)


def write_page(folder: Path, out: Path) -> None:
    """Write the table and the pictures of the results in a folder."""
    results = load(folder)
    pictures = out / "images" / "benchmarks"
    for needed in (pictures, out / "results"):
        needed.mkdir(parents=True, exist_ok=True)
    (out / "results" / "summary.md").write_text(summary(results), encoding="utf-8")
    for draw in PICTURES:
        for name, chart in draw(results).items():
            (pictures / f"{name}.svg").write_text(chart.svg(), encoding="utf-8")


def main() -> None:
    """Write the page's table and pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=DOCS / "results")
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    write_page(options.results, options.out)


if __name__ == "__main__":
    main()
