"""Nine networks typed from memory of their papers: SegFormer to PatchTST."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class EfficientSelfAttention(nn.Module):
    def __init__(self, dim, heads, sr_ratio):
        super().__init__()
        self.heads, self.sr_ratio = heads, sr_ratio
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, dim * 2)
        self.proj = nn.Linear(dim, dim)
        if sr_ratio > 1:
            self.sr = nn.Conv2d(dim, dim, sr_ratio, sr_ratio)
            self.norm = nn.LayerNorm(dim)

    def forward(self, x, h, w):
        b, n, c = x.shape
        q = self.q(x).reshape(b, n, self.heads, c // self.heads).permute(0, 2, 1, 3)
        if self.sr_ratio > 1:
            x = x.transpose(1, 2).reshape(b, c, h, w)
            x = self.norm(self.sr(x).flatten(2).transpose(1, 2))
        k, v = self.kv(x).reshape(b, -1, 2, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        attn = (q @ k.transpose(-2, -1)) * (c // self.heads) ** -0.5
        x = (attn.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, c)
        return self.proj(x)


class MixFFN(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, x, h, w):
        x = self.fc1(x)
        b, _, c = x.shape
        x = self.dwconv(x.transpose(1, 2).view(b, c, h, w)).flatten(2).transpose(1, 2)
        return self.fc2(F.gelu(x))


class MiTBlock(nn.Module):
    def __init__(self, dim, heads, sr_ratio):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = EfficientSelfAttention(dim, heads, sr_ratio)
        self.mlp = MixFFN(dim, dim * 4)

    def forward(self, x, h, w):
        x = x + self.attn(self.norm1(x), h, w)
        return x + self.mlp(self.norm2(x), h, w)


class SegFormer(nn.Module):
    def __init__(self, dims=(16, 32, 48, 64), heads=(1, 2, 3, 4), srs=(8, 4, 2, 1), depth=2, classes=10, width=32):
        super().__init__()
        self.embeds, self.embed_norms = nn.ModuleList(), nn.ModuleList()
        self.stages, self.norms = nn.ModuleList(), nn.ModuleList()
        c_in = 3
        for i, dim in enumerate(dims):
            k, s = (7, 4) if i == 0 else (3, 2)
            self.embeds.append(nn.Conv2d(c_in, dim, k, s, k // 2))
            self.embed_norms.append(nn.LayerNorm(dim))
            self.stages.append(nn.ModuleList(MiTBlock(dim, heads[i], srs[i]) for _ in range(depth)))
            self.norms.append(nn.LayerNorm(dim))
            c_in = dim
        self.linears = nn.ModuleList(nn.Linear(dim, width) for dim in dims)
        self.fuse = nn.Sequential(nn.Conv2d(width * 4, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.dropout = nn.Dropout2d(0.1)
        self.pred = nn.Conv2d(width, classes, 1)

    def forward(self, img):
        x, feats = img, []
        for embed, embed_norm, stage, norm in zip(self.embeds, self.embed_norms, self.stages, self.norms, strict=True):
            x = embed(x)
            b, c, h, w = x.shape
            x = embed_norm(x.flatten(2).transpose(1, 2))
            for block in stage:
                x = block(x, h, w)
            x = norm(x).reshape(b, h, w, c).permute(0, 3, 1, 2).contiguous()
            feats.append(x)
        size = feats[0].shape[2:]
        outs = []
        for f, lin in zip(feats, self.linears, strict=True):
            y = lin(f.flatten(2).transpose(1, 2)).permute(0, 2, 1).reshape(f.shape[0], -1, *f.shape[2:])
            outs.append(F.interpolate(y, size=size, mode="bilinear", align_corners=False))
        y = self.pred(self.dropout(self.fuse(torch.cat(outs[::-1], dim=1))))
        return F.interpolate(y, size=img.shape[2:], mode="bilinear", align_corners=False)


class BaseConv(nn.Module):
    def __init__(self, c1, c2, k=1, s=1):
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, (k - 1) // 2, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(self.bn(self.conv(x)))


class CSPLayer(nn.Module):
    def __init__(self, c1, c2, n=1, shortcut=True):
        super().__init__()
        c = c2 // 2
        self.conv1, self.conv2, self.conv3 = BaseConv(c1, c), BaseConv(c1, c), BaseConv(2 * c, c2)
        self.m = nn.ModuleList(nn.Sequential(BaseConv(c, c, 1), BaseConv(c, c, 3)) for _ in range(n))
        self.shortcut = shortcut

    def forward(self, x):
        y, skip = self.conv1(x), self.conv2(x)
        for m in self.m:
            y = m(y) + y if self.shortcut else m(y)
        return self.conv3(torch.cat((y, skip), dim=1))


class SPPBottleneck(nn.Module):
    def __init__(self, c1, c2, ks=(5, 9, 13)):
        super().__init__()
        self.conv1 = BaseConv(c1, c1 // 2)
        self.pools = nn.ModuleList(nn.MaxPool2d(k, 1, k // 2) for k in ks)
        self.conv2 = BaseConv(c1 // 2 * (len(ks) + 1), c2)

    def forward(self, x):
        x = self.conv1(x)
        return self.conv2(torch.cat([x] + [p(x) for p in self.pools], 1))


class YOLOXHead(nn.Module):
    def __init__(self, channels, num_classes, width=32, strides=(8, 16, 32), prior=0.01):
        super().__init__()
        self.strides = strides
        self.stems = nn.ModuleList(BaseConv(c, width) for c in channels)
        self.cls_convs, self.reg_convs = nn.ModuleList(), nn.ModuleList()
        self.cls_preds, self.reg_preds, self.obj_preds = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for _ in channels:
            self.cls_convs.append(nn.Sequential(BaseConv(width, width, 3), BaseConv(width, width, 3)))
            self.reg_convs.append(nn.Sequential(BaseConv(width, width, 3), BaseConv(width, width, 3)))
            self.cls_preds.append(nn.Conv2d(width, num_classes, 1))
            self.reg_preds.append(nn.Conv2d(width, 4, 1))
            self.obj_preds.append(nn.Conv2d(width, 1, 1))
        for conv in [*self.cls_preds, *self.obj_preds]:
            nn.init.constant_(conv.bias, -math.log((1 - prior) / prior))

    def forward(self, feats):
        outputs = []
        for i, x in enumerate(feats):
            x = self.stems[i](x)
            cls_out = self.cls_preds[i](self.cls_convs[i](x))
            reg_feat = self.reg_convs[i](x)
            reg, obj = self.reg_preds[i](reg_feat), self.obj_preds[i](reg_feat)
            h, w = reg.shape[-2:]
            yv, xv = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
            grid = torch.stack((xv, yv), 2).view(1, -1, 2).type_as(reg)
            out = torch.cat([reg, obj, cls_out], 1).flatten(2).permute(0, 2, 1)
            xy = (out[..., :2] + grid) * self.strides[i]
            wh = torch.exp(out[..., 2:4].clamp(max=6)) * self.strides[i]
            outputs.append(torch.cat([xy, wh, out[..., 4:]], dim=-1))
        return torch.cat(outputs, dim=1)


class YOLOX(nn.Module):
    def __init__(self, c=8, num_classes=6):
        super().__init__()
        self.stem = BaseConv(12, c, 3)
        self.dark2 = nn.Sequential(BaseConv(c, 2 * c, 3, 2), CSPLayer(2 * c, 2 * c))
        self.dark3 = nn.Sequential(BaseConv(2 * c, 4 * c, 3, 2), CSPLayer(4 * c, 4 * c, 2))
        self.dark4 = nn.Sequential(BaseConv(4 * c, 6 * c, 3, 2), CSPLayer(6 * c, 6 * c, 2))
        self.dark5 = nn.Sequential(
            BaseConv(6 * c, 8 * c, 3, 2), SPPBottleneck(8 * c, 8 * c), CSPLayer(8 * c, 8 * c, shortcut=False)
        )
        self.lateral = BaseConv(8 * c, 6 * c)
        self.p4 = CSPLayer(12 * c, 6 * c, shortcut=False)
        self.reduce = BaseConv(6 * c, 4 * c)
        self.p3 = CSPLayer(8 * c, 4 * c, shortcut=False)
        self.down1, self.n3 = BaseConv(4 * c, 4 * c, 3, 2), CSPLayer(8 * c, 6 * c, shortcut=False)
        self.down2, self.n4 = BaseConv(6 * c, 6 * c, 3, 2), CSPLayer(12 * c, 8 * c, shortcut=False)
        self.head = YOLOXHead((4 * c, 6 * c, 8 * c), num_classes)

    def forward(self, x):
        x = torch.cat((x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]), dim=1)
        c3 = self.dark3(self.dark2(self.stem(x)))
        c4 = self.dark4(c3)
        c5 = self.dark5(c4)
        fpn0 = self.lateral(c5)
        f = self.p4(torch.cat([F.interpolate(fpn0, scale_factor=2), c4], 1))
        fpn1 = self.reduce(f)
        out2 = self.p3(torch.cat([F.interpolate(fpn1, scale_factor=2), c3], 1))
        out1 = self.n3(torch.cat([self.down1(out2), fpn1], 1))
        out0 = self.n4(torch.cat([self.down2(out1), fpn0], 1))
        return self.head((out2, out1, out0))


class ConvModule(nn.Module):
    def __init__(self, d, kernel=15, dropout=0.1):
        super().__init__()
        self.ln = nn.LayerNorm(d)
        self.pw1 = nn.Conv1d(d, 2 * d, 1)
        self.dw = nn.Conv1d(d, d, kernel, padding=kernel // 2, groups=d)
        self.bn = nn.BatchNorm1d(d)
        self.pw2 = nn.Conv1d(d, d, 1)
        self.drop = nn.Dropout(dropout)

    def forward(self, x, pad):
        x = F.glu(self.pw1(self.ln(x).transpose(1, 2)), dim=1)
        x = x.masked_fill(pad[:, None], 0.0)
        x = F.silu(self.bn(self.dw(x)))
        return self.drop(self.pw2(x)).transpose(1, 2)


class ConformerLayer(nn.Module):
    def __init__(self, d, heads, dropout=0.1):
        super().__init__()

        def ff():
            return nn.Sequential(
                nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.SiLU(), nn.Dropout(dropout), nn.Linear(4 * d, d)
            )

        self.ff1, self.ff2 = ff(), ff()
        self.ln_att = nn.LayerNorm(d)
        self.att = nn.MultiheadAttention(d, heads, dropout=dropout, batch_first=True)
        self.conv = ConvModule(d, dropout=dropout)
        self.ln_out = nn.LayerNorm(d)

    def forward(self, x, pad):
        x = x + 0.5 * self.ff1(x)
        y = self.ln_att(x)
        x = x + self.att(y, y, y, key_padding_mask=pad, need_weights=False)[0]
        x = x + self.conv(x, pad)
        x = x + 0.5 * self.ff2(x)
        return self.ln_out(x)


class Conformer(nn.Module):
    def __init__(self, n_mels=40, d=48, heads=4, layers=3, vocab=30):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv2d(1, d, 3, stride=2), nn.ReLU(), nn.Conv2d(d, d, 3, stride=2), nn.ReLU())
        self.proj = nn.Linear(d * (((n_mels - 1) // 2 - 1) // 2), d)
        self.scale = math.sqrt(d)
        pos = torch.arange(500)[:, None] * torch.exp(torch.arange(0, d, 2) * (-math.log(10000.0) / d))
        self.register_buffer("pe", torch.stack([pos.sin(), pos.cos()], -1).flatten(1), persistent=False)
        self.layers = nn.ModuleList(ConformerLayer(d, heads) for _ in range(layers))
        self.ctc = nn.Linear(d, vocab)

    def forward(self, mels, lengths):
        x = self.subsample(mels.unsqueeze(1))
        b, c, t, f = x.shape
        x = self.proj(x.transpose(1, 2).reshape(b, t, c * f)) * self.scale + self.pe[:t]
        lengths = ((lengths - 1) // 2 - 1) // 2
        pad = torch.arange(t, device=x.device)[None] >= lengths[:, None]
        for layer in self.layers:
            x = layer(x, pad)
        return F.log_softmax(self.ctc(x), dim=-1)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class GroupedQueryAttention(nn.Module):
    def __init__(self, dim, n_heads, n_kv):
        super().__init__()
        self.n_heads, self.n_kv, self.hd = n_heads, n_kv, dim // n_heads
        self.wq = nn.Linear(dim, n_heads * self.hd, bias=False)
        self.wk = nn.Linear(dim, n_kv * self.hd, bias=False)
        self.wv = nn.Linear(dim, n_kv * self.hd, bias=False)
        self.wo = nn.Linear(n_heads * self.hd, dim, bias=False)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.n_heads, self.hd).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_kv, self.hd).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_kv, self.hd).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        rep = self.n_heads // self.n_kv
        k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(o.transpose(1, 2).reshape(b, t, -1))


class SwiGLU(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class SparseMoE(nn.Module):
    def __init__(self, dim, hidden, n_experts=4, top_k=2):
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(dim, n_experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(dim, hidden) for _ in range(n_experts))

    def forward(self, x):
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        logits = self.gate(x)
        weights, chosen = torch.topk(logits, self.top_k, dim=-1)
        weights = weights.softmax(dim=-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == i)
            out.index_add_(0, token, weights[token, slot, None] * expert(x[token]))
        return out.view(shape), logits


class Mixtral(nn.Module):
    def __init__(self, vocab=128, dim=48, layers=3, heads=6, kv_heads=2, hidden=64, max_len=64):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "ln1": RMSNorm(dim),
                    "attn": GroupedQueryAttention(dim, heads, kv_heads),
                    "ln2": RMSNorm(dim),
                    "moe": SparseMoE(dim, hidden),
                }
            )
            for _ in range(layers)
        )
        self.norm = RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        hd = dim // heads
        freqs = torch.outer(torch.arange(max_len).float(), 10000.0 ** (-torch.arange(0, hd, 2).float() / hd))
        self.register_buffer("cos", torch.cat([freqs, freqs], -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([freqs, freqs], -1).sin(), persistent=False)
        self.apply(self._init)

    @staticmethod
    def _init(m):
        if isinstance(m, nn.Linear | nn.Embedding):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, ids):
        t = ids.shape[1]
        h, router = self.tok(ids), []
        for layer in self.layers:
            h = h + layer["attn"](layer["ln1"](h), self.cos[:t], self.sin[:t])
            y, logits = layer["moe"](layer["ln2"](h))
            h = h + y
            router.append(logits)
        return self.lm_head(self.norm(h)), torch.stack(router)


class MambaBlock(nn.Module):
    def __init__(self, d_model, d_state=8, d_conv=4, expand=2):
        super().__init__()
        d_inner, self.dt_rank, self.d_state = expand * d_model, math.ceil(d_model / 16), d_state
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv1d = nn.Conv1d(d_inner, d_inner, d_conv, groups=d_inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(d_inner, self.dt_rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, d_inner)
        nn.init.uniform_(self.dt_proj.weight, -(self.dt_rank**-0.5), self.dt_rank**-0.5)
        dt = torch.exp(torch.rand(d_inner) * (math.log(0.1) - math.log(0.001)) + math.log(0.001)).clamp(min=1e-4)
        with torch.no_grad():
            self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))
        self.A_log = nn.Parameter(torch.log(torch.arange(1, d_state + 1).float()).repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def forward(self, u):
        length = u.shape[1]
        x, z = self.in_proj(u).chunk(2, dim=-1)
        x = F.silu(self.conv1d(x.transpose(1, 2))[..., :length]).transpose(1, 2)
        dt, B, C = self.x_proj(x).split([self.dt_rank, self.d_state, self.d_state], dim=-1)
        dt = F.softplus(self.dt_proj(dt))
        A = -torch.exp(self.A_log.float())
        dA = torch.exp(torch.einsum("bld,dn->bldn", dt, A))
        dBx = torch.einsum("bld,bln,bld->bldn", dt, B, x)
        h = torch.zeros_like(dA[:, 0])
        ys = []
        for i in range(length):
            h = dA[:, i] * h + dBx[:, i]
            ys.append(torch.einsum("bdn,bn->bd", h, C[:, i]))
        y = torch.stack(ys, dim=1) + x * self.D
        return self.out_proj(y * F.silu(z))


class Mamba(nn.Module):
    def __init__(self, vocab=100, d_model=32, n_layer=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d_model)
        self.blocks = nn.ModuleList(MambaBlock(d_model) for _ in range(n_layer))
        self.norms = nn.ModuleList(RMSNorm(d_model) for _ in range(n_layer))
        self.norm_f = RMSNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.lm_head.weight = self.embedding.weight
        for block in self.blocks:
            with torch.no_grad():
                block.out_proj.weight /= math.sqrt(n_layer)

    def forward(self, ids):
        x = self.embedding(ids)
        for norm, block in zip(self.norms, self.blocks, strict=True):
            x = x + block(norm(x))
        return self.lm_head(self.norm_f(x))


class GatedDeltaRule(nn.Module):
    def __init__(self, dim, heads, d_k=8, d_v=16, conv=4):
        super().__init__()
        self.heads, self.d_k, self.d_v = heads, d_k, d_v
        self.q_proj = nn.Linear(dim, heads * d_k, bias=False)
        self.k_proj = nn.Linear(dim, heads * d_k, bias=False)
        self.v_proj = nn.Linear(dim, heads * d_v, bias=False)
        self.a_proj, self.b_proj = nn.Linear(dim, heads, bias=False), nn.Linear(dim, heads, bias=False)
        self.g_proj = nn.Linear(dim, heads * d_v, bias=False)
        c = heads * (2 * d_k + d_v)
        self.conv = nn.Conv1d(c, c, conv, groups=c, bias=False)
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        dt = torch.exp(torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))
        self.o_norm = RMSNorm(d_v)
        self.o_proj = nn.Linear(heads * d_v, dim, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        qkv = torch.cat([self.q_proj(x), self.k_proj(x), self.v_proj(x)], dim=-1).transpose(1, 2)
        qkv = F.silu(self.conv(F.pad(qkv, (self.conv.kernel_size[0] - 1, 0)))).transpose(1, 2)
        q, k, v = qkv.split([self.heads * self.d_k, self.heads * self.d_k, self.heads * self.d_v], dim=-1)
        q = F.normalize(q.view(b, t, self.heads, self.d_k), dim=-1) * self.d_k**-0.5
        k = F.normalize(k.view(b, t, self.heads, self.d_k), dim=-1)
        v = v.view(b, t, self.heads, self.d_v)
        beta = self.b_proj(x).sigmoid()
        decay = torch.exp(-self.A_log.exp() * F.softplus(self.a_proj(x) + self.dt_bias))
        state = x.new_zeros(b, self.heads, self.d_k, self.d_v)
        out = []
        for i in range(t):
            state = state * decay[:, i, :, None, None]
            read = torch.einsum("bhkv,bhk->bhv", state, k[:, i])
            delta = (v[:, i] - read) * beta[:, i, :, None]
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, i], delta)
            out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, i]))
        o = self.o_norm(torch.stack(out, dim=1)).flatten(2)
        return self.o_proj(o * F.silu(self.g_proj(x)))


class GatedDeltaNet(nn.Module):
    def __init__(self, n_tokens=8, dim=32, heads=3, depth=3, classes=5):
        super().__init__()
        self.embed = nn.Embedding(n_tokens, dim, padding_idx=0)
        self.mixers = nn.ModuleList(GatedDeltaRule(dim, heads) for _ in range(depth))
        self.mlps = nn.ModuleList(SwiGLU(dim, 2 * dim) for _ in range(depth))
        self.norm1 = nn.ModuleList(RMSNorm(dim) for _ in range(depth))
        self.norm2 = nn.ModuleList(RMSNorm(dim) for _ in range(depth))
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, ids):
        mask = (ids != 0).float().unsqueeze(-1)
        x = self.embed(ids)
        for mixer, mlp, n1, n2 in zip(self.mixers, self.mlps, self.norm1, self.norm2, strict=True):
            x = x + mixer(n1(x) * mask)
            x = x + mlp(n2(x))
        x = (self.norm(x) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.head(x)


class Bottleneck(nn.Module):
    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inplanes, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.bn2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False), nn.BatchNorm2d(planes)
        self.avgpool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.conv3, self.bn3 = nn.Conv2d(planes, planes * 4, 1, bias=False), nn.BatchNorm2d(planes * 4)
        self.downsample = None
        if stride > 1 or inplanes != planes * 4:
            self.downsample = nn.Sequential(
                nn.AvgPool2d(stride), nn.Conv2d(inplanes, planes * 4, 1, bias=False), nn.BatchNorm2d(planes * 4)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = F.relu(self.bn2(self.conv2(out)), inplace=True)
        out = self.bn3(self.conv3(self.avgpool(out)))
        out += x if self.downsample is None else self.downsample(x)
        return F.relu(out, inplace=True)


class AttentionPool2d(nn.Module):
    def __init__(self, spatial, dim, heads, out):
        super().__init__()
        self.positional_embedding = nn.Parameter(torch.randn(spatial**2 + 1, dim) / dim**0.5)
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.c_proj = nn.Linear(dim, out)
        self.heads = heads

    def forward(self, x):
        x = x.flatten(2).permute(2, 0, 1)
        x = torch.cat([x.mean(0, keepdim=True), x], 0) + self.positional_embedding[:, None]
        x, _ = F.multi_head_attention_forward(
            x[:1], x, x, x.shape[-1], self.heads, None,
            torch.cat([self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]), None, None, False, 0.0,
            self.c_proj.weight, self.c_proj.bias, self.training, need_weights=False,
            use_separate_proj_weight=True, q_proj_weight=self.q_proj.weight,
            k_proj_weight=self.k_proj.weight, v_proj_weight=self.v_proj.weight,
        )  # fmt: skip
        return x.squeeze(0)


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class TextBlock(nn.Module):
    def __init__(self, d, heads, mask):
        super().__init__()
        self.attn = nn.MultiheadAttention(d, heads)
        self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.c_fc, self.gelu, self.c_proj = nn.Linear(d, d * 4), QuickGELU(), nn.Linear(d * 4, d)
        self.register_buffer("attn_mask", mask, persistent=False)

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=self.attn_mask)[0]
        return x + self.c_proj(self.gelu(self.c_fc(self.ln_2(x))))


class CLIP(nn.Module):
    def __init__(self, embed=32, vocab=64, context=12, width=48, heads=4, layers=3, base=8):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, base, 3, 2, 1, bias=False), nn.BatchNorm2d(base), nn.ReLU(inplace=True),
            nn.Conv2d(base, base * 2, 3, padding=1, bias=False), nn.BatchNorm2d(base * 2), nn.ReLU(inplace=True),
            nn.AvgPool2d(2),
        )  # fmt: skip
        self.res = nn.Sequential(
            Bottleneck(base * 2, base), Bottleneck(base * 4, base), Bottleneck(base * 4, base * 2, 2)
        )
        self.attnpool = AttentionPool2d(4, base * 8, 4, embed)
        mask = torch.full((context, context), float("-inf")).triu_(1)
        self.transformer = nn.Sequential(*[TextBlock(width, heads, mask) for _ in range(layers)])
        self.token_embedding = nn.Embedding(vocab, width)
        self.positional_embedding = nn.Parameter(torch.empty(context, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.empty(width, embed))
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))
        self.initialize_parameters()

    def initialize_parameters(self):
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        nn.init.normal_(self.positional_embedding, std=0.01)
        for proj in (self.attnpool.q_proj, self.attnpool.k_proj, self.attnpool.v_proj, self.attnpool.c_proj):
            nn.init.normal_(proj.weight, std=proj.in_features**-0.5)
        for block in self.res:
            nn.init.zeros_(block.bn3.weight)
        width, layers = self.ln_final.weight.shape[0], len(self.transformer)
        for block in self.transformer:
            nn.init.normal_(block.attn.in_proj_weight, std=width**-0.5)
            nn.init.normal_(block.attn.out_proj.weight, std=width**-0.5 * (2 * layers) ** -0.5)
            nn.init.normal_(block.c_fc.weight, std=(2 * width) ** -0.5)
            nn.init.normal_(block.c_proj.weight, std=width**-0.5 * (2 * layers) ** -0.5)
        nn.init.normal_(self.text_projection, std=width**-0.5)

    def encode_text(self, text):
        x = self.token_embedding(text) + self.positional_embedding
        x = self.ln_final(self.transformer(x.permute(1, 0, 2)).permute(1, 0, 2))
        return x[torch.arange(x.shape[0]), text.argmax(dim=-1)] @ self.text_projection

    def forward(self, image, text):
        img = self.attnpool(self.res(self.stem(image)))
        txt = self.encode_text(text)
        img = img / img.norm(dim=1, keepdim=True)
        txt = txt / txt.norm(dim=1, keepdim=True)
        logits = self.logit_scale.exp() * img @ txt.t()
        return logits, logits.t()


class SiamRPN(nn.Module):
    def __init__(self, anchors=5, feat=32):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 7, stride=2), nn.BatchNorm2d(16), nn.MaxPool2d(3, 2), nn.ReLU(inplace=True),
            nn.Conv2d(16, 24, 5), nn.BatchNorm2d(24), nn.ReLU(inplace=True),
            nn.Conv2d(24, 32, 3), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.Conv2d(32, feat, 3), nn.BatchNorm2d(feat),
        )  # fmt: skip
        self.anchors, self.feat = anchors, feat
        self.conv_r1 = nn.Conv2d(feat, feat * 4 * anchors, 3)
        self.conv_r2 = nn.Conv2d(feat, feat, 3)
        self.conv_cls1 = nn.Conv2d(feat, feat * 2 * anchors, 3)
        self.conv_cls2 = nn.Conv2d(feat, feat, 3)
        self.regress_adjust = nn.Conv2d(4 * anchors, 4 * anchors, 1)

    def xcorr(self, x, kernel, out):
        b, c, h, w = x.shape
        kernel = kernel.view(b * out, self.feat, *kernel.shape[-2:])
        y = F.conv2d(x.reshape(1, b * c, h, w), kernel, groups=b)
        return y.view(b, out, *y.shape[-2:])

    def forward(self, template, search):
        z, x = self.features(template), self.features(search)
        delta = self.regress_adjust(self.xcorr(self.conv_r2(x), self.conv_r1(z), 4 * self.anchors))
        score = self.xcorr(self.conv_cls2(x), self.conv_cls1(z), 2 * self.anchors)
        return delta, score


class RevIN(nn.Module):
    def __init__(self, channels, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.affine_weight = nn.Parameter(torch.ones(channels))
        self.affine_bias = nn.Parameter(torch.zeros(channels))

    def norm(self, x):
        mean = x.mean(1, keepdim=True).detach()
        std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + self.eps).detach()
        return (x - mean) / std * self.affine_weight + self.affine_bias, mean, std

    def denorm(self, x, mean, std):
        return (x - self.affine_bias) / (self.affine_weight + self.eps**2) * std + mean


class TSTLayer(nn.Module):
    def __init__(self, d, heads, d_ff, dropout=0.1):
        super().__init__()
        self.heads, self.scale = heads, (d // heads) ** -0.5
        self.W_Q, self.W_K, self.W_V = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.to_out = nn.Sequential(nn.Linear(d, d), nn.Dropout(dropout))
        self.ff = nn.Sequential(nn.Linear(d, d_ff), nn.GELU(), nn.Dropout(dropout), nn.Linear(d_ff, d))
        self.bn1, self.bn2 = nn.BatchNorm1d(d), nn.BatchNorm1d(d)

    def forward(self, x, prev=None):
        b, n, d = x.shape
        q, k, v = (w(x).view(b, n, self.heads, -1).transpose(1, 2) for w in (self.W_Q, self.W_K, self.W_V))
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * self.scale
        if prev is not None:
            scores = scores + prev
        o = torch.einsum("bhqk,bhkd->bqhd", scores.softmax(-1), v).reshape(b, n, d)
        x = self.bn1((x + self.to_out(o)).transpose(1, 2)).transpose(1, 2)
        x = self.bn2((x + self.ff(x)).transpose(1, 2)).transpose(1, 2)
        return x, scores


class PatchTST(nn.Module):
    def __init__(self, channels=5, length=64, horizon=16, patch=16, stride=8, d=32, heads=4, layers=3):
        super().__init__()
        self.patch, self.stride = patch, stride
        n = (length - patch) // stride + 2
        self.revin = RevIN(channels)
        self.pad = nn.ReplicationPad1d((0, stride))
        self.W_P = nn.Linear(patch, d)
        self.W_pos = nn.Parameter(torch.empty(n, d).uniform_(-0.02, 0.02))
        self.layers = nn.ModuleList(TSTLayer(d, heads, 2 * d) for _ in range(layers))
        self.head = nn.Sequential(nn.Flatten(-2), nn.Linear(n * d, horizon), nn.Dropout(0.1))

    def forward(self, x):
        b, _, c = x.shape
        x, mean, std = self.revin.norm(x)
        x = self.pad(x.permute(0, 2, 1)).unfold(-1, self.patch, self.stride)
        z = (self.W_P(x) + self.W_pos).reshape(b * c, -1, self.W_pos.shape[1])
        scores = None
        for layer in self.layers:
            z, scores = layer(z, scores)
        y = self.head(z.view(b, c, *z.shape[1:])).permute(0, 2, 1)
        return self.revin.denorm(y, mean, std)


NETS = {
    "SegFormer": (SegFormer, lambda: (torch.randn(4, 3, 64, 64),)),
    "YOLOX": (YOLOX, lambda: (torch.rand(4, 3, 96, 96),)),
    "Conformer": (Conformer, lambda: (torch.randn(4, 80, 40), torch.tensor([80, 72, 60, 49]))),
    "Mixtral": (Mixtral, lambda: (torch.randint(128, (4, 20)),)),
    "Mamba": (Mamba, lambda: (torch.randint(100, (4, 16)),)),
    "gated DeltaNet": (GatedDeltaNet, lambda: (torch.randint(8, (8, 16)),)),
    "CLIP": (CLIP, lambda: (torch.randn(8, 3, 32, 32), torch.randint(64, (8, 12)))),
    "SiamRPN": (SiamRPN, lambda: (torch.randn(4, 3, 63, 63), torch.randn(4, 3, 95, 95))),
    "PatchTST": (PatchTST, lambda: (torch.randn(8, 64, 5).cumsum(1),)),
}
