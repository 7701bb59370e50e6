"""Networks typed by hand as their repositories have them: Sparse R-CNN, ArcFace and two of DQN's heirs."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """Residual block of the backbone."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.short = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.short(x))


class FPN(nn.Module):
    """Feature pyramid over a small residual network, at strides 4, 8 and 16."""

    def __init__(self, d, widths=(32, 48, 64)):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.stages, cin = nn.ModuleList(), 32
        for w in widths:
            self.stages.append(BasicBlock(cin, w, 2))
            cin = w
        self.lateral = nn.ModuleList(nn.Conv2d(w, d, 1) for w in widths)
        self.output = nn.ModuleList(nn.Conv2d(d, d, 3, padding=1) for _ in widths)
        for m in [*self.lateral, *self.output]:  # c2_xavier_fill
            nn.init.kaiming_uniform_(m.weight, a=1)
            nn.init.constant_(m.bias, 0)

    def forward(self, x):
        x, feats = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            feats.append(x)
        prev, results = None, []
        for f, lateral, output in zip(feats[::-1], self.lateral[::-1], self.output[::-1], strict=True):
            f = lateral(f)
            prev = f if prev is None else f + F.interpolate(prev, scale_factor=2.0, mode="nearest")
            results.insert(0, output(prev))
        return results


def roi_pool(features, boxes, size=7, sampling=2, canonical=32, lowest=2):
    """Aligned pooling of each box from the level that its size asks for."""
    B, R, _ = boxes.shape
    boxes = boxes.detach()
    area = ((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])).clamp(min=0)
    level = torch.floor(lowest + 1 + torch.log2(area.sqrt() / canonical + 1e-8)) - lowest
    level = level.clamp(0, len(features) - 1).view(B, R, 1, 1, 1)
    t = (torch.arange(size * sampling, device=boxes.device) + 0.5) / (size * sampling)
    xs = boxes[..., 0:1] + t * (boxes[..., 2:3] - boxes[..., 0:1])
    ys = boxes[..., 1:2] + t * (boxes[..., 3:4] - boxes[..., 1:2])
    n = size * sampling
    pooled = 0
    for i, f in enumerate(features):
        H, W = f.shape[-2] * 2 ** (lowest + i), f.shape[-1] * 2 ** (lowest + i)
        gx, gy = 2 * xs / W - 1, 2 * ys / H - 1
        grid = torch.stack([gx[:, :, None, :].expand(B, R, n, n), gy[:, :, :, None].expand(B, R, n, n)], dim=-1)
        sample = F.grid_sample(f, grid.reshape(B, R * n, n, 2), padding_mode="border", align_corners=False)
        sample = sample.view(B, f.shape[1], R, n, n).transpose(1, 2)
        sample = F.avg_pool2d(sample.flatten(0, 1), sampling).unflatten(0, (B, R))
        pooled = pooled + torch.where(level == i, sample, torch.zeros_like(sample))
    return pooled.flatten(0, 1)


class DynamicConv(nn.Module):
    """Each proposal's own two small convolutions over its region."""

    def __init__(self, d, dim_dynamic, pooler=7):
        super().__init__()
        self.d, self.dim_dynamic, self.num_params = d, dim_dynamic, d * dim_dynamic
        self.dynamic_layer = nn.Linear(d, 2 * self.num_params)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(dim_dynamic), nn.LayerNorm(d), nn.LayerNorm(d)
        self.activation = nn.ReLU(inplace=True)
        self.out_layer = nn.Linear(d * pooler**2, d)

    def forward(self, pro_features, roi_features):
        features = roi_features.permute(1, 0, 2)
        parameters = self.dynamic_layer(pro_features).permute(1, 0, 2)
        param1 = parameters[:, :, : self.num_params].view(-1, self.d, self.dim_dynamic)
        param2 = parameters[:, :, self.num_params :].view(-1, self.dim_dynamic, self.d)
        features = self.activation(self.norm1(torch.bmm(features, param1)))
        features = self.activation(self.norm2(torch.bmm(features, param2)))
        return self.activation(self.norm3(self.out_layer(features.flatten(1))))


