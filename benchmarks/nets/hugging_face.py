"""Models of transformers that are no causal language models: pictures, sound, series, encoders, pairs of them.

From small configs with random weights. Causal language models have a benchmark of their own (`languages.py`).
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from nets.draws import Entry, Make, integers, noise, same

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
ENCODER: dict[str, Any] = {
    "d_model": 64,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128,
}


def _ones(*shape: int) -> Make:
    return same(torch.ones(shape, dtype=torch.int64))


def _tokens(*shape: int) -> Make:
    """Tokens of a vocabulary of 128, without the first few, which mean padding and the like."""
    return lambda generator: torch.randint(4, 120, shape, generator=generator)


def _model(config: str, model: str, options: dict[str, Any]) -> nn.Module:
    library = importlib.import_module("transformers")
    made: nn.Module = getattr(library, model)(getattr(library, config)(**options))
    return made


def _of(name: str, model: str = "Model", **options: Any) -> Callable[[], nn.Module]:
    return partial(_model, f"{name}Config", model if model.startswith(name) else f"{name}{model}", options)


def _pictures(size: int = 64) -> dict[str, Make]:
    return {"pixel_values": noise(2, 3, size, size)}


TEXT = {"input_ids": _tokens(4, 32)}
PAIR = {"input_ids": _tokens(4, 32), "decoder_input_ids": _tokens(4, 16)}
SOUND = {"input_values": noise(2, 16000)}


def pictures() -> Iterator[Entry]:
    """Backbones, detectors, segmenters, estimators of depth, codecs of pictures."""
    vit = {**SMALL, "image_size": 64, "patch_size": 8}
    yield "ViT", _of("ViT", "ForImageClassification", **vit), _pictures()
    yield "DeiT", _of("DeiT", "ForImageClassificationWithTeacher", **vit), _pictures()
    yield "BEiT", _of("Beit", "ForImageClassification", use_relative_position_bias=True, **vit), _pictures()
    yield (
        "Data2VecVision",
        _of("Data2VecVision", "ForImageClassification", use_relative_position_bias=True, **vit),
        _pictures(),
    )
    yield (
        "DINOv2",
        _of("Dinov2", "ForImageClassification", **{k: v for k, v in vit.items() if k != "intermediate_size"}),
        _pictures(),
    )
    yield (
        "DINOv2 registers",
        _of("Dinov2WithRegisters", "Model", **{k: v for k, v in vit.items() if k != "intermediate_size"}),
        _pictures(),
    )
    yield "DINOv3", _of("DINOv3ViT", "Model", **vit), _pictures()
    yield (
        "DINOv3 ConvNeXt",
        _of("DINOv3ConvNext", "Model", hidden_sizes=[16, 32, 64, 128], depths=[2, 2, 4, 2]),
        _pictures(),
    )
    yield "ViTMSN", _of("ViTMSN", "Model", **vit), _pictures()
    yield "I-JEPA", _of("IJepa", "Model", **vit), _pictures()
    yield (
        "ViTMAE",
        _of(
            "ViTMAE",
            "ForPreTraining",
            decoder_hidden_size=32,
            decoder_num_hidden_layers=2,
            decoder_num_attention_heads=4,
            decoder_intermediate_size=64,
            **vit,
        ),
        _pictures(),
    )
    yield (
        "Swin",
        _of(
            "Swin",
            "ForImageClassification",
            image_size=64,
            embed_dim=24,
            depths=[2, 2, 4, 2],
            num_heads=[2, 4, 4, 8],
            window_size=4,
            patch_size=2,
        ),
        _pictures(),
    )
    yield (
        "Swinv2",
        _of(
            "Swinv2",
            "ForImageClassification",
            image_size=64,
            embed_dim=24,
            depths=[2, 2, 4, 2],
            num_heads=[2, 4, 4, 8],
            window_size=4,
            patch_size=2,
        ),
        _pictures(),
    )
    yield (
        "Swin2SR",
        _of(
            "Swin2SR",
            "ForImageSuperResolution",
            image_size=32,
            embed_dim=32,
            depths=[2, 2],
            num_heads=[2, 2],
            window_size=4,
        ),
        _pictures(32),
    )
    yield (
        "DonutSwin",
        _of(
            "DonutSwin",
            "Model",
            image_size=64,
            embed_dim=24,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
            patch_size=2,
        ),
        _pictures(),
    )
    yield (
        "MaskFormerSwin",
        _of(
            "MaskFormerSwin",
            "Model",
            image_size=64,
            embed_dim=24,
            depths=[2, 2],
            num_heads=[2, 4],
            window_size=4,
            patch_size=2,
        ),
        _pictures(),
    )
    yield (
        "SegFormer",
        _of(
            "Segformer",
            "ForSemanticSegmentation",
            hidden_sizes=[16, 32, 64, 64],
            depths=[2, 2, 2, 2],
            num_attention_heads=[1, 2, 4, 4],
            decoder_hidden_size=64,
        ),
        _pictures(),
    )
    yield (
        "PVT",
        _of(
            "Pvt",
            "ForImageClassification",
            image_size=64,
            hidden_sizes=[16, 32, 64, 64],
            depths=[2, 2, 2, 2],
            num_attention_heads=[1, 2, 4, 4],
        ),
        _pictures(),
    )
    yield (
        "PVTv2",
        _of(
            "PvtV2",
            "ForImageClassification",
            image_size=64,
            hidden_sizes=[16, 32, 64, 64],
            depths=[2, 2, 2, 2],
            num_attention_heads=[1, 2, 4, 4],
        ),
        _pictures(),
    )
    yield (
        "CvT",
        _of("Cvt", "ForImageClassification", embed_dim=[16, 32, 64], depth=[1, 2, 4], num_heads=[1, 2, 4]),
        _pictures(),
    )
    yield (
        "LeViT",
        _of("Levit", "ForImageClassification", image_size=64, hidden_sizes=[32, 64, 96], depths=[2, 2, 2]),
        _pictures(),
    )
    yield "MobileViT", _of("MobileViT", "ForImageClassification", image_size=64), _pictures()
    yield "MobileViTV2", _of("MobileViTV2", "ForImageClassification", image_size=64), _pictures()
    yield "SwiftFormer", _of("SwiftFormer", "ForImageClassification"), _pictures(224)
    yield "PoolFormer", _of("PoolFormer", "ForImageClassification"), _pictures()
    yield (
        "FocalNet",
        _of("FocalNet", "ForImageClassification", image_size=64, embed_dim=24, depths=[2, 2, 4, 2]),
        _pictures(),
    )
    yield (
        "ConvNeXt",
        _of("ConvNext", "ForImageClassification", hidden_sizes=[24, 48, 96, 192], depths=[2, 2, 4, 2]),
        _pictures(),
    )
    yield (
        "ConvNeXtV2",
        _of("ConvNextV2", "ForImageClassification", hidden_sizes=[24, 48, 96, 192], depths=[2, 2, 4, 2]),
        _pictures(),
    )
    yield "ResNet", _of("ResNet", "ForImageClassification"), _pictures()
    yield (
        "RegNet",
        _of("RegNet", "ForImageClassification", hidden_sizes=[32, 64, 96, 128], depths=[2, 2, 4, 2]),
        _pictures(),
    )
    yield (
        "BiT",
        _of(
            "Bit",
            "ForImageClassification",
            hidden_sizes=[64, 128, 256, 512],
            depths=[2, 2, 2, 2],
            embedding_size=32,
            num_groups=8,
        ),
        _pictures(),
    )
    yield "MobileNetV1", _of("MobileNetV1", "ForImageClassification"), _pictures()
    yield "MobileNetV2", _of("MobileNetV2", "ForImageClassification"), _pictures()
    yield (
        "EfficientNet",
        _of(
            "EfficientNet",
            "ForImageClassification",
            width_coefficient=0.5,
            depth_coefficient=0.5,
            image_size=64,
            hidden_dim=640,
        ),
        _pictures(),
    )
    yield "HGNetV2", _of("HGNetV2", "ForImageClassification"), _pictures()
    yield "TextNet", _of("TextNet", "ForImageClassification"), _pictures()
    yield (
        "Hiera",
        _of("Hiera", "ForImageClassification", image_size=[64, 64], embed_dim=24, depths=[1, 1, 2, 1], mlp_ratio=2.0),
        _pictures(),
    )
    yield "ImageGPT", _of("ImageGPT", "Model", n_embd=64, n_layer=4, n_head=4, n_positions=64, vocab_size=128), TEXT
    yield (
        "DPT",
        _of(
            "DPT",
            "ForDepthEstimation",
            image_size=64,
            patch_size=8,
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[16, 32, 64, 64],
            fusion_hidden_size=32,
            is_hybrid=False,
        ),
        _pictures(),
    )
    yield (
        "GLPN",
        _of(
            "GLPN",
            "ForDepthEstimation",
            hidden_sizes=[16, 32, 64, 64],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 4, 4],
        ),
        _pictures(),
    )
    yield (
        "YOLOS",
        _of("Yolos", "ForObjectDetection", num_detection_tokens=10, **{**vit, "image_size": [64, 64]}),
        _pictures(),
    )
    yield (
        "VitDet",
        _of("VitDet", "Model", hidden_size=64, num_hidden_layers=4, num_attention_heads=4, image_size=64, patch_size=8),
        _pictures(),
    )
    yield (
        "VideoMAE",
        _of("VideoMAE", "ForVideoClassification", num_frames=4, **vit),
        {"pixel_values": noise(2, 4, 3, 64, 64)},
    )
    yield (
        "ViViT",
        _of(
            "Vivit",
            "ForVideoClassification",
            num_frames=4,
            tubelet_size=[2, 8, 8],
            **{k: v for k, v in vit.items() if k != "patch_size"},
        ),
        {"pixel_values": noise(2, 4, 3, 64, 64)},
    )
    yield (
        "TimeSformer",
        _of("Timesformer", "ForVideoClassification", num_frames=4, **vit),
        {"pixel_values": noise(2, 4, 3, 64, 64)},
    )
    yield "SuperPoint", _of("SuperPoint", "ForKeypointDetection"), _pictures()


def detectors() -> Iterator[Entry]:
    """Detectors and segmenters with queries."""
    small = {
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "num_queries": 10,
    }
    yield "DETR", _resnet_detector("Detr", **small), _pictures()
    yield "Conditional DETR", _resnet_detector("ConditionalDetr", **small), _pictures()
    yield "Deformable DETR", _resnet_detector("DeformableDetr", **small), _pictures()
    yield (
        "DAB-DETR",
        _resnet_detector(
            "DabDetr",
            hidden_size=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_queries=10,
        ),
        _pictures(),
    )
    real_time = {
        "num_queries": 10,
        "d_model": 32,
        "encoder_hidden_dim": 32,
        "encoder_in_channels": [512, 1024, 2048],
        "decoder_in_channels": [32, 32, 32],
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "decoder_layers": 2,
        "num_denoising": 0,
    }
    for name, config in (("RT-DETR", "RTDetr"), ("RT-DETRv2", "RTDetrV2")):
        yield name, _of(config, "ForObjectDetection", **real_time), _pictures(128)
    yield (
        "SAM vision",
        _of(
            "SamVision",
            "Model",
            hidden_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            image_size=64,
            patch_size=8,
            output_channels=32,
            window_size=4,
            global_attn_indexes=[1, 3],
            mlp_dim=128,
        ),
        _pictures(),
    )


def _detector(name: str, options: dict[str, Any]) -> nn.Module:
    library = importlib.import_module("transformers")
    backbone = library.ResNetConfig(
        embedding_size=16,
        hidden_sizes=[32, 64, 128, 256],
        depths=[1, 1, 2, 1],
        out_features=["stage2", "stage3", "stage4"] if name.startswith("Deformable") else ["stage4"],
    )
    config = getattr(library, f"{name}Config")(
        use_timm_backbone=False, backbone_config=backbone, use_pretrained_backbone=False, backbone=None, **options
    )
    made: nn.Module = getattr(library, f"{name}ForObjectDetection")(config)
    return made


def _resnet_detector(name: str, **options: Any) -> Callable[[], nn.Module]:
    return partial(_detector, name, options)


def encoders() -> Iterator[Entry]:
    """Encoders of text, and encoders with decoders."""
    text = {**SMALL, "vocab_size": 128, "max_position_embeddings": 64}
    yield "ALBERT", _of("Albert", "Model", embedding_size=32, **text), TEXT
    yield (
        "DistilBERT",
        _of("DistilBert", "ForSequenceClassification", dim=64, n_layers=4, n_heads=4, hidden_dim=128, vocab_size=128),
        TEXT,
    )
    yield (
        "MobileBERT",
        _of(
            "MobileBert",
            "Model",
            vocab_size=128,
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=128,
            intra_bottleneck_size=64,
            embedding_size=64,
            true_hidden_size=64,
        ),
        TEXT,
    )
    yield "DeBERTa", _of("Deberta", "Model", relative_attention=True, pos_att_type=["c2p", "p2c"], **text), TEXT
    yield (
        "DeBERTa-v2",
        _of(
            "DebertaV2",
            "Model",
            relative_attention=True,
            pos_att_type=["c2p", "p2c"],
            position_buckets=16,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            **text,
        ),
        TEXT,
    )
    yield "MPNet", _of("MPNet", "Model", **text), TEXT
    yield "SqueezeBERT", _of("SqueezeBert", "Model", embedding_size=64, **text), TEXT
    yield "ConvBERT", _of("ConvBert", "Model", embedding_size=64, **text), TEXT
    yield "FNet", _of("FNet", "Model", **{k: v for k, v in text.items() if k != "num_attention_heads"}), TEXT
    yield (
        "Funnel",
        _of("Funnel", "Model", d_model=64, n_head=4, d_head=16, d_inner=128, block_sizes=[2, 2], vocab_size=128),
        TEXT,
    )
    yield "Longformer", _of("Longformer", "Model", attention_window=16, **text), TEXT
    yield "Nystromformer", _of("Nystromformer", "Model", num_landmarks=8, segment_means_seq_len=32, **text), TEXT
    yield "YOSO", _of("Yoso", "Model", **text), TEXT
    yield "RoFormer", _of("RoFormer", "ForMaskedLM", **text), TEXT
    yield "ESM", _of("Esm", "Model", pad_token_id=1, **text), TEXT
    yield (
        "ModernBERT",
        _of(
            "ModernBert",
            "Model",
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
            **text,
        ),
        TEXT,
    )
    yield "I-BERT", _of("IBert", "Model", **text), TEXT
    yield "LayoutLM", _of("LayoutLM", "Model", **text), TEXT
    yield (
        "Perceiver",
        _of(
            "Perceiver",
            "ForMaskedLM",
            num_latents=16,
            d_latents=64,
            d_model=48,
            num_blocks=1,
            num_self_attends_per_block=4,
            num_self_attention_heads=4,
            num_cross_attention_heads=4,
            vocab_size=128,
            max_position_embeddings=32,
        ),
        (_tokens(4, 32),),
    )
    t5 = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 4, "num_heads": 4, "vocab_size": 128}
    yield "T5", _of("T5", "Model", **t5), PAIR
    yield "mT5", _of("MT5", "Model", **t5), PAIR
    yield "UMT5", _of("UMT5", "Model", **t5), PAIR
    yield (
        "LongT5",
        _of("LongT5", "Model", **t5, local_radius=8),
        PAIR,
    )
    yield (
        "Switch Transformers",
        _of(
            "SwitchTransformers",
            "Model",
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=4,
            num_heads=4,
            vocab_size=128,
            num_experts=4,
        ),
        PAIR,
    )
    yield "BART", _of("Bart", "Model", vocab_size=128, max_position_embeddings=64, **ENCODER), PAIR
    yield (
        "LED",
        _of(
            "LED",
            "Model",
            vocab_size=128,
            max_encoder_position_embeddings=64,
            max_decoder_position_embeddings=64,
            attention_window=16,
            **ENCODER,
        ),
        PAIR,
    )
    yield "M2M100", _of("M2M100", "Model", vocab_size=128, max_position_embeddings=64, **ENCODER), PAIR
    yield (
        "NLLB-MoE",
        _of(
            "NllbMoe",
            "Model",
            vocab_size=128,
            max_position_embeddings=64,
            num_experts=4,
            encoder_sparse_step=2,
            decoder_sparse_step=2,
            **ENCODER,
        ),
        PAIR,
    )
    yield (
        "FSMT",
        _of(
            "FSMT",
            "Model",
            src_vocab_size=128,
            tgt_vocab_size=128,
            max_position_embeddings=64,
            langs=["en", "de"],
            **ENCODER,
        ),
        PAIR,
    )
    series = {
        "prediction_length": 8,
        "context_length": 16,
        "lags_sequence": [1, 2, 3],
        "num_time_features": 2,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
    }
    for name in ("TimeSeriesTransformer", "Informer", "Autoformer"):
        yield re.sub("(?<=[a-z])(?=[A-Z])", " ", name), _of(name, "Model", **series), _series(19)
    yield (
        "PatchTST",
        _of(
            "PatchTST",
            "ForPrediction",
            num_input_channels=4,
            context_length=32,
            patch_length=8,
            patch_stride=8,
            d_model=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            ffn_dim=64,
            prediction_length=8,
        ),
        {"past_values": noise(4, 32, 4)},
    )
    yield (
        "PatchTSMixer",
        _of(
            "PatchTSMixer",
            "ForPrediction",
            num_input_channels=4,
            context_length=32,
            patch_length=8,
            patch_stride=8,
            d_model=32,
            num_layers=3,
            prediction_length=8,
        ),
        {"past_values": noise(4, 32, 4)},
    )
    yield (
        "Decision Transformer",
        _of("DecisionTransformer", "Model", state_dim=8, act_dim=3, hidden_size=64, n_layer=3, n_head=4, max_ep_len=64),
        _decisions(),
    )
    yield "TAPAS", _of("Tapas", "Model", **text), TEXT


def _series(length: int) -> dict[str, Make]:
    return {
        "past_values": noise(4, length),
        "past_time_features": noise(4, length, 2),
        "past_observed_mask": _ones(4, length),
        "future_values": noise(4, 8),
        "future_time_features": noise(4, 8, 2),
    }


def _decisions() -> dict[str, Make]:
    return {
        "states": noise(4, 8, 8),
        "actions": noise(4, 8, 3),
        "rewards": noise(4, 8, 1),
        "returns_to_go": noise(4, 8, 1),
        "timesteps": integers(60, 4, 8),
        "attention_mask": _ones(4, 8),
    }


def sounds() -> Iterator[Entry]:
    """Encoders of sound, codecs, synthesis."""
    wave = {
        **SMALL,
        "conv_dim": [32] * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 4,
        "vocab_size": 32,
    }
    yield "wav2vec 2.0", _of("Wav2Vec2", "Model", mask_time_prob=0.0, **wave), SOUND
    yield (
        "wav2vec 2.0, layer norms",
        _of(
            "Wav2Vec2",
            "ForCTC",
            feat_extract_norm="layer",
            do_stable_layer_norm=True,
            conv_bias=True,
            mask_time_prob=0.0,
            **wave,
        ),
        SOUND,
    )
    yield (
        "wav2vec 2.0 Conformer",
        _of("Wav2Vec2Conformer", "Model", mask_time_prob=0.0, position_embeddings_type="relative", **wave),
        SOUND,
    )
    yield "HuBERT", _of("Hubert", "Model", mask_time_prob=0.0, **wave), SOUND
    yield "WavLM", _of("WavLM", "Model", mask_time_prob=0.0, **wave), SOUND
    yield "UniSpeech", _of("UniSpeech", "Model", mask_time_prob=0.0, **wave), SOUND
    yield "Data2VecAudio", _of("Data2VecAudio", "Model", mask_time_prob=0.0, **wave), SOUND
    yield (
        "SEW",
        _of(
            "SEW",
            "Model",
            mask_time_prob=0.0,
            conv_kernel=[10, 3, 3, 3, 3, 2, 2],
            conv_stride=[5, 2, 2, 2, 2, 2, 2],
            squeeze_factor=2,
            **wave,
        ),
        SOUND,
    )
    yield (
        "AST",
        _of("AST", "Model", max_length=64, num_mel_bins=32, patch_size=8, frequency_stride=8, time_stride=8, **SMALL),
        {"input_values": noise(2, 64, 32)},
    )
    yield (
        "Whisper",
        _of(
            "Whisper",
            "Model",
            vocab_size=128,
            num_mel_bins=32,
            max_source_positions=50,
            max_target_positions=32,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            **ENCODER,
        ),
        {"input_features": noise(2, 32, 100), "decoder_input_ids": _tokens(2, 16)},
    )
    yield (
        "Speech2Text",
        _of(
            "Speech2Text",
            "Model",
            vocab_size=128,
            input_feat_per_channel=32,
            conv_channels=64,
            max_source_positions=64,
            max_target_positions=32,
            **ENCODER,
        ),
        {"input_features": noise(2, 64, 32), "decoder_input_ids": _tokens(2, 16)},
    )
    yield (
        "EnCodec",
        _of("Encodec", "Model", num_filters=8, hidden_size=32, codebook_dim=32, codebook_size=64),
        {"input_values": noise(2, 1, 4000)},
    )
    yield (
        "DAC",
        _of("Dac", "Model", encoder_hidden_size=16, decoder_hidden_size=128, codebook_size=64, n_codebooks=4),
        {"input_values": noise(2, 1, 4000)},
    )
    yield (
        "HiFi-GAN (SpeechT5)",
        partial(
            _model, "SpeechT5HifiGanConfig", "SpeechT5HifiGan", {"model_in_dim": 32, "upsample_initial_channel": 64}
        ),
        {"spectrogram": noise(2, 30, 32)},
    )
    yield (
        "VITS",
        _of(
            "Vits",
            "Model",
            vocab_size=40,
            hidden_size=48,
            num_hidden_layers=2,
            ffn_dim=64,
            flow_size=48,
            spectrogram_bins=33,
            upsample_initial_channel=64,
        ),
        {"input_ids": integers(38, 2, 16)},
    )
    yield (
        "UnivNet",
        _of(
            "UnivNet",
            "Model",
            model_hidden_channels=16,
            num_mel_bins=32,
            model_in_channels=16,
            kernel_predictor_hidden_channels=16,
        ),
        {"input_features": noise(1, 20, 32)},
    )
    yield (
        "Moonshine",
        _of(
            "Moonshine",
            "Model",
            hidden_size=64,
            intermediate_size=128,
            encoder_num_hidden_layers=3,
            decoder_num_hidden_layers=3,
            encoder_num_attention_heads=4,
            decoder_num_attention_heads=4,
            vocab_size=128,
        ),
        {"input_values": noise(2, 8000), "decoder_input_ids": _tokens(2, 16)},
    )


def pairs() -> Iterator[Entry]:
    """Pictures with text."""
    text = {**SMALL, "vocab_size": 128, "max_position_embeddings": 40}
    picture = {**SMALL, "image_size": 64, "patch_size": 8}
    both = {"input_ids": _tokens(2, 32), "pixel_values": noise(2, 3, 64, 64)}
    two = {"text_config": text, "vision_config": picture}
    yield "CLIP", _of("CLIP", "Model", projection_dim=32, **two), both
    yield "SigLIP", _of("Siglip", "Model", text_config=text, vision_config=picture), both
    yield "SigLIP vision", partial(_model, "SiglipVisionConfig", "SiglipVisionModel", picture), _pictures()
    yield "Chinese-CLIP", _of("ChineseCLIP", "Model", projection_dim=32, **two), both
    yield (
        "X-CLIP",
        _of(
            "XCLIP",
            "Model",
            projection_dim=64,
            text_config=text,
            vision_config={
                **picture,
                "num_frames": 4,
                "mit_hidden_size": 64,
                "mit_intermediate_size": 128,
                "mit_num_attention_heads": 4,
            },
        ),
        {"input_ids": _tokens(2, 32), "pixel_values": noise(2, 4, 3, 64, 64)},
    )
    yield (
        "ALIGN vision",
        partial(
            _model,
            "AlignVisionConfig",
            "AlignVisionModel",
            {"width_coefficient": 0.5, "depth_coefficient": 0.5, "image_size": 64, "hidden_dim": 640},
        ),
        _pictures(),
    )
    yield (
        "BLIP",
        _of(
            "Blip",
            "Model",
            projection_dim=32,
            text_config={
                **text,
                "encoder_hidden_size": 64,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "pad_token_id": 0,
                "sep_token_id": 3,
            },
            vision_config=picture,
        ),
        both,
    )
    yield "FLAVA image", partial(_model, "FlavaImageConfig", "FlavaImageModel", picture), _pictures()
    yield (
        "GroupViT vision",
        partial(
            _model,
            "GroupViTVisionConfig",
            "GroupViTVisionModel",
            {
                "hidden_size": 64,
                "intermediate_size": 128,
                "depths": [2, 1, 1],
                "num_attention_heads": 4,
                "image_size": 64,
                "patch_size": 8,
                "num_group_tokens": [16, 4, 0],
                "num_output_groups": [16, 4, 0],
            },
        ),
        _pictures(),
    )
    yield (
        "CLIPSeg",
        _of(
            "CLIPSeg",
            "ForImageSegmentation",
            projection_dim=32,
            reduce_dim=16,
            extract_layers=[0, 1, 2],
            decoder_num_attention_heads=4,
            decoder_intermediate_size=64,
            **two,
        ),
        both,
    )
    yield "OWL-ViT", _of("OwlViT", "Model", projection_dim=32, **two), both
    yield "ViLT", _of("Vilt", "Model", image_size=64, patch_size=8, **text), both
    yield (
        "VisualBERT",
        _of("VisualBert", "Model", visual_embedding_dim=32, **text),
        {"input_ids": _tokens(2, 32), "visual_embeds": noise(2, 10, 32)},
    )


GROUPS: tuple[Callable[[], Iterator[Entry]], ...] = (pictures, detectors, encoders, sounds, pairs)


def entries() -> Iterator[Entry]:
    """Yield all models."""
    for group in GROUPS:
        yield from group()
