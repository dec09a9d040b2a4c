"""MoFlow's task: the contract of a Task, ActNorm initialisation and evaluation."""

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

from src.errors import UserError
from src.models.moflow.actnorm import ActNorm
from src.models.moflow.network import MoFlow
from src.models.moflow.task import MoFlowTask
from src.report.record import read_record
from src.run import fit
from src.run import train as run
from src.training.task import Task
from tests.support import warm
from tests.support.started import LIMIT_S
from tests.support.task_contract import TaskContract
from tests.support.tiny_run import tiny_config, tiny_overrides

PUBLISHED = {"validity", "uniqueness", "novelty", "abs_uniqueness", "abs_novelty", "nuv"}


class TestMoFlow(TaskContract):
    plain = ("execution.kernels=off",)
    fast = ("execution.kernels=auto",)

    def config(self, home: Path, *overrides: str) -> DictConfig:
        return tiny_config(home, *overrides)

    def wasted_flops(self, task: Task) -> tuple[float, float]:
        """Returns what is redundant: a 3x3 convolution of a 2x2 map computes 36 products, of which 16 lie inside."""
        network = task.network
        assert isinstance(network, MoFlow)
        widths = [800, 8, 8, 1600]  # half of the channels in; scale and shift of the other half out
        waste = 2 * len(network.bond_flow.steps) * (36 - 16) * sum(map(math.prod, pairwise(widths)))
        return waste, 3 * waste  # backward is every product twice

    def test_only_the_first_batch_initialises_actnorm(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: list[ActNorm] = []
        start = ActNorm.start_from
        monkeypatch.setattr(ActNorm, "start_from", lambda norm, *args: (seen.append(norm), start(norm, *args))[1])
        job = self.job(home, "actnorm")
        fit(job)
        norms = [module for module in job.task.modules() if isinstance(module, ActNorm)]
        assert len(seen) == len(set(map(id, seen))) == len(norms) == 2 + 3
        assert all(norm.initialized and norm.loc.any() for norm in norms)
        seen.clear()
        last = home / "actnorm" / "checkpoints" / "last.ckpt"
        fit(self.job(home, "actnorm_resumed", "fit.max_epochs=2", f"ckpt_path={last}"))
        assert not seen

    @pytest.mark.slow
    def test_evaluations_generate_the_configured_number_of_molecules(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With training molecules as the generated ones: all valid, none novel, and one of eight twice."""
        sizes: list[int] = []

        def generate(task: MoFlowTask, size: int) -> tuple[np.ndarray, np.ndarray]:
            sizes.append(size)
            data = task.trainer.datamodule.data  # type: ignore[attr-defined]
            rows = np.sort(data.train_index[np.arange(size) % 7])
            return np.array(data.nodes[rows]), np.array(data.edges[rows])

        monkeypatch.setattr(MoFlowTask, "generate", generate)
        overrides = f"output_dir={home / 'judged'}", "model.task.eval_batch=8", "model.task.distances=true"
        record = run(tiny_config(home, *overrides))
        assert sizes == [8, 16, 8]  # one evaluation, then 24 molecules, 16 at once
        evaluation, final = (row for row in record.history if "validity" in row)
        assert PUBLISHED | {"val_bits_atom", "val_bits_bond"} <= set(evaluation) and "reconstruction" not in evaluation
        assert evaluation["validity"] == 100 and evaluation["uniqueness"] == pytest.approx(100 * 7 / 8)
        assert evaluation["canonical_novelty"] == final["canonical_nuv"] == 0
        assert final["uniqueness"] == pytest.approx(100 * (7 + 7) / 24)
        assert final["reconstruction"] == 100
        assert min(final[name] for name in ("fcd", "nspdk", "floor_fcd", "floor_nspdk")) > 0 and "fcd" not in evaluation
        assert record.final_metric is not None and record.final_metric.value == final["nuv"]
        for name in ("molecules", "properties"):
            assert (home / "judged" / f"{name}.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.slow
    def test_the_temperature_with_the_most_new_distinct_molecules_is_taken(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Held-out molecules as the generated ones: one, over and over, at 0.2; half of them distinct at the pair."""
        drawn: list[tuple[object, int]] = []

        def generate(task: MoFlowTask, size: int) -> tuple[np.ndarray, np.ndarray]:
            drawn.append((task.temperature, size))
            data = task.trainer.datamodule.data  # type: ignore[attr-defined]
            distinct = {0.3: 3, (0.4, 0.2): 4}.get(task.temperature, 1)  # type: ignore[arg-type]
            rows = np.sort(data.valid_index[np.arange(size) % distinct])
            return np.array(data.nodes[rows]), np.array(data.edges[rows])

        monkeypatch.setattr(MoFlowTask, "generate", generate)
        overrides = "model.task.eval_batch=8", "model.task.temperatures=[0.2,[0.4,0.2],0.3]"
        record = run(tiny_config(home, f"output_dir={home / 'chosen'}", *overrides))
        pair = (0.4, 0.2)
        assert drawn == [(0.3, 8), (0.2, 8), (pair, 8), (0.3, 8), (pair, 16), (pair, 8)]
        evaluation, final = (row for row in record.history if "validity" in row)
        assert (final["temperature"], final["bond_temperature"]) == pair and "temperature" not in evaluation

    @pytest.mark.slow
    def test_without_valid_molecules_there_is_no_picture(
        self, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        nothing = np.zeros((16, 38), np.uint8), np.zeros((16, 38, 38), np.uint8)
        monkeypatch.setattr(MoFlowTask, "generate", lambda task, size: tuple(array[:size] for array in nothing))
        record = run(
            tiny_config(home, f"output_dir={home / 'nothing'}", "fit.max_steps=1", "model.task.distances=true")
        )
        assert "fcd" not in record.history[-1]
        assert record.status == "done" and record.final_metric is not None and record.final_metric.value == 0
        assert not {"molecules.png", "properties.png"} & {path.name for path in (home / "nothing").iterdir()}
        assert "no valid molecule was generated" in capsys.readouterr().out

    def test_only_published_weights_go_on_with_the_other_log_determinant(self, home: Path) -> None:
        """Exact training leaves statistics out that the published log-determinant reads."""
        one_step = "fit.max_steps=1", "fit.eval_every_n_epochs=null"
        key = "model.task.network.logdet="
        for trained in ("exact", "published"):
            fit(self.job(home, f"trained_{trained}", f"{key}{trained}", *one_step))
        exact, published = (home / f"trained_{kind}" / "checkpoints" / "last.ckpt" for kind in ("exact", "published"))
        longer = "fit.max_steps=2", "fit.eval_every_n_epochs=null", "accept_changes=true"
        fit(self.job(home, "to_exact", f"{key}exact", f"ckpt_path={published}", *longer))
        with pytest.raises(UserError, match=f"was trained with {key}exact.*; give {key}exact, or start anew"):
            fit(self.job(home, "to_published", f"{key}published", f"ckpt_path={exact}", *longer))

    def test_held_out_bits_weigh_every_molecule_equally(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def likelihood(network: MoFlow, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
            assert not network.training
            return torch.tensor(float(len(nodes))), torch.tensor(2.0 * len(nodes))

        monkeypatch.setattr(MoFlow, "likelihood", likelihood)
        job = self.job(home, "held_out", "datamodule.source.held_out_share=0.15")
        fit(job)  # 12 molecules are held out: a batch of 8 and one of 4
        bits = {name: job.task.metrics[f"val_bits_{name}"] for name in ("atom", "bond")}
        assert bits == pytest.approx({"atom": (8 * 8 + 4 * 4) / 12, "bond": 2 * (8 * 8 + 4 * 4) / 12})

    @pytest.mark.slow
    def test_a_rank_without_a_held_out_molecule_takes_part(self, tmp_path: Path) -> None:
        """One molecule is held out; the rank without it generates its share in each evaluation all the same."""
        one = "datamodule.source.held_out_share=0.013", "hp.batch_size=4", f"output_dir={tmp_path / 'run'}"
        done = warm.run("train.py", *tiny_overrides(tmp_path), *one, "trainer=1x2", timeout=LIMIT_S)
        assert done.returncode == 0, done.stderr
        record = read_record(tmp_path / "run")
        evaluations = [row for row in record.history if "validity" in row]
        assert record.status == "done" and len(evaluations) == 2
        assert all(math.isfinite(row[f"val_bits_{part}"]) for row in evaluations for part in ("atom", "bond"))

    def test_a_training_says_where_plu_convolutions_may_diverge(
        self, home: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        small = "model.task.network.conv_lu=1", "model.task.network.bond_squeeze=5"
        for lr, noted in (("1e-3", True), ("1e-5", False)):
            job = self.job(home, f"plu_{lr}", *small, f"hp.lr={lr}", "fit.max_steps=1")
            fit(job)
            assert ("conv_lu=1 of 100 channels may diverge at hp.lr=" in capsys.readouterr().out) == noted

    def test_distances_from_one_held_out_molecule_are_refused_before_training(self, home: Path) -> None:
        job = self.job(home, "one_held_out", "datamodule.source.held_out_share=0.013", "model.task.distances=true")
        with pytest.raises(UserError, match=r"model\.task\.distances=true needs two held-out molecules.*have 1"):
            fit(job)

    def test_nan_held_out_bits_are_refused(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def likelihood(network: MoFlow, nodes: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
            return torch.tensor(float("nan") if len(nodes) == 4 else 1.0), torch.tensor(1.0)

        monkeypatch.setattr(MoFlow, "likelihood", likelihood)
        job = self.job(home, "not_a_number", "datamodule.source.held_out_share=0.15")
        with pytest.raises(UserError, match="the metric val_bits_atom is infinite or NaN"):
            fit(job)
        job.task.teardown("fit")  # as `train` does, because Lightning skips it after an error
        assert job.task.metrics["val_bits_bond"] == 1.0
