"""Networks typed by hand as their repositories have them: GATv2, VGAE, TGN."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def glorot(tensor):
    a = math.sqrt(6.0 / (tensor.size(-2) + tensor.size(-1)))
    nn.init.uniform_(tensor, -a, a)


def edge_softmax(alpha, index, num_nodes):
    idx = index.unsqueeze(-1).expand_as(alpha)
    peak = alpha.new_zeros(num_nodes, alpha.size(1)).scatter_reduce(0, idx, alpha.detach(), "amax", include_self=False)
    out = (alpha - peak[index]).exp()
    total = torch.zeros_like(peak).scatter_add(0, idx, out) + 1e-16
    return out / total[index]


class GATv2Conv(nn.Module):
    """Attention to neighbours whose scores are not linear in the pair before the last product."""

    def __init__(self, in_channels, out_channels, heads=1, concat=True, negative_slope=0.2, dropout=0.0):
        super().__init__()
        self.heads, self.out_channels, self.concat = heads, out_channels, concat
        self.negative_slope, self.dropout = negative_slope, dropout
        self.lin_l = nn.Linear(in_channels, heads * out_channels)
        self.lin_r = nn.Linear(in_channels, heads * out_channels)
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.bias = nn.Parameter(torch.zeros(heads * out_channels if concat else out_channels))
        for lin in (self.lin_l, self.lin_r):
            glorot(lin.weight)
            nn.init.zeros_(lin.bias)
        glorot(self.att)

    def forward(self, x, edge_index):
        N, H, C = x.size(0), self.heads, self.out_channels
        loops = torch.arange(N, device=x.device)
        edge_index = edge_index[:, edge_index[0] != edge_index[1]]
        src, dst = torch.cat([edge_index, loops.expand(2, -1)], dim=1)
        x_l, x_r = self.lin_l(x).view(-1, H, C), self.lin_r(x).view(-1, H, C)
        g = F.leaky_relu(x_l[src] + x_r[dst], self.negative_slope)
        alpha = edge_softmax((g * self.att).sum(dim=-1), dst, N)
        alpha = F.dropout(alpha, p=self.dropout, training=self.training)
        out = x.new_zeros(N, H, C).index_add(0, dst, x_l[src] * alpha.unsqueeze(-1))
        out = out.view(-1, H * C) if self.concat else out.mean(dim=1)
        return out + self.bias


class GATv2(nn.Module):
    """Two layers for the classes of a citation graph's nodes."""

    def __init__(self, in_channels=128, hidden=8, out_channels=7, heads=8, dropout=0.6):
        super().__init__()
        self.dropout = dropout
        self.conv1 = GATv2Conv(in_channels, hidden, heads, dropout=dropout)
        self.conv2 = GATv2Conv(hidden * heads, out_channels, heads=1, concat=False, dropout=dropout)

    def forward(self, x, edge_index):
        x = F.dropout(x, p=self.dropout, training=self.training)
        x = F.elu(self.conv1(x, edge_index))
        x = F.dropout(x, p=self.dropout, training=self.training)
        return F.log_softmax(self.conv2(x, edge_index), dim=-1)


class GraphConvolution(nn.Module):
    """Simple GCN layer without a bias."""

    def __init__(self, in_features, out_features, dropout=0.0, act=F.relu):
        super().__init__()
        self.dropout, self.act = dropout, act
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, inputs, adj):
        inputs = F.dropout(inputs, self.dropout, self.training)
        return self.act(torch.spmm(adj, torch.mm(inputs, self.weight)))


class InnerProductDecoder(nn.Module):
    """Links from the products of the nodes' codes."""

    def __init__(self, dropout, act=torch.sigmoid):
        super().__init__()
        self.dropout, self.act = dropout, act

    def forward(self, z):
        z = F.dropout(z, self.dropout, training=self.training)
        return self.act(torch.mm(z, z.t()))


class GCNModelVAE(nn.Module):
    """Variational graph auto-encoder."""

    def __init__(self, input_feat_dim=128, hidden_dim1=32, hidden_dim2=16, dropout=0.0):
        super().__init__()
        self.gc1 = GraphConvolution(input_feat_dim, hidden_dim1, dropout, act=F.relu)
        self.gc2 = GraphConvolution(hidden_dim1, hidden_dim2, dropout, act=lambda x: x)
        self.gc3 = GraphConvolution(hidden_dim1, hidden_dim2, dropout, act=lambda x: x)
        self.dc = InnerProductDecoder(dropout, act=lambda x: x)

    def encode(self, x, adj):
        hidden1 = self.gc1(x, adj)
        return self.gc2(hidden1, adj), self.gc3(hidden1, adj)

    def reparameterize(self, mu, logvar):
        if self.training:
            std = torch.exp(logvar)
            eps = torch.randn_like(std)
            return eps.mul(std).add_(mu)
        return mu

    def forward(self, x, adj):
        mu, logvar = self.encode(x, adj)
        z = self.reparameterize(mu, logvar)
        return self.dc(z), mu, logvar


