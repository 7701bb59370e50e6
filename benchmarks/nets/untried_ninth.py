"""Models of libraries that batch 9 met first, of many authors, small, each with its example arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from nets.untried import Entries, module, noise, tokens

ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter

PICTURE, TABLE, SERIES, DIGIT = noise(8, 3, 32, 32), noise(32, 6), noise(16, 4, 60), noise(8, 1, 28, 28)

# ------------------------------------------------------------------------------------------------------------- pictures
add("fastervit", "fastervit.models.faster_vit", "FasterViT", noise(4, 3, 128, 128), dim=16, in_dim=16,
    depths=[1, 1, 2, 1], window_size=[4, 4, 4, 4], ct_size=2, mlp_ratio=4, num_heads=[1, 2, 4, 8], resolution=128,
    num_classes=10)  # fmt: skip
h = "holocron.models"
add("pylocron", f"{h}.classification.repvgg", "RepVGG", PICTURE, [1, 1, 2, 1], [16, 32, 64, 128], 1, 1)
add("pylocron", f"{h}.classification.rexnet", "rexnet1_0x", noise(8, 3, 64, 64), num_classes=10)
add("pylocron", f"{h}.segmentation.unet", "UNet", noise(4, 3, 64, 64), [16, 32, 64], num_classes=5)
add("pylocron", f"{h}.segmentation.unetpp", "UNetp", noise(4, 3, 64, 64), [16, 32, 64], num_classes=5)
f = "fightingcv_attention.backbone"
add("fightingcv-attention", f"{f}.CaiT", "CaiT", noise(4, 3, 32, 32), img_size=32, patch_size=8, num_classes=10,
    embed_dim=64, depth=3, num_heads=4)  # fmt: skip
add("fightingcv-attention", f"{f}.TnT", "TNT", noise(4, 3, 32, 32), img_size=32, patch_size=8, num_classes=10,
    outer_dim=64, inner_dim=16, depth=3, outer_num_heads=4, inner_num_heads=4)  # fmt: skip
add("fightingcv-attention", f"{f}.PVT", "PyramidVisionTransformer", noise(4, 3, 32, 32), img_size=32, patch_size=4,
    num_classes=10, embed_dims=[16, 32, 64, 128], num_heads=[1, 2, 2, 4], mlp_ratios=[4, 4, 4, 4],
    depths=[1, 1, 1, 1], sr_ratios=[4, 2, 1, 1])  # fmt: skip
add("fightingcv-attention", "fightingcv_attention.mlp.mlp_mixer", "MlpMixer", PICTURE, 10, 3, 4, 32, 64, 64, 128)
add("fightingcv-attention", "fightingcv_attention.mlp.resmlp", "ResMLP", PICTURE, 64, 32, 4, depth=3, class_num=10)


def detector() -> nn.Module:
    """Return a model that finds things in pictures, of random weights."""
    e = module("effdet")
    config = e.get_efficientdet_config("tf_efficientdet_lite0")
    config.image_size, config.num_classes = (128, 128), 5
    made: nn.Module = e.EfficientDet(config, pretrained_backbone=False)
    return made


enter("effdet", "EfficientDet-lite0", detector, noise(2, 3, 128, 128))


def seen_from_above(**options: Any) -> nn.Module:
    """Return a model of pictures of the earth."""
    m, u = module("satlaspretrain_models.model"), module("satlaspretrain_models.utils")
    head = getattr(u.Head, options.pop("head")) if "head" in options else None
    made: nn.Module = m.Model(backbone=u.Backbone.SWINT, head=head, **options)
    return made


enter("satlaspretrain-models", "Swin-T, segmenting", lambda: seen_from_above(fpn=True, head="SEGMENT",
    num_categories=4), noise(4, 3, 64, 64))  # fmt: skip
enter("satlaspretrain-models", "Swin-T, several pictures", lambda: seen_from_above(num_channels=3, multi_image=True,
    head="CLASSIFY", num_categories=4), noise(4, 6, 64, 64))  # fmt: skip
c = "cellseg_models_pytorch.models"
SMALL_CELLS = {"enc_name": "resnet10t", "enc_pretrain": False, "out_channels": (64, 32, 16, 16)}
add("cellseg-models-pytorch", f"{c}.cellpose.cellpose_unet", "cellpose_nuclei", noise(2, 3, 64, 64), 3, **SMALL_CELLS)
add("cellseg-models-pytorch", f"{c}.stardist.stardist_unet", "stardist_nuclei", noise(2, 3, 64, 64), 8, 3,
    **SMALL_CELLS)  # fmt: skip


n, CUT = "pymic.net.cnn", {"in_chns": 1, "class_num": 3, "dropout": [0.0, 0.0, 0.2, 0.3, 0.4]}
CUT["feature_chns"] = [8, 16, 32, 64, 96]
add("pymic", f"{n}.unet", "UNet", noise(4, 1, 64, 64), {**CUT, "dim": 2})
add("pymic", f"{n}.unet", "UNet", noise(2, 1, 16, 32, 32), {**CUT, "dim": 3}, label="UNet of volumes")
add("pymic", f"{n}.coplenet2d", "COPLENet", noise(4, 1, 64, 64), {**CUT, "feature_chns": [8, 16, 32, 64, 128]})


def particles() -> nn.Module:
    """Return a model of pictures of particles in ice."""
    lattice = module("cryodrgn.lattice").Lattice(33, extent=0.5)
    mask = lattice.get_circular_mask(16)
    made: nn.Module = module("cryodrgn.models").VAE(lattice, 3, 64, 3, 64, enc_mask=mask)
    return made


add("cryodrgn", "cryodrgn.models", "PositionalDecoder", lambda: (torch.cat((torch.rand(4, 64, 3) - 0.5,
    torch.randn(4, 1, 8).expand(4, 64, 8)), 2),), 11, 17, 3, 64, nn.ReLU,
    enc_type="geom_lowf", label="PositionalDecoder")  # fmt: skip
enter("cryodrgn", "VAE", particles, noise(8, 33, 33))


# --------------------------------------------------------------------------------------------------- limits of slope
def steady() -> nn.Module:
    """Return a network whose slope is at most one, as the library's own page makes it."""
    t = module("deel.torchlip")
    made: nn.Module = t.Sequential(
        t.SpectralConv2d(1, 16, (3, 3), padding="same"), t.GroupSort2(), t.ScaledL2NormPool2d((2, 2)),
        t.SpectralConv2d(16, 16, (3, 3), padding="same"), t.GroupSort2(), t.ScaledL2NormPool2d((2, 2)),
        nn.Flatten(), t.SpectralLinear(784, 32), t.GroupSort2(), t.FrobeniusLinear(32, 10, bias=False))  # fmt: skip
    return made


