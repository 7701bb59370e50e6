"""Networks typed by hand as their papers describe them: PSPNet to Sentence-BERT."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Bottleneck(nn.Module):
    """Bottleneck residual block, optionally dilated."""

    expansion = 4

    def __init__(self, inplanes, planes, stride=1, dilation=1, downsample=None):
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, padding=dilation, dilation=dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, planes * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x):
        residual = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += residual
        return self.relu(out)


class PPM(nn.Module):
    """Pyramid pooling module."""

    def __init__(self, in_dim, reduction_dim, bins):
        super().__init__()
        self.features = nn.ModuleList(
            nn.Sequential(
                nn.AdaptiveAvgPool2d(b),
                nn.Conv2d(in_dim, reduction_dim, 1, bias=False),
                nn.BatchNorm2d(reduction_dim),
                nn.ReLU(inplace=True),
            )
            for b in bins
        )

    def forward(self, x):
        size = x.shape[2:]
        out = [x]
        for f in self.features:
            out.append(F.interpolate(f(x), size, mode="bilinear", align_corners=True))
        return torch.cat(out, 1)


def conv_bn_relu(cin, cout, stride=1):
    return nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)


class PSPNet(nn.Module):
    """Scene parsing with a dilated ResNet, pyramid pooling and an auxiliary head."""

    def __init__(self, classes=6, bins=(1, 2, 3, 6), dropout=0.1, width=16, layers=(2, 2, 3, 2)):
        super().__init__()
        self.criterion = nn.CrossEntropyLoss(ignore_index=255)
        self.layer0 = nn.Sequential(
            *conv_bn_relu(3, width, stride=2),
            *conv_bn_relu(width, width),
            *conv_bn_relu(width, 2 * width),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.inplanes = 2 * width
        self.layer1 = self._make_layer(8, layers[0])
        self.layer2 = self._make_layer(16, layers[1], stride=2)
        self.layer3 = self._make_layer(24, layers[2], dilation=2)
        aux_dim = self.inplanes
        self.layer4 = self._make_layer(32, layers[3], dilation=4)
        fea_dim = self.inplanes
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
        self.ppm = PPM(fea_dim, fea_dim // len(bins), bins)
        self.cls = nn.Sequential(*conv_bn_relu(fea_dim * 2, 64), nn.Dropout2d(dropout), nn.Conv2d(64, classes, 1))
        self.aux = nn.Sequential(*conv_bn_relu(aux_dim, 32), nn.Dropout2d(dropout), nn.Conv2d(32, classes, 1))

    def _make_layer(self, planes, blocks, stride=1, dilation=1):
        out = planes * Bottleneck.expansion
        down = nn.Sequential(nn.Conv2d(self.inplanes, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        layers = [Bottleneck(self.inplanes, planes, stride, dilation, down)]
        self.inplanes = out
        layers += [Bottleneck(out, planes, dilation=dilation) for _ in range(1, blocks)]
        return nn.Sequential(*layers)

    def forward(self, x, y=None):
        h, w = x.shape[2:]
        x = self.layer2(self.layer1(self.layer0(x)))
        x_tmp = self.layer3(x)
        x = self.cls(self.ppm(self.layer4(x_tmp)))
        x = F.interpolate(x, size=(h, w), mode="bilinear", align_corners=True)
        if not self.training:
            return x
        aux = F.interpolate(self.aux(x_tmp), size=(h, w), mode="bilinear", align_corners=True)
        return x.max(1)[1], self.criterion(x, y), self.criterion(aux, y)


class ConcatConv2d(nn.Module):
    """Convolution that sees the time as one more channel."""

    def __init__(self, dim_in, dim_out):
        super().__init__()
        self._layer = nn.Conv2d(dim_in + 1, dim_out, 3, padding=1)

    def forward(self, t, x):
        tt = torch.ones_like(x[:, :1]) * t
        return self._layer(torch.cat([tt, x], 1))


class ODEFunc(nn.Module):
    """Right-hand side of the ordinary differential equation."""

    def __init__(self, dim):
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(min(32, dim), dim) for _ in range(3))
        self.relu = nn.ReLU(inplace=True)
        self.conv1, self.conv2 = ConcatConv2d(dim, dim), ConcatConv2d(dim, dim)

    def forward(self, t, x):
        out = self.relu(self.norm1(x))
        out = self.conv1(t, out)
        out = self.relu(self.norm2(out))
        out = self.conv2(t, out)
        return self.norm3(out)


class ODEBlock(nn.Module):
    """Integrates from time 0 to 1 with fixed Runge-Kutta steps."""

    def __init__(self, odefunc, steps=4):
        super().__init__()
        self.odefunc, self.steps = odefunc, steps
        self.register_buffer("integration_time", torch.linspace(0, 1, steps + 1))

    def forward(self, x):
        for t0, t1 in zip(self.integration_time[:-1], self.integration_time[1:], strict=True):
            dt = t1 - t0
            k1 = self.odefunc(t0, x)
            k2 = self.odefunc(t0 + dt / 2, x + dt / 2 * k1)
            k3 = self.odefunc(t0 + dt / 2, x + dt / 2 * k2)
            k4 = self.odefunc(t1, x + dt * k3)
            x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x


class ODENet(nn.Module):
    """Neural ODE image classifier: downsampling, one ODE block, pooled linear head."""

    def __init__(self, dim=64, classes=10):
        super().__init__()
        self.downsampling = nn.Sequential(
            nn.Conv2d(1, dim, 3, 1),
            nn.GroupNorm(min(32, dim), dim),
            nn.ReLU(inplace=True),
            nn.Conv2d(dim, dim, 4, 2, 1),
            nn.GroupNorm(min(32, dim), dim),
            nn.ReLU(inplace=True),
            nn.Conv2d(dim, dim, 4, 2, 1),
        )
        self.feature = ODEBlock(ODEFunc(dim))
        self.fc = nn.Sequential(
            nn.GroupNorm(min(32, dim), dim),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d((1, 1)),
            nn.Flatten(),
            nn.Linear(dim, classes),
        )

    def forward(self, x):
        return self.fc(self.feature(self.downsampling(x)))


class Highway(nn.Module):
    """Highway layers with the carry gate open at first."""

    def __init__(self, dim, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim * 2) for _ in range(layers))
        for layer in self.layers:
            nn.init.normal_(layer.weight, std=math.sqrt(1 / dim))
            layer.bias.data[:dim].fill_(0)
            layer.bias.data[dim:].fill_(1)

    def forward(self, x):
        for layer in self.layers:
            nonlinear, gate = layer(x).chunk(2, dim=-1)
            gate = torch.sigmoid(gate)
            x = gate * x + (1 - gate) * F.relu(nonlinear)
        return x


class ELMo(nn.Module):
    """Bidirectional language model over character convolutions, and its scalar mix of layers."""

    def __init__(self, chars=60, words=300, char_dim=16, proj=64, hidden=128, layers=2, dropout=0.1):
        super().__init__()
        self.char_embed = nn.Embedding(chars, char_dim, padding_idx=0)
        nn.init.uniform_(self.char_embed.weight, -1.0, 1.0)
        self.char_embed.weight.data[0].zero_()
        filters = ((1, 16), (2, 16), (3, 32), (4, 64))
        self.convs = nn.ModuleList(nn.Conv1d(char_dim, n, w) for w, n in filters)
        for conv in self.convs:
            nn.init.uniform_(conv.weight, -0.05, 0.05)
            nn.init.zeros_(conv.bias)
        total = sum(n for _, n in filters)
        self.highways = Highway(total, 2)
        self.projection = nn.Linear(total, proj)
        nn.init.normal_(self.projection.weight, std=1 / math.sqrt(total))
        nn.init.zeros_(self.projection.bias)
        self.fwd = nn.ModuleList(nn.LSTM(proj, hidden, batch_first=True, proj_size=proj) for _ in range(layers))
        self.bwd = nn.ModuleList(nn.LSTM(proj, hidden, batch_first=True, proj_size=proj) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        self.softmax = nn.Linear(proj, words)
        nn.init.normal_(self.softmax.weight, std=1 / math.sqrt(proj))
        nn.init.zeros_(self.softmax.bias)
        self.scalars = nn.Parameter(torch.zeros(layers + 1))
        self.gamma = nn.Parameter(torch.ones(1))

    def tokens(self, chars):
        b, n, w = chars.shape
        e = self.char_embed(chars.view(-1, w)).transpose(1, 2)
        e = torch.cat([F.relu(conv(e).max(dim=-1)[0]) for conv in self.convs], dim=-1)
        return self.projection(self.highways(e)).view(b, n, -1)

    def forward(self, chars, words):
        mask = words > 0
        x = self.tokens(chars)
        states = [torch.cat([x, x], dim=-1)]
        f, r = x, x.flip(1)
        for i, (fwd, bwd) in enumerate(zip(self.fwd, self.bwd, strict=True)):
            new_f, new_r = fwd(self.dropout(f))[0], bwd(self.dropout(r))[0]
            f, r = (new_f, new_r) if i == 0 else (f + new_f, r + new_r)
            states.append(torch.cat([f, r.flip(1)], dim=-1))
        s = F.softmax(self.scalars, dim=0)
        elmo = self.gamma * sum(w * h for w, h in zip(s, states, strict=True)) * mask.unsqueeze(-1)
        ahead = self.softmax(self.dropout(f[:, :-1])).transpose(1, 2)
        back = self.softmax(self.dropout(r.flip(1)[:, 1:])).transpose(1, 2)
        loss = F.cross_entropy(ahead, words[:, 1:], ignore_index=0)
        loss = 0.5 * (loss + F.cross_entropy(back, words[:, :-1], ignore_index=0))
        return elmo, loss


class BertSelfAttention(nn.Module):
    """Multi-head self-attention with an additive mask."""

    def __init__(self, d, heads, p):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.dropout = nn.Dropout(p)

    def split(self, x):
        return x.view(*x.shape[:2], self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + mask
        probs = self.dropout(scores.softmax(-1))
        return (probs @ v).permute(0, 2, 1, 3).flatten(2)


class BertLayer(nn.Module):
    """Post-norm transformer layer."""

    def __init__(self, d, heads, inner, p):
        super().__init__()
        self.attention = BertSelfAttention(d, heads, p)
        self.attention_output = nn.Linear(d, d)
        self.attention_norm = nn.LayerNorm(d, eps=1e-12)
        self.intermediate, self.output = nn.Linear(d, inner), nn.Linear(inner, d)
        self.output_norm = nn.LayerNorm(d, eps=1e-12)
        self.dropout = nn.Dropout(p)

    def forward(self, x, mask):
        x = self.attention_norm(self.dropout(self.attention_output(self.attention(x, mask))) + x)
        h = F.gelu(self.intermediate(x))
        return self.output_norm(self.dropout(self.output(h)) + x)


class BertModel(nn.Module):
    """Embeddings, encoder and tanh pooler."""

    def __init__(self, vocab=300, d=64, layers=4, heads=4, inner=256, max_len=64, p=0.1):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, d, padding_idx=0)
        self.position_embeddings = nn.Embedding(max_len, d)
        self.token_type_embeddings = nn.Embedding(2, d)
        self.norm, self.dropout = nn.LayerNorm(d, eps=1e-12), nn.Dropout(p)
        self.layer = nn.ModuleList(BertLayer(d, heads, inner, p) for _ in range(layers))
        self.pooler = nn.Linear(d, d)

    def forward(self, ids, attention_mask, token_type=None):
        token_type = torch.zeros_like(ids) if token_type is None else token_type
        pos = torch.arange(ids.size(1), device=ids.device).unsqueeze(0)
        x = self.word_embeddings(ids) + self.position_embeddings(pos) + self.token_type_embeddings(token_type)
        x = self.dropout(self.norm(x))
        mask = (1.0 - attention_mask[:, None, None, :].float()) * -10000.0
        for layer in self.layer:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


def init_bert_weights(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        module.weight.data.normal_(mean=0.0, std=0.02)
    elif isinstance(module, nn.LayerNorm):
        module.bias.data.zero_()
        module.weight.data.fill_(1.0)
    if isinstance(module, nn.Linear) and module.bias is not None:
        module.bias.data.zero_()


class BertForPreTraining(nn.Module):
    """BERT with the masked-word head, tied to the embeddings, and next-sentence prediction."""

    def __init__(self, vocab=300, d=64):
        super().__init__()
        self.bert = BertModel(vocab, d)
        self.transform = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.LayerNorm(d, eps=1e-12))
        self.decoder = nn.Linear(d, vocab, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.seq_relationship = nn.Linear(d, 2)
        self.apply(init_bert_weights)
        self.decoder.weight = self.bert.word_embeddings.weight

    def forward(self, ids, token_type, attention_mask, labels=None, next_label=None):
        seq, pooled = self.bert(ids, attention_mask, token_type)
        scores = self.decoder(self.transform(seq)) + self.bias
        nsp = self.seq_relationship(pooled)
        if labels is None:
            return scores, nsp
        loss = F.cross_entropy(scores.view(-1, scores.size(-1)), labels.view(-1), ignore_index=-100)
        return loss + F.cross_entropy(nsp, next_label), scores, nsp


class SentenceBERT(nn.Module):
    """Siamese BERT with mean pooling and the softmax objective on (u, v, |u - v|)."""

    def __init__(self, d=64, labels=3):
        super().__init__()
        self.encoder = BertModel(d=d, layers=3)
        self.encoder.apply(init_bert_weights)
        self.classifier = nn.Linear(3 * d, labels)

    def encode(self, ids, mask):
        tokens, _ = self.encoder(ids, mask)
        m = mask.unsqueeze(-1).float()
        return (tokens * m).sum(1) / m.sum(1).clamp(min=1e-9)

    def forward(self, a, a_mask, b, b_mask, labels=None):
        u, v = self.encode(a, a_mask), self.encode(b, b_mask)
        logits = self.classifier(torch.cat([u, v, torch.abs(u - v)], dim=1))
        return logits if labels is None else F.cross_entropy(logits, labels)


def prefix_mask(lengths, n):
    return torch.arange(n)[None] < torch.tensor(lengths)[:, None]


def elmo_batch():
    words = torch.randint(1, 300, (8, 12)) * prefix_mask((12, 12, 11, 10, 9, 9, 7, 6), 12)
    return torch.randint(1, 60, (8, 12, 10)) * (words > 0).unsqueeze(-1), words


def bert_batch():
    mask = prefix_mask((24, 24, 22, 20, 18, 17, 15, 12), 24)
    ids = torch.randint(5, 300, (8, 24)) * mask
    labels = torch.where((torch.rand(8, 24) < 0.15) & mask, ids, torch.full_like(ids, -100))
    labels[:, 1] = ids[:, 1]
    ids = torch.where(labels != -100, torch.full_like(ids, 3), ids)
    return ids, (torch.arange(24) >= 10).long().expand(8, -1) * mask, mask, labels, torch.randint(2, (8,))


def pairs():
    a, b = prefix_mask((16, 16, 14, 12, 11, 10, 9, 8), 16), prefix_mask((9, 16, 12, 16, 8, 14, 7, 10), 16)
    return torch.randint(1, 300, (8, 16)) * a, a, torch.randint(1, 300, (8, 16)) * b, b, torch.randint(3, (8,))


NETS = {
    "PSPNet": (PSPNet, lambda: (torch.randn(8, 3, 65, 65), torch.randint(6, (8, 65, 65)))),
    "neural ODE": (ODENet, lambda: (torch.rand(8, 1, 28, 28),)),
    "ELMo": (ELMo, elmo_batch),
    "BERT": (BertForPreTraining, bert_batch),
    "Sentence-BERT": (SentenceBERT, pairs),
}
