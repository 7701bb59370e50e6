"""Capsules, memories, experts, state spaces, flows, points, plans of actions, recommendations: typed for batch 3."""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn


def squash(s, dim=-1):
    n2 = (s * s).sum(dim, keepdim=True)
    return n2 / (1 + n2) * s / torch.sqrt(n2 + 1e-8)


class CapsNet(nn.Module):
    def __init__(self, classes=10, caps=8, dim=8, out_dim=16, iterations=3):
        super().__init__()
        self.conv = nn.Conv2d(1, 64, 9)
        self.primary = nn.Conv2d(64, caps * dim, 9, stride=2)
        self.dim, self.iterations = dim, iterations
        self.W = nn.Parameter(0.01 * torch.randn(1, caps * 36, classes, out_dim, dim))

    def forward(self, x):
        x = self.primary(F.relu(self.conv(x)))
        b = x.size(0)
        u = squash(x.view(b, -1, self.dim, 36).transpose(2, 3).reshape(b, -1, self.dim))
        u_hat = (self.W @ u[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros(u_hat.shape[:3], device=x.device)
        for i in range(self.iterations):
            c = F.softmax(logits, dim=2)
            v = squash((c.unsqueeze(-1) * u_hat).sum(1))
            if i < self.iterations - 1:
                logits = logits + (u_hat * v.unsqueeze(1)).sum(-1)
        return v.norm(dim=-1)


class MemN2N(nn.Module):
    def __init__(self, vocab=100, dim=32, hops=3, memories=20):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(vocab, dim, padding_idx=0) for _ in range(hops + 1)])
        for e in self.embeddings:
            nn.init.normal_(e.weight, std=0.1)
        self.temporal_a = nn.Parameter(torch.randn(memories, dim) * 0.1)
        self.temporal_c = nn.Parameter(torch.randn(memories, dim) * 0.1)

    def forward(self, story, query):
        u = self.embeddings[0](query).sum(1)
        for a, c in zip(self.embeddings[:-1], self.embeddings[1:], strict=True):
            m = a(story).sum(2) + self.temporal_a
            p = F.softmax(torch.einsum("bmd,bd->bm", m, u), dim=-1)
            o = torch.einsum("bm,bmd->bd", p, c(story).sum(2) + self.temporal_c)
            u = u + o
        return u @ self.embeddings[-1].weight.t()


class HyperConv(nn.Module):
    """A static hypernetwork: kernels are made from one embedding per layer."""

    def __init__(self, channels=16, layers=3, z=32, hidden=32):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.z = nn.Parameter(torch.randn(layers, z))
        self.w1 = nn.Linear(z, channels * hidden)
        self.w2 = nn.Linear(hidden, channels * 9)
        self.bns = nn.ModuleList([nn.BatchNorm2d(channels) for _ in range(layers)])
        self.fc = nn.Linear(channels, 10)
        self.channels, self.hidden = channels, hidden

    def forward(self, x):
        x = self.stem(x)
        for z, bn in zip(self.z, self.bns, strict=True):
            k = self.w2(self.w1(z).view(self.channels, self.hidden)).view(self.channels, self.channels, 3, 3)
            x = x + F.relu(bn(F.conv2d(x, k, padding=1)))
        return self.fc(x.mean((2, 3)))


class SwitchFFN(nn.Module):
    def __init__(self, dim, hidden, experts=4):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim)) for _ in range(experts)]
        )

    def forward(self, x):
        flat = x.reshape(-1, x.size(-1))
        p = self.gate(flat).softmax(-1)
        top, index = p.max(-1)
        out = torch.zeros_like(flat)
        for i, expert in enumerate(self.experts):
            chosen = index == i
            out[chosen] = expert(flat[chosen]) * top[chosen].unsqueeze(-1)
        return out.view_as(x)


class SwitchTransformer(nn.Module):
    def __init__(self, vocab=100, dim=32, heads=4, depth=2, length=24):
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, dim), nn.Embedding(length, dim)
        self.attn = nn.ModuleList([nn.MultiheadAttention(dim, heads, batch_first=True) for _ in range(depth)])
        self.ffn = nn.ModuleList([SwitchFFN(dim, 4 * dim) for _ in range(depth)])
        self.n1 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.n2 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab, bias=False)

    def forward(self, idx):
        t = idx.size(1)
        x = self.tok(idx) + self.pos(torch.arange(t, device=idx.device))
        mask = torch.full((t, t), float("-inf"), device=idx.device).triu(1)
        for a, f, n1, n2 in zip(self.attn, self.ffn, self.n1, self.n2, strict=True):
            h = n1(x)
            x = x + a(h, h, h, attn_mask=mask, need_weights=False)[0]
            x = x + f(n2(x))
        return self.head(self.norm(x))


