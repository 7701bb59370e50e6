"""What a forward keeps outside of its model while it is traced, in caches of its library, does not outlive the tracing.

It would be stand-ins on meta and inference tensors, which a later pass cannot use. Real values are no better: they may
follow from random draws, and from the mode, of that one pass. So every place holds afterwards what it held before.

No list of places is needed to see that something is kept: tensors of the tracing are still alive. Only then are
those who hold them looked for: first where earlier values are known, then among all objects of the process.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import ref

from torch import Tensor, nn

from wellposed.errors import joined
from wellposed.graphs.files import Memo, files_of, is_of_models, kinds_of, memos
from wellposed.graphs.graph import Graph
from wellposed.graphs.holders import ABSENT, Holding, Young, let_go, set_name, without
from wellposed.graphs.restore import attributes_of, items_of, put_back, same

_MOST = 1_000
"""Items of a cache whose earlier ones are noted; chosen: larger ones are tables of names."""
_ROUNDS = 4
"""Searches of the process; chosen: one finds all, but for what is held by several at once."""


class Outside:
    """What can hold tensors outside of a model, before a pass: globals of the files whose code the model may run,
    attributes of classes, functions and objects among them, and items of their dicts and lists.

    Garbage collection must be paused from here on: what is made later is then told by its generation.
    """

    def __init__(self, model: nn.Module) -> None:
        gc.collect(0)
        self._mark: list[None] = []
        self._memos: list[Memo] = [memo for kind in kinds_of(model) for memo in memos(vars(kind).values())]
        self._names: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._items: dict[int, tuple[Any, Any]] = {}
        for kind in kinds_of(model):
            self._note(kind)
        for names, file in files_of(model):
            self._names[id(names)] = names, names.copy()
            self._memos += [memo for each in file.memos if (memo := each()) is not None]
            for name in file.holders:
                self._note(names.get(name))

    def _note(self, value: Any) -> None:
        """Note what one object holds now."""
        if isinstance(value, type):
            if is_of_models(value.__module__):
                self._names[id(value)] = value, vars(value).copy()
        elif type(value) in (dict, list):
            if len(value) <= _MOST and id(value) not in self._items:
                self._items[id(value)] = value, items_of(value)
                if gc.is_tracked(value):
                    for item in value.values() if isinstance(value, dict) else value:
                        if type(item) in (dict, list):
                            self._note(item)
        elif type(attributes := attributes_of(value)) is dict:
            self._names[id(attributes)] = attributes, attributes.copy()

    def forget(self, used: Sequence[ref[Tensor]]) -> tuple[list[Tensor], list[str]]:
        """Take what has been made since out of all that holds it still.

        Args:
            used: tensors that a pass has used, those that there were before it among them.

        Returns:
            Those that are held nevertheless, and the attributes whose earlier values were guessed.
        """
        if not _alive(used):
            return [], []
        ids = set(map(id, gc.get_objects(0)))  # of what has been made since, by the pass and by what it imported
        if id(self._mark) not in ids:  # the forward collected garbage: what is old cannot be told
            return [tensor for tensor in _alive(used) if tensor.is_inference()], []
        gc.collect(0)  # most often cycles alone have held the tensors
        if not any(id(tensor) in ids for tensor in _alive(used)):
            return [], []
        young = Young(used, ids)
        if young.tensors():
            self._put_back(young.holding()[0])
        guessed: list[str] = []
        for _ in range(_ROUNDS):
            if not young.tensors() or not young.take_out(guessed):
                break
        held = bool(young.held()[1])
        del young  # which holds what nothing else does
        gc.collect(1)
        return [tensor for tensor in _alive(used) if id(tensor) in ids and held], guessed

    def _put_back(self, holding: Holding) -> None:
        """Give the places whose earlier values are known these again, where they hold what is of the pass."""
        for memo in self._memos:
            if any(id(held) in holding for held in gc.get_referents(memo)):
                let_go(memo, holding, [])
        for container, items in self._items.values():
            values = container.values() if isinstance(container, dict) else container
            if any(id(value) in holding for value in values) and not same(container, items):
                put_back(container, items)
        for owner, before in self._names.values():
            _put_names_back(owner, before, holding)


def _put_names_back(owner: Any, before: dict[str, Any], holding: Holding) -> None:
    """Give a dict of names, or a class, its earlier values where one of them holds what is of the pass."""
    now = vars(owner) if isinstance(owner, type) else owner
    held = [name for name, value in now.items() if id(value) in holding]
    if all(before.get(name) is now[name] for name in held):  # the same containers, with other items
        for name in held:
            without(now[name], holding)
        return
    for name, value in list(now.items()):
        if name in before and before[name] is not value:
            set_name(owner, name, before[name])
        elif name not in before and id(value) in holding:
            set_name(owner, name, ABSENT)


def _alive(used: Sequence[ref[Tensor]]) -> list[Tensor]:
    """Return the tensors that are still there."""
    return [tensor for each in used if (tensor := each()) is not None]


def with_remarks(graph: Graph, held: list[Tensor], guessed: list[str], values: Mapping[int, int]) -> Graph:
    """Return a graph that tells which tensors of its pass are held still, and what was emptied for want of better.

    Args:
        graph: of the pass.
        held: the tensors.
        guessed: the attributes that were emptied.
        values: the graph's values by the tensors' ids.
    """
    remedy = "run the model once before the library sees it: what it keeps is then used, and stays"
    remarks = []
    if held:
        nodes = [graph.values[values[id(tensor)]].node for tensor in held if id(tensor) in values]
        places = joined(dict.fromkeys(graph.nodes[node].source for node in nodes if node is not None), 3)
        remarks.append(
            f"{len(held)} tensor(s) that the forward of {graph.model} makes{f' ({places})' * bool(places)} are kept "
            f"where nothing can take them out again, and no later pass can use them; in a new process, {remedy}"
        )
    if guessed:
        remarks.append(
            f"what {joined(dict.fromkeys(guessed), 3)} held before the forward of {graph.model} was traced is not "
            f"known, and was emptied; {remedy}"
        )
    return replace(graph, remarks=(*graph.remarks, *remarks)) if remarks else graph
