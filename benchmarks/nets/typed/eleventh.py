"""Networks typed by hand as their repositories have them: OSNet, PCT, ShallowConvNet."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class ConvLayer(nn.Module):
    """Convolution, norm and ReLU."""

    def __init__(self, in_channels, out_channels, kernel_size, stride=1, padding=0, groups=1, IN=False):
        super().__init__()
        self.conv = nn.Conv2d(
            in_channels, out_channels, kernel_size, stride=stride, padding=padding, bias=False, groups=groups
        )
        self.bn = nn.InstanceNorm2d(out_channels, affine=True) if IN else nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn(self.conv(x)))


class Conv1x1Linear(nn.Module):
    """Pointwise convolution and norm without an activation."""

    def __init__(self, in_channels, out_channels, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 1, stride=stride, padding=0, bias=False)
        self.bn = nn.BatchNorm2d(out_channels)

    def forward(self, x):
        return self.bn(self.conv(x))


class LightConv3x3(nn.Module):
    """Pointwise, then depthwise convolution."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 1, stride=1, padding=0, bias=False)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, 1, 1, bias=False, groups=out_channels)
        self.bn = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn(self.conv2(self.conv1(x))))


class ChannelGate(nn.Module):
    """Gates of the channels, from their means over the picture; shared by a block's streams."""

    def __init__(self, in_channels, reduction=16):
        super().__init__()
        self.global_avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(in_channels, max(in_channels // reduction, 2), kernel_size=1, bias=True, padding=0)
        self.relu = nn.ReLU(inplace=True)
        self.fc2 = nn.Conv2d(max(in_channels // reduction, 2), in_channels, kernel_size=1, bias=True, padding=0)
        self.gate_activation = nn.Sigmoid()

    def forward(self, x):
        inp = x
        x = self.global_avgpool(x)
        x = self.relu(self.fc1(x))
        x = self.gate_activation(self.fc2(x))
        return inp * x


class OSBlock(nn.Module):
    """Four streams of growing receptive fields, gated and added."""

    def __init__(self, in_channels, out_channels, IN=False, bottleneck_reduction=4):
        super().__init__()
        mid = out_channels // bottleneck_reduction
        self.conv1 = ConvLayer(in_channels, mid, 1)
        self.conv2a = LightConv3x3(mid, mid)
        self.conv2b = nn.Sequential(*[LightConv3x3(mid, mid) for _ in range(2)])
        self.conv2c = nn.Sequential(*[LightConv3x3(mid, mid) for _ in range(3)])
        self.conv2d = nn.Sequential(*[LightConv3x3(mid, mid) for _ in range(4)])
        self.gate = ChannelGate(mid)
        self.conv3 = Conv1x1Linear(mid, out_channels)
        self.downsample = None
        if in_channels != out_channels:
            self.downsample = Conv1x1Linear(in_channels, out_channels)
        self.IN = nn.InstanceNorm2d(out_channels, affine=True) if IN else None

    def forward(self, x):
        identity = x
        x1 = self.conv1(x)
        x2a, x2b, x2c, x2d = self.conv2a(x1), self.conv2b(x1), self.conv2c(x1), self.conv2d(x1)
        x2 = self.gate(x2a) + self.gate(x2b) + self.gate(x2c) + self.gate(x2d)
        x3 = self.conv3(x2)
        if self.downsample is not None:
            identity = self.downsample(identity)
        out = x3 + identity
        if self.IN is not None:
            out = self.IN(out)
        return F.relu(out)


class OSNet(nn.Module):
    """Omni-scale network at a quarter of the width, for re-identification with softmax and triplet losses."""

    def __init__(self, num_classes=100, layers=(2, 2, 2), channels=(16, 64, 96, 128), feature_dim=128, IN=False):
        super().__init__()
        self.feature_dim = feature_dim
        self.conv1 = ConvLayer(3, channels[0], 7, stride=2, padding=3, IN=IN)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.conv2 = self._make_layer(layers[0], channels[0], channels[1], reduce_spatial_size=True, IN=IN)
        self.conv3 = self._make_layer(layers[1], channels[1], channels[2], reduce_spatial_size=True)
        self.conv4 = self._make_layer(layers[2], channels[2], channels[3], reduce_spatial_size=False)
        self.conv5 = ConvLayer(channels[3], channels[3], 1)
        self.global_avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(nn.Linear(channels[3], feature_dim), nn.BatchNorm1d(feature_dim), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(self.feature_dim, num_classes)
        self._init_params()

    def _make_layer(self, layer, in_channels, out_channels, reduce_spatial_size, IN=False):
        layers = [OSBlock(in_channels, out_channels, IN=IN)]
        for _ in range(1, layer):
            layers.append(OSBlock(out_channels, out_channels, IN=IN))
        if reduce_spatial_size:
            layers.append(nn.Sequential(ConvLayer(out_channels, out_channels, 1), nn.AvgPool2d(2, stride=2)))
        return nn.Sequential(*layers)

    def _init_params(self):
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                if m.bias is not None:
                    nn.init.constant_(m.bias, 0)
            elif isinstance(m, (nn.BatchNorm2d, nn.BatchNorm1d)):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0, 0.01)
                if m.bias is not None:
                    nn.init.constant_(m.bias, 0)

    def featuremaps(self, x):
        x = self.maxpool(self.conv1(x))
        return self.conv5(self.conv4(self.conv3(self.conv2(x))))

    def forward(self, x):
        x = self.featuremaps(x)
        v = self.global_avgpool(x)
        v = v.view(v.size(0), -1)
        v = self.fc(v)
        if not self.training:
            return v
        return self.classifier(v), v


def index_points(points, idx):
    B = points.shape[0]
    batch = torch.arange(B, device=points.device).view(B, *[1] * (idx.dim() - 1)).expand_as(idx)
    return points[batch, idx]


@torch.no_grad()
def furthest_point_sample(xyz, npoint):
    B, N, _ = xyz.shape
    centroids = torch.zeros(B, npoint, dtype=torch.long, device=xyz.device)
    distance = torch.full((B, N), 1e10, device=xyz.device)
    farthest = torch.zeros(B, dtype=torch.long, device=xyz.device)
    rows = torch.arange(B, device=xyz.device)
    for i in range(npoint):
        centroids[:, i] = farthest
        dist = ((xyz - xyz[rows, farthest][:, None]) ** 2).sum(-1)
        distance = torch.minimum(distance, dist)
        farthest = distance.max(-1)[1]
    return centroids


def square_distance(src, dst):
    dist = -2 * torch.matmul(src, dst.permute(0, 2, 1))
    dist += torch.sum(src**2, -1)[:, :, None]
    dist += torch.sum(dst**2, -1)[:, None, :]
    return dist


def sample_and_group(npoint, nsample, xyz, points):
    B = xyz.shape[0]
    fps_idx = furthest_point_sample(xyz, npoint)
    new_xyz, new_points = index_points(xyz, fps_idx), index_points(points, fps_idx)
    _, idx = torch.topk(square_distance(new_xyz, xyz), nsample, dim=-1, largest=False, sorted=False)
    grouped_points = index_points(points, idx)
    grouped_points_norm = grouped_points - new_points.view(B, npoint, 1, -1)
    repeated = new_points.view(B, npoint, 1, -1).repeat(1, 1, nsample, 1)
    return new_xyz, torch.cat([grouped_points_norm, repeated], dim=-1)


class LocalOp(nn.Module):
    """Two pointwise convolutions over each neighbourhood, and its maximum."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv1 = nn.Conv1d(in_channels, out_channels, kernel_size=1, bias=False)
        self.conv2 = nn.Conv1d(out_channels, out_channels, kernel_size=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm1d(out_channels), nn.BatchNorm1d(out_channels)
        self.relu = nn.ReLU()

    def forward(self, x):
        b, n, s, d = x.size()
        x = x.permute(0, 1, 3, 2).reshape(-1, d, s)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = F.adaptive_max_pool1d(x, 1).view(b * n, -1)
        return x.reshape(b, n, -1).permute(0, 2, 1)


class SALayer(nn.Module):
    """Offset attention, with one weight for queries and keys."""

    def __init__(self, channels):
        super().__init__()
        self.q_conv = nn.Conv1d(channels, channels // 4, 1, bias=False)
        self.k_conv = nn.Conv1d(channels, channels // 4, 1, bias=False)
        self.q_conv.weight = self.k_conv.weight
        self.v_conv = nn.Conv1d(channels, channels, 1)
        self.trans_conv = nn.Conv1d(channels, channels, 1)
        self.after_norm = nn.BatchNorm1d(channels)
        self.act = nn.ReLU()
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x):
        x_q = self.q_conv(x).permute(0, 2, 1)
        x_k, x_v = self.k_conv(x), self.v_conv(x)
        attention = self.softmax(torch.bmm(x_q, x_k))
        attention = attention / (1e-9 + attention.sum(dim=1, keepdim=True))
        x_r = torch.bmm(x_v, attention)
        x_r = self.act(self.after_norm(self.trans_conv(x - x_r)))
        return x + x_r


class PointTransformerLast(nn.Module):
    """Four layers of offset attention, side by side in the output."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv1d(channels, channels, kernel_size=1, bias=False)
        self.conv2 = nn.Conv1d(channels, channels, kernel_size=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm1d(channels), nn.BatchNorm1d(channels)
        self.sa1, self.sa2, self.sa3, self.sa4 = (SALayer(channels) for _ in range(4))

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x1 = self.sa1(x)
        x2 = self.sa2(x1)
        x3 = self.sa3(x2)
        x4 = self.sa4(x3)
        return torch.cat((x1, x2, x3, x4), dim=1)


class Pct(nn.Module):
    """Point cloud transformer, for classification."""

    def __init__(self, w=16, output_channels=40, dropout=0.5, points=(96, 48), nsample=16):
        super().__init__()
        self.points, self.nsample = points, nsample
        self.conv1 = nn.Conv1d(3, w, kernel_size=1, bias=False)
        self.conv2 = nn.Conv1d(w, w, kernel_size=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm1d(w), nn.BatchNorm1d(w)
        self.gather_local_0, self.gather_local_1 = LocalOp(2 * w, 2 * w), LocalOp(4 * w, 4 * w)
        self.pt_last = PointTransformerLast(4 * w)
        self.conv_fuse = nn.Sequential(
            nn.Conv1d(20 * w, 16 * w, kernel_size=1, bias=False),
            nn.BatchNorm1d(16 * w),
            nn.LeakyReLU(negative_slope=0.2),
        )
        self.linear1 = nn.Linear(16 * w, 8 * w, bias=False)
        self.bn6, self.dp1 = nn.BatchNorm1d(8 * w), nn.Dropout(p=dropout)
        self.linear2 = nn.Linear(8 * w, 4 * w)
        self.bn7, self.dp2 = nn.BatchNorm1d(4 * w), nn.Dropout(p=dropout)
        self.linear3 = nn.Linear(4 * w, output_channels)

    def forward(self, x):
        xyz = x.permute(0, 2, 1)
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x))).permute(0, 2, 1)
        new_xyz, new_feature = sample_and_group(self.points[0], self.nsample, xyz, x)
        feature = self.gather_local_0(new_feature).permute(0, 2, 1)
        new_xyz, new_feature = sample_and_group(self.points[1], self.nsample, new_xyz, feature)
        feature_1 = self.gather_local_1(new_feature)
        x = self.pt_last(feature_1)
        x = self.conv_fuse(torch.cat([x, feature_1], dim=1))
        x = torch.max(x, 2)[0].view(x.size(0), -1)
        x = self.dp1(F.leaky_relu(self.bn6(self.linear1(x)), negative_slope=0.2))
        x = self.dp2(F.leaky_relu(self.bn7(self.linear2(x)), negative_slope=0.2))
        return self.linear3(x)


class Expression(nn.Module):
    """A function as a layer."""

    def __init__(self, expression_fn):
        super().__init__()
        self.expression_fn = expression_fn

    def forward(self, *x):
        return self.expression_fn(*x)


def square(x):
    return x * x


def safe_log(x, eps=1e-6):
    return torch.log(torch.clamp(x, min=eps))


class ShallowFBCSPNet(nn.Sequential):
    """Filters over time and electrodes, squared, pooled and logged, as band powers are."""

    def __init__(self, in_chans=22, n_classes=4, input_window_samples=500, n_filters=40, drop_prob=0.5):
        super().__init__()
        self.add_module("ensuredims", Expression(lambda x: x.unsqueeze(-1) if x.dim() == 3 else x))
        self.add_module("dimshuffle", Expression(lambda x: x.permute(0, 3, 2, 1)))
        self.add_module("conv_time", nn.Conv2d(1, n_filters, (25, 1), stride=1))
        self.add_module("conv_spat", nn.Conv2d(n_filters, n_filters, (1, in_chans), stride=1, bias=False))
        self.add_module("bnorm", nn.BatchNorm2d(n_filters, momentum=0.1, affine=True))
        self.add_module("conv_nonlin_exp", Expression(square))
        self.add_module("pool", nn.AvgPool2d(kernel_size=(75, 1), stride=(15, 1)))
        self.add_module("pool_nonlin_exp", Expression(safe_log))
        self.add_module("drop", nn.Dropout(p=drop_prob))
        final_conv_length = (input_window_samples - 24 - 75) // 15 + 1
        self.add_module("conv_classifier", nn.Conv2d(n_filters, n_classes, (final_conv_length, 1), bias=True))
        self.add_module("softmax", nn.LogSoftmax(dim=1))
        self.add_module("squeeze", Expression(lambda x: x.squeeze(3).squeeze(2)))
        for conv in (self.conv_time, self.conv_spat, self.conv_classifier):
            nn.init.xavier_uniform_(conv.weight, gain=1)
            if conv.bias is not None:
                nn.init.constant_(conv.bias, 0)
        nn.init.constant_(self.bnorm.weight, 1)
        nn.init.constant_(self.bnorm.bias, 0)


def recordings(batch=8, channels=22, samples=500):
    """Noise with a slope in its spectrum, standardised for each electrode as the pipeline does."""
    white = np.random.default_rng(0).standard_normal((batch, channels, samples)).astype(np.float32)
    x = torch.from_numpy(np.cumsum(white, axis=-1) * 0.1 + white)
    return ((x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),)


def cloud():
    points = torch.randn(8, 256, 3)
    points = points / points.norm(dim=-1, keepdim=True) * torch.tensor([1.0, 0.6, 0.3])
    return (points.permute(0, 2, 1).contiguous(),)


NETS = {
    "OSNet": (OSNet, lambda: (torch.randn(6, 3, 128, 64),)),
    "PCT": (Pct, cloud),
    "ShallowConvNet": (ShallowFBCSPNet, recordings),
}
