"""Models of libraries that batch 3 met first, small, each with its example arguments."""

from __future__ import annotations

import torch

from nets.untried import Arguments, Entries, noise, tokens

ENTRIES = Entries()


def add(library: str, name: str, arguments: Arguments, *args: object, path: str = "", **options: object) -> None:
    """Enter a model of a library whose module has its name."""
    ENTRIES.add(library, path or library.replace("-", "_"), name, arguments, *args, **options)


WORDS, SEQUENCE, PICTURE = tokens(100, 2, 32), noise(2, 32, 32), noise(2, 3, 32, 32)
MAP = noise(2, 32, 16, 16)

add("mega-pytorch", "Mega", WORDS, num_tokens=100, dim=32, depth=2, attn_dim_qk=16, attn_dim_value=64)
add("mega-pytorch", "MegaLayer", SEQUENCE, dim=32, attn_dim_qk=16, attn_dim_value=64, laplacian_attn_fn=True)
add("mega-pytorch", "MultiHeadedEMA", SEQUENCE, dim=32, heads=4)
add("block-recurrent-transformer-pytorch", "BlockRecurrentTransformer", tokens(100, 2, 32), num_tokens=100, dim=32,
    depth=3, dim_head=16, heads=2, max_seq_len=64, block_width=16, recurrent_layers=(2,))  # fmt: skip
add("hourglass-transformer-pytorch", "HourglassTransformerLM", WORDS, num_tokens=100, dim=32, max_seq_len=32,
    depth=(1, 2, 1), shorten_factor=2, heads=2, dim_head=16)  # fmt: skip
add("hourglass-transformer-pytorch", "HourglassTransformer", SEQUENCE, 32, depth=(1, 1, 1), shorten_factor=4,
    updown_sample_type="linear", heads=2, dim_head=16)  # fmt: skip
add("charformer-pytorch", "GBST", tokens(100, 2, 64), num_tokens=100, dim=32, max_block_size=4, downsample_factor=4)
add("geometric-vector-perceptron", "GVP", lambda: ((torch.randn(16, 64), torch.randn(16, 32, 3)),), dim_vectors_in=32,
    dim_vectors_out=16, dim_feats_in=64, dim_feats_out=32, vector_gating=True)  # fmt: skip
add("rela-transformer", "ReLATransformer", WORDS, num_tokens=100, dim=32, depth=2, max_seq_len=32, heads=2, dim_head=16)
add("remixer-pytorch", "RemixerBlock", SEQUENCE, dim=32, seq_len=32)
add("res-mlp-pytorch", "ResMLP", PICTURE, image_size=32, patch_size=8, dim=32, depth=3, num_classes=10)
add("mixture-of-experts", "MoE", SEQUENCE, 32, num_experts=4)
add("mixture-of-experts", "HeirarchicalMoE", SEQUENCE, 32, num_experts=(2, 2))
add("st-moe-pytorch", "MoE", SEQUENCE, 32, num_experts=4)
add("flamingo-pytorch", "FlamingoPaLM", lambda: {"text": torch.randint(3, 100, (2, 24)),
    "images": torch.randn(2, 1, 8, 32)}, dim=32, num_tokens=100,
    depth=2, dim_head=16, heads=2)  # fmt: skip
add("flamingo-pytorch", "PerceiverResampler", noise(2, 2, 16, 32), dim=32, depth=2, dim_head=16, heads=2, num_latents=8)
add("flamingo-pytorch", "GatedCrossAttentionBlock", lambda: (torch.randn(2, 12, 32), torch.randn(2, 1, 8, 32)), dim=32,
    dim_head=16, heads=2)  # fmt: skip
add("fast-transformer-pytorch", "FastTransformer", WORDS, num_tokens=100, dim=32, depth=2, max_seq_len=32, heads=2,
    dim_head=16, absolute_pos_emb=True)  # fmt: skip
add("deformable-attention", "DeformableAttention", MAP, dim=32, dim_head=16, heads=2)
add("deformable-attention", "DeformableAttention1D", noise(2, 32, 64), dim=32, dim_head=16, heads=2)
add("deformable-attention", "DeformableAttention3D", noise(1, 32, 8, 8, 8), dim=32, dim_head=16, heads=2,
    downsample_factor=(2, 4, 4), offset_scale=(1, 2, 2), offset_kernel_size=(4, 6, 6))  # fmt: skip
add("token-shift-gpt", "TokenShiftGPT", WORDS, num_tokens=100, dim=32, max_seq_len=32, depth=2)
add("minGRU-pytorch", "minLM", WORDS, num_tokens=100, dim=32, depth=2, path="minGRU_pytorch.minLM")
add("minGRU-pytorch", "minLSTM", SEQUENCE, 32, path="minGRU_pytorch.minLSTM")
add("minGRU-pytorch", "minGRU", SEQUENCE, 32, expansion_factor=1.5)
add("ETSformer-pytorch", "ETSFormer", lambda: {"x": torch.randn(2, 64, 4), "num_steps_forecast": 16}, time_features=4,
    model_dim=32, layers=2, heads=4, K=2, path="etsformer_pytorch")  # fmt: skip
