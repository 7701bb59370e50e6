"""Networks typed by hand as their papers describe them: the biaffine parser to Point Transformer, and EDSR."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class SharedDropout(nn.Module):
    """Dropout whose mask is the same at each position."""

    def __init__(self, p=0.33):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.training:
            mask = x.new_empty(x.shape[0], 1, x.shape[2]).bernoulli_(1 - self.p) / (1 - self.p)
            x = x * mask
        return x


class IndependentDropout(nn.Module):
    """Drops whole embeddings of either kind, and scales up the other where only one is dropped."""

    def __init__(self, p=0.33):
        super().__init__()
        self.p = p

    def forward(self, *items):
        if not self.training:
            return items
        masks = [x.new_empty(x.shape[:2]).bernoulli_(1 - self.p) for x in items]
        total = sum(masks)
        scale = len(items) / total.max(torch.ones_like(total))
        return [x * (m * scale).unsqueeze(-1) for x, m in zip(items, masks, strict=True)]


class MLP(nn.Module):
    """One orthogonal layer with a leaky rectifier and shared dropout."""

    def __init__(self, n_in, n_out, dropout=0.33):
        super().__init__()
        self.linear = nn.Linear(n_in, n_out)
        self.activation, self.dropout = nn.LeakyReLU(negative_slope=0.1), SharedDropout(dropout)
        nn.init.orthogonal_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return self.dropout(self.activation(self.linear(x)))


class Biaffine(nn.Module):
    """Bilinear scores of each pair of positions, from zero weights."""

    def __init__(self, n_in, n_out=1, bias_x=True, bias_y=True):
        super().__init__()
        self.n_out, self.bias_x, self.bias_y = n_out, bias_x, bias_y
        self.weight = nn.Parameter(torch.Tensor(n_out, n_in + bias_x, n_in + bias_y))
        nn.init.zeros_(self.weight)

    def forward(self, x, y):
        if self.bias_x:
            x = torch.cat((x, torch.ones_like(x[..., :1])), -1)
        if self.bias_y:
            y = torch.cat((y, torch.ones_like(y[..., :1])), -1)
        s = torch.einsum("bxi,oij,byj->boxy", x, self.weight, y)
        return s.squeeze(1) if self.n_out == 1 else s.permute(0, 2, 3, 1)


class BiaffineParser(nn.Module):
    """Dependency parser: scores of each head and of each relation."""

    def __init__(self, words=300, tags=20, rels=12, embed=50, tag_embed=32, hidden=80, arc=96, rel=32):
        super().__init__()
        self.word_embed = nn.Embedding(words, embed)
        self.pretrained = nn.Embedding.from_pretrained(torch.randn(words, embed) * 0.4)
        self.tag_embed = nn.Embedding(tags, tag_embed)
        nn.init.zeros_(self.word_embed.weight)
        self.embed_dropout = IndependentDropout()
        self.lstm = nn.LSTM(embed + tag_embed, hidden, num_layers=3, batch_first=True, bidirectional=True, dropout=0.33)
        for name, p in self.lstm.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(p)
            else:
                nn.init.zeros_(p)
        self.lstm_dropout = SharedDropout()
        self.arc_d, self.arc_h = MLP(2 * hidden, arc), MLP(2 * hidden, arc)
        self.rel_d, self.rel_h = MLP(2 * hidden, rel), MLP(2 * hidden, rel)
        self.arc_attn = Biaffine(arc, bias_x=True, bias_y=False)
        self.rel_attn = Biaffine(rel, rels, bias_x=True, bias_y=True)

    def forward(self, words, tags):
        mask = words.ne(0)
        word, tag = self.embed_dropout(self.word_embed(words) + self.pretrained(words), self.tag_embed(tags))
        x = torch.cat((word, tag), -1)
        x = pack_padded_sequence(x, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
        x, _ = pad_packed_sequence(self.lstm(x)[0], batch_first=True, total_length=words.shape[1])
        x = self.lstm_dropout(x)
        s_arc = self.arc_attn(self.arc_d(x), self.arc_h(x))
        s_rel = self.rel_attn(self.rel_d(x), self.rel_h(x))
        return s_arc.masked_fill(~mask.unsqueeze(1), -1e32), s_rel


def small_init_(p, dim):
    nn.init.normal_(p, mean=0.0, std=math.sqrt(2 / (5 * dim)))


def wang_init_(p, dim, blocks):
    nn.init.normal_(p, mean=0.0, std=2 / blocks / math.sqrt(dim))


class CausalConv1d(nn.Module):
    """Depthwise convolution over the past."""

    def __init__(self, dim, kernel=4):
        super().__init__()
        self.pad = kernel - 1
        self.conv = nn.Conv1d(dim, dim, kernel, padding=self.pad, groups=dim)

    def forward(self, x):
        return self.conv(x.transpose(1, 2))[..., : -self.pad].transpose(1, 2)


class HeadwiseLinear(nn.Module):
    """Block-diagonal linear map without a bias."""

    def __init__(self, dim, heads):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, dim // heads, dim // heads))
        small_init_(self.weight, dim // heads)

    def forward(self, x):
        x = x.unflatten(-1, (self.weight.shape[0], -1))
        return torch.einsum("...hd,hod->...ho", x, self.weight).flatten(-2)


class MultiHeadNorm(nn.Module):
    """Group norm over each head, with a weight kept as its distance from one."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.weight = heads, nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        B, S, D = x.shape
        return F.group_norm(x.reshape(B * S, D), self.heads, weight=1.0 + self.weight, eps=1e-5).view(B, S, D)