class S4D(nn.Module):
    def __init__(self, dim, state=32, dt_min=0.001, dt_max=0.1):
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(dim) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min))
        self.C = nn.Parameter(torch.view_as_real(torch.randn(dim, state // 2, dtype=torch.cfloat)))
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(dim, state // 2)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(state // 2).float().repeat(dim, 1))
        self.D = nn.Parameter(torch.randn(dim))
        self.out = nn.Sequential(nn.Conv1d(dim, 2 * dim, 1), nn.GLU(dim=1))

    def forward(self, u):
        length = u.size(-1)
        dt = self.log_dt.exp()
        a = -self.log_A_real.exp() + 1j * self.A_imag
        dta = a * dt.unsqueeze(-1)
        c = torch.view_as_complex(self.C) * (dta.exp() - 1) / a
        k = 2 * torch.einsum("hn,hnl->hl", c, torch.exp(dta.unsqueeze(-1) * torch.arange(length, device=u.device))).real
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * torch.fft.rfft(k, n=2 * length), n=2 * length)
        return self.out(F.gelu(y[..., :length] + u * self.D.unsqueeze(-1)))


class S4Classifier(nn.Module):
    def __init__(self, dim=32, depth=3):
        super().__init__()
        self.encoder = nn.Linear(1, dim)
        self.layers = nn.ModuleList([S4D(dim) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(depth)])
        self.decoder = nn.Linear(dim, 10)

    def forward(self, x):
        x = self.encoder(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x.transpose(1, 2)).transpose(1, 2))
        return self.decoder(x.mean(1))


class LocalAttention(nn.Module):
    """Sliding windows of keys, and the first tokens that all see."""

    def __init__(self, dim=32, heads=4, window=4, globals_=2):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.heads, self.window, self.globals = heads, window, globals_

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        i = torch.arange(t, device=x.device)
        near = (i[:, None] - i[None]).abs() <= self.window
        seen = near | (i[None] < self.globals) | (i[:, None] < self.globals)
        scores = (q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))).masked_fill(~seen, -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class Longformer(nn.Module):
    def __init__(self, vocab=100, dim=32, depth=2, length=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim, padding_idx=0)
        self.pos = nn.Parameter(torch.randn(1, length, dim) * 0.02)
        self.ln = nn.LayerNorm(dim)
        self.attn = nn.ModuleList([LocalAttention(dim) for _ in range(depth)])
        self.mlp = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(depth)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2 * depth)])
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 3))

    def forward(self, idx):
        x = self.ln(self.tok(idx) + self.pos[:, : idx.size(1)])
        for i, (a, m) in enumerate(zip(self.attn, self.mlp, strict=True)):
            x = self.norms[2 * i](x + a(x))
            x = self.norms[2 * i + 1](x + m(x))
        return self.head(x[:, 0])


class MaskedLinear(nn.Linear):
    def set_mask(self, mask):
        self.register_buffer("mask", mask)
        return self

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class MADE(nn.Module):
    def __init__(self, dim=8, hidden=64):
        super().__init__()
        m_in = torch.arange(dim)
        m_hidden = torch.arange(hidden) % (dim - 1)
        self.l1 = MaskedLinear(dim, hidden).set_mask((m_hidden[:, None] >= m_in[None]).float())
        self.l2 = MaskedLinear(hidden, hidden).set_mask((m_hidden[:, None] >= m_hidden[None]).float())
        m_out = (m_in[:, None] > m_hidden[None]).float().repeat(2, 1)
        self.l3 = MaskedLinear(hidden, 2 * dim).set_mask(m_out)

    def forward(self, x):
        shift, log_scale = self.l3(F.relu(self.l2(F.relu(self.l1(x))))).chunk(2, -1)
        return shift, torch.tanh(log_scale)


class MAF(nn.Module):
    def __init__(self, dim=8, depth=4):
        super().__init__()
        self.made = nn.ModuleList([MADE(dim) for _ in range(depth)])

    def forward(self, x):
        total = 0
        for made in self.made:
            shift, log_scale = made(x)
            x = ((x - shift) * torch.exp(-log_scale)).flip(-1)
            total = total - log_scale.sum(-1)
        return x, total


