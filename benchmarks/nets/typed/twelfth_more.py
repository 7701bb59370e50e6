"""Networks typed by hand as their repositories have them: VQGAN, Social LSTM, Sketch-RNN."""

import torch
import torch.nn.functional as F
from torch import nn


def nonlinearity(x):
    return x * torch.sigmoid(x)


def normalize(in_channels):
    return nn.GroupNorm(num_groups=32, num_channels=in_channels, eps=1e-6, affine=True)


class Upsample(nn.Module):
    """Nearest neighbours, then a convolution."""

    def __init__(self, in_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, in_channels, kernel_size=3, stride=1, padding=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Downsample(nn.Module):
    """A strided convolution, padded on the far sides alone."""

    def __init__(self, in_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, in_channels, kernel_size=3, stride=2, padding=0)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1), mode="constant", value=0))


class ResnetBlock(nn.Module):
    """Norm, swish and convolution twice, past a skip."""

    def __init__(self, in_channels, out_channels=None, dropout=0.0):
        super().__init__()
        out_channels = in_channels if out_channels is None else out_channels
        self.in_channels, self.out_channels = in_channels, out_channels
        self.norm1 = normalize(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, kernel_size=3, stride=1, padding=1)
        self.norm2 = normalize(out_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(out_channels, out_channels, kernel_size=3, stride=1, padding=1)
        if in_channels != out_channels:
            self.nin_shortcut = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=1, padding=0)

    def forward(self, x):
        h = self.conv1(nonlinearity(self.norm1(x)))
        h = self.conv2(self.dropout(nonlinearity(self.norm2(h))))
        if self.in_channels != self.out_channels:
            x = self.nin_shortcut(x)
        return x + h


class AttnBlock(nn.Module):
    """Attention over a map's cells, in one head of pointwise convolutions."""

    def __init__(self, in_channels):
        super().__init__()
        self.norm = normalize(in_channels)
        self.q = nn.Conv2d(in_channels, in_channels, kernel_size=1, stride=1, padding=0)
        self.k = nn.Conv2d(in_channels, in_channels, kernel_size=1, stride=1, padding=0)
        self.v = nn.Conv2d(in_channels, in_channels, kernel_size=1, stride=1, padding=0)
        self.proj_out = nn.Conv2d(in_channels, in_channels, kernel_size=1, stride=1, padding=0)

    def forward(self, x):
        h_ = self.norm(x)
        q, k, v = self.q(h_), self.k(h_), self.v(h_)
        b, c, h, w = q.shape
        q = q.reshape(b, c, h * w).permute(0, 2, 1)
        k = k.reshape(b, c, h * w)
        w_ = torch.bmm(q, k) * (int(c) ** (-0.5))
        w_ = F.softmax(w_, dim=2)
        v = v.reshape(b, c, h * w)
        h_ = torch.bmm(v, w_.permute(0, 2, 1)).reshape(b, c, h, w)
        return x + self.proj_out(h_)


class Encoder(nn.Module):
    """Levels of blocks, with attention at some resolutions and around the middle."""

    def __init__(self, ch, ch_mult, num_res_blocks, attn_resolutions, resolution, in_channels, z_channels):
        super().__init__()
        self.num_resolutions, self.num_res_blocks = len(ch_mult), num_res_blocks
        self.conv_in = nn.Conv2d(in_channels, ch, kernel_size=3, stride=1, padding=1)
        curr_res, in_ch_mult = resolution, (1, *ch_mult)
        self.down = nn.ModuleList()
        for i_level in range(self.num_resolutions):
            block, attn = nn.ModuleList(), nn.ModuleList()
            block_in, block_out = ch * in_ch_mult[i_level], ch * ch_mult[i_level]
            for _ in range(num_res_blocks):
                block.append(ResnetBlock(block_in, block_out))
                block_in = block_out
                if curr_res in attn_resolutions:
                    attn.append(AttnBlock(block_in))
            down = nn.Module()
            down.block, down.attn = block, attn
            if i_level != self.num_resolutions - 1:
                down.downsample = Downsample(block_in)
                curr_res = curr_res // 2
            self.down.append(down)
        self.mid = nn.Module()
        self.mid.block_1 = ResnetBlock(block_in)
        self.mid.attn_1 = AttnBlock(block_in)
        self.mid.block_2 = ResnetBlock(block_in)
        self.norm_out = normalize(block_in)
        self.conv_out = nn.Conv2d(block_in, z_channels, kernel_size=3, stride=1, padding=1)

    def forward(self, x):
        hs = [self.conv_in(x)]
        for i_level in range(self.num_resolutions):
            for i_block in range(self.num_res_blocks):
                h = self.down[i_level].block[i_block](hs[-1])
                if len(self.down[i_level].attn) > 0:
                    h = self.down[i_level].attn[i_block](h)
                hs.append(h)
            if i_level != self.num_resolutions - 1:
                hs.append(self.down[i_level].downsample(hs[-1]))
        h = self.mid.block_2(self.mid.attn_1(self.mid.block_1(hs[-1])))
        return self.conv_out(nonlinearity(self.norm_out(h)))


