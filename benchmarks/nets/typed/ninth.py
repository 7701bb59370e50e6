"""Networks typed by hand as their repositories have them: pix2pix, TabM, ELECTRA and ResNeXt."""

import functools
import math

import torch
import torch.nn.functional as F
from torch import nn


class UnetSkipConnectionBlock(nn.Module):
    """X -- identity -- |-- downsampling -- |submodule| -- upsampling --|."""

    def __init__(self, outer_nc, inner_nc, input_nc=None, submodule=None, outermost=False, innermost=False, drop=False):
        super().__init__()
        self.outermost = outermost
        input_nc = outer_nc if input_nc is None else input_nc
        downconv = nn.Conv2d(input_nc, inner_nc, kernel_size=4, stride=2, padding=1, bias=False)
        downrelu, downnorm = nn.LeakyReLU(0.2, True), nn.BatchNorm2d(inner_nc)
        uprelu, upnorm = nn.ReLU(True), nn.BatchNorm2d(outer_nc)
        if outermost:
            upconv = nn.ConvTranspose2d(inner_nc * 2, outer_nc, kernel_size=4, stride=2, padding=1)
            model = [downconv, submodule, uprelu, upconv, nn.Tanh()]
        elif innermost:
            upconv = nn.ConvTranspose2d(inner_nc, outer_nc, kernel_size=4, stride=2, padding=1, bias=False)
            model = [downrelu, downconv, uprelu, upconv, upnorm]
        else:
            upconv = nn.ConvTranspose2d(inner_nc * 2, outer_nc, kernel_size=4, stride=2, padding=1, bias=False)
            model = [downrelu, downconv, downnorm, submodule, uprelu, upconv, upnorm]
            if drop:
                model.append(nn.Dropout(0.5))
        self.model = nn.Sequential(*model)

    def forward(self, x):
        if self.outermost:
            return self.model(x)
        return torch.cat([x, self.model(x)], 1)


class UnetGenerator(nn.Module):
    """The U-Net, built from the innermost block outwards."""

    def __init__(self, input_nc=3, output_nc=3, num_downs=6, ngf=16):
        super().__init__()
        block = UnetSkipConnectionBlock(ngf * 8, ngf * 8, innermost=True)
        for _ in range(num_downs - 5):
            block = UnetSkipConnectionBlock(ngf * 8, ngf * 8, submodule=block, drop=True)
        block = UnetSkipConnectionBlock(ngf * 4, ngf * 8, submodule=block)
        block = UnetSkipConnectionBlock(ngf * 2, ngf * 4, submodule=block)
        block = UnetSkipConnectionBlock(ngf, ngf * 2, submodule=block)
        self.model = UnetSkipConnectionBlock(output_nc, ngf, input_nc=input_nc, submodule=block, outermost=True)

    def forward(self, x):
        return self.model(x)


class NLayerDiscriminator(nn.Module):
    """PatchGAN: a score of each patch."""

    def __init__(self, input_nc=6, ndf=16, n_layers=3):
        super().__init__()
        sequence = [nn.Conv2d(input_nc, ndf, 4, stride=2, padding=1), nn.LeakyReLU(0.2, True)]
        mult = 1
        for n in range(1, n_layers + 1):
            prev, mult = mult, min(2**n, 8)
            stride = 2 if n < n_layers else 1
            sequence += [
                nn.Conv2d(ndf * prev, ndf * mult, 4, stride=stride, padding=1, bias=False),
                nn.BatchNorm2d(ndf * mult),
                nn.LeakyReLU(0.2, True),
            ]
        sequence += [nn.Conv2d(ndf * mult, 1, 4, stride=1, padding=1)]
        self.model = nn.Sequential(*sequence)

    def forward(self, x):
        return self.model(x)


def init_weights(net, init_gain=0.02):
    def init_func(m):
        classname = m.__class__.__name__
        if hasattr(m, "weight") and (classname.find("Conv") != -1 or classname.find("Linear") != -1):
            nn.init.normal_(m.weight.data, 0.0, init_gain)
            if hasattr(m, "bias") and m.bias is not None:
                nn.init.constant_(m.bias.data, 0.0)
        elif classname.find("BatchNorm2d") != -1:
            nn.init.normal_(m.weight.data, 1.0, init_gain)
            nn.init.constant_(m.bias.data, 0.0)

    net.apply(init_func)