class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(k, 32, 1), nn.BatchNorm1d(32), nn.ReLU(), nn.Conv1d(32, 64, 1), nn.BatchNorm1d(64), nn.ReLU()
        )
        self.fc = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, k * k))
        self.k = k

    def forward(self, x):
        m = self.fc(self.conv(x).max(2).values).view(-1, self.k, self.k)
        return m + torch.eye(self.k, device=x.device)


class PointNet(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.t1, self.t2 = TNet(3), TNet(32)
        self.c1, self.b1 = nn.Conv1d(3, 32, 1), nn.BatchNorm1d(32)
        self.c2, self.b2 = nn.Conv1d(32, 64, 1), nn.BatchNorm1d(64)
        self.c3, self.b3 = nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128)
        self.head = nn.Sequential(
            nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, classes)
        )

    def forward(self, x):
        x = torch.bmm(x.transpose(1, 2), self.t1(x)).transpose(1, 2)
        x = F.relu(self.b1(self.c1(x)))
        x = torch.bmm(x.transpose(1, 2), self.t2(x)).transpose(1, 2)
        x = F.relu(self.b2(self.c2(x)))
        return F.log_softmax(self.head(self.b3(self.c3(x)).max(2).values), dim=-1)


class GIN(nn.Module):
    def __init__(self, features=16, dim=32, depth=3, classes=2):
        super().__init__()
        dims = [features] + [dim] * depth
        self.mlps = nn.ModuleList(
            [nn.Sequential(nn.Linear(i, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim)) for i in dims[:-1]]
        )
        self.eps = nn.Parameter(torch.zeros(depth))
        self.bns = nn.ModuleList([nn.BatchNorm1d(dim) for _ in range(depth)])
        self.heads = nn.ModuleList([nn.Linear(d, classes) for d in dims])

    def forward(self, x, edges, batch):
        n = 4
        out = 0
        for i, head in enumerate(self.heads):
            out = out + head(x.new_zeros(n, x.size(1)).index_add(0, batch, x))
            if i < len(self.mlps):
                agg = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
                x = F.relu(self.bns[i](self.mlps[i]((1 + self.eps[i]) * x + agg)))
        return out


class DiffusionBlock(nn.Module):
    def __init__(self, i, o, emb):
        super().__init__()
        self.n1, self.c1 = nn.GroupNorm(8, i), nn.Conv2d(i, o, 3, padding=1)
        self.t = nn.Linear(emb, 2 * o)
        self.n2, self.c2 = nn.GroupNorm(8, o), nn.Conv2d(o, o, 3, padding=1)
        nn.init.zeros_(self.c2.weight)
        nn.init.zeros_(self.c2.bias)
        self.skip = nn.Conv2d(i, o, 1) if i != o else nn.Identity()

    def forward(self, x, t):
        h = self.c1(F.silu(self.n1(x)))
        scale, shift = self.t(F.silu(t))[:, :, None, None].chunk(2, 1)
        h = self.n2(h) * (1 + scale) + shift
        return self.skip(x) + self.c2(F.silu(h))


class DDPM(nn.Module):
    def __init__(self, dim=16):
        super().__init__()
        self.dim = dim
        self.time = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, 4 * dim))
        self.stem = nn.Conv2d(3, dim, 3, padding=1)
        self.d1, self.d2 = DiffusionBlock(dim, dim, 4 * dim), DiffusionBlock(dim, 2 * dim, 4 * dim)
        self.down, self.mid = nn.Conv2d(dim, dim, 3, 2, 1), DiffusionBlock(2 * dim, 2 * dim, 4 * dim)
        self.up, self.u1 = nn.Conv2d(2 * dim, dim, 3, padding=1), DiffusionBlock(2 * dim, dim, 4 * dim)
        self.norm, self.out = nn.GroupNorm(8, dim), nn.Conv2d(dim, 3, 3, padding=1)

    def forward(self, x, t):
        half = self.dim // 2
        freq = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        angles = t[:, None].float() * freq[None]
        emb = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        h1 = self.d1(self.stem(x), emb)
        h = self.mid(self.d2(self.down(h1), emb), emb)
        h = self.up(F.interpolate(h, scale_factor=2, mode="nearest"))
        return self.out(F.silu(self.norm(self.u1(torch.cat([h, h1], 1), emb))))


