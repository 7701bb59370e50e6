"""Physics: operators, energies whose gradient is the output, fields."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class DeepONet(nn.Module):
    def __init__(self, sensors=50, coords=2, width=64, p=32):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Linear(sensors, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, p)
        )
        self.trunk = nn.Sequential(
            nn.Linear(coords, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, p), nn.Tanh()
        )
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, u, y):
        return torch.einsum("bp,bnp->bn", self.branch(u), self.trunk(y)) + self.b


class HamiltonianNet(nn.Module):
    """The time derivative of a state is the symplectic gradient of a learned energy."""

    def __init__(self, dim=4, width=128):
        super().__init__()
        self.dim = dim
        self.net = nn.Sequential(
            nn.Linear(dim, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, x):
        with torch.enable_grad():
            if not x.requires_grad:
                x = x.detach().requires_grad_(True)
            h = self.net(x).sum()
            (g,) = torch.autograd.grad(h, x, create_graph=True)
        dq, dp = g.split(self.dim // 2, dim=-1)
        return torch.cat([dp, -dq], dim=-1)


class SpectralConv(nn.Module):
    def __init__(self, width, modes):
        super().__init__()
        self.modes = modes
        scale = 1 / width**2
        self.w1 = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cfloat))
        self.w2 = nn.Parameter(scale * torch.rand(width, width, modes, modes, dtype=torch.cfloat))

    def forward(self, x):
        b, c, h, w = x.shape
        m = self.modes
        f = torch.fft.rfft2(x)
        out = torch.zeros(b, c, h, w // 2 + 1, dtype=torch.cfloat, device=x.device)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], self.w1)
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], self.w2)
        return torch.fft.irfft2(out, s=(h, w))


class FNO2d(nn.Module):
    def __init__(self, width=20, modes=6, layers=4):
        super().__init__()
        self.p = nn.Linear(3, width)
        self.conv = nn.ModuleList([SpectralConv(width, modes) for _ in range(layers)])
        self.w = nn.ModuleList([nn.Conv2d(width, width, 1) for _ in range(layers)])
        self.q1 = nn.Linear(width, 64)
        self.q2 = nn.Linear(64, 1)

    def forward(self, a):
        b, h, w, _ = a.shape
        gx = torch.linspace(0, 1, h, device=a.device).view(1, h, 1, 1).repeat(b, 1, w, 1)
        gy = torch.linspace(0, 1, w, device=a.device).view(1, 1, w, 1).repeat(b, h, 1, 1)
        x = self.p(torch.cat([a, gx, gy], dim=-1)).permute(0, 3, 1, 2)
        for i, (conv, lin) in enumerate(zip(self.conv, self.w, strict=True)):
            x = conv(x) + lin(x)
            if i < len(self.w) - 1:
                x = F.gelu(x)
        return self.q2(F.gelu(self.q1(x.permute(0, 2, 3, 1))))


class NeRF(nn.Module):
    """A radiance field with positional encodings, composited along rays."""

    def __init__(self, width=64, lx=6, ld=3):
        super().__init__()
        self.lx, self.ld = lx, ld
        ix, idd = 3 + 6 * lx, 3 + 6 * ld
        self.pts = nn.ModuleList(
            [nn.Linear(ix, width)] + [nn.Linear(width + (ix if i == 2 else 0), width) for i in range(1, 5)]
        )
        self.sigma = nn.Linear(width, 1)
        self.feat = nn.Linear(width, width)
        self.view = nn.Linear(width + idd, width // 2)
        self.rgb = nn.Linear(width // 2, 3)

    @staticmethod
    def encode(x, n):
        out = [x]
        for i in range(n):
            out += [torch.sin(2.0**i * x), torch.cos(2.0**i * x)]
        return torch.cat(out, dim=-1)

    def forward(self, pts, dirs):
        ex = self.encode(pts, self.lx)
        ed = self.encode(dirs, self.ld).unsqueeze(1).expand(-1, pts.size(1), -1)
        h = ex
        for i, lin in enumerate(self.pts):
            if i == 2:
                h = torch.cat([ex, h], -1)
            h = F.relu(lin(h))
        sigma = F.relu(self.sigma(h)).squeeze(-1)
        h = F.relu(self.view(torch.cat([self.feat(h), ed], -1)))
        rgb = torch.sigmoid(self.rgb(h))
        alpha = 1 - torch.exp(-sigma * 0.1)
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * trans
        return (weights.unsqueeze(-1) * rgb).sum(1)


NETS = {
    "DeepONet": (DeepONet, lambda: (torch.randn(16, 50), torch.rand(16, 30, 2))),
    "Hamiltonian net": (HamiltonianNet, lambda: (torch.randn(64, 4),)),
    "FNO 2d": (FNO2d, lambda: (torch.randn(4, 32, 32, 1),)),
    "NeRF": (NeRF, lambda: (torch.rand(32, 16, 3) * 2 - 1, F.normalize(torch.randn(32, 3), dim=-1))),
}