class Pix2Pix(nn.Module):
    """Conditional translation of images, with its discriminator."""

    def __init__(self):
        super().__init__()
        self.netG, self.netD = UnetGenerator(), NLayerDiscriminator()
        init_weights(self.netG)
        init_weights(self.netD)

    def forward(self, real_a):
        fake_b = self.netG(real_a)
        return fake_b, self.netD(torch.cat((real_a, fake_b), 1))


def init_rsqrt_uniform_(x, d):
    d_rsqrt = d**-0.5
    return nn.init.uniform_(x, -d_rsqrt, d_rsqrt)


class LinearEmbeddings(nn.Module):
    """A line of its own for each feature."""

    def __init__(self, n_features, d):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(n_features, d)), nn.Parameter(torch.empty(n_features, d))
        init_rsqrt_uniform_(self.weight, d)
        init_rsqrt_uniform_(self.bias, d)

    def forward(self, x):
        return torch.addcmul(self.bias, self.weight, x[..., None])


class PiecewiseLinearEmbeddings(nn.Module):
    """Version B: linear embeddings, plus piecewise linear encoding through weights that start at zero."""

    def __init__(self, bins, d):
        super().__init__()
        n_features, n_bins = len(bins), len(bins[0]) - 1
        self.linear0 = LinearEmbeddings(n_features, d)
        edges = torch.stack(list(bins))
        width = edges.diff(dim=1)
        self.register_buffer("ple_weight", 1.0 / width)
        self.register_buffer("ple_bias", -edges[:, :-1] / width)
        self.weight = nn.Parameter(torch.zeros(n_features, n_bins, d))

    def forward(self, x):
        x_linear = self.linear0(x)
        x = torch.addcmul(self.ple_bias, self.ple_weight, x[..., None])
        x = torch.cat([x[..., :1].clamp_max(1.0), x[..., 1:-1].clamp(0.0, 1.0), x[..., -1:].clamp_min(0.0)], dim=-1)
        x = (x.transpose(0, 1) @ self.weight).transpose(0, 1)
        return x_linear + x


class LinearBatchEnsemble(nn.Module):
    """One weight for k members, each with its own scales of inputs and outputs and its own bias."""

    def __init__(self, in_features, out_features, k, scaling_init=("ones", "ones"), sections=None):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.r, self.s = nn.Parameter(torch.empty(k, in_features)), nn.Parameter(torch.empty(k, out_features))
        self.bias = nn.Parameter(torch.empty(k, out_features))
        init_rsqrt_uniform_(self.weight, in_features)
        for p, init in zip((self.r, self.s), scaling_init, strict=True):
            if init == "ones":
                nn.init.ones_(p)
            else:
                with torch.no_grad():
                    p.copy_(torch.repeat_interleave(torch.randn(k, len(sections)), torch.tensor(sections), dim=1))
        bias_init = init_rsqrt_uniform_(torch.empty(out_features), in_features)
        with torch.no_grad():
            self.bias.copy_(bias_init.expand_as(self.bias))

    def forward(self, x):
        x = x * self.r
        x = x @ self.weight.T
        x = x * self.s
        return x + self.bias


class NLinear(nn.Module):
    """k separate linear heads."""

    def __init__(self, n, in_features, out_features):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, in_features, out_features))
        self.bias = nn.Parameter(torch.empty(n, out_features))
        init_rsqrt_uniform_(self.weight, in_features)
        init_rsqrt_uniform_(self.bias, in_features)

    def forward(self, x):
        return (x.transpose(0, 1) @ self.weight).transpose(0, 1) + self.bias


