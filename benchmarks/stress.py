"""Sound under fire: random architectures, threads, interruptions, damaged files, hostile forwards, forks and ranks.

    python benchmarks/stress.py [--minutes 10] [--architectures 200] [--seed 0] [--out docs/results]

A surprise is an exception that is not wellposed's own, a model, batch, file or setting of the process that changed
where it must not, a parameter that is neither old nor new, numbers that differ where they must agree, a process that
hangs, and a check that fails under weights that its own plan drew. Each surprise is printed with what it takes to see
it again.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hostile
import wellposed as wp
from common import RESULTS, markdown, write
from hostile import Surprise
from wellposed.errors import WellposedError
from wellposed.gradients import gradcosine
from wellposed.plans import Plan

COLUMNS = {"part": "what", "tries": "tries", "refused": "refused by name", "surprises": "surprises", "seconds": "s"}
SHARES = {
    "architectures": 0.3,
    "threads": 0.08,
    "interruptions": 0.08,
    "files": 0.04,
    "gradient functions": 0.08,
    "settings of the process": 0.1,
    "hostile forwards": 0.1,
    "interruptions anywhere": 0.1,
    "forks": 0.06,
    "ranks": 0.06,
}
"""Share of the time that each part may take."""


# ---- random architectures -------------------------------------------------------------------------------------------

ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.ELU, nn.LeakyReLU, nn.Softplus, nn.Hardswish, nn.Mish)


class Residual(nn.Module):
    def __init__(self, inside: nn.Module, scale: float) -> None:
        super().__init__()
        self.inside, self.scale = inside, scale

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.inside(x)


class Gated(nn.Module):
    def __init__(self, one: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.one, self.other = one, other

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x) * torch.sigmoid(self.other(x))


class CompositeScales(nn.Module):
    def __init__(self, parts: list[nn.Module], dim: int) -> None:
        super().__init__()
        self.parts, self.dim = nn.ModuleList(parts), dim

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([part(x) for part in self.parts], self.dim)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.project, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def block(kind: str, width: int, dice: random.Random, depth: int) -> nn.Module:
    """Return a part that keeps the shape of what enters it."""
    way = dice.choice(["plain", "plain", "residual", "gated", "joined", "attention"] if depth else ["plain"])
    if way == "residual":
        return Residual(block(kind, width, dice, depth - 1), dice.choice([1.0, 0.5, 0.1]))
    if way == "gated":
        return Gated(block(kind, width, dice, depth - 1), block(kind, width, dice, depth - 1))
    if way == "joined" and width % 2 == 0:
        narrow = [nn.Sequential(layer(kind, width, width // 2, dice), dice.choice(ACTIVATIONS)()) for _ in range(2)]
        return CompositeScales(narrow, 1 if kind == "image" else -1)
    if way == "attention" and kind == "tokens":
        return Residual(nn.Sequential(nn.LayerNorm(width), Attention(width, dice.choice([1, 2, 4]))), 1.0)
    parts: list[nn.Module] = []
    if dice.random() < 0.5:
        parts.append(norm(kind, width, dice))
    parts += [layer(kind, width, width, dice), dice.choice(ACTIVATIONS)()]
    if dice.random() < 0.2:
        parts.append(nn.Dropout(dice.choice([0.1, 0.5])))
    return nn.Sequential(*parts)


def layer(kind: str, width: int, out: int, dice: random.Random) -> nn.Module:
    bias = dice.random() < 0.7
    if kind != "image":
        return nn.Linear(width, out, bias=bias)
    size = dice.choice([1, 3])
    groups = dice.choice([1, 1, 2]) if width % 2 == out % 2 == 0 else 1
    return nn.Conv2d(width, out, size, padding=size // 2, groups=groups, bias=bias)


def norm(kind: str, width: int, dice: random.Random) -> nn.Module:
    if kind == "image":
        return dice.choice([nn.BatchNorm2d(width), nn.GroupNorm(2, width), nn.InstanceNorm2d(width, affine=True)])
    if kind == "rows":
        return dice.choice([nn.BatchNorm1d(width), nn.LayerNorm(width), nn.RMSNorm(width)])
    return dice.choice([nn.LayerNorm(width), nn.RMSNorm(width)])


def architecture(dice: random.Random) -> tuple[nn.Module, Tensor]:
    """Return a random model and a batch for it."""
    kind = dice.choice(["rows", "image", "tokens"])
    width, count = dice.choice([16, 32, 48]), dice.randint(1, 12)
    parts = [block(kind, width, dice, dice.randint(0, 2)) for _ in range(count)]
    if kind == "rows":
        return nn.Sequential(nn.Linear(20, width), *parts, nn.Linear(width, 10)), torch.randn(32, 20)
    if kind == "image":
        end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
        if dice.random() < 0.5:
            parts.insert(len(parts) // 2, dice.choice([nn.MaxPool2d(2), nn.AvgPool2d(2)]))
        return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *parts, *end), torch.randn(8, 3, 12, 12)
    return nn.Sequential(nn.Embedding(50, width), *parts, nn.Linear(width, 50)), torch.randint(0, 50, (4, 12))


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).float().square().mean()


def held(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def require_same(model: nn.Module, before: dict[str, Tensor], what: str) -> None:
    after = model.state_dict()
    changed = [name for name, old in before.items() if after[name].is_meta or not torch.equal(after[name], old)]
    if changed:
        raise Surprise(f"{what} changed {changed[:3]}")


def on_an_architecture(dice: random.Random, _: Path) -> None:
    """Plan, check, score and write one random model; all that only reads must leave it alone."""
    torch.manual_seed(dice.randrange(2**31))
    model, batch = architecture(dice)
    before, seen = held(model), batch.clone()
    plan = wp.plan(model, batch)
    for what, use in {
        "plan": lambda: wp.plan(model, batch) == plan or _differ("two plans"),
        "check": lambda: wp.check(model, batch, plan=plan, draws=4).ok or _differ("check under the plan"),
        "measure": lambda: wp.measure(model, batch, draws=2, backward=True),
        "gradcosine": lambda: gradcosine(model, loss_fn, batch),
    }.items():
        use()
        require_same(model, before, what)
        if not torch.equal(batch, seen):
            raise Surprise(f"{what} changed the batch")
    twin = copy.deepcopy(model)
    plan.apply_(model)
    plan.apply_(twin)
    require_same(twin, held(model), "a second copy")
    if not torch.isfinite(model(batch)).all():
        raise Surprise("an output of the planned model is not finite")


def _differ(what: str) -> None:
    raise Surprise(f"{what}: not as expected")


# ---- threads, interruptions, files ----------------------------------------------------------------------------------


def in_threads(dice: random.Random, _: Path) -> None:
    """Use one model from four threads at once; all answers are those of one thread, and the model stays."""
    torch.manual_seed(dice.randrange(2**31))
    model, batch = architecture(dice)
    before, plan = held(model), wp.plan(model, batch)
    uses: list[Callable[[], object]] = [
        lambda: wp.plan(model, batch) == plan or _differ("plans of two threads"),
        lambda: wp.measure(model, batch, draws=2),
        lambda: wp.trace(model, batch),
        lambda: gradcosine(model, loss_fn, batch),
    ]
    failures: list[BaseException] = []

    def work(use: Callable[[], object]) -> None:
        try:
            for _ in range(2):
                use()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(use,)) for use in uses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    require_same(model, before, "threads")


def interrupted(dice: random.Random, _: Path) -> None:
    """Interrupt the writing of a plan at a random time: every parameter is old or new, and a second call writes all."""
    torch.manual_seed(dice.randrange(2**31))
    model = nn.Sequential(*(nn.Linear(400, 400) for _ in range(30)))
    plan = wp.plan(model, torch.randn(2, 400), seed=dice.randrange(1000))
    before, whole = held(model), copy.deepcopy(model)
    start = time.perf_counter()
    plan.apply_(whole)
    took = time.perf_counter() - start
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        hostile.press_after(dice.uniform(0.0, 1.2 * took), lambda: plan.apply_(model))
    finally:
        signal.signal(signal.SIGINT, handler)
    new = whole.state_dict()
    for name, tensor in model.state_dict().items():
        if not (torch.equal(tensor, before[name]) or torch.equal(tensor, new[name])):
            raise Surprise(f"{name} is neither old nor new")
    plan.apply_(model)
    require_same(model, held(whole), "an interruption")


ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2**63, 10**400, 1e39, -1e300, 5e-324, "", "\x1b[2J", "0.weight", [], {}, [1], {"a": 1},
)  # fmt: skip
"""What stands in the place of something else."""


def damaged(dice: random.Random, folder: Path) -> None:
    """Load a plan file with a few places changed: a plan or our error, and an error writes nothing."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))
    plan = wp.plan(model, torch.randn(2, 2, 4, 4), **dice.choice([{}, {"center": True}, {"method": "orthogonal"}]))
    document = json.loads(plan.model_dump_json())
    for _ in range(dice.randint(1, 4)):
        where = dice.choice([place for place in _places(document) if place])
        container = document
        for key in where[:-1]:
            container = container[key]
        container[where[-1]] = copy.deepcopy(
            dice.choice([*ODD, *(_at(document, place) for place in _places(document)[:5])])
        )
    text = json.dumps(document)
    if dice.random() < 0.3:
        place = dice.randrange(len(text))
        text = text[:place] + dice.choice(["{", "]", '"', ",", "1e999", "\x00"]) + text[place + dice.randrange(4) :]
    file = folder / "plan.json"
    file.write_text(text)
    plan = Plan.load(file)
    before = held(model)
    try:
        plan.apply_(model)
    except WellposedError:
        require_same(model, before, "a plan that was refused")
        raise


