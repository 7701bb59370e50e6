"""Batches for many training runs: all runs of a seed see the same ones, in an order of the seed's own, whatever random
numbers they draw themselves.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from typing import Any, TypeAlias

import numpy
import torch
from torch import Tensor

from wellposed import ranks
from wellposed.errors import OptionError, RateError
from wellposed.graphs.support import batch_fault
from wellposed.graphs.tree import walk, with_twins
from wellposed.random_states import restored_random_state, seed_all

Batches: TypeAlias = Iterable[Any] | Callable[[int], Iterable[Any]]
"""Batches, or a function that gives each seed batches of its own."""
_END = object()


def feeds_of(batches: Batches, steps: int | None, seeds: Sequence[int], device: torch.device) -> dict[int, Feed]:
    """Return the batches of every seed.

    One batch (`is_batch`) is taken in every step. What a list or tuple holds, or an iterator gives in ``steps``
    batches, each seed has in a random order of its own (and of a longer list other ones). A ``DataLoader`` shuffles
    itself, by the seed: the generator that it holds is turned on for every seed but the first. A function is asked for
    the batches of each seed.

    Raises:
        OptionError: no batches at all, but something else; one batch, and no number of steps.
        RateError: those of `Feed`.
    """
    if is_batch(batches):
        if steps is None:
            raise OptionError("received one batch, which does not say how many steps to take on it: give steps=")
        batches = [batches]
    if callable(batches) and not isinstance(batches, Iterable):
        return {seed: Feed(_given(batches, seed), steps, seed, device) for seed in seeds}
    if not isinstance(batches, Iterable):
        raise _no_batches(batches)
    if isinstance(batches, Iterator) and steps is not None:
        batches = list(islice(batches, steps))
    if isinstance(batches, list | tuple):
        return {seed: Feed(_reordered(batches, seed), steps, seed, device) for seed in seeds}
    return {seed: Feed(batches, steps, seed, device, turn=index) for index, seed in enumerate(seeds)}


def _no_batches(given: object) -> OptionError:
    """Return the error of what is given for batches and holds none."""
    kind = type(given).__name__
    return OptionError(
        f"batches are wanted, and {kind} holds samples: give a DataLoader of it, torch.utils.data.DataLoader(dataset, "
        "batch_size=..., shuffle=True)"
        if hasattr(given, "__getitem__")
        else f"batches must be batches or a function of the seed, received {kind}"
    )


def is_batch(batches: object) -> bool:
    """Whether what is given for batches is one batch: a mapping, tensors in a tuple, or two unlike ones in a list."""
    if isinstance(batches, Mapping):
        return True
    if isinstance(batches, tuple):
        return len(batches) > 1 and any(isinstance(item, Tensor) for item in batches)
    if not isinstance(batches, list) or len(batches) != 2 or not all(isinstance(item, Tensor) for item in batches):
        return False
    one, other = batches
    return one.shape[:1] == other.shape[:1] and (one.dtype, one.shape) != (other.dtype, other.shape)


def _given(batches: Callable[..., Iterable[Any]], seed: int) -> Iterable[Any]:
    given = batches(seed) if inspect.signature(batches).parameters else batches()
    if not isinstance(given, Iterable):
        raise RateError(f"batches(seed) must return batches, not {type(given).__name__}")
    return given


def _reordered(batches: Sequence[Any], seed: int) -> list[Any]:
    order = torch.randperm(len(batches), generator=torch.Generator().manual_seed(seed))
    return [batches[index] for index in order.tolist()]


class Feed:
    """The first ``steps`` batches of an iterable; iterating again gives the same batches again.

    Where there are fewer, they are repeated, as in further epochs.

    A list or tuple is read as it is. An iterator, which can be read once only, is kept in memory. Anything else (a
    ``DataLoader``) is iterated anew for every run, with the random numbers that it draws for shuffling and augmenting
    the same each time and apart from those of the model.

    Args:
        batches: the batches.
        steps: how many are used; None for all of them (one epoch).
        seed: of the random numbers that the iterable draws.
        device: where the tensors of a batch are put.
        turn: the generators that the iterable holds of its own start from other numbers for each turn but 0.

    Raises:
        RateError: no batches, or no ``steps`` for an iterable without a length.
    """

    def __init__(
        self, batches: Iterable[Any], steps: int | None, seed: int, device: torch.device, turn: int = 0
    ) -> None:
        """Count the steps, the fewest of all ranks; raises `RateError` where there are none or their number is
        unknown.
        """
        size = size_of(batches)
        if steps is None and size is None:
            raise RateError("an iterator or a stream does not say how many batches it has: give steps=")
        wanted = steps if steps is not None else size
        assert wanted is not None
        self.steps: int = min(ranks.gathered(wanted))
        self.device = device
        self._source: Iterable[Any] = batches
        if isinstance(batches, Iterator):
            self._source = list(islice(batches, self.steps))
            size = len(self._source)
        self._counted = ranks.agreed(size is not None)
        if not ranks.agreed(size is None or (size > 0 and self.steps > 0)):
            raise _NONE
        self._size = size
        self._generators = _generators(batches)
        self._turn = turn
        with restored_random_state():
            seed_all(seed)
            self._start = _random_state()
        begin = time.perf_counter()
        self.first: Any = next(self._read())
        self.seconds: float = time.perf_counter() - begin
        if fault := next(filter(None, ranks.gathered(_fault(self.first))), ""):
            raise RateError(fault)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches.

        Raises:
            RateError: there are none, they end and cannot be read again, or one cannot be trained on.
        """
        for batch in self._read():
            if fault := _fault(batch):
                raise RateError(fault)
            yield batch

    def _read(self) -> Iterator[Any]:
        """Yield the batches as they come."""
        before = [(held, held.get_state()) for held in self._generators]
        try:
            for held in self._generators if self._turn else ():
                held.manual_seed(held.initial_seed() + self._turn)
            state, iterator = self._start, None
            for index in range(self.steps):
                with restored_random_state():
                    _set_random_state(state)
                    iterator = iterator if iterator is not None else iter(self._source)
                    batch = next(iterator, _END)
                    if batch is _END and index:
                        iterator = iter(self._source)
                        batch = next(iterator, _END)
                    state = _random_state()
                ended = batch is _END
                if (
                    ended if self._counted else not ranks.agreed(not ended)
                ):  # a rank by itself would leave others waiting
                    raise _NONE if not index else _run_out(self.steps, index)
                yield self.placed(batch)
        finally:
            for held, given in before:
                held.set_state(given)

    def batch_size(self) -> int | None:
        """Return the samples in one step over all ranks: the first axis of a batch's first tensor that has one."""
        sizes = [tensor.shape[0] for _, tensor in walk(self.first) if tensor.dim()]
        return sum(ranks.gathered(sizes[0])) if sizes else None

    def repeated(self) -> str:
        """Return in words how few batches there are; ``""`` where there is one for each step, or it is not known."""
        few = self._size is not None and self._size < self.steps
        return f" on {self._size} batch{'es' * (self._size != 1)}, repeated" if few else ""

    def described(self) -> str:
        """Return the tensors of a batch: names, dtypes and shapes without the first axis."""
        return ", ".join(
            f"{path}: {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape[1:])}"
            for path, tensor in walk(self.first)
        )

    def placed(self, batch: Any) -> Any:
        """Return the batch with its tensors on the device."""
        twins = {id(t): t.to(self.device) for _, t in walk(batch) if t.device != self.device and not t.is_meta}
        return with_twins(batch, twins) if twins else batch