class Decoder(nn.Module):
    """The encoder's levels in reverse, with one more block in each."""

    def __init__(self, ch, out_ch, ch_mult, num_res_blocks, attn_resolutions, resolution, z_channels):
        super().__init__()
        self.num_resolutions, self.num_res_blocks = len(ch_mult), num_res_blocks
        block_in = ch * ch_mult[self.num_resolutions - 1]
        curr_res = resolution // 2 ** (self.num_resolutions - 1)
        self.conv_in = nn.Conv2d(z_channels, block_in, kernel_size=3, stride=1, padding=1)
        self.mid = nn.Module()
        self.mid.block_1 = ResnetBlock(block_in)
        self.mid.attn_1 = AttnBlock(block_in)
        self.mid.block_2 = ResnetBlock(block_in)
        self.up = nn.ModuleList()
        for i_level in reversed(range(self.num_resolutions)):
            block, attn = nn.ModuleList(), nn.ModuleList()
            block_out = ch * ch_mult[i_level]
            for _ in range(num_res_blocks + 1):
                block.append(ResnetBlock(block_in, block_out))
                block_in = block_out
                if curr_res in attn_resolutions:
                    attn.append(AttnBlock(block_in))
            up = nn.Module()
            up.block, up.attn = block, attn
            if i_level != 0:
                up.upsample = Upsample(block_in)
                curr_res = curr_res * 2
            self.up.insert(0, up)
        self.norm_out = normalize(block_in)
        self.conv_out = nn.Conv2d(block_in, out_ch, kernel_size=3, stride=1, padding=1)

    def forward(self, z):
        h = self.conv_in(z)
        h = self.mid.block_2(self.mid.attn_1(self.mid.block_1(h)))
        for i_level in reversed(range(self.num_resolutions)):
            for i_block in range(self.num_res_blocks + 1):
                h = self.up[i_level].block[i_block](h)
                if len(self.up[i_level].attn) > 0:
                    h = self.up[i_level].attn[i_block](h)
            if i_level != 0:
                h = self.up[i_level].upsample(h)
        return self.conv_out(nonlinearity(self.norm_out(h)))


class VectorQuantizer2(nn.Module):
    """The nearest code for each cell, its gradient passed straight through."""

    def __init__(self, n_e, e_dim, beta=0.25):
        super().__init__()
        self.n_e, self.e_dim, self.beta = n_e, e_dim, beta
        self.embedding = nn.Embedding(self.n_e, self.e_dim)
        self.embedding.weight.data.uniform_(-1.0 / self.n_e, 1.0 / self.n_e)

    def forward(self, z):
        z = z.permute(0, 2, 3, 1).contiguous()
        z_flattened = z.view(-1, self.e_dim)
        d = (
            torch.sum(z_flattened**2, dim=1, keepdim=True)
            + torch.sum(self.embedding.weight**2, dim=1)
            - 2 * torch.einsum("bd,dn->bn", z_flattened, self.embedding.weight.t())
        )
        min_encoding_indices = torch.argmin(d, dim=1)
        z_q = self.embedding(min_encoding_indices).view(z.shape)
        loss = torch.mean((z_q.detach() - z) ** 2) + self.beta * torch.mean((z_q - z.detach()) ** 2)
        z_q = z + (z_q - z).detach()
        return z_q.permute(0, 3, 1, 2).contiguous(), loss, min_encoding_indices