enter("deel-torchlip", "1-Lipschitz CNN", steady, DIGIT)


def level() -> nn.Module:
    """Return a dense network whose slope is at most one."""
    t = module("deel.torchlip")
    made: nn.Module = t.Sequential(t.SpectralLinear(6, 64), t.FullSort(), t.SpectralLinear(64, 32), t.FullSort(),
        t.FrobeniusLinear(32, 1))  # fmt: skip
    return made


enter("deel-torchlip", "1-Lipschitz MLP", level, TABLE)
o = "high_order_layers_torch.networks"
add("high-order-layers-torch", o, "HighOrderMLP", noise(32, 4), layer_type="continuous", n=4, in_width=4, out_width=2,
    hidden_layers=2, hidden_width=32, in_segments=3, out_segments=3, hidden_segments=3)  # fmt: skip
add("high-order-layers-torch", o, "HighOrderMLP", noise(32, 4), layer_type="polynomial", n=3, in_width=4, out_width=2,
    hidden_layers=2, hidden_width=32, label="HighOrderMLP, polynomial")  # fmt: skip
add("high-order-layers-torch", o, "LowOrderMLP", noise(32, 4), 4, 2, 3, 64, nn.ReLU())
add("high-order-layers-torch", o, "HighOrderFullyConvolutionalNetwork", PICTURE, layer_type="continuous2d", n=3,
    channels=[3, 8, 8], segments=2, kernel_size=[3, 3])  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- generative
