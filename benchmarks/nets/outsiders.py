"""Models of other libraries, from their own constructors with random weights, small, each with its inputs.

`benchmarks/outsiders.txt` lists the libraries. Each function below yields the models of one; nothing is downloaded.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nets import hugging_face
from nets.draws import Entry, integers, noise, same, side_by_side, uniform
from wellposed import zoo

REQUIREMENTS = Path(__file__).parents[1] / "outsiders.txt"


def of(module: str, name: str, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    """Return what makes a model from its constructor, imported when it is called."""

    return partial(_made, module, name, *args, **options)


def _made(module: str, name: str, *args: Any, **options: Any) -> nn.Module:
    model: nn.Module = getattr(importlib.import_module(module), name)(*args, **options)
    return model


def preload(make: Callable[[], nn.Module]) -> None:
    """Import what a model is made from, so that processes that are forked later need not; failures are left to them."""
    if isinstance(make, partial):
        with suppress(Exception):
            getattr(importlib.import_module(make.args[0]), make.args[1])


PICTURES = noise(2, 3, 64, 64)
TOKENS = integers(256, 4, 32)


def diffusers() -> Iterator[Entry]:
    d = "diffusers"
    time = same(torch.tensor([3, 500]))
    latents, text = noise(2, 4, 16, 16), noise(2, 8, 32)
    blocks = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
    yield (
        "UNet2DModel",
        of(
            d,
            "UNet2DModel",
            sample_size=32,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
            **blocks,
        ),
        (noise(2, 3, 32, 32), time),
    )
    yield (
        "UNet2DModel, plain",
        of(
            d,
            "UNet2DModel",
            sample_size=32,
            down_block_types=("DownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "UpBlock2D"),
            **blocks,
        ),
        (noise(2, 3, 32, 32), time),
    )
    yield (
        "UNet2DConditionModel",
        of(
            d,
            "UNet2DConditionModel",
            sample_size=16,
            cross_attention_dim=32,
            attention_head_dim=8,
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            **blocks,
        ),
        {"sample": latents, "timestep": time, "encoder_hidden_states": text},
    )
    yield (
        "UNet1DModel",
        of(
            d,
            "UNet1DModel",
            sample_size=64,
            in_channels=14,
            out_channels=14,
            time_embedding_type="positional",
            use_timestep_embedding=True,
            flip_sin_to_cos=False,
            freq_shift=1,
            down_block_types=("DownResnetBlock1D", "DownResnetBlock1D"),
            up_block_types=("UpResnetBlock1D",),
            mid_block_type="MidResTemporalBlock1D",
            out_block_type="OutConv1DBlock",
            act_fn="swish",
            block_out_channels=(32, 64),
        ),
        (noise(2, 14, 16), time),
    )
    yield (
        "UNet3DConditionModel",
        of(
            d,
            "UNet3DConditionModel",
            sample_size=16,
            cross_attention_dim=32,
            attention_head_dim=8,
            down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
            up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
            **blocks,
        ),
        {
            "sample": noise(1, 4, 4, 16, 16),
            "timestep": same(torch.tensor([3])),
            "encoder_hidden_states": noise(1, 8, 32),
        },
    )
    yield (
        "AutoencoderKL",
        of(
            d,
            "AutoencoderKL",
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(32, 64),
            norm_num_groups=8,
            sample_size=32,
        ),
        (noise(2, 3, 32, 32),),
    )
    yield (
        "AutoencoderTiny",
        of(
            d,
            "AutoencoderTiny",
            encoder_block_out_channels=(32, 32),
            decoder_block_out_channels=(32, 32),
            num_encoder_blocks=(1, 2),
            num_decoder_blocks=(2, 1),
        ),
        (noise(2, 3, 32, 32),),
    )
    yield (
        "AsymmetricAutoencoderKL",
        of(
            d,
            "AsymmetricAutoencoderKL",
            down_block_types=("DownEncoderBlock2D",),
            down_block_out_channels=(32,),
            layers_per_down_block=1,
            up_block_types=("UpDecoderBlock2D",),
            up_block_out_channels=(32,),
            layers_per_up_block=1,
            norm_num_groups=8,
        ),
        (noise(2, 3, 32, 32),),
    )
    yield (
        "VQModel",
        of(d, "VQModel", block_out_channels=(32,), norm_num_groups=8, num_vq_embeddings=64),
        (noise(2, 3, 32, 32),),
    )
    yield (
        "AutoencoderOobleck",
        of(
            d,
            "AutoencoderOobleck",
            encoder_hidden_size=12,
            decoder_channels=12,
            decoder_input_channels=6,
            audio_channels=2,
            downsampling_ratios=[2, 4],
            channel_multiples=[1, 2],
            sampling_rate=4,
        ),
        (noise(2, 2, 256),),
    )
    dit = {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 4}
    yield (
        "DiTTransformer2DModel",
        of(d, "DiTTransformer2DModel", in_channels=4, out_channels=8, sample_size=16, num_embeds_ada_norm=1000, **dit),
        {"hidden_states": latents, "timestep": time, "class_labels": same(torch.tensor([1, 2]))},
    )
    yield (
        "Transformer2DModel",
        of(d, "Transformer2DModel", in_channels=32, norm_num_groups=8, cross_attention_dim=32, **dit),
        {"hidden_states": noise(2, 32, 8, 8), "encoder_hidden_states": text},
    )
    yield (
        "PixArtTransformer2DModel",
        of(
            d,
            "PixArtTransformer2DModel",
            in_channels=4,
            out_channels=8,
            sample_size=16,
            cross_attention_dim=64,
            caption_channels=32,
            use_additional_conditions=False,
            **dit,
        ),
        {"hidden_states": latents, "encoder_hidden_states": text, "timestep": time},
    )
    yield (
        "SD3Transformer2DModel",
        of(
            d,
            "SD3Transformer2DModel",
            sample_size=16,
            patch_size=2,
            in_channels=4,
            out_channels=4,
            joint_attention_dim=32,
            caption_projection_dim=64,
            pooled_projection_dim=64,
            pos_embed_max_size=16,
            **dit,
        ),
        {"hidden_states": latents, "encoder_hidden_states": text, "pooled_projections": noise(2, 64), "timestep": time},
    )
    yield (
        "AuraFlowTransformer2DModel",
        of(
            d,
            "AuraFlowTransformer2DModel",
            sample_size=16,
            in_channels=4,
            out_channels=4,
            num_mmdit_layers=2,
            num_single_dit_layers=2,
            attention_head_dim=16,
            num_attention_heads=4,
            joint_attention_dim=32,
            caption_projection_dim=64,
            pos_embed_max_size=256,
        ),
        {"hidden_states": latents, "encoder_hidden_states": text, "timestep": same(torch.tensor([0.2, 0.7]))},
    )
    ids = {"img_ids": same(torch.zeros(16, 3)), "txt_ids": same(torch.zeros(8, 3))}
    yield (
        "FluxTransformer2DModel",
        of(
            d,
            "FluxTransformer2DModel",
            in_channels=16,
            num_layers=2,
            num_single_layers=4,
            attention_head_dim=16,
            num_attention_heads=4,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            axes_dims_rope=(4, 4, 8),
        ),
        {
            "hidden_states": noise(2, 16, 16),
            "encoder_hidden_states": text,
            "pooled_projections": noise(2, 32),
            "timestep": same(torch.tensor([0.2, 0.7])),
            **ids,
        },
    )
    yield (
        "SanaTransformer2DModel",
        of(
            d,
            "SanaTransformer2DModel",
            in_channels=4,
            out_channels=4,
            num_cross_attention_heads=4,
            cross_attention_head_dim=16,
            cross_attention_dim=64,
            caption_channels=32,
            sample_size=16,
            **dit,
        ),
        {"hidden_states": latents, "encoder_hidden_states": text, "timestep": time},
    )
    yield (
        "LuminaNextDiT2DModel",
        of(
            d,
            "LuminaNextDiT2DModel",
            sample_size=16,
            patch_size=2,
            in_channels=4,
            hidden_size=64,
            num_layers=2,
            num_attention_heads=4,
            num_kv_heads=2,
            multiple_of=16,
            cross_attention_dim=32,
        ),
        {
            "hidden_states": latents,
            "timestep": same(torch.tensor([0.2, 0.7])),
            "encoder_hidden_states": text,
            "encoder_mask": same(torch.ones(2, 8)),
            "image_rotary_emb": same(torch.ones(384, 384, 8, dtype=torch.complex64)),
            "cross_attention_kwargs": same({}),
        },
    )
    yield (
        "PriorTransformer",
        of(d, "PriorTransformer", embedding_dim=32, num_embeddings=7, additional_embeddings=4, **dit),
        {
            "hidden_states": noise(2, 32),
            "timestep": time,
            "proj_embedding": noise(2, 32),
            "encoder_hidden_states": noise(2, 7, 32),
        },
    )
    yield (
        "CogVideoXTransformer3DModel",
        of(
            d,
            "CogVideoXTransformer3DModel",
            in_channels=4,
            out_channels=4,
            time_embed_dim=32,
            text_embed_dim=32,
            sample_width=8,
            sample_height=8,
            sample_frames=9,
            max_text_seq_length=8,
            **dit,
        ),
        {
            "hidden_states": noise(1, 3, 4, 8, 8),
            "encoder_hidden_states": noise(1, 8, 32),
            "timestep": same(torch.tensor([3])),
        },
    )
    yield (
        "LTXVideoTransformer3DModel",
        of(
            d,
            "LTXVideoTransformer3DModel",
            in_channels=16,
            out_channels=16,
            cross_attention_dim=64,
            caption_channels=32,
            **dit,
        ),
        {
            "hidden_states": noise(2, 64, 16),
            "encoder_hidden_states": text,
            "timestep": time,
            "encoder_attention_mask": same(torch.ones(2, 8)),
            "num_frames": same(4),
            "height": same(4),
            "width": same(4),
        },
    )
    yield (
        "WanTransformer3DModel",
        of(
            d,
            "WanTransformer3DModel",
            patch_size=(1, 2, 2),
            in_channels=4,
            out_channels=4,
            text_dim=32,
            freq_dim=64,
            ffn_dim=128,
            rope_max_seq_len=32,
            **dit,
        ),
        {
            "hidden_states": noise(1, 4, 2, 8, 8),
            "timestep": same(torch.tensor([3])),
            "encoder_hidden_states": noise(1, 8, 32),
        },
    )
    yield (
        "UVit2DModel",
        of(
            d,
            "UVit2DModel",
            hidden_size=64,
            cond_embed_dim=16,
            micro_cond_encode_dim=8,
            micro_cond_embed_dim=40,
            encoder_hidden_size=32,
            vocab_size=64,
            codebook_size=60,
            in_channels=32,
            block_out_channels=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            block_num_heads=4,
            intermediate_size=128,
            sample_size=16,
        ),
        {
            "input_ids": integers(60, 2, 8, 8),
            "encoder_hidden_states": text,
            "pooled_text_emb": noise(2, 16),
            "micro_conds": noise(2, 5),
        },
    )
    yield (
        "ControlNetModel",
        of(
            d,
            "ControlNetModel",
            cross_attention_dim=32,
            attention_head_dim=8,
            conditioning_embedding_out_channels=(16, 32),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            **blocks,
        ),
        {"sample": latents, "timestep": time, "encoder_hidden_states": text, "controlnet_cond": noise(2, 3, 32, 32)},
    )


def torch_geometric() -> Iterator[Entry]:
    g = "torch_geometric.nn"
    edges = torch.randint(0, 64, (2, 256), generator=torch.Generator().manual_seed(0))
    graph = (noise(64, 16), same(edges))
    for name, more in (
        ("GCN", {}),
        ("GraphSAGE", {}),
        ("GIN", {}),
        ("GAT", {"heads": 4}),
        ("GAT, second version", {"v2": True, "heads": 4}),
        ("PNA", {"aggregators": ["mean", "max"], "scalers": ["identity"], "deg": torch.tensor([0, 4, 20, 30, 10])}),
        ("EdgeCNN", {}),
    ):
        yield (
            name,
            of(g, name.split(",")[0], in_channels=16, hidden_channels=64, num_layers=4, out_channels=8, **more),
            graph,
        )
    yield (
        "GCN, batch norm",
        of(g, "GCN", in_channels=16, hidden_channels=64, num_layers=4, out_channels=8, norm="batch_norm"),
        graph,
    )
    yield (
        "GraphSAGE, jumping knowledge",
        of(g, "GraphSAGE", in_channels=16, hidden_channels=64, num_layers=4, out_channels=8, jk="cat"),
        graph,
    )
    yield "GraphUNet", of(g, "GraphUNet", 16, 64, 8, 3), graph
    yield "MLP", of(g, "MLP", [16, 64, 64, 8]), (noise(64, 16),)
    yield "LINKX", of(g, "LINKX", 64, 16, 64, 8, 2), graph
    yield (
        "AttentiveFP",
        of(g, "AttentiveFP", 16, 32, 8, 4, 2, 2),
        (noise(64, 16), same(edges), noise(256, 4), same(torch.arange(64) // 16)),
    )
    yield (
        "NeuralFingerprint",
        of(g, "NeuralFingerprint", 16, 32, 8, 3),
        (noise(64, 16), same(edges), same(torch.arange(64) // 16)),
    )
    yield "PMLP", of(g, "PMLP", 16, 64, 8, 3), graph
    yield (
        "SGFormer",
        of("torch_geometric.nn.models", "SGFormer", 16, 64, 8),
        (noise(64, 16), same(edges), same(torch.arange(64) // 16)),
    )
    yield (
        "Polynormer",
        of("torch_geometric.nn.models", "Polynormer", 16, 64, 8),
        (noise(64, 16), same(edges), same(torch.arange(64) // 16)),
    )
    yield "LightGCN", of(g, "LightGCN", 64, 32, 2), (same(edges),)


def open_clip() -> Iterator[Entry]:
    vision = {"image_size": 64, "patch_size": 16, "width": 64, "layers": 4, "head_width": 16}
    text = {"context_length": 16, "vocab_size": 256, "width": 64, "heads": 4, "layers": 4}
    both = (PICTURES, integers(255, 2, 16))
    yield "CLIP, ViT", of("open_clip.model", "CLIP", embed_dim=64, vision_cfg=vision, text_cfg=text), both
    yield (
        "CLIP, ResNet",
        of(
            "open_clip.model",
            "CLIP",
            embed_dim=64,
            vision_cfg={"image_size": 64, "layers": [1, 1, 1, 1], "width": 16},
            text_cfg=text,
        ),
        both,
    )
    yield (
        "CLIP, text in a tower of its own",
        of("open_clip.model", "CustomTextCLIP", embed_dim=64, vision_cfg=vision, text_cfg=text),
        both,
    )
    yield (
        "CoCa",
        of(
            "open_clip.coca_model",
            "CoCa",
            embed_dim=64,
            vision_cfg={**vision, "attentional_pool": True, "attn_pooler_heads": 4, "output_tokens": True},
            text_cfg={**text, "embed_cls": True, "output_tokens": True, "context_length": 15},
            multimodal_cfg={**text, "context_length": 15},
        ),
        (PICTURES, integers(255, 2, 15)),
    )
    yield (
        "VisionTransformer, attention pooling",
        of(
            "open_clip.transformer",
            "VisionTransformer",
            image_size=64,
            patch_size=16,
            width=64,
            layers=4,
            heads=4,
            mlp_ratio=4.0,
            output_dim=32,
            attentional_pool=True,
            attn_pooler_heads=4,
        ),
        (PICTURES,),
    )


def monai() -> Iterator[Entry]:
    n = "monai.networks.nets"
    flat, volume = noise(2, 1, 64, 64), noise(2, 1, 32, 32, 32)
    yield "UNet", of(n, "UNet", 2, 1, 2, (16, 32, 64), (2, 2), num_res_units=2), (flat,)
    yield "UNet, batch norm, volumes", of(n, "UNet", 3, 1, 2, (8, 16, 32), (2, 2), norm="batch"), (volume,)
    yield "BasicUNet", of(n, "BasicUNet", 2, 1, 2, (16, 16, 32, 32, 64, 16)), (flat,)
    yield "BasicUNetPlusPlus", of(n, "BasicUNetPlusPlus", 2, 1, 2, (16, 16, 32, 32, 64, 16)), (flat,)
    yield "AttentionUnet", of(n, "AttentionUnet", 2, 1, 2, (16, 32, 64), (2, 2)), (flat,)
    yield "DynUNet", of(n, "DynUNet", 2, 1, 2, [3, 3, 3], [1, 2, 2], [2, 2], filters=[16, 32, 64]), (flat,)
    yield "SegResNet", of(n, "SegResNet", 2, 8, 1, 2, blocks_down=(1, 2, 2), blocks_up=(1, 1)), (flat,)
    yield (
        "SegResNetVAE",
        of(n, "SegResNetVAE", (64, 64), spatial_dims=2, init_filters=8, in_channels=1, out_channels=2),
        (flat,),
    )
    yield "VNet", of(n, "VNet", 2, 1, 2), (flat,)
    yield "HighResNet", of(n, "HighResNet", 2, 1, 2), (flat,)
    yield "DenseNet121", of(n, "DenseNet121", 2, 1, 4), (noise(4, 1, 64, 64),)
    yield (
        "EfficientNet-B0",
        of(n, "EfficientNetBN", "efficientnet-b0", pretrained=False, spatial_dims=2, in_channels=3),
        (noise(4, 3, 64, 64),),
    )
    yield (
        "ResNet-18",
        of(n, "resnet18", spatial_dims=2, n_input_channels=1, num_classes=4, shortcut_type="B"),
        (noise(4, 1, 64, 64),),
    )
    yield "SENet-154", of(n, "SENet154", spatial_dims=2, in_channels=3, num_classes=4), (PICTURES,)
    yield (
        "ViT",
        of(
            n,
            "ViT",
            1,
            (64, 64),
            (16, 16),
            hidden_size=64,
            mlp_dim=128,
            num_layers=4,
            num_heads=4,
            spatial_dims=2,
            classification=True,
        ),
        (flat,),
    )
    yield (
        "ViTAutoEnc",
        of(
            n,
            "ViTAutoEnc",
            1,
            (64, 64),
            (16, 16),
            hidden_size=64,
            mlp_dim=128,
            num_layers=4,
            num_heads=4,
            spatial_dims=2,
        ),
        (flat,),
    )
    yield (
        "UNETR",
        of(n, "UNETR", 1, 2, (64, 64), feature_size=8, hidden_size=64, mlp_dim=128, num_heads=4, spatial_dims=2),
        (flat,),
    )
    yield (
        "SwinUNETR",
        of(n, "SwinUNETR", in_channels=1, out_channels=2, feature_size=12, spatial_dims=2, depths=(1, 1, 1, 1)),
        (flat,),
    )
    yield "AutoEncoder", of(n, "AutoEncoder", 2, 1, 1, (8, 16), (2, 2)), (flat,)
    yield "VarAutoEncoder", of(n, "VarAutoEncoder", 2, (1, 64, 64), 1, 8, (8, 16), (2, 2)), (flat,)
    yield (
        "AutoencoderKL",
        of(
            n,
            "AutoencoderKL",
            spatial_dims=2,
            in_channels=1,
            out_channels=1,
            num_res_blocks=(1, 1),
            channels=(16, 32),
            attention_levels=(False, True),
            latent_channels=4,
            norm_num_groups=8,
        ),
        (flat,),
    )
    yield (
        "DiffusionModelUNet",
        of(
            n,
            "DiffusionModelUNet",
            spatial_dims=2,
            in_channels=1,
            out_channels=1,
            num_res_blocks=1,
            channels=(16, 32),
            attention_levels=(False, True),
            norm_num_groups=8,
            num_head_channels=8,
        ),
        (noise(2, 1, 32, 32), same(torch.tensor([3, 500]))),
    )
    yield "DecoderOnlyTransformer", of(n, "DecoderOnlyTransformer", 256, 64, 64, 4, 4), (TOKENS,)
    yield "PatchDiscriminator", of(n, "PatchDiscriminator", spatial_dims=2, channels=16, in_channels=1), (flat,)
    yield "Regressor", of(n, "Regressor", (1, 32, 32), (4,), (8, 16), (2, 2)), (noise(4, 1, 32, 32),)
    yield "Generator", of(n, "Generator", (16,), (8, 8, 8), (16, 8, 1), (2, 2, 1)), (noise(4, 16),)
    yield "FullyConnectedNet", of(n, "FullyConnectedNet", 16, 4, (64, 64), 0.1), (noise(64, 16),)
    yield "RegUNet", of(n, "RegUNet", 2, 1, 8, 2), (flat,)
    yield "MedNeXt", of(n, "MedNeXt", spatial_dims=2, init_filters=16, in_channels=1, out_channels=2), (flat,)
    yield "VoxelMorph", of(n, "VoxelMorphUNet", 2, 2, 16, (16, 32), (32, 16)), (noise(2, 2, 64, 64),)


def segmentation_models_pytorch() -> Iterator[Entry]:
    for name in ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "UPerNet"):
        yield (
            f"{name}, ResNet-18",
            of("segmentation_models_pytorch", name, encoder_name="resnet18", encoder_weights=None, classes=4),
            (PICTURES,),
        )
    yield (
        "Segformer, MiT-B0",
        of("segmentation_models_pytorch", "Segformer", encoder_name="mit_b0", encoder_weights=None, classes=4),
        (PICTURES,),
    )
    for encoder in ("mobilenet_v2", "efficientnet-b0", "densenet121", "vgg11_bn", "se_resnet50", "dpn68", "xception"):
        yield (
            f"Unet, {encoder}",
            of("segmentation_models_pytorch", "Unet", encoder_name=encoder, encoder_weights=None, classes=4),
            (PICTURES,),
        )


def mambapy() -> Iterator[Entry]:
    def mamba(module: str, depth: int, **options: Any) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            m = importlib.import_module(f"mambapy.{module}")
            name = {"mamba": "Mamba", "jamba": "Jamba", "mamba2": "Mamba2"}[module]
            made: nn.Module = getattr(m, name)(
                getattr(m, f"{name}Config" if name != "Jamba" else "JambaLMConfig")(**options)
            )
            return made

        return make

    yield "Mamba, 4 layers", mamba("mamba", 4, d_model=64, n_layers=4), (noise(2, 32, 64),)
    yield "Mamba, 16 layers", mamba("mamba", 16, d_model=64, n_layers=16), (noise(2, 32, 64),)
    yield "Mamba, a scan in steps", mamba("mamba", 4, d_model=64, n_layers=4, pscan=False), (noise(2, 32, 64),)


def vit_pytorch() -> Iterator[Entry]:
    def vit(module: str, name: str, **more: Any) -> Callable[[], nn.Module]:
        base = {
            "image_size": 64,
            "patch_size": 16,
            "num_classes": 10,
            "dim": 64,
            "depth": 4,
            "heads": 4,
            "mlp_dim": 128,
        }
        return of(f"vit_pytorch.{module}", name, **{k: v for k, v in (base | more).items() if v is not None})

    for module, name, more in (
        ("vit", "ViT", {}),
        ("simple_vit", "SimpleViT", {}),
        ("deepvit", "DeepViT", {}),
        ("cait", "CaiT", {"cls_depth": 1}),
        ("parallel_vit", "ViT", {"num_parallel_branches": 2}),
        ("learnable_memory_vit", "ViT", {}),
        ("vit_with_patch_merger", "ViT", {"patch_merge_layer": 2, "patch_merge_num_tokens": 4}),
        ("simple_vit_with_register_tokens", "SimpleViT", {}),
        ("xcit", "XCiT", {"cls_depth": 1}),
        ("normalized_vit", "nViT", {}),
        ("simple_vit_with_qk_norm", "SimpleViT", {}),
        ("vit_for_small_dataset", "ViT", {}),
        ("simple_vit_with_value_residual", "SimpleViT", {}),
        ("simple_vit_with_hyper_connections", "SimpleViT", {"num_residual_streams": 2}),
        ("simple_vit_with_patch_dropout", "SimpleViT", {}),
        ("ats_vit", "ViT", {"max_tokens_per_depth": (16, 12, 8, 8)}),
        ("simple_vit_with_fft", "SimpleViT", {"freq_patch_size": 16}),
        ("simple_uvit", "SimpleUViT", {}),
        ("vit_with_decorr", "ViT", {}),
        ("rvt", "RvT", {}),
        ("pit", "PiT", {"depth": (1, 1), "image_size": 64}),
    ):
        yield f"{module}.{name}", vit(module, name, **more), (PICTURES,)
    v = "vit_pytorch"
    yield (
        "nest.NesT",
        of(
            f"{v}.nest",
            "NesT",
            image_size=64,
            patch_size=4,
            dim=32,
            heads=2,
            num_hierarchies=2,
            block_repeats=(1, 1),
            num_classes=10,
        ),
        (PICTURES,),
    )
    yield (
        "cct.CCT",
        of(
            f"{v}.cct",
            "CCT",
            img_size=64,
            embedding_dim=64,
            n_conv_layers=1,
            num_layers=2,
            num_heads=4,
            mlp_ratio=2.0,
            num_classes=10,
        ),
        (PICTURES,),
    )
    yield (
        "max_vit.MaxViT",
        of(f"{v}.max_vit", "MaxViT", num_classes=10, dim_conv_stem=16, dim=16, dim_head=8, depth=(1, 1), window_size=4),
        (PICTURES,),
    )
    yield (
        "look_vit.LookViT",
        of(
            f"{v}.look_vit",
            "LookViT",
            dim=64,
            image_size=64,
            num_classes=10,
            depth=1,
            patch_size=16,
            heads=2,
            mlp_factor=2,
            dim_head=16,
            highres_patch_size=8,
        ),
        (PICTURES,),
    )
    yield (
        "mobile_vit.MobileViT",
        of(
            f"{v}.mobile_vit",
            "MobileViT",
            image_size=(64, 64),
            dims=[32, 40, 48],
            channels=[16, 16, 24, 24, 32, 32, 48, 48, 64, 64, 96],
            num_classes=10,
        ),
        (PICTURES,),
    )
    yield (
        "levit.LeViT",
        of(
            f"{v}.levit",
            "LeViT",
            image_size=64,
            num_classes=10,
            stages=2,
            dim=(32, 64),
            depth=2,
            heads=(2, 4),
            mlp_mult=2,
        ),
        (PICTURES,),
    )
    yield (
        "cvt.CvT",
        of(f"{v}.cvt", "CvT", num_classes=10, s1_emb_dim=32, s2_emb_dim=64, s3_emb_dim=64, s3_depth=2, s3_heads=4),
        (PICTURES,),
    )
    yield (
        "cross_vit.CrossViT",
        of(
            f"{v}.cross_vit",
            "CrossViT",
            image_size=64,
            num_classes=10,
            depth=1,
            sm_dim=32,
            lg_dim=64,
            sm_patch_size=8,
            lg_patch_size=16,
        ),
        (PICTURES,),
    )
    yield (
        "scalable_vit.ScalableViT",
        of(
            f"{v}.scalable_vit",
            "ScalableViT",
            num_classes=10,
            dim=16,
            heads=(2, 4, 4, 4),
            depth=(1, 1, 1, 1),
            ssa_dim_key=(16, 16, 16, 16),
            reduction_factor=(4, 2, 1, 1),
            window_size=(4, 4, None, None),
        ),
        (PICTURES,),
    )
    yield (
        "regionvit.RegionViT",
        of(f"{v}.regionvit", "RegionViT", dim=(16, 32, 32, 64), depth=(1, 1, 1, 1), window_size=4, num_classes=10),
        (noise(2, 3, 128, 128),),
    )
    yield (
        "t2t.T2TViT",
        of(
            f"{v}.t2t",
            "T2TViT",
            dim=64,
            image_size=64,
            depth=2,
            heads=4,
            mlp_dim=128,
            num_classes=10,
            t2t_layers=((7, 4), (3, 2)),
        ),
        (PICTURES,),
    )
    yield (
        "vit_3d.ViT",
        of(
            f"{v}.vit_3d",
            "ViT",
            image_size=32,
            frames=8,
            image_patch_size=8,
            frame_patch_size=4,
            num_classes=10,
            dim=64,
            depth=2,
            heads=4,
            mlp_dim=128,
        ),
        (noise(2, 3, 8, 32, 32),),
    )
    yield (
        "vit_1d.ViT",
        of(f"{v}.vit_1d", "ViT", seq_len=64, patch_size=8, num_classes=10, dim=64, depth=4, heads=4, mlp_dim=128),
        (noise(4, 3, 64),),
    )


def x_transformers() -> Iterator[Entry]:
    def decoder(name: str = "Decoder", **more: Any) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            x = importlib.import_module("x_transformers")
            layers = getattr(x, name)(dim=64, depth=4, heads=4, attn_dim_head=16, **more)
            made: nn.Module = x.TransformerWrapper(num_tokens=256, max_seq_len=64, attn_layers=layers)
            return made

        return make

    for name, more in {
        "plain": {},
        "RMS norm, rotary, gated": {"use_rmsnorm": True, "rotary_pos_emb": True, "ff_glu": True},
        "query-key norm": {"attn_qk_norm": True},
        "ALiBi": {"alibi_pos_bias": True},
        "T5 bias, simple RMS norm": {"rel_pos_bias": True, "use_simple_rmsnorm": True},
        "residual attention, sandwich norm": {"residual_attn": True, "sandwich_norm": True},
        "dynamic positions": {"dynamic_pos_bias": True},
        "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
        "memory": {"attn_num_mem_kv": 8},
        "gates": {"attn_gate_values": True, "gate_residual": True},
        "squared ReLU, no bias": {"ff_relu_squared": True, "ff_no_bias": True},
        "one key-value head": {"attn_kv_heads": 1},
        "scaled residual": {"scale_residual": True},
        "post norm": {"pre_norm": False},
        "macaron": {"macaron": True},
        "ScaleNorm": {"use_scalenorm": True},
        "SwiGLU": {"ff_swish": True, "ff_glu": True},
        "shifted tokens": {"shift_tokens": 1},
        "attention on attention": {"attn_on_attn": True},
    }.items():
        yield f"decoder, {name}", decoder(**more), (TOKENS,)
    yield "encoder", decoder("Encoder"), (TOKENS,)

    def vision() -> nn.Module:
        x = importlib.import_module("x_transformers")
        made: nn.Module = x.ViTransformerWrapper(
            image_size=64, patch_size=16, num_classes=10, attn_layers=x.Encoder(dim=64, depth=4, heads=4)
        )
        return made

    def continuous() -> nn.Module:
        x = importlib.import_module("x_transformers")
        made: nn.Module = x.ContinuousTransformerWrapper(
            dim_in=16, dim_out=16, max_seq_len=64, attn_layers=x.Decoder(dim=64, depth=4, heads=4)
        )
        return made

    yield "vision", vision, (PICTURES,)
    yield "continuous", continuous, (noise(4, 32, 16),)


def attention_variants() -> Iterator[Entry]:
    yield (
        "perceiver-pytorch: Perceiver",
        of(
            "perceiver_pytorch",
            "Perceiver",
            input_channels=3,
            input_axis=2,
            num_freq_bands=4,
            max_freq=10.0,
            depth=2,
            num_latents=16,
            latent_dim=64,
            cross_dim_head=16,
            latent_dim_head=16,
            num_classes=10,
        ),
        (noise(2, 32, 32, 3),),
    )
    yield (
        "perceiver-pytorch: PerceiverIO",
        of(
            "perceiver_pytorch",
            "PerceiverIO",
            dim=32,
            queries_dim=32,
            logits_dim=10,
            depth=2,
            num_latents=16,
            latent_dim=64,
            cross_heads=1,
            latent_heads=4,
            cross_dim_head=16,
            latent_dim_head=16,
        ),
        {"data": noise(2, 24, 32), "queries": noise(8, 32)},
    )
    yield (
        "performer-pytorch: PerformerLM",
        of(
            "performer_pytorch",
            "PerformerLM",
            num_tokens=256,
            max_seq_len=32,
            dim=64,
            depth=2,
            heads=4,
            dim_head=16,
            causal=False,
            no_projection=True,
        ),
        (integers(256, 4, 32),),
    )
    yield (
        "performer-pytorch: Performer",
        of("performer_pytorch", "Performer", dim=64, depth=2, heads=4, dim_head=16),
        (noise(2, 32, 64),),
    )
    yield (
        "nystrom-attention: Nystromformer",
        of(
            "nystrom_attention",
            "Nystromformer",
            dim=64,
            dim_head=16,
            heads=4,
            depth=2,
            num_landmarks=8,
            pinv_iterations=3,
        ),
        (noise(2, 32, 64),),
    )
    yield (
        "g-mlp-pytorch: gMLPVision",
        of("g_mlp_pytorch", "gMLPVision", image_size=64, patch_size=16, num_classes=10, dim=64, depth=4),
        (PICTURES,),
    )
    yield "g-mlp-pytorch: gMLP", of("g_mlp_pytorch", "gMLP", num_tokens=256, dim=64, depth=4, seq_len=32), (TOKENS,)
    yield (
        "mlp-mixer-pytorch: MLPMixer",
        of("mlp_mixer_pytorch", "MLPMixer", image_size=64, channels=3, patch_size=16, dim=64, depth=4, num_classes=10),
        (PICTURES,),
    )
    yield (
        "conformer: Conformer",
        of("conformer", "Conformer", dim=64, depth=2, dim_head=16, heads=4, conv_kernel_size=7),
        (noise(2, 32, 64),),
    )
    yield (
        "iTransformer",
        of(
            "iTransformer",
            "iTransformer",
            num_variates=8,
            lookback_len=32,
            dim=64,
            depth=2,
            heads=4,
            dim_head=16,
            pred_length=4,
        ),
        (noise(4, 32, 8),),
    )
    yield "egnn-pytorch: EGNN", of("egnn_pytorch", "EGNN", dim=32), (noise(2, 16, 32), noise(2, 16, 3))
    yield (
        "denoising-diffusion-pytorch: Unet",
        of("denoising_diffusion_pytorch", "Unet", dim=16, dim_mults=(1, 2), flash_attn=False),
        (noise(2, 3, 32, 32), same(torch.tensor([3, 500]))),
    )
    yield (
        "denoising-diffusion-pytorch: Unet1D",
        of("denoising_diffusion_pytorch", "Unet1D", dim=16, dim_mults=(1, 2), channels=4),
        (noise(2, 4, 32), same(torch.tensor([3, 500]))),
    )


def tables() -> Iterator[Entry]:
    yield (
        "pytorch-tabnet: TabNet",
        of(
            "pytorch_tabnet.tab_network",
            "TabNet",
            16,
            4,
            cat_idxs=[],
            cat_dims=[],
            group_attention_matrix=torch.eye(16),
        ),
        (noise(64, 16),),
    )
    yield (
        "pytorch-tabnet: TabNet, categories",
        of(
            "pytorch_tabnet.tab_network",
            "TabNet",
            16,
            4,
            cat_idxs=[0, 1],
            cat_dims=[5, 5],
            cat_emb_dim=[2, 2],
            group_attention_matrix=torch.eye(16),
        ),
        (side_by_side(integers(5, 64, 2), noise(64, 14)),),
    )
    r = "rtdl_revisiting_models"
    yield (
        "rtdl-revisiting-models: MLP",
        of(r, "MLP", d_in=16, d_out=4, n_blocks=4, d_block=64, dropout=0.1),
        (noise(64, 16),),
    )
    yield (
        "rtdl-revisiting-models: ResNet",
        of(
            r,
            "ResNet",
            d_in=16,
            d_out=4,
            n_blocks=4,
            d_block=64,
            d_hidden=None,
            d_hidden_multiplier=2.0,
            dropout1=0.1,
            dropout2=0.0,
        ),
        (noise(64, 16),),
    )
    yield (
        "rtdl-revisiting-models: FTTransformer",
        of(
            r,
            "FTTransformer",
            n_cont_features=8,
            cat_cardinalities=[5, 7],
            d_out=4,
            n_blocks=2,
            d_block=64,
            attention_n_heads=4,
            attention_dropout=0.1,
            ffn_d_hidden=None,
            ffn_d_hidden_multiplier=2.0,
            ffn_dropout=0.1,
            residual_dropout=0.0,
        ),
        (noise(32, 8), integers(5, 32, 2)),
    )

    def recommender(name: str, **more: Any) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            inputs = importlib.import_module("deepctr_torch.inputs")
            columns = [inputs.SparseFeat(f"s{i}", 10, 8) for i in range(4)] + [
                inputs.DenseFeat(f"d{i}", 1) for i in range(4)
            ]
            built = getattr(importlib.import_module("deepctr_torch.models"), name)
            made: nn.Module = built(columns, columns, **more) if name != "PNN" else built(columns, **more)
            return made

        return make

    table = (side_by_side(integers(10, 64, 4), noise(64, 4)),)
    for name in ("WDL", "DeepFM", "xDeepFM", "DCN", "DCNMix", "AutoInt", "NFM", "PNN", "FiBiNET", "AFN", "IFM", "DIFM"):
        yield f"deepctr-torch: {name}", recommender(name), table


def flows() -> Iterator[Entry]:
    def normalizing(kind: str) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            nf = importlib.import_module("normflows")
            layers: list[nn.Module] = []
            for _ in range(4):
                if kind == "RealNVP":
                    layers += [
                        nf.flows.AffineCouplingBlock(nf.nets.MLP([1, 32, 32, 2], init_zeros=False)),
                        nf.flows.Permute(2, mode="swap"),
                    ]
                elif kind == "planar":
                    layers.append(nf.flows.Planar(2))
                elif kind == "radial":
                    layers.append(nf.flows.Radial(2))
                elif kind == "spline":
                    layers += [nf.flows.AutoregressiveRationalQuadraticSpline(2, 1, 32), nf.flows.LULinearPermute(2)]
                else:
                    layers.append(nf.flows.MaskedAffineAutoregressive(2, 32))
            made: nn.Module = nf.NormalizingFlow(nf.distributions.DiagGaussian(2, trainable=False), layers)
            return made

        return make

    for kind in ("RealNVP", "planar", "radial", "spline", "masked"):
        yield f"normflows: {kind}", normalizing(kind), (noise(64, 2),)

    class LogDensity(nn.Module):
        """The density of a flow, as a forward pass."""

        def __init__(self, flow: nn.Module) -> None:
            super().__init__()
            self.flow = flow

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.flow.log_prob(x) if hasattr(self.flow, "log_prob") else self.flow().log_prob(x)
            return found

    n = "nflows.flows"
    yield "nflows: SimpleRealNVP", lambda: LogDensity(of(n, "SimpleRealNVP", 4, 32, 2, 2)()), (noise(64, 4),)
    yield (
        "nflows: MaskedAutoregressiveFlow",
        lambda: LogDensity(of(n, "MaskedAutoregressiveFlow", 4, 32, 2, 2)()),
        (noise(64, 4),),
    )
    for name in ("NSF", "MAF", "NICE", "GF", "NAF", "SOSPF"):
        yield (
            f"zuko: {name}",
            lambda name=name: LogDensity(of("zuko.flows", name, 4, transforms=2, hidden_features=(32, 32))()),
            (noise(64, 4),),
        )


def sciences() -> Iterator[Entry]:
    n = "neuralop.models"
    yield (
        "neuraloperator: FNO",
        of(n, "FNO", n_modes=(8, 8), in_channels=1, out_channels=1, hidden_channels=32),
        (noise(2, 1, 32, 32),),
    )
    yield (
        "neuraloperator: FNO, one dimension",
        of(n, "FNO", n_modes=(8,), in_channels=1, out_channels=1, hidden_channels=32),
        (noise(4, 1, 64),),
    )
    yield (
        "neuraloperator: TFNO",
        of(
            n,
            "TFNO",
            n_modes=(8, 8),
            in_channels=1,
            out_channels=1,
            hidden_channels=32,
            factorization="tucker",
            rank=0.5,
        ),
        (noise(2, 1, 32, 32),),
    )
    yield "pykan: KAN", of("kan", "KAN", width=[4, 8, 1], grid=3, k=3, auto_save=False, device="cpu"), (noise(64, 4),)
    yield "pykan: MLP", of("kan.MLP", "MLP", [4, 32, 32, 1]), (noise(64, 4),)
    yield "ncps: CfC", of("ncps.torch", "CfC", 8, 32), (noise(4, 8, 8),)
    yield "ncps: LTC", of("ncps.torch", "LTC", 8, 16), (noise(4, 4, 8),)
    yield "e3nn: FullyConnectedNet", of("e3nn.nn", "FullyConnectedNet", [8, 32, 32, 4], torch.relu), (noise(64, 8),)
    yield "pytorch-tcn: TCN", of("pytorch_tcn", "TCN", 8, [32, 32, 32]), (noise(4, 8, 64),)
    yield (
        "pytorch-tcn: TCN, weight norm",
        of("pytorch_tcn", "TCN", 8, [32, 32, 32], use_norm="weight_norm"),
        (noise(4, 8, 64),),
    )

    def spiking() -> nn.Module:
        s = importlib.import_module("snntorch")
        return nn.Sequential(
            nn.Linear(16, 64),
            s.Leaky(beta=0.9, init_hidden=True),
            nn.Linear(64, 8),
            s.Leaky(beta=0.9, init_hidden=True),
        )

    yield "snntorch: leaky neurons", spiking, (noise(64, 16),)

    class Ode(nn.Module):
        """An ordinary differential equation whose right-hand side is a perceptron."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))

        def forward(self, x: Tensor) -> Tensor:
            solve = importlib.import_module("torchdiffeq").odeint
            found: Tensor = solve(lambda t, y: self.net(y), x, torch.tensor([0.0, 1.0]), method="rk4")
            return found[-1]

    yield "torchdiffeq: neural ODE", Ode, (noise(64, 4),)


