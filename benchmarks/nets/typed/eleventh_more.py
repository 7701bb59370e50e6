"""Networks typed by hand as their repositories have them: Transformer, Trompt, DSSM."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def get_pad_mask(seq, pad_idx):
    return (seq != pad_idx).unsqueeze(-2)


def get_subsequent_mask(seq):
    _, len_s = seq.size()
    return (1 - torch.triu(torch.ones((1, len_s, len_s), device=seq.device), diagonal=1)).bool()


class ScaledDotProductAttention(nn.Module):
    """Attention over unmasked keys."""

    def __init__(self, temperature, attn_dropout=0.1):
        super().__init__()
        self.temperature = temperature
        self.dropout = nn.Dropout(attn_dropout)

    def forward(self, q, k, v, mask=None):
        attn = torch.matmul(q / self.temperature, k.transpose(2, 3))
        if mask is not None:
            attn = attn.masked_fill(mask == 0, -1e9)
        attn = self.dropout(F.softmax(attn, dim=-1))
        return torch.matmul(attn, v), attn


class MultiHeadAttention(nn.Module):
    """Heads of attention, with the residual and the norm after it."""

    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        self.fc = nn.Linear(n_head * d_v, d_model, bias=False)
        self.attention = ScaledDotProductAttention(temperature=d_k**0.5)
        self.dropout = nn.Dropout(dropout)
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)

    def forward(self, q, k, v, mask=None):
        d_k, d_v, n_head = self.d_k, self.d_v, self.n_head
        sz_b, len_q, len_k, len_v = q.size(0), q.size(1), k.size(1), v.size(1)
        residual = q
        q = self.w_qs(q).view(sz_b, len_q, n_head, d_k).transpose(1, 2)
        k = self.w_ks(k).view(sz_b, len_k, n_head, d_k).transpose(1, 2)
        v = self.w_vs(v).view(sz_b, len_v, n_head, d_v).transpose(1, 2)
        if mask is not None:
            mask = mask.unsqueeze(1)
        q, attn = self.attention(q, k, v, mask=mask)
        q = q.transpose(1, 2).contiguous().view(sz_b, len_q, -1)
        q = self.dropout(self.fc(q))
        q += residual
        return self.layer_norm(q), attn


class PositionwiseFeedForward(nn.Module):
    """Two layers at each position, with the residual and the norm after them."""

    def __init__(self, d_in, d_hid, dropout=0.1):
        super().__init__()
        self.w_1, self.w_2 = nn.Linear(d_in, d_hid), nn.Linear(d_hid, d_in)
        self.layer_norm = nn.LayerNorm(d_in, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        residual = x
        x = self.dropout(self.w_2(F.relu(self.w_1(x))))
        x += residual
        return self.layer_norm(x)


class PositionalEncoding(nn.Module):
    """Table of sinusoids, added."""

    def __init__(self, d_hid, n_position=200):
        super().__init__()
        self.register_buffer("pos_table", self._get_sinusoid_encoding_table(n_position, d_hid))

    def _get_sinusoid_encoding_table(self, n_position, d_hid):
        def get_position_angle_vec(position):
            return [position / np.power(10000, 2 * (hid_j // 2) / d_hid) for hid_j in range(d_hid)]

        table = np.array([get_position_angle_vec(pos_i) for pos_i in range(n_position)])
        table[:, 0::2] = np.sin(table[:, 0::2])
        table[:, 1::2] = np.cos(table[:, 1::2])
        return torch.FloatTensor(table).unsqueeze(0)

    def forward(self, x):
        return x + self.pos_table[:, : x.size(1)].clone().detach()


class TransformerLayer(nn.Module):
    """Self-attention, attention to the source where there is one, and the feed-forward layers."""

    def __init__(self, d_model, d_inner, n_head, d_k, d_v, dropout=0.1, cross=False):
        super().__init__()
        self.slf_attn = MultiHeadAttention(n_head, d_model, d_k, d_v, dropout=dropout)
        self.enc_attn = MultiHeadAttention(n_head, d_model, d_k, d_v, dropout=dropout) if cross else None
        self.pos_ffn = PositionwiseFeedForward(d_model, d_inner, dropout=dropout)

    def forward(self, x, slf_attn_mask=None, enc_output=None, enc_attn_mask=None):
        x, _ = self.slf_attn(x, x, x, mask=slf_attn_mask)
        if self.enc_attn is not None:
            x, _ = self.enc_attn(x, enc_output, enc_output, mask=enc_attn_mask)
        return self.pos_ffn(x)


class Stack(nn.Module):
    """Word embedding with positions, dropout and norm, then the layers: encoder or decoder."""

    def __init__(self, n_vocab, n_layers, n_head, d_k, d_v, d_model, d_inner, pad_idx, cross, scale_emb=False):
        super().__init__()
        self.word_emb = nn.Embedding(n_vocab, d_model, padding_idx=pad_idx)
        self.position_enc = PositionalEncoding(d_model, n_position=200)
        self.dropout = nn.Dropout(p=0.1)
        self.layer_stack = nn.ModuleList(
            [TransformerLayer(d_model, d_inner, n_head, d_k, d_v, cross=cross) for _ in range(n_layers)]
        )
        self.layer_norm = nn.LayerNorm(d_model, eps=1e-6)
        self.scale_emb, self.d_model = scale_emb, d_model

    def forward(self, seq, mask, enc_output=None, src_mask=None):
        output = self.word_emb(seq)
        if self.scale_emb:
            output *= self.d_model**0.5
        output = self.layer_norm(self.dropout(self.position_enc(output)))
        for layer in self.layer_stack:
            output = layer(output, mask, enc_output, src_mask)
        return output


class Transformer(nn.Module):
    """Attention is all you need: one matrix for both embeddings and the projection to words."""

    def __init__(self, n_vocab=1000, pad_idx=1, d_model=64, d_inner=256, n_layers=3, n_head=4, scale="prj"):
        super().__init__()
        self.pad_idx, self.d_model, self.scale_prj = pad_idx, d_model, scale == "prj"
        sizes = (n_vocab, n_layers, n_head, d_model // n_head, d_model // n_head, d_model, d_inner, pad_idx)
        self.encoder = Stack(*sizes, cross=False, scale_emb=scale == "emb")
        self.decoder = Stack(*sizes, cross=True, scale_emb=scale == "emb")
        self.trg_word_prj = nn.Linear(d_model, n_vocab, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
        self.trg_word_prj.weight = self.decoder.word_emb.weight
        self.encoder.word_emb.weight = self.decoder.word_emb.weight

    def forward(self, src_seq, trg_seq):
        src_mask = get_pad_mask(src_seq, self.pad_idx)
        trg_mask = get_pad_mask(trg_seq, self.pad_idx) & get_subsequent_mask(trg_seq)
        enc_output = self.encoder(src_seq, src_mask)
        dec_output = self.decoder(trg_seq, trg_mask, enc_output, src_mask)
        seq_logit = self.trg_word_prj(dec_output)
        if self.scale_prj:
            seq_logit *= self.d_model**-0.5
        return seq_logit.view(-1, seq_logit.size(2))


class FeatureEncoder(nn.Module):
    """Embeddings of a row's columns: a linear map for numbers, a table for categories, each with its norm."""

    def __init__(self, num_numerical, cardinalities, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_numerical, channels))
        self.bias = nn.Parameter(torch.zeros(num_numerical, channels))
        nn.init.normal_(self.weight, std=0.1)
        self.numerical_post = nn.Sequential(nn.ReLU(), nn.LayerNorm(channels))
        self.embs = nn.ModuleList([nn.Embedding(c + 1, channels, padding_idx=0) for c in cardinalities])
        for emb in self.embs:
            nn.init.normal_(emb.weight, std=0.1)
            with torch.no_grad():
                emb.weight[0].fill_(0)
        self.categorical_post = nn.LayerNorm(channels)

    def forward(self, x_num, x_cat):
        x_lin = torch.einsum("ij,jk->ijk", x_num, self.weight) + self.bias
        x_emb = torch.stack([emb(x_cat[:, i]) for i, emb in enumerate(self.embs)], dim=1)
        return torch.cat([self.numerical_post(x_lin), self.categorical_post(x_emb)], dim=1)


