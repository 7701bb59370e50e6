"""Text: reading comprehension, character convolutions with highways, pointers, sentence classification."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class BiDAF(nn.Module):
    def __init__(self, vocab=500, dim=32, hidden=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.enc = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.att = nn.Linear(6 * hidden, 1, bias=False)
        self.mod = nn.LSTM(8 * hidden, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.start = nn.Linear(10 * hidden, 1)
        self.end_rnn = nn.LSTM(2 * hidden, hidden, batch_first=True, bidirectional=True)
        self.end = nn.Linear(10 * hidden, 1)

    def forward(self, context, question):
        c, _ = self.enc(self.emb(context))
        q, _ = self.enc(self.emb(question))
        t, j = c.size(1), q.size(1)
        cc = c.unsqueeze(2).expand(-1, -1, j, -1)
        qq = q.unsqueeze(1).expand(-1, t, -1, -1)
        s = self.att(torch.cat([cc, qq, cc * qq], dim=-1)).squeeze(-1)
        a = torch.bmm(torch.softmax(s, dim=-1), q)
        b = torch.softmax(s.max(dim=2)[0], dim=-1)
        h = torch.bmm(b.unsqueeze(1), c).expand(-1, t, -1)
        g = torch.cat([c, a, c * a, c * h], dim=-1)
        m, _ = self.mod(g)
        m2, _ = self.end_rnn(m)
        p1 = self.start(torch.cat([g, m], dim=-1)).squeeze(-1)
        p2 = self.end(torch.cat([g, m2], dim=-1)).squeeze(-1)
        return p1, p2


class Highway(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lin = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, dim)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x):
        t = torch.sigmoid(self.gate(x))
        return t * F.relu(self.lin(x)) + (1 - t) * x


class CharLM(nn.Module):
    """Character-aware language model: convolutions over characters, highways, an LSTM."""

    def __init__(self, chars=60, vocab=300, dim=15, hidden=64):
        super().__init__()
        self.emb = nn.Embedding(chars, dim)
        widths = [(1, 25), (2, 50), (3, 75)]
        self.convs = nn.ModuleList([nn.Conv1d(dim, n, w) for w, n in widths])
        total = sum(n for _, n in widths)
        self.highway = nn.Sequential(Highway(total), Highway(total))
        self.rnn = nn.LSTM(total, hidden, num_layers=2, batch_first=True, dropout=0.5)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, x):
        b, t, c = x.shape
        e = self.emb(x.view(b * t, c)).transpose(1, 2)
        h = torch.cat([torch.tanh(conv(e)).max(dim=-1)[0] for conv in self.convs], dim=1)
        h = self.highway(h).view(b, t, -1)
        y, _ = self.rnn(h)
        return self.out(y)


class PointerGenerator(nn.Module):
    """Abstractive summaries: an attention decoder that copies words, with coverage."""

    def __init__(self, vocab=200, dim=32, hidden=48):
        super().__init__()
        self.vocab = vocab
        self.hidden = hidden
        self.emb = nn.Embedding(vocab, dim)
        self.enc = nn.LSTM(dim, hidden, batch_first=True, bidirectional=True)
        self.red_h = nn.Linear(2 * hidden, hidden)
        self.red_c = nn.Linear(2 * hidden, hidden)
        self.cell = nn.LSTMCell(dim + 2 * hidden, hidden)
        self.w_enc = nn.Linear(2 * hidden, hidden, bias=False)
        self.w_dec = nn.Linear(2 * hidden, hidden)
        self.w_cov = nn.Linear(1, hidden, bias=False)
        self.v = nn.Linear(hidden, 1, bias=False)
        self.p_gen = nn.Linear(4 * hidden + dim, 1)
        self.out1 = nn.Linear(3 * hidden, hidden)
        self.out2 = nn.Linear(hidden, vocab)

    def forward(self, src, tgt):
        enc, (h, c) = self.enc(self.emb(src))
        h = F.relu(self.red_h(torch.cat([h[0], h[1]], -1)))
        c = F.relu(self.red_c(torch.cat([c[0], c[1]], -1)))
        feat = self.w_enc(enc)
        coverage = torch.zeros(src.shape, device=src.device)
        context = torch.zeros(src.size(0), 2 * self.hidden, device=src.device)
        outputs = []
        for t in range(tgt.size(1)):
            y = self.emb(tgt[:, t])
            h, c = self.cell(torch.cat([y, context], -1), (h, c))
            s = torch.cat([h, c], -1)
            e = self.v(torch.tanh(feat + self.w_dec(s).unsqueeze(1) + self.w_cov(coverage.unsqueeze(-1)))).squeeze(-1)
            a = F.softmax(e, dim=-1)
            coverage = coverage + a
            context = torch.bmm(a.unsqueeze(1), enc).squeeze(1)
            p = torch.sigmoid(self.p_gen(torch.cat([context, s, y], -1)))
            dist = F.softmax(self.out2(self.out1(torch.cat([h, context], -1))), dim=-1)
            dist = (p * dist).scatter_add(1, src, (1 - p) * a)
            outputs.append(torch.log(dist + 1e-10))
        return torch.stack(outputs, dim=1)


class TextCNN(nn.Module):
    def __init__(self, vocab=1000, dim=64, classes=5):
        super().__init__()
        self.static = nn.Embedding(vocab, dim)
        self.static.weight.requires_grad = False
        self.tuned = nn.Embedding(vocab, dim)
        self.convs = nn.ModuleList([nn.Conv2d(2, 50, (k, dim)) for k in (3, 4, 5)])
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(150, classes)

    def forward(self, x):
        x = torch.stack([self.static(x), self.tuned(x)], dim=1)
        x = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        x = [F.max_pool1d(i, i.size(2)).squeeze(2) for i in x]
        return self.fc(self.drop(torch.cat(x, 1)))


class RelativeAttention(nn.Module):
    """Transformer-XL attention: content and position with two learned biases."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.d = heads, dim // heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.r = nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.zeros(heads, self.d))
        self.v = nn.Parameter(torch.zeros(heads, self.d))
        self.o = nn.Linear(dim, dim, bias=False)

    def forward(self, x, pos):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.d).unbind(2)
        r = self.r(pos).view(t, self.heads, self.d)
        ac = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        bd = torch.einsum("bihd,jhd->bhij", q + self.v, r)
        bd = F.pad(bd, (1, 0)).view(b, self.heads, t + 1, t)[:, :, 1:].view(b, self.heads, t, t)
        s = (ac + bd) / math.sqrt(self.d)
        mask = torch.triu(torch.ones(t, t, dtype=torch.bool, device=x.device), 1)
        a = torch.softmax(s.masked_fill(mask, float("-inf")), dim=-1)
        return self.o(torch.einsum("bhij,bjhd->bihd", a, v).reshape(b, t, -1))