def policies() -> Iterator[Entry]:
    def policy(name: str, picture: bool) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            spaces = importlib.import_module("gymnasium").spaces
            common = importlib.import_module("stable_baselines3.common.policies")
            box = spaces.Box(0, 255, (3, 64, 64), "uint8") if picture else spaces.Box(-1, 1, (8,))
            if name == "DQN":
                q = importlib.import_module("stable_baselines3.dqn.policies")
                dqn: nn.Module = (q.CnnPolicy if picture else q.MlpPolicy)(box, spaces.Discrete(4), lambda _: 1e-3)
                return dqn
            if name in ("SAC", "TD3"):
                p = importlib.import_module(f"stable_baselines3.{name.lower()}.policies")
                other: nn.Module = p.MlpPolicy(box, spaces.Box(-1, 1, (2,)), lambda _: 1e-3)
                return other
            kind = common.ActorCriticCnnPolicy if picture else common.ActorCriticPolicy
            made: nn.Module = kind(box, spaces.Discrete(4), lambda _: 1e-3)
            return made

        return make

    yield "DQN, MLP", policy("DQN", False), (noise(64, 8),)
    yield "DQN, CNN", policy("DQN", True), (uniform(8, 3, 64, 64),)
    yield "actor-critic, MLP", policy("A2C", False), (noise(64, 8),)
    yield "actor-critic, CNN", policy("A2C", True), (uniform(8, 3, 64, 64),)
    yield "SAC", policy("SAC", False), (noise(64, 8),)
    yield "TD3", policy("TD3", False), (noise(64, 8),)


