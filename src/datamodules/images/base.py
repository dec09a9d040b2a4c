"""What all image data share: a training split and one to evaluate on, as batches (`src.batches.images.ImageBatch`)."""

from abc import abstractmethod
from collections.abc import Sequence

from src.batches.images import ImageBatch
from src.datamodules.base import DataModule, Metered
from src.datamodules.resident import OrderedLoader
from src.errors import UserError


class ImageDataModule(DataModule):
    """Images with one evaluation set, the split `val`, as ImageNet is judged.

    After `setup`: `class_names` by label (None where nobody has labelled the images), `splits` (how many images each
    of them has).

    Args:
        name: as records call the data set.
        batch_size: images of each rank and step.
        seed: of the order of the training images and of their crops.
        num_classes: classes that the data must have.
        image_size: height and width of the images in a batch.
        test_batch_size: images of each rank in a batch of an evaluation; as in training if not given.
        predict: the split that `predict_dataloader` goes over.
    """

    def __init__(
        self,
        name: str,
        batch_size: int,
        seed: int,
        num_classes: int,
        image_size: int,
        test_batch_size: int | None = None,
        predict: str = "val",
    ) -> None:
        super().__init__(name)
        self.batch_size, self.seed, self.predict = batch_size, seed, predict
        self.num_classes, self.image_size = num_classes, image_size
        self.test_batch_size = batch_size if test_batch_size is None else test_batch_size
        if min(self.test_batch_size, image_size) < 1:
            raise UserError(
                f"datamodule.test_batch_size={self.test_batch_size} and image_size={image_size}: give 1 or more of each"
            )
        self.class_names: Sequence[str] | None = None
        self.splits: dict[str, int] = {}

    @abstractmethod
    def loader(self, split: str, *, train: bool = False, batch_size: int | None = None) -> OrderedLoader[ImageBatch]:
        """Batches of a split for this rank; `train` shuffles and leaves an incomplete one at the end out."""

    def train_dataloader(self) -> Metered:
        return self.metered(self.loader("train", train=True, batch_size=self.batch_size))

    def val_dataloader(self) -> OrderedLoader[ImageBatch]:
        return self.loader("val")

    def test_dataloader(self) -> OrderedLoader[ImageBatch]:
        return self.loader("val")

    def predict_dataloader(self) -> OrderedLoader[ImageBatch]:
        return self.loader(self.predict)

    def file_names(self, split: str) -> Sequence[str] | None:
        """What the images of a split are called, in order; None where they have no names."""
        return None

    def check_classes(self, names: Sequence[str], where: object) -> None:
        """Raises UserError unless there are `num_classes`."""
        if len(names) != self.num_classes:
            raise UserError(
                f"{where} has {len(names)} classes, {self.num_classes} are expected: give "
                f"datamodule.num_classes={len(names)}"
            )

    def _check_split(self, split: str) -> None:
        if split not in self.splits:
            raise UserError(f"datamodule.predict={split}: there is no such split; choose from {', '.join(self.splits)}")