def citations(nodes=120, words=128):
    """Bags of words with rows that sum to one, and a few links a node, both ways."""
    x = (torch.rand(nodes, words) < 0.1).float()
    pairs = torch.randint(nodes, (2, 2 * nodes))
    pairs = pairs[:, pairs[0] != pairs[1]]
    edge_index = torch.unique(torch.cat([pairs, pairs.flip(0)], dim=1), dim=1)
    return x / x.sum(1, keepdim=True).clamp(min=1), edge_index


def normalised(nodes=120, words=128):
    """The same with binary words and the sparse adjacency with loops, normalised by the degrees."""
    x, edge_index = citations(nodes, words)
    src, dst = torch.cat([edge_index, torch.arange(nodes).expand(2, -1)], dim=1)
    deg = torch.bincount(src, minlength=nodes).float()
    values = deg[src].rsqrt() * deg[dst].rsqrt()
    return (x > 0).float(), torch.sparse_coo_tensor(
        torch.stack([src, dst]), values, (nodes, nodes), check_invariants=True
    )


class TimeEncode(nn.Module):
    """Cosines of time at frequencies spread over nine decades."""

    def __init__(self, dimension):
        super().__init__()
        self.dimension = dimension
        self.w = nn.Linear(1, dimension)
        weight = torch.from_numpy(1 / 10 ** np.linspace(0, 9, dimension)).float()
        self.w.weight = nn.Parameter(weight.reshape(dimension, -1))
        self.w.bias = nn.Parameter(torch.zeros(dimension).float())

    def forward(self, t):
        return torch.cos(self.w(t.unsqueeze(dim=2)))


class MergeLayer(nn.Module):
    """Two layers over two vectors side by side."""

    def __init__(self, dim1, dim2, dim3, dim4):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim1 + dim2, dim3), nn.Linear(dim3, dim4)
        self.act = nn.ReLU()
        nn.init.xavier_normal_(self.fc1.weight)
        nn.init.xavier_normal_(self.fc2.weight)

    def forward(self, x1, x2):
        return self.fc2(self.act(self.fc1(torch.cat([x1, x2], dim=1))))


class TemporalAttentionLayer(nn.Module):
    """A node attends to its latest neighbours, with the features and the ages of the edges to them."""

    def __init__(self, n_node_features, n_edge_features, time_dim, output_dimension, n_head=2, dropout=0.1):
        super().__init__()
        self.query_dim = n_node_features + time_dim
        self.key_dim = n_node_features + time_dim + n_edge_features
        self.merger = MergeLayer(self.query_dim, n_node_features, n_node_features, output_dimension)
        self.multi_head_target = nn.MultiheadAttention(
            embed_dim=self.query_dim, kdim=self.key_dim, vdim=self.key_dim, num_heads=n_head, dropout=dropout
        )

    def forward(self, src, src_time, neighbors, neighbors_time, edge_features, mask):
        query = torch.cat([src.unsqueeze(1), src_time], dim=2).permute([1, 0, 2])
        key = torch.cat([neighbors, edge_features, neighbors_time], dim=2).permute([1, 0, 2])
        invalid = mask.all(dim=1, keepdim=True)
        mask = mask.clone()
        mask[invalid.squeeze(1), 0] = False
        attn_output, _ = self.multi_head_target(query=query, key=key, value=key, key_padding_mask=mask)
        attn_output = attn_output.squeeze(0).masked_fill(invalid, 0)
        return self.merger(attn_output, src)


