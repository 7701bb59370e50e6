"""Generative models: codes, flows, styles, scores."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class ResBlock(nn.Module):
    def __init__(self, c, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.ReLU(), nn.Conv2d(c, hidden, 3, padding=1), nn.ReLU(), nn.Conv2d(hidden, c, 1))

    def forward(self, x):
        return x + self.net(x)


class VQVAE(nn.Module):
    def __init__(self, hidden=64, codes=64, dim=16):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, hidden // 2, 4, 2, 1), nn.ReLU(), nn.Conv2d(hidden // 2, hidden, 4, 2, 1), nn.ReLU(),
            nn.Conv2d(hidden, hidden, 3, 1, 1), ResBlock(hidden, 32), ResBlock(hidden, 32), nn.ReLU(),
            nn.Conv2d(hidden, dim, 1),
        )  # fmt: skip
        self.codebook = nn.Embedding(codes, dim)
        self.codebook.weight.data.uniform_(-1 / codes, 1 / codes)
        self.dec = nn.Sequential(
            nn.Conv2d(dim, hidden, 3, 1, 1), ResBlock(hidden, 32), ResBlock(hidden, 32), nn.ReLU(),
            nn.ConvTranspose2d(hidden, hidden // 2, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(hidden // 2, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x):
        z = self.enc(x)
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.size(1))
        w = self.codebook.weight
        d = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ w.t() + w.pow(2).sum(1)
        idx = d.argmin(1)
        q = self.codebook(idx).view(z.size(0), z.size(2), z.size(3), -1).permute(0, 3, 1, 2)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        q = z + (q - z).detach()
        return self.dec(q), loss


class Coupling(nn.Module):
    def __init__(self, dim, hidden, flip):
        super().__init__()
        self.flip = flip
        self.half = dim // 2
        self.net = nn.Sequential(
            nn.Linear(self.half, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, dim)
        )
        self.scale = nn.Parameter(torch.zeros(self.half))

    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        if self.flip:
            a, b = b, a
        s, t = self.net(a).chunk(2, dim=1)
        s = torch.tanh(s) * self.scale.exp()
        b = b * torch.exp(s) + t
        x = torch.cat([b, a] if self.flip else [a, b], dim=1)
        return x, s.sum(1)


class RealNVP(nn.Module):
    def __init__(self, dim=6, hidden=64, layers=6):
        super().__init__()
        self.layers = nn.ModuleList([Coupling(dim, hidden, i % 2 == 1) for i in range(layers)])

    def forward(self, x):
        total = 0
        for layer in self.layers:
            x, ld = layer(x)
            total = total + ld
        logp = -0.5 * (x**2 + math.log(2 * math.pi)).sum(1)
        return logp + total


class EqualLinear(nn.Module):
    def __init__(self, i, o, lr=1.0, bias=0.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i) / lr)
        self.bias = nn.Parameter(torch.full((o,), float(bias)))
        self.scale = lr / math.sqrt(i)
        self.lr = lr

    def forward(self, x):
        return F.linear(x, self.weight * self.scale, self.bias * self.lr)


class ModulatedConv(nn.Module):
    def __init__(self, i, o, k, style, demod=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, o, i, k, k))
        self.scale = 1 / math.sqrt(i * k * k)
        self.affine = EqualLinear(style, i, bias=1.0)
        self.demod, self.k = demod, k

    def forward(self, x, w):
        b, c, h, wd = x.shape
        s = self.affine(w).view(b, 1, c, 1, 1)
        weight = self.scale * self.weight * s
        if self.demod:
            weight = weight * torch.rsqrt(weight.pow(2).sum([2, 3, 4], keepdim=True) + 1e-8)
        o = weight.size(1)
        weight = weight.view(b * o, c, self.k, self.k)
        y = F.conv2d(x.reshape(1, b * c, h, wd), weight, padding=self.k // 2, groups=b)
        return y.view(b, o, h, wd)


class StyleGAN2(nn.Module):
    def __init__(self, z=64, style=64, c=32, size=16):
        super().__init__()
        self.mapping = nn.ModuleList([EqualLinear(z if i == 0 else style, style, lr=0.01) for i in range(4)])
        self.const = nn.Parameter(torch.randn(1, c, 4, 4))
        n = int(math.log2(size)) - 1
        self.convs = nn.ModuleList([ModulatedConv(c, c, 3, style) for _ in range(2 * n - 1)])
        self.noises = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(2 * n - 1)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(c, 1, 1)) for _ in range(2 * n - 1)])
        self.rgbs = nn.ModuleList([ModulatedConv(c, 3, 1, style, demod=False) for _ in range(n)])

    def layer(self, i, x, w):
        y = self.convs[i](x, w)
        y = y + self.noises[i] * torch.randn(y.size(0), 1, y.size(2), y.size(3), device=y.device)
        return F.leaky_relu(y + self.biases[i], 0.2) * math.sqrt(2)

    def forward(self, z):
        w = z * torch.rsqrt(z.pow(2).mean(1, keepdim=True) + 1e-8)
        for lin in self.mapping:
            w = F.leaky_relu(lin(w), 0.2) * math.sqrt(2)
        x = self.layer(0, self.const.repeat(z.size(0), 1, 1, 1), w)
        rgb = self.rgbs[0](x, w)
        for i in range(1, len(self.rgbs)):
            x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = self.layer(2 * i - 1, x, w)
            x = self.layer(2 * i, x, w)
            rgb = F.interpolate(rgb, scale_factor=2, mode="bilinear", align_corners=False) + self.rgbs[i](x, w)
        return rgb


class ScoreNet(nn.Module):
    """A noise-conditional U-net with group norms, attention in the middle, and a score divided by the noise."""

    def __init__(self, c=32, sigma=25.0):
        super().__init__()
        self.sigma = sigma
        self.register_buffer("freqs", torch.randn(c // 2) * 30)
        self.temb = nn.Sequential(nn.Linear(c, c), nn.SiLU())
        self.c1, self.c2, self.c3 = (
            nn.Conv2d(1, c, 3, padding=1),
            nn.Conv2d(c, 2 * c, 3, 2, 1),
            nn.Conv2d(2 * c, 4 * c, 3, 2, 1),
        )
        self.d1, self.d2, self.d3 = nn.Linear(c, c), nn.Linear(c, 2 * c), nn.Linear(c, 4 * c)
        self.g1, self.g2, self.g3 = nn.GroupNorm(4, c), nn.GroupNorm(8, 2 * c), nn.GroupNorm(8, 4 * c)
        self.att = nn.MultiheadAttention(4 * c, 4, batch_first=True)
        self.u3 = nn.ConvTranspose2d(4 * c, 2 * c, 4, 2, 1)
        self.u2 = nn.ConvTranspose2d(4 * c, c, 4, 2, 1)
        self.e3, self.e2 = nn.Linear(c, 2 * c), nn.Linear(c, c)
        self.h3, self.h2 = nn.GroupNorm(8, 2 * c), nn.GroupNorm(4, c)
        self.out = nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x, t):
        p = t[:, None] * self.freqs * 2 * math.pi
        e = self.temb(torch.cat([p.sin(), p.cos()], -1))
        a = F.silu(self.g1(self.c1(x) + self.d1(e)[..., None, None]))
        b = F.silu(self.g2(self.c2(a) + self.d2(e)[..., None, None]))
        c = F.silu(self.g3(self.c3(b) + self.d3(e)[..., None, None]))
        s = c.flatten(2).transpose(1, 2)
        s = s + self.att(s, s, s, need_weights=False)[0]
        c = s.transpose(1, 2).view_as(c)
        h = F.silu(self.h3(self.u3(c) + self.e3(e)[..., None, None]))
        h = F.silu(self.h2(self.u2(torch.cat([h, b], 1)) + self.e2(e)[..., None, None]))
        h = self.out(torch.cat([h, a], 1))
        std = torch.sqrt((self.sigma ** (2 * t) - 1) / (2 * math.log(self.sigma)))
        return h / std[:, None, None, None]


NETS = {
    "VQ-VAE": (VQVAE, lambda: (torch.randn(8, 3, 32, 32),)),
    "Real NVP": (RealNVP, lambda: (torch.randn(64, 6),)),
    "StyleGAN2 generator": (StyleGAN2, lambda: (torch.randn(8, 64),)),
    "score network": (ScoreNet, lambda: (torch.randn(8, 1, 28, 28), torch.rand(8) * 0.9 + 0.1)),
}
