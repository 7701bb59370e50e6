"""Models of libraries that batch 8 met first, of many authors, small, each with its example arguments."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from nets.untried import Entries, module, noise, tokens

ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter

PICTURE, TABLE, SERIES, DIGIT = noise(8, 3, 32, 32), noise(32, 6), noise(8, 24, 6), noise(8, 1, 28, 28)

# -------------------------------------------------------------------------------------------------- layers for privacy
o = "opacus.layers"
add("opacus", o, "DPLSTM", SERIES, 6, 32, 2, batch_first=True)
add("opacus", o, "DPGRU", SERIES, 6, 32, 2, batch_first=True)
add("opacus", o, "DPRNN", SERIES, 6, 32, 2, batch_first=True)
add("opacus", o, "DPMultiheadAttention", lambda: (torch.randn(12, 8, 32),) * 3, 32, 4)

# ------------------------------------------------------------------------------------------------------------- pictures
t = "torchdistill.models.classification"
add("torchdistill", f"{t}.resnet", "resnet20", PICTURE, num_classes=10)
add("torchdistill", f"{t}.wide_resnet", "wide_resnet", PICTURE, 16, 2, 0.3, 10, pretrained=False, progress=False)


def dense() -> nn.Module:
    """Return a small dense network, of a depth that its authors do not name."""
    made: nn.Module = module(f"{t}.densenet").DenseNet4Cifar(12, (6, 6, 6), 24, num_classes=10)
    return made


enter("torchdistill", "DenseNet4Cifar", dense, PICTURE)
v = "vformer.models"
add("vformer", v, "VanillaViT", PICTURE, 32, 8, 10, embedding_dim=64, head_dim=16, depth=3, num_heads=4,
    encoder_mlp_dim=128)  # fmt: skip
add("vformer", v, "SwinTransformer", PICTURE, 32, 4, 3, 10, embedding_dim=32, depths=[2, 2], num_heads=[2, 4],
    window_size=4)  # fmt: skip
add("vformer", v, "CCT", PICTURE, img_size=32, embedding_dim=64, num_layers=3, head_dim=16, num_heads=4, n_classes=10,
    decoder_config=(64, 32))  # fmt: skip
add("vformer", v, "CVT", PICTURE, img_size=32, embedding_dim=64, num_layers=3, head_dim=16, num_heads=4, n_classes=10,
    decoder_config=(64, 32))  # fmt: skip
add("vformer", v, "ConViT", PICTURE, 32, 8, 10, embedding_dim=64, head_dim=16, depth_sa=2, depth_gpsa=2,
    attn_heads_sa=4, attn_heads_gpsa=4, encoder_mlp_dim=128)  # fmt: skip
add("vformer", v, "CrossViT", PICTURE, 32, 16, 8, 10, latent_dim_s=32, latent_dim_l=64, head_dim_s=16, head_dim_l=16,
    depth_s=2, depth_l=2, attn_heads_s=2, attn_heads_l=4, cross_head_s=2, cross_head_l=2, encoder_mlp_dim_s=64,
    encoder_mlp_dim_l=128, cross_dim_head_s=16, cross_dim_head_l=16)  # fmt: skip
add("vformer", v, "PerceiverIO", lambda: (torch.randn(8, 24, 32), torch.randn(6, 32)), dim=32, depth=2, latent_dim=64,
    num_latents=16, queries_dim=32, logits_dim=10)  # fmt: skip
g = "glasses.models.classification"
add("glasses", f"{g}.resnet", "ResNet", PICTURE, n_classes=10, start_features=16, depths=[1, 1, 1], widths=[16, 32, 64])
add("glasses", f"{g}.densenet", "DenseNet", PICTURE, n_classes=10, start_features=16, grow_rate=8, depths=[2, 2, 2])
add("glasses", f"{g}.vit", "ViT", PICTURE, img_size=32, patch_size=8, emb_size=64, depth=3, num_heads=4, n_classes=10)
add("glasses", f"{g}.efficientnet", "EfficientNet", PICTURE, n_classes=10, widths=[16, 16, 24, 32, 64],
    depths=[1, 2, 2], strides=[2, 1, 2, 2], expansions=[1, 4, 4], kernel_sizes=[3, 3, 5], drop_rate=0.2)  # fmt: skip
y = "ultralytics.nn.tasks"
add("ultralytics", y, "DetectionModel", noise(4, 3, 64, 64), "yolo11n.yaml", verbose=False)
add("ultralytics", y, "ClassificationModel", noise(8, 3, 64, 64), "yolo11n-cls.yaml", nc=10, verbose=False)
add("ultralytics", y, "DetectionModel", noise(4, 3, 64, 64), "yolo12n.yaml", nc=5, verbose=False,
    label="DetectionModel of YOLO12")  # fmt: skip
add("ultralytics", y, "SegmentationModel", noise(4, 3, 64, 64), "yolo11n-seg.yaml", nc=5, verbose=False)
for name in ("tinynet_e", "tinynet_d", "mnasnet_small"):
    add("timm-3d", "timm_3d", "create_model", noise(4, 3, 32, 32, 32), name, num_classes=5, label=name)
add("iunets", "iunets", "iUNet", noise(8, 8, 32, 32), in_channels=8, architecture=(2, 2, 2), dim=2)
add("steganogan", "steganogan.encoders", "BasicEncoder", lambda: (torch.rand(8, 3, 32, 32) * 2 - 1,
    torch.randint(2, (8, 2, 32, 32)).float()), 2, 16)  # fmt: skip
add("steganogan", "steganogan.encoders", "DenseEncoder", lambda: (torch.rand(8, 3, 32, 32) * 2 - 1,
    torch.randint(2, (8, 2, 32, 32)).float()), 2, 16)  # fmt: skip
add("steganogan", "steganogan.decoders", "DenseDecoder", PICTURE, 2, 16)
add("steganogan", "steganogan.critics", "BasicCritic", PICTURE, 16)
f = "fedlab.models"
add("fedlab", f, "CNN_FEMNIST", DIGIT)
add("fedlab", f, "CNN_CIFAR10", PICTURE)
add("fedlab", f, "CNN_MNIST", DIGIT)
add("fedlab", f, "RNN_Shakespeare", tokens(80, 8, 24))
add("lungmask", "lungmask.resunet", "UNet", noise(4, 1, 64, 64), n_classes=3, depth=4, wf=3, padding=True,
    batch_norm=True, up_mode="upsample")  # fmt: skip
add("lungmask", "lungmask.resunet", "UNet", noise(4, 1, 64, 64), n_classes=3, depth=4, wf=3, padding=True,
    batch_norm=True, residual=True, label="UNet, residual")  # fmt: skip

# -------------------------------------------------------------------------------------------------- factors of tensors
n = "tednet.tnn"
add("tednet", f"{n}.tensor_ring", "TRLeNet5", DIGIT, 10, [6, 6, 6, 6])
add("tednet", f"{n}.tensor_train", "TTLeNet5", DIGIT, 10, [4, 6, 6, 6])
add("tednet", f"{n}.cp", "CPLeNet5", DIGIT, 10, [4, 8, 16, 16])
add("tednet", f"{n}.tensor_ring", "TRResNet20", PICTURE, [6, 6, 6, 6, 6, 6, 6], 10)
add("tednet", f"{n}.tucker2", "TK2LeNet5", DIGIT, 10, [1, 8, 8, 8])

# ---------------------------------------------------------------------------------------------------------- generative
b = "torchebm.models"
add("torchebm", b, "DiT", lambda: (torch.randn(8, 3, 16, 16), torch.rand(8)), input_size=16, in_channels=3,
    patch_size=4, embed_dim=64, depth=3, num_heads=4)  # fmt: skip
add("torchebm", b, "TimeConditionedMLP", lambda: (torch.randn(32, 6), torch.rand(32)), in_dim=6, hidden_dim=64, depth=3)
add("torchebm", b, "ConditionalTransformer2D", lambda: (torch.randn(8, 3, 16, 16), torch.randn(8, 64)), in_channels=3,
    out_channels=3, input_size=16, patch_size=4, embed_dim=64, depth=3, num_heads=4)  # fmt: skip
add("minimagen", "minimagen.Unet", "Unet", lambda: {"x": torch.randn(4, 3, 32, 32), "time": torch.randint(100, (4,)),
    "text_embeds": torch.randn(4, 12, 32), "text_mask": torch.ones(4, 12, dtype=torch.bool)}, dim=16, dim_mults=(1, 2),
    cond_dim=32, text_embed_dim=32, layer_attns=(False, True), layer_cross_attns=(False, True),
    attn_heads=4)  # fmt: skip
c = "ctgan.synthesizers"
add("ctgan", f"{c}.ctgan", "Generator", noise(32, 16), 16, (64, 64), 20)
add("ctgan", f"{c}.ctgan", "Discriminator", noise(32, 20), 20, (64, 64), 4)
add("ctgan", f"{c}.tvae", "Encoder", noise(32, 20), 20, (64, 64), 16)
add("ctgan", f"{c}.tvae", "Decoder", noise(32, 16), 16, (64, 64), 20)
add("lampe", "lampe.inference", "NPE", lambda: (torch.randn(32, 4), torch.randn(32, 6)), 4, 6,
    hidden_features=(64, 64))  # fmt: skip
add("lampe", "lampe.inference", "NRE", lambda: (torch.randn(32, 4), torch.randn(32, 6)), 4, 6,
    hidden_features=(64, 64))  # fmt: skip
add("lampe", "lampe.inference", "FMPE", lambda: (torch.randn(32, 4), torch.randn(32, 6), torch.rand(32)), 4, 6,
    hidden_features=(64, 64))  # fmt: skip
add("lampe", "lampe.nn", "ResMLP", TABLE, 6, 4, hidden_features=(64, 64, 64))

# --------------------------------------------------------------------------------------------------------------- sounds
s = "audioseal.libs.moshi.modules.seanet"


def detector() -> nn.Module:
    """Return what finds a watermark in a sound."""
    encoder = module(s).SEANetEncoderKeepDimension(dimension=32, n_filters=8, n_residual_layers=1, ratios=[4, 4, 2],
        lstm=2, output_dim=16)  # fmt: skip
    made: nn.Module = module("audioseal.models").AudioSealDetector(encoder, nbits=16)
    return made


enter("audioseal", "AudioSealDetector", detector, noise(4, 1, 1024))
add("bs-roformer", "bs_roformer", "BSRoformer", noise(2, 8192), dim=16, depth=2, dim_head=16, heads=2,
    freqs_per_bands=(8, 16, 41), stft_n_fft=128, stft_hop_length=64, stft_win_length=128,
    mask_estimator_depth=1, num_residual_streams=1)  # fmt: skip
m = "nam.models"
add("neural-amp-modeler", f"{m}.recurrent", "LSTM", noise(8, 256), 24, num_layers=2)
add("neural-amp-modeler", f"{m}.conv_net", "ConvNet", noise(8, 512), 16)
add("neural-amp-modeler", f"{m}.conv_net", "ConvNet", noise(8, 512), 16, batchnorm=True, activation="ReLU",
    label="ConvNet, normalised")  # fmt: skip
i = "seisbench.models"
add("seisbench", i, "PhaseNet", noise(4, 3, 3001))
add("seisbench", i, "EQTransformer", noise(2, 3, 1500), in_samples=1500)
add("seisbench", i, "DeepDenoiser", noise(4, 2, 31, 201))
add("seisbench", i, "GPD", noise(4, 3, 400))
add("seisbench", i, "BasicPhaseAE", noise(4, 3, 600))

# ------------------------------------------------------------------------------------------------- words and proteins


def bert() -> nn.Module:
    """Return a model of masked words."""
    p = module("bert_pytorch.model")
    made: nn.Module = p.BERTLM(p.BERT(60, 64, 2, 4), 60)
    return made


enter("bert-pytorch", "BERTLM", bert, lambda: (torch.randint(1, 60, (8, 24)), torch.randint(1, 3, (8, 24))))


def searched(**options: Any) -> Callable[[], nn.Module]:
    """Return the constructor of a model that ranks the documents of a query."""

    def make() -> nn.Module:
        config = module("allrank.config").TransformerConfig(N=2, d_ff=64, h=2, dropout=0.1, positional_encoding=None)
        first = {"sizes": [32], "input_norm": False, "activation": "ReLU", "dropout": 0.1, **options}
        made: nn.Module = module("allrank.models.model").make_model(
            first, config, {"d_output": 1, "output_activation": None}, 20
        )
        return made

    return make


def ranked() -> tuple[Tensor, ...]:
    """Return documents of queries, which of them are none, and their places."""
    return torch.randn(8, 15, 20), torch.zeros(8, 15, dtype=torch.bool), torch.arange(15).expand(8, 15)


enter("allrank", "LTRModel", searched(), ranked)
enter("allrank", "LTRModel, normalised", searched(input_norm=True), ranked)
add("joeynmt", "joeynmt.encoders", "TransformerEncoder", lambda: (torch.randn(8, 12, 64), torch.full((8,), 12),
    torch.ones(8, 1, 12, dtype=torch.bool)), hidden_size=64, ff_size=128, num_layers=2, num_heads=4)  # fmt: skip
add("joeynmt", "joeynmt.encoders", "RecurrentEncoder", lambda: (torch.randn(8, 12, 32), torch.full((8,), 12),
    torch.ones(8, 1, 12, dtype=torch.bool)), rnn_type="lstm", hidden_size=32, emb_size=32, num_layers=2)  # fmt: skip
p = "tape.models"
SIZES = {"num_hidden_layers": 2, "hidden_size": 64}


def protein(where: str, config: str, name: str, **options: Any) -> Callable[[], nn.Module]:
    """Return the constructor of a model of proteins."""

    def make() -> nn.Module:
        found = module(f"{p}.{where}")
        made: nn.Module = getattr(found, name)(getattr(found, config)(**options))
        return made

    return make


enter("tape-proteins", "ProteinBertForMaskedLM", protein("modeling_bert", "ProteinBertConfig", "ProteinBertForMaskedLM",
    **SIZES, num_attention_heads=4, intermediate_size=128), tokens(30, 8, 24))  # fmt: skip
enter("tape-proteins", "ProteinLSTMForLM", protein("modeling_lstm", "ProteinLSTMConfig", "ProteinLSTMForLM", **SIZES),
    tokens(30, 8, 24))  # fmt: skip
enter("tape-proteins", "ProteinResNetForValuePrediction", protein("modeling_resnet", "ProteinResNetConfig",
    "ProteinResNetForValuePrediction", **SIZES), tokens(30, 8, 24))  # fmt: skip
enter("tape-proteins", "UniRepModel", protein("modeling_unirep", "UniRepConfig", "UniRepModel", hidden_size=64,
    input_size=10), tokens(26, 8, 24))  # fmt: skip


def of_sentences(*parts: tuple[str, tuple[Any, ...], dict[str, Any]]) -> Callable[[], nn.Module]:
    """Return the constructor of what makes a vector of the vectors of words."""

    def make() -> nn.Module:
        found = module("sentence_transformers.models")
        return nn.Sequential(*(getattr(found, name)(*args, **options) for name, args, options in parts))

    return make


def words() -> tuple[dict[str, Tensor]]:
    """Return vectors of words, and which of them are there."""
    return (
        {
            "token_embeddings": torch.randn(8, 12, 32),
            "attention_mask": torch.ones(8, 12, dtype=torch.int64),
            "sentence_lengths": torch.full((8,), 12),
        },
    )


enter("sentence-transformers", "CNN", of_sentences(("CNN", (32, 32), {"kernel_sizes": [1, 3, 5]}),
    ("Pooling", (96,), {}), ("Dense", (96, 48), {})), words)  # fmt: skip
enter("sentence-transformers", "LSTM", of_sentences(("LSTM", (32, 32), {"num_layers": 2}), ("Pooling", (64,), {}),
    ("Dense", (64, 48), {})), words)  # fmt: skip

# --------------------------------------------------------------------------------------------------------------- graphs
d = "pygod.nn"


def edges() -> torch.Tensor:
    """Return pairs of 40 nodes."""
    return torch.randint(40, (2, 160))


def graph() -> tuple[torch.Tensor, ...]:
    """Return nodes and edges."""
    return torch.randn(40, 12), edges()


def both() -> tuple[torch.Tensor, ...]:
    """Return nodes, a dense adjacency and edges."""
    return torch.randn(40, 12), torch.rand(40, 40).gt(0.9).float(), edges()


add("pygod", d, "DOMINANTBase", graph, 12, 32)
add("pygod", d, "DONEBase", both, 12, 40, 32)
add("pygod", d, "AnomalyDAEBase", lambda: (torch.randn(40, 12), edges(), 40), 12, 40, 32, 32)
add("pygod", d, "GAEBase", graph, 12, 32)
add("pygod", d, "GUIDEBase", lambda: (torch.randn(40, 12), torch.rand(40, 5), edges()), 12, 5, 32, 8)
add("pygod", d, "CoLABase", graph, 12, 32)
add("graph-transformer-pytorch", "graph_transformer_pytorch", "GraphTransformer", lambda: (torch.randn(4, 12, 64),
    torch.randn(4, 12, 12, 32)), dim=64, depth=2, dim_head=16, heads=4, edge_dim=32, with_feedforwards=True,
    gated_residual=True, rel_pos_emb=True)  # fmt: skip
add("equiformer-pytorch", "equiformer_pytorch", "Equiformer", lambda: (torch.randint(20, (2, 10)),
    torch.randn(2, 10, 3), torch.ones(2, 10, dtype=torch.bool)), num_tokens=20, dim=(16, 8), dim_head=(8, 4),
    heads=(2, 2), num_degrees=2, depth=2, num_linear_attn_heads=0)  # fmt: skip


def pairs() -> tuple[Tensor, ...]:
    """Return atoms, pairs of them, and how far they are from one another."""
    atoms = nn.functional.one_hot(torch.randint(1, 4, (24,)), 4)[:, 1:].float()
    first, second = (x.flatten() for x in torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij"))
    other = first != second
    places = torch.rand(24, 3) * 5
    first, second = first[other], second[other]
    apart = places[second] - places[first]
    return atoms, first, second, apart.norm(dim=1), apart


h = "hippynn.networks.hipnn"
HIP = {"n_features": 20, "n_sensitivities": 10, "dist_soft_min": 0.8, "dist_soft_max": 3.0, "dist_hard_max": 4.0,
    "n_atom_layers": 2, "n_interaction_layers": 2, "n_input_features": 3}  # fmt: skip
add("hippynn", h, "Hipnn", lambda: pairs()[:4], **HIP)
add("hippynn", h, "HipnnVec", pairs, **HIP)

# ----------------------------------------------------------------------------------------------------------------- bags
b = "torchmil.models"
BAG = noise(8, 20, 16)
add("torchmil", b, "ABMIL", BAG, in_shape=(16,), att_dim=32, gated=True)
add("torchmil", b, "DSMIL", BAG, in_shape=(16,), att_dim=32)
add("torchmil", b, "TransMIL", BAG, in_shape=(16,), att_dim=64)
add("torchmil", b, "TransformerABMIL", noise(8, 20, 64), in_shape=(64,), pool_att_dim=32, transf_att_dim=64,
    transf_n_layers=2, transf_n_heads=4)  # fmt: skip

# ------------------------------------------------------------------------------------------------------ fields of space
w = "the_well.benchmark.models"
FIELD, LAST = noise(4, 3, 32, 32), noise(4, 32, 32, 3)
add("the-well", w, "UNetClassic", FIELD, 3, 3, 2, (32, 32), init_features=8)
add("the-well", w, "UNetConvNext", FIELD, 3, 3, 2, (32, 32), stages=3, init_features=8)
add("the-well", w, "AFNO", LAST, 3, 3, 2, (32, 32), hidden_dim=64, n_blocks=3, patch_size=4)
add("the-well", w, "DilatedResNet", FIELD, 3, 3, 2, (32, 32), blocks=2, hidden_dim=16)
add("the-well", w, "AViT", LAST, 3, 3, 2, (32, 32), hidden_dim=96, num_heads=4, processor_blocks=2)
add("the-well", w, "ReFNO", LAST, 3, 3, 2, (32, 32), hidden_dim=16, blocks=2)


def turned() -> nn.Module:
    """Return a small network that knows turns by a quarter, as the library's own page makes it."""
    e, spaces = module("e2cnn.nn"), module("e2cnn.gspaces").Rot2dOnR2(4)

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.start = e.FieldType(spaces, 3 * [spaces.trivial_repr])
            middle, last = (e.FieldType(spaces, k * [spaces.regular_repr]) for k in (8, 12))
            self.net = e.SequentialModule(
                e.R2Conv(self.start, middle, 5, padding=2), e.InnerBatchNorm(middle), e.ReLU(middle),
                e.PointwiseAvgPool(middle, 2), e.R2Conv(middle, last, 3, padding=1), e.InnerBatchNorm(last),
                e.ReLU(last), e.GroupPooling(last))  # fmt: skip
            self.head = nn.Linear(12, 10)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.net(e.GeometricTensor(x, self.start)).tensor.mean((2, 3)))
            return found

    return Turned()


