"""Models of libraries that batch 4 met first, of many authors, small, each with its example arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nets.untried import Entries, Made, module, noise, tokens

ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter

PICTURE, MAP, SEQUENCE, SERIES = noise(4, 3, 32, 32), noise(4, 32, 16, 16), noise(4, 32, 32), noise(8, 48, 5)

# -------------------------------------------------------------------------------------------------------------- vision
add("channel-attention", "channel_attention", "ConvBlockAttention", MAP, 2, 32)
add("channel-attention", "channel_attention", "MultiSEAttention", MAP, 2, 32)
add("patchgan", "patchgan", "Discriminator", noise(2, 3, 64, 64), 3, ndf=16)
add("torchsr", "torchsr.models.edsr", "EDSR", noise(2, 3, 16, 16), 4, 16, 2, 0.1)
add("torchsr", "torchsr.models.rcan", "RCAN", noise(2, 3, 16, 16), 2, 2, 16, 4, 2)
add("torchsr", "torchsr.models.ninasr", "NinaSR", noise(2, 3, 16, 16), 4, 16, 2)
small = noise(2, 3, 16, 16)
add("studiosr", "studiosr.models", "SwinIR", small, scale=2, embed_dim=24, depths=[2, 2], num_heads=[2, 2])
add("studiosr", "studiosr.models", "MaxSR", small, scale=2, dim=32, dim_head=16, depth=[1, 1], window_size=8)
s = {"encoder_name": "resnet18", "encoder_weights": None, "classes": 3}
add("torchseg", "torchseg", "Unet", noise(2, 3, 64, 64), **s)
add("torchseg", "torchseg", "MAnet", noise(2, 3, 64, 64), **s)
add("torchseg", "torchseg", "FPN", noise(2, 3, 64, 64), **s)
add("resnest", "resnest.torch", "resnest50", noise(2, 3, 64, 64), pretrained=False)
add("compressai", "compressai.models", "FactorizedPrior", noise(1, 3, 64, 64), 32, 48)
add("compressai", "compressai.models", "Cheng2020Attention", noise(1, 3, 64, 64), 32)
add("easyocr", "easyocr.model.model", "Model", lambda: (torch.randn(2, 1, 32, 100), None), 1, 64, 32, 40)

# ------------------------------------------------------------------------------------------------------ medicine, earth
add("unet", "unet", "UNet2D", noise(2, 1, 64, 64), out_channels_first_layer=8, padding=1, normalization="batch")
add("unet", "unet", "UNet1D", noise(2, 1, 128), out_channels_first_layer=8, padding=1, normalization="instance")
add("highresnet", "highresnet", "HighResNet", noise(1, 1, 24, 24), 1, 4, dimensions=2, initial_out_channels_power=3)
add("acsconv", "acsconv.models", "ACSUNet", noise(1, 1, 32, 32, 32), 2)
add("metnet", "metnet.models", "MetNet", noise(1, 4, 12, 64, 64), input_channels=12, sat_channels=12, input_size=16,
    output_channels=4, hidden_dim=32, num_att_layers=1, num_att_heads=4, forecast_steps=4)  # fmt: skip
add("dgmr", "dgmr", "SpatialDiscriminator", noise(2, 8, 1, 128, 128), input_channels=1, num_timesteps=8)
add("dgmr", "dgmr", "ContextConditioningStack", noise(1, 4, 1, 64, 64), input_channels=1, output_channels=48)


# ---------------------------------------------------------------------------------------------------------------- flow
def flow(name: str) -> Made:
    """Return the constructor of a network for optical flow, from the library's own configuration."""

    def make() -> nn.Module:
        models = module("ezflow.models")
        config = module("ezflow.models.build").get_default_model_cfg(name)
        made: nn.Module = getattr(models, name)(config)
        return made

    return make


def frames() -> tuple[torch.Tensor, ...]:
    """Return two pictures."""
    return torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64)


