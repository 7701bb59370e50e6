"""Networks typed by hand as their repositories have them: RNN transducer, NetVLAD, trRosetta, R2D2, DeepSleepNet."""

import torch
import torch.nn.functional as F
from torch import nn


class BaseEncoder(nn.Module):
    """Bidirectional LSTM over packed frames, sorted by length and put back in order."""

    def __init__(self, input_size, hidden_size, output_size, n_layers, dropout=0.2, bidirectional=True):
        super().__init__()
        dropout = dropout if n_layers > 1 else 0
        self.lstm = nn.LSTM(
            input_size, hidden_size, n_layers, batch_first=True, dropout=dropout, bidirectional=bidirectional
        )
        self.output_proj = nn.Linear(2 * hidden_size if bidirectional else hidden_size, output_size, bias=True)

    def forward(self, inputs, input_lengths):
        if input_lengths is not None:
            sorted_seq_lengths, indices = torch.sort(input_lengths, descending=True)
            inputs = inputs[indices]
            inputs = nn.utils.rnn.pack_padded_sequence(inputs, sorted_seq_lengths.cpu(), batch_first=True)
        self.lstm.flatten_parameters()
        outputs, hidden = self.lstm(inputs)
        if input_lengths is not None:
            _, desorted_indices = torch.sort(indices, descending=False)
            outputs, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
            outputs = outputs[desorted_indices]
        return self.output_proj(outputs), hidden


class BaseDecoder(nn.Module):
    """Prediction network: an LSTM over the labels so far."""

    def __init__(self, hidden_size, vocab_size, output_size, n_layers, dropout=0.2):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.lstm = nn.LSTM(
            hidden_size, hidden_size, n_layers, batch_first=True, dropout=dropout if n_layers > 1 else 0
        )
        self.output_proj = nn.Linear(hidden_size, output_size)

    def forward(self, inputs, length=None, hidden=None):
        embed_inputs = self.embedding(inputs)
        if length is not None:
            sorted_seq_lengths, indices = torch.sort(length, descending=True)
            embed_inputs = embed_inputs[indices]
            embed_inputs = nn.utils.rnn.pack_padded_sequence(embed_inputs, sorted_seq_lengths.cpu(), batch_first=True)
        self.lstm.flatten_parameters()
        outputs, hidden = self.lstm(embed_inputs, hidden)
        if length is not None:
            _, desorted_indices = torch.sort(indices, descending=False)
            outputs, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
            outputs = outputs[desorted_indices]
        return self.output_proj(outputs), hidden


class JointNet(nn.Module):
    """Every frame with every label prefix."""

    def __init__(self, input_size, inner_dim, vocab_size):
        super().__init__()
        self.forward_layer = nn.Linear(input_size, inner_dim, bias=True)
        self.tanh = nn.Tanh()
        self.project_layer = nn.Linear(inner_dim, vocab_size, bias=True)

    def forward(self, enc_state, dec_state):
        if enc_state.dim() == 3 and dec_state.dim() == 3:
            dec_state = dec_state.unsqueeze(1)
            enc_state = enc_state.unsqueeze(2)
            t, u = enc_state.size(1), dec_state.size(2)
            enc_state = enc_state.repeat([1, 1, u, 1])
            dec_state = dec_state.repeat([1, t, 1, 1])
        concat_state = torch.cat((enc_state, dec_state), dim=-1)
        return self.project_layer(self.tanh(self.forward_layer(concat_state)))


class Transducer(nn.Module):
    """Encoder, prediction network and joint network, for the transducer loss."""

    def __init__(self, feature_dim=40, enc_hidden=48, dec_hidden=64, out=64, inner=96, vocab_size=30):
        super().__init__()
        self.encoder = BaseEncoder(feature_dim, enc_hidden, out, n_layers=3)
        self.decoder = BaseDecoder(dec_hidden, vocab_size, out, n_layers=1)
        self.joint = JointNet(2 * out, inner, vocab_size)

    def forward(self, inputs, inputs_length, targets, targets_length):
        enc_state, _ = self.encoder(inputs, inputs_length)
        concat_targets = F.pad(targets, pad=(1, 0, 0, 0), value=0)
        dec_state, _ = self.decoder(concat_targets, targets_length.add(1))
        return self.joint(enc_state, dec_state)


