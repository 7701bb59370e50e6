"""Networks typed by hand as their repositories have them: MODNet, SegRNN, the key-value memory network."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def conv_bn(inp, oup, stride):
    return nn.Sequential(nn.Conv2d(inp, oup, 3, stride, 1, bias=False), nn.BatchNorm2d(oup), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """MobileNet's block: widen, filter each channel, narrow."""

    def __init__(self, inp, oup, stride, expansion):
        super().__init__()
        hidden_dim = round(inp * expansion)
        self.use_res_connect = stride == 1 and inp == oup
        layers = []
        if expansion != 1:
            layers += [
                nn.Conv2d(inp, hidden_dim, 1, 1, 0, bias=False),
                nn.BatchNorm2d(hidden_dim),
                nn.ReLU6(inplace=True),
            ]
        layers += [
            nn.Conv2d(hidden_dim, hidden_dim, 3, stride, 1, groups=hidden_dim, bias=False),
            nn.BatchNorm2d(hidden_dim),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden_dim, oup, 1, 1, 0, bias=False),
            nn.BatchNorm2d(oup),
        ]
        self.conv = nn.Sequential(*layers)

    def forward(self, x):
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


def make_divisible(x, divisible_by=8):
    return int(math.ceil(x * 1.0 / divisible_by) * divisible_by)


class MobileNetV2(nn.Module):
    """MobileNet of a quarter of the width, up to its last pointwise convolution."""

    def __init__(self, in_channels=3, alpha=0.25, expansion=6, last_channel=160):
        super().__init__()
        input_channel = make_divisible(32 * alpha, 8)
        self.last_channel = last_channel
        setting = [
            [1, 16, 1, 1],
            [expansion, 24, 2, 2],
            [expansion, 32, 3, 2],
            [expansion, 64, 4, 2],
            [expansion, 96, 3, 1],
            [expansion, 160, 3, 2],
            [expansion, 320, 1, 1],
        ]
        self.features = [conv_bn(in_channels, input_channel, 2)]
        self.ends, self.channels = [], []
        for t, c, n, s in setting:
            output_channel = make_divisible(c * alpha, 8)
            for i in range(n):
                self.features.append(InvertedResidual(input_channel, output_channel, s if i == 0 else 1, t))
                input_channel = output_channel
            self.ends.append(len(self.features))
            self.channels.append(output_channel)
        self.features.append(
            nn.Sequential(
                nn.Conv2d(input_channel, self.last_channel, 1, 1, 0, bias=False),
                nn.BatchNorm2d(self.last_channel),
                nn.ReLU6(inplace=True),
            )
        )
        self.features = nn.Sequential(*self.features)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                n = m.kernel_size[0] * m.kernel_size[1] * m.out_channels
                m.weight.data.normal_(0, math.sqrt(2.0 / n))
            elif isinstance(m, nn.BatchNorm2d):
                m.weight.data.fill_(1)
                m.bias.data.zero_()


class MobileNetV2Backbone(nn.Module):
    """MobileNet's maps at five resolutions."""

    def __init__(self):
        super().__init__()
        self.model = MobileNetV2()
        c = self.model.channels
        self.enc_channels = [c[0], c[1], c[2], c[4], self.model.last_channel]

    def forward(self, x):
        ends = self.model.ends
        wanted = {ends[0], ends[1], ends[2], ends[4], len(self.model.features)}
        maps = []
        for i, feature in enumerate(self.model.features):
            x = feature(x)
            if i + 1 in wanted:
                maps.append(x)
        return maps


class IBNorm(nn.Module):
    """Batch norm for one half of the channels, instance norm for the other."""

    def __init__(self, in_channels):
        super().__init__()
        self.bnorm_channels = int(in_channels / 2)
        self.inorm_channels = in_channels - self.bnorm_channels
        self.bnorm = nn.BatchNorm2d(self.bnorm_channels, affine=True)
        self.inorm = nn.InstanceNorm2d(self.inorm_channels, affine=False)

    def forward(self, x):
        bn_x = self.bnorm(x[:, : self.bnorm_channels, ...].contiguous())
        in_x = self.inorm(x[:, self.bnorm_channels :, ...].contiguous())
        return torch.cat((bn_x, in_x), 1)


