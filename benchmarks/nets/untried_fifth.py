"""Models of libraries that batch 5 met first, of many authors, small, each with its example arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nets.untried import Arguments, Entries, Made, module, noise, tokens

ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter

PICTURE, SEQUENCE = noise(4, 3, 32, 32), noise(4, 20, 32)

# ------------------------------------------------------------------------------------------------- pictures, inversion
v = "homura.vision.models"
add("homura-core", v, "resnet20", PICTURE)
add("homura-core", v, "wrn28_2", PICTURE)
add("homura-core", v, "resnext29_32x4d", noise(2, 3, 32, 32))
a = "antialiased_cnns"
add("antialiased-cnns", a, "resnet18", noise(2, 3, 64, 64))
add("antialiased-cnns", a, "mobilenet_v2", noise(2, 3, 64, 64))
add("antialiased-cnns", a, "vgg11", noise(1, 3, 64, 64))
add("easyfsl", "easyfsl.modules", "resnet12", noise(2, 3, 48, 48))
d, grey, level = "deepinv.models", noise(2, 1, 32, 32), lambda: (torch.randn(2, 1, 32, 32), torch.tensor([0.1, 0.1]))
add("deepinv", d, "DRUNet", level, 1, 1, (16, 24, 32, 48), 2, pretrained=None)
add("deepinv", d, "DnCNN", grey, 1, 1, 8, nf=32, pretrained=None)
add("deepinv", d, "UNet", grey, 1, 1, scales=3)
add("deepinv", d, "SCUNet", lambda: (torch.randn(1, 1, 64, 64), 0.1), 1, (2,) * 7, 32, input_resolution=64,
    pretrained=None)  # fmt: skip
add("deepinv", d, "Restormer", noise(1, 1, 32, 32), 1, 1, 16, (1, 1, 1, 2), 1, pretrained=None)
add("deepinv", d, "ConvDecoder", noise(1, 32, 4, 4), (1, 32, 32), layers=4, channels=32)
f = "facexlib"
add("facexlib", f"{f}.parsing.bisenet", "BiSeNet", noise(2, 3, 64, 64), 5)
add("facexlib", f"{f}.parsing.parsenet", "ParseNet", noise(2, 3, 32, 32), 32, 32, 8, 16, 5, 2, ch_range=[16, 32])
add("facexlib", f"{f}.alignment.awing_arch", "FAN", noise(1, 3, 256, 256), num_landmarks=5, device="cpu")
add("facexlib", f"{f}.matting.modnet", "MODNet", lambda: (torch.randn(1, 3, 64, 64), False), backbone_pretrained=False)
add("carvekit", "carvekit.ml.arch.u2net.u2net", "U2NETArchitecture", noise(1, 3, 64, 64), "full")


def registered() -> tuple[torch.Tensor, ...]:
    """Return two grey pictures."""
    return torch.rand(2, 1, 32, 32), torch.rand(2, 1, 32, 32)


add("voxelmorph", "voxelmorph.nn.models", "VxmPairwise", registered, 2, 1, 1)

# ---------------------------------------------------------------------------------------------------------- generation
g = "generative.networks.nets"
add("monai-generative", g, "AutoencoderKL", noise(2, 1, 32, 32), 2, num_res_blocks=1, num_channels=(16, 32),
    attention_levels=(False, True), norm_num_groups=8)  # fmt: skip
add("monai-generative", g, "DiffusionModelUNet", lambda: (torch.randn(2, 1, 16, 16), torch.tensor([3, 40])), 2, 1, 1,
    num_res_blocks=1, num_channels=(16, 32), attention_levels=(False, True), norm_num_groups=8)  # fmt: skip
add("monai-generative", g, "VQVAE", noise(2, 1, 32, 32), 2, 1, 1, (16, 32), 1, (16, 32), ((2, 4, 1, 1),) * 2,
    ((2, 4, 1, 1, 0),) * 2, 32, 16)  # fmt: skip
add("monai-generative", g, "PatchDiscriminator", noise(2, 1, 64, 64), 2, 16, 1)
add("monai-generative", g, "DecoderOnlyTransformer", tokens(32, 2, 24), 32, 24, 32, 2, 4)
add("torchcfm", "torchcfm.models.unet", "UNetModel", lambda: (torch.rand(2), torch.randn(2, 1, 16, 16)), (1, 16, 16),
    32, 1, channel_mult=(1, 2), attention_resolutions="8")  # fmt: skip
add("torchcfm", "torchcfm.models", "MLP", noise(64, 3), 2, 2, time_varying=True)


def of_pictures(name: str, *args: int) -> Made:
    """Return the constructor of a half of an autoencoder of pictures and tokens, whose weights are trained."""

    def make() -> nn.Module:
        made: nn.Module = getattr(module("dall_e"), name)(*args, vocab_size=64)
        return made.requires_grad_(True)

    return make


enter("DALL-E", "Encoder", of_pictures("Encoder", 32, 1), noise(1, 3, 32, 32))
enter("DALL-E", "Decoder", of_pictures("Decoder", 16, 32, 1), noise(1, 64, 4, 4))
latent = {"input_dim": (24,), "latent_dim": 4}


def of_config(name: str) -> Made:
    """Return the constructor of a part of an autoencoder of several views."""

    def make() -> nn.Module:
        config = module("multivae.models.base").BaseAEConfig(**latent)
        made: nn.Module = getattr(module("multivae.models.nn.default_architectures"), name)(config)
        return made

    return make


enter("multivae", "Encoder_VAE_MLP", of_config("Encoder_VAE_MLP"), noise(32, 24))
enter("multivae", "Decoder_AE_MLP", of_config("Decoder_AE_MLP"), noise(32, 4))

# ------------------------------------------------------------------------------------------------------------ densities
p = "pyro.nn"
add("pyro-ppl", p, "DenseNN", noise(64, 6), 6, [32, 32], [3, 3])
add("pyro-ppl", p, "AutoRegressiveNN", noise(64, 6), 6, [32, 32])
add("pyro-ppl", p, "ConditionalAutoRegressiveNN", lambda: (torch.randn(64, 6), torch.randn(64, 3)), 6, 3, [32, 32])
s = "sbi.neural_nets.embedding_nets"
add("sbi", s, "CNNEmbedding", noise(8, 64), (64,))
add("sbi", s, "ResNetEmbedding1D", noise(16, 12), 12, 20, n_blocks=4, c_internal=32, c_hidden_final=32)
add("sbi", s, "ResNetEmbedding2D", noise(4, 3, 32, 32), 3, 10, 64)
add("sbi", s, "LRUEmbedding", noise(4, 24, 3), 3, 8)
add("sbi", s, "SpectralConvEmbedding", noise(4, 2, 48), 2, 6)
add("sbi", s, "CausalCNNEmbedding", noise(4, 400), (400,), pool_kernel_size=40)
add("auton-survival", "auton_survival.models.dcm.dcm_torch", "DeepCoxMixturesTorch", noise(32, 10), 10, 3,
    layers=[32, 32])  # fmt: skip
add("auton-survival", "auton_survival.models.dsm.dsm_torch", "DeepSurvivalMachinesTorch", noise(32, 10), 10, 3,
    layers=[32, 32])  # fmt: skip
add("mbrl", "mbrl.models", "GaussianMLP", noise(32, 8), 8, 4, "cpu", hid_size=32)


def ensemble() -> tuple[torch.Tensor, ...]:
    """Return what each member of an ensemble sees."""
    return (torch.randn(5, 32, 8),)


add("mbrl", "mbrl.models", "GaussianMLP", lambda: {"x": ensemble()[0], "use_propagation": False}, 8, 4, "cpu",
    ensemble_size=5, hid_size=32, label="GaussianMLP, five")  # fmt: skip

# ----------------------------------------------------------------------------------------------------- physics, spheres
add("weaver-core", "weaver.nn.model.ParticleNet", "ParticleNet", lambda: (torch.randn(4, 2, 24),
    torch.randn(4, 7, 24)), 7, 5, [(5, (16, 16)), (5, (32, 32))], [(32, 0.1)])  # fmt: skip
add("weaver-core", "weaver.nn.model.ParticleTransformer", "ParticleTransformer", lambda: (torch.randn(4, 7, 24),), 7, 5,
    embed_dims=(32, 64, 32), num_heads=4, num_layers=2, num_cls_layers=1, trim=False)  # fmt: skip


def on_points(name: str, *args: Any, **options: Any) -> Made:
    """Return the constructor of a network on points of a plane."""

    class OnPoints(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            spaces = module("torchphysics.problem.spaces")
            self.space = spaces.R2("x")
            self.net = getattr(module("torchphysics.models"), name)(self.space, spaces.R1("u"), *args, **options)
            self.points = spaces.Points

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = self.net(self.points(x, self.space)).as_tensor
            return made

    return OnPoints


enter("torchphysics", "FCN", on_points("FCN"), noise(64, 2))
enter("torchphysics", "Harmonic_FCN", on_points("Harmonic_FCN", 3), noise(64, 2))
enter("torchphysics", "QRES", on_points("QRES"), noise(64, 2))
enter("torchphysics", "DeepRitzNet", on_points("DeepRitzNet", 20, 3), noise(64, 2))


def hyperbolic() -> nn.Module:
    """Return layers on a ball of curvature -1."""

    class OnBall(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            manifolds = module("hypll.manifolds.poincare_ball")
            ball = manifolds.PoincareBall(c=manifolds.Curvature(1.0))
            layers = module("hypll.nn")
            self.ball, self.tangent = ball, module("hypll.tensors").TangentTensor
            self.first, self.act = layers.HLinear(12, 32, manifold=ball), layers.HReLU(manifold=ball)
            self.last = layers.HLinear(32, 4, manifold=ball)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = self.ball.expmap(self.tangent(data=x, man_dim=-1, manifold=self.ball))
            made: torch.Tensor = self.last(self.act(self.first(at))).tensor
            return made

    return OnBall()


enter("hypll", "HLinear, HReLU", hyperbolic, noise(32, 12))

# --------------------------------------------------------------------------------------------------------- speech, text
add("vocos", "vocos.models", "VocosBackbone", noise(2, 32, 40), 32, 32, 64, 2)
add("vocos", "vocos.models", "VocosResNetBackbone", noise(2, 32, 40), 32, 32, 2)
add("vocos", "vocos.discriminators", "DiscriminatorR", noise(1, 2048), 256, channels=8)
add("denoiser", "denoiser.demucs", "Demucs", noise(1, 1, 2048), hidden=8, depth=3)
add("pytorch-nlp", "torchnlp.nn", "Attention", lambda: (torch.randn(4, 1, 32), torch.randn(4, 12, 32)), 32)
add("pytorch-nlp", "torchnlp.nn", "CNNEncoder", noise(4, 20, 32), 32, 16, output_dim=24)


def adapted() -> nn.Module:
    """Return dense layers with adapters of low rank."""
    lora = module("loralib")
    return nn.Sequential(lora.Linear(32, 64, r=4), nn.ReLU(), lora.MergedLinear(64, 96, r=4, enable_lora=[True, False,
        True]), nn.ReLU(), lora.Linear(96, 8, r=2))  # fmt: skip


enter("loralib", "Linear, MergedLinear", adapted, noise(16, 32))


def spiking() -> nn.Module:
    """Return dense layers with neurons that leak, integrate and fire."""
    layers = module("sinabs.layers")
    return nn.Sequential(nn.Linear(16, 64), layers.LIF(tau_mem=20.0), nn.Linear(64, 32), layers.ExpLeak(tau_mem=20.0),
        nn.Linear(32, 4))  # fmt: skip


enter("sinabs", "LIF, ExpLeak", spiking, noise(4, 10, 16))


def recurrent_spiking() -> nn.Module:
    """Return a layer of such neurons that feed back."""
    layers = module("sinabs.layers")
    return nn.Sequential(nn.Linear(16, 32), layers.LIFRecurrent(tau_mem=20.0, rec_connect=nn.Linear(32, 32)),
        nn.Linear(32, 4))  # fmt: skip


enter("sinabs", "LIFRecurrent", recurrent_spiking, noise(4, 8, 16))

# -------------------------------------------------------------------------------------------------------------- biology
add("bpnet-lite", "bpnetlite.bpnet", "BPNet", lambda: (torch.eye(4)[torch.randint(4, (2, 400))].transpose(1, 2),
    torch.rand(2, 2, 400)), n_filters=16, n_layers=4, trimming=60, verbose=False)  # fmt: skip
add("dscript", "dscript.models.contact", "ContactCNN", lambda: (torch.randn(1, 20, 32), torch.randn(1, 24, 32)), 32, 16)
add("dscript", "dscript.models.embedding", "FullyConnectedEmbed", noise(2, 20, 64), 64, 32)
c = "cebra.models.model"
add("cebra", c, "Offset10Model", noise(8, 12, 10), 12, 32, 4)
add("cebra", c, "Offset36Dropoutv2", noise(4, 12, 36), 12, 32, 4)

# --------------------------------------------------------------------------------------------------------------- series


def inner(name: str, path: str, *args: Any, **options: Any) -> tuple[Made, Arguments]:
    """Return an encoder of events of clients, which takes what is padded, and its arguments."""

    class OfPadded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.padded = (
                getattr(module(path), name)(*args, **options),
                module("ptls.data_load").PaddedBatch,
            )

        def forward(self, x: torch.Tensor) -> Any:
            made = self.net(self.padded(x, torch.full((len(x),), x.shape[1])))
            return made.payload if hasattr(made, "payload") else made

    return OfPadded, SEQUENCE


enter("pytorch-lifestream", "RnnEncoder", *inner("RnnEncoder", "ptls.nn.seq_encoder.rnn_encoder", 32, 48))
enter("pytorch-lifestream", "TransformerEncoder", *inner("TransformerEncoder", "ptls.nn", 32, n_heads=4, dim_hidden=64,
    n_layers=2))  # fmt: skip
add("pytorch-lifestream", "ptls.nn", "Head", noise(32, 24), 24, use_norm_encoder=True, use_batch_norm=True,
    hidden_layers_sizes=[32], drop_probs=[0.1], objective="classification", num_classes=4)  # fmt: skip
add("conv-lstm", "conv_lstm", "ConvLSTM", noise(2, 5, 3, 16, 16), 3, 16, (3, 3), 2)


def mixer() -> nn.Module:
    """Return a forecaster of mixed patches."""
    m = module("tsfm_public")
    made: nn.Module = m.TinyTimeMixerForPrediction(m.TinyTimeMixerConfig(context_length=64, num_input_channels=3,
        prediction_length=16))  # fmt: skip
    return made


enter("granite-tsfm", "TinyTimeMixerForPrediction", mixer, noise(4, 64, 3))


def chronos() -> nn.Module:
    """Return a forecaster whose tokens are patches and whose groups attend to each other."""
    config = module("chronos.chronos2.config").Chronos2CoreConfig(d_model=32, d_kv=8, d_ff=64, num_layers=2,
        num_heads=4, chronos_config={"context_length": 64, "output_patch_size": 8, "input_patch_size": 8,
        "input_patch_stride": 8, "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True, "use_arcsinh": True,
        "max_output_patches": 4, "time_encoding_scale": 64})  # fmt: skip
    made: nn.Module = module("chronos").Chronos2Model(config)
    return made


enter("chronos-forecasting", "Chronos2Model", chronos, noise(4, 64))

# ------------------------------------------------------------------------------------------------------- tables, graphs
t = "torch_frame.nn.conv"
add("pytorch-frame", t, "FTTransformerConvs", noise(16, 8, 32), 32, nhead=4, num_layers=2)
add("pytorch-frame", t, "TromptConv", lambda: (torch.randn(16, 8, 32), torch.randn(16, 12, 32)), 32, 8, 12)
add("pytorch-frame", t, "ExcelFormerConv", noise(16, 8, 32), 32, 8, 4)
add("pytorch-frame", t, "TabTransformerConv", noise(16, 8, 32), 32, 4)


def ranked(name: str, *args: Any, **options: Any) -> Made:
    """Return the constructor of a network that ranks items by their fields."""

    class OfFields(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            features = module("torch_rechub.basic.features")
            fields = [features.SparseFeature(f"f{i}", 20, 16) for i in range(4)]
            numbers = [features.DenseFeature(f"n{i}") for i in range(3)]
            given = {"DeepFM": ([*fields, *numbers], fields), "DCN": ([*fields, *numbers],), "FiBiNet": (fields,),
                "AutoInt": (fields, numbers), "AFM": (fields,)}[name]  # fmt: skip
            self.net = getattr(module("torch_rechub.models.ranking"), name)(*given, *args, **options)

        def forward(self, kinds: torch.Tensor, numbers: torch.Tensor) -> Any:
            named = {f"f{i}": kinds[:, i] for i in range(4)}
            return self.net(named | {f"n{i}": numbers[:, i] for i in range(3)})

    return OfFields


def fields() -> tuple[torch.Tensor, ...]:
    """Return categories and numbers of rows of a table."""
    return torch.randint(20, (32, 4)), torch.randn(32, 3)


top = {"mlp_params": {"dims": [32, 16]}}
enter("torch-rechub", "DeepFM", ranked("DeepFM", **top), fields)
enter("torch-rechub", "DCN", ranked("DCN", 3, **top), fields)
enter("torch-rechub", "FiBiNet", ranked("FiBiNet", **top), fields)
enter("torch-rechub", "AutoInt", ranked("AutoInt"), fields)
add("prediction-flow", "prediction_flow.pytorch.nn", "Attention", lambda: (torch.randn(8, 16), torch.randn(8, 6, 16),
    torch.full((8, 1), 6)), 16, (32, 16))  # fmt: skip
add("prediction-flow", "prediction_flow.pytorch.nn", "MLP", noise(32, 12), 12, (32, 16))
