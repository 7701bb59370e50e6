"""Models of torchvision, timm and transformers trace on meta, and their graphs give what the models give."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from wellposed import zoo
from wellposed.graphs import run, trace
from wellposed.graphs.tree import output_tensors

EXTRAS = ("torchvision", "timm", "transformers")

pytestmark = [
    pytest.mark.skipif(not all(map(importlib.util.find_spec, EXTRAS)), reason="needs pip install 'wellposed[zoo]'"),
    pytest.mark.filterwarnings("ignore"),
]

TORCHVISION = (
    "resnet18",
    "resnet50",
    "densenet121",
    "googlenet",
    "inception_v3",
    "mobilenet_v2",
    "efficientnet_b0",
    "shufflenet_v2_x0_5",
    "squeezenet1_0",
    "vgg16_bn",
    "convnext_tiny",
    "swin_t",
    "swin_v2_t",
    "maxvit_t",
    "vit_b_16",
    "fcn_resnet50",
    "deeplabv3_mobilenet_v3_large",
    "r3d_18",
    "s3d",
)
TIMM = (
    "vit_tiny_patch16_224",
    "beit_base_patch16_224",
    "cait_xxs24_224",
    "coat_tiny",
    "convnextv2_atto",
    "davit_tiny",
    "dm_nfnet_f0",
    "edgenext_xx_small",
    "efficientformer_l1",
    "gmlp_ti16_224",
    "levit_128s",
    "mixer_s32_224",
    "mobilevit_xxs",
    "poolformer_s12",
    "regnetx_002",
    "resnetv2_50",
    "tf_efficientnet_b0",
    "tnt_s_legacy_patch16_224",
    "xcit_nano_12_p16_224",
)
TRANSFORMERS = (
    "albert",
    "bart",
    "bert",
    "bloom",
    "clip",
    "deberta-v2",
    "deepseek_v3",
    "distilbert",
    "falcon",
    "gemma2",
    "gpt2",
    "gpt_neox",
    "llama",
    "mamba",
    "mistral",
    "mixtral",
    "opt",
    "phi",
    "qwen2",
    "qwen3_moe",
    "roberta",
    "t5",
    "vit",
    "wav2vec2",
    "whisper",
)
NAMES = [
    *(f"torchvision:{name}" for name in TORCHVISION),
    *(f"timm:{name}" for name in TIMM),
    *(f"transformers:{name}" for name in TRANSFORMERS),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_traces_on_meta(name: str) -> None:
    model, args, kwargs = zoo.load(name, device="meta")
    assert any(parameter.device.type == "meta" for parameter in model.parameters())
    graph = trace(model, *args, **kwargs)
    assert graph.engine == "meta"
    assert graph.outputs
    names = [node.name for node in graph]
    assert len(set(names)) == len(names)
    assert set(graph.parameters) == {name for name, _ in model.named_parameters()}
    used = sum(bool(parameter.uses) for parameter in graph.parameters.values())
    assert used > 0.5 * len(graph.parameters)


SMALL = (
    "torchvision:resnet18",
    "torchvision:squeezenet1_0",
    "timm:vit_tiny_patch16_224",
    "timm:xcit_nano_12_p16_224",
    "timm:regnetx_002",
    "transformers:albert",
    "transformers:bart",
    "transformers:bert",
    "transformers:gpt2",
    "transformers:llama",
    "transformers:mamba",
    "transformers:mixtral",
    "transformers:t5",
)


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", SMALL)
def test_interpreter_gives_the_models_outputs(name: str, training: bool) -> None:
    torch.manual_seed(0)
    model, args, kwargs = zoo.load(name)
    torch.manual_seed(7)
    graph = trace(model, *args, training=training, **kwargs)
    got = run(graph, parameters=dict(model.named_parameters()), seed=7)
    torch.manual_seed(7)
    with torch.no_grad():
        expected = output_tensors(model.train(training)(*args, **kwargs))
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert torch.equal(a, b)
