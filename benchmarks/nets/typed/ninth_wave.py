"""Networks typed by hand as their repositories have them: DCCRN and IndRNN."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn


def init_kernels(win_len, fft_len, invers=False):
    window = torch.hann_window(win_len, periodic=True, dtype=torch.float64)
    basis = torch.fft.rfft(torch.eye(fft_len, dtype=torch.float64))[:win_len]
    kernel = torch.cat([basis.real, basis.imag], 1).T
    if invers:
        kernel = torch.linalg.pinv(kernel).T
    return (kernel * window)[:, None, :].float(), window[None, :, None].float()


class ConvSTFT(nn.Module):
    """Short-time Fourier transform as a fixed convolution."""

    def __init__(self, win_len, win_inc, fft_len):
        super().__init__()
        kernel, _ = init_kernels(win_len, fft_len)
        self.register_buffer("weight", kernel)
        self.stride, self.pad = win_inc, win_len - win_inc

    def forward(self, x):
        return F.conv1d(F.pad(x.unsqueeze(1), [self.pad, self.pad]), self.weight, stride=self.stride)


class ConviSTFT(nn.Module):
    """Its inverse, by a fixed transposed convolution."""

    def __init__(self, win_len, win_inc, fft_len):
        super().__init__()
        kernel, window = init_kernels(win_len, fft_len, invers=True)
        self.register_buffer("weight", kernel)
        self.register_buffer("window", window)
        self.register_buffer("enframe", torch.eye(win_len)[:, None, :])
        self.stride, self.pad = win_inc, win_len - win_inc

    def forward(self, x):
        out = F.conv_transpose1d(x, self.weight, stride=self.stride)
        t = self.window.repeat(1, 1, x.size(-1)) ** 2
        out = out / (F.conv_transpose1d(t, self.enframe, stride=self.stride) + 1e-8)
        return out[..., self.pad : -self.pad]


class ComplexConv2d(nn.Module):
    """Complex convolution by two real ones, causal in time."""

    def __init__(self, cin, cout, kernel, stride, padding):
        super().__init__()
        self.pad = padding[1]
        self.real_conv = nn.Conv2d(cin // 2, cout // 2, kernel, stride, padding=[padding[0], 0])
        self.imag_conv = nn.Conv2d(cin // 2, cout // 2, kernel, stride, padding=[padding[0], 0])
        nn.init.normal_(self.real_conv.weight.data, std=0.05)
        nn.init.normal_(self.imag_conv.weight.data, std=0.05)
        nn.init.constant_(self.real_conv.bias, 0.0)
        nn.init.constant_(self.imag_conv.bias, 0.0)

    def forward(self, x):
        real, imag = torch.chunk(F.pad(x, [self.pad, 0, 0, 0]), 2, 1)
        out_real = self.real_conv(real) - self.imag_conv(imag)
        out_imag = self.imag_conv(real) + self.real_conv(imag)
        return torch.cat([out_real, out_imag], 1)


class ComplexConvTranspose2d(nn.Module):
    """Transposed complex convolution."""

    def __init__(self, cin, cout, kernel, stride, padding, output_padding):
        super().__init__()
        self.real_conv = nn.ConvTranspose2d(cin // 2, cout // 2, kernel, stride, padding, output_padding)
        self.imag_conv = nn.ConvTranspose2d(cin // 2, cout // 2, kernel, stride, padding, output_padding)
        nn.init.normal_(self.real_conv.weight, std=0.05)
        nn.init.normal_(self.imag_conv.weight, std=0.05)
        nn.init.constant_(self.real_conv.bias, 0.0)
        nn.init.constant_(self.imag_conv.bias, 0.0)

    def forward(self, x):
        real, imag = torch.chunk(x, 2, 1)
        out_real = self.real_conv(real) - self.imag_conv(imag)
        out_imag = self.imag_conv(real) + self.real_conv(imag)
        return torch.cat([out_real, out_imag], 1)


class ComplexBatchNorm(nn.Module):
    """Whitens real and imaginary parts together, then mixes them by a learnt matrix."""

    def __init__(self, num_features, eps=1e-5, momentum=0.1):
        super().__init__()
        n = num_features // 2
        self.eps, self.momentum = eps, momentum
        self.Wrr, self.Wri, self.Wii = (nn.Parameter(torch.Tensor(n)) for _ in range(3))
        self.Br, self.Bi = nn.Parameter(torch.Tensor(n)), nn.Parameter(torch.Tensor(n))
        for name, value in (("RMr", 0), ("RMi", 0), ("RVrr", 1), ("RVri", 0), ("RVii", 1)):
            self.register_buffer(name, torch.full((n,), float(value)))
        self.Br.data.zero_()
        self.Bi.data.zero_()
        self.Wrr.data.fill_(1)
        self.Wri.data.uniform_(-0.9, +0.9)  # W will be positive-definite
        self.Wii.data.fill_(1)

    def track(self, running, value):
        running.lerp_(value.detach().flatten(), self.momentum)

    def forward(self, x):
        xr, xi = torch.chunk(x, 2, 1)
        shape, red = (1, -1, 1, 1), (0, 2, 3)
        if self.training:
            Mr, Mi = xr.mean(red, keepdim=True), xi.mean(red, keepdim=True)
            self.track(self.RMr, Mr)
            self.track(self.RMi, Mi)
        else:
            Mr, Mi = self.RMr.view(shape), self.RMi.view(shape)
        xr, xi = xr - Mr, xi - Mi
        if self.training:
            Vrr, Vri, Vii = ((a * b).mean(red, keepdim=True) for a, b in ((xr, xr), (xr, xi), (xi, xi)))
            self.track(self.RVrr, Vrr)
            self.track(self.RVri, Vri)
            self.track(self.RVii, Vii)
        else:
            Vrr, Vri, Vii = self.RVrr.view(shape), self.RVri.view(shape), self.RVii.view(shape)
        Vrr, Vii = Vrr + self.eps, Vii + self.eps
        tau, delta = Vrr + Vii, Vrr * Vii - Vri * Vri
        s = delta.sqrt()
        t = (tau + 2 * s).sqrt()
        rst = (s * t).reciprocal()
        Urr, Uii, Uri = (s + Vii) * rst, (s + Vrr) * rst, -Vri * rst
        Wrr, Wri, Wii = self.Wrr.view(shape), self.Wri.view(shape), self.Wii.view(shape)
        Zrr, Zri = (Wrr * Urr) + (Wri * Uri), (Wrr * Uri) + (Wri * Uii)
        Zir, Zii = (Wri * Urr) + (Wii * Uri), (Wri * Uri) + (Wii * Uii)
        yr = (Zrr * xr) + (Zri * xi) + self.Br.view(shape)
        yi = (Zir * xr) + (Zii * xi) + self.Bi.view(shape)
        return torch.cat([yr, yi], 1)


class NavieComplexLSTM(nn.Module):
    """Complex recurrence by two real networks."""

    def __init__(self, input_size, hidden_size, projection_dim=None):
        super().__init__()
        self.real_lstm = nn.LSTM(input_size // 2, hidden_size // 2)
        self.imag_lstm = nn.LSTM(input_size // 2, hidden_size // 2)
        self.projection_dim = projection_dim
        if projection_dim is not None:
            self.r_trans = nn.Linear(hidden_size // 2, projection_dim // 2)
            self.i_trans = nn.Linear(hidden_size // 2, projection_dim // 2)

    def forward(self, real, imag):
        real_out = self.real_lstm(real)[0] - self.imag_lstm(imag)[0]
        imag_out = self.imag_lstm(real)[0] + self.real_lstm(imag)[0]
        if self.projection_dim is not None:
            real_out, imag_out = self.r_trans(real_out), self.i_trans(imag_out)
        return real_out, imag_out


class DCCRN(nn.Module):
    """Speech enhancement by a deep complex convolutional recurrent network (masking mode E)."""

    def __init__(
        self, rnn_layers=2, rnn_units=64, win_len=400, win_inc=100, fft_len=512, kernel_num=(8, 16, 32, 32, 64)
    ):
        super().__init__()
        kernel_num = [2, *kernel_num]
        self.stft, self.istft = ConvSTFT(win_len, win_inc, fft_len), ConviSTFT(win_len, win_inc, fft_len)
        self.encoder, self.decoder, self.fft_len = nn.ModuleList(), nn.ModuleList(), fft_len
        for cin, cout in itertools.pairwise(kernel_num):
            conv = ComplexConv2d(cin, cout, kernel=(5, 2), stride=(2, 1), padding=(2, 1))
            self.encoder.append(nn.Sequential(conv, ComplexBatchNorm(cout), nn.PReLU()))
        width = fft_len // 2 ** len(kernel_num) * kernel_num[-1]
        self.enhance = nn.ModuleList(
            NavieComplexLSTM(
                width if i == 0 else rnn_units, rnn_units, projection_dim=width if i == rnn_layers - 1 else None
            )
            for i in range(rnn_layers)
        )
        for idx in range(len(kernel_num) - 1, 0, -1):
            cin, cout = kernel_num[idx] * 2, kernel_num[idx - 1]
            conv = ComplexConvTranspose2d(cin, cout, (5, 2), stride=(2, 1), padding=(2, 0), output_padding=(1, 0))
            last = [] if idx == 1 else [ComplexBatchNorm(cout), nn.PReLU()]
            self.decoder.append(nn.Sequential(conv, *last))
        for lstm in self.enhance:
            lstm.real_lstm.flatten_parameters()
            lstm.imag_lstm.flatten_parameters()

    def forward(self, inputs):
        specs = self.stft(inputs)
        real, imag = specs.chunk(2, dim=1)
        spec_mags = torch.sqrt(real**2 + imag**2 + 1e-8)
        spec_phase = torch.atan2(imag, real)
        out = torch.stack([real, imag], 1)[:, :, 1:]
        encoder_out = []
        for layer in self.encoder:
            out = layer(out)
            encoder_out.append(out)
        B, C, D, T = out.shape
        out = out.permute(3, 0, 1, 2)
        r, i = out[:, :, : C // 2].reshape(T, B, -1), out[:, :, C // 2 :].reshape(T, B, -1)
        for lstm in self.enhance:
            r, i = lstm(r, i)
        out = torch.cat([r.view(T, B, C // 2, D), i.view(T, B, C // 2, D)], 2).permute(1, 2, 3, 0)
        for layer, skip in zip(self.decoder, encoder_out[::-1], strict=True):
            (r, i), (sr, si) = out.chunk(2, 1), skip.chunk(2, 1)
            out = layer(torch.cat([r, sr, i, si], 1))[..., 1:]
        mask_real, mask_imag = F.pad(out[:, 0], [0, 0, 1, 0]), F.pad(out[:, 1], [0, 0, 1, 0])
        mask_mags = (mask_real**2 + mask_imag**2) ** 0.5
        mask_phase = torch.atan2(mask_imag / (mask_mags + 1e-8), mask_real / (mask_mags + 1e-8))
        est_mags, est_phase = torch.tanh(mask_mags) * spec_mags, spec_phase + mask_phase
        out_spec = torch.cat([est_mags * torch.cos(est_phase), est_mags * torch.sin(est_phase)], 1)
        return torch.clamp(self.istft(out_spec).squeeze(1), -1, 1)


class IndRNNOnlyRecurrent(nn.Module):
    """Recurrence of each neuron on itself alone."""

    def __init__(self, hidden):
        super().__init__()
        self.weight_hh = nn.Parameter(torch.Tensor(hidden))

    def forward(self, x):
        h, outputs = torch.zeros_like(x[0]), []
        for x_t in x:
            h = F.relu(x_t + self.weight_hh * h)
            outputs.append(h)
        return torch.stack(outputs)


class BatchNormOverTime(nn.BatchNorm1d):
    """Statistics shared by all steps, time first."""

    def forward(self, x):
        return super().forward(x.permute(1, 2, 0)).permute(2, 0, 1)


class IndRNN(nn.Module):
    """Recognises actions from skeletons by a stack of independent recurrences."""

    def __init__(self, inputs=75, hidden=96, layers=6, classes=60, seq_len=20, mag=2.0, dropout=0.1):
        super().__init__()
        u_bound, u_lowbound = mag ** (1.0 / seq_len), (1 / mag) ** (1.0 / seq_len)
        self.dropout, self.input_bn = dropout, BatchNormOverTime(inputs)
        self.fcs, self.rnns, self.bns = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for i in range(layers):
            self.fcs.append(nn.Linear(inputs if i == 0 else hidden, hidden))
            self.rnns.append(IndRNNOnlyRecurrent(hidden))
            self.bns.append(BatchNormOverTime(hidden))
        self.classifier = nn.Linear(hidden, classes)
        for name, p in self.named_parameters():
            if "weight_hh" in name:
                p.data.uniform_(u_lowbound if f"rnns.{layers - 1}." in name else 0, u_bound)
            elif "fcs" in name and "weight" in name:
                nn.init.kaiming_uniform_(p, a=8, mode="fan_in")
            elif "classifier" in name and "weight" in name:
                nn.init.kaiming_normal_(p.data)
            elif "bn" in name and "weight" in name:
                p.data.fill_(1)
            elif "bias" in name:
                p.data.fill_(0.0)

    def forward(self, x):
        x = self.input_bn(x.transpose(0, 1))
        for fc, rnn, bn in zip(self.fcs, self.rnns, self.bns, strict=True):
            x = bn(rnn(fc(x)))
            x = x * F.dropout(torch.ones_like(x[:1]), self.dropout, self.training)
        return self.classifier(x[-1])


NETS = {
    "DCCRN": (DCCRN, lambda: (torch.randn(4, 4000) * 0.1,)),
    "IndRNN": (IndRNN, lambda: (torch.randn(8, 20, 75),)),
}
