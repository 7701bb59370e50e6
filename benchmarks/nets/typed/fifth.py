"""Windows, pyramids, flow, spans of speech, memories, graphs, spline flows: typed for batch 5."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


def conv_bn(c_in, c_out, kernel=3, stride=1, dilation=1):
    padding = dilation * (kernel // 2)
    conv = nn.Conv2d(c_in, c_out, kernel, stride, padding, dilation, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))


class WindowAttention(nn.Module):
    def __init__(self, dim, heads, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.table, std=0.02)
        grid = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        apart = (grid[:, :, None] - grid[:, None]) + window - 1
        self.register_buffer("places", apart[0] * (2 * window - 1) + apart[1])

    def forward(self, x, mask=None):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q * (d // self.heads) ** -0.5) @ k.transpose(-2, -1)
        bias = self.table[self.places.view(-1)].view(n, n, -1).permute(2, 0, 1)
        scores = scores + bias[None]
        if mask is not None:
            windows = mask.shape[0]
            scores = scores.view(b // windows, windows, self.heads, n, n) + mask[None, :, None]
            scores = scores.view(b, self.heads, n, n)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class SwinBlock(nn.Module):
    def __init__(self, dim, size, heads, window, shift):
        super().__init__()
        self.size, self.window, self.shift = size, window, shift
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = WindowAttention(dim, heads, window)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
        mask = None
        if shift:
            region = torch.zeros(1, size, size, 1)
            parts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
            for i, rows in enumerate(parts):
                for j, columns in enumerate(parts):
                    region[:, rows, columns] = 3 * i + j
            flat = self.cut(region).squeeze(-1)
            apart = flat[:, None] - flat[:, :, None]
            mask = apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)
        self.register_buffer("mask", mask)

    def cut(self, x):
        b, h, w, c = x.shape
        x = x.view(b, h // self.window, self.window, w // self.window, self.window, c)
        return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, self.window**2, c)

    def forward(self, x):
        b, n, c = x.shape
        y = self.norm1(x).view(b, self.size, self.size, c)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        y = self.attention(self.cut(y), self.mask)
        k = self.size // self.window
        y = y.view(b, k, k, self.window, self.window, c).permute(0, 1, 3, 2, 4, 5).reshape(b, self.size, self.size, c)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y.reshape(b, n, c)
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    def __init__(self, dim, size):
        super().__init__()
        self.size = size
        self.norm, self.reduce = nn.LayerNorm(4 * dim), nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x):
        b, _, c = x.shape
        x = x.view(b, self.size, self.size, c)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.reduce(self.norm(x.flatten(1, 2)))


class Swin(nn.Module):
    def __init__(self, dim=32, size=16, window=4, classes=10):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, dim, 2, 2), nn.LayerNorm(dim)
        self.stage1 = nn.Sequential(SwinBlock(dim, size, 2, window, 0), SwinBlock(dim, size, 2, window, window // 2))
        self.merge = PatchMerging(dim, size)
        half = size // 2
        self.stage2 = nn.Sequential(
            SwinBlock(2 * dim, half, 4, window, 0), SwinBlock(2 * dim, half, 4, window, window // 2)
        )
        self.last, self.head = nn.LayerNorm(2 * dim), nn.Linear(2 * dim, classes)

    def forward(self, x):
        x = self.norm(self.patch(x).flatten(2).transpose(1, 2))
        return self.head(self.last(self.stage2(self.merge(self.stage1(x)))).mean(1))


class DenseLayer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(channels), nn.Conv2d(channels, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, maps):
        x = self.conv1(F.relu(self.norm1(torch.cat(maps, 1))))
        return self.conv2(F.relu(self.norm2(x)))


class DenseNet(nn.Module):
    def __init__(self, growth=12, layers=(4, 4, 4), classes=10):
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.blocks, self.transitions = nn.ModuleList(), nn.ModuleList()
        for i, count in enumerate(layers):
            self.blocks.append(nn.ModuleList([DenseLayer(channels + j * growth, growth) for j in range(count)]))
            channels += count * growth
            if i < len(layers) - 1:
                down = [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False)]
                self.transitions.append(nn.Sequential(*down, nn.AvgPool2d(2)))
                channels //= 2
        self.norm, self.head = nn.BatchNorm2d(channels), nn.Linear(channels, classes)

    def forward(self, x):
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            maps = [x]
            for layer in block:
                maps.append(layer(maps))
            x = torch.cat(maps, 1)
            if i < len(self.transitions):
                x = self.transitions[i](x)
        return self.head(F.adaptive_avg_pool2d(F.relu(self.norm(x)), 1).flatten(1))


class Basic(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1), nn.Conv2d(channels, channels, 3, 1, 1)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class Fusion(nn.Module):
    """Every resolution receives the sum of all, led up or down."""

    def __init__(self, widths):
        super().__init__()
        self.paths = nn.ModuleList()
        for i, mine in enumerate(widths):
            row = nn.ModuleList()
            for j, other in enumerate(widths):
                if j == i:
                    row.append(nn.Identity())
                elif j > i:
                    row.append(nn.Sequential(nn.Conv2d(other, mine, 1, bias=False), nn.BatchNorm2d(mine)))
                else:
                    steps = []
                    for k in range(i - j):
                        wide = mine if k == i - j - 1 else other
                        steps += [nn.Conv2d(other, wide, 3, 2, 1, bias=False), nn.BatchNorm2d(wide)]
                        steps += [nn.ReLU()] if k < i - j - 1 else []
                    row.append(nn.Sequential(*steps))
            self.paths.append(row)

    def forward(self, maps):
        fused = []
        for i, row in enumerate(self.paths):
            size = maps[i].shape[-2:]
            total = 0
            for j, path in enumerate(row):
                y = path(maps[j])
                total = total + (F.interpolate(y, size, mode="bilinear", align_corners=False) if j > i else y)
            fused.append(F.relu(total))
        return fused


class HRNet(nn.Module):
    def __init__(self, widths=(16, 32, 64), joints=8):
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 32, stride=2), conv_bn(32, widths[0], stride=2))
        self.new = nn.ModuleList([conv_bn(a, b, stride=2) for a, b in pairwise(widths)])
        self.branches = nn.ModuleList(
            [nn.ModuleList([nn.Sequential(Basic(w), Basic(w)) for w in widths[: k + 2]]) for k in range(2)]
        )
        self.fusions = nn.ModuleList([Fusion(widths[:2]), Fusion(widths)])
        self.head = nn.Conv2d(widths[0], joints, 1)

    def forward(self, x):
        maps = [self.stem(x)]
        for new, branches, fusion in zip(self.new, self.branches, self.fusions, strict=True):
            maps = [*maps, new(maps[-1])]
            maps = fusion([branch(y) for branch, y in zip(branches, maps, strict=True)])
        return self.head(maps[0])


class DeepLab(nn.Module):
    """DeepLab v3+: atrous pyramid, image pooling, decoder with a low level."""

    def __init__(self, classes=6):
        super().__init__()
        self.low = nn.Sequential(conv_bn(3, 16, stride=2), Basic(16))
        self.body = nn.Sequential(conv_bn(16, 32, stride=2), Basic(32), conv_bn(32, 64, stride=2), Basic(64))
        self.pyramid = nn.ModuleList([conv_bn(64, 32, 1), *[conv_bn(64, 32, dilation=d) for d in (2, 4, 6)]])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(64, 32, 1), nn.ReLU())
        self.project, self.skip = nn.Sequential(conv_bn(160, 32, 1), nn.Dropout(0.1)), conv_bn(16, 12, 1)
        self.decode = nn.Sequential(conv_bn(44, 32), conv_bn(32, 32), nn.Conv2d(32, classes, 1))

    def forward(self, x):
        low = self.low(x)
        y = self.body(low)
        pooled = F.interpolate(self.pool(y), y.shape[-2:], mode="nearest")
        y = self.project(torch.cat([*[branch(y) for branch in self.pyramid], pooled], 1))
        y = F.interpolate(y, low.shape[-2:], mode="bilinear", align_corners=False)
        y = self.decode(torch.cat([y, self.skip(low)], 1))
        return F.interpolate(y, x.shape[-2:], mode="bilinear", align_corners=False)


class PWCNet(nn.Module):
    """Two frames: pyramids of features, warping by the flow so far, a cost volume, and what corrects the flow."""

    def __init__(self, widths=(16, 24, 32), reach=2):
        super().__init__()
        self.reach = reach
        leaky = nn.LeakyReLU(0.1)
        pairs = zip((3, *widths), widths, strict=False)
        self.levels = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), leaky, nn.Conv2d(b, b, 3, 1, 1), leaky) for a, b in pairs]
        )
        costs = (2 * reach + 1) ** 2
        self.decoders = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(costs + w + 2, 48, 3, 1, 1), leaky, nn.Conv2d(48, 24, 3, 1, 1), leaky)
                for w in reversed(widths)
            ]
        )
        self.flows = nn.ModuleList([nn.Conv2d(24, 2, 3, 1, 1) for _ in widths])

    def pyramid(self, x):
        found = []
        for level in self.levels:
            x = level(x)
            found.append(x)
        return found[::-1]

    def warp(self, x, flow):
        h, w = x.shape[-2:]
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        grid = torch.stack([xs, ys]).to(x) + flow
        grid = 2 * grid / torch.tensor([max(w - 1, 1), max(h - 1, 1)]).to(x).view(1, 2, 1, 1) - 1
        return F.grid_sample(x, grid.permute(0, 2, 3, 1), align_corners=True)

    def cost(self, a, b):
        r, (h, w) = self.reach, a.shape[-2:]
        padded = F.pad(b, (r, r, r, r))
        shifted = [padded[:, :, i : i + h, j : j + w] for i in range(2 * r + 1) for j in range(2 * r + 1)]
        return F.leaky_relu(torch.stack([(a * s).mean(1) for s in shifted], 1), 0.1)

    def forward(self, first, second):
        ones, twos = self.pyramid(first), self.pyramid(second)
        flow = torch.zeros_like(ones[0][:, :2])
        for a, b, decoder, to_flow in zip(ones, twos, self.decoders, self.flows, strict=True):
            if flow.shape[-1] != a.shape[-1]:
                flow = 2 * F.interpolate(flow, a.shape[-2:], mode="bilinear", align_corners=False)
            y = decoder(torch.cat([self.cost(a, self.warp(b, flow)), a, flow], 1))
            flow = flow + to_flow(y)
        return flow


class ConvNeXtV2Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.depthwise, self.norm = nn.Conv2d(dim, dim, 7, padding=3, groups=dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gamma, self.beta = (nn.Parameter(torch.zeros(1, 1, 1, 4 * dim)) for _ in range(2))

    def forward(self, x):
        y = F.gelu(self.up(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        size = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
        y = self.gamma * (y * (size / (size.mean(-1, keepdim=True) + 1e-6))) + self.beta + y
        return x + self.down(y).permute(0, 3, 1, 2)


class ConvNeXtV2(nn.Module):
    def __init__(self, dims=(32, 64), classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, dims[0], 4, 4)
        self.stage1 = nn.Sequential(*[ConvNeXtV2Block(dims[0]) for _ in range(2)])
        self.norm, self.down = nn.GroupNorm(1, dims[0]), nn.Conv2d(dims[0], dims[1], 2, 2)
        self.stage2 = nn.Sequential(*[ConvNeXtV2Block(dims[1]) for _ in range(2)])
        self.last, self.head = nn.LayerNorm(dims[1]), nn.Linear(dims[1], classes)

    def forward(self, x):
        x = self.stage2(self.down(self.norm(self.stage1(self.stem(x)))))
        return self.head(self.last(x.mean((-2, -1))))


class RetinaNet(nn.Module):
    def __init__(self, classes=5, anchors=9, width=32):
        super().__init__()
        self.c3 = nn.Sequential(conv_bn(3, 16, stride=2), conv_bn(16, 32, stride=2), Basic(32))
        self.c4 = nn.Sequential(conv_bn(32, 64, stride=2), Basic(64))
        self.c5 = nn.Sequential(conv_bn(64, 96, stride=2), Basic(96))
        self.lateral = nn.ModuleList([nn.Conv2d(c, width, 1) for c in (32, 64, 96)])
        self.smooth = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(3)])
        self.p6 = nn.Conv2d(width, width, 3, 2, 1)
        self.classes, self.k = classes, anchors

        def tower(out):
            return nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
                nn.Conv2d(width, out, 3, padding=1),
            )  # fmt: skip

        self.classify, self.box = tower(classes * anchors), tower(4 * anchors)
        for layer in [*self.classify, *self.box]:
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)
        nn.init.constant_(self.classify[-1].bias, -math.log(99))

    def forward(self, x):
        c3 = self.c3(x)
        c4 = self.c4(c3)
        c5 = self.c5(c4)
        p5 = self.lateral[2](c5)
        p4 = self.lateral[1](c4) + F.interpolate(p5, scale_factor=2)
        p3 = self.lateral[0](c3) + F.interpolate(p4, scale_factor=2)
        maps = [smooth(p) for smooth, p in zip(self.smooth, (p3, p4, p5), strict=True)]
        maps.append(self.p6(maps[-1]))

        def flat(y, n):
            return y.permute(0, 2, 3, 1).reshape(y.shape[0], -1, n)

        scores = torch.cat([flat(self.classify(m), self.classes) for m in maps], 1)
        return scores, torch.cat([flat(self.box(m), 4) for m in maps], 1)


class RecurrentHighway(nn.Module):
    def __init__(self, vocab=60, dim=64, depth=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.into = nn.Linear(dim, 2 * dim, bias=False)
        self.depth = nn.ModuleList([nn.Linear(dim, 2 * dim) for _ in range(depth)])
        for layer in self.depth:
            nn.init.constant_(layer.bias[dim:], -2.0)
        self.head = nn.Linear(dim, vocab)

    def forward(self, idx):
        s = torch.zeros(idx.shape[0], self.embed.embedding_dim)
        outputs = []
        for t in range(idx.shape[1]):
            x = self.into(self.embed(idx[:, t]))
            for i, layer in enumerate(self.depth):
                h, gate = (layer(s) + x if i == 0 else layer(s)).chunk(2, -1)
                gate = torch.sigmoid(gate)
                s = torch.tanh(h) * gate + s * (1 - gate)
            outputs.append(s)
        return self.head(torch.stack(outputs, 1))


class QRNNLayer(nn.Module):
    def __init__(self, dim, hidden, kernel=2):
        super().__init__()
        self.kernel, self.conv = kernel, nn.Conv1d(dim, 3 * hidden, kernel)

    def forward(self, x):
        z, f, o = self.conv(F.pad(x.transpose(1, 2), (self.kernel - 1, 0))).transpose(1, 2).chunk(3, -1)
        z, f, o = z.tanh(), f.sigmoid(), o.sigmoid()
        c, outputs = torch.zeros_like(z[:, 0]), []
        for t in range(z.shape[1]):
            c = f[:, t] * c + (1 - f[:, t]) * z[:, t]
            outputs.append(o[:, t] * c)
        return torch.stack(outputs, 1)


class QRNN(nn.Module):
    def __init__(self, vocab=100, dim=48, classes=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList([QRNNLayer(dim, dim), QRNNLayer(2 * dim, dim)])
        self.head = nn.Linear(dim, classes)

    def forward(self, idx):
        x = self.embed(idx)
        y = self.layers[0](x)
        return self.head(self.layers[1](torch.cat([x, y], -1))[:, -1])


class LocationAttention(nn.Module):
    def __init__(self, query, memory, dim=32, filters=8, kernel=7):
        super().__init__()
        self.query, self.memory = nn.Linear(query, dim, bias=False), nn.Linear(memory, dim, bias=False)
        self.conv = nn.Conv1d(2, filters, kernel, padding=kernel // 2, bias=False)
        self.place, self.score = nn.Linear(filters, dim, bias=False), nn.Linear(dim, 1, bias=False)

    def forward(self, query, memory, keys, weights, total):
        place = self.place(self.conv(torch.stack([weights, total], 1)).transpose(1, 2))
        weights = self.score(torch.tanh(self.query(query)[:, None] + keys + place)).squeeze(-1).softmax(-1)
        return torch.bmm(weights[:, None], memory).squeeze(1), weights


class Tacotron2(nn.Module):
    def __init__(self, symbols=40, dim=48, mels=20, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(symbols, dim)
        self.convs = nn.ModuleList(
            [nn.Sequential(nn.Conv1d(dim, dim, 5, padding=2), nn.BatchNorm1d(dim), nn.ReLU(), nn.Dropout(0.5))
             for _ in range(3)]
        )  # fmt: skip
        self.encoder = nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
        self.prenet = nn.ModuleList([nn.Linear(mels, 32, bias=False), nn.Linear(32, 32, bias=False)])
        self.attention_rnn = nn.LSTMCell(32 + dim, hidden)
        self.attention = LocationAttention(hidden, dim)
        self.decoder_rnn = nn.LSTMCell(hidden + dim, hidden)
        self.frame, self.gate = nn.Linear(hidden + dim, mels), nn.Linear(hidden + dim, 1)
        self.mels = mels
        widths = [mels, 32, 32, mels]
        self.post = nn.ModuleList([nn.Conv1d(a, b, 5, padding=2) for a, b in pairwise(widths)])
        self.norms = nn.ModuleList([nn.BatchNorm1d(b) for b in widths[1:]])

    def forward(self, text, mels):
        x = self.embed(text).transpose(1, 2)
        for conv in self.convs:
            x = conv(x)
        memory, _ = self.encoder(x.transpose(1, 2))
        b, n, d = memory.shape
        keys = self.attention.memory(memory)
        h = c = g = e = torch.zeros(b, self.attention_rnn.hidden_size)
        weights, total, context = torch.zeros(b, n), torch.zeros(b, n), torch.zeros(b, d)
        inputs = torch.cat([torch.zeros(b, 1, self.mels), mels[:, :-1]], 1)
        for layer in self.prenet:
            inputs = F.dropout(F.relu(layer(inputs)), 0.5, True)
        frames, gates = [], []
        for t in range(mels.shape[1]):
            h, c = self.attention_rnn(torch.cat([inputs[:, t], context], -1), (h, c))
            context, weights = self.attention(h, memory, keys, weights, total)
            total = total + weights
            g, e = self.decoder_rnn(torch.cat([h, context], -1), (g, e))
            both = torch.cat([g, context], -1)
            frames.append(self.frame(both))
            gates.append(self.gate(both))
        coarse = torch.stack(frames, 1)
        y = coarse.transpose(1, 2)
        for i, (conv, norm) in enumerate(zip(self.post, self.norms, strict=True)):
            y = norm(conv(y))
            y = torch.tanh(y) if i < len(self.post) - 1 else y
        return coarse, coarse + y.transpose(1, 2), torch.cat(gates, 1)


class HiFiBlock(nn.Module):
    def __init__(self, channels, kernel, dilations):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm

        def same(d):
            return d * (kernel - 1) // 2

        self.first = nn.ModuleList(
            [norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=same(d))) for d in dilations]
        )
        self.second = nn.ModuleList([norm(nn.Conv1d(channels, channels, kernel, padding=same(1))) for _ in dilations])

    def forward(self, x):
        for first, second in zip(self.first, self.second, strict=True):
            x = x + second(F.leaky_relu(first(F.leaky_relu(x, 0.1)), 0.1))
        return x


class HiFiGAN(nn.Module):
    def __init__(self, mels=20, width=64, rates=(4, 4)):
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.pre = norm(nn.Conv1d(mels, width, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for r in rates:
            self.ups.append(norm(nn.ConvTranspose1d(width, width // 2, 2 * r, r, padding=r // 2)))
            width //= 2
            self.blocks.append(nn.ModuleList([HiFiBlock(width, k, (1, 3)) for k in (3, 5)]))
        self.post = norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, x):
        x = self.pre(x)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.post(F.leaky_relu(x)))


class Graphormer(nn.Module):
    """Centrality in the nodes, biases of attention by distance and by edges on the way, a virtual node that reads."""

    def __init__(self, kinds=16, dim=32, heads=4, depth=3, far=8):
        super().__init__()
        self.atom, self.degree = nn.Embedding(kinds, dim), nn.Embedding(10, dim)
        self.token = nn.Parameter(torch.randn(1, 1, dim))
        self.distance, self.edge = nn.Embedding(far, heads), nn.Embedding(5, heads, padding_idx=0)
        self.virtual = nn.Parameter(torch.zeros(heads))

        def layer():
            return nn.ModuleDict({
                "norm1": nn.LayerNorm(dim), "norm2": nn.LayerNorm(dim), "qkv": nn.Linear(dim, 3 * dim),
                "out": nn.Linear(dim, dim),
                "mlp": nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)),
            })  # fmt: skip

        self.layers = nn.ModuleList([layer() for _ in range(depth)])
        self.heads, self.norm, self.head = heads, nn.LayerNorm(dim), nn.Linear(dim, 1)

    def forward(self, atoms, degrees, distances, edges):
        b, n = atoms.shape
        x = torch.cat([self.token.expand(b, -1, -1), self.atom(atoms) + self.degree(degrees)], 1)
        bias = torch.zeros(b, self.heads, n + 1, n + 1)
        bias[:, :, 1:, 1:] = self.distance(distances).permute(0, 3, 1, 2)
        ways = self.edge(edges).sum(-2) / (edges != 0).sum(-1, keepdim=True).clamp(min=1)
        bias[:, :, 1:, 1:] += ways.permute(0, 3, 1, 2)
        bias[:, :, 0, :] += self.virtual.view(1, -1, 1)
        bias[:, :, 1:, 0] += self.virtual.view(1, -1, 1)
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["norm1"](x)).view(b, n + 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) + bias).softmax(-1)
            x = x + layer["out"]((weights @ v).transpose(1, 2).flatten(2))
            x = x + layer["mlp"](layer["norm2"](x))
        return self.head(self.norm(x)[:, 0])


class MPNN(nn.Module):
    """Matrices of edges make messages, a GRU updates, and Set2Set reads."""

    def __init__(self, nodes=8, edges=4, dim=24, steps=3):
        super().__init__()
        self.into = nn.Linear(nodes, dim)
        self.matrix = nn.Sequential(nn.Linear(edges, 32), nn.ReLU(), nn.Linear(32, dim * dim))
        self.gru, self.reader = nn.GRUCell(dim, dim), nn.LSTMCell(2 * dim, dim)
        self.bias, self.steps, self.dim = nn.Parameter(torch.zeros(dim)), steps, dim
        self.head = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, x, index, attributes, batch):
        h = F.relu(self.into(x))
        matrices = self.matrix(attributes).view(-1, self.dim, self.dim)
        for _ in range(self.steps):
            messages = torch.einsum("ed,edf->ef", h[index[0]], matrices)
            count = torch.zeros(h.shape[0], 1).index_add(0, index[1], torch.ones(index.shape[1], 1))
            summed = torch.zeros_like(h).index_add(0, index[1], messages) / count.clamp(min=1)
            h = self.gru(F.relu(summed + self.bias), h)
        size = int(batch.max()) + 1
        q, state = torch.zeros(size, 2 * self.dim), None
        for _ in range(3):
            state = self.reader(q, state)
            e = (h * state[0][batch]).sum(-1)
            a = (e - e.max()).exp()
            a = a / torch.zeros(size).index_add(0, batch, a)[batch]
            q = torch.cat([state[0], torch.zeros(size, self.dim).index_add(0, batch, a[:, None] * h)], -1)
        return self.head(q)


def mlp(*widths, norm=True):
    layers = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    layers = layers[:-1] + ([nn.LayerNorm(widths[-1])] if norm else [])
    return nn.Sequential(*layers)


class MeshGraphNet(nn.Module):
    def __init__(self, nodes=6, edges=3, dim=32, steps=4, out=2):
        super().__init__()
        self.node, self.edge = mlp(nodes, dim, dim, dim), mlp(edges, dim, dim, dim)
        self.edges = nn.ModuleList([mlp(3 * dim, dim, dim, dim) for _ in range(steps)])
        self.nodes = nn.ModuleList([mlp(2 * dim, dim, dim, dim) for _ in range(steps)])
        self.decode = mlp(dim, dim, dim, out, norm=False)

    def forward(self, x, e, index):
        x, e = self.node(x), self.edge(e)
        start, end = index
        for of_edges, of_nodes in zip(self.edges, self.nodes, strict=True):
            e = e + of_edges(torch.cat([x[start], x[end], e], -1))
            received = torch.zeros(x.shape[0], e.shape[1]).scatter_add_(0, end[:, None].expand_as(e), e)
            x = x + of_nodes(torch.cat([x, received], -1))
        return self.decode(x)


class RSSM(nn.Module):
    """Dreamer v2: a deterministic path, states of categories drawn straight through, heads on both."""

    def __init__(self, observed=24, actions=4, deter=64, groups=8, classes=8):
        super().__init__()
        self.groups, self.classes, self.deter = groups, classes, deter
        stoch = groups * classes
        self.encoder = nn.Sequential(nn.Linear(observed, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU())
        self.inp = nn.Sequential(nn.Linear(stoch + actions, deter), nn.ELU())
        self.cell = nn.GRUCell(deter, deter)
        self.prior = nn.Sequential(nn.Linear(deter, 64), nn.ELU(), nn.Linear(64, stoch))
        self.posterior = nn.Sequential(nn.Linear(deter + 64, 64), nn.ELU(), nn.Linear(64, stoch))
        self.decoder = nn.Sequential(nn.Linear(deter + stoch, 64), nn.ELU(), nn.Linear(64, observed))
        self.reward = nn.Sequential(nn.Linear(deter + stoch, 64), nn.ELU(), nn.Linear(64, 1))

    def drawn(self, logits):
        logits = logits.view(-1, self.groups, self.classes)
        probabilities = logits.softmax(-1)
        sample = F.one_hot(torch.multinomial(probabilities.flatten(0, 1), 1).squeeze(-1), self.classes).float()
        sample = sample.view_as(probabilities)
        return (sample + probabilities - probabilities.detach()).flatten(1)

    def forward(self, observations, actions):
        b, steps, _ = observations.shape
        h, z = torch.zeros(b, self.deter), torch.zeros(b, self.groups * self.classes)
        embedded = self.encoder(observations)
        features, priors, posteriors = [], [], []
        for t in range(steps):
            h = self.cell(self.inp(torch.cat([z, actions[:, t]], -1)), h)
            priors.append(self.prior(h))
            posteriors.append(self.posterior(torch.cat([h, embedded[:, t]], -1)))
            z = self.drawn(posteriors[-1])
            features.append(torch.cat([h, z], -1))
        features = torch.stack(features, 1)
        return self.decoder(features), self.reward(features), torch.stack(priors, 1), torch.stack(posteriors, 1)


class IQN(nn.Module):
    """Implicit quantile network: cosines of drawn fractions times features of the state."""

    def __init__(self, actions=6, cosines=64, samples=8):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(4, 16, 8, 4), nn.ReLU(), nn.Conv2d(16, 32, 4, 2), nn.ReLU(), nn.Flatten(),
            nn.Linear(32 * 49, 128), nn.ReLU(),
        )  # fmt: skip
        self.register_buffer("ranks", torch.arange(1, cosines + 1) * math.pi)
        self.embed, self.samples = nn.Linear(cosines, 128), samples
        self.head = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, actions))

    def forward(self, x):
        features = self.body(x / 255.0)
        tau = torch.rand(x.shape[0], self.samples, 1)
        phi = F.relu(self.embed(torch.cos(tau * self.ranks)))
        return self.head(features[:, None] * phi), tau


class FTTransformer(nn.Module):
    def __init__(self, numeric=6, categories=(4, 7), dim=32, heads=4, depth=2, out=1):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(numeric, dim)), nn.Parameter(torch.empty(numeric, dim))
        self.embeds = nn.ModuleList([nn.Embedding(c, dim) for c in categories])
        self.offset, self.cls = nn.Parameter(torch.empty(len(categories), dim)), nn.Parameter(torch.empty(dim))
        for p in (self.weight, self.bias, self.offset, self.cls):
            nn.init.uniform_(p, -(dim**-0.5), dim**-0.5)
        self.attention = nn.ModuleList([nn.MultiheadAttention(dim, heads, 0.1, batch_first=True) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)]) for _ in range(depth)])
        self.up, self.down = (
            nn.ModuleList([nn.Linear(dim, 2 * 2 * dim) for _ in range(depth)]),
            nn.ModuleList([nn.Linear(2 * dim, dim) for _ in range(depth)]),
        )
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, out))

    def forward(self, numbers, kinds):
        tokens = [self.cls.expand(len(numbers), 1, -1), self.weight * numbers[..., None] + self.bias]
        tokens.append(torch.stack([e(kinds[:, i]) for i, e in enumerate(self.embeds)], 1) + self.offset)
        x = torch.cat(tokens, 1)
        for i, (attention, norms) in enumerate(zip(self.attention, self.norms, strict=True)):
            y = norms[0](x) if i else x
            x = x + attention(y, y, y, need_weights=False)[0]
            a, b = self.up[i](norms[1](x)).chunk(2, -1)
            x = x + self.down[i](a * F.relu(b))
        return self.head(x[:, 0])


class ExU(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.empty(1, units)), nn.Parameter(torch.empty(1))
        nn.init.trunc_normal_(self.weight, 4.0, 0.5)
        nn.init.trunc_normal_(self.shift, 0.0, 0.5)

    def forward(self, x):
        return torch.clamp((x - self.shift) @ self.weight.exp(), 0.0, 1.0)


class NeuralAdditive(nn.Module):
    def __init__(self, features=8, units=64):
        super().__init__()

        def make():
            return nn.Sequential(ExU(units), nn.Dropout(0.1), nn.Linear(units, 32), nn.ReLU(), nn.Linear(32, 1))

        self.nets, self.bias = nn.ModuleList([make() for _ in range(features)]), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        each = torch.cat([net(x[:, i : i + 1]) for i, net in enumerate(self.nets)], -1)
        return F.dropout(each, 0.1, self.training).sum(-1) + self.bias


class Decomposition(nn.Module):
    def __init__(self, kernel=9):
        super().__init__()
        self.kernel = kernel

    def forward(self, x):
        half = (self.kernel - 1) // 2
        padded = torch.cat([x[:, :1].repeat(1, half, 1), x, x[:, -1:].repeat(1, half, 1)], 1)
        trend = F.avg_pool1d(padded.transpose(1, 2), self.kernel, 1).transpose(1, 2)
        return x - trend, trend


class AutoCorrelation(nn.Module):
    def __init__(self, dim, heads, factor=1.0):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.heads, self.factor = heads, factor

    def forward(self, queries, memory):
        b, n, d = queries.shape
        q, k, v = self.q(queries), self.k(memory), self.v(memory)
        if memory.shape[1] > n:
            k, v = k[:, :n], v[:, :n]
        elif memory.shape[1] < n:
            k, v = (F.pad(y, (0, 0, 0, n - memory.shape[1])) for y in (k, v))
        q, k, v = (y.view(b, n, self.heads, -1).permute(0, 2, 3, 1) for y in (q, k, v))
        corr = torch.fft.irfft(torch.fft.rfft(q) * torch.conj(torch.fft.rfft(k)), n=n)
        top = int(self.factor * math.log(n))
        mean = corr.mean((1, 2))
        delays = torch.topk(mean.mean(0), top)[1]
        weights = torch.stack([mean[:, delays[i]] for i in range(top)], -1).softmax(-1)
        total = 0
        for i in range(top):
            total = total + torch.roll(v, -int(delays[i]), -1) * weights[:, i].view(-1, 1, 1, 1)
        return self.o(total.permute(0, 3, 1, 2).reshape(b, n, d))


class Autoformer(nn.Module):
    def __init__(self, variables=5, dim=32, heads=4, length=48, horizon=12):
        super().__init__()
        self.length, self.horizon, self.split = length, horizon, Decomposition()

        def embed():
            return nn.Conv1d(variables, dim, 3, padding=1, padding_mode="circular", bias=False)

        self.encode, self.decode = embed(), embed()
        self.attention = nn.ModuleList([AutoCorrelation(dim, heads) for _ in range(3)])

        def feed():
            return nn.Sequential(nn.Linear(dim, 64, bias=False), nn.GELU(), nn.Linear(64, dim, bias=False))

        self.feeds = nn.ModuleList([feed(), feed()])
        self.trends = nn.Conv1d(dim, variables, 3, padding=1, padding_mode="circular", bias=False)
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, variables)

    def forward(self, x):
        seasonal, trend = self.split(x)
        half = self.length // 2
        mean = x.mean(1, keepdim=True).repeat(1, self.horizon, 1)
        trend = torch.cat([trend[:, -half:], mean], 1)
        seasonal = torch.cat([seasonal[:, -half:], torch.zeros_like(mean)], 1)
        m = self.encode(x.transpose(1, 2)).transpose(1, 2)
        m, _ = self.split(m + self.attention[0](m, m))
        m, _ = self.split(m + self.feeds[0](m))
        y = self.decode(seasonal.transpose(1, 2)).transpose(1, 2)
        y, first = self.split(y + self.attention[1](y, y))
        y, second = self.split(y + self.attention[2](y, m))
        y, third = self.split(y + self.feeds[1](y))
        trend = trend + self.trends((first + second + third).transpose(1, 2)).transpose(1, 2)
        y = self.norm(y)
        y = y - y.mean(1, keepdim=True)
        return (self.head(y) + trend)[:, -self.horizon :]


class SplineCoupling(nn.Module):
    """Monotone rational quadratic splines between -3 and 3, the identity beyond."""

    def __init__(self, dim, bins=6, hidden=64, flip=False):
        super().__init__()
        self.bins, self.flip, self.half = bins, flip, dim // 2
        self.net = nn.Sequential(
            nn.Linear(self.half, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(),
            nn.Linear(hidden, (dim - self.half) * (3 * bins - 1)),
        )  # fmt: skip

    def knots(self, logits):
        sizes = 1e-3 + (1 - 1e-3 * self.bins) * logits.softmax(-1)
        return F.pad(sizes.cumsum(-1), (1, 0)) * 6.0 - 3.0

    def forward(self, x):
        a, b = x[:, : self.half], x[:, self.half :]
        w, h, d = self.net(a).view(len(x), -1, 3 * self.bins - 1).split([self.bins, self.bins, self.bins - 1], -1)
        xs, ys = self.knots(w), self.knots(h)
        slopes = F.pad(1e-3 + F.softplus(d), (1, 1), value=1.0)
        inside = (b > -3.0) & (b < 3.0)
        t = b.clamp(-3.0 + 1e-6, 3.0 - 1e-6)
        at = (t[..., None] >= xs[..., 1:-1]).sum(-1, keepdim=True)

        def pick(values, k):
            return values.gather(-1, k).squeeze(-1)

        x0, x1, y0, y1 = pick(xs, at), pick(xs, at + 1), pick(ys, at), pick(ys, at + 1)
        d0, d1 = pick(slopes, at), pick(slopes, at + 1)
        s, u = (y1 - y0) / (x1 - x0), (t - x0) / (x1 - x0)
        below = s + (d1 + d0 - 2 * s) * u * (1 - u)
        y = y0 + (y1 - y0) * (s * u**2 + d0 * u * (1 - u)) / below
        slope = s**2 * (d1 * u**2 + 2 * s * u * (1 - u) + d0 * (1 - u) ** 2) / below**2
        b, log = torch.where(inside, y, b), torch.where(inside, slope.log(), torch.zeros_like(y)).sum(-1)
        return torch.cat([b, a] if self.flip else [a, b], -1), log


class SplineFlow(nn.Module):
    def __init__(self, dim=6, depth=4):
        super().__init__()
        self.layers = nn.ModuleList([SplineCoupling(dim, flip=True) for _ in range(depth)])

    def forward(self, x):
        total = 0
        for layer in self.layers:
            x, log = layer(x)
            total = total + log
        return -0.5 * (x**2 + math.log(2 * math.pi)).sum(-1) + total


def molecules():
    """Return atoms, their degrees, distances between them and the edges on the way, none as 0."""
    atoms, degrees = torch.randint(16, (6, 10)), torch.randint(10, (6, 10))
    return atoms, degrees, torch.randint(8, (6, 10, 10)), torch.randint(5, (6, 10, 10, 3))


def bonds():
    """Return atoms, bonds, what is known of these, and the molecule of each atom."""
    index = torch.stack([torch.arange(48), torch.arange(48) // 12 * 12 + torch.randint(12, (48,))])
    return torch.randn(48, 8), index, torch.randn(48, 4), torch.arange(48) // 12


def mesh():
    """Return nodes and edges of a mesh."""
    return torch.randn(40, 6), torch.randn(160, 3), torch.randint(40, (2, 160))


NETS = {
    "Swin": (Swin, lambda: (torch.randn(4, 3, 32, 32),)),
    "DenseNet": (DenseNet, lambda: (torch.randn(8, 3, 32, 32),)),
    "HRNet": (HRNet, lambda: (torch.randn(4, 3, 64, 64),)),
    "DeepLab v3+": (DeepLab, lambda: (torch.randn(4, 3, 64, 64),)),
    "PWC-Net": (PWCNet, lambda: (torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64))),
    "ConvNeXt v2": (ConvNeXtV2, lambda: (torch.randn(4, 3, 64, 64),)),
    "RetinaNet": (RetinaNet, lambda: (torch.randn(2, 3, 64, 64),)),
    "recurrent highway network": (RecurrentHighway, lambda: (torch.randint(60, (8, 8)),)),
    "QRNN": (QRNN, lambda: (torch.randint(100, (8, 12)),)),
    "Tacotron 2": (Tacotron2, lambda: (torch.randint(40, (4, 14)), torch.randn(4, 6, 20))),
    "HiFi-GAN": (HiFiGAN, lambda: (torch.randn(2, 20, 24),)),
    "Graphormer": (Graphormer, molecules),
    "MPNN with Set2Set": (MPNN, bonds),
    "MeshGraphNet": (MeshGraphNet, mesh),
    "RSSM": (RSSM, lambda: (torch.randn(8, 6, 24), torch.randn(8, 6, 4))),
    "IQN": (IQN, lambda: (torch.rand(4, 4, 68, 68) * 255,)),
    "FT-Transformer": (FTTransformer, lambda: (torch.randn(32, 6), torch.randint(4, (32, 2)))),
    "neural additive model": (NeuralAdditive, lambda: (torch.randn(64, 8),)),
    "Autoformer": (Autoformer, lambda: (torch.randn(8, 48, 5),)),
    "neural spline flow": (SplineFlow, lambda: (torch.randn(64, 6),)),
}
