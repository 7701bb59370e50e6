"""Networks typed by hand as their papers describe them: SPLADE to EDM2."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class BertLayer(nn.Module):
    def __init__(self, d, heads, ff, p=0.1):
        super().__init__()
        self.h = heads
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.dense, self.norm1, self.norm2 = nn.Linear(d, d), nn.LayerNorm(d, eps=1e-12), nn.LayerNorm(d, eps=1e-12)
        self.up, self.down, self.drop = nn.Linear(d, ff), nn.Linear(ff, d), nn.Dropout(p)

    def forward(self, x, bias):
        B, L, D = x.shape
        q, k, v = (f(x).view(B, L, self.h, -1).transpose(1, 2) for f in (self.query, self.key, self.value))
        att = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(D // self.h) + bias
        att = self.drop(att.softmax(dim=-1))
        ctx = torch.matmul(att, v).permute(0, 2, 1, 3).contiguous().view(B, L, D)
        x = self.norm1(x + self.drop(self.dense(ctx)))
        return self.norm2(x + self.drop(self.down(F.gelu(self.up(x)))))


class Splade(nn.Module):
    """Sparse lexical retrieval: log-saturated max pooling of MLM logits, FLOPS regulariser."""

    def __init__(self, vocab=200, d=64, heads=4, layers=3, max_len=32):
        super().__init__()
        self.word = nn.Embedding(vocab, d, padding_idx=0)
        self.pos = nn.Embedding(max_len, d)
        self.ln, self.drop = nn.LayerNorm(d, eps=1e-12), nn.Dropout(0.1)
        self.layers = nn.ModuleList([BertLayer(d, heads, 4 * d) for _ in range(layers)])
        self.transform = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d))
        self.decoder = nn.Linear(d, vocab)
        self.apply(self._init)
        self.decoder.weight = self.word.weight

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            m.weight.data.normal_(mean=0.0, std=0.02)
        if isinstance(m, nn.Linear):
            m.bias.data.zero_()

    def encode(self, ids):
        mask = (ids != 0).float()
        x = self.word(ids) + self.pos(torch.arange(ids.size(1), device=ids.device))
        x = self.drop(self.ln(x))
        bias = (1.0 - mask)[:, None, None, :] * -10000.0
        for layer in self.layers:
            x = layer(x, bias)
        logits = self.decoder(self.transform(x))
        return torch.max(torch.log(1 + torch.relu(logits)) * mask.unsqueeze(-1), dim=1).values

    def forward(self, q_ids, d_ids):
        q, d = self.encode(q_ids), self.encode(d_ids)
        scores = q @ d.t()
        flops = (d.abs().mean(0) ** 2).sum() + q.abs().sum(-1).mean()
        return scores, flops


class GPSLayer(nn.Module):
    def __init__(self, d, heads, p=0.1):
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(1))
        self.local = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        self.attn = nn.MultiheadAttention(d, heads, dropout=p, batch_first=True)
        self.bn_l, self.bn_a, self.bn_f = nn.BatchNorm1d(d), nn.BatchNorm1d(d), nn.BatchNorm1d(d)
        self.ff1, self.ff2, self.drop = nn.Linear(d, 2 * d), nn.Linear(2 * d, d), nn.Dropout(p)

    def forward(self, x, edge_index, e, batch, slot, sizes):
        src, dst = edge_index
        agg = torch.zeros_like(x).index_add_(0, dst, F.relu(x[src] + e))
        hl = self.bn_l(x + self.drop(self.local((1 + self.eps) * x + agg)))
        dense = x.new_zeros(sizes.numel(), int(sizes.max()), x.size(1))
        dense[batch, slot] = x
        pad = torch.arange(dense.size(1), device=x.device)[None] >= sizes[:, None]
        ha = self.attn(dense, dense, dense, key_padding_mask=pad, need_weights=False)[0][batch, slot]
        ha = self.bn_a(x + self.drop(ha))
        h = hl + ha
        return self.bn_f(h + self.drop(self.ff2(self.drop(F.relu(self.ff1(h))))))


class GraphGPS(nn.Module):
    def __init__(self, atoms=20, bonds=4, walk=8, d=64, heads=4, layers=4):
        super().__init__()
        self.atom, self.bond = nn.Embedding(atoms, d - 16), nn.Embedding(bonds, d)
        self.pe_norm, self.pe = nn.BatchNorm1d(walk), nn.Linear(walk, 16)
        self.layers = nn.ModuleList([GPSLayer(d, heads) for _ in range(layers)])
        self.head = nn.Sequential(nn.Linear(d, d // 2), nn.ReLU(), nn.Linear(d // 2, d // 4), nn.ReLU(),
                                  nn.Linear(d // 4, 1))  # fmt: skip

    def forward(self, z, rwse, edge_index, edge_type, batch):
        x = torch.cat([self.atom(z), self.pe(self.pe_norm(rwse))], dim=-1)
        e = self.bond(edge_type)
        sizes = torch.bincount(batch)
        start = torch.cumsum(sizes, 0) - sizes
        slot = torch.arange(batch.numel(), device=z.device) - start[batch]
        for layer in self.layers:
            x = layer(x, edge_index, e, batch, slot, sizes)
        out = x.new_zeros(sizes.numel(), x.size(1)).index_add(0, batch, x)
        return self.head(out).squeeze(-1)


def gps_batch():
    sizes = [12, 9, 15, 11, 8, 14, 10, 13]
    batch = torch.repeat_interleave(torch.arange(8), torch.tensor(sizes))
    edges, start = [], 0
    for n in sizes:
        a = torch.arange(n - 1) + start
        extra = torch.randint(n, (2, n // 2)) + start
        edges += [torch.stack([a, a + 1]), torch.stack([a + 1, a]), extra, extra.flip(0)]
        start += n
    edge_index = torch.cat(edges, 1)
    return (torch.randint(20, (start,)), torch.rand(start, 8), edge_index, torch.randint(4, (edge_index.size(1),)),
            batch)  # fmt: skip


class PhysicsAttention(nn.Module):
    def __init__(self, dim, heads=4, slices=16):
        super().__init__()
        inner = dim // heads
        self.heads, self.scale = heads, inner**-0.5
        self.temperature = nn.Parameter(torch.ones([1, heads, 1, 1]) * 0.5)
        self.in_project_x, self.in_project_fx = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.in_project_slice = nn.Linear(inner, slices)
        nn.init.orthogonal_(self.in_project_slice.weight)
        self.to_q, self.to_k = nn.Linear(inner, inner, bias=False), nn.Linear(inner, inner, bias=False)
        self.to_v, self.to_out = nn.Linear(inner, inner, bias=False), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        fx_mid = self.in_project_fx(x).reshape(B, N, self.heads, -1).permute(0, 2, 1, 3)
        x_mid = self.in_project_x(x).reshape(B, N, self.heads, -1).permute(0, 2, 1, 3)
        w = torch.softmax(self.in_project_slice(x_mid) / self.temperature, dim=-1)
        norm = w.sum(2)
        token = torch.einsum("bhnc,bhng->bhgc", fx_mid, w) / (norm + 1e-5)[..., None]
        q, k, v = self.to_q(token), self.to_k(token), self.to_v(token)
        attn = F.softmax(q @ k.transpose(-1, -2) * self.scale, dim=-1)
        out = torch.einsum("bhgc,bhng->bhnc", attn @ v, w)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(B, N, C))


class Transolver(nn.Module):
    def __init__(self, space=2, fun=1, hidden=64, layers=4, out=1):
        super().__init__()
        self.preprocess = nn.Sequential(nn.Linear(space + fun, hidden * 2), nn.GELU(), nn.Linear(hidden * 2, hidden))
        self.placeholder = nn.Parameter((1 / hidden) * torch.rand(hidden))
        self.ln1, self.ln2 = (nn.ModuleList(nn.LayerNorm(hidden) for _ in range(layers)) for _ in range(2))
        self.attn = nn.ModuleList(PhysicsAttention(hidden) for _ in range(layers))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, hidden)) for _ in range(layers)
        )
        self.ln3, self.proj = nn.LayerNorm(hidden), nn.Linear(hidden, out)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.trunc_normal_(m.weight, std=0.02)
                if m.bias is not None:
                    nn.init.constant_(m.bias, 0)

    def forward(self, pos, fx):
        h = self.preprocess(torch.cat((pos, fx), -1)) + self.placeholder[None, None, :]
        for a, b, attn, mlp in zip(self.ln1, self.ln2, self.attn, self.mlp, strict=True):
            h = attn(a(h)) + h
            h = mlp(b(h)) + h
        return self.proj(self.ln3(h))


def snake(x, alpha):
    return x + (alpha + 1e-9).reciprocal() * torch.sin(alpha * x).pow(2)


class Snake(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, c, 1))

    def forward(self, x):
        return snake(x, self.alpha)


class CausalConv(nn.Module):
    def __init__(self, i, o, k, stride=1, dilation=1):
        super().__init__()
        self.pad = (k - 1) * dilation + 1 - stride
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv1d(i, o, k, stride, dilation=dilation))

    def forward(self, x):
        return self.conv(F.pad(x, (self.pad, 0)))


class CodecResidual(nn.Module):
    def __init__(self, c, dilation):
        super().__init__()
        self.net = nn.Sequential(Snake(c), CausalConv(c, c, 7, dilation=dilation), Snake(c), CausalConv(c, c, 1))

    def forward(self, x):
        return x + self.net(x)


class CausalUp(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.stride = stride
        self.conv = nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(i, o, 2 * stride, stride))

    def forward(self, x):
        return self.conv(x)[..., : x.size(-1) * self.stride]


class ResidualVQ(nn.Module):
    def __init__(self, dim, code_dim=8, size=64, n=4):
        super().__init__()
        self.inp = nn.ModuleList(nn.Conv1d(dim, code_dim, 1) for _ in range(n))
        self.out = nn.ModuleList(nn.Conv1d(code_dim, dim, 1) for _ in range(n))
        self.books = nn.ModuleList(nn.Embedding(size, code_dim) for _ in range(n))

    def forward(self, z):
        total, residual, loss, codes = 0, z, 0, []
        for inp, out, book in zip(self.inp, self.out, self.books, strict=True):
            e = inp(residual)
            flat = F.normalize(e.transpose(1, 2).reshape(-1, e.size(1)))
            table = F.normalize(book.weight)
            dist = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ table.t() + table.pow(2).sum(1)[None]
            idx = (-dist).max(1)[1].view(e.size(0), -1)
            q = book(idx).transpose(1, 2)
            loss = loss + F.mse_loss(e, q.detach()) * 0.25 + F.mse_loss(q, e.detach())
            q = out(e + (q - e).detach())
            total, residual = total + q, residual - q
            codes.append(idx)
        return total, torch.stack(codes, 1), loss


class AudioCodec(nn.Module):
    def __init__(self, width=16, strides=(2, 4, 4), latent=32):
        super().__init__()
        enc, c = [CausalConv(1, width, 7)], width
        for s in strides:
            enc += [CodecResidual(c, 1), CodecResidual(c, 3), Snake(c), CausalConv(c, 2 * c, 2 * s, s)]
            c *= 2
        self.encoder = nn.Sequential(*enc, Snake(c), CausalConv(c, latent, 3))
        self.quantizer = ResidualVQ(latent)
        dec = [CausalConv(latent, c, 7)]
        for s in strides[::-1]:
            dec += [Snake(c), CausalUp(c, c // 2, s), CodecResidual(c // 2, 1), CodecResidual(c // 2, 3)]
            c //= 2
        self.decoder = nn.Sequential(*dec, Snake(c), CausalConv(c, 1, 7), nn.Tanh())

    def forward(self, wav):
        q, codes, loss = self.quantizer(self.encoder(wav))
        return self.decoder(q), codes, loss


def farthest(xyz, n):
    B, N, _ = xyz.shape
    picked = torch.zeros(B, n, dtype=torch.long, device=xyz.device)
    distance = torch.full((B, N), 1e10, device=xyz.device)
    last = torch.zeros(B, dtype=torch.long, device=xyz.device)
    rows = torch.arange(B, device=xyz.device)
    for i in range(n):
        picked[:, i] = last
        d = ((xyz - xyz[rows, last][:, None]) ** 2).sum(-1)
        distance = torch.minimum(distance, d)
        last = distance.max(-1)[1]
    return picked


def gather(points, idx):
    rows = torch.arange(points.size(0), device=points.device).view(-1, *[1] * (idx.dim() - 1))
    return points[rows, idx]


class ResPoint(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.net1 = nn.Sequential(nn.Conv1d(c, c, 1), nn.BatchNorm1d(c), nn.ReLU(inplace=True))
        self.net2 = nn.Sequential(nn.Conv1d(c, c, 1), nn.BatchNorm1d(c))

    def forward(self, x):
        return F.relu(self.net2(self.net1(x)) + x)


class PointStage(nn.Module):
    def __init__(self, c_in, c_out, n, k):
        super().__init__()
        self.n, self.k = n, k
        self.affine_alpha = nn.Parameter(torch.ones(1, 1, 1, c_in + 3))
        self.affine_beta = nn.Parameter(torch.zeros(1, 1, 1, c_in + 3))
        self.transfer = nn.Sequential(nn.Conv1d(2 * c_in + 3, c_out, 1), nn.BatchNorm1d(c_out), nn.ReLU(inplace=True))
        self.pre, self.post = ResPoint(c_out), ResPoint(c_out)

    def forward(self, xyz, feat):
        idx = farthest(xyz, self.n)
        new_xyz, center = gather(xyz, idx), gather(feat, idx)
        nn_idx = torch.cdist(new_xyz, xyz).topk(self.k, dim=-1, largest=False)[1]
        grouped = torch.cat([gather(feat, nn_idx), gather(xyz, nn_idx)], -1)
        mean = torch.cat([center, new_xyz], -1).unsqueeze(2)
        std = torch.std((grouped - mean).reshape(xyz.size(0), -1), dim=-1)[:, None, None, None]
        grouped = self.affine_alpha * (grouped - mean) / (std + 1e-5) + self.affine_beta
        grouped = torch.cat([grouped, center.unsqueeze(2).expand(-1, -1, self.k, -1)], -1)
        B, S, K, C = grouped.shape
        x = self.pre(self.transfer(grouped.permute(0, 1, 3, 2).reshape(B * S, C, K)))
        x = F.adaptive_max_pool1d(x, 1).view(B, S, -1).permute(0, 2, 1)
        return new_xyz, self.post(x).permute(0, 2, 1)


class PointMLP(nn.Module):
    def __init__(self, classes=10, c=16, points=128, k=8):
        super().__init__()
        self.embedding = nn.Sequential(nn.Conv1d(3, c, 1), nn.BatchNorm1d(c), nn.ReLU(inplace=True))
        self.stages = nn.ModuleList()
        for _ in range(3):
            points //= 2
            self.stages.append(PointStage(c, 2 * c, points, k))
            c *= 2
        self.classifier = nn.Sequential(
            nn.Linear(c, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(64, classes)
        )

    def forward(self, xyz):
        feat = self.embedding(xyz.transpose(1, 2)).transpose(1, 2)
        for stage in self.stages:
            xyz, feat = stage(xyz, feat)
        return self.classifier(feat.max(dim=1)[0])


class FlowBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3 * self.heads, -1).transpose(1, 2).chunk(3, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, D))
        return x + self.mlp(self.norm2(x))


class MetaBlock(nn.Module):
    def __init__(self, c, d, tokens, flip, layers=2):
        super().__init__()
        self.flip = flip
        self.proj_in, self.pos = nn.Linear(c, d), nn.Parameter(torch.randn(tokens, d) * 1e-2)
        self.blocks = nn.ModuleList(FlowBlock(d, 4) for _ in range(layers))
        self.proj_out = nn.Linear(d, 2 * c)
        self.proj_out.weight.data.fill_(0.0)

    def forward(self, x):
        x = x.flip(1) if self.flip else x
        h = self.proj_in(x) + self.pos
        for block in self.blocks:
            h = block(h)
        h = self.proj_out(h)
        h = torch.cat([torch.zeros_like(h[:, :1]), h[:, :-1]], dim=1)
        xa, xb = h.chunk(2, dim=-1)
        z = (x - xb) * xa.float().neg().exp()
        return (z.flip(1) if self.flip else z), -xa.mean(dim=[1, 2])


class TarFlow(nn.Module):
    """Transformer autoregressive flow over image patches."""

    def __init__(self, size=16, patch=4, d=64, blocks=4):
        super().__init__()
        self.patch, c, n = patch, 3 * patch**2, (size // patch) ** 2
        self.blocks = nn.ModuleList(MetaBlock(c, d, n, flip=i % 2 == 1) for i in range(blocks))

    def forward(self, x):
        x = F.unfold(x + 0.05 * torch.randn_like(x), self.patch, stride=self.patch).transpose(1, 2)
        logdets = torch.zeros((), device=x.device)
        for block in self.blocks:
            x, logdet = block(x)
            logdets = logdets + logdet
        return x, logdets, 0.5 * x.pow(2).mean() - logdets.mean()


NETS = {
    "SPLADE": (Splade, lambda: (torch.randint(1, 200, (8, 8)), torch.randint(1, 200, (8, 24)))),
    "GraphGPS": (GraphGPS, gps_batch),
    "Transolver": (Transolver, lambda: (torch.rand(8, 200, 2), torch.randn(8, 200, 1))),
    "codec with residual quantization": (AudioCodec, lambda: (torch.randn(8, 1, 1024) * 0.1,)),
    "PointMLP": (PointMLP, lambda: (torch.rand(8, 128, 3) * 2 - 1,)),
    "TarFlow": (TarFlow, lambda: (torch.rand(8, 3, 16, 16) * 2 - 1,)),
}
