"""Networks typed by hand as their repositories have them: CLEVR's relation network, QPLEX, ICM, FNet, DeepSurv."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class ConvInputModel(nn.Module):
    """Four strided convolutions, each with ReLU and then a norm."""

    def __init__(self, width=24):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.batchNorm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.batchNorm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.batchNorm3 = nn.BatchNorm2d(width)
        self.conv4 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.batchNorm4 = nn.BatchNorm2d(width)

    def forward(self, img):
        x = self.batchNorm1(F.relu(self.conv1(img)))
        x = self.batchNorm2(F.relu(self.conv2(x)))
        x = self.batchNorm3(F.relu(self.conv3(x)))
        return self.batchNorm4(F.relu(self.conv4(x)))


class QuestionEmbedModel(nn.Module):
    """An LSTM's last state over the words of the question."""

    def __init__(self, in_size, embed=32, hidden=64):
        super().__init__()
        self.wembedding = nn.Embedding(in_size + 1, embed)
        self.lstm = nn.LSTM(embed, hidden, batch_first=True)

    def forward(self, question):
        _, hidden = self.lstm(self.wembedding(question))
        return hidden[0][0]


class RelationalLayer(nn.Module):
    """An MLP over all pairs of objects with the question, summed, and an MLP over the sum."""

    def __init__(self, in_size, out_size, qst_size, g_layers=(64, 64, 64, 64), f_fc1=64, f_fc2=64, dropout=0.5):
        super().__init__()
        self.in_size = in_size * 2 + qst_size
        sizes = [self.in_size, *g_layers]
        self.g_layers = nn.ModuleList([nn.Linear(sizes[i], sizes[i + 1]) for i in range(len(g_layers))])
        self.f_fc1 = nn.Linear(g_layers[-1], f_fc1)
        self.f_fc2 = nn.Linear(f_fc1, f_fc2)
        self.f_fc3 = nn.Linear(f_fc2, out_size)
        self.dropout = nn.Dropout(p=dropout)

    def forward(self, x, qst):
        b, d, _ = x.size()
        qst = qst.unsqueeze(1).repeat(1, d, 1).unsqueeze(2)
        x_i = x.unsqueeze(1).repeat(1, d, 1, 1)
        x_j = torch.cat([x.unsqueeze(2), qst], 3).repeat(1, 1, d, 1)
        x_ = torch.cat([x_i, x_j], 3).view(b * d**2, self.in_size)
        for g_layer in self.g_layers:
            x_ = F.relu(g_layer(x_))
        x_g = x_.view(b, d**2, -1).sum(1)
        x_f = F.relu(self.f_fc1(x_g))
        x_f = F.relu(self.dropout(self.f_fc2(x_f)))
        return F.log_softmax(self.f_fc3(x_f), dim=1)


class RN(nn.Module):
    """Relation network on pixels, with the cells' coordinates as two more channels."""

    def __init__(self, qdict_size=82, adict_size=28, width=24, hidden=64):
        super().__init__()
        self.coord_tensor = None
        self.conv = ConvInputModel(width)
        self.text = QuestionEmbedModel(qdict_size, embed=32, hidden=hidden)
        self.rl = RelationalLayer(width + 2, adict_size, hidden)

    def build_coord_tensor(self, b, d):
        coords = torch.linspace(-d / 2.0, d / 2.0, d)
        x = coords.unsqueeze(0).repeat(d, 1)
        y = coords.unsqueeze(1).repeat(1, d)
        return torch.stack((x, y)).unsqueeze(0).repeat(b, 1, 1, 1)

    def forward(self, img, qst_idxs):
        x = self.conv(img)
        b, _, d, _ = x.size()
        qst = self.text(qst_idxs)
        coord = self.build_coord_tensor(b, d).to(x)
        x = torch.cat([x, coord], 1)
        x = x.view(b, x.size(1), d * d).permute(0, 2, 1)
        return self.rl(x, qst)


class RNNAgent(nn.Module):
    """An agent's recurrent Q-function, shared by all agents."""

    def __init__(self, input_shape, n_actions, rnn_hidden_dim=64):
        super().__init__()
        self.rnn_hidden_dim = rnn_hidden_dim
        self.fc1 = nn.Linear(input_shape, rnn_hidden_dim)
        self.rnn = nn.GRUCell(rnn_hidden_dim, rnn_hidden_dim)
        self.fc2 = nn.Linear(rnn_hidden_dim, n_actions)

    def forward(self, inputs, hidden_state):
        x = F.relu(self.fc1(inputs))
        h = self.rnn(x, hidden_state.reshape(-1, self.rnn_hidden_dim))
        return self.fc2(h), h


