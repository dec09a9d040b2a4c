"""The contract of a Task: what every model's test inherits."""

import random
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig, open_dict
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from src.config.complete import complete
from src.measure.clock import Clock
from src.run import Job, build, fit, quieten
from src.training.task import Task
from tests.support.batches import batches_of
from tests.support.same import assert_same_bits, lasting_state

COMPILED = Path(__file__).with_name("compiled_contract.py")


class Crash(Exception):
    """Ends a run in the middle."""


class TaskContract(ABC):
    """Subclass it as `class TestMyModel(TaskContract)` and say how a tiny run is configured.

    plain, fast: overrides that select plain and fast modules, where these differ on a CPU too; else both are empty.
    """

    plain: tuple[str, ...] = ()
    fast: tuple[str, ...] = ()
    sizes_of_data: tuple[str, ...] = ()  # keys of model.task.sizes; without them the network is made anew for the data
    ragged = False  # a batch of samples of many sizes: the loaders' shapes are theirs alone
    learning_steps = 30

    @abstractmethod
    def config(self, home: Path, *overrides: str) -> DictConfig:
        """Returns a run that trains 4 steps an epoch or more and takes about a second, with all its files in `home`."""

    def wasted_flops(self, task: Task) -> tuple[float, float]:
        """FLOPs per sample, (forward, training), of plain modules that `cost()` rightly leaves out."""
        return 0.0, 0.0

    # The runs that the tests look at.

    @pytest.fixture(scope="class")
    def home(self, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """One folder for all runs of a model, in which its data is prepared."""
        home = tmp_path_factory.mktemp("runs")
        self.job(home, "prepare").datamodule.prepare_data()
        return home

    def job(self, home: Path, name: str, *overrides: str) -> Job:
        """Returns a run that is ready to fit; its checkpoints are in `home`/`name`."""
        quieten()
        config = complete(self.config(home, f"output_dir={home / name}", "fit.final_evaluation=false", *overrides))
        return build(config, Clock())

    @pytest.fixture(scope="class")
    def two_epochs(self, home: Path) -> dict[str, Any]:
        """The state after two epochs without a break, and what was counted on the way."""
        job = self.job(home, "straight", "fit.max_epochs=2")
        steps: list[object] = []
        hook = register_optimizer_step_post_hook(lambda *_: steps.append(None))
        fit(job)
        hook.remove()
        state = lasting_state(home / "straight" / "checkpoints" / "last.ckpt")
        return {"state": state, "steps": len(steps), "job": job}

    def task(self, home: Path, *overrides: str) -> Task:
        return self.job(home, "task", *overrides).task

    # Shapes and dtypes.

    def test_example_batch_looks_like_the_loaders(self, home: Path) -> None:
        job = self.job(home, "batch")
        job.datamodule.setup("fit")
        real = next(batches_of(job.datamodule.train_dataloader()))
        example = job.task.example_batch(job.config.hp.batch_size)
        assert job.task.count(example) == job.task.count(real) == job.config.hp.batch_size
        assert [self.looks(leaf) for leaf in tree_leaves(example)] == [self.looks(leaf) for leaf in tree_leaves(real)]

    def looks(self, leaf: Any) -> Any:
        """Returns what must be the same of an example's and of a loader's part of a batch."""
        if not isinstance(leaf, Tensor):
            return type(leaf)
        return leaf.dtype, leaf.shape[1:] if self.ragged else leaf.shape, leaf.device

    @pytest.mark.parametrize("size", [2, 5])
    def test_loss_is_a_finite_scalar_that_reaches_the_parameters(self, home: Path, size: int) -> None:
        task = self.task(home)
        losses = task.loss(task.example_batch(size))
        assert {name: value.shape for name, value in losses.items()} == dict.fromkeys(losses, torch.Size())
        assert losses["loss"].dtype == torch.float32 and losses["loss"].isfinite()
        losses["loss"].backward()
        gradients = [p.grad for p in task.parameters() if p.grad is not None]
        assert gradients and all(g.isfinite().all() for g in gradients) and any(g.any() for g in gradients)

    def test_unit_and_final_metric_are_told(self, home: Path) -> None:
        task = self.task(home)
        better = {"max": 1, "min": -1}[task.final_metric.direction]
        assert task.unit and task.final_metric.name
        if task.final_metric.target is not None:
            assert task.final_metric.reached(task.final_metric.target + better) is True
            assert task.final_metric.reached(task.final_metric.target - better) is False

    # Learning, and doing it again.

    def test_loss_falls_on_a_fixed_batch(self, home: Path) -> None:
        task = self.task(home)
        batch = task.example_batch(8)
        optimizer = task.configure_optimizers()
        task.prepare_first_step([batch])
        losses = []
        for _ in range(self.learning_steps):
            optimizer.zero_grad()
            loss = task.loss(batch)["loss"]
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.mean(losses[-5:]) < np.mean(losses[:5]) - np.std(losses[:5])

    def test_the_same_seed_gives_the_same_numbers(self, home: Path) -> None:
        states = []
        for name, seed in (("seed", 5), ("same_seed", 5), ("other_seed", 6)):
            fit(self.job(home, name, f"seed={seed}", "fit.max_steps=2", "fit.eval_every_n_epochs=null"))
            states.append(lasting_state(home / name / "checkpoints" / "last.ckpt"))
        assert_same_bits(states[1], states[0])
        with pytest.raises(AssertionError):
            assert_same_bits(states[2], states[0])

    def test_global_step_counts_optimizer_steps(self, two_epochs: dict[str, Any]) -> None:
        job: Job = two_epochs["job"]
        batches = len(job.datamodule.train_dataloader())
        assert batches >= 4
        assert job.trainer.global_step == two_epochs["steps"] == 2 * batches

    def test_evaluation_leaves_training_as_it_is(self, home: Path, two_epochs: dict[str, Any]) -> None:
        fit(self.job(home, "unseen", "fit.max_epochs=2", "fit.eval_every_n_epochs=null"))
        state = lasting_state(home / "unseen" / "checkpoints" / "last.ckpt")
        for key in ("state_dict", "optimizer_states", "rng_of_ranks"):
            assert_same_bits(state[key], two_epochs["state"][key], key)

    # Checkpoints.

    def test_resuming_after_a_crash_gives_the_same_bits(
        self, home: Path, two_epochs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Saved one step into the second epoch; ResumeContract has every other moment."""
        self.crash_and_resume(home, two_epochs, 1, monkeypatch)

    def crash_and_resume(
        self, home: Path, two_epochs: dict[str, Any], more: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Saves `more` steps after the first epoch, crashes a step later, resumes, and compares the last states."""
        saved = two_epochs["steps"] // 2 + more
        name = f"crash_{saved}"
        saving = f"fit.checkpoint_every_n_steps={saved}", "fit.checkpoint_every_n_epochs=9"
        job = self.job(home, name, "fit.max_epochs=2", *saving)
        crash_at(job.task, saved + 1, monkeypatch)
        with pytest.raises(Crash):
            fit(job)
        job.task.teardown("fit")
        checkpoint = home / name / "checkpoints" / "last.ckpt"
        assert torch.load(checkpoint, weights_only=False)["global_step"] == saved
        assert_same_bits(self.resumed(home, name, checkpoint), two_epochs["state"])

    def resumed(self, home: Path, name: str, checkpoint: Path) -> dict[str, Any]:
        """Returns the state after the second epoch of a run that resumes from the checkpoint and nothing else."""
        job = self.job(home, f"{name}_resumed", "fit.max_epochs=2", f"ckpt_path={checkpoint}")
        forget(job.task)
        fit(job)
        return lasting_state(home / f"{name}_resumed" / "checkpoints" / "last.ckpt")

    # Fast modules and costs.

    def test_fast_modules_share_the_state_dict_and_the_function(self, home: Path) -> None:
        """Losses, gradients, weights and buffers agree in each of three steps."""
        tasks = [self.task(home, *overrides).double() for overrides in (self.plain, self.fast)]
        batch = doubled(tasks[0].example_batch(4))
        tasks[0].prepare_first_step([batch])
        tasks[1].load_state_dict(tasks[0].state_dict())
        assert_same_bits(dict(tasks[1].state_dict()), dict(tasks[0].state_dict()))
        results = []
        for task in tasks:
            torch.manual_seed(0)
            optimizer = torch.optim.SGD(task.trained_parameters(), 1e-3)
            for _ in range(3):
                optimizer.zero_grad()
                losses = task.loss(batch)
                losses["loss"].backward()
                gradients = {name: p.grad.clone() for name, p in task.named_parameters() if p.grad is not None}
                task.update_rest(1e-3, None, None)
                optimizer.step()
                state = {**task.state_dict(), **dict(task.named_buffers())}
                results.append((losses, gradients, {name: value.clone() for name, value in state.items()}))
        torch.testing.assert_close(results[3:], results[:3], rtol=1e-8, atol=1e-10)

    @pytest.mark.parametrize("kernels", ["auto", "off"])
    def test_a_network_that_is_made_for_the_data_has_the_fast_modules_too(self, home: Path, kernels: str) -> None:
        config = self.config(home, f"output_dir={home / kernels}", f"execution.kernels={kernels}")
        with open_dict(config):
            for name in self.sizes_of_data:
                del config.model.task.sizes[name]
        job = build(complete(config), Clock())
        job.task.bind_data(job.datamodule)
        before = [type(module) for module in job.task.network.modules()]
        job.task.accelerate(kernels)  # type: ignore[arg-type]
        assert before == [type(module) for module in job.task.network.modules()]

    def test_cost_is_what_torch_counts(self, home: Path) -> None:
        task = self.task(home, *self.plain)
        batch = task.example_batch(4)
        task.prepare_first_step([batch])
        task.loss(batch)  # makes what is made once and kept
        with FlopCounterMode(display=False) as forward:
            losses = task.loss(batch)
        with FlopCounterMode(display=False) as backward:
            losses["loss"].backward()
        (waste, training_waste), cost = self.wasted_flops(task), task.cost()
        counted = forward.get_total_flops() / 4
        assert cost.flops_forward == pytest.approx(counted - waste)
        assert cost.flops_training == pytest.approx(counted + backward.get_total_flops() / 4 - training_waste)
        assert 0 < cost.bytes_forward < cost.bytes_training

    @pytest.mark.slow
    def test_it_compiles_where_it_claims_to(self, home: Path) -> None:
        if type(self.task(home)).compile_network is Task.compile_network:  # which does nothing
            return
        module = sys.modules[type(self).__module__]
        done = subprocess.run(
            [sys.executable, str(COMPILED), str(module.__file__), type(self).__name__, str(home)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        graphs, deviation = map(float, done.stdout.splitlines()[-1].split())
        assert graphs > 0 and deviation < 1e-8


class ResumeContract(TaskContract):
    """TaskContract with every moment of a resume. The code is shared by all models: one of them inherits it."""

    @pytest.mark.slow
    @pytest.mark.parametrize("more", [-1, 0], ids=["within an epoch", "after an epoch"])
    def test_resuming_at_other_moments_gives_the_same_bits(
        self, home: Path, two_epochs: dict[str, Any], more: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.crash_and_resume(home, two_epochs, more, monkeypatch)

    @pytest.mark.slow
    def test_going_on_after_a_stop_within_an_epoch_gives_the_same_bits(
        self, home: Path, two_epochs: dict[str, Any]
    ) -> None:
        fit(self.job(home, "stopped", "fit.max_epochs=2", "fit.max_steps=3"))
        state = self.resumed(home, "stopped", home / "stopped" / "checkpoints" / "last.ckpt")
        assert_same_bits(state, two_epochs["state"])

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["last", "best"])
    def test_going_on_after_an_epoch_gives_the_same_bits(
        self, home: Path, two_epochs: dict[str, Any], name: str
    ) -> None:
        folder = f"epoch_{name}"
        fit(self.job(home, folder))
        state = self.resumed(home, folder, home / folder / "checkpoints" / f"{name}.ckpt")
        assert_same_bits(state, two_epochs["state"])


def doubled(batch: Any) -> Any:
    """Returns the batch with its floating point numbers in double precision."""
    return tree_map_only(Tensor, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor, batch)


def crash_at(task: Task, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the loss of the step with this number, counted from 1, raise Crash."""
    loss, calls = task.loss, iter(range(1, step + 1))

    def failing(batch: Any) -> dict[str, Tensor]:
        if next(calls) == step:
            raise Crash
        return loss(batch)

    monkeypatch.setattr(task, "loss", failing)


def forget(task: Task) -> None:
    """Spoils what a new process would not know: the weights and every generator's state."""
    for tensor in task.state_dict().values():
        tensor.copy_(tensor + 1 if tensor.is_floating_point() else tensor)
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
