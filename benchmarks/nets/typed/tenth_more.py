"""Networks typed by hand as their repositories have them: NVAE, Zero-DCE, C51 and FoldingNet."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Conv2D(nn.Conv2d):
    """Convolution under weight norm, with the logarithm of the norm learnt."""

    def __init__(self, cin, cout, kernel_size, stride=1, padding=0, dilation=1, groups=1, bias=True):
        super().__init__(cin, cout, kernel_size, stride, padding, dilation, groups, bias)
        init = torch.log(torch.sqrt(torch.sum(self.weight.data**2, dim=[1, 2, 3])).view(-1, 1, 1, 1) + 1e-2)
        self.log_weight_norm = nn.Parameter(init, requires_grad=True)

    def forward(self, x):
        norm = torch.sqrt(torch.sum(self.weight * self.weight, dim=[1, 2, 3])).view(-1, 1, 1, 1)
        weight = torch.exp(self.log_weight_norm) * self.weight / (norm + 1e-5)
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def get_batchnorm(c):
    return nn.BatchNorm2d(c, eps=1e-5, momentum=0.05)


class SE(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, c):
        super().__init__()
        num_hidden = max(c // 16, 4)
        self.se = nn.Sequential(nn.Linear(c, num_hidden), nn.ReLU(inplace=True), nn.Linear(num_hidden, c), nn.Sigmoid())

    def forward(self, x):
        se = torch.mean(x, dim=[2, 3])
        return x * self.se(se).view(x.size(0), -1, 1, 1)


class FactorizedReduce(nn.Module):
    """Halves the picture with four shifted convolutions."""

    def __init__(self, cin, cout):
        super().__init__()
        self.convs = nn.ModuleList([Conv2D(cin, cout // 4, 1, stride=2) for _ in range(4)])

    def forward(self, x):
        out = F.silu(x)
        parts = [out, out[:, :, 1:, 1:], out[:, :, :, 1:], out[:, :, 1:, :]]
        return torch.cat([conv(part) for conv, part in zip(self.convs, parts, strict=True)], dim=1)


class UpSample(nn.Module):
    """Bilinear, then a 1x1 convolution."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv = Conv2D(cin, cout, kernel_size=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True))


class EncCell(nn.Module):
    """Two BN-Swish-convolutions and SE, a tenth of it added."""

    def __init__(self, cin, cout, stride=1):
        super().__init__()
        self.skip = nn.Identity() if stride == 1 else FactorizedReduce(cin, cout)
        self.bn0, self.conv0 = get_batchnorm(cin), Conv2D(cin, cout, 3, stride=stride, padding=1)
        self.bn1, self.conv1 = get_batchnorm(cout), Conv2D(cout, cout, 3, padding=1)
        self.se = SE(cout)

    def forward(self, s):
        x = self.conv0(F.silu(self.bn0(s)))
        x = self.conv1(F.silu(self.bn1(x)))
        return self.skip(s) + 0.1 * self.se(x)


class DecCell(nn.Module):
    """Inverted residual with a depthwise 5x5 convolution."""

    def __init__(self, cin, cout, up=False, ex=6):
        super().__init__()
        hid, self.up = cin * ex, up
        self.skip = UpSample(cin, cout) if up else nn.Identity()
        self.bn_in = get_batchnorm(cin)
        self.expand, self.bn1 = nn.Conv2d(cin, hid, 1, bias=False), get_batchnorm(hid)
        self.depth, self.bn2 = nn.Conv2d(hid, hid, 5, padding=2, groups=hid, bias=False), get_batchnorm(hid)
        self.project, self.bn3 = nn.Conv2d(hid, cout, 1, bias=False), get_batchnorm(cout)
        self.se = SE(cout)

    def forward(self, s):
        x = self.bn_in(s)
        if self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
        x = F.silu(self.bn1(self.expand(x)))
        x = F.silu(self.bn2(self.depth(x)))
        return self.skip(s) + 0.1 * self.se(self.bn3(self.project(x)))


class EncCombinerCell(nn.Module):
    """The encoder's features plus a projection of the decoder's."""

    def __init__(self, cin1, cin2, cout):
        super().__init__()
        self.conv = Conv2D(cin2, cout, kernel_size=1)

    def forward(self, x1, x2):
        return x1 + self.conv(x2)


