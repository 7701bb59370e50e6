"""Models of libraries that batch 7 met first, of many authors, small, each with its example arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from nets.untried import Entries, module, noise, tokens

ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter

PICTURE, TABLE, SERIES = noise(8, 3, 32, 32), noise(32, 6), noise(8, 24, 6)

# ------------------------------------------------------------------------------------------------- operators, particles
c = "continuiti"


def operators(*sizes: tuple[int, tuple[int, ...]]) -> Any:
    """Return the sizes of sensors, inputs, evaluations and outputs."""
    shape = module(f"{c}.operators.shape")
    x, u, y, v = (shape.TensorShape(dim, torch.Size(size)) for dim, size in sizes)
    return shape.OperatorShapes(x, u, y, v)


def of_operator(name: str, *sizes: tuple[int, tuple[int, ...]], **options: Any) -> Callable[[], nn.Module]:
    """Return the constructor of an operator."""

    def make() -> nn.Module:
        where = f"{c}.operators.fourierlayer" if name == "FourierLayer" else f"{c}.operators"
        made: nn.Module = getattr(module(where), name)(operators(*sizes), **options)
        return made

    return make


GRID = (16, 16)
LINE = ((1, (32,)), (1, (32,)), (1, (20,)), (1, (20,)))


def grids() -> tuple[torch.Tensor, ...]:
    """Return the places of a grid, a function there, and the same places."""
    places = torch.stack(torch.meshgrid(torch.linspace(0, 1, 16), torch.linspace(0, 1, 16), indexing="ij"))
    places = places.expand(8, 2, 16, 16)
    return places, torch.randn(8, 3, 16, 16), places


def lines() -> tuple[torch.Tensor, ...]:
    """Return sensors on a line, a function there, and where another is asked for."""
    return torch.linspace(-1, 1, 32).expand(8, 1, 32), torch.randn(8, 1, 32), torch.rand(8, 1, 20) * 2 - 1


enter("continuiti", "FourierLayer", of_operator("FourierLayer", (2, GRID), (3, GRID), (2, GRID), (3, GRID),
    num_modes=(8, 8)), grids)  # fmt: skip
enter("continuiti", "DeepONet", of_operator("DeepONet", *LINE, basis_functions=16), lines)
enter("continuiti", "BelNet", of_operator("BelNet", *LINE), lines)
add("continuiti", f"{c}.networks", "MultiHeadAttention", lambda: (torch.randn(8, 12, 32), torch.randn(8, 20, 32),
    torch.randn(8, 20, 32)), 32, 4)  # fmt: skip
add("lgatr", "lgatr.nets", "ConditionalLGATrSlim", lambda: {"vectors": torch.randn(8, 10, 1, 4),
    "vectors_cond": torch.randn(8, 12, 2, 4), "scalars": torch.randn(8, 10, 3), "scalars_cond": torch.randn(8, 12, 2)},
    2, 1, 2, 1, 8, 3, 2, 2, 16, 4)  # fmt: skip

# ------------------------------------------------------------------------------------------------ several senses, video
k = "kale.embed"
add("pykale", f"{k}.image_cnn", "SimpleCNNBuilder", PICTURE, [[16, 3], [32, 3], [32, 1], [64, 3]])
add("pykale", f"{k}.multimodal_fusion", "LowRankTensorFusion", lambda: ([torch.randn(8, 12), torch.randn(8, 20),
    torch.randn(8, 6)],), [12, 20, 6], 16, 8)  # fmt: skip
add("pykale", f"{k}.video.i3d", "InceptionI3d", noise(2, 3, 16, 64, 64), 10)


def of_video() -> nn.Module:
    """Return a residual network of space and time, with two blocks of each width."""
    v = module(f"{k}.video.res3d")
    made: nn.Module = v.VideoResNet(v.BasicBlock, [v.Conv2Plus1D] * 4, [1, 1, 1, 1], v.R2Plus1dStem)
    return made


enter("pykale", "VideoResNet", of_video, noise(4, 3, 8, 32, 32))

# ----------------------------------------------------------------------------------------------------------- recurrent
for cell in ("MGU", "WMCLSTM", "JANET", "NAS"):
    add("torchrecurrent", "torchrecurrent", cell, noise(24, 8, 6), 6, 32, num_layers=2)
p = "prosper_nn.models"
add("prosper-nn", f"{p}.ecnn.ecnn", "ECNN", lambda: (torch.randn(16, 8, 4), torch.randn(16, 8, 1)), 4, 32, 16, 4)
add("prosper-nn", f"{p}.autoencoder.autoencoder", "Autoencoder", TABLE, 6, 32)
s = "slices"
add("torch-slices", s, "StackedSLiCE", tokens(60, 8, 24), 2, 60, 32, 10, label="StackedSLiCE of tokens")
add("torch-slices", s, "StackedSLiCE", SERIES, 2, 6, 32, 10, tokens=False, label="StackedSLiCE of numbers")

# -------------------------------------------------------------------------------------------------------------- complex
n = "complexNN.nn"


def waves(*shape: int) -> torch.Tensor:
    """Return complex noise."""
    return torch.randn(*shape, dtype=torch.complex64)


def asked() -> tuple[torch.Tensor, ...]:
    """Return one complex sequence as query, key and value."""
    x = waves(8, 12, 32)
    return x, x, x


add("complexnn", n, "cMultiHeadAttention", asked, 32, 32, 32, 32, 4)
add("complexnn", n, "cLSTM", lambda: (waves(16, 8, 6), (waves(2, 8, 32) * 0, waves(2, 8, 32) * 0)), 6, 32, 2)

# ---------------------------------------------------------------------------------------------------------------- flows
f = "torchflows.bijections.finite"
add("torchflows", f"{f}.residual.architectures", "ResFlow", TABLE, (6,))
add("torchflows", f"{f}.residual.architectures", "ConvolutionalResFlow", noise(8, 1, 8, 8), (1, 8, 8))
add("torchflows", f"{f}.autoregressive.architectures", "NICE", TABLE, (6,))
add("torchflows", f"{f}.autoregressive.architectures", "MaskedAutoregressiveRQNSF", TABLE, (6,))

# ------------------------------------------------------------------------------------------------- doubt, topics, slots
u = "torch_uncertainty.models"
add("torch-uncertainty", f"{u}.classification.wideresnet.std", "_WideResNet", PICTURE, 10, 2, 3, 10, True, 0.3,
    style="cifar", label="wideresnet")  # fmt: skip
add("torch-uncertainty", f"{u}.mlp", "batched_mlp", TABLE, 6, 3, [64, 32])
add("torch-uncertainty", f"{u}.segmentation.unet.standard", "_UNet", noise(4, 3, 64, 64), 3, 5, [8, 16, 32, 64, 128],
    label="small_unet")  # fmt: skip


def of_segments() -> nn.Module:
    """Return a transformer that segments."""
    f = module(f"{u}.segmentation.segformer")
    widths = [16, 32, 48, 64]
    body = f.MixVisionTransformer(64, 3, 5, widths, [1, 2, 4, 4], [4, 4, 4, 4], True, None, 0.0, 0.0, 0.1,
        nn.LayerNorm, [2, 2, 2, 2], [8, 4, 2, 1])  # fmt: skip
    made: nn.Module = f._SegFormer(widths, [4, 8, 16, 32], 32, 5, 0.1, body)
    return made


enter("torch-uncertainty", "seg_former", of_segments, noise(4, 3, 64, 64))
add("akita-torch", "akita_torch.nn.block", "AkitaDialatedResidualBlock1D", noise(8, 32, 64), 32, 16, repeat=3,
    rate_mult=2, norm_type="batch")  # fmt: skip
add("contextualized-topic-models", "contextualized_topic_models.networks.decoding_network", "DecoderNetwork", lambda:
    (torch.randint(4, (16, 100)).float(), torch.randn(16, 48)), 100, 48, "combined", model_type="LDA",
    hidden_sizes=(64, 32), label="DecoderNetwork LDA")  # fmt: skip


def of_slots() -> nn.Module:
    """Return a model that takes a scene apart, of its authors' sizes."""
    made: nn.Module = module("monet_pytorch.model").Monet.from_config("monet", scene_max_objects=3,
        dataset_width=64, dataset_height=64)  # fmt: skip
    return made


