"""Mixers, linear attention, flows, molecules, memories, actors, speech: typed for batch 4."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class SpatialGatingUnit(nn.Module):
    def __init__(self, dim, length):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.proj = nn.Conv1d(length, length, 1)
        nn.init.constant_(self.proj.bias, 1.0)
        nn.init.normal_(self.proj.weight, std=1e-3)

    def forward(self, x):
        u, v = x.chunk(2, dim=-1)
        return u * self.proj(self.norm(v))


class GMLP(nn.Module):
    def __init__(self, vocab=100, dim=32, hidden=128, length=32, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.up = nn.ModuleList([nn.Linear(dim, hidden) for _ in range(depth)])
        self.gates = nn.ModuleList([SpatialGatingUnit(hidden // 2, length) for _ in range(depth)])
        self.down = nn.ModuleList([nn.Linear(hidden // 2, dim) for _ in range(depth)])
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx):
        x = self.embed(idx)
        for norm, up, gate, down in zip(self.norms, self.up, self.gates, self.down, strict=True):
            x = x + down(gate(F.gelu(up(norm(x)))))
        return self.head(x)


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim, token_hidden, channel_hidden):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.tokens = nn.Sequential(nn.Linear(tokens, token_hidden), nn.GELU(), nn.Linear(token_hidden, tokens))
        self.channels = nn.Sequential(nn.Linear(dim, channel_hidden), nn.GELU(), nn.Linear(channel_hidden, dim))

    def forward(self, x):
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, size=32, patch=4, dim=48, depth=3, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, patch, stride=patch)
        self.blocks = nn.Sequential(*[MixerBlock((size // patch) ** 2, dim, 24, 96) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


class FavorAttention(nn.Module):
    """Positive random features for the softmax kernel."""

    def __init__(self, dim, heads=4, features=32):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)
        blocks = [torch.linalg.qr(torch.randn(self.d, self.d)).Q for _ in range(-(-features // self.d))]
        omega = torch.cat(blocks)[:features] * torch.randn(features, self.d).norm(dim=1, keepdim=True)
        self.register_buffer("omega", omega)

    def features(self, x, is_query):
        x = x * self.d**-0.25
        projected = x @ self.omega.T
        half = x.square().sum(-1, keepdim=True) / 2
        if is_query:
            most = projected.amax(-1, keepdim=True)
        else:
            most = projected.amax((-1, -2), keepdim=True)
        return self.omega.size(0) ** -0.5 * (torch.exp(projected - half - most) + 1e-4)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, self.d).permute(2, 0, 3, 1, 4)
        q, k = self.features(q, True), self.features(k, False)
        context = torch.einsum("bhnf,bhnd->bhfd", k, v)
        norm = 1.0 / torch.einsum("bhnf,bhf->bhn", q, k.sum(-2))
        out = torch.einsum("bhnf,bhfd,bhn->bhnd", q, context, norm)
        return self.out(out.transpose(1, 2).reshape(b, n, d))


class Performer(nn.Module):
    def __init__(self, vocab=100, dim=32, depth=2, length=48):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Parameter(0.02 * torch.randn(1, length, dim))
        self.attn = nn.ModuleList([FavorAttention(dim) for _ in range(depth)])
        self.ff = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(depth)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2 * depth + 1)])
        self.head = nn.Linear(dim, 5)

    def forward(self, idx):
        x = self.tok(idx) + self.pos[:, : idx.size(1)]
        for i, (a, f) in enumerate(zip(self.attn, self.ff, strict=True)):
            x = x + a(self.norms[2 * i](x))
            x = x + f(self.norms[2 * i + 1](x))
        return self.head(self.norms[-1](x).mean(1))


class TimeMix(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix_k, self.mix_v, self.mix_r = (nn.Parameter(torch.full((1, 1, dim), 0.5)) for _ in range(3))
        self.decay = nn.Parameter(torch.linspace(-5.0, 3.0, dim))
        self.first = nn.Parameter(torch.full((dim,), math.log(0.3)))
        self.key, self.value, self.receptance, self.output = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        last = F.pad(x, (0, 0, 1, -1))
        k = self.key(x * self.mix_k + last * (1 - self.mix_k))
        v = self.value(x * self.mix_v + last * (1 - self.mix_v))
        r = self.receptance(x * self.mix_r + last * (1 - self.mix_r)).sigmoid()
        w = -torch.exp(self.decay)
        num = den = torch.zeros_like(k[:, 0])
        out = []
        for t in range(x.size(1)):
            now = torch.exp(self.first + k[:, t])
            out.append((num + now * v[:, t]) / (den + now))
            num = torch.exp(w) * num + torch.exp(k[:, t]) * v[:, t]
            den = torch.exp(w) * den + torch.exp(k[:, t])
        return self.output(r * torch.stack(out, 1))


class ChannelMix(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mix_k, self.mix_r = (nn.Parameter(torch.full((1, 1, dim), 0.5)) for _ in range(2))
        self.key, self.receptance = nn.Linear(dim, 4 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(4 * dim, dim, bias=False)

    def forward(self, x):
        last = F.pad(x, (0, 0, 1, -1))
        k = self.key(x * self.mix_k + last * (1 - self.mix_k)).relu().square()
        return self.receptance(x * self.mix_r + last * (1 - self.mix_r)).sigmoid() * self.value(k)


class RWKV(nn.Module):
    def __init__(self, vocab=100, dim=32, depth=2):
        super().__init__()
        self.embed, self.ln0, self.ln_out = nn.Embedding(vocab, dim), nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.att = nn.ModuleList([TimeMix(dim) for _ in range(depth)])
        self.ffn = nn.ModuleList([ChannelMix(dim) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2 * depth)])
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, idx):
        x = self.ln0(self.embed(idx))
        for i, (a, f) in enumerate(zip(self.att, self.ffn, strict=True)):
            x = x + a(self.norms[2 * i](x))
            x = x + f(self.norms[2 * i + 1](x))
        return self.head(self.ln_out(x))


class Perceiver(nn.Module):
    def __init__(self, channels=3, bands=6, latents=16, dim=32, depth=2, classes=10):
        super().__init__()
        given = channels + 2 * (2 * bands + 1)
        self.register_buffer("freqs", math.pi * torch.linspace(1.0, 8.0, bands))
        self.latents = nn.Parameter(0.02 * torch.randn(latents, dim))
        self.data_norm, self.to_kv = nn.LayerNorm(given), nn.Linear(given, 2 * dim, bias=False)
        self.cross_norm, self.to_q = nn.LayerNorm(dim), nn.Linear(dim, dim, bias=False)
        self.cross_out = nn.Linear(dim, dim)
        self.cross_ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(dim, 4, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(depth)
            ]
        )
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, classes))

    def forward(self, x):
        b, _, h, w = x.shape
        grid = torch.stack(torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij"), -1)
        angles = grid[..., None] * self.freqs
        pos = torch.cat([angles.sin(), angles.cos(), grid[..., None]], -1).flatten(0, 1).flatten(1)
        data = self.data_norm(torch.cat([x.flatten(2).transpose(1, 2), pos.expand(b, -1, -1)], -1))
        k, v = self.to_kv(data).chunk(2, -1)
        z = self.latents.expand(b, -1, -1)
        for layer in self.layers:
            q = self.to_q(self.cross_norm(z))
            z = z + self.cross_out(F.softmax(q @ k.transpose(1, 2) * q.size(-1) ** -0.5, -1) @ v)
            z = layer(z + self.cross_ff(z))
        return self.head(z.mean(1))


class Chomp(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        return x[:, :, : -self.size].contiguous()


class TemporalBlock(nn.Module):
    def __init__(self, n_in, n_out, kernel, dilation):
        super().__init__()
        pad = (kernel - 1) * dilation
        self.net = nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Conv1d(n_in, n_out, kernel, padding=pad, dilation=dilation)),
            Chomp(pad),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.utils.parametrizations.weight_norm(nn.Conv1d(n_out, n_out, kernel, padding=pad, dilation=dilation)),
            Chomp(pad),
            nn.ReLU(),
            nn.Dropout(0.2),
        )
        self.down = nn.Conv1d(n_in, n_out, 1) if n_in != n_out else None

    def forward(self, x):
        return F.relu(self.net(x) + (x if self.down is None else self.down(x)))


class TCN(nn.Module):
    def __init__(self, n_in=4, width=24, depth=4, classes=3):
        super().__init__()
        self.net = nn.Sequential(*[TemporalBlock(n_in if i == 0 else width, width, 3, 2**i) for i in range(depth)])
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.net(x)[:, :, -1])


def double_conv(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True),
        nn.Conv2d(n_out, n_out, 3, padding=1), nn.BatchNorm2d(n_out), nn.ReLU(inplace=True),
    )  # fmt: skip


class AttentionGate(nn.Module):
    def __init__(self, f_g, f_l, f_int):
        super().__init__()
        self.w_g = nn.Sequential(nn.Conv2d(f_g, f_int, 1), nn.BatchNorm2d(f_int))
        self.w_x = nn.Sequential(nn.Conv2d(f_l, f_int, 1), nn.BatchNorm2d(f_int))
        self.psi = nn.Sequential(nn.Conv2d(f_int, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())

    def forward(self, g, x):
        return x * self.psi(F.relu(self.w_g(g) + self.w_x(x)))


class AttentionUNet(nn.Module):
    def __init__(self, n_in=1, classes=2, width=12):
        super().__init__()
        sizes = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList([double_conv(a, b) for a, b in zip([n_in, *sizes[:-1]], sizes, strict=True)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(sizes[i], sizes[i - 1], 2, 2) for i in (2, 1)])
        self.gates = nn.ModuleList([AttentionGate(sizes[i - 1], sizes[i - 1], sizes[i - 1] // 2) for i in (2, 1)])
        self.merge = nn.ModuleList([double_conv(sizes[i], sizes[i - 1]) for i in (2, 1)])
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, gate, merge in zip(self.up, self.gates, self.merge, strict=True):
            x = up(x)
            x = merge(torch.cat([gate(x, skips.pop()), x], 1))
        return self.out(x)


def channel_shuffle(x, groups=2):
    b, c, h, w = x.shape
    return x.view(b, groups, c // groups, h, w).transpose(1, 2).reshape(b, c, h, w)


class ShuffleUnit(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.stride, half = stride, n_out // 2
        if stride > 1:
            self.left = nn.Sequential(
                nn.Conv2d(n_in, n_in, 3, stride, 1, groups=n_in, bias=False), nn.BatchNorm2d(n_in),
                nn.Conv2d(n_in, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
            )  # fmt: skip
        n = n_in if stride > 1 else half
        self.right = nn.Sequential(
            nn.Conv2d(n, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, stride, 1, groups=half, bias=False), nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x):
        if self.stride > 1:
            return channel_shuffle(torch.cat([self.left(x), self.right(x)], 1))
        a, b = x.chunk(2, 1)
        return channel_shuffle(torch.cat([a, self.right(b)], 1))


class ShuffleNetV2(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True))
        units, n_in = [], 24
        for n_out, repeats in ((48, 3), (96, 3)):
            for i in range(repeats):
                units.append(ShuffleUnit(n_in, n_out, 2 if i == 0 else 1))
                n_in = n_out
        self.units = nn.Sequential(*units)
        self.last = nn.Sequential(nn.Conv2d(96, 128, 1, bias=False), nn.BatchNorm2d(128), nn.ReLU(inplace=True))
        self.fc = nn.Linear(128, classes)

    def forward(self, x):
        return self.fc(self.last(self.units(self.stem(x))).mean([2, 3]))


class CBAM(nn.Module):
    def __init__(self, dim, reduction=4):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(dim, dim // reduction), nn.ReLU(), nn.Linear(dim // reduction, dim))
        self.spatial = nn.Sequential(nn.Conv2d(2, 1, 7, padding=3, bias=False), nn.BatchNorm2d(1))

    def forward(self, x):
        scale = torch.sigmoid(self.mlp(x.mean((2, 3))) + self.mlp(x.amax((2, 3))))
        x = x * scale[:, :, None, None]
        pooled = torch.cat([x.amax(1, keepdim=True), x.mean(1, keepdim=True)], 1)
        return x * torch.sigmoid(self.spatial(pooled))


class CBAMBlock(nn.Module):
    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.bn1, self.bn2, self.cbam = nn.BatchNorm2d(n_out), nn.BatchNorm2d(n_out), CBAM(n_out)
        self.short = nn.Sequential()
        if stride != 1 or n_in != n_out:
            self.short = nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), nn.BatchNorm2d(n_out))

    def forward(self, x):
        out = self.cbam(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(out + self.short(x))


class CBAMNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        self.blocks = nn.Sequential(CBAMBlock(16, 16, 1), CBAMBlock(16, 32, 2), CBAMBlock(32, 64, 2))
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


class MaskedConv2d(nn.Conv2d):
    def __init__(self, kind, *args, **kwargs):
        super().__init__(*args, **kwargs)
        _, _, h, w = self.weight.shape
        mask = torch.ones_like(self.weight)
        mask[:, :, h // 2, w // 2 + (kind == "B") :] = 0
        mask[:, :, h // 2 + 1 :] = 0
        self.register_buffer("mask", mask)

    def forward(self, x):
        return self._conv_forward(x, self.weight * self.mask, self.bias)


class PixelCNN(nn.Module):
    def __init__(self, width=32, depth=3, levels=16):
        super().__init__()
        self.first = MaskedConv2d("A", 1, 2 * width, 7, padding=3)
        self.blocks = nn.ModuleList(
            [
                nn.Sequential(
                    nn.ReLU(), nn.Conv2d(2 * width, width, 1), nn.ReLU(),
                    MaskedConv2d("B", width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 1),
                )
                for _ in range(depth)
            ]
        )  # fmt: skip
        self.out = nn.Sequential(
            nn.ReLU(), nn.Conv2d(2 * width, width, 1), nn.ReLU(), nn.Conv2d(width, levels, 1)
        )  # fmt: skip

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return self.out(x)


class FlowStep(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.loc, self.log_scale = nn.Parameter(torch.zeros(1, dim, 1, 1)), nn.Parameter(torch.zeros(1, dim, 1, 1))
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(dim, dim)).Q)
        self.net = nn.Sequential(
            nn.Conv2d(dim // 2, hidden, 3, padding=1), nn.ReLU(), nn.Conv2d(hidden, hidden, 1), nn.ReLU(),
            nn.Conv2d(hidden, dim, 3, padding=1),
        )  # fmt: skip
        nn.init.zeros_(self.net[-1].weight)
        nn.init.zeros_(self.net[-1].bias)

    def forward(self, x):
        area = x.size(2) * x.size(3)
        x = (x + self.loc) * self.log_scale.exp()
        x = F.conv2d(x, self.weight[:, :, None, None])
        logdet = area * (self.log_scale.sum() + torch.linalg.slogdet(self.weight)[1])
        a, b = x.chunk(2, 1)
        log_s, t = self.net(a).chunk(2, 1)
        s = torch.sigmoid(log_s + 2.0)
        return torch.cat([a, (b + t) * s], 1), logdet + torch.log(s).sum((1, 2, 3))


class Glow(nn.Module):
    def __init__(self, channels=3, steps=2, levels=2, hidden=32):
        super().__init__()
        self.levels, dim = nn.ModuleList(), channels
        for i in range(levels):
            dim *= 4
            self.levels.append(nn.ModuleList([FlowStep(dim, hidden) for _ in range(steps)]))
            dim //= 2 if i < levels - 1 else 1

    def forward(self, x):
        logp = torch.zeros(x.size(0))
        for i, level in enumerate(self.levels):
            x = F.pixel_unshuffle(x, 2)
            for step in level:
                x, logdet = step(x)
                logp = logp + logdet
            if i < len(self.levels) - 1:
                x, z = x.chunk(2, 1)
                logp = logp - 0.5 * (z**2 + math.log(2 * math.pi)).sum((1, 2, 3))
        return x, logp - 0.5 * (x**2 + math.log(2 * math.pi)).sum((1, 2, 3))


class DeepSets(nn.Module):
    def __init__(self, n_in=4, width=32, classes=5):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(n_in, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
        self.rho = nn.Sequential(nn.Linear(width, width), nn.ELU(), nn.Linear(width, classes))

    def forward(self, x):
        return self.rho(self.phi(x).sum(1))


class EGNNLayer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * dim + 1, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU())
        self.coord = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1, bias=False))
        self.node = nn.Sequential(nn.Linear(2 * dim, dim), nn.SiLU(), nn.Linear(dim, dim))
        nn.init.xavier_uniform_(self.coord[-1].weight, gain=0.001)

    def forward(self, h, x, edges):
        row, col = edges
        diff = x[row] - x[col]
        m = self.edge(torch.cat([h[row], h[col], diff.square().sum(-1, keepdim=True)], -1))
        count = torch.zeros(x.size(0), 1).index_add(0, row, torch.ones(len(row), 1)).clamp(min=1)
        x = x + torch.zeros_like(x).index_add(0, row, diff * self.coord(m)) / count
        agg = torch.zeros_like(h).index_add(0, row, m)
        return h + self.node(torch.cat([h, agg], -1)), x


class EGNN(nn.Module):
    def __init__(self, n_in=6, dim=32, depth=3):
        super().__init__()
        self.embed = nn.Linear(n_in, dim)
        self.layers = nn.ModuleList([EGNNLayer(dim) for _ in range(depth)])
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, 1))

    def forward(self, h, x, edges):
        h = self.embed(h)
        for layer in self.layers:
            h, x = layer(h, x, edges)
        return self.out(h), x


class RGCNLayer(nn.Module):
    def __init__(self, n_in, n_out, relations, bases=3):
        super().__init__()
        self.bases = nn.Parameter(torch.empty(bases, n_in, n_out))
        self.coefficients = nn.Parameter(torch.empty(relations, bases))
        self.root, self.bias = nn.Parameter(torch.empty(n_in, n_out)), nn.Parameter(torch.zeros(n_out))
        for p in (self.bases, self.coefficients, self.root):
            nn.init.xavier_uniform_(p)

    def forward(self, x, edges, kinds):
        weight = torch.einsum("rb,bio->rio", self.coefficients, self.bases)
        out = x @ self.root + self.bias
        for r in range(weight.size(0)):
            src, dst = edges[:, kinds == r]
            sums = torch.zeros_like(x).index_add(0, dst, x[src])
            degree = torch.bincount(dst, minlength=x.size(0)).clamp(min=1)
            out = out + (sums / degree[:, None]) @ weight[r]
        return out


class RGCN(nn.Module):
    def __init__(self, nodes=40, dim=32, relations=4, classes=6):
        super().__init__()
        self.embed = nn.Embedding(nodes, dim)
        self.one, self.two = RGCNLayer(dim, dim, relations), RGCNLayer(dim, classes, relations)

    def forward(self, edges, kinds):
        return self.two(F.relu(self.one(self.embed.weight, edges, kinds)), edges, kinds).log_softmax(-1)


class DenseSAGE(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.rel, self.root, self.bn = nn.Linear(n_in, n_out, bias=False), nn.Linear(n_in, n_out), nn.BatchNorm1d(n_out)

    def forward(self, x, adj):
        out = adj @ x / adj.sum(-1, keepdim=True).clamp(min=1)
        out = F.normalize(self.rel(out) + self.root(x), dim=-1)
        return self.bn(F.relu(out).transpose(1, 2)).transpose(1, 2)


class DiffPool(nn.Module):
    def __init__(self, n_in=8, dim=32, clusters=6, classes=3):
        super().__init__()
        self.pool, self.embed = DenseSAGE(n_in, clusters), DenseSAGE(n_in, dim)
        self.assign, self.second = nn.Linear(clusters, clusters), DenseSAGE(dim, dim)
        self.fc = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, classes))

    def forward(self, x, adj):
        s = self.assign(self.pool(x, adj)).softmax(-1)
        z = self.embed(x, adj)
        x, adj = s.transpose(1, 2) @ z, s.transpose(1, 2) @ adj @ s
        return self.fc(self.second(x, adj).mean(1))


class NTM(nn.Module):
    """One read head, one write head."""

    def __init__(self, n_in=8, n_out=8, hidden=32, slots=12, width=10):
        super().__init__()
        self.slots, self.width = slots, width
        self.controller = nn.LSTMCell(n_in + width, hidden)
        self.read = nn.Linear(hidden, width + 6)
        self.write = nn.Linear(hidden, width + 6 + 2 * width)
        self.out = nn.Linear(hidden + width, n_out)
        self.register_buffer("memory", torch.full((slots, width), 1e-6))

    def address(self, p, memory, before):
        k, beta, g, s, gamma = p.split([self.width, 1, 1, 3, 1], -1)
        content = F.softmax(
            F.softplus(beta) * F.cosine_similarity(memory + 1e-16, k.tanh().unsqueeze(1) + 1e-16, dim=-1), -1
        )
        w = g.sigmoid() * content + (1 - g.sigmoid()) * before
        s = s.softmax(-1)
        w = s[:, :1] * w.roll(1, 1) + s[:, 1:2] * w + s[:, 2:] * w.roll(-1, 1)
        w = w ** (1 + F.softplus(gamma))
        return w / (w.sum(-1, keepdim=True) + 1e-16)

    def forward(self, x):
        b = x.size(1)
        memory = self.memory.expand(b, -1, -1)
        read, h, c = x.new_zeros(b, self.width), x.new_zeros(b, 32), x.new_zeros(b, 32)
        w_r = w_w = F.one_hot(torch.zeros(b, dtype=torch.long), self.slots).float()
        out = []
        for step in x:
            h, c = self.controller(torch.cat([step, read], -1), (h, c))
            w_r = self.address(self.read(h), memory, w_r)
            read = (w_r.unsqueeze(1) @ memory).squeeze(1)
            p, e, a = self.write(h).split([self.width + 6, self.width, self.width], -1)
            w_w = self.address(p, memory, w_w)
            memory = memory * (1 - w_w.unsqueeze(-1) * e.sigmoid().unsqueeze(1))
            memory = memory + w_w.unsqueeze(-1) * a.tanh().unsqueeze(1)
            out.append(self.out(torch.cat([h, read], -1)))
        return torch.stack(out).sigmoid()


class SAC(nn.Module):
    """A squashed Gaussian actor, and two critics of its actions."""

    def __init__(self, obs=17, act=6, width=64):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.mu, self.log_std = nn.Linear(width, act), nn.Linear(width, act)
        self.q = nn.ModuleList(
            [
                nn.Sequential(
                    nn.Linear(obs + act, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
                )
                for _ in range(2)
            ]
        )

    def forward(self, obs):
        h = self.trunk(obs)
        mu, log_std = self.mu(h), self.log_std(h).clamp(-20, 2)
        eps = torch.randn_like(mu)
        u = mu + log_std.exp() * eps
        logp = (-0.5 * eps**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        logp = logp - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1)
        both = torch.cat([obs, u.tanh()], -1)
        return torch.min(self.q[0](both), self.q[1](both)).squeeze(-1), logp


class DLRM(nn.Module):
    def __init__(self, dense=13, rows=(50, 80, 30, 100), dim=16):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(dense, 64), nn.ReLU(), nn.Linear(64, dim), nn.ReLU())
        self.tables = nn.ModuleList([nn.EmbeddingBag(n, dim, mode="sum") for n in rows])
        for table in self.tables:
            nn.init.uniform_(table.weight, -(table.num_embeddings**-0.5), table.num_embeddings**-0.5)
        pairs = len(rows) * (len(rows) + 1) // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())

    def forward(self, x, bags):
        x = self.bottom(x)
        stacked = torch.stack([x, *[table(bags[:, i]) for i, table in enumerate(self.tables)]], 1)
        scores = torch.bmm(stacked, stacked.transpose(1, 2))
        i, j = torch.tril_indices(stacked.size(1), stacked.size(1), offset=-1)
        return self.top(torch.cat([x, scores[:, i, j]], 1))


class MDN(nn.Module):
    def __init__(self, n_in=5, n_out=2, width=48, parts=4):
        super().__init__()
        self.parts, self.n_out = parts, n_out
        self.body = nn.Sequential(nn.Linear(n_in, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.pi, self.mu = nn.Linear(width, parts), nn.Linear(width, parts * n_out)
        self.sigma = nn.Linear(width, parts * n_out)

    def forward(self, x, y):
        h = self.body(x)
        log_pi = F.log_softmax(self.pi(h), -1)
        mu, sigma = (t.view(-1, self.parts, self.n_out) for t in (self.mu(h), F.elu(self.sigma(h)) + 1 + 1e-4))
        z = (y.unsqueeze(1) - mu) / sigma
        log_p = (-0.5 * z**2 - sigma.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
        return -torch.logsumexp(log_pi + log_p, -1).mean()


class FFTBlock(nn.Module):
    def __init__(self, dim, heads=2, filters=64, kernel=9):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, dropout=0.1, batch_first=True)
        self.conv1 = nn.Conv1d(dim, filters, kernel, padding=kernel // 2)
        self.conv2, self.norm1, self.norm2 = nn.Conv1d(filters, dim, 1), nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        x = self.norm1(x + self.attn(x, x, x, need_weights=False)[0])
        return self.norm2(x + self.conv2(F.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2))


class Predictor(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(dim, dim, 3, padding=1) for _ in range(2)])
        self.norms, self.out = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2)]), nn.Linear(dim, 1)

    def forward(self, x):
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.dropout(norm(F.relu(conv(x.transpose(1, 2))).transpose(1, 2)), 0.5, self.training)
        return self.out(x).squeeze(-1)


class FastSpeech2(nn.Module):
    def __init__(self, vocab=60, dim=32, mels=20, bins=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.encoder = nn.ModuleList([FFTBlock(dim) for _ in range(2)])
        self.decoder = nn.ModuleList([FFTBlock(dim) for _ in range(2)])
        self.duration, self.pitch, self.energy = Predictor(dim), Predictor(dim), Predictor(dim)
        self.register_buffer("bins", torch.linspace(-3, 3, bins - 1))
        self.pitch_embed, self.energy_embed = nn.Embedding(bins, dim), nn.Embedding(bins, dim)
        self.mel = nn.Linear(dim, mels)
        self.postnet = nn.Sequential(
            nn.Conv1d(mels, dim, 5, padding=2), nn.BatchNorm1d(dim), nn.Tanh(), nn.Dropout(0.5),
            nn.Conv1d(dim, mels, 5, padding=2), nn.BatchNorm1d(mels), nn.Dropout(0.5),
        )  # fmt: skip

    def positions(self, x):
        t = torch.arange(x.size(1))[:, None]
        angles = t / 10000 ** (torch.arange(0, x.size(2), 2) / x.size(2))
        return x + torch.stack([angles.sin(), angles.cos()], -1).flatten(1)

    def forward(self, idx, durations, pitch, energy):
        x = self.positions(self.embed(idx))
        for block in self.encoder:
            x = block(x)
        log_d, p, e = self.duration(x), self.pitch(x), self.energy(x)
        x = (
            x
            + self.pitch_embed(torch.bucketize(pitch, self.bins))
            + self.energy_embed(torch.bucketize(energy, self.bins))
        )
        x = torch.stack([row.repeat_interleave(d, 0) for row, d in zip(x, durations, strict=True)])
        x = self.positions(x)
        for block in self.decoder:
            x = block(x)
        mel = self.mel(x)
        return mel, mel + self.postnet(mel.transpose(1, 2)).transpose(1, 2), log_d, p, e


def molecules():
    row, col = torch.randint(16, (2, 60))
    return torch.randn(16, 6), torch.randn(16, 3), torch.stack([row, (col + row + 1) % 16])


def graphs():
    adj = (torch.rand(8, 12, 12) > 0.7).float()
    return torch.randn(8, 12, 8), ((adj + adj.transpose(1, 2)) > 0).float()


def utterance():
    durations = torch.tensor([[1, 2, 3, 2, 1, 3, 2, 2]] * 4)
    return torch.randint(1, 60, (4, 8)), durations, torch.randn(4, 8), torch.randn(4, 8)


NETS = {
    "gMLP": (GMLP, lambda: (torch.randint(100, (4, 32)),)),
    "MLP-Mixer": (Mixer, lambda: (torch.randn(8, 3, 32, 32),)),
    "Performer": (Performer, lambda: (torch.randint(100, (4, 48)),)),
    "RWKV": (RWKV, lambda: (torch.randint(100, (4, 12)),)),
    "Perceiver": (Perceiver, lambda: (torch.randn(4, 3, 12, 12),)),
    "TCN": (TCN, lambda: (torch.randn(8, 4, 64),)),
    "attention U-Net": (AttentionUNet, lambda: (torch.randn(4, 1, 32, 32),)),
    "ShuffleNet v2": (ShuffleNetV2, lambda: (torch.randn(8, 3, 32, 32),)),
    "ResNet with CBAM": (CBAMNet, lambda: (torch.randn(8, 3, 32, 32),)),
    "PixelCNN": (PixelCNN, lambda: (torch.randn(4, 1, 16, 16),)),
    "Glow": (Glow, lambda: (torch.randn(4, 3, 16, 16),)),
    "Deep Sets": (DeepSets, lambda: (torch.randn(16, 20, 4),)),
    "EGNN": (EGNN, molecules),
    "R-GCN": (RGCN, lambda: (torch.randint(40, (2, 160)), torch.arange(160) % 4)),
    "DiffPool": (DiffPool, graphs),
    "neural Turing machine": (NTM, lambda: (torch.randint(2, (6, 4, 8)).float(),)),
    "SAC": (SAC, lambda: (torch.randn(64, 17),)),
    "DLRM": (DLRM, lambda: (torch.randn(32, 13), torch.randint(30, (32, 4, 2)))),
    "mixture density network": (MDN, lambda: (torch.randn(64, 5), torch.randn(64, 2))),
    "FastSpeech 2": (FastSpeech2, utterance),
}
