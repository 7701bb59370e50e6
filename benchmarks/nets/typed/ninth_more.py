"""Networks typed by hand as their repositories have them: TTT-Linear, wav2vec 2.0, SR-GNN and Caser."""

import itertools
import math
import random

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    """Root mean square norm."""

    def __init__(self, d, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(d)), eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def ln_fwd(x, gamma, beta, eps=1e-6):
    mu, var = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True, unbiased=False)
    return gamma * (x - mu) / torch.sqrt(var + eps) + beta


def ln_fused_l2_bwd(x, l2_target, gamma, beta, eps=1e-6):
    """Gradient of the squared error after the norm, with respect to the norm's input."""
    D = x.shape[-1]
    mu, var = x.mean(dim=-1, keepdim=True), x.var(dim=-1, keepdim=True, unbiased=False)
    std = torch.sqrt(var + eps)
    x_hat = (x - mu) / std
    grad_x_hat = (gamma * x_hat + beta - l2_target) * gamma
    z = D * grad_x_hat - grad_x_hat.sum(dim=-1, keepdim=True)
    return (1.0 / D) * (z - x_hat * (grad_x_hat * x_hat).sum(dim=-1, keepdim=True)) / std


class TTTLinear(nn.Module):
    """The hidden state is a linear model, trained by a gradient step on each mini-batch of tokens."""

    def __init__(self, width, heads, mini_batch=8, base_lr=1.0):
        super().__init__()
        self.heads, self.hd, self.K, self.base_lr = heads, width // heads, mini_batch, base_lr
        self.register_buffer("token_idx", 1.0 / torch.arange(1, mini_batch + 1), persistent=False)
        self.learnable_token_idx = nn.Parameter(torch.zeros(mini_batch))
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        inv = 1.0 / (10000.0 ** (torch.arange(0, self.hd, 2).float() / self.hd))
        emb = torch.outer(torch.arange(mini_batch).float(), inv).repeat(1, 2)
        self.register_buffer("cos", emb.cos(), persistent=False)
        self.register_buffer("sin", emb.sin(), persistent=False)
        self.learnable_ttt_lr_weight = nn.Parameter(torch.normal(0, 0.02, size=(heads, 1, width)))
        self.learnable_ttt_lr_bias = nn.Parameter(torch.zeros(heads, 1))
        self.ttt_norm_weight = nn.Parameter(torch.ones(heads, self.hd))
        self.ttt_norm_bias = nn.Parameter(torch.zeros(heads, self.hd))
        self.post_norm = nn.LayerNorm(width, eps=1e-6)
        self.W1 = nn.Parameter(torch.normal(0, 0.02, size=(heads, self.hd, self.hd)))
        self.b1 = nn.Parameter(torch.zeros(heads, 1, self.hd))

    def forward(self, x):
        B, L, _ = x.shape
        n = L // self.K
        q, k, v = (
            f(x).view(B, n, self.K, self.heads, self.hd).permute(0, 3, 1, 2, 4)
            for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        q, k = (t * self.cos + rotate_half(t) * self.sin for t in (q, k))
        X = x.view(B, n, self.K, -1)
        ttt_lr = torch.einsum("bnkc,hdc->bhnkd", X, self.learnable_ttt_lr_weight)
        ttt_lr = torch.sigmoid(ttt_lr + self.learnable_ttt_lr_bias.view(1, -1, 1, 1, 1)).permute(0, 1, 2, 4, 3)
        token_eta = torch.clamp_min(self.token_idx + self.learnable_token_idx, 0.0)
        eta = token_eta.view(1, 1, 1, self.K, 1) * (self.base_lr * ttt_lr / self.hd)
        W1 = self.W1.unsqueeze(0).expand(B, -1, -1, -1)
        b1 = self.b1.unsqueeze(0).expand(B, -1, -1, -1)
        gamma, beta = self.ttt_norm_weight.view(1, -1, 1, self.hd), self.ttt_norm_bias.view(1, -1, 1, self.hd)
        outputs = []
        for i in range(n):
            XQ, XK, XV, eta_i = q[:, :, i], k[:, :, i], v[:, :, i], eta[:, :, i]
            Z1 = XK @ W1 + b1
            grad = ln_fused_l2_bwd(Z1, XV - XK, gamma, beta)
            attn = torch.tril(XQ @ XK.transpose(-2, -1))
            b1_bar = b1 - torch.tril(eta_i) @ grad
            Z1_bar = XQ @ W1 - (eta_i * attn) @ grad + b1_bar
            last_eta = eta_i[:, :, -1, :, None]
            W1 = W1 - (last_eta * XK).transpose(-1, -2) @ grad
            b1 = b1 - torch.sum(last_eta * grad, dim=-2, keepdim=True)
            outputs.append(XQ + ln_fwd(Z1_bar, gamma, beta))
        out = torch.stack(outputs, dim=2).permute(0, 2, 3, 1, 4).reshape(B, L, -1)
        return self.o_proj(self.post_norm(out))


class SwiGLU(nn.Module):
    """Gated perceptron."""

    def __init__(self, d, inner):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(d, inner, bias=False), nn.Linear(d, inner, bias=False)
        self.down_proj = nn.Linear(inner, d, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class TTTBlock(nn.Module):
    """Pre-norm residual block."""

    def __init__(self, d, heads):
        super().__init__()
        self.seq_norm, self.ffn_norm = RMSNorm(d), RMSNorm(d)
        self.seq_modeling_block, self.mlp = TTTLinear(d, heads), SwiGLU(d, 8 * d // 3)

    def forward(self, x):
        x = x + self.seq_modeling_block(self.seq_norm(x))
        return x + self.mlp(self.ffn_norm(x))


class TTTForCausalLM(nn.Module):
    """Language model whose layers learn at test time."""

    def __init__(self, vocab=128, d=96, heads=4, layers=3):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, d)
        self.layers = nn.ModuleList(TTTBlock(d, heads) for _ in range(layers))
        self.norm, self.lm_head = RMSNorm(d), nn.Linear(d, vocab, bias=False)
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                m.weight.data.normal_(mean=0.0, std=0.02)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class GradMultiply(torch.autograd.Function):
    """Identity that scales gradients."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.new(x)

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale, None


class GumbelVectorQuantizer(nn.Module):
    """Product quantisation with straight-through Gumbel samples."""

    def __init__(self, dim, num_vars, groups, vq_dim, temp=2.0):
        super().__init__()
        self.groups, self.num_vars, self.curr_temp = groups, num_vars, temp
        self.vars = nn.Parameter(torch.FloatTensor(1, groups * num_vars, vq_dim // groups))
        nn.init.uniform_(self.vars)
        self.weight_proj = nn.Linear(dim, groups * num_vars)
        nn.init.normal_(self.weight_proj.weight, mean=0, std=1)
        nn.init.zeros_(self.weight_proj.bias)

    def forward(self, x):
        B, T, C = x.shape
        x = self.weight_proj(x.reshape(-1, C)).view(B * T * self.groups, -1)
        avg_probs = torch.softmax(x.view(B * T, self.groups, -1).float(), dim=-1).mean(dim=0)
        perplexity = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-7), dim=-1)).sum()
        if self.training:
            x = F.gumbel_softmax(x.float(), tau=self.curr_temp, hard=True)
        else:
            x = x.new_zeros(*x.shape).scatter_(-1, x.max(dim=-1)[1].view(-1, 1), 1.0)
        x = x.view(B * T, -1).unsqueeze(-1) * self.vars
        x = x.view(B * T, self.groups, self.num_vars, -1).sum(-2)
        return x.view(B, T, -1), perplexity


class SentenceEncoderLayer(nn.Module):
    """Post-norm transformer layer, time first."""

    def __init__(self, d, ffn, heads, dropout=0.1):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(d, heads, dropout=dropout)
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.fc1, self.fc2, self.dropout = nn.Linear(d, ffn), nn.Linear(ffn, d), nn.Dropout(dropout)

    def forward(self, x):
        x = self.self_attn_layer_norm(x + self.dropout(self.self_attn(x, x, x, need_weights=False)[0]))
        return self.final_layer_norm(x + self.dropout(self.fc2(F.gelu(self.fc1(x)))))


class Wav2Vec2(nn.Module):
    """Contrastive pre-training of speech: pick the quantised frame behind each mask."""

    def __init__(self, conv=64, d=64, layers=3, final=32, vars_=40, negatives=10, mask_length=4, layerdrop=0.05):
        super().__init__()
        spec = [(conv, 10, 5)] + [(conv, 3, 2)] * 4 + [(conv, 2, 2)] * 2
        self.conv_layers, cin = nn.ModuleList(), 1
        for i, (dim, k, stride) in enumerate(spec):
            c = nn.Conv1d(cin, dim, k, stride=stride, bias=False)
            nn.init.kaiming_normal_(c.weight)
            norm = [nn.GroupNorm(dim, dim, affine=True)] if i == 0 else []
            self.conv_layers.append(nn.Sequential(c, nn.Dropout(0.0), *norm, nn.GELU()))
            cin = dim
        self.layer_norm, self.post_extract_proj = nn.LayerNorm(conv), nn.Linear(conv, d)
        self.dropout_input, self.dropout_features, self.dropout = nn.Dropout(0.1), nn.Dropout(0.1), nn.Dropout(0.1)
        self.mask_length, self.n_negatives, self.layerdrop = mask_length, negatives, layerdrop
        self.mask_emb = nn.Parameter(torch.FloatTensor(d).uniform_())
        self.quantizer = GumbelVectorQuantizer(conv, vars_, 2, final)
        self.project_q, self.final_proj = nn.Linear(final, final), nn.Linear(d, final)
        pos = nn.Conv1d(d, d, kernel_size=128, padding=64, groups=16)
        nn.init.normal_(pos.weight, mean=0, std=math.sqrt(4 / (128 * d)))
        nn.init.constant_(pos.bias, 0)
        self.pos_conv = nn.utils.weight_norm(pos, name="weight", dim=2)
        self.encoder_norm = nn.LayerNorm(d)
        self.layers = nn.ModuleList(SentenceEncoderLayer(d, 4 * d, 4) for _ in range(layers))
        for m in self.layers.modules():  # init_bert_params
            if isinstance(m, nn.Linear):
                m.weight.data.normal_(mean=0.0, std=0.02)
                m.bias.data.zero_()
            if isinstance(m, nn.MultiheadAttention):
                m.in_proj_weight.data.normal_(mean=0.0, std=0.02)

    def time_mask(self, B, T, device):
        spans = max(1, int(0.65 * T / self.mask_length))
        mask = torch.zeros(B, T, dtype=torch.bool)
        for b in range(B):
            for start in random.sample(range(T - self.mask_length), spans):
                mask[b, start : start + self.mask_length] = True
        fewest = int(mask.sum(1).min())
        for b in range(B):
            on = mask[b].nonzero()[:, 0]
            mask[b, on[torch.randperm(len(on))[fewest:]]] = False
        return mask.to(device)

    def sample_negatives(self, y):
        B, T, C = y.shape
        with torch.no_grad():
            own = torch.arange(T, device=y.device).unsqueeze(-1).expand(-1, self.n_negatives).flatten()
            idx = torch.randint(0, T - 1, (B, self.n_negatives * T), device=y.device)
            idx = idx + (idx >= own)
            idx = idx + torch.arange(B, device=y.device).unsqueeze(1) * T
        return y.reshape(-1, C)[idx.view(-1)].view(B, T, self.n_negatives, C).permute(2, 0, 1, 3)

    def forward(self, source):
        x = source.unsqueeze(1)
        for layer in self.conv_layers:
            x = layer(x)
        x = GradMultiply.apply(x, 0.1)
        features_pen = x.float().pow(2).mean()
        x = self.layer_norm(x.transpose(1, 2))
        unmasked = self.dropout_features(x.clone())
        x = self.dropout_input(self.post_extract_proj(x))
        B, T, _ = x.shape
        mask = self.time_mask(B, T, x.device)
        x = torch.where(mask.unsqueeze(-1), self.mask_emb, x)
        y, perplexity = self.quantizer(unmasked[mask].view(B, -1, unmasked.shape[-1]))
        y = self.project_q(y)
        pos = F.gelu(self.pos_conv(x.transpose(1, 2))[:, :, :-1]).transpose(1, 2)
        x = self.dropout(self.encoder_norm(x + pos)).transpose(0, 1)
        for layer in self.layers:
            if not self.training or random.random() > self.layerdrop:
                x = layer(x)
        x = self.final_proj(x.transpose(0, 1)[mask].view(B, -1, x.shape[-1]))
        targets = torch.cat([y.unsqueeze(0), self.sample_negatives(y)], dim=0)
        logits = torch.cosine_similarity(x.float(), targets.float(), dim=-1) / 0.1
        return logits, features_pen, perplexity


class SessionGNN(nn.Module):
    """Gated graph cell over a session's incoming and outgoing edges."""

    def __init__(self, hidden, step=1):
        super().__init__()
        self.step = step
        self.w_ih, self.w_hh = (
            nn.Parameter(torch.Tensor(3 * hidden, 2 * hidden)),
            nn.Parameter(torch.Tensor(3 * hidden, hidden)),
        )
        self.b_ih, self.b_hh = nn.Parameter(torch.Tensor(3 * hidden)), nn.Parameter(torch.Tensor(3 * hidden))
        self.b_iah, self.b_oah = nn.Parameter(torch.Tensor(hidden)), nn.Parameter(torch.Tensor(hidden))
        self.linear_edge_in, self.linear_edge_out = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)

    def gnn_cell(self, A, hidden):
        n = A.shape[1]
        input_in = torch.matmul(A[:, :, :n], self.linear_edge_in(hidden)) + self.b_iah
        input_out = torch.matmul(A[:, :, n : 2 * n], self.linear_edge_out(hidden)) + self.b_oah
        gi = F.linear(torch.cat([input_in, input_out], 2), self.w_ih, self.b_ih)
        gh = F.linear(hidden, self.w_hh, self.b_hh)
        i_r, i_i, i_n = gi.chunk(3, 2)
        h_r, h_i, h_n = gh.chunk(3, 2)
        resetgate, inputgate = torch.sigmoid(i_r + h_r), torch.sigmoid(i_i + h_i)
        newgate = torch.tanh(i_n + resetgate * h_n)
        return newgate + inputgate * (hidden - newgate)

    def forward(self, A, hidden):
        for _ in range(self.step):
            hidden = self.gnn_cell(A, hidden)
        return hidden


class SessionGraph(nn.Module):
    """SR-GNN: the next item of a session, from its graph and a soft attention on its last item."""

    def __init__(self, n_node=200, hidden=64):
        super().__init__()
        self.embedding, self.gnn = nn.Embedding(n_node, hidden), SessionGNN(hidden)
        self.linear_one, self.linear_two = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.linear_three = nn.Linear(hidden, 1, bias=False)
        self.linear_transform = nn.Linear(hidden * 2, hidden)
        stdv = 1.0 / math.sqrt(hidden)
        for weight in self.parameters():
            weight.data.uniform_(-stdv, stdv)

    def forward(self, alias_inputs, A, items, mask):
        hidden = self.gnn(A, self.embedding(items))
        hidden = hidden.gather(1, alias_inputs.unsqueeze(-1).expand(-1, -1, hidden.shape[-1]))
        ht = hidden[torch.arange(mask.shape[0]), torch.sum(mask, 1) - 1]
        q1, q2 = self.linear_one(ht).unsqueeze(1), self.linear_two(hidden)
        alpha = self.linear_three(torch.sigmoid(q1 + q2))
        a = torch.sum(alpha * hidden * mask.unsqueeze(-1).float(), 1)
        a = self.linear_transform(torch.cat([a, ht], 1))
        return torch.matmul(a, self.embedding.weight[1:].transpose(1, 0))


def sessions(batch=8, length=10, pool=200):
    alias, As, items, masks = [], [], [], []
    for b in range(batch):
        n = length - b % 5
        seq = [random.choice(range(1 + 20 * b, 7 + 20 * b)) for _ in range(n)] + [0] * (length - n)
        node = sorted(set(seq))
        items.append(node + [0] * (length - len(node)))
        u_A = torch.zeros(length, length)
        for s, t in itertools.pairwise(seq):
            if t == 0:
                break
            u_A[node.index(s), node.index(t)] = 1
        to, out = u_A.sum(0), u_A.sum(1)
        A_in, A_out = (u_A / to.clamp(min=1)), (u_A.T / out.clamp(min=1))
        As.append(torch.cat([A_in, A_out]).T)
        alias.append([node.index(i) for i in seq])
        masks.append([1] * n + [0] * (length - n))
    return torch.tensor(alias), torch.stack(As), torch.tensor(items), torch.tensor(masks)


class Caser(nn.Module):
    """Convolutional sequence embedding: horizontal and vertical filters over the last items."""

    def __init__(self, users=60, items=200, L=5, dims=50, n_h=16, n_v=4, drop=0.5):
        super().__init__()
        self.user_embeddings, self.item_embeddings = nn.Embedding(users, dims), nn.Embedding(items, dims)
        self.conv_v = nn.Conv2d(1, n_v, (L, 1))
        self.conv_h = nn.ModuleList([nn.Conv2d(1, n_h, (i + 1, dims)) for i in range(L)])
        self.fc1 = nn.Linear(n_v * dims + n_h * L, dims)
        self.W2, self.b2 = nn.Embedding(items, dims + dims), nn.Embedding(items, 1)
        self.dropout = nn.Dropout(drop)
        self.user_embeddings.weight.data.normal_(0, 1.0 / self.user_embeddings.embedding_dim)
        self.item_embeddings.weight.data.normal_(0, 1.0 / self.item_embeddings.embedding_dim)
        self.W2.weight.data.normal_(0, 1.0 / self.W2.embedding_dim)
        self.b2.weight.data.zero_()

    def forward(self, seq, user, item):
        item_embs, user_emb = self.item_embeddings(seq).unsqueeze(1), self.user_embeddings(user).squeeze(1)
        out_v = self.conv_v(item_embs).flatten(1)
        out_hs = []
        for conv in self.conv_h:
            conv_out = F.relu(conv(item_embs).squeeze(3))
            out_hs.append(F.max_pool1d(conv_out, conv_out.size(2)).squeeze(2))
        out = self.dropout(torch.cat([out_v, torch.cat(out_hs, 1)], 1))
        x = torch.cat([F.relu(self.fc1(out)), user_emb], 1)
        return torch.baddbmm(self.b2(item), self.W2(item), x.unsqueeze(2)).squeeze()


NETS = {
    "TTT-Linear": (TTTForCausalLM, lambda: (torch.randint(128, (8, 32)),)),
    "wav2vec 2.0": (Wav2Vec2, lambda: (F.layer_norm(torch.randn(4, 8000), (8000,)),)),
    "SR-GNN": (SessionGraph, sessions),
    "Caser": (
        Caser,
        lambda: (torch.randint(1, 200, (16, 5)), torch.randint(60, (16, 1)), torch.randint(1, 200, (16, 6))),
    ),
}