enter("monet-pytorch", "Monet", of_slots, lambda: (torch.rand(4, 3, 64, 64),))

# ------------------------------------------------------------------------------------------------------------ languages
add("supar", "supar.modules", "VariationalLSTM", lambda: (packed(),), 16, 32, 2, True, 0.33)


def packed() -> Any:
    """Return sentences of several lengths."""
    return nn.utils.rnn.pack_padded_sequence(torch.randn(8, 12, 16), torch.tensor([12, 11, 10, 9, 8, 7, 6, 5]), True)


def sentences() -> tuple[torch.Tensor, ...]:
    """Return words and their letters."""
    words, letters = torch.randint(2, 80, (8, 12)), torch.randint(1, 30, (8, 12, 6))
    gone = torch.arange(12) >= torch.arange(5, 13).flip(0)[:, None]
    return words.masked_fill(gone, 0), letters.masked_fill(gone[:, :, None], 0)


def parser() -> nn.Module:
    """Return a parser, which takes the letters off a list that it is given."""

    class Parser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = module("supar.models.const").CRFConstituencyModel(80, 10, n_chars=30, n_embed=32,
                n_pretrained=32, n_feat_embed=16, n_char_embed=12, n_char_hidden=16, n_lstm_hidden=32, n_lstm_layers=2,
                n_span_mlp=48, n_label_mlp=24)  # fmt: skip

        def forward(self, words: torch.Tensor, letters: torch.Tensor) -> Any:
            return self.net(words, [letters])

    return Parser()


