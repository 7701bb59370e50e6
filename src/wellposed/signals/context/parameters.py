"""The states of parameters as the model holds them now, and the questions that a pass asks of any provider of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.graphs import Graph, Node, Parameter
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.scale_parameters import parameter_values, scale_parameters
from wellposed.operators.scale_reading import ScaleParameter
from wellposed.signals.context.corrections import Corrections
from wellposed.signals.distributions.making import make_state
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.structure.neutral import neutral_value
from wellposed.structure.repeated import Same, repeated
from wellposed.structure.roles import Role, roles


def state_of_tensor(tensor: torch.Tensor, root: int, shape: tuple[int, ...] | None = None) -> State:
    """Return the state of a tensor with known values, as if its elements were drawn alike.

    ``shape`` is the tensor's, where ``tensor`` is a sample of its elements.
    """
    values = tensor.detach()
    shape = tuple(values.shape) if shape is None else shape
    if values.numel() == 0:
        return make_state(shape, 0.0, 0.0)
    if values.numel() > 1 and not values.is_complex():
        low, high = torch.aminmax(values)
        if bool(low == high):
            return make_state(shape, float(low), 0.0)
    if values.is_complex():
        level, second = float(values.real.double().mean()), float(values.abs().double().square().mean())
        return make_state(shape, level, max(second - level * level, 0.0), roots=root, gauss=False)
    var, mean = torch.var_mean(values.to(torch.float64) if values.numel() < 1 << 20 else values.float(), correction=0)
    return make_state(shape, float(mean), float(var), roots=root, gauss=False)


ASSUMED_STD = 0.02
"""Standard deviation of a parameter without values that is no gain, bias or factor. Chosen: language models draw so."""
LARGEST_FOLLOWED = 1 << 14
"""Most values of a parameter that are followed one by one. Chosen for cost."""
FEW_VALUES = 64
"""Most values of a parameter that are followed so although they look like draws of one distribution. Chosen."""


def state_of_values(tensor: torch.Tensor, root: int, each: bool) -> State:
    """Return the state of a parameter that keeps its values, which are known, and over which nothing sums.

    They are followed by position where ``each`` of them is asked for, where they are few, and where they differ by more
    than chance (the bias of one gate among four, decay rates that grow along an axis). Others count as drawn alike.
    """
    state = state_of_tensor(tensor, root)
    if tensor.is_complex() or not kernels.nonzero(state.var):
        return state
    values = told_apart(tensor.detach())
    if values.numel() > LARGEST_FOLLOWED or not bool(torch.isfinite(values).all()):
        return state
    array = array_of(values)
    if not each and array.size > FEW_VALUES and array.size == tensor.numel() and _alike(array):
        return state
    return by_position(state, array)


def by_position(state: State, values: Array) -> State:
    """Return the state of known ``values``, of the state's axes, or of length 1 where all of an axis are alike."""
    array = values.reshape([n for n, size in zip(values.shape, state.shape, strict=True) if size > 1])
    return state.with_moments(mean=array, var=np.zeros((1,) * array.ndim), roots=0)


def told_apart(values: torch.Tensor) -> torch.Tensor:
    """Return a tensor with one position alone of each axis along which all its elements are alike."""
    for axis, size in enumerate(values.shape):
        first = values.narrow(axis, 0, 1)
        ends_alike = size > 1 and torch.equal(first, values.narrow(axis, size - 1, 1))
        if ends_alike and bool((values == first).all()):
            values = first
    return values


def _alike(values: Array) -> bool:
    """Whether values look like draws of one distribution: alike along every axis, and unlike their neighbours.

    Means of parts of an axis and of their squares are compared with those of independent draws (chi-squared, and the
    lag-one autocorrelation, both at six standard deviations).
    """
    for power in (values, values**2):
        unit = (power - power.mean()) / max(float(power.std()), 1e-300)
        for axis, size in enumerate(unit.shape):
            ahead = np.moveaxis(unit, axis, 0)
            parts = np.array([part.mean() for part in np.array_split(ahead, min(size, 8))])
            excess = float((parts**2).sum()) * unit.size / len(parts) - len(parts)
            if excess > 6.0 * math.sqrt(2.0 * len(parts)):
                return False
            if size > 1 and abs(float((ahead[1:] * ahead[:-1]).mean())) > 6.0 / math.sqrt(unit.size):
                return False
    return True