class QattenWeight(nn.Module):
    """Attention of the state over the units, in heads whose weights the state gives."""

    def __init__(self, n_agents, state_dim, unit_dim, n_head=4, embed_dim=32, hypernet_embed=64, attend_reg_coef=0.001):
        super().__init__()
        self.n_agents, self.state_dim, self.unit_dim = n_agents, state_dim, unit_dim
        self.n_head, self.embed_dim, self.attend_reg_coef = n_head, embed_dim, attend_reg_coef
        self.key_extractors, self.selector_extractors = nn.ModuleList(), nn.ModuleList()
        for _ in range(n_head):
            self.selector_extractors.append(
                nn.Sequential(
                    nn.Linear(state_dim, hypernet_embed), nn.ReLU(), nn.Linear(hypernet_embed, embed_dim, bias=False)
                )
            )
            self.key_extractors.append(nn.Linear(unit_dim, embed_dim, bias=False))
        self.hyper_w_head = nn.Sequential(
            nn.Linear(state_dim, hypernet_embed), nn.ReLU(), nn.Linear(hypernet_embed, n_head)
        )
        self.V = nn.Sequential(nn.Linear(state_dim, embed_dim), nn.ReLU(), nn.Linear(embed_dim, 1))

    def forward(self, states):
        states = states.reshape(-1, self.state_dim)
        unit_states = states[:, : self.unit_dim * self.n_agents].reshape(-1, self.n_agents, self.unit_dim)
        unit_states = unit_states.permute(1, 0, 2)
        selectors = [sel_ext(states) for sel_ext in self.selector_extractors]
        keys = [[k_ext(enc_state) for enc_state in unit_states] for k_ext in self.key_extractors]
        logits, weights = [], []
        for head_keys, head_selector in zip(keys, selectors, strict=True):
            attend_logits = torch.matmul(
                head_selector.view(-1, 1, self.embed_dim), torch.stack(head_keys).permute(1, 2, 0)
            )
            logits.append(attend_logits)
            weights.append(F.softmax(attend_logits / math.sqrt(self.embed_dim), dim=2))
        attend_mag_regs = self.attend_reg_coef * sum((logit**2).mean() for logit in logits)
        v = self.V(states).view(-1, 1)
        head_attend = torch.stack(weights, dim=1).view(-1, self.n_head, self.n_agents)
        w_head = torch.abs(self.hyper_w_head(states)).view(-1, self.n_head, 1).repeat(1, 1, self.n_agents)
        return (head_attend * w_head).sum(dim=1), v, attend_mag_regs


class DMAQSIWeight(nn.Module):
    """Positive importances of the agents' advantages, from state and joint action."""

    def __init__(self, n_agents, state_dim, action_dim, num_kernel=4, adv_hypernet_embed=32):
        super().__init__()
        self.n_agents, self.num_kernel = n_agents, num_kernel

        def extractor(inputs, outputs):
            return nn.Sequential(
                nn.Linear(inputs, adv_hypernet_embed),
                nn.ReLU(),
                nn.Linear(adv_hypernet_embed, adv_hypernet_embed),
                nn.ReLU(),
                nn.Linear(adv_hypernet_embed, outputs),
            )

        self.key_extractors = nn.ModuleList([extractor(state_dim, 1) for _ in range(num_kernel)])
        self.agents_extractors = nn.ModuleList([extractor(state_dim, n_agents) for _ in range(num_kernel)])
        self.action_extractors = nn.ModuleList([extractor(state_dim + action_dim, n_agents) for _ in range(num_kernel)])

    def forward(self, states, actions):
        data = torch.cat([states, actions], dim=1)
        head_attend_weights = []
        for k, a, sa in zip(self.key_extractors, self.agents_extractors, self.action_extractors, strict=True):
            x_key = torch.abs(k(states)).repeat(1, self.n_agents) + 1e-10
            head_attend_weights.append(x_key * torch.sigmoid(a(states)) * torch.sigmoid(sa(data)))
        head_attend = torch.stack(head_attend_weights, dim=1).view(-1, self.num_kernel, self.n_agents)
        return head_attend.sum(dim=1)


class DMAQQattenMixer(nn.Module):
    """The joint value as a sum, and the joint advantage by importances less one."""

    def __init__(self, n_agents, n_actions, state_dim, unit_dim):
        super().__init__()
        self.n_agents, self.state_dim, self.action_dim = n_agents, state_dim, n_agents * n_actions
        self.attention_weight = QattenWeight(n_agents, state_dim, unit_dim)
        self.si_weight = DMAQSIWeight(n_agents, state_dim, self.action_dim)

    def calc_adv(self, agent_qs, states, actions, max_q_i):
        states, actions = states.reshape(-1, self.state_dim), actions.reshape(-1, self.action_dim)
        adv_q = (agent_qs - max_q_i).view(-1, self.n_agents).detach()
        adv_w_final = self.si_weight(states, actions).view(-1, self.n_agents)
        return torch.sum(adv_q * (adv_w_final - 1.0), dim=1)

    def forward(self, agent_qs, states, actions=None, max_q_i=None, is_v=False):
        bs = agent_qs.size(0)
        w_final, v, attend_mag_regs = self.attention_weight(states)
        w_final = w_final.view(-1, self.n_agents) + 1e-10
        v = v.view(-1, 1).repeat(1, self.n_agents) / self.n_agents
        agent_qs = w_final * agent_qs.reshape(-1, self.n_agents) + v
        if is_v:
            y = agent_qs.sum(dim=-1)
        else:
            max_q_i = w_final * max_q_i.reshape(-1, self.n_agents) + v
            y = self.calc_adv(agent_qs, states, actions, max_q_i)
        return y.view(bs, -1, 1), attend_mag_regs