class RCNNHead(nn.Module):
    """One stage: proposals attend to each other and to their regions, and move their boxes."""

    def __init__(self, d, classes, nhead=8, ff=128, dim_dynamic=16, dropout=0.0, num_cls=1, num_reg=3):
        super().__init__()
        self.d = d
        self.self_attn = nn.MultiheadAttention(d, nhead, dropout=dropout)
        self.inst_interact = DynamicConv(d, dim_dynamic)
        self.linear1, self.linear2, self.dropout = nn.Linear(d, ff), nn.Linear(ff, d), nn.Dropout(dropout)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.dropout1, self.dropout2, self.dropout3 = (nn.Dropout(dropout) for _ in range(3))

        def tower(n):
            return nn.ModuleList(
                m for _ in range(n) for m in (nn.Linear(d, d, False), nn.LayerNorm(d), nn.ReLU(inplace=True))
            )

        self.cls_module, self.reg_module = tower(num_cls), tower(num_reg)
        self.class_logits, self.bboxes_delta = nn.Linear(d, classes), nn.Linear(d, 4)
        self.bbox_weights = (2.0, 2.0, 1.0, 1.0)

    def forward(self, features, bboxes, pro_features):
        N, R = bboxes.shape[:2]
        roi_features = roi_pool(features, bboxes).view(N * R, self.d, -1).permute(2, 0, 1)
        pro_features = pro_features.view(N, R, self.d).permute(1, 0, 2)
        pro_features2 = self.self_attn(pro_features, pro_features, value=pro_features)[0]
        pro_features = self.norm1(pro_features + self.dropout1(pro_features2))
        pro_features = pro_features.permute(1, 0, 2).reshape(1, N * R, self.d)
        pro_features2 = self.inst_interact(pro_features, roi_features)
        obj_features = self.norm2(pro_features + self.dropout2(pro_features2))
        obj_features2 = self.linear2(self.dropout(F.relu(self.linear1(obj_features))))
        obj_features = self.norm3(obj_features + self.dropout3(obj_features2))
        fc_feature = obj_features.transpose(0, 1).reshape(N * R, -1)
        cls_feature, reg_feature = fc_feature.clone(), fc_feature.clone()
        for layer in self.cls_module:
            cls_feature = layer(cls_feature)
        for layer in self.reg_module:
            reg_feature = layer(reg_feature)
        boxes = self.apply_deltas(self.bboxes_delta(reg_feature), bboxes.reshape(-1, 4))
        return self.class_logits(cls_feature).view(N, R, -1), boxes.view(N, R, -1), obj_features

    def apply_deltas(self, deltas, boxes):
        size = boxes[:, 2:] - boxes[:, :2]
        ctr = boxes[:, :2] + 0.5 * size
        wx, wy, ww, wh = self.bbox_weights
        shift = deltas[:, :2] / deltas.new_tensor([wx, wy])
        grow = torch.clamp(deltas[:, 2:] / deltas.new_tensor([ww, wh]), max=math.log(100000.0 / 16))
        ctr, size = shift * size + ctr, torch.exp(grow) * size
        return torch.cat([ctr - 0.5 * size, ctr + 0.5 * size], dim=-1)


class SparseRCNN(nn.Module):
    """Detection by a few learnt proposals, refined in stages."""

    def __init__(self, classes=20, d=64, proposals=20, stages=3):
        super().__init__()
        self.backbone = FPN(d)
        self.init_proposal_features, self.init_proposal_boxes = nn.Embedding(proposals, d), nn.Embedding(proposals, 4)
        nn.init.constant_(self.init_proposal_boxes.weight[:, :2], 0.5)
        nn.init.constant_(self.init_proposal_boxes.weight[:, 2:], 1.0)
        head = RCNNHead(d, classes)
        self.head_series = nn.ModuleList([copy.deepcopy(head) for _ in range(stages)])
        bias_value = -math.log((1 - 0.01) / 0.01)
        for p in self.head_series.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
            if p.shape[-1] == classes:
                nn.init.constant_(p, bias_value)

    def forward(self, images):
        N, _, H, W = images.shape
        features = self.backbone(images)
        c, s = self.init_proposal_boxes.weight.chunk(2, dim=-1)
        boxes = torch.cat([c - 0.5 * s, c + 0.5 * s], dim=-1)[None] * images.new_tensor([W, H, W, H])[None, None]
        boxes = boxes.expand(N, -1, -1).reshape(N, -1, 4)
        proposal = self.init_proposal_features.weight[None].repeat(1, N, 1)
        logits, coords = [], []
        for head in self.head_series:
            class_logits, pred, proposal = head(features, boxes, proposal)
            logits.append(class_logits)
            coords.append(pred)
            boxes = pred.detach()
        return torch.stack(logits), torch.stack(coords)


