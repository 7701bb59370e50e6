"""Networks typed by hand as their repositories have them: speech, inpainting, one-shot learning and STAMP."""

import math

import torch
import torch.nn.functional as F
from torch import nn


class Linear(nn.Module):
    """Linear layer under Xavier's initialisation."""

    def __init__(self, in_dim, out_dim, bias=True, w_init="linear"):
        super().__init__()
        self.linear_layer = nn.Linear(in_dim, out_dim, bias=bias)
        nn.init.xavier_uniform_(self.linear_layer.weight, gain=nn.init.calculate_gain(w_init))

    def forward(self, x):
        return self.linear_layer(x)


class Conv(nn.Module):
    """Convolution under Xavier's initialisation."""

    def __init__(self, in_channels, out_channels, kernel_size=1, padding=0, w_init="linear"):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size=kernel_size, padding=padding)
        nn.init.xavier_uniform_(self.conv.weight, gain=nn.init.calculate_gain(w_init))

    def forward(self, x):
        return self.conv(x)


class EncoderPrenet(nn.Module):
    """Embedding and three convolutions."""

    def __init__(self, vocab, embedding_size, num_hidden):
        super().__init__()
        self.embed = nn.Embedding(vocab, embedding_size, padding_idx=0)
        self.convs = nn.ModuleList(
            Conv(embedding_size if i == 0 else num_hidden, num_hidden, kernel_size=5, padding=2, w_init="relu")
            for i in range(3)
        )
        self.batch_norms = nn.ModuleList(nn.BatchNorm1d(num_hidden) for _ in range(3))
        self.dropouts = nn.ModuleList(nn.Dropout(p=0.2) for _ in range(3))
        self.projection = Linear(num_hidden, num_hidden)

    def forward(self, text):
        x = self.embed(text).transpose(1, 2)
        for conv, bn, drop in zip(self.convs, self.batch_norms, self.dropouts, strict=True):
            x = drop(torch.relu(bn(conv(x))))
        return self.projection(x.transpose(1, 2))


class FFN(nn.Module):
    """Positionwise convolutions, post-norm."""

    def __init__(self, num_hidden):
        super().__init__()
        self.w_1 = Conv(num_hidden, num_hidden * 4, kernel_size=1, w_init="relu")
        self.w_2 = Conv(num_hidden * 4, num_hidden, kernel_size=1)
        self.layer_norm = nn.LayerNorm(num_hidden)

    def forward(self, input_):
        x = self.w_2(torch.relu(self.w_1(input_.transpose(1, 2)))).transpose(1, 2)
        return self.layer_norm(x + input_)


class Attention(nn.Module):
    """Heads whose result is joined with the query before the output layer."""

    def __init__(self, num_hidden, h=4):
        super().__init__()
        self.h, self.per = h, num_hidden // h
        self.key, self.value, self.query = (Linear(num_hidden, num_hidden, bias=False) for _ in range(3))
        self.attn_dropout, self.residual_dropout = nn.Dropout(p=0.1), nn.Dropout(p=0.1)
        self.final_linear = Linear(num_hidden * 2, num_hidden)
        self.layer_norm_1 = nn.LayerNorm(num_hidden)

    def forward(self, memory, decoder_input, mask=None, query_mask=None):
        b, k_len, q_len = memory.size(0), memory.size(1), decoder_input.size(1)
        key, value, query = (
            f(x).view(b, n, self.h, self.per).permute(2, 0, 1, 3).reshape(-1, n, self.per)
            for f, x, n in ((self.key, memory, k_len), (self.value, memory, k_len), (self.query, decoder_input, q_len))
        )
        attn = torch.bmm(query, key.transpose(1, 2)) / math.sqrt(self.per)
        if mask is not None:
            attn = attn.masked_fill(mask.repeat(self.h, 1, 1), -(2**32) + 1)
        attn = torch.softmax(attn, dim=-1)
        if query_mask is not None:
            attn = attn * query_mask.unsqueeze(-1).repeat(self.h, 1, k_len)
        result = torch.bmm(self.attn_dropout(attn), value)
        result = result.view(self.h, b, q_len, self.per).permute(1, 2, 0, 3).reshape(b, q_len, -1)
        result = self.final_linear(torch.cat([decoder_input, result], dim=-1))
        return self.layer_norm_1(self.residual_dropout(result) + decoder_input)