class TransformerXL(nn.Module):
    def __init__(self, vocab=200, dim=64, heads=4, layers=3):
        super().__init__()
        self.dim = dim
        self.emb = nn.Embedding(vocab, dim)
        self.att = nn.ModuleList([RelativeAttention(dim, heads) for _ in range(layers)])
        self.ff = nn.ModuleList(
            [nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim)) for _ in range(layers)]
        )
        self.n1 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers)])
        self.n2 = nn.ModuleList([nn.LayerNorm(dim) for _ in range(layers)])
        self.drop = nn.Dropout(0.1)

    def positions(self, t, device):
        inv = 1 / (10000 ** (torch.arange(0.0, self.dim, 2.0, device=device) / self.dim))
        s = torch.outer(torch.arange(t - 1, -1, -1.0, device=device), inv)
        return torch.cat([s.sin(), s.cos()], dim=-1)

    def forward(self, ids):
        x = self.drop(self.emb(ids) * self.dim**0.5)
        pos = self.positions(ids.size(1), ids.device)
        for att, ff, n1, n2 in zip(self.att, self.ff, self.n1, self.n2, strict=True):
            x = n1(x + self.drop(att(x, pos)))
            x = n2(x + self.drop(ff(x)))
        return F.linear(x, self.emb.weight)


NETS = {
    "BiDAF": (BiDAF, lambda: (torch.randint(1, 500, (4, 24)), torch.randint(1, 500, (4, 8)))),
    "character LM": (CharLM, lambda: (torch.randint(60, (4, 10, 12)),)),
    "pointer-generator": (PointerGenerator, lambda: (torch.randint(200, (4, 12)), torch.randint(200, (4, 6)))),
    "TextCNN": (TextCNN, lambda: (torch.randint(1000, (8, 20)),)),
    "Transformer-XL": (TransformerXL, lambda: (torch.randint(200, (4, 24)),)),
}
