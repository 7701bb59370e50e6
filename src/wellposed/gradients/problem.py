"""A model and a loss as a function of the parameters: what every score and refinement differentiates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from wellposed.alone import alone
from wellposed.errors import GradientError, RankError
from wellposed.gradients.batches import Batch
from wellposed.gradients.contraction_derivatives import Factors
from wellposed.gradients.guarding import Guard, Overwritten, WrittenTo, copy_attributes_, put_back
from wellposed.gradients.second_derivatives import OwnDerivatives, cheap_second_derivatives
from wellposed.graphs.restore import HeldAttributes, restored_attributes, set_mode_
from wellposed.graphs.tree import batch_copy
from wellposed.graphs.unwrap import compiled_part, unwrap
from wellposed.plans.names import parameters_by_name, unwritable
from wellposed.random_states import restored_random_state
from wellposed.ranks import is_distributed

LossFunction: TypeAlias = Callable[[nn.Module, Any], Tensor]
"""``loss_fn(model, batch)``: one number, the mean loss of a batch of whatever structure."""
Tensors: TypeAlias = dict[str, torch.Tensor]
Mode: TypeAlias = bool | Literal["norms"]
"""Training mode, evaluation mode, or the latter with batch norms that take the statistics of the batch."""

_OWN_DERIVATIVES = ("saved tensor hooks", "forward mode AD")
"""What PyTorch says where a model's own derivatives meet the cheap way to second ones."""


_NON_LEAF = "non-leaf Tensor"
"""What an optimizer says where it is given a tensor that is computed, and a module where one is assigned."""
_ASSIGNED = re.compile(r"Cannot assign non-leaf Tensor to parameter ('.*?')")


