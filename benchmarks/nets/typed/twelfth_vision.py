"""Networks typed by hand as their repositories have them: DRAW, A3C, Shake-Shake, Xception."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class DrawModel(nn.Module):
    """A picture read and drawn in glimpses through a grid of Gaussian filters, a code at each step."""

    def __init__(self, T=6, A=28, B=28, z_size=10, N=5, dec_size=96, enc_size=96):
        super().__init__()
        self.T, self.A, self.B, self.N = T, A, B, N
        self.z_size, self.dec_size, self.enc_size = z_size, dec_size, enc_size
        self.encoder = nn.LSTMCell(2 * N * N + dec_size, enc_size)
        self.mu_linear = nn.Linear(enc_size, z_size)
        self.sigma_linear = nn.Linear(enc_size, z_size)
        self.decoder = nn.LSTMCell(z_size, dec_size)
        self.dec_linear = nn.Linear(dec_size, 5)
        self.dec_w_linear = nn.Linear(dec_size, N * N)

    def filterbank_matrix(self, size, mu, sigma2, epsilon=1e-9):
        a = torch.arange(0, size, dtype=mu.dtype, device=mu.device).view(1, 1, -1)
        Fm = torch.exp(-torch.pow(a - mu.view(-1, self.N, 1), 2) / (2 * sigma2.view(-1, 1, 1)))
        return Fm / (Fm.sum(2, True).expand_as(Fm) + epsilon)

    def attn_window(self, h_dec):
        params = self.dec_linear(h_dec)
        gx_, gy_, log_sigma_2, log_delta, log_gamma = params.split(1, 1)
        gx = (self.A + 1) / 2 * (gx_ + 1)
        gy = (self.B + 1) / 2 * (gy_ + 1)
        delta = (max(self.A, self.B) - 1) / (self.N - 1) * torch.exp(log_delta)
        sigma2, gamma = torch.exp(log_sigma_2), torch.exp(log_gamma)
        rng = torch.arange(0, self.N, dtype=gx.dtype, device=gx.device).view(1, -1)
        mu_x = gx + (rng - self.N / 2 - 0.5) * delta
        mu_y = gy + (rng - self.N / 2 - 0.5) * delta
        return self.filterbank_matrix(self.A, mu_x, sigma2), self.filterbank_matrix(self.B, mu_y, sigma2), gamma

    def read(self, x, x_hat, h_dec_prev):
        Fx, Fy, gamma = self.attn_window(h_dec_prev)

        def filter_img(img):
            img = img.view(-1, self.B, self.A)
            glimpse = Fy.bmm(img.bmm(Fx.transpose(2, 1))).view(-1, self.N * self.N)
            return glimpse * gamma.view(-1, 1).expand_as(glimpse)

        return torch.cat((filter_img(x), filter_img(x_hat)), 1)

    def write(self, h_dec):
        w = self.dec_w_linear(h_dec).view(-1, self.N, self.N)
        Fx, Fy, gamma = self.attn_window(h_dec)
        wr = Fy.transpose(2, 1).bmm(w.bmm(Fx)).view(-1, self.A * self.B)
        return wr / gamma.view(-1, 1).expand_as(wr)

    def sample_q(self, h_enc):
        e = torch.randn(h_enc.size(0), self.z_size, device=h_enc.device)
        mu = self.mu_linear(h_enc)
        log_sigma = self.sigma_linear(h_enc)
        sigma = torch.exp(log_sigma)
        return mu + sigma * e, mu, log_sigma, sigma

    def forward(self, x):
        batch_size = x.size(0)
        h_dec_prev, h_enc_prev = x.new_zeros(batch_size, self.dec_size), x.new_zeros(batch_size, self.enc_size)
        enc_state, dec_state = x.new_zeros(batch_size, self.enc_size), x.new_zeros(batch_size, self.dec_size)
        cs, mus, logsigmas, sigmas = [0] * self.T, [0] * self.T, [0] * self.T, [0] * self.T
        for t in range(self.T):
            c_prev = x.new_zeros(batch_size, self.A * self.B) if t == 0 else cs[t - 1]
            x_hat = x - torch.sigmoid(c_prev)
            r_t = self.read(x, x_hat, h_dec_prev)
            h_enc_prev, enc_state = self.encoder(torch.cat((r_t, h_dec_prev), 1), (h_enc_prev, enc_state))
            z, mus[t], logsigmas[t], sigmas[t] = self.sample_q(h_enc_prev)
            h_dec, dec_state = self.decoder(z, (h_dec_prev, dec_state))
            cs[t] = c_prev + self.write(h_dec)
            h_dec_prev = h_dec
        return torch.sigmoid(cs[-1]), torch.stack(mus), torch.stack(logsigmas), torch.stack(sigmas)


def normalized_columns_initializer(weights, std=1.0):
    out = torch.randn(weights.size())
    out *= std / torch.sqrt(out.pow(2).sum(1, keepdim=True))
    return out


def weights_init(m):
    """Uniform weights by the inputs and outputs of convolutions and layers, zero biases."""
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        weight_shape = list(m.weight.data.size())
        fan_in = np.prod(weight_shape[1:4])
        fan_out = np.prod(weight_shape[2:4]) * weight_shape[0]
        w_bound = np.sqrt(6.0 / (fan_in + fan_out))
        m.weight.data.uniform_(-w_bound, w_bound)
        m.bias.data.fill_(0)
    elif classname.find("Linear") != -1:
        weight_shape = list(m.weight.data.size())
        fan_in, fan_out = weight_shape[1], weight_shape[0]
        w_bound = np.sqrt(6.0 / (fan_in + fan_out))
        m.weight.data.uniform_(-w_bound, w_bound)
        m.bias.data.fill_(0)


class ActorCritic(nn.Module):
    """Four strided convolutions, an LSTM cell, a value and a policy."""

    def __init__(self, num_inputs=1, num_actions=6):
        super().__init__()
        self.conv1 = nn.Conv2d(num_inputs, 32, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.conv4 = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.lstm = nn.LSTMCell(32 * 3 * 3, 256)
        self.critic_linear = nn.Linear(256, 1)
        self.actor_linear = nn.Linear(256, num_actions)
        self.apply(weights_init)
        self.actor_linear.weight.data = normalized_columns_initializer(self.actor_linear.weight.data, 0.01)
        self.actor_linear.bias.data.fill_(0)
        self.critic_linear.weight.data = normalized_columns_initializer(self.critic_linear.weight.data, 1.0)
        self.critic_linear.bias.data.fill_(0)
        self.lstm.bias_ih.data.fill_(0)
        self.lstm.bias_hh.data.fill_(0)

    def forward(self, inputs, state):
        hx, cx = state
        x = F.elu(self.conv1(inputs))
        x = F.elu(self.conv2(x))
        x = F.elu(self.conv3(x))
        x = F.elu(self.conv4(x))
        x = x.view(-1, 32 * 3 * 3)
        hx, cx = self.lstm(x, (hx, cx))
        x = hx
        return self.critic_linear(x), self.actor_linear(x), (hx, cx)


class ShakeShake(torch.autograd.Function):
    """Two branches mixed by one draw on the way forward and by another on the way back."""

    @staticmethod
    def forward(ctx, x1, x2, training=True):
        if training:
            alpha = torch.rand(x1.size(0), dtype=x1.dtype, device=x1.device)
            alpha = alpha.view(alpha.size(0), 1, 1, 1).expand_as(x1)
        else:
            alpha = 0.5
        return alpha * x1 + (1 - alpha) * x2

    @staticmethod
    def backward(ctx, grad_output):
        beta = torch.rand(grad_output.size(0), dtype=grad_output.dtype, device=grad_output.device)
        beta = beta.view(beta.size(0), 1, 1, 1).expand_as(grad_output)
        return beta * grad_output, (1 - beta) * grad_output, None


class Shortcut(nn.Module):
    """Halved maps from two sets of cells, one shifted against the other."""

    def __init__(self, in_ch, out_ch, stride):
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(in_ch, out_ch // 2, 1, stride=1, padding=0, bias=False)
        self.conv2 = nn.Conv2d(in_ch, out_ch // 2, 1, stride=1, padding=0, bias=False)
        self.bn = nn.BatchNorm2d(out_ch)

    def forward(self, x):
        h = F.relu(x)
        h1 = self.conv1(F.avg_pool2d(h, 1, self.stride))
        h2 = self.conv2(F.avg_pool2d(F.pad(h, (-1, 1, -1, 1)), 1, self.stride))
        return self.bn(torch.cat((h1, h2), 1))


class ShakeBlock(nn.Module):
    """Two residual branches, mixed at random."""

    def __init__(self, in_ch, out_ch, stride=1):
        super().__init__()
        self.equal_io = in_ch == out_ch
        self.shortcut = None if self.equal_io else Shortcut(in_ch, out_ch, stride=stride)
        self.branch1 = self._make_branch(in_ch, out_ch, stride)
        self.branch2 = self._make_branch(in_ch, out_ch, stride)

    def forward(self, x):
        h1, h2 = self.branch1(x), self.branch2(x)
        h = ShakeShake.apply(h1, h2, self.training)
        h0 = x if self.equal_io else self.shortcut(x)
        return h + h0

    def _make_branch(self, in_ch, out_ch, stride=1):
        return nn.Sequential(
            nn.ReLU(inplace=False),
            nn.Conv2d(in_ch, out_ch, 3, padding=1, stride=stride, bias=False),
            nn.BatchNorm2d(out_ch),
            nn.ReLU(inplace=False),
            nn.Conv2d(out_ch, out_ch, 3, padding=1, stride=1, bias=False),
            nn.BatchNorm2d(out_ch),
        )


class ShakeResNet(nn.Module):
    """A residual network of three stages under shake-shake regularisation."""

    def __init__(self, depth=14, w_base=16, label=10):
        super().__init__()
        n_units = (depth - 2) // 6
        in_chs = [16, w_base, w_base * 2, w_base * 4]
        self.in_chs = in_chs
        self.c_in = nn.Conv2d(3, in_chs[0], 3, padding=1)
        self.layer1 = self._make_layer(n_units, in_chs[0], in_chs[1])
        self.layer2 = self._make_layer(n_units, in_chs[1], in_chs[2], 2)
        self.layer3 = self._make_layer(n_units, in_chs[2], in_chs[3], 2)
        self.fc_out = nn.Linear(in_chs[3], label)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                n = m.kernel_size[0] * m.kernel_size[1] * m.out_channels
                m.weight.data.normal_(0, math.sqrt(2.0 / n))
            elif isinstance(m, nn.BatchNorm2d):
                m.weight.data.fill_(1)
                m.bias.data.zero_()
            elif isinstance(m, nn.Linear):
                m.bias.data.zero_()

    def forward(self, x):
        h = self.c_in(x)
        h = self.layer1(h)
        h = self.layer2(h)
        h = self.layer3(h)
        h = F.relu(h)
        h = F.avg_pool2d(h, 8)
        h = h.view(-1, self.in_chs[3])
        return self.fc_out(h)

    def _make_layer(self, n_units, in_ch, out_ch, stride=1):
        layers = []
        for _ in range(int(n_units)):
            layers.append(ShakeBlock(in_ch, out_ch, stride=stride))
            in_ch, stride = out_ch, 1
        return nn.Sequential(*layers)


class SeparableConv2d(nn.Module):
    """Depthwise, then pointwise convolution."""

    def __init__(self, in_channels, out_channels, kernel_size=1, stride=1, padding=0, dilation=1, bias=False):
        super().__init__()
        self.conv1 = nn.Conv2d(
            in_channels, in_channels, kernel_size, stride, padding, dilation, groups=in_channels, bias=bias
        )
        self.pointwise = nn.Conv2d(in_channels, out_channels, 1, 1, 0, 1, 1, bias=bias)

    def forward(self, x):
        return self.pointwise(self.conv1(x))


class Block(nn.Module):
    """Separable convolutions past a skip, which is projected where shapes change."""

    def __init__(self, in_filters, out_filters, reps, strides=1, start_with_relu=True, grow_first=True):
        super().__init__()
        if out_filters != in_filters or strides != 1:
            self.skip = nn.Conv2d(in_filters, out_filters, 1, stride=strides, bias=False)
            self.skipbn = nn.BatchNorm2d(out_filters)
        else:
            self.skip = None
        rep, filters = [], in_filters

        def add(inputs, outputs):
            rep.append(nn.ReLU(inplace=True))
            rep.append(SeparableConv2d(inputs, outputs, 3, stride=1, padding=1, bias=False))
            rep.append(nn.BatchNorm2d(outputs))

        if grow_first:
            add(in_filters, out_filters)
            filters = out_filters
        for _ in range(reps - 1):
            add(filters, filters)
        if not grow_first:
            add(in_filters, out_filters)
        if not start_with_relu:
            rep = rep[1:]
        else:
            rep[0] = nn.ReLU(inplace=False)
        if strides != 1:
            rep.append(nn.MaxPool2d(3, strides, 1))
        self.rep = nn.Sequential(*rep)

    def forward(self, inp):
        x = self.rep(inp)
        skip = self.skipbn(self.skip(inp)) if self.skip is not None else inp
        return x + skip


class Xception(nn.Module):
    """Xception at an eighth of its width: entry, eight blocks in the middle, exit."""

    def __init__(self, num_classes=100, w=8):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32 // w, 3, 2, 0, bias=False)
        self.bn1 = nn.BatchNorm2d(32 // w)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(32 // w, 64 // w, 3, bias=False)
        self.bn2 = nn.BatchNorm2d(64 // w)
        self.block1 = Block(64 // w, 128 // w, 2, 2, start_with_relu=False, grow_first=True)
        self.block2 = Block(128 // w, 256 // w, 2, 2, start_with_relu=True, grow_first=True)
        self.block3 = Block(256 // w, 728 // w, 2, 2, start_with_relu=True, grow_first=True)
        self.middle = nn.Sequential(*[Block(728 // w, 728 // w, 3, 1) for _ in range(8)])
        self.block12 = Block(728 // w, 1024 // w, 2, 2, start_with_relu=True, grow_first=False)
        self.conv3 = SeparableConv2d(1024 // w, 1536 // w, 3, 1, 1)
        self.bn3 = nn.BatchNorm2d(1536 // w)
        self.conv4 = SeparableConv2d(1536 // w, 2048 // w, 3, 1, 1)
        self.bn4 = nn.BatchNorm2d(2048 // w)
        self.fc = nn.Linear(2048 // w, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                n = m.kernel_size[0] * m.kernel_size[1] * m.out_channels
                m.weight.data.normal_(0, math.sqrt(2.0 / n))
            elif isinstance(m, nn.BatchNorm2d):
                m.weight.data.fill_(1)
                m.bias.data.zero_()

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.block3(self.block2(self.block1(x)))
        x = self.middle(x)
        x = self.block12(x)
        x = self.relu(self.bn3(self.conv3(x)))
        x = self.relu(self.bn4(self.conv4(x)))
        x = F.adaptive_avg_pool2d(x, (1, 1))
        x = x.view(x.size(0), -1)
        return self.fc(x)


def digits(batch=16):
    """Pictures of 28 by 28 pixels, of a few thick strokes in the middle, almost all black or white."""
    grid = torch.arange(28.0)
    along = torch.linspace(0, 1, 12).view(1, 1, -1)
    a, b = 6 + 16 * torch.rand(batch, 3, 1, 2), 6 + 16 * torch.rand(batch, 3, 1, 2)
    points = (a + (b - a) * along.unsqueeze(-1).squeeze(0)).reshape(batch, -1, 2)
    near_y = (grid.view(1, 1, 28, 1) - points[..., 1].view(batch, -1, 1, 1)) ** 2
    near_x = (grid.view(1, 1, 1, 28) - points[..., 0].view(batch, -1, 1, 1)) ** 2
    ink = torch.sigmoid(4 * (2.0 - (near_y + near_x).amin(1)))
    return (ink.view(batch, 784),)


def frames(batch=8):
    """Standardised frames in the middle of episodes, with the states that the cell had come to."""
    hx, cx = 0.1 * torch.randn(batch, 256), 0.2 * torch.randn(batch, 256)
    return torch.randn(batch, 1, 42, 42), (hx, cx)


NETS = {
    "DRAW": (DrawModel, digits),
    "A3C": (ActorCritic, frames),
    "Shake-Shake": (ShakeResNet, lambda: (torch.randn(8, 3, 32, 32),)),
    "Xception": (Xception, lambda: (torch.randn(6, 3, 96, 96),)),
}