STAGES = [[[16, 3, 1], [16, 3, 2]], [[16, 3, 1], [16, 3, 2]]]


def deep(name: str) -> nn.Module:
    """Return a hierarchical model of digits."""
    m, s = module("biva.model.deepvae"), module("biva.model.stochastic")
    latents = [{"N": 16, "block": s.DenseNormal}, {"N": 8, "block": s.DenseNormal}]
    made: nn.Module = getattr(m, name)(tensor_shp=(-1, 1, 28, 28), padded_shp=(32, 32), stages=STAGES,
        latents=latents)  # fmt: skip
    return made


for name in ("VAE", "LVAE", "BIVA"):
    enter("biva-pytorch", name, lambda name=name: deep(name), DIGIT)
add("pi-vae-pytorch", "pi_vae_pytorch", "PiVAE", lambda: (torch.randn(32, 20), torch.randint(4, (32,))), 20, 4, 2,
    encoder_hidden_layer_dim=32)  # fmt: skip
add("pi-vae-pytorch", "pi_vae_pytorch", "PiVAE", lambda: (torch.randn(32, 20), torch.randn(32, 3)), 20, 3, 2,
    discrete_labels=False, encoder_hidden_layer_dim=32, label="PiVAE, continuous labels")  # fmt: skip
add("nd-vq-vae", "nd_vq_vae", "NDimVQVAE", noise(4, 3, 16, 16), embedding_dim=16, n_codes=32, n_dims=2,
    downsample=[2, 2], n_hiddens=32, n_res_layers=1, codebook_beta=0.1, input_shape=[16, 16])  # fmt: skip


def places() -> tuple[Any, ...]:
    """Return points of the plane, between -1 and 1."""
    return (torch.rand(4, 64, 2) * 2 - 1,)


i = "INR_collection.modules"
add("inr-collection", i, "SIREN", places, 2, 3, num_hidden=64)
add("inr-collection", i, "piGAN", lambda: (torch.rand(4, 64, 2) * 2 - 1, torch.randn(4, 1, 32)), 2, 3,
    num_INR_layers=4, num_hidden_mapping=64, num_hidden_INR=64, z_size=32)  # fmt: skip
add("inr-collection", i, "IMNET", lambda: (torch.rand(4, 64, 1) * 2 - 1, torch.randn(4, 1, 32)), 1, 1,
    initial_hidden=128, z_size=32)  # fmt: skip
add("nerf-pytorch", "nerf.model", "NeRF", lambda: (torch.rand(64, 3) * 2 - 1, nn.functional.normalize(
    torch.randn(64, 3), dim=1)), hidden_size=64)  # fmt: skip
add("pointnet", "pointnet", "PointNetCls", noise(8, 3, 64), 3, 5)
add("pointnet", "pointnet", "PointNetSeg", noise(8, 3, 64), 3, 5)
w, CLOUD = "torch_pointcloud.models", lambda: (None, torch.randn(256, 3), torch.arange(4).repeat_interleave(64))
add("torch-pointcloud", w, "PointNetClassification", CLOUD, 0, 5, mlp2_channels=(64, 128))
add("torch-pointcloud", w, "PointNetSegmentation", CLOUD, 0, 5, mlp2_channels=(64, 128))


def flowing(kind: str) -> nn.Module:
    """Return a differential equation whose right side is a network."""
    c, n = module("torchdyn.core"), module("torchdyn.nn")
    if kind == "depth":
        net = nn.Sequential(n.DepthCat(1), nn.Linear(3, 64), nn.Tanh(), n.DepthCat(1), nn.Linear(65, 2))
    elif kind == "augmented":
        net = nn.Sequential(nn.Linear(4, 64), nn.Softplus(), nn.Linear(64, 4))
    else:
        net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    ode: nn.Module = c.NeuralODE(net, sensitivity="autograd", solver="rk4", return_t_eval=False)
    return nn.Sequential(n.Augmenter(augment_dims=2), ode) if kind == "augmented" else ode


for kind in ("plain", "depth", "augmented"):
    enter("torchdyn", f"neural ODE, {kind}", lambda kind=kind: flowing(kind), noise(32, 2))


