"""Networks typed by hand as their repositories have them: Synthesizer, Listen attend and spell, WaveRNN."""

import math
import random

import torch
import torch.nn.functional as F
from torch import nn


class DenseAttention(nn.Module):
    """Scores of all positions from the query's own token alone, by two layers."""

    def __init__(self, max_seq_len, d_k, d_hid=64):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_k, d_hid), nn.Linear(d_hid, max_seq_len)

    def forward(self, q, len_q):
        return self.w_2(F.relu(self.w_1(q)))[:, :, :, :len_q]


class FactorizedRandomAttention(nn.Module):
    """Scores that don't look at the tokens: a learnt product of two thin matrices for each head."""

    def __init__(self, n_head, f, max_seq_len):
        super().__init__()
        self.random_attn_1 = nn.Parameter(torch.randn(1, n_head, max_seq_len, f))
        self.random_attn_2 = nn.Parameter(torch.randn(1, n_head, f, max_seq_len))

    def forward(self, len_q):
        return torch.matmul(self.random_attn_1, self.random_attn_2)[:, :, :len_q, :len_q]


class SynthesizerAttention(nn.Module):
    """Multi-head attention with a learnt mixture of dense, random and dot-product scores."""

    def __init__(self, n_head, d_model, max_seq_len, f=8, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k = n_head, d_model // n_head
        self.w_qs, self.w_ks, self.w_vs = (nn.Linear(d_model, d_model, bias=False) for _ in range(3))
        self.dense = DenseAttention(max_seq_len, self.d_k)
        self.random = FactorizedRandomAttention(n_head, f, max_seq_len)
        self.mixture = nn.Parameter(torch.zeros(3))
        self.fc = nn.Linear(d_model, d_model, bias=False)
        self.attn_dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        B, L, D = x.shape
        q, k, v = (w(x).view(B, L, self.n_head, self.d_k).transpose(1, 2) for w in (self.w_qs, self.w_ks, self.w_vs))
        alpha = F.softmax(self.mixture, dim=0)
        dots = torch.matmul(q / self.d_k**0.5, k.transpose(2, 3))
        attn = alpha[0] * self.dense(q, L) + alpha[1] * self.random(L) + alpha[2] * dots
        attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.attn_dropout(F.softmax(attn, dim=-1))
        return self.fc(torch.matmul(attn, v).transpose(1, 2).reshape(B, L, D))


class SynthesizerBlock(nn.Module):
    """Synthesized attention and the feed-forward layers, each with its norm before it."""

    def __init__(self, d_model, n_head, d_inner, max_seq_len, dropout=0.1):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = SynthesizerAttention(n_head, d_model, max_seq_len)
        self.ffn = nn.Sequential(
            nn.Linear(d_model, d_inner), nn.ReLU(), nn.Dropout(dropout), nn.Linear(d_inner, d_model)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = x + self.dropout(self.attn(self.norm1(x), mask))
        return x + self.dropout(self.ffn(self.norm2(x)))


class SynthesizerLM(nn.Module):
    """A causal language model of synthesizer blocks."""

    def __init__(self, n_vocab=800, d_model=64, n_head=4, d_inner=256, n_layers=3, max_seq_len=48, pad_idx=0):
        super().__init__()
        self.pad_idx, self.d_model = pad_idx, d_model
        self.word_emb = nn.Embedding(n_vocab, d_model, padding_idx=pad_idx)
        position = torch.arange(max_seq_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_seq_len, d_model)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * div_term), torch.cos(position * div_term)
        self.register_buffer("pe", pe.unsqueeze(0))
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList([SynthesizerBlock(d_model, n_head, d_inner, max_seq_len) for _ in range(n_layers)])
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_vocab)
        for name, p in self.named_parameters():
            if p.dim() > 1 and "random_attn" not in name:
                nn.init.xavier_uniform_(p)

    def forward(self, tokens):
        L = tokens.size(1)
        mask = (tokens != self.pad_idx)[:, None, None, :]
        mask = mask & torch.ones(L, L, dtype=torch.bool, device=tokens.device).tril()
        x = self.dropout(self.word_emb(tokens) * math.sqrt(self.d_model) + self.pe[:, :L])
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