enter("ezflow", "RAFT", flow("RAFT"), frames)

# -------------------------------------------------------------------------------------------------------------- speech
a = "torchaudio.models"


def speech() -> tuple[torch.Tensor, ...]:
    """Return features of two recordings, and their lengths."""
    return torch.randn(2, 40, 32), torch.tensor([40, 40])


add("torchaudio", a, "Conformer", speech, 32, 4, 64, 2, 7)
add("torchaudio", a, "Emformer", lambda: (torch.randn(2, 20, 32), torch.tensor([20, 20])), 32, 4, 64, 2, 4,
    right_context_length=2)  # fmt: skip
add("torchaudio", a, "DeepSpeech", noise(2, 1, 30, 32), 32, 64, 20)
add("torchaudio", a, "Wav2Letter", noise(2, 32, 60), 20, "mfcc", 32)
add("torchaudio", a, "WaveRNN", lambda: (torch.randn(1, 1, 220), torch.randn(1, 1, 32, 26)), [2, 5], 64, 10,
    n_res_block=2, n_rnn=32, n_fc=32, n_freq=32, n_hidden=32, n_output=32)  # fmt: skip
add("torchcrepe", "torchcrepe", "Crepe", noise(2, 1024), "tiny")
add("encodec", "encodec.modules", "SEANetEncoder", noise(1, 1, 1280), dimension=32, n_filters=8, ratios=[4, 2])
add("encodec", "encodec.modules", "SEANetDecoder", noise(1, 32, 40), dimension=32, n_filters=8, ratios=[4, 2])

# ----------------------------------------------------------------------------------------------------------- sequences
add("s5-pytorch", "s5", "S5", SEQUENCE, 32, 32)
add("s5-pytorch", "s5", "S5Block", SEQUENCE, 32, 32, False)
add("aft-pytorch", "aft_pytorch", "AFTFull", SEQUENCE, 32, 32, 64)
add("aft-pytorch", "aft_pytorch", "AFTLocal", SEQUENCE, 32, 32, 64, s=8)
add("pytorch-adaptive-computation-time", "pytorch_adaptive_computation_time", "AdaptiveGRU", noise(6, 4, 16), 16, 16, 1,
    0.01, time_limit=4)  # fmt: skip
add("bi-lstm-crf", "bi_lstm_crf", "BiRnnCrf", tokens(50, 4, 12), 50, 7, 32, 32)
d = "torch_dimensions"
add("torch-dimensions", d, "Mamba", SEQUENCE, 32, 2)
add("torch-dimensions", d, "LSTM", SEQUENCE, 32, 2)
add("torch-dimensions", d, "CNN", SEQUENCE, 32, 2)
add("labml-nn", "labml_nn.graphs.gat", "GraphAttentionLayer", lambda: (torch.randn(12, 32),
    (torch.rand(12, 12, 1) > 0.5) | torch.eye(12).bool()[..., None]), 32, 32, 4)  # fmt: skip
add("labml-nn", "labml_nn.lstm", "LSTM", noise(6, 4, 16), 16, 32, 2)


def curated() -> nn.Module:
    """Return a BERT."""
    m = module("curated_transformers.models")
    made: nn.Module = m.BERTEncoder(m.BERTConfig(embedding_width=32, hidden_width=32, intermediate_width=64,
        n_attention_heads=4, n_hidden_layers=2, n_pieces=100))  # fmt: skip
    return made


def curated_arguments() -> dict[str, Any]:
    """Return pieces and a mask that lets all through."""
    mask = module("curated_transformers.layers").AttentionMask(torch.ones(2, 16, dtype=torch.bool))
    return {"piece_ids": torch.randint(100, (2, 16)), "attention_mask": mask}


enter("curated-transformers", "BERTEncoder", curated, curated_arguments)


