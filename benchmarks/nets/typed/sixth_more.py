"""Eleven more networks typed from memory of their papers: IMPALA to PNA."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class ImpalaResidual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv0 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        y = self.conv0(F.relu(x))
        return x + self.conv1(F.relu(y))


class Impala(nn.Module):
    def __init__(self, num_actions=6, channels=(8, 16, 16), hidden=48):
        super().__init__()
        self.num_actions, self.hidden = num_actions, hidden
        stages, c_in = [], 3
        for c in channels:
            stages += [nn.Conv2d(c_in, c, 3, padding=1), nn.MaxPool2d(3, 2, 1), ImpalaResidual(c), ImpalaResidual(c)]
            c_in = c
        self.convs = nn.Sequential(*stages, nn.ReLU())
        self.fc = nn.Linear(c_in * 4 * 4, hidden)
        self.core = nn.LSTMCell(hidden + num_actions + 1, hidden)
        self.policy = nn.Linear(hidden, num_actions)
        self.baseline = nn.Linear(hidden, 1)

    def forward(self, frame, reward, done, last_action):
        T, B = frame.shape[:2]
        x = torch.flatten(frame, 0, 1).float() / 255.0
        x = F.relu(self.fc(self.convs(x).flatten(1)))
        one_hot = F.one_hot(last_action.view(T * B), self.num_actions).float()
        clipped = torch.clamp(reward, -1, 1).view(T * B, 1)
        core_input = torch.cat([x, clipped, one_hot], dim=-1).view(T, B, -1)
        h = core_input.new_zeros(B, self.hidden)
        c = core_input.new_zeros(B, self.hidden)
        outputs = []
        for inp, nd in zip(core_input.unbind(), (~done).float().unbind(), strict=True):
            nd = nd.view(-1, 1)
            h, c = self.core(inp, (nd * h, nd * c))
            outputs.append(h)
        core_output = torch.stack(outputs)
        return self.policy(core_output), self.baseline(core_output).squeeze(-1), (h, c)


class SpatialSoftmax(nn.Module):
    def __init__(self, h, w):
        super().__init__()
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        self.register_buffer("grid", torch.stack([xs.flatten(), ys.flatten()], dim=-1))

    def forward(self, x):
        attention = x.flatten(2).softmax(dim=-1)
        return (attention @ self.grid).flatten(1)


class Conv1dBlock(nn.Module):
    def __init__(self, c_in, c_out, k=5, groups=4):
        super().__init__()
        self.block = nn.Sequential(nn.Conv1d(c_in, c_out, k, padding=k // 2), nn.GroupNorm(groups, c_out), nn.Mish())

    def forward(self, x):
        return self.block(x)


class CondResBlock1d(nn.Module):
    def __init__(self, c_in, c_out, cond):
        super().__init__()
        self.c_out = c_out
        self.block1, self.block2 = Conv1dBlock(c_in, c_out), Conv1dBlock(c_out, c_out)
        self.cond_encoder = nn.Sequential(nn.Mish(), nn.Linear(cond, c_out * 2), nn.Unflatten(-1, (-1, 1)))
        self.residual = nn.Conv1d(c_in, c_out, 1) if c_in != c_out else nn.Identity()

    def forward(self, x, cond):
        out = self.block1(x)
        scale, bias = self.cond_encoder(cond).reshape(-1, 2, self.c_out, 1).unbind(1)
        out = scale * out + bias
        return self.block2(out) + self.residual(x)


class DiffusionPolicy(nn.Module):
    def __init__(self, action_dim=2, obs_steps=2, pos_dim=2, keypoints=16, dims=(16, 32, 48), t_dim=32):
        super().__init__()
        self.vision = nn.Sequential(
            nn.Conv2d(3, 16, 5, 2, 2), nn.GroupNorm(4, 16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.Conv2d(32, keypoints, 1), SpatialSoftmax(8, 8), nn.Linear(keypoints * 2, 32),
        )  # fmt: skip
        self.t_dim = t_dim
        self.step_encoder = nn.Sequential(nn.Linear(t_dim, t_dim * 4), nn.Mish(), nn.Linear(t_dim * 4, t_dim))
        cond = t_dim + obs_steps * (32 + pos_dim)
        pairs = list(zip((action_dim, *dims[:-1]), dims, strict=True))
        self.downs = nn.ModuleList(
            nn.ModuleList(
                [
                    CondResBlock1d(i, o, cond),
                    CondResBlock1d(o, o, cond),
                    nn.Conv1d(o, o, 3, 2, 1) if k < len(pairs) - 1 else nn.Identity(),
                ]
            )
            for k, (i, o) in enumerate(pairs)
        )
        self.mids = nn.ModuleList(CondResBlock1d(dims[-1], dims[-1], cond) for _ in range(2))
        self.ups = nn.ModuleList(
            nn.ModuleList([
                CondResBlock1d(o * 2, i, cond), CondResBlock1d(i, i, cond), nn.ConvTranspose1d(i, i, 4, 2, 1)
            ])
            for i, o in reversed(pairs[1:])
        )  # fmt: skip
        self.final = nn.Sequential(Conv1dBlock(dims[0], dims[0]), nn.Conv1d(dims[0], action_dim, 1))

    def forward(self, images, agent_pos, noisy_actions, timestep):
        b, steps = images.shape[:2]
        feats = self.vision(images.flatten(0, 1)).view(b, steps, -1)
        obs = torch.cat([feats, agent_pos], dim=-1).flatten(1)
        half = self.t_dim // 2
        freqs = torch.exp(torch.arange(half, device=obs.device) * -(math.log(10000) / (half - 1)))
        emb = timestep.float()[:, None] * freqs[None]
        cond = torch.cat([self.step_encoder(torch.cat([emb.sin(), emb.cos()], dim=-1)), obs], dim=-1)
        x, skips = noisy_actions.transpose(1, 2), []
        for res1, res2, down in self.downs:
            x = res2(res1(x, cond), cond)
            skips.append(x)
            x = down(x)
        for mid in self.mids:
            x = mid(x, cond)
        for res1, res2, up in self.ups:
            x = torch.cat((x, skips.pop()), dim=1)
            x = up(res2(res1(x, cond), cond))
        return self.final(x).transpose(1, 2)


def modulate(x, shift, scale):
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class DiTBlock(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, dim * 4), nn.GELU(approximate="tanh"), nn.Linear(dim * 4, dim))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))

    def attn(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))

    def forward(self, x, c):
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaLN_modulation(c).chunk(6, dim=1)
        x = x + gate_a.unsqueeze(1) * self.attn(modulate(self.norm1(x), shift_a, scale_a))
        return x + gate_m.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift_m, scale_m))


class DiT(nn.Module):
    def __init__(self, size=16, patch=2, channels=4, dim=48, depth=3, heads=4, classes=10, drop=0.1):
        super().__init__()
        self.patch, self.channels, self.dim, self.classes, self.drop = patch, channels, dim, classes, drop
        self.grid = size // patch
        self.x_embedder = nn.Conv2d(channels, dim, patch, patch)
        self.t_embedder = nn.Sequential(nn.Linear(64, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.y_embedder = nn.Embedding(classes + 1, dim)
        pos = torch.arange(self.grid).float()[:, None] / 10000 ** (torch.arange(dim // 4) / (dim // 4))
        axis = torch.cat([pos.sin(), pos.cos()], dim=1)
        rows = axis[:, None].expand(-1, self.grid, -1)
        self.pos_embed = nn.Parameter(torch.cat([rows, rows.transpose(0, 1)], -1).reshape(1, -1, dim), False)
        self.blocks = nn.ModuleList(DiTBlock(dim, heads) for _ in range(depth))
        self.norm_final = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.ada_final = nn.Sequential(nn.SiLU(), nn.Linear(dim, 2 * dim))
        self.linear = nn.Linear(dim, patch * patch * channels)
        self.initialize_weights()

    def initialize_weights(self):
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.xavier_uniform_(m.weight)
                nn.init.zeros_(m.bias)
        nn.init.xavier_uniform_(self.x_embedder.weight.data.view(self.dim, -1))
        nn.init.zeros_(self.x_embedder.bias)
        nn.init.normal_(self.y_embedder.weight, std=0.02)
        nn.init.normal_(self.t_embedder[0].weight, std=0.02)
        nn.init.normal_(self.t_embedder[2].weight, std=0.02)
        for block in self.blocks:
            nn.init.zeros_(block.adaLN_modulation[-1].weight)
        nn.init.zeros_(self.ada_final[-1].weight)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x, t, y):
        x = self.x_embedder(x).flatten(2).transpose(1, 2) + self.pos_embed
        args = 1000 * t[:, None] * torch.exp(-math.log(10000) * torch.arange(32, device=t.device) / 32)
        if self.training:
            y = torch.where(torch.rand(y.shape) < self.drop, torch.full_like(y, self.classes), y)
        c = self.t_embedder(torch.cat([args.cos(), args.sin()], dim=-1)) + self.y_embedder(y)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = self.ada_final(c).chunk(2, dim=1)
        x = self.linear(modulate(self.norm_final(x), shift, scale))
        x = x.view(-1, self.grid, self.grid, self.patch, self.patch, self.channels)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(x.shape[0], self.channels, self.grid * self.patch, -1)


class VRNN(nn.Module):
    def __init__(self, x_dim=20, h_dim=32, z_dim=8):
        super().__init__()
        self.h_dim = h_dim
        self.phi_x = nn.Sequential(nn.Linear(x_dim, h_dim), nn.ReLU(), nn.Linear(h_dim, h_dim), nn.ReLU())
        self.phi_z = nn.Sequential(nn.Linear(z_dim, h_dim), nn.ReLU())
        self.enc = nn.Sequential(nn.Linear(h_dim * 2, h_dim), nn.ReLU(), nn.Linear(h_dim, h_dim), nn.ReLU())
        self.enc_mean = nn.Linear(h_dim, z_dim)
        self.enc_std = nn.Sequential(nn.Linear(h_dim, z_dim), nn.Softplus())
        self.prior = nn.Sequential(nn.Linear(h_dim, h_dim), nn.ReLU())
        self.prior_mean = nn.Linear(h_dim, z_dim)
        self.prior_std = nn.Sequential(nn.Linear(h_dim, z_dim), nn.Softplus())
        self.dec = nn.Sequential(nn.Linear(h_dim * 2, h_dim), nn.ReLU(), nn.Linear(h_dim, h_dim), nn.ReLU())
        self.dec_mean = nn.Sequential(nn.Linear(h_dim, x_dim), nn.Sigmoid())
        self.rnn = nn.GRUCell(h_dim * 2, h_dim)

    def forward(self, x):
        h = torch.zeros(x.shape[1], self.h_dim, device=x.device)
        recon, kld = [], 0
        for x_t in x:
            phi_x = self.phi_x(x_t)
            e = self.enc(torch.cat([phi_x, h], 1))
            mu, std = self.enc_mean(e), self.enc_std(e) + 1e-4
            p = self.prior(h)
            p_mu, p_std = self.prior_mean(p), self.prior_std(p) + 1e-4
            z = mu + std * torch.randn_like(std)
            phi_z = self.phi_z(z)
            recon.append(self.dec_mean(self.dec(torch.cat([phi_z, h], 1))))
            h = self.rnn(torch.cat([phi_x, phi_z], 1), h)
            kl = torch.log(p_std / std) + (std.pow(2) + (mu - p_mu).pow(2)) / (2 * p_std.pow(2)) - 0.5
            kld = kld + kl.sum(1)
        return torch.stack(recon), kld


def edge_features(x, k):
    b, c, n = x.shape
    with torch.no_grad():
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        sq = (x**2).sum(1, keepdim=True)
        idx = (-sq - inner - sq.transpose(2, 1)).topk(k, dim=-1)[1]
    idx = (idx + torch.arange(b, device=x.device).view(-1, 1, 1) * n).view(-1)
    flat = x.transpose(2, 1).reshape(b * n, c)
    neighbours = flat[idx].view(b, n, k, c)
    centre = flat.view(b, n, 1, c).expand(-1, -1, k, -1)
    return torch.cat((neighbours - centre, centre), dim=3).permute(0, 3, 1, 2)


class DGCNN(nn.Module):
    def __init__(self, k=8, widths=(16, 16, 32, 64), emb=64, classes=10):
        super().__init__()
        self.k = k
        self.convs = nn.ModuleList()
        c_in = 3
        for c in widths:
            self.convs.append(
                nn.Sequential(nn.Conv2d(c_in * 2, c, 1, bias=False), nn.BatchNorm2d(c), nn.LeakyReLU(0.2))
            )
            c_in = c
        self.conv5 = nn.Sequential(nn.Conv1d(sum(widths), emb, 1, bias=False), nn.BatchNorm1d(emb), nn.LeakyReLU(0.2))
        self.linear1, self.bn6 = nn.Linear(emb * 2, 64, bias=False), nn.BatchNorm1d(64)
        self.linear2, self.bn7 = nn.Linear(64, 32), nn.BatchNorm1d(32)
        self.dp = nn.Dropout(0.5)
        self.linear3 = nn.Linear(32, classes)

    def forward(self, points):
        x, outs = points.transpose(1, 2), []
        for conv in self.convs:
            x = conv(edge_features(x, self.k)).max(dim=-1)[0]
            outs.append(x)
        x = self.conv5(torch.cat(outs, dim=1))
        x = torch.cat((F.adaptive_max_pool1d(x, 1).squeeze(-1), F.adaptive_avg_pool1d(x, 1).squeeze(-1)), 1)
        x = self.dp(F.leaky_relu(self.bn6(self.linear1(x)), 0.2))
        x = self.dp(F.leaky_relu(self.bn7(self.linear2(x)), 0.2))
        return self.linear3(x)


class HyperSiren(nn.Module):
    def __init__(self, coords=2, values=3, hidden=24, layers=3, latent=32, w0=30.0):
        super().__init__()
        self.w0 = w0
        self.shapes = [(coords, hidden)] + [(hidden, hidden)] * (layers - 1) + [(hidden, values)]
        self.encoder = nn.Sequential(
            nn.Linear(coords + values, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, latent)
        )
        self.base_w, self.base_b, self.hypernets = nn.ParameterList(), nn.ParameterList(), nn.ModuleList()
        for i, (n_in, n_out) in enumerate(self.shapes):
            bound = 1 / n_in if i == 0 else math.sqrt(6 / n_in) / w0
            self.base_w.append(nn.Parameter(torch.empty(n_in, n_out).uniform_(-bound, bound)))
            self.base_b.append(nn.Parameter(torch.zeros(n_out)))
            net = nn.Sequential(nn.Linear(latent, 32), nn.ReLU(), nn.Linear(32, (n_in + 1) * n_out))
            nn.init.kaiming_normal_(net[-1].weight, a=0.0, nonlinearity="relu", mode="fan_in")
            with torch.no_grad():
                net[-1].weight.mul_(1e-2)
                net[-1].bias.zero_()
            self.hypernets.append(net)

    def forward(self, ctx_xy, ctx_v, xy):
        z = self.encoder(torch.cat([ctx_xy, ctx_v], dim=-1)).mean(dim=1)
        h = xy
        for i, (n_in, n_out) in enumerate(self.shapes):
            dw, db = self.hypernets[i](z).split([n_in * n_out, n_out], dim=-1)
            w = self.base_w[i] + dw.view(-1, n_in, n_out)
            h = torch.baddbmm((self.base_b[i] + db).unsqueeze(1), h, w)
            if i < len(self.shapes) - 1:
                h = torch.sin(self.w0 * h)
        return h, z.pow(2).mean()


class FactorizedLinear(nn.Module):
    def __init__(self, n_in, n_out, mean=0.5, std=0.1):
        super().__init__()
        w = nn.init.xavier_normal_(torch.empty(n_out, n_in))
        g = torch.exp(mean + std * torch.randn(n_out, 1))
        self.g, self.v = nn.Parameter(g), nn.Parameter(w / g)
        self.bias = nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return F.linear(x, self.g * self.v, self.bias)


class PirateNet(nn.Module):
    def __init__(self, width=32, blocks=3, sigma=1.0, period=2.0):
        super().__init__()
        self.freq = 2 * math.pi / period
        self.kernel = nn.Parameter(torch.randn(3, width // 2) * sigma)
        self.u, self.v = FactorizedLinear(width, width), FactorizedLinear(width, width)
        self.layers = nn.ModuleList(
            nn.ModuleList(FactorizedLinear(width, width) for _ in range(3)) for _ in range(blocks)
        )
        self.alphas = nn.Parameter(torch.zeros(blocks))
        self.out = nn.Linear(width, 1, bias=False)

    def forward(self, t, x):
        feats = torch.cat([t, torch.cos(self.freq * x), torch.sin(self.freq * x)], dim=-1)
        proj = feats @ self.kernel
        phi = torch.cat([proj.cos(), proj.sin()], dim=-1)
        u, v = torch.tanh(self.u(phi)), torch.tanh(self.v(phi))
        h = phi
        for (d1, d2, d3), alpha in zip(self.layers, self.alphas, strict=True):
            f = torch.tanh(d1(h))
            f = f * u + (1 - f) * v
            f = torch.tanh(d2(f))
            f = f * u + (1 - f) * v
            h = alpha * torch.tanh(d3(f)) + (1 - alpha) * h
        initial = x**2 * torch.cos(math.pi * x)
        return initial + t * self.out(h)


class DeepHit(nn.Module):
    def __init__(self, n_num=9, cards=(4, 7, 3), causes=2, bins=20, width=32, p=0.2):
        super().__init__()
        self.causes, self.bins = causes, bins
        self.embeds = nn.ModuleList(nn.Embedding(c, (c + 1) // 2) for c in cards)
        self.bn_in = nn.BatchNorm1d(n_num)
        n_in = n_num + sum((c + 1) // 2 for c in cards)

        def block(i, o):
            return [nn.Linear(i, o), nn.ReLU(), nn.BatchNorm1d(o), nn.Dropout(p)]

        self.shared = nn.Sequential(*block(n_in, width), *block(width, width))
        self.specific = nn.ModuleList(
            nn.Sequential(*block(width + n_in, width), nn.Linear(width, bins)) for _ in range(causes)
        )
        self.beyond = nn.Parameter(torch.zeros(1))

    def forward(self, num, cat):
        x = torch.cat([self.bn_in(num)] + [e(cat[:, i]) for i, e in enumerate(self.embeds)], dim=1)
        z = torch.cat([self.shared(x), x], dim=1)
        logits = torch.cat([net(z) for net in self.specific], dim=1)
        logits = torch.cat([logits, self.beyond.expand(len(x), 1)], dim=1)
        pmf = logits.softmax(dim=1)[:, :-1].view(-1, self.causes, self.bins)
        cif = pmf.cumsum(dim=-1)
        return pmf, cif, 1 - cif.sum(1)


class CGC(nn.Module):
    def __init__(self, n_in, width, tasks, specific, shared, last):
        super().__init__()
        self.tasks, self.last = tasks, last

        def expert():
            return nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())

        self.specific = nn.ModuleList(nn.ModuleList(expert() for _ in range(specific)) for _ in range(tasks))
        self.shared = nn.ModuleList(expert() for _ in range(shared))
        self.gates = nn.ModuleList(nn.Linear(n_in, specific + shared, bias=False) for _ in range(tasks))
        if not last:
            self.shared_gate = nn.Linear(n_in, specific * tasks + shared, bias=False)

    def forward(self, xs):
        shared = [e(xs[-1]) for e in self.shared]
        own = [[e(xs[t]) for e in self.specific[t]] for t in range(self.tasks)]
        outs = []
        for t in range(self.tasks):
            experts = torch.stack(own[t] + shared, dim=1)
            outs.append(torch.einsum("be,bed->bd", self.gates[t](xs[t]).softmax(-1), experts))
        if not self.last:
            experts = torch.stack([e for es in own for e in es] + shared, dim=1)
            outs.append(torch.einsum("be,bed->bd", self.shared_gate(xs[-1]).softmax(-1), experts))
        return outs


class PLE(nn.Module):
    def __init__(self, fields=(50, 30, 12), items=80, emb=8, dense=5, width=32, tasks=2):
        super().__init__()
        self.tasks = tasks
        self.embeddings = nn.ModuleList(nn.Embedding(n, emb) for n in fields)
        self.history = nn.EmbeddingBag(items, emb, mode="mean", padding_idx=0)
        n_in = emb * (len(fields) + 1) + dense
        self.layer1 = CGC(n_in, width, tasks, 2, 2, last=False)
        self.layer2 = CGC(width, width, tasks, 2, 1, last=True)
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)) for _ in range(tasks)
        )
        for e in [*self.embeddings, self.history]:
            nn.init.normal_(e.weight, std=1e-2)

    def forward(self, sparse, history, dense):
        x = [e(sparse[:, i]) for i, e in enumerate(self.embeddings)]
        x = torch.cat([*x, self.history(history), torch.log1p(dense)], dim=1)
        hs = self.layer2(self.layer1([x] * (self.tasks + 1)))
        ctr, cvr = (tower(h).squeeze(-1).sigmoid() for tower, h in zip(self.towers, hs, strict=True))
        return ctr, ctr * cvr


class FastSigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, slope=25.0):
        ctx.save_for_backward(v)
        ctx.slope = slope
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (ctx.slope * v.abs() + 1.0) ** 2, None


class LIF(nn.Module):
    def __init__(self, beta=0.9, threshold=1.0):
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(math.log(beta / (1 - beta))))
        self.threshold = threshold

    def forward(self, current, mem):
        reset = (mem.detach() > self.threshold).float()
        mem = torch.sigmoid(self.logit) * mem + current - reset * self.threshold
        return FastSigmoid.apply(mem - self.threshold), mem


class SpikingNet(nn.Module):
    def __init__(self, classes=10, steps=6):
        super().__init__()
        self.steps = steps
        self.conv1, self.bn1, self.lif1 = nn.Conv2d(2, 16, 5, padding=2), nn.BatchNorm2d(16), LIF()
        self.conv2, self.bn2, self.lif2 = nn.Conv2d(16, 32, 5, padding=2), nn.BatchNorm2d(32), LIF()
        self.fc1, self.lif3 = nn.Linear(32 * 4 * 4, 64), LIF()
        self.fc2 = nn.Linear(64, classes)
        self.leak = nn.Parameter(torch.tensor(0.9))

    def forward(self, events):
        m1 = m2 = m3 = torch.zeros(1, device=events.device)
        out, rate = 0.0, 0.0
        for t in range(self.steps):
            s, m1 = self.lif1(F.max_pool2d(self.bn1(self.conv1(events[:, t])), 2), m1)
            s, m2 = self.lif2(F.max_pool2d(self.bn2(self.conv2(s)), 2), m2)
            s, m3 = self.lif3(self.fc1(s.flatten(1)), m3)
            out = self.leak.clamp(0, 1) * out + self.fc2(s)
            rate = rate + s.mean()
        return out / self.steps, rate / self.steps


class PNAConv(nn.Module):
    def __init__(self, dim, edge_dim, avg_log_degree):
        super().__init__()
        self.avg_log_degree = avg_log_degree
        self.edge_encoder = nn.Linear(edge_dim, dim)
        self.pre = nn.Sequential(nn.Linear(3 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.post = nn.Sequential(nn.Linear(13 * dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, x, src, dst, edge_attr):
        n, d = x.shape
        m = self.pre(torch.cat([x[dst], x[src], self.edge_encoder(edge_attr)], dim=-1))
        index = dst[:, None].expand(-1, d)
        zero = x.new_zeros(n, d)
        mean = zero.scatter_reduce(0, index, m, "mean", include_self=False)
        sq = zero.scatter_reduce(0, index, m * m, "mean", include_self=False)
        std = torch.sqrt(F.relu(sq - mean * mean) + 1e-5)
        high = zero.scatter_reduce(0, index, m, "amax", include_self=False)
        low = zero.scatter_reduce(0, index, m, "amin", include_self=False)
        agg = torch.cat([mean, low, high, std], dim=-1)
        degree = torch.zeros(n, device=x.device).index_add_(0, dst, torch.ones(len(dst), device=x.device))
        log_degree = torch.log(degree.clamp(min=1) + 1)[:, None]
        agg = torch.cat([agg, agg * (log_degree / self.avg_log_degree), agg * (self.avg_log_degree / log_degree)], -1)
        return self.post(torch.cat([x, agg], dim=-1))


class PNA(nn.Module):
    def __init__(self, atoms=20, bonds=4, dim=24, layers=3, avg_log_degree=1.2):
        super().__init__()
        self.node_emb, self.edge_emb = nn.Embedding(atoms, dim), nn.Embedding(bonds, 12)
        self.convs = nn.ModuleList(PNAConv(dim, 12, avg_log_degree) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(dim) for _ in range(layers))
        self.gru = nn.GRU(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, atoms, edge_index, bonds, batch):
        x, e = self.node_emb(atoms), self.edge_emb(bonds)
        src, dst = edge_index
        h = x.unsqueeze(0)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            m = F.relu(norm(conv(x, src, dst, e)))
            x, h = self.gru(m.unsqueeze(0), h)
            x = x.squeeze(0)
        pooled = x.new_zeros(int(batch.max()) + 1, x.shape[1]).index_add_(0, batch, x)
        return self.mlp(pooled)


def rollout():
    """Return frames, rewards, ends of episodes and actions, time first."""
    frames = torch.randint(256, (6, 4, 3, 32, 32), dtype=torch.uint8)
    return frames, torch.randn(6, 4), torch.rand(6, 4) < 0.2, torch.randint(6, (6, 4))


def demonstration():
    """Return images, positions, noisy actions and the step of the noise."""
    return torch.rand(4, 2, 3, 32, 32), torch.randn(4, 2, 2), torch.randn(4, 16, 2), torch.randint(100, (4,))


def shoppers():
    """Return fields, bought items and counts."""
    fields = torch.stack([torch.randint(n, (32,)) for n in (50, 30, 12)], dim=1)
    return fields, torch.randint(80, (32, 10)), torch.rand(32, 5) * 20


def molecules():
    """Return atoms, edges, bonds and the molecule of each atom."""
    a = torch.arange(60)
    b = a // 12 * 12 + torch.randint(12, (60,))
    index = torch.stack([torch.cat([a, b]), torch.cat([b, a])])
    return torch.randint(20, (60,)), index, torch.randint(4, (120,)), a // 12


NETS = {
    "IMPALA": (Impala, rollout),
    "diffusion policy": (DiffusionPolicy, demonstration),
    "DiT": (DiT, lambda: (torch.randn(4, 4, 16, 16), torch.rand(4), torch.randint(10, (4,)))),
    "VRNN": (VRNN, lambda: (torch.rand(10, 8, 20),)),
    "DGCNN": (DGCNN, lambda: (torch.randn(8, 64, 3),)),
    "hypernetwork SIREN": (
        HyperSiren,
        lambda: (torch.rand(4, 40, 2) * 2 - 1, torch.rand(4, 40, 3), torch.rand(4, 100, 2) * 2 - 1),
    ),
    "PirateNet": (PirateNet, lambda: (torch.rand(128, 1), torch.rand(128, 1) * 2 - 1)),
    "DeepHit": (
        DeepHit,
        lambda: (torch.randn(64, 9), torch.stack([torch.randint(n, (64,)) for n in (4, 7, 3)], dim=1)),
    ),
    "PLE": (PLE, shoppers),
    "spiking network": (SpikingNet, lambda: ((torch.rand(8, 6, 2, 16, 16) < 0.3).float(),)),
    "PNA": (PNA, molecules),
}
