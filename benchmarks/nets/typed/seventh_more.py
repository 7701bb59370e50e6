"""More networks typed by hand as their papers describe them: EDM2 to AFNO."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn


def mp_normalize(w, eps=1e-4):
    norm = w.flatten(1).norm(dim=1).view(-1, *[1] * (w.ndim - 1))
    return w / (eps + norm * math.sqrt(norm.numel() / w.numel()))


def mp_silu(x):
    return F.silu(x) / 0.596


def mp_sum(a, b, t=0.3):
    return a.lerp(b, t) / math.sqrt((1 - t) ** 2 + t**2)


def mp_cat(a, b, t=0.5):
    na, nb = a.shape[1], b.shape[1]
    c = math.sqrt((na + nb) / ((1 - t) ** 2 + t**2))
    return torch.cat([c / math.sqrt(na) * (1 - t) * a, c / math.sqrt(nb) * t * b], dim=1)


class MPConv(nn.Module):
    def __init__(self, i, o, *kernel):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(o, i, *kernel))

    def forward(self, x, gain=1):
        w = mp_normalize(self.weight) * (gain / math.sqrt(self.weight[0].numel()))
        return x @ w.t() if w.ndim == 2 else F.conv2d(x, w, padding=w.shape[-1] // 2)


class EDM2Block(nn.Module):
    def __init__(self, i, o, emb, flavor="enc", attention=False):
        super().__init__()
        self.flavor = flavor
        self.emb_gain = nn.Parameter(torch.zeros([]))
        self.conv_res0, self.conv_res1 = MPConv(o if flavor == "enc" else i, o, 3, 3), MPConv(o, o, 3, 3)
        self.emb_linear = MPConv(emb, o)
        self.skip = MPConv(i, o, 1, 1) if i != o else None
        self.heads = o // 16 if attention else 0
        if attention:
            self.attn_qkv, self.attn_proj = MPConv(o, 3 * o, 1, 1), MPConv(o, o, 1, 1)

    def forward(self, x, emb):
        if self.flavor == "enc":
            x = self.skip(x) if self.skip is not None else x
            x = x / (1e-4 + x.pow(2).mean(1, keepdim=True).sqrt())
        y = self.conv_res0(mp_silu(x))
        c = self.emb_linear(emb, gain=self.emb_gain) + 1
        y = self.conv_res1(F.dropout(mp_silu(y * c[:, :, None, None]), 0.1, self.training))
        if self.flavor == "dec" and self.skip is not None:
            x = self.skip(x)
        x = mp_sum(x, y)
        if self.heads:
            y = self.attn_qkv(x).reshape(x.shape[0], self.heads, -1, 3, x.shape[2] * x.shape[3])
            y = y / (1e-4 + y.pow(2).mean(2, keepdim=True).sqrt())
            q, k, v = y.unbind(3)
            w = torch.einsum("nhcq,nhck->nhqk", q, k / math.sqrt(q.shape[2])).softmax(dim=3)
            x = mp_sum(x, self.attn_proj(torch.einsum("nhqk,nhck->nhcq", w, v).reshape(x.shape)))
        return x.clip_(-256, 256)


class EDM2(nn.Module):
    def __init__(self, ch=3, base=32, mult=(1, 2), classes=10, sigma_data=0.5):
        super().__init__()
        cemb, self.sigma_data = base * max(mult), sigma_data
        self.register_buffer("freqs", 2 * math.pi * torch.randn(base))
        self.register_buffer("phases", 2 * math.pi * torch.rand(base))
        self.emb_noise, self.emb_label = MPConv(base, cemb), MPConv(classes, cemb)
        self.u_noise, self.out_gain = MPConv(base, 1), nn.Parameter(torch.zeros([]))
        self.stem = MPConv(ch + 1, base, 3, 3)
        self.enc, self.dec, skips, c = nn.ModuleList(), nn.ModuleList(), [base], base
        for level, m in enumerate(mult):
            for _ in range(2):
                self.enc.append(EDM2Block(c, base * m, cemb, "enc", attention=level == 1))
                c = base * m
                skips.append(c)
        self.mid = EDM2Block(c, c, cemb, "dec", attention=True)
        for level, m in list(enumerate(mult))[::-1]:
            for _ in range(2 + (level == 0)):
                self.dec.append(EDM2Block(c + skips.pop(), base * m, cemb, "dec", attention=level == 1))
                c = base * m
        self.out_conv = MPConv(c, ch, 3, 3)

    def fourier(self, x):
        return (x.float().outer(self.freqs) + self.phases).cos() * math.sqrt(2)

    def unet(self, x, noise, labels):
        f = self.fourier(noise)
        onehot = F.one_hot(labels, self.emb_label.weight.shape[1]).float() * math.sqrt(self.emb_label.weight.shape[1])
        emb = mp_silu(mp_sum(self.emb_noise(f), self.emb_label(onehot), t=0.5))
        x = self.stem(torch.cat([x, torch.ones_like(x[:, :1])], dim=1))
        skips = [x]
        for i, block in enumerate(self.enc):
            if i == 2:
                x = F.avg_pool2d(x, 2)
            x = block(x, emb)
            skips.append(x)
        x = self.mid(x, emb)
        for i, block in enumerate(self.dec):
            if i == 2:
                x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = block(mp_cat(x, skips.pop(), t=0.5), emb)
        return self.out_conv(x, gain=self.out_gain), self.u_noise(f)

    def forward(self, x, sigma, labels):
        s = sigma.view(-1, 1, 1, 1)
        c_skip = self.sigma_data**2 / (s**2 + self.sigma_data**2)
        c_out = s * self.sigma_data / (s**2 + self.sigma_data**2).sqrt()
        c_in = 1 / (self.sigma_data**2 + s**2).sqrt()
        f, u = self.unet(c_in * x, sigma.log() / 4, labels)
        return c_skip * x + c_out * f, u


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + self.scale)


class RGLRU(nn.Module):
    def __init__(self, d, width, heads=4, c=8.0):
        super().__init__()
        self.heads, self.c = heads, c
        self.linear_x, self.linear_y, self.linear_out = nn.Linear(d, width), nn.Linear(d, width), nn.Linear(width, d)
        self.conv = nn.Conv1d(width, width, 4, groups=width)
        self.w_in = nn.Parameter(torch.randn(heads, width // heads, width // heads) * (heads / width) ** 0.5)
        self.w_rec = nn.Parameter(torch.randn(heads, width // heads, width // heads) * (heads / width) ** 0.5)
        self.b_in, self.b_rec = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        u = torch.empty(width).uniform_(0.9**2, 0.999**2)
        self.a_param = nn.Parameter(torch.log(torch.expm1(-torch.log(u) / 2)))

    def gate(self, x, w, b):
        return torch.sigmoid(torch.einsum("blhi,hij->blhj", x.unflatten(-1, (self.heads, -1)), w).flatten(-2) + b)

    def forward(self, x):
        y = F.gelu(self.linear_y(x), approximate="tanh")
        x = self.linear_x(x).transpose(1, 2)
        x = self.conv(F.pad(x, (3, 0))).transpose(1, 2)
        r, i = self.gate(x, self.w_rec, self.b_rec), self.gate(x, self.w_in, self.b_in)
        log_a = -self.c * r * F.softplus(self.a_param)
        a = torch.exp(log_a)
        gated = x * i * torch.sqrt(torch.clamp(1 - torch.exp(2 * log_a), min=1e-6))
        h, hs = torch.zeros_like(x[:, 0]), []
        for t in range(x.size(1)):
            h = a[:, t] * h + gated[:, t]
            hs.append(h)
        return self.linear_out(torch.stack(hs, 1) * y)


class LocalMQA(nn.Module):
    def __init__(self, d, heads=4, window=8):
        super().__init__()
        self.heads, self.hd, self.window = heads, d // heads, window
        self.q, self.kv = nn.Linear(d, d, bias=False), nn.Linear(d, 2 * (d // heads), bias=False)
        self.o = nn.Linear(d, d)

    def rope(self, x):
        half = x.size(-1) // 2
        freq = 10000.0 ** (-torch.arange(half, device=x.device) / half)
        ang = torch.arange(x.size(-2), device=x.device)[:, None] * freq
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * ang.cos() - b * ang.sin(), b * ang.cos() + a * ang.sin()], -1)

    def forward(self, x):
        B, L, D = x.shape
        q = self.rope(self.q(x).view(B, L, self.heads, self.hd).transpose(1, 2))
        k, v = self.kv(x).unsqueeze(1).chunk(2, dim=-1)
        off = torch.arange(L, device=x.device)[:, None] - torch.arange(L, device=x.device)
        s = q @ self.rope(k).transpose(-1, -2) * self.hd**-0.5
        s = s.masked_fill((off < 0) | (off >= self.window), -2.3819763e38)
        return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(B, L, D))


class Griffin(nn.Module):
    def __init__(self, vocab=128, d=64, pattern="rra" * 2):
        super().__init__()
        self.d, self.embed = d, nn.Embedding(vocab, d)
        nn.init.normal_(self.embed.weight, std=d**-0.5)
        self.mix = nn.ModuleList(RGLRU(d, d) if p == "r" else LocalMQA(d) for p in pattern)
        self.up = nn.ModuleList(nn.Linear(d, 6 * d) for _ in pattern)
        self.down = nn.ModuleList(nn.Linear(3 * d, d) for _ in pattern)
        self.n1, self.n2 = (nn.ModuleList(RMSNorm(d) for _ in pattern) for _ in range(2))
        self.final = RMSNorm(d)

    def forward(self, ids):
        x = self.embed(ids) * self.d**0.5
        for mix, up, down, n1, n2 in zip(self.mix, self.up, self.down, self.n1, self.n2, strict=True):
            x = x + mix(n1(x))
            gate, val = up(n2(x)).chunk(2, dim=-1)
            x = x + down(F.gelu(gate, approximate="tanh") * val)
        logits = self.final(x) @ self.embed.weight.t()
        return torch.tanh(logits / 30.0) * 30.0


class AFNOFilter(nn.Module):
    def __init__(self, d, blocks=4, sparsity=0.01):
        super().__init__()
        self.blocks, b, self.lam = blocks, d // blocks, sparsity
        self.w1, self.b1 = nn.Parameter(0.02 * torch.randn(2, blocks, b, b)), nn.Parameter(0.02 * torch.randn(2, d))
        self.w2, self.b2 = nn.Parameter(0.02 * torch.randn(2, blocks, b, b)), nn.Parameter(0.02 * torch.randn(2, d))

    def forward(self, x):
        B, H, W, C = x.shape
        f = torch.fft.rfft2(x, dim=(1, 2), norm="ortho").reshape(B, H, W // 2 + 1, self.blocks, -1)
        mul = functools.partial(torch.einsum, "...bi,bio->...bo")
        b1, b2 = self.b1.view(2, self.blocks, -1), self.b2.view(2, self.blocks, -1)
        re = F.relu(mul(f.real, self.w1[0]) - mul(f.imag, self.w1[1]) + b1[0])
        im = F.relu(mul(f.imag, self.w1[0]) + mul(f.real, self.w1[1]) + b1[1])
        o_re = mul(re, self.w2[0]) - mul(im, self.w2[1]) + b2[0]
        o_im = mul(im, self.w2[0]) + mul(re, self.w2[1]) + b2[1]
        o = F.softshrink(torch.stack([o_re, o_im], dim=-1), lambd=self.lam)
        o = torch.view_as_complex(o).reshape(B, H, W // 2 + 1, C)
        return torch.fft.irfft2(o, s=(H, W), dim=(1, 2), norm="ortho") + x


class AFNOBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm1, self.filter, self.norm2 = nn.LayerNorm(d, eps=1e-6), AFNOFilter(d), nn.LayerNorm(d, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x):
        x = x + self.filter(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class FourCastNet(nn.Module):
    def __init__(self, size=(32, 64), patch=4, channels=8, d=64, depth=4):
        super().__init__()
        self.patch, self.grid, self.c = patch, (size[0] // patch, size[1] // patch), channels
        self.patch_embed = nn.Conv2d(channels, d, patch, patch)
        self.pos_embed = nn.Parameter(torch.zeros(1, *self.grid, d))
        self.blocks = nn.Sequential(*[AFNOBlock(d) for _ in range(depth)])
        self.head = nn.Linear(d, channels * patch**2, bias=False)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        self.apply(lambda m: nn.init.trunc_normal_(m.weight, std=0.02) if isinstance(m, nn.Linear) else None)

    def forward(self, x):
        h = self.patch_embed(x).permute(0, 2, 3, 1) + self.pos_embed
        h = self.head(self.blocks(h))
        h = h.view(x.size(0), *self.grid, self.patch, self.patch, self.c)
        return torch.einsum("bhwpqc->bchpwq", h).reshape(x.shape)


class SlowFastBlock(nn.Module):
    def __init__(self, i, mid, o, temporal, stride):
        super().__init__()
        self.a = nn.Conv3d(i, mid, (temporal, 1, 1), padding=(temporal // 2, 0, 0), bias=False)
        self.b = nn.Conv3d(mid, mid, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.c = nn.Conv3d(mid, o, 1, bias=False)
        self.a_bn, self.b_bn, self.c_bn = nn.BatchNorm3d(mid), nn.BatchNorm3d(mid), nn.BatchNorm3d(o)
        nn.init.zeros_(self.c_bn.weight)
        self.short = nn.Conv3d(i, o, 1, (1, stride, stride), bias=False)
        self.short_bn = nn.BatchNorm3d(o)
        for m in (self.a, self.b, self.c, self.short):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        y = F.relu(self.a_bn(self.a(x)), inplace=True)
        y = F.relu(self.b_bn(self.b(y)), inplace=True)
        return F.relu(self.c_bn(self.c(y)) + self.short_bn(self.short(x)), inplace=True)


class SlowFast(nn.Module):
    def __init__(self, classes=12, alpha=4, beta=4, width=16):
        super().__init__()
        self.alpha, f = alpha, width // beta
        self.slow_stem, self.slow_bn = nn.Conv3d(3, width, (1, 5, 5), (1, 2, 2), (0, 2, 2)), nn.BatchNorm3d(width)
        self.fast_stem, self.fast_bn = nn.Conv3d(3, f, (5, 5, 5), (1, 2, 2), (2, 2, 2)), nn.BatchNorm3d(f)
        self.slow, self.fast, self.lateral = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        ws, wf = width, f
        for i, (temporal, stride) in enumerate([(1, 1), (1, 2), (3, 2)]):
            self.lateral.append(nn.Conv3d(wf, 2 * wf, (5, 1, 1), (alpha, 1, 1), (2, 0, 0), bias=False))
            out = width * 2 ** (i + 1)
            self.slow.append(SlowFastBlock(ws + 2 * wf, out // 2, out, temporal, stride))
            self.fast.append(SlowFastBlock(wf, out // 2 // beta, out // beta, 3, stride))
            ws, wf = out, out // beta
        self.dropout, self.fc = nn.Dropout(0.5), nn.Linear(ws + wf, classes)
        nn.init.normal_(self.fc.weight, std=0.01)

    def forward(self, video):
        fast = F.relu(self.fast_bn(self.fast_stem(video)))
        slow = F.relu(self.slow_bn(self.slow_stem(video[:, :, :: self.alpha])))
        for s, f, lateral in zip(self.slow, self.fast, self.lateral, strict=True):
            slow = s(torch.cat([slow, lateral(fast)], dim=1))
            fast = f(fast)
        x = torch.cat([slow.mean((2, 3, 4)), fast.mean((2, 3, 4))], dim=1)
        return self.fc(self.dropout(x))


class PaiNNLayer(nn.Module):
    def __init__(self, f, rbf):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(f, f), nn.SiLU(), nn.Linear(f, 3 * f))
        self.filters = nn.Linear(rbf, 3 * f)
        self.U, self.V = nn.Linear(f, f, bias=False), nn.Linear(f, f, bias=False)
        self.a = nn.Sequential(nn.Linear(2 * f, f), nn.SiLU(), nn.Linear(f, 3 * f))

    def forward(self, s, v, i, j, rbf, fcut, unit):
        w = self.filters(rbf) * fcut
        ds, gate_v, gate_r = (self.phi(s)[j] * w).chunk(3, dim=-1)
        dv = gate_v.unsqueeze(1) * v[j] + gate_r.unsqueeze(1) * unit.unsqueeze(-1)
        s = s + torch.zeros_like(s).index_add(0, i, ds)
        v = v + torch.zeros_like(v).index_add(0, i, dv)
        u, w = self.U(v), self.V(v)
        norm = torch.sqrt((w**2).sum(1) + 1e-8)
        a_vv, a_sv, a_ss = self.a(torch.cat([s, norm], dim=-1)).chunk(3, dim=-1)
        return s + a_ss + a_sv * (u * w).sum(1), v + a_vv.unsqueeze(1) * u


class PaiNN(nn.Module):
    def __init__(self, f=64, rbf=20, cutoff=5.0, layers=3):
        super().__init__()
        self.cutoff, self.n_rbf, self.embedding = cutoff, rbf, nn.Embedding(20, f, padding_idx=0)
        self.layers = nn.ModuleList(PaiNNLayer(f, rbf) for _ in range(layers))
        self.energy = nn.Sequential(nn.Linear(f, f // 2), nn.SiLU(), nn.Linear(f // 2, 1))
        self.dipole = nn.Linear(f, 1, bias=False)

    def forward(self, z, pos, mol):
        d = torch.cdist(pos, pos)
        i, j = torch.nonzero((d < self.cutoff) & (mol[:, None] == mol[None]) & ~torch.eye(len(z), dtype=torch.bool)).T
        r = pos[j] - pos[i]
        dist = r.norm(dim=-1, keepdim=True)
        n = torch.arange(1, self.n_rbf + 1, device=z.device)
        rbf = torch.sin(n * math.pi * dist / self.cutoff) / dist
        fcut = 0.5 * (torch.cos(math.pi * dist / self.cutoff) + 1)
        s = self.embedding(z)
        v = s.new_zeros(len(z), 3, s.size(1))
        for layer in self.layers:
            s, v = layer(s, v, i, j, rbf, fcut, r / dist)
        energy = s.new_zeros(n_mol := int(mol.max()) + 1).index_add(0, mol, self.energy(s).squeeze(-1))
        dipole = s.new_zeros(n_mol, 3).index_add(0, mol, self.dipole(v).squeeze(-1))
        return energy, dipole


class HSTULayer(nn.Module):
    def __init__(self, d, heads, n, dropout=0.2):
        super().__init__()
        self.h, self.n, self.d, self.dropout = heads, n, d, dropout
        self._uvqk = nn.Parameter(torch.empty(d, 4 * d).normal_(mean=0, std=0.02))
        self._o = nn.Linear(d, d)
        nn.init.xavier_uniform_(self._o.weight)
        self.ts_w, self.pos_w = nn.Parameter(torch.randn(65) * 0.02), nn.Parameter(torch.randn(2 * n - 1) * 0.02)

    def forward(self, x, times, valid):
        B, N, D = x.shape
        u, v, q, k = F.silu(F.layer_norm(x, (D,)) @ self._uvqk).split([D] * 4, dim=-1)
        q, k, v = (t.view(B, N, self.h, -1) for t in (q, k, v))
        bucket = ((times[:, :, None] - times[:, None, :]).abs().clamp(min=1).log() / 0.301).long().clamp(0, 64)
        pos = torch.arange(N, device=x.device)
        bias = self.ts_w[bucket] + self.pos_w[pos[None] - pos[:, None] + self.n - 1]
        att = F.silu(torch.einsum("bnhd,bmhd->bhnm", q, k) + bias.unsqueeze(1)) / N
        att = att * torch.tril(torch.ones(N, N, device=x.device)) * valid[:, None, None, :]
        o = torch.einsum("bhnm,bmhd->bnhd", att, v).reshape(B, N, D)
        return self._o(F.dropout(u * F.layer_norm(o, (D,)), self.dropout, self.training)) + x


class HSTU(nn.Module):
    def __init__(self, items=300, d=64, heads=2, n=24, layers=3):
        super().__init__()
        self.d, self.item, self.pos = d, nn.Embedding(items, d, padding_idx=0), nn.Embedding(n, d)
        self.layers = nn.ModuleList(HSTULayer(d, heads, n) for _ in range(layers))
        nn.init.trunc_normal_(self.item.weight, std=0.02)
        nn.init.trunc_normal_(self.pos.weight, std=math.sqrt(1.0 / d))

    def forward(self, ids, times, negatives):
        valid = (ids != 0).float()
        x = F.dropout(self.item(ids) * self.d**0.5 + self.pos.weight[: ids.size(1)], 0.2, self.training)
        x = x * valid.unsqueeze(-1)
        for layer in self.layers:
            x = layer(x, times, valid) * valid.unsqueeze(-1)
        x = x / torch.clamp(torch.linalg.norm(x, dim=-1, keepdim=True), min=1e-6)
        return x @ F.normalize(self.item(negatives), dim=-1).transpose(1, 2) / 0.05


def histories():
    ids = torch.randint(1, 300, (8, 24)) * (torch.arange(24) < torch.randint(6, 25, (8, 1)))
    return ids, torch.randint(1, 90000, (8, 24)).cumsum(1), torch.randint(1, 300, (8, 32))


NETS = {
    "EDM2": (EDM2, lambda: (torch.randn(8, 3, 16, 16), (torch.randn(8) * 1.2 - 1.2).exp(), torch.randint(10, (8,)))),
    "Griffin": (Griffin, lambda: (torch.randint(128, (8, 24)),)),
    "FourCastNet": (FourCastNet, lambda: (torch.randn(8, 8, 32, 64),)),
    "SlowFast": (SlowFast, lambda: (torch.rand(8, 3, 16, 32, 32),)),
    "PaiNN": (PaiNN, lambda: (torch.randint(1, 10, (80,)), torch.randn(80, 3) * 1.5, torch.arange(80) // 10)),
    "HSTU": (HSTU, histories),
}
