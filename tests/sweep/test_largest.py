"""`+fix_hp=auto`: which batches it tries, what it finds, and that it trains with that."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from src.errors import UserError
from src.report.record import read_record
from src.sweep.largest import Trial, largest, predicted_batch, read_rows, settle_batch, split_limit
from tests.support.composing import composed
from tests.support.refusing import Command
from tests.support.tiny_mobilenet import tiny_overrides


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 64, 65, 100, 1000, 4095, 10**6])
@pytest.mark.parametrize("usual", [1, 64, 300])
@pytest.mark.parametrize("unit", [1, 4])
def test_the_largest_is_found_to_within_a_sixteenth_in_few_trials(limit: int, usual: int, unit: int) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= limit

    best = largest(usual, unit, fits)
    assert all(size % unit == 0 for size in tried)
    assert len(tried) == len(set(tried)) <= 26
    if limit < unit:
        assert best is None
    else:
        assert best is not None and best <= limit < best + unit + max(unit, best / 16)


def test_memory_that_grows_evenly_is_found_in_few_trials() -> None:
    tried: dict[int, Trial] = {}

    def fits(size: int) -> bool:
        used = 1.5 + size / 97
        tried[size] = Trial(size, used <= 0.95 * 80, used_gib=used, total_gib=80.0)
        return tried[size].fits

    best = largest(512, 1, fits, lambda: predicted_batch([*tried.values()], 0.05))
    exact = int((0.95 * 80 - 1.5) * 97)
    assert best is not None and exact * 15 / 16 < best <= exact
    assert len(tried) == 4  # 512, 2048, a jump, and one that does not fit


@pytest.mark.parametrize("samples", [3, 5, 64, 100, 103, 700, 5000])
@pytest.mark.parametrize("is_known", [False, True])
def test_all_data_in_one_batch_are_tried_once_they_are_known(samples: int, is_known: bool) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= samples

    def limit() -> int | None:
        return samples if is_known or any(size > samples for size in tried) else None

    assert largest(16, 4, fits, limit=limit) == (samples // 4 * 4 or None)
    assert len(tried) == len(set(tried)) <= 8
    assert sum(size > samples for size in tried) <= (samples < 4) + (not is_known)


def test_a_refusal_tells_how_many_samples_there_are() -> None:
    refusal = "hp.batch_size=102 on 2 rank(s) is larger than the training split of 203; lower it"
    assert (split_limit(refusal, "device"), split_limit(refusal, "global")) == (101, 203)
    assert split_limit("CUDA out of memory", "device") is None


def test_memory_that_does_not_grow_says_nothing() -> None:
    flat = [Trial(size, True, used_gib=2.0, total_gib=80.0) for size in (8, 16)]
    assert predicted_batch(flat, 0.05) is None and predicted_batch(flat[:1], 0.05) is None


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("fix_hp.multiple=0", "whole number of 1 or more"),
        ("fix_hp.multiple=half", "whole number of 1 or more"),
        ("fix_hp.most=7", "fix_hp.most=7 is below 8"),
        ("fix_hp.lr_rule=cubic", "fix_hp.lr_rule=cubic is not allowed; expected sqrt, linear or keep"),
        ("fix_hp.choose=p", "fix_hp.choose=p is not allowed; expected batch_size or p_core"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_it_begins(wrong: str, told: str, tmp_path: Path) -> None:
    config = composed("train", *tiny_overrides(tmp_path), "+fix_hp=auto", wrong)
    with pytest.raises(UserError, match=told):
        settle_batch(config, [])
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_run_finds_its_batch_and_trains_with_it(tmp_path: Path, command: Command) -> None:
    mine = [text for text in tiny_overrides(tmp_path) if not text.startswith("output_dir=")]
    mine += [
        "+fix_hp=auto", "fix_hp.most=18", "fix_hp.multiple=1", "fix_hp.steps=3", "hp.batch_size=16", "fit.max_steps=2",
        "fit.eval_every_n_epochs=null", "fit.final_evaluation=false",
        "+callbacks.limit={_target_:tests.support.sweep_faults.Limit,batch_size:${hp.batch_size},most:17}",
    ]  # fmt: skip
    run = tmp_path / "run"
    ended = command("train.py", *mine, f"hydra.run.dir={run}")
    assert ended.code == 0, ended.err
    record = read_record(run)
    assert (record.status, record.case.batch_size, record.samples) == ("done", 17, 2 * 17)
    assert record.config["hp"]["lr"] == pytest.approx(0.05 * (17 / 16) ** 0.5, rel=1e-5)
    assert "fix_hp=auto: hp.batch_size=17" in ended.out
    trials = {folder.name: read_record(folder) for folder in sorted((run / "fix_hp").iterdir()) if folder.is_dir()}
    assert [(t.case.batch_size, t.status) for t in trials.values()] == [(16, "done"), (18, "oom"), (17, "done")]

    # The row serves the next run of the case; another case is searched for itself, and not under torchrun.
    config = composed("train", *mine, f"output_dir={tmp_path / 'again'}")
    other = composed("train", *mine, f"output_dir={tmp_path / 'again'}", "precision=bf16")
    assert settle_batch(config, []).hp.batch_size == 17
    assert not (tmp_path / "again").exists()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="without torchrun"):
        patch.setenv("TORCHELASTIC_RUN_ID", "one")
        settle_batch(other, [])
    (row,) = OmegaConf.load(tmp_path / "outputs" / "fix_hp.yaml").values()
    assert row.batch_size == 17 and row.tried == [16, 17, 18] and row.p_core > 0


@pytest.mark.parametrize(
    "row",
    ["{batch_size: 8, lr: '${oc.env:HOME}'}", "{batch_size: '${oc.env:HOME}', lr: 0.1}",
     "{batch_size: {_target_: os.getcwd}, lr: 1}", "{batch_size: 8}", "{batch_size: true, lr: 1}", "[8, 1]", "8"],
)  # fmt: skip
def test_a_file_of_rows_gives_numbers_alone(row: str, tmp_path: Path) -> None:
    file = tmp_path / "auto.yaml"
    file.write_text(f"case: {row}\n")
    with pytest.raises(UserError, match="not what fix_hp=auto wrote"):
        read_rows(file)
    file.write_text("case: {batch_size: 8, lr: 0.1}\n")
    assert read_rows(file) == {"case": {"batch_size": 8, "lr": 0.1}}