class TGN(nn.Module):
    """Temporal graph network: memories of nodes by a GRU, read by attention; an epoch of a few batches."""

    def __init__(self, num_nodes=60, node_dim=32, edge_dim=16, n_neighbors=6):
        super().__init__()
        self.n_nodes, self.dim, self.n_neighbors = num_nodes + 1, node_dim, n_neighbors
        self.register_buffer("node_raw_features", torch.zeros(num_nodes + 1, node_dim))
        self.time_encoder = TimeEncode(node_dim)
        message_dim = 2 * node_dim + edge_dim + node_dim
        self.message_function = nn.Sequential(
            nn.Linear(message_dim, message_dim // 2), nn.ReLU(), nn.Linear(message_dim // 2, node_dim)
        )
        self.memory_updater = nn.GRUCell(input_size=node_dim, hidden_size=node_dim)
        self.attention = TemporalAttentionLayer(node_dim, edge_dim, node_dim, node_dim)
        self.affinity_score = MergeLayer(node_dim, node_dim, node_dim, 1)

    def get_temporal_neighbor(self, history, nodes, times):
        src, dst, ts, feats = history
        src, dst = torch.cat([src, dst]), torch.cat([dst, src])
        ts, feats = torch.cat([ts, ts]), torch.cat([feats, feats])
        seen = (src[None, :] == nodes[:, None]) & (ts[None, :] < times[:, None])
        when, idx = ts[None, :].expand_as(seen).masked_fill(~seen, -1.0).topk(self.n_neighbors, dim=1)
        valid = when >= 0
        return dst[idx] * valid, feats[idx] * valid.unsqueeze(-1), (times[:, None] - when) * valid, ~valid

    def compute_embedding(self, memory, history, nodes, times):
        neighbors, edge_features, deltas, mask = self.get_temporal_neighbor(history, nodes, times)
        source = memory[nodes] + self.node_raw_features[nodes]
        neighbor = memory[neighbors] + self.node_raw_features[neighbors]
        source_time = self.time_encoder(torch.zeros_like(times).unsqueeze(1))
        return self.attention(source, source_time, neighbor, self.time_encoder(deltas), edge_features, mask)

    def get_updated_memory(self, memory, last_update, messages):
        """The last message of every node, through the message function, into its memory."""
        if not messages:
            return memory, last_update
        ids = sorted(messages)
        nodes = torch.tensor(ids, device=memory.device)
        raw = torch.stack([messages[i][-1][0] for i in ids])
        times = torch.stack([messages[i][-1][1] for i in ids])
        updated = self.memory_updater(self.message_function(raw), memory[nodes])
        return memory.index_copy(0, nodes, updated), last_update.index_copy(0, nodes, times)

    def get_raw_messages(self, memory, last_update, batch, messages):
        sources, destinations, times, features = batch
        for one, other in ((sources, destinations), (destinations, sources)):
            delta = self.time_encoder((times - last_update[one]).unsqueeze(1)).squeeze(1)
            raw = torch.cat([memory[one], memory[other], features, delta], dim=1)
            for i, node in enumerate(one.tolist()):
                messages.setdefault(node, []).append((raw[i], times[i]))

    def forward(self, sources, destinations, negatives, edge_times, edge_features):
        n_batches, B = sources.shape
        history = (sources.flatten(), destinations.flatten(), edge_times.flatten(), edge_features.flatten(0, 1))
        memory = self.node_raw_features.new_zeros(self.n_nodes, self.dim)
        last_update, messages, scores = memory.new_zeros(self.n_nodes), {}, []
        for k in range(n_batches):
            src, dst, neg, t = sources[k], destinations[k], negatives[k], edge_times[k]
            memory, last_update = self.get_updated_memory(memory, last_update, messages)
            messages = {}
            z = self.compute_embedding(memory, history, torch.cat([src, dst, neg]), torch.cat([t, t, t]))
            z_src, z_dst, z_neg = z.split(B)
            score = self.affinity_score(torch.cat([z_src, z_src]), torch.cat([z_dst, z_neg])).squeeze(dim=1)
            scores.append(score.sigmoid())
            self.get_raw_messages(memory, last_update, (src, dst, t, edge_features[k]), messages)
        scores = torch.stack(scores)
        return scores[:, :B], scores[:, B:]


def interactions(batches=4, size=16, users=40, items=20, edge_dim=16):
    """A stream of users' acts on items, at times in seconds since the first, with the acts' features."""
    times = torch.rand(batches * size).mul(2e5).sort()[0].view(batches, size)
    user = torch.randint(1, users + 1, (batches, size))
    item, other = (torch.randint(users + 1, users + items + 1, (batches, size)) for _ in range(2))
    return user, item, other, times, torch.randn(batches, size, edge_dim)


NETS = {
    "GATv2": (GATv2, citations),
    "VGAE": (GCNModelVAE, normalised),
    "TGN": (TGN, interactions),
}
