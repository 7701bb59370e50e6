"""Pictures and sound: a mobile classifier, a keypoint detector, a deformable-free FPN, separation, a vocoder."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn


class SqueezeExcite(nn.Module):
    def __init__(self, channels, reduction=4):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // reduction, 1)
        self.fc2 = nn.Conv2d(channels // reduction, channels, 1)

    def forward(self, x):
        s = F.adaptive_avg_pool2d(x, 1)
        s = F.hardsigmoid(self.fc2(F.relu(self.fc1(s))))
        return x * s


class InvertedResidual(nn.Module):
    def __init__(self, inp, hidden, out, kernel, stride, se, hs):
        super().__init__()
        act = nn.Hardswish if hs else nn.ReLU
        layers = []
        if hidden != inp:
            layers += [nn.Conv2d(inp, hidden, 1, bias=False), nn.BatchNorm2d(hidden), act()]
        layers += [
            nn.Conv2d(hidden, hidden, kernel, stride, kernel // 2, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
        ]
        if se:
            layers.append(SqueezeExcite(hidden))
        layers += [act(), nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.body = nn.Sequential(*layers)
        self.skip = stride == 1 and inp == out

    def forward(self, x):
        y = self.body(x)
        return x + y if self.skip else y


class MobileNetV3(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        cfg = [
            # in, hidden, out, k, s, se, hs
            (16, 16, 16, 3, 2, True, False),
            (16, 72, 24, 3, 2, False, False),
            (24, 88, 24, 3, 1, False, False),
            (24, 96, 40, 5, 2, True, True),
            (40, 240, 40, 5, 1, True, True),
            (40, 240, 40, 5, 1, True, True),
        ]
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        self.blocks = nn.Sequential(*[InvertedResidual(*c) for c in cfg])
        self.head = nn.Sequential(nn.Conv2d(40, 240, 1, bias=False), nn.BatchNorm2d(240), nn.Hardswish())
        self.fc1 = nn.Linear(240, 256)
        self.drop = nn.Dropout(0.2)
        self.fc2 = nn.Linear(256, classes)

    def forward(self, x):
        x = self.head(self.blocks(self.stem(x)))
        x = x.mean([2, 3])
        return self.fc2(self.drop(F.hardswish(self.fc1(x))))


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.down = None
        if stride != 1 or i != o:
            self.down = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class CenterNet(nn.Module):
    """Objects as points: a feature pyramid with a heat map, sizes and offsets."""

    def __init__(self, classes=5, width=64):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.c2 = BasicBlock(32, 32)
        self.c3 = BasicBlock(32, 64, 2)
        self.c4 = BasicBlock(64, 128, 2)
        self.lat4 = nn.Conv2d(128, width, 1)
        self.lat3 = nn.Conv2d(64, width, 1)
        self.lat2 = nn.Conv2d(32, width, 1)
        self.smooth = nn.Conv2d(width, width, 3, padding=1)
        self.heat = self.make_head(width, classes)
        self.size = self.make_head(width, 2)
        self.offset = self.make_head(width, 2)
        self.heat[-1].bias.data.fill_(-math.log((1 - 0.1) / 0.1))

    @staticmethod
    def make_head(width, out):
        return nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, out, 1))

    def forward(self, x):
        c2 = self.c2(self.stem(x))
        c3 = self.c3(c2)
        c4 = self.c4(c3)
        p = self.lat4(c4)
        p = F.interpolate(p, scale_factor=2, mode="nearest") + self.lat3(c3)
        p = F.interpolate(p, scale_factor=2, mode="nearest") + self.lat2(c2)
        p = F.relu(self.smooth(p))
        heat = torch.sigmoid(self.heat(p)).clamp(1e-4, 1 - 1e-4)
        peaks = heat * (heat == F.max_pool2d(heat, 3, 1, 1)).float()
        return heat, peaks, F.softplus(self.size(p)), self.offset(p)


class GlobalLayerNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1))

    def forward(self, y):
        mean = y.mean(dim=(1, 2), keepdim=True)
        var = ((y - mean) ** 2).mean(dim=(1, 2), keepdim=True)
        return self.gamma * (y - mean) / torch.sqrt(var + 1e-8) + self.beta


class TemporalBlock(nn.Module):
    def __init__(self, channels, hidden, dilation):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(channels, hidden, 1),
            nn.PReLU(),
            GlobalLayerNorm(hidden),
            nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden),
            nn.PReLU(),
            GlobalLayerNorm(hidden),
        )
        self.res = nn.Conv1d(hidden, channels, 1)
        self.skip = nn.Conv1d(hidden, channels, 1)

    def forward(self, x):
        y = self.net(x)
        return x + self.res(y), self.skip(y)


class ConvTasNet(nn.Module):
    def __init__(self, filters=64, length=16, channels=32, hidden=64, blocks=4, repeats=2, speakers=2):
        super().__init__()
        self.speakers = speakers
        self.encoder = nn.Conv1d(1, filters, length, stride=length // 2, bias=False)
        self.norm = GlobalLayerNorm(filters)
        self.bottleneck = nn.Conv1d(filters, channels, 1)
        self.blocks = nn.ModuleList(
            [TemporalBlock(channels, hidden, 2**b) for _ in range(repeats) for b in range(blocks)]
        )
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(channels, speakers * filters, 1))
        self.decoder = nn.ConvTranspose1d(filters, 1, length, stride=length // 2, bias=False)

    def forward(self, wav):
        w = F.relu(self.encoder(wav.unsqueeze(1)))
        x = self.bottleneck(self.norm(w))
        total = 0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        masks = self.mask(total).view(wav.size(0), self.speakers, w.size(1), -1)
        masks = torch.softmax(masks, dim=1)
        out = [self.decoder(w * masks[:, i]) for i in range(self.speakers)]
        return torch.cat(out, dim=1)


class WaveNet(nn.Module):
    """A conditional WaveNet over mu-law codes, with an upsampled mel spectrogram."""

    def __init__(self, codes=256, res=32, gate=64, skip=32, mels=20, layers=8):
        super().__init__()
        self.embed = nn.Embedding(codes, res)
        self.up = nn.ConvTranspose1d(mels, mels, 16, stride=8, padding=4)
        self.filters = nn.ModuleList([nn.Conv1d(res, gate, 2, dilation=2 ** (i % 4)) for i in range(layers)])
        self.conds = nn.ModuleList([nn.Conv1d(mels, gate, 1, bias=False) for _ in range(layers)])
        self.outs = nn.ModuleList([nn.Conv1d(gate // 2, res, 1) for _ in range(layers)])
        self.skips = nn.ModuleList([nn.Conv1d(gate // 2, skip, 1) for _ in range(layers)])
        self.end1 = nn.Conv1d(skip, skip, 1)
        self.end2 = nn.Conv1d(skip, codes, 1)

    def forward(self, codes, mel):
        x = self.embed(codes).transpose(1, 2)
        c = F.leaky_relu(self.up(mel), 0.4)
        skips = 0
        for i in range(len(self.filters)):
            d = 2 ** (i % 4)
            h = self.filters[i](F.pad(x, (d, 0))) + self.conds[i](c)
            a, b = h.chunk(2, dim=1)
            h = torch.tanh(a) * torch.sigmoid(b)
            skips = skips + self.skips[i](h)
            x = (x + self.outs[i](h)) * math.sqrt(0.5)
        return self.end2(F.relu(self.end1(F.relu(skips))))


class SpatialTransformer(nn.Module):
    """A small digit classifier with a spatial transformer in front."""

    def __init__(self, classes=10):
        super().__init__()
        self.loc = nn.Sequential(
            nn.Conv2d(1, 8, 7),
            nn.MaxPool2d(2, 2),
            nn.ReLU(True),
            nn.Conv2d(8, 10, 5),
            nn.MaxPool2d(2, 2),
            nn.ReLU(True),
        )
        self.fc_loc = nn.Sequential(nn.Linear(90, 32), nn.ReLU(True), nn.Linear(32, 6))
        self.fc_loc[2].weight.data.zero_()
        self.fc_loc[2].bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, classes)

    def forward(self, x):
        theta = self.fc_loc(self.loc(x).flatten(1)).view(-1, 2, 3)
        grid = F.affine_grid(theta, x.size(), align_corners=False)
        x = F.grid_sample(x, grid, align_corners=False)
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2))
        x = x.view(-1, 320)
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return F.log_softmax(self.fc2(x), dim=1)


NETS = {
    "MobileNetV3": (MobileNetV3, lambda: (torch.randn(8, 3, 64, 64),)),
    "CenterNet": (CenterNet, lambda: (torch.randn(4, 3, 64, 64),)),
    "Conv-TasNet": (ConvTasNet, lambda: (torch.randn(4, 512),)),
    "WaveNet": (WaveNet, lambda: (torch.randint(256, (4, 128)), torch.randn(4, 20, 16))),
    "spatial transformer": (SpatialTransformer, lambda: (torch.randn(16, 1, 28, 28),)),
}
