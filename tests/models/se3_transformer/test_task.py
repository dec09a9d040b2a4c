"""The SE(3)-Transformer's task: the contract of a Task, padding, units, evaluations and learning rate."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from torch import Tensor

from src.batches.molecular_graphs import GraphBatch
from src.models.se3_transformer.task import SE3TransformerTask, partly_mirrored
from src.run import fit
from src.run import train as run
from src.training.task import Task
from tests.support.se3_flops import basis_macs, gradient_to_data
from tests.support.task_contract import TaskContract
from tests.support.tiny_se3 import tiny_se3


class TestSE3Transformer(TaskContract):
    plain = ("execution.kernels=off",)
    fast = ("execution.kernels=auto",)
    ragged = True

    def config(self, home: Path, *overrides: str) -> DictConfig:
        return tiny_se3(home, *overrides)

    def wasted_flops(self, task: Task) -> tuple[float, float]:
        """Returns the operations of the basis, once per forward without gradient, and of a gradient to data."""
        assert isinstance(task, SE3TransformerTask)
        waste = 2.0 * basis_macs(edges=36, max_degree=1)
        return waste, waste + gradient_to_data(task.network, nodes=18)

    def test_padding_changes_neither_loss_nor_gradients(self, home: Path) -> None:
        task = self.task(home)
        assert isinstance(task, SE3TransformerTask)
        batch = task.example_batch(3)
        alone = gradients(task, batch)
        padded = gradients(task, with_padding(batch, nodes=5, edges=7, graphs=2))
        torch.testing.assert_close(padded, alone, rtol=1e-5, atol=1e-6)
        assert task.count(with_padding(batch, nodes=5, edges=7, graphs=2)) == 3

    def test_a_batch_of_only_padding_has_no_loss_and_no_gradient(self, home: Path) -> None:
        task = self.task(home)
        assert isinstance(task, SE3TransformerTask)
        batch = task.example_batch(2)
        loss, grads = gradients(task, batch._replace(targets=torch.full((2,), math.nan)))
        assert grads and loss == 0 and all(not gradient.any() for gradient in grads.values())

    def test_training_with_mirror_sees_mirror_images_and_a_prediction_is_their_mean(self, home: Path) -> None:
        config = self.config(home).model.task
        plain, mirroring = instantiate(config), instantiate(config, mirror=True)
        mirroring.load_state_dict(plain.state_dict())
        batch = plain.example_batch(8)
        torch.manual_seed(1)
        loss = mirroring.loss(batch)["loss"]
        torch.manual_seed(1)
        mirrored = batch._replace(positions=partly_mirrored(batch.positions, batch.graph_ptr))
        assert loss == plain.loss(mirrored)["loss"] != plain.loss(batch)["loss"]
        images = batch, batch._replace(positions=-batch.positions)
        expected = torch.stack([plain.predicted(image) for image in images])
        assert not expected[0].equal(expected[1])
        for image in images:
            torch.testing.assert_close(mirroring.predicted(image), expected.mean(0), rtol=0, atol=1e-12)

    def test_a_checkpoint_contains_mean_deviation_and_unit(self, home: Path) -> None:
        job = self.job(home, "units")
        data: Any = job.datamodule
        opened = data.source
        data.source = lambda folder: replace(opened(folder), units={"energy": "kcal/mol"})
        fit(job)
        task = job.task
        assert isinstance(task, SE3TransformerTask)
        train = data.data.target("energy")[data.splits["train"]]
        assert task.final_metric.name == "energy_mae_kcal_mol"
        saved = torch.load(home / "units" / "checkpoints" / "last.ckpt", weights_only=False)
        again = instantiate(saved["model_config"]["task"])
        again.load_state_dict(saved["state_dict"])
        assert (again.quantity, again.unit_of_quantity) == ("energy", "kcal/mol")
        assert float(again.mean) == pytest.approx(np.mean(train), abs=1e-6)
        assert float(again.std) == pytest.approx(np.std(train, ddof=1), abs=1e-6)
        assert again.final_metric == task.final_metric

    def test_the_published_target_applies_to_its_quantity_only(self, home: Path) -> None:
        config = self.config(home).model.task
        assert instantiate(config).final_metric.target is None
        assert instantiate(config, quantity="homo").final_metric.target == 0.0346

    def test_evaluations_weigh_every_molecule_equally(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """With the mean of the training molecules as every prediction."""
        zeros = lambda task, batch: batch.targets.new_zeros(len(batch.targets))  # noqa: E731
        monkeypatch.setattr(SE3TransformerTask, "normalised", zeros)
        job = self.job(
            home, "judged", "fit.max_epochs=1", "datamodule.source.val_share=0.2", "fit.eval_every_n_epochs=9"
        )
        data: Any = job.datamodule
        monkeypatch.setattr(
            SE3TransformerTask, "loss", lambda task, batch: {"loss": sum(p.sum() for p in task.parameters())}
        )
        fit(job)
        job.task.evaluate_last(data)
        values = data.data.target("energy")
        train, val, test = (values[data.splits[name]] for name in ("train", "val", "test"))
        assert len(val) == 13  # a batch of 8 and one of 5
        expected = {
            "energy_mae": np.abs(val - train.mean()).mean(),
            "test_energy_mae": np.abs(test - train.mean()).mean(),
        }
        assert job.task.metrics == pytest.approx(expected, abs=1e-6)

    @pytest.mark.slow
    def test_a_run_reports_final_and_best_errors(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The last epoch maximises the loss, so that it is not the best one."""
        loss = SE3TransformerTask.loss

        def reversed_loss(task: SE3TransformerTask, batch: GraphBatch) -> dict[str, Tensor]:
            return {"loss": (1 if task.current_epoch < 3 else -1) * loss(task, batch)["loss"]}

        monkeypatch.setattr(SE3TransformerTask, "loss", reversed_loss)
        steady = "fit.max_epochs=4", "model.task.schedule.final_ratio=1"
        record = run(tiny_se3(home, f"output_dir={home / 'reported'}", *steady))
        reported = record.history[-1]
        validated = [
            row["energy_mae"] for row in record.history if "energy_mae" in row and "test_energy_mae" not in row
        ]
        assert len(validated) == 4
        assert reported["energy_mae"] == validated[-1] != min(validated) == reported["best_energy_mae"]
        assert reported["test_energy_mae"] != reported["test_at_best_energy_mae"]
        assert record.final_metric is not None and record.final_metric.value == reported["energy_mae"]
        assert f"test_at_best_energy_mae {reported['test_at_best_energy_mae']:.4g}" in capsys.readouterr().out

    @pytest.mark.slow
    def test_the_final_weights_are_validated_if_the_recipe_does_not(self, home: Path) -> None:
        for name, when in (("three", "3"), ("never", "null")):
            folder = f"output_dir={home / name}"
            record = run(tiny_se3(home, folder, "fit.max_epochs=2", f"fit.eval_every_n_epochs={when}"))
            assert record.history[-1]["energy_mae"] == record.history[-1]["best_energy_mae"] > 0
            assert (home / name / "checkpoints" / "best.ckpt").exists()

    @pytest.mark.slow
    def test_the_learning_rate_falls_along_the_cosine(self, home: Path) -> None:
        record = run(
            tiny_se3(home, f"output_dir={home / 'rates'}", "fit.max_epochs=4", "measure.window=1", "hp.lr=0.02")
        )
        rates = [row["lr"] for row in record.history if "lr" in row]
        expected = [0.002 + 0.018 * (1 + math.cos(math.pi * epoch / 4)) / 2 for epoch in range(4)]
        assert rates == pytest.approx([rate for rate in expected for _ in range(7)])


