"""What a forward keeps outside of its model does not outlive a tracing; what was kept before it stays."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

import wellposed as wp
from wellposed.errors import TraceError
from wellposed.rates import find_max_lr

HELPERS = "a_package_of_helpers"
SOURCE = """
import functools, torch
from other_helpers import made, made_once

TABLE = {}
NESTED = {"sin": {}, "cos": {}}
PAIRS = {"length": 0, "cos": None}
ROWS = [None, 0]
NOTHING, LENGTH = None, 0

def by_global(n):
    global NOTHING, LENGTH
    if n > LENGTH:
        NOTHING, LENGTH = made(n), n
    return NOTHING[:n]

def by_new_global(n):
    if "LATE" not in globals():
        globals()["LATE"] = made(n)
    return LATE

def by_table(n):
    if n not in TABLE:
        TABLE[n] = {"cos": made(n), "sin": [made(n)]}
    return TABLE[n]["cos"] + TABLE[n]["sin"][0]

def by_nested(n):
    for table in NESTED.values():
        if n not in table:
            table[n] = made(n)
    return NESTED["sin"][n] + NESTED["cos"][n]

def by_pairs(n):
    if PAIRS["length"] < n:
        PAIRS.update(length=n, cos=made(n))
    return PAIRS["cos"]

def by_rows(n):
    if ROWS[1] < n:
        ROWS[:] = made(n), n
    return ROWS[0]

def by_attribute(n):
    if n not in by_attribute.cache:
        by_attribute.cache[n] = made(n)
    return by_attribute.cache[n]
by_attribute.cache = {}

def by_late_attribute(n):
    if not hasattr(by_late_attribute, "held"):
        by_late_attribute.held = made(n)
    return by_late_attribute.held

def by_default(n, cache={}):
    if n not in cache:
        cache[n] = made(n)
    return cache[n]

def by_named_default(n, *, cache={}):
    if n not in cache:
        cache[n] = (made(n), made(n))
    return cache[n][0]

class Rotary:
    cache = None
    tables = {}
    def __init__(self):
        self.own = None
    def by_class(self, n):
        if Rotary.cache is None:
            Rotary.cache = made(n)
        return Rotary.cache
    def by_late_class(self, n):
        if not hasattr(Rotary, "late"):
            type(self).late = made(n)
        return Rotary.late
    def by_class_table(self, n):
        if n not in self.tables:
            self.tables[n] = made(n), made(n)
        return self.tables[n][1]
    def by_object(self, n):
        if self.own is None:
            self.own = made(n)
        return self.own
    @staticmethod
    @functools.lru_cache(None)
    def by_static_memo(n):
        return made(n)
    @functools.lru_cache(maxsize=4)
    def by_method_memo(self, n):
        return {"a": made(n)}
    def method_memo(self, n):
        return self.by_method_memo(n)["a"]
    @functools.cached_property
    def table(self):
        return made(4)
    def by_property(self, n):
        return self.table

ROTARY = Rotary()
by_class, by_late_class, by_class_table = ROTARY.by_class, ROTARY.by_late_class, ROTARY.by_class_table
by_object, by_static_memo, by_method_memo = ROTARY.by_object, ROTARY.by_static_memo, ROTARY.method_memo
by_property = ROTARY.by_property

@functools.lru_cache
def by_memo(n):
    return made(n)

@functools.cache
def by_unbounded_memo(n):
    return [made(n)]

def by_memo_of_lists(n):
    return by_unbounded_memo(n)[0]

def by_memo_elsewhere(n):
    return made_once(n)

def decorated(function):
    cache = {}
    def inner(n):
        if n not in cache:
            cache[n] = function(n)
        return cache[n]
    return inner

by_closure = decorated(made)
"""
OTHER = """
import functools, numpy, torch
def made(n):
    if n < 0:
        return torch.from_numpy(numpy.arange(1.0, 1 - n, dtype="float32"))
    return torch.arange(1.0, n + 1).cos()
@functools.lru_cache
def made_once(n):
    return made(n)
"""
WAYS = re.findall(r"^(?:def |)(by_\w+)|, (by_\w+)", SOURCE, re.MULTILINE)
WAYS = sorted({first or second for first, second in WAYS} - {"by_unbounded_memo", "by_closure"} | {"by_closure"})


SEARCHED = ("static_memo", "default", "class_table")
"""Those whose holders are found by a search of the process, which has many objects here."""


@pytest.fixture
def helpers() -> Iterator[ModuleType]:
    """A package of functions that keep what they make, each in its own way, and one that it imports."""
    for name, source in (("other_helpers", OTHER), (HELPERS, SOURCE)):
        module = sys.modules[name] = ModuleType(name)
        exec(compile(source, f"{name}.py", "exec"), vars(module))
    yield module
    del sys.modules[HELPERS], sys.modules["other_helpers"]


class Net(nn.Module):
    """Multiplies with what a function keeps."""

    def __init__(self, kept: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.kept = kept

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.kept(x.shape[1])


class Reading(Net):
    """Reads values, so that it is traced on real tensors."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * float(self.fc.weight.detach().sum())