enter("supar", "CRFConstituencyModel", parser, sentences)

# ----------------------------------------------------------------------------------------------------- pictures, tables
add("azula", "azula.nn.unet", "UNet", lambda: (torch.randn(4, 3, 32, 32), torch.randn(4, 16)), 3, 3, mod_features=16,
    hid_channels=(32, 64), hid_blocks=(2, 2))  # fmt: skip
METAFORMER = {"depths": (1, 1, 2, 1), "dims": (16, 32, 64, 64)}
add("x-metaformer", "x_metaformer", "CAFormer", noise(8, 3, 64, 64), 3, **METAFORMER)
add("x-metaformer", "x_metaformer", "CFFormer", noise(8, 3, 64, 64), 3, **METAFORMER)
a = "self_attention_cv"
add("self-attention-cv", f"{a}.UnetTr", "UNETR", noise(2, 1, 32, 32, 32), (32, 32, 32), 1, 3, 48, 16, 4, 0.0,
    [3, 6, 9, 12], "instance", 8, 96)  # fmt: skip
add("self-attention-cv", f"{a}.linformer", "LinformerEncoder", noise(8, 32, 48), 48, 32, 8, 2, 4, None, 96)
add("self-attention-cv", f"{a}.Transformer3Dsegmentation", "Transformer3dSeg", noise(4, 1, 24, 24, 24), in_channels=1,
    dim=64, blocks=2, dim_linear_block=128)  # fmt: skip


def resnext() -> nn.Module:
    """Return a ResNeXt whose head classifies."""
    v = module("classy_vision.models")
    model: nn.Module = v.ResNeXt([1, 1, 1], 16, 2, True, base_width_and_cardinality=(8, 4), use_se=True)
    head = module("classy_vision.heads").FullyConnectedHead("head", 10, 128)
    model.set_heads({"block2-0": [head]})
    return model


enter("classy-vision", "ResNeXt", resnext, PICTURE)
add("tabular-transformers", "tabtransformer.model", "TabTransformer", lambda: (torch.stack([torch.randint(n, (16,))
    for n in (4, 5, 6)], 1), torch.randn(16, 5)), (4, 5, 6), 5, 32, 3, 2, 4)  # fmt: skip
