"""A classifier of sentences by the mean of their word vectors, the second example of docs/guides/add_a_model.md."""

from jaxtyping import Float
from torch import Tensor, nn

from src.batches.tokens import PAD, PaddedTokens
from src.measure.roofline import ADAM_BYTES, Cost
from src.training.text_classification import TextClassificationTask


class BagOfWords(nn.Module):
    """Maps padded sentences to logits of labels."""

    def __init__(self, vocab_size: int, num_labels: int, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(vocab_size, width, padding_idx=PAD)
        self.classifier = nn.Linear(width, num_labels)

    def forward(self, batch: PaddedTokens) -> Float[Tensor, "sentences labels"]:
        return self.classifier(self.words(batch.ids).sum(1) / batch.lengths[:, None])


class BagOfWordsTask(TextClassificationTask):
    """Learns the label of a sentence; see TextClassificationTask."""

    def cost(self) -> Cost:
        """Counts the product, and reads and writes of the word vectors and of Adam's update of every parameter."""
        flops = 2 * self.network.classifier.weight.numel()
        vectors = 4 * self.work.tokens * self.network.words.embedding_dim
        update = ADAM_BYTES * sum(parameter.numel() for parameter in self.parameters()) / self.batch_size
        return Cost(flops, 3 * flops, vectors, 2 * vectors + update)
