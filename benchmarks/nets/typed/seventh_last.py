"""The last networks typed by hand as their papers describe them: TD-MPC2 to matrix capsules."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class NormedLinear(nn.Linear):
    def __init__(self, i, o, dropout=0.0, act=None):
        super().__init__(i, o)
        self.ln, self.act, self.dropout = nn.LayerNorm(o), act or nn.Mish(), nn.Dropout(dropout)

    def forward(self, x):
        return self.act(self.ln(self.dropout(super().forward(x))))


class SimNorm(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        shape = x.shape
        return F.softmax(x.view(*shape[:-1], -1, self.dim), dim=-1).view(*shape)


def mlp(i, hidden, o, act=None, dropout=0.0):
    last = NormedLinear(hidden, o, act=act) if act else nn.Linear(hidden, o)
    return nn.Sequential(NormedLinear(i, hidden, dropout), NormedLinear(hidden, hidden), last)


class TDMPC2(nn.Module):
    def __init__(self, obs=24, act=4, latent=64, hidden=128, bins=41, num_q=5):
        super().__init__()
        self.encoder = nn.Sequential(NormedLinear(obs, hidden), NormedLinear(hidden, latent, act=SimNorm()))
        self.dynamics = mlp(latent + act, hidden, latent, act=SimNorm())
        self.reward, self.pi = mlp(latent + act, hidden, bins), mlp(latent, hidden, 2 * act)
        self.qs = nn.ModuleList(mlp(latent + act, hidden, bins, dropout=0.01) for _ in range(num_q))
        self.register_buffer("bins", torch.linspace(-10, 10, bins))
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.trunc_normal_(m.weight, std=0.02)
                nn.init.constant_(m.bias, 0)
        for m in [self.reward, *self.qs]:
            m[-1].weight.data.fill_(0)

    def policy(self, z):
        mu, log_std = self.pi(z).chunk(2, dim=-1)
        log_std = -10 + 0.5 * 12 * (torch.tanh(log_std) + 1)
        eps = torch.randn_like(mu)
        log_pi = (-0.5 * eps.pow(2) - log_std - 0.9189385175704956).sum(-1, keepdim=True)
        action = torch.tanh(mu + eps * log_std.exp())
        return action, log_pi - torch.log(F.relu(1 - action.pow(2)) + 1e-6).sum(-1, keepdim=True)

    def value(self, logits):
        x = (F.softmax(logits, dim=-1) * self.bins).sum(-1, keepdim=True)
        return torch.sign(x) * (torch.exp(torch.abs(x)) - 1)

    def forward(self, obs, actions):
        with torch.no_grad():
            next_z = self.encoder(obs[1:])
        z, zs, consistency = self.encoder(obs[0]), [], 0
        for t, action in enumerate(actions.unbind(0)):
            zs.append(z)
            z = self.dynamics(torch.cat([z, action], dim=-1))
            consistency = consistency + F.mse_loss(z, next_z[t]) * 0.5**t
        zs = torch.stack(zs)
        za = torch.cat([zs, actions], dim=-1)
        qs = torch.stack([q(za) for q in self.qs])
        pi, log_pi = self.policy(zs.detach())
        pi_za = torch.cat([zs.detach(), pi], dim=-1)
        q_pi = torch.stack([self.value(q(pi_za)) for q in self.qs[:2]]).mean(0)
        return self.reward(za), qs, consistency, (1e-4 * log_pi - q_pi).mean()


class TabR(nn.Module):
    def __init__(self, n_num=10, cats=(4, 7), classes=3, d=64, k=24, freqs=16, d_emb=8):
        super().__init__()
        self.k, self.cats = k, cats
        self.freq = nn.Parameter(torch.randn(n_num, freqs) * 0.05)
        self.plr = nn.Sequential(nn.Linear(2 * freqs, d_emb), nn.ReLU())
        self.linear = nn.Linear(n_num * d_emb + sum(cats), d)
        self.block0 = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * d, d))
        self.normalization = nn.LayerNorm(d)
        self.label_encoder, self.K = nn.Embedding(classes, d), nn.Linear(d, d)
        self.T = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Dropout(0.2), nn.Linear(2 * d, d, bias=False))
        self.block1 = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.head = nn.Sequential(nn.LayerNorm(d), nn.ReLU(), nn.Linear(d, classes))
        nn.init.uniform_(self.label_encoder.weight, -1.0, 1.0)

    def encode(self, num, cat):
        p = 2 * math.pi * self.freq * num[..., None]
        num = self.plr(torch.cat([torch.cos(p), torch.sin(p)], -1)).flatten(1)
        onehot = [F.one_hot(cat[:, i], n).float() for i, n in enumerate(self.cats)]
        x = self.linear(torch.cat([num, *onehot], 1))
        x = x + self.block0(x)
        return x, self.K(self.normalization(x))

    def forward(self, num, cat, cand_num, cand_cat, cand_y):
        _, cand_k = self.encode(cand_num, cand_cat)
        x, key = self.encode(num, cat)
        with torch.no_grad():
            idx = torch.cdist(key, cand_k).topk(self.k, largest=False).indices
        ctx_k = cand_k[idx]
        sim = -key.square().sum(-1, keepdim=True) + 2 * (key[:, None] @ ctx_k.mT).squeeze(1) - ctx_k.square().sum(-1)
        probs = F.dropout(F.softmax(sim, dim=-1), 0.2, self.training)
        values = self.label_encoder(cand_y[idx]) + self.T(key[:, None] - ctx_k)
        x = x + (probs[:, None] @ values).squeeze(1)
        x = x + self.block1(x)
        return self.head(x)


class AITM(nn.Module):
    def __init__(self, fields=(100, 50, 20, 10, 5), dense=6, emb=8, d=32, tasks=3):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(n, emb) for n in fields)
        width = len(fields) * emb + dense
        self.dense_bn = nn.BatchNorm1d(dense)
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, d), nn.ReLU())
            for _ in range(tasks)
        )
        self.info = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.ReLU()) for _ in range(tasks - 1))
        self.h1, self.h2, self.h3 = (nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(tasks - 1))
                                     for _ in range(3))  # fmt: skip
        self.heads = nn.ModuleList(nn.Linear(d, 1) for _ in range(tasks))

    def forward(self, cats, dense):
        x = torch.cat([e(cats[:, i]) for i, e in enumerate(self.embeddings)] + [self.dense_bn(dense)], dim=1)
        feats = [tower(x) for tower in self.towers]
        out = [feats[0]]
        for i in range(1, len(feats)):
            ait = torch.stack([feats[i], self.info[i - 1](out[-1])], dim=1)
            V, K, Q = self.h1[i - 1](ait), self.h2[i - 1](ait), self.h3[i - 1](ait)
            w = torch.softmax((K * Q).sum(2, keepdim=True) / math.sqrt(V.size(-1)), dim=1)
            out.append((w * V).sum(1))
        p = torch.cat([torch.sigmoid(h(o)) for h, o in zip(self.heads, out, strict=True)], dim=1)
        constraint = torch.clamp(p[:, 1:] - p[:, :-1], min=0).sum()
        return p, constraint


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v):
        ctx.save_for_backward(v)
        return (v >= 0).float()

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        s = torch.sigmoid(4.0 * v)
        return grad * 4.0 * s * (1 - s)


class LIFNode(nn.Module):
    def __init__(self, tau=2.0, threshold=1.0):
        super().__init__()
        self.tau, self.threshold = tau, threshold

    def forward(self, x):
        v, out = torch.zeros_like(x[0]), []
        for t in range(x.size(0)):
            v = v + (x[t] - v) / self.tau
            s = Spike.apply(v - self.threshold)
            v = v * (1 - s.detach())
            out.append(s)
        return torch.stack(out)


class SpikeConv(nn.Module):
    def __init__(self, i, o, k=3, pool=False, spike=True, threshold=1.0):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(i, o, k, padding=k // 2, bias=False), nn.BatchNorm2d(o)
        self.pool, self.lif = nn.MaxPool2d(3, 2, 1) if pool else None, LIFNode(threshold=threshold) if spike else None

    def forward(self, x):
        T, B = x.shape[:2]
        y = self.bn(self.conv(x.flatten(0, 1))).unflatten(0, (T, B))
        y = self.lif(y) if self.lif is not None else y
        return self.pool(y.flatten(0, 1)).unflatten(0, (T, B)) if self.pool is not None else y


class SpikformerBlock(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = SpikeConv(d, d, 1), SpikeConv(d, d, 1), SpikeConv(d, d, 1)
        self.attn_lif, self.proj = LIFNode(threshold=0.5), SpikeConv(d, d, 1)
        self.fc1, self.fc2 = SpikeConv(d, 4 * d, 1), SpikeConv(4 * d, d, 1)

    def forward(self, x):
        T, B, C, H, W = x.shape
        q, k, v = (f(x).view(T, B, self.heads, C // self.heads, H * W).transpose(-1, -2)
                   for f in (self.q, self.k, self.v))  # fmt: skip
        y = (q @ k.transpose(-2, -1)) @ v * 0.125
        x = x + self.proj(self.attn_lif(y.transpose(-1, -2).reshape(T, B, C, H, W)))
        return x + self.fc2(self.fc1(x))


class Spikformer(nn.Module):
    def __init__(self, classes=10, d=64, heads=4, depth=2, steps=4):
        super().__init__()
        self.steps = steps
        self.sps = nn.Sequential(SpikeConv(3, d // 4), SpikeConv(d // 4, d // 2, pool=True),
                                 SpikeConv(d // 2, d, pool=True))  # fmt: skip
        self.rpe = SpikeConv(d, d)
        self.blocks = nn.Sequential(*[SpikformerBlock(d, heads) for _ in range(depth)])
        self.head = nn.Linear(d, classes)

    def forward(self, image):
        x = self.sps(image.unsqueeze(0).repeat(self.steps, 1, 1, 1, 1))
        x = self.blocks(x + self.rpe(x))
        return self.head(x.flatten(3).mean(3)).mean(0)


class DeepRC(nn.Module):
    def __init__(self, aa=20, kernels=32, k=5, d=32, beta=1.0):
        super().__init__()
        self.aa, self.beta = aa, beta
        self.conv = nn.Conv1d(aa + 3, kernels, k)
        self.key = nn.Sequential(nn.Linear(kernels, d), nn.SELU(), nn.Linear(d, d), nn.SELU())
        self.query = nn.Parameter(torch.randn(1, d))
        self.out = nn.Sequential(nn.Linear(kernels, d), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(d, 1))
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Conv1d)):
                nn.init.kaiming_normal_(m.weight, mode="fan_in", nonlinearity="linear")
                nn.init.zeros_(m.bias)

    def forward(self, seqs, counts):
        B, N, L = seqs.shape
        x = F.one_hot(seqs, self.aa).float()
        ramp = torch.linspace(-1, 1, L, device=seqs.device)
        pos = torch.stack([ramp.clamp(min=0), 1 - ramp.abs(), (-ramp).clamp(min=0)], -1).expand(B, N, L, 3)
        x = torch.cat([x * counts.log1p()[..., None, None], pos], -1).view(B * N, L, -1).transpose(1, 2)
        x = (x - x.mean()) / x.std()
        v = torch.max(self.conv(x), dim=-1)[0].view(B, N, -1)
        k = self.key(v)
        att = torch.softmax(self.beta * (self.query @ k.transpose(1, 2)) / k.size(-1) ** 0.5, dim=-1)
        return self.out((att @ v).squeeze(1)).squeeze(-1)


class HashGrid(nn.Module):
    def __init__(self, levels=6, size=2**10, feat=2, base=4, top=64):
        super().__init__()
        growth = math.exp((math.log(top) - math.log(base)) / (levels - 1))
        self.res = [math.floor(base * growth**i) for i in range(levels)]
        self.size = size
        self.tables = nn.ModuleList(nn.Embedding(size, feat) for _ in range(levels))
        for t in self.tables:
            nn.init.uniform_(t.weight, -1e-4, 1e-4)
        self.register_buffer("primes", torch.tensor([1, 2654435761, 805459861]))
        self.register_buffer("corners", torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)]))

    def forward(self, x):
        feats = []
        for res, table in zip(self.res, self.tables, strict=True):
            lo = torch.floor(x * res).long()
            w = x * res - lo
            c = lo[:, None] + self.corners
            h = c * self.primes
            idx = (h[..., 0] ^ h[..., 1] ^ h[..., 2]) % self.size
            weight = torch.where(self.corners == 1, w[:, None], 1 - w[:, None]).prod(-1, keepdim=True)
            feats.append((weight * table(idx)).sum(1))
        return torch.cat(feats, dim=-1)


class InstantNGP(nn.Module):
    def __init__(self, samples=24, hidden=32, geo=15, near=0.5, far=2.5):
        super().__init__()
        self.samples, self.near, self.far, self.grid = samples, near, far, HashGrid()
        self.sigma = nn.Sequential(nn.Linear(12, hidden, bias=False), nn.ReLU(),
                                   nn.Linear(hidden, geo + 1, bias=False))  # fmt: skip
        self.color = nn.Sequential(nn.Linear(9 + geo, hidden, bias=False), nn.ReLU(),
                                   nn.Linear(hidden, hidden, bias=False), nn.ReLU(),
                                   nn.Linear(hidden, 3, bias=False))  # fmt: skip

    def sh(self, d):
        x, y, z = d.unbind(-1)
        return torch.stack([0.2820947918 * torch.ones_like(x), -0.4886025119 * y, 0.4886025119 * z, -0.4886025119 * x,
                            1.0925484306 * x * y, -1.0925484306 * y * z, 0.3153915653 * (3 * z * z - 1),
                            -1.0925484306 * x * z, 0.5462742153 * (x * x - y * y)], -1)  # fmt: skip

    def forward(self, origins, directions):
        d = F.normalize(directions, dim=-1)
        t = torch.linspace(self.near, self.far, self.samples, device=d.device)
        delta = t[1] - t[0]
        t = (t + torch.rand(d.size(0), self.samples, device=d.device) * delta).unsqueeze(-1)
        pts = ((origins[:, None] + t * d[:, None] + 1.5) / 3).clamp(0, 1 - 1e-6).reshape(-1, 3)
        h = self.sigma(self.grid(pts))
        density = torch.exp(h[:, 0]).view(-1, self.samples)
        view = self.sh(d)[:, None].expand(-1, self.samples, -1).reshape(-1, 9)
        rgb = torch.sigmoid(self.color(torch.cat([view, h[:, 1:]], -1))).view(-1, self.samples, 3)
        alpha = 1 - torch.exp(-density * delta)
        trans = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        w = alpha * trans
        return (w[..., None] * rgb).sum(1) + (1 - w.sum(1, keepdim=True)), (w * t.squeeze(-1)).sum(1)


class MatrixCaps(nn.Module):
    def __init__(self, classes=5, a=16, b=8, c=8, iters=3):
        super().__init__()
        self.b, self.iters = b, iters
        self.conv1, self.bn1 = nn.Conv2d(1, a, 5, 2, 2), nn.BatchNorm2d(a)
        self.pose, self.act = nn.Conv2d(a, b * 16, 3, 2, 1), nn.Conv2d(a, b, 3, 2, 1)
        self.w = nn.ParameterList(nn.Parameter(torch.randn(i, o, 4, 4)) for i, o in ((b * 9, c), (c, classes)))
        self.beta_u, self.beta_a = (nn.ParameterList(nn.Parameter(torch.zeros(o)) for o in (c, classes))
                                    for _ in range(2))  # fmt: skip

    def em(self, v, a_in, beta_u, beta_a):
        r = torch.full(v.shape[:3], 1.0 / v.size(2), device=v.device)
        for it in range(self.iters):
            r = r * a_in.unsqueeze(-1)
            r = r / (r.sum(2, keepdim=True) + 1e-8)
            r_sum = r.sum(1) + 1e-8
            mu = (r[..., None] * v).sum(1) / r_sum[..., None]
            var = (r[..., None] * (v - mu.unsqueeze(1)) ** 2).sum(1) / r_sum[..., None] + 1e-8
            cost = (beta_u[:, None] + 0.5 * torch.log(var)) * r_sum[..., None] / v.size(1)
            a = torch.sigmoid((1 - 0.95 ** (it + 1)) * (beta_a - cost.sum(-1)))
            log_p = -0.5 * (((v - mu.unsqueeze(1)) ** 2 / var.unsqueeze(1)) + torch.log(var * 2 * math.pi)[:, None])
            r = torch.softmax(torch.log(a.unsqueeze(1) + 1e-8) + log_p.sum(-1), dim=2)
        return mu, a

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        pose, act = self.pose(x).unflatten(1, (self.b, 16)), torch.sigmoid(self.act(x))
        pose = pose.permute(0, 3, 4, 1, 2).unfold(1, 3, 2).unfold(2, 3, 2).permute(0, 1, 2, 5, 6, 3, 4)
        act = act.permute(0, 2, 3, 1).unfold(1, 3, 2).unfold(2, 3, 2).permute(0, 1, 2, 4, 5, 3)
        B, H, W = pose.shape[:3]
        pose, act = pose.reshape(B * H * W, -1, 4, 4), act.reshape(B * H * W, -1)
        for w, bu, ba in zip(self.w, self.beta_u, self.beta_a, strict=True):
            votes = torch.einsum("nipq,ioqr->niopr", pose, w).flatten(3)
            mu, act = self.em(votes, act, bu, ba)
            pose = mu.unflatten(-1, (4, 4))
        return act.view(B, H * W, -1).mean(1), pose


class TimesBlock(nn.Module):
    def __init__(self, length, d, ff, k=2):
        super().__init__()
        self.k, self.length = k, length
        self.inc1, self.inc2 = (nn.ModuleList(nn.Conv2d(i, o, 2 * j + 1, padding=j) for j in range(3))
                                for i, o in ((d, ff), (ff, d)))  # fmt: skip
        for m in [*self.inc1, *self.inc2]:
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        B, T, N = x.shape
        amplitude = torch.fft.rfft(x, dim=1).abs()
        frequency = amplitude.mean(0).mean(-1)
        frequency[0] = 0
        top = torch.topk(frequency, self.k)[1].detach().cpu().numpy()
        res = []
        for f in top:
            period = T // max(int(f), 1)
            length = -(-T // period) * period
            y = F.pad(x, (0, 0, 0, length - T)).reshape(B, length // period, period, N).permute(0, 3, 1, 2).contiguous()
            y = F.gelu(torch.stack([c(y) for c in self.inc1], dim=-1).mean(-1))
            y = torch.stack([c(y) for c in self.inc2], dim=-1).mean(-1)
            res.append(y.permute(0, 2, 3, 1).reshape(B, -1, N)[:, :T])
        w = F.softmax(amplitude.mean(-1)[:, top], dim=1)
        return (torch.stack(res, dim=-1) * w[:, None, None]).sum(-1) + x


class TimesNet(nn.Module):
    def __init__(self, c=7, seq=48, pred=24, d=32, ff=32, layers=2):
        super().__init__()
        self.pred, self.token = pred, nn.Conv1d(c, d, 3, padding=1, padding_mode="circular", bias=False)
        nn.init.kaiming_normal_(self.token.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.time, self.dropout = nn.Linear(4, d, bias=False), nn.Dropout(0.1)
        self.predict_linear, self.projection = nn.Linear(seq, seq + pred), nn.Linear(d, c)
        self.blocks, self.norm = nn.ModuleList(TimesBlock(seq + pred, d, ff) for _ in range(layers)), nn.LayerNorm(d)

    def forward(self, x, mark):
        means = x.mean(1, keepdim=True).detach()
        x = x - means
        stdev = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5)
        x /= stdev
        h = self.dropout(self.token(x.permute(0, 2, 1)).transpose(1, 2) + self.time(mark))
        h = self.predict_linear(h.permute(0, 2, 1)).permute(0, 2, 1)
        for block in self.blocks:
            h = self.norm(block(h))
        return (self.projection(h) * stdev + means)[:, -self.pred :]


NETS = {
    "TD-MPC2": (TDMPC2, lambda: (torch.randn(4, 16, 24), torch.rand(3, 16, 4) * 2 - 1)),
    "TabR": (TabR, lambda: (torch.randn(16, 10), torch.stack([torch.randint(4, (16,)), torch.randint(7, (16,))], 1),
                            torch.randn(200, 10), torch.stack([torch.randint(4, (200,)), torch.randint(7, (200,))], 1),
                            torch.randint(3, (200,)))),
    "AITM": (AITM, lambda: (torch.stack([torch.randint(n, (16,)) for n in (100, 50, 20, 10, 5)], 1),
                            torch.rand(16, 6) * 100)),
    "Spikformer": (Spikformer, lambda: (torch.rand(8, 3, 32, 32),)),
    "DeepRC": (DeepRC, lambda: (torch.randint(20, (8, 40, 16)), torch.randint(1, 50, (8, 40)).float())),
    "instant NGP": (InstantNGP, lambda: (torch.randn(16, 3) * 0.1, torch.randn(16, 3))),
    "matrix capsules": (MatrixCaps, lambda: (torch.rand(8, 1, 28, 28),)),
    "TimesNet": (TimesNet, lambda: (torch.randn(8, 48, 7).cumsum(1), torch.rand(8, 48, 4) - 0.5)),
}  # fmt: skip
