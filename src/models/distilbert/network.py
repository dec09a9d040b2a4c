"""DistilBERT for sentence classification (arXiv:1910.01108), with Hugging Face's names."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.tokens import PaddedTokens, Tokens
from src.config.ranges import ShareBelow1
from src.errors import UserError
from src.models.distilbert.layout import Layout

EPS = 1e-12  # of every layer norm
INIT_STD = 0.02  # of weights; biases are initialised to 0

Hidden = Float[Tensor, "tokens dim"]  # of padded and packed batches; only attention needs the sentences' bounds


@dataclass(frozen=True)
class Sizes:
    """The network's sizes, named as in Hugging Face's config.json; the defaults are distilbert-base-uncased's."""

    vocab_size: int = 30522
    max_position_embeddings: int = 512
    dim: int = 768
    n_layers: int = 6
    n_heads: int = 12
    hidden_dim: int = 3072
    num_labels: int = 2

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 1 or self.dim % self.n_heads:
            raise UserError(f"DistilBERT needs sizes of 1 or more, and a dim that divides by n_heads; got {vars(self)}")


@dataclass(frozen=True)
class Dropout:
    """Dropout probabilities: of hidden states, of attention weights, and before the last layer of the head."""

    hidden: float = 0.1
    attention: float = 0.1
    head: float = 0.2


class Linear(nn.Linear):
    """Initialises itself like Hugging Face's: torch's own initialisation would be drawn first and overwritten."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INIT_STD)
        nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """Likewise, with a vector of zeros for padding."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INIT_STD)
        self._fill_padding_idx_with_zero()