# --------------------------------------------------------------------------------------------------- algebras and nets
def clifford(block: str) -> nn.Module:
    """Return a network of multivectors in the plane."""
    m = module("cliffordlayers.models.models_2d")
    options = {"modes1": 8, "modes2": 8} if "Fourier" in block else {}
    made: nn.Module = m.CliffordNet2d(g=[1, 1], block=lambda *a, **k: getattr(m, block)(*a, **k, **options),
        num_blocks=[1, 1], in_channels=3, out_channels=1, hidden_channels=16, activation=nn.functional.gelu,
        rotation=False, norm=True)  # fmt: skip
    return made


for kind in ("CliffordBasicBlock2d", "CliffordFourierBasicBlock2d"):
    enter("cliffordlayers", f"CliffordNet2d of {kind}", lambda kind=kind: clifford(kind), noise(4, 3, 32, 32, 3))
k = "tensorkrowch.models"


def unit() -> tuple[Any, ...]:
    """Return points of the unit square."""
    return (torch.rand(32, 16, 2),)


add("tensorkrowch", k, "MPSLayer", unit, n_features=17, in_dim=2, out_dim=10, bond_dim=8, init_method="randn_eye",
    std=1e-3)  # fmt: skip
add("tensorkrowch", k, "MPSLayer", unit, n_features=17, in_dim=2, out_dim=10, bond_dim=8, label="MPSLayer, randn")
add("tensorkrowch", k, "ConvMPSLayer", lambda: (torch.rand(4, 2, 16, 16),), in_channels=2, out_channels=8, bond_dim=4,
    kernel_size=3)  # fmt: skip


def of_nets(name: str) -> nn.Module:
    """Return a network that makes the weights of another one."""
    target = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))
    h = module("hypernn.torch")
    if "Dynamic" in name:
        found: nn.Module = getattr(h, name)(6, target, embedding_dim=16, num_embeddings=8)
        return found
    made: nn.Module = getattr(h, name)(target, embedding_dim=16, num_embeddings=8)
    return made


enter("hyper-nn", "TorchLinearHyperNetwork", lambda: of_nets("TorchLinearHyperNetwork"), TABLE)
enter("hyper-nn", "TorchDynamicHyperNetwork", lambda: of_nets("TorchDynamicHyperNetwork"), lambda: {
    "input": torch.randn(32, 6), "generate_params_kwargs": {"x": torch.randn(1, 6)}})  # fmt: skip

# ------------------------------------------------------------------------------------------------------ sounds, nerves
add("beat-this", "beat_this.model.beat_tracker", "BeatThis", noise(2, 64, 128), transformer_dim=64, n_layers=2,
    head_dim=16, stem_dim=16)  # fmt: skip

# -------------------------------------------------------------------------------------------------------------- series
t = "tsai.models"
add("tsai", f"{t}.InceptionTime", "InceptionTime", SERIES, 4, 3, nf=16)
add("tsai", f"{t}.TST", "TST", SERIES, 4, 3, 60, n_layers=2, d_model=32, n_heads=4, d_ff=64)
add("tsai", f"{t}.RNN_FCN", "LSTM_FCN", SERIES, 4, 3, 60, hidden_size=32)
add("tsai", f"{t}.XceptionTime", "XceptionTime", SERIES, 4, 3, nf=8)
add("tsai", f"{t}.OmniScaleCNN", "OmniScaleCNN", SERIES, 4, 3, 60)
add("lru-pytorch", "LRU_pytorch", "LRU", noise(4, 24, 8), 8, 8, 32)


# -------------------------------------------------------------------------------------------------------------- tables
m = "pytorch_tabular.models"
add("lassonet", "lassonet.model", "LassoNet", TABLE, 6, 64, 32, 3)
add("lassonet", "lassonet.model", "LassoNet", TABLE, 6, 64, 64, 1, dropout=0.1, label="LassoNet, dropout")
add("pytorch-tabular", f"{m}.gandalf.gandalf", "GANDALFBackbone", TABLE, [], 6, 4)
add("pytorch-tabular", f"{m}.danet.danet", "DANetBackbone", TABLE, 6, [], 4, 16, 32, 3, 0.1, nn.LeakyReLU(), 16, 0.0,
    True)  # fmt: skip


