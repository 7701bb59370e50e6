"""Models of libraries that no other list of the benchmarks holds, small, each with its example arguments.

`benchmarks/first_try.txt` names the libraries. Models are made by their own constructors with random weights.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

Made = Callable[[], nn.Module]
Arguments = Callable[[], "tuple[Any, ...] | dict[str, Any]"]


def module(path: str) -> Any:
    """Import a module."""
    return importlib.import_module(path)


class Entries(dict[str, tuple[str, Made, Arguments]]):
    """Library, constructor and arguments of every model, by name."""

    def add(
        self, library: str, path: str, name: str, arguments: Arguments, *args: Any, label: str = "", **options: Any
    ) -> None:
        """Enter a model that a constructor makes."""

        def make() -> nn.Module:
            made: nn.Module = getattr(module(path), name)(*args, **options)
            return made

        self.enter(library, label or name, make, arguments)

    def enter(self, library: str, label: str, make: Made, arguments: Arguments) -> None:
        """Enter a model that takes more than one call to make."""
        self[f"{library}: {label}"] = library, make, arguments


ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter


def noise(*shape: int) -> Arguments:
    """White noise as the one argument."""
    return lambda: (torch.randn(shape),)


def tokens(high: int, *shape: int) -> Arguments:
    """Integers as the one argument."""
    return lambda: (torch.randint(high, shape),)


SMALL, WAVE = noise(4, 3, 32, 32), noise(2, 1, 2048)

# -------------------------------------------------------------------------------------------------------------- sounds
a = "asteroid.models"
add("asteroid", a, "ConvTasNet", noise(2, 1, 800), 2, n_blocks=3, n_repeats=2, bn_chan=32, hid_chan=64, skip_chan=32,
    n_filters=64)  # fmt: skip
add("asteroid", a, "DPRNNTasNet", noise(2, 1, 400), 2, bn_chan=32, hid_size=32, chunk_size=20, n_repeats=2)
add("asteroid", a, "DPTNet", noise(2, 1, 400), 2, ff_hid=32, chunk_size=20, n_repeats=2)
add("asteroid", a, "SuDORMRFNet", noise(2, 1, 1600), 2, bn_chan=32, num_blocks=3, n_filters=64)
add("asteroid", a, "LSTMTasNet", noise(2, 1, 400), 2, n_layers=2, hid_size=64)
add("demucs", "demucs.demucs", "Demucs", noise(1, 2, 4096), ["a", "b"], channels=16, depth=3, norm_starts=2)
add("snac", "snac", "SNAC", WAVE, encoder_dim=16, encoder_rates=[2, 4], decoder_dim=64, decoder_rates=[4, 2],
    attn_window_size=None, codebook_size=64, vq_strides=[4, 2, 1])  # fmt: skip
add("openunmix", "openunmix.model", "OpenUnmix", lambda: (torch.rand(2, 2, 129, 20),), 129, 2, 64, 2)
s = "speechbrain.lobes.models"
add("speechbrain", f"{s}.ECAPA_TDNN", "ECAPA_TDNN", noise(4, 60, 40), 40, channels=[64, 64, 64, 64, 192],
    attention_channels=32, lin_neurons=64)  # fmt: skip
add("speechbrain", f"{s}.Xvector", "Xvector", noise(4, 60, 40), tdnn_channels=[64, 64, 64, 64, 150], lin_neurons=64)
add("speechbrain", f"{s}.CRDNN", "CRDNN", noise(2, 40, 40), input_shape=[2, 40, 40], cnn_channels=[16, 32],
    rnn_neurons=32, rnn_layers=2, dnn_neurons=32)  # fmt: skip
add("speechbrain", f"{s}.ContextNet", "ContextNet", noise(2, 64, 40), input_shape=[2, 64, 40], out_channels=64,
    conv_channels=[32] * 6, strides=[1, 2, 1, 1, 2, 1], num_blocks=6, num_layers=2)  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- series
b, eeg = "braindecode.models", {"n_chans": 16, "n_outputs": 4, "n_times": 1000, "sfreq": 250}
for name in (
    "ATCNet", "EEGConformer", "EEGNet", "Deep4Net", "ShallowFBCSPNet", "EEGInceptionMI", "TIDNet", "EEGNeX",
    "SPARCNet", "MSVTNet", "CTNet", "ContraWR", "SyncNet", "EEGTCNet", "SCCNet", "BDTCN", "FBCNet", "SincShallowNet",
):  # fmt: skip
    add("braindecode", b, name, noise(4, 16, 1000), **eeg)
g = "gluonts.torch.model"
past = lambda: (torch.randn(8, 48), torch.ones(8, 48))  # noqa: E731
add("gluonts", f"{g}.patch_tst.module", "PatchTSTModel", past, prediction_length=12, context_length=48, patch_len=8,
    stride=4, padding_patch="end", d_model=32, nhead=4, dim_feedforward=64, num_feat_dynamic_real=0, dropout=0.1,
    activation="relu", norm_first=False, num_encoder_layers=2, scaling="mean")  # fmt: skip
add("gluonts", f"{g}.d_linear.module", "DLinearModel", past, 12, 48, 20)
add("gluonts", f"{g}.simple_feedforward.module", "SimpleFeedForwardModel", noise(8, 48), 12, 48, [32, 32])
add("gluonts", f"{g}.lag_tst.module", "LagTSTModel", lambda: (torch.randn(8, 200), torch.ones(8, 200)), 12, 48, "h", 32,
    4, 64, 0.1, "relu", False, 2, "mean", lags_seq=[1, 2, 24])  # fmt: skip
n = "pytorch_forecasting.models.nbeats.sub_modules"
add("pytorch-forecasting", n, "NBEATSSeasonalBlock", noise(32, 48), 64, 16, 4, 48, 12)
add("pytorch-forecasting", n, "NBEATSTrendBlock", noise(32, 48), 64, 3, 4, 48, 12)

# -------------------------------------------------------------------------------------------------------------- tables
add("tabm", "tabm", "TabM", lambda: (torch.randn(32, 10), torch.randint(3, (32, 2))), n_num_features=10,
    cat_cardinalities=[3, 4], d_out=2, k=8, n_blocks=2, d_block=64, dropout=0.1, arch_type="tabm",
    start_scaling_init="random-signs")  # fmt: skip
add("tabm", "tabm", "TabM", noise(32, 10), label="TabM, mini", n_num_features=10, d_out=2, k=8, n_blocks=2, d_block=64,
    dropout=0.1, arch_type="tabm-mini", start_scaling_init="random-signs")  # fmt: skip
fields = lambda: (torch.randint(10, (64, 6)),)  # noqa: E731
f, dims = "torchfm.model", [10] * 6
add("torchfm", f"{f}.dfm", "DeepFactorizationMachineModel", fields, dims, 16, (32, 32), 0.1)
add("torchfm", f"{f}.xdfm", "ExtremeDeepFactorizationMachineModel", fields, dims, 16, (32, 32), 0.1, (16, 16))
add("torchfm", f"{f}.afi", "AutomaticFeatureInteractionModel", fields, dims, 16, 32, 2, 2, (32,), (0.1, 0.1, 0.1))
add("torchfm", f"{f}.afn", "AdaptiveFactorizationNetwork", fields, dims, 16, 100, (32, 32), (0.1, 0.1))
add("torchfm", f"{f}.fnfm", "FieldAwareNeuralFactorizationMachineModel", fields, dims, 8, (32,), (0.1, 0.1))
add("torchfm", f"{f}.pnn", "ProductNeuralNetworkModel", fields, dims, 16, (32,), 0.1)
add("torchfm", f"{f}.afm", "AttentionalFactorizationMachineModel", fields, dims, 16, 16, (0.1, 0.1))
k = "torchkge.models"


def triples() -> tuple[Any, ...]:
    """Return heads, tails, relations, and corrupted heads and tails."""
    return tuple(torch.randint(high, (64,)) for high in (50, 50, 5, 50, 50))


KNOWLEDGE = {
    "TransHModel": (32, 50, 5), "TransRModel": (32, 16, 50, 5), "DistMultModel": (32, 50, 5),
    "ComplExModel": (32, 50, 5), "HolEModel": (32, 50, 5), "ConvKBModel": (32, 8, 50, 5),
}  # fmt: skip
for name, args in KNOWLEDGE.items():
    add("torchkge", k, name, triples, *args)

# ----------------------------------------------------------------------------------------------- graphs and molecules
add("crabnet", "crabnet.kingcrab", "ResidualNetwork", noise(64, 32), 32, 3, [64, 64, 32])


def atoms() -> nn.Module:
    made: nn.Module = module("torchani").arch.simple_ani(("H", "C", "O"), lot="wb97x-631gd")
    return made


enter(
    "torchani", "ANI", atoms, lambda: ((torch.tensor([1, 6, 8])[torch.randint(3, (2, 8))], 1.5 * torch.randn(2, 8, 3)),)
)

# -------------------------------------------------------------------------------------------------- lucid transformers
add("memformer", "memformer", "Memformer", lambda: (torch.randint(256, (2, 32)), torch.randint(256, (2, 32))), dim=64,
    num_memory_slots=16, enc_num_tokens=256, enc_depth=2, enc_max_seq_len=32, dec_num_tokens=256, dec_depth=2,
    dec_max_seq_len=32)  # fmt: skip
add("slot-attention", "slot_attention", "SlotAttention", noise(4, 32, 64), 5, 64, 3)
add("slot-attention", "slot_attention", "MultiHeadSlotAttention", noise(4, 32, 64), 5, 64, 4, 16)
add("lambda-networks", "lambda_networks", "LambdaLayer", noise(2, 32, 16, 16), dim=32, dim_out=32, r=7, dim_k=16)
add("bottleneck-transformer-pytorch", "bottleneck_transformer_pytorch", "BottleStack", noise(2, 64, 16, 16), dim=64,
    fmap_size=16, dim_out=128, num_layers=2, dim_head=16)  # fmt: skip
add("glom-pytorch", "glom_pytorch", "Glom", noise(2, 3, 32, 32), dim=64, levels=3, image_size=32, patch_size=8)
add("halonet-pytorch", "halonet_pytorch", "HaloAttention", noise(2, 64, 16, 16), dim=64, block_size=4, halo_size=2,
    dim_head=16, heads=4)  # fmt: skip
add("siren-pytorch", "siren_pytorch", "SirenNet", lambda: (torch.rand(64, 2) * 2 - 1,), dim_in=2, dim_hidden=64,
    dim_out=3, num_layers=4)  # fmt: skip
add("soft-moe-pytorch", "soft_moe_pytorch", "SoftMoE", noise(2, 32, 64), 64, seq_len=32, num_experts=4)
add("soft-moe-pytorch", "soft_moe_pytorch", "DynamicSlotsSoftMoE", noise(2, 32, 64), 64, num_experts=4, geglu=True)
add("recurrent-memory-transformer-pytorch", "recurrent_memory_transformer_pytorch", "RecurrentMemoryTransformer",
    tokens(256, 2, 32), 64, num_tokens=256, depth=2, num_memory_tokens=8, seq_len=32, dim_head=16, heads=4)  # fmt: skip
add("coca-pytorch", "coca_pytorch.coca_pytorch", "CoCa",
    lambda: {"text": torch.randint(1, 256, (2, 16)), "image_tokens": torch.randn(2, 20, 64)}, dim=64, num_tokens=256,
    unimodal_depth=2, multimodal_depth=2, image_dim=64, num_img_queries=8, dim_head=16, heads=4)  # fmt: skip
add("timesformer-pytorch", "timesformer_pytorch", "TimeSformer", noise(1, 4, 3, 32, 32), dim=64, image_size=32,
    patch_size=8, num_frames=4, num_classes=10, depth=2, heads=4, dim_head=16)  # fmt: skip
add("uformer-pytorch", "uformer_pytorch", "Uformer", noise(1, 3, 64, 64), dim=16, stages=2, num_blocks=1,
    window_size=8, dim_head=16, heads=2)  # fmt: skip
add("point-transformer-pytorch", "point_transformer_pytorch", "PointTransformerLayer",
    lambda: (torch.randn(2, 16, 64), torch.randn(2, 16, 3)), dim=64, num_neighbors=6)  # fmt: skip
add("point-transformer-pytorch", "point_transformer_pytorch", "MultiheadPointTransformerLayer",
    lambda: (torch.randn(2, 16, 64), torch.randn(2, 16, 3)), dim=64, heads=4, dim_head=16)  # fmt: skip
add("axial-attention", "axial_attention", "AxialImageTransformer", noise(2, 32, 8, 8), 32, 2, heads=4, reversible=False,
    axial_pos_emb_shape=(8, 8))  # fmt: skip
add("axial-attention", "axial_attention", "AxialAttention", noise(2, 32, 8, 8), 32, dim_index=1, heads=4)
add("h-transformer-1d", "h_transformer_1d", "HTransformer1D", tokens(256, 2, 64), num_tokens=256, dim=64, depth=2,
    max_seq_len=64, causal=False, heads=4, dim_head=16, block_size=16)  # fmt: skip
add("compressive-transformer-pytorch", "compressive_transformer_pytorch", "CompressiveTransformer", tokens(256, 2, 16),
    256, 64, 16, 2, heads=4, mem_len=16, cmem_len=4)  # fmt: skip
add("reformer-pytorch", "reformer_pytorch", "ReformerLM", tokens(256, 2, 64), num_tokens=256, dim=64, depth=2,
    max_seq_len=64, heads=4, bucket_size=16, n_hashes=2, ff_chunks=2, causal=True)  # fmt: skip
add("sinkhorn-transformer", "sinkhorn_transformer", "SinkhornTransformerLM", tokens(256, 2, 64), num_tokens=256, dim=64,
    max_seq_len=64, depth=2, heads=4, bucket_size=16, causal=False)  # fmt: skip
add("en-transformer", "en_transformer", "EnTransformer", lambda: (torch.randn(2, 16, 32), torch.randn(2, 16, 3)),
    dim=32, depth=2, dim_head=32, heads=4)  # fmt: skip
add("se3-transformer-pytorch", "se3_transformer_pytorch", "SE3Transformer",
    lambda: (torch.randn(1, 12, 16), torch.randn(1, 12, 3), torch.ones(1, 12, dtype=torch.bool)), dim=16, heads=2,
    dim_head=8, depth=1, num_degrees=2, num_neighbors=5)  # fmt: skip
add("vector-quantize-pytorch", "vector_quantize_pytorch", "FSQ", noise(2, 16, 32), [8, 5, 5, 5], dim=32)
add("vector-quantize-pytorch", "vector_quantize_pytorch", "LFQ", noise(2, 16, 32), dim=32, codebook_size=256)


def enformer() -> nn.Module:
    e = module("enformer_pytorch")
    made: nn.Module = e.Enformer(
        e.EnformerConfig(dim=96, depth=2, heads=4, output_heads={"human": 10}, target_length=4, dim_divisible_by=2,
                         num_downsamples=4)
    )  # fmt: skip
    return made


enter("enformer-pytorch", "Enformer", enformer, lambda: (torch.randint(5, (1, 128)),))

# ---------------------------------------------------------------------------------------------- language and proteins
add("yet-another-retnet", "yet_another_retnet.retnet", "RetNet",
    lambda: (torch.randint(256, (2, 24)), torch.randint(256, (2, 24))), 256, 64, 4, 2, dim_feedforward=128)  # fmt: skip


def scaled(kind: str, **options: Any) -> nn.Module:
    """Return a model of torchscale with an embedding of its own."""
    t = module(f"torchscale.architecture.{kind}")
    config = getattr(
        module("torchscale.architecture.config"), {"encoder": "EncoderConfig", "retnet": "RetNetConfig"}[kind]
    )
    if kind == "encoder":
        c = config(vocab_size=256, encoder_embed_dim=64, encoder_attention_heads=4, encoder_ffn_embed_dim=128,
                   encoder_layers=2, **options)  # fmt: skip
        made: nn.Module = t.Encoder(c, embed_tokens=nn.Embedding(256, 64))
    else:
        c = config(vocab_size=256, decoder_embed_dim=64, decoder_value_embed_dim=128, decoder_retention_heads=4,
                   decoder_ffn_embed_dim=128, decoder_layers=2)  # fmt: skip
        made = t.RetNetDecoder(c, embed_tokens=nn.Embedding(256, 64))
    return made


enter("torchscale", "Encoder, deep norm", lambda: scaled("encoder", deepnorm=True), tokens(256, 2, 24))
enter("torchscale", "Encoder, sub-LN", lambda: scaled("encoder", subln=True), tokens(256, 2, 24))
enter("torchscale", "RetNet", lambda: scaled("retnet"), tokens(256, 2, 24))
add("fair-esm", "esm.model.esm2", "ESM2", lambda: (torch.randint(4, 24, (2, 20)),), 2, 64, 4)


def protein(kind: str) -> nn.Module:
    """Return a protein model of the first generation."""
    alphabet = module("esm.data").Alphabet.from_architecture({"esm1": "ESM-1b", "msa": "msa_transformer"}[kind])
    args = SimpleNamespace(
        arch="roberta_large", layers=2, embed_dim=64, attention_heads=4, ffn_embed_dim=128, max_positions=64,
        emb_layer_norm_before=True, token_dropout=True, final_bias=True, logit_bias=True, embed_positions_msa=True,
        dropout=0.1, attention_dropout=0.1, activation_dropout=0.1, max_tokens=2**14, max_tokens_per_msa=2**14,
        embed_positions_msa_dim=64,
    )  # fmt: skip
    if kind == "esm1":
        made: nn.Module = module("esm.model.esm1").ProteinBertModel(args, alphabet)
    else:
        made = module("esm.model.msa_transformer").MSATransformer(args, alphabet)
    return made


enter("fair-esm", "ESM-1b", lambda: protein("esm1"), lambda: (torch.randint(4, 24, (2, 20)),))
add("dnc", "dnc", "DNC", noise(2, 4, 16), 16, 32, num_layers=1, nr_cells=8, cell_size=8, read_heads=2)

# ----------------------------------------------------------------------------------------------------------- decisions
add("pfrl", "pfrl.q_functions", "DuelingDQN", lambda: (torch.rand(2, 4, 84, 84),), 6)
add("pfrl", "pfrl.nn", "LargeAtariCNN", lambda: (torch.rand(2, 4, 84, 84),))
add("pfrl", "pfrl.nn", "MLPBN", noise(64, 16), 16, 4, (64, 64))
add("d3rlpy", "d3rlpy.models.torch", "PixelEncoder", lambda: (torch.rand(4, 3, 84, 84),), (3, 84, 84), feature_size=64)
add("d3rlpy", "d3rlpy.models.torch", "VectorEncoder", noise(64, 16), (16,), [64, 64, 64], use_layer_norm=True)
add("tianshou", "tianshou.utils.net.common", "Net", noise(32, 8), state_shape=8, action_shape=4, hidden_sizes=(64, 64),
    dueling_param=({"hidden_sizes": (32,)}, {"hidden_sizes": (32,)}))  # fmt: skip
add("tianshou", "tianshou.utils.net.common", "Recurrent", noise(8, 10, 8), layer_num=2, state_shape=8, action_shape=4,
    hidden_layer_size=32)  # fmt: skip


def actor(kind: str) -> nn.Module:
    """Return an actor or a network of quantiles of tianshou."""
    body = module("tianshou.utils.net.common").Net(state_shape=8, hidden_sizes=(64, 64))
    if kind == "quantiles":
        made: nn.Module = module("tianshou.utils.net.discrete").ImplicitQuantileNetwork(
            preprocess_net=body, action_shape=4, num_cosines=16
        )
    else:
        made = module("tianshou.utils.net.continuous").ContinuousActorProbabilistic(
            preprocess_net=body, action_shape=3, conditioned_sigma=True
        )
    return made


enter("tianshou", "ContinuousActorProbabilistic", lambda: actor("probabilistic"), noise(32, 8))
enter("tianshou", "ImplicitQuantileNetwork", lambda: actor("quantiles"), lambda: (torch.randn(32, 8), 8))

# ------------------------------------------------------------------------------------------------------------- physics
p = "pina.model"
add("pina-mathlab", p, "ResidualFeedForward", noise(64, 3), 3, 1, 32, 4)
add("pina-mathlab", p, "FeedForward", noise(64, 3), 3, 1, 32, 4)
add("pina-mathlab", p, "PirateNet", noise(64, 3), 3, 32, 1)
d = "deepxde.nn"
add("deepxde", d, "FNN", lambda: (torch.rand(64, 2),), [2] + [32] * 4 + [1], "tanh", "Glorot normal")
add("deepxde", d, "PFNN", lambda: (torch.rand(64, 2),), [2, [32, 32], [32, 32], 2], "sin", "Glorot normal")
add("deepxde", d, "DeepONetCartesianProd", lambda: ((torch.randn(16, 50), torch.rand(40, 1)),), [50, 64, 64],
    [1, 64, 64], "relu", "Glorot normal")  # fmt: skip


class Controlled(nn.Module):
    """A neural controlled differential equation, as the documentation of torchcde writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.initial = nn.Linear(3, 16)
        self.inner = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 48), nn.Tanh())
        self.readout = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        cde = module("torchcde")
        path = cde.LinearInterpolation(cde.linear_interpolation_coeffs(x))
        z0 = self.initial(path.evaluate(path.interval[0]))
        z = cde.cdeint(path, lambda t, z: self.inner(z).view(-1, 16, 3), z0, path.interval, adjoint=False, method="rk4",
                       options={"step_size": 1.0})  # fmt: skip
        out: Tensor = self.readout(z[:, 1])
        return out


