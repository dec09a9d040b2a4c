"""The small ResNet as a task."""

from src.models.small_resnet import fast
from src.models.small_resnet.cost import cost

from src.measure.roofline import Cost
from src.training.image_classification import ImageClassificationTask


class SmallResNetTask(ImageClassificationTask):
    """Learns the class of an image; see ImageClassificationTask."""

    replacements = fast.REPLACEMENTS

    def cost(self) -> Cost:
        return cost(self.network, self.image_size, self.batch_size, self.activation_bytes)