def _fault(batch: Any) -> str:
    """Return why nothing can be trained on a batch, or ``""``."""
    tensors = list(walk(batch))
    for path, tensor in tensors:
        if why := batch_fault(tensor):
            return f"a tensor of a batch{f' ({path})' if path else ''} is {why}"
    sized = [tensor for _, tensor in tensors if tensor.dim()]
    if sized and not any(tensor.shape[0] for tensor in sized):
        return f"a batch has no samples: its first tensor has the shape {list(sized[0].shape)}"
    return ""


def size_of(batches: Iterable[Any]) -> int | None:
    """Return how many batches there are, where the iterable knows."""
    if not isinstance(batches, Sized):
        return None
    try:
        return len(batches)
    except TypeError:  # a DataLoader over a stream has the method but no length
        return None


_NONE = RateError("there is not one batch to train on; is the iterable empty, or an iterator that was read?")


def _run_out(needed: int, count: int) -> RateError:
    return RateError(
        f"the batches ran out after {count}, {needed} are needed, and what gives them cannot be read again: give it in "
        f"a list or as a DataLoader, or steps={count}"
    )


def _generators(batches: object) -> list[torch.Generator]:
    """Return the generators that a ``DataLoader`` and its samplers hold of their own."""
    sampler = getattr(batches, "sampler", None)
    inner = getattr(getattr(batches, "batch_sampler", None), "sampler", None)
    generators = [getattr(holder, "generator", None) for holder in (batches, sampler, inner)]
    return list({id(held): held for held in generators if isinstance(held, torch.Generator)}.values())


def _random_state() -> Sequence[Any]:
    return torch.get_rng_state(), numpy.random.get_state(), random.getstate()  # noqa: NPY002


def _set_random_state(state: Sequence[Any]) -> None:
    torch.set_rng_state(state[0])
    numpy.random.set_state(state[1])  # noqa: NPY002
    random.setstate(state[2])