class VQModel(nn.Module):
    """VQGAN's first stage: encoder, codes, decoder."""

    def __init__(self, ch=32, ch_mult=(1, 1, 2), num_res_blocks=1, resolution=32, z_channels=32, n_embed=128):
        super().__init__()
        attn_resolutions = (resolution // 2 ** (len(ch_mult) - 1),)
        self.encoder = Encoder(ch, ch_mult, num_res_blocks, attn_resolutions, resolution, 3, z_channels)
        self.decoder = Decoder(ch, 3, ch_mult, num_res_blocks, attn_resolutions, resolution, z_channels)
        self.quantize = VectorQuantizer2(n_embed, z_channels, beta=0.25)
        self.quant_conv = nn.Conv2d(z_channels, z_channels, 1)
        self.post_quant_conv = nn.Conv2d(z_channels, z_channels, 1)

    def forward(self, x):
        quant, emb_loss, _ = self.quantize(self.quant_conv(self.encoder(x)))
        return self.decoder(self.post_quant_conv(quant)), emb_loss


class SocialModel(nn.Module):
    """An LSTM cell for each pedestrian of a scene, given the states of those around in a grid."""

    def __init__(self, input_size=2, output_size=5, rnn_size=64, embedding_size=32, grid_size=4, neighborhood=0.5):
        super().__init__()
        self.rnn_size, self.grid_size, self.output_size = rnn_size, grid_size, output_size
        self.neighborhood = neighborhood
        self.cell = nn.LSTMCell(2 * embedding_size, rnn_size)
        self.input_embedding_layer = nn.Linear(input_size, embedding_size)
        self.tensor_embedding_layer = nn.Linear(grid_size * grid_size * rnn_size, embedding_size)
        self.output_layer = nn.Linear(rnn_size, output_size)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(0.5)

    def get_grid_mask(self, nodes):
        """Which cell of each pedestrian's neighbourhood each other one is in."""
        num, side = nodes.size(0), self.grid_size
        offset = nodes.unsqueeze(0) - nodes.unsqueeze(1) + self.neighborhood / 2
        cell = torch.floor(offset / self.neighborhood * side).long()
        inside = ((cell >= 0) & (cell < side)).all(-1) & ~torch.eye(num, dtype=torch.bool, device=nodes.device)
        index = (cell[..., 0] + cell[..., 1] * side).clamp(0, side * side - 1)
        return F.one_hot(index, side * side).to(nodes.dtype) * inside.unsqueeze(-1)

    def get_social_tensor(self, grid, hidden_states):
        num_nodes = grid.size(0)
        social_tensor = [torch.mm(torch.t(grid[node]), hidden_states) for node in range(num_nodes)]
        return torch.stack(social_tensor).view(num_nodes, self.grid_size * self.grid_size * self.rnn_size)

    def forward(self, frames, present):
        seq_length, num_peds = present.shape
        hidden_states = frames.new_zeros(num_peds, self.rnn_size)
        cell_states = frames.new_zeros(num_peds, self.rnn_size)
        outputs = []
        for framenum in range(seq_length):
            corr_index = present[framenum].nonzero().squeeze(1)
            nodes_current = frames[framenum][corr_index]
            grid_current = self.get_grid_mask(nodes_current)
            hidden_current = torch.index_select(hidden_states, 0, corr_index)
            cell_current = torch.index_select(cell_states, 0, corr_index)
            social_tensor = self.get_social_tensor(grid_current, hidden_current)
            input_embedded = self.dropout(self.relu(self.input_embedding_layer(nodes_current)))
            tensor_embedded = self.dropout(self.relu(self.tensor_embedding_layer(social_tensor)))
            concat_embedded = torch.cat((input_embedded, tensor_embedded), 1)
            h_nodes, c_nodes = self.cell(concat_embedded, (hidden_current, cell_current))
            frame_out = frames.new_zeros(num_peds, self.output_size)
            outputs.append(frame_out.index_copy(0, corr_index, self.output_layer(h_nodes)))
            hidden_states = hidden_states.index_copy(0, corr_index, h_nodes)
            cell_states = cell_states.index_copy(0, corr_index, c_nodes)
        return torch.stack(outputs), hidden_states, cell_states


class EncoderRNN(nn.Module):
    """A two-way LSTM over a drawing, and a draw of its code."""

    def __init__(self, enc_hidden_size, Nz):
        super().__init__()
        self.lstm = nn.LSTM(5, enc_hidden_size, bidirectional=True)
        self.fc_mu = nn.Linear(2 * enc_hidden_size, Nz)
        self.fc_sigma = nn.Linear(2 * enc_hidden_size, Nz)

    def forward(self, inputs):
        _, (hidden, _) = self.lstm(inputs.float())
        hidden_forward, hidden_backward = torch.split(hidden, 1, 0)
        hidden_cat = torch.cat([hidden_forward.squeeze(0), hidden_backward.squeeze(0)], 1)
        mu, sigma_hat = self.fc_mu(hidden_cat), self.fc_sigma(hidden_cat)
        sigma = torch.exp(sigma_hat / 2.0)
        z = mu + sigma * torch.randn_like(sigma)
        return z, mu, sigma_hat


class DecoderRNN(nn.Module):
    """An LSTM that gives each stroke as a mixture of correlated Gaussians and a state of the pen."""

    def __init__(self, dec_hidden_size, Nz, M):
        super().__init__()
        self.dec_hidden_size, self.M = dec_hidden_size, M
        self.fc_hc = nn.Linear(Nz, 2 * dec_hidden_size)
        self.lstm = nn.LSTM(Nz + 5, dec_hidden_size)
        self.fc_params = nn.Linear(dec_hidden_size, 6 * M + 3)

    def forward(self, inputs, z):
        hidden, cell = torch.split(torch.tanh(self.fc_hc(z)), self.dec_hidden_size, 1)
        outputs, _ = self.lstm(inputs, (hidden.unsqueeze(0).contiguous(), cell.unsqueeze(0).contiguous()))
        len_out = inputs.size(0)
        y = self.fc_params(outputs.view(-1, self.dec_hidden_size))
        params = torch.split(y, 6, 1)
        params_mixture, params_pen = torch.stack(params[:-1]), params[-1]
        pi, mu_x, mu_y, sigma_x, sigma_y, rho_xy = torch.split(params_mixture, 1, 2)
        pi = F.softmax(pi.transpose(0, 1).squeeze(), dim=-1).view(len_out, -1, self.M)
        sigma_x = torch.exp(sigma_x.transpose(0, 1).squeeze()).view(len_out, -1, self.M)
        sigma_y = torch.exp(sigma_y.transpose(0, 1).squeeze()).view(len_out, -1, self.M)
        rho_xy = torch.tanh(rho_xy.transpose(0, 1).squeeze()).view(len_out, -1, self.M)
        mu_x = mu_x.transpose(0, 1).squeeze().contiguous().view(len_out, -1, self.M)
        mu_y = mu_y.transpose(0, 1).squeeze().contiguous().view(len_out, -1, self.M)
        q = F.softmax(params_pen, dim=-1).view(len_out, -1, 3)
        return pi, mu_x, mu_y, sigma_x, sigma_y, rho_xy, q


class SketchRNN(nn.Module):
    """Encoder and decoder of drawings, the decoder fed the strokes before and the code at each step."""

    def __init__(self, enc_hidden_size=64, dec_hidden_size=128, Nz=32, M=10):
        super().__init__()
        self.encoder = EncoderRNN(enc_hidden_size, Nz)
        self.decoder = DecoderRNN(dec_hidden_size, Nz, M)

    def forward(self, batch):
        length, size = batch.shape[:2]
        z, mu, sigma_hat = self.encoder(batch)
        sos = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0], device=batch.device).expand(1, size, 5)
        batch_init = torch.cat([sos, batch], 0)
        z_stack = torch.stack([z] * (length + 1))
        return (*self.decoder(torch.cat([batch_init, z_stack], 2), z), mu, sigma_hat)


