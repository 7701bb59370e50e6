"""Models of libraries that batch 11 met first, of many authors, small, each with its example arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from nets.untried import Entries, module, noise, tokens

ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter

PICTURE, TABLE, WORDS = noise(8, 3, 32, 32), noise(32, 8), tokens(200, 8, 24)

# ------------------------------------------------------------------------------------------------------------- pictures
add("mobileone-pytorch", "mobileone_pytorch._mobileone_network", "MobileOneNetwork", noise(8, 3, 64, 64),
    [2, 2, 1, 1, 1], [16, 16, 24, 32, 48], [1, 1, 2, 2, 1], [2, 2, 2, 2, 2], 10)  # fmt: skip
add("broccoli-ml", "broccoli.vit", "ViT", PICTURE, (32, 32), 10, transformer_embedding_size=128, transformer_layers=3)
add("broccoli-ml", "broccoli.transformer", "TransformerEncoder", noise(8, 24, 32), 24, 32, 2, 4, msa_dropout=0.1,
    ff_dropout=0.1)  # fmt: skip


def scenes() -> nn.Module:
    """Return an encoder of pictures that keeps its maps large, and a decoder of what is where."""
    m = module("mit_semseg.models.models")
    encoder = m.MobileNetV2Dilated(module("mit_semseg.models.mobilenet").MobileNetV2(width_mult=0.5))
    return nn.Sequential(encoder, m.C1(num_class=6, fc_dim=160))


enter("mit-semseg", "MobileNetV2Dilated and C1", scenes, noise(4, 3, 64, 64))
add("mit-semseg", "mit_semseg.models.mobilenet", "MobileNetV2", noise(4, 3, 64, 64), 10, 64, 0.5)
add("pixseg", "pixseg.models.enet", "ENet", noise(4, 3, 64, 64), 6)


def rows(name: str) -> nn.Module:
    """Return a model of what is where upon a light backbone."""
    net = module("torchvision.models").mobilenet_v3_small(weights=None)
    backbone = module("pixseg.models.backbones.mobilenet_v3").MobileNetV3Backbone(net)
    seen = {key: value.shape[1] for key, value in backbone.eval()(torch.randn(1, 3, 64, 64)).items()}
    made: nn.Module = getattr(module("pixseg.models"), name)(6, backbone.train(), seen)
    return made


enter("pixseg", "SFNet", lambda: rows("SFNet"), noise(4, 3, 64, 64))
enter("pixseg", "UperNet", lambda: rows("UperNet"), noise(4, 3, 64, 64))


def detector() -> nn.Module:
    """Return a detector of boxes."""
    options = module("rtmdet.config.rtmdet_config").RTMDetConfig(deepen_factor=0.167, widen_factor=0.25,
        neck_out_channels=64, num_classes=5, img_size=64)  # fmt: skip
    made: nn.Module = module("rtmdet.rtmdet").RTMDet(options)
    return made


enter("rtmdet", "RTMDet", detector, lambda: (torch.randn(4, 3, 64, 64), True))


def solid(kind: str, **options: Any) -> nn.Module:
    """Return a model of volumes."""
    m = module(f"medimm.models.{kind.lower()[:-2]}_3d")
    made: nn.Module = getattr(m, kind)(getattr(m, f"{kind}Config")(**options))
    return made


SCAN = noise(4, 1, 32, 32, 32)
enter("medimm", "ConvNeXt3d", lambda: solid("ConvNeXt3d", channels=(16, 32, 48), depths=(1, 1, 2), stem_stride=2,
    drop_path_rate=0.1), SCAN)  # fmt: skip
enter("medimm", "UNet3d", lambda: solid("UNet3d", hidden_channels=(8, 16, 32), depths=(1, 1, 1), num_attn_heads=4,
    time_embed_dim=64), lambda: (torch.randn(4, 1, 16, 16, 16), torch.rand(4)))  # fmt: skip
enter("medimm", "ViT3d", lambda: solid("ViT3d", image_size=(32, 32, 32), patch_size=8, embed_dim=48, depth=3,
    num_heads=4), SCAN)  # fmt: skip
add("instanseg-torch", "instanseg.utils.models.InstanSeg_UNet", "InstanSeg_UNet", noise(4, 3, 64, 64), 3, [[2, 2, 1]],
    [64, 32, 16, 8])  # fmt: skip
add("instanseg-torch", "instanseg.utils.models.ChannelInvariantNet", "ChannelInvariantNet", noise(4, 5, 32, 32), 3)


def turning() -> nn.Module:
    """Return reversible layers."""
    r = module("revlib")
    blocks = [nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), r.ReversibleSequential(*blocks), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 10))  # fmt: skip


enter("revlib", "ReversibleSequential", turning, PICTURE)

# ----------------------------------------------------------------------------------------------- graphs and molecules
add("gotennet-pytorch", "gotennet_pytorch", "GotenNet", lambda: (torch.randint(14, (4, 12)), 2 * torch.randn(4, 12, 3),
    ~torch.eye(12, dtype=torch.bool).expand(4, 12, 12)), 32, 2, 2, heads=4, dim_head=8)  # fmt: skip


def multivectors() -> nn.Module:
    """Return a transformer of geometric algebra."""
    g = module("ezgatr.nets.mv_only_gatr")
    made: nn.Module = g.MVOnlyGATrModel(g.MVOnlyGATrConfig(num_layers=2, size_context=64, size_channels_in=2,
        size_channels_out=1, size_channels_hidden=8, size_channels_intermediate=8))  # fmt: skip
    return made


enter("ezgatr", "MVOnlyGATrModel", multivectors, noise(8, 24, 2, 16))


def bonds() -> tuple[Any, ...]:
    """Return features of atoms, edges between them, the features of these and their directions."""
    o3 = module("e3nn.o3")
    pos, edges = torch.randn(40, 3), torch.randint(40, (2, 160))
    way = pos[edges[0]] - pos[edges[1]] + 1e-3
    return (torch.randn(40, 16 + 3 * 8), edges, torch.randn(160, 8), o3.spherical_harmonics([0, 1], way, True))


def equivariant(name: str) -> nn.Module:
    """Return layers that turn as their inputs do."""
    atoms, ways = (module("e3nn.o3").Irreps(text) for text in ("16x0e + 8x1o", "1x0e + 1x1o"))
    made: nn.Module = getattr(module("e3tools.nn"), name)(atoms, atoms, ways, edge_attr_dim=8)
    return made


enter("e3tools", "ConvBlock", lambda: equivariant("ConvBlock"), bonds)
enter("e3tools", "TransformerBlock", lambda: equivariant("TransformerBlock"), bonds)


def chain() -> tuple[Any, ...]:
    """Return residues of four proteins, the nearest neighbours of each, features of these pairs, and whose each is."""
    of = torch.arange(4).repeat_interleave(16)
    near = torch.cat([torch.randperm(16)[:8] + 16 * k for k in of.tolist()])
    return (torch.randn(64, 165), torch.randn(512, 413), torch.stack([torch.arange(64).repeat_interleave(8), near]), of)


add("pifold-pytorch", "pifold_pytorch.pifold_pytorch", "PiFold", chain, d_emb=32, n_heads=4, num_layers=3,
    n_neighbors=8)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------- series


def windows() -> tuple[Any, ...]:
    """Return what was, and what else is known of what was and will be."""
    return ({"encoding.targets": torch.randn(16, 24, 1), "encoding.nontargets": torch.randn(16, 24, 3),
        "decoding.nontargets": torch.randn(16, 6, 3), "decoding.targets": torch.randn(16, 6, 1)},)  # fmt: skip


d = "deep_time_series.model"
NAMED = {"encoding_length": 24, "decoding_length": 6, "target_names": ["y"], "nontarget_names": ["a", "b", "c"]}
add("deep-time-series", d, "MLP", windows, 32, n_hidden_layers=2, dropout_rate=0.1, **NAMED)
add("deep-time-series", d, "DilatedCNN", windows, 32, dilation_base=2, kernel_size=3, **NAMED)
add("deep-time-series", d, "RNN", windows, 32, n_layers=2, rnn_class=nn.LSTM, dropout_rate=0.1, **NAMED)
add("deep-time-series", d, "SingleShotTransformer", windows, d_model=32, n_heads=4, n_layers=2, dropout_rate=0.1,
    **NAMED)  # fmt: skip
add("neuralfields", "neuralfields", "NeuralField", noise(8, 30, 4), 4, 32, 3, mirrored_conv_weights=True,
    conv_kernel_size=5)  # fmt: skip


def field(dynamics: str) -> nn.Module:
    """Return potentials that grow and decay."""
    n = module("neuralfields")
    made: nn.Module = n.SimpleNeuralField(4, 6, getattr(n, dynamics))
    return made


enter("neuralfields", "SimpleNeuralField", lambda: field("pd_cubic"), noise(8, 30, 4))
n = "neural_ssm"
add("neural-ssm", n, "DeepSSM", noise(8, 40, 3), 3, 2, d_model=16, d_state=16, n_layers=2)
add("neural-ssm", n, "DeepSSM", noise(8, 40, 3), 3, 2, d_model=16, d_state=16, n_layers=2, param="l2n", gamma=1.0,
    label="DeepSSM, bounded")  # fmt: skip
add("neural-ssm", "neural_ssm.ssm.cells.selective.tv", "RobustMambaDiagSSM", noise(8, 40, 16), 16, 16)

# ------------------------------------------------------------------------------------------------------------- genomes
add("alphagenome-pytorch", "alphagenome_pytorch", "AlphaGenome", lambda: (torch.randint(4, (2, 2048)),
    torch.randint(2, (2,)), True), (24, 32, 40, 48, 56, 64, 72), transformer_kwargs={"depth": 2, "heads": 2,
    "dim_head_qk": 16, "dim_head_v": 16, "dim_pairwise": 16})  # fmt: skip

# ----------------------------------------------------------------------------------------------------------- scattering
NEUTRONS = {"dim_out": 4, "layer_width": 64, "num_blocks": 2}


def curves() -> tuple[Any, ...]:
    """Return curves of reflected light, and the bounds of what they may stem from."""
    return (torch.randn(16, 128), torch.rand(16, 8) * 2 - 1)


r = "reflectorch.models.networks.mlp_networks"
add("reflectorch", r, "NetworkWithPriors", curves, "conv", {"hidden_channels": (16, 32, 64), "dim_embedding": 32,
    "use_batch_norm": True}, label="NetworkWithPriors, conv", **NEUTRONS)  # fmt: skip
add("reflectorch", r, "NetworkWithPriors", curves, "fno", {"in_channels": 1, "dim_embedding": 32, "modes": 16,
    "width_fno": 16, "n_fno_blocks": 3}, label="NetworkWithPriors, FNO", conditioning="film", **NEUTRONS)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------- tables
add("torchanfis", "torchanfis.torchanfis", "ANFIS", TABLE, 8, 3, 12)
add("torchanfis", "torchanfis.torchanfis", "ANFIS", TABLE, 8, 3, 12, "trapezoidal", label="ANFIS, trapezoidal")


def fuzzy(name: str, *args: int, rules: str = "coco") -> nn.Module:
    """Return a model of fuzzy rules."""
    h = module("highfis.memberships")
    sets = {f"x{k}": [h.GaussianMF(mean, 1.0) for mean in (-1.0, 0.0, 1.0)] for k in range(8 if rules == "coco" else 4)}
    made: nn.Module = getattr(module("highfis.models"), name)(sets, *args, rule_base=rules)
    return made


enter("highfis", "HTSKClassifierModel", lambda: fuzzy("HTSKClassifierModel", 3), TABLE)
enter("highfis", "ADATSKRegressorModel", lambda: fuzzy("ADATSKRegressorModel"), TABLE)
enter("highfis", "LogTSKRegressorModel, all rules", lambda: fuzzy("LogTSKRegressorModel", rules="cartesian"),
    noise(32, 4))  # fmt: skip
enter("highfis", "DGTSKClassifierModel", lambda: fuzzy("DGTSKClassifierModel", 3), TABLE)
p = "psann"
add("psann", "psann.nn", "ResidualPSANNNet", TABLE, 8, 2, hidden_layers=3, hidden_width=48)
add("psann", "psann.nn", "SGRPSANNSequenceNet", noise(16, 12, 8), 12, 8, 2, hidden_layers=2, hidden_units=48)
add("psann", "psann.models.wave_resnet", "WaveResNet", TABLE, 8, 48, 4, 2)
add("psann", "psann.nn_geo_sparse", "GeoSparseNet", noise(32, 32), 32, 2, shape=(4, 8), depth=3)

# --------------------------------------------------------------------------------------------------------- recommenders


def taste(name: str, **options: Any) -> nn.Module:
    """Return a recommender of the things that many people met."""
    import numpy as np

    draw = np.random.default_rng(0)
    pairs = np.unique(draw.integers(60, size=(600, 2)), axis=0)
    met = module("collie.interactions").Interactions(users=pairs[:, 0], items=pairs[:, 1], num_users=60, num_items=60,
        allow_missing_ids=True, remove_duplicate_user_item_pairs=False)  # fmt: skip
    made: nn.Module = getattr(module("collie.model"), name)(train=met, **options)
    return made


def meetings() -> tuple[Any, ...]:
    """Return people and things."""
    return (torch.randint(60, (64,)), torch.randint(60, (64,)))


enter("collie", "MatrixFactorizationModel", lambda: taste("MatrixFactorizationModel", embedding_dim=16), meetings)
enter("collie", "NeuralCollaborativeFiltering", lambda: taste("NeuralCollaborativeFiltering", embedding_dim=16),
    meetings)  # fmt: skip
enter("collie", "DeepFM", lambda: taste("DeepFM", embedding_dim=16), meetings)
enter("collie", "NonlinearMatrixFactorizationModel", lambda: taste("NonlinearMatrixFactorizationModel"), meetings)


def offers() -> Any:
    """Return who chose what in which session, and what was known of each."""
    return module("torch_choice.data").ChoiceDataset(item_index=torch.randint(5, (64,)),
        user_index=torch.randint(10, (64,)), session_index=torch.arange(64), num_items=5, num_users=10,
        item_cost=torch.randn(5, 3), user_age=torch.randn(10, 2), session_wet=torch.randn(64, 2))  # fmt: skip


def choices() -> nn.Module:
    """Return a model of choices."""
    made: nn.Module = module("torch_choice.model").ConditionalLogitModel(coef_variation_dict={"item_cost": "constant",
        "user_age": "item", "session_wet": "item-full", "intercept": "user"}, num_param_dict={"item_cost": 3,
        "user_age": 2, "session_wet": 2, "intercept": 1}, num_items=5, num_users=10)  # fmt: skip
    return made


enter("torch-choice", "ConditionalLogitModel", choices, lambda: (offers(),))

# --------------------------------------------------------------------------------------------------- players and bodies


def surgeon() -> nn.Module:
    """Return a policy of two robot arms."""
    s = module("srt_torch.main")
    made: nn.Module = s.SurgicalRobotTransformer(s.ModelConfig(image_size=(64, 64), num_encoder_layers=2,
        num_decoder_layers=2, hidden_dim=64, num_heads=4, feedforward_dim=128))  # fmt: skip
    return made


enter("srt-torch", "SurgicalRobotTransformer", surgeon, lambda: (module("srt_torch.main").RobotObservation(
    *torch.randn(4, 3, 64, 64)),))  # fmt: skip
add("skeletorch", "skeletorch.skeletorch", "SkeletonTransformer", noise(30, 34), 30, 2, 17, 32)
t = "torch_world.models.jepa"


def world(name: str, **options: Any) -> nn.Module:
    """Return a model that foresees what it would see."""
    w, nets = module(t), module("torch_world.nn")
    if name == "LeWM":
        encoder = nets.CLSEncoder(32, 8, 48, 2, 4)
        made: nn.Module = w.LeWM(encoder, 2, 48, depth=2, num_heads=4, head_dim=12, mlp_dim=96, proj_dim=96)
    elif name == "LeJEPA":
        made = w.LeJEPA(nets.CLSEncoder(32, 8, 48, 2, 4), nets.MLP([48, 96, 32], norm=nn.BatchNorm1d))
    else:
        encoder = nets.VisionTransformer(32, 8, embed_dim=48, depth=2, num_heads=4, **options)
        made = getattr(w, name)(encoder, nets.MaskedPredictor(encoder.grid, 48, 24, 2, 4))
    return made


def hidden(*shape: int, places: int = 16) -> Any:
    """Pictures, which of their parts are shown and which are to be foretold."""
    return lambda: (torch.randn(shape), [torch.stack([torch.randperm(places)[: places // 2] for _ in range(shape[0])])],
        [torch.stack([torch.randperm(places)[:4] for _ in range(shape[0])]) for _ in range(2)])  # fmt: skip


enter("torch-world", "LeWM", lambda: world("LeWM"), lambda: (torch.randn(8, 4, 3, 32, 32), torch.randn(8, 4, 2)))
enter("torch-world", "LeJEPA", lambda: world("LeJEPA"), noise(8, 4, 3, 32, 32))
enter("torch-world", "IJEPA", lambda: world("IJEPA"), hidden(8, 3, 32, 32))
enter("torch-world", "VJEPA", lambda: world("VJEPA", num_frames=4), hidden(4, 3, 4, 32, 32, places=32))

# --------------------------------------------------------------------------------------------------------------- sounds
add("piano-transcription-inference", "piano_transcription_inference.models", "AcousticModelCRnn8Dropout",
    lambda: (torch.randn(2, 1, 40, 229),), 88, 1792, 0.01)  # fmt: skip
HIFI = {"resblock": "1", "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8], "upsample_initial_channel": 64,
    "resblock_kernel_sizes": [3, 7], "resblock_dilation_sizes": [[1, 3, 5]] * 2}  # fmt: skip


def voiced(name: str) -> nn.Module:
    """Return a vocoder or what judges it."""
    m = module("matcha.hifigan.models")
    made: nn.Module = m.Generator(SimpleNamespace(**HIFI)) if name == "Generator" else getattr(m, name)(3)
    return made


enter("matcha-tts", "Generator", lambda: voiced("Generator"), noise(4, 80, 16))

# ---------------------------------------------------------------------------------------------------------------- words


def spoken(path: str, name: str, **options: Any) -> nn.Module:
    """Return a small language model."""
    m = module(f"fms.models.{path}")
    made: nn.Module = getattr(m, name)(getattr(m, f"{name}Config")(src_vocab_size=200, nheads=4, nlayers=2, **options))
    made.reset_parameters()
    return made


enter("ibm-fms", "LLaMA", lambda: spoken("llama", "LLaMA", emb_dim=64, kvheads=2, multiple_of=16), WORDS)
enter("ibm-fms", "GPTBigCode", lambda: spoken("gpt_bigcode", "GPTBigCode", emb_dim=64, p_dropout=0.1), WORDS)
enter("ibm-fms", "RoBERTa", lambda: spoken("roberta", "RoBERTa", emb_dim=64, max_pos=64), WORDS)
enter("ibm-fms", "Mixtral", lambda: spoken("mixtral", "Mixtral", dim=64, kvheads=2, hidden_dim=128, num_experts=4),
    WORDS)  # fmt: skip

# ----------------------------------------------------------------------------------------------------------- generative


def gan() -> nn.Module:
    """Return a generator of pictures of many kinds."""
    b = module("pytorch_pretrained_biggan")
    layers = [[False, 16, 16], [True, 16, 8], [True, 8, 4], [True, 4, 2], [False, 2, 1]]
    made: nn.Module = b.BigGAN(b.BigGANConfig(output_dim=32, z_dim=32, class_embed_dim=32, channel_width=8,
        num_classes=10, layers=layers, attention_layer_position=3))  # fmt: skip
    return made


enter("pytorch-pretrained-biggan", "BigGAN", gan, lambda: (torch.randn(8, 32), torch.eye(10)[torch.randint(10, (8,))],
    0.4))  # fmt: skip
k = "kappamodules"
add("kappamodules", f"{k}.unet.unet_denoising_diffusion", "UnetDenoisingDiffusion", lambda: (torch.randn(8, 3, 16, 16),
    torch.randn(8, 32)), 16, 3, 2, 2, num_heads=4, dim_cond=32)  # fmt: skip
add("kappamodules", f"{k}.unet.unet_pdearena", "UnetPdearena", lambda: (torch.randn(4, 3, 32, 32),
    torch.randn(4, 24)), 3, 2, 16, cond_dim=24, norm=True, ch_mults=(1, 2), is_attn=(False, True))  # fmt: skip
add("kappamodules", f"{k}.convolution.convnext", "ConvNext", PICTURE, 2, 3, [1, 1, 2], [16, 32, 48], 0.1)
add("kappamodules", f"{k}.transformer.mmdit_block", "MMDitBlock", lambda: ([torch.randn(8, 12, 32),
    torch.randn(8, 16, 32)], [torch.randn(8, 24), torch.randn(8, 24)]), 32, 4, cond_dim=24)  # fmt: skip


# ------------------------------------------------------------------------------------------------------- late arrivals
def edges() -> tuple[Any, ...]:
    """Return features of nodes, and edges between them."""
    return (torch.randn(60, 32), torch.randint(60, (2, 240)))


def weighed() -> tuple[Any, ...]:
    """Return features of nodes, edges between them, and the features of these."""
    return (*edges(), torch.randn(240, 8))


def general() -> nn.Module:
    """Return a layer that looks at the neighbours, and one that looks at all."""
    v = module("vgl.nn")
    made: nn.Module = v.GPSLayer(channels=32, local_gnn=v.GINConv(32, 32, train_eps=True), heads=4, dropout=0.1)
    return made


v = "vgl.nn"
add("sky-vgl", v, "GraphTransformerEncoder", edges, channels=32, num_layers=2, heads=4, dropout=0.1, beta=True)
enter("sky-vgl", "GPSLayer", general, edges)
add("sky-vgl", v, "PNAConv", edges, 32, 16)
add("sky-vgl", v, "GatedGCNConv", weighed, 32, 32, 8)


def tiles() -> dict[str, Any]:
    """Return pictures from above, when and where they were taken, how fine they are and in which wavelengths."""
    return {"datacube": {"pixels": torch.randn(4, 5, 64, 64), "time": torch.rand(4, 4) * 2 - 1,
        "latlon": torch.rand(4, 4) * 2 - 1, "gsd": torch.tensor(10.0),
        "waves": torch.tensor([0.49, 0.56, 0.665, 0.842, 1.61])}}  # fmt: skip


add("clay-foundation-model", "src.model", "Encoder", tiles, mask_ratio=0.5, patch_size=8, shuffle=True, dim=48, depth=2,
    heads=4, dim_head=12, mlp_ratio=2)  # fmt: skip


add("styletts2", "styletts2.Modules.diffusion.modules", "StyleTransformer1d", lambda: {"x": torch.randn(8, 1, 64),
    "time": torch.rand(8), "embedding": torch.randn(8, 20, 48), "features": torch.randn(8, 64)}, 2, 64, 4, 16, 2,
    context_features=64, context_embedding_features=48, embedding_max_length=20)  # fmt: skip
add("styletts2", "styletts2.Modules.discriminators", "WavLMDiscriminator", noise(4, 48, 40), 16, 3, 16)


def birdseye() -> tuple[Any, ...]:
    """Return what a lidar saw, seen from above."""
    return ({"processed_lidar": {"bev_input": (torch.rand(2, 9, 64, 64) < 0.1).float()}},)


add("opencoodx", "opencood.models.pixor", "PIXOR", birdseye, {"geometry_param":
    {"input_shape": [64, 64, 9], "label_shape": [16, 16, 7]}, "use_bn": True})  # fmt: skip
add("opencoodx", "opencood.models.sub_modules.naive_compress", "NaiveCompressor", noise(4, 32, 16, 16), 32, 4)
add("opencoodx", "opencood.models.sub_modules.convgru", "ConvGRU", noise(2, 5, 8, 16, 16), (16, 16), 8, [16, 16],
    [(3, 3), (3, 3)], 2, batch_first=True)  # fmt: skip


def posed(kind: str) -> nn.Module:
    """Return a model of where the joints of an animal are."""
    from omegaconf import OmegaConf

    backbone = {"unet": {"in_channels": 1, "kernel_size": 3, "filters": 8, "filters_rate": 1.5, "max_stride": 8,
        "stem_stride": None, "middle_block": True, "up_interpolate": True, "stacks": 1, "convs_per_block": 2,
        "output_stride": 2}, "convnext": {"in_channels": 1, "model_type": None, "arch": {"depths": [1, 1, 2, 1],
        "channels": [12, 16, 24, 32]}, "kernel_size": 3, "stem_patch_kernel": 4, "stem_patch_stride": 2,
        "filters_rate": 1.5, "up_interpolate": True, "convs_per_block": 2, "max_stride": 16, "output_stride": 2,
        "stem_stride": None}}[kind]  # fmt: skip
    head = {"confmaps": {"part_names": [f"p{k}" for k in range(5)], "sigma": 2.5, "output_stride": 2}}
    made: nn.Module = module("sleap_nn.architectures.model").Model(kind, OmegaConf.create(backbone),
        OmegaConf.create(head), "single_instance")  # fmt: skip
    return made


enter("sleap-nn", "Model, U-Net", lambda: posed("unet"), noise(4, 1, 64, 64))
enter("sleap-nn", "Model, ConvNeXt", lambda: posed("convnext"), noise(4, 1, 64, 64))


add("kraken", "kraken.lib.ppocr.model", "PPOCRv6Model", noise(2, 3, 48, 160), "tiny", 60, 48)
add("metnet3-pytorch", "metnet3_pytorch.metnet3_pytorch", "XCAttention", lambda: (torch.randn(4, 32, 8, 8),
    torch.randn(4, 24)), dim=32, cond_dim=24, dim_head=8, heads=4)  # fmt: skip
add("metnet3-pytorch", "metnet3_pytorch.metnet3_pytorch", "ResnetBlocks", lambda: (torch.randn(4, 12, 16, 16),
    torch.randn(4, 24)), 32, dim_in=12, depth=2, cond_dim=24)  # fmt: skip
add("nhsmm", "nhsmm.encoder", "DefaultEncoder", noise(8, 30, 5), 5)


def labelled(*, attended: bool) -> nn.Module:
    """Return a classifier of texts and of what else is known of them."""
    t = module("torchTextClassifiers.model.components")
    path = "torchTextClassifiers.model.components."
    config = module(f"{path}attention").AttentionConfig(2, 4, 2, 24) if attended else None
    e = module(f"{path}text_embedder")
    words = e.TokenEmbedder(e.TokenEmbedderConfig(200, 32, 0, config))
    others = t.CategoricalVariableNet([5, 7], [4, 4])
    made: nn.Module = module("torchTextClassifiers.model.model").TextClassificationModel(
        t.ClassificationHead(40, 6), words, e.SentenceEmbedder(e.SentenceEmbedderConfig("mean")), others)  # fmt: skip
    return made


def texts() -> tuple[Any, ...]:
    """Return words, which of them are there, and what else is known."""
    kept = (torch.arange(24) < torch.randint(8, 25, (16, 1))).long()
    return (torch.randint(1, 200, (16, 24)) * kept, kept, torch.stack([torch.randint(5, (16,)),
        torch.randint(7, (16,))], 1))  # fmt: skip


enter("torchtextclassifiers", "TextClassificationModel", lambda: labelled(attended=False), texts)
enter("torchtextclassifiers", "TextClassificationModel, attention", lambda: labelled(attended=True), texts)


def molecules() -> tuple[Any, ...]:
    """Return molecules as graphs of the near atoms."""
    pos, of = torch.randn(32, 3) * 1.5, torch.arange(4).repeat_interleave(8)
    i, j = torch.where((of[:, None] == of) & ~torch.eye(32, dtype=torch.bool))
    return ({"positions": pos, "node_attrs": torch.eye(10)[torch.randint(10, (32,))], "edge_index": torch.stack([i, j]),
        "shifts": torch.zeros(len(i), 3), "unit_shifts": torch.zeros(len(i), 3), "cell": torch.zeros(12, 3),
        "batch": of, "ptr": torch.arange(5) * 8, "head": torch.zeros(4, dtype=torch.long),
        "atomic_numbers": torch.randint(1, 10, (32,))}, True, False)  # fmt: skip


add("so3krates-torch", "so3krates_torch.modules.models", "So3krates", molecules, 5.0, 16, [1, 2], 32, 4, 2,
    num_elements=10, avg_num_neighbors=7.0)  # fmt: skip


def once(high: int, length: int) -> Any:
    """Texts of letters, one of several at each place."""
    return lambda: (nn.functional.one_hot(torch.randint(high, (8, length)), high).float().transpose(1, 2).contiguous(),)


DRUG = {"cnn_drug_filters": [16, 24, 32], "cnn_drug_kernels": [4, 6, 8], "hidden_dim_drug": 32, "rnn_Use_GRU_LSTM_drug":
    "GRU", "rnn_drug_hid_dim": 16, "rnn_drug_n_layers": 2, "rnn_drug_bidirectional": True, "batch_size": 8,
    "input_dim_drug": 100, "transformer_emb_size_drug": 32, "transformer_dropout_rate": 0.1,
    "transformer_n_layer_drug": 2, "transformer_intermediate_size_drug": 64, "transformer_num_attention_heads_drug": 4,
    "transformer_attention_probs_dropout": 0.1, "transformer_hidden_dropout_rate": 0.1}  # fmt: skip
add("deeppurpose", "DeepPurpose.encoders", "CNN", once(63, 100), "drug", **DRUG)
add("deeppurpose", "DeepPurpose.encoders", "CNN_RNN", once(63, 100), "drug", **DRUG)
add("deeppurpose", "DeepPurpose.encoders", "transformer", lambda: ((torch.randint(100, (8, 50)),
    (torch.arange(50) < torch.randint(10, 51, (8, 1))).long()),), "drug", **DRUG)  # fmt: skip
add("pytorch-rdc-net", "pytorch_rdc_net.stacked_dilated_conv", "StackedDilatedConv", noise(4, 16, 32, 32), 16, 16, 3,
    [1, 2, 4, 8], 4)  # fmt: skip
add("pytorch-rdc-net", "pytorch_rdc_net.generic_model", "RDCNet", noise(4, 1, 32, 32), 2, 1, (2, 2), 8,
    channels_per_group=8, n_groups=2, dilation_rates=[1, 2, 4], steps=3)  # fmt: skip
add("jet-pytorch", "jet_pytorch.jet", "Jet", noise(4, 16, 16, 3), 4, 48, 16, (16, 16), 5, 1, 48, 4)
add("tokenlearner-pytorch", "tokenlearner_pytorch.tokenlearner_pytorch", "TokenFuser", lambda: (torch.randn(8, 6, 32),
    torch.randn(8, 16, 16, 32)), 16, 16, 32, 6)  # fmt: skip


def octaves() -> nn.Module:
    """Return convolutions of what changes fast and of what changes slowly."""
    o = module("octconv").OctConv2d
    return nn.Sequential(o(3, 16, 3, padding=1, alpha=(0, 0.5)), o(16, 32, 3, stride=2, padding=1, alpha=0.5),
        o(32, 32, 3, padding=1, alpha=(0.5, 0)), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10))  # fmt: skip


enter("octconv", "octave CNN", octaves, PICTURE)


def trees() -> tuple[Any, ...]:
    """Return what the nodes of trees hold, which nodes follow which, and in what order to go through them."""
    above = [[(k - 1) // 2, k] for k in range(1, 15)]
    pairs = torch.tensor([[a + 15 * tree, b + 15 * tree] for tree in range(4) for a, b in above])
    nodes, order = module("treelstm").calculate_evaluation_orders(pairs.numpy(), 60)
    return (torch.randn(60, 16), torch.as_tensor(nodes), pairs, torch.as_tensor(order))


add("pytorch-tree-lstm", "treelstm", "TreeLSTM", trees, 16, 32)


def reader() -> nn.Module:
    """Return a model that reads texts aloud."""
    encoder = {"n_symbols": 91, "embedding_dim": 32, "prenet": {"input_size": 32, "hidden_size": 32, "output_size": 32},
        "cbhg": {"input_channels": 32, "K": 4, "channels": 32, "projection_channels": 32, "n_highways": 2,
        "highway_size": 32, "rnn_size": 32}}  # fmt: skip
    decoder = {"input_size": 32, "n_mels": 20, "attn_rnn_size": 48, "decoder_rnn_size": 48, "reduction_factor": 2,
        "zoneout_prob": 0.1, "prenet": {"input_size": 20, "hidden_size": 32, "output_size": 32},
        "attention": {"attn_rnn_size": 48, "hidden_size": 32, "static_channels": 8, "static_kernel_size": 21,
        "dynamic_channels": 8, "dynamic_kernel_size": 21, "prior_length": 11, "alpha": 0.1, "beta": 0.9}}  # fmt: skip
    made: nn.Module = module("tacotron.model").Tacotron(encoder, decoder)
    return made


enter("tacotron", "Tacotron", reader, lambda: (torch.randint(1, 91, (4, 16)), torch.randn(4, 20, 12)))


def timed(name: str, *args: int, **options: Any) -> nn.Module:
    """Return a classifier of series."""
    t = module("tisc.modules.utils.builder")
    backbone = getattr(module(f"tisc.modules.{name}"), name)(*args, **options)
    head = module("tisc.modules.head.head").BasicClassificationHead(4, 32)
    made: nn.Module = t.TiscNetwork(backbone, head)
    return made


enter("tisc", "BiLSTM", lambda: timed("BiLSTM", 6, 16, 2), noise(16, 30, 6))
enter("tisc", "LSTM", lambda: timed("LSTM", 6, 32, 2), noise(16, 30, 6))
enter("tisc", "Transformer", lambda: timed("Transformer", 30, 6, 32, dim_feedforward=64), noise(16, 30, 6))
PATIENTS = {"smiles_padding_length": 40, "smiles_vocabulary_size": 60, "smiles_embedding_size": 16,
    "number_of_genes": 80, "smiles_attention_size": 16, "gene_attention_size": 1, "molecular_branch_multiheads": [2, 2],
    "stacked_dense_hidden_sizes": [64, 32], "dropout": 0.2, "filters": [16, 16], "kernel_sizes": [[3, 16], [5, 16]],
    "multiheads": [2, 2, 2]}  # fmt: skip
add("paccmann-predictor", "paccmann_predictor.models.paccmann", "MCA", lambda: (torch.randint(60, (8, 40)),
    torch.randn(8, 80)), PATIENTS)  # fmt: skip
add("paccmann-predictor", "paccmann_predictor.models.dense", "Dense", lambda: ((torch.rand(16, 128) < 0.2).float(),
    torch.randn(16, 80)), {**PATIENTS, "num_drug_features": 128,
    "stacked_dense_hidden_sizes": [208, 64, 32]})  # fmt: skip


def nested() -> nn.Module:
    """Return a model of choices among things of two kinds."""
    made: nn.Module = module("torch_choice.model").NestedLogitModel({0: [0, 1], 1: [2, 3, 4]},
        item_coef_variation_dict={"item_cost": "constant", "session_wet": "item"}, nest_coef_variation_dict={},
        nest_num_param_dict={}, item_num_param_dict={"item_cost": 3, "session_wet": 2}, num_users=10)  # fmt: skip
    return made


enter("torch-choice", "NestedLogitModel", nested, lambda: ({"nest": offers(), "item": offers()},))


def spread(name: str, **options: Any) -> nn.Module:
    """Return layers that turn as their inputs do, each channel by itself."""
    atoms, ways = (module("e3nn.o3").Irreps(text) for text in ("16x0e + 8x1o", "1x0e + 1x1o"))
    made: nn.Module = getattr(module("e3tools.nn"), name)(atoms, atoms, *options.pop("more", (ways,)), **options)
    return made


enter("e3tools", "SeparableConvBlock", lambda: spread("SeparableConvBlock", edge_attr_dim=8), bonds)
enter("e3tools", "EquivariantMLP", lambda: spread("EquivariantMLP", more=(["16x0e + 8x1o"],)), noise(40, 40))
add("alphagenome-pytorch", "alphagenome_pytorch.alphagenome", "TransformerTower", noise(2, 64, 48), 48, depth=2,
    heads=2, dim_head_qk=16, dim_head_v=16, dim_pairwise=16)  # fmt: skip
add("opencoodx", "opencood.models.sub_modules.auto_encoder", "AutoEncoder", noise(4, 32, 16, 16), 32, 2)
add("kraken", "kraken.lib.ppocr.backbone", "PPLCNetV4", noise(2, 3, 48, 96), "tiny")
add("so3krates-torch", "so3krates_torch.modules.models", "So3krates", molecules, 5.0, 16, [1, 2], 32, 4, 2,
    num_elements=10, avg_num_neighbors=7.0, layer_normalization_1=True, layer_normalization_2=True,
    residual_mlp_1=True, residual_mlp_2=True, radial_basis_fn="bernstein", qk_non_linearity="silu",
    label="So3krates, normalised")  # fmt: skip
add("reflectorch", "reflectorch.models.encoders.conv_encoder", "ConvAutoencoder", noise(16, 1, 64), 1, (16, 32, 48),
    (48, 32, 16), 16)  # fmt: skip
add("reflectorch", "reflectorch.models.networks.residual_net", "ResidualMLP", lambda: (torch.randn(16, 8),
    torch.randn(16, 4)), 8, 3, 4, 48, 3, conditioning="glu", use_layer_norm=True, use_batch_norm=False)  # fmt: skip
add("tacotron", "tacotron.model", "CBHG", noise(8, 32, 24), 6, 32, 32, 32, 3, 32, 32)
add("neural-ssm", "neural_ssm", "ContextualDeepSSM", lambda: (torch.randn(8, 30, 3), torch.randn(8, 30, 4)), 3, 4, 2)


def dense() -> nn.Module:
    """Return reversible dense layers."""
    blocks = [nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(6)]
    return nn.Sequential(nn.Linear(8, 32), module("revlib").ReversibleSequential(*blocks), nn.Linear(32, 3))


enter("revlib", "ReversibleSequential, dense", dense, TABLE)