class PBLSTMLayer(nn.Module):
    """Pyramid layer: neighbouring frames side by side at half the rate, then a bidirectional LSTM."""

    def __init__(self, input_feature_dim, hidden_dim, dropout_rate=0.0):
        super().__init__()
        self.BLSTM = nn.LSTM(
            input_feature_dim * 2, hidden_dim, 1, bidirectional=True, dropout=dropout_rate, batch_first=True
        )

    def forward(self, input_x):
        batch_size, timestep, feature_dim = input_x.size()
        input_x = input_x.contiguous().view(batch_size, timestep // 2, feature_dim * 2)
        return self.BLSTM(input_x)


class Listener(nn.Module):
    """The pyramid over the filter banks."""

    def __init__(self, input_feature_dim, hidden_dim, num_layers):
        super().__init__()
        layers = [PBLSTMLayer(input_feature_dim, hidden_dim)]
        layers += [PBLSTMLayer(hidden_dim * 2, hidden_dim) for _ in range(num_layers - 1)]
        self.layers = nn.ModuleList(layers)

    def forward(self, input_x):
        output = input_x
        for layer in self.layers:
            output, _ = layer(output)
        return output


class Attention(nn.Module):
    """Scores from products of the speller's and the listener's states after a layer on each."""

    def __init__(self, preprocess_mlp_dim, decoder_dim, input_feature_dim):
        super().__init__()
        self.phi = nn.Linear(decoder_dim, preprocess_mlp_dim)
        self.psi = nn.Linear(input_feature_dim, preprocess_mlp_dim)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, decoder_state, listener_feature):
        comp_decoder_state = F.relu(self.phi(decoder_state))
        comp_listener_feature = F.relu(self.psi(listener_feature))
        energy = torch.bmm(comp_decoder_state, comp_listener_feature.transpose(1, 2)).squeeze(dim=1)
        attention_score = self.softmax(energy)
        context = torch.sum(listener_feature * attention_score.unsqueeze(2), dim=1)
        return attention_score, context


class Speller(nn.Module):
    """Letters one after the other, from the last letter and the context, or its own guess of them."""

    def __init__(self, output_class_dim, speller_hidden_dim, num_layers, mlp_dim, max_label_len):
        super().__init__()
        self.max_label_len, self.label_dim = max_label_len, output_class_dim
        self.rnn_layer = nn.LSTM(
            output_class_dim + speller_hidden_dim, speller_hidden_dim, num_layers=num_layers, batch_first=True
        )
        self.attention = Attention(mlp_dim, speller_hidden_dim, speller_hidden_dim)
        self.character_distribution = nn.Linear(speller_hidden_dim * 2, output_class_dim)
        self.softmax = nn.LogSoftmax(dim=-1)

    def forward_step(self, input_word, last_hidden_state, listener_feature):
        rnn_output, hidden_state = self.rnn_layer(input_word, last_hidden_state)
        attention_score, context = self.attention(rnn_output, listener_feature)
        concat_feature = torch.cat([rnn_output.squeeze(dim=1), context], dim=-1)
        return self.softmax(self.character_distribution(concat_feature)), hidden_state, context, attention_score

    def forward(self, listener_feature, ground_truth=None, teacher_force_rate=0.9):
        if ground_truth is None:
            teacher_force_rate = 0
        teacher_force = random.random() < teacher_force_rate
        batch_size = listener_feature.size(0)
        output_word = listener_feature.new_zeros(batch_size, 1, self.label_dim)
        output_word[:, :, 0] = 1.0
        rnn_input = torch.cat([output_word, listener_feature[:, 0:1, :]], dim=-1)
        hidden_state, raw_pred_seq, attention_record = None, [], []
        max_step = ground_truth.size(1) if teacher_force else self.max_label_len
        for step in range(max_step):
            raw_pred, hidden_state, context, score = self.forward_step(rnn_input, hidden_state, listener_feature)
            raw_pred_seq.append(raw_pred)
            attention_record.append(score)
            output_word = ground_truth[:, step : step + 1, :].float() if teacher_force else raw_pred.unsqueeze(1)
            rnn_input = torch.cat([output_word, context.unsqueeze(1)], dim=-1)
        return torch.stack(raw_pred_seq, dim=1), torch.stack(attention_record, dim=1)


