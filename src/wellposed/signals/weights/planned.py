"""Scales of weights that are chosen while a pass runs, so that outputs have the wanted second moment."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Literal

import torch

from wellposed.arrays import only_number
from wellposed.errors import PlanError
from wellposed.graphs import Graph, Node, Parameter
from wellposed.operators.contraction import Contraction
from wellposed.operators.spectral import inverse_after
from wellposed.signals.context.parameters import Weights, unit_draw
from wellposed.signals.distributions.functions import Pointwise
from wellposed.signals.distributions.making import make_state, rescaled
from wellposed.signals.distributions.state import State
from wellposed.signals.integration.transport import of_draws
from wellposed.signals.weights.composite_scales import CompositeScales
from wellposed.signals.weights.decisions import Decision, Uses
from wellposed.signals.weights.trust import Doubt, why_not
from wellposed.structure.reach import derivatives
from wellposed.structure.tables import rows_drawn, tables


def _own_level(parameter: Parameter) -> float:
    """Return the number that all elements of a parameter are, or 1."""
    if parameter.values is None or not parameter.values.numel():
        return 1.0
    low, high = torch.aminmax(parameter.values.detach())
    return float(low) if bool(low == high) else 1.0


class PlannedWeights(Weights):
    """Weights whose scales are chosen during a pass: each contraction's output gets mean 0 and the target second
    moment.

    Source: AutoInit (arXiv 2109.08958), Algorithm 1 and Appendix A: Var(W) = ν / Σ E x².

    Attributes:
        decisions: what was chosen, by parameter name.
        again: the uses of weights that meet signals several times.
        shares: by parameter name, the mean output second moment over all uses, relative to the first; 1 unless given.
        centred: by bias, the mean that it cancels.
        doubts: weights whose signal was not trusted to choose the scale; they have that of fan-in.
        functions: by node that a function of a Gaussian enters, the function, the Gaussian's standard deviation, and
            whether its mean is cancelled.
        unmet: weights that met zeros first, with the first such node.
        scales: given scales, by parameter name; the others are chosen. A visitor may add to them during the pass.
        targets: factors on the target variance, by the value that a contraction makes; 1 for others.
        rows: factors on the target variance of a table's rows, by parameter name; 1 for others.
        biases: standard deviations of biases that are drawn, by parameter name; the others are 0.
    """

    def __init__(
        self,
        graph: Graph,
        target: float = 1.0,
        *,
        center: bool = False,
        write_zeros: bool = False,
        zero_signal: Literal["error", "fan_in"] = "fan_in",
        kept: Collection[str] = (),
        scales: Mapping[str, float] | None = None,
        targets: Mapping[int, float] | None = None,
        rows: Mapping[str, float] | None = None,
        biases: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__(graph)
        self.target = target
        self.targets: Mapping[int, float] = targets or {}
        self.rows: Mapping[str, float] = rows or {}
        self.biases: Mapping[str, float] = biases or {}
        self.scales: dict[str, float] = dict(scales or {})
        self.center = center
        self.zero_signal = zero_signal
        self.kept: frozenset[str] = frozenset(kept)
        self.centred: dict[str, float] = {}
        self.doubts: dict[str, Doubt] = {}
        self.functions: dict[int, tuple[Pointwise, float, bool]] = {}
        self.unmet: dict[str, int] = {}
        self.gains: dict[str, float] = {
            name: _own_level(graph.parameters[name]) for name, role in self.roles.items() if role == "gain"
        }
        self.decisions: dict[str, Decision] = {}
        self.shares: dict[str, float] = {}
        self.contractions: dict[str, list[Contraction]] = {}
        for contraction in self.uses:
            if contraction.parameter is not None:
                self.contractions.setdefault(contraction.parameter, []).append(contraction)
        self.again = Uses(self.decisions, self.unmet, self.contractions, derivatives(graph))
        self.composite = CompositeScales(graph, self.fixed, self.uses, self.roles, self.kept)
        self.scale_parameters |= self.composite.scale_parameters
        self.spectra = self._met_by_spectra()
        self.postponed: dict[int, list[str]] = {}
        self.zero_kept: set[str] = (
            set() if write_zeros else {n for n, p in graph.parameters.items() if self._is_zero(p)}
        )

    def _met_by_spectra(self) -> dict[int, int]:
        """Return the nodes that contract spectra, each with the node that transforms its result back."""
        graph, found = self.graph, dict[int, int]()
        spectral = [u for u in self.uses if u.data not in self.fixed and graph.values[u.data].dtype.is_complex]
        users = graph.users() if spectral else {}
        for use in spectral:
            inverse = inverse_after(graph, graph.nodes[use.node].outputs[0], users)
            if inverse is not None:
                found[use.node] = inverse.index
        return found

    def _is_zero(self, parameter: Parameter) -> bool:
        """Whether a parameter that would be drawn holds zeros alone."""
        drawn = self.roles[parameter.name] in ("weight", "embedding", "weight_norm")
        if parameter.values is None or not (drawn or parameter.name in self.composite.leaves):
            return False
        return only_number(parameter.values) == 0

    def state(self, parameter: Parameter, root: int) -> State:
        """Return the state of a parameter."""
        role = self.roles[parameter.name]
        name = parameter.name
        if name in self.kept:
            return super().state(parameter, root)
        if name in self.zero_kept:
            return make_state(parameter.shape, 0.0, 0.0)
        if role == "other" and name in self.composite.leaves:
            return make_state(parameter.shape, 0.0, 1.0, roots=root, gauss=True, scale_parameter=name)
        if role in ("weight", "embedding") and any(u.kind == "embedding" for u in self.contractions.get(name, ())):
            return self._table(parameter, root)
        if role == "weight":
            return make_state(parameter.shape, 0.0, 1.0, roots=root, gauss=True, scale_parameter=name)
        if role == "weight_norm":
            return make_state(parameter.shape, 1.0, 0.0, scale_parameter=name)
        if role in ("bias", "shift"):
            return self._bias(parameter, root)
        if role == "gain":
            return make_state(parameter.shape, self.gain(parameter), 0.0)
        if role == "recurrent" and name in self.decisions:
            return make_state(parameter.shape, 0.0, self.decisions[name].scale ** 2, roots=root, gauss=True)
        return super().state(parameter, root)

    def _bias(self, parameter: Parameter, root: int) -> State:
        """Return the state of a bias, 0 or drawn as the model draws it."""
        std = self.biases.get(parameter.name, 0.0)
        if not std:
            return make_state(parameter.shape, 0.0, 0.0)
        return make_state(parameter.shape, 0.0, std**2, roots=root).amended(transport=of_draws("uniform"))

    def _table(self, parameter: Parameter, root: int) -> State:
        """Return the state of a table that is looked up, and record its scale; for a table that also scores (a tied
        readout) the scale that scoring chooses, given normalised features.
        """
        name, uses = parameter.name, self.contractions[parameter.name]
        scoring = next((use for use in uses if use.kind != "embedding"), None)
        if scoring is not None:
            scale, share = self._scale_of_scoring(name) or 1.0, 1.0
            decision = Decision(name, scoring.node, scale, float(scoring.fan_in), 1.0, self.target)
        else:
            scale, share = self._scale_of_table(name), self._share_drawn(name)
            decision = Decision(name, uses[0].node, scale, 1.0, 1.0, scale**2)
        self.decisions.setdefault(name, decision)
        return make_state(parameter.shape, 0.0, scale**2 * share, roots=root, gauss=True)

    def _share_drawn(self, table: str) -> float:
        """Return the share of a table's rows that are not for padding."""
        rows = rows_drawn(self.graph).get(table)
        return 1.0 if rows is None else sum(end - first for first, end in rows) / self.graph.parameters[table].shape[0]

    def _scale_of_scoring(self, name: str) -> float | None:
        """Return the scale of a weight that is looked up as a table and scores as well; None for any other."""
        uses = self.contractions.get(name, [])
        if self.roles[name] != "weight" or all(use.kind != "embedding" for use in uses):
            return None
        return self.scales.get(name) or math.sqrt(self.target / next(u.fan_in for u in uses if u.kind != "embedding"))

    def _scale_of_table(self, name: str) -> float:
        """Return the scale with which a table's rows, times the factors behind them, have the target variance.

        Rows that are added to those of a table whose scale is decided elsewhere, since it scores or is kept, have the
        variance of these: positions of a fan-in times the tokens' variance would hide the tokens.
        """
        factors, leader = tables(self.graph).factors, self.leader_of(name)
        if leader is None:
            return math.sqrt(self.target * self.rows.get(name, 1.0)) / factors[name]
        return (self._leading(leader) or 1.0) * factors[leader] / factors[name]

    def leader_of(self, table: str) -> str | None:
        """Return the first of the tables added to this one whose scale it follows; None where it follows none."""
        return next((one for one in tables(self.graph).added.get(table, ()) if self._leading(one) is not None), None)

    def _leading(self, table: str) -> float | None:
        """Return the scale of a table whose scale is not chosen for its rows, since it is kept or scores too."""
        if table in self.kept:
            held = self.graph.parameters[table].values
            level = 0.0 if held is None or not held.numel() else float(held.detach().double().square().mean() ** 0.5)
            return level or None
        return None if table in self.zero_kept else self._scale_of_scoring(table)

    def values(self, parameter: Parameter, drawn: bool) -> torch.Tensor | None:
        """Return the numbers of a parameter that keeps them; None of those whose scale is chosen on the way."""
        role = self.roles[parameter.name]
        if parameter.name in self.kept:
            return super().values(parameter, drawn)
        if parameter.name in self.zero_kept or (role in ("bias", "shift") and parameter.name not in self.biases):
            return torch.zeros(parameter.shape, dtype=parameter.tensor.dtype)
        if role == "gain":
            return torch.full(parameter.shape, self.gain(parameter), dtype=parameter.tensor.dtype)
        if self._is_drawn(parameter.name):
            return unit_draw(parameter) if drawn and role != "weight_norm" else None
        if role == "recurrent" and parameter.name in self.decisions:
            return unit_draw(parameter) * self.decisions[parameter.name].scale if drawn else None
        if parameter.name in self.biases:
            return unit_draw(parameter, "uniform") * self.biases[parameter.name] if drawn else None
        return super().values(parameter, drawn) if role in ("other", "recurrent") else None

    def gain(self, parameter: Parameter) -> float:
        """Return a norm gain's own constant (0 in a zero-initialised residual branch), or 1."""
        return self.gains.get(parameter.name, 1.0)

    def centres(self, bias: str, mean: float) -> bool:
        """Record the mean that a bias is to cancel; only where ``center`` asks for it and there is a mean."""
        if not self.center or mean == 0.0 or bias not in self.roles or bias in self.kept or self.roles[bias] != "bias":
            return False
        return self.centred.setdefault(bias, mean) == mean

    def passes_no_mean(self, value: int) -> bool:
        """Whether the elements of a weight that one output sums add up to 0: where ``center`` asks for it, and they
        are drawn.
        """
        found = self.scale_parameters.get(value)
        return self.center and found is not None and self.roles.get(found.parameter) == "weight"

    def note_function(self, node: Node, data: State, centred: bool) -> None:
        """Note the function of a Gaussian of mean 0 that meets a weight, and whether its mean is cancelled."""
        if data.function is not None and data.tag != "heavy":
            base, fn = data.function
            self.functions[node.index] = fn, math.sqrt(base.second_moment), centred

    def enter(self, name: str, node: Node, fan_in: int, before: float, heavy: bool) -> None:
        """Choose the scale of a weight that takes the input of a recurrent layer, of second moment ``before``."""
        if name in self.decisions or name in self.kept or name in self.zero_kept:
            return
        doubt = why_not(before, fan_in * before, heavy)
        if doubt and name not in self.scales:
            self.doubts[name], before = Doubt(node.index, doubt), 1.0
        scale = self.scales.get(name, math.sqrt(self.target / (fan_in * before)))
        after = fan_in * before * scale**2
        self.decisions[name] = Decision(name, node.index, scale, fan_in * before, before, after)

    # ---- the life of a scale (`Weights`) -----------------------------------------------------------------------------

    def _is_drawn(self, name: str) -> bool:
        """Whether a parameter's state is of unit scale, until one is chosen."""
        drawn = self.roles.get(name) in ("weight", "weight_norm") or name in self.composite.leaves
        return drawn and name not in self.kept and name not in self.zero_kept

    def marked(self, value: int, result: State, operand: Callable[[int], State | None]) -> State:
        """Return the state of a node's result, with the name of the scale that is still open in it, if any."""
        scale_parameter = self.scale_parameters.get(value)
        name = None if scale_parameter is None else scale_parameter.parameter
        if name is not None:
            composite = self.composite.composites.get(name)
            if composite is not None and composite.value == value:
                return self.composite.meet(composite, name, operand, result)
            is_open = self._is_drawn(name) or name in self.composite.open
            name = name if is_open and self.known_scale(name) is None else None
        return result if result.scale_parameter == name else result.amended(scale_parameter=name)

    def known_scale(self, name: str, *, settled: bool = True) -> float | None:
        """Return the scale chosen earlier in the pass; of a weight that met zeros first, only if not ``settled``."""
        if name in self.composite.composites:
            return self.composite.effective.get(name)
        if name not in self.decisions or (settled and name in self.unmet):
            return None
        return self.decisions[name].scale

    def met(self, weight: State, node: Node, incoming: float, before: float, heavy: bool = False) -> State:
        """Return the state of a weight where a signal meets it, at the scale that `choose` gives it: of a signal that
        is not to be trusted (`trust.why_not`), as if it had second moment 1.

        At nodes that make a weight of another one, or part of a spectrum, the scale stays open.
        """
        name, doubt = weight.scale_parameter, why_not(before, incoming, heavy)
        if name is None:
            if not doubt:
                self.again.record(node.index, incoming, before, weight.second_moment)
            return weight
        if node.index in self.spectra and self.known_scale(name) is None:
            self.postponed.setdefault(self.spectra[node.index], []).append(name)
        if node.index in self.spectra or node.index in self.composite.deferred:
            return weight
        if not doubt:
            return rescaled(weight, self.choose(name, node, incoming, before, weight.second_moment))
        settled = self.decisions.keys() - self.unmet.keys() | self.scales.keys()
        fan_in = next((use.fan_in for use in self.uses if use.node == node.index), 1)
        scale = self.choose(name, node, fan_in / weight.second_moment, 1.0, weight.second_moment)
        self.doubts |= dict.fromkeys(self.decisions.keys() - settled, Doubt(node.index, doubt))
        return rescaled(weight, scale)

    def led_back(self, node: Node, result: State) -> State:
        """Choose the scales of weights that act on a spectrum: what this leads back to gets the target variance."""
        keys = self.postponed.pop(node.index, ())
        if not keys or not 0.0 < (second := result.second_moment) < math.inf:
            return result
        scale = 1.0
        for key in dict.fromkeys(keys):
            leaves = self.composite.open[key].composite.members if key in self.composite.open else (key,)
            self.composite.words.update(dict.fromkeys(leaves, f"of what {node.name} makes of the spectrum"))
            scale = self.choose(key, node, second, second, 1.0)
        return result.changed(mean=result.mean * scale, var=result.var * scale**2)

    def aim(self, node: Node) -> float:
        """Return the target second moment of a contraction's output."""
        return self.target * self.targets.get(node.outputs[0], 1.0)

    def choose(self, name: str, node: Node, incoming: float, before: float, unit: float) -> float:
        """Choose the scale that brings ``incoming * unit * scale²`` to the target; a tensor's first use decides, by the
        share that it has in all uses (`shares`).
        """
        total = incoming * unit
        if name in self.composite.open:
            return self._choose_composite(name, node, incoming, before, unit)
        if name in self.unmet and 0.0 < total < math.inf:
            return self._met_later(name, node, incoming, before, total)
        if name in self.decisions:
            return self.decisions[name].scale
        if name in self.scales and total > 0.0:
            scale = self.scales[name]
            self.decisions[name] = Decision(name, node.index, scale, incoming, before, total * scale**2)
            return scale
        if not self._meets_signal(node, f"weight {name!r}", total, before):
            self.unmet[name] = node.index
            use = next((u for u in self.contractions.get(name, ()) if u.node == node.index), None)
            total, before = float(use.fan_in if use is not None else 1), 0.0
            incoming = total
        scale = self.scales.get(name, math.sqrt(self.aim(node) / (total * self.shares.get(name, 1.0))))
        self.decisions[name] = Decision(name, node.index, scale, incoming, before, total * scale**2)
        return scale

    def _meets_signal(self, node: Node, weight: str, total: float, before: float) -> bool:
        """Whether a weight meets a signal, of second moment ``before``, and no zeros: ``total`` is that of its output.

        Raises:
            PlanError: the signal is 0, and ``zero_signal`` asks for an error.
        """
        if total <= 0.0 and self.zero_signal == "error":
            raise PlanError(
                f"{node.name}: the signal that meets {weight} is 0 (second moment {before:g}), so no scale of the "
                "weight can bring its output to the target. A zero or a gate at zero comes before it: give the gate a "
                "value, leave the weight out with skip=, or take 1/fan-in for it with zero_signal='fan_in'"
            )
        return total > 0.0

    def _met_later(self, name: str, node: Node, incoming: float, before: float, total: float) -> float:
        """Return the scale of a weight that met zeros first (the state of a loop): its first signal decides.

        The decision names what it meets last, which `settling` compares.
        """
        new = self.waits(name)
        scale = self.scales.get(name, math.sqrt(self.aim(node) / total)) if new else self.decisions[name].scale
        self.decisions[name] = Decision(name, node.index, scale, incoming, before, total * scale**2)
        self.again.record_later(self.decisions[name])
        return scale

    def _choose_composite(self, key: str, node: Node, incoming: float, before: float, unit: float) -> float:
        """Choose the scale of a weight that several parameters make."""
        if key in self.composite.effective:
            return self.composite.effective[key]
        made_at = self.graph.values[self.composite.composites[key].value].name
        met = self._meets_signal(node, f"the weight made at {made_at}", incoming * unit, before)
        if not met:
            incoming, before = float(next(use.fan_in for use in self.uses if use.node == node.index)), 0.0
        given: dict[str, float] = {}

        def give(name: str, scale: float) -> float:
            return given.setdefault(name, self.scales.get(name, scale))

        effective = self.composite.choose(key, math.sqrt(self.aim(node) / (incoming * unit)), give)
        for name, scale in given.items():
            after = incoming * unit * effective**2
            self.decisions[name] = Decision(name, node.index, scale, incoming, before, after)
            if not met:
                self.unmet[name] = node.index
        return effective

    def settling(self) -> dict[str, float]:
        """Return the scales with which the outputs of weights in loops, for the loop's last state, meet the target.

        They are those of the weights that met zeros first and a signal later. A state follows from its weight's scale,
        so that a pass with these scales given may ask for others.
        """
        met = {name: self.decisions[name] for name in self.unmet if not self.waits(name)}
        nodes = self.graph.nodes
        return {name: one.scale * math.sqrt(self.aim(nodes[one.node]) / one.after) for name, one in met.items()}

    def waits(self, name: str) -> bool:
        """Whether a weight has met only zeros so far."""
        return name in self.unmet and self.decisions[name].before == 0.0
