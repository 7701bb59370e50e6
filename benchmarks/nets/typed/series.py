"""Time series: basis expansion, gated fusion, autoregression, dilated convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class NBeatsBlock(nn.Module):
    def __init__(self, back, fore, width, kind, degree=3):
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(back, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        tb = torch.arange(back) / back
        tf = torch.arange(fore) / fore
        if kind == "trend":
            bb = torch.stack([tb**i for i in range(degree)])
            bf = torch.stack([tf**i for i in range(degree)])
        elif kind == "season":
            k = torch.arange(1, fore // 2).unsqueeze(1)
            bb = torch.cat([torch.cos(2 * torch.pi * k * tb), torch.sin(2 * torch.pi * k * tb)])
            bf = torch.cat([torch.cos(2 * torch.pi * k * tf), torch.sin(2 * torch.pi * k * tf)])
        else:
            bb, bf = torch.eye(back), torch.eye(fore)
        self.register_buffer("bb", bb)
        self.register_buffer("bf", bf)
        self.tb = nn.Linear(width, bb.size(0), bias=False)
        self.tf = nn.Linear(width, bf.size(0), bias=False)

    def forward(self, x):
        h = self.fc(x)
        return self.tb(h) @ self.bb, self.tf(h) @ self.bf


class NBeats(nn.Module):
    def __init__(self, back=48, fore=12, width=64):
        super().__init__()
        kinds = ["trend", "trend", "season", "season", "generic", "generic"]
        self.blocks = nn.ModuleList([NBeatsBlock(back, fore, width, k) for k in kinds])

    def forward(self, x):
        level = x.abs().max(dim=1, keepdim=True)[0]
        x = x / level
        forecast = 0
        for block in self.blocks:
            b, f = block(x)
            x = x - b
            forecast = forecast + f
        return forecast * level


class GRN(nn.Module):
    def __init__(self, i, hidden, o=None, context=None):
        super().__init__()
        o = o or hidden
        self.skip = nn.Linear(i, o) if i != o else nn.Identity()
        self.fc1 = nn.Linear(i, hidden)
        self.ctx = nn.Linear(context, hidden, bias=False) if context else None
        self.fc2 = nn.Linear(hidden, hidden)
        self.glu = nn.Linear(hidden, 2 * o)
        self.norm = nn.LayerNorm(o)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, c=None):
        h = self.fc1(x)
        if c is not None:
            h = h + self.ctx(c)
        h = self.fc2(F.elu(h))
        return self.norm(self.skip(x) + F.glu(self.glu(self.drop(h)), dim=-1))


class VariableSelection(nn.Module):
    def __init__(self, n, dim, context=None):
        super().__init__()
        self.flat = GRN(n * dim, dim, n, context)
        self.single = nn.ModuleList([GRN(dim, dim) for _ in range(n)])

    def forward(self, xs, c=None):
        w = torch.softmax(self.flat(xs.flatten(-2), c), dim=-1).unsqueeze(-1)
        h = torch.stack([g(xs[..., i, :]) for i, g in enumerate(self.single)], dim=-2)
        return (w * h).sum(-2)


class TemporalFusion(nn.Module):
    """Temporal fusion transformer: static context, variable selection, LSTM, interpretable attention, quantiles."""

    def __init__(self, variables=5, static=3, dim=32, heads=4, horizon=6, quantiles=3):
        super().__init__()
        self.horizon = horizon
        self.embed = nn.ModuleList([nn.Linear(1, dim) for _ in range(variables)])
        self.static = nn.Linear(static, dim)
        self.c_sel, self.c_h, self.c_c, self.c_e = (GRN(dim, dim) for _ in range(4))
        self.select = VariableSelection(variables, dim, dim)
        self.lstm = nn.LSTM(dim, dim, batch_first=True)
        self.gate1 = nn.Linear(dim, 2 * dim)
        self.n1 = nn.LayerNorm(dim)
        self.enrich = GRN(dim, dim, context=dim)
        self.att = nn.MultiheadAttention(dim, heads, batch_first=True, dropout=0.1)
        self.gate2 = nn.Linear(dim, 2 * dim)
        self.n2 = nn.LayerNorm(dim)
        self.ff = GRN(dim, dim)
        self.gate3 = nn.Linear(dim, 2 * dim)
        self.n3 = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, quantiles)

    def forward(self, x, s):
        xs = torch.stack([e(x[..., i : i + 1]) for i, e in enumerate(self.embed)], dim=-2)
        s = self.static(s)
        sel = self.select(xs, self.c_sel(s).unsqueeze(1).expand(-1, x.size(1), -1))
        h, _ = self.lstm(sel, (self.c_h(s).unsqueeze(0), self.c_c(s).unsqueeze(0)))
        h = self.n1(sel + F.glu(self.gate1(h), -1))
        e = self.enrich(h, self.c_e(s).unsqueeze(1).expand_as(h))
        t = x.size(1)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1)
        a, _ = self.att(e, e, e, attn_mask=mask)
        a = self.n2(e + F.glu(self.gate2(a), -1))
        y = self.n3(h + F.glu(self.gate3(self.ff(a)), -1))
        return self.out(y[:, -self.horizon :])


class DeepAR(nn.Module):
    def __init__(self, covariates=4, series=30, hidden=40, layers=2):
        super().__init__()
        self.emb = nn.Embedding(series, 10)
        self.lstm = nn.LSTM(1 + covariates + 10, hidden, layers, dropout=0.1)
        for names in self.lstm._all_weights:
            for name in filter(lambda n: "bias" in n, names):
                bias = getattr(self.lstm, name)
                n = bias.size(0)
                bias.data[n // 4 : n // 2].fill_(1.0)
        self.mu = nn.Linear(hidden * layers, 1)
        self.sigma = nn.Sequential(nn.Linear(hidden * layers, 1), nn.Softplus())

    def forward(self, x, idx):
        t, b, _ = x.shape
        e = self.emb(idx)
        h = torch.zeros(2, b, 40, device=x.device)
        c = torch.zeros(2, b, 40, device=x.device)
        mus, sigmas = [], []
        for i in range(t):
            _, (h, c) = self.lstm(torch.cat([x[i], e], 1).unsqueeze(0), (h, c))
            flat = h.permute(1, 2, 0).reshape(b, -1)
            mus.append(self.mu(flat))
            sigmas.append(self.sigma(flat))
        return torch.cat(mus, 1), torch.cat(sigmas, 1)


class Informer(nn.Module):
    """A distilling encoder over a value and time embedding, with a generative decoder."""

    def __init__(self, c=7, marks=4, dim=32, out=12):
        super().__init__()
        self.out_len = out
        self.token = nn.Conv1d(c, dim, 3, padding=1, padding_mode="circular", bias=False)
        nn.init.kaiming_normal_(self.token.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.time = nn.Linear(marks, dim, bias=False)
        self.e1 = nn.TransformerEncoderLayer(dim, 4, 64, activation="gelu", batch_first=True)
        self.conv = nn.Conv1d(dim, dim, 3, padding=1, padding_mode="circular")
        self.bn = nn.BatchNorm1d(dim)
        self.e2 = nn.TransformerEncoderLayer(dim, 4, 64, activation="gelu", batch_first=True)
        self.dec = nn.TransformerDecoderLayer(dim, 4, 64, activation="gelu", batch_first=True)
        self.proj = nn.Linear(dim, c)

    def embed(self, x, marks):
        return self.token(x.transpose(1, 2)).transpose(1, 2) + self.time(marks)

    def forward(self, x, marks, dec_marks):
        h = self.e1(self.embed(x, marks))
        h = F.max_pool1d(F.elu(self.bn(self.conv(h.transpose(1, 2)))), 3, 2, 1).transpose(1, 2)
        h = self.e2(h)
        start = x[:, -12:]
        d = torch.cat([start, torch.zeros_like(x[:, : self.out_len])], dim=1)
        return self.proj(self.dec(self.embed(d, dec_marks), h))[:, -self.out_len :]


NETS = {
    "N-BEATS": (NBeats, lambda: (torch.randn(32, 48),)),
    "temporal fusion transformer": (TemporalFusion, lambda: (torch.randn(8, 18, 5), torch.randn(8, 3))),
    "DeepAR": (DeepAR, lambda: (torch.randn(10, 8, 5), torch.randint(30, (8,)))),
    "Informer": (Informer, lambda: (torch.randn(4, 36, 7), torch.rand(4, 36, 4) - 0.5, torch.rand(4, 24, 4) - 0.5)),
}
