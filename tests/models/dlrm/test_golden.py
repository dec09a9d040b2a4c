"""A tiny DLRM against a literal implementation with torch's layers, in float64, over three steps."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.batches.clicks import Clicks
from src.models.dlrm.network import DLRM, Interaction
from tests.support.random_clicks import TABLES, random_clicks

DIM, BATCH, NUMERICAL, LAYERS = 4, 12, 3, 2


class Literal(nn.Module):
    """A literal DLRM with the weights of a DLRM's state_dict."""

    def __init__(self, kind: str, state: dict[str, Tensor]) -> None:
        super().__init__()
        self.kind, self.keys = kind, {name: name.replace(".", "_") for name in state}
        self.tables = nn.ModuleList(
            nn.Embedding.from_pretrained(state[f"embeddings.weights.{i}"].clone(), freeze=False)
            for i in range(len(TABLES))
        )
        self.rest = nn.ParameterDict(
            {self.keys[name]: nn.Parameter(value.clone()) for name, value in state.items() if "embeddings" not in name}
        )

    def linear(self, name: str, x: Tensor) -> Tensor:
        product = x @ self.rest[f"{name}_weight"].T
        return product + self.rest[f"{name}_bias"] if f"{name}_bias" in self.rest else product

    def forward(self, clicks: Clicks) -> Tensor:
        x = clicks.numerical.double()
        for i in range(2):
            x = self.linear(f"bottom_layers_{i}", x).clamp(min=0)
        vectors, begin = [x], 0
        for table, embedding in zip(TABLES, self.tables, strict=True):
            end = begin + BATCH * table.hotness
            rows = clicks.ids[begin:end].tolist()
            bags = [rows[i : i + table.hotness] for i in range(0, len(rows), table.hotness)]
            vectors.append(torch.stack([sum(embedding(torch.tensor(i)) for i in bag) for bag in bags]))  # type: ignore
            begin = end
        if self.kind == "dot":
            pairs = [(vectors[i] * vectors[j]).sum(1, keepdim=True) for i in range(len(vectors)) for j in range(i)]
            x = torch.cat([x, *pairs], 1)
            x = torch.cat([x, torch.zeros(BATCH, 16 - x.shape[1])], 1)  # 4 + 6 numbers
        else:
            x = x0 = torch.cat(vectors, 1)
            for i in range(LAYERS if self.kind == "dcnv2" else 0):
                x = x0 * self.linear(f"interaction_up_{i}", self.linear(f"interaction_down_{i}", x)) + x
        for i in range(2):
            x = self.linear(f"top_layers_{i}", x).clamp(min=0)
        return self.linear("top_layers_2", x)[:, 0]


@pytest.mark.parametrize("kind", ["dot", "cat", "dcnv2"])
def test_three_steps_equal_those_of_the_literal_network(kind: Interaction) -> None:
    torch.manual_seed(0)
    network = DLRM(
        TABLES, NUMERICAL, DIM, bottom=(5, DIM), top=(7, 6), interaction=kind, cross_layers=LAYERS, cross_rank=3
    ).double()
    literal = Literal(kind, network.state_dict())
    ours, theirs = (torch.optim.SGD(p, lr=0.5) for p in (network.dense_parameters(), literal.parameters()))
    for seed in range(3):
        clicks = random_clicks(TABLES, BATCH, NUMERICAL, seed)
        results: list[Any] = []
        for model, optimizer in ((network, ours), (literal, theirs)):
            optimizer.zero_grad()
            logits = model(clicks)
            F.binary_cross_entropy_with_logits(logits, clicks.labels.double()).backward()
            results.append(logits)
        torch.testing.assert_close(results[0], results[1], rtol=1e-12, atol=1e-12)
        for name, parameter in network.named_parameters():
            if "embeddings" not in name:
                torch.testing.assert_close(
                    parameter.grad, literal.rest[literal.keys[name]].grad, rtol=1e-10, atol=1e-13
                )
        before = [weight.detach().clone() for weight in network.embeddings.parameters()]
        network.embeddings.update(torch.tensor(1.0, dtype=torch.float64))
        for old, weight, table in zip(before, network.embeddings.parameters(), literal.tables, strict=True):
            torch.testing.assert_close(old - weight, table.weight.grad, rtol=1e-10, atol=1e-13)
            with torch.no_grad():
                weight.copy_(old - 0.5 * (old - weight))
        ours.step()
        theirs.step()
