"""A checkpoint is resumed with the model, the data, the seed and the batch that it was trained with."""

from pathlib import Path
from typing import Any

import pytest

from src.config.resumed import check_same_data, check_same_function, data_choices, function_of
from src.config.schema import typed
from src.config.trained import training_choices
from src.errors import UserError
from tests.support.composing import composed

FILE = Path("last.ckpt")
DATA = {"train": 36, "val": 15, "content": "3f2a91c0d6e5" + 52 * "0"}


def config_of(*overrides: str, group: str = "smiles_file") -> Any:
    data = [f"datamodule={group}", *(["datamodule.source.file=my.smiles"] if group == "smiles_file" else [])]
    return typed(composed("train", *data, "hp.batch_size=8", "output_dir=unused", "hardware=cpu", *overrides))


def function(*overrides: str, group: str = "smiles_file") -> dict[str, Any]:
    config = config_of(*overrides, group=group)
    return function_of(config, training_choices(config))


@pytest.mark.parametrize(
    ("override", "there", "here"),
    [
        ("seed=2", "seed=1", "seed=2"),
        ("hp.batch_size=16", "hp.batch_size=8", "hp.batch_size=16"),
        ("hp.batch_per=global", "hp.batch_per=device", "hp.batch_per=global"),
        ("hp.accumulate=4", "hp.accumulate=1", "hp.accumulate=4"),
        ("trainer=1x2", "trainer=1x1", "trainer=1x2"),
        ("fit.clip_norm=9", "fit.clip_norm=1.0", "fit.clip_norm=9.0"),
        ("fit.ema_decay=0.9", "fit.ema_decay=null", "fit.ema_decay=0.9"),
        ("datamodule.source.file=b.smiles", "datamodule.source.file=my.smiles", "datamodule.source.file=b.smiles"),
        ("datamodule.source.max_atoms=9", "datamodule.source.max_atoms=38", "datamodule.source.max_atoms=9"),
        ("datamodule.data_dir=x", "datamodule.data_dir=smiles_file", "datamodule.data_dir=x"),
        (
            "model.task.network.noise_scale=0.5",
            "model.task.network.noise_scale=0.6",
            "model.task.network.noise_scale=0.5",
        ),
        (
            "model.task.optimizer.betas=[0.5,0.9]",
            "model.task.optimizer.betas=[0.9,0.99]",
            "model.task.optimizer.betas=[0.5,0.9]",
        ),
        ("hp.batch_size=16 seed=2", "seed=1 hp.batch_size=8", "seed=2 hp.batch_size=16"),
    ],
)
def test_a_difference_is_named_with_the_way_out(override: str, there: str, here: str) -> None:
    overrides = override.split()
    with pytest.raises(UserError) as raised:
        check_same_function(function(), function(*overrides), FILE, "start anew")
    assert str(raised.value) == (
        f"last.ckpt was trained with {there}, this run has {here}; give {there}, accept the difference with "
        "accept_changes=true, or start anew"
    )
    note = check_same_function(function(), function(*overrides), FILE, "start anew", accept=True)
    assert note == f"accept_changes=true: last.ckpt was trained with {there}, this run has {here}"
    there_again = function(*there.split())
    assert check_same_function(function(), there_again, FILE, "start anew") is None  # as Hydra reads what is advised


def test_a_key_on_one_side_alone_is_named() -> None:
    more, fewer = function("+model.task.optimizer.weight_decay=0.1", "seed=2"), function("~model.task.optimizer.betas")
    with pytest.raises(UserError) as raised:
        check_same_function(function(), more, FILE, "start anew")
    key = "model.task.optimizer.weight_decay"
    assert str(raised.value).startswith(
        f"last.ckpt was trained with seed=1 and without {key}, this run has seed=2 {key}=0.1; give seed=1 and leave "
        f"out {key}, accept"
    )
    with pytest.raises(UserError) as raised:
        check_same_function(function(), fewer, FILE, "start anew")
    key = "model.task.optimizer.betas"
    assert str(raised.value).startswith(
        f"last.ckpt was trained with {key}=[0.9,0.99], this run has no {key}; give {key}=[0.9,0.99], accept"
    )


def test_where_tables_lie_may_differ() -> None:
    dlrm = "model=dlrm", "output_dir=unused", "hardware=cpu"
    sides = dlrm, (*dlrm, "+model.task.sharding={cat_0.bin:row_wise}")
    configs = [typed(composed("train", *overrides)) for overrides in sides]
    there, here = (function_of(config, training_choices(config)) for config in configs)
    assert check_same_function(there, here, FILE, "start anew") is None
    older = there | {"model.task.sharding.cat_1.bin": "row_wise"}
    assert check_same_function(older, here, FILE, "start anew") is None