class BasicBlock(nn.Module):
    """Residual block of two convolutions."""

    def __init__(self, inplanes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or inplanes != planes:
            self.downsample = nn.Sequential(nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


def resnet_base(widths=(16, 32, 64, 96)):
    layers = [nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    cin = widths[0]
    for i, w in enumerate(widths):
        layers.append(nn.Sequential(BasicBlock(cin, w, 1 if i == 0 else 2), BasicBlock(w, w)))
        cin = w
    base = nn.Sequential(*layers)
    for m in base.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(m, nn.BatchNorm2d):
            nn.init.constant_(m.weight, 1)
            nn.init.constant_(m.bias, 0)
    return base


class NetVLAD(nn.Module):
    """Residuals to the clusters' centres, summed under soft assignment."""

    def __init__(self, num_clusters=16, dim=96, alpha=100.0, normalize_input=True):
        super().__init__()
        self.num_clusters, self.dim, self.alpha = num_clusters, dim, alpha
        self.normalize_input = normalize_input
        self.conv = nn.Conv2d(dim, num_clusters, kernel_size=(1, 1), bias=True)
        self.centroids = nn.Parameter(torch.rand(num_clusters, dim))
        self._init_params()

    def _init_params(self):
        self.conv.weight = nn.Parameter((2.0 * self.alpha * self.centroids).unsqueeze(-1).unsqueeze(-1))
        self.conv.bias = nn.Parameter(-self.alpha * self.centroids.norm(dim=1))

    def forward(self, x):
        N, C = x.shape[:2]
        if self.normalize_input:
            x = F.normalize(x, p=2, dim=1)
        soft_assign = self.conv(x).view(N, self.num_clusters, -1)
        soft_assign = F.softmax(soft_assign, dim=1)
        x_flatten = x.view(N, C, -1)
        residual = x_flatten.expand(self.num_clusters, -1, -1, -1).permute(1, 0, 2, 3) - self.centroids.expand(
            x_flatten.size(-1), -1, -1
        ).permute(1, 2, 0).unsqueeze(0)
        residual *= soft_assign.unsqueeze(2)
        vlad = residual.sum(dim=-1)
        vlad = F.normalize(vlad, p=2, dim=2)
        vlad = vlad.view(x.size(0), -1)
        return F.normalize(vlad, p=2, dim=1)


class EmbedNet(nn.Module):
    """Backbone, then aggregation."""

    def __init__(self, base_model, net_vlad):
        super().__init__()
        self.base_model = base_model
        self.net_vlad = net_vlad

    def forward(self, x):
        return self.net_vlad(self.base_model(x))


class TripletNet(nn.Module):
    """Anchor, positive and negative through the one network."""

    def __init__(self):
        super().__init__()
        self.embed_net = EmbedNet(resnet_base(), NetVLAD(num_clusters=16, dim=96, alpha=1.0))

    def forward(self, a, p, n):
        return self.embed_net(a), self.embed_net(p), self.embed_net(n)


def reweight(msa1hot, cutoff):
    id_min = msa1hot.shape[1] * cutoff
    id_mtx = torch.tensordot(msa1hot, msa1hot, dims=([1, 2], [1, 2]))
    return 1.0 / (id_mtx > id_min).float().sum(dim=-1)


def msa2pssm(msa1hot, w):
    beff = w.sum()
    f_i = (w[:, None, None] * msa1hot).sum(dim=0) / beff + 1e-9
    h_i = (-f_i * torch.log(f_i)).sum(dim=1)
    return torch.cat((f_i, h_i[:, None]), dim=1)


def fast_dca(msa1hot, weights, penalty=4.5):
    nr, nc, ns = msa1hot.shape
    x = msa1hot.view(nr, nc * ns)
    num_points = weights.sum() - torch.sqrt(weights.mean())
    mean = (x * weights[:, None]).sum(dim=0, keepdim=True) / num_points
    x = (x - mean) * torch.sqrt(weights[:, None])
    cov = (x.t() @ x) / num_points
    cov_reg = cov + torch.eye(nc * ns, device=x.device) * penalty / torch.sqrt(weights.sum())
    inv_cov = torch.inverse(cov_reg)
    x1 = inv_cov.view(nc, ns, nc, ns)
    x2 = x1.transpose(1, 2).contiguous()
    features = x2.reshape(nc, nc, ns * ns)
    off = 1 - torch.eye(nc, device=x.device)
    x3 = torch.sqrt((x1[:, :-1, :, :-1] ** 2).sum(dim=(1, 3))) * off
    apc = x3.sum(dim=0, keepdim=True) * x3.sum(dim=1, keepdim=True) / x3.sum()
    contacts = (x3 - apc) * off
    return torch.cat((features, contacts[:, :, None]), dim=2)


class TrRosettaBlock(nn.Module):
    """Two dilated convolutions with instance norm, added to their input."""

    def __init__(self, dilation, n2d=64, p_drop=0.15):
        super().__init__()
        self.layer_s1 = nn.Sequential(
            nn.Conv2d(n2d, n2d, 3, padding=dilation, dilation=dilation),
            nn.InstanceNorm2d(n2d, eps=1e-06, affine=True),
            nn.ELU(inplace=True),
            nn.Dropout(p_drop),
            nn.Conv2d(n2d, n2d, 3, padding=dilation, dilation=dilation),
            nn.InstanceNorm2d(n2d, eps=1e-06, affine=True),
        )
        self.activation = nn.ELU()

    def forward(self, x):
        return self.activation(x + self.layer_s1(x))


class TrRosettaNetwork(nn.Module):
    """From an alignment to distributions of residues' distances and orientations."""

    def __init__(self, filters=32, num_blocks=11, wmin=0.8, ns=21):
        super().__init__()
        self.wmin, self.ns = wmin, ns
        self.first_block = nn.Sequential(
            nn.Conv2d(442 + 2 * 42, filters, 1), nn.InstanceNorm2d(filters, eps=1e-06, affine=True), nn.ELU()
        )
        cycle_dilations = [1, 2, 4, 8, 16]
        dilations = [cycle_dilations[i % len(cycle_dilations)] for i in range(num_blocks)]
        self.main_trunk = nn.ModuleList([TrRosettaBlock(dilation, filters) for dilation in dilations])
        self.bins_theta, self.bins_phi = nn.Conv2d(filters, 25, 1), nn.Conv2d(filters, 13, 1)
        self.bins_distance, self.bins_omega = nn.Conv2d(filters, 37, 1), nn.Conv2d(filters, 25, 1)

    def features(self, msa):
        ncol = msa.shape[1]
        msa1hot = F.one_hot(msa, self.ns).float()
        w = reweight(msa1hot, self.wmin)
        f1d = torch.cat((msa1hot[0, :, :20], msa2pssm(msa1hot, w)), dim=1)
        f2d_dca = fast_dca(msa1hot, w)
        left, right = f1d[:, None, :].repeat(1, ncol, 1), f1d[None, :, :].repeat(ncol, 1, 1)
        return torch.cat((left, right, f2d_dca), dim=-1).permute(2, 0, 1).unsqueeze(0)

    def forward(self, msa):
        x = self.first_block(self.features(msa))
        for layer in self.main_trunk:
            x = layer(x)
        theta = F.softmax(self.bins_theta(x), dim=1)
        phi = F.softmax(self.bins_phi(x), dim=1)
        x = 0.5 * (x + x.transpose(-1, -2))
        distance = F.softmax(self.bins_distance(x), dim=1)
        omega = F.softmax(self.bins_omega(x), dim=1)
        return theta, phi, distance, omega


class NatureCnnBackboneNet(nn.Module):
    """The three convolutions of the Nature paper."""

    def __init__(self, in_channels, widths=(16, 32, 32)):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(in_channels, widths[0], kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Conv2d(widths[0], widths[1], kernel_size=4, stride=2),
            nn.ReLU(),
            nn.Conv2d(widths[1], widths[2], kernel_size=3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.out_features = widths[2] * 7 * 7

    def forward(self, x):
        return self.net(x.float() / 255.0)


class R2D2Net(nn.Module):
    """Recurrent dueling network, fed the last action and reward too, with a burn-in of the stored state."""

    def __init__(self, in_channels=4, action_dim=6, hidden=128, burn_in=4):
        super().__init__()
        self.action_dim, self.burn_in, self.hidden = action_dim, burn_in, hidden
        self.body = NatureCnnBackboneNet(in_channels)
        self.lstm = nn.LSTM(input_size=self.body.out_features + action_dim + 1, hidden_size=hidden, num_layers=1)
        self.advantage_head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, action_dim))
        self.value_head = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.kaiming_uniform_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def unroll(self, s_t, a_tm1, r_t, hidden_s):
        T, B, *_ = s_t.shape
        x = self.body(torch.flatten(s_t, 0, 1)).view(T, B, -1)
        one_hot_a_tm1 = F.one_hot(a_tm1, self.action_dim).float()
        core_input = torch.cat([x, r_t.unsqueeze(-1), one_hot_a_tm1], dim=-1)
        x, hidden_s = self.lstm(core_input, hidden_s)
        x = torch.flatten(x, 0, 1)
        advantages, values = self.advantage_head(x), self.value_head(x)
        q_values = values + (advantages - torch.mean(advantages, dim=1, keepdim=True))
        return q_values.view(T, B, -1), hidden_s

    def forward(self, s_t, a_tm1, r_t, h, c):
        state, n = (h, c), self.burn_in
        with torch.no_grad():
            _, state = self.unroll(s_t[:n], a_tm1[:n], r_t[:n], state)
        q_values, _ = self.unroll(s_t[n:], a_tm1[n:], r_t[n:], state)
        return q_values


def conv_bn(cin, cout, k, stride=1, padding=0):
    return nn.Sequential(
        nn.Conv1d(cin, cout, k, stride, padding, bias=False), nn.BatchNorm1d(cout, eps=1e-5), nn.ReLU(inplace=True)
    )


class DeepSleepNet(nn.Module):
    """Two convolutional paths over each epoch of the EEG, then LSTMs over epochs with a shortcut."""

    def __init__(self, fs=100, n_classes=5, width=32, hidden=64):
        super().__init__()
        self.cnn_small = nn.Sequential(
            conv_bn(1, width, fs // 2, fs // 16, fs // 4),
            nn.MaxPool1d(8, 8),
            nn.Dropout(0.5),
            *[conv_bn(width if i == 0 else 2 * width, 2 * width, 8, 1, "same") for i in range(3)],
            nn.MaxPool1d(4, 4),
        )
        self.cnn_large = nn.Sequential(
            conv_bn(1, width, fs * 4, fs // 2, fs * 2),
            nn.MaxPool1d(4, 4),
            nn.Dropout(0.5),
            *[conv_bn(width if i == 0 else 2 * width, 2 * width, 6, 1, "same") for i in range(3)],
            nn.MaxPool1d(2, 2),
        )
        self.drop1 = nn.Dropout(0.5)
        feats = 2 * width * (15 + 7)
        self.res = nn.Sequential(nn.Linear(feats, 2 * hidden, bias=False), nn.BatchNorm1d(2 * hidden), nn.ReLU())
        self.rnn = nn.LSTM(feats, hidden, num_layers=2, batch_first=True, bidirectional=True, dropout=0.5)
        self.drop2 = nn.Dropout(0.5)
        self.fc = nn.Linear(2 * hidden, n_classes)

    def embed(self, x):
        return torch.cat([self.cnn_small(x).flatten(1), self.cnn_large(x).flatten(1)], dim=1)

    def forward(self, x):
        B, T = x.shape[:2]
        x = self.drop1(self.embed(x.reshape(B * T, 1, -1)))
        residual = self.res(x).view(B, T, -1)
        out, _ = self.rnn(x.view(B, T, -1))
        return self.fc(self.drop2(out + residual))


def utterances():
    lengths = torch.tensor([32, 28, 30, 25, 32, 20, 27, 31])
    labels = torch.tensor([9, 7, 8, 6, 10, 5, 7, 9])
    targets = torch.randint(1, 30, (8, 10)) * (torch.arange(10)[None] < labels[:, None])
    return torch.randn(8, 32, 40), lengths, targets, labels


def aligned_family(rows=40, length=16):
    msa = torch.randint(20, (1, length)).repeat(rows, 1)
    return (torch.where(torch.rand(rows, length) < 0.3, torch.randint(21, (rows, length)), msa),)


def unrolls(T=10, B=4, hidden=128):
    frames, actions = torch.randint(256, (T, B, 4, 84, 84), dtype=torch.uint8), torch.randint(6, (T, B))
    return frames, actions, torch.randint(-1, 2, (T, B)).float(), torch.zeros(1, B, hidden), torch.zeros(1, B, hidden)


NETS = {
    "RNN transducer": (Transducer, utterances),
    "NetVLAD": (TripletNet, lambda: tuple(torch.randn(4, 3, 96, 96) for _ in range(3))),
    "trRosetta": (TrRosettaNetwork, aligned_family),
    "R2D2": (R2D2Net, unrolls),
    "DeepSleepNet": (DeepSleepNet, lambda: (torch.randn(2, 8, 3000),)),
}
