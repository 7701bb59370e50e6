"""Fixup: residual nets without normalisation, by small weights and closed branches.

Source: Zhang, Dauphin & Ma 2019, *Fixup Initialization: Residual Learning Without Normalization* (arXiv 1901.09321).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from wellposed.errors import PlanError
from wellposed.graphs import Graph
from wellposed.methods.options import Draft, Request, find_method, method
from wellposed.methods.roles import op_of, zero
from wellposed.operators.contraction import contractions
from wellposed.operators.scale_parameters import parameter_values
from wellposed.plans import Constant, Prescription
from wellposed.structure.branches import branches
from wellposed.structure.residual_branches import ResidualBranch, other_use
from wellposed.structure.streams import residual_streams
from wellposed.structure.vertices import vertices

Random = Literal["normal", "truncated_normal", "uniform"]
_PAPER = "Zhang et al. 2019"


@method("fixup")
def fixup(
    graph: Graph, request: Request, *, distribution: Random = "normal", mode: Literal["fan_in", "fan_out"] = "fan_in"
) -> Draft:
    """Scale weights in each of L residual branches of m layers by L^(-1/(2m-2)); their last layers and readouts are 0.

    Everything else is drawn as by ``kaiming``, with ``distribution`` and ``mode``. What a residual branch is stands in
    `wellposed.structure.streams`; m counts the layers of its longest chain, and branches inside a branch are
    scaled by their own. A weight that something else uses too, as a tied table that is looked up, is left as
    ``kaiming`` draws it, and a warning names it.

    What else Fixup does changes the model, and no plan can: a scalar bias before each layer and activation, and one
    scalar multiplier in each branch. The plan's warnings say so.

    Raises:
        PlanError: the graph has no residual branch.

    Source: Zhang, Dauphin & Ma 2019 (arXiv 1901.09321), section 3: Fixup initialization, rules 1 and 2.
    """
    draft = find_method("kaiming")(graph, request, distribution=distribution, mode=mode)
    residual = [branch for stream in residual_streams(graph) for branch in stream.branches if branch.weights]
    if not residual:
        raise PlanError(
            f"method 'fixup' needs residual branches, and {graph.model} has none: no sum adds contractions to a path "
            "around them; 'kaiming' or 'autoinit' initialise nets without them"
        )
    closed, inner = _changed_layers(graph, residual)
    weights: dict[str, list[int]] = {}
    for use in contractions(graph):
        if use.parameter is not None and (use.node in closed or use.node in inner):
            weights.setdefault(use.parameter, []).append(use.node)
    prescriptions, warnings = dict(draft.prescriptions), _warnings(graph, draft.prescriptions)
    for name, nodes in weights.items():
        if prescriptions[name].action != "write":
            continue
        other = other_use(graph, name, {*closed, *inner}, parameter_values(graph), graph.dead_nodes)
        depths = [inner[node] for node in nodes if node in inner]
        if other is not None:
            warnings.append(
                f"{name!r} is drawn as by 'kaiming', neither 0 nor smaller, as {op_of(graph.nodes[other])} uses it "
                "too; give each a weight of its own for Fixup's scale"
            )
        elif depths:
            prescriptions[name] = _scaled(prescriptions[name], len(residual), depths[0])
        else:
            prescriptions[name] = _zero(prescriptions[name], closed[nodes[0]])
    return Draft(prescriptions, warnings=tuple(warnings))


def _changed_layers(graph: Graph, residual: Sequence[ResidualBranch]) -> tuple[dict[int, str], dict[int, int]]:
    """Return, by node, the contractions that get zero weights, with the reason, and those that get smaller ones, with
    the depth of their branch.
    """
    closed, inner = dict.fromkeys(vertices(branches(graph)).readouts, "readout: 0"), dict[int, int]()
    for branch in residual:
        for node in branch.weights:
            if node in branch.last:
                closed[node] = "last layer of its residual branch: 0, so that the branch starts closed"
            elif branch.depth > 1:  # else a weight that joins the branch's only layer from elsewhere
                inner[node] = branch.depth
    return closed, inner


def _scaled(base: Prescription, count: int, depth: int) -> Prescription:
    """Return a first or inner weight of a branch times count^(-1/(2 depth - 2))."""
    factor = float(count ** (-1.0 / (2 * depth - 2)))
    field = "constant" if isinstance(base, Constant) else "std"
    value = getattr(base, field)
    reason = f"{base.reason}; × {count}^(-1/{2 * depth - 2}) for {count} residual branches of {depth} layers ({_PAPER})"
    return base.changed(**{field: value * factor}, reason=reason)


def _zero(base: Prescription, reason: str) -> Prescription:
    return zero(base, f"{reason} ({_PAPER})", output_axis=base.output_axis, groups=base.groups)


def _warnings(graph: Graph, prescriptions: Mapping[str, Prescription]) -> list[str]:
    """Return warnings of the scalars that a plan cannot add, and of normalisation layers that the model has."""
    warnings = [
        "Fixup also puts a scalar bias before each layer and activation, and a scalar multiplier into each residual "
        "branch; a plan only draws parameters that the model has, so add them to the model where training needs them"
    ]
    gains = sum(p.role == "gain" for p in prescriptions.values())
    if gains:
        warnings.append(
            f"Fixup is meant for nets without normalisation, and {graph.model} has {gains} normalisation layer(s), "
            "which undo the scale of the weights before them"
        )
    return warnings