class Conv2dIBNormRelu(nn.Module):
    """Convolution, and the mixed norm and ReLU where they are wanted."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, with_ibn=True, with_relu=True):
        super().__init__()
        layers = [nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=True)]
        if with_ibn:
            layers.append(IBNorm(out_channels))
        if with_relu:
            layers.append(nn.ReLU(inplace=True))
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class SEBlock(nn.Module):
    """Gates of the channels from their means."""

    def __init__(self, in_channels, out_channels, reduction=1):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(in_channels, int(in_channels // reduction), bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(int(in_channels // reduction), out_channels, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x):
        b, c, _, _ = x.size()
        w = self.pool(x).view(b, c)
        w = self.fc(w).view(b, c, 1, 1)
        return x * w.expand_as(x)


def resize(x, scale):
    return F.interpolate(x, scale_factor=scale, mode="bilinear", align_corners=False)


class LRBranch(nn.Module):
    """The meaning of the picture at low resolution."""

    def __init__(self, backbone):
        super().__init__()
        enc_channels = backbone.enc_channels
        self.backbone = backbone
        self.se_block = SEBlock(enc_channels[4], enc_channels[4], reduction=4)
        self.conv_lr16x = Conv2dIBNormRelu(enc_channels[4], enc_channels[3], 5, stride=1, padding=2)
        self.conv_lr8x = Conv2dIBNormRelu(enc_channels[3], enc_channels[2], 5, stride=1, padding=2)
        self.conv_lr = Conv2dIBNormRelu(enc_channels[2], 1, 3, stride=2, padding=1, with_ibn=False, with_relu=False)

    def forward(self, img, inference):
        enc2x, enc4x, _, _, enc32x = self.backbone(img)
        enc32x = self.se_block(enc32x)
        lr16x = self.conv_lr16x(resize(enc32x, 2))
        lr8x = self.conv_lr8x(resize(lr16x, 2))
        pred_semantic = None
        if not inference:
            pred_semantic = torch.sigmoid(self.conv_lr(lr8x))
        return pred_semantic, lr8x, [enc2x, enc4x]


class HRBranch(nn.Module):
    """The details along the edge at high resolution."""

    def __init__(self, hr_channels, enc_channels):
        super().__init__()
        hr = hr_channels
        self.tohr_enc2x = Conv2dIBNormRelu(enc_channels[0], hr, 1, stride=1, padding=0)
        self.conv_enc2x = Conv2dIBNormRelu(hr + 3, hr, 3, stride=2, padding=1)
        self.tohr_enc4x = Conv2dIBNormRelu(enc_channels[1], hr, 1, stride=1, padding=0)
        self.conv_enc4x = Conv2dIBNormRelu(2 * hr, 2 * hr, 3, stride=1, padding=1)
        self.conv_hr4x = nn.Sequential(
            Conv2dIBNormRelu(2 * hr + enc_channels[2] + 3, 2 * hr, 3, stride=1, padding=1),
            Conv2dIBNormRelu(2 * hr, 2 * hr, 3, stride=1, padding=1),
            Conv2dIBNormRelu(2 * hr, hr, 3, stride=1, padding=1),
        )
        self.conv_hr2x = nn.Sequential(
            Conv2dIBNormRelu(2 * hr, 2 * hr, 3, stride=1, padding=1),
            Conv2dIBNormRelu(2 * hr, hr, 3, stride=1, padding=1),
            Conv2dIBNormRelu(hr, hr, 3, stride=1, padding=1),
            Conv2dIBNormRelu(hr, hr, 3, stride=1, padding=1),
        )
        self.conv_hr = nn.Sequential(
            Conv2dIBNormRelu(hr + 3, hr, 3, stride=1, padding=1),
            Conv2dIBNormRelu(hr, 1, 1, stride=1, padding=0, with_ibn=False, with_relu=False),
        )

    def forward(self, img, enc2x, enc4x, lr8x, inference):
        img2x, img4x = resize(img, 1 / 2), resize(img, 1 / 4)
        enc2x = self.tohr_enc2x(enc2x)
        hr4x = self.conv_enc2x(torch.cat((img2x, enc2x), dim=1))
        enc4x = self.tohr_enc4x(enc4x)
        hr4x = self.conv_enc4x(torch.cat((hr4x, enc4x), dim=1))
        lr4x = resize(lr8x, 2)
        hr4x = self.conv_hr4x(torch.cat((hr4x, lr4x, img4x), dim=1))
        hr2x = self.conv_hr2x(torch.cat((resize(hr4x, 2), enc2x), dim=1))
        pred_detail = None
        if not inference:
            pred_detail = torch.sigmoid(self.conv_hr(torch.cat((resize(hr2x, 2), img), dim=1)))
        return pred_detail, hr2x


class FusionBranch(nn.Module):
    """The matte, from meaning and details."""

    def __init__(self, hr_channels, enc_channels):
        super().__init__()
        self.conv_lr4x = Conv2dIBNormRelu(enc_channels[2], hr_channels, 5, stride=1, padding=2)
        self.conv_f2x = Conv2dIBNormRelu(2 * hr_channels, hr_channels, 3, stride=1, padding=1)
        self.conv_f = nn.Sequential(
            Conv2dIBNormRelu(hr_channels + 3, int(hr_channels / 2), 3, stride=1, padding=1),
            Conv2dIBNormRelu(int(hr_channels / 2), 1, 1, stride=1, padding=0, with_ibn=False, with_relu=False),
        )

    def forward(self, img, lr8x, hr2x):
        lr4x = self.conv_lr4x(resize(lr8x, 2))
        lr2x = resize(lr4x, 2)
        f2x = self.conv_f2x(torch.cat((lr2x, hr2x), dim=1))
        f = self.conv_f(torch.cat((resize(f2x, 2), img), dim=1))
        return torch.sigmoid(f)


class MODNet(nn.Module):
    """Matting of portraits in three branches: meaning, details and their fusion."""

    def __init__(self, hr_channels=16):
        super().__init__()
        backbone = MobileNetV2Backbone()
        self.lr_branch = LRBranch(backbone)
        self.hr_branch = HRBranch(hr_channels, backbone.enc_channels)
        self.f_branch = FusionBranch(hr_channels, backbone.enc_channels)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_uniform_(m.weight, a=0, mode="fan_in", nonlinearity="relu")
                if m.bias is not None:
                    nn.init.constant_(m.bias, 0)
            elif isinstance(m, (nn.BatchNorm2d, nn.InstanceNorm2d)) and m.weight is not None:
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)

    def forward(self, img, inference=False):
        pred_semantic, lr8x, (enc2x, enc4x) = self.lr_branch(img, inference)
        pred_detail, hr2x = self.hr_branch(img, enc2x, enc4x, lr8x, inference)
        return pred_semantic, pred_detail, self.f_branch(img, lr8x, hr2x)


class SegRNN(nn.Module):
    """A GRU over segments of each channel, which decodes all segments to come at once from their positions."""

    def __init__(self, seq_len=192, pred_len=96, enc_in=7, d_model=128, seg_len=24, dropout=0.1):
        super().__init__()
        self.seq_len, self.pred_len, self.enc_in, self.d_model = seq_len, pred_len, enc_in, d_model
        self.seg_len, self.seg_num_x, self.seg_num_y = seg_len, seq_len // seg_len, pred_len // seg_len
        self.valueEmbedding = nn.Sequential(nn.Linear(seg_len, d_model), nn.ReLU())
        self.rnn = nn.GRU(d_model, d_model, num_layers=1, bias=True, batch_first=True, bidirectional=False)
        self.pos_emb = nn.Parameter(torch.randn(self.seg_num_y, d_model // 2))
        self.channel_emb = nn.Parameter(torch.randn(enc_in, d_model // 2))
        self.predict = nn.Sequential(nn.Dropout(dropout), nn.Linear(d_model, seg_len))

    def forward(self, x):
        batch_size = x.size(0)
        seq_last = x[:, -1:, :].detach()
        x = (x - seq_last).permute(0, 2, 1)
        x = self.valueEmbedding(x.reshape(-1, self.seg_num_x, self.seg_len))
        _, hn = self.rnn(x)
        pos_emb = torch.cat(
            [
                self.pos_emb.unsqueeze(0).repeat(self.enc_in, 1, 1),
                self.channel_emb.unsqueeze(1).repeat(1, self.seg_num_y, 1),
            ],
            dim=-1,
        )
        pos_emb = pos_emb.view(-1, 1, self.d_model).repeat(batch_size, 1, 1)
        _, hy = self.rnn(pos_emb, hn.repeat(1, 1, self.seg_num_y).view(1, -1, self.d_model))
        y = self.predict(hy).view(-1, self.enc_in, self.pred_len)
        return y.permute(0, 2, 1) + seq_last


class KVMemNN(nn.Module):
    """Hops of reading by keys and values of hashed facts, and a score of each candidate answer."""

    def __init__(self, vocab=600, entities=100, dim=64, hops=3):
        super().__init__()
        self.hops = hops
        self.A = nn.Embedding(vocab, dim, padding_idx=0)
        self.B = nn.Linear(dim, entities, bias=False)
        self.R = nn.ModuleList([nn.Linear(dim, dim, bias=False) for _ in range(hops)])
        nn.init.xavier_normal_(self.A.weight)
        nn.init.xavier_normal_(self.B.weight)
        with torch.no_grad():
            self.A.weight[0].zero_()
        for r in self.R:
            nn.init.xavier_normal_(r.weight)

    def forward(self, question, keys, values, mask):
        q = self.A(question).sum(dim=1)
        k, v = self.A(keys).sum(dim=2), self.A(values).sum(dim=2)
        for r in self.R:
            scores = torch.bmm(k, q.unsqueeze(2)).squeeze(2)
            p = F.softmax(scores.masked_fill(~mask, -1e9), dim=1)
            o = torch.bmm(p.unsqueeze(1), v).squeeze(1)
            q = r(q + o)
        return F.log_softmax(self.B(q), dim=1)


def loads(batch=8, length=192, channels=7):
    """Standardised series with a daily period, a slow drift and noise."""
    rng = np.random.default_rng(0)
    t = np.arange(length)[None, :, None] + rng.integers(0, 24, (batch, 1, 1))
    drift = 0.05 * rng.standard_normal((batch, length, channels)).cumsum(axis=1)
    x = np.sin(2 * np.pi * t / 24 + rng.uniform(0, 6, channels)) + drift + 0.3 * rng.standard_normal(drift.shape)
    return (torch.from_numpy(((x - x.mean((0, 1))) / x.std((0, 1))).astype(np.float32)),)


def facts(batch=8, words=10, memories=30, vocab=600):
    """Questions, and facts found for them: a subject with its relation as key, an object as value."""
    lengths = torch.randint(4, words + 1, (batch, 1))
    question = torch.randint(1, vocab, (batch, words)).masked_fill(torch.arange(words) >= lengths, 0)
    found = torch.randint(8, memories + 1, (batch, 1))
    mask = torch.arange(memories) < found
    keys = torch.randint(1, vocab, (batch, memories, 2)).masked_fill(~mask.unsqueeze(-1), 0)
    values = torch.randint(1, vocab, (batch, memories, 1)).masked_fill(~mask.unsqueeze(-1), 0)
    keys[:, :4, 0] = question[:, :1]
    return question, keys, values, mask


NETS = {
    "MODNet": (MODNet, lambda: (torch.randn(4, 3, 96, 96),)),
    "SegRNN": (SegRNN, loads),
    "Key-value memory network": (KVMemNN, facts),
}
