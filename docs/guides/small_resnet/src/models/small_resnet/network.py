"""The residual network for small images of He et al. 2016 (arXiv 1512.03385), section 4.2."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3 x 3 convolutions with BatchNorm and a shortcut, 1 x 1 where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        is_same = stride == 1 and channels_in == channels_out
        self.shortcut = None if is_same else nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: Float[Tensor, "batch _ height width"]) -> Float[Tensor, "batch channels down across"]:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return self.add(y, x if self.shortcut is None else self.shortcut(x))

    def add(self, y: Tensor, shortcut: Tensor) -> Float[Tensor, "batch channels down across"]:
        return F.relu(y + shortcut)


class SmallResNet(nn.Module):
    """Maps images to logits of classes.

    Args:
        num_classes: logits.
        widths: channels of each stage; every stage but the first halves the image.
        blocks_per_stage: residual blocks of a stage.
    """

    def __init__(self, num_classes: int = 10, widths: Sequence[int] = (16, 32, 64), blocks_per_stage: int = 1) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.stem = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        blocks, channels = [], widths[0]
        for stage, width in enumerate(widths):
            for number in range(blocks_per_stage):
                blocks.append(Block(channels, width, 2 if stage and number == 0 else 1))
                channels = width
        self.blocks = nn.ModuleList(blocks)
        self.classifier = nn.Linear(channels, num_classes)

    def forward(self, images: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch classes"]:
        """Returns the logits of normalised images."""
        x = F.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        return self.classifier(x.mean((2, 3)))