class LAS(nn.Module):
    """Listen, attend and spell."""

    def __init__(self, features=40, listener_hidden=48, listener_layers=3, classes=30, mlp_dim=64, max_label_len=16):
        super().__init__()
        self.listener = Listener(features, listener_hidden, listener_layers)
        self.speller = Speller(classes, 2 * listener_hidden, 2, mlp_dim, max_label_len)

    def forward(self, batch_data, batch_label):
        return self.speller(self.listener(batch_data), ground_truth=batch_label)


class ResBlock(nn.Module):
    """Two pointwise convolutions with norms, added to their input."""

    def __init__(self, dims):
        super().__init__()
        self.conv1 = nn.Conv1d(dims, dims, kernel_size=1, bias=False)
        self.conv2 = nn.Conv1d(dims, dims, kernel_size=1, bias=False)
        self.batch_norm1, self.batch_norm2 = nn.BatchNorm1d(dims), nn.BatchNorm1d(dims)

    def forward(self, x):
        residual = x
        x = F.relu(self.batch_norm1(self.conv1(x)))
        x = self.batch_norm2(self.conv2(x))
        return x + residual


class MelResNet(nn.Module):
    """Features of the spectrogram's neighbourhoods, for the whole length."""

    def __init__(self, res_blocks, in_dims, compute_dims, res_out_dims, pad):
        super().__init__()
        self.conv_in = nn.Conv1d(in_dims, compute_dims, kernel_size=pad * 2 + 1, bias=False)
        self.batch_norm = nn.BatchNorm1d(compute_dims)
        self.layers = nn.ModuleList([ResBlock(compute_dims) for _ in range(res_blocks)])
        self.conv_out = nn.Conv1d(compute_dims, res_out_dims, kernel_size=1)

    def forward(self, x):
        x = F.relu(self.batch_norm(self.conv_in(x)))
        for f in self.layers:
            x = f(x)
        return self.conv_out(x)


class Stretch2d(nn.Module):
    """Repeats along both axes."""

    def __init__(self, x_scale, y_scale):
        super().__init__()
        self.x_scale, self.y_scale = x_scale, y_scale

    def forward(self, x):
        b, c, h, w = x.size()
        x = x.unsqueeze(-1).unsqueeze(3)
        x = x.repeat(1, 1, 1, self.y_scale, 1, self.x_scale)
        return x.view(b, c, h * self.y_scale, w * self.x_scale)


class UpsampleNetwork(nn.Module):
    """Spectrogram to the rate of samples by repeats and learnt smoothing, with the features beside it."""

    def __init__(self, feat_dims, upsample_scales, compute_dims, res_blocks, res_out_dims, pad):
        super().__init__()
        total_scale = math.prod(upsample_scales)
        self.indent = pad * total_scale
        self.resnet = MelResNet(res_blocks, feat_dims, compute_dims, res_out_dims, pad)
        self.resnet_stretch = Stretch2d(total_scale, 1)
        self.up_layers = nn.ModuleList()
        for scale in upsample_scales:
            k_size, padding = (1, scale * 2 + 1), (0, scale)
            conv = nn.Conv2d(1, 1, kernel_size=k_size, padding=padding, bias=False)
            conv.weight.data.fill_(1.0 / k_size[1])
            self.up_layers.append(Stretch2d(scale, 1))
            self.up_layers.append(conv)

    def forward(self, m):
        aux = self.resnet(m).unsqueeze(1)
        aux = self.resnet_stretch(aux).squeeze(1)
        m = m.unsqueeze(1)
        for f in self.up_layers:
            m = f(m)
        m = m.squeeze(1)[:, :, self.indent : -self.indent]
        return m.transpose(1, 2), aux.transpose(1, 2)


