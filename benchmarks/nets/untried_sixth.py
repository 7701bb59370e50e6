"""Models of libraries that batch 6 met first, of many authors, small, each with its example arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nets.untried import Entries, Made, module, noise, tokens

ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter

PICTURE, TABLE = noise(4, 3, 32, 32), noise(32, 12)

# ------------------------------------------------------------------------------------------------------- series, floods
d = "deepod.core.networks"
add("deepod", f"{d}.ts_network_tcn", "TcnAE", noise(4, 30, 5), 5, "32,16", 8)
add("deepod", f"{d}.ts_network_tcn", "TCNnet", noise(4, 30, 5), 5, "32,16", 8)
add("deepod", f"{d}.ts_network_dilated_conv", "DilatedConvEncoder", noise(4, 24, 5), 5, "16,3", 8)
add("deepod", f"{d}.base_networks", "MLPnet", TABLE, 12, "64,32", 8)
add("deepod", f"{d}.base_networks", "ConvSeqEncoder", noise(4, 32, 5), 5, "16", 8, 3, 32)
f = "flood_forecast"
add("flood-forecast", f"{f}.da_rnn.modules", "Encoder", noise(4, 9, 6), 6, 24, 10)
add("flood-forecast", f"{f}.da_rnn.modules", "Decoder", lambda: (torch.randn(4, 9, 24), torch.randn(4, 9, 1)), 24, 16,
    10)  # fmt: skip
add("flood-forecast", f"{f}.transformer_xl.dsanet", "DSANet", noise(4, 24, 5), 24, 5, 3, 8, 1, 32, 64, 2)
add("flood-forecast", f"{f}.transformer_xl.informer", "Informer", lambda: (torch.randn(4, 24, 5), torch.rand(4, 24, 4),
    torch.randn(4, 18, 5), torch.rand(4, 18, 4)), 5, 5, 5, 24, 12, 6, d_model=32, n_heads=4, e_layers=2, d_layers=1,
    d_ff=64, embed="timeF", factor=2, device=torch.device("cpu"))  # fmt: skip
add("flood-forecast", f"{f}.transformer_xl.cross_former", "Crossformer", noise(4, 24, 5), 5, 24, 6, 6, 2, 3, 32, 64, 4,
    2, device=torch.device("cpu"))  # fmt: skip
add("flood-forecast", f"{f}.transformer_xl.transformer_bottleneck", "DecoderTransformer", noise(4, 24, 5), 5, 4, 2, 27,
    24, 0.0, 3, {})  # fmt: skip
add("flood-forecast", f"{f}.transformer_xl.multi_head_base", "MultiAttnHeadSimple", noise(4, 24, 5), 5, 24, 6, 32, 4)


def of_darts(path: str, name: str, *, past: int = 3, **options: Any) -> tuple[Made, Any]:
    """Return the constructor of a network that takes past, future and static values, and its past."""

    class OfPast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {} if "input_size" in options else {"input_dim": past, "output_dim": past}
            given = {"nr_params": 1, "input_chunk_length": 24, "output_chunk_length": 6} | sizes | options
            self.given = module("darts.utils.data.torch_datasets.utils").PLModuleInput
            self.net = getattr(module(f"darts.models.forecasting.{path}"), name)(**given)

        def forward(self, x: torch.Tensor) -> Any:
            return self.net(self.given(past_target=x))

    return OfPast, noise(8, 24, past)


enter("darts", "NBEATS", *of_darts("nbeats", "_NBEATSModule", generic_architecture=True, num_stacks=2, num_blocks=1,
    num_layers=2, layer_widths=[32, 32], expansion_coefficient_dim=5, trend_polynomial_degree=2, batch_norm=False,
    dropout=0.0, activation="ReLU"))  # fmt: skip
enter("darts", "NHiTS", *of_darts("nhits", "_NHiTSModule", num_stacks=2, num_blocks=1, num_layers=2,
    layer_widths=[32, 32], pooling_kernel_sizes=((2,), (1,)), n_freq_downsample=((2,), (1,)), batch_norm=False,
    dropout=0.0, activation="ReLU", MaxPool1d=True))  # fmt: skip
enter("darts", "TiDE", *of_darts("tide_model", "_TideModule", future_cov_dim=0, static_cov_dim=0, num_encoder_layers=1,
    num_decoder_layers=1, decoder_output_dim=8, hidden_size=32, temporal_decoder_hidden=16, temporal_width_past=4,
    temporal_hidden_size_past=None, temporal_width_future=4, temporal_hidden_size_future=None, use_layer_norm=True,
    dropout=0.0))  # fmt: skip
enter("darts", "TSMixer", *of_darts("tsmixer_model", "_TSMixerModule", past_cov_dim=0, future_cov_dim=0,
    static_cov_dim=0, hidden_size=32, ff_size=64, num_blocks=2, activation="ReLU", dropout=0.0, norm_type="LayerNorm",
    normalize_before=False))  # fmt: skip
enter("darts", "Transformer", *of_darts("transformer_model", "_TransformerModule", input_size=3, output_size=3,
    d_model=32, nhead=4, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=64, dropout=0.0,
    activation="relu"))  # fmt: skip
# ----------------------------------------------------------------------------------------------------- tables, lattices


def in_context() -> tuple[torch.Tensor, ...]:
    """Return two tables of 20 rows, of which the classes of 14 are known."""
    return torch.randn(2, 20, 6), torch.randint(3, (2, 14)).float()


add("tabicl", "tabicl._model.tabicl", "TabICL", in_context, 3, embed_dim=32, col_num_blocks=1, col_nhead=4,
    col_num_inds=8, row_num_blocks=1, row_nhead=4, icl_num_blocks=2, icl_nhead=4)  # fmt: skip
add("rtdl", "rtdl", "MLP", TABLE, d_in=12, d_layers=[64, 32], dropouts=0.1, activation="ReLU", d_out=3)
add("rtdl", "rtdl", "ResNet", TABLE, d_in=12, n_blocks=2, d_main=32, d_hidden=64, dropout_first=0.1,
    dropout_second=0.0, normalization="BatchNorm1d", activation="ReLU", d_out=3)  # fmt: skip


def tokenised() -> nn.Module:
    """Return a transformer of numbers and categories."""
    made: nn.Module = module("rtdl").FTTransformer.make_baseline(n_num_features=6, cat_cardinalities=[4, 5], d_token=32,
        n_blocks=2, attention_dropout=0.0, ffn_d_hidden=48, ffn_dropout=0.0, residual_dropout=0.0, d_out=3)  # fmt: skip
    return made


enter("rtdl", "FTTransformer", tokenised, lambda: (torch.randn(16, 6), torch.randint(4, (16, 2))))


r = "recbole.model.layers"
add("recbole", r, "MLPLayers", TABLE, [12, 64, 32, 1], activation="sigmoid", bn=True)
add("recbole", r, "TransformerEncoder", lambda: (torch.randn(4, 12, 32), torch.zeros(4, 1, 1, 12)), 2, 4, 32, 64)
add("recbole", r, "LightTransformerEncoder", lambda: (torch.randn(4, 12, 32), torch.randn(12, 32)), 2, 4, 5, 32, 12, 64)
add("recbole", r, "CNNLayers", noise(4, 1, 32, 16), [1, 16, 32], [3, 3], [2, 2])

# -------------------------------------------------------------------------------------------------------------- sounds
add("wavenet-vocoder", "wavenet_vocoder.wavenet", "WaveNet", lambda: (torch.eye(32)[torch.randint(32, (2, 128))]
    .transpose(1, 2),), 32, 6, 2, 16, 32, 16)  # fmt: skip
add("wavenet-vocoder", "wavenet_vocoder.wavenet", "WaveNet", lambda: (torch.eye(32)[torch.randint(32, (2, 128))]
    .transpose(1, 2), torch.randn(2, 8, 128)), 32, 6, 2, 16, 32, 16, cin_channels=8, label="WaveNet, of a spectrogram",
    )  # fmt: skip
add("hear21passt", "hear21passt.models.passt", "PaSST", noise(2, 1, 64, 96), img_size=(64, 96), num_classes=10,
    embed_dim=64, depth=2, num_heads=4)  # fmt: skip


def hearing() -> nn.Module:
    """Return a model that writes down speech."""
    whisper = module("whisper.model")
    made: nn.Module = whisper.Whisper(whisper.ModelDimensions(20, 24, 64, 4, 2, 60, 16, 64, 4, 2))
    return made


enter("openai-whisper", "Whisper", hearing, lambda: (torch.randn(2, 20, 48), torch.randint(60, (2, 10))))


def through_unet() -> nn.Module:
    """Return a network of levels of one dimension, some with attention."""
    a = module("a_unet.apex")
    items = [a.ResnetItem, a.AttentionItem, a.ResnetItem]
    blocks = [a.XBlock(channels=16, factor=1, items=items[::2]), a.XBlock(channels=32, factor=2, items=items)]
    made: nn.Module = a.XUNet(dim=1, in_channels=4, blocks=blocks, skip_t=a.SkipCat, resnet_groups=4,
        attention_features=16, attention_heads=2)  # fmt: skip
    return made


enter("a-unet", "XUNet", through_unet, noise(2, 4, 64))

# ------------------------------------------------------------------------------------------- proteins, molecules, scans
s = "sequence_models"
add("sequence-models", f"{s}.convolutional", "ByteNetLM", tokens(20, 4, 32), 20, 8, 32, 4, 5, 8)
add("sequence-models", f"{s}.convolutional", "ByteNet2d", noise(2, 12, 12, 8), 8, 16, 16, 2, 3, 4, tokens=False)


def structured() -> nn.Module:
    """Return a model of contacts."""
    net = module(f"{s}.convolutional").ByteNet(20, 8, 32, 3, 5, 8)
    made: nn.Module = module(f"{s}.structure").ByteNetStructureModel(net, 32, 1)
    return made


enter("sequence-models", "ByteNetStructureModel", structured, tokens(20, 2, 24))
add("mlcolvar", "mlcolvar.core.nn.feedforward", "FeedForward", TABLE, [12, 32, 32, 2], "shifted_softplus")
add("mlcolvar", "mlcolvar.cvs", "DeepTDA", TABLE, 2, 1, [0.0, 7.0], [0.2, 0.2], [12, 32, 32, 1])
add("mlcolvar", "mlcolvar.cvs", "AutoEncoderCV", TABLE, [12, 32, 16, 2], options={"norm_in": None})
add("fastmri", "fastmri.models", "Unet", noise(2, 1, 32, 32), 1, 1, 16, 2)
add("fastmri", "fastmri.models", "VarNet", lambda: (torch.randn(1, 3, 32, 32, 2), torch.arange(32).view(1, 1, 1, 32, 1)
    % 2 == 0, 8), 2, 4, 2, 8, 2)  # fmt: skip
v = "deeptime.decomposition.deep"
add("deeptime", "deeptime.util.torch", "MLP", TABLE, [12, 64, 32, 4], nn.ELU, True)
add("deeptime", v, "TVAEEncoder", TABLE, [12, 32, 2])
# ------------------------------------------------------------------------------------------------------------ pictures
x = "xautodl.models"
add("xautodl", f"{x}.CifarDenseNet", "DenseNet", PICTURE, 12, 22, 2, 10, True)
add("xautodl", f"{x}.CifarResNet", "CifarResNet", PICTURE, "ResNetBasicblock", 8, 10, False)


def searched() -> nn.Module:
    """Return a network whose cells a search has found."""
    full = module(f"{x}.cell_searchs.genotypes").AllFull_CODE
    made: nn.Module = module(f"{x}.cell_infers.tiny_network").TinyNetwork(8, 1, full, 10)
    return made


enter("xautodl", "TinyNetwork", searched, PICTURE)


def pix2tex() -> nn.Module:
    """Return an encoder of formulas."""
    layers = module("x_transformers").Encoder(dim=32, depth=2, heads=4)
    made: nn.Module = module("pix2tex.models.vit").ViTransformerWrapper(max_width=64, max_height=32, patch_size=8,
        attn_layers=layers)  # fmt: skip
    return made


enter("pix2tex", "ViTransformerWrapper", pix2tex, noise(2, 1, 32, 64))
add("pytorch-ood", "pytorch_ood.model", "GRUClassifier", tokens(60, 8, 12), 5, 60)
add("pytorch-ood", "pytorch_ood.model", "WideResNet", noise(2, 3, 32, 32), 10, 10, 2)
t = "pytorch_toolbelt.modules"
add("pytorch-toolbelt", f"{t}.encoders", "UnetEncoder", PICTURE, 3, 16, 3)
add("pytorch-toolbelt", f"{t}.encoders", "StackedHGEncoder", noise(1, 3, 64, 64), 3, 2, 3, 16)
add("pytorch-toolbelt", f"{t}.encoders", "HRNetV2Encoder18", noise(1, 3, 64, 64))
add("pytorch-toolbelt", t, "ChannelSpatialGate2d", noise(4, 16, 16, 16), 16)
o = "ofa.imagenet_classification.networks"
add("ofa", o, "MobileNetV3Large", noise(2, 3, 64, 64), 10, 0.5)
add("ofa", o, "ResNet50", noise(2, 3, 64, 64), 10, 0.25)
add("retinaface-pytorch", "retinaface.network", "RetinaFace", noise(1, 3, 96, 96), "Resnet50", False, 256,
    {"layer2": 1, "layer3": 2, "layer4": 3}, 32)  # fmt: skip


def encoded() -> nn.Module:
    """Return the body of a residual network and its pooling."""
    made: nn.Module = module("catalyst.contrib.models").ResnetEncoder("resnet18", False, False)
    return made


enter("catalyst", "ResnetEncoder", encoded, noise(2, 3, 64, 64))
add("catalyst", "catalyst.contrib.models", "MnistBatchNormNet", noise(8, 1, 28, 28), 10)
add("catalyst", "catalyst.contrib.layers", "LamaPooling", noise(4, 12, 32), 32)
add("catalyst", "catalyst.contrib.layers", "scSE", noise(4, 32, 16, 16), 32)
# --------------------------------------------------------------------------------------------------- weather, decisions
add("microsoft-aurora", "aurora.model.swin3d", "Swin3DTransformerBackbone", lambda: {"x": torch.randn(1, 512, 32),
    "lead_times": torch.tensor([6.0]), "rollout_step": 0, "patch_res": (4, 8, 16)}, 32, (1, 2), (2, 4), (2, 1), (4, 2),
    (2, 4, 4))  # fmt: skip
add("microsoft-aurora", "aurora.model.perceiver", "PerceiverResampler", lambda: (torch.randn(12, 4, 32),
    torch.randn(12, 13, 32)), 32, 32, 2, 8, 4)  # fmt: skip
q = "torchrl.modules"
add("torchrl", q, "MultiAgentMLP", noise(16, 3, 8), 8, 2, 3, centralized=True, share_params=False, depth=2,
    num_cells=32)  # fmt: skip
add("torchrl", q, "ConvNet", noise(4, 3, 64, 64), 3, 3, [16, 32, 32], [8, 4, 3], [4, 2, 1])
add("torchrl", q, "ObsEncoder", noise(2, 3, 64, 64), 8, in_channels=3)
e = "elegantrl.agents.net"
add("elegantrl", e, "CriticPPO", noise(32, 8), [64, 32], 8, 2)
add("elegantrl", e, "ActorSAC", noise(32, 8), [64, 32], 8, 2)
add("elegantrl", e, "QNetTwinDuel", noise(32, 8), [64, 32], 8, 4)


def of_states() -> nn.Module:
    """Return a policy whose observations are named."""
    box, skrl = module("gymnasium").spaces.Box, module("skrl.models.torch")

    def begin(self: Any) -> None:
        """Make the layers of the policy."""
        skrl.Model.__init__(self, observation_space=box(-1, 1, (8,)), action_space=box(-1, 1, (2,)), device="cpu")
        skrl.GaussianMixin.__init__(self)
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ELU(), nn.Linear(64, 32), nn.ELU(), nn.Linear(32, 2))
        self.spread = nn.Parameter(torch.zeros(2))

    def compute(self: Any, inputs: dict[str, Any], _role: str = "") -> Any:
        """Return the mean action, and the logarithm of its spread."""
        return self.net(inputs["observations"]), {"log_std": self.spread}

    def forward(self: Any, observations: torch.Tensor) -> Any:
        """Return an action that is drawn."""
        return self.act({"observations": observations})[0]

    made = {"__init__": begin, "compute": compute, "forward": forward}
    policy: nn.Module = type("Policy", (skrl.GaussianMixin, skrl.Model), made)()
    return policy


enter("skrl", "GaussianMixin", of_states, noise(32, 8))
# ----------------------------------------------------------------------------------------------- flows, graphs, complex
add("stribor", "stribor.net", "MLP", TABLE, 12, [64, 32], 4)
add(
    "stribor",
    "stribor.net",
    "EquivariantNet",
    lambda: {"x": torch.randn(8, 10, 6), "mask": torch.ones(8, 10, 1)},
    6,
    [32, 32],
    4,
)
add("stribor", "stribor.net", "ResNet", TABLE, 12, [32, 32], 3)
c = "torchcvnn.nn"


def of_complex(*shape: int) -> Any:
    """Return complex noise as the one argument."""
    return lambda: (torch.randn(*shape, dtype=torch.complex64),)


add("torchcvnn", c, "TransformerEncoderLayer", of_complex(4, 10, 16), 16, 4, 32, 0.0, batch_first=True)


def complex_convolutions() -> nn.Module:
    """Return convolutions of complex numbers whose moduli are rectified."""
    n = module(c)
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, dtype=torch.complex64), n.BatchNorm2d(8), n.modReLU(),
        nn.Conv2d(8, 16, 3, stride=2, dtype=torch.complex64), n.CReLU(), n.AvgPool2d(2, 2, 0), nn.Flatten(),
        nn.Linear(784, 4, dtype=torch.complex64), n.Mod())  # fmt: skip


enter("torchcvnn", "BatchNorm2d, modReLU, CReLU", complex_convolutions, of_complex(4, 1, 32, 32))


def in_parts() -> nn.Module:
    """Return dense layers of complex numbers kept as two parts."""
    n = module("cplxmodule.nn")
    return nn.Sequential(n.RealToCplx(), n.CplxLinear(12, 32), n.CplxModReLU(), n.CplxBatchNorm1d(32),
        n.CplxLinear(32, 8), n.CplxToReal())  # fmt: skip


enter("cplxmodule", "CplxLinear, CplxModReLU", in_parts, noise(16, 24))


def complex_pytorch() -> nn.Module:
    """Return a network of complex pictures, as its authors' example."""
    n = module("complexPyTorch.complexLayers")
    return nn.Sequential(n.ComplexConv2d(1, 8, 5), n.ComplexBatchNorm2d(8), n.ComplexReLU(), n.ComplexConv2d(8, 8, 5),
        n.ComplexReLU(), nn.Flatten(), n.ComplexLinear(3200, 10))  # fmt: skip