def kan_gpt() -> nn.Module:
    """Return a GPT whose layers are splines."""
    gpt = module("kan_gpt.model").GPT
    config = gpt.get_default_config()
    config.merge_from_dict({"model_type": None, "n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 50,
        "block_size": 16, "kan_implementation": "EFFICIENT_KAN"})  # fmt: skip
    made: nn.Module = gpt(config)
    return made


enter("kan-gpt", "GPT", kan_gpt, tokens(50, 2, 16))
p = "perceiver.model.core"
add("perceiver-io", p, "CrossAttentionLayer", lambda: (torch.randn(2, 8, 32), torch.randn(2, 40, 16)), 4, 32, 16)
add("perceiver-io", p, "SelfAttentionBlock", SEQUENCE, 2, 4, 32)

# -------------------------------------------------------------------------------------------------------------- series
add("pytorch-tsmixer", "torchtsmixer", "TSMixer", SERIES, 48, 12, 5, ff_dim=32)
add("pytorch-tsmixer", "torchtsmixer", "TSMixerExt", lambda: (torch.randn(8, 48, 2), torch.randn(8, 48, 3),
    torch.randn(8, 12, 3), torch.randn(8, 4)), 48, 12, input_channels=2, extra_channels=3, hidden_channels=16,
    static_channels=4, ff_dim=16)  # fmt: skip
add("mtst-forecasting", "mtst", "MTSTForecaster", SERIES, 5, output_shape=(12,), embed_dim=32, heads=4)


def of_series(path: str, name: str, **settings: Any) -> Made:
    """Return the constructor of a forecaster whose settings are an object."""

    def make() -> nn.Module:
        m = module(f"nnts.torch.models.{path}")
        made: nn.Module = getattr(m, name)(12, 48, 5, m.Hyperparams(**settings))
        return made

    return make


enter("nnts", "NLinear", of_series("nlinear", "NLinear"), SERIES)
enter("nnts", "DLinear", of_series("dlinear", "DLinear"), SERIES)


# -------------------------------------------------------------------------------------------- tables, graphs, decisions
add("torchtuples", "torchtuples.practical", "MLPVanilla", noise(32, 12), 12, [32, 32], 4, dropout=0.1)
add("torchtuples", "torchtuples.practical", "MixedInputMLP", lambda: (torch.randn(32, 8), torch.randint(4, (32, 2))), 8,
    [4, 4], [3, 3], [32, 32], 4)  # fmt: skip
h = "hypnettorch.mnets"
add("hypnettorch", h, "MLP", noise(16, 12), 12, 4, (32, 32), verbose=False)
add("hypnettorch", h, "ResNet", noise(2, 3072), n=1, verbose=False)
add("hypnettorch", h, "SimpleRNN", noise(8, 4, 12), 12, rnn_layers=(16,), fc_layers=(4,), verbose=False)