enter("e2cnn", "C4 steerable CNN", turned, PICTURE)

# ---------------------------------------------------------------------------------------------------------- decisions
WORLD = SimpleNamespace(action_space=SimpleNamespace(n=4), state_space=SimpleNamespace(shape=(8,)))
q = "all.presets"


def frames() -> tuple[torch.Tensor, ...]:
    """Return four frames of a game, of each of four samples."""
    return (torch.randint(256, (4, 4, 84, 84)).float(),)


add("autonomous-learning-library", f"{q}.atari.models", "nature_dqn", frames, WORLD)
add("autonomous-learning-library", f"{q}.atari.models", "nature_rainbow", frames, WORLD, hidden=128)
add("autonomous-learning-library", f"{q}.classic_control.models", "dueling_fc_relu_q", noise(32, 8), WORLD)
add("autonomous-learning-library", f"{q}.classic_control.models", "fc_relu_rainbow", noise(32, 8), WORLD)


def policy(where: str, name: str, part: str, many: bool = False) -> Callable[[], nn.Module]:
    """Return the constructor of a policy, or of a part of one."""

    def make() -> nn.Module:
        spaces = module("gymnasium.spaces")
        actions = spaces.Discrete(4) if many else spaces.Box(-1, 1, (2,))
        made = getattr(module(f"sb3_contrib.{where}.policies"), name)(spaces.Box(-1, 1, (8,)), actions, lambda _: 1e-3)
        found: nn.Module = getattr(made, part) if part else made
        return found

    return make


