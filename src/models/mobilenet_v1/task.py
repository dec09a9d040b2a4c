"""MobileNetV1 as a task: image classification with gluon-cv's augmentation, mixing of images and weight decay."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from src.batches.images import ImageBatch
from src.config.ranges import Count, NotNegative, Number, Share
from src.errors import UserError
from src.gpu.replace import Kernels, Replacements, replace_submodules
from src.measure.roofline import Cost
from src.models.mobilenet_v1 import fast
from src.models.mobilenet_v1.augment import Augment, pasted
from src.models.mobilenet_v1.cost import cost
from src.models.mobilenet_v1.export import exported
from src.models.mobilenet_v1.network import MobileNetV1
from src.training.export import Export
from src.training.image_classification import ImageClassificationTask
from src.training.schedule import Schedule
from src.training.update_kernels import REPLACEMENTS

# The images' kernel goes with those of `body`; the other names are the optimisers'.
IMAGE_REPLACEMENTS: Replacements = {"body": {Augment: f"{fast.__name__}.images:FastAugment"}, **REPLACEMENTS}


class MobileNetV1Task(ImageClassificationTask):
    """Learns the class of an image. An evaluation sets `top1`, `top5` (shares of the images) and `val_loss`.

    Args:
        network, optimizer, schedule, image_size, label_smoothing, class_names, target: see ImageClassificationTask.
        augment: makes the network's input of bytes, with the random changes of training.
        mixup: alpha of the Beta distribution that a batch is mixed with its mirror image by; 0 mixes nothing.
        cutmix: share of the images that get a random rectangle of another one (Yun et al. 2019, one for each image).
        mixup_off_epochs: at the end of the training, without mixing of either kind.
        decay_all: weight decay on biases and BatchNorm too.
        decay_depthwise: weight decay on depthwise convolutions; the paper (Howard et al. 2017, 3.2) trains them with
            little or none, as they have so few weights.
    """

    replacements = fast.REPLACEMENTS
    expected_data = "MobileNetV1 needs images; give datamodule=imagenet, cifar10, image_folder or image_synthetic"
    mixing: Tensor  # 1, or 0 once mixing is over; on the device, because a graph holds the step

    def __init__(
        self,
        network: MobileNetV1,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None = None,
        augment: Augment | None = None,
        mixup: NotNegative = 0.0,
        cutmix: Share = 0.0,
        mixup_off_epochs: Number = 0,
        decay_all: bool = True,
        decay_depthwise: bool = True,
        image_size: Count = 224,
        label_smoothing: Share = 0.0,
        class_names: Sequence[str] | None = None,
        target: Share | None = None,
    ) -> None:
        super().__init__(network, optimizer, schedule, image_size, label_smoothing, class_names, target)
        self.augment = augment or Augment()
        if mixup and cutmix:
            raise UserError("model.task: mixup and cutmix exclude each other; make one of them 0")
        self.mixup, self.cutmix, self.mixup_off_epochs = mixup, cutmix, mixup_off_epochs
        self.decay_all, self.decay_depthwise = decay_all, decay_depthwise
        self.register_buffer("mixing", torch.ones(()), persistent=False)

    def normalise(self, pixels: Tensor) -> Float[Tensor, "batch 3 height width"]:
        return self.augment(pixels)

    def accelerate(self, kernels: Kernels) -> None:
        super().accelerate(kernels)
        replace_submodules(self.augment, IMAGE_REPLACEMENTS, kernels)

    def is_decayed(self, name: str, parameter: torch.nn.Parameter) -> bool:
        if parameter.ndim == 4 and parameter.shape[1] == 1:
            return self.decay_depthwise
        return self.decay_all or parameter.ndim > 1

    def on_train_epoch_start(self) -> None:
        """Ends mixing `mixup_off_epochs` before the last epoch."""
        last = self.trainer.max_epochs or -1
        self.mixing.fill_(float(last < 0 or self.current_epoch < last - self.mixup_off_epochs))

    def loss(self, batch: ImageBatch) -> dict[str, Tensor]:
        if not (self.mixup or self.cutmix):
            return super().loss(batch)
        images, labels = self.inputs(batch), batch.labels
        if self.mixup:
            share = self._share_of_own(images)
            logits = self.network(torch.lerp(images.flip(0), images, share))
        else:
            images, share = pasted(images, self.cutmix * self.mixing)
            logits = self.network(images)
        own, other = self.entropy(logits, labels), self.entropy(logits, labels.flip(0))
        return {"loss": torch.lerp(other, own, share.to(own.dtype)).mean()}

    def _share_of_own(self, images: Tensor) -> Float[Tensor, ""]:
        """Returns the weight of the image itself in the mixture: one number for the whole batch, as in gluon-cv."""
        alpha = torch.full((), self.mixup, dtype=torch.float64, device=images.device)
        drawn = torch.distributions.Beta(alpha, alpha, validate_args=False).sample()  # validating waits for the device
        return (1 - self.mixing * (1 - drawn)).to(images.dtype)

    def exported(self) -> Export:
        return exported(self)

    def cost(self) -> Cost:
        return cost(self.network, self.image_size, self.batch_size, self.activation_bytes, self.updates)