class WaveRNN(nn.Module):
    """Vocoder: two GRUs over samples with the upsampled spectrogram, classes of nine bits."""

    def __init__(self, rnn_dims=96, fc_dims=96, bits=9, pad=2, scales=(4, 4, 5), feat_dims=40, res_out_dims=64):
        super().__init__()
        self.n_classes, self.rnn_dims, self.aux_dims = 2**bits, rnn_dims, res_out_dims // 4
        self.upsample = UpsampleNetwork(feat_dims, scales, 48, 4, res_out_dims, pad)
        self.I = nn.Linear(feat_dims + self.aux_dims + 1, rnn_dims)
        self.rnn1 = nn.GRU(rnn_dims, rnn_dims, batch_first=True)
        self.rnn2 = nn.GRU(rnn_dims + self.aux_dims, rnn_dims, batch_first=True)
        self.fc1 = nn.Linear(rnn_dims + self.aux_dims, fc_dims)
        self.fc2 = nn.Linear(fc_dims + self.aux_dims, fc_dims)
        self.fc3 = nn.Linear(fc_dims, self.n_classes)
        self.register_buffer("step", torch.zeros(1, dtype=torch.long))

    def forward(self, x, mels):
        self.step += 1
        bsize = x.size(0)
        h1 = torch.zeros(1, bsize, self.rnn_dims, device=x.device)
        h2 = torch.zeros(1, bsize, self.rnn_dims, device=x.device)
        mels, aux = self.upsample(mels)
        aux_idx = [self.aux_dims * i for i in range(5)]
        a1, a2, a3, a4 = (aux[:, :, aux_idx[i] : aux_idx[i + 1]] for i in range(4))
        x = torch.cat([x.unsqueeze(-1), mels, a1], dim=2)
        x = self.I(x)
        res = x
        x, _ = self.rnn1(x, h1)
        x = x + res
        res = x
        x = torch.cat([x, a2], dim=2)
        x, _ = self.rnn2(x, h2)
        x = x + res
        x = torch.cat([x, a3], dim=2)
        x = F.relu(self.fc1(x))
        x = torch.cat([x, a4], dim=2)
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def sentences(batch=8, length=48, vocab=800):
    lengths = torch.randint(length // 2, length + 1, (batch, 1))
    lengths[0] = length
    return (torch.randint(1, vocab, (batch, length)).masked_fill(torch.arange(length) >= lengths, 0),)


def spoken(batch=6, frames=96, letters=16, classes=30):
    """Filter banks padded with zeros to the longest, and the letters one-hot, padded with the end's sign."""
    used = torch.tensor([96, 88, 80, 96, 64, 72])[:batch, None]
    ends = torch.tensor([16, 14, 13, 15, 10, 12])[:batch, None]
    labels = torch.randint(2, classes, (batch, letters)).masked_fill(torch.arange(letters) >= ends, 1)
    return torch.randn(batch, frames, 40) * (torch.arange(frames) < used).unsqueeze(-1), F.one_hot(labels, classes)


def waves(batch=4, hops=5, hop=80, pad=2):
    """A window of quantised samples in [-1, 1], and its spectrogram in [0, 1] with frames at both sides."""
    wave = torch.sin(torch.arange(hops * hop) * 0.1 + torch.rand(batch, 1) * 6) * 0.5 + 0.05 * torch.randn(batch, 400)
    labels = ((wave.clamp(-1, 1) + 1) * 511 / 2).long()
    return 2 * labels.float() / 511 - 1, torch.rand(batch, 40, hops + 2 * pad)


NETS = {
    "Synthesizer": (SynthesizerLM, sentences),
    "Listen, attend and spell": (LAS, spoken),
    "WaveRNN": (WaveRNN, waves),
}