enter("torchcde", "neural CDE", Controlled, noise(16, 6, 3))


def invertible(kind: str) -> nn.Module:
    """Return a chain of coupling blocks of FrEIA."""
    net = module("FrEIA.framework").SequenceINN(8)
    m = module("FrEIA.modules")
    for _ in range(4):
        net.append(
            getattr(m, kind),
            subnet_constructor=lambda i, o: nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, o)),
            **({"permute_soft": True} if kind == "AllInOneBlock" else {}),
        )
    made: nn.Module = net
    return made


for kind in ("AllInOneBlock", "GLOWCouplingBlock", "RNVPCouplingBlock"):
    enter("FrEIA", kind, lambda kind=kind: invertible(kind), noise(64, 8))
add("glasflow", "glasflow", "RealNVP", noise(64, 4), 4, 4)
add("glasflow", "glasflow", "CouplingNSF", noise(64, 4), 4, 2)


def stacked(path: str, *layers: tuple[Any, ...]) -> nn.Module:
    """Return layers of a module in sequence."""
    found = [
        kind() if not args else getattr(module(path), kind)(*args) if isinstance(kind, str) else kind(*args)
        for kind, *args in layers
    ]
    return nn.Sequential(*found)


enter("blitz-bayesian-pytorch", "Bayesian MLP", lambda: stacked("blitz.modules", ("BayesianLinear", 16, 64), (nn.ReLU,),
      ("BayesianLinear", 64, 64), (nn.ReLU,), ("BayesianLinear", 64, 4)), noise(64, 16))  # fmt: skip
