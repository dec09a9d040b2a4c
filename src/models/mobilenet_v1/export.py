"""MobileNetV1 for export.py: normalised images to logits, and a checkpoint of timm's mobilenetv1_100."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from src.models.mobilenet_v1.network import PAIRS, STEM, MobileNetV1
from src.training.export import Export, HubFolder, Inputs, Outputs, TensorGraph, difference

ARCHITECTURE = "mobilenetv1_100"
STAGES = (1, 2, 2, 6, 2)  # blocks of each of timm's stages
RENAMED = {"depthwise.conv": "conv_dw", "depthwise.norm": "bn1", "pointwise.conv": "conv_pw", "pointwise.norm": "bn2"}
CENTRE = 0.875  # share of the shorter side that an evaluation crops: src/datamodules/images/decode.py


def timm_weights(network: MobileNetV1) -> dict[str, Tensor]:
    """Returns the state_dict by timm's names, contiguous."""
    stages = [(stage, block) for stage, count in enumerate(STAGES) for block in range(count)]
    renamed = {"stem.conv.": "conv_stem.", "stem.norm.": "bn1.", "classifier.": "classifier."}
    for number, (stage, block) in enumerate(stages):
        renamed |= {f"blocks.{number}.{ours}.": f"blocks.{stage}.{block}.{name}." for ours, name in RENAMED.items()}
    weights = {}
    for key, value in network.state_dict().items():
        prefix = next(prefix for prefix in renamed if key.startswith(prefix))
        weights[renamed[prefix] + key.removeprefix(prefix)] = value.contiguous()
    return weights


def timm_config(task: Any) -> dict[str, Any]:
    """Returns the content of timm's config.json."""
    mean, std = colours(task)
    names = {} if task.class_names is None else {"label_names": task.class_names}
    return {
        "architecture": ARCHITECTURE,
        "num_classes": task.network.num_classes,
        "model_args": {"act_layer": "relu"},  # timm's default is ReLU6
        "pretrained_cfg": {
            "input_size": [3, task.image_size, task.image_size],
            "crop_pct": CENTRE,
            "interpolation": "bilinear",
            "mean": mean,
            "std": std,
            "first_conv": "conv_stem",
            "classifier": "classifier",
            "num_classes": task.network.num_classes,
            **names,
        },
    }


def colours(task: Any) -> tuple[list[float], list[float]]:
    """Returns mean and deviation of each colour, where white is 1."""
    std = 1 / (255 * task.augment.scale.double())
    return (-task.augment.shift.double() * std).tolist(), std.tolist()


def not_timm(network: MobileNetV1) -> str | None:
    """Returns why timm's mobilenetv1_100 is another network; None if it is not."""
    if [layer.conv.out_channels for layer in network.layers()][::2] != [STEM, *(width for width, _ in PAIRS)]:
        return f"timm's {ARCHITECTURE} has the published widths, not model.task.network.width_multiplier"
    strides = [layer.conv.stride[0] for layer in network.layers()]
    if strides[0] != 2 or strides[1::2] != [stride for _, stride in PAIRS]:
        return f"timm's {ARCHITECTURE} has the published strides, not model.task.network.strides"
    return None


def exported(task: Any) -> Export:
    """Returns the network of normalised images, with the names of its classes."""
    network = task.network

    def example(batch: int) -> tuple[Inputs, Outputs]:
        images = task.inputs(task.example_batch(batch))
        return {"images": images.contiguous()}, (network(images),)

    def write(folder: Path) -> None:
        save_file(timm_weights(network), folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(timm_config(task), indent=2) + "\n", encoding="utf-8")

    @torch.no_grad()
    def from_timm(folder: Path) -> float:
        model = import_module("timm").create_model(f"local-dir:{folder}", pretrained=True).eval()
        inputs, expected = example(4)
        return difference((model(inputs["images"]),), expected)

    mean, std = colours(task)
    hub = HubFolder("timm", write, from_timm, "timm.create_model('local-dir:FOLDER', pretrained=True)")
    reason = not_timm(network)
    return Export(
        preprocessing={
            "classes": task.class_names,
            "image_size": task.image_size,
            "layout": "batch, colour (red, green, blue), height, width",
            "mean": mean,
            "std": std,
            "centre_crop": CENTRE,
        },
        graph=TensorGraph(network, example, {"images": {0: "batch"}}, ("logits",)),
        hub=hub if reason is None else None,
        refused={} if reason is None else {"hf": reason},
        pipeline="image-classification",
    )