class PostConvNet(nn.Module):
    """Causal convolutions that refine the spectrogram."""

    def __init__(self, mels, num_hidden):
        super().__init__()
        self.conv1 = Conv(mels, num_hidden, kernel_size=5, padding=4, w_init="tanh")
        self.conv_list = nn.ModuleList(
            Conv(num_hidden, num_hidden, kernel_size=5, padding=4, w_init="tanh") for _ in range(3)
        )
        self.conv2 = Conv(num_hidden, mels, kernel_size=5, padding=4)
        self.batch_norm_list = nn.ModuleList(nn.BatchNorm1d(num_hidden) for _ in range(3))
        self.pre_batchnorm = nn.BatchNorm1d(num_hidden)
        self.dropout1 = nn.Dropout(p=0.1)
        self.dropout_list = nn.ModuleList(nn.Dropout(p=0.1) for _ in range(3))

    def forward(self, x):
        x = self.dropout1(torch.tanh(self.pre_batchnorm(self.conv1(x)[:, :, :-4])))
        for batch_norm, conv, dropout in zip(self.batch_norm_list, self.conv_list, self.dropout_list, strict=True):
            x = dropout(torch.tanh(batch_norm(conv(x)[:, :, :-4])))
        return self.conv2(x)[:, :, :-4]