class Weights:
    """The states of a graph's parameters as the model holds them now; the questions that a pass asks of any provider.

    A parameter on meta that the model cannot make again has no values. It counts as what leaves the signal as it is
    (gains and factors as 1, shifts and biases as 0), or else as N(0, 0.02²), tagged *assumed*.

    **The life of a scale.** A provider that chooses scales (`PlannedWeights`) decides every one of them at the node
    where a signal meets the weight. Rules ask for states and choose nothing. Here every scale is known from the start.

    1. *Open*: `state` gives a parameter unit scale and names it as its own ``scale_parameter``. The pass asks `marked`
       for every result, so that what is linear in an open scale carries its name; a weight that several parameters make
       has one scale, under a name of its own.
    2. *Met*: a rule asks `met` for the weight's state at its node. The provider chooses the scale there.
    3. *Postponed*: where the output is a weight itself, `met` leaves the scale open until that weight is met; where it
       is a spectrum, until the pass, which asks `led_back` for every result, comes to where the spectrum leads back.
    4. *Shared out*: the scale of what several parameters make is shared out among them as soon as it is chosen.
    5. *Known*: `known_scale` tells it from then on, and the pass puts it in wherever an open state is read.

    Attributes:
        assumed: what was assumed, by the names of parameters and buffers.
        corrections: what real passes showed of values whose rules they contradict; None where none were made.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.scale_parameters: dict[int, ScaleParameter] = scale_parameters(graph)
        self.fixed: frozenset[int] = parameter_values(graph)
        self.uses: tuple[Contraction, ...] = contractions(graph, self.scale_parameters)
        self.weight_at: dict[int, int] = {use.node: use.weight for use in self.uses}
        self.roles: dict[str, Role] = roles(graph, self.uses, self.scale_parameters)
        self.same = Same(graph, self.fixed)
        self.repeated: frozenset[int] = repeated(graph, self.uses, self.same)
        self.assumed: dict[str, str] = {}
        self.corrections: Corrections | None = None

    def state(self, parameter: Parameter, root: int) -> State:
        """Return the state of a parameter."""
        held, role = parameter.values, self.roles[parameter.name]
        if held is None:
            value = self._assume(parameter)
            if value is None:
                return make_state(parameter.shape, 0.0, ASSUMED_STD**2, roots=root, tag="assumed")
            return make_state(parameter.shape, value, 0.0, tag="assumed")
        summed = role in ("weight", "embedding") or (role == "recurrent" and len(parameter.shape) > 1)
        if summed or held.shape != parameter.shape:  # of a large tensor on meta, a sample
            return state_of_tensor(held, root, parameter.shape)
        # what is used for itself, one number for a channel, is followed by position: step sizes, rates of decay
        return state_of_values(held, root, role == "other" and len(parameter.shape) == 1)

    def values(self, parameter: Parameter, drawn: bool) -> torch.Tensor | None:
        """Return the numbers of a parameter: those that it keeps, or with ``drawn`` one draw of those that it gets."""
        held = parameter.values
        if held is not None and held.shape == parameter.shape:
            return held.detach().cpu()
        if not drawn or len(parameter.shape) < 2:
            return None
        normal = unit_draw(parameter)
        if held is None:
            value = self._assume(parameter)
            return ASSUMED_STD * normal if value is None else torch.full_like(normal, value)
        return float(held.mean()) + float(held.std(correction=0)) * normal

    def _assume(self, parameter: Parameter) -> float | None:
        """Return the value that all elements are assumed to have, None for N(0, 0.02²); `assumed` notes it."""
        value = self._neutral(parameter)
        self.assumed[parameter.name] = f"N(0, {ASSUMED_STD:g}²)" if value is None else f"{value:g}"
        return value

    def _neutral(self, parameter: Parameter) -> float | None:
        """Return the value with which a parameter leaves the signal as it is, where there is one."""
        role = self.roles[parameter.name]
        if role in ("gain", "weight_norm"):
            return 1.0
        if role in ("shift", "bias"):
            return 0.0
        value = neutral_value(self.graph, parameter, self.fixed) if role == "other" else None
        return 1.0 if value is None and role == "other" and len(parameter.shape) <= 1 else value

    # ---- the life of a scale: asked by passes and rules, decided here ------------------------------------------------

    def marked(self, value: int, result: State, operand: Callable[[int], State | None]) -> State:
        """Return the state of a node's result, with the name of the scale that is still open in it, if any.

        Args:
            value: the result.
            result: its state, for operands at the scales that they have so far.
            operand: the states of the node's operands, by value.
        """
        return result

    def known_scale(self, name: str, *, settled: bool = True) -> float | None:
        """Return the scale that was chosen earlier in the pass; None of an open one.

        The scale of a weight that met zeros first is ``settled`` at no node: every contraction asks for it again.
        """
        return None

    def met(self, weight: State, node: Node, incoming: float, before: float, heavy: bool = False) -> State:
        """Return the state of a weight where a signal meets it: at its scale, which is chosen here where it is open.

        Args:
            weight: its state, of unit scale where that is open.
            node: where they meet.
            incoming: the sum of the signal's second moments over all elements that meet in one element of the output.
            before: the second moment of one element of the signal.
            heavy: whether no expectation of the signal means anything.
        """
        return weight

    def passes_no_mean(self, value: int) -> bool:
        """Whether the elements of a weight that one output sums add up to 0 in every draw."""
        return False

    def note_function(self, node: Node, data: State, centred: bool) -> None:
        """Note the signal that meets a weight at a node, and whether its mean is cancelled there."""

    def led_back(self, node: Node, result: State) -> State:
        """Return the state of a node's result, once the postponed scales that it decides are chosen."""
        return result

    def centres(self, bias: str, mean: float) -> bool:
        """Whether a bias cancels the output's mean, which the row sums of the weight make of ``mean`` (AutoInit++)."""
        return False


def unit_draw(parameter: Parameter, distribution: str = "normal") -> torch.Tensor:
    """Return one draw of unit variance."""
    generator, dtype = torch.Generator().manual_seed(parameter.value), parameter.tensor.dtype
    if dtype.is_complex:
        return torch.randn(parameter.shape, generator=generator, dtype=dtype)
    if distribution == "uniform":
        return math.sqrt(3.0) * (2.0 * torch.rand(parameter.shape, generator=generator) - 1.0).to(dtype)
    if distribution == "truncated_normal":
        drawn = torch.nn.init.trunc_normal_(torch.empty(parameter.shape), generator=generator)
        return (drawn / drawn.std()).to(dtype)
    return torch.randn(parameter.shape, generator=generator).to(dtype)