def classifiers() -> Iterator[Entry]:
    yield (
        "efficientnet-pytorch: B0",
        lambda: importlib.import_module("efficientnet_pytorch").EfficientNet.from_name(
            "efficientnet-b0", num_classes=10
        ),
        (noise(4, 3, 64, 64),),
    )
    yield (
        "facenet-pytorch: InceptionResnetV1",
        of("facenet_pytorch", "InceptionResnetV1", classify=True, num_classes=10),
        (noise(4, 3, 96, 96),),
    )
    yield "facenet-pytorch: PNet", of("facenet_pytorch.models.mtcnn", "PNet", pretrained=False), (PICTURES,)
    yield (
        "segment-anything: ImageEncoderViT",
        of(
            "segment_anything.modeling",
            "ImageEncoderViT",
            img_size=64,
            patch_size=8,
            embed_dim=64,
            depth=4,
            num_heads=4,
            out_chans=32,
            use_rel_pos=True,
            window_size=4,
            global_attn_indexes=(1, 3),
        ),
        (PICTURES,),
    )
    p = "pretrainedmodels.models"
    for module, name, size in (
        ("xception", "xception", 64),
        ("bninception", "bninception", 224),
        ("fbresnet", "fbresnet152", 224),
        ("dpn", "dpn68", 64),
    ):
        yield f"pretrainedmodels: {name}", of(f"{p}.{module}", name, pretrained=None), (noise(2, 3, size, size),)
    yield (
        "lightly: ResNetGenerator",
        lambda: importlib.import_module("lightly.models").ResNetGenerator("resnet-9", num_classes=10),
        (noise(4, 3, 32, 32),),
    )
    k = "kornia.feature"
    for name in ("HardNet", "HardNet8", "SOSNet", "TFeat", "HyNet"):
        yield f"kornia: {name}", of(k, name, pretrained=False), (noise(8, 1, 32, 32),)
    yield "kornia: DISK", of(k, "DISK", 32), (noise(1, 3, 64, 64),)
    yield "kornia: XFeat", of(k, "XFeatModel"), (noise(2, 1, 64, 64),)
    yield (
        "lpips: LPIPS",
        of("lpips", "LPIPS", net="squeeze", pretrained=False, pnet_rand=True, verbose=False),
        (PICTURES, noise(2, 3, 64, 64)),
    )


