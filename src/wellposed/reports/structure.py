"""The traced graph as a picture needs it: operations, the tree of modules that folds them, branches and merges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wellposed.graphs import Graph, Node
from wellposed.operators.contraction import contractions
from wellposed.operators.facts import facts_of
from wellposed.operators.norms import NORMS
from wellposed.showing import Shown, Summary

GROUP = 40
"""Children of one module that are shown at once; more are folded into runs of this many."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One node of the graph.

    Attributes:
        name, module, module_class, op, source: as in `wellposed.graphs.Node`.
        shape: of its first output.
        outputs: names of the values that it makes.
        inputs: indices of the operations whose results it reads; ``-1 - i`` stands for the model's i-th input.
        group: index of the folding group that it lies in; 0 for what is no signal, which no group holds.
        weighted: whether it contracts a signal with a parameter.
        signal: whether it makes real numbers that are more than a function of parameters and constants.
        normed: whether nothing but norms reads it, which rescale it.
        merges: whether branches meet in it: in a sum, or side by side.
        function: whether it applies a function of one number to every element.
    """

    name: str
    module: str
    module_class: str
    op: str
    source: str
    shape: tuple[int, ...]
    outputs: tuple[str, ...]
    inputs: tuple[int, ...]
    group: int
    weighted: bool
    signal: bool
    normed: bool = False
    merges: bool = False
    function: bool = False


@dataclass(frozen=True, slots=True)
class FoldGroup:
    """A module (one call of it, for modules that hold no others), or a run of neighbours in a crowded one.

    ``parent`` is the index of the group that it lies in, -1 for the model itself, which is group 0.
    """

    label: str
    module_class: str
    parent: int


@dataclass(frozen=True, slots=True)
class Branch:
    """Real-valued operations, each of which carries on the one before it.

    Attributes:
        path: their indices, in order.
        leaves: the operation of another branch that it starts from, or None.
        joins: the operation of another branch that reads its end, or None.
    """

    path: tuple[int, ...]
    leaves: int | None
    joins: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Structure(Shown):
    """The graph of a model as plain data.

    Attributes:
        operations: in execution order.
        groups: the tree of modules; a parent comes before its children.
        inputs: names of the model's inputs.
        outputs: indices of the operations whose results leave the model.
        branches: every real-valued operation is on exactly one.
        merges: indices of the operations at which branches meet.
    """

    operations: tuple[Operation, ...]
    groups: tuple[FoldGroup, ...]
    inputs: tuple[str, ...]
    outputs: tuple[int, ...]
    branches: tuple[Branch, ...]
    merges: tuple[int, ...]

    def _summary(self) -> Summary:
        return Summary(
            f"Structure of {len(self.operations):,} operations in {len(self.groups):,} groups, on "
            f"{len(self.branches):,} branches that meet at {len(self.merges):,}"
        )


def structure_of(graph: Graph) -> Structure:
    """Return the graph as a picture needs it."""
    made = {value: node.index for node in graph.nodes for value in node.outputs}
    made |= {value: -1 - position for position, value in enumerate(graph.inputs)}
    weighted = {use.node for use in contractions(graph) if use.parameter is not None}
    live = _live(graph, weighted)
    signals = [node for node in graph.nodes if node.index in live and _is_signal(graph, node)]
    groups, home = _fold(signals, graph.model)
    normed = _normed(graph)
    operations = tuple(
        _operation(graph, node, made, home, node.index in weighted, node.index in normed) for node in graph.nodes
    )
    return Structure(
        operations=operations,
        groups=groups,
        inputs=tuple(graph.values[value].name for value in graph.inputs),
        outputs=tuple(dict.fromkeys(made[value] for value in graph.outputs if made.get(value, -1) >= 0)),
        branches=branches_of(operations),
        merges=tuple(i for i, operation in enumerate(operations) if _merges(operations, operation)),
    )


def _normed(graph: Graph) -> set[int]:
    """Return the nodes whose results nothing but norms read."""
    made = {value: node.index for node in graph.nodes for value in node.outputs}
    read: dict[int, bool] = {made[value]: False for value in graph.outputs if value in made}
    for node in graph.nodes:
        norm = node.op in NORMS
        for place, value in enumerate(node.inputs):
            if value in made:
                read[made[value]] = read.get(made[value], True) and norm and place == 0
    return {index for index, norms in read.items() if norms}


def _operation(
    graph: Graph, node: Node, made: Mapping[int, int], home: Mapping[int, int], weighted: bool, normed: bool
) -> Operation:
    """Return a node as the picture shows it; ``made`` maps values to operations, ``home`` nodes to module groups."""
    return Operation(
        name=node.name,
        module=node.module,
        module_class=node.module_class,
        op=node.op_name,
        source=node.source,
        shape=graph.values[node.outputs[0]].shape if node.outputs else (),
        outputs=tuple(graph.values[value].name for value in node.outputs),
        inputs=tuple(dict.fromkeys(made[value] for value in node.inputs if value in made)),
        group=home.get(node.index, 0),
        weighted=weighted,
        signal=node.index in home,
        normed=normed,
        merges=facts_of(node.op).joins or facts_of(node.op).merges == "sum",
        function=bool(facts_of(node.op).function),
    )


def _is_signal(graph: Graph, node: Node) -> bool:
    return any(graph.values[value].is_signal for value in node.outputs)


def _live(graph: Graph, weighted: set[int]) -> set[int]:
    """Return the nodes that depend on an input, or look something up in a parameter, or on such a node."""
    live: set[int] = set()
    values = set(graph.inputs)
    for node in graph.nodes:
        if node.index in weighted or not values.isdisjoint(node.inputs):
            live.add(node.index)
            values.update(node.outputs)
    return live


def signal_inputs(operations: Sequence[Operation], operation: Operation) -> list[int]:
    """Return the operations whose real-valued results ``operation`` reads."""
    return [i for i in operation.inputs if i >= 0 and operations[i].signal]


def _merges(operations: Sequence[Operation], operation: Operation) -> bool:
    """Whether an operation merges at least two real-valued signals."""
    return (
        operation.merges
        and operation.signal
        and len([i for i in operation.inputs if i < 0 or operations[i].signal]) > 1
    )


def branches_of(operations: Sequence[Operation]) -> tuple[Branch, ...]:
    """Return the real-valued operations as branches.

    An operation carries on the branch of the oldest signal that it reads, so that the sum at the end of a residual
    block carries on the trunk. Of several that would carry on one branch the last does, and each other one begins a
    branch of its own.
    """
    oldest = {
        i: min(before)
        for i, operation in enumerate(operations)
        if operation.signal and (before := signal_inputs(operations, operation))
    }
    heirs = {source: i for i, source in oldest.items()}  # the last one wins
    joined: dict[int, int] = {}
    for i, operation in enumerate(operations):
        for source in signal_inputs(operations, operation) if operation.signal else ():
            if oldest[i] != source:
                joined.setdefault(source, i)
    branches = []
    for i, operation in enumerate(operations):
        if not operation.signal or (i in oldest and heirs[oldest[i]] == i):
            continue
        own = [i]
        while own[-1] in heirs:
            own.append(heirs[own[-1]])
        branches.append(Branch(tuple(own), oldest.get(i), joined.get(own[-1])))
    return tuple(branches)


# ---- folding --------------------------------------------------------------------------------------------------------


class _Folder:
    """A group while the tree grows: its modules and operations, in the order of their first operation."""

    __slots__ = ("children", "items", "label", "module_class")

    def __init__(self, label: str, module_class: str) -> None:
        self.label = label
        self.module_class = module_class
        self.children: dict[str, _Folder] = {}
        self.items: list[_Folder | Node] = []

    def child(self, key: str, label: str, module_class: str) -> _Folder:
        """Return the child of this key, made when it is first asked for."""
        if key not in self.children:
            self.children[key] = _Folder(label, module_class)
            self.items.append(self.children[key])
        return self.children[key]


def _fold(nodes: Sequence[Node], model: str) -> tuple[tuple[FoldGroup, ...], dict[int, int]]:
    """Return the groups, and for each node the index of its own."""
    classes = {node.module: node.module_class for node in nodes}
    containers = {module[:cut] for module in classes for cut in _cuts(module)}
    root = _Folder(model, model)
    for node in nodes:
        folder = root
        for cut in (*_cuts(node.module), len(node.module)) if node.module else ():
            path = node.module[:cut]
            call = node.call if cut == len(node.module) and path not in containers else 0
            label = path.rpartition(".")[2] + (f"@{call + 1}" if call else "")
            folder = folder.child(f"{path}@{call}", label, classes.get(path, ""))
        folder.items.append(node)
    _simplify(root)
    groups: list[FoldGroup] = []
    home: dict[int, int] = {}
    waiting: list[tuple[_Folder, int]] = [(root, -1)]
    while waiting:
        folder, parent = waiting.pop()
        groups.append(FoldGroup(folder.label, folder.module_class, parent))
        own = len(groups) - 1
        for item in _in_runs(folder.items):
            if isinstance(item, Node):
                home[item.index] = own
            else:
                waiting.append((item, own))
    return tuple(groups), home


def _simplify(folder: _Folder) -> None:
    """Put the one operation of a module in the module's place, and join a module to the only one that it holds."""
    for position, item in enumerate(folder.items):
        if isinstance(item, Node):
            continue
        _simplify(item)
        only = item.items[0] if len(item.items) == 1 else item
        if isinstance(only, _Folder) and only is not item:
            only.label = f"{item.label}.{only.label}"
        folder.items[position] = only


def _cuts(module: str) -> Iterator[int]:
    """Yield where the paths of the modules around ``module`` end in it."""
    position = module.find(".")
    while position >= 0:
        yield position
        position = module.find(".", position + 1)


def _in_runs(items: list[_Folder | Node]) -> list[_Folder | Node]:
    """Return at most `GROUP` items: neighbours of a longer list are folded into runs, and those again."""
    while len(items) > GROUP:
        runs: list[_Folder | Node] = []
        for start in range(0, len(items), GROUP):
            part = items[start : start + GROUP]
            run = _Folder(f"{_label(part[0]).partition(_RANGE)[0]}{_RANGE}{_label(part[-1]).rpartition(_RANGE)[2]}", "")
            run.items = part
            runs.append(run)
        items = runs
    return items


_RANGE = " … "


def _label(item: _Folder | Node) -> str:
    return item.name.rpartition(".")[2] if isinstance(item, Node) else item.label
