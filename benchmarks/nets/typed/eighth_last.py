"""Networks typed by hand as their papers describe them: show, attend and tell to TimeSformer."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


class Encoder(nn.Module):
    """Convolutional image encoder that keeps its grid, channels last."""

    def __init__(self, dim=96, grid=7):
        super().__init__()
        layers, cin = [], 3
        for c in (24, 48, dim):
            layers += [nn.Conv2d(cin, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(inplace=True)]
            layers += [nn.MaxPool2d(2)]
            cin = c
        self.net = nn.Sequential(*layers)
        self.adaptive_pool = nn.AdaptiveAvgPool2d(grid)

    def forward(self, images):
        return self.adaptive_pool(self.net(images)).permute(0, 2, 3, 1)


class SoftAttention(nn.Module):
    """Additive attention of the decoder's state over the image's cells."""

    def __init__(self, encoder_dim, decoder_dim, attention_dim):
        super().__init__()
        self.encoder_att = nn.Linear(encoder_dim, attention_dim)
        self.decoder_att = nn.Linear(decoder_dim, attention_dim)
        self.full_att = nn.Linear(attention_dim, 1)

    def forward(self, encoder_out, h):
        att = self.full_att(F.relu(self.encoder_att(encoder_out) + self.decoder_att(h).unsqueeze(1))).squeeze(2)
        alpha = F.softmax(att, dim=1)
        return (encoder_out * alpha.unsqueeze(2)).sum(dim=1), alpha


class ShowAttendTell(nn.Module):
    """Captions an image with a gated, attending LSTM cell."""

    def __init__(self, vocab=200, encoder_dim=96, decoder_dim=96, attention_dim=64, embed_dim=64, dropout=0.5):
        super().__init__()
        self.encoder = Encoder(encoder_dim)
        self.attention = SoftAttention(encoder_dim, decoder_dim, attention_dim)
        self.embedding = nn.Embedding(vocab, embed_dim)
        self.dropout = nn.Dropout(p=dropout)
        self.decode_step = nn.LSTMCell(embed_dim + encoder_dim, decoder_dim, bias=True)
        self.init_h, self.init_c = nn.Linear(encoder_dim, decoder_dim), nn.Linear(encoder_dim, decoder_dim)
        self.f_beta = nn.Linear(decoder_dim, encoder_dim)
        self.fc = nn.Linear(decoder_dim, vocab)
        self.embedding.weight.data.uniform_(-0.1, 0.1)
        self.fc.bias.data.fill_(0)
        self.fc.weight.data.uniform_(-0.1, 0.1)

    def forward(self, images, captions, lengths):
        enc = self.encoder(images).flatten(1, 2)
        lengths, order = lengths.squeeze(1).sort(dim=0, descending=True)
        enc, captions = enc[order], captions[order]
        emb = self.embedding(captions)
        mean = enc.mean(dim=1)
        h, c = self.init_h(mean), self.init_c(mean)
        steps = (lengths - 1).tolist()
        predictions = enc.new_zeros(enc.size(0), max(steps), self.fc.out_features)
        alphas = enc.new_zeros(enc.size(0), max(steps), enc.size(1))
        for t in range(max(steps)):
            n = sum(s > t for s in steps)
            awe, alpha = self.attention(enc[:n], h[:n])
            awe = torch.sigmoid(self.f_beta(h[:n])) * awe
            h, c = self.decode_step(torch.cat([emb[:n, t], awe], dim=1), (h[:n], c[:n]))
            predictions[:n, t] = self.fc(self.dropout(h))
            alphas[:n, t] = alpha
        return predictions, captions, alphas, order


class VGG(nn.Module):
    """VGG-11 with batch normalisation."""

    def __init__(self, cfg=(16, "M", 32, "M", 64, 64, "M", 128, 128, "M", 128, 128, "M"), classes=10, hidden=256):
        super().__init__()
        layers, cin = [], 3
        for v in cfg:
            if v == "M":
                layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
            else:
                layers += [nn.Conv2d(cin, v, kernel_size=3, padding=1), nn.BatchNorm2d(v), nn.ReLU(inplace=True)]
                cin = v
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(cin * 2 * 2, hidden),
            nn.ReLU(True),
            nn.Dropout(p=0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(True),
            nn.Dropout(p=0.5),
            nn.Linear(hidden, classes),
        )
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                nn.init.constant_(m.bias, 0)
            elif isinstance(m, nn.BatchNorm2d):
                nn.init.constant_(m.weight, 1)
                nn.init.constant_(m.bias, 0)
            elif isinstance(m, nn.Linear):
                nn.init.normal_(m.weight, 0, 0.01)
                nn.init.constant_(m.bias, 0)

    def forward(self, x):
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class ResidualBlock(nn.Module):
    """Basic residual block of the ResNet encoder."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.relu, self.downsample = nn.ReLU(inplace=True), None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(out + identity)