class Problem:
    """The loss of a model as a function of its trainable parameters; the model is never changed.

    The user's loss function sees the model itself, with other tensors in the place of its parameters, and copies in the
    place of its buffers and of other tensors that its modules hold: running statistics do not move, and every call
    finds what the first one found. They stay in place until the next call or the end of `running`, as activation
    checkpointing reads them again when gradients are taken. A batch is copied for each call, and so are parameters
    where the forward pass writes to them, which the first call finds out. What else it writes to is put back.

    Attributes:
        parameters: copies of the trainable parameters by name; tied ones once, under their first name.
        training: whether the model is put in training mode.
        seed: of the random numbers (dropout), alike for every call with the same ``part``.
    """

    @alone()
    def __init__(self, model: nn.Module, loss_fn: LossFunction, *, training: Mode = True, seed: int = 0) -> None:
        """See the class.

        Raises:
            GradientError: no parameter requires a gradient, or one is on meta, sharded, lazy, quantised or complex; or
                a module was compiled by ``torch.jit``.
        """
        self.model: nn.Module = unwrap(model)
        if compiled := compiled_part(self.model):  # its parameters cannot be put back
            raise GradientError(compiled)
        self.training = training is True
        self._norms = training == "norms"
        self.seed = seed
        self.parameters: Tensors = {}
        self._frozen: Tensors = {}
        self._writes: bool = False  # whether a pass writes to parameters
        self._watched: bool = False  # whether a pass was watched to its end
        self._overwritten: Overwritten = {}  # by a pass, of memory that is neither a parameter's nor its own
        self._held: HeldAttributes | None = None  # what modules hold as a call begins
        self._cheaply: bool = True  # whether second derivatives are taken the cheap way
        self._loss = loss_fn
        names: dict[int, str] = {}
        for name, parameter in parameters_by_name(self.model).items():
            names.setdefault(id(parameter), name)
        for parameter in self.model.parameters():
            name = names[id(parameter)]
            if not parameter.requires_grad:
                self._frozen[name] = parameter
                continue
            why = "on the meta device" if parameter.is_meta else unwritable(parameter)
            if is_distributed(parameter):
                why = "sharded over ranks (score and refine the model before it is wrapped)"
            if why is not None:
                raise GradientError(f"parameter {name!r} is {why}: no gradient can be taken with respect to it")
            self.parameters[name] = parameter.detach().clone()
        if not self.parameters:
            raise GradientError(
                f"no parameter of {type(self.model).__name__} requires a gradient; unfreeze those to be scored"
            )
        self._buffers: Tensors = dict(self.model.named_buffers())
        self._places: list[tuple[dict[str, Any], str, str]] = []  # registry, key in it, parameter or buffer
        buffers = {id(buffer): path for path, buffer in self._buffers.items()}
        for module in self.model.modules():
            registries: tuple[tuple[dict[str, Any], dict[int, str]], ...]
            registries = ((module._parameters, names), (module._buffers, buffers))
            for registry, known in registries:
                self._places += [(registry, key, known[id(t)]) for key, t in registry.items() if id(t) in known]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Put the model in its mode for the block; afterwards model and random generators are as they were."""
        with restored_attributes(self.model), restored_random_state():
            set_mode_(self.model, self.training)
            if self._norms:
                for module in self.model.modules():
                    if isinstance(module, _NormBase):
                        module.train()
            self._held = HeldAttributes(self.model)
            try:
                yield
            finally:
                put_back(self._overwritten)
                self._held = None

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Let every call begin with what modules hold at the end of the block."""
        if self._held is not None:
            self._held.put_back()
        yield
        self._held = HeldAttributes(self.model)

    def loss(self, parameters: Mapping[str, Tensor], batch: Any, part: int = 0) -> Tensor:
        """Return the loss of ``batch`` with these tensors in the place of the parameters.

        Args:
            parameters: some or all of `parameters`, by name; the others keep their values.
            batch: as the user's loss function takes it.
            part: which random numbers are drawn.

        Raises:
            GradientError: the loss is no scalar tensor, or not finite.
        """
        try:
            return self._finite(parameters, batch, part)
        except WrittenTo:
            self._writes = True
            return self._finite(parameters, batch, part)

    def _finite(self, parameters: Mapping[str, Tensor], batch: Any, part: int) -> Tensor:
        """Return the loss; the first call stops with `WrittenTo` before it writes to a parameter."""
        loss = self._seeded(parameters, batch, part)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise GradientError(
                f"the loss of a batch is {value}; check the batch and the loss function, or start from an "
                "initialisation whose signals stay finite (wellposed.initialize_)"
            )
        return loss

    def _seeded(self, parameters: Mapping[str, Tensor], batch: Any, part: int) -> Tensor:
        """Return the loss unchecked, with the random numbers of ``part``."""

        def run() -> Tensor:
            torch.manual_seed(self.seed * 1_000_003 + part)
            return self._call(parameters, self.fresh_buffers(), batch)

        if self._watched:
            return run()
        guard = Guard([] if self._writes else [*parameters.values(), *self._frozen.values()])
        try:
            with guard:
                loss = run()
        except (WrittenTo, OwnDerivatives):
            raise
        except Exception:  # also operators that no mode may watch: without it they show what is wrong, if anything is
            self._watched = True
        finally:
            self._overwritten = guard.overwritten | self._overwritten
        if self._watched:
            return run()
        self._watched = True
        return loss

    def gradient(
        self,
        parameters: Mapping[str, Tensor],
        batch: Any,
        part: int = 0,
        *,
        differentiable: bool = False,
        factors: Mapping[str, Tensor] | None = None,
    ) -> tuple[float, Tensors]:
        """Return the loss and its gradient with respect to ``parameters``.

        Args:
            parameters: tensors to differentiate with respect to, by name.
            batch: as the user's loss function takes it.
            part: which random numbers are drawn.
            differentiable: keep the graph, so that the gradient can be differentiated again; ``parameters`` must then
                require gradients themselves.
            factors: for a differentiable gradient, scalars of value one by parameter name, through which the scale of
                a weight is to be differentiated in the place of the weight where it is contracted
                (`wellposed.gradients.second_derivatives`); what else is done with it goes on depending on it.

        Raises:
            GradientError: as `loss`; or the loss depends on no parameter.
        """
        while True:  # a pass may both write and take derivatives; each is found out once
            try:
                return self._gradient(parameters, batch, part, differentiable, factors)
            except WrittenTo:
                self._writes = True
            except OwnDerivatives:
                self._cheaply = False
            except ValueError as error:
                if not (differentiable and self._writes and _NON_LEAF in str(error)):
                    raise
                raise GradientError(_without_second_derivative(str(error))) from error
            except RuntimeError as error:  # the model takes derivatives itself, by torch.func or in forward mode
                if not (differentiable and self._cheaply and any(sign in str(error) for sign in _OWN_DERIVATIVES)):
                    raise
                self._cheaply = False

    def _gradient(
        self,
        parameters: Mapping[str, Tensor],
        batch: Any,
        part: int,
        differentiable: bool,
        factors: Mapping[str, Tensor] | None,
    ) -> tuple[float, Tensors]:
        """Return the loss and its gradient; of factored weights the slope comes by their factors (`gradient`)."""
        leaves = dict(parameters) if differentiable else self.leaves(parameters)
        if self._writes or not self._cheaply:  # copies are contracted, or nothing watches contractions
            factors = None
        twins = leaves_of({name: leaves[name] for name in factors or ()})
        factored = {id(leaves[name]): (twin, factors[name]) for name, twin in twins.items()} if factors else {}
        with torch.enable_grad(), self._ways(differentiable, factored) as end:
            loss = self._finite(leaves, batch, part)
            end()
            _check_dependent(loss)
            inputs = [(n, t) for n, t in (*leaves.items(), *twins.items()) if t.requires_grad]  # a pass may freeze some
            parts = _gradients(loss, [tensor for _, tensor in inputs], create_graph=differentiable)
            gradients = _by_name(leaves, [name for name, _ in inputs], parts)
        return float(loss.detach()), gradients

    def _ways(self, differentiable: bool, factored: Factors) -> AbstractContextManager[Callable[[], None]]:
        """Return the block in which the loss is run: one with cheap second derivatives where these are wanted."""
        cheaply = differentiable and self._cheaply
        return cheap_second_derivatives(factored) if cheaply else nullcontext(lambda: None)

    def pure(self, buffers: Mapping[str, Tensor] | None = None) -> Callable[[Mapping[str, Tensor], Any], Tensor]:
        """Return the loss without checks, for `torch.func`: the model's mode and random state are the caller's.

        Args:
            buffers: what stands in for the model's buffers, by the names of `fresh_buffers`.
        """
        given = self._buffers if buffers is None else buffers
        return lambda parameters, batch: self._call(parameters, given, batch)

    def of_sample(self, batch: Batch, buffers: Mapping[str, Tensor], index: int) -> tuple[Tensors, Tensor]:
        """Return the gradients of one sample of ``batch``, keyed by parameter, and its loss; no checks, as `pure`."""
        leaves = self.leaves(self.parameters)
        with torch.enable_grad():
            own = {path: buffer.clone() for path, buffer in buffers.items()}
            loss = self._call(leaves, own, batch.rows(index, index + 1))
            _check_dependent(loss)
            inputs = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
            found = dict(zip(inputs, _gradients(loss, list(inputs.values())), strict=True))
        return {
            name: torch.zeros_like(leaf) if (gradient := found.get(name)) is None else gradient
            for name, leaf in leaves.items()
        }, loss.detach()

    def leaves(self, parameters: Mapping[str, Tensor]) -> Tensors:
        """Return tensors that gradients are taken with respect to; where a pass writes to parameters, its own ones."""
        if self._writes:
            return _Own(leaves_of({name: tensor.clone() for name, tensor in parameters.items()}))
        return leaves_of(parameters)

    def fresh_buffers(self) -> Tensors:
        """Return copies of the model's buffers."""
        return {path: buffer.clone() for path, buffer in self._buffers.items()}

    def put(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor] | None = None) -> None:
        """Put tensors in the place of parameters and buffers, by name; the others stay what they are.

        Before gradients are taken of a loss that is not the last one, as activation checkpointing runs the model again.
        """
        given = {} if buffers is None else buffers
        for registry, key, name in self._places:
            tensor = parameters.get(name, given.get(name))
            if tensor is not None:
                registry[key] = tensor

    def _call(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], batch: Any) -> Tensor:
        """Return the loss of the model with these tensors in place; raises `GradientError` where it is no number."""
        if self._writes:
            given = parameters if isinstance(parameters, _Own) else {n: t.clone() for n, t in parameters.items()}
            parameters = {name: tensor.clone() for name, tensor in self._frozen.items()} | given
            for tensor in parameters.values():
                tensor._is_param = True  # ``self.weight -= ...`` assigns it
        put_back(self._overwritten)
        if self._held is not None:
            self._held.put_back()
            copy_attributes_(self._held)
        self.put(parameters, buffers)
        loss = self._loss(self.model, batch_copy(batch))
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise GradientError(
                f"the loss function returned {got}; it must return one number, a scalar tensor: take the mean over the "
                "batch (for a model that returns an output object, return its .loss)"
            )
        return loss.reshape(())