class Embeddings(nn.Module):
    def __init__(self, sizes: Sizes, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.word_embeddings = Embedding(sizes.vocab_size, sizes.dim, padding_idx=0)
        self.position_embeddings = Embedding(sizes.max_position_embeddings, sizes.dim)
        self.LayerNorm = nn.LayerNorm(sizes.dim, EPS)

    def forward(self, batch: Tokens) -> Hidden:
        if isinstance(batch, PaddedTokens):
            positions = torch.arange(batch.ids.shape[1], device=batch.ids.device)
        else:
            positions = batch.positions
        x = self.LayerNorm(self.word_embeddings(batch.ids) + self.position_embeddings(positions))
        return F.dropout(x.flatten(0, -2), self.dropout, self.training)


class Attention(nn.Module):
    """Each token's attention within its sentence: softmax(q k^T / sqrt(head)) v, heads concatenated, and a Linear."""

    def __init__(self, sizes: Sizes, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = sizes.n_heads, dropout
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (Linear(sizes.dim, sizes.dim) for _ in range(4))

    def forward(self, x: Hidden, layout: Layout) -> Hidden:
        inputs = self.q_lin, self.k_lin, self.v_lin
        # One product for all three. Packed tokens are padded, which costs little compared with the products.
        qkv = F.linear(x, torch.cat([layer.weight for layer in inputs]), torch.cat([layer.bias for layer in inputs]))
        query, key, value = layout.to_sentences(qkv).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        is_key = layout.is_token[:, None, None]
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, is_key, dropout)
        return self.out_lin(layout.to_tokens(context.transpose(1, 2).flatten(2)))


class FeedForward(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.lin1 = Linear(sizes.dim, sizes.hidden_dim)
        self.lin2 = Linear(sizes.hidden_dim, sizes.dim)

    def forward(self, x: Hidden) -> Hidden:
        return self.lin2(F.gelu(self.lin1(x)))


class Block(nn.Module):
    def __init__(self, sizes: Sizes, dropout: Dropout) -> None:
        super().__init__()
        self.dropout = dropout.hidden
        self.attention = Attention(sizes, dropout.attention)
        self.sa_layer_norm = nn.LayerNorm(sizes.dim, EPS)
        self.ffn = FeedForward(sizes)
        self.output_layer_norm = nn.LayerNorm(sizes.dim, EPS)

    def forward(self, x: Hidden, layout: Layout, first_only: bool = False) -> Float[Tensor, "rows dim"]:
        """Returns the next hidden states; with `first_only` those of first tokens."""
        x = self.sa_layer_norm(x + self.attention(x, layout))
        x = self.output_layer_norm(x + F.dropout(self.ffn(x), self.dropout, self.training))
        return x.index_select(0, layout.first) if first_only else x


class Transformer(nn.Module):
    def __init__(self, sizes: Sizes, dropout: Dropout) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Block(sizes, dropout) for _ in range(sizes.n_layers))

    def forward(self, x: Hidden, layout: Layout, first_only: bool = False) -> Float[Tensor, "rows dim"]:
        for number, block in enumerate(self.layer, 1):
            x = block(x, layout, first_only and number == len(self.layer))
        return x


class Encoder(nn.Module):
    """Returns the hidden states of all tokens, or with `first_only` of each sentence's first token."""

    def __init__(self, sizes: Sizes, dropout: Dropout) -> None:
        super().__init__()
        self.embeddings = Embeddings(sizes, dropout.hidden)
        self.transformer = Transformer(sizes, dropout)

    def forward(self, batch: Tokens, layout: Layout, first_only: bool = False) -> Float[Tensor, "rows dim"]:
        return self.transformer(self.embeddings(batch), layout, first_only)


class DistilBert(nn.Module):
    """A sentence classifier on the hidden state of the first token, or on the mean of all tokens'.

    Names and shapes of the state_dict are those of Hugging Face's DistilBertForSequenceClassification, 66,955,010
    parameters with the defaults. Weights are initialised from N(0, INIT_STD^2), padding's word vector to 0.

    Args:
        sizes: of the network.
        dropout, attention_dropout, head_dropout: see Dropout.
        pooling: `first` (DistilBERT's), or `mean` for encoders trained with it, such as sentence-transformers'.

    """

    def __init__(
        self,
        sizes: Sizes | None = None,
        dropout: ShareBelow1 = 0.1,
        attention_dropout: ShareBelow1 = 0.1,
        head_dropout: ShareBelow1 = 0.2,
        pooling: Literal["first", "mean"] = "first",
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.sizes = sizes = sizes or Sizes()
        self.dropout = Dropout(dropout, attention_dropout, head_dropout)
        self.distilbert = Encoder(sizes, self.dropout)
        self.pre_classifier = Linear(sizes.dim, sizes.dim)
        self.classifier = Linear(sizes.dim, sizes.num_labels)

    def resize_head(self, num_labels: int) -> None:
        """Replaces the last layer by one of `num_labels` outputs, initialised anew."""
        old = self.classifier.weight
        self.sizes = replace(self.sizes, num_labels=num_labels)
        self.classifier = Linear(self.sizes.dim, num_labels).to(old)

    def order_head(self, order: Sequence[int]) -> None:
        """Puts output `order[i]` at i."""
        with torch.no_grad():
            for parameter in self.classifier.parameters():
                parameter.copy_(parameter[list(order)])

    def forward(self, batch: Tokens) -> Float[Tensor, "sentences labels"]:
        """Returns the logits, in float32 (float64 if the weights are)."""
        layout = Layout.of(batch)
        if self.pooling == "first":
            pooled = self.distilbert(batch, layout, first_only=True)
        else:
            pooled = mean_of_sentences(self.distilbert(batch, layout), layout)
        return self.head(pooled)

    def head(self, pooled: Float[Tensor, "sentences dim"]) -> Float[Tensor, "sentences labels"]:
        """Returns the logits of pooled hidden states, in float32 (float64 if the weights are)."""
        x = F.dropout(F.relu(self.pre_classifier(pooled)), self.dropout.head, self.training)
        logits = self.classifier(x)
        return logits.to(torch.promote_types(logits.dtype, torch.float32))


def mean_of_sentences(x: Float[Tensor, "tokens dim"], layout: Layout) -> Float[Tensor, "sentences dim"]:
    """Returns the mean over each sentence's tokens, summed in float32 at least, without padding."""
    is_token = layout.is_token[: layout.sentences.count, :, None]
    sentences = layout.to_sentences(x)[: layout.sentences.count]
    total = sentences.masked_fill(~is_token, 0).sum(1, dtype=torch.promote_types(x.dtype, torch.float32))
    return (total / is_token.sum(1)).to(x.dtype)
