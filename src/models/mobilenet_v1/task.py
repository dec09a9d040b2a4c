"""MobileNetV1 as a task: the class of an image, judged by how often it is the first guess."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, distributed
from torch.nn import functional as F

from src.batches.images import ImageBatch
from src.datamodules.images.base import ImageDataModule
from src.errors import UserError
from src.measure.clock import Clock
from src.measure.roofline import Cost
from src.models.mobilenet_v1.augment import Augment, pasted
from src.models.mobilenet_v1.cost import cost
from src.models.mobilenet_v1.network import MobileNetV1
from src.models.mobilenet_v1.predict import predict_images
from src.training.schedule import Schedule
from src.training.task import FinalMetric, Prediction, PredictionJob, Task


class MobileNetV1Task(Task):
    """Learns the class of an image. An evaluation sets `top1`, `top5` (shares of the images) and `val_loss`.

    Args:
        network, optimizer, schedule: see Task.
        augment: makes the network's input of bytes, with the random changes of training.
        image_size: height and width of the images.
        label_smoothing: share of the target that is spread over all classes.
        mixup: alpha of the Beta distribution that a batch is mixed with its mirror image by; 0 mixes nothing.
        cutmix: share of the images that get a random rectangle of another one (Yun et al. 2019, one for each image).
        mixup_off_epochs: at the end of the training, without mixing of either kind.
        decay_all: weight decay on biases and BatchNorm too.
        decay_depthwise: weight decay on depthwise convolutions; the paper (Howard et al. 2017, 3.2) trains them with
            little or none, as they have so few weights.
        class_names: where a checkpoint keeps them; training takes them from the datamodule.
        target: top-1 that counts as reached.
    """

    unit = "images"
    curves = ("loss", "top1", "lr")
    data_kind = ImageDataModule
    expected_data = "MobileNetV1 needs images; give datamodule=imagenet, cifar10, image_folder or image_synthetic"
    mixing: Tensor  # 1, or 0 once mixing is over; on the device, because a graph holds the step

    def __init__(
        self,
        network: MobileNetV1,
        optimizer: Callable[..., torch.optim.Optimizer],
        schedule: Schedule | None = None,
        augment: Augment | None = None,
        image_size: int = 224,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        mixup_off_epochs: int = 0,
        decay_all: bool = True,
        decay_depthwise: bool = True,
        class_names: Sequence[str] | None = None,
        target: float | None = None,
    ) -> None:
        super().__init__(network, optimizer, schedule)
        self.network: MobileNetV1
        self.augment = augment or Augment()
        self.image_size = image_size
        if mixup and cutmix:
            raise UserError("model.task: mixup and cutmix exclude each other; make one of them 0")
        self.label_smoothing, self.mixup, self.cutmix = label_smoothing, mixup, cutmix
        self.mixup_off_epochs = mixup_off_epochs
        self.decay_all, self.decay_depthwise = decay_all, decay_depthwise
        self.class_names = None if class_names is None else list(class_names)
        self.final_metric = FinalMetric("top1", "max", target)
        self.register_buffer("mixing", torch.ones(()), persistent=False)
        self._counts: list[Tensor] = []  # of each batch of an evaluation, see `_judged`
        self._validated_at = -1  # the step whose weights `self.metrics` judges

    def bind_data(self, datamodule: Any) -> None:
        """Takes the names of the classes, or checks them. Raises UserError where they are not the network's."""
        datamodule = self.check_datamodule(datamodule)
        datamodule.setup("meet")
        names, classes = datamodule.class_names, self.network.num_classes
        if names is None:  # images without labels
            return
        if len(names) != classes:
            raise UserError(
                f"the data has {len(names)} classes, the network {classes}; give datamodule.num_classes={len(names)}"
            )
        if self.class_names is not None and self.class_names != list(names):
            mine, other = next(pair for pair in zip(self.class_names, names, strict=True) if pair[0] != pair[1])
            raise UserError(
                f"the data has the class {other} where the network has {mine}; use the data it was trained on"
            )
        self.class_names = list(names)
        if self.model_config is not None:
            self.model_config["task"]["class_names"] = self.class_names

    def setup(self, stage: str) -> None:
        self.bind_data(self.trainer.datamodule)  # type: ignore[attr-defined]

    def is_decayed(self, name: str, parameter: torch.nn.Parameter) -> bool:
        if parameter.ndim == 4 and parameter.shape[1] == 1:
            return self.decay_depthwise
        return self.decay_all or parameter.ndim > 1

    def on_train_epoch_start(self) -> None:
        """Mixing ends `mixup_off_epochs` before the last one."""
        last = self.trainer.max_epochs or -1
        self.mixing.fill_(float(last < 0 or self.current_epoch < last - self.mixup_off_epochs))

    def loss(self, batch: ImageBatch) -> dict[str, Tensor]:
        images, labels = self._input(batch), batch.labels
        if not (self.mixup or self.cutmix):
            return {"loss": self._entropy(self.network(images), labels).mean()}
        if self.mixup:
            share = self._share_of_own(images)
            logits = self.network(torch.lerp(images.flip(0), images, share))
        else:
            images, share = pasted(images, self.cutmix * self.mixing)
            logits = self.network(images)
        own, other = self._entropy(logits, labels), self._entropy(logits, labels.flip(0))
        return {"loss": torch.lerp(other, own, share.to(own.dtype)).mean()}

    def logits(self, batch: ImageBatch) -> Float[Tensor, "batch classes"]:
        return self.network(self._input(batch))

    def _input(self, batch: ImageBatch) -> Float[Tensor, "batch 3 height width"]:
        return self.augment(batch.pixels).to(self.network.classifier.weight.dtype)

    def _share_of_own(self, images: Tensor) -> Float[Tensor, ""]:
        """How much of the mixture is the image itself: one number for the whole batch, as in gluon-cv."""
        alpha = torch.full((), self.mixup, dtype=torch.float64, device=images.device)
        drawn = torch.distributions.Beta(alpha, alpha, validate_args=False).sample()  # validating waits for the device
        return (1 - self.mixing * (1 - drawn)).to(images.dtype)

    def _entropy(
        self, logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="none").float()

    def count(self, batch: ImageBatch) -> int:
        return len(batch.labels)

    def cost(self) -> Cost:
        return cost(self.network, self.image_size, self.batch_size, self.activation_bytes)

    def example_batch(self, size: int) -> ImageBatch:
        """Noise, with classes as dice fall."""
        pixels = torch.randint(256, (size, self.image_size, self.image_size, 3), dtype=torch.uint8)
        labels = torch.randint(self.network.num_classes, (size,))
        return ImageBatch(pixels.to(self.device), labels.to(self.device))

    def validation_step(self, batch: ImageBatch, batch_idx: int) -> None:
        self._counts.append(self.in_evaluation(self._judged)(batch).clone())  # a graph writes the next batch's there

    test_step = validation_step

    def _judged(self, batch: ImageBatch) -> Float[Tensor, "4"]:
        """Images whose class is the first guess, among the first five, the sum of their losses, and their number."""
        return judged(self.logits(batch).float(), batch.labels)

    def on_validation_epoch_end(self) -> None:
        total = torch.stack([torch.zeros(4, dtype=torch.float64, device=self.device), *self._counts]).sum(0)
        self._counts = []
        if self.trainer.world_size > 1:
            distributed.all_reduce(total)
        top1, top5, loss, images = total.tolist()
        figures = {"top1": top1, "top5": top5, "val_loss": loss}
        self.metrics = {name: value / images for name, value in figures.items() if images}
        self._validated_at = self.trainer.global_step

    on_test_epoch_end = on_validation_epoch_end

    def evaluate_last(self, datamodule: Any) -> None:
        """The last weights on the one evaluation set; choosing among epochs by it would flatter the result."""
        if self._validated_at != self.trainer.global_step:
            super().evaluate_last(datamodule)
        if self.trainer.is_global_zero:
            print("on the evaluation set: " + "; ".join(f"{name} {value:.4f}" for name, value in self.metrics.items()))

    def predict(self, job: PredictionJob, clock: Clock) -> Prediction:
        """Classes of images; see `src.models.mobilenet_v1.predict`."""
        return predict_images(self, job, clock)


def judged(logits: Float[Tensor, "batch classes"], labels: Int64[Tensor, " batch"]) -> Float[Tensor, "4"]:
    """Float64: images whose class is the first guess, among the first five, the sum of their losses, their number.

    Among equal logits an image's own class comes last: a network that knows nothing is never right.
    """
    own = logits.gather(1, labels[:, None])
    rank = (~(logits < own)).sum(1)  # also not right where a logit is NaN
    loss = F.cross_entropy(logits, labels, reduction="none").double()
    counts = [(rank <= 1).double(), (rank <= 5).double(), loss, torch.ones_like(loss)]
    return torch.stack(counts).sum(1)
