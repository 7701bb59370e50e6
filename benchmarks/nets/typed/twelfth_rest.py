"""Networks typed by hand as their repositories have them: the bilinear attention network, MViT."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm


class FCNet(nn.Module):
    """Weight-normed layers, each after its dropout."""

    def __init__(self, dims, act="ReLU", dropout=0.0):
        super().__init__()
        layers = []
        for i in range(len(dims) - 1):
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
            layers.append(weight_norm(nn.Linear(dims[i], dims[i + 1]), dim=None))
            if act != "":
                layers.append(getattr(nn, act)())
        self.main = nn.Sequential(*layers)

    def forward(self, x):
        return self.main(x)


class BCNet(nn.Module):
    """Bilinear connections of objects and words, of low rank: a map of logits, or a pooled vector under a map."""

    def __init__(self, v_dim, q_dim, h_dim, h_out, act="ReLU", dropout=(0.2, 0.5), k=3):
        super().__init__()
        self.k, self.h_out = k, h_out
        self.v_net = FCNet([v_dim, h_dim * k], act=act, dropout=dropout[0])
        self.q_net = FCNet([q_dim, h_dim * k], act=act, dropout=dropout[0])
        self.dropout = nn.Dropout(dropout[1])
        if k > 1:
            self.p_net = nn.AvgPool1d(k, stride=k)
        if h_out is not None:
            self.h_mat = nn.Parameter(torch.empty(1, h_out, 1, h_dim * k).normal_())
            self.h_bias = nn.Parameter(torch.empty(1, h_out, 1, 1).normal_())

    def forward(self, v, q):
        v_ = self.dropout(self.v_net(v)).unsqueeze(1)
        q_ = self.q_net(q)
        h_ = v_ * self.h_mat
        logits = torch.matmul(h_, q_.unsqueeze(1).transpose(2, 3))
        return logits + self.h_bias

    def forward_with_weights(self, v, q, w):
        v_ = self.v_net(v).transpose(1, 2).unsqueeze(2)
        q_ = self.q_net(q).transpose(1, 2).unsqueeze(3)
        logits = torch.matmul(torch.matmul(v_, w.unsqueeze(1)), q_)
        logits = logits.squeeze(3).squeeze(2)
        if self.k > 1:
            logits = self.p_net(logits.unsqueeze(1)).squeeze(1) * self.k
        return logits


class BiAttention(nn.Module):
    """Glimpses: each a distribution over all pairs of an object and a word."""

    def __init__(self, x_dim, y_dim, z_dim, glimpse, dropout=(0.2, 0.5)):
        super().__init__()
        self.glimpse = glimpse
        self.logits = weight_norm(
            BCNet(x_dim, y_dim, z_dim, glimpse, dropout=dropout, k=3),
            name="h_mat",
            dim=None,
        )

    def forward(self, v, q):
        v_num, q_num = v.size(1), q.size(1)
        logits = self.logits(v, q)
        mask = (v.abs().sum(2) == 0).unsqueeze(1).unsqueeze(3).expand(logits.size())
        logits = logits.masked_fill(mask, -float("inf"))
        p = F.softmax(logits.view(-1, self.glimpse, v_num * q_num), 2)
        return p.view(-1, self.glimpse, v_num, q_num), logits


class PiecewiseLin(nn.Module):
    """A growing function of the unit interval in straight pieces."""

    def __init__(self, n):
        super().__init__()
        self.n = n
        self.weight = nn.Parameter(torch.ones(n + 1))
        self.weight.data[0] = 0

    def forward(self, x):
        w = self.weight.abs()
        w = w / w.sum()
        w = w.view([self.n + 1] + [1] * x.dim())
        csum = w.cumsum(dim=0)
        csum = csum.expand((self.n + 1, *tuple(x.size())))
        w = w.expand_as(csum)
        y = self.n * x.unsqueeze(0)
        idx = y.detach().long()
        f = y.frac()
        x = csum.gather(0, idx.clamp(max=self.n))
        x = x + f * w.gather(0, (idx + 1).clamp(max=self.n))
        return x.squeeze(0)


class Counter(nn.Module):
    """Counts of the attended objects, those whose boxes overlap taken as one."""

    def __init__(self, objects):
        super().__init__()
        self.objects = objects
        self.f = nn.ModuleList([PiecewiseLin(16) for _ in range(8)])

    def forward(self, boxes, attention):
        boxes, attention = self.filter_most_important(self.objects, boxes, attention)
        attention = torch.sigmoid(attention)
        relevancy = self.outer(attention, torch.mul)
        distance = 1 - self.iou(boxes, boxes)
        score = self.f[0](relevancy) * self.f[1](distance)
        dedup_score = self.f[3](relevancy) * self.f[4](distance)
        dedup_per_entry, dedup_per_row = self.deduplicate(dedup_score, attention)
        score = score / dedup_per_entry
        correction = self.f[0](attention * attention) / dedup_per_row
        score = score.sum(dim=2).sum(dim=1, keepdim=True) + correction.sum(dim=1, keepdim=True)
        score = (score + 1e-20).sqrt()
        one_hot = self.to_one_hot(score)
        att_conf = (self.f[5](attention) - 0.5).abs()
        dist_conf = (self.f[6](distance) - 0.5).abs()
        conf = self.f[7](att_conf.mean(dim=1, keepdim=True) + dist_conf.mean(dim=2).mean(dim=1, keepdim=True))
        return one_hot * conf

    def deduplicate(self, dedup_score, att):
        att_diff = self.outer(att, lambda a, b: (a - b).abs())
        score_diff = self.outer(dedup_score, lambda a, b: (a - b).abs())
        sim = self.f[2](1 - score_diff).prod(dim=1) * self.f[2](1 - att_diff)
        row_sims = sim.sum(dim=2)
        return self.outer(row_sims, torch.mul), row_sims

    def to_one_hot(self, scores):
        scores = scores.clamp(min=0, max=self.objects)
        i = scores.long().detach()
        f = scores.frac()
        target_l = scores.detach().new_zeros(i.size(0), self.objects + 1)
        target_r = scores.detach().new_zeros(i.size(0), self.objects + 1)
        target_l.scatter_(dim=1, index=i.clamp(max=self.objects), value=1)
        target_r.scatter_(dim=1, index=(i + 1).clamp(max=self.objects), value=1)
        return (1 - f) * target_l + f * target_r

    def filter_most_important(self, n, boxes, attention):
        attention, idx = attention.topk(n, dim=1, sorted=False)
        idx = idx.unsqueeze(dim=1).expand(boxes.size(0), boxes.size(1), idx.size(1))
        return boxes.gather(2, idx), attention

    def outer(self, x, op):
        size = (*tuple(x.size()), x.size(-1))
        return op(x.unsqueeze(dim=-1).expand(*size), x.unsqueeze(dim=-2).expand(*size))

    def area(self, box):
        x = (box[:, 2] - box[:, 0]).clamp(min=0)
        y = (box[:, 3] - box[:, 1]).clamp(min=0)
        return x * y

    def iou(self, a, b):
        size = (a.size(0), 2, a.size(2), b.size(2))
        min_point = torch.max(a[:, :2].unsqueeze(3).expand(*size), b[:, :2].unsqueeze(2).expand(*size))
        max_point = torch.min(a[:, 2:].unsqueeze(3).expand(*size), b[:, 2:].unsqueeze(2).expand(*size))
        inter = (max_point - min_point).clamp(min=0)
        inter = inter[:, 0] * inter[:, 1]
        area_a = self.area(a).unsqueeze(2).expand_as(inter)
        area_b = self.area(b).unsqueeze(1).expand_as(inter)
        return inter / (area_a + area_b - inter + 1e-12)


class WordEmbedding(nn.Module):
    """Two embeddings side by side, the first of them fixed as the pretrained one is."""

    def __init__(self, ntoken, emb_dim):
        super().__init__()
        self.emb = nn.Embedding(ntoken + 1, emb_dim, padding_idx=ntoken)
        self.emb_ = nn.Embedding(ntoken + 1, emb_dim, padding_idx=ntoken)
        self.emb.weight.requires_grad = False

    def forward(self, x):
        return torch.cat((self.emb(x), self.emb_(x)), 2)


class BanModel(nn.Module):
    """Bilinear attention over objects and words, its glimpses added to the question one after another."""

    def __init__(self, ntoken=800, v_dim=64, num_hid=64, num_ans=200, glimpse=3, objects=10, emb_dim=50):
        super().__init__()
        self.glimpse = glimpse
        self.w_emb = WordEmbedding(ntoken, emb_dim)
        self.q_emb = nn.GRU(2 * emb_dim, num_hid, batch_first=True)
        self.v_att = BiAttention(v_dim, num_hid, num_hid, glimpse)
        self.b_net = nn.ModuleList([BCNet(v_dim, num_hid, num_hid, None, k=1) for _ in range(glimpse)])
        self.q_prj = nn.ModuleList([FCNet([num_hid, num_hid], "", 0.2) for _ in range(glimpse)])
        self.c_prj = nn.ModuleList([FCNet([objects + 1, num_hid], "ReLU", 0.0) for _ in range(glimpse)])
        self.classifier = nn.Sequential(
            weight_norm(nn.Linear(num_hid, num_hid * 2), dim=None),
            nn.ReLU(),
            nn.Dropout(0.5),
            weight_norm(nn.Linear(num_hid * 2, num_ans), dim=None),
        )
        self.counter = Counter(objects)

    def forward(self, v, b, q):
        q_emb, _ = self.q_emb(self.w_emb(q))
        boxes = b[:, :, :4].transpose(1, 2)
        att, logits = self.v_att(v, q_emb)
        for g in range(self.glimpse):
            b_emb = self.b_net[g].forward_with_weights(v, q_emb, att[:, g, :, :])
            atten, _ = logits[:, g, :, :].max(2)
            embed = self.counter(boxes, atten)
            q_emb = self.q_prj[g](b_emb.unsqueeze(1)) + q_emb
            q_emb = q_emb + self.c_prj[g](embed).unsqueeze(1)
        return self.classifier(q_emb.sum(1)), att


def attention_pool(tensor, pool, thw_shape, norm=None):
    """Pool the tokens on their grid in time and space, but for the class token."""
    if pool is None:
        return tensor, thw_shape
    tensor_dim = tensor.ndim
    if tensor_dim == 3:
        tensor = tensor.unsqueeze(1)
    cls_tok, tensor = tensor[:, :, :1, :], tensor[:, :, 1:, :]
    B, N, _, C = tensor.shape
    T, H, W = thw_shape
    tensor = tensor.reshape(B * N, T, H, W, C).permute(0, 4, 1, 2, 3).contiguous()
    tensor = pool(tensor)
    thw_shape = list(tensor.shape[2:])
    tensor = tensor.reshape(B, N, C, math.prod(thw_shape)).transpose(2, 3)
    tensor = torch.cat((cls_tok, tensor), dim=2)
    if norm is not None:
        tensor = norm(tensor)
    if tensor_dim == 3:
        tensor = tensor.squeeze(1)
    return tensor, thw_shape


class MultiScaleAttention(nn.Module):
    """Attention whose queries, keys and values are pooled by depthwise convolutions."""

    def __init__(self, dim, num_heads, kernel, stride_q, stride_kv):
        super().__init__()
        self.num_heads = num_heads
        head_dim = dim // num_heads
        self.scale = head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=True)
        self.proj = nn.Linear(dim, dim)
        padding = [k // 2 for k in kernel]

        def pool(stride):
            return nn.Conv3d(head_dim, head_dim, kernel, stride=stride, padding=padding, groups=head_dim, bias=False)

        pooled_q = math.prod(stride_q) > 1
        self.pool_q = pool(stride_q) if pooled_q else None
        self.norm_q = nn.LayerNorm(head_dim, eps=1e-6) if pooled_q else None
        self.pool_k, self.norm_k = pool(stride_kv), nn.LayerNorm(head_dim, eps=1e-6)
        self.pool_v, self.norm_v = pool(stride_kv), nn.LayerNorm(head_dim, eps=1e-6)

    def forward(self, x, thw_shape):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q, q_shape = attention_pool(q, self.pool_q, thw_shape, norm=self.norm_q)
        k, _ = attention_pool(k, self.pool_k, thw_shape, norm=self.norm_k)
        v, _ = attention_pool(v, self.pool_v, thw_shape, norm=self.norm_v)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, -1, C)
        return self.proj(x), q_shape


class DropPath(nn.Module):
    """A branch left out for some examples."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        mask = keep + torch.rand((x.shape[0],) + (1,) * (x.ndim - 1), dtype=x.dtype, device=x.device)
        return x.div(keep) * mask.floor_()