FAMILIES = """
cait_xxs24_224 coat_tiny coatnet_nano_cc_224 convit_tiny convnext_atto_rms cpubone_nano crossvit_tiny_240
cs3darknet_focus_s cspnext_tiny deit_tiny_patch16_224 densenet121 dla46x_c dpn48b edgenext_xx_small
efficientformer_l1 efficientformerv2_s0 efficientnet_b0 efficientvim_m1 efficientvit_b0 efficientvit_m0
ese_vovnet19b_slim_dw eva02_tiny_patch14_224 fasternet_t0 fastvit_t8 gcvit_xxtiny ghostnet_050 gmlp_ti16_224
halonet_h1 hardcorenas_b hgnetv2_b0 hrnet_w18_small iformer_t inception_next_atto lcnet_035 lcnetv2_small
legacy_seresnet18 levit_128s lowformer_b0 mobileone_s1 mobilevit_xxs nf_regnet_b0 pit_ti_224 poolformer_s12
pvt_v2_b0 regnetx_002 repghostnet_050 repvit_m1 resnest14d resnet10t resnetv2_18 rexnet_100 shvit_s1 skresnet18
starnet_s050 swiftformer_xs test_mambaout test_vit test_vit_relpos tiny_vit_5m_224 visformer_tiny
vit_tiny_r_s16_p8_224 xcit_nano_12_p8_224
"""
"""The smallest model of each family of timm that has one of up to 15 million parameters."""
SIZES = {
    "crossvit_tiny_240": 240,
    "cs3darknet_focus_s": 256,
    "edgenext_xx_small": 256,
    "fastvit_t8": 256,
    "halonet_h1": 256,
    "mobilevit_xxs": 256,
    "nf_regnet_b0": 192,
    "resnet10t": 176,
    "test_mambaout": 160,
    "test_vit": 160,
    "test_vit_relpos": 160,
}
"""Of pictures, where they are not 224 x 224."""


