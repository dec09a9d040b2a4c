"""Synthetic clicks of a known distribution: Criteo's shape, ids by Zipf's law, labels from a teacher.

The distribution, with independent u uniform in [0, 1):

- id = floor((cardinality + 1)^u) - 1, so that P(id = k) = log((k + 2) / (k + 1)) / log(cardinality + 1): a power law
  with exponent 1, id 0 the most frequent;
- numerical = ln(count + 3) of a count by the same law up to 9,999; one in 16 is missing, that is 0, as in Criteo's;
- effect of an id = a hash of table and id, uniform in [-sqrt(3), sqrt(3)], divided by 1 + id / 256: ids too rare to be
  learnt have little effect;
- logit = -2.5 + 1/4 sum over ids (effect / sqrt(hotness)) + 1/4 sum over tables 0 and 1, 2 and 3, ... (product of the
  effects of their first ids) + 0.055 sum over numericals (numerical - 4, with alternating sign);
- label = 1 with probability sigmoid(logit).

A dot interaction can learn the products, a linear model cannot. No table is stored: the effects are computed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Float16, Int32, UInt8
from torch import Tensor

from src.batches.clicks import ClickLayout, EmbeddingTable
from src.config.ranges import Range
from src.errors import UserError

Rows = Annotated[int, Range(1, 2**31 - 2)]  # of a table

# Criteo Terabyte with frequency limit 15 (NVIDIA DeepLearningExamples, DLRM).
PUBLISHED = (7912889, 33823, 17139, 7339, 20046, 4, 7105, 1382, 63, 5554114, 582469, 245828, 11, 2209, 10667, 104, 4,
             968, 15, 8165896, 2675940, 7156453, 302516, 12022, 97, 35)  # fmt: skip

BIAS, ID_WEIGHT, PAIR_WEIGHT, NUMERICAL_WEIGHT = -2.5, 0.25, 0.25, 0.055
KNOWN_IDS = 256  # ids far above it have little effect
MAX_COUNT, MEAN_NUMERICAL, MISSING_OF = 9_999, 4.0, 16
# Multipliers of a 32-bit integer hash (lowbias32 of Chris Wellons' hash-prospector), the second one as a signed number.
GOLDEN, FIRST, SECOND = 0x9E3779B1, 0x7FEB352D, 0x846CA68B - (1 << 32)


class Sample(NamedTuple):
    """Rows of synthetic clicks. `ids` has one line for each id of a row, table by table."""

    labels: UInt8[Tensor, " rows"]
    numerical: Float16[Tensor, "rows numerical"]
    ids: Int32[Tensor, "slots rows"]
    logits: Float[Tensor, " rows"]  # of the teacher: logits of the true probabilities


def tables_of(
    cardinalities: Sequence[int] | None = None, hotness: Sequence[int] | None = None, max_rows: int | None = None
) -> tuple[EmbeddingTable, ...]:
    """Returns the tables: the published cardinalities with one id each if not given, none larger than `max_rows`.

    Raises UserError for invalid sizes.
    """
    sizes = PUBLISHED if cardinalities is None else tuple(cardinalities)
    hot = [1] * len(sizes) if hotness is None else list(hotness)
    if len(hot) != len(sizes) or not sizes:
        raise UserError(f"hotness has {len(hot)} numbers for {len(sizes)} cardinalities: give one for each table")
    limit = max(sizes) if max_rows is None else max_rows
    if min(*sizes, *hot, limit) < 1 or max(sizes) >= 2**31 - 1:
        raise UserError("cardinalities, hotness and max_rows are counts: give 1 or more, and less than 2147483647")
    return tuple(
        EmbeddingTable(f"cat_{i}.bin", min(rows, limit), hot)
        for i, (rows, hot) in enumerate(zip(sizes, hot, strict=True))
    )


@dataclass(frozen=True)
class ClickDistribution:
    """The distribution in the module's docstring for these tables; `seed` determines effects and samples."""

    layout: ClickLayout
    seed: int = 0

    @cached_property
    def slots(self) -> list[int]:
        """The table of each id of a row."""
        return [i for i, table in enumerate(self.layout.tables) for _ in range(table.hotness)]

    def sample(self, rows: int, number: int, *, test: bool = False, device: torch.device | str = "cpu") -> Sample:
        """Draws rows; they depend on the seed, `number`, `test` and the device alone."""
        slots, width = len(self.slots), self.layout.num_numerical
        # The CPU's generator uses 32 bits of the seed; different numbers give different seeds.
        seed = (self.seed * GOLDEN + 2 * number + test) % (1 << 32)
        generator = torch.Generator(device).manual_seed(seed)
        bits = torch.empty((slots + width + 1, rows), dtype=torch.int32, device=device).random_(generator=generator)
        ids = self._ids(bits[:slots])
        numerical = _numerical(bits[slots:-1])
        logits = self.logits(ids, numerical)
        labels = bits[-1] * 2.0**-31 < logits.sigmoid()
        return Sample(labels.to(torch.uint8), numerical, ids, logits)

    def logits(
        self, ids: Int32[Tensor, "slots rows"], numerical: Float16[Tensor, "rows numerical"]
    ) -> Float[Tensor, " rows"]:
        """Returns the teacher's logits, float32."""
        effects, tables = self.effects(ids), self.layout.tables
        weights = effects.new_tensor([ID_WEIGHT / math.sqrt(tables[i].hotness) for i in self.slots])
        signs = effects.new_tensor([NUMERICAL_WEIGHT * (-1) ** i for i in range(numerical.shape[1])])
        first = effects[[self.slots.index(i) for i in range(len(tables))]]
        pairs = first[0 : len(tables) // 2 * 2 : 2] * first[1::2]
        # Sums rather than matrix products, which TF32 and autocast would round.
        of_ids = (effects * weights[:, None]).sum(0)
        return BIAS + of_ids + PAIR_WEIGHT * pairs.sum(0) + ((numerical.float() - MEAN_NUMERICAL) * signs).sum(1)

    def effects(self, ids: Int32[Tensor, "slots rows"]) -> Float[Tensor, "slots rows"]:
        """Returns the effect of each id: an integer hash of its table and itself, scaled."""
        keys = [_signed((self.seed * 64 + table + 1) * GOLDEN) for table in self.slots]
        bits = ids + torch.tensor(keys, dtype=torch.int32, device=ids.device)[:, None]
        for factor, shift in ((FIRST, 15), (SECOND, 16)):
            bits = bits.mul_(factor)
            bits ^= (bits >> shift) & ((1 << 32 - shift) - 1)  # a logical shift
        return bits.float().mul_(math.sqrt(3) * 2.0**-31).div_(ids.float().div_(KNOWN_IDS).add_(1))

    def _ids(self, bits: Int32[Tensor, "slots rows"]) -> Int32[Tensor, "slots rows"]:
        rows = torch.tensor([self.layout.tables[i].cardinality for i in self.slots], device=bits.device)[:, None]
        # Double precision: single precision would skip most of the rare ids of a large table.
        powers = bits.double().mul_(2.0**-31 * (rows + 1).double().log()).exp_()
        return powers.to(torch.int32).sub_(1).minimum((rows - 1).to(torch.int32))

    def table_major(self, ids: Int32[Tensor, "slots rows"]) -> Int32[Tensor, " ids"]:
        """Returns the ids in the order of `src.batches.clicks.Clicks`."""
        parts = ids.split([table.hotness for table in self.layout.tables])
        return torch.cat([part.T.reshape(-1) for part in parts])


def _numerical(bits: Int32[Tensor, "numerical rows"]) -> Float16[Tensor, "rows numerical"]:
    counts = bits.float().mul_(2.0**-31 * math.log(MAX_COUNT + 1)).exp_().floor_().sub_(1).clamp_(0, MAX_COUNT)
    values = counts.add_(3).log_().masked_fill_(bits & (MISSING_OF - 1) == 0, 0.0)
    return values.to(torch.float16).T.contiguous()


def _signed(number: int) -> int:
    """Returns the last 32 bits as a signed number."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


class BayesMetrics:
    """Expected metrics of the true probabilities as scores, over all added rows, in bounded memory.

    E[AUC] = sum over pairs of rows of p_i (1 - p_j) [p_i > p_j] / sum over pairs of p_i (1 - p_j), ties counted half:
    the pairs are weighted by the probability of a click and of no click. No scores have a higher expected AUC (Bayes).
    Logits are binned into 2^20 bins, which adds an error below 1e-5.
    """

    bins, reach = 1 << 20, 16.0

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.clicked = torch.zeros(self.bins, dtype=torch.float64, device=device)
        self.passed = torch.zeros_like(self.clicked)
        self.entropy = torch.zeros((), dtype=torch.float64, device=device)

    def add(self, logits: Float[Tensor, " rows"]) -> None:
        logits = logits.double()
        bins = ((logits + self.reach) * (self.bins / (2 * self.reach))).long().clamp_(0, self.bins - 1)
        self.clicked.index_add_(0, bins, logits.sigmoid())
        self.passed.index_add_(0, bins, (-logits).sigmoid())
        self.entropy += torch.nn.functional.binary_cross_entropy_with_logits(logits, logits.sigmoid(), reduction="sum")

    def compute(self) -> dict[str, float]:
        """Returns expected `bayes_auc`, `bayes_log_loss` (nats a row) and `click_rate` over random labels."""
        clicked, passed = self.clicked.sum(), self.passed.sum()
        below = self.passed.cpu().cumsum(0).to(self.passed.device) - self.passed  # a GPU's order is not fixed
        auc = (self.clicked * (below + self.passed / 2)).sum() / (clicked * passed)
        rows = clicked + passed
        metrics = {"bayes_auc": auc, "bayes_log_loss": self.entropy / rows, "click_rate": clicked / rows}
        return {name: round(float(value), 6) for name, value in metrics.items()}