def crowd(frames=12, pedestrians=14):
    """Walkers of one scene, in its unit square, some of whom come late or leave early."""
    start, velocity = torch.rand(pedestrians, 2) * 2 - 1, 0.05 * torch.randn(pedestrians, 2)
    steps = torch.arange(frames)
    positions = start + steps.view(-1, 1, 1) * velocity + 0.005 * torch.randn(frames, pedestrians, 2)
    enter, leave = torch.randint(0, 4, (pedestrians,)), torch.randint(frames - 3, frames + 1, (pedestrians,))
    present = (steps.unsqueeze(1) >= enter) & (steps.unsqueeze(1) < leave)
    return positions, present


def drawings(batch=8, longest=40):
    """Strokes' offsets of unit scale, lifts of the pen, and its end, which fills the rest."""
    lengths = torch.randint(longest // 2, longest + 1, (batch,))
    over = torch.arange(longest).unsqueeze(1) >= lengths
    lift = (torch.rand(longest, batch) < 0.15) & ~over
    offsets = torch.randn(longest, batch, 2).masked_fill(over.unsqueeze(-1), 0.0)
    pen = torch.stack([~lift & ~over, lift, over], dim=-1).float()
    return (torch.cat([offsets, pen], dim=-1),)


NETS = {
    "VQGAN": (VQModel, lambda: (torch.randn(4, 3, 32, 32),)),
    "Social LSTM": (SocialModel, crowd),
    "Sketch-RNN": (SketchRNN, drawings),
}
