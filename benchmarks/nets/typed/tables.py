"""Tables and decisions: crosses of features, attentive transformers, soft trees, value networks, mixers."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class DCNv2(nn.Module):
    """Deep and cross network with low-rank crosses, over embedded fields and dense columns."""

    def __init__(self, fields=(50, 20, 100, 7), dense=6, dim=8, layers=3, rank=16):
        super().__init__()
        self.embs = nn.ModuleList([nn.Embedding(n, dim) for n in fields])
        for e in self.embs:
            nn.init.uniform_(e.weight, -0.05, 0.05)
        self.bn = nn.BatchNorm1d(dense)
        d = dim * len(fields) + dense
        self.u = nn.ModuleList([nn.Linear(d, rank, bias=False) for _ in range(layers)])
        self.v = nn.ModuleList([nn.Linear(rank, d) for _ in range(layers)])
        self.deep = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU())
        self.out = nn.Linear(64 + d, 1)

    def forward(self, cat, num):
        x0 = torch.cat([e(cat[:, i]) for i, e in enumerate(self.embs)] + [self.bn(num)], dim=1)
        x = x0
        for u, v in zip(self.u, self.v, strict=True):
            x = x0 * v(u(x)) + x
        return torch.sigmoid(self.out(torch.cat([x, self.deep(x0)], dim=1))).squeeze(1)


class GLUBlock(nn.Module):
    def __init__(self, i, o, shared=None):
        super().__init__()
        self.fc = shared if shared is not None else nn.Linear(i, 2 * o, bias=False)
        self.bn = nn.BatchNorm1d(2 * o, momentum=0.02)

    def forward(self, x):
        return F.glu(self.bn(self.fc(x)))


class FeatureTransformer(nn.Module):
    def __init__(self, i, o, shared):
        super().__init__()
        self.a = GLUBlock(i, o, shared[0])
        self.b = GLUBlock(o, o, shared[1])
        self.c = GLUBlock(o, o)
        self.d = GLUBlock(o, o)

    def forward(self, x):
        s = math.sqrt(0.5)
        x = self.a(x)
        x = (x + self.b(x)) * s
        x = (x + self.c(x)) * s
        return (x + self.d(x)) * s


class TabNet(nn.Module):
    """Attentive steps over features; the mask is a softmax here."""

    def __init__(self, features=20, n_d=16, n_a=16, steps=3, gamma=1.3, classes=3):
        super().__init__()
        self.n_d, self.gamma = n_d, gamma
        n = n_d + n_a
        self.bn = nn.BatchNorm1d(features)
        shared = [nn.Linear(features, 2 * n, bias=False), nn.Linear(n, 2 * n, bias=False)]
        self.first = FeatureTransformer(features, n, shared)
        self.steps = nn.ModuleList([FeatureTransformer(features, n, shared) for _ in range(steps)])
        self.atts = nn.ModuleList([nn.Linear(n_a, features, bias=False) for _ in range(steps)])
        self.att_bns = nn.ModuleList([nn.BatchNorm1d(features) for _ in range(steps)])
        self.out = nn.Linear(n_d, classes)

    def forward(self, x):
        x = self.bn(x)
        prior = torch.ones_like(x)
        a = self.first(x)[:, self.n_d :]
        total = 0
        for step, att, bn in zip(self.steps, self.atts, self.att_bns, strict=True):
            m = torch.softmax(bn(att(a)) * prior, dim=-1)
            prior = prior * (self.gamma - m)
            h = step(m * x)
            total = total + F.relu(h[:, : self.n_d])
            a = h[:, self.n_d :]
        return self.out(total)


class SoftTrees(nn.Module):
    """Neural decision forest: oblivious soft trees on a small encoder."""

    def __init__(self, features=16, trees=12, depth=4, outputs=2):
        super().__init__()
        self.depth = depth
        self.enc = nn.Sequential(nn.Linear(features, 64), nn.SiLU(), nn.Linear(64, 64))
        self.split = nn.Linear(64, trees * depth)
        self.leaf = nn.Parameter(torch.randn(trees, 2**depth, outputs) * 0.1)
        codes = torch.arange(2**depth).unsqueeze(1) >> torch.arange(depth)
        self.register_buffer("bits", (codes & 1).float())

    def forward(self, x):
        p = torch.sigmoid(self.split(self.enc(x))).view(x.size(0), -1, 1, self.depth)
        route = (p * self.bits + (1 - p) * (1 - self.bits)).prod(dim=-1)
        return torch.einsum("btl,tlo->bo", route, self.leaf) / self.leaf.size(0)


class NoisyLinear(nn.Module):
    def __init__(self, i, o, sigma=0.5):
        super().__init__()
        self.i, self.o = i, o
        self.weight_mu = nn.Parameter(torch.empty(o, i))
        self.weight_sigma = nn.Parameter(torch.empty(o, i))
        self.bias_mu = nn.Parameter(torch.empty(o))
        self.bias_sigma = nn.Parameter(torch.empty(o))
        bound = 1 / math.sqrt(i)
        self.weight_mu.data.uniform_(-bound, bound)
        self.bias_mu.data.uniform_(-bound, bound)
        self.weight_sigma.data.fill_(sigma / math.sqrt(i))
        self.bias_sigma.data.fill_(sigma / math.sqrt(o))

    @staticmethod
    def scale(n, device):
        x = torch.randn(n, device=device)
        return x.sign() * x.abs().sqrt()

    def forward(self, x):
        if not self.training:
            return F.linear(x, self.weight_mu, self.bias_mu)
        a, b = self.scale(self.i, x.device), self.scale(self.o, x.device)
        w = self.weight_mu + self.weight_sigma * torch.outer(b, a)
        return F.linear(x, w, self.bias_mu + self.bias_sigma * b)


class RainbowDQN(nn.Module):
    """Dueling, distributional and noisy."""

    def __init__(self, frames=4, actions=6, atoms=21):
        super().__init__()
        self.actions, self.atoms = actions, atoms
        self.conv = nn.Sequential(
            nn.Conv2d(frames, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU()
        )
        self.v1 = NoisyLinear(1152, 64)
        self.v2 = NoisyLinear(64, atoms)
        self.a1 = NoisyLinear(1152, 64)
        self.a2 = NoisyLinear(64, actions * atoms)
        self.register_buffer("support", torch.linspace(-10, 10, atoms))

    def forward(self, x):
        h = self.conv(x).flatten(1)
        v = self.v2(F.relu(self.v1(h))).view(-1, 1, self.atoms)
        a = self.a2(F.relu(self.a1(h))).view(-1, self.actions, self.atoms)
        q = F.softmax(v + a - a.mean(1, keepdim=True), dim=-1)
        return (q * self.support).sum(-1)


class QMIX(nn.Module):
    """Agents with a GRU cell, and a mixer whose positive weights come from the state."""

    def __init__(self, agents=4, obs=12, state=20, actions=5, hidden=32, mix=16):
        super().__init__()
        self.agents, self.hidden, self.mix = agents, hidden, mix
        self.fc1 = nn.Linear(obs, hidden)
        self.rnn = nn.GRUCell(hidden, hidden)
        self.fc2 = nn.Linear(hidden, actions)
        self.w1 = nn.Linear(state, agents * mix)
        self.b1 = nn.Linear(state, mix)
        self.w2 = nn.Linear(state, mix)
        self.b2 = nn.Sequential(nn.Linear(state, mix), nn.ReLU(), nn.Linear(mix, 1))

    def forward(self, obs, state):
        b, t = obs.shape[:2]
        h = obs.new_zeros(b * self.agents, self.hidden)
        total = []
        for i in range(t):
            x = F.relu(self.fc1(obs[:, i].reshape(b * self.agents, -1)))
            h = self.rnn(x, h)
            q = self.fc2(h).view(b, self.agents, -1).max(dim=-1)[0]
            s = state[:, i]
            w1 = torch.abs(self.w1(s)).view(b, self.agents, self.mix)
            hid = F.elu(torch.bmm(q.unsqueeze(1), w1).squeeze(1) + self.b1(s))
            w2 = torch.abs(self.w2(s))
            total.append((hid * w2).sum(-1, keepdim=True) + self.b2(s))
        return torch.stack(total, dim=1)


class DecisionTransformer(nn.Module):
    def __init__(self, state=11, act=3, dim=64, layers=3, heads=2, length=20):
        super().__init__()
        self.e_t = nn.Embedding(1000, dim)
        self.e_r = nn.Linear(1, dim)
        self.e_s = nn.Linear(state, dim)
        self.e_a = nn.Linear(act, dim)
        self.ln = nn.LayerNorm(dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.predict = nn.Sequential(nn.Linear(dim, act), nn.Tanh())
        mask = torch.triu(torch.full((3 * length, 3 * length), float("-inf")), 1)
        self.register_buffer("mask", mask)

    def forward(self, states, actions, returns, steps):
        b, t = states.shape[:2]
        time = self.e_t(steps)
        s = self.e_s(states) + time
        a = self.e_a(actions) + time
        r = self.e_r(returns) + time
        x = torch.stack((r, s, a), dim=2).reshape(b, 3 * t, -1)
        x = self.body(self.ln(x), mask=self.mask[: 3 * t, : 3 * t])
        return self.predict(x.view(b, t, 3, -1)[:, :, 1])


NETS = {
    "DCN v2": (DCNv2, lambda: (torch.randint(7, (32, 4)), torch.randn(32, 6))),
    "TabNet": (TabNet, lambda: (torch.randn(64, 20),)),
    "soft trees": (SoftTrees, lambda: (torch.randn(64, 16),)),
    "Rainbow": (RainbowDQN, lambda: (torch.rand(8, 4, 84, 84)[..., :80, :80],)),
    "QMIX": (QMIX, lambda: (torch.randn(8, 5, 4, 12), torch.randn(8, 5, 20))),
    "decision transformer": (
        DecisionTransformer,
        lambda: (
            torch.randn(4, 10, 11),
            torch.rand(4, 10, 3) * 2 - 1,
            torch.randn(4, 10, 1),
            torch.arange(10).repeat(4, 1),
        ),
    ),
}
