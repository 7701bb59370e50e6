"""Retrieval and recommendation: late interaction, sequences of clicks, two towers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class ColBERT(nn.Module):
    """Late interaction: the best match of every token of the query."""

    def __init__(self, vocab=500, dim=64, layers=2, out=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(64, dim)
        self.ln = nn.LayerNorm(dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 4 * dim, activation="gelu", batch_first=True)
        self.enc = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.proj = nn.Linear(dim, out, bias=False)

    def encode(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        return F.normalize(self.proj(self.enc(self.ln(x))), dim=-1)

    def forward(self, query, doc):
        q, d = self.encode(query), self.encode(doc)
        s = torch.einsum("qik,djk->qdij", q, d)
        return s.max(dim=-1).values.sum(dim=-1)


class SASRec(nn.Module):
    def __init__(self, items=400, dim=48, length=20, layers=2):
        super().__init__()
        self.item = nn.Embedding(items + 1, dim, padding_idx=0)
        self.pos = nn.Embedding(length, dim)
        self.drop = nn.Dropout(0.2)
        self.n1 = nn.ModuleList([nn.LayerNorm(dim, eps=1e-8) for _ in range(layers)])
        self.att = nn.ModuleList([nn.MultiheadAttention(dim, 1, 0.2) for _ in range(layers)])
        self.n2 = nn.ModuleList([nn.LayerNorm(dim, eps=1e-8) for _ in range(layers)])
        self.c1 = nn.ModuleList([nn.Conv1d(dim, dim, 1) for _ in range(layers)])
        self.c2 = nn.ModuleList([nn.Conv1d(dim, dim, 1) for _ in range(layers)])
        self.last = nn.LayerNorm(dim, eps=1e-8)

    def forward(self, seq, pos, neg):
        x = self.item(seq) * self.item.embedding_dim**0.5
        x = self.drop(x + self.pos(torch.arange(seq.size(1), device=seq.device)))
        keep = (seq != 0).unsqueeze(-1)
        x = x * keep
        t = seq.size(1)
        mask = ~torch.tril(torch.ones((t, t), dtype=torch.bool, device=seq.device))
        for n1, att, n2, c1, c2 in zip(self.n1, self.att, self.n2, self.c1, self.c2, strict=True):
            x = x.transpose(0, 1)
            q = n1(x)
            a, _ = att(q, x, x, attn_mask=mask)
            x = (q + a).transpose(0, 1)
            x = n2(x)
            h = c2(F.relu(c1(x.transpose(1, 2)))).transpose(1, 2)
            x = (x + h) * keep
        x = self.last(x)
        return (x * self.item(pos)).sum(-1), (x * self.item(neg)).sum(-1)


class TwoTower(nn.Module):
    """User and item towers with bags of features, cosine scores in the batch, a learned temperature."""

    def __init__(self, users=200, items=300, tags=50, dim=32):
        super().__init__()
        self.user = nn.Embedding(users, dim)
        self.item = nn.Embedding(items, dim)
        self.bag = nn.EmbeddingBag(tags, dim, mode="mean")
        self.u = nn.Sequential(nn.Linear(dim + 4, 64), nn.LeakyReLU(), nn.Linear(64, 32))
        self.i = nn.Sequential(nn.Linear(2 * dim, 64), nn.LeakyReLU(), nn.Linear(64, 32))
        self.temp = nn.Parameter(torch.tensor(2.659))

    def forward(self, user, age, item, tags):
        u = self.u(torch.cat([self.user(user), age], 1))
        i = self.i(torch.cat([self.item(item), self.bag(tags)], 1))
        u = u / u.norm(dim=1, keepdim=True)
        i = i / i.norm(dim=1, keepdim=True)
        return self.temp.exp() * u @ i.t()


NETS = {
    "ColBERT": (ColBERT, lambda: (torch.randint(500, (6, 8)), torch.randint(500, (6, 24)))),
    "SASRec": (SASRec, lambda: tuple(torch.randint(1, 400, (8, 20)) for _ in range(3))),
    "two towers": (
        TwoTower,
        lambda: (
            torch.randint(200, (32,)),
            torch.randn(32, 4),
            torch.randint(300, (32,)),
            torch.randint(50, (32, 5)),
        ),
    ),
}