class QPLEX(nn.Module):
    """The learner's pass over episodes: the agents unrolled, their chosen values mixed."""

    def __init__(self, input_shape=30, n_actions=9, n_agents=5, state_dim=48, unit_dim=8):
        super().__init__()
        self.n_agents, self.n_actions = n_agents, n_actions
        self.agent = RNNAgent(input_shape, n_actions)
        self.mixer = DMAQQattenMixer(n_agents, n_actions, state_dim, unit_dim)

    def forward(self, inputs, states, actions, avail_actions):
        b, steps = inputs.shape[:2]
        hidden = self.agent.fc1.weight.new_zeros(b * self.n_agents, self.agent.rnn_hidden_dim)
        mac_out = []
        for t in range(steps):
            q, hidden = self.agent(inputs[:, t].reshape(b * self.n_agents, -1), hidden)
            mac_out.append(q.view(b, self.n_agents, -1))
        mac_out = torch.stack(mac_out, dim=1)
        chosen = torch.gather(mac_out, dim=3, index=actions).squeeze(3)
        x_mac_out = mac_out.clone().detach()
        x_mac_out[avail_actions == 0] = -9999999
        max_action_qvals, _ = x_mac_out.max(dim=3)
        onehot = F.one_hot(actions.squeeze(3), self.n_actions).to(mac_out)
        ans_chosen, q_attend_regs = self.mixer(chosen, states, is_v=True)
        ans_adv, _ = self.mixer(chosen, states, actions=onehot, max_q_i=max_action_qvals, is_v=False)
        return ans_chosen + ans_adv, q_attend_regs


class ICMModel(nn.Module):
    """Intrinsic curiosity: features of two states, the action between them, and the second from the first."""

    def __init__(self, output_size=6, hidden=64, widths=(16, 32, 32)):
        super().__init__()
        a, b, c = widths
        self.feature = nn.Sequential(
            nn.Conv2d(4, a, kernel_size=8, stride=4),
            nn.LeakyReLU(),
            nn.Conv2d(a, b, kernel_size=4, stride=2),
            nn.LeakyReLU(),
            nn.Conv2d(b, c, kernel_size=3, stride=1),
            nn.LeakyReLU(),
            nn.Flatten(),
            nn.Linear(7 * 7 * c, hidden),
        )
        self.inverse_net = nn.Sequential(nn.Linear(hidden * 2, hidden), nn.ReLU(), nn.Linear(hidden, output_size))
        self.residual = nn.ModuleList(
            [
                nn.Sequential(nn.Linear(output_size + hidden, hidden), nn.LeakyReLU(), nn.Linear(hidden, hidden))
                for _ in range(8)
            ]
        )
        self.forward_net_1 = nn.Sequential(nn.Linear(output_size + hidden, hidden), nn.LeakyReLU())
        self.forward_net_2 = nn.Sequential(nn.Linear(output_size + hidden, hidden))
        for p in self.modules():
            if isinstance(p, nn.Conv2d):
                nn.init.kaiming_uniform_(p.weight)
                p.bias.data.zero_()
            if isinstance(p, nn.Linear):
                nn.init.kaiming_uniform_(p.weight, a=1.0)
                p.bias.data.zero_()

    def forward(self, state, next_state, action):
        encode_state, encode_next_state = self.feature(state), self.feature(next_state)
        pred_action = self.inverse_net(torch.cat((encode_state, encode_next_state), 1))
        pred = self.forward_net_1(torch.cat((encode_state, action), 1))
        for i in range(4):
            f = self.residual[i * 2](torch.cat((pred, action), 1))
            f = self.residual[i * 2 + 1](torch.cat((f, action), 1))
            pred = f + pred
        pred_next_state_feature = self.forward_net_2(torch.cat((pred, action), 1))
        return encode_next_state, pred_next_state_feature, pred_action


