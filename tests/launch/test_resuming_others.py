"""A checkpoint is not gone on from with other data, another batch or optimizer unless that is accepted."""

from contextlib import closing
from pathlib import Path

import pytest

from src.errors import UserError
from src.report.record import read_record
from src.run import train
from tests.launch.test_resuming_ended import state_of
from tests.support.gloo_ranks import Ranks
from tests.support.ranks_contract import as_one_of_many, train_with
from tests.support.tiny_mobilenet import tiny_mobilenet, tiny_overrides, write_folders

pytestmark = pytest.mark.slow
GIVEN = "fit.max_epochs=1", "hp.batch_size=4"  # 9 steps
ON = "resume=true", "fit.max_epochs=2"


@pytest.fixture
def images(tmp_path: Path) -> tuple[str, ...]:
    """A run of one epoch is done on these."""
    data = write_folders(tmp_path)
    train(tiny_mobilenet(tmp_path, *GIVEN, data=data))
    return data


def replace_an_image(home: Path) -> None:
    """Changes an image, and neither its name nor its size nor its pixels: its JPEG says another resolution."""
    file = home / "images" / "train" / "ape" / "003.JPEG"
    content = bytearray(file.read_bytes())
    content[15] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("datamodule.train=val", "datamodule.train=train, this run has datamodule.train=val; give"),
        ("hp.accumulate=4", "hp.accumulate=1, this run has hp.accumulate=4; give"),
        ("hp.batch_per=global", "hp.batch_per=device, this run has hp.batch_per=global; give"),
        ("model.task.label_smoothing=0.1", "model.task.label_smoothing=0.0, this run has model.task.label_smoothing=0"),
    ],
)
def test_another_function_is_refused_or_accepted(
    override: str, said: str, images: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, last = state_of(tmp_path / "run"), tmp_path / "run" / "checkpoints" / "last.ckpt"
    with pytest.raises(UserError) as raised:
        train(tiny_mobilenet(tmp_path, *GIVEN, *ON, override, data=images))
    assert str(raised.value).startswith(f"{last} was trained with {said}") and "\n" not in str(raised.value)
    assert "accept the difference with accept_changes=true, or name another checkpoint" in str(raised.value)
    assert state_of(tmp_path / "run") == before
    capsys.readouterr()
    record = train(tiny_mobilenet(tmp_path, *GIVEN, *ON, override, "accept_changes=true", data=images))
    assert record.status == "done"
    assert f"note: accept_changes=true: {last} was trained with {said.partition(';')[0]}" in capsys.readouterr().out


def test_another_optimizer_is_refused(images: tuple[str, ...], tmp_path: Path) -> None:
    keys = [f"~model.task.optimizer.{key}" for key in ("momentum", "nesterov")]
    adam = "model.task.optimizer._target_=torch.optim.Adam"
    with pytest.raises(UserError, match=r"optimizer\._target_=torch\.optim\.SGD, this run has .*Adam; give .*SGD"):
        train(tiny_mobilenet(tmp_path, *GIVEN, *ON, adam, *keys, "accept_changes=true", data=images))


def test_replaced_images_are_refused_or_accepted(images: tuple[str, ...], tmp_path: Path) -> None:
    replace_an_image(tmp_path)
    before = state_of(tmp_path / "run")
    with pytest.raises(UserError, match=r"other data: 36 train and 15 val samples with the hash \w{12}, these are 36 "):
        train(tiny_mobilenet(tmp_path, *GIVEN, *ON, data=images))
    assert state_of(tmp_path / "run") == before
    train(tiny_mobilenet(tmp_path, *GIVEN, *ON, "accept_changes=true", data=images))
    assert read_record(tmp_path / "run").history[-1]["step"] == 18
    train(tiny_mobilenet(tmp_path, *GIVEN, "resume=true", "fit.max_epochs=3", data=images))  # now these are the run's
    assert read_record(tmp_path / "run").history[-1]["step"] == 27


def test_two_ranks(images: tuple[str, ...], tmp_path: Path) -> None:
    before = state_of(tmp_path / "run")
    overrides = *tiny_overrides(tmp_path, images), *GIVEN, "resume=true"
    with closing(Ranks(2, tmp_path)) as ranks:
        for said in ranks(as_one_of_many, refusal, *overrides, "fit.max_epochs=2"):
            assert "with trainer=1x1, this run has trainer=1x2; give trainer=1x1, accept" in said
        assert state_of(tmp_path / "run") == before
        ranks(as_one_of_many, train_with, *overrides, "fit.max_epochs=2", "accept_changes=true")
        assert read_record(tmp_path / "run").ranks == 2
        replace_an_image(tmp_path)
        before = state_of(tmp_path / "run")
        for said in ranks(as_one_of_many, refusal, *overrides, "fit.max_epochs=3"):
            assert "last.ckpt was trained with other data: 36 train and 15 val samples with the hash" in said
        assert state_of(tmp_path / "run") == before


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as raised:
        train_with(*overrides)
    return str(raised.value)