def tabular(kind: str, **options: Any) -> nn.Module:
    """Return a model of tables."""
    found = module("pytorch_tabular.models")
    config = module("omegaconf").OmegaConf.structured(getattr(found, f"{kind}Config")("regression", **options))
    kind_of_model = kind if kind.endswith("Model") else f"{kind}Model"
    inferred = module("omegaconf").OmegaConf.create({"categorical_dim": 2, "continuous_dim": 4, "output_dim": 1,
        "categorical_cardinality": [4, 5], "embedding_dims": [(4, 2), (5, 3)], "embedded_cat_dim": 5,
        "output_cardinality": [1]})  # fmt: skip
    made: nn.Module = getattr(found, kind_of_model)(config=config, inferred_config=inferred)
    return made


def row() -> tuple[Any, ...]:
    """Return rows of numbers and of classes."""
    return ({"continuous": torch.randn(32, 4), "categorical": torch.randint(4, (32, 2))},)


enter("pytorch-tabular", "CategoryEmbeddingModel", lambda: tabular("CategoryEmbeddingModel", layers="64-32"), row)
enter("pytorch-tabular", "FTTransformerModel", lambda: tabular("FTTransformer", input_embed_dim=16, num_heads=4,
    num_attn_blocks=2), row)  # fmt: skip


def of_columns(where: str, name: str, **options: Any) -> nn.Module:
    """Return a model of columns of numbers and of kinds."""
    found, configs = module(f"deeptab.architectures.{where}"), module("deeptab.configs")
    numbers = {f"n{k}": {"preprocessing": "standard", "dimension": 1, "categories": None} for k in range(4)}
    kinds = {f"c{k}": {"preprocessing": "int", "dimension": 1, "categories": 5} for k in range(2)}
    made: nn.Module = getattr(found, name)((numbers, kinds, {}), 3, getattr(configs, f"{name}Config")(**options))
    return made


def columns() -> tuple[list[Tensor], ...]:
    """Return columns of numbers and columns of kinds, one by one."""
    return [torch.randn(32, 1) for _ in range(4)], [torch.randint(5, (32, 1)) for _ in range(2)], []


enter("deeptab", "MLP", lambda: of_columns("mlp", "MLP", layer_sizes=[64, 32]), columns)
enter("deeptab", "FTTransformer", lambda: of_columns("ft_transformer", "FTTransformer", d_model=32, n_layers=2,
    n_heads=4), columns)  # fmt: skip
enter("deeptab", "Mambular", lambda: of_columns("mambular", "Mambular", d_model=32, n_layers=2), columns)
enter("deeptab", "NODE", lambda: of_columns("node", "NODE", num_layers=2, layer_dim=16), columns)
enter("deeptab", "SAINT", lambda: of_columns("saint", "SAINT", d_model=32, n_layers=1, n_heads=2), columns)
add("fastai", "fastai.tabular.model", "TabularModel", lambda: (torch.randint(4, (32, 2)), torch.randn(32, 6)),
    [(4, 3), (5, 3)], 6, 3, [64, 32])  # fmt: skip
add("fastai", "fastai.vision.models.xresnet", "xresnet18", PICTURE, n_out=10)
add("fastai", "fastai.text.models.awdlstm", "AWD_LSTM", tokens(60, 8, 24), 60, 32, 64, 2)
add("gnnwr", "gnnwr.networks", "SWNN", noise(32, 40), None, 40, 5)
add("gnnwr", "gnnwr.networks", "STPNN", noise(32, 40, 3), [32, 16], 3, 1)
# ------------------------------------------------------------------------------------------------------ what comes next
q = "pykt.models"


def learning(high: int = 40) -> tuple[Tensor, ...]:
    """Return questions of pupils and whether they answered them."""
    return torch.randint(high, (8, 20)), torch.randint(2, (8, 20))