def sinusoid_table(n, d):
    angle = torch.arange(n)[:, None] / torch.pow(10000, 2 * (torch.arange(d) // 2) / d)[None]
    table = torch.where(torch.arange(d) % 2 == 0, angle.sin(), angle.cos())
    table[0] = 0
    return table


class TransformerTTS(nn.Module):
    """Text to spectrogram, with scaled positions and a stop token."""

    def __init__(self, vocab=40, mels=40, num_hidden=64, layers=3, out_hidden=64):
        super().__init__()
        self.encoder_prenet = EncoderPrenet(vocab, 2 * num_hidden, num_hidden)
        self.alpha, self.decoder_alpha = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
        self.pos_emb = nn.Embedding.from_pretrained(sinusoid_table(128, num_hidden), freeze=True)
        self.pos_dropout = nn.Dropout(p=0.1)
        self.enc_layers = nn.ModuleList(Attention(num_hidden) for _ in range(layers))
        self.enc_ffns = nn.ModuleList(FFN(num_hidden) for _ in range(layers))
        self.decoder_prenet = nn.Sequential(
            Linear(mels, num_hidden * 2, w_init="relu"),
            nn.ReLU(),
            nn.Dropout(0.5),
            Linear(num_hidden * 2, num_hidden, w_init="relu"),
            nn.ReLU(),
            nn.Dropout(0.5),
        )
        self.norm = Linear(num_hidden, num_hidden)
        self.selfattn_layers = nn.ModuleList(Attention(num_hidden) for _ in range(layers))
        self.dotattn_layers = nn.ModuleList(Attention(num_hidden) for _ in range(layers))
        self.ffns = nn.ModuleList(FFN(num_hidden) for _ in range(layers))
        self.mel_linear = Linear(num_hidden, mels)
        self.stop_linear = Linear(num_hidden, 1, w_init="sigmoid")
        self.postconvnet = PostConvNet(mels, out_hidden)

    def forward(self, characters, mel_input, pos_text, pos_mel):
        c_mask, m_mask = pos_text.ne(0).float(), pos_mel.ne(0).float()
        mask = pos_text.eq(0).unsqueeze(1).repeat(1, characters.size(1), 1)
        x = self.pos_dropout(self.pos_emb(pos_text) * self.alpha + self.encoder_prenet(characters))
        for layer, ffn in zip(self.enc_layers, self.enc_ffns, strict=True):
            x = ffn(layer(x, x, mask=mask, query_mask=c_mask))
        memory, T = x, mel_input.size(1)
        causal = torch.ones(T, T, device=x.device, dtype=torch.bool).triu(1)
        mask = pos_mel.eq(0).unsqueeze(1).repeat(1, T, 1) | causal
        zero_mask = pos_text.eq(0).unsqueeze(1).repeat(1, T, 1)
        x = self.norm(self.decoder_prenet(mel_input))
        x = self.pos_dropout(self.pos_emb(pos_mel) * self.decoder_alpha + x)
        for selfattn, dotattn, ffn in zip(self.selfattn_layers, self.dotattn_layers, self.ffns, strict=True):
            x = selfattn(x, x, mask=mask, query_mask=m_mask)
            x = ffn(dotattn(memory, x, mask=zero_mask, query_mask=m_mask))
        mel_out = self.mel_linear(x)
        out = self.postconvnet(mel_out.transpose(1, 2)).transpose(1, 2)
        return mel_out, mel_out + out, self.stop_linear(x)


class PartialConv(nn.Module):
    """Convolution over the pixels known so far, rescaled by their count; the mask grows."""

    def __init__(self, cin, cout, kernel_size, stride=1, padding=0, bias=True):
        super().__init__()
        self.input_conv = nn.Conv2d(cin, cout, kernel_size, stride, padding, bias=bias)
        self.mask_conv = nn.Conv2d(cin, cout, kernel_size, stride, padding, bias=False)
        nn.init.kaiming_normal_(self.input_conv.weight, a=0, mode="fan_in")
        if bias:
            nn.init.constant_(self.input_conv.bias, 0.0)
        nn.init.constant_(self.mask_conv.weight, 1.0)
        for param in self.mask_conv.parameters():
            param.requires_grad = False

    def forward(self, x, mask):
        output = self.input_conv(x * mask)
        if self.input_conv.bias is not None:
            output_bias = self.input_conv.bias.view(1, -1, 1, 1).expand_as(output)
        else:
            output_bias = torch.zeros_like(output)
        with torch.no_grad():
            output_mask = self.mask_conv(mask)
        no_update_holes = output_mask == 0
        mask_sum = output_mask.masked_fill_(no_update_holes, 1.0)
        output_pre = (output - output_bias) / mask_sum + output_bias
        output = output_pre.masked_fill_(no_update_holes, 0.0)
        new_mask = torch.ones_like(output)
        return output, new_mask.masked_fill_(no_update_holes, 0.0)


class PCBActiv(nn.Module):
    """Partial convolution, batch norm, activation."""

    def __init__(self, cin, cout, bn=True, sample="none-3", activ="relu", conv_bias=False):
        super().__init__()
        k, s, p = {"down-5": (5, 2, 2), "down-7": (7, 2, 3), "down-3": (3, 2, 1)}.get(sample, (3, 1, 1))
        self.conv = PartialConv(cin, cout, k, s, p, bias=conv_bias)
        if bn:
            self.bn = nn.BatchNorm2d(cout)
        if activ == "relu":
            self.activation = nn.ReLU()
        elif activ == "leaky":
            self.activation = nn.LeakyReLU(negative_slope=0.2)

    def forward(self, x, mask):
        h, h_mask = self.conv(x, mask)
        if hasattr(self, "bn"):
            h = self.bn(h)
        if hasattr(self, "activation"):
            h = self.activation(h)
        return h, h_mask


class PConvUNet(nn.Module):
    """U-Net of partial convolutions, which paints into holes."""

    def __init__(self, layer_size=5, w=16, input_channels=3):
        super().__init__()
        self.layer_size = layer_size
        self.enc_1 = PCBActiv(input_channels, w, bn=False, sample="down-7")
        self.enc_2 = PCBActiv(w, 2 * w, sample="down-5")
        self.enc_3 = PCBActiv(2 * w, 4 * w, sample="down-5")
        self.enc_4 = PCBActiv(4 * w, 8 * w, sample="down-3")
        for i in range(4, layer_size):
            setattr(self, f"enc_{i + 1}", PCBActiv(8 * w, 8 * w, sample="down-3"))
        for i in range(4, layer_size):
            setattr(self, f"dec_{i + 1}", PCBActiv(8 * w + 8 * w, 8 * w, activ="leaky"))
        self.dec_4 = PCBActiv(8 * w + 4 * w, 4 * w, activ="leaky")
        self.dec_3 = PCBActiv(4 * w + 2 * w, 2 * w, activ="leaky")
        self.dec_2 = PCBActiv(2 * w + w, w, activ="leaky")
        self.dec_1 = PCBActiv(w + input_channels, input_channels, bn=False, activ=None, conv_bias=True)

    def forward(self, input_, input_mask):
        h_dict, h_mask_dict = {"h_0": input_}, {"h_0": input_mask}
        h_key_prev = "h_0"
        for i in range(1, self.layer_size + 1):
            l_key, h_key = f"enc_{i}", f"h_{i}"
            h_dict[h_key], h_mask_dict[h_key] = getattr(self, l_key)(h_dict[h_key_prev], h_mask_dict[h_key_prev])
            h_key_prev = h_key
        h, h_mask = h_dict[h_key_prev], h_mask_dict[h_key_prev]
        for i in range(self.layer_size, 0, -1):
            enc_h_key = f"h_{i - 1}"
            h = F.interpolate(h, scale_factor=2, mode="nearest")
            h_mask = F.interpolate(h_mask, scale_factor=2, mode="nearest")
            h = torch.cat([h, h_dict[enc_h_key]], dim=1)
            h_mask = torch.cat([h_mask, h_mask_dict[enc_h_key]], dim=1)
            h, h_mask = getattr(self, f"dec_{i}")(h, h_mask)
        return h, h_mask


def spoken_sentences():
    text_len, mel_len = torch.tensor([14, 12, 9, 14, 11, 13, 10, 8]), torch.tensor([30, 24, 20, 28, 26, 30, 18, 22])
    pos_text, pos_mel = torch.arange(1, 15)[None], torch.arange(1, 31)[None]
    pos_text, pos_mel = pos_text * (pos_text <= text_len[:, None]), pos_mel * (pos_mel <= mel_len[:, None])
    mel = torch.randn(8, 30, 40) * pos_mel.ne(0)[..., None]
    return torch.randint(1, 40, (8, 14)) * pos_text.ne(0), F.pad(mel[:, :-1], (0, 0, 1, 0)), pos_text, pos_mel


def pictures_with_holes():
    mask = torch.ones(8, 3, 64, 64)
    for b in range(8):
        y, x = torch.randint(0, 30, (2,)).tolist()
        mask[b, :, y : y + 26, x : x + 26] = 0
    image = torch.randn(8, 3, 64, 64)
    return image * mask, mask


class Siamese(nn.Module):
    """Two drawings through one network; the distance of their features says whether they are the same letter."""

    def __init__(self, w=16):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, w, 10),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(w, 2 * w, 7),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * w, 2 * w, 4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(2 * w, 4 * w, 4),
            nn.ReLU(),
        )
        self.liner = nn.Sequential(nn.Linear(4 * w * 36, 16 * w), nn.Sigmoid())
        self.out = nn.Linear(16 * w, 1)

    def forward_one(self, x):
        x = self.conv(x)
        x = x.view(x.size()[0], -1)
        return self.liner(x)

    def forward(self, x1, x2):
        out1, out2 = self.forward_one(x1), self.forward_one(x2)
        return self.out(torch.abs(out1 - out2))


