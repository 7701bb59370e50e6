"""Networks typed by hand as their repositories have them: DPT, BEiT."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def drop_path(x, drop_prob=0.0, training=False):
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    shape = (x.shape[0],) + (1,) * (x.ndim - 1)
    random_tensor = keep_prob + torch.rand(shape, dtype=x.dtype, device=x.device)
    random_tensor.floor_()
    return x.div(keep_prob) * random_tensor


class Mlp(nn.Module):
    """Two layers with GELU between."""

    def __init__(self, in_features, hidden_features):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(in_features, hidden_features), nn.Linear(hidden_features, in_features)
        self.act = nn.GELU()

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Attention(nn.Module):
    """Self-attention of BEiT: biases for queries and values only, and a bias by relative position if it's given."""

    def __init__(self, dim, num_heads=4, qkv_bias=True, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.v_bias = nn.Parameter(torch.zeros(dim)) if qkv_bias else None
        self.attn_drop, self.proj_drop = nn.Dropout(attn_drop), nn.Dropout(proj_drop)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, rel_pos_bias=None):
        B, N, _ = x.shape
        qkv_bias = None
        if self.q_bias is not None:
            qkv_bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias, requires_grad=False), self.v_bias))
        qkv = F.linear(input=x, weight=self.qkv.weight, bias=qkv_bias)
        qkv = qkv.reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q * self.scale
        attn = q @ k.transpose(-2, -1)
        if rel_pos_bias is not None:
            attn = attn + rel_pos_bias
        attn = self.attn_drop(attn.softmax(dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(B, N, -1)
        return self.proj_drop(self.proj(x))


class Block(nn.Module):
    """Pre-norm layer with scales of the branches and stochastic depth."""

    def __init__(self, dim, num_heads, mlp_ratio=4.0, drop_path_rate=0.0, init_values=None):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, num_heads)
        self.mlp = Mlp(dim, int(dim * mlp_ratio))
        self.drop_path_rate = drop_path_rate
        self.gamma_1 = self.gamma_2 = None
        if init_values is not None:
            self.gamma_1 = nn.Parameter(init_values * torch.ones(dim), requires_grad=True)
            self.gamma_2 = nn.Parameter(init_values * torch.ones(dim), requires_grad=True)

    def forward(self, x, rel_pos_bias=None):
        a = self.attn(self.norm1(x), rel_pos_bias=rel_pos_bias)
        a = a if self.gamma_1 is None else self.gamma_1 * a
        x = x + drop_path(a, self.drop_path_rate, self.training)
        m = self.mlp(self.norm2(x))
        m = m if self.gamma_2 is None else self.gamma_2 * m
        return x + drop_path(m, self.drop_path_rate, self.training)


class RelativePositionBias(nn.Module):
    """Table of biases by the patches' offsets, with three entries for the class token."""

    def __init__(self, window_size, num_heads):
        super().__init__()
        self.window_size = window_size
        wh, ww = window_size
        self.num_relative_distance = (2 * wh - 1) * (2 * ww - 1) + 3
        self.relative_position_bias_table = nn.Parameter(torch.zeros(self.num_relative_distance, num_heads))
        coords = torch.stack(torch.meshgrid([torch.arange(wh), torch.arange(ww)], indexing="ij")).flatten(1)
        relative_coords = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        relative_coords[:, :, 0] += wh - 1
        relative_coords[:, :, 1] += ww - 1
        relative_coords[:, :, 0] *= 2 * ww - 1
        index = torch.zeros((wh * ww + 1,) * 2, dtype=relative_coords.dtype)
        index[1:, 1:] = relative_coords.sum(-1)
        index[0, 0:] = self.num_relative_distance - 3
        index[0:, 0] = self.num_relative_distance - 2
        index[0, 0] = self.num_relative_distance - 1
        self.register_buffer("relative_position_index", index)

    def forward(self):
        n = self.window_size[0] * self.window_size[1] + 1
        bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(n, n, -1)
        return bias.permute(2, 0, 1).contiguous()


class BEiT(nn.Module):
    """Masked image modelling: the visual words of the masked patches."""

    def __init__(self, img=64, patch=8, vocab_size=1024, dim=64, depth=6, heads=4, init_values=0.1, drop_path_rate=0.1):
        super().__init__()
        self.init_std, side = 0.02, img // patch
        self.patch_embed = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_drop = nn.Dropout(p=0.0)
        self.rel_pos_bias = RelativePositionBias((side, side), heads)
        dpr = [x.item() for x in torch.linspace(0, drop_path_rate, depth)]
        self.blocks = nn.ModuleList(
            [Block(dim, heads, drop_path_rate=dpr[i], init_values=init_values) for i in range(depth)]
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.lm_head = nn.Linear(dim, vocab_size)
        nn.init.trunc_normal_(self.cls_token, std=self.init_std, a=-self.init_std, b=self.init_std)
        nn.init.trunc_normal_(self.mask_token, std=self.init_std, a=-self.init_std, b=self.init_std)
        self.apply(self._init_weights)
        self.fix_init_weight()

    def fix_init_weight(self):
        for layer_id, layer in enumerate(self.blocks):
            layer.attn.proj.weight.data.div_(math.sqrt(2.0 * (layer_id + 1)))
            layer.mlp.fc2.weight.data.div_(math.sqrt(2.0 * (layer_id + 1)))

    def _init_weights(self, m):
        if isinstance(m, (nn.Linear, nn.Conv2d)):
            nn.init.trunc_normal_(m.weight, std=self.init_std, a=-self.init_std, b=self.init_std)
            if m.bias is not None:
                nn.init.constant_(m.bias, 0)
        elif isinstance(m, nn.LayerNorm):
            nn.init.constant_(m.bias, 0)
            nn.init.constant_(m.weight, 1.0)

    def forward_features(self, x, bool_masked_pos):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        batch_size, seq_len, _ = x.size()
        cls_tokens = self.cls_token.expand(batch_size, -1, -1)
        mask_token = self.mask_token.expand(batch_size, seq_len, -1)
        w = bool_masked_pos.unsqueeze(-1).type_as(mask_token)
        x = x * (1 - w) + mask_token * w
        x = self.pos_drop(torch.cat((cls_tokens, x), dim=1))
        rel_pos_bias = self.rel_pos_bias()
        for blk in self.blocks:
            x = blk(x, rel_pos_bias=rel_pos_bias)
        return self.norm(x)

    def forward(self, x, bool_masked_pos, return_all_tokens=False):
        x = self.forward_features(x, bool_masked_pos)[:, 1:]
        if return_all_tokens:
            return self.lm_head(x)
        return self.lm_head(x[bool_masked_pos])


class ProjectReadout(nn.Module):
    """The class token beside every patch, projected back."""

    def __init__(self, in_features, start_index=1):
        super().__init__()
        self.start_index = start_index
        self.project = nn.Sequential(nn.Linear(2 * in_features, in_features), nn.GELU())

    def forward(self, x):
        readout = x[:, 0].unsqueeze(1).expand_as(x[:, self.start_index :])
        features = torch.cat((x[:, self.start_index :], readout), -1)
        return self.project(features)


class Transpose(nn.Module):
    """Swaps two axes."""

    def __init__(self, dim0, dim1):
        super().__init__()
        self.dim0, self.dim1 = dim0, dim1

    def forward(self, x):
        return x.transpose(self.dim0, self.dim1)


class Interpolate(nn.Module):
    """Resizes by a factor."""

    def __init__(self, scale_factor, mode, align_corners=False):
        super().__init__()
        self.scale_factor, self.mode, self.align_corners = scale_factor, mode, align_corners

    def forward(self, x):
        return F.interpolate(x, scale_factor=self.scale_factor, mode=self.mode, align_corners=self.align_corners)


class ResidualConvUnit(nn.Module):
    """Two convolutions after activations, added to the input."""

    def __init__(self, features, bn=True):
        super().__init__()
        self.bn = bn
        self.conv1 = nn.Conv2d(features, features, kernel_size=3, stride=1, padding=1, bias=not bn)
        self.conv2 = nn.Conv2d(features, features, kernel_size=3, stride=1, padding=1, bias=not bn)
        if bn:
            self.bn1, self.bn2 = nn.BatchNorm2d(features), nn.BatchNorm2d(features)
        self.activation = nn.ReLU(False)

    def forward(self, x):
        out = self.conv1(self.activation(x))
        out = self.bn1(out) if self.bn else out
        out = self.conv2(self.activation(out))
        out = self.bn2(out) if self.bn else out
        return out + x


class FeatureFusionBlock(nn.Module):
    """The coarser features with the finer ones added, at twice the size."""

    def __init__(self, features, bn=True, skip=True):
        super().__init__()
        self.resConfUnit1 = ResidualConvUnit(features, bn) if skip else None
        self.resConfUnit2 = ResidualConvUnit(features, bn)
        self.out_conv = nn.Conv2d(features, features, kernel_size=1, stride=1, padding=0, bias=True)

    def forward(self, *xs):
        output = xs[0]
        if len(xs) == 2:
            output = output + self.resConfUnit1(xs[1])
        output = self.resConfUnit2(output)
        output = F.interpolate(output, scale_factor=2, mode="bilinear", align_corners=True)
        return self.out_conv(output)


class DPT(nn.Module):
    """Dense prediction transformer for depth: four depths of a ViT, reassembled at four sizes and fused."""

    def __init__(self, img=64, patch=16, dim=64, depth=8, heads=4, hooks=(1, 3, 5, 7), features=32, non_negative=True):
        super().__init__()
        self.patch, self.hooks = patch, hooks
        grid, widths = img // patch, (16, 32, 48, 64)
        self.patch_embed = nn.Conv2d(3, dim, kernel_size=patch, stride=patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, grid**2 + 1, dim))
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.trunc_normal_(m.weight, std=0.02)
                if m.bias is not None:
                    nn.init.zeros_(m.bias)
        self.readout = nn.ModuleList([nn.Sequential(ProjectReadout(dim), Transpose(1, 2)) for _ in widths])
        self.act_postprocess = nn.ModuleList([nn.Sequential(nn.Conv2d(dim, w, 1)) for w in widths])
        self.act_postprocess[0].append(nn.ConvTranspose2d(widths[0], widths[0], kernel_size=4, stride=4))
        self.act_postprocess[1].append(nn.ConvTranspose2d(widths[1], widths[1], kernel_size=2, stride=2))
        self.act_postprocess[3].append(nn.Conv2d(widths[3], widths[3], kernel_size=3, stride=2, padding=1))
        self.layer_rn = nn.ModuleList([nn.Conv2d(w, features, 3, padding=1, bias=False) for w in widths])
        self.refinenet = nn.ModuleList([FeatureFusionBlock(features, skip=i < 3) for i in range(4)])
        self.output_conv = nn.Sequential(
            nn.Conv2d(features, features // 2, kernel_size=3, stride=1, padding=1),
            Interpolate(scale_factor=2, mode="bilinear", align_corners=True),
            nn.Conv2d(features // 2, 32, kernel_size=3, stride=1, padding=1),
            nn.ReLU(True),
            nn.Conv2d(32, 1, kernel_size=1, stride=1, padding=0),
            nn.ReLU(True) if non_negative else nn.Identity(),
        )

    def resize_pos_embed(self, gs_h, gs_w):
        tok, grid = self.pos_embed[:, :1], self.pos_embed[0, 1:]
        gs_old = int(math.sqrt(len(grid)))
        grid = grid.reshape(1, gs_old, gs_old, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, size=(gs_h, gs_w), mode="bilinear")
        return torch.cat([tok, grid.permute(0, 2, 3, 1).reshape(1, gs_h * gs_w, -1)], dim=1)

    def forward(self, x):
        b, _, h, w = x.shape
        gh, gw = h // self.patch, w // self.patch
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(b, -1, -1), x), dim=1) + self.resize_pos_embed(gh, gw)
        taken = []
        for i, blk in enumerate(self.blocks):
            x = blk(x)
            if i in self.hooks:
                taken.append(x)
        layers = [r(t).unflatten(2, (gh, gw)) for r, t in zip(self.readout, taken, strict=True)]
        layers = [rn(post(f)) for rn, post, f in zip(self.layer_rn, self.act_postprocess, layers, strict=True)]
        path = self.refinenet[3](layers[3])
        for i in (2, 1, 0):
            path = self.refinenet[i](path, layers[i])
        return self.output_conv(path).squeeze(dim=1)


def blockwise_masks(batch=8, side=8, ratio=0.4):
    """Rectangles of patches until two fifths are masked, as BEiT's generator draws them."""
    masks = torch.zeros(batch, side, side, dtype=torch.bool)
    for mask in masks:
        while mask.sum() < ratio * side * side:
            h, w = torch.randint(2, 5, (2,)).tolist()
            top, left = (int(torch.randint(side - n + 1, ())) for n in (h, w))
            mask[top : top + h, left : left + w] = True
    return masks.flatten(1)


NETS = {
    "DPT": (DPT, lambda: (torch.randn(4, 3, 96, 96),)),
    "BEiT": (BEiT, lambda: (torch.randn(8, 3, 64, 64), blockwise_masks())),
}