enter("complexPyTorch", "ComplexConv2d, ComplexLinear", complex_pytorch, of_complex(2, 1, 28, 28))
g = "torch_geometric_signed_directed.nn"


def arrows() -> tuple[torch.Tensor, ...]:
    """Return nodes and the arrows between them."""
    return torch.randn(30, 8), torch.randint(30, (2, 90)), torch.rand(90)


add("torch-geometric-signed-directed", g, "DiGCN_node_classification", arrows, 8, 16, 3)
add("torch-geometric-signed-directed", g, "MagNet_node_classification", lambda: (torch.randn(30, 8), torch.randn(30, 8),
    torch.randint(30, (2, 90))), 8, 16, K=2, label_dim=3, layer=2)  # fmt: skip
add("torch-geometric-signed-directed", g, "SSSNET_node_clustering", lambda: (*arrows()[1:], *arrows()[1:],
    torch.randn(30, 8)), 8, 16, 3, 0.0, 2, 0.5)  # fmt: skip
p = "topomodelx.nn"


def incidence() -> tuple[torch.Tensor, ...]:
    """Return nodes and the hyperedges that they belong to."""
    return torch.randn(24, 8), torch.eye(24)[:, :10] + (torch.rand(24, 10) < 0.4).float()


def laplacians() -> tuple[torch.Tensor, ...]:
    """Return edges and their two Laplacians."""
    up, down = ((torch.rand(20, 20) < 0.2).float() for _ in range(2))
    return torch.randn(20, 8), *((one + one.T).to_sparse() for one in (up, down))