add("pykt-toolkit", f"{q}.dkt", "DKT", learning, 40, 32)
add("pykt-toolkit", f"{q}.dkvmn", "DKVMN", learning, 40, 32, 10)
add("pykt-toolkit", f"{q}.sakt", "SAKT", lambda: (*learning(), learning()[0]), 40, 20, 32, 4, 0.1)
add("pykt-toolkit", f"{q}.akt", "AKT", lambda: (*learning(), torch.randint(20, (8, 20))), 40, 20, 32, 2, 0.1, d_ff=64,
    final_fc_dim=64, num_attn_heads=4)  # fmt: skip
add("pykt-toolkit", f"{q}.kqn", "KQN", lambda: (*learning(), learning()[0]), 40, 32, 32, 32, 0.1)


def pupils() -> tuple[Any, ...]:
    """Return pupils, tasks, and which skills these ask for."""
    return (torch.randint(50, (32,)), torch.randint(30, (32,)), torch.randint(2, (32, 12)).float())


add("educdm", "EduCDM.NCDM.NCDM", "Net", pupils, 12, 30, 50)
add("educdm", "EduCDM.KaNCD.KaNCD", "Net", pupils, 30, 50, 12, "gmf", 16, label="Net of KaNCD")
add("educdm", "EduCDM.MIRT.MIRT", "MIRTNet", lambda: pupils()[:2], 50, 30, 8, 2)


def shop(name: str, **options: Any) -> nn.Module:
    """Return a model of what is bought in turn."""
    d = module("replay.data.nn")
    r = module("replay.data")
    schema = d.TensorSchema(
        d.TensorFeatureInfo("item_id", cardinality=40, is_seq=True, feature_type=r.FeatureType.CATEGORICAL,
            feature_hint=r.FeatureHint.ITEM_ID, embedding_dim=32)
    )  # fmt: skip
    kind = name.lower().removesuffix("model")
    made: nn.Module = getattr(module(f"replay.models.nn.sequential.{kind}.model"), name)(schema, **options)
    return made


def bought() -> tuple[Any, ...]:
    """Return what was bought, in order."""
    return ({"item_id": torch.randint(40, (8, 20))}, torch.ones(8, 20, dtype=torch.bool))


enter("replay-rec", "SasRecModel", lambda: shop("SasRecModel", hidden_size=32, max_len=20), bought)
enter("replay-rec", "Bert4RecModel", lambda: shop("Bert4RecModel", hidden_size=32, max_len=20), lambda: (*bought(),
    torch.rand(8, 20) > 0.2))  # fmt: skip


add("rectools", "rectools.models.nn.dssm", "DSSM", lambda: (torch.rand(16, 20), torch.rand(16, 20), torch.rand(16, 12),
    torch.randint(2, (16, 40)).float()), 32, 32, 12, 20, 40)  # fmt: skip


def known(name: str, **options: Any) -> nn.Module:
    """Return a model of what is known of things."""
    ids = torch.stack([torch.arange(60) % 50, torch.arange(60) % 5, (torch.arange(60) * 7 + 3) % 50], 1)
    triples = module("pykeen.triples").CoreTriplesFactory.create(ids, num_entities=50, num_relations=5)
    made: nn.Module = getattr(module("pykeen.models"), name)(triples_factory=triples, **options)
    return made


def facts() -> dict[str, Any]:
    """Return heads, relations and tails."""
    heads, relations, tails = (torch.randint(high, (32,)) for high in (50, 5, 50))
    return {"h_indices": heads, "r_indices": relations, "t_indices": tails, "mode": None}


enter("pykeen", "RotatE", lambda: known("RotatE", embedding_dim=32), facts)
enter("pykeen", "TuckER", lambda: known("TuckER", embedding_dim=32), facts)
enter("pykeen", "ConvE", lambda: known("ConvE", embedding_dim=32, embedding_height=4, embedding_width=8), facts)
enter("pykeen", "NTN", lambda: known("NTN", embedding_dim=32), facts)
enter("pykeen", "ProjE", lambda: known("ProjE", embedding_dim=32), facts)

# --------------------------------------------------------------------------------------------------- words and proteins
add("ablang2", "ablang2.models.ablang2.ablang", "AbLang", lambda: (torch.randint(1, 20, (8, 24)),), 26, 64, 4, 2, 21,
    23)  # fmt: skip
