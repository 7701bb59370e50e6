"""Networks typed by hand as their repositories have them: ConvCNP, S5, Diffusion-LM."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def init_layer_weights(layer):
    nn.init.xavier_normal_(layer.weight, gain=1)
    nn.init.constant_(layer.bias, 1e-3)


def compute_dists(x, y):
    return (x - y.permute(0, 2, 1)) ** 2


class ConvDeepSet(nn.Module):
    """Points to a grid by kernels of learnt widths, with the density of the points as a channel."""

    def __init__(self, in_channels, out_channels, init_length_scale):
        super().__init__()
        self.in_channels, self.out_channels = in_channels + 1, out_channels
        self.g = nn.Sequential(nn.Linear(self.in_channels, self.out_channels))
        init_layer_weights(self.g[0])
        self.sigma = nn.Parameter(np.log(init_length_scale) * torch.ones(self.in_channels), requires_grad=True)

    def rbf(self, dists):
        scales = torch.exp(self.sigma)[None, None, None, :]
        return torch.exp(-0.5 * dists.unsqueeze(-1) / scales**2)

    def forward(self, context_x, context_y, t):
        batch_size, n_in, _ = context_x.shape
        wt = self.rbf(compute_dists(context_x, t))
        density = torch.ones(batch_size, n_in, 1, device=context_x.device)
        y_out = torch.cat([density, context_y], dim=2)
        y_out = y_out.view(batch_size, n_in, -1, self.in_channels) * wt
        y_out = y_out.sum(1)
        density, conv = y_out[..., :1], y_out[..., 1:]
        y_out = torch.cat((density, conv / (density + 1e-8)), dim=-1)
        return self.g(y_out)


class FinalLayer(nn.Module):
    """From the grid to the targets by kernels, and a linear map."""

    def __init__(self, in_channels, init_length_scale, out_channels=1):
        super().__init__()
        self.in_channels = in_channels
        self.g = nn.Sequential(nn.Linear(in_channels, out_channels))
        init_layer_weights(self.g[0])
        self.sigma = nn.Parameter(np.log(init_length_scale) * torch.ones(in_channels), requires_grad=True)

    def forward(self, x, y, t):
        dists = compute_dists(x, t).unsqueeze(-1)
        wt = torch.exp(-0.5 * dists / torch.exp(self.sigma)[None, None, None, :] ** 2)
        return self.g((y.unsqueeze(2) * wt).sum(1))


class UNet(nn.Module):
    """Six strided convolutions and six transposed ones, with skips."""

    def __init__(self, c=8):
        super().__init__()
        self.activation, self.in_channels, self.out_channels, self.num_halving_layers = nn.ReLU(), c, 2 * c, 6
        down = [(1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (4, 8)]
        up = [(8, 4), (8, 4), (8, 2), (4, 2), (4, 1), (2, 1)]
        self.down = nn.ModuleList([nn.Conv1d(a * c, b * c, 5, stride=2, padding=2) for a, b in down])
        self.up = nn.ModuleList(
            [nn.ConvTranspose1d(a * c, b * c, 5, stride=2, padding=2, output_padding=1) for a, b in up]
        )
        for layer in [*self.down, *self.up]:
            init_layer_weights(layer)

    def forward(self, x):
        hs, h = [], x
        for layer in self.down:
            h = self.activation(layer(h))
            hs.append(h)
        h = self.activation(self.up[0](hs.pop()))
        for layer in self.up[1:]:
            h = self.activation(layer(torch.cat([hs.pop(), h], dim=1)))
        return torch.cat([x, h], dim=1)


def to_multiple(x, multiple):
    return x if x % multiple == 0 else x + multiple - x % multiple


class ConvCNP1d(nn.Module):
    """Convolutional conditional neural process: means and deviations at the targets."""

    def __init__(self, points_per_unit=32):
        super().__init__()
        self.activation, self.sigma_fn = nn.Sigmoid(), nn.Softplus()
        self.conv_net = UNet()
        self.multiplier, self.points_per_unit = 2**self.conv_net.num_halving_layers, points_per_unit
        init_length_scale = 2.0 / points_per_unit
        self.l0 = ConvDeepSet(1, self.conv_net.in_channels, init_length_scale)
        self.mean_layer = FinalLayer(self.conv_net.out_channels, init_length_scale)
        self.sigma_layer = FinalLayer(self.conv_net.out_channels, init_length_scale)

    def forward(self, x, y, x_out):
        x_min = min(x.min().item(), x_out.min().item(), -2.0) - 0.1
        x_max = max(x.max().item(), x_out.max().item(), 2.0) + 0.1
        num_points = to_multiple(math.ceil(self.points_per_unit * (x_max - x_min)), self.multiplier)
        x_grid = torch.linspace(x_min, x_max, num_points, device=x.device)
        x_grid = x_grid[None, :, None].repeat(x.shape[0], 1, 1)
        h = self.activation(self.l0(x, y, x_grid))
        h = self.conv_net(h.permute(0, 2, 1))
        h = h.permute(0, 2, 1)
        return self.mean_layer(x_grid, h, x_out), self.sigma_fn(self.sigma_layer(x_grid, h, x_out))


def make_dplr_hippo(n):
    """The normal part of HiPPO-LegS diagonalised: eigenvalues and eigenvectors."""
    p = np.sqrt(1 + 2 * np.arange(n))
    a = -(np.tril(p[:, None] * p[None, :]) - np.diag(np.arange(n)))
    low_rank = np.sqrt(np.arange(n) + 0.5)
    s = a + low_rank[:, None] * low_rank[None, :]
    lambda_real = np.mean(np.diagonal(s)) * np.ones(n)
    lambda_imag, v = np.linalg.eigh(s * -1j)
    return lambda_real + 1j * lambda_imag, v


def associative_scan(a, b):
    """All prefixes of x -> a x + b along the second axis, in steps that double."""
    length, shift = b.shape[1], 1
    a = a.expand(length, -1)
    while shift < length:
        b = torch.cat([b[:, :shift], a[shift:] * b[:, :-shift] + b[:, shift:]], dim=1)
        a = torch.cat([a[:shift], a[shift:] * a[:-shift]], dim=0)
        shift *= 2
    return b


class S5SSM(nn.Module):
    """One diagonal state space for all channels, half of the conjugate pairs kept, discretised by a hold."""

    def __init__(self, H, ssm_size=64, blocks=4, dt_min=0.001, dt_max=0.1, clip_eigs=False):
        super().__init__()
        self.clip_eigs = clip_eigs
        half = ssm_size // blocks // 2
        lam, v = make_dplr_hippo(ssm_size // blocks)
        lam, v = np.tile(lam[:half], blocks), torch.from_numpy(np.kron(np.eye(blocks), v[:, :half])).cfloat()
        self.Lambda_re = nn.Parameter(torch.from_numpy(lam.real).float())
        self.Lambda_im = nn.Parameter(torch.from_numpy(lam.imag).float())
        b = torch.randn(ssm_size, H).cfloat() / math.sqrt(H)
        self.B = nn.Parameter(torch.view_as_real(v.conj().t() @ b))
        c = torch.randn(H, ssm_size, 2) / math.sqrt(2 * ssm_size)
        self.C = nn.Parameter(torch.view_as_real(torch.view_as_complex(c) @ v))
        self.D = nn.Parameter(torch.randn(H))
        span = math.log(dt_max) - math.log(dt_min)
        self.log_step = nn.Parameter(torch.rand(len(lam), 1) * span + math.log(dt_min))

    def forward(self, u):
        lam_re = torch.clamp(self.Lambda_re, max=-1e-4) if self.clip_eigs else self.Lambda_re
        lam = torch.complex(lam_re, self.Lambda_im)
        step = torch.exp(self.log_step[:, 0])
        lam_bar = torch.exp(lam * step)
        b_bar = (1 / lam * (lam_bar - 1))[..., None] * torch.view_as_complex(self.B)
        bu = u.to(b_bar.dtype) @ b_bar.t()
        xs = associative_scan(lam_bar, bu)
        ys = 2 * (xs @ torch.view_as_complex(self.C).t()).real
        return ys + self.D * u


class S5Layer(nn.Module):
    """Norm, state space, GELU, half a gated linear unit, and the skip."""

    def __init__(self, d_model, dropout=0.1):
        super().__init__()
        self.norm, self.seq = nn.LayerNorm(d_model), S5SSM(d_model)
        self.out2, self.drop = nn.Linear(d_model, d_model), nn.Dropout(dropout)

    def forward(self, x):
        skip = x
        x = self.seq(self.norm(x))
        x1 = self.drop(F.gelu(x))
        x = self.drop(x * torch.sigmoid(self.out2(x1)))
        return skip + x


class S5Classifier(nn.Module):
    """Encoder, layers, mean over the used steps, and classes' log-probabilities."""

    def __init__(self, d_input=8, d_model=64, n_layers=4, d_output=10):
        super().__init__()
        self.encoder = nn.Linear(d_input, d_model)
        self.layers = nn.ModuleList([S5Layer(d_model) for _ in range(n_layers)])
        self.decoder = nn.Linear(d_model, d_output)

    def forward(self, x, lengths):
        x = self.encoder(x)
        for layer in self.layers:
            x = layer(x)
        mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        x = torch.sum(mask[..., None] * x, dim=1) / lengths[:, None]
        return F.log_softmax(self.decoder(x), dim=-1)