class MultiScaleBlock(nn.Module):
    """Pooling attention and an MLP, which widens at the end of a stage."""

    def __init__(self, dim, dim_out, num_heads, drop_path, kernel, stride_q, stride_kv, mlp_ratio=4.0):
        super().__init__()
        self.dim, self.dim_out = dim, dim_out
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = MultiScaleAttention(dim, num_heads, kernel, stride_q, stride_kv)
        self.drop_path = DropPath(drop_path) if drop_path > 0.0 else nn.Identity()
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        hidden = int(dim * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim_out))
        if dim != dim_out:
            self.proj = nn.Linear(dim, dim_out)
        kernel_skip = [s + 1 if s > 1 else s for s in stride_q]
        padding_skip = [k // 2 for k in kernel_skip]
        pooled = math.prod(stride_q) > 1
        self.pool_skip = nn.MaxPool3d(kernel_skip, stride_q, padding_skip, ceil_mode=False) if pooled else None

    def forward(self, x, thw_shape):
        x_block, thw_shape_new = self.attn(self.norm1(x), thw_shape)
        x_res, _ = attention_pool(x, self.pool_skip, thw_shape)
        x = x_res + self.drop_path(x_block)
        x_norm = self.norm2(x)
        x_mlp = self.mlp(x_norm)
        if self.dim != self.dim_out:
            x = self.proj(x_norm)
        return x + self.drop_path(x_mlp), thw_shape_new


class MViT(nn.Module):
    """Multiscale vision transformer of clips, with separate positions in time and space."""

    def __init__(self, frames=8, size=48, dim=32, depth=5, widen=(1, 3), classes=100, drop_path=0.1, dropout=0.5):
        super().__init__()
        self.patch_embed = nn.Conv3d(3, dim, kernel_size=(3, 7, 7), stride=(2, 4, 4), padding=(1, 3, 3))
        self.patch_dims = [frames // 2, size // 4, size // 4]
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed_spatial = nn.Parameter(torch.zeros(1, self.patch_dims[1] * self.patch_dims[2], dim))
        self.pos_embed_temporal = nn.Parameter(torch.zeros(1, self.patch_dims[0], dim))
        self.pos_embed_class = nn.Parameter(torch.zeros(1, 1, dim))
        dpr = [x.item() for x in torch.linspace(0, drop_path, depth)]
        self.blocks = nn.ModuleList()
        heads, kv = 1, 4
        for i in range(depth):
            stride_q = [1, 1, 1]
            if i in widen:
                heads, kv, stride_q = heads * 2, max(kv // 2, 1), [1, 2, 2]
            dim_out = dim * 2 if i + 1 in widen else dim
            self.blocks.append(MultiScaleBlock(dim, dim_out, heads, dpr[i], [3, 3, 3], stride_q, [1, kv, kv]))
            dim = dim_out
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head_dropout = nn.Dropout(dropout)
        self.projection = nn.Linear(dim, classes, bias=True)
        for parameter in (self.pos_embed_spatial, self.pos_embed_temporal, self.pos_embed_class, self.cls_token):
            nn.init.trunc_normal_(parameter, std=0.02)
        self.apply(self._init_weights)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            nn.init.constant_(m.bias, 0.02)
        elif isinstance(m, nn.LayerNorm):
            nn.init.constant_(m.bias, 0.02)
            nn.init.constant_(m.weight, 1.0)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        B = x.shape[0]
        T, H, W = self.patch_dims
        x = torch.cat((self.cls_token.expand(B, -1, -1), x), dim=1)
        pos_embed = self.pos_embed_spatial.repeat(1, T, 1) + torch.repeat_interleave(
            self.pos_embed_temporal, H * W, dim=1
        )
        x = x + torch.cat([self.pos_embed_class, pos_embed], 1)
        thw = [T, H, W]
        for blk in self.blocks:
            x, thw = blk(x, thw)
        x = self.projection(self.head_dropout(self.norm(x)[:, 0]))
        return x if self.training else F.softmax(x, dim=1)


def questions(batch=8, objects=20, words=14, ntoken=800):
    v = F.relu(torch.randn(batch, objects, 64))
    corner = torch.rand(batch, objects, 2) * 0.7
    side = 0.1 + torch.rand(batch, objects, 2) * (0.9 - corner)
    b = torch.cat([corner, corner + side, side], dim=-1)
    seen = torch.randint(12, objects + 1, (batch, 1))
    missing = (torch.arange(objects) >= seen).unsqueeze(-1)
    lengths = torch.randint(5, words + 1, (batch, 1))
    q = torch.randint(0, ntoken, (batch, words)).masked_fill(torch.arange(words) < words - lengths, ntoken)
    return v.masked_fill(missing, 0.0), b.masked_fill(missing, 0.0), q


NETS = {
    "Bilinear attention network": (BanModel, questions),
    "MViT": (MViT, lambda: (torch.randn(4, 3, 8, 48, 48),)),
}
