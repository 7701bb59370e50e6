"""The states of parameters as the model holds them now, and what a pass may ask of any source of such states."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.errors import PlanError
from wellposed.graphs import Graph, Node, Parameter
from wellposed.operators.contraction import Contraction, contractions
from wellposed.operators.scale_parameters import parameter_values, scale_parameters
from wellposed.operators.scale_reading import CompositeScale, ScaleParameter
from wellposed.signals.distributions.state import State, make_state
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


LARGEST = 1 << 14
"""Most values of a parameter that are followed one by one."""
FEW = 64
"""Values up to which they are, whether or not they look like draws of one distribution."""


def state_of_values(tensor: torch.Tensor, root: int, each: bool) -> State:
    """Return the state of a parameter that keeps its values, and that nothing sums over: they are known.

    They are followed by position where ``each`` of them is asked for, they are few, or differ by more than chance (the
    bias of one gate among four, decay rates that grow along an axis), and count as drawn alike elsewhere.
    """
    state = state_of_tensor(tensor, root)
    if tensor.is_complex() or not kernels.nonzero(state.var):
        return state
    values = tensor.detach()
    for axis in range(values.ndim):
        first = values.narrow(axis, 0, 1)
        values = first if bool((values == first).all()) else values
    if values.numel() > LARGEST or not bool(torch.isfinite(values).all()):
        return state
    array = array_of(values)
    if not each and array.size > FEW and array.size == tensor.numel() and _alike(array):
        return state
    array = array.reshape([n for n, size in zip(array.shape, tensor.shape, strict=True) if size > 1])
    return state.with_moments(mean=array, var=np.zeros((1,) * array.ndim), roots=0)


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
    """The states of a graph's parameters as the model holds them now.

    A parameter on meta that the model cannot make again has no values. It counts as what leaves the signal as it is
    (gains and factors as 1, shifts and biases as 0), or else as N(0, 0.02²), tagged *assumed*.

    Attributes:
        assumed: what was assumed, by the names of parameters and buffers.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.scale_parameters: dict[int, ScaleParameter] = scale_parameters(graph)
        self.composites: dict[str, CompositeScale] = {}
        self.fixed: frozenset[int] = parameter_values(graph)
        self.uses: tuple[Contraction, ...] = contractions(graph, self.scale_parameters)
        self.weight_at: dict[int, int] = {use.node: use.weight for use in self.uses}
        self.roles: dict[str, Role] = roles(graph, self.uses, self.scale_parameters)
        self.same = Same(graph, self.fixed)
        self.repeated: frozenset[int] = repeated(graph, self.uses, self.same)
        self.assumed: dict[str, str] = {}

    def state(self, parameter: Parameter, root: int) -> State:
        """Return the state of a parameter."""
        held, role = parameter.values, self.roles[parameter.name]
        if held is None:
            value = self._assume(parameter)
            if value is None:
                return make_state(parameter.shape, 0.0, 4e-4, roots=root, tag="assumed")
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
            return 0.02 * normal if value is None else torch.full_like(normal, value)
        return float(held.mean()) + float(held.std(correction=0)) * normal

    def _assume(self, parameter: Parameter) -> float | None:
        """Return the value that all elements are assumed to have, None for N(0, 0.02²); what it is, is noted."""
        value = self._neutral(parameter)
        self.assumed[parameter.name] = "N(0, 0.02²)" if value is None else f"{value:g}"
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

    def choose(self, name: str, node: Node, incoming: float, before: float, unit: float) -> float:
        """Return the scale of a parameter whose state is still without one."""
        raise PlanError(f"{node.name}: the scale of {name!r} has not been chosen")

    def known_scale(self, name: str) -> float | None:
        """Return the scale that was chosen for a parameter earlier in the pass."""
        return None

    def is_open(self, name: str) -> bool:
        """Whether a parameter's state is of unit scale, until one is chosen."""
        return False

    def defers(self, node: Node) -> bool:
        """Whether no scale is chosen at a node: it makes a weight of another, or acts on a spectrum that leads back."""
        return False

    def defer(self, key: str, node: Node) -> None:
        """Note that the scale of a weight, by its scale parameter, is not chosen at a node."""

    def meet(self, key: str, state: Callable[[int], State | None], result: State) -> State:
        """Return the state of what several parameters make together, with the scale that it has or is to be given."""
        return result

    def arrived(self, node: Node, result: State) -> State:
        """Return what an inverse transform leads to, once the weights that act on its spectrum have their scale."""
        return result

    def decided(self, name: str) -> float | None:
        """Return the scale that a parameter has been given so far."""
        return None

    def centres(self, bias: str, mean: float) -> bool:
        """Whether a bias cancels what the incoming signal's mean makes of the weight's row sums (AutoInit++)."""
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