enter("sb3-contrib", "TQC critic", policy("tqc", "TQCPolicy", "critic"), lambda: (torch.randn(32, 8),
    torch.rand(32, 2) * 2 - 1))  # fmt: skip
enter("sb3-contrib", "QR-DQN", policy("qrdqn", "QRDQNPolicy", "quantile_net", True), noise(32, 8))
enter("sb3-contrib", "TQC actor", policy("tqc", "TQCPolicy", "actor"), noise(32, 8))
enter("sb3-contrib", "maskable PPO", policy("common.maskable", "MaskableActorCriticPolicy", "", True), noise(32, 8))

# ------------------------------------------------------------------------------------- tables, several views, survival
add("pyod", "pyod.models.auto_encoder", "AutoEncoderModel", TABLE, 6)
add("pyod", "pyod.models.vae", "VAEModel", TABLE, 6)
add("pycox", "pycox.models.cox_time", "MLPVanillaCoxTime", lambda: (torch.randn(32, 6), torch.rand(32, 1)), 6, [32, 32],
    True, 0.1)  # fmt: skip


def views(name: str) -> Callable[[], nn.Module]:
    """Return the constructor of what correlates two views."""

    def make() -> nn.Module:
        encoders = [nn.Sequential(nn.Linear(n, 32), nn.ReLU(), nn.Linear(32, 4)) for n in (10, 14)]
        options = {}
        if name == "DCCAE":
            options["decoders"] = [nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, n)) for n in (10, 14)]
        made: nn.Module = getattr(module("cca_zoo.deep"), name)(4, encoders=encoders, **options)
        return made

    return make