class TromptConv(nn.Module):
    """Prompts weigh the columns, and gather them."""

    def __init__(self, channels, num_cols, num_prompts, num_groups=2):
        super().__init__()
        self.embedding_column = nn.Parameter(torch.empty(num_cols, channels))
        self.embedding_prompt = nn.Parameter(torch.empty(num_prompts, channels))
        self.lin = nn.Linear(2 * channels, channels)
        self.layer_norm_column, self.layer_norm_prompt = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.weight = nn.Parameter(torch.empty(num_prompts))
        self.group_norm = nn.GroupNorm(num_groups, num_prompts)
        nn.init.normal_(self.embedding_column, std=0.01)
        nn.init.normal_(self.embedding_prompt, std=0.01)
        nn.init.uniform_(self.weight)

    def forward(self, x, x_prompt):
        batch_size = x.shape[0]
        e_column = self.layer_norm_column(self.embedding_column).unsqueeze(0).repeat(batch_size, 1, 1)
        e_prompt = self.layer_norm_prompt(self.embedding_prompt).unsqueeze(0).repeat(batch_size, 1, 1)
        out = self.lin(torch.cat([e_prompt, x_prompt], dim=-1)) + e_prompt + x_prompt
        m_importance = F.softmax(out @ e_column.transpose(1, 2), dim=-1).unsqueeze(-1)
        out = F.relu(torch.einsum("p,bcd->bpcd", self.weight, x))
        out = self.group_norm(out) + x.unsqueeze(1)
        return (out * m_importance).sum(dim=2)