def train(model: nn.Module, x: Tensor) -> Tensor:
    loss = model(x)
    assert not loss.is_meta
    loss.sum().backward()
    return loss.detach()


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Net, Reading])
@pytest.mark.parametrize("way", WAYS)
def test_what_functions_keep_is_as_it_was(helpers, way, kind) -> None:
    function = getattr(helpers, way)
    for _ in range(2):
        model = kind(function)
        graph = wp.trace(model, X)
        assert graph.engine == ("meta" if kind is Net else "real")
        assert graph.remarks == ()
    held = train(model, X)
    kept = function(4)
    assert not kept.is_inference()
    for _ in range(2):  # what real passes keep stays, and is used
        wp.trace(model, X)
    assert torch.equal(train(model, X), held)
    if way not in ("by_table", "by_nested", "by_global"):  # those return something new each time
        assert function(4) is kept


@pytest.mark.parametrize(
    "way",
    ["by_table", "by_attribute", *(pytest.param(f"by_{way}", marks=pytest.mark.slow) for way in SEARCHED)],
)
def test_what_was_kept_for_other_lengths_stays(helpers, way) -> None:
    function = getattr(helpers, way)
    earlier = function(8)
    wp.trace(Net(function), X)
    if way == "by_table":
        assert list(helpers.TABLE) == [8]
    else:
        assert function(8) is earlier
    train(Net(function), X)


def test_a_forward_that_fails_leaves_nothing_either(helpers) -> None:
    class Failing(Net):
        def forward(self, x: Tensor) -> Tensor:
            super().forward(x)
            raise KeyError("on purpose")

    with pytest.raises(TraceError, match="on purpose"):
        wp.trace(Failing(helpers.by_table), X)
    assert helpers.TABLE == {}


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()


@pytest.mark.parametrize(
    "use",
    [
        wp.plan,
        wp.check,
        wp.report,
        lambda model, x: find_max_lr(model, loss_fn, [x], seeds=1, steps=5),
    ],
    ids=["plan", "check", "report", "find_max_lr"],
)
@pytest.mark.slow
def test_a_model_trains_after_the_library_saw_it(helpers, use) -> None:
    for way in ("by_memo", "by_table", "by_global"):
        model = Net(getattr(helpers, way))
        use(model, X)
        train(model, X)


@pytest.mark.parametrize("way", ["by_memo", "by_table", "by_global", "by_closure"])
def test_models_on_meta_leave_nothing(helpers, way) -> None:
    function = getattr(helpers, way)

    class Made(Net):
        def __init__(self) -> None:
            super().__init__(function)
            self.register_buffer("table", function(4) + 1)
            self.large = nn.Parameter(torch.randn(300, 300))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.table + self.large.sum()

    with torch.device("meta"):
        model = Net(function)
    assert wp.trace(model, X).remarks == ()
    assert not function(4).is_meta
    model = Made().to("meta")
    wp.trace(model, X)
    train(Made(), X)


def test_a_buffer_that_a_constructor_takes_from_a_cache_is_no_sketch(helpers) -> None:
    with torch.device("meta"):
        model = Making()
    Making.held = None
    wp.plan(model, X)
    assert Making.held is None


class Making(nn.Module):
    held: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        if Making.held is None:
            Making.held = torch.randn(4)
        self.register_buffer("scale", Making.held * 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.scale


def test_what_hooks_note_is_let_go_of() -> None:
    seen: list[Tensor] = []
    features = {"calls": 0}
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[0].register_forward_hook(lambda _module, _args, output: seen.append(output))
    model[1].register_forward_hook(lambda _module, _args, output: features.update(relu=output))
    wp.trace(model, X)
    assert (seen, features) == ([], {"calls": 0})
    model(X)
    assert len(seen) == 1


def of_cell() -> Callable[[int], Tensor]:
    kept = None

    def function(n: int) -> Tensor:
        nonlocal kept
        if kept is None:
            kept = torch.arange(1.0, n + 1).cos()
        return kept

    return function


def test_what_cannot_be_taken_out_is_said_with_the_line_that_made_it_and_the_remedy() -> None:
    (remark,) = wp.trace(Net(of_cell()), X).remarks
    assert re.match(
        r"1 tensor\(s\) that the forward of Net makes \(tests/graphs/test_outside.py:\d+\) are kept", remark
    )
    assert "in a new process, run the model once before the library sees it" in remark
    model = Net(of_cell())
    train(model, X)
    assert wp.plan(model, X).warnings == ()
    train(model, X)


@pytest.mark.slow
def test_attributes_whose_earlier_values_are_not_known_are_emptied_and_named() -> None:
    class Rotary:
        table = None

        def __init__(self) -> None:
            self.own = None

        def made(self, n: int) -> Tensor:
            if self.own is None:
                self.own = torch.arange(1.0, n + 1).sin()
            if Rotary.table is None:
                Rotary.table = torch.arange(1.0, n + 1).cos()
            return self.own + Rotary.table

    class Hidden:
        """An object that shows nothing of what it holds to those that look at a model's attributes."""

        __module__ = "collections"

        def __init__(self, made: Callable[[int], Tensor]) -> None:
            self.made = made

        def __call__(self, n: int) -> Tensor:
            return self.made(n)

    model = Net(Hidden(Rotary().made))
    (remark,) = wp.trace(model, X).remarks
    assert re.match(r"what .*Rotary.own.* held before the forward of Net was traced is not known, and was", remark)
    assert "Rotary.table" in remark
    train(model, X)


@pytest.mark.slow
def test_a_forward_that_collects_garbage_is_told_what_it_keeps(helpers) -> None:
    def collecting(n: int) -> Tensor:
        kept = helpers.by_closure(n)
        gc.collect()
        return kept

    (remark,) = wp.trace(Net(collecting), X).remarks
    assert "are kept where nothing can take them out again" in remark
