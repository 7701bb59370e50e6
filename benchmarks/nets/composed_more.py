"""Further kinds of layers for nets that are composed at random: gates, mixtures, recurrences, convolutions, spectra."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nets.composed import TOKENS, Layer, kind, linear, perceptron


def channels_first(module: nn.Module) -> Layer:
    """Return a module that reads (samples, features, tokens) as a layer."""
    return Layer(lambda me, x: me.inner(x.transpose(1, 2)).transpose(1, 2), inner=module)


# --- gates and mixtures ----------------------------------------------------------------------------------------------


@kind
def gelu_layers(width: int) -> nn.Module:
    return perceptron(width)


@kind
def gated_layers(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        return me.out(F.silu(me.gate(x)) * me.up(x))

    up, gate = (linear(width, 2 * width, False) for _ in range(2))
    return Layer(run, up=up, gate=gate, out=linear(2 * width, width, False))


@kind
def squared_relu(width: int) -> nn.Module:
    return Layer(lambda me, x: me.out(F.relu(me.up(x)).square()), up=linear(width), out=linear(width))


@kind
def bounded_functions(width: int) -> nn.Module:
    return nn.Sequential(linear(width), nn.Softplus(), linear(width), nn.Hardswish(), linear(width), nn.Tanh())


@kind
def product(width: int) -> nn.Module:
    return Layer(
        lambda me, x: me.out(me.left(x) * me.right(x)), left=linear(width), right=linear(width), out=linear(width)
    )


@kind
def highway(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        open_ = torch.sigmoid(me.gate(x))
        return open_ * F.relu(me.layer(x)) + (1 - open_) * x

    return Layer(run, gate=linear(width), layer=linear(width))


@kind
def maxout(width: int) -> nn.Module:
    return Layer(lambda me, x: me.layer(x).unflatten(-1, (width, 3)).amax(-1), layer=linear(width, 3 * width))


@kind
def squeeze(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        return x * torch.sigmoid(me.up(F.relu(me.down(x.mean(1)))))[:, None]

    return Layer(run, down=linear(width, width // 4), up=linear(width // 4, width))


@kind
def modulation(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        scale, shift, gate = me.condition(F.silu(x.mean(1, keepdim=True))).chunk(3, -1)
        return gate * me.inner(me.norm(x) * (1 + scale) + shift)

    return Layer(run, condition=linear(width, 3 * width), norm=nn.LayerNorm(width), inner=perceptron(width))


@kind
def coupling(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        kept, other = x.chunk(2, -1)
        return torch.cat((kept, other * torch.exp(torch.tanh(me.scale(kept))) + me.shift(kept)), -1)

    return Layer(run, scale=perceptron(width // 2, nn.ReLU), shift=perceptron(width // 2, nn.ReLU))


@kind
def low_rank(width: int) -> nn.Module:
    return Layer(
        lambda me, x: me.whole(x) + 0.5 * me.up(me.down(x)),
        whole=linear(width), down=linear(width, 4, False), up=linear(4, width, False),
    )  # fmt: skip


@kind
def experts(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        share = me.gate(x).softmax(-1)
        most, which = share.topk(2, -1)
        share = torch.zeros_like(share).scatter(-1, which, most / most.sum(-1, keepdim=True))
        return sum((share[..., i : i + 1] * expert(x) for i, expert in enumerate(me.experts)), torch.zeros(()))

    return Layer(run, gate=linear(width, 4, False), experts=nn.ModuleList([perceptron(width) for _ in range(4)]))


@kind
def soft_experts(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        found = x @ me.places
        sent = found.softmax(1).transpose(1, 2) @ x
        made = torch.stack([expert(sent[:, 2 * i : 2 * i + 2]) for i, expert in enumerate(me.experts)], 1)
        return found.softmax(2) @ made.flatten(1, 2)

    places = nn.Parameter(torch.randn(width, 6) / width**0.5)
    return Layer(run, places=places, experts=nn.ModuleList([perceptron(width) for _ in range(3)]))


@kind
def made_weights(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        down, up = me.down(x.mean(1)).view(-1, width, 8), me.up(x.mean(1)).view(-1, 8, width)
        return F.relu(x @ down) @ up

    return Layer(run, down=linear(width, 8 * width), up=linear(width, 8 * width))


@kind
def cosines(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        return 8 * F.linear(F.normalize(x, dim=-1), F.normalize(me.weight, dim=-1))

    return Layer(run, weight=nn.Parameter(torch.randn(width, width)))


@kind
def radial_functions(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        near = torch.exp(-(((x[..., None] - me.centres) / 0.5) ** 2))
        return torch.einsum("btik,oik->bto", near, me.weight) + me.linear(F.silu(x))

    weight = nn.Parameter(torch.randn(width, width, 5) * 0.1)
    return Layer(run, centres=torch.linspace(-2, 2, 5), weight=weight, linear=linear(width))


@kind
def sines(width: int) -> nn.Module:
    return Layer(lambda me, x: me.out(torch.sin(10 * me.first(x))), first=linear(width), out=linear(width))


@kind
def codes(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        found = me.into(x)
        nearest = me.codes[(found[..., None, :] - me.codes).square().sum(-1).argmin(-1)]
        return me.out(found + (nearest - found).detach())

    return Layer(run, into=linear(width), codes=nn.Parameter(torch.randn(32, width)), out=linear(width))


@kind
def neighbours(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        near = torch.cdist(x, x).topk(4, -1, largest=False).indices
        met = torch.stack([one[which] for one, which in zip(x, near, strict=True)])
        own = x[:, :, None].expand_as(met)
        return F.relu(me.layer(torch.cat((met - own, own), -1))).amax(2)

    return Layer(run, layer=linear(2 * width, width))


@kind
def noisy_latents(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        mean, log = me.into(x).chunk(2, -1)
        return me.out(mean + torch.exp(0.5 * log) * torch.randn_like(mean))

    return Layer(run, into=linear(width, 2 * width), out=linear(width))


@kind
def log_shares(width: int) -> nn.Module:
    return Layer(lambda me, x: me.out(me.into(x).log_softmax(-1)), into=linear(width, 16), out=linear(16, width))


@kind
def with_maximum(width: int) -> nn.Module:
    return Layer(
        lambda me, x: me.out(torch.cat((x, x.amax(1, keepdim=True).expand_as(x)), -1)), out=linear(2 * width, width)
    )


@kind
def whitened(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        return me.out((x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True) + 1e-5).sqrt())

    return Layer(run, out=linear(width))


@kind
def weight_normed(width: int) -> nn.Module:
    return nn.utils.parametrizations.weight_norm(linear(width))


@kind
def dropped(width: int) -> nn.Module:
    return nn.Sequential(nn.Dropout(0.2), linear(width), nn.Dropout(0.2))


# --- over tokens -----------------------------------------------------------------------------------------------------


@kind
def mixed_tokens(width: int) -> nn.Module:
    return channels_first(perceptron(TOKENS))


@kind
def spatial_gate(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        kept, gate = F.gelu(me.into(x)).chunk(2, -1)
        return me.out(kept * me.tokens(me.norm(gate).transpose(1, 2)).transpose(1, 2))

    return Layer(run, into=linear(width, 2 * width), norm=nn.LayerNorm(width), tokens=linear(TOKENS), out=linear(width))


@kind
def convolution(width: int) -> nn.Module:
    return channels_first(nn.Conv1d(width, width, 5, padding=2))


@kind
def causal_depthwise(width: int) -> nn.Module:
    return channels_first(nn.Sequential(nn.ConstantPad1d((3, 0), 0.0), nn.Conv1d(width, width, 4, groups=width)))


@kind
def gated_convolution(width: int) -> nn.Module:
    return channels_first(nn.Sequential(nn.Conv1d(width, 2 * width, 3, padding=1), nn.GLU(1)))


@kind
def down_and_up(width: int) -> nn.Module:
    down, up = nn.Conv1d(width, width, 4, 2, 1), nn.ConvTranspose1d(width, width, 4, 2, 1)
    return channels_first(nn.Sequential(down, nn.SiLU(), up))


@kind
def bypass(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        low = F.relu(me.inner(F.relu(me.down(x))))
        return me.out(torch.cat((F.interpolate(low, scale_factor=2, mode="linear"), x), 1)).transpose(1, 2)

    inner, out = nn.Conv1d(width, width, 3, padding=1), nn.Conv1d(2 * width, width, 3, padding=1)
    return Layer(run, down=nn.Conv1d(width, width, 4, 2, 1), inner=inner, out=out)


@kind
def lstm(width: int) -> nn.Module:
    return Layer(lambda me, x: me.cells(x)[0], cells=nn.LSTM(width, width, batch_first=True))


@kind
def two_way_gru(width: int) -> nn.Module:
    cells = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
    return Layer(lambda me, x: me.cells(x)[0], cells=cells)


@kind
def gated_loop(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        gate, new, state, made = torch.sigmoid(me.gate(x)), me.new(x), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = (1 - gate[:, t]) * state + gate[:, t] * new[:, t]
            made.append(state)
        return torch.stack(made, 1)

    return Layer(run, gate=linear(width), new=linear(width))


@kind
def moving_average(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        keep, state, made = torch.sigmoid(me.keep), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            state = keep * state + (1 - keep) * x[:, t]
            made.append(state)
        return me.out(torch.stack(made, 1))

    return Layer(run, keep=nn.Parameter(torch.randn(width)), out=linear(width))


@kind
def state_space(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        step, rate = F.softplus(me.step(x)), -torch.exp(me.rate)
        into, out = me.both(x).chunk(2, -1)
        state, made = x.new_zeros(len(x), width, 4), []
        for t in range(x.shape[1]):
            entering = step[:, t, :, None] * into[:, t, None] * x[:, t, :, None]
            state = torch.exp(step[:, t, :, None] * rate) * state + entering
            made.append((state * out[:, t, None]).sum(-1))
        return torch.stack(made, 1) + x * me.skip

    rate = nn.Parameter(torch.log(torch.arange(1, 5.0)).repeat(width, 1))
    return Layer(run, step=linear(width), both=linear(width, 8, False), rate=rate, skip=nn.Parameter(torch.ones(width)))


@kind
def delta_rule(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        q, k, v = me.made(x).chunk(3, -1)
        q, k, much = F.normalize(F.silu(q), dim=-1), F.normalize(F.silu(k), dim=-1), torch.sigmoid(me.much(x))
        state, made = x.new_zeros(len(x), width, width), []
        for t in range(x.shape[1]):
            wrong = v[:, t] - torch.einsum("bij,bj->bi", state, k[:, t])
            state = state + much[:, t, :, None] * wrong[:, :, None] * k[:, t, None]
            made.append(torch.einsum("bij,bj->bi", state, q[:, t]))
        return me.out(torch.stack(made, 1))

    return Layer(run, made=linear(width, 3 * width), much=linear(width, 1), out=linear(width))


@kind
def shifted_tokens(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        before = F.pad(x, (0, 0, 1, -1))
        return me.out(F.relu(me.up(x * me.own + before * (1 - me.own))).square())

    return Layer(
        run, own=nn.Parameter(torch.rand(width)), up=linear(width, None, False), out=linear(width, None, False)
    )


@kind
def running_mean(width: int) -> nn.Module:
    return Layer(lambda me, x: me.out(x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]), out=linear(width))


@kind
def other_order(width: int) -> nn.Module:
    return Layer(lambda me, x: me.out(x.flip(1) + x.roll(1, 1)), out=linear(width))


@kind
def grid_neighbours(width: int) -> nn.Module:
    place = torch.arange(TOKENS)
    near = ((place[:, None] - place).abs() <= 1).float()
    return Layer(lambda me, x: me.near @ me.layer(x), near=near / near.sum(-1, keepdim=True), layer=linear(width))


@kind
def spectra(width: int) -> nn.Module:
    return Layer(lambda me, x: torch.fft.fft2(x).real)


@kind
def spectral_layer(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        low = torch.einsum("bkd,kde->bke", torch.fft.rfft(x, dim=1)[:, :4], torch.complex(me.real, me.imag))
        return me.layer(x) + torch.fft.irfft(low, n=x.shape[1], dim=1)

    real, imag = (nn.Parameter(torch.randn(4, width, width) / width) for _ in range(2))
    return Layer(run, real=real, imag=imag, layer=linear(width))


@kind
def long_filters(width: int) -> nn.Module:
    def run(me: Any, x: Tensor) -> Tensor:
        a, b, v = me.into(x).chunk(3, -1)
        filters, size = me.filters(me.time) * torch.exp(-3 * me.time), 2 * x.shape[1]
        spectrum = torch.fft.rfft(a * v, n=size, dim=1) * torch.fft.rfft(filters, n=size, dim=0)
        return me.out(b * torch.fft.irfft(spectrum, n=size, dim=1)[:, : x.shape[1]])

    filters = nn.Sequential(linear(1, 16), nn.SiLU(), linear(16, width))
    time = torch.linspace(0, 1, TOKENS)[:, None]
    return Layer(run, into=linear(width, 3 * width), filters=filters, time=time, out=linear(width))