def on_graph(name: str, over: str, *args: Any) -> None:
    """Enter a network on a graph, which it is built with."""

    def make() -> nn.Module:
        dhg = module("dhg")
        pairs = [(i, (i * 5 + 1) % 24) for i in range(24)]
        graph = dhg.Graph(24, pairs) if over == "g" else dhg.Hypergraph(24, [(*e, (e[0] + 7) % 24) for e in pairs])

        class OnGraph(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.net = getattr(module("dhg.models"), name)(*args)

            def forward(self, x: torch.Tensor) -> Any:
                return self.net(x, graph)

        return OnGraph()

    enter("dhg", name, make, noise(24, 16))


on_graph("GCN", "g", 16, 32, 4)
on_graph("GAT", "g", 16, 8, 4, 4)
on_graph("HGNNP", "hg", 16, 32, 4)
add("rsl-rl-lib", "rsl_rl.modules", "MLP", noise(64, 24), 24, 6, [64, 64])
r = "robomimic.models.base_nets"
add("robomimic", r, "SpatialSoftmax", noise(4, 16, 12, 12), [16, 12, 12], num_kp=8)
add("robomimic", r, "ResNet18Conv", noise(2, 3, 64, 64), input_coord_conv=True)
add("robomimic", r, "ShallowConv", noise(2, 3, 64, 64))
add("neurodiffeq", "neurodiffeq.networks", "FCNN", noise(64, 2), 2, 1, hidden_units=(32, 32))
add("neurodiffeq", "neurodiffeq.networks", "Resnet", noise(64, 2), 2, 1, hidden_units=(32, 32))

# ---------------------------------------------------------------------------------------------------------- generation
add("torchgan", "torchgan.models", "DCGANGenerator", noise(8, 32), 32, step_channels=16)
add("torchgan", "torchgan.models", "DCGANDiscriminator", noise(8, 3, 32, 32), step_channels=16)
add("torchgan", "torchgan.models", "AutoEncodingDiscriminator", noise(8, 3, 32, 32), encoding_dims=32, step_channels=16,
    energy=False)  # fmt: skip
add("disent", "disent.model.ae", "EncoderConv64Norm", noise(2, 3, 64, 64))
add("disent", "disent.model.ae", "DecoderConv64", noise(2, 6))


def pythae(name: str) -> Made:
    """Return the constructor of a part of an autoencoder for small pictures."""

    def make() -> nn.Module:
        parts = module("pythae.models.nn.benchmarks.cifar")
        made: nn.Module = getattr(parts, name)(module("pythae.models").VAEConfig((3, 32, 32), 16))
        return made

    return make


enter("pythae", "Encoder_ResNet_VAE", pythae("Encoder_ResNet_VAE_CIFAR"), noise(2, 3, 32, 32))
enter("pythae", "Decoder_ResNet_AE", pythae("Decoder_ResNet_AE_CIFAR"), noise(2, 16))
enter("pythae", "Encoder_Conv_VAE", pythae("Encoder_Conv_VAE_CIFAR"), noise(2, 3, 32, 32))
add("slot-attention-pytorch", "slot_attention_pytorch.slot_attention_module", "SlotAttentionModule", SEQUENCE, 4, 32,
    32, mlp_size=64)  # fmt: skip


def xlstm() -> nn.Module:
    """Return two blocks of matrix memories."""
    m = module("xlstm")
    layer = module("xlstm.blocks.mlstm.block").mLSTMBlockConfig()
    made: nn.Module = m.xLSTMBlockStack(module("xlstm.xlstm_block_stack").xLSTMBlockStackConfig(
        mlstm_block=layer, context_length=32, num_blocks=2, embedding_dim=32))  # fmt: skip
    return made


enter("xlstm", "xLSTMBlockStack", xlstm, SEQUENCE)


def forecaster() -> nn.Module:
    """Return a temporal fusion transformer."""
    config = {"optimization": {"batch_size": {"training": 8}}, "model": {"dropout": 0.1, "state_size": 16,
        "output_quantiles": [0.1, 0.5, 0.9], "lstm_layers": 1, "attention_heads": 2}, "task_type": "regression",
        "target_window_start": None, "data_props": {"num_historical_numeric": 3, "num_historical_categorical": 0,
        "num_static_numeric": 2, "num_static_categorical": 0, "num_future_numeric": 2, "num_future_categorical": 0,
        "historical_categorical_cardinalities": [], "static_categorical_cardinalities": [],
        "future_categorical_cardinalities": []}}  # fmt: skip
    made: nn.Module = module("tft_torch.tft").TemporalFusionTransformer(module("omegaconf").OmegaConf.create(config))
    return made


enter("tft-torch", "TemporalFusionTransformer", forecaster, lambda: {"batch": {
    "static_feats_numeric": torch.randn(8, 2), "historical_ts_numeric": torch.randn(8, 20, 3),
    "future_ts_numeric": torch.randn(8, 6, 2)}})  # fmt: skip
