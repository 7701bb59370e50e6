"""Networks typed by hand as their repositories have them: DA-RNN, I3D, SincNet."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class DARNNEncoder(nn.Module):
    """An LSTM whose inputs are weighed against each other at each step."""

    def __init__(self, input_size, hidden_size, T):
        super().__init__()
        self.input_size, self.hidden_size, self.T = input_size, hidden_size, T
        self.lstm_layer = nn.LSTM(input_size=input_size, hidden_size=hidden_size, num_layers=1)
        self.attn_linear = nn.Linear(in_features=2 * hidden_size + T - 1, out_features=1)

    def forward(self, input_data):
        input_weighted, input_encoded = [], []
        hidden = input_data.new_zeros(1, input_data.size(0), self.hidden_size)
        cell = input_data.new_zeros(1, input_data.size(0), self.hidden_size)
        for t in range(self.T - 1):
            x = torch.cat(
                (
                    hidden.repeat(self.input_size, 1, 1).permute(1, 0, 2),
                    cell.repeat(self.input_size, 1, 1).permute(1, 0, 2),
                    input_data.permute(0, 2, 1),
                ),
                dim=2,
            )
            x = self.attn_linear(x.view(-1, self.hidden_size * 2 + self.T - 1))
            attn_weights = F.softmax(x.view(-1, self.input_size), dim=1)
            weighted_input = torch.mul(attn_weights, input_data[:, t, :])
            _, (hidden, cell) = self.lstm_layer(weighted_input.unsqueeze(0), (hidden, cell))
            input_weighted.append(weighted_input)
            input_encoded.append(hidden.squeeze(0))
        return torch.stack(input_weighted, dim=1), torch.stack(input_encoded, dim=1)


class DARNNDecoder(nn.Module):
    """An LSTM over the target's past, which attends to the encoder's states at each step."""

    def __init__(self, encoder_hidden_size, decoder_hidden_size, T, out_feats=1):
        super().__init__()
        self.T = T
        self.encoder_hidden_size, self.decoder_hidden_size = encoder_hidden_size, decoder_hidden_size
        self.attn_layer = nn.Sequential(
            nn.Linear(2 * decoder_hidden_size + encoder_hidden_size, encoder_hidden_size),
            nn.Tanh(),
            nn.Linear(encoder_hidden_size, 1),
        )
        self.lstm_layer = nn.LSTM(input_size=out_feats, hidden_size=decoder_hidden_size)
        self.fc = nn.Linear(encoder_hidden_size + out_feats, out_feats)
        self.fc_final = nn.Linear(decoder_hidden_size + encoder_hidden_size, out_feats)
        self.fc.weight.data.normal_()

    def forward(self, input_encoded, y_history):
        hidden = input_encoded.new_zeros(1, input_encoded.size(0), self.decoder_hidden_size)
        cell = input_encoded.new_zeros(1, input_encoded.size(0), self.decoder_hidden_size)
        for t in range(self.T - 1):
            x = torch.cat(
                (
                    hidden.repeat(self.T - 1, 1, 1).permute(1, 0, 2),
                    cell.repeat(self.T - 1, 1, 1).permute(1, 0, 2),
                    input_encoded,
                ),
                dim=2,
            )
            x = self.attn_layer(x.view(-1, 2 * self.decoder_hidden_size + self.encoder_hidden_size))
            x = F.softmax(x.view(-1, self.T - 1), dim=1)
            context = torch.bmm(x.unsqueeze(1), input_encoded)[:, 0, :]
            y_tilde = self.fc(torch.cat((context, y_history[:, t]), dim=1))
            _, (hidden, cell) = self.lstm_layer(y_tilde.unsqueeze(0), (hidden, cell))
        return self.fc_final(torch.cat((hidden[0], context), dim=1))


class DARNN(nn.Module):
    """Attention in two stages: over the driving series, then over time."""

    def __init__(self, input_size=20, encoder_hidden_size=64, decoder_hidden_size=64, T=10):
        super().__init__()
        self.encoder = DARNNEncoder(input_size, encoder_hidden_size, T)
        self.decoder = DARNNDecoder(encoder_hidden_size, decoder_hidden_size, T)

    def forward(self, feats, y_history):
        _, input_encoded = self.encoder(feats)
        return self.decoder(input_encoded, y_history)


def same_padding(x, kernel, stride):
    """Pad time, height and width as TensorFlow does, from their sizes."""
    pad = []
    for size, k, s in zip(x.shape[2:], kernel, stride, strict=True):
        along = max(k - s, 0) if size % s == 0 else max(k - (size % s), 0)
        pad = [along // 2, along - along // 2, *pad]
    return F.pad(x, pad)


class MaxPool3dSamePadding(nn.MaxPool3d):
    """Max pooling under that padding."""

    def forward(self, x):
        return super().forward(same_padding(x, self.kernel_size, self.stride))


class Unit3D(nn.Module):
    """Convolution in space and time, norm and ReLU."""

    def __init__(self, inp, out, kernel=(1, 1, 1), stride=(1, 1, 1), activation=F.relu, use_bn=True, use_bias=False):
        super().__init__()
        self._kernel_shape, self._stride = kernel, stride
        self._activation_fn, self._use_batch_norm = activation, use_bn
        self.conv3d = nn.Conv3d(inp, out, kernel_size=kernel, stride=stride, padding=0, bias=use_bias)
        if use_bn:
            self.bn = nn.BatchNorm3d(out, eps=0.001, momentum=0.01)

    def forward(self, x):
        x = self.conv3d(same_padding(x, self._kernel_shape, self._stride))
        if self._use_batch_norm:
            x = self.bn(x)
        if self._activation_fn is not None:
            x = self._activation_fn(x)
        return x


class InceptionModule(nn.Module):
    """Four branches of different reach, side by side."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.b0 = Unit3D(in_channels, out_channels[0])
        self.b1a = Unit3D(in_channels, out_channels[1])
        self.b1b = Unit3D(out_channels[1], out_channels[2], (3, 3, 3))
        self.b2a = Unit3D(in_channels, out_channels[3])
        self.b2b = Unit3D(out_channels[3], out_channels[4], (3, 3, 3))
        self.b3a = MaxPool3dSamePadding(kernel_size=(3, 3, 3), stride=(1, 1, 1), padding=0)
        self.b3b = Unit3D(in_channels, out_channels[5])

    def forward(self, x):
        b0 = self.b0(x)
        b1 = self.b1b(self.b1a(x))
        b2 = self.b2b(self.b2a(x))
        b3 = self.b3b(self.b3a(x))
        return torch.cat([b0, b1, b2, b3], dim=1)


