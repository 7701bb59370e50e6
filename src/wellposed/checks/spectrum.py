"""Singular values of the input-output Jacobian of the running model, without forming it.

Products with J and Jᵀ come from automatic differentiation of the traced graph. Lanczos' method turns a few of them into
the moments of the spectrum and its ends (stochastic Lanczos quadrature: Golub & Welsch 1969; Ubaru, Chen & Saad 2017);
the mean squared singular value is Hutchinson's estimate of the trace (1990).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from wellposed import plans
from wellposed.errors import InputError, UnsupportedError
from wellposed.graphs import Graph, graph_of
from wellposed.graphs.run import Interpreter
from wellposed.measuring.batches import Batches, Inputs, stream
from wellposed.options import check_integer
from wellposed.plans import Plan
from wellposed.random_states import seeded
from wellposed.showing import Shown, Summary

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, repr=False)
class JacobianSpectrum(Shown):
    """The squared singular values of the Jacobian of one sample's outputs with respect to its inputs.

    They are the eigenvalues of JᵀJ or of JJᵀ, whichever is smaller: a Jacobian of m outputs and n inputs has min(m, n).

    Attributes:
        values: nodes of the quadrature, ascending: squared singular values.
        weights: their shares of the spectrum; they sum to 1.
        largest: largest singular value, averaged over samples and draws.
        smallest: smallest singular value, likewise; an upper bound where ``exact`` is false.
        mean_square: mean squared singular value.
        mean_square_error: its standard error over samples, draws and probes, taken as independent (NaN for one of
            each); too small where what differs most is the weights, which the samples of one draw share.
        outputs, inputs: elements of one sample.
        count: Jacobians looked at (samples times draws).
        exact: whether Lanczos' method ran to the end, so that the ends of the spectrum are known.
    """

    values: Array
    weights: Array
    largest: float
    smallest: float
    mean_square: float
    mean_square_error: float
    outputs: int
    inputs: int
    count: int
    exact: bool

    def _summary(self) -> Summary:
        """Return the range of singular values and their mean square, in a sentence."""
        bound = "" if self.exact else "at most "
        return Summary(
            f"Spectrum of {self.count} Jacobians of {self.outputs:,} outputs and {self.inputs:,} inputs: singular "
            f"values from {bound}{self.smallest:.3g} to {self.largest:.3g}, mean square {self.mean_square:.3g} ± "
            f"{self.mean_square_error:.2g}"
        )

    @property
    def variance(self) -> float:
        """Variance of the squared singular values, over the square of their mean."""
        mean = float(self.weights @ self.values)
        return float(self.weights @ (self.values - mean) ** 2) / mean**2 if mean > 0 else math.nan

    def percentile(self, percent: float) -> float:
        """Return a percentile of the singular values."""
        reached = np.cumsum(self.weights) >= percent / 100 - 1e-9
        return math.sqrt(self.values[int(reached.argmax())])

    def density(self, points: int = 200, width: float = 0.05) -> tuple[Array, Array]:
        """Return singular values and their density on a logarithmic axis (per octave), smoothed by a Gaussian.

        Args:
            points: length of the two arrays.
            width: standard deviation of the Gaussian, in octaves.

        Raises:
            InputError: every singular value is 0, so that there is nothing to draw.
        """
        seen = self.values > 0
        if not seen.any():
            raise InputError("every singular value is 0 (a readout that starts at 0?): there is no density")
        octaves = 0.5 * np.log2(self.values[seen])
        grid = np.linspace(octaves.min() - 4 * width, octaves.max() + 4 * width, points)
        bumps = np.exp(-0.5 * ((grid[:, None] - octaves) / width) ** 2) / (width * math.sqrt(2 * math.pi))
        return np.asarray(2.0**grid), np.asarray(bumps @ self.weights[seen])


def jacobian_spectrum(
    model: nn.Module | Graph,
    *args: Any,
    plan: Plan | None = None,
    draws: int = 1,
    inputs: Inputs = None,
    probes: int = 4,
    steps: int = 64,
    seed: int = 0,
    training: bool = True,
    **kwargs: Any,
) -> JacobianSpectrum:
    """Return the singular values of the Jacobian of the model's outputs with respect to its inputs.

    The model is only read.

    Samples along the first axis have a Jacobian each, unless they change each other's outputs, as in a batch norm in
    training mode: then the whole batch counts as one. Dropout and other random operators draw once for each draw.
    Products run in float64.

    Args:
        model: the model, or its graph (which was made with ``args``, ``kwargs`` and ``training`` of its own).
        *args: example inputs.
        plan: how the weights are drawn; None takes the model's current weights.
        draws: passes, each with new inputs and, where a plan is given, new weights; >= 1.
        inputs: as for `wellposed.measure`.
        probes: random vectors for each Jacobian that Lanczos' method starts from; >= 1.
        steps: most products with JJᵀ for each of them; >= 2. Where the spectrum has no more values than that, it is
            exact, and one probe finds it.
        seed: of weights, inputs, random operators and probes.
        training: the mode to trace in.
        **kwargs: example inputs by keyword.

    Raises:
        OptionError: ``draws``, ``probes`` or ``steps`` too small.
        InputError: inputs that do not fit the graph, or no floating-point output depends on a floating-point input.
        PlanError: parameters without values (a model on meta) that the plan does not draw.
        UnsupportedError: an operator without second derivatives.
    """
    check_integer(draws=draws, probes=probes)
    check_integer(2, steps=steps)
    graph = graph_of(model, args, kwargs, training)
    own = {name: parameter.tensor.detach() for name, parameter in graph.parameters.items()}
    quadratures: list[_Quadrature] = []
    size = (1, 1)
    for draw, batch in enumerate(Batches(graph, inputs, seed).take(range(draws))):
        parameters = plans.drawn_or_own(own, plan, stream(seed, draw, "weights"), graph.model)
        jacobian = _Jacobian(graph, parameters, batch, stream(seed, draw, "operators"))
        size = (jacobian.outputs, jacobian.inputs)
        generator = torch.Generator().manual_seed(stream(seed, draw, "probes"))
        exact = min(size) <= steps
        quadratures += [_lanczos(jacobian, steps, generator) for _ in range(1 if exact else probes)]
    # the probes of one draw look at the same Jacobians: the best of their bounds
    first = np.stack([q.first for q in quadratures])
    highest = np.stack([q.largest for q in quadratures]).reshape(draws, -1, first.shape[1]).max(axis=1)
    lowest = np.stack([q.smallest for q in quadratures]).reshape(draws, -1, first.shape[1]).min(axis=1)
    values = np.concatenate([q.values for q in quadratures])
    weights = np.concatenate([q.weights for q in quadratures])
    order = np.argsort(values)
    return JacobianSpectrum(
        values=values[order],
        weights=weights[order] / weights.sum(),
        largest=float(np.sqrt(highest).mean()),
        smallest=float(np.sqrt(lowest).mean()),
        mean_square=float(first.mean()),
        mean_square_error=float(first.std(ddof=1) / math.sqrt(first.size)) if first.size > 1 else math.nan,
        outputs=size[0],
        inputs=size[1],
        count=highest.size,
        exact=min(size) <= steps,
    )


class _Jacobian:
    """J and Jᵀ of one pass, for all samples at once: vectors are (samples, elements) in float64."""

    def __init__(self, graph: Graph, parameters: dict[str, Tensor], batch: dict[int, Tensor], seed: int) -> None:
        """Run the graph in double precision and keep Jᵀv as a function of v; samples that affect one another stay
        together.
        """
        self.graph = graph
        with seeded(seed, parameters.values()), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            self.leaves, self.ends = _run_in_double(graph, parameters, batch)
            if not self.ends or not self.leaves:
                raise InputError(
                    f"no floating-point output of {graph.model} depends on a floating-point input: there is no Jacobian"
                )
            if not all(tensor.numel() for tensor in (*self.ends, *self.leaves)):
                raise InputError(f"an input or output of {graph.model} is empty: there is no Jacobian; give an example")
            self.dummies = [torch.zeros_like(end).requires_grad_() for end in self.ends]
            self.pulled = self._differentiated(self.ends, self.leaves, self.dummies, create=True)
        lengths = {t.shape[0] if t.ndim else 1 for t in (*self.ends, *self.leaves)}
        self._divide(lengths.pop() if len(lengths) == 1 else 1)
        if self.samples > 1 and self._coupled(seed):
            self._divide(1)

    def _divide(self, samples: int) -> None:
        """Take the first axis as that many samples, each with a Jacobian of its own."""
        self.samples = samples
        self.outputs, self.inputs = (sum(t.numel() for t in ts) // samples for ts in (self.ends, self.leaves))

    def _coupled(self, seed: int) -> bool:
        """Whether the first sample's inputs change other samples' outputs, or the others' inputs the first one's."""
        generator = torch.Generator().manual_seed(seed)
        vectors = torch.randn(self.samples, self.inputs, generator=generator, dtype=torch.float64)
        first, others = vectors.clone(), vectors.to(self.leaves[0].device)
        first[1:], others[0] = 0.0, 0.0
        return bool(self.product(first.to(others.device))[1:].any() or self.product(others)[0].any())

    def transposed(self, vectors: Tensor) -> Tensor:
        """Return Jᵀ u for (samples, outputs)."""
        return self._joined(self._differentiated(self.ends, self.leaves, self._split(vectors, self.ends)))

    def product(self, vectors: Tensor) -> Tensor:
        """Return J v for (samples, inputs): the derivative of vᵀ Jᵀ u with respect to u."""
        parts = self._split(vectors, self.leaves)
        active = [(p, v) for p, v in zip(self.pulled, parts, strict=True) if p.requires_grad]
        if not active:
            return torch.zeros(self.samples, self.outputs, dtype=torch.float64, device=vectors.device)
        return self._joined(self._differentiated([p for p, _ in active], self.dummies, [v for _, v in active]))

    def _split(self, vectors: Tensor, like: list[Tensor]) -> list[Tensor]:
        widths = [t.numel() // self.samples for t in like]
        return [part.reshape(t.shape) for part, t in zip(vectors.split(widths, dim=1), like, strict=True)]

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return torch.cat([part.detach().reshape(self.samples, -1) for part in parts], dim=1)

    def _differentiated(
        self, of: list[Tensor], by: list[Tensor], along: list[Tensor], create: bool = False
    ) -> list[Tensor]:
        """Return the gradients of ``of`` by ``by`` along ``along``, zeros where nothing depends; raises
        `UnsupportedError`.
        """
        try:
            with torch.enable_grad():
                return list(
                    torch.autograd.grad(
                        of, by, along, retain_graph=True, create_graph=create, allow_unused=True, materialize_grads=True
                    )
                )
        except (RuntimeError, NotImplementedError) as error:
            raise UnsupportedError(
                f"the Jacobian of {self.graph.model} cannot be multiplied with: {error}. An operator lacks the "
                "derivative that this takes"
            ) from error

    def squared(self, vectors: Tensor) -> Tensor:
        """Return JJᵀ u, or JᵀJ v where there are fewer inputs than outputs."""
        if self.outputs < self.inputs:
            return self.product(self.transposed(vectors))
        return self.transposed(self.product(vectors))


def _run_in_double(
    graph: Graph, parameters: Mapping[str, Tensor], batch: Mapping[int, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Run a graph in float64; return its floating-point inputs, and the outputs that depend on them."""
    device = next((t.device for t in parameters.values()), torch.device("cpu"))
    wide = {name: _widened(tensor) for name, tensor in parameters.items()}
    inputs = {value: _widened(tensor).to(device) for value, tensor in {**graph.example, **batch}.items()}
    buffers = {name: _widened(tensor) for name, tensor in graph.buffer_tensors.items()}
    leaves = [t.requires_grad_() for v in graph.inputs if (t := inputs[v]).is_floating_point()]
    results = Interpreter(_in_double(graph), wide, buffers, inputs, None).outputs()
    return leaves, [result for result in dict.fromkeys(results) if result.requires_grad]