def ortho(layer, std=2**0.5, bias=0.0):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, bias)
    return layer


class PPOAgent(nn.Module):
    def __init__(self, actions=6):
        super().__init__()
        self.network = nn.Sequential(
            ortho(nn.Conv2d(4, 32, 8, 4)), nn.ReLU(), ortho(nn.Conv2d(32, 64, 4, 2)), nn.ReLU(),
            ortho(nn.Conv2d(64, 64, 3, 1)), nn.ReLU(), nn.Flatten(), ortho(nn.Linear(64 * 16, 128)), nn.ReLU(),
        )  # fmt: skip
        self.lstm = nn.LSTM(128, 64)
        self.actor = ortho(nn.Linear(64, actions), 0.01)
        self.critic = ortho(nn.Linear(64, 1), 1)

    def forward(self, frames, done):
        t, b = done.shape
        h = self.network(frames.flatten(0, 1) / 255.0).view(t, b, -1)
        state = (h.new_zeros(1, b, 64), h.new_zeros(1, b, 64))
        outs = []
        for x, d in zip(h, done, strict=True):
            keep = (1.0 - d).view(1, -1, 1)
            o, state = self.lstm(x.unsqueeze(0), (keep * state[0], keep * state[1]))
            outs.append(o)
        h = torch.cat(outs)
        return self.actor(h).log_softmax(-1), self.critic(h).squeeze(-1)