enter("torchbnn", "Bayesian MLP", lambda: stacked("torchbnn", ("BayesLinear", 0, 0.1, 16, 64), (nn.ReLU,),
      ("BayesLinear", 0, 0.1, 64, 4)), noise(64, 16))  # fmt: skip

# ------------------------------------------------------------------------------------------------------------- spikes


def leaky() -> nn.Module:
    """Return a spiking network of norse."""
    n = module("norse.torch")
    made: nn.Module = n.SequentialState(nn.Linear(16, 64), n.LIF(), nn.Linear(64, 8), n.LI())
    return made


enter("norse", "LIF network", leaky, lambda: (torch.rand(10, 8, 16),))
add("spikingjelly", "spikingjelly.activation_based.model.spikformer", "Spikformer", noise(2, 3, 32, 32), T=2,
    img_size_h=32, img_size_w=32, patch_size=4, num_classes=10, embed_dims=64, num_heads=4, depths=2)  # fmt: skip


def spiking_resnet() -> nn.Module:
    sew = module("spikingjelly.activation_based.model.sew_resnet")
    neuron = module("spikingjelly.activation_based.neuron")
    made: nn.Module = sew.sew_resnet18(cnf="ADD", spiking_neuron=neuron.IFNode, num_classes=10)
    return made


enter("spikingjelly", "SEW ResNet-18", spiking_resnet, SMALL)
