"""The residual streams of models of timm, read by hand from the models' source."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from tests.structure.streams_notation import Case, stream
from torch import nn

from wellposed import zoo


def made(name: str, **options: Any) -> nn.Module:
    return zoo.import_library("timm").create_model(name, num_classes=5, **options)


def made_of(path: str, **options: Any) -> nn.Module:
    """For models whose functions fix the depth: what such a function makes, given as ``module:Class``."""
    zoo.import_library("timm")
    options = {key: by_path(value) for key, value in options.items()}
    return by_path(f"timm.models.{path}")(num_classes=5, **options)


def by_path(value: Any) -> Any:
    """What ``"module:name"`` stands for."""
    if not isinstance(value, str) or ":" not in value:
        return value
    module, _, name = value.partition(":")
    return getattr(importlib.import_module(module), name)


def image(size: int) -> dict[str, torch.Tensor]:
    return {"": torch.rand(2, 3, size, size)}


def repvgg() -> nn.Module:
    timm = zoo.import_library("timm")
    block = partial(timm.models.byobnet.ByoBlockCfg, "rep", d=2, s=2, gs=0, br=1.0)
    return made("repvgg_a0", blocks=(block(c=8), block(c=16)), stem_chs=8, num_features=16)


def vgg() -> nn.Module:
    with torch.device("meta"):  # its readout has 10⁸ parameters
        return made("vgg11_bn")


def levit() -> nn.Module:
    # Its usual readout is the mean of two, which is another question.
    return zoo.import_library("timm").models.levit.create_levit("levit_128s", distilled=False, img_size=64)


def model(
    name: str,
    options: dict[str, Any],
    *streams: str,
    size: int = 32,
    of: str = "",
    build: Callable[[], nn.Module] | None = None,
) -> Case:
    """A row of the table; what stands behind a comma in its name tells cases of one kind apart.

    The options are those of timm's function of that name, or of the class ``of``, as ``module:Class``.
    """
    usual = partial(made_of, of, **options) if of else partial(made, name.partition(",")[0], **options)
    return Case(f"timm:{name}", build or usual, partial(image, size), tuple(map(stream, streams)))


STAGES = {"layers": (2, 1, 1, 1), "channels": (8, 8, 16, 16)}
BLOCKS = "blocks.{0,1}"
RES = "layer1.{0,1} layer{2,3,4}.0"
PRE = "stages.0.blocks.{0,1} stages.{1,2,3}.blocks.0"
FLAT = "stages.0.{0,1} stages.{1,2,3}.0"
DARK = "stages.{0,1,2,3,4}.blocks.0"
WINDOWED = "layers.{0,1}.blocks.{0,1}"
PATCHES = {"img_size": 32, "embed_dim": 16, "depth": 2, "num_heads": 2}
WINDOWS = {"img_size": 32, "window_size": 4, "depths": (2, 2), "embed_dim": 16, "num_heads": (1, 2)}
NARROW = {"depths": (2, 1, 1, 1), "dims": (8, 8, 16, 16)}
MIXER = {"img_size": 64, "num_blocks": 2, "embed_dim": 16}
MAXXVIT = {"img_size": 64, "depths": (1, 1, 1, 1), "embed_dim": (32, 32, 64, 64), "stem_width": (16, 16)}
VIT = "attn.proj.{weight,bias} @ drop_path1; mlp.fc2.{weight,bias} @ drop_path2"
POST_NORM = "norm1.{weight,bias} @ drop_path1; norm2.{weight,bias} @ drop_path2"
LEVIT = "attn.proj.ln.bn.{weight,bias} @ drop_path1; mlp.ln2.bn.{weight,bias} @ drop_path2"

TIMM = (
    # A shortcut with a projection is trunk, and the path beside it the branch, as where the shortcut has none.
    model("resnet18", STAGES, f"{RES}: bn2.{{weight,bias}}"),
    model("resnet50", STAGES, f"{RES}: bn3.{{weight,bias}}"),
    model("resnext50_32x4d", STAGES | {"cardinality": 2, "base_width": 64}, f"{RES}: bn3.{{weight,bias}}"),
    model("wide_resnet50_2", STAGES, f"{RES}: bn3.{{weight,bias}}"),
    # x · sigmoid(g(x)) with x the norm's output: the gate depends on what the gain multiplies.
    model(
        "seresnet18",
        STAGES,
        RES + r": nothing (gate|sigmoid|product|non-?linear|activation|se\.) @ se"
        " not bn2.{weight,bias} not se.fc2.{weight,bias}",
    ),
    model("resnetv2_18", STAGES | {"stem_chs": 8}, f"{PRE}: conv2.weight @ drop_path"),
    model("resnetv2_50", STAGES | {"stem_chs": 8}, f"{PRE}: conv3.weight @ drop_path"),
    # Standardised weights, without gain or bias.
    model(
        "resnetv2_50x1_bit",
        {"layers": (2, 1, 1, 1), "channels": (128, 128, 128, 128)}
        | {"stem_type": "fixed", "conv_layer": "timm.layers:StdConv2d"},
        f"{PRE}: nothing (norm|standard|gain) @ drop_path not conv3.weight",
        of="resnetv2:ResNetV2",
    ),
    *(
        model(name, {}, "s{1,2}.b1 s3.b{1,2,3,4} s4.b{1,2,3,4,5,6,7}: conv3.bn.{weight,bias} @ drop_path")
        for name in ("regnetx_002", "regnety_002")
    ),
    # Standardised weights too, but with a gain behind.
    model(
        "nf_resnet26",
        {"depths": (2, 1, 1, 1), "channels": (32, 32, 32, 32)},
        f"{FLAT}: conv3.{{gain,bias}} @ drop_path",
    ),
    model(
        "dm_nfnet_f0",
        {"depths": (2, 1, 1, 1), "channels": (256, 256, 256, 256)},
        f"{FLAT}: skipinit_gain @ drop_path",
    ),
    model("vit_tiny_patch16_224", PATCHES, f"{BLOCKS}: {VIT}"),
    model("deit3_small_patch16_224", PATCHES, f"{BLOCKS}: ls1.gamma @ drop_path1; ls2.gamma @ drop_path2"),
    model("beit_base_patch16_224", PATCHES, f"{BLOCKS}: gamma_1 @ attn; gamma_2 @ mlp"),
    model("beit_base_patch16_224, no layer scale", PATCHES | {"init_values": 0.0}, f"{BLOCKS}: {VIT}"),
    model("vit_base_patch16_rpn_224", PATCHES, f"{BLOCKS}: {POST_NORM}"),
    model(
        "vit_base_patch16_rpn_224, norms without gains",
        PATCHES
        | {"class_token": False, "global_pool": "avg", "block_fn": "timm.models.vision_transformer:ResPostBlock"}
        | {"norm_layer": partial(nn.LayerNorm, elementwise_affine=False)},
        """
        blocks.{0,1}: nothing (norm|gain) @ drop_path1 not attn.proj.{weight,bias};
            nothing (norm|gain) @ drop_path2 not mlp.fc2.{weight,bias}
        """,
        of="vision_transformer:VisionTransformer",
    ),
    # Two attentions and two MLPs side by side, stacked and summed: two branches each, or one that both carry.
    model(
        "vit_small_patch16_18x2_224",
        PATCHES,
        f"{BLOCKS}: "
        + "; ".join(
            f"{kind}.0.ls.gamma @ {kind}.0 then {kind}.1.ls.gamma @ {kind}.1"
            f" or {kind}.1.ls.gamma @ {kind}.1 then {kind}.0.ls.gamma @ {kind}.0"
            f" or {kind}.{{0,1}}.ls.gamma @ {kind}.{{0,1}}"
            for kind in ("attns", "ffns")
        ),
    ),
    model("eva02_tiny_patch14_224", PATCHES | {"img_size": 28}, f"{BLOCKS}: {VIT}", size=28),
    # Merging patches is trunk.
    model("swin_tiny_patch4_window7_224", WINDOWS, f"{WINDOWED}: {VIT}"),
    model("swinv2_tiny_window8_256", WINDOWS, f"{WINDOWED}: {POST_NORM}"),
    model("convnext_tiny", NARROW, f"{PRE}: gamma @ drop_path"),
    # The response normalisation lies before the last weight.
    model("convnextv2_atto", NARROW, f"{PRE}: mlp.fc2.{{weight,bias}} @ drop_path"),
    # The class token has a stream of its own that reads that of the patches, as a decoder reads its encoder's. It
    # begins with a parameter alone, so that a graph may not tell its first sum from a layer with a bias.
    model(
        "cait_xxs24_224",
        PATCHES,
        f"{BLOCKS}: gamma_1 @ attn; gamma_2 @ mlp",
        """
        blocks_token_only.0: gamma_1 @ attn or no branch; gamma_2 @ mlp
        blocks_token_only.1: gamma_1 @ attn; gamma_2 @ mlp
        """,
    ),
    # The MLP of a class attention block adds gamma2 · mlp(x) to the class token, and the other tokens to themselves:
    # nothing carries all of that, gamma2 what there is beside the trunk.
    model(
        "xcit_nano_12_p16_224",
        PATCHES,
        """
        blocks.{0,1}: gamma1 @ attn; gamma3 @ local_mp; gamma2 @ mlp
        cls_attn_blocks.{0,1}: gamma1 @ drop_path1; gamma2 @ mlp or nothing
        """,
    ),
    model(
        "mixer_s32_224",
        MIXER | {"patch_size": 32},
        f"{BLOCKS}: mlp_tokens.fc2.{{weight,bias}} @ mlp_tokens; mlp_channels.fc2.{{weight,bias}} @ mlp_channels",
        size=64,
        of="mlp_mixer:MlpMixer",
    ),
    model(
        "resmlp_12_224",
        MIXER
        | {"mlp_ratio": 4, "block_layer": "timm.models.mlp_mixer:ResBlock"}
        | {"norm_layer": "timm.models.mlp_mixer:Affine"},
        f"{BLOCKS}: ls1 @ linear_tokens; ls2 @ mlp_channels",
        size=64,
        of="mlp_mixer:MlpMixer",
    ),
    model(
        "gmlp_ti16_224",
        MIXER
        | {"mlp_ratio": 6, "block_layer": "timm.models.mlp_mixer:SpatialGatingBlock"}
        | {"mlp_layer": "timm.layers:GatedMlp"},
        f"{BLOCKS}: mlp_channels.fc2.{{weight,bias}} @ drop_path",
        size=64,
        of="mlp_mixer:MlpMixer",
    ),
    # Blocks that change the resolution or the number of channels have no skip there: they are trunk.
    model(
        "efficientnet_b0",
        {},
        "blocks.1.1 blocks.2.1 blocks.3.{1,2} blocks.4.{1,2} blocks.5.{1,2,3}: bn3.{weight,bias} @ drop_path",
    ),
    model(
        "mobilenetv2_100",
        {},
        "blocks.1.1 blocks.2.{1,2} blocks.3.{1,2,3} blocks.{4,5}.{1,2}: bn3.{weight,bias} @ drop_path",
    ),
    model(
        "mobilenetv3_small_100",
        {},
        "blocks.1.1 blocks.2.{1,2} blocks.3.1 blocks.4.{1,2}: bn3.{weight,bias} @ drop_path",
    ),
    model("vgg11_bn", {}, size=224, build=vgg),
    # It concatenates.
    model("densenet121", {"growth_rate": 8, "block_config": (2, 2)}),
    # With the batch norm as trunk, the two convolutions are branches. Where a block has none, one of them may be taken
    # for a shortcut with a projection and the other for the branch, or the sum for one convolution written as two.
    model(
        "repvgg_a0",
        {},
        """
        stem stages.0.0: no branch or conv_kxk.bn.{weight,bias} or conv_1x1.bn.{weight,bias}
        stages.0.1: conv_1x1.bn.{weight,bias} beside conv_kxk.bn.{weight,bias}
        stages.1.0: no branch or conv_kxk.bn.{weight,bias} or conv_1x1.bn.{weight,bias}
        stages.1.1: conv_1x1.bn.{weight,bias} beside conv_kxk.bn.{weight,bias}
        """,
        build=repvgg,
    ),
    model(
        "poolformer_s12",
        NARROW
        | {"downsample_norm": None, "mlp_act": nn.GELU, "mlp_bias": True, "use_mlp_head": False}
        | {"norm_layers": "timm.models.metaformer:GroupNorm1"}
        | {"layer_scale_init_values": 1e-5, "res_scale_init_values": None},
        f"{PRE}: layer_scale1.scale @ drop_path1; layer_scale2.scale @ drop_path2",
        of="metaformer:MetaFormer",
    ),
    # pool(n) - n has no parameters and is linear in n, the norm's output: the gain before it carries. A reader that
    # takes the difference for a stream inside the branch may find nothing.
    model(
        "poolformerv2_s12",
        NARROW | {"norm_layers": "timm.models.metaformer:GroupNorm1NoBias", "use_mlp_head": False},
        f"{PRE}: norm1.weight @ drop_path1 or nothing; mlp.fc2.weight @ drop_path2",
        of="metaformer:MetaFormer",
    ),
    # The trunk is multiplied by learned scales in its last two stages.
    model(
        "convformer_s18",
        NARROW
        | {"token_mixers": "timm.models.metaformer:SepConv", "norm_layers": "timm.models.metaformer:LayerNorm2dNoBias"},
        f"{PRE}: token_mixer.pwconv2.weight @ drop_path1; mlp.fc2.weight @ drop_path2",
        of="metaformer:MetaFormer",
    ),
    model(
        "coatnet_pico_rw_224",
        MAXXVIT,
        f"""
        stages.{{0,1}}.blocks.0: conv3_1x1.{{weight,bias}} @ drop_path
        stages.{{2,3}}.blocks.0: {VIT}
        """,
        size=64,
    ),
    model(
        "maxvit_pico_rw_256",
        MAXXVIT,
        """
        stages.{0,1,2,3}.blocks.0: conv.conv3_1x1.weight @ conv.drop_path;
            attn_block.attn.proj.{weight,bias} @ attn_block.drop_path1;
            attn_block.mlp.fc2.{weight,bias} @ attn_block.drop_path2;
            attn_grid.attn.proj.{weight,bias} @ attn_grid.drop_path1;
            attn_grid.mlp.fc2.{weight,bias} @ attn_grid.drop_path2
        """,
        size=64,
    ),
    # Half of every block, a pointwise convolution, has no skip: trunk.
    model(
        "convmixer_768_32",
        {"dim": 16, "depth": 2, "kernel_size": 7, "act_layer": nn.ReLU},
        "blocks.{0,1}.0.fn: 2.{weight,bias}",
        size=28,
        of="convmixer:ConvMixer",
    ),
    model(
        "davit_tiny",
        {"depths": (1, 1), "embed_dims": (16, 32), "num_heads": (2, 4)},
        """
        stages.{0,1}.blocks.0.{0,1}: cpe1.proj.{weight,bias} @ cpe1.act;
            attn.proj.{weight,bias} @ drop_path1;
            cpe2.proj.{weight,bias} @ cpe2.act;
            mlp.fc2.{weight,bias} @ drop_path2
        """,
        size=64,
    ),
    # Attention that reduces the resolution has no skip beside it: trunk; the MLP behind it has one.
    model(
        "levit_128s",
        {},
        f"""
        stages.0.blocks.{{0,1}}: {LEVIT}
        stages.1.downsample: mlp.ln2.bn.{{weight,bias}} @ drop_path
        stages.1.blocks.{{0,1,2}}: {LEVIT}
        stages.2.downsample: mlp.ln2.bn.{{weight,bias}} @ drop_path
        stages.2.blocks.{{0,1,2,3}}: {LEVIT}
        """,
        size=64,
        build=levit,
    ),
    model("test_mambaout", {}, "stages.{0,1}.blocks.0 stages.2.blocks.{0,1,2} stages.3.blocks.0: ls.gamma @ drop_path"),
    # An activation comes last: a leaky ReLU lets positive factors through, though a reader may know only the ReLU.
    model("darknet17", {}, f"{DARK}: conv2.bn.{{weight,bias}} @ drop_path or nothing (activation|relu)"),
    model(
        "darknet17, SiLU",
        {"act_layer": "silu"},
        f"{DARK}: nothing (activation|silu|sigmoid|non-?linear) @ drop_path not conv2.bn.{{weight,bias}}",
    ),
)