class STAMP(nn.Module):
    """Short-term attention with memory: the last click and the session's mean."""

    def __init__(self, n_items=200, dim=64):
        super().__init__()
        self.item_embedding = nn.Embedding(n_items, dim, padding_idx=0)
        self.w1, self.w2, self.w3 = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.w0 = nn.Linear(dim, 1, bias=False)
        self.b_a = nn.Parameter(torch.zeros(dim), requires_grad=True)
        self.mlp_a, self.mlp_b = nn.Linear(dim, dim, bias=True), nn.Linear(dim, dim, bias=True)
        self.sigmoid, self.tanh = nn.Sigmoid(), nn.Tanh()
        self.apply(self._init_weights)

    @staticmethod
    def _init_weights(module):
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight.data, 0.0, 0.002)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight.data, 0.0, 0.05)
            if module.bias is not None:
                nn.init.constant_(module.bias.data, 0)

    def count_alpha(self, context, aspect, output):
        timesteps = context.size(1)
        aspect_3dim = aspect.repeat(1, timesteps).view(-1, timesteps, aspect.size(1))
        output_3dim = output.repeat(1, timesteps).view(-1, timesteps, output.size(1))
        res_sum = self.w1(context) + self.w2(aspect_3dim) + self.w3(output_3dim) + self.b_a
        return self.w0(self.sigmoid(res_sum)).view(-1, timesteps)

    def forward(self, item_seq, item_seq_len):
        item_seq_emb = self.item_embedding(item_seq)
        index = (item_seq_len - 1).view(-1, 1, 1).expand(-1, -1, item_seq_emb.shape[-1])
        last_inputs = item_seq_emb.gather(dim=1, index=index).squeeze(1)
        ms = torch.div(torch.sum(item_seq_emb, dim=1), item_seq_len.unsqueeze(1).float())
        alpha = self.count_alpha(item_seq_emb, last_inputs, ms)
        ma = torch.matmul(alpha.unsqueeze(1), item_seq_emb).squeeze(1) + ms
        seq_output = self.tanh(self.mlp_a(ma)) * self.tanh(self.mlp_b(last_inputs))
        return torch.matmul(seq_output, self.item_embedding.weight.transpose(0, 1))


def clicks():
    length = torch.randint(3, 15, (16,))
    return torch.randint(1, 200, (16, 14)) * (torch.arange(14)[None] < length[:, None]), length


NETS = {
    "Transformer TTS": (TransformerTTS, spoken_sentences),
    "Partial convolution inpainting": (PConvUNet, pictures_with_holes),
    "Siamese network one-shot": (Siamese, lambda: (torch.rand(8, 1, 105, 105), torch.rand(8, 1, 105, 105))),
    "STAMP": (STAMP, clicks),
}