add("bert4torch", "bert4torch.models.bert", "BERT", lambda: ([torch.randint(1, 60, (8, 24)), torch.zeros(8, 24,
    dtype=torch.int64)],), 60, 64, 2, 4, 128, "gelu", 32, dropout_rate=0.1, with_pool=True, with_mlm=True)  # fmt: skip
add("bert4torch", "bert4torch.models.gpt2", "GPT2", lambda: ([torch.randint(1, 60, (8, 24))],), vocab_size=60,
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, hidden_act="gelu",
    max_position_embeddings=32, dropout_rate=0.1, segment_vocab_size=0)  # fmt: skip
r = "rau.models"
add("rau", f"{r}.rnn.language_model", "get_lstm_language_model", tokens(60, 8, 24), 60, 60, 64, 2, 0.1)
add("rau", f"{r}.transformer.encoder_decoder", "get_transformer_encoder_decoder", lambda: (torch.randint(60, (8, 12)),
    torch.randint(60, (8, 14))), 60, 60, 60, True, 2, 2, 64, 4, 128, 0.1)  # fmt: skip
add("rau", f"{r}.transformer.unidirectional_encoder", "get_unidirectional_transformer_encoder", lambda: {
    "input_sequence": torch.randint(60, (8, 14)), "include_first": False}, 60, 60, True, 2, 64, 4, 128, 0.1,
    False)  # fmt: skip


# ------------------------------------------------------------------------------------------------- causes and decisions
g = "castle.algorithms.gradient"
add("gcastle", f"{g}.notears.torch.models", "MLPModel", noise(32, 8), [8, 10, 1])
add("gcastle", f"{g}.notears.torch.models", "SobolevModel", noise(32, 8), 8, 5)
add("gcastle", f"{g}.pnl.torch.pnl", "MLP", noise(32, 4), 4, 2, 32, 1, activation=nn.LeakyReLU())
CHESS = SimpleNamespace(input_channels=18, dim_cnn=32, dim_vit=64, num_blocks_cnn=2, num_blocks_vit=1, vit_length=8,
    elo_dim=16)  # fmt: skip
add("maia2", "maia2.main", "MAIA2Model", lambda: (torch.randint(2, (8, 18 * 64)).float(), torch.randint(11, (8,)),
    torch.randint(11, (8,))), 100, {k: k for k in range(11)}, CHESS)  # fmt: skip


def played(**options: Any) -> nn.Module:
    """Return what acts and of what judges the acts."""
    builder = module("rl_games.algos_torch.network_builder").A2CBuilder()
    space = {"mu_activation": "None", "sigma_activation": "None", "mu_init": {"name": "default"},
        "sigma_init": {"name": "const_initializer", "val": 0}, "fixed_sigma": True}  # fmt: skip
    mlp = {"units": [64, 32], "activation": "elu", "initializer": {"name": "default"}}
    builder.load({"separate": False, "space": {"continuous": space}, "mlp": mlp, **options})
    made: nn.Module = builder.build("a2c", actions_num=3, input_shape=(8,), value_size=1, num_seqs=1)
    return made


def observed() -> tuple[Any, ...]:
    """Return what players see."""
    return ({"obs": torch.randn(32, 8)},)


enter("rl-games", "A2C", lambda: played(), observed)
enter("rl-games", "A2C, apart", lambda: played(separate=True), observed)
s = "sample_factory.model.encoder"
PLAY = SimpleNamespace(nonlinearity="elu", encoder_mlp_layers=[64, 32], encoder_conv_mlp_layers=[64],
    encoder_conv_architecture="convnet_atari", actor_critic_share_weights=True)  # fmt: skip
FRAME = SimpleNamespace(shape=(4, 84, 84))
add("sample-factory", s, "MlpEncoder", noise(32, 8), PLAY, SimpleNamespace(shape=(8,)))
add("sample-factory", s, "ResnetEncoder", noise(2, 4, 84, 84), SimpleNamespace(**{**vars(PLAY),
    "encoder_conv_architecture": "resnet_impala"}), FRAME)  # fmt: skip