class TabM(nn.Module):
    """k perceptrons in one, for tables of numbers and categories."""

    def __init__(self, n_num=8, cats=(3, 5), n_classes=4, d_embedding=16, d_block=96, n_blocks=3, k=16, n_bins=12):
        super().__init__()
        self.k, self.cats = k, cats
        edges = math.sqrt(2) * torch.erfinv(torch.linspace(-0.995, 0.995, n_bins + 1))
        self.num_module = PiecewiseLinearEmbeddings([edges] * n_num, d_embedding)
        sections = [d_embedding] * n_num + list(cats)
        d_in = sum(sections)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                LinearBatchEnsemble(d_in, d_block, k, ("normal", "ones"), sections)
                if i == 0
                else LinearBatchEnsemble(d_block, d_block, k),
                nn.ReLU(),
                nn.Dropout(0.1),
            )
            for i in range(n_blocks)
        )
        self.output = NLinear(k, d_block, n_classes)

    def forward(self, x_num, x_cat):
        x = [self.num_module(x_num).flatten(1)]
        x += [F.one_hot(x_cat[:, i], c).to(x_num.dtype) for i, c in enumerate(self.cats)]
        x = torch.cat(x, dim=1)[:, None].expand(-1, self.k, -1)
        for block in self.blocks:
            x = block(x)
        return self.output(x)


class BertLayer(nn.Module):
    """Post-norm layer of self-attention and a perceptron."""

    def __init__(self, d, heads, ff):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)
        self.attn_out, self.attn_norm = nn.Linear(d, d), nn.LayerNorm(d, eps=1e-12)
        self.intermediate, self.output = nn.Linear(d, ff), nn.Linear(ff, d)
        self.out_norm = nn.LayerNorm(d, eps=1e-12)
        self.attn_drop, self.dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x, mask):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        context = self.attn_drop(scores.softmax(dim=-1)) @ v
        x = self.attn_norm(self.dropout(self.attn_out(context.transpose(1, 2).flatten(2))) + x)
        return self.out_norm(self.dropout(self.output(F.gelu(self.intermediate(x)))) + x)


class ElectraEmbeddings(nn.Module):
    """Words, positions and segments."""

    def __init__(self, vocab, embed, positions=64):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, embed, padding_idx=0)
        self.position_embeddings, self.token_type_embeddings = nn.Embedding(positions, embed), nn.Embedding(2, embed)
        self.norm, self.dropout = nn.LayerNorm(embed, eps=1e-12), nn.Dropout(0.1)

    def forward(self, ids):
        pos = torch.arange(ids.shape[1], device=ids.device)
        x = self.word_embeddings(ids) + self.position_embeddings(pos)
        return self.dropout(self.norm(x + self.token_type_embeddings(torch.zeros_like(ids))))


class ElectraModel(nn.Module):
    """Encoder, with a projection where the embeddings' width differs from its own."""

    def __init__(self, embeddings, embed, d, heads, layers):
        super().__init__()
        self.embeddings = embeddings
        if embed != d:
            self.embeddings_project = nn.Linear(embed, d)
        self.encoder = nn.ModuleList(BertLayer(d, heads, 4 * d) for _ in range(layers))

    def forward(self, ids):
        mask = (1.0 - ids.ne(0)[:, None, None].float()) * -10000.0
        x = self.embeddings(ids)
        if hasattr(self, "embeddings_project"):
            x = self.embeddings_project(x)
        for layer in self.encoder:
            x = layer(x, mask)
        return x


class Electra(nn.Module):
    """A small generator fills the masks; the discriminator tells which tokens were replaced."""

    def __init__(self, vocab=200, embed=48, d=96, layers=3, mask_id=3):
        super().__init__()
        self.mask_id, embeddings = mask_id, ElectraEmbeddings(vocab, embed)
        self.generator = ElectraModel(embeddings, embed, d // 3, 2, layers)
        self.generator_predictions = nn.Sequential(nn.Linear(d // 3, embed), nn.GELU(), nn.LayerNorm(embed, eps=1e-12))
        self.generator_lm_head = nn.Linear(embed, vocab)
        self.discriminator = ElectraModel(embeddings, embed, d, 4, layers)
        self.discriminator_predictions = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, 1))
        self.apply(self._init_weights)
        self.generator_lm_head.weight = embeddings.word_embeddings.weight

    @staticmethod
    def _init_weights(m):
        if isinstance(m, nn.Linear):
            m.weight.data.normal_(mean=0.0, std=0.02)
            m.bias.data.zero_()
        elif isinstance(m, nn.Embedding):
            m.weight.data.normal_(mean=0.0, std=0.02)
            if m.padding_idx is not None:
                m.weight.data[m.padding_idx].zero_()

    def forward(self, ids, masked):
        hidden = self.generator(ids.masked_fill(masked, self.mask_id))
        logits = self.generator_lm_head(self.generator_predictions(hidden))[masked]
        with torch.no_grad():
            gumbel = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-9, 1 - 1e-6)))
            corrupted = ids.clone()
            corrupted[masked] = (logits + gumbel).argmax(dim=-1)
        return logits, self.discriminator_predictions(self.discriminator(corrupted)).squeeze(-1)


