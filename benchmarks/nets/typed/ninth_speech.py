"""Glow-TTS, typed by hand as its repository has it."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def sequence_mask(length, max_length):
    return torch.arange(max_length, device=length.device).unsqueeze(0) < length.unsqueeze(1)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of a sequence, channels first."""

    def __init__(self, channels, eps=1e-4):
        super().__init__()
        self.eps, self.gamma, self.beta = eps, nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        mean = torch.mean(x, 1, keepdim=True)
        variance = torch.mean((x - mean) ** 2, 1, keepdim=True)
        x = (x - mean) * torch.rsqrt(variance + self.eps)
        return x * self.gamma.view(1, -1, 1) + self.beta.view(1, -1, 1)


class ConvReluNorm(nn.Module):
    """Prenet: residual stack whose last projection starts at zero."""

    def __init__(self, c, kernel=5, layers=3, p_dropout=0.5):
        super().__init__()
        self.conv_layers = nn.ModuleList(nn.Conv1d(c, c, kernel, padding=kernel // 2) for _ in range(layers))
        self.norm_layers = nn.ModuleList(ChannelNorm(c) for _ in range(layers))
        self.relu_drop = nn.Sequential(nn.ReLU(), nn.Dropout(p_dropout))
        self.proj = nn.Conv1d(c, c, 1)
        self.proj.weight.data.zero_()
        self.proj.bias.data.zero_()

    def forward(self, x, x_mask):
        x_org = x
        for conv, norm in zip(self.conv_layers, self.norm_layers, strict=True):
            x = self.relu_drop(norm(conv(x * x_mask)))
        return (x_org + self.proj(x)) * x_mask


class RelativeAttention(nn.Module):
    """Self-attention with learnt relative keys and values inside a window."""

    def __init__(self, channels, n_heads=2, window=4, p_dropout=0.1):
        super().__init__()
        self.n_heads, self.window, self.kc = n_heads, window, channels // n_heads
        self.conv_q, self.conv_k, self.conv_v, self.conv_o = (nn.Conv1d(channels, channels, 1) for _ in range(4))
        stddev = self.kc**-0.5
        self.emb_rel_k = nn.Parameter(torch.randn(1, window * 2 + 1, self.kc) * stddev)
        self.emb_rel_v = nn.Parameter(torch.randn(1, window * 2 + 1, self.kc) * stddev)
        self.drop = nn.Dropout(p_dropout)
        for conv in (self.conv_q, self.conv_k, self.conv_v):
            nn.init.xavier_uniform_(conv.weight)

    def get_relative_embeddings(self, emb, length):
        pad = max(length - (self.window + 1), 0)
        start = max((self.window + 1) - length, 0)
        return F.pad(emb, (0, 0, pad, pad))[:, start : start + 2 * length - 1]

    @staticmethod
    def relative_to_absolute(x):
        b, h, n, _ = x.shape
        x = F.pad(x, (0, 1)).view(b, h, n * 2 * n)
        return F.pad(x, (0, n - 1)).view(b, h, n + 1, 2 * n - 1)[:, :, :n, n - 1 :]

    @staticmethod
    def absolute_to_relative(x):
        b, h, n, _ = x.shape
        x = F.pad(x, (0, n - 1)).view(b, h, n**2 + n * (n - 1))
        return F.pad(x, (n, 0)).view(b, h, n, 2 * n)[:, :, :, 1:]

    def forward(self, x, attn_mask):
        b, d, t = x.shape
        q, k, v = (
            f(x).view(b, self.n_heads, self.kc, t).transpose(2, 3) for f in (self.conv_q, self.conv_k, self.conv_v)
        )
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.kc)
        rel_k = self.get_relative_embeddings(self.emb_rel_k, t)
        rel_logits = torch.matmul(q, rel_k.unsqueeze(0).transpose(-2, -1))
        scores = scores + self.relative_to_absolute(rel_logits) / math.sqrt(self.kc)
        p_attn = self.drop(F.softmax(scores.masked_fill(attn_mask == 0, -1e4), dim=-1))
        output = torch.matmul(p_attn, v)
        rel_v = self.get_relative_embeddings(self.emb_rel_v, t)
        output = output + torch.matmul(self.absolute_to_relative(p_attn), rel_v.unsqueeze(0))
        return self.conv_o(output.transpose(2, 3).reshape(b, d, t))


class ConvFFN(nn.Module):
    def __init__(self, channels, filters, kernel=3, p_dropout=0.1):
        super().__init__()
        self.conv_1 = nn.Conv1d(channels, filters, kernel, padding=kernel // 2)
        self.conv_2 = nn.Conv1d(filters, channels, kernel, padding=kernel // 2)
        self.drop = nn.Dropout(p_dropout)

    def forward(self, x, x_mask):
        x = self.drop(torch.relu(self.conv_1(x * x_mask)))
        return self.conv_2(x * x_mask) * x_mask


class DurationPredictor(nn.Module):
    """Log durations of the symbols."""

    def __init__(self, cin, filters, kernel=3, p_dropout=0.1):
        super().__init__()
        self.drop = nn.Dropout(p_dropout)
        self.conv_1, self.norm_1 = nn.Conv1d(cin, filters, kernel, padding=kernel // 2), ChannelNorm(filters)
        self.conv_2, self.norm_2 = nn.Conv1d(filters, filters, kernel, padding=kernel // 2), ChannelNorm(filters)
        self.proj = nn.Conv1d(filters, 1, 1)

    def forward(self, x, x_mask):
        x = self.drop(self.norm_1(torch.relu(self.conv_1(x * x_mask))))
        x = self.drop(self.norm_2(torch.relu(self.conv_2(x * x_mask))))
        return self.proj(x * x_mask) * x_mask


class TextEncoder(nn.Module):
    """Symbols to the prior's means, scales and durations."""

    def __init__(self, n_vocab, out_channels, hidden, filters, filters_dp, layers):
        super().__init__()
        self.hidden, self.emb = hidden, nn.Embedding(n_vocab, hidden)
        nn.init.normal_(self.emb.weight, 0.0, hidden**-0.5)
        self.pre, self.drop = ConvReluNorm(hidden), nn.Dropout(0.1)
        self.attn_layers = nn.ModuleList(RelativeAttention(hidden) for _ in range(layers))
        self.ffn_layers = nn.ModuleList(ConvFFN(hidden, filters) for _ in range(layers))
        self.norm_layers_1 = nn.ModuleList(ChannelNorm(hidden) for _ in range(layers))
        self.norm_layers_2 = nn.ModuleList(ChannelNorm(hidden) for _ in range(layers))
        self.proj_m, self.proj_s = nn.Conv1d(hidden, out_channels, 1), nn.Conv1d(hidden, out_channels, 1)
        self.proj_w = DurationPredictor(hidden, filters_dp)

    def forward(self, x, x_lengths):
        x = (self.emb(x) * math.sqrt(self.hidden)).transpose(1, -1)
        x_mask = sequence_mask(x_lengths, x.size(2)).unsqueeze(1).to(x.dtype)
        x = self.pre(x, x_mask)
        attn_mask = x_mask.unsqueeze(2) * x_mask.unsqueeze(-1)
        layers = zip(self.attn_layers, self.norm_layers_1, self.ffn_layers, self.norm_layers_2, strict=True)
        for attn, norm_1, ffn, norm_2 in layers:
            x = x * x_mask
            x = norm_1(x + self.drop(attn(x, attn_mask)))
            x = norm_2(x + self.drop(ffn(x, x_mask)))
        x = x * x_mask
        logw = self.proj_w(torch.detach(x), x_mask)
        return self.proj_m(x) * x_mask, self.proj_s(x) * x_mask, logw, x_mask


class ActNorm(nn.Module):
    """Scale and shift of each channel, set from the first batch."""

    def __init__(self, channels, ddi=True):
        super().__init__()
        self.initialized = not ddi
        self.logs, self.bias = (nn.Parameter(torch.zeros(1, channels, 1)) for _ in range(2))

    def forward(self, x, x_mask):
        if not self.initialized:
            with torch.no_grad():
                denom = torch.sum(x_mask, [0, 2])
                m = torch.sum(x * x_mask, [0, 2]) / denom
                v = torch.sum(x * x * x_mask, [0, 2]) / denom - m**2
                logs = 0.5 * torch.log(torch.clamp_min(v, 1e-6))
                self.bias.data.copy_((-m * torch.exp(-logs)).view_as(self.bias))
                self.logs.data.copy_((-logs).view_as(self.logs))
            self.initialized = True
        z = (self.bias + torch.exp(self.logs) * x) * x_mask
        return z, torch.sum(self.logs) * torch.sum(x_mask, [1, 2])


class InvConvNear(nn.Module):
    """Invertible convolution over groups of four channels."""

    def __init__(self, channels, n_split=4):
        super().__init__()
        self.n_split = n_split
        w_init = torch.linalg.qr(torch.FloatTensor(n_split, n_split).normal_())[0]
        if torch.det(w_init) < 0:
            w_init[:, 0] = -1 * w_init[:, 0]
        self.weight = nn.Parameter(w_init)

    def forward(self, x, x_mask):
        b, c, t = x.size()
        n = self.n_split
        x = x.view(b, 2, c // n, n // 2, t).permute(0, 1, 3, 2, 4).contiguous().view(b, n, c // n, t)
        logdet = torch.logdet(self.weight) * (c / n) * torch.sum(x_mask, [1, 2])
        z = F.conv2d(x, self.weight.view(n, n, 1, 1))
        z = z.view(b, 2, n // 2, c // n, t).permute(0, 1, 3, 2, 4).contiguous().view(b, c, t)
        return z * x_mask, logdet


class WN(nn.Module):
    """WaveNet's gated stack."""

    def __init__(self, hidden, kernel, dilation_rate, n_layers, p_dropout):
        super().__init__()
        self.hidden, self.n_layers = hidden, n_layers
        self.in_layers, self.res_skip_layers = nn.ModuleList(), nn.ModuleList()
        self.drop = nn.Dropout(p_dropout)
        for i in range(n_layers):
            d = dilation_rate**i
            conv = nn.Conv1d(hidden, 2 * hidden, kernel, dilation=d, padding=(kernel * d - d) // 2)
            self.in_layers.append(nn.utils.weight_norm(conv, name="weight"))
            res_skip = nn.Conv1d(hidden, 2 * hidden if i < n_layers - 1 else hidden, 1)
            self.res_skip_layers.append(nn.utils.weight_norm(res_skip, name="weight"))

    def forward(self, x, x_mask):
        output = torch.zeros_like(x)
        for i in range(self.n_layers):
            x_in = self.drop(self.in_layers[i](x))
            acts = torch.tanh(x_in[:, : self.hidden]) * torch.sigmoid(x_in[:, self.hidden :])
            res_skip = self.res_skip_layers[i](acts)
            if i < self.n_layers - 1:
                x = (x + res_skip[:, : self.hidden]) * x_mask
                output = output + res_skip[:, self.hidden :]
            else:
                output = output + res_skip
        return output * x_mask


class CouplingBlock(nn.Module):
    """Affine coupling whose last convolution starts at zero."""

    def __init__(self, channels, hidden, kernel=5, n_layers=3, p_dropout=0.05):
        super().__init__()
        self.half = channels // 2
        self.start = nn.utils.weight_norm(nn.Conv1d(self.half, hidden, 1))
        self.end = nn.Conv1d(hidden, channels, 1)
        self.end.weight.data.zero_()
        self.end.bias.data.zero_()
        self.wn = WN(hidden, kernel, 1, n_layers, p_dropout)

    def forward(self, x, x_mask):
        x_0, x_1 = x[:, : self.half], x[:, self.half :]
        out = self.end(self.wn(self.start(x_0) * x_mask, x_mask))
        m, logs = out[:, : self.half], out[:, self.half :]
        z_1 = (m + torch.exp(logs) * x_1) * x_mask
        return torch.cat([x_0, z_1], 1), torch.sum(logs * x_mask, [1, 2])


def maximum_path(value, mask):
    """Most probable monotonic alignment, by dynamic programming."""
    value = (value * mask).cpu()
    path = torch.zeros_like(value)
    for b in range(value.shape[0]):
        t_x, t_y = int(mask[b, :, 0].sum()), int(mask[b, 0].sum())
        q = torch.full((t_x, t_y), -1e9)
        q[0, 0] = value[b, 0, 0]
        for j in range(1, t_y):
            stay = q[:, j - 1]
            move = torch.cat([torch.tensor([-1e9]), stay[:-1]])
            q[:, j] = value[b, :t_x, j] + torch.maximum(stay, move)
        i = t_x - 1
        for j in range(t_y - 1, -1, -1):
            path[b, i, j] = 1
            if i != 0 and (i == j or q[i, j - 1] < q[i - 1, j - 1]):
                i -= 1
    return path.to(mask.device)


class GlowTTS(nn.Module):
    """Speech from text: a flow of spectrograms, aligned with the prior that the text gives."""

    def __init__(self, n_vocab=60, mels=20, hidden=64, filters=128, filters_dp=64, layers=3, n_blocks=3, n_sqz=2):
        super().__init__()
        self.n_sqz = n_sqz
        self.encoder = TextEncoder(n_vocab, mels, hidden, filters, filters_dp, layers)
        self.flows = nn.ModuleList()
        for _ in range(n_blocks):
            c = mels * n_sqz
            self.flows.extend([ActNorm(c), InvConvNear(c), CouplingBlock(c, hidden)])

    def decode(self, y, mask):
        b, c, t = y.shape
        n = self.n_sqz
        z = y.view(b, c, t // n, n).permute(0, 3, 1, 2).reshape(b, c * n, t // n)
        z_mask = mask[:, :, n - 1 :: n]
        z, logdet_tot = z * z_mask, 0
        for f in self.flows:
            z, logdet = f(z, z_mask)
            logdet_tot = logdet_tot + logdet
        z = z.view(b, n, c, t // n).permute(0, 2, 3, 1).reshape(b, c, t)
        return z * mask, logdet_tot

    def forward(self, x, x_lengths, y, y_lengths):
        x_m, x_logs, logw, x_mask = self.encoder(x, x_lengths)
        t = (y.size(2) // self.n_sqz) * self.n_sqz
        y, y_lengths = y[:, :, :t], (y_lengths // self.n_sqz) * self.n_sqz
        z_mask = sequence_mask(y_lengths, t).unsqueeze(1).to(x_mask.dtype)
        attn_mask = (x_mask.unsqueeze(-1) * z_mask.unsqueeze(2)).squeeze(1)
        z, logdet = self.decode(y, z_mask)
        with torch.no_grad():
            x_s_sq_r = torch.exp(-2 * x_logs)
            logp1 = torch.sum(-0.5 * math.log(2 * math.pi) - x_logs, [1]).unsqueeze(-1)
            logp2 = torch.matmul(x_s_sq_r.transpose(1, 2), -0.5 * (z**2))
            logp3 = torch.matmul((x_m * x_s_sq_r).transpose(1, 2), z)
            logp4 = torch.sum(-0.5 * (x_m**2) * x_s_sq_r, [1]).unsqueeze(-1)
            attn = maximum_path(logp1 + logp2 + logp3 + logp4, attn_mask).detach()
        z_m, z_logs = torch.matmul(x_m, attn), torch.matmul(x_logs, attn)
        logw_ = torch.log(1e-8 + torch.sum(attn, -1, keepdim=True).transpose(1, 2)) * x_mask
        return z, z_m, z_logs, logdet, logw, logw_


def utterances():
    x_lengths, y_lengths = torch.tensor([16, 14, 12, 15]), torch.tensor([60, 56, 48, 58])
    x = torch.randint(1, 60, (4, 16)) * sequence_mask(x_lengths, 16)
    return x, x_lengths, torch.randn(4, 20, 60) * 2 - 5, y_lengths


NETS = {"Glow-TTS": (GlowTTS, utterances)}