def _in_double(graph: Graph) -> Graph:
    """Return a graph that makes and casts to float64 where the model does to another precision."""
    nodes = tuple(
        replace(node, args=_wide(node.args), kwargs={key: _wide(value) for key, value in node.kwargs.items()})
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, known={value: _widened(tensor) for value, tensor in graph.known.items()})


def _wide(argument: Any) -> Any:
    if isinstance(argument, torch.dtype) and argument.is_floating_point:
        return torch.float64
    return type(argument)(map(_wide, argument)) if isinstance(argument, list | tuple) else argument


def _widened(tensor: Tensor) -> Tensor:
    """Return a float64 copy of a floating-point tensor; other tensors as they are."""
    return tensor.detach().to(torch.float64, copy=True) if tensor.is_floating_point() else tensor


@dataclass(frozen=True, slots=True)
class _Quadrature:
    """Nodes and weights of all samples from one probe, and by sample the ends and the first moment."""

    values: Array
    weights: Array
    largest: Array
    smallest: Array
    first: Array


EXHAUSTED = 1e-13
"""Length of a residual, over the largest entry so far, at which a Krylov space is complete."""


def _lanczos(jacobian: _Jacobian, steps: int, generator: torch.Generator) -> _Quadrature:
    """Return the Gauss quadrature of the spectrum from one random vector for each sample, fully reorthogonalised.

    Where the vectors reached from it are exhausted (a spectrum of few distinct values), another one starts anew.
    """
    size = min(jacobian.outputs, jacobian.inputs)
    device = jacobian.leaves[0].device

    def drawn() -> Tensor:
        return torch.randn(jacobian.samples, size, generator=generator, dtype=torch.float64).to(device)

    def apart(vectors: Tensor) -> tuple[Tensor, Tensor]:
        for known in basis:
            vectors = vectors - (vectors * known).sum(dim=1, keepdim=True) * known
        return vectors, vectors.norm(dim=1, keepdim=True)

    basis: list[Tensor] = []
    diagonal, beside = [], []
    image, length = apart(drawn())
    count = min(steps, size)
    for step in range(count):
        image, unit = apart(image / length)  # once more: what is left of a short residual is mostly rounding
        basis.append(image / unit)
        image = jacobian.squared(basis[-1])
        diagonal.append((image * basis[-1]).sum(dim=1))
        image, length = apart(image)
        if step + 1 < count:
            ended = length <= EXHAUSTED * torch.stack(diagonal).abs().max(dim=0).values[:, None]
            beside.append(torch.where(ended, 0.0, length)[:, 0])
            if bool(ended.any()):
                other, other_length = apart(drawn())
                image, length = torch.where(ended, other, image), torch.where(ended, other_length, length)
    matrix = torch.diag_embed(torch.stack(diagonal, dim=1))
    if beside:
        side = torch.diag_embed(torch.stack(beside, dim=1), offset=1)
        matrix = matrix + side + side.transpose(1, 2)
    values, vectors = torch.linalg.eigh(matrix.cpu())
    nodes = values.clamp(min=0.0).numpy()
    weights = vectors[:, 0, :].square().numpy() if count < size else np.full(nodes.shape, 1.0 / size)
    return _Quadrature(nodes.ravel(), weights.ravel(), nodes[:, -1], nodes[:, 0], (nodes * weights).sum(axis=1))