add("topomodelx", f"{p}.hypergraph.unigcnii", "UniGCNII", incidence, 8, 16)
add("topomodelx", f"{p}.hypergraph.unigin", "UniGIN", incidence, 8, 16)
add("topomodelx", f"{p}.simplicial.scnn", "SCNN", laplacians, 8, 16, 2, 2, 2)
add("topomodelx", f"{p}.simplicial.san", "SAN", laplacians, 8, 16)


def rates() -> nn.Module:
    """Return neurons whose rates feed back."""
    n = module("rockpool.nn.modules.torch")

    class Rates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.rates = n.LinearTorch((6, 32)), n.RateTorch((32, 32), tau=0.02, has_rec=True, dt=0.01)
            self.out = n.LinearTorch((32, 3))

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(self.rates(self.into(x)[0])[0])[0]

    return Rates()


enter("rockpool", "RateTorch", rates, noise(4, 8, 6))


def leaky() -> nn.Module:
    """Return layers of leaky neurons that spike."""
    n = module("rockpool.nn.modules.torch")

    class Leaky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.spikes = n.LinearTorch((6, 32)), n.LIFTorch((32, 32), dt=0.01)
            self.out = n.LinearTorch((32, 3))

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(self.spikes(self.into(x)[0])[0])[0]

    return Leaky()


enter("rockpool", "LIFTorch", leaky, noise(4, 8, 6))