def timm() -> Iterator[Entry]:
    for name in FAMILIES.split():
        size = SIZES.get(name, 224)
        yield name, of("timm", "create_model", name), (noise(2, 3, size, size),)


def spandrel() -> Iterator[Entry]:
    s = "spandrel.architectures"
    picture = (noise(1, 3, 32, 32),)
    found: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("Compact.__arch.SRVGG", "SRVGGNetCompact", {"num_feat": 32, "num_conv": 8}),
        ("ESRGAN.__arch.RRDB", "RRDBNet", {"num_filters": 32, "num_blocks": 2}),
        (
            "SwinIR",
            "SwinIR",
            {"img_size": 32, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 2], "window_size": 8},
        ),
        (
            "Swin2SR",
            "Swin2SR",
            {"img_size": 32, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 2], "window_size": 8},
        ),
        ("HAT", "HAT", {"img_size": 32, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 2), "window_size": 8}),
        ("OmniSR", "OmniSR", {"num_feat": 32, "res_num": 2}),
        ("SPAN", "SPAN", {"num_in_ch": 3, "num_out_ch": 3, "feature_channels": 32}),
        ("SAFMN", "SAFMN", {"dim": 32, "n_blocks": 4}),
        ("RGT", "RGT", {"img_size": 32, "embed_dim": 32, "depth": [2, 2], "num_heads": [2, 2]}),
        ("PLKSR", "PLKSR", {"dim": 32, "n_blocks": 4}),
        ("NAFNet", "NAFNet", {"width": 16, "middle_blk_num": 1, "enc_blk_nums": [1, 1], "dec_blk_nums": [1, 1]}),
        ("DnCNN", "DnCNN", {"in_nc": 3, "out_nc": 3, "nc": 32, "nb": 8}),
        (
            "GRL",
            "GRL",
            {"img_size": 32, "embed_dim": 32, "depths": [2, 2], "num_heads_window": [2, 2], "num_heads_stripe": [2, 2]},
        ),
        ("KBNet", "KBNet_s", {"width": 16}),
        ("FFTformer", "FFTformer", {"dim": 16, "num_blocks": [1, 1, 1]}),
        ("RCAN", "RCAN", {"n_resgroups": 2, "n_resblocks": 2, "n_feats": 32}),
        ("SeemoRe", "SeemoRe", {"embedding_dim": 24, "num_layers": 2}),
        (
            "DRCT",
            "DRCT",
            {"img_size": 32, "window_size": 8, "embed_dim": 32, "depths": (2, 2), "num_heads": (2, 2), "gc": 8},
        ),
        (
            "ATD",
            "ATD",
            {
                "img_size": 32,
                "embed_dim": 32,
                "depths": (2, 2),
                "num_heads": (2, 2),
                "window_size": 8,
                "category_size": 64,
                "num_tokens": 16,
                "reducted_dim": 4,
            },
        ),
    )
    for folder, name, options in found:
        yield name, of(f"{s}.{folder}", name, **options), picture


