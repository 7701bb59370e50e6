"""Operators over few elements, and of two signals, each followed by its own square, which shows the fourth moment.

    python benchmarks/few.py [--draws 30]

Prints the nets whose prediction is off by more than `OFF` octaves beyond four standard errors, with the first tensor
that is, and how many there are. Nothing is stored: `benchmarks/first_try.md` says what was found.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wellposed as wp

One = Callable[[Tensor], Tensor]
Sized = Callable[[Tensor, int], Tensor]
Two = Callable[[Tensor, Tensor], Tensor]
SIZES = (2, 3, 4, 6)
"""Elements of a group."""
OFF = 0.2
"""Octaves beyond chance from which on a net counts as off."""


def groups(h: Tensor, k: int) -> Tensor:
    """Return most features in groups of k, (samples, groups, k)."""
    return h[:, : 60 // k * k].reshape(len(h), -1, k)


def orthogonalised(h: Tensor) -> Tensor:
    """Return rotations from two vectors each (Zhou et al. 2019, arXiv 1812.07035)."""
    first, second = h[:, :30].reshape(len(h), 10, 3), h[:, 30:60].reshape(len(h), 10, 3)
    one = F.normalize(first, dim=-1)
    other = F.normalize(second - (one * second).sum(-1, keepdim=True) * one, dim=-1)
    return torch.stack([one, other, torch.linalg.cross(one, other)], -1)


OF_SIZES: dict[str, Sized] = {
    "layer_norm": lambda h, k: F.layer_norm(groups(h, k), (k,)),
    "normalize": lambda h, k: F.normalize(groups(h, k), dim=-1),
    "softmax": lambda h, k: F.softmax(groups(h, k), dim=-1),
    "logsumexp": lambda h, k: torch.logsumexp(groups(h, k), -1),
    "amax": lambda h, k: groups(h, k).amax(-1),
    "std": lambda h, k: groups(h, k).std(-1),
    "norm": lambda h, k: groups(h, k).norm(dim=-1),
    "prod": lambda h, k: groups(h, k).prod(-1),
    "median": lambda h, k: groups(h, k).median(-1).values,
    "sort": lambda h, k: groups(h, k).sort(-1).values[..., 0],
    "rms": lambda h, k: F.rms_norm(groups(h, k), (k,)),
    "attention": lambda h, k: F.scaled_dot_product_attention(*(h[:, : 60 // k * k].reshape(len(h), k, -1),) * 3),
    "cosine": lambda h, k: F.cosine_similarity(
        h[:, :24].reshape(len(h), -1, k), h[:, 24:48].reshape(len(h), -1, k), dim=-1
    ),
    "cdist": lambda h, k: torch.cdist(groups(h, k), groups(h, k)),
    "gram": lambda h, k: (lambda m: m @ m.transpose(1, 2))(groups(h, k)),
    "instance": lambda h, k: F.instance_norm(groups(h, k)),
    "group": lambda h, k: F.group_norm(h[:, : k * 8], 8),
    "centre": lambda h, k: (lambda m: m - m.mean(-1, keepdim=True))(groups(h, k)),
    "centre tokens": lambda h, k: (lambda m: m - m.mean(1, keepdim=True))(h[:, : 60 // k * k].reshape(len(h), k, -1)),
}
"""Of 64 features of a layer, and the size of a group."""

OF_ONE: dict[str, One] = {
    "cross": lambda h: torch.linalg.cross(h[:, :30].reshape(len(h), 10, 3), h[:, 30:60].reshape(len(h), 10, 3)),
    "gram schmidt": orthogonalised,
    "det2": lambda h: torch.linalg.det(h.view(-1, 16, 2, 2)),
    "inv2": lambda h: torch.linalg.inv(h.view(-1, 16, 2, 2) + 3 * torch.eye(2)),
    "bn batch 4": lambda h: F.batch_norm(h[:4], None, None, training=True),
    "quaternion": lambda h: (lambda q: 1 - 2 * (q[..., 1] ** 2 + q[..., 2] ** 2))(
        F.normalize(h.view(-1, 16, 4), dim=-1)
    ),
    "polar": lambda h: torch.atan2(h[:, :32], h[:, 32:]),
    "glu": lambda h: F.glu(h, -1),
    "maxout": lambda h: h.view(-1, 16, 4).max(-1).values,
    "lse diff": lambda h: h.view(-1, 16, 4) - h.view(-1, 16, 4).logsumexp(-1, keepdim=True),
    "entropy": lambda h: (lambda p: -(p * p.log()).sum(-1))(h.view(-1, 16, 4).softmax(-1)),
    "spread": lambda h: h.view(-1, 16, 4).amax(-1) - h.view(-1, 16, 4).amin(-1),
    "topk2": lambda h: h.view(-1, 16, 4).topk(2, -1).values,
    "var over mean": lambda h: (lambda e: e.var(-1) / e.mean(-1))(h.view(-1, 16, 4).exp()),
    "cumsum4": lambda h: h.view(-1, 16, 4).cumsum(-1),
    "diff": lambda h: h.view(-1, 16, 4).diff(dim=-1),
}
"""Of 64 features of a layer."""

OF_TWO: dict[str, Two] = {
    "atan2": torch.atan2,
    "fmod": lambda a, b: torch.fmod(a, b.abs() + 1),
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "rem": lambda a, b: torch.remainder(a, 1.0),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "logaddexp": torch.logaddexp,
    "heav": lambda a, b: torch.heaviside(a, b),
    "ldexp": lambda a, b: a * 2**b,
    "div": lambda a, b: a / (b.abs() + 1),
    "pw": lambda a, b: (a.abs() + 0.1) ** b.sigmoid(),
    "xlogy": lambda a, b: torch.xlogy(a.sigmoid(), b.sigmoid()),
    "cums": lambda a, b: a.cumsum(1),
    "cummax": lambda a, b: a.cummax(1).values,
    "cumprod": lambda a, b: a.tanh().cumprod(-1),
    "sort": lambda a, b: a.sort(-1).values,
    "topk": lambda a, b: a.topk(3, -1).values,
    "kth": lambda a, b: a.kthvalue(3, -1).values,
    "median": lambda a, b: a.median(-1).values,
    "quant": lambda a, b: a.quantile(0.9, -1),
    "std": lambda a, b: a.std(-1),
    "norm": lambda a, b: a.norm(dim=-1),
    "norm1": lambda a, b: a.norm(1, dim=-1),
    "norminf": lambda a, b: a.norm(float("inf"), dim=-1),
    "lse": lambda a, b: a.logsumexp(-1),
    "softmax": lambda a, b: (2 * a).softmax(-1),
    "lsm": lambda a, b: (2 * a).log_softmax(-1),
    "prod": lambda a, b: a[..., :3].prod(-1),
    "cdist": lambda a, b: torch.cdist(a, b),
    "cos": lambda a, b: torch.cosine_similarity(a, b, dim=-1),
    "fft": lambda a, b: torch.fft.rfft(a).abs(),
    "angle": lambda a, b: torch.fft.rfft(a).angle(),
    "conv": lambda a, b: torch.nn.functional.conv1d(a, b[:4]),
    "outer": lambda a, b: a.unsqueeze(-1) * b.unsqueeze(-2),
    "glu": lambda a, b: torch.nn.functional.glu(a),
    "gumb": lambda a, b: a - torch.log(-torch.log(torch.rand_like(a))),
    "rand": lambda a, b: torch.rand_like(a) - 0.5,
    "randn": lambda a, b: a * torch.randn_like(a),
    "bern": lambda a, b: a * torch.bernoulli(torch.full_like(a, 0.5)),
    "uniq": lambda a, b: a.round(),
    "sgn": lambda a, b: a.sign(),
    "frac": lambda a, b: a.frac(),
    "sinc": lambda a, b: torch.sinc(a),
    "erfinv": lambda a, b: torch.erfinv(a.tanh() * 0.99),
    "lgamma": lambda a, b: torch.lgamma(a.abs() + 1),
    "clampt": lambda a, b: torch.clamp(a, min=b),
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "addcdiv": lambda a, b: torch.addcdiv(a, a, b.abs() + 1),
    "mm": lambda a, b: a @ b.transpose(1, 2),
    "var": lambda a, b: a.var(-1),
    "amax": lambda a, b: a.amax(-1),
    "aminmax": lambda a, b: a.aminmax(dim=-1).max,
    "argm": lambda a, b: a.argmax(-1).float(),
    "diff": lambda a, b: a.diff(dim=-1),
    "roll": lambda a, b: a + a.roll(1, -1),
    "flip": lambda a, b: a * a.flip(-1),
    "trap": lambda a, b: torch.trapezoid(a, dim=-1),
    "interp": lambda a, b: torch.nn.functional.interpolate(a, scale_factor=1.5, mode="linear"),
    "pool": lambda a, b: torch.nn.functional.max_pool1d(a, 3),
    "lp": lambda a, b: torch.nn.functional.lp_pool1d(a, 2, 3),
    "ap": lambda a, b: torch.nn.functional.adaptive_max_pool1d(a, 4),
    "hs": lambda a, b: torch.nn.functional.hardshrink(a),
    "bucket": lambda a, b: torch.bucketize(a, torch.linspace(-2, 2, 9)).float(),
    "segment": lambda a, b: torch.zeros(32, 8, 4).scatter_add(2, torch.arange(16).remainder(4).expand(32, 8, 16), a),
    "index": lambda a, b: a.index_add(1, torch.tensor([0, 0, 1]), b[:, :3]),
    "einsum3": lambda a, b: torch.einsum("bik,bjk,bjl->bil", a, b, a),
    "kron": lambda a, b: torch.kron(a[0], b[0]),
    "ein": lambda a, b: torch.einsum("bik,bik->bi", a, b),
    "baddb": lambda a, b: torch.baddbmm(torch.zeros(32, 8, 8), a, b.transpose(1, 2)),
    "inner": lambda a, b: torch.inner(a[0], b[0]),
    "matp": lambda a, b: torch.linalg.matrix_power(a @ a.transpose(1, 2) / 16, 2),
    "softsort": lambda a, b: -(a.unsqueeze(-1) - a.unsqueeze(-2)).abs(),
    "sqd": lambda a, b: (a.unsqueeze(1) - b.unsqueeze(2)).square().sum(-1),
    "rbf": lambda a, b: torch.exp(-(a.unsqueeze(1) - b.unsqueeze(2)).square().mean(-1)),
    "product, chunk": lambda a, b: (lambda p: p[0] * p[1])(a.chunk(2, -1)),
    "product, pair": lambda a, b: a.unsqueeze(2) * a.unsqueeze(1),
    "product, roll": lambda a, b: a * a.roll(1, -1),
    "product, flip": lambda a, b: a * a.flip(-1),
    "product, sl": lambda a, b: a[:, :4] * a[:, 4:],
    "product, ev": lambda a, b: a[..., ::2] * a[..., 1::2],
    "product, unb": lambda a, b: (lambda p: p[0] * p[1])(a.unbind(1)),
    "product, split": lambda a, b: (lambda p: p[0] * p[1])(a.split(8, -1)),
    "product, film": lambda a, b: a * (1 + b),
    "product, film2": lambda a, b: a + a * b,
    "product, sel": lambda a, b: a[:, 0] * a[:, 1],
    "product, view": lambda a, b: (lambda p: p[:, :, 0] * p[:, :, 1])(a.view(32, 8, 2, 8)),
    "product, tr": lambda a, b: (lambda p: p[:, :, :, 0] * p[:, :, :, 1])(a.view(32, 8, 8, 2)),
    "product, three": lambda a, b: a[:, 0] * a[:, 1] * a[:, 2],
    "product, sq": lambda a, b: a * b * a,
    "product, gate": lambda a, b: a * a.sigmoid() * b,
    "product, comp": lambda a, b: a[..., :8] * b[..., :8] - a[..., 8:] * b[..., 8:],
    "product, mean": lambda a, b: a * a.mean(-1, keepdim=True),
    "product, se": lambda a, b: a * a.mean(1, keepdim=True).sigmoid(),
    "product, mx": lambda a, b: a * a.amax(-1, keepdim=True),
    "product, first": lambda a, b: a * a[:, :1],
    "product, cs": lambda a, b: a * a.cumsum(1),
    "product, sm": lambda a, b: a * a.softmax(-1),
    "product, perm": lambda a, b: a * a[:, torch.randperm(8)],
    "product, idx": lambda a, b: a[:, torch.tensor([0, 1, 2])] * a[:, torch.tensor([3, 4, 5])],
    "product, diffsq": lambda a, b: (a[:, 1:] - a[:, :-1]) * a[:, 1:],
    "product, kron": lambda a, b: torch.einsum("bi,bj->bij", a[:, 0], a[:, 1]),
    "product, triu": lambda a, b: (lambda i: a[:, i[0]] * a[:, i[1]])(torch.triu_indices(8, 8, 1)),
}
"""Of two noises, (32, 8, 16)."""


class Squared(nn.Module):
    """The square of what a function makes of signals, of a layer where there is one."""

    def __init__(self, function: Callable[..., Tensor], layer: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.layer = function, layer

    def forward(self, *given: Tensor) -> Tensor:
        """Return the square."""
        made = self.function(*given) if self.layer is None else self.function(self.layer(*given))
        return made * made


def nets() -> Iterator[tuple[str, nn.Module, tuple[Tensor, ...]]]:
    """Yield every net with its name and an example."""
    x, pair = torch.randn(64, 16), (torch.randn(32, 8, 16), torch.randn(32, 8, 16))
    for name, sized in OF_SIZES.items():
        for k in SIZES:
            yield f"{name} {k}", Squared(lambda h, sized=sized, k=k: sized(h, k), nn.Linear(16, 64)), (x,)
    for name, one in OF_ONE.items():
        yield name, Squared(one, nn.Linear(16, 64)), (x,)
    for name, two in OF_TWO.items():
        yield name, Squared(two), pair


def first_off(net: nn.Module, example: tuple[Tensor, ...], draws: int) -> str:
    """Return the first tensor whose prediction is off, in words; empty where none is."""
    graph = wp.trace(net, *example)
    plan = wp.plan(graph, rehearse=False)
    measured = wp.measure(graph, plan=plan, draws=draws)
    for signal in wp.propagate(graph, weights=plan):
        real = measured[signal.name]
        if not (signal.second_moment > 0.0 and real.second_moment > 0.0):
            continue
        error = math.log2(signal.second_moment / real.second_moment)
        if abs(error) > OFF + 4.0 * real.log2_error:
            return f"{signal.name} ({signal.tag}): {error:+.2f} octaves"
    return ""


def main() -> None:
    """Print what is off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=30)
    draws = parser.parse_args().draws
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    count = off = 0
    for name, net, example in nets():
        torch.manual_seed(0)
        told = first_off(net, example, draws)
        count += 1
        if told:
            off += 1
            print(f"{name}: {told}", flush=True)
    print(f"{off} of {count} nets are off")


if __name__ == "__main__":
    main()