def gradients(task: SE3TransformerTask, batch: GraphBatch) -> tuple[Tensor, dict[str, Tensor]]:
    """Returns the loss and the gradients of one batch."""
    task.zero_grad()
    loss = task.loss(batch)["loss"]
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in task.named_parameters() if p.grad is not None}


def with_padding(batch: GraphBatch, nodes: int, edges: int, graphs: int) -> GraphBatch:
    """Returns the batch with padding appended, as loaders do."""
    last = len(batch.positions) + nodes - 1
    end = torch.full((edges,), last)

    def append(tensor: Tensor, count: int, value: float = 0.0) -> Tensor:
        return torch.cat([tensor, tensor.new_full((count, *tensor.shape[1:]), value)])

    return GraphBatch(
        positions=append(batch.positions, nodes),
        src=torch.cat([batch.src, end]),
        dst=torch.cat([batch.dst, end]),
        dst_ptr=append(batch.dst_ptr, nodes, len(batch.src)),
        src_order=torch.cat([batch.src_order, len(batch.src) + torch.arange(edges)]),
        src_ptr=append(batch.src_ptr, nodes, len(batch.src)),
        graph_ptr=append(batch.graph_ptr, graphs, len(batch.positions)),
        node_features=append(batch.node_features, nodes),
        edge_features=append(batch.edge_features, edges),
        targets=append(batch.targets, graphs, math.nan),
        count=batch.count,
    )


def test_half_of_the_molecules_are_mirrored_each_as_a_whole() -> None:
    sizes = torch.tensor([3, 0, 5] * 200)
    ptr = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    positions = torch.randn(int(ptr[-1]) + 7, 3)  # and padding
    signs = partly_mirrored(positions, ptr) / positions
    molecules = [signs[start:end] for start, end in ptr.unfold(0, 2, 1).tolist() if end > start]
    assert all((molecule == molecule[0, 0]).all() for molecule in molecules)
    assert 160 < sum(bool(molecule[0, 0] == -1) for molecule in molecules) < 240
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