class MLSTMBlock(nn.Module):
    """Pre-norm mLSTM: matrix memory with exponential gates, in parallel form."""

    def __init__(self, d, heads, blocks):
        super().__init__()
        inner, self.heads = 2 * d, heads
        self.norm, self.proj_up = nn.LayerNorm(d, bias=False), nn.Linear(d, 2 * inner, bias=False)
        self.conv = CausalConv1d(inner)
        self.q, self.k, self.v = (HeadwiseLinear(inner, inner // 4) for _ in range(3))
        self.igate, self.fgate = nn.Linear(3 * inner, heads), nn.Linear(3 * inner, heads)
        self.outnorm = MultiHeadNorm(inner, heads)
        self.skip = nn.Parameter(torch.ones(inner))
        self.proj_down = nn.Linear(inner, d, bias=False)
        small_init_(self.proj_up.weight, d)
        wang_init_(self.proj_down.weight, d, blocks)
        nn.init.zeros_(self.fgate.weight)
        self.fgate.bias.data = torch.linspace(3.0, 6.0, heads)
        nn.init.zeros_(self.igate.weight)
        nn.init.normal_(self.igate.bias, mean=0.0, std=0.1)

    def cell(self, q, k, v):
        gates = torch.cat([q, k, v], dim=-1)
        i = self.igate(gates).transpose(1, 2).unsqueeze(-1)
        f = self.fgate(gates).transpose(1, 2).unsqueeze(-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        cum = F.logsigmoid(f).cumsum(dim=-2)
        S = q.shape[-2]
        causal = torch.ones(S, S, dtype=torch.bool, device=q.device).tril()
        log_d = (cum - cum.transpose(-2, -1)).masked_fill(~causal, -float("inf")) + i.transpose(-2, -1)
        max_d = log_d.max(dim=-1, keepdim=True)[0]
        c = q @ (k / math.sqrt(k.shape[-1])).transpose(-2, -1) * torch.exp(log_d - max_d)
        n = torch.maximum(c.sum(dim=-1, keepdim=True).abs(), torch.exp(-max_d))
        return (c / (n + 1e-6) @ v).transpose(1, 2).flatten(2)

    def forward(self, x):
        x_m, z = self.proj_up(self.norm(x)).chunk(2, dim=-1)
        act = F.silu(self.conv(x_m))
        h = self.outnorm(self.cell(self.q(act), self.k(act), self.v(x_m)))
        return x + self.proj_down((h + self.skip * act) * F.silu(z))


class SLSTMBlock(nn.Module):
    """Pre-norm sLSTM: scalar memory with recurrent heads, then a gated perceptron."""

    def __init__(self, d, heads, index, blocks):
        super().__init__()
        self.heads, dh = heads, d // heads
        self.norm, self.ffn_norm = nn.LayerNorm(d, bias=False), nn.LayerNorm(d, bias=False)
        self.conv = CausalConv1d(d)
        self.i, self.f, self.z, self.o = (HeadwiseLinear(d, heads) for _ in range(4))
        self.recurrent = nn.Parameter(torch.zeros(4, heads, dh, dh))
        self.bias = nn.Parameter(torch.zeros(4, heads, dh))
        ratio = index / max(blocks - 1, 1)
        steps = torch.arange(dh) / (dh - 1)
        self.bias.data[1] = -(-5.0 + 12.0 * steps ** (0.3 + 1.3 * ratio))
        self.group_norm, self.dropout = MultiHeadNorm(d, heads), nn.Dropout(0.1)
        up = int(64 * math.ceil(1.3 * d / 64))
        self.ffn_up, self.ffn_down = nn.Linear(d, 2 * up, bias=False), nn.Linear(up, d, bias=False)
        small_init_(self.ffn_up.weight, d)
        wang_init_(self.ffn_down.weight, d, blocks)

    def mix(self, x):
        B, S, _ = x.shape
        act = F.silu(self.conv(x))
        wx = torch.stack([self.i(act), self.f(act), self.z(x), self.o(x)], dim=2)
        wx = wx.view(B, S, 4, self.heads, -1)
        y = c = n = m = torch.zeros_like(wx[:, 0, 0])
        outputs = []
        for t in range(S):
            raw = wx[:, t] + torch.einsum("bhd,ghde->bghe", y, self.recurrent) + self.bias
            i, f, z, o = raw.unbind(1)
            log_f = m + F.logsigmoid(f)
            m = i if t == 0 else torch.maximum(i, log_f)
            i, f = torch.exp(i - m), torch.exp(log_f - m)
            c, n = f * c + i * torch.tanh(z), f * n + i
            y = torch.sigmoid(o) * c / n
            outputs.append(y.flatten(1))
        return self.group_norm(self.dropout(torch.stack(outputs, dim=1)))

    def forward(self, x):
        x = x + self.mix(self.norm(x))
        gate, up = self.ffn_up(self.ffn_norm(x)).chunk(2, dim=-1)
        return x + self.ffn_down(F.gelu(gate) * up)


class XLSTM(nn.Module):
    """Language model of mLSTM blocks with an sLSTM block among them."""

    def __init__(self, vocab=128, d=64, heads=4, blocks=4, slstm_at=(1,)):
        super().__init__()
        self.token_embedding, self.drop = nn.Embedding(vocab, d), nn.Dropout(0.1)
        self.blocks = nn.ModuleList(
            SLSTMBlock(d, heads, i, blocks) if i in slstm_at else MLSTMBlock(d, heads, blocks) for i in range(blocks)
        )
        self.post_norm, self.lm_head = nn.LayerNorm(d, bias=False), nn.Linear(d, vocab, bias=False)
        small_init_(self.token_embedding.weight, d)
        small_init_(self.lm_head.weight, d)

    def forward(self, ids):
        x = self.drop(self.token_embedding(ids))
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.post_norm(x))


def index_points(points, idx):
    flat = idx.reshape(idx.shape[0], -1, 1).expand(-1, -1, points.shape[-1])
    return points.gather(1, flat).view(*idx.shape, points.shape[-1])


def farthest_point_sample(xyz, n):
    B, N, _ = xyz.shape
    chosen, dist = [], torch.full((B, N), 1e10, device=xyz.device)
    far = torch.zeros(B, dtype=torch.long, device=xyz.device)
    for _ in range(n):
        chosen.append(far)
        centre = xyz.gather(1, far.view(B, 1, 1).expand(-1, -1, 3))
        dist = torch.minimum(dist, ((xyz - centre) ** 2).sum(-1))
        far = dist.argmax(-1)
    return torch.stack(chosen, 1)


class PointTransformerBlock(nn.Module):
    """Vector attention over nearest neighbours with a learnt position code."""

    def __init__(self, d_points, d_model, k):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(d_points, d_model), nn.Linear(d_model, d_points)
        self.fc_delta = nn.Sequential(nn.Linear(3, d_model), nn.ReLU(), nn.Linear(d_model, d_model))
        self.fc_gamma = nn.Sequential(nn.Linear(d_model, d_model), nn.ReLU(), nn.Linear(d_model, d_model))
        self.w_qs, self.w_ks, self.w_vs = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.k = k

    def forward(self, xyz, features):
        idx = torch.cdist(xyz, xyz).argsort()[:, :, : self.k]
        x = self.fc1(features)
        q, k, v = self.w_qs(x), index_points(self.w_ks(x), idx), index_points(self.w_vs(x), idx)
        pos = self.fc_delta(xyz[:, :, None] - index_points(xyz, idx))
        attn = self.fc_gamma(q[:, :, None] - k + pos)
        attn = F.softmax(attn / math.sqrt(k.size(-1)), dim=-2)
        return self.fc2(torch.einsum("bmnf,bmnf->bmf", attn, v + pos)) + features


class TransitionDown(nn.Module):
    """Farthest points, each with the maximum over its neighbours' features."""

    def __init__(self, n, k, cin, cout):
        super().__init__()
        self.n, self.k = n, k
        self.convs = nn.ModuleList([nn.Conv2d(cin + 3, cout, 1), nn.Conv2d(cout, cout, 1)])
        self.bns = nn.ModuleList([nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)])

    def forward(self, xyz, points):
        new_xyz = index_points(xyz, farthest_point_sample(xyz, self.n))
        idx = torch.cdist(new_xyz, xyz).argsort()[:, :, : self.k]
        grouped = torch.cat([index_points(xyz, idx) - new_xyz[:, :, None], index_points(points, idx)], dim=-1)
        x = grouped.permute(0, 3, 2, 1)
        for conv, bn in zip(self.convs, self.bns, strict=True):
            x = F.relu(bn(conv(x)))
        return new_xyz, x.max(2)[0].transpose(1, 2)


class PointTransformer(nn.Module):
    """Classifies a cloud by vector attention at falling resolution."""

    def __init__(self, points=128, stages=3, k=8, d_points=6, d=64, classes=10):
        super().__init__()
        self.fc1 = nn.Sequential(nn.Linear(d_points, 16), nn.ReLU(), nn.Linear(16, 16))
        self.transformer1 = PointTransformerBlock(16, d, k)
        self.downs, self.transformers = nn.ModuleList(), nn.ModuleList()
        for i in range(stages):
            c = 16 * 2 ** (i + 1)
            self.downs.append(TransitionDown(points // 4 ** (i + 1) * 2, k, c // 2, c))
            self.transformers.append(PointTransformerBlock(c, d, k))
        self.fc2 = nn.Sequential(nn.Linear(c, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes))

    def forward(self, x):
        xyz = x[..., :3]
        points = self.transformer1(xyz, self.fc1(x))
        for down, transformer in zip(self.downs, self.transformers, strict=True):
            xyz, points = down(xyz, points)
            points = transformer(xyz, points)
        return self.fc2(points.mean(1))


class MeanShift(nn.Conv2d):
    """Fixed convolution that takes the data set's mean colour out, or puts it back."""

    def __init__(self, sign=-1, rgb_range=255, mean=(0.4488, 0.4371, 0.4040)):
        super().__init__(3, 3, 1)
        self.weight.data = torch.eye(3).view(3, 3, 1, 1)
        self.bias.data = sign * rgb_range * torch.tensor(mean)
        for p in self.parameters():
            p.requires_grad = False


class ResBlock(nn.Module):
    """Residual block without normalisation, scaled before it is added."""

    def __init__(self, feats, scale):
        super().__init__()
        self.scale = scale
        self.body = nn.Sequential(
            nn.Conv2d(feats, feats, 3, padding=1), nn.ReLU(True), nn.Conv2d(feats, feats, 3, padding=1)
        )

    def forward(self, x):
        return self.body(x).mul(self.scale) + x


class EDSR(nn.Module):
    """Super-resolution by residual blocks and pixel shuffling."""

    def __init__(self, feats=32, blocks=16, scale=4, res_scale=0.1):
        super().__init__()
        self.sub_mean, self.add_mean = MeanShift(-1), MeanShift(1)
        self.head = nn.Conv2d(3, feats, 3, padding=1)
        body = [ResBlock(feats, res_scale) for _ in range(blocks)]
        self.body = nn.Sequential(*body, nn.Conv2d(feats, feats, 3, padding=1))
        up = []
        for _ in range(int(math.log2(scale))):
            up += [nn.Conv2d(feats, 4 * feats, 3, padding=1), nn.PixelShuffle(2)]
        self.tail = nn.Sequential(*up, nn.Conv2d(feats, 3, 3, padding=1))

    def forward(self, x):
        x = self.head(self.sub_mean(x))
        res = self.body(x) + x
        return self.add_mean(self.tail(res))


def sentences():
    lengths = torch.tensor([14, 12, 11, 14, 9, 8, 10, 13])
    mask = torch.arange(14)[None] < lengths[:, None]
    return torch.randint(1, 300, (8, 14)) * mask, torch.randint(1, 20, (8, 14)) * mask


NETS = {
    "biaffine parser": (BiaffineParser, sentences),
    "xLSTM": (XLSTM, lambda: (torch.randint(128, (8, 20)),)),
    "Point Transformer": (
        PointTransformer,
        lambda: (torch.cat([torch.rand(8, 128, 3) * 2 - 1, F.normalize(torch.randn(8, 128, 3), dim=-1)], dim=-1),),
    ),
    "EDSR": (EDSR, lambda: (torch.rand(8, 3, 16, 16) * 255,)),
}