class BertLayer(nn.Module):
    """Self-attention and feed-forward layers, each with its norm after the residual."""

    def __init__(self, hidden, heads, intermediate, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.intermediate, self.output = nn.Linear(hidden, intermediate), nn.Linear(intermediate, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
        probs = self.dropout(F.softmax(scores, dim=-1))
        context = torch.matmul(probs, v).permute(0, 2, 1, 3).contiguous().flatten(2)
        x = self.attention_norm(self.dropout(self.attention_output(context)) + x)
        y = self.output(F.gelu(self.intermediate(x)))
        return self.output_norm(self.dropout(y) + x)


def timestep_embedding(timesteps, dim, max_period=10000):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(0, half, dtype=torch.float32) / half)
    args = timesteps[:, None].float() * freqs.to(timesteps.device)[None]
    return torch.cat([torch.cos(args), torch.sin(args)], dim=-1)


class TransformerNetModel2(nn.Module):
    """The denoiser: noisy embeddings with positions and time through BERT's encoder, to clean embeddings."""

    def __init__(self, in_channels=16, model_channels=32, hidden=64, heads=4, layers=4, vocab_size=821, max_len=64):
        super().__init__()
        self.model_channels = model_channels
        self.word_embedding = nn.Embedding(vocab_size, in_channels)
        self.lm_head = nn.Linear(in_channels, vocab_size)
        with torch.no_grad():
            self.lm_head.weight = self.word_embedding.weight
        self.time_embed = nn.Sequential(
            nn.Linear(model_channels, model_channels * 4), nn.SiLU(), nn.Linear(model_channels * 4, hidden)
        )
        self.input_up_proj = nn.Sequential(nn.Linear(in_channels, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
        self.input_transformers = nn.ModuleList([BertLayer(hidden, heads, 4 * hidden) for _ in range(layers)])
        self.register_buffer("position_ids", torch.arange(max_len).expand((1, -1)))
        self.position_embeddings = nn.Embedding(max_len, hidden)
        self.LayerNorm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(0.1)
        self.output_down_proj = nn.Sequential(nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, in_channels))

    def get_embeds(self, input_ids):
        return self.word_embedding(input_ids)

    def get_logits(self, hidden_repr):
        return self.lm_head(hidden_repr)

    def forward(self, x, timesteps):
        emb = self.time_embed(timestep_embedding(timesteps, self.model_channels))
        emb_x = self.input_up_proj(x)
        seq_length = x.size(1)
        position_ids = self.position_ids[:, :seq_length]
        emb_inputs = self.position_embeddings(position_ids) + emb_x + emb.unsqueeze(1).expand(-1, seq_length, -1)
        h = self.dropout(self.LayerNorm(emb_inputs))
        for layer in self.input_transformers:
            h = layer(h)
        return self.output_down_proj(h).type(x.dtype)


class DiffusionLM(nn.Module):
    """A step of its training: words embedded with noise, diffused, denoised; and the words' logits."""

    def __init__(self, steps=2000):
        super().__init__()
        self.model = TransformerNetModel2()
        self.num_timesteps = steps
        alpha_bar = [1 - np.sqrt(i / steps + 0.0001) for i in range(steps + 1)]
        betas = np.array([min(1 - alpha_bar[i + 1] / alpha_bar[i], 0.999) for i in range(steps)])
        alphas_cumprod = np.cumprod(1.0 - betas)
        self.register_buffer("sqrt_alphas_cumprod", torch.from_numpy(np.sqrt(alphas_cumprod)).float())
        self.register_buffer("sqrt_one_minus_alphas_cumprod", torch.from_numpy(np.sqrt(1 - alphas_cumprod)).float())

    def q_sample(self, x_start, t, noise):
        scale = self.sqrt_alphas_cumprod[t][:, None, None]
        return scale * x_start + self.sqrt_one_minus_alphas_cumprod[t][:, None, None] * noise

    def forward(self, input_ids, t):
        x_start_mean = self.model.get_embeds(input_ids)
        std = self.sqrt_one_minus_alphas_cumprod[0]
        x_start = x_start_mean + std * torch.randn_like(x_start_mean)
        x_t = self.q_sample(x_start, t, torch.randn_like(x_start))
        model_output = self.model(x_t, t.float() * (1000.0 / self.num_timesteps))
        return model_output, self.model.get_logits(x_start)


def regressions(batch=8, context=12, target=24):
    """Sums of sines at points drawn from [-2, 2]."""
    x = torch.rand(batch, context + target, 1) * 4 - 2
    y = torch.sin(3 * x + torch.rand(batch, 1, 1) * 6) + 0.5 * torch.sin(7 * x)
    return x[:, :context], y[:, :context], x[:, context:]


def series(batch=8, length=96, channels=8):
    lengths = torch.tensor([96, 80, 96, 64, 72, 96, 90, 50])[:batch]
    steps = torch.randn(batch, length, channels)
    return steps * (torch.arange(length) < lengths[:, None]).unsqueeze(-1), lengths


def reviews(batch=8, length=64, vocab=821):
    """Words between START and END, padded with PAD to the full length, and steps of the diffusion."""
    lengths = torch.randint(20, length + 1, (batch, 1))
    ids = torch.randint(4, vocab, (batch, length)).masked_fill(torch.arange(length) >= lengths, 3)
    ids = ids.masked_fill(torch.arange(length) == lengths - 1, 1)
    ids[:, 0] = 0
    return ids, torch.randint(2000, (batch,))


NETS = {
    "ConvCNP": (ConvCNP1d, regressions),
    "S5": (S5Classifier, series),
    "Diffusion-LM": (DiffusionLM, reviews),
}
