"""Two ranks that keep running statistics of their own, killed within an epoch: they go on with the same bits."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from src.config.complete import complete
from src.measure.clock import Clock
from src.parallel.strategies import OF_RANKS
from src.run import build, fit
from tests.support.gloo_ranks import Ranks
from tests.support.ranks_contract import as_one_of_many, config_of, fixed, leave
from tests.support.same import assert_same_bits, lasting_state
from tests.support.task_contract import Crash, crash_at, forget

pytestmark = pytest.mark.slow
SAMPLES, HELD_OUT, SAVED = 16, 4, 6  # 4 steps an epoch


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    started = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield started
    started.close()


def trained(model: str, home: Path, crash: bool, *overrides: str) -> None:
    """Trains two epochs, or crashes on all ranks a step after a checkpoint within the second one."""
    saving = "fit.max_epochs=2", f"fit.checkpoint_every_n_steps={SAVED}", "fit.eval_every_n_epochs=1"
    config = config_of(model, home, SAMPLES, HELD_OUT, *saving, "fit.final_evaluation=false", *overrides)
    job = build(complete(config), Clock())
    if crash:
        crash_at(job.task, SAVED + 2, pytest.MonkeyPatch())
    elif config.ckpt_path:
        forget(job.task)
    with fixed():
        if crash:
            with pytest.raises(Crash):
                fit(job)
        else:
            fit(job)
    leave(job)


@pytest.mark.parametrize(
    ("model", "overrides"),
    [("mobilenet_v1", ()), ("mobilenet_v1", ("fit.ema_decay=0.9",)), ("moflow", ())],
    ids=["MobileNetV1", "its average", "MoFlow"],
)
def test_two_ranks_resume_within_an_epoch_with_the_same_bits(
    model: str, overrides: tuple[str, ...], ranks: Ranks, tmp_path: Path
) -> None:
    def run(crash: bool, name: str, *more: str) -> Path:
        folder = tmp_path / name
        ranks(as_one_of_many, trained, model, tmp_path / "data", crash, f"output_dir={folder}", *more, *overrides)
        return folder / "checkpoints" / "last.ckpt"

    saved = run(True, "crashed")
    checkpoint: dict[str, Any] = torch.load(saved, weights_only=True)
    assert checkpoint["global_step"] == SAVED
    names, differing = statistics_of_both(checkpoint)
    assert names and differing
    for name in names:
        mean = torch.stack([rank["state_dict"][name] for rank in checkpoint[OF_RANKS]]).mean(0)
        assert torch.equal(checkpoint["state_dict"][name], mean)
    expected = lasting_state(run(False, "straight"))
    assert_same_bits(lasting_state(run(False, "resumed", f"ckpt_path={saved}")), expected)


def statistics_of_both(checkpoint: dict[str, Any]) -> tuple[list[str], bool]:
    """Returns the names of the running statistics, and whether any differs between the two ranks."""
    names = [name for name in checkpoint["state_dict"] if "running_" in name]
    first, second = (rank["state_dict"] for rank in checkpoint[OF_RANKS])
    return names, any(not torch.equal(first[name], second[name]) for name in names)