class ResNeXtBottleneck(nn.Module):
    """Residual bottleneck with a grouped convolution (type C)."""

    def __init__(self, cin, cout, stride, cardinality, base_width, widen_factor, root):
        super().__init__()
        D = cardinality * int(base_width * cout / (widen_factor * root))
        self.conv_reduce = nn.Conv2d(cin, D, kernel_size=1, bias=False)
        self.bn_reduce = nn.BatchNorm2d(D)
        self.conv_conv = nn.Conv2d(D, D, kernel_size=3, stride=stride, padding=1, groups=cardinality, bias=False)
        self.bn = nn.BatchNorm2d(D)
        self.conv_expand = nn.Conv2d(D, cout, kernel_size=1, bias=False)
        self.bn_expand = nn.BatchNorm2d(cout)
        self.shortcut = nn.Sequential()
        if cin != cout:
            self.shortcut.add_module("shortcut_conv", nn.Conv2d(cin, cout, 1, stride=stride, bias=False))
            self.shortcut.add_module("shortcut_bn", nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.bn_reduce(self.conv_reduce(x)), inplace=True)
        y = F.relu(self.bn(self.conv_conv(y)), inplace=True)
        y = self.bn_expand(self.conv_expand(y))
        return F.relu(self.shortcut(x) + y, inplace=True)


class CifarResNeXt(nn.Module):
    """ResNeXt-29 for small pictures."""

    def __init__(self, cardinality=4, depth=29, nlabels=10, base_width=8, widen_factor=4, root=16):
        super().__init__()
        block_depth = (depth - 2) // 9
        stages = [root, root * widen_factor, 2 * root * widen_factor, 4 * root * widen_factor]
        make = functools.partial(
            ResNeXtBottleneck, cardinality=cardinality, base_width=base_width, widen_factor=widen_factor, root=root
        )
        self.conv_1_3x3, self.bn_1 = nn.Conv2d(3, root, 3, 1, 1, bias=False), nn.BatchNorm2d(root)
        for s in range(3):
            blocks = [make(stages[s], stages[s + 1], 1 if s == 0 else 2)]
            blocks += [make(stages[s + 1], stages[s + 1], 1) for _ in range(block_depth - 1)]
            self.add_module(f"stage_{s + 1}", nn.Sequential(*blocks))
        self.classifier = nn.Linear(stages[3], nlabels)
        nn.init.kaiming_normal_(self.classifier.weight)
        for key, value in self.state_dict().items():
            if key.split(".")[-1] == "weight":
                if "conv" in key:
                    nn.init.kaiming_normal_(value, mode="fan_out")
                if "bn" in key:
                    value[...] = 1
            elif key.split(".")[-1] == "bias":
                value[...] = 0

    def forward(self, x):
        x = F.relu(self.bn_1(self.conv_1_3x3(x)), inplace=True)
        x = self.stage_3(self.stage_2(self.stage_1(x)))
        return self.classifier(F.avg_pool2d(x, 8, 1).flatten(1))


def corrupted_sentences():
    ids = torch.randint(4, 200, (8, 24))
    lengths = torch.tensor([24, 20, 22, 24, 17, 19, 24, 21])
    ids = ids * (torch.arange(24)[None] < lengths[:, None])
    masked = (torch.rand(8, 24) < 0.15) & ids.ne(0)
    masked[:, 3] = True
    return ids, masked


NETS = {
    "pix2pix": (Pix2Pix, lambda: (torch.rand(4, 3, 64, 64) * 2 - 1,)),
    "TabM": (
        TabM,
        lambda: (torch.randn(16, 8), torch.stack([torch.randint(3, (16,)), torch.randint(5, (16,))], dim=1)),
    ),
    "ELECTRA": (Electra, corrupted_sentences),
    "ResNeXt": (CifarResNeXt, lambda: (torch.randn(8, 3, 32, 32),)),
}
