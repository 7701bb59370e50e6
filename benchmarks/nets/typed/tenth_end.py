"""Networks typed by hand as their repositories have them: TGAT, Deep Graph Infomax and RAFT."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class NeighborFinder:
    """The latest neighbours of a node before a time."""

    def __init__(self, n_nodes, src, dst, ts):
        self.adj = [[] for _ in range(n_nodes)]
        for e, (a, b, t) in enumerate(zip(src, dst, ts, strict=True), start=1):
            self.adj[a].append((t, b, e))
            self.adj[b].append((t, a, e))
        for row in self.adj:
            row.sort()

    def get_temporal_neighbor(self, nodes, cut_times, num):
        ngh, eidx = np.zeros((len(nodes), num), dtype=np.int64), np.zeros((len(nodes), num), dtype=np.int64)
        times = np.zeros((len(nodes), num), dtype=np.float32)
        for i, (node, cut) in enumerate(zip(nodes, cut_times, strict=True)):
            before = [row for row in self.adj[node] if row[0] < cut][-num:]
            for j, (t, b, e) in enumerate(before, start=num - len(before)):
                ngh[i, j], eidx[i, j], times[i, j] = b, e, t
        return ngh, eidx, times


class MergeLayer(nn.Module):
    """Two vectors through a perceptron."""

    def __init__(self, dim1, dim2, dim3, dim4):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim1 + dim2, dim3), nn.Linear(dim3, dim4)
        self.act = nn.ReLU()
        nn.init.xavier_normal_(self.fc1.weight)
        nn.init.xavier_normal_(self.fc2.weight)

    def forward(self, x1, x2):
        x = torch.cat([x1, x2], dim=1)
        return self.fc2(self.act(self.fc1(x)))


class MultiHeadAttention(nn.Module):
    """Heads with a residual and post-norm."""

    def __init__(self, n_head, d_model, d_k, d_v, dropout=0.1):
        super().__init__()
        self.n_head, self.d_k, self.d_v = n_head, d_k, d_v
        self.w_qs = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_ks = nn.Linear(d_model, n_head * d_k, bias=False)
        self.w_vs = nn.Linear(d_model, n_head * d_v, bias=False)
        nn.init.normal_(self.w_qs.weight, mean=0, std=np.sqrt(2.0 / (d_model + d_k)))
        nn.init.normal_(self.w_ks.weight, mean=0, std=np.sqrt(2.0 / (d_model + d_k)))
        nn.init.normal_(self.w_vs.weight, mean=0, std=np.sqrt(2.0 / (d_model + d_v)))
        self.temperature = np.power(d_k, 0.5)
        self.layer_norm = nn.LayerNorm(d_model)
        self.fc = nn.Linear(n_head * d_v, d_model)
        nn.init.xavier_normal_(self.fc.weight)
        self.attn_dropout, self.dropout = nn.Dropout(dropout), nn.Dropout(dropout)

    def forward(self, q, k, v, mask=None):
        sz_b, len_q, len_k, n_head = q.size(0), q.size(1), k.size(1), self.n_head
        residual = q
        q = self.w_qs(q).view(sz_b, len_q, n_head, self.d_k).permute(2, 0, 1, 3).contiguous().view(-1, len_q, self.d_k)
        k = self.w_ks(k).view(sz_b, len_k, n_head, self.d_k).permute(2, 0, 1, 3).contiguous().view(-1, len_k, self.d_k)
        v = self.w_vs(v).view(sz_b, len_k, n_head, self.d_v).permute(2, 0, 1, 3).contiguous().view(-1, len_k, self.d_v)
        attn = torch.bmm(q, k.transpose(1, 2)) / self.temperature
        if mask is not None:
            attn = attn.masked_fill(mask.repeat(n_head, 1, 1), -1e10)
        attn = self.attn_dropout(torch.softmax(attn, dim=2))
        output = torch.bmm(attn, v).view(n_head, sz_b, len_q, self.d_v)
        output = output.permute(1, 2, 0, 3).contiguous().view(sz_b, len_q, -1)
        return self.layer_norm(self.dropout(self.fc(output)) + residual)


class AttnModel(nn.Module):
    """Attention of a node over its temporal neighbours, merged with its own features."""

    def __init__(self, feat_dim, edge_dim, time_dim, n_head=2, drop_out=0.1):
        super().__init__()
        self.model_dim = feat_dim + edge_dim + time_dim
        self.merger = MergeLayer(self.model_dim, feat_dim, feat_dim, feat_dim)
        d = self.model_dim // n_head
        self.multi_head_target = MultiHeadAttention(n_head, self.model_dim, d, d, dropout=drop_out)

    def forward(self, src, src_t, seq, seq_t, seq_e, mask):
        src_ext = torch.unsqueeze(src, dim=1)
        src_e_ph = torch.zeros_like(src_ext)
        q = torch.cat([src_ext, src_e_ph, src_t], dim=2)
        k = torch.cat([seq, seq_e, seq_t], dim=2)
        mask = torch.unsqueeze(mask, dim=2).permute([0, 2, 1])
        output = self.multi_head_target(q=q, k=k, v=k, mask=mask).squeeze(1)
        return self.merger(output, src)


class TimeEncode(nn.Module):
    """Cosines of learnt frequencies."""

    def __init__(self, expand_dim):
        super().__init__()
        self.basis_freq = nn.Parameter(torch.from_numpy(1 / 10 ** np.linspace(0, 9, expand_dim)).float())
        self.phase = nn.Parameter(torch.zeros(expand_dim).float())

    def forward(self, ts):
        map_ts = ts.view(ts.size(0), ts.size(1), 1) * self.basis_freq.view(1, 1, -1)
        return torch.cos(map_ts + self.phase.view(1, 1, -1))


class TGAN(nn.Module):
    """Temporal graph attention: would these nodes meet at this time."""

    def __init__(self, n_nodes=60, n_edges=400, dim=32, num_layers=2, num_neighbors=6):
        super().__init__()
        rng = np.random.default_rng(0)
        src, dst = rng.integers(1, n_nodes // 2, n_edges), rng.integers(n_nodes // 2, n_nodes, n_edges)
        self.ngh_finder = NeighborFinder(n_nodes, src, dst, np.sort(rng.uniform(0, 1000, n_edges)))
        self.num_layers, self.num_neighbors = num_layers, num_neighbors
        self.n_feat_th = nn.Parameter(torch.zeros(n_nodes, dim))
        self.e_feat_th = nn.Parameter(torch.from_numpy(rng.normal(size=(n_edges + 1, dim)).astype(np.float32)))
        self.edge_raw_embed = nn.Embedding.from_pretrained(self.e_feat_th, padding_idx=0, freeze=True)
        self.node_raw_embed = nn.Embedding.from_pretrained(self.n_feat_th, padding_idx=0, freeze=True)
        self.attn_model_list = nn.ModuleList([AttnModel(dim, dim, dim) for _ in range(num_layers)])
        self.time_encoder = TimeEncode(expand_dim=dim)
        self.affinity_score = MergeLayer(dim, dim, dim, 1)

    def tem_conv(self, src_idx_l, cut_time_l, curr_layers):
        batch_size, device = len(src_idx_l), self.n_feat_th.device
        src_node_batch_th = torch.from_numpy(src_idx_l).long().to(device)
        cut_time_l_th = torch.from_numpy(cut_time_l).float().to(device).unsqueeze(1)
        src_node_t_embed = self.time_encoder(torch.zeros_like(cut_time_l_th))
        src_node_feat = self.node_raw_embed(src_node_batch_th)
        if curr_layers == 0:
            return src_node_feat
        src_node_conv_feat = self.tem_conv(src_idx_l, cut_time_l, curr_layers - 1)
        ngh, eidx, times = self.ngh_finder.get_temporal_neighbor(src_idx_l, cut_time_l, self.num_neighbors)
        ngh_th, eidx_th = torch.from_numpy(ngh).to(device), torch.from_numpy(eidx).to(device)
        delta = cut_time_l_th - torch.from_numpy(times).to(device)
        conv_feat = self.tem_conv(ngh.flatten(), times.flatten(), curr_layers - 1)
        src_ngh_feat = conv_feat.view(batch_size, self.num_neighbors, -1)
        src_ngh_t_embed = self.time_encoder(delta)
        src_ngn_edge_feat = self.edge_raw_embed(eidx_th)
        return self.attn_model_list[curr_layers - 1](
            src_node_conv_feat, src_node_t_embed, src_ngh_feat, src_ngh_t_embed, src_ngn_edge_feat, ngh_th == 0
        )

    def forward(self, src, target, background, cut_time):
        cut_time = cut_time.cpu().numpy()
        src_embed, target_embed, background_embed = (
            self.tem_conv(idx.cpu().numpy(), cut_time, self.num_layers) for idx in (src, target, background)
        )
        pos_score = self.affinity_score(src_embed, target_embed).squeeze(dim=-1)
        neg_score = self.affinity_score(src_embed, background_embed).squeeze(dim=-1)
        return pos_score.sigmoid(), neg_score.sigmoid()


class GCN(nn.Module):
    """Graph convolution with a PReLU."""

    def __init__(self, in_ft, out_ft):
        super().__init__()
        self.fc = nn.Linear(in_ft, out_ft, bias=False)
        self.act = nn.PReLU()
        self.bias = nn.Parameter(torch.FloatTensor(out_ft))
        self.bias.data.fill_(0.0)
        nn.init.xavier_uniform_(self.fc.weight.data)

    def forward(self, seq, adj):
        out = torch.bmm(adj, self.fc(seq))
        out += self.bias
        return self.act(out)


class Discriminator(nn.Module):
    """Bilinear scores of nodes against the summary."""

    def __init__(self, n_h):
        super().__init__()
        self.f_k = nn.Bilinear(n_h, n_h, 1)
        nn.init.xavier_uniform_(self.f_k.weight.data)
        self.f_k.bias.data.fill_(0.0)

    def forward(self, c, h_pl, h_mi):
        c_x = torch.unsqueeze(c, 1).expand_as(h_pl)
        return torch.cat((self.f_k(h_pl, c_x).squeeze(2), self.f_k(h_mi, c_x).squeeze(2)), 1)


class DGI(nn.Module):
    """Deep graph infomax: real nodes against shuffled ones."""

    def __init__(self, n_in=100, n_h=64):
        super().__init__()
        self.gcn = GCN(n_in, n_h)
        self.sigm = nn.Sigmoid()
        self.disc = Discriminator(n_h)

    def forward(self, seq1, seq2, adj):
        h_1 = self.gcn(seq1, adj)
        c = self.sigm(torch.mean(h_1, 1))
        h_2 = self.gcn(seq2, adj)
        return self.disc(c, h_1, h_2)


class ResidualBlock(nn.Module):
    """Two convolutions under a norm of choice."""

    def __init__(self, in_planes, planes, norm, stride=1):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(in_planes, planes, 3, stride, 1), nn.Conv2d(planes, planes, 3, 1, 1)
        self.relu = nn.ReLU(inplace=True)
        self.norm1, self.norm2 = norm(planes), norm(planes)
        self.downsample = None
        if stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride=stride), norm(planes))

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        if self.downsample is not None:
            x = self.downsample(x)
        return self.relu(x + y)


class BasicEncoder(nn.Module):
    """Features at an eighth of the resolution."""

    def __init__(self, output_dim, norm, w=16):
        super().__init__()
        self.norm1, self.conv1, self.relu1 = norm(w), nn.Conv2d(3, w, 7, 2, 3), nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(ResidualBlock(w, w, norm), ResidualBlock(w, w, norm))
        self.layer2 = nn.Sequential(ResidualBlock(w, 24, norm, 2), ResidualBlock(24, 24, norm))
        self.layer3 = nn.Sequential(ResidualBlock(24, 2 * w, norm, 2), ResidualBlock(2 * w, 2 * w, norm))
        self.conv2 = nn.Conv2d(2 * w, output_dim, kernel_size=1)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(m, (nn.BatchNorm2d, nn.InstanceNorm2d, nn.GroupNorm)):
                if m.weight is not None:
                    nn.init.constant_(m.weight, 1)
                if m.bias is not None:
                    nn.init.constant_(m.bias, 0)

    def forward(self, x):
        x = self.relu1(self.norm1(self.conv1(x)))
        return self.conv2(self.layer3(self.layer2(self.layer1(x))))


def coords_grid(batch, ht, wd):
    ys, xs = torch.meshgrid(torch.arange(ht), torch.arange(wd), indexing="ij")
    return torch.stack([xs, ys], dim=0).float()[None].repeat(batch, 1, 1, 1)


class CorrBlock:
    """All pairs' correlations in a pyramid, looked up around the current flow."""

    def __init__(self, fmap1, fmap2, num_levels=3, radius=3):
        self.num_levels, self.radius = num_levels, radius
        batch, dim, ht, wd = fmap1.shape
        corr = torch.matmul(fmap1.view(batch, dim, ht * wd).transpose(1, 2), fmap2.view(batch, dim, ht * wd))
        corr = corr.view(batch, ht, wd, 1, ht, wd) / torch.sqrt(torch.tensor(dim).float())
        corr = corr.reshape(batch * ht * wd, 1, ht, wd)
        self.corr_pyramid = [corr]
        for _ in range(num_levels - 1):
            corr = F.avg_pool2d(corr, 2, stride=2)
            self.corr_pyramid.append(corr)

    def __call__(self, coords):
        r, coords = self.radius, coords.permute(0, 2, 3, 1)
        batch, h1, w1, _ = coords.shape
        out_pyramid = []
        dx = torch.linspace(-r, r, 2 * r + 1, device=coords.device)
        delta = torch.stack(torch.meshgrid(dx, dx, indexing="ij"), dim=-1).view(1, 2 * r + 1, 2 * r + 1, 2)
        for i, corr in enumerate(self.corr_pyramid):
            xgrid, ygrid = (coords.reshape(batch * h1 * w1, 1, 1, 2) / 2**i + delta).split([1, 1], dim=-1)
            H, W = corr.shape[-2:]
            grid = torch.cat([2 * xgrid / (W - 1) - 1, 2 * ygrid / (H - 1) - 1], dim=-1)
            out_pyramid.append(F.grid_sample(corr, grid, align_corners=True).view(batch, h1, w1, -1))
        return torch.cat(out_pyramid, dim=-1).permute(0, 3, 1, 2).contiguous().float()


