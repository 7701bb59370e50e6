"""Graphs, molecules and sets."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class EdgeGAT(nn.Module):
    """Graph attention over an edge list with edge features."""

    def __init__(self, dim, edge_dim, heads=4):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.lin = nn.Linear(dim, dim, bias=False)
        self.lin_edge = nn.Linear(edge_dim, dim, bias=False)
        self.a = nn.Parameter(torch.empty(heads, 3 * self.d))
        nn.init.xavier_uniform_(self.a)
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x, edges, attr):
        src, dst = edges
        h = self.lin(x).view(-1, self.heads, self.d)
        e = self.lin_edge(attr).view(-1, self.heads, self.d)
        z = torch.cat([h[src], h[dst], e], dim=-1)
        s = F.leaky_relu((z * self.a).sum(-1), 0.2)
        s = torch.exp(s - s.max())
        norm = torch.zeros(x.size(0), self.heads, device=x.device).index_add(0, dst, s)
        alpha = s / (norm[dst] + 1e-16)
        out = torch.zeros_like(h).index_add(0, dst, alpha.unsqueeze(-1) * h[src])
        return out.reshape(x.size(0), -1) + self.bias


class GATNet(nn.Module):
    def __init__(self, inputs=16, edge_dim=8, dim=64, layers=3, classes=4):
        super().__init__()
        self.inp = nn.Linear(inputs, dim)
        self.layers = nn.ModuleList([EdgeGAT(dim, edge_dim) for _ in range(layers)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(dim) for _ in range(layers)])
        self.out = nn.Linear(dim, classes)

    def forward(self, x, edges, attr):
        x = self.inp(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.elu(norm(layer(x, edges, attr)))
        return self.out(x)


def shifted_softplus(x):
    return F.softplus(x) - 0.6931471805599453


class SchNet(nn.Module):
    """Continuous-filter convolutions over all pairs of atoms."""

    def __init__(self, dim=64, layers=3, rbf=25, cutoff=5.0):
        super().__init__()
        self.cutoff = cutoff
        self.emb = nn.Embedding(20, dim, padding_idx=0)
        self.register_buffer("centers", torch.linspace(0, cutoff, rbf))
        self.gamma = 10.0
        self.filters = nn.ModuleList([nn.ModuleList([nn.Linear(rbf, dim), nn.Linear(dim, dim)]) for _ in range(layers)])
        self.in2f = nn.ModuleList([nn.Linear(dim, dim, bias=False) for _ in range(layers)])
        self.out1 = nn.ModuleList([nn.Linear(dim, dim) for _ in range(layers)])
        self.out2 = nn.ModuleList([nn.Linear(dim, dim) for _ in range(layers)])
        self.read1 = nn.Linear(dim, dim // 2)
        self.read2 = nn.Linear(dim // 2, 1)

    def forward(self, z, pos):
        n = z.size(1)
        d = (pos.unsqueeze(2) - pos.unsqueeze(1)).pow(2).sum(-1)
        eye = torch.eye(n, device=z.device)
        d = torch.sqrt(d + eye)
        rbf = torch.exp(-self.gamma * (d.unsqueeze(-1) - self.centers) ** 2)
        cut = 0.5 * (torch.cos(d * torch.pi / self.cutoff) + 1) * (d < self.cutoff).float() * (1 - eye)
        x = self.emb(z)
        for f, inn, o1, o2 in zip(self.filters, self.in2f, self.out1, self.out2, strict=True):
            w = f[1](shifted_softplus(f[0](rbf))) * cut.unsqueeze(-1)
            y = (inn(x).unsqueeze(1) * w).sum(dim=2)
            x = x + o2(shifted_softplus(o1(y)))
        return self.read2(shifted_softplus(self.read1(x))).sum(dim=1)


class GatedGraph(nn.Module):
    """Gated graph sequence network with typed edges, and a gated readout."""

    def __init__(self, inputs=8, dim=48, types=3, steps=4):
        super().__init__()
        self.steps = steps
        self.pad = dim - inputs
        self.msg = nn.ModuleList([nn.Linear(dim, dim) for _ in range(types)])
        self.gru = nn.GRUCell(dim, dim)
        self.gate = nn.Linear(dim + inputs, dim)
        self.val = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, 1)

    def forward(self, x, adj):
        b, n, _ = x.shape
        h = F.pad(x, (0, self.pad))
        for _ in range(self.steps):
            m = 0
            for k, lin in enumerate(self.msg):
                m = m + torch.bmm(adj[:, k], lin(h))
            h = self.gru(m.view(b * n, -1), h.reshape(b * n, -1)).view(b, n, -1)
        g = torch.sigmoid(self.gate(torch.cat([h, x], -1))) * torch.tanh(self.val(h))
        return self.out(torch.tanh(g.sum(1)))


class MAB(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)
        self.ln0 = nn.LayerNorm(dim)
        self.ln1 = nn.LayerNorm(dim)

    def forward(self, q, k):
        q, k, v = self.q(q), self.k(k), self.v(k)
        dim = q.size(-1)
        q_ = torch.cat(q.split(dim // self.heads, 2), 0)
        k_ = torch.cat(k.split(dim // self.heads, 2), 0)
        v_ = torch.cat(v.split(dim // self.heads, 2), 0)
        a = torch.softmax(q_.bmm(k_.transpose(1, 2)) / dim**0.5, 2)
        o = torch.cat((q_ + a.bmm(v_)).split(q.size(0), 0), 2)
        o = self.ln0(o)
        return self.ln1(o + F.relu(self.o(o)))


class SetTransformer(nn.Module):
    def __init__(self, inputs=3, dim=64, inducing=8, outputs=4):
        super().__init__()
        self.inp = nn.Linear(inputs, dim)
        self.ind = nn.ParameterList([nn.Parameter(torch.randn(1, inducing, dim) * 0.1) for _ in range(2)])
        self.m0 = nn.ModuleList([MAB(dim) for _ in range(2)])
        self.m1 = nn.ModuleList([MAB(dim) for _ in range(2)])
        self.seed = nn.Parameter(torch.Tensor(1, 4, dim))
        nn.init.xavier_uniform_(self.seed)
        self.pma = MAB(dim)
        self.sab = MAB(dim)
        self.out = nn.Linear(dim, outputs)

    def forward(self, x):
        x = self.inp(x)
        for ind, m0, m1 in zip(self.ind, self.m0, self.m1, strict=True):
            h = m0(ind.repeat(x.size(0), 1, 1), x)
            x = m1(x, h)
        s = self.pma(self.seed.repeat(x.size(0), 1, 1), x)
        return self.out(self.sab(s, s))


def _graph():
    return torch.randn(40, 16), torch.randint(40, (2, 160)), torch.randn(160, 8)


NETS = {
    "graph attention with edges": (GATNet, _graph),
    "SchNet": (SchNet, lambda: (torch.randint(1, 20, (4, 10)), 2 * torch.randn(4, 10, 3))),
    "gated graph network": (
        GatedGraph,
        lambda: (torch.randn(4, 12, 8), (torch.rand(4, 3, 12, 12) < 0.15).float()),
    ),
    "Set Transformer": (SetTransformer, lambda: (torch.randn(4, 50, 3),)),
}
