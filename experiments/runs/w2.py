"""W2: a search over nets and their rates, whose trials are drawn by PyTorch or by ``wp.initialize_``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import wellposed as wp
from experiments.data import load_images
from experiments.numbers import best_so_far, mean, paired, percent, points, standard_error
from experiments.recipe import recipe
from experiments.registry import TRAINED, Experiment, Judgement, Row, Settings, Unit, alike_at, by_gap, experiment
from experiments.training import accuracy, train

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OWN, OURS = "own weights", "wp.initialize_"
ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "selu": nn.SELU,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}
EXAMPLE = 2
"""Images of the pass that is traced."""


@experiment("W2")
class SearchOverNets(Experiment):
    """Studies of Optuna, each trial another net: how many trials learn, and the best after each."""

    title = "A hyperparameter search, with PyTorch's weights and with wp.initialize_"
    source = "ours"
    claim = (
        "Where every trial is drawn by `wp.initialize_`, more trials of a search learn, and the best net after as many "
        "trials is more accurate."
    )
    paper = "no claim of a paper's; AutoInit's section 10 has one for architecture search (A8)"
    use = (
        "A search over nets and rates: call `wp.initialize_` in each trial. Fewer trials are lost, and the best net "
        "was ahead from ten trials on: twelve trials found, on average, what thirty did with PyTorch's weights."
    )
    reversal = "another space of nets, and trials that are longer"

    def units(self, settings: Settings) -> Iterator[Unit]:
        """Yield each study; the two that are compared follow each other."""
        for seed in range(settings.seeds):
            for way in (OWN, OURS):
                yield {"way": way, "seed": settings.seed + seed}

    def run(self, settings: Settings, unit: Unit, data: str) -> Row:
        """Run one study; a trial's value is its accuracy on images kept from the training, its test is noted."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        images = load_images(data, settings.data.train, settings.data.test, settings.data.side)
        kept = images.held_out(settings.valid)
        trials = []

        def objective(trial: optuna.Trial) -> float:
            seed = 1000 * unit["seed"] + trial.number
            torch.manual_seed(seed)
            model = _net(trial, settings, images.classes)
            rate = trial.suggest_float("rate", *settings.space.rate, log=True)
            if unit["way"] == OURS:
                wp.initialize_(model, kept.x[:EXAMPLE], seed=seed, method="autoinit")
            found = train(model, kept, recipe(settings.train, rate=rate), seed)
            tested = None if found.diverged else accuracy(model, images)
            trials.append(
                {"valid": found.accuracy, "test": 1 / images.classes if tested is None else tested, **trial.params}
            )
            return found.accuracy

        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=unit["seed"]))
        study.optimize(objective, n_trials=settings.trials)
        return {"trials": trials}

    def judge(self, settings: Settings, rows: Sequence[Row]) -> Judgement:
        """Compare studies, paired by seed: the share of trials that learn, and the test of the best so far."""
        learn = {way: [_learning(row["trials"]) for row in _of(rows, way)] for way in (OWN, OURS)}
        best = {way: [best_so_far(row["trials"]) for row in _of(rows, way)] for way in (OWN, OURS)}
        more = paired(learn[OURS], learn[OWN])
        table = [["trials", f"best, {OWN}", OURS, "gain"]]
        gap = more
        for after in settings.after:
            one, other = ([found[after - 1] for found in best[way]] for way in (OURS, OWN))
            gap = paired(one, other)
            table.append([str(after), percent(mean(other)), percent(mean(one)), points(gap)])
        ours = (
            f"trials that learn: {percent(mean(learn[OWN]))} with PyTorch's weights, {percent(mean(learn[OURS]))} with "
            f"`wp.initialize_`; the best after {settings.after[-1]}: {table[-1][1]} and {table[-1][2]}"
        )
        sentence = (
            f"Over {settings.seeds} pairs of studies (Optuna's TPE) the share that learns differs by {points(more)}, "
            f"the best net after {settings.after[-1]} trials by {points(gap)} on the test; a trial learns where its "
            f"accuracy is above chance by {100 * TRAINED:.0f} points; the best is chosen by {settings.valid} images "
            f"that neither train nor test; {settings.train.epochs} epoch(s) a trial.{_sooner(best[OURS], best[OWN])}"
        )
        verdict = by_gap(gap, whole=more.sign() > 0, alike=alike_at(mean(found[-1] for found in best[OWN])))
        return Judgement(ours, verdict, sentence, table)

    def draw(self, settings: Settings, rows: Sequence[Row], figure: Figure) -> None:
        """Draw the best so far over the trials, a mean over studies with its standard error."""
        panel = figure.subplots()
        for index, way in enumerate((OWN, OURS)):
            by_trial = list(zip(*(best_so_far(row["trials"]) for row in _of(rows, way)), strict=True))
            middle = [100 * mean(values) for values in by_trial]
            error = [100 * standard_error(values) if len(values) > 1 else 0.0 for values in by_trial]
            numbers = range(1, len(middle) + 1)
            low, high = ([m + side * e for m, e in zip(middle, error, strict=True)] for side in (-1, 1))
            panel.plot(numbers, middle, color=f"C{index}", label=way)
            panel.fill_between(numbers, low, high, color=f"C{index}", alpha=0.2, lw=0)
        panel.set(xlabel="trials", ylabel="test accuracy of the best so far (%)")
        panel.legend(fontsize=8)


def _sooner(ours: Sequence[Sequence[float]], own: Sequence[Sequence[float]]) -> str:
    """Return after how many trials one way has, on average, what the other has after all; empty where never."""
    whole = mean(found[-1] for found in own)
    by_trial = enumerate(zip(*ours, strict=True), 1)
    trials = next((number for number, found in by_trial if mean(found) >= whole), None)
    if trials is None:
        return ""
    return f" After {trials} trials `wp.initialize_` has on average what PyTorch's weights have after {len(own[0])}."


class _Net(nn.Module):
    """Convolutions in three stages, with skips or without, with batch norms or without."""

    def __init__(self, depth: int, width: int, act: nn.Module, *, skips: bool, bn: bool, drop: float, classes: int):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) if bn else nn.Identity() for _ in range(depth))
        self.act, self.drop, self.skips = act, nn.Dropout(drop), skips
        self.halved = {depth // 3, 2 * depth // 3}
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        x = self.stem(x)
        for index, (layer, norm) in enumerate(zip(self.layers, self.norms, strict=True)):
            if index in self.halved:
                x = nn.functional.avg_pool2d(x, 2)
            y = layer(self.drop(self.act(norm(x))))
            x = x + y if self.skips else y
        out: Tensor = self.head(self.act(x).mean((2, 3)))
        return out


def _net(trial: Any, settings: Settings, classes: int) -> _Net:
    """Return the net of a trial."""
    space = settings.space
    return _Net(
        depth=trial.suggest_int("depth", *space.depth),
        width=trial.suggest_categorical("width", list(space.width)),
        act=ACTIVATIONS[trial.suggest_categorical("activation", list(ACTIVATIONS))](),
        skips=trial.suggest_categorical("skips", [False, True]),
        bn=trial.suggest_categorical("bn", [False, True]),
        drop=trial.suggest_float("dropout", *space.dropout),
        classes=classes,
    )


def _of(rows: Sequence[Row], way: str) -> list[Row]:
    """Return the studies of a way, by seed."""
    return sorted((row for row in rows if row["way"] == way), key=lambda row: row["seed"])


def _learning(trials: Sequence[Row], classes: int = 10) -> float:
    """Return the share of trials that learn."""
    return mean(float(trial["valid"]) > 1 / classes + TRAINED for trial in trials)
