"""The masks and biases that the fused operator of attention is given.

Source: signals.md 5.8.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch

from wellposed.arrays import array_of
from wellposed.graphs import Ref
from wellposed.signals.algebra.softmax import off_diagonal, variance_of
from wellposed.signals.context.arguments import MASKED
from wellposed.signals.context.call import Call, Unknown
from wellposed.signals.distributions.state import State
from wellposed.signals.integration import kernels
from wellposed.signals.integration.kernels import Array
from wellposed.signals.rules.attention.shares import LARGEST_EVEN, over_samples
from wellposed.signals.sampling.samples import outside


def _value(call: Call) -> int | None:
    """Return the value id of the mask or bias."""
    raw = call.node.args[3] if len(call.node.args) > 3 else call.node.kwargs.get("attn_mask")
    return raw.value if isinstance(raw, Ref) else None


def mask_of(call: Call, given: Any) -> tuple[torch.Tensor | None, float]:
    """Return where keys are let through, or the frequency with which they are if signals decide, and the variance of an
    added bias.
    """
    value = _value(call)
    if value is None:
        return None, 0.0
    known = call.graph.known.get(value)
    if known is not None:
        return (known, 0.0) if known.dtype == torch.bool else _of_bias(known)
    drawn = call.run.draws.get(value)
    if drawn is not None:
        masks = torch.stack(drawn).double()
        if drawn[0].dtype == torch.bool:
            return masks.mean(dim=0), 0.0
        through = masks > MASKED
        added = masks[through]
        return through.double().mean(dim=0), float(added.var(correction=0)) if added.numel() else 0.0
    if isinstance(given, Unknown) and given.state is not None:
        shares = np.broadcast_to(given.state.mean, given.state.lengths).transpose(
            list(itertools.chain(*given.state.axes))
        )
        return torch.from_numpy(shares.reshape(given.shape)), 0.0
    return _mask_of_scores(given) if isinstance(given, State) else (None, 0.0)


def _mask_of_scores(given: State) -> tuple[torch.Tensor | None, float]:
    """Return the mask in what is added to logits, if any, and the variance over keys where it lets through."""
    bias, masked = given, given.masked
    if masked is not None:
        if masked.scores is None:
            return masked.mask, 0.0
        bias = masked.scores
    apart = 1.0 - off_diagonal(bias, len(bias.axes) - 1) if bias.axes else 1.0
    return None if masked is None else masked.mask, kernels.average(bias.var) * apart


def _of_bias(bias: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return where a known bias of logits lets keys through, and the variance that it adds to the logits."""
    through = bias > MASKED
    if bias.ndim < 2 or not bool(bias[through].any()):
        return through, 0.0
    weights = torch.where(through, bias.double() - bias.double().amax(dim=-1, keepdim=True), -math.inf).exp()
    second = weights.square().sum(dim=-1) / weights.sum(dim=-1).square().clamp(min=1e-300)
    counts = through.sum(dim=-1).clamp(min=1).double()
    return through, variance_of(counts.flatten(0, -2).mean(dim=0).numpy(), second.flatten(0, -2).mean(dim=0).numpy())


def queries_that_see_none(call: Call, given: Any, mask: torch.Tensor | None) -> tuple[torch.Tensor | None, bool]:
    """Return a mask (*batch, heads, queries, 1) of the queries that see no key, None where all see some, and whether
    these weigh all keys evenly (their scores are one finite number), and do not give zeros.
    """
    if mask is None or mask.dtype != torch.bool or not mask.ndim:
        return None, False
    key = ("seen", call.node.index)  # asked twice of one mask
    if key not in call.run.memo:
        call.run.memo[key] = mask.any(dim=-1, keepdim=True)
    seen: torch.Tensor = call.run.memo[key]
    if bool(seen.all()):
        return None, False
    value = _value(call)
    known = None if value is None else call.graph.known.get(value)
    if known is not None:
        return ~seen, known.dtype != torch.bool and bool((known > -math.inf).any(dim=-1).all())
    return ~seen, isinstance(given, State) and math.isfinite(outside(given))


def keys_of_queries(mask: torch.Tensor, queries: int, variance: float, even: bool) -> Array:
    """Return the number of keys that each query sees under a mask, averaged over samples (`over_samples`). With
    ``even``, queries that see none count with all keys times exp(``variance``), for which logits of this variance would
    leave even weights.
    """
    counts = array_of(mask.to(torch.float64).sum(dim=-1))
    if even:
        counts = np.where(counts > 0.0, counts, mask.shape[-1] * math.exp(min(variance, LARGEST_EVEN)))
    counts = np.where(counts > 0.0, np.maximum(counts, 1.0), 0.0)
    rows = over_samples(counts.reshape(-1, counts.shape[-1] if counts.ndim else 1))
    return rows if rows.size == queries else over_samples(rows[:, None])