class InceptionI3d(nn.Module):
    """Inception inflated to clips, at an eighth of its width, with logits at each time."""

    MIXED = (
        ("Mixed_3b", (64, 96, 128, 16, 32, 32)),
        ("Mixed_3c", (128, 128, 192, 32, 96, 64)),
        ("MaxPool3d_4a_3x3", ((3, 3, 3), (2, 2, 2))),
        ("Mixed_4b", (192, 96, 208, 16, 48, 64)),
        ("Mixed_4c", (160, 112, 224, 24, 64, 64)),
        ("Mixed_4d", (128, 128, 256, 24, 64, 64)),
        ("Mixed_4e", (112, 144, 288, 32, 64, 64)),
        ("Mixed_4f", (256, 160, 320, 32, 128, 128)),
        ("MaxPool3d_5a_2x2", ((2, 2, 2), (2, 2, 2))),
        ("Mixed_5b", (256, 160, 320, 32, 128, 128)),
        ("Mixed_5c", (384, 192, 384, 48, 128, 128)),
    )

    def __init__(self, num_classes=100, in_channels=3, divide=8, pool=(2, 2, 2), dropout_keep_prob=0.5):
        super().__init__()
        d = divide
        self.end_points = {
            "Conv3d_1a_7x7": Unit3D(in_channels, 64 // d, (7, 7, 7), (2, 2, 2)),
            "MaxPool3d_2a_3x3": MaxPool3dSamePadding(kernel_size=(1, 3, 3), stride=(1, 2, 2), padding=0),
            "Conv3d_2b_1x1": Unit3D(64 // d, 64 // d),
            "Conv3d_2c_3x3": Unit3D(64 // d, 192 // d, (3, 3, 3)),
            "MaxPool3d_3a_3x3": MaxPool3dSamePadding(kernel_size=(1, 3, 3), stride=(1, 2, 2), padding=0),
        }
        width = 192 // d
        for name, spec in self.MIXED:
            if name.startswith("Mixed"):
                out = [c // d for c in spec]
                self.end_points[name] = InceptionModule(width, out)
                width = out[0] + out[2] + out[4] + out[5]
            else:
                self.end_points[name] = MaxPool3dSamePadding(kernel_size=spec[0], stride=spec[1], padding=0)
        self.avg_pool = nn.AvgPool3d(kernel_size=pool, stride=(1, 1, 1))
        self.dropout = nn.Dropout(dropout_keep_prob)
        self.logits = Unit3D(width, num_classes, activation=None, use_bn=False, use_bias=True)
        for name, module in self.end_points.items():
            self.add_module(name, module)

    def forward(self, x):
        for name in self.end_points:
            x = self._modules[name](x)
        x = self.logits(self.dropout(self.avg_pool(x)))
        return x.squeeze(3).squeeze(3)


class SincConvFast(nn.Module):
    """Band-pass filters, each given by its two cutoffs."""

    def __init__(self, out_channels, kernel_size, sample_rate=16000, min_low_hz=50, min_band_hz=50):
        super().__init__()
        self.out_channels, self.kernel_size, self.sample_rate = out_channels, kernel_size, sample_rate
        self.min_low_hz, self.min_band_hz = min_low_hz, min_band_hz
        low_hz, high_hz = 30, sample_rate / 2 - (min_low_hz + min_band_hz)
        mel = np.linspace(self.to_mel(low_hz), self.to_mel(high_hz), out_channels + 1)
        hz = self.to_hz(mel)
        self.low_hz_ = nn.Parameter(torch.Tensor(hz[:-1]).view(-1, 1))
        self.band_hz_ = nn.Parameter(torch.Tensor(np.diff(hz)).view(-1, 1))
        n_lin = torch.linspace(0, (kernel_size / 2) - 1, steps=int(kernel_size / 2))
        self.window_ = 0.54 - 0.46 * torch.cos(2 * math.pi * n_lin / kernel_size)
        n = (kernel_size - 1) / 2.0
        self.n_ = 2 * math.pi * torch.arange(-n, 0).view(1, -1) / sample_rate

    @staticmethod
    def to_mel(hz):
        return 2595 * np.log10(1 + hz / 700)

    @staticmethod
    def to_hz(mel):
        return 700 * (10 ** (mel / 2595) - 1)

    def forward(self, waveforms):
        self.n_, self.window_ = self.n_.to(waveforms.device), self.window_.to(waveforms.device)
        low = self.min_low_hz + torch.abs(self.low_hz_)
        high = torch.clamp(low + self.min_band_hz + torch.abs(self.band_hz_), self.min_low_hz, self.sample_rate / 2)
        band = (high - low)[:, 0]
        f_times_t_low, f_times_t_high = torch.matmul(low, self.n_), torch.matmul(high, self.n_)
        band_pass_left = ((torch.sin(f_times_t_high) - torch.sin(f_times_t_low)) / (self.n_ / 2)) * self.window_
        band_pass_center = 2 * band.view(-1, 1)
        band_pass_right = torch.flip(band_pass_left, dims=[1])
        band_pass = torch.cat([band_pass_left, band_pass_center, band_pass_right], dim=1)
        band_pass = band_pass / (2 * band[:, None])
        filters = band_pass.view(self.out_channels, 1, self.kernel_size)
        return F.conv1d(waveforms, filters, stride=1, padding=0, dilation=1, bias=None, groups=1)


class LayerNorm(nn.Module):
    """Layer norm by the standard deviation over the last axis, with a scale and shift for every feature."""

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(features))
        self.beta = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.gamma * (x - mean) / (std + self.eps) + self.beta


class SincCNN(nn.Module):
    """Sinc filters, then two convolutions, each pooled, normed and activated."""

    def __init__(self, input_dim, n_filt, len_filt, pool, fs=16000):
        super().__init__()
        self.input_dim, self.pool = input_dim, pool
        self.ln0 = LayerNorm(input_dim)
        self.conv, self.ln, self.act, self.drop = (nn.ModuleList() for _ in range(4))
        current = input_dim
        for i, (n, length) in enumerate(zip(n_filt, len_filt, strict=True)):
            current = int((current - length + 1) / pool[i])
            self.drop.append(nn.Dropout(p=0.0))
            self.act.append(nn.LeakyReLU(0.2))
            self.ln.append(LayerNorm([n, current]))
            self.conv.append(SincConvFast(n, length, fs) if i == 0 else nn.Conv1d(n_filt[i - 1], n, length))
        self.out_dim = current * n_filt[-1]

    def forward(self, x):
        batch, seq_len = x.shape[0], x.shape[1]
        x = self.ln0(x).view(batch, 1, seq_len)
        for i in range(len(self.conv)):
            x = self.conv[i](x)
            if i == 0:
                x = torch.abs(x)
            x = self.drop[i](self.act[i](self.ln[i](F.max_pool1d(x, self.pool[i]))))
        return x.view(batch, -1)


class SincMLP(nn.Module):
    """Layers of small uniform weights, normed over the batch or plain."""

    def __init__(self, input_dim, fc_lay, norm_input, batchnorm, act):
        super().__init__()
        self.ln0 = LayerNorm(input_dim) if norm_input else None
        self.wx, self.bn, self.act = nn.ModuleList(), nn.ModuleList(), act
        for width in fc_lay:
            wx = nn.Linear(input_dim, width, bias=not batchnorm)
            bound = np.sqrt(0.01 / (input_dim + width))
            wx.weight = nn.Parameter(torch.Tensor(width, input_dim).uniform_(-bound, bound))
            if not batchnorm:
                wx.bias = nn.Parameter(torch.zeros(width))
            self.wx.append(wx)
            self.bn.append(nn.BatchNorm1d(width, momentum=0.05) if batchnorm else nn.Identity())
            input_dim = width

    def forward(self, x):
        if self.ln0 is not None:
            x = self.ln0(x)
        for wx, bn in zip(self.wx, self.bn, strict=True):
            x = self.act(bn(wx(x)))
        return x


class SincNet(nn.Module):
    """Speakers from raw speech: sinc filters and convolutions, three normed layers, and log-probabilities."""

    def __init__(self, wlen=3200, classes=100, fc_lay=(128, 128, 128)):
        super().__init__()
        self.cnn = SincCNN(wlen, n_filt=(40, 20, 20), len_filt=(251, 5, 5), pool=(3, 3, 3))
        self.dnn1 = SincMLP(self.cnn.out_dim, fc_lay, norm_input=True, batchnorm=True, act=nn.LeakyReLU(0.2))
        self.dnn2 = SincMLP(fc_lay[-1], (classes,), norm_input=False, batchnorm=False, act=nn.LogSoftmax(dim=1))

    def forward(self, x):
        return self.dnn2(self.dnn1(self.cnn(x)))


def stocks(batch=16, T=10, driving=20):
    """Windows of standardised random walks that move together, and the target's own past."""
    market = torch.randn(batch, T - 1, 1)
    moves = 0.2 * (market + torch.randn(batch, T - 1, driving + 1))
    walks = torch.randn(batch, 1, driving + 1) + moves.cumsum(dim=1)
    return walks[:, :, :driving].contiguous(), walks[:, :, driving:].contiguous()


def speech(batch=8, samples=3200):
    """Chunks of a fifth of a second: voiced harmonics and some noise, of peak one at most."""
    t = torch.arange(samples) / 16000
    pitch = 90 + 130 * torch.rand(batch, 1, 1)
    harmonics = torch.arange(1, 16).view(1, -1, 1)
    wave = (torch.sin(2 * math.pi * pitch * harmonics * t + 6 * torch.rand(batch, 15, 1)) / harmonics).sum(1)
    wave = wave + 0.1 * torch.randn(batch, samples)
    return (wave / wave.abs().amax(1, keepdim=True) * (0.3 + 0.6 * torch.rand(batch, 1)),)


NETS = {
    "DA-RNN": (DARNN, stocks),
    "I3D": (InceptionI3d, lambda: (torch.randn(4, 3, 16, 64, 64),)),
    "SincNet": (SincNet, speech),
}
