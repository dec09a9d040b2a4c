"""Small random models of Hugging Face, and random sentences for them."""

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from transformers.models.bert.configuration_bert import BertConfig
from transformers.models.bert.modeling_bert import BertModel
from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

from src.batches.tokens import PackedTokens, PaddedTokens
from src.models.distilbert import Sizes
from src.models.distilbert.layout import token_mask

SIZES = Sizes(vocab_size=40, max_position_embeddings=20, dim=24, n_layers=3, n_heads=3, hidden_dim=40)


def randomise(model: nn.Module, seed: int) -> None:
    """Sets random weights so large that every part of the model affects the output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * (0.5 if weight.dim() > 1 else 0.3))
            if name.endswith("orm.weight"):
                weight.add_(1)


def distilbert(seed: int = 0) -> DistilBertForSequenceClassification:
    """Returns Hugging Face's DistilBERT with SIZES, in evaluation mode."""
    sizes = {name: value for name, value in vars(SIZES).items() if name != "num_labels"}
    model = DistilBertForSequenceClassification(DistilBertConfig(**sizes))
    randomise(model, seed)
    return model.eval()


def bert(seed: int = 0) -> BertModel:
    """Returns a BERT with SIZES, in evaluation mode."""
    model = BertModel(
        BertConfig(
            vocab_size=SIZES.vocab_size,
            max_position_embeddings=SIZES.max_position_embeddings,
            hidden_size=SIZES.dim,
            num_hidden_layers=SIZES.n_layers,
            num_attention_heads=SIZES.n_heads,
            intermediate_size=SIZES.hidden_dim,
        )
    )
    randomise(model, seed)
    return model.eval()


def random_sentences(lengths: list[int], length: int, seed: int = 0) -> PaddedTokens:
    """Returns random sentences of these lengths, padded to `length`, with labels."""
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.tensor(lengths, dtype=torch.int32)
    ids = torch.randint(1, SIZES.vocab_size, (len(lengths), length), generator=generator, dtype=torch.int32)
    ids[~token_mask(sizes, length)] = 0
    return PaddedTokens(ids, sizes, torch.randint(2, (len(lengths),), generator=generator))


def packed(batch: PaddedTokens, padding: int, longest: int) -> PackedTokens:
    """Returns the sentences packed, with `padding` more tokens at the end."""
    is_token = token_mask(batch.lengths, batch.ids.shape[1])
    positions = torch.arange(batch.ids.shape[1], dtype=torch.int32).expand_as(batch.ids)[is_token]
    end = torch.zeros(padding, dtype=torch.int32)
    starts = torch.cat([torch.zeros(1), batch.lengths.cumsum(0)]).int()
    return PackedTokens(
        torch.cat([batch.ids[is_token], end]), torch.cat([positions, end]), starts, batch.labels, longest
    )


def mask_of(batch: PaddedTokens) -> Int64[Tensor, "sentences length"]:
    """Returns Hugging Face's attention mask."""
    return token_mask(batch.lengths, batch.ids.shape[1]).long()
