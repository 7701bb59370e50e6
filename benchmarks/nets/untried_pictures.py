"""Models of pictures, films and volumes from libraries that no other list of the benchmarks holds."""

from __future__ import annotations

from torch import nn

from nets.untried import ENTRIES, SMALL, add, noise

__all__ = ["ENTRIES"]

PICTURE, VOLUME = noise(2, 3, 64, 64), noise(2, 1, 32, 32, 32)

add("geffnet", "geffnet", "mixnet_s", PICTURE, num_classes=10)
add("geffnet", "geffnet", "mobilenetv3_small_100", PICTURE, num_classes=10)
CV = "pytorchcv.model_provider"
for name in ("resnet20", "preresnet20", "densenet40_k12", "sepreresnet20", "pyramidnet110_a48", "wrn16_10",
             "diaresnet20", "xdensenet40_2_k24_bc", "ror3_56", "nin", "shakeshakeresnet20_2x16d", "rir"):  # fmt: skip
    add("pytorchcv", CV, "get_model", noise(2, 3, 32, 32), f"{name}_cifar10", label=f"{name}_cifar10")
for name in ("squeezenet_v1_1", "shufflenetv2_wd2", "menet108_8x1_g3", "condensenet74_c4_g4", "dla34",
             "octresnet10_ad2", "fdmobilenet_wd4", "ghostnet", "peleenet", "bninception", "hardnet39ds",
             "vovnet27s"):  # fmt: skip
    add("pytorchcv", CV, "get_model", noise(2, 3, 224, 224), name, label=name)
add("segmentation-models-pytorch-3d", "segmentation_models_pytorch_3d", "Unet", noise(2, 1, 64, 64, 64), "resnet18",
    encoder_weights=None, in_channels=1, classes=2, decoder_channels=(64, 32, 32, 16, 16))  # fmt: skip
u = "pytorch3dunet.unet3d.model"
add("pytorch3dunet", u, "UNet3D", VOLUME, 1, 2, f_maps=8, num_levels=3)
add("pytorch3dunet", u, "ResidualUNetSE3D", VOLUME, 1, 2, f_maps=8, num_levels=3)
w = "dynamic_network_architectures.architectures.unet"
nets3 = {"features_per_stage": [16, 32, 64], "conv_op": nn.Conv2d, "kernel_sizes": 3, "strides": [1, 2, 2],
         "conv_bias": True, "norm_op": nn.InstanceNorm2d, "norm_op_kwargs": {"affine": True}, "nonlin": nn.LeakyReLU,
         "num_classes": 3, "n_conv_per_stage_decoder": [2, 2], "deep_supervision": True}  # fmt: skip
add("dynamic-network-architectures", w, "PlainConvUNet", SMALL, 3, 3, n_conv_per_stage=[2, 2, 2], **nets3)
add("dynamic-network-architectures", w, "ResidualEncoderUNet", SMALL, 3, 3, n_blocks_per_stage=[1, 2, 2], **nets3)
v = "pytorchvideo.models"
add("pytorchvideo", f"{v}.resnet", "create_resnet", noise(1, 3, 4, 64, 64), model_depth=50, model_num_class=10,
    stem_dim_out=8, head_pool_kernel_size=(4, 2, 2), dropout_rate=0.1)  # fmt: skip
add("pytorchvideo", f"{v}.x3d", "create_x3d", noise(1, 3, 4, 64, 64), input_clip_length=4, input_crop_size=64,
    model_num_class=10, head_dim_out=64)  # fmt: skip
add("pytorchvideo", f"{v}.csn", "create_csn", noise(1, 3, 8, 64, 64), model_depth=50, model_num_class=10,
    stem_dim_out=8, head_pool_kernel_size=(1, 2, 2))  # fmt: skip
add("pytorchvideo", f"{v}.vision_transformers", "create_multiscale_vision_transformers", noise(1, 3, 4, 32, 32),
    spatial_size=32, temporal_size=4, depth=3, patch_embed_dim=32, head_num_classes=10,
    conv_patch_embed_kernel=(3, 7, 7), conv_patch_embed_stride=(2, 4, 4), embed_dim_mul=[[1, 2.0]],
    atten_head_mul=[[1, 2.0]], pool_q_stride_size=[[1, 1, 2, 2]])  # fmt: skip
for name in ("osnet_x0_25", "mlfn", "pcb_p4", "shufflenet", "resnet50_fc512", "osnet_ain_x0_25"):
    add("torchreid", "torchreid.reid.models", "build_model", noise(2, 3, 128, 64),
        name, 10, pretrained=False, label=name)  # fmt: skip
for name in ("mobilenet_v3_small", "resnet18", "magc_resnet31", "vit_s"):
    add("python-doctr", "doctr.models.classification", name, noise(2, 3, 64, 64), pretrained=False, num_classes=10)
add("python-doctr", "doctr.models.recognition", "crnn_mobilenet_v3_small", noise(2, 3, 32, 128), pretrained=False,
    pretrained_backbone=False)  # fmt: skip
t = "torchgeo.models"
add("torchgeo", t, "FCN", SMALL, 3, 4, 32)
add("torchgeo", t, "LTAE", noise(4, 24, 32), in_channels=32, n_head=4, d_k=8, n_neurons=(64, 32), d_model=64)
add("torchgeo", t, "FarSeg", PICTURE, "resnet18", 4, False)
add("torchgeo", t, "ConvLSTM", noise(2, 4, 3, 16, 16), 3, 16, (3, 3), 2)
add("torchgeo", t, "FCSiamConc", noise(1, 2, 3, 64, 64), "resnet18", encoder_weights=None, in_channels=3, classes=2,
    decoder_channels=(64, 32, 32, 16, 16))  # fmt: skip