class _Own(Tensors):
    """Leaves that a pass may write to, as it may hand them to an optimizer, which takes leaves alone."""


def _without_second_derivative(error: str) -> str:
    """Return what a model does to its parameters that cannot be differentiated twice, and what to do."""
    if assigned := _ASSIGNED.search(error):
        name = assigned[1]
        return (
            f"a forward pass assigns to the parameter {name} (as self.weight -= ... does), of which no second "
            "derivative can be taken; change it in place (self.weight.sub_(...) under torch.no_grad()), or take "
            "differences where there is an engine='finite_difference'"
        )
    return (
        "the model gives its parameters to an optimizer in its forward pass, whose steps have no second derivative; "
        "run the forward without them (in evaluation mode), or take differences where there is an "
        "engine='finite_difference'"
    )


def _check_dependent(loss: Tensor) -> None:
    """Raise `GradientError` where a loss has no gradient."""
    if not loss.requires_grad:
        raise GradientError(
            "the loss does not depend on any trainable parameter; the loss function must run the model that it is "
            "given, with gradients enabled"
        )


def _by_name(leaves: Tensors, names: Sequence[str], parts: Sequence[Tensor | None]) -> Tensors:
    """Return the gradient of every leaf: the sum of the parts that have its name, or zeros."""
    gradients: Tensors = {}
    for name, gradient in zip(names, parts, strict=True):
        if gradient is not None:
            gradients[name] = gradients[name] + gradient if name in gradients else gradient
    return {name: gradients[name] if name in gradients else torch.zeros_like(leaf) for name, leaf in leaves.items()}