class SEModule(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, channels, reduction):
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, channels // reduction, kernel_size=1, padding=0, bias=False)
        nn.init.xavier_uniform_(self.fc1.weight.data)
        self.relu, self.sigmoid = nn.ReLU(inplace=True), nn.Sigmoid()
        self.fc2 = nn.Conv2d(channels // reduction, channels, kernel_size=1, padding=0, bias=False)

    def forward(self, x):
        return x * self.sigmoid(self.fc2(self.relu(self.fc1(self.avg_pool(x)))))


class BottleneckIRSE(nn.Module):
    """Improved residual block for faces."""

    def __init__(self, cin, depth, stride):
        super().__init__()
        if cin == depth:
            self.shortcut_layer = nn.MaxPool2d(1, stride)
        else:
            self.shortcut_layer = nn.Sequential(nn.Conv2d(cin, depth, 1, stride, bias=False), nn.BatchNorm2d(depth))
        self.res_layer = nn.Sequential(
            nn.BatchNorm2d(cin),
            nn.Conv2d(cin, depth, (3, 3), (1, 1), 1, bias=False),
            nn.PReLU(depth),
            nn.Conv2d(depth, depth, (3, 3), stride, 1, bias=False),
            nn.BatchNorm2d(depth),
            SEModule(depth, 16),
        )

    def forward(self, x):
        return self.res_layer(x) + self.shortcut_layer(x)


def l2_norm(x, axis=1):
    return torch.div(x, torch.norm(x, 2, axis, True))


class ArcFace(nn.Module):
    """Face recognition: IR-SE features and additive angular margins."""

    def __init__(self, units=(2, 2, 2, 2), width=16, embed=96, classnum=100, s=64.0, m=0.5):
        super().__init__()
        self.input_layer = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.PReLU(width)
        )
        body, cin = [], width
        for i, n in enumerate(units):
            depth = width * 2**i
            body += [BottleneckIRSE(cin, depth, 2)] + [BottleneckIRSE(depth, depth, 1) for _ in range(n - 1)]
            cin = depth
        self.body = nn.Sequential(*body)
        self.output_layer = nn.Sequential(
            nn.BatchNorm2d(cin), nn.Dropout(0.4), nn.Flatten(), nn.Linear(cin * 7 * 7, embed), nn.BatchNorm1d(embed)
        )
        for mod in self.modules():
            if isinstance(mod, (nn.Conv2d, nn.Linear)):
                nn.init.xavier_uniform_(mod.weight.data)
                if mod.bias is not None:
                    mod.bias.data.zero_()
            elif isinstance(mod, (nn.BatchNorm1d, nn.BatchNorm2d)):
                mod.weight.data.fill_(1)
                mod.bias.data.zero_()
        self.kernel = nn.Parameter(torch.Tensor(embed, classnum))
        self.kernel.data.uniform_(-1, 1).renorm_(2, 1, 1e-5).mul_(1e5)
        self.s, self.cos_m, self.sin_m = s, math.cos(m), math.sin(m)
        self.mm, self.threshold = math.sin(m) * m, math.cos(math.pi - m)

    def forward(self, x, label):
        embeddings = l2_norm(self.output_layer(self.body(self.input_layer(x))))
        cos_theta = torch.mm(embeddings, l2_norm(self.kernel, axis=0)).clamp(-1, 1)
        sin_theta = torch.sqrt(1 - torch.pow(cos_theta, 2))
        cos_theta_m = cos_theta * self.cos_m - sin_theta * self.sin_m
        cond_mask = (cos_theta - self.threshold) <= 0
        cos_theta_m = torch.where(cond_mask, cos_theta - self.mm, cos_theta_m)
        output = cos_theta * 1.0
        idx_ = torch.arange(0, len(embeddings), dtype=torch.long, device=x.device)
        output[idx_, label] = cos_theta_m[idx_, label]
        return output * self.s


def nature_body(channels=(16, 32, 32)):
    c1, c2, c3 = channels
    return nn.Sequential(
        nn.Conv2d(4, c1, 8, stride=4),
        nn.ReLU(),
        nn.Conv2d(c1, c2, 4, stride=2),
        nn.ReLU(),
        nn.Conv2d(c2, c3, 3),
        nn.ReLU(),
    )


