"""Networks typed by hand as their repositories have them: DeepSeek-V2, handwriting synthesis, CSRNet and APPNP."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn


class DeepseekV2RMSNorm(nn.Module):
    """Root mean square norm."""

    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    b, h, s, d = q.shape
    q = q.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)
    b, h, s, d = k.shape
    k = k.view(b, h, s, d // 2, 2).transpose(4, 3).reshape(b, h, s, d)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


class DeepseekV2MLP(nn.Module):
    """Gated SiLU."""

    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class AddAuxiliaryLoss(torch.autograd.Function):
    """Passes the input on; the auxiliary loss gets a gradient of one."""

    @staticmethod
    def forward(ctx, x, loss):
        assert loss.numel() == 1
        ctx.dtype = loss.dtype
        ctx.required_aux_loss = loss.requires_grad
        return x

    @staticmethod
    def backward(ctx, grad_output):
        grad_loss = None
        if ctx.required_aux_loss:
            grad_loss = torch.ones(1, dtype=ctx.dtype, device=grad_output.device)
        return grad_output, grad_loss


class MoEGate(nn.Module):
    """Softmax over experts, the best k kept, with the balance loss of each sequence."""

    def __init__(self, hidden, n_routed_experts, top_k, alpha=0.001, scaling=1.0):
        super().__init__()
        self.top_k, self.n_routed_experts, self.alpha, self.scaling = top_k, n_routed_experts, alpha, scaling
        self.weight = nn.Parameter(torch.empty((n_routed_experts, hidden)))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))

    def forward(self, hidden_states):
        bsz, seq_len, h = hidden_states.shape
        logits = F.linear(hidden_states.view(-1, h).type(torch.float32), self.weight.type(torch.float32), None)
        scores = logits.softmax(dim=-1, dtype=torch.float32)
        topk_weight, topk_idx = torch.topk(scores, k=self.top_k, dim=-1, sorted=False)
        topk_weight = topk_weight * self.scaling
        aux_loss = None
        if self.training and self.alpha > 0.0:
            topk_idx_for_aux_loss = topk_idx.view(bsz, -1)
            ce = torch.zeros(bsz, self.n_routed_experts, device=hidden_states.device)
            ce.scatter_add_(
                1, topk_idx_for_aux_loss, torch.ones(bsz, seq_len * self.top_k, device=hidden_states.device)
            ).div_(seq_len * self.top_k / self.n_routed_experts)
            aux_loss = (ce * scores.view(bsz, seq_len, -1).mean(dim=1)).sum(dim=1).mean() * self.alpha
        return topk_idx, topk_weight, aux_loss


class DeepseekV2MoE(nn.Module):
    """Routed experts plus shared ones."""

    def __init__(self, hidden, moe_intermediate, n_routed=8, n_shared=2, top_k=3):
        super().__init__()
        self.top_k = top_k
        self.experts = nn.ModuleList([DeepseekV2MLP(hidden, moe_intermediate) for _ in range(n_routed)])
        self.gate = MoEGate(hidden, n_routed, top_k)
        self.shared_experts = DeepseekV2MLP(hidden, moe_intermediate * n_shared)

    def forward(self, hidden_states):
        identity, orig_shape = hidden_states, hidden_states.shape
        topk_idx, topk_weight, aux_loss = self.gate(hidden_states)
        hidden_states = hidden_states.view(-1, hidden_states.shape[-1])
        flat_topk_idx = topk_idx.view(-1)
        hidden_states = hidden_states.repeat_interleave(self.top_k, dim=0)
        y = torch.empty_like(hidden_states)
        for i, expert in enumerate(self.experts):
            y[flat_topk_idx == i] = expert(hidden_states[flat_topk_idx == i])
        y = (y.view(*topk_weight.shape, -1) * topk_weight.unsqueeze(-1)).sum(dim=1)
        y = y.view(*orig_shape)
        if aux_loss is not None:
            y = AddAuxiliaryLoss.apply(y, aux_loss)
        return y + self.shared_experts(identity)


class DeepseekV2Attention(nn.Module):
    """Multi-head latent attention: keys and values from one compressed vector, one rotary key for all heads."""

    def __init__(self, hidden=96, heads=4, q_lora=48, kv_lora=32, nope=24, rope=8, v_dim=24, base=10000):
        super().__init__()
        self.heads, self.kv_lora, self.nope, self.rope, self.v_dim = heads, kv_lora, nope, rope, v_dim
        self.q_head_dim = nope + rope
        self.q_a_proj = nn.Linear(hidden, q_lora, bias=False)
        self.q_a_layernorm = DeepseekV2RMSNorm(q_lora)
        self.q_b_proj = nn.Linear(q_lora, heads * self.q_head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, kv_lora + rope, bias=False)
        self.kv_a_layernorm = DeepseekV2RMSNorm(kv_lora)
        self.kv_b_proj = nn.Linear(kv_lora, heads * (nope + v_dim), bias=False)
        self.o_proj = nn.Linear(heads * v_dim, hidden, bias=False)
        self.register_buffer("inv_freq", 1.0 / (base ** (torch.arange(0, rope, 2).float() / rope)), persistent=False)
        self.softmax_scale = self.q_head_dim ** (-0.5)

    def forward(self, hidden_states, attention_mask):
        bsz, q_len, _ = hidden_states.size()
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        q = q.view(bsz, q_len, self.heads, self.q_head_dim).transpose(1, 2)
        q_nope, q_pe = torch.split(q, [self.nope, self.rope], dim=-1)
        compressed_kv, k_pe = torch.split(self.kv_a_proj_with_mqa(hidden_states), [self.kv_lora, self.rope], dim=-1)
        k_pe = k_pe.view(bsz, q_len, 1, self.rope).transpose(1, 2)
        kv = self.kv_b_proj(self.kv_a_layernorm(compressed_kv))
        kv = kv.view(bsz, q_len, self.heads, self.nope + self.v_dim).transpose(1, 2)
        k_nope, value_states = torch.split(kv, [self.nope, self.v_dim], dim=-1)
        emb = torch.outer(torch.arange(q_len, device=q.device).float(), self.inv_freq).repeat(1, 2)
        q_pe, k_pe = apply_rotary_pos_emb(q_pe, k_pe, emb.cos(), emb.sin())
        query_states = k_pe.new_empty(bsz, self.heads, q_len, self.q_head_dim)
        query_states[:, :, :, : self.nope] = q_nope
        query_states[:, :, :, self.nope :] = q_pe
        key_states = k_pe.new_empty(bsz, self.heads, q_len, self.q_head_dim)
        key_states[:, :, :, : self.nope] = k_nope
        key_states[:, :, :, self.nope :] = k_pe
        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * self.softmax_scale + attention_mask
        attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)
        attn_output = torch.matmul(attn_weights, value_states).transpose(1, 2).contiguous()
        return self.o_proj(attn_output.reshape(bsz, q_len, self.heads * self.v_dim))


class DeepseekV2DecoderLayer(nn.Module):
    """Pre-norm; the first layer is dense."""

    def __init__(self, hidden, layer_idx, first_k_dense_replace=1):
        super().__init__()
        self.self_attn = DeepseekV2Attention(hidden)
        is_moe = layer_idx >= first_k_dense_replace
        self.mlp = DeepseekV2MoE(hidden, 48) if is_moe else DeepseekV2MLP(hidden, 3 * hidden)
        self.input_layernorm = DeepseekV2RMSNorm(hidden)
        self.post_attention_layernorm = DeepseekV2RMSNorm(hidden)

    def forward(self, hidden_states, mask):
        hidden_states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), mask)
        return hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))


class DeepseekV2ForCausalLM(nn.Module):
    """The language model, its head not tied."""

    def __init__(self, vocab=200, hidden=96, layers=4):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList([DeepseekV2DecoderLayer(hidden, i) for i in range(layers)])
        self.norm = DeepseekV2RMSNorm(hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            module.weight.data.normal_(mean=0.0, std=0.02)

    def forward(self, input_ids):
        hidden_states, n = self.embed_tokens(input_ids), input_ids.shape[1]
        mask = torch.full((n, n), torch.finfo(hidden_states.dtype).min, device=input_ids.device).triu(1)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(hidden_states, mask)
        return self.lm_head(self.norm(hidden_states)).float()


class HandwritingSynthesis(nn.Module):
    """Three LSTMs, a soft window over the characters, and a mixture of bivariate Gaussians for the pen."""

    def __init__(self, vocab=30, hidden=96, K=10, M=20):
        super().__init__()
        self.vocab, self.hidden, self.K, self.M = vocab, hidden, K, M
        self.rnn_1 = nn.LSTMCell(3 + vocab, hidden)
        self.rnn_2 = nn.LSTMCell(3 + hidden + vocab, hidden)
        self.rnn_3 = nn.LSTMCell(3 + hidden + vocab, hidden)
        self.window_layer = nn.Linear(hidden, 3 * K)
        self.output_layer = nn.Linear(3 * hidden, 6 * M + 1)
        self.init_weight()

    def init_weight(self):
        k = math.sqrt(1.0 / self.hidden)
        for rnn in (self.rnn_1, self.rnn_2, self.rnn_3):
            for param in rnn.parameters():
                nn.init.uniform_(param, a=-k, b=k)
        nn.init.uniform_(self.window_layer.weight, a=-0.01, b=0.01)
        nn.init.uniform_(self.output_layer.weight, a=-0.1, b=0.1)
        nn.init.zeros_(self.output_layer.bias)

    def compute_window_vector(self, mix_params, prev_kappa, text, text_mask):
        mix_params = torch.exp(mix_params)
        alpha, beta, kappa = mix_params.split(self.K, dim=1)
        kappa = kappa * 0.1 + prev_kappa
        u = torch.arange(text.shape[1], dtype=torch.float32, device=text.device)
        phi = torch.sum(alpha[..., None] * torch.exp(-beta[..., None] * (kappa[..., None] - u) ** 2), dim=1)
        phi = (phi * text_mask).unsqueeze(2)
        return torch.sum(phi * text, dim=1), kappa

    def forward(self, strokes, chars, text_mask):
        batch = strokes.shape[0]
        text = F.one_hot(chars, self.vocab).float()
        states = [(strokes.new_zeros(batch, self.hidden), strokes.new_zeros(batch, self.hidden)) for _ in range(3)]
        kappa, window = strokes.new_zeros(batch, self.K), strokes.new_zeros(batch, self.vocab)
        outputs = []
        for t in range(strokes.shape[1]):
            inp = strokes[:, t, :]
            states[0] = self.rnn_1(torch.cat((inp, window), dim=1), states[0])
            mix_params = self.window_layer(states[0][0])
            window, kappa = self.compute_window_vector(mix_params, kappa, text, text_mask)
            states[1] = self.rnn_2(torch.cat((inp, states[0][0], window), dim=1), states[1])
            states[2] = self.rnn_3(torch.cat((inp, states[1][0], window), dim=1), states[2])
            outputs.append(torch.cat([s[0] for s in states], dim=1))
        y_hat = self.output_layer(torch.stack(outputs, dim=1))
        mu_1, mu_2, log_sigma_1, log_sigma_2, pi, rho, eos = y_hat.split([self.M] * 6 + [1], dim=2)
        mu = torch.stack([mu_1, mu_2], dim=-1)
        sigma = torch.exp(torch.stack([log_sigma_1, log_sigma_2], dim=-1))
        return F.log_softmax(pi, dim=2), mu, sigma, torch.tanh(rho), torch.sigmoid(eos)


def make_layers(cfg, in_channels=3, dilation=False):
    d_rate = 2 if dilation else 1
    layers = []
    for v in cfg:
        if v == "M":
            layers += [nn.MaxPool2d(kernel_size=2, stride=2)]
        else:
            layers += [nn.Conv2d(in_channels, v, 3, padding=d_rate, dilation=d_rate), nn.ReLU(inplace=True)]
            in_channels = v
    return nn.Sequential(*layers)


class CSRNet(nn.Module):
    """Counts a crowd: the front of a VGG, then dilated convolutions to a map of densities."""

    def __init__(self, w=8):
        super().__init__()
        self.seen = 0
        frontend_feat = [w, w, "M", 2 * w, 2 * w, "M", 4 * w, 4 * w, 4 * w, "M", 8 * w, 8 * w, 8 * w]
        backend_feat = [8 * w, 8 * w, 8 * w, 4 * w, 2 * w, w]
        self.frontend = make_layers(frontend_feat)
        self.backend = make_layers(backend_feat, in_channels=8 * w, dilation=True)
        self.output_layer = nn.Conv2d(w, 1, kernel_size=1)
        vgg = make_layers(frontend_feat)
        for m in vgg.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
                nn.init.constant_(m.bias, 0)
        self._initialize_weights()
        for (_, mine), (_, theirs) in zip(self.frontend.state_dict().items(), vgg.state_dict().items(), strict=True):
            mine.data[:] = theirs.data[:]

    def _initialize_weights(self):
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.normal_(m.weight, std=0.01)
                if m.bias is not None:
                    nn.init.constant_(m.bias, 0)

    def forward(self, x):
        x = self.frontend(x)
        x = self.backend(x)
        return self.output_layer(x)


class MixedDropout(nn.Module):
    """Dropout that takes sparse matrices too."""

    def __init__(self, p=0.5):
        super().__init__()
        self.dense_dropout, self.p = nn.Dropout(p), p

    def forward(self, x):
        if x.is_sparse:
            x = x.coalesce()
            return torch.sparse_coo_tensor(x.indices(), F.dropout(x.values(), self.p, self.training), x.shape)
        return self.dense_dropout(x)


def calc_A_hat(adj):
    A = adj + torch.eye(adj.shape[0])
    D_invsqrt = A.sum(1).pow(-0.5)
    return D_invsqrt[:, None] * A * D_invsqrt[None]


class PPRPowerIteration(nn.Module):
    """Personalised PageRank by power iteration."""

    def __init__(self, adj_matrix, alpha, niter, drop_prob=0.5):
        super().__init__()
        self.alpha, self.niter = alpha, niter
        self.register_buffer("A_hat", ((1 - alpha) * calc_A_hat(adj_matrix)).to_sparse())
        self.dropout = MixedDropout(drop_prob)

    def forward(self, local_preds, idx):
        preds = local_preds
        for _ in range(self.niter):
            A_drop = self.dropout(self.A_hat)
            preds = torch.sparse.mm(A_drop, preds) + self.alpha * local_preds
        return preds[idx]


class PPNP(nn.Module):
    """Predict, then propagate."""

    def __init__(self, adj, nfeatures, nclasses, hiddenunits=(64,), drop_prob=0.5, alpha=0.1, niter=10):
        super().__init__()
        fcs = [nn.Linear(nfeatures, hiddenunits[0], bias=False)]
        fcs += [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(hiddenunits)]
        fcs.append(nn.Linear(hiddenunits[-1], nclasses, bias=False))
        self.fcs = nn.ModuleList(fcs)
        self.reg_params = list(self.fcs[0].parameters())
        self.dropout, self.act_fn = MixedDropout(drop_prob), nn.ReLU()
        self.propagation = PPRPowerIteration(adj, alpha, niter)

    def _transform_features(self, X):
        layer_inner = self.act_fn(self.fcs[0](self.dropout(X)))
        for fc in self.fcs[1:-1]:
            layer_inner = self.act_fn(fc(layer_inner))
        return self.fcs[-1](self.dropout(layer_inner))

    def forward(self, X, idx):
        local_logits = self._transform_features(X)
        return F.log_softmax(self.propagation(local_logits, idx), dim=-1)


def citations(n=80):
    adj = (torch.rand(n, n) < 0.05).float().triu(1)
    return PPNP(adj + adj.t(), nfeatures=120, nclasses=6)


def strokes_with_text():
    strokes = torch.cat([torch.randn(8, 30, 2), torch.bernoulli(torch.full((8, 30, 1), 0.1))], dim=2)
    text_mask = (torch.arange(12)[None] < torch.tensor([12, 9, 10, 12, 8, 11, 12, 7])[:, None]).float()
    return strokes, torch.randint(30, (8, 12)), text_mask


NETS = {
    "DeepSeek-V2 MLA": (DeepseekV2ForCausalLM, lambda: (torch.randint(200, (8, 24)),)),
    "Handwriting synthesis": (HandwritingSynthesis, strokes_with_text),
    "CSRNet": (CSRNet, lambda: (torch.randn(4, 3, 64, 64),)),
    "APPNP": (citations, lambda: (torch.rand(80, 120).lt(0.1).float(), torch.randperm(80)[:40])),
}