class Dice(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.bn = nn.BatchNorm1d(dim, affine=False)
        self.alpha = nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        p = torch.sigmoid(self.bn(x))
        return p * x + (1 - p) * self.alpha * x


class DIN(nn.Module):
    def __init__(self, items=200, dim=16):
        super().__init__()
        self.item, self.user = nn.Embedding(items, dim), nn.Embedding(50, dim)
        self.att = nn.Sequential(nn.Linear(4 * dim, 32), nn.Sigmoid(), nn.Linear(32, 1))
        self.mlp = nn.Sequential(nn.Linear(3 * dim, 64), Dice(64), nn.Linear(64, 32), Dice(32), nn.Linear(32, 1))

    def forward(self, user, history, target):
        h, q = self.item(history), self.item(target)
        qe = q.unsqueeze(1).expand_as(h)
        w = self.att(torch.cat([qe, h, qe - h, qe * h], -1)).masked_fill((history == 0).unsqueeze(-1), 0.0)
        interest = (w * h).sum(1)
        return torch.sigmoid(self.mlp(torch.cat([self.user(user), interest, q], -1))).squeeze(-1)


class XDeepFM(nn.Module):
    def __init__(self, fields=8, vocab=50, dim=8, layers=(16, 16)):
        super().__init__()
        self.emb, self.linear = nn.Embedding(fields * vocab, dim), nn.Embedding(fields * vocab, 1)
        self.register_buffer("offsets", torch.arange(fields) * vocab)
        sizes = [fields, *layers]
        self.cin = nn.ModuleList([nn.Conv1d(fields * a, b, 1) for a, b in itertools.pairwise(sizes)])
        self.cin_out = nn.Linear(sum(layers), 1)
        self.dnn = nn.Sequential(
            nn.Linear(fields * dim, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, x):
        x = x + self.offsets
        e = self.emb(x)
        h, pooled = e, []
        for conv in self.cin:
            z = (e.unsqueeze(2) * h.unsqueeze(1)).flatten(1, 2)
            h = F.relu(conv(z))
            pooled.append(h.sum(-1))
        y = self.linear(x).sum(1) + self.cin_out(torch.cat(pooled, 1)) + self.dnn(e.flatten(1))
        return y.squeeze(-1)


class NHiTS(nn.Module):
    def __init__(self, length=48, horizon=12, pools=(8, 4, 1), hidden=64):
        super().__init__()
        self.pools, self.horizon, self.length = pools, horizon, length
        self.mlps, self.backs, self.fores = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for p in pools:
            n = math.ceil(length / p)
            self.mlps.append(nn.Sequential(nn.Linear(n, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()))
            self.backs.append(nn.Linear(hidden, max(length // p, 1)))
            self.fores.append(nn.Linear(hidden, max(horizon // p, 1)))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        x, y = x - mean, 0
        for p, mlp, back, fore in zip(self.pools, self.mlps, self.backs, self.fores, strict=True):
            h = mlp(F.max_pool1d(x.unsqueeze(1), p, p, ceil_mode=True).squeeze(1))
            x = x - F.interpolate(back(h).unsqueeze(1), size=self.length, mode="linear").squeeze(1)
            y = y + F.interpolate(fore(h).unsqueeze(1), size=self.horizon, mode="linear").squeeze(1)
        return y + mean


class RelationFiLM(nn.Module):
    """Questions about pictures: feature-wise modulation, then all pairs of objects."""

    def __init__(self, vocab=40, dim=24):
        super().__init__()
        self.emb, self.gru = nn.Embedding(vocab, 32), nn.GRU(32, 64, batch_first=True)
        self.c1, self.c2 = nn.Conv2d(3, dim, 3, 2, 1), nn.Conv2d(dim, dim, 3, 2, 1)
        self.b1, self.b2 = nn.BatchNorm2d(dim), nn.BatchNorm2d(dim, affine=False)
        self.film = nn.Linear(64, 2 * dim)
        self.g = nn.Sequential(nn.Linear(2 * (dim + 2) + 64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.f = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10))

    def forward(self, image, question):
        q = self.gru(self.emb(question))[1][-1]
        gamma, beta = self.film(q)[:, :, None, None].chunk(2, 1)
        x = F.relu(self.b1(self.c1(image)))
        x = F.relu((1 + gamma) * self.b2(self.c2(x)) + beta)
        b, _, h, w = x.shape
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        x = torch.cat([x, torch.stack([ys, xs]).expand(b, -1, -1, -1)], 1).flatten(2).transpose(1, 2)
        n = x.size(1)
        left = x.unsqueeze(1).expand(-1, n, -1, -1)
        right = x.unsqueeze(2).expand(-1, -1, n, -1)
        pairs = torch.cat([left, right, q[:, None, None].expand(-1, n, n, -1)], -1)
        return self.f(self.g(pairs).sum((1, 2)))


class DETR(nn.Module):
    def __init__(self, classes=5, dim=32, queries=10):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        )  # fmt: skip
        self.proj = nn.Conv2d(32, dim, 1)
        self.transformer = nn.Transformer(dim, 4, 2, 2, 64, dropout=0.1, batch_first=True)
        self.query = nn.Parameter(torch.rand(queries, dim))
        self.row, self.col = nn.Parameter(torch.rand(20, dim // 2)), nn.Parameter(torch.rand(20, dim // 2))
        self.cls = nn.Linear(dim, classes + 1)
        self.box = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 4))

    def forward(self, x):
        h = self.proj(self.backbone(x))
        b, _, hh, ww = h.shape
        pos = torch.cat(
            [self.col[:ww].unsqueeze(0).repeat(hh, 1, 1), self.row[:hh].unsqueeze(1).repeat(1, ww, 1)], -1
        ).flatten(0, 1)
        out = self.transformer(pos + 0.1 * h.flatten(2).transpose(1, 2), self.query.unsqueeze(0).repeat(b, 1, 1))
        return self.cls(out), self.box(out).sigmoid()


class CRNN(nn.Module):
    def __init__(self, chars=30):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, 1, 1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Conv2d(32, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
            nn.MaxPool2d((2, 1)), nn.Conv2d(64, 64, (4, 1)), nn.ReLU(),
        )  # fmt: skip
        self.rnn = nn.LSTM(64, 32, 2, bidirectional=True)
        self.fc = nn.Linear(64, chars)

    def forward(self, x):
        h = self.cnn(x).squeeze(2).permute(2, 0, 1)
        return F.log_softmax(self.fc(self.rnn(h)[0]), 2)


class NeuMF(nn.Module):
    def __init__(self, users=60, items=80, dim=8):
        super().__init__()
        self.ug, self.ig = nn.Embedding(users, dim), nn.Embedding(items, dim)
        self.um, self.im = nn.Embedding(users, 2 * dim), nn.Embedding(items, 2 * dim)
        for e in (self.ug, self.ig, self.um, self.im):
            nn.init.normal_(e.weight, std=0.01)
        self.mlp = nn.Sequential(
            nn.Linear(4 * dim, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, dim), nn.ReLU()
        )
        self.out = nn.Linear(2 * dim, 1)

    def forward(self, u, i):
        mlp = self.mlp(torch.cat([self.um(u), self.im(i)], -1))
        return torch.sigmoid(self.out(torch.cat([self.ug(u) * self.ig(i), mlp], -1))).squeeze(-1)


class ConvVAE(nn.Module):
    def __init__(self, latent=16):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.BatchNorm2d(32),
            nn.LeakyReLU(0.2), nn.Flatten(),
        )  # fmt: skip
        self.mu, self.logvar = nn.Linear(2048, latent), nn.Linear(2048, latent)
        self.lift = nn.Linear(latent, 2048)
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1),
            nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
        return self.dec(self.lift(z).view(-1, 32, 8, 8)), kl


class Seq2Seq(nn.Module):
    """Additive attention over a bidirectional encoder, teacher forcing."""

    def __init__(self, vocab=80, emb=24, hidden=32):
        super().__init__()
        self.src, self.tgt = nn.Embedding(vocab, emb), nn.Embedding(vocab, emb)
        self.encoder = nn.GRU(emb, hidden, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(hidden, hidden)
        self.cell = nn.GRUCell(emb + 2 * hidden, hidden)
        self.Wa, self.Ua, self.va = nn.Linear(hidden, hidden), nn.Linear(2 * hidden, hidden), nn.Linear(hidden, 1)
        self.out = nn.Linear(hidden + 2 * hidden + emb, vocab)

    def forward(self, src, tgt):
        memory, last = self.encoder(self.src(src))
        s, keys = torch.tanh(self.bridge(last[1])), self.Ua(memory)
        logits = []
        for y in self.tgt(tgt).unbind(1):
            e = self.va(torch.tanh(self.Wa(s).unsqueeze(1) + keys)).squeeze(-1)
            c = torch.bmm(F.softmax(e, -1).unsqueeze(1), memory).squeeze(1)
            s = self.cell(torch.cat([y, c], -1), s)
            logits.append(self.out(torch.cat([s, c, y], -1)))
        return torch.stack(logits, 1)


def graph():
    return torch.randn(40, 16), torch.randint(40, (2, 120)), torch.arange(40) // 10


NETS = {
    "CapsNet": (CapsNet, lambda: (torch.randn(4, 1, 28, 28),)),
    "MemN2N": (MemN2N, lambda: (torch.randint(1, 100, (8, 20, 6)), torch.randint(1, 100, (8, 6)))),
    "hypernetwork": (HyperConv, lambda: (torch.randn(8, 3, 16, 16),)),
    "switch transformer": (SwitchTransformer, lambda: (torch.randint(100, (4, 24)),)),
    "S4D": (S4Classifier, lambda: (torch.randn(4, 64, 1),)),
    "Longformer": (Longformer, lambda: (torch.randint(1, 100, (4, 64)),)),
    "MAF": (MAF, lambda: (torch.randn(64, 8),)),
    "PointNet": (PointNet, lambda: (torch.randn(8, 3, 128),)),
    "GIN": (GIN, graph),
    "DDPM": (DDPM, lambda: (torch.randn(4, 3, 16, 16), torch.randint(1000, (4,)))),
    "PPO with an LSTM": (PPOAgent, lambda: (torch.rand(4, 4, 4, 64, 64) * 255, torch.zeros(4, 4))),
    "DIN": (
        DIN,
        lambda: (torch.randint(50, (32,)), torch.randint(1, 200, (32, 10)), torch.randint(1, 200, (32,))),
    ),
    "xDeepFM": (XDeepFM, lambda: (torch.randint(50, (32, 8)),)),
    "N-HiTS": (NHiTS, lambda: (torch.randn(16, 48),)),
    "relation network with FiLM": (
        RelationFiLM,
        lambda: (torch.randn(4, 3, 16, 16), torch.randint(40, (4, 8))),
    ),
    "DETR": (DETR, lambda: (torch.randn(4, 3, 32, 32),)),
    "CRNN": (CRNN, lambda: (torch.randn(4, 1, 32, 64),)),
    "NeuMF": (NeuMF, lambda: (torch.randint(60, (64,)), torch.randint(80, (64,)))),
    "convolutional VAE": (ConvVAE, lambda: (torch.rand(8, 3, 32, 32),)),
    "seq2seq with additive attention": (
        Seq2Seq,
        lambda: (torch.randint(80, (8, 10)), torch.randint(80, (8, 8))),
    ),
}