class ResnetEncoder(nn.Module):
    """ResNet-18 layout that returns the features of five scales."""

    def __init__(self, widths, images=1):
        super().__init__()
        self.conv1 = nn.Conv2d(3 * images, widths[0], 7, 2, 3, bias=False)
        self.bn1, self.relu, self.maxpool = nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        self.layers = nn.ModuleList()
        for i, (cin, cout) in enumerate(pairwise(widths)):
            self.layers.append(
                nn.Sequential(ResidualBlock(cin, cout, 1 if i == 0 else 2), ResidualBlock(cout, cout, 1))
            )
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, image):
        x = (image - 0.45) / 0.225
        features = [self.relu(self.bn1(self.conv1(x)))]
        x = self.maxpool(features[-1])
        for layer in self.layers:
            x = layer(x)
            features.append(x)
        return features


class Conv3x3(nn.Module):
    """Convolution over a reflected border."""

    def __init__(self, cin, cout):
        super().__init__()
        self.pad, self.conv = nn.ReflectionPad2d(1), nn.Conv2d(cin, cout, 3)

    def forward(self, x):
        return self.conv(self.pad(x))


class DepthDecoder(nn.Module):
    """Upsamples with skips, and reads disparities at four scales."""

    def __init__(self, enc, dec):
        super().__init__()
        self.up0, self.up1, self.disp = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i in range(5):
            self.up0.append(Conv3x3(enc[-1] if i == 4 else dec[i + 1], dec[i]))
            self.up1.append(Conv3x3(dec[i] + (enc[i - 1] if i > 0 else 0), dec[i]))
            if i < 4:
                self.disp.append(Conv3x3(dec[i], 1))

    def forward(self, features):
        x, outputs = features[-1], []
        for i in range(4, -1, -1):
            x = F.interpolate(F.elu(self.up0[i](x)), scale_factor=2, mode="nearest")
            if i > 0:
                x = torch.cat([x, features[i - 1]], 1)
            x = F.elu(self.up1[i](x))
            if i < 4:
                outputs.append(torch.sigmoid(self.disp[i](x)))
        return outputs


class PoseDecoder(nn.Module):
    """Small relative pose between two frames."""

    def __init__(self, cin, d=64):
        super().__init__()
        self.squeeze = nn.Conv2d(cin, d, 1)
        self.pose0, self.pose1 = nn.Conv2d(d, d, 3, 1, 1), nn.Conv2d(d, d, 3, 1, 1)
        self.pose2 = nn.Conv2d(d, 6, 1)

    def forward(self, feature):
        out = F.relu(self.squeeze(feature))
        out = self.pose2(F.relu(self.pose1(F.relu(self.pose0(out)))))
        out = 0.01 * out.mean(3).mean(2).view(-1, 1, 1, 6)
        return out[..., :3], out[..., 3:]


class MonoDepth2(nn.Module):
    """Self-supervised depth: disparities of the target frame, and its pose to the source frame."""

    def __init__(self, enc=(16, 16, 32, 48, 64), dec=(8, 16, 24, 32, 64)):
        super().__init__()
        self.encoder, self.depth = ResnetEncoder(enc), DepthDecoder(enc, dec)
        self.pose_encoder, self.pose = ResnetEncoder(enc, images=2), PoseDecoder(enc[-1])

    def forward(self, target, source):
        disps = self.depth(self.encoder(target))
        axisangle, translation = self.pose(self.pose_encoder(torch.cat([target, source], 1))[-1])
        return *disps, axisangle, translation


def conv_block(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(), nn.MaxPool2d(2))


class Protonet(nn.Module):
    """Few-shot classification by squared distance to the mean embedding of each class."""

    def __init__(self, cin=1, hidden=64, z=64):
        super().__init__()
        self.encoder = nn.Sequential(
            conv_block(cin, hidden),
            conv_block(hidden, hidden),
            conv_block(hidden, hidden),
            conv_block(hidden, z),
            nn.Flatten(),
        )

    def forward(self, xs, xq):
        n_class, n_support, n_query = xs.size(0), xs.size(1), xq.size(1)
        target = torch.arange(n_class, device=xs.device).view(n_class, 1, 1).expand(n_class, n_query, 1)
        z = self.encoder(torch.cat([xs.flatten(0, 1), xq.flatten(0, 1)], 0))
        proto = z[: n_class * n_support].view(n_class, n_support, -1).mean(1)
        zq = z[n_class * n_support :]
        dists = torch.pow(zq.unsqueeze(1) - proto.unsqueeze(0), 2).sum(2)
        log_p_y = F.log_softmax(-dists, dim=1).view(n_class, n_query, -1)
        loss = -log_p_y.gather(2, target).squeeze().view(-1).mean()
        return loss, log_p_y