def _places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, item in items for place in _places(item, (*path, key)))]


def _at(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return copy.deepcopy(tree)


PARTS: dict[str, Callable[[random.Random, Path], None]] = {
    "architectures": on_an_architecture,
    "threads": in_threads,
    "interruptions": interrupted,
    "files": damaged,
    **hostile.PARTS,
}


def tries(part: str, seconds: float, most: int | None, seed: int, folder: Path) -> dict[str, Any]:
    """Return the row of one part."""
    counts: Counter[str] = Counter()
    begun = time.perf_counter()
    for number in _numbers(most):
        if most is None and time.perf_counter() - begun > seconds:
            break
        counts["tries"] += 1
        try:
            PARTS[part](random.Random(f"{part} {seed} {number}"), folder)
        except WellposedError as error:
            counts["refused"] += 1
            if part != "files":
                print(f"{part} {number}: refused: {str(error)[:200]}", flush=True)
        except Exception as error:
            counts["surprises"] += 1
            print(f"{part} {number} (seed {seed}): {type(error).__name__}: {error}", flush=True)
            if not isinstance(error, Surprise):
                traceback.print_exc()
    spent = time.perf_counter() - begun
    return {"part": part, **{k: counts[k] for k in ("tries", "refused", "surprises")}, "seconds": round(spent)}


def _numbers(most: int | None) -> Iterator[int]:
    return iter(range(most if most is not None else 10**9))


def main() -> None:
    """Run all parts, and write their counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--architectures", type=int, default=200, help="how many, however long they take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for part, share in SHARES.items():
            most = options.architectures if part == "architectures" else None
            rows.append(tries(part, 60 * share * options.minutes, most, options.seed, Path(folder)))
            print(rows[-1], flush=True)
    table = markdown(rows, COLUMNS)
    print(table)
    write("stress", table, rows, options.out)


if __name__ == "__main__":
    main()