class OfflineAtari(nn.Module):
    """The two agents of the offline study: quantiles (QR-DQN), and random mixtures of heads (REM)."""

    def __init__(self, actions=6, quantiles=50, heads=20, hidden=128):
        super().__init__()
        self.actions, self.quantiles, self.heads = actions, quantiles, heads
        self.qr_body, self.rem_body = nature_body(), nature_body()
        self.qr_head = nn.Sequential(nn.Linear(32 * 49, hidden), nn.ReLU(), nn.Linear(hidden, actions * quantiles))
        self.rem_head = nn.Sequential(nn.Linear(32 * 49, hidden), nn.ReLU(), nn.Linear(hidden, actions * heads))
        for m in self.modules():
            if isinstance(m, (nn.Conv2d, nn.Linear)):  # variance scaling of 1 / sqrt(3), fan in, uniform
                fan_in = m.weight[0].numel()
                bound = math.sqrt(3.0 * (1.0 / math.sqrt(3.0)) / fan_in)
                nn.init.uniform_(m.weight, -bound, bound)
                nn.init.zeros_(m.bias)

    def forward(self, state):
        x = state.float() / 255.0
        logits = self.qr_head(self.qr_body(x).flatten(1)).view(-1, self.actions, self.quantiles)
        unordered = self.rem_head(self.rem_body(x).flatten(1)).view(-1, self.actions, self.heads)
        mix = torch.rand(self.heads, 1, device=x.device)
        mix = mix / mix.norm(p=1, dim=0, keepdim=True)
        return logits, (unordered @ mix).mean(-1)


class NoisyLinear(nn.Module):
    """Linear layer with learnt factorised noise."""

    def __init__(self, in_features, out_features, std_init=0.4):
        super().__init__()
        self.in_features, self.out_features, self.std_init = in_features, out_features, std_init
        self.weight_mu = nn.Parameter(torch.FloatTensor(out_features, in_features))
        self.weight_sigma = nn.Parameter(torch.FloatTensor(out_features, in_features))
        self.register_buffer("weight_epsilon", torch.FloatTensor(out_features, in_features))
        self.bias_mu = nn.Parameter(torch.FloatTensor(out_features))
        self.bias_sigma = nn.Parameter(torch.FloatTensor(out_features))
        self.register_buffer("bias_epsilon", torch.FloatTensor(out_features))
        self.reset_parameters()
        self.reset_noise()

    def forward(self, x):
        if not self.training:
            return F.linear(x, self.weight_mu, self.bias_mu)
        weight = self.weight_mu + self.weight_sigma.mul(self.weight_epsilon)
        return F.linear(x, weight, self.bias_mu + self.bias_sigma.mul(self.bias_epsilon))

    def reset_parameters(self):
        mu_range = 1 / math.sqrt(self.weight_mu.size(1))
        self.weight_mu.data.uniform_(-mu_range, mu_range)
        self.weight_sigma.data.fill_(self.std_init / math.sqrt(self.weight_sigma.size(1)))
        self.bias_mu.data.uniform_(-mu_range, mu_range)
        self.bias_sigma.data.fill_(self.std_init / math.sqrt(self.bias_sigma.size(0)))

    def reset_noise(self):
        epsilon_in, epsilon_out = self._scale_noise(self.in_features), self._scale_noise(self.out_features)
        self.weight_epsilon.copy_(epsilon_out.outer(epsilon_in))
        self.bias_epsilon.copy_(self._scale_noise(self.out_features))

    @staticmethod
    def _scale_noise(size):
        x = torch.randn(size)
        return x.sign().mul(x.abs().sqrt())


class NoisyDuelingDQN(nn.Module):
    """Dueling Q-network whose exploration comes from noisy layers."""

    def __init__(self, actions=6, hidden=128):
        super().__init__()
        self.features = nature_body((32, 32, 32))
        self.noisy_value1, self.noisy_value2 = NoisyLinear(32 * 49, hidden), NoisyLinear(hidden, 1)
        self.noisy_advantage1, self.noisy_advantage2 = NoisyLinear(32 * 49, hidden), NoisyLinear(hidden, actions)

    def forward(self, x):
        x = self.features(x.float() / 255.0).flatten(1)
        value = self.noisy_value2(F.relu(self.noisy_value1(x)))
        advantage = self.noisy_advantage2(F.relu(self.noisy_advantage1(x)))
        return value + advantage - advantage.mean(1, keepdim=True)


def frames():
    return (torch.randint(256, (8, 4, 84, 84), dtype=torch.uint8),)


NETS = {
    "Sparse R-CNN": (SparseRCNN, lambda: (torch.randn(4, 3, 64, 64),)),
    "ArcFace IR-SE50": (ArcFace, lambda: (torch.rand(8, 3, 112, 112) * 2 - 1, torch.randint(100, (8,)))),
    "REM QR-DQN": (OfflineAtari, frames),
    "DuelingDQN NoisyNet": (NoisyDuelingDQN, frames),
}