def test_every_difference_is_named() -> None:
    with pytest.raises(
        UserError, match=r"with hp\.batch_size=8 hp\.accumulate=1, this run has hp\.batch_size=2 hp\.acc"
    ):
        check_same_function(function(), function("hp.batch_size=2", "hp.accumulate=4"), FILE, "start anew")


def test_another_optimizer_cannot_be_accepted() -> None:
    """Its state is another one."""
    other = function("model.task.optimizer._target_=torch.optim.SGD", "~model.task.optimizer.betas")
    for accept in (False, True):
        with pytest.raises(UserError) as raised:
            check_same_function(function(), other, FILE, "start anew", accept)
        there = "model.task.optimizer._target_=torch.optim.Adam"
        assert str(raised.value).endswith(f"_target_=torch.optim.SGD; give {there}, or start anew")


def test_another_data_set_is_named_alone() -> None:
    with pytest.raises(UserError, match=r"with datamodule=smiles_file, this run has datamodule=qm9_molecules; give"):
        check_same_function(function(), function(group="qm9_molecules"), FILE, "start anew")


@pytest.mark.parametrize(
    "override",
    [
        "data_root=elsewhere",
        "output_root=elsewhere",
        "hp.lr=9",
        "precision=bf16",
        "fit.max_epochs=3",
        "fit.max_time_s=9",
        "logger=none",
        "callbacks=bare",
        "execution.deterministic=true",
        "model.task.target=3",
        "+datamodule.source.workers=3",
    ],
)
def test_what_does_not_change_the_function_may_differ(override: str) -> None:
    assert check_same_function(function("data_root=/data/here"), function(override), FILE, "start anew") is None


def test_the_ranks_may_differ_where_their_batch_stays() -> None:
    whole = "hp.batch_per=global"
    check_same_function(function(whole), function(whole, "trainer=1x4"), FILE, "start anew")
    check_same_function(function("trainer=1x4"), function("trainer=2x2"), FILE, "start anew")


def test_older_checkpoints_say_less() -> None:
    assert check_same_function(data_choices(None), function(), FILE, "start anew") is None
    choices = training_choices(config_of("data_root=/data/there"))
    old = data_choices({key: choices[key] for key in ("group", "datamodule", "precision")})
    check_same_function(old, function("hp.batch_size=9", "hp.accumulate=2"), FILE, "start anew")
    with pytest.raises(UserError, match=r"with datamodule\.seed=1, this run has datamodule\.seed=5;"):
        check_same_function(old, function("seed=5"), FILE, "start anew")


def test_a_key_that_went_is_no_difference() -> None:
    config = typed(composed("train", "model=se3_transformer", "output_dir=unused", "hardware=cpu"))
    here = function_of(config, training_choices(config))
    for key, differs in (("model.task.network.execution", False), ("model.task.network.executions", True)):
        there = {**here, key: "reference"}
        assert check_same_function(there, here, FILE, "start anew", accept=True) == (
            f"accept_changes=true: last.ckpt was trained with {key}=reference, this run has no {key}"
            if differs
            else None
        )


def test_other_samples_are_refused_or_accepted() -> None:
    assert check_same_data(DATA, dict(DATA), FILE, "start anew") is None
    for other, said in (
        ({"train": 35}, "35 train and 15 val samples with the hash 3f2a91c0d6e5"),
        ({"content": 64 * "1"}, "36 train and 15 val samples with the hash 111111111111"),
    ):
        differ = (
            "last.ckpt was trained with other data: 36 train and 15 val samples with the hash 3f2a91c0d6e5, these are "
            f"{said}"
        )
        with pytest.raises(UserError) as raised:
            check_same_data(DATA, DATA | other, FILE, "start anew")
        assert str(raised.value) == f"{differ}; give those, accept these with accept_changes=true, or start anew"
        assert check_same_data(DATA, DATA | other, FILE, "", accept=True) == f"accept_changes=true: {differ}"


def test_a_checkpoint_without_a_fingerprint_is_noted() -> None:
    note = "last.ckpt has no fingerprint of its data (it is older): these may be others"
    assert check_same_data(None, DATA, FILE, "start anew") == note
    assert check_same_data(None, {}, FILE, "start anew") is None  # the config alone decides on them