def _gradients(loss: Tensor, inputs: Sequence[Tensor], *, create_graph: bool = False) -> list[Tensor | None]:
    """Return the gradients of a loss, dense.

    Raises:
        GradientError: an operator of it has no derivative.
    """
    try:
        found = torch.autograd.grad(loss, inputs, create_graph=create_graph, allow_unused=True)
    except NotImplementedError as error:
        if "derivative for" not in str(error):
            raise
        raise GradientError(
            f"the loss cannot be differentiated: {error} Take its input out of the gradient (.detach()) where it is "
            "called, or leave the operator out"
        ) from error
    return [None if gradient is None else dense(gradient) for gradient in found]


def dense(gradient: Tensor) -> Tensor:
    """Return a gradient as a dense tensor: that of an embedding may be sparse."""
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def wide(tensor: Tensor) -> Tensor:
    """Return ``tensor`` in float32 at least: what gradients of any precision are normalised and summed in."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out, on whatever device or rank."""
    kind = error.kind if isinstance(error, RankError) else type(error).__name__
    return kind == torch.OutOfMemoryError.__name__ or "can't allocate memory" in str(error)


def leaves_of(parameters: Mapping[str, Tensor]) -> Tensors:
    """Return tensors of the same memory that gradients can be taken with respect to."""
    return {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