add("x-unet", "XUnet", PICTURE, dim=16, channels=3, dim_mults=(1, 2), nested_unet_depths=(2, 1), nested_unet_dim=8,
    num_blocks_per_stage=(1, 1), num_self_attn_per_stage=(0, 1))  # fmt: skip
add("x-unet", "NestedResidualUnet", noise(2, 32, 1, 16, 16), 32, depth=2, dim_inner=16)
add("perceiver-ar-pytorch", "PerceiverAR", tokens(100, 2, 64), num_tokens=100, dim=32, depth=2, max_seq_len=64,
    cross_attn_seq_len=32, heads=2, dim_head=32)  # fmt: skip
add("tranception-pytorch", "Tranception", tokens(21, 2, 32), dim=32, depth=2, heads=4, dim_head=16)
add("protein-bert-pytorch", "ProteinBERT", lambda: (torch.randint(21, (2, 48)), torch.randint(2, (2, 50)).float()),
    num_tokens=21, num_annotation=50, dim=32, dim_global=32, depth=2, attn_heads=2, attn_dim_head=16)  # fmt: skip
n = "nbeats_pytorch.model"
add("nbeats-pytorch", "NBeatsNet", noise(8, 24), path=n, forecast_length=6, backcast_length=24, nb_blocks_per_stack=2,
    hidden_layer_units=32)  # fmt: skip
add("nbeats-pytorch", "GenericBlock", noise(8, 24), 32, 8, torch.device("cpu"), 24, 6, path=n)
add("taylor-series-linear-attention", "ViT", PICTURE, image_size=32, patch_size=8, num_classes=10, dim=32, depth=2,
    heads=4)  # fmt: skip
add("taylor-series-linear-attention", "TaylorSeriesLinearAttn", SEQUENCE, 32, dim_head=8, heads=4)
add("simple-hierarchical-transformer", "HierarchicalTransformer", WORDS, num_tokens=100, dim=32, depth=2, seq_len=32,
    dim_head=16, heads=2, hierarchies=(1, 2), window_sizes=(16, 16))  # fmt: skip
add("nGPT-pytorch", "nGPT", WORDS, num_tokens=100, dim=32, depth=2, dim_head=16, heads=2, manual_norm_weights=True)
add(
    "nGPT-pytorch",
    "nTransformer",
    SEQUENCE,
    dim=32,
    depth=2,
    dim_head=16,
    heads=2,
    causal=False,
    manual_norm_weights=True,
)
add("colt5-attention", "ConditionalRoutedFeedForward", noise(2, 64, 32), 32, num_heavy_tokens=16)
add("colt5-attention", "ConditionalRoutedViT", PICTURE, image_size=32, patch_size=4, num_classes=10, dim=32, depth=2,
    attn_num_heavy_tokens_q=16, attn_num_heavy_tokens_kv=16, attn_heavy_dim_head=16, attn_heavy_heads=2,
    attn_light_dim_head=16, attn_light_heads=2, attn_light_window_size=8, ff_num_heavy_tokens=16, ff_heavy_mult=4,
    ff_light_mult=2)  # fmt: skip
add("sru", "SRU", noise(12, 4, 32), 32, 32, num_layers=3)
g = "lightweight_gan.lightweight_gan"
add("lightweight-gan", "Generator", noise(4, 32), path=g, image_size=32, latent_dim=32, fmap_max=32, attn_res_layers=[])
add("lightweight-gan", "Discriminator", noise(4, 3, 64, 64), path=g, image_size=64, fmap_max=32, attn_res_layers=[])
add("invariant-point-attention", "IPABlock", lambda: {"x": torch.randn(2, 16, 32), "pairwise_repr":
    torch.randn(2, 16, 16, 32), "rotations": torch.linalg.qr(torch.randn(2, 16, 3, 3)).Q,
    "translations": torch.randn(2, 16, 3)}, dim=32, heads=2)  # fmt: skip
add("neuromancer", "RNN", noise(12, 4, 8), 8, hsizes=(16, 16), path="neuromancer.modules.rnn")
v = "bayesian_torch.models.bayesian"
add("bayesian-torch", "SCNN", noise(4, 1, 28, 28), path=f"{v}.simple_cnn_variational")
add("bayesian-torch", "resnet20", noise(4, 3, 32, 32), path=f"{v}.resnet_variational")
add("pypots", "BackboneDLinear", lambda: (torch.randn(4, 24, 5), torch.randn(4, 24, 5)), 24, 5, d_model=16,
    path="pypots.nn.modules.dlinear")  # fmt: skip
add("pypots", "CsdiDiffusionModel", lambda: (torch.randn(2, 2, 5, 12), torch.randn(2, 16, 5, 12),
    torch.randint(50, (2,))), 50, 32, 2, 16, 16, 2, 2, path="pypots.nn.modules.csdi")  # fmt: skip