class SepConvGRU(nn.Module):
    """A GRU along rows, then one along columns."""

    def __init__(self, hidden, inputs):
        super().__init__()
        d = hidden + inputs
        self.convz1, self.convr1, self.convq1 = (nn.Conv2d(d, hidden, (1, 5), padding=(0, 2)) for _ in range(3))
        self.convz2, self.convr2, self.convq2 = (nn.Conv2d(d, hidden, (5, 1), padding=(2, 0)) for _ in range(3))

    def forward(self, h, x):
        for cz, cr, cq in ((self.convz1, self.convr1, self.convq1), (self.convz2, self.convr2, self.convq2)):
            hx = torch.cat([h, x], dim=1)
            z, r = torch.sigmoid(cz(hx)), torch.sigmoid(cr(hx))
            q = torch.tanh(cq(torch.cat([r * h, x], dim=1)))
            h = (1 - z) * h + z * q
        return h


class BasicUpdateBlock(nn.Module):
    """Motion features, the GRU, the flow head and the mask for convex upsampling."""

    def __init__(self, cor_planes, hidden=32):
        super().__init__()
        self.convc1, self.convc2 = nn.Conv2d(cor_planes, 64, 1), nn.Conv2d(64, 48, 3, padding=1)
        self.convf1, self.convf2 = nn.Conv2d(2, 32, 7, padding=3), nn.Conv2d(32, 16, 3, padding=1)
        self.conv = nn.Conv2d(16 + 48, hidden - 2, 3, padding=1)
        self.gru = SepConvGRU(hidden, hidden + hidden)
        self.flow_head = nn.Sequential(
            nn.Conv2d(hidden, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(64, 2, 3, padding=1)
        )
        self.mask = nn.Sequential(
            nn.Conv2d(hidden, 64, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(64, 64 * 9, 1, padding=0)
        )

    def forward(self, net, inp, corr, flow):
        cor = F.relu(self.convc2(F.relu(self.convc1(corr))))
        flo = F.relu(self.convf2(F.relu(self.convf1(flow))))
        motion = torch.cat([F.relu(self.conv(torch.cat([cor, flo], dim=1))), flow], dim=1)
        net = self.gru(net, torch.cat([inp, motion], dim=1))
        return net, 0.25 * self.mask(net), self.flow_head(net)


class RAFT(nn.Module):
    """Optical flow by recurrent updates."""

    def __init__(self, hidden=32, context=32, iters=4):
        super().__init__()
        self.hidden_dim, self.context_dim, self.iters = hidden, context, iters
        self.fnet = BasicEncoder(64, nn.InstanceNorm2d)
        self.cnet = BasicEncoder(hidden + context, nn.BatchNorm2d)
        self.update_block = BasicUpdateBlock(3 * 7 * 7, hidden)

    def upsample_flow(self, flow, mask):
        N, _, H, W = flow.shape
        mask = torch.softmax(mask.view(N, 1, 9, 8, 8, H, W), dim=2)
        up_flow = F.unfold(8 * flow, [3, 3], padding=1).view(N, 2, 9, 1, 1, H, W)
        up_flow = torch.sum(mask * up_flow, dim=2).permute(0, 1, 4, 2, 5, 3)
        return up_flow.reshape(N, 2, 8 * H, 8 * W)

    def forward(self, image1, image2):
        image1, image2 = 2 * (image1 / 255.0) - 1.0, 2 * (image2 / 255.0) - 1.0
        fmap1, fmap2 = torch.split(self.fnet(torch.cat([image1, image2], dim=0)), image1.shape[0], dim=0)
        corr_fn = CorrBlock(fmap1.float(), fmap2.float())
        net, inp = torch.split(self.cnet(image1), [self.hidden_dim, self.context_dim], dim=1)
        net, inp = torch.tanh(net), torch.relu(inp)
        coords0 = coords_grid(image1.shape[0], *fmap1.shape[-2:]).to(image1.device)
        coords1, flow_predictions = coords0.clone(), []
        for _ in range(self.iters):
            coords1 = coords1.detach()
            corr = corr_fn(coords1)
            net, up_mask, delta_flow = self.update_block(net, inp, corr, coords1 - coords0)
            coords1 = coords1 + delta_flow
            flow_predictions.append(self.upsample_flow(coords1 - coords0, up_mask))
        return flow_predictions


def meetings():
    times = torch.rand(12).sort()[0] * 500 + 500
    return torch.randint(1, 30, (12,)), torch.randint(30, 60, (12,)), torch.randint(30, 60, (12,)), times


def shuffled_nodes(n=60):
    adj = (torch.rand(n, n) < 0.06).float().triu(1)
    adj = adj + adj.t() + torch.eye(n)
    d = adj.sum(1).pow(-0.5)
    seq = torch.rand(1, n, 100).lt(0.1).float()
    seq = seq / seq.sum(-1, keepdim=True).clamp(min=1)
    return seq, seq[:, torch.randperm(n)], (d[:, None] * adj * d)[None]


NETS = {
    "TGAT": (TGAN, meetings),
    "Deep Graph Infomax": (DGI, shuffled_nodes),
    "RAFT": (RAFT, lambda: (torch.rand(4, 3, 64, 64) * 255, torch.rand(4, 3, 64, 64) * 255)),
}