class DecCombinerCell(nn.Module):
    """The decoder's features and the latent, mixed by a 1x1 convolution."""

    def __init__(self, cin1, cin2, cout):
        super().__init__()
        self.conv = Conv2D(cin1 + cin2, cout, kernel_size=1)

    def forward(self, x1, x2):
        return self.conv(torch.cat([x1, x2], dim=1))


def soft_clamp5(x):
    return x.div(5.0).tanh_().mul(5.0)


class Normal:
    """Gaussian with both parameters softly clamped."""

    def __init__(self, mu, log_sigma):
        self.mu = soft_clamp5(mu)
        self.sigma = torch.exp(soft_clamp5(log_sigma)) + 1e-2

    def sample(self):
        return torch.randn_like(self.mu).mul(self.sigma) + self.mu

    def log_p(self, samples):
        normalized = (samples - self.mu) / self.sigma
        return -0.5 * normalized * normalized - 0.5 * math.log(2 * math.pi) - torch.log(self.sigma)

    def kl(self, normal_dist):
        term1 = (self.mu - normal_dist.mu) / normal_dist.sigma
        term2 = self.sigma / normal_dist.sigma
        return 0.5 * (term1 * term1 + term2 * term2) - 0.5 - torch.log(term2)


class NVAE(nn.Module):
    """Deep hierarchical VAE: groups of latents at two scales, residual posteriors."""

    def __init__(self, C=16, latents=8, scales=2, groups=2, size=32):
        super().__init__()
        self.num_groups, top = scales * groups, C * 2**scales
        self.stem = Conv2D(1, C, 3, padding=1)
        self.pre_process = nn.Sequential(EncCell(C, C), EncCell(C, 2 * C, stride=2))
        tower, c, widths = [], 2 * C, []
        for s in range(scales):
            for g in range(groups):
                tower.append(EncCell(c, c))
                widths.append(c)
                if not (s == scales - 1 and g == groups - 1):
                    tower.append("combiner")
            if s < scales - 1:
                tower.append(EncCell(c, 2 * c, stride=2))
                c *= 2
        self.kinds = [t == "combiner" for t in tower]
        it = iter(widths)
        self.enc_tower = nn.ModuleList()
        for t in tower:
            w = next(it) if t == "combiner" else None
            self.enc_tower.append(EncCombinerCell(w, w, w) if t == "combiner" else t)
        self.enc0 = nn.Sequential(nn.ELU(), Conv2D(top, top, kernel_size=1), nn.ELU())
        widths = widths[::-1]
        self.enc_sampler = nn.ModuleList([Conv2D(w, 2 * latents, 3, padding=1) for w in widths])
        self.dec_sampler = nn.ModuleList([nn.Sequential(nn.ELU(), Conv2D(w, 2 * latents, 1)) for w in widths[1:]])
        self.prior_ftr0 = nn.Parameter(torch.rand(size=(top, size // 2**scales, size // 2**scales)))
        self.dec_tower, self.dec_kinds = nn.ModuleList(), []
        for i, w in enumerate(widths):
            if i > 0 and widths[i - 1] == w:
                self.dec_tower.append(DecCell(w, w))
                self.dec_kinds.append(False)
            elif i > 0:
                self.dec_tower.append(DecCell(2 * w, w, up=True))
                self.dec_kinds.append(False)
            self.dec_tower.append(DecCombinerCell(w, latents, w))
            self.dec_kinds.append(True)
        self.post_process = nn.Sequential(DecCell(2 * C, C, up=True, ex=3), DecCell(C, C, ex=3))
        self.image_conditional = nn.Sequential(nn.ELU(), Conv2D(C, 1, 3, padding=1))

    def forward(self, x):
        s = self.pre_process(self.stem(2 * x - 1.0))
        combiners = []
        for cell, is_combiner in zip(self.enc_tower, self.kinds, strict=True):
            if is_combiner:
                combiners.append((cell, s))
            else:
                s = cell(s)
        combiners.reverse()
        ftr = self.enc0(s)
        mu_q, log_sig_q = torch.chunk(self.enc_sampler[0](ftr), 2, dim=1)
        dist = Normal(mu_q, log_sig_q)
        z = dist.sample()
        all_q, all_p = [dist], [Normal(torch.zeros_like(z), torch.zeros_like(z))]
        log_q, log_p = [dist.log_p(z)], [all_p[0].log_p(z)]
        s, idx_dec = self.prior_ftr0.unsqueeze(0).expand(x.size(0), -1, -1, -1), 0
        for cell, is_combiner in zip(self.dec_tower, self.dec_kinds, strict=True):
            if not is_combiner:
                s = cell(s)
                continue
            if idx_dec > 0:
                mu_p, log_sig_p = torch.chunk(self.dec_sampler[idx_dec - 1](s), 2, dim=1)
                combine, ftr = combiners[idx_dec - 1]
                mu_q, log_sig_q = torch.chunk(self.enc_sampler[idx_dec](combine(ftr, s)), 2, dim=1)
                dist = Normal(mu_p + mu_q, log_sig_p + log_sig_q)
                z = dist.sample()
                all_q.append(dist)
                all_p.append(Normal(mu_p, log_sig_p))
                log_q.append(dist.log_p(z))
                log_p.append(all_p[-1].log_p(z))
            s = cell(s, z)
            idx_dec += 1
        logits = self.image_conditional(self.post_process(s))
        kl = [torch.sum(q.kl(p), dim=[1, 2, 3]) for q, p in zip(all_q, all_p, strict=True)]
        log_q, log_p = (sum(t.sum([1, 2, 3]) for t in terms) for terms in (log_q, log_p))
        return logits, torch.stack(kl, dim=1), log_q, log_p


class EnhanceNetNoPool(nn.Module):
    """Zero-reference curves: eight maps of exponents, applied one after another to the dark picture."""

    def __init__(self, number_f=32):
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.e_conv1 = nn.Conv2d(3, number_f, 3, 1, 1, bias=True)
        self.e_conv2 = nn.Conv2d(number_f, number_f, 3, 1, 1, bias=True)
        self.e_conv3 = nn.Conv2d(number_f, number_f, 3, 1, 1, bias=True)
        self.e_conv4 = nn.Conv2d(number_f, number_f, 3, 1, 1, bias=True)
        self.e_conv5 = nn.Conv2d(number_f * 2, number_f, 3, 1, 1, bias=True)
        self.e_conv6 = nn.Conv2d(number_f * 2, number_f, 3, 1, 1, bias=True)
        self.e_conv7 = nn.Conv2d(number_f * 2, 24, 3, 1, 1, bias=True)
        self.apply(self.weights_init)

    @staticmethod
    def weights_init(m):
        classname = m.__class__.__name__
        if classname.find("Conv") != -1:
            m.weight.data.normal_(0.0, 0.02)
        elif classname.find("BatchNorm") != -1:
            m.weight.data.normal_(1.0, 0.02)
            m.bias.data.fill_(0)

    def forward(self, x):
        x1 = self.relu(self.e_conv1(x))
        x2 = self.relu(self.e_conv2(x1))
        x3 = self.relu(self.e_conv3(x2))
        x4 = self.relu(self.e_conv4(x3))
        x5 = self.relu(self.e_conv5(torch.cat([x3, x4], 1)))
        x6 = self.relu(self.e_conv6(torch.cat([x2, x5], 1)))
        x_r = torch.tanh(self.e_conv7(torch.cat([x1, x6], 1)))
        r1, r2, r3, r4, r5, r6, r7, r8 = torch.split(x_r, 3, dim=1)
        x = x + r1 * (torch.pow(x, 2) - x)
        x = x + r2 * (torch.pow(x, 2) - x)
        x = x + r3 * (torch.pow(x, 2) - x)
        enhance_image_1 = x + r4 * (torch.pow(x, 2) - x)
        x = enhance_image_1 + r5 * (torch.pow(enhance_image_1, 2) - enhance_image_1)
        x = x + r6 * (torch.pow(x, 2) - x)
        x = x + r7 * (torch.pow(x, 2) - x)
        enhance_image = x + r8 * (torch.pow(x, 2) - x)
        r = torch.cat([r1, r2, r3, r4, r5, r6, r7, r8], 1)
        return enhance_image_1, enhance_image, r


class C51Network(nn.Module):
    """A categorical distribution of the return of each action."""

    def __init__(self, n=6, n_atoms=51, v_min=-10, v_max=10):
        super().__init__()
        self.n, self.n_atoms = n, n_atoms
        self.register_buffer("atoms", torch.linspace(v_min, v_max, steps=n_atoms))
        self.network = nn.Sequential(
            nn.Conv2d(4, 16, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(1568, 128),
            nn.ReLU(),
            nn.Linear(128, n * n_atoms),
        )

    def get_action(self, x, action=None):
        logits = self.network(x / 255.0)
        pmfs = torch.softmax(logits.view(len(x), self.n, self.n_atoms), dim=2)
        q_values = (pmfs * self.atoms).sum(2)
        if action is None:
            action = torch.argmax(q_values, 1)
        return action, pmfs[torch.arange(len(x)), action]

    def forward(self, x, action):
        _, old_pmfs = self.get_action(x, action)
        return old_pmfs.clamp(min=1e-5, max=1 - 1e-5).log()


def knn_indices(x, k):
    inner = -2 * torch.matmul(x, x.transpose(2, 1))
    xx = torch.sum(x**2, dim=2, keepdim=True)
    return (-xx - inner - xx.transpose(2, 1)).topk(k=k, dim=-1)[1]


def gather_neighbours(x, idx):
    return x[torch.arange(x.shape[0], device=x.device)[:, None, None], idx]


class FoldNetEncoder(nn.Module):
    """Points with their local covariances, two graph layers of max pooling, then a codeword."""

    def __init__(self, k=8, feat_dims=64, w=32):
        super().__init__()
        self.k = k
        self.mlp1 = nn.Sequential(
            nn.Conv1d(12, w, 1), nn.ReLU(), nn.Conv1d(w, w, 1), nn.ReLU(), nn.Conv1d(w, w, 1), nn.ReLU()
        )
        self.linear1, self.conv1 = nn.Linear(w, w), nn.Conv1d(w, 2 * w, 1)
        self.linear2, self.conv2 = nn.Linear(2 * w, 2 * w), nn.Conv1d(2 * w, 4 * w, 1)
        self.mlp2 = nn.Sequential(nn.Conv1d(4 * w, feat_dims, 1), nn.ReLU(), nn.Conv1d(feat_dims, feat_dims, 1))

    def graph_layer(self, x, idx):
        x = gather_neighbours(x.transpose(2, 1), idx).max(dim=2)[0]
        x = self.linear1(x).transpose(2, 1)
        x = F.relu(self.conv1(x))
        x = gather_neighbours(x.transpose(2, 1), idx).max(dim=2)[0]
        return self.conv2(self.linear2(x).transpose(2, 1))

    def forward(self, pts):
        idx = knn_indices(pts, self.k)
        near = gather_neighbours(pts, idx[:, :, :2])
        cov = torch.matmul(near[:, :, 0].unsqueeze(3), near[:, :, 1].unsqueeze(2)).flatten(2)
        x = torch.cat((pts, cov), dim=2).transpose(2, 1)
        x = self.graph_layer(self.mlp1(x), idx)
        return self.mlp2(torch.max(x, 2, keepdim=True)[0]).transpose(2, 1)


class FoldingNet(nn.Module):
    """An auto-encoder of clouds: the codeword folds a plane, twice."""

    def __init__(self, feat_dims=64, side=12):
        super().__init__()
        self.encoder = FoldNetEncoder(feat_dims=feat_dims)
        axis = torch.linspace(-0.3, 0.3, side)
        self.register_buffer("grid", torch.cartesian_prod(axis, axis).t().contiguous())
        self.folding1, self.folding2 = (
            nn.Sequential(
                nn.Conv1d(feat_dims + extra, feat_dims, 1),
                nn.ReLU(),
                nn.Conv1d(feat_dims, feat_dims, 1),
                nn.ReLU(),
                nn.Conv1d(feat_dims, 3, 1),
            )
            for extra in (2, 3)
        )

    def forward(self, pts):
        feature = self.encoder(pts)
        x = feature.transpose(1, 2).repeat(1, 1, self.grid.shape[1])
        points = self.grid.unsqueeze(0).expand(x.shape[0], -1, -1)
        folding_result1 = self.folding1(torch.cat((x, points), dim=1))
        folding_result2 = self.folding2(torch.cat((x, folding_result1), dim=1))
        return folding_result2.transpose(1, 2), feature


NETS = {
    "NVAE": (NVAE, lambda: (torch.bernoulli(torch.rand(8, 1, 32, 32)),)),
    "Zero-DCE": (EnhanceNetNoPool, lambda: (torch.rand(4, 3, 48, 48) * 0.4,)),
    "C51": (C51Network, lambda: (torch.randint(256, (16, 4, 84, 84)).float(), torch.randint(6, (16,)))),
    "FoldingNet": (FoldingNet, lambda: (torch.randn(8, 128, 3) * 0.3,)),
}
