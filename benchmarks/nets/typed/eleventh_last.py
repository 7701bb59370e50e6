"""Networks typed by hand as their repositories have them: SSD, ENet, PointCNN."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class L2Norm(nn.Module):
    """Unit length over the channels, times a learnt scale for each."""

    def __init__(self, n_channels, scale):
        super().__init__()
        self.n_channels, self.gamma, self.eps = n_channels, scale, 1e-10
        self.weight = nn.Parameter(torch.empty(self.n_channels))
        nn.init.constant_(self.weight, self.gamma)

    def forward(self, x):
        norm = x.pow(2).sum(dim=1, keepdim=True).sqrt() + self.eps
        x = torch.div(x, norm)
        return self.weight.unsqueeze(0).unsqueeze(2).unsqueeze(3).expand_as(x) * x


def prior_boxes(image_size, feature_maps, min_sizes, max_sizes, aspect_ratios):
    mean = []
    for k, f in enumerate(feature_maps):
        for i in range(f):
            for j in range(f):
                cx, cy = (j + 0.5) / f, (i + 0.5) / f
                s_k = min_sizes[k] / image_size
                s_k_prime = math.sqrt(s_k * (max_sizes[k] / image_size))
                mean += [cx, cy, s_k, s_k, cx, cy, s_k_prime, s_k_prime]
                for ar in aspect_ratios[k]:
                    mean += [cx, cy, s_k * math.sqrt(ar), s_k / math.sqrt(ar)]
                    mean += [cx, cy, s_k / math.sqrt(ar), s_k * math.sqrt(ar)]
    return torch.tensor(mean).view(-1, 4).clamp_(max=1, min=0)


def vgg(cfg, i, fc):
    layers, in_channels = [], i
    for v in cfg:
        if v == "M":
            layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
        elif v == "C":
            layers += [nn.MaxPool2d(kernel_size=2, stride=2, ceil_mode=True)]
        else:
            layers += [nn.Conv2d(in_channels, v, kernel_size=3, padding=1), nn.ReLU(inplace=True)]
            in_channels = v
    pool5 = nn.MaxPool2d(kernel_size=3, stride=1, padding=1)
    conv6 = nn.Conv2d(in_channels, fc, kernel_size=3, padding=6, dilation=6)
    conv7 = nn.Conv2d(fc, fc, kernel_size=1)
    layers += [pool5, conv6, nn.ReLU(inplace=True), conv7, nn.ReLU(inplace=True)]
    return layers


def add_extras(cfg, i):
    layers, in_channels, flag = [], i, False
    for k, v in enumerate(cfg):
        if in_channels != "S":
            if v == "S":
                layers += [nn.Conv2d(in_channels, cfg[k + 1], kernel_size=(1, 3)[flag], stride=2, padding=1)]
            else:
                layers += [nn.Conv2d(in_channels, v, kernel_size=(1, 3)[flag])]
            flag = not flag
        in_channels = v
    return layers


class SSD(nn.Module):
    """Single-shot detector on VGG: offsets, classes and the prior boxes."""

    def __init__(self, num_classes=21, size=160, mbox=(4, 6, 6, 6, 4)):
        super().__init__()
        self.num_classes = num_classes
        cfg = [16, 16, "M", 24, 24, "M", 32, 32, 32, "C", 64, 64, 64, "M", 64, 64, 64]
        self.vgg = nn.ModuleList(vgg(cfg, 3, 96))
        self.L2Norm = L2Norm(64, 20)
        self.extras = nn.ModuleList(add_extras([32, "S", 64, 32, 64, 32, 64], 96))
        sources = [self.vgg[21], self.vgg[-2], *self.extras[1::2]]
        self.loc = nn.ModuleList(
            [nn.Conv2d(v.out_channels, k * 4, kernel_size=3, padding=1) for v, k in zip(sources, mbox, strict=True)]
        )
        self.conf = nn.ModuleList(
            [
                nn.Conv2d(v.out_channels, k * num_classes, kernel_size=3, padding=1)
                for v, k in zip(sources, mbox, strict=True)
            ]
        )
        priors = prior_boxes(
            size, (20, 10, 5, 3, 1), (16, 32, 64, 96, 128), (32, 64, 96, 128, 160), ([2], [2, 3], [2, 3], [2, 3], [2])
        )
        self.register_buffer("priors", priors, persistent=False)
        for part in (self.extras, self.loc, self.conf):
            part.apply(self.weights_init)

    @staticmethod
    def weights_init(m):
        if isinstance(m, nn.Conv2d):
            nn.init.xavier_uniform_(m.weight.data)
            m.bias.data.zero_()

    def forward(self, x):
        sources, loc, conf = [], [], []
        for k in range(23):
            x = self.vgg[k](x)
        sources.append(self.L2Norm(x))
        for k in range(23, len(self.vgg)):
            x = self.vgg[k](x)
        sources.append(x)
        for k, v in enumerate(self.extras):
            x = F.relu(v(x), inplace=True)
            if k % 2 == 1:
                sources.append(x)
        for s, to_loc, to_conf in zip(sources, self.loc, self.conf, strict=True):
            loc.append(to_loc(s).permute(0, 2, 3, 1).contiguous())
            conf.append(to_conf(s).permute(0, 2, 3, 1).contiguous())
        loc = torch.cat([o.view(o.size(0), -1) for o in loc], 1)
        conf = torch.cat([o.view(o.size(0), -1) for o in conf], 1)
        return loc.view(loc.size(0), -1, 4), conf.view(conf.size(0), -1, self.num_classes), self.priors


def conv_bn_act(conv, channels, relu):
    return [conv, nn.BatchNorm2d(channels), nn.ReLU() if relu else nn.PReLU()]


class InitialBlock(nn.Module):
    """Convolution and pooling side by side."""

    def __init__(self, in_channels, out_channels, relu=True):
        super().__init__()
        self.main_branch = nn.Conv2d(in_channels, out_channels - 3, kernel_size=3, stride=2, padding=1, bias=False)
        self.ext_branch = nn.MaxPool2d(3, stride=2, padding=1)
        self.batch_norm = nn.BatchNorm2d(out_channels)
        self.out_activation = nn.ReLU() if relu else nn.PReLU()

    def forward(self, x):
        out = torch.cat((self.main_branch(x), self.ext_branch(x)), 1)
        return self.out_activation(self.batch_norm(out))


class RegularBottleneck(nn.Module):
    """Narrow, convolve (plainly, dilated, or by row and column), widen, and add."""

    def __init__(self, channels, kernel_size=3, padding=0, dilation=1, asymmetric=False, dropout_prob=0.0, relu=True):
        super().__init__()
        mid = channels // 4
        self.ext_conv1 = nn.Sequential(*conv_bn_act(nn.Conv2d(channels, mid, 1, bias=False), mid, relu))
        if asymmetric:
            k, p = kernel_size, padding
            self.ext_conv2 = nn.Sequential(
                *conv_bn_act(nn.Conv2d(mid, mid, (k, 1), padding=(p, 0), dilation=dilation, bias=False), mid, relu),
                *conv_bn_act(nn.Conv2d(mid, mid, (1, k), padding=(0, p), dilation=dilation, bias=False), mid, relu),
            )
        else:
            conv = nn.Conv2d(mid, mid, kernel_size, padding=padding, dilation=dilation, bias=False)
            self.ext_conv2 = nn.Sequential(*conv_bn_act(conv, mid, relu))
        self.ext_conv3 = nn.Sequential(*conv_bn_act(nn.Conv2d(mid, channels, 1, bias=False), channels, relu))
        self.ext_regul = nn.Dropout2d(p=dropout_prob)
        self.out_activation = nn.ReLU() if relu else nn.PReLU()

    def forward(self, x):
        ext = self.ext_conv3(self.ext_conv2(self.ext_conv1(x)))
        return self.out_activation(x + self.ext_regul(ext))


class DownsamplingBottleneck(nn.Module):
    """Half the size: pooling with its indices kept, padded with channels of zeros, plus the narrow branch."""

    def __init__(self, in_channels, out_channels, dropout_prob=0.0, relu=True):
        super().__init__()
        mid = in_channels // 4
        self.main_max1 = nn.MaxPool2d(2, stride=2, return_indices=True)
        self.ext_conv1 = nn.Sequential(*conv_bn_act(nn.Conv2d(in_channels, mid, 2, stride=2, bias=False), mid, relu))
        self.ext_conv2 = nn.Sequential(*conv_bn_act(nn.Conv2d(mid, mid, 3, padding=1, bias=False), mid, relu))
        self.ext_conv3 = nn.Sequential(*conv_bn_act(nn.Conv2d(mid, out_channels, 1, bias=False), out_channels, relu))
        self.ext_regul = nn.Dropout2d(p=dropout_prob)
        self.out_activation = nn.ReLU() if relu else nn.PReLU()

    def forward(self, x):
        main, max_indices = self.main_max1(x)
        ext = self.ext_regul(self.ext_conv3(self.ext_conv2(self.ext_conv1(x))))
        n, ch_ext, h, w = ext.size()
        padding = torch.zeros(n, ch_ext - main.size()[1], h, w, device=x.device)
        main = torch.cat((main, padding), 1)
        return self.out_activation(main + ext), max_indices


class UpsamplingBottleneck(nn.Module):
    """Twice the size: unpooling to where the maxima were, plus the narrow branch."""

    def __init__(self, in_channels, out_channels, dropout_prob=0.0, relu=True):
        super().__init__()
        mid = in_channels // 4
        self.main_conv1 = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=1, bias=False), nn.BatchNorm2d(out_channels)
        )
        self.main_unpool1 = nn.MaxUnpool2d(kernel_size=2)
        self.ext_conv1 = nn.Sequential(*conv_bn_act(nn.Conv2d(in_channels, mid, 1, bias=False), mid, relu))
        self.ext_tconv1 = nn.ConvTranspose2d(mid, mid, kernel_size=2, stride=2, bias=False)
        self.ext_tconv1_bnorm = nn.BatchNorm2d(mid)
        self.ext_tconv1_activation = nn.ReLU() if relu else nn.PReLU()
        self.ext_conv2 = nn.Sequential(nn.Conv2d(mid, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels))
        self.ext_regul = nn.Dropout2d(p=dropout_prob)
        self.out_activation = nn.ReLU() if relu else nn.PReLU()

    def forward(self, x, max_indices, output_size):
        main = self.main_conv1(x)
        main = self.main_unpool1(main, max_indices, output_size=output_size)
        ext = self.ext_tconv1(self.ext_conv1(x), output_size=output_size)
        ext = self.ext_tconv1_activation(self.ext_tconv1_bnorm(ext))
        ext = self.ext_regul(self.ext_conv2(ext))
        return self.out_activation(main + ext)


def stage(relu):
    b = [RegularBottleneck(128, padding=1, dropout_prob=0.1, relu=relu)]
    for dilation in (2, 4, 8, 16):
        b.append(RegularBottleneck(128, dilation=dilation, padding=dilation, dropout_prob=0.1, relu=relu))
        if dilation in (2, 8):
            b.append(RegularBottleneck(128, 5, padding=2, asymmetric=True, dropout_prob=0.1, relu=relu))
        if dilation == 4:
            b.append(RegularBottleneck(128, padding=1, dropout_prob=0.1, relu=relu))
    return nn.Sequential(*b)


class ENet(nn.Module):
    """Real-time segmentation: an encoder of bottlenecks, a small decoder that unpools."""

    def __init__(self, num_classes=12, encoder_relu=False, decoder_relu=True):
        super().__init__()
        self.initial_block = InitialBlock(3, 16, relu=encoder_relu)
        self.downsample1_0 = DownsamplingBottleneck(16, 64, dropout_prob=0.01, relu=encoder_relu)
        self.regular1 = nn.Sequential(
            *[RegularBottleneck(64, padding=1, dropout_prob=0.01, relu=encoder_relu) for _ in range(4)]
        )
        self.downsample2_0 = DownsamplingBottleneck(64, 128, dropout_prob=0.1, relu=encoder_relu)
        self.stage2, self.stage3 = stage(encoder_relu), stage(encoder_relu)
        self.upsample4_0 = UpsamplingBottleneck(128, 64, dropout_prob=0.1, relu=decoder_relu)
        self.regular4_1 = RegularBottleneck(64, padding=1, dropout_prob=0.1, relu=decoder_relu)
        self.regular4_2 = RegularBottleneck(64, padding=1, dropout_prob=0.1, relu=decoder_relu)
        self.upsample5_0 = UpsamplingBottleneck(64, 16, dropout_prob=0.1, relu=decoder_relu)
        self.regular5_1 = RegularBottleneck(16, padding=1, dropout_prob=0.1, relu=decoder_relu)
        self.transposed_conv = nn.ConvTranspose2d(16, num_classes, kernel_size=3, stride=2, padding=1, bias=False)

    def forward(self, x):
        input_size = x.size()
        x = self.initial_block(x)
        stage1_input_size = x.size()
        x, max_indices1_0 = self.downsample1_0(x)
        x = self.regular1(x)
        stage2_input_size = x.size()
        x, max_indices2_0 = self.downsample2_0(x)
        x = self.stage3(self.stage2(x))
        x = self.upsample4_0(x, max_indices2_0, output_size=stage2_input_size)
        x = self.regular4_2(self.regular4_1(x))
        x = self.upsample5_0(x, max_indices1_0, output_size=stage1_input_size)
        x = self.regular5_1(x)
        return self.transposed_conv(x, output_size=input_size)


class Dense(nn.Module):
    """Linear layer, activation and norm over the channels at the end."""

    def __init__(self, in_features, out_features, drop_rate=0.0, with_bn=True, activation=True):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.activation = nn.ELU() if activation else None
        self.bn = nn.BatchNorm1d(out_features, momentum=0.9) if with_bn else None
        self.drop = nn.Dropout(drop_rate) if drop_rate > 0 else None

    def forward(self, x):
        x = self.linear(x)
        if self.activation is not None:
            x = self.activation(x)
        if self.bn is not None:
            x = self.bn(x.flatten(0, -2)).view(x.shape)
        return x if self.drop is None else self.drop(x)


class XConv(nn.Module):
    """Lifts local coordinates, reorders the neighbours by a learnt matrix, and convolves over them."""

    def __init__(self, C_in, C_out, dims, K, C_mid, depth_multiplier):
        super().__init__()
        self.K = K
        self.dense1, self.dense2 = Dense(dims, C_mid), Dense(C_mid, C_mid)
        self.x_conv = nn.Conv2d(dims, K * K, (1, K))
        self.x_trans = nn.Sequential(
            nn.ELU(), Dense(K * K, K * K, with_bn=False), Dense(K * K, K * K, with_bn=False, activation=False)
        )
        C = C_mid + C_in
        self.depthwise = nn.Conv2d(C, C * depth_multiplier, (1, K), groups=C)
        self.pointwise = nn.Conv2d(C * depth_multiplier, C_out, 1, bias=False)
        self.bn = nn.BatchNorm2d(C_out, momentum=0.9)

    def forward(self, rep_pt, pts, fts):
        N, P = rep_pt.shape[:2]
        pts_local = pts - rep_pt.unsqueeze(2)
        lifted = self.dense2(self.dense1(pts_local))
        fts_cat = lifted if fts is None else torch.cat((lifted, fts), -1)
        X = self.x_conv(pts_local.permute(0, 3, 1, 2)).squeeze(3).transpose(1, 2)
        X = self.x_trans(X).view(N, P, self.K, self.K)
        fX = torch.matmul(X, fts_cat).permute(0, 3, 1, 2)
        out = self.bn(F.elu(self.pointwise(self.depthwise(fX))))
        return out.squeeze(3).transpose(1, 2)


class RandPointCNN(nn.Module):
    """X-convolution about a random choice of the points, over every D-th of their neighbours."""

    def __init__(self, C_in, C_out, K, D, P, dims=3):
        super().__init__()
        self.K, self.D, self.P = K, D, P
        C_mid = C_out // 2 if C_in == 0 else C_out // 4
        half = C_out // 2 if C_in != 0 else 0
        self.dense = Dense(C_in, half) if C_in != 0 else None
        multiplier = C_out // 4 if C_in == 0 else min(math.ceil(C_out / C_in), 4)
        self.x_conv = XConv(half, C_out, dims, K, C_mid, multiplier)

    def forward(self, pts, fts):
        rep_pts = pts
        if 0 < self.P < pts.size(1):
            rep_pts = pts[:, torch.randperm(pts.size(1), device=pts.device)[: self.P]]
        dists = torch.cdist(rep_pts, pts)
        idx = dists.topk(self.K * self.D + 1, dim=-1, largest=False)[1][:, :, 1 :: self.D][:, :, : self.K]
        batch = torch.arange(pts.size(0), device=pts.device).view(-1, 1, 1)
        pts_regional = pts[batch, idx]
        fts_regional = None if fts is None else self.dense(fts)[batch, idx]
        return rep_pts, self.x_conv(rep_pts, pts_regional, fts_regional)


class PointCNN(nn.Module):
    """Classifier of clouds: the mean of the points' logits."""

    def __init__(self, num_classes=40):
        super().__init__()
        self.pcnn = nn.ModuleList(
            [
                RandPointCNN(0, 24, 8, 1, -1),
                RandPointCNN(24, 48, 8, 2, -1),
                RandPointCNN(48, 64, 8, 4, 96),
                RandPointCNN(64, 96, 12, 4, 48),
                RandPointCNN(96, 96, 12, 3, 48),
            ]
        )
        self.fcn = nn.Sequential(
            Dense(96, 64), Dense(64, 48, drop_rate=0.5), Dense(48, num_classes, with_bn=False, activation=False)
        )

    def forward(self, pts):
        fts = None
        for layer in self.pcnn:
            pts, fts = layer(pts, fts)
        return torch.mean(self.fcn(fts), dim=1)


def cloud(batch=6, points=192):
    x = torch.randn(batch, points, 3)
    return (x / x.norm(dim=-1, keepdim=True) * torch.tensor([1.0, 0.7, 0.4]),)


NETS = {
    "SSD": (SSD, lambda: (torch.randn(4, 3, 160, 160),)),
    "ENet": (ENet, lambda: (torch.randn(4, 3, 64, 96),)),
    "PointCNN": (PointCNN, cloud),
}