class TromptDecoder(nn.Module):
    """Weighs the prompts, then two layers: one decoder for all cells."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.lin_attn = nn.Linear(in_channels, 1)
        self.mlp = nn.Sequential(
            nn.Linear(in_channels, in_channels),
            nn.ReLU(),
            nn.LayerNorm(in_channels),
            nn.Linear(in_channels, out_channels),
        )

    def forward(self, x_prompt):
        w_prompt = F.softmax(self.lin_attn(x_prompt), dim=1)
        return self.mlp((w_prompt * x_prompt).sum(dim=1))


class Trompt(nn.Module):
    """Cells in a row, each with encoders of its own; the output of every cell counts in the loss."""

    def __init__(self, channels=48, out_channels=3, num_prompts=32, num_layers=4, num_numerical=6, cards=(5, 9, 3)):
        super().__init__()
        self.x_prompt = nn.Parameter(torch.empty(num_prompts, channels))
        nn.init.normal_(self.x_prompt, std=0.01)
        num_cols = num_numerical + len(cards)
        self.encoders = nn.ModuleList([FeatureEncoder(num_numerical, cards, channels) for _ in range(num_layers)])
        self.trompt_convs = nn.ModuleList([TromptConv(channels, num_cols, num_prompts) for _ in range(num_layers)])
        self.trompt_decoder = TromptDecoder(channels, out_channels)

    def forward(self, x_num, x_cat):
        x_prompt = self.x_prompt.unsqueeze(0).repeat(x_num.shape[0], 1, 1)
        outs = []
        for encoder, conv in zip(self.encoders, self.trompt_convs, strict=True):
            x_prompt = conv(encoder(x_num, x_cat), x_prompt)
            outs.append(self.trompt_decoder(x_prompt))
        return torch.stack(outs, dim=1)


class Tower(nn.Module):
    """Counts of letter trigrams to a semantic vector through layers of tanh."""

    def __init__(self, trigrams, widths):
        super().__init__()
        layers, last = [], trigrams
        for width in widths:
            layers += [nn.Linear(last, width), nn.Tanh()]
            last = width
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class DSSM(nn.Module):
    """Queries' cosines with the clicked document and with those of other queries, sharpened, as log-odds."""

    def __init__(self, trigrams=2000, widths=(96, 96, 64), negatives=4, gamma=10.0):
        super().__init__()
        self.negatives, self.gamma = negatives, gamma
        self.query, self.document = Tower(trigrams, widths), Tower(trigrams, widths)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                bound = (6.0 / (module.in_features + module.out_features)) ** 0.5
                nn.init.uniform_(module.weight, -bound, bound)
                nn.init.zeros_(module.bias)

    def forward(self, query, document):
        q, d = self.query(query), self.document(document)
        candidates = torch.stack([d] + [d.roll(i, dims=0) for i in range(1, self.negatives + 1)], dim=1)
        cosines = F.cosine_similarity(q.unsqueeze(1), candidates, dim=2)
        return F.log_softmax(self.gamma * cosines, dim=1)


def translations(batch=8, src=20, trg=18, vocab=1000, pad=1):
    def sentences(length):
        lengths = torch.randint(length // 2, length + 1, (batch, 1))
        lengths[0] = length
        return torch.randint(4, vocab, (batch, length)).masked_fill(torch.arange(length) >= lengths, pad)

    return sentences(src), sentences(trg)


def rows(batch=16):
    cats = torch.stack([torch.randint(1, c + 1, (batch,)) for c in (5, 9, 3)], dim=1)
    return torch.randn(batch, 6), cats


def hashed(rows=16, trigrams=2000):
    """Queries of a few words and the titles that were clicked, which share some trigrams, as counts."""
    popularity = 1.0 / torch.arange(1, trigrams + 1).float()
    query = torch.multinomial(popularity.expand(rows, -1), 18, replacement=True)
    title = torch.cat([query[:, :10], torch.multinomial(popularity.expand(rows, -1), 25, replacement=True)], dim=1)
    return tuple(torch.zeros(rows, trigrams).scatter_add(1, i, torch.ones(i.shape)) for i in (query, title))


NETS = {
    "Transformer": (Transformer, translations),
    "Trompt": (Trompt, rows),
    "DSSM": (DSSM, hashed),
}
