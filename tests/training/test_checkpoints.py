"""Checkpoints as files: damage is found, nothing in them is run, and what was written is read."""

import os
import random
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from src.config.trained import name_model
from src.errors import UserError
from src.training.checkpoints import compare, newest_checkpoint, read_checkpoint, trained_config, write_checkpoint

CONTENT = {
    "state_dict": {"network.weight": torch.arange(5000.0), "network.bias": torch.ones(3, dtype=torch.bfloat16)},
    "optimizer_states": [{"state": {0: {"step": torch.tensor(7.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}],
    "epoch": 3,
    "rng_of_ranks": [{"python": (3, (1, 2), None)}],
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "run" / "checkpoints" / "last.ckpt"
    write_checkpoint(CONTENT, file)
    return file


def test_what_was_written_is_read(path: Path) -> None:
    assert_close(read_checkpoint(path), CONTENT, rtol=0, atol=0)
    assert_close(torch.load(path), CONTENT, rtol=0, atol=0)  # the digest is in no other reader's way


def test_a_runs_own_checkpoint_goes_before_a_newer_one(tmp_path: Path) -> None:
    files = [tmp_path / run / "checkpoints" / "last.ckpt" for run in ("here", "older", "newer")]
    for second, file in enumerate(files):
        file.parent.mkdir(parents=True)
        file.touch()
        os.utime(file, (second, second))
    assert newest_checkpoint(tmp_path, tmp_path / "here") == files[0]
    assert newest_checkpoint(tmp_path, tmp_path / "new") == files[2]
    assert newest_checkpoint(tmp_path / "none", tmp_path / "new") is None


def test_every_flipped_bit_is_found(path: Path) -> None:
    whole = path.read_bytes()
    draw = random.Random(0)
    places = [*range(8 * len(whole) - 8 * 120, 8 * len(whole)), *draw.sample(range(8 * len(whole)), 300)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(UserError, match="damaged"):
            read_checkpoint(path)


@pytest.mark.parametrize("length", [0, 1, 50, 20_000, -1, -71, -93])
def test_every_cut_is_found(path: Path, length: int) -> None:
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(UserError, match=r"damaged|not a readable checkpoint") as raised:
        read_checkpoint(path)
    assert str(raised.value).startswith(f"{path}: ") and "\n" not in str(raised.value)


def test_damage_in_an_archive_of_torchs_own_is_found_or_changes_nothing(path: Path) -> None:
    """It has a checksum of each member, and none of what lies between them."""
    torch.save(CONTENT, path)
    whole = path.read_bytes()
    refused = 0
    for place in random.Random(1).sample(range(8 * len(whole)), 400):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            assert_close(read_checkpoint(path), CONTENT, rtol=0, atol=0)
        except UserError:
            refused += 1
    assert refused > 300


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, 99])
def test_a_stored_tensor_that_is_called_compressed_is_found(path: Path, method: int) -> None:
    torch.save(CONTENT, path)
    data = bytearray(path.read_bytes())
    for header in re.finditer(b"PK\x01\x02", bytes(data)):
        data[header.start() + 10] = method
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"damaged|not a readable checkpoint") as raised:
        read_checkpoint(path)
    assert "\n" not in str(raised.value)


def test_the_damaged_checkpoint_is_named_and_the_one_before_it_offered(path: Path) -> None:
    best, older, broken = (path.with_name(name) for name in ("best.ckpt", "older.ckpt", "broken.ckpt"))
    for age_s, file in enumerate((broken, best, older), 1):
        shutil.copyfile(path, file)
        os.utime(file, (1000 - age_s, 1000 - age_s))
    for file in (path, broken):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    with pytest.raises(UserError) as raised:
        read_checkpoint(path)
    assert str(raised.value).startswith(f"{path}: damaged")
    assert str(raised.value).endswith(f"go on from the one before it, {best}")
    best.unlink()
    older.unlink()
    with pytest.raises(UserError, match="there is no earlier one in its folder"):
        read_checkpoint(path)


class Executes:
    """Runs code when it is unpickled without care."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


def test_a_fifo_is_refused_and_not_waited_for(path: Path) -> None:
    fifo = path.with_name("fifo.ckpt")
    os.mkfifo(fifo)
    with pytest.raises(UserError, match=r"fifo.ckpt: not a readable checkpoint \(it is no regular file\)"):
        read_checkpoint(fifo)
    with pytest.raises(UserError, match=r"fifo.ckpt: not a readable checkpoint \(it is no regular file\)"):
        name_model([f"ckpt_path={fifo}"])
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(UserError, match="there is no earlier one"):  # nor is it offered
        read_checkpoint(path)


@pytest.mark.parametrize("ours", [True, False])
def test_code_in_a_checkpoint_is_refused_in_one_line(tmp_path: Path, ours: bool) -> None:
    path, made = tmp_path / "last.ckpt", tmp_path / "made"
    content = CONTENT | {"callbacks": Executes(made)}
    write_checkpoint(content, path) if ours else torch.save(content, path)
    with pytest.raises(UserError) as raised:
        read_checkpoint(path)
    assert not made.exists()
    assert str(raised.value).startswith(f"{path}: it names posix.mkdir, which a checkpoint of numbers does not need")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("state", [None, [1, 2], {"network.weight": "text"}, {"network.weight": {"a": 1}}])
def test_a_state_dict_of_something_else_is_refused(path: Path, state: Any) -> None:
    write_checkpoint(CONTENT | {"state_dict": state}, path)
    with pytest.raises(UserError, match=r"holds no state_dict|network\.weight is no tensor but (str|dict)"):
        read_checkpoint(path)


def holding_itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def doubling() -> list[Any]:
    """Returns a list of 2**40 numbers that takes 40 lists."""
    value: list[Any] = [1]
    for _ in range(40):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("loops", holding_itself()), ("callbacks", doubling()), ("legs", {"a": {3j: 1}}), ("legs", [3j]),
        ("epoch", torch.float32), ("rng_of_ranks", {1, 2}),
        ("run_config", {"data_root": "x" * 2001}), ("legs", "x" * 20_001), ("epoch", 2**63),
        ("optimizer_states", {"x": {b"x": 1}}),
    ],
)  # fmt: skip
def test_what_is_not_plain_is_refused(path: Path, key: str, value: Any) -> None:
    write_checkpoint(CONTENT | {key: value}, path)
    with pytest.raises(UserError) as raised:
        read_checkpoint(path)
    assert re.match(rf"{re.escape(str(path))}(\.|: ){key}", str(raised.value))


@pytest.mark.filterwarnings("default:Sparse invariant checks", "default:Validating sparse tensor")  # torch 2.11, 2.14
@pytest.mark.parametrize("tensor", [torch.ones(3).to_sparse(), torch.empty(3, device="meta")])
def test_weights_that_are_not_dense_are_refused(path: Path, tensor: torch.Tensor) -> None:
    write_checkpoint(CONTENT | {"state_dict": {"network.bias": tensor}}, path)
    with pytest.raises(UserError, match=r"network\.bias is no dense tensor"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("key", "tensor", "said"),
    [
        (
            "network.bias",
            torch.ones(3, dtype=torch.complex64),
            r"bias is \(3,\) of complex numbers there and \(3,\) here",
        ),
        ("network.bias", torch.ones(3).long(), r"bias is \(3,\) of integers there and \(3,\) here"),
        ("other", torch.ones(3), r"other is \(3,\) there and absent here"),
    ],
)
def test_weights_that_do_not_fit_are_refused(tmp_path: Path, key: str, tensor: torch.Tensor, said: str) -> None:
    task = torch.nn.ModuleDict({"network": torch.nn.Linear(2, 3)})
    with pytest.raises(UserError, match=said):
        compare({"state_dict": {**task.state_dict(), key: tensor}}, tmp_path, task)


OURS = {"_target_": "src.models.dlrm.task.DLRMTask", "optimizer": {"_target_": "torch.optim.SGD", "_partial_": True}}


def test_a_config_of_our_classes_is_taken(tmp_path: Path) -> None:
    config = {"name": "dlrm", "task": OURS}
    assert trained_config({"model_config": config}, tmp_path) == config
    assert trained_config({}, tmp_path) is None


def test_a_config_from_before_a_module_moved_is_taken(tmp_path: Path) -> None:
    old, new = ({"_target_": f"src.{package}.schedule.Cosine", "warmup": 3} for package in ("models", "training"))
    config = {"name": "dlrm", "task": {**OURS, "schedule": old, "parts": [old]}}
    result = trained_config({"model_config": config}, tmp_path)
    assert result is not None and result["task"] == {**OURS, "schedule": new, "parts": [new]}


@pytest.mark.parametrize("config", [[], "text", {"name": "dlrm"}, {"name": "dlrm", "task": "src.Task"}, 3])
def test_a_config_of_another_shape_is_refused(tmp_path: Path, config: Any) -> None:
    with pytest.raises(UserError, match="is no config of a model"):
        trained_config({"model_config": config}, tmp_path)