class DropPath(nn.Module):
    """Stochastic depth per sample."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        return x.div(keep) * (keep + torch.rand(x.shape[0], 1, 1, device=x.device)).floor()


class Attention(nn.Module):
    """Multi-head self-attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, dim * 3, bias=True), nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        attn = (qkv[0] @ qkv[1].transpose(-2, -1)) * self.scale
        return self.proj((attn.softmax(dim=-1) @ qkv[2]).transpose(1, 2).reshape(B, N, C))


class SpaceTimeBlock(nn.Module):
    """Attention over time, then over space, then a perceptron."""

    def __init__(self, dim, heads, drop_path):
        super().__init__()
        self.temporal_norm1, self.norm1, self.norm2 = (nn.LayerNorm(dim, eps=1e-6) for _ in range(3))
        self.temporal_attn, self.attn = Attention(dim, heads), Attention(dim, heads)
        self.temporal_fc = nn.Linear(dim, dim)
        self.drop_path = DropPath(drop_path)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, T):
        B, _, C = x.shape
        cls, xt = x[:, :1], x[:, 1:]
        n = xt.shape[1] // T
        res = self.drop_path(self.temporal_attn(self.temporal_norm1(xt.reshape(B * n, T, C))))
        xt = xt + self.temporal_fc(res.reshape(B, n * T, C))
        xs = xt.view(B, n, T, C).transpose(1, 2).reshape(B * T, n, C)
        xs = torch.cat([cls.repeat(1, T, 1).reshape(B * T, 1, C), xs], 1)
        res = self.drop_path(self.attn(self.norm1(xs)))
        new_cls = res[:, 0].view(B, T, C).mean(1, keepdim=True)
        res = res[:, 1:].reshape(B, T, n, C).transpose(1, 2).reshape(B, n * T, C)
        x = torch.cat([cls, xt], 1) + torch.cat([new_cls, res], 1)
        return x + self.drop_path(self.mlp(self.norm2(x)))


class TimeSformer(nn.Module):
    """Video transformer with divided space-time attention."""

    def __init__(self, size=32, patch=8, frames=4, dim=96, depth=4, heads=4, classes=10, drop_path=0.1):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, dim))
        self.time_embed = nn.Parameter(torch.zeros(1, frames, dim))
        rates = torch.linspace(0, drop_path, depth).tolist()
        self.blocks = nn.ModuleList(SpaceTimeBlock(dim, heads, r) for r in rates)
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, classes)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        self.apply(self._init_weights)
        for block in self.blocks[1:]:
            nn.init.constant_(block.temporal_fc.weight, 0)
            nn.init.constant_(block.temporal_fc.bias, 0)

    def _init_weights(self, m):
        if isinstance(m, nn.Linear):
            nn.init.trunc_normal_(m.weight, std=0.02)
            nn.init.constant_(m.bias, 0)

    def forward(self, x):
        B, _, T = x.shape[:3]
        x = self.proj(x.transpose(1, 2).flatten(0, 1)).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(B * T, -1, -1), x], 1) + self.pos_embed
        cls, n = x[:B, :1], x.shape[1] - 1
        x = x[:, 1:].view(B, T, n, -1).transpose(1, 2) + self.time_embed
        x = torch.cat([cls, x.reshape(B, n * T, -1)], 1)
        for block in self.blocks:
            x = block(x, T)
        return self.head(self.norm(x)[:, 0])


NETS = {
    "show, attend and tell": (
        ShowAttendTell,
        lambda: (
            torch.rand(8, 3, 64, 64),
            torch.randint(1, 200, (8, 12)),
            torch.tensor([[12], [10], [9], [11], [7], [12], [8], [6]]),
        ),
    ),
    "VGG": (VGG, lambda: (torch.randn(8, 3, 64, 64),)),
    "MonoDepth2": (MonoDepth2, lambda: (torch.rand(8, 3, 64, 96), torch.rand(8, 3, 64, 96))),
    "prototypical network": (Protonet, lambda: (torch.rand(8, 5, 1, 28, 28), torch.rand(8, 5, 1, 28, 28))),
    "TimeSformer": (TimeSformer, lambda: (torch.randn(8, 3, 4, 32, 32),)),
}
