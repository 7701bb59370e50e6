"""Networks typed by hand as their papers describe them: DeiT to EEGNet."""

from itertools import combinations, pairwise

import torch
import torch.nn.functional as F
from torch import nn


class DropPath(nn.Module):
    """Stochastic depth per sample."""

    def __init__(self, p=0.0):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask / keep


class Attention(nn.Module):
    """Vision-transformer attention with one projection for queries, keys and values."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)
        return self.proj((attn @ v).transpose(1, 2).reshape(B, N, C))


class Block(nn.Module):
    """Pre-norm transformer block with stochastic depth."""

    def __init__(self, dim, heads, drop_path):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        self.drop_path = DropPath(drop_path)

    def forward(self, x):
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class DistilledViT(nn.Module):
    """DeiT: a vision transformer with a distillation token and two heads."""

    def __init__(self, size=32, patch=4, dim=96, depth=6, heads=3, classes=10, drop_path=0.1):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.cls_token, self.dist_token = nn.Parameter(torch.zeros(1, 1, dim)), nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 2, dim))
        rates = torch.linspace(0, drop_path, depth).tolist()
        self.blocks = nn.ModuleList(Block(dim, heads, r) for r in rates)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head, self.head_dist = nn.Linear(dim, classes), nn.Linear(dim, classes)
        for p in (self.cls_token, self.dist_token, self.pos_embed):
            nn.init.trunc_normal_(p, std=0.02)
        self.apply(self._init_weights)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            nn.init.zeros_(m.bias)

    def forward(self, x):
        B = x.shape[0]
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(B, -1, -1), self.dist_token.expand(B, -1, -1), x), dim=1)
        x = x + self.pos_embed
        for blk in self.blocks:
            x = blk(x)
        x = self.norm(x)
        x, x_dist = self.head(x[:, 0]), self.head_dist(x[:, 1])
        return (x, x_dist) if self.training else (x + x_dist) / 2


class SENETLayer(nn.Module):
    """Squeeze and excitation over the fields of an example."""

    def __init__(self, fields, reduction=3):
        super().__init__()
        mid = max(1, fields // reduction)
        self.excitation = nn.Sequential(
            nn.Linear(fields, mid, bias=False), nn.ReLU(), nn.Linear(mid, fields, bias=False), nn.ReLU()
        )

    def forward(self, x):
        return x * self.excitation(x.mean(dim=-1)).unsqueeze(2)


class BilinearInteraction(nn.Module):
    """Pairwise products of fields, the left one through a matrix of its pair."""

    def __init__(self, fields, dim):
        super().__init__()
        self.pairs = list(combinations(range(fields), 2))
        self.bilinear = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in self.pairs)

    def forward(self, x):
        p = [f(x[:, i]) * x[:, j] for f, (i, j) in zip(self.bilinear, self.pairs, strict=True)]
        return torch.stack(p, dim=1)


class FiBiNET(nn.Module):
    """Click model with field importance, bilinear interactions, a deep and a linear part."""

    def __init__(self, sizes=(50, 20, 30, 10, 40, 8, 60, 12), dense=4, dim=8, hidden=(128, 128), std=1e-4):
        super().__init__()
        n = len(sizes)
        self.embeddings = nn.ModuleList(nn.Embedding(s, dim) for s in sizes)
        self.linear_embeddings = nn.ModuleList(nn.Embedding(s, 1) for s in sizes)
        self.linear_dense = nn.Parameter(torch.empty(dense, 1))
        self.se, self.bilinear = SENETLayer(n), BilinearInteraction(n, dim)
        dims = [n * (n - 1) * dim + dense, *hidden]
        self.dnn = nn.ModuleList(nn.Linear(i, o) for i, o in pairwise(dims))
        self.dropout = nn.Dropout(0.2)
        self.dnn_linear = nn.Linear(dims[-1], 1, bias=False)
        self.bias = nn.Parameter(torch.zeros(1))
        for e in (*self.embeddings, *self.linear_embeddings, *self.dnn):
            nn.init.normal_(e.weight, mean=0, std=std)
        nn.init.normal_(self.linear_dense, mean=0, std=std)

    def forward(self, sparse, dense):
        x = torch.stack([e(sparse[:, i]) for i, e in enumerate(self.embeddings)], dim=1)
        logit = sum(e(sparse[:, i]) for i, e in enumerate(self.linear_embeddings)) + dense @ self.linear_dense
        both = torch.cat([self.bilinear(self.se(x)), self.bilinear(x)], dim=1)
        h = torch.cat([both.flatten(1), dense], dim=1)
        for layer in self.dnn:
            h = self.dropout(F.relu(layer(h)))
        return torch.sigmoid(logit + self.dnn_linear(h) + self.bias).squeeze(-1)


class BasicBlock(nn.Module):
    """Two-convolution residual block."""

    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.shortcut = nn.Sequential()
        if stride != 1 or cin != cout:
            self.shortcut = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def off_diagonal(x):
    n, _ = x.shape
    return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()


class VICReg(nn.Module):
    """Variance-invariance-covariance loss of two views through a ResNet and an expander."""

    def __init__(self, width=16, mlp=(64, 256, 256, 256), sim_coeff=25.0, std_coeff=25.0, cov_coeff=1.0):
        super().__init__()
        self.coeffs = sim_coeff, std_coeff, cov_coeff
        self.num_features = mlp[-1]
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            BasicBlock(width, width),
            BasicBlock(width, width),
            BasicBlock(width, 2 * width, 2),
            BasicBlock(2 * width, 2 * width),
            BasicBlock(2 * width, 4 * width, 2),
            BasicBlock(4 * width, 4 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        layers = []
        for i, o in pairwise(mlp[:-1]):
            layers += [nn.Linear(i, o), nn.BatchNorm1d(o), nn.ReLU(True)]
        self.projector = nn.Sequential(*layers, nn.Linear(mlp[-2], mlp[-1], bias=False))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def forward(self, x, y):
        x, y = self.projector(self.backbone(x)), self.projector(self.backbone(y))
        repr_loss = F.mse_loss(x, y)
        x, y = x - x.mean(dim=0), y - y.mean(dim=0)
        std_x, std_y = torch.sqrt(x.var(dim=0) + 0.0001), torch.sqrt(y.var(dim=0) + 0.0001)
        std_loss = torch.mean(F.relu(1 - std_x)) / 2 + torch.mean(F.relu(1 - std_y)) / 2
        cov_x, cov_y = (x.T @ x) / (x.size(0) - 1), (y.T @ y) / (y.size(0) - 1)
        cov_loss = sum(off_diagonal(c).pow(2).sum().div(self.num_features) for c in (cov_x, cov_y))
        a, b, c = self.coeffs
        return a * repr_loss + b * std_loss + c * cov_loss


class GEGLU(nn.Module):
    """Gated GELU."""

    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return x * F.gelu(gates)


class TabAttention(nn.Module):
    """Pre-norm attention over columns."""

    def __init__(self, dim, heads=8, dim_head=16, dropout=0.1):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
        self.to_out, self.dropout = nn.Linear(heads * dim_head, dim, bias=False), nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(self.norm(x)).chunk(3, -1))
        attn = self.dropout((torch.einsum("bhid,bhjd->bhij", q, k) * self.scale).softmax(dim=-1))
        return self.to_out(torch.einsum("bhij,bhjd->bhid", attn, v).transpose(1, 2).flatten(2))


class TabTransformer(nn.Module):
    """Contextual embeddings of categorical columns, beside normalised continuous ones."""

    def __init__(self, categories=(10, 5, 6, 5, 8), num_continuous=10, dim=32, depth=6, shared=4):
        super().__init__()
        self.register_buffer("offset", torch.tensor([0, *categories[:-1]]).cumsum(0))
        self.embed = nn.Embedding(sum(categories), dim - shared)
        self.shared_embed = nn.Parameter(torch.zeros(len(categories), shared))
        nn.init.normal_(self.shared_embed, std=0.02)
        self.layers = nn.ModuleList()
        for _ in range(depth):
            ff = nn.Sequential(
                nn.LayerNorm(dim), nn.Linear(dim, dim * 8), GEGLU(), nn.Dropout(0.1), nn.Linear(dim * 4, dim)
            )
            self.layers.append(nn.ModuleList([TabAttention(dim), ff]))
        self.norm = nn.LayerNorm(num_continuous)
        size = dim * len(categories) + num_continuous
        unit = size // 8
        self.mlp = nn.Sequential(
            nn.Linear(size, 4 * unit), nn.ReLU(), nn.Linear(4 * unit, 2 * unit), nn.ReLU(), nn.Linear(2 * unit, 1)
        )

    def forward(self, x_categ, x_cont):
        x = self.embed(x_categ + self.offset)
        x = torch.cat((x, self.shared_embed.expand(x.shape[0], -1, -1)), dim=-1)
        for attn, ff in self.layers:
            x = attn(x) + x
            x = ff(x) + x
        return self.mlp(torch.cat((x.flatten(1), self.norm(x_cont)), dim=-1))


class InceptionModule(nn.Module):
    """Parallel long convolutions behind a bottleneck, with a pooled branch."""

    def __init__(self, cin, filters=32, bottleneck=32, kernels=(39, 19, 9)):
        super().__init__()
        self.bottleneck = nn.Conv1d(cin, bottleneck, 1, bias=False) if cin > 1 else nn.Identity()
        width = bottleneck if cin > 1 else 1
        self.convs = nn.ModuleList(nn.Conv1d(width, filters, k, padding=k // 2, bias=False) for k in kernels)
        self.maxconvpool = nn.Sequential(nn.MaxPool1d(3, stride=1, padding=1), nn.Conv1d(cin, filters, 1, bias=False))
        self.bn = nn.BatchNorm1d(filters * 4)

    def forward(self, x):
        z = self.bottleneck(x)
        return F.relu(self.bn(torch.cat([conv(z) for conv in self.convs] + [self.maxconvpool(x)], dim=1)))


class InceptionTime(nn.Module):
    """Six inception modules with a residual every third, pooled over time."""

    def __init__(self, cin=1, classes=5, filters=24, depth=6):
        super().__init__()
        self.inception, self.shortcut = nn.ModuleList(), nn.ModuleList()
        start = cin
        for d in range(depth):
            self.inception.append(InceptionModule(cin if d == 0 else filters * 4, filters))
            if d % 3 == 2:
                self.shortcut.append(
                    nn.Sequential(nn.Conv1d(start, filters * 4, 1, bias=False), nn.BatchNorm1d(filters * 4))
                )
                start = filters * 4
        self.fc = nn.Linear(filters * 4, classes)

    def forward(self, x):
        res = x
        for d, module in enumerate(self.inception):
            x = module(x)
            if d % 3 == 2:
                x = res = F.relu(x + self.shortcut[d // 3](res))
        return self.fc(x.mean(-1))


class Conv2dWithConstraint(nn.Conv2d):
    """Convolution whose filters are renormed to a maximal norm at each pass."""

    def __init__(self, *args, max_norm=1.0, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_norm = max_norm

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=self.max_norm)
        return super().forward(x)


class EEGNet(nn.Module):
    """Compact convolutional network for electroencephalograms."""

    def __init__(self, chans=22, samples=256, classes=4, f1=8, depth=2, f2=16, kernel=64, p=0.5):
        super().__init__()
        self.block1 = nn.Sequential(
            nn.Conv2d(1, f1, (1, kernel), padding=(0, kernel // 2), bias=False),
            nn.BatchNorm2d(f1, momentum=0.01, eps=1e-3),
            Conv2dWithConstraint(f1, f1 * depth, (chans, 1), groups=f1, bias=False, max_norm=1.0),
            nn.BatchNorm2d(f1 * depth, momentum=0.01, eps=1e-3),
            nn.ELU(),
            nn.AvgPool2d((1, 4)),
            nn.Dropout(p),
        )
        self.block2 = nn.Sequential(
            nn.Conv2d(f1 * depth, f1 * depth, (1, 16), padding=(0, 8), groups=f1 * depth, bias=False),
            nn.Conv2d(f1 * depth, f2, 1, bias=False),
            nn.BatchNorm2d(f2, momentum=0.01, eps=1e-3),
            nn.ELU(),
            nn.AvgPool2d((1, 8)),
            nn.Dropout(p),
        )
        self.classifier = nn.Linear(f2 * (samples // 32), classes)
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(m.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, x):
        x = self.block2(self.block1(x.unsqueeze(1)))
        return F.log_softmax(self.classifier(x.flatten(1)), dim=1)


NETS = {
    "DeiT": (DistilledViT, lambda: (torch.randn(8, 3, 32, 32),)),
    "FiBiNET": (FiBiNET, lambda: (torch.randint(8, (32, 8)), torch.randn(32, 4))),
    "VICReg": (VICReg, lambda: (torch.randn(16, 3, 32, 32), torch.randn(16, 3, 32, 32))),
    "TabTransformer": (TabTransformer, lambda: (torch.randint(5, (16, 5)), torch.randn(16, 10))),
    "InceptionTime": (InceptionTime, lambda: (torch.randn(8, 1, 128),)),
    "EEGNet": (EEGNet, lambda: (torch.randn(8, 22, 256),)),
}