def super_image() -> Iterator[Entry]:
    for name, options in (
        ("Edsr", {"n_resblocks": 4, "n_feats": 32}),
        ("Carn", {}),
        ("Pan", {}),
        ("Msrn", {}),
        ("Rcan", {"n_resgroups": 2, "n_resblocks": 2, "n_feats": 32}),
        ("A2n", {}),
        ("Awsrn", {}),
    ):

        def make(name: str = name, options: dict[str, Any] = options) -> nn.Module:
            module = importlib.import_module("super_image")
            made: nn.Module = getattr(module, f"{name}Model")(getattr(module, f"{name}Config")(scale=2, **options))
            return made

        yield f"{name}Model", make, (noise(1, 3, 32, 32),)


def litgpt() -> Iterator[Entry]:
    base = {"block_size": 64, "vocab_size": 256, "padded_vocab_size": 256, "n_layer": 4, "n_head": 4, "n_embd": 64}

    def gpt(**more: Any) -> Callable[[], nn.Module]:
        def make() -> nn.Module:
            m = importlib.import_module("litgpt.model")
            made: nn.Module = m.GPT(m.Config(**base, **more))
            return made

        return make

    llama = {
        "norm_class_name": "RMSNorm",
        "mlp_class_name": "LLaMAMLP",
        "intermediate_size": 176,
        "bias": False,
        "rotary_percentage": 1.0,
        "parallel_residual": False,
    }
    yield "GPT, NeoX", gpt(), (TOKENS,)
    yield "GPT, Llama", gpt(n_query_groups=2, **llama), (TOKENS,)
    yield (
        "GPT, Gemma",
        gpt(**{**llama, "mlp_class_name": "GemmaMLP"}, scale_embeddings=True, n_query_groups=1),
        (TOKENS,),
    )
    yield "GPT, experts", gpt(**{**llama, "mlp_class_name": "LLaMAMoE"}, n_expert=4, n_expert_per_token=2), (TOKENS,)


def transformers() -> Iterator[Entry]:
    yield from hugging_face.entries()


LIBRARIES: dict[str, Callable[[], Iterator[Entry]]] = {
    function.__name__: function
    for function in (
        diffusers,
        torch_geometric,
        open_clip,
        monai,
        segmentation_models_pytorch,
        mambapy,
        vit_pytorch,
        x_transformers,
        attention_variants,
        tables,
        flows,
        sciences,
        policies,
        classifiers,
        spandrel,
        super_image,
        litgpt,
        timm,
        transformers,
    )
}
"""By library; those of which there are few models are put together, and their names begin with the library's."""


def entries() -> dict[str, tuple[str, Entry]]:
    """Return library and entry of every model, under the name ``library: model``."""
    zoo.import_torchvision()
    found = {}
    for group, models in LIBRARIES.items():
        for entry in models():
            whole = entry[0] if ":" in entry[0] else f"{group}: {entry[0]}"
            found[whole] = (whole.partition(":")[0], entry)
    return found
