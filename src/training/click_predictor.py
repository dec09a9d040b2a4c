"""Probabilities of clicks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from src.batches.clicks import ClickLayout, Clicks
from src.datamodules.clicks.own import ClickFileDataModule, features_of, ids_and_numbers
from src.datamodules.clicks.own_rows import ClickColumns, read_clicks
from src.errors import UserError
from src.training.predictor import Inference, Predictor

Rows = str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Clicks


class ClickPredictor(Predictor[Rows, np.ndarray]):
    """Called with rows it returns the probability of a click of each.

    Rows are a table's path, or dicts of a value by column, where the network was trained with a table's columns; for
    any network they are `Clicks`, whose ids are those of the training.
    """

    def __init__(self, network: nn.Module, layout: ClickLayout, device: torch.device, inference: Inference) -> None:
        super().__init__(device, inference)
        self.network, self.layout = network, layout

    def predicted(self, inputs: Rows) -> Float[np.ndarray, " rows"]:
        clicks = inputs if isinstance(inputs, Clicks) else self.clicks(inputs)
        parts = [np.zeros(0, np.float32)]
        widths = [table.hotness for table in self.layout.tables]
        tables = clicks.ids.split([len(clicks.labels) * width for width in widths])
        for begin in range(0, len(clicks.labels), self.inference.batch_size):
            rows = slice(begin, begin + self.inference.batch_size)
            ids = [table.view(-1, width)[rows].flatten() for table, width in zip(tables, widths, strict=True)]
            batch = Clicks(clicks.labels[rows], clicks.numerical[rows], torch.cat(ids))
            parts.append(self.probabilities(Clicks(*(part.to(self.device) for part in batch))).cpu().numpy())
        return np.concatenate(parts)

    def probabilities(self, clicks: Clicks) -> Float[Tensor, " rows"]:
        return self.network(clicks).sigmoid().float()

    def clicks(self, inputs: Any) -> Clicks:
        """Returns rows as the network takes them. Raises UserError naming row and column of a wrong value."""
        datamodule = self.inference.datamodule()
        if not isinstance(datamodule, ClickFileDataModule):
            raise UserError("the checkpoint was trained with prepared ids, not with columns of a table: give Clicks")
        if isinstance(inputs, str | Path):
            return encoded(datamodule.source, Path(inputs))
        rows = [inputs] if isinstance(inputs, Mapping) else list(inputs)
        with TemporaryDirectory() as folder:
            path = Path(folder) / "rows.jsonl"
            path.write_text("".join(f"{json.dumps(dict(row))}\n" for row in rows), encoding="utf-8")
            try:
                return encoded(datamodule.source, path)
            except UserError as error:
                raise UserError(str(error).replace(str(path), "the rows")) from None


def encoded(source: ClickColumns, path: Path) -> Clicks:
    """Returns the rows of a table, all to be predicted."""
    source = replace(source, file=str(path), held_out_share=1, split="random", split_column=None)
    rows, _ = read_clicks(source)
    ids, numbers, _ = ids_and_numbers(source, rows)
    dtype = torch.float32 if features_of(source).number_dtype == "float32" else torch.float16
    labels = torch.zeros(len(numbers))
    return Clicks(labels, torch.from_numpy(numbers).to(dtype), torch.from_numpy(ids.T.copy()).int().flatten())