class FNetLayer(nn.Module):
    """The real part of a Fourier transform over positions and features, then a feed-forward network."""

    def __init__(self, dim, inner, dropout, eps):
        super().__init__()
        self.fourier_norm = nn.LayerNorm(dim, eps=eps)
        self.intermediate = nn.Linear(dim, inner)
        self.act = nn.GELU(approximate="tanh")
        self.output = nn.Linear(inner, dim)
        self.dropout = nn.Dropout(dropout)
        self.output_norm = nn.LayerNorm(dim, eps=eps)

    def forward(self, x):
        mixed = torch.fft.fftn(x, dim=(1, 2)).real
        x = self.fourier_norm(x + mixed)
        return self.output_norm(x + self.dropout(self.output(self.act(self.intermediate(x)))))


class FNetForPreTraining(nn.Module):
    """FNet with the heads of masked words, tied to the embedding, and of the next sentence."""

    def __init__(self, vocab=1000, dim=96, layers=4, inner=384, max_len=64, types=4, dropout=0.1, eps=1e-12):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, dim, padding_idx=3)
        self.position_embeddings = nn.Embedding(max_len, dim)
        self.token_type_embeddings = nn.Embedding(types, dim)
        self.LayerNorm = nn.LayerNorm(dim, eps=eps)
        self.projection = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("position_ids", torch.arange(max_len).expand((1, -1)))
        self.layer = nn.ModuleList([FNetLayer(dim, inner, dropout, eps) for _ in range(layers)])
        self.pooler = nn.Linear(dim, dim)
        self.transform = nn.Sequential(nn.Linear(dim, dim), nn.GELU(approximate="tanh"), nn.LayerNorm(dim, eps=eps))
        self.decoder = nn.Linear(dim, vocab)
        self.seq_relationship = nn.Linear(dim, 2)
        self.apply(self._init_weights)
        self.decoder.weight = self.word_embeddings.weight

    def _init_weights(self, module):
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(mean=0.0, std=0.02)
            module.bias.data.zero_()
        elif isinstance(module, nn.Embedding):
            module.weight.data.normal_(mean=0.0, std=0.02)
            if module.padding_idx is not None:
                module.weight.data[module.padding_idx].zero_()

    def forward(self, input_ids, token_type_ids):
        embeddings = self.word_embeddings(input_ids) + self.token_type_embeddings(token_type_ids)
        embeddings = embeddings + self.position_embeddings(self.position_ids[:, : input_ids.size(1)])
        x = self.dropout(self.projection(self.LayerNorm(embeddings)))
        for layer in self.layer:
            x = layer(x)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        return self.decoder(self.transform(x)), self.seq_relationship(pooled)


class DeepSurv(nn.Module):
    """The log-risk of Cox's model, from covariates by an MLP whose last layer too is normed and activated."""

    def __init__(self, dims=(6, 48, 48, 1), drop=0.4, norm=True, activation=nn.SELU):
        super().__init__()
        layers = []
        for i in range(len(dims) - 1):
            if i and drop is not None:
                layers.append(nn.Dropout(drop))
            layers.append(nn.Linear(dims[i], dims[i + 1]))
            if norm:
                layers.append(nn.BatchNorm1d(dims[i + 1]))
            layers.append(activation())
        self.model = nn.Sequential(*layers)

    def forward(self, X):
        return self.model(X)


def clevr(batch=8, words=20):
    lengths = torch.randint(8, words + 1, (batch, 1))
    questions = torch.randint(1, 83, (batch, words)).masked_fill(torch.arange(words) < words - lengths, 0)
    return torch.randn(batch, 3, 64, 64), questions


def episodes(batch=8, steps=10, agents=5, actions=9):
    available = torch.rand(batch, steps, agents, actions) < 0.6
    available[..., 1] = True
    chosen = torch.multinomial(available.float().view(-1, actions), 1).view(batch, steps, agents, 1)
    observations = torch.rand(batch, steps, agents, 30) * 2 - 1
    return observations, torch.rand(batch, steps, 48) * 2 - 1, chosen, available.long()


def sentences(batch=8, length=48, vocab=1000):
    ids = torch.randint(5, vocab, (batch, length))
    lengths = torch.randint(length // 2, length + 1, (batch, 1))
    lengths[0] = length
    place = torch.arange(length)
    types = ((place >= lengths // 2) & (place < lengths)).long()
    return ids.masked_fill(place >= lengths, 3), types


def transitions(batch=8):
    frames = torch.rand(batch, 5, 84, 84)
    return frames[:, :4].contiguous(), frames[:, 1:].contiguous(), F.one_hot(torch.randint(0, 6, (batch,)), 6).float()


NETS = {
    "Relation network CLEVR": (RN, clevr),
    "QPLEX": (QPLEX, episodes),
    "ICM": (ICMModel, transitions),
    "FNet": (FNetForPreTraining, sentences),
    "DeepSurv": (DeepSurv, lambda: (torch.randn(16, 6),)),
}