for name in ("DCCA", "DCCAE", "BarlowTwins"):
    enter("cca-zoo", name, views(name), lambda: ([torch.randn(32, 10), torch.randn(32, 14)],))
k = "catenets.models.torch"
add("catenets", f"{k}.base", "RepresentationNet", TABLE, 6, n_layers=3, n_units=64)
add("catenets", f"{k}.base", "BasicNet", TABLE, "outcome", 6, n_layers_out=2, n_units_out=64)
r = "deeprobust.graph.defense"


def joined() -> tuple[Tensor, ...]:
    """Return what is known of nodes, and which of them are joined, as shares."""
    joins = torch.eye(40) + torch.rand(40, 40).gt(0.9).float()
    joins = joins + joins.T
    return torch.randn(40, 12), joins / joins.sum(1, keepdim=True)


add("deeprobust", r, "GCN", joined, nfeat=12, nhid=32, nclass=4, device="cpu")
add("deeprobust", r, "GAT", lambda: (SimpleNamespace(x=torch.randn(40, 12), edge_index=edges()),), nfeat=12, nhid=8,
    nclass=4, heads=4, device="cpu")  # fmt: skip
j = "gliner.modeling.span_rep"
add("gliner", j, "SpanMarkerV0", lambda: (torch.randn(8, 20, 64), torch.randint(20, (8, 20 * 5, 2))), 64, 5)
add("gliner", j, "ConvShare", noise(8, 20, 64), 64, 5)
for name in ("raft_small", "fastflownet", "rapidflow_it1"):
    add("ptlflow", "ptlflow", "get_model", lambda: ({"images": torch.rand(2, 2, 3, 64, 64)},), name, label=name)
