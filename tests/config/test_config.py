"""The config tree: every combination that is promised composes, and mistakes are named."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError

from src.config import schema
from src.config.complete import complete
from src.config.explain import explain
from src.config.schema import typed
from src.config.settings import CONF, check_fix_hp
from src.config.versions import BASE
from src.errors import UserError
from src.gpu import graph_gaps
from src.launch.devices import set_execution
from src.measure.roofline import peaks_of
from src.parallel import shared_memory
from src.run import case_of
from tests.support.composing import composed

MODELS = sorted(file.stem for file in (CONF / "model").glob("*.yaml"))
TRAINERS = ("1x1", "1x2", "1x4", "1x8", "2x8")


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_composes_on_every_topology(model: str, trainer: str) -> None:
    config = composed("train", f"model={model}", f"trainer={trainer}")
    assert config.hp.batch_size > 0
    assert config.hp.lr > 0
    assert config.hp.batch_per in ("device", "global")
    assert config.datamodule.batch_size == config.hp.batch_size
    assert config.fit.max_epochs == config.model.recipe.max_epochs


@pytest.mark.slow
@pytest.mark.parametrize(
    "group", sorted(p.name for p in CONF.iterdir() if p.is_dir() and p.name not in ("fix_hp", "hydra"))
)
def test_every_option_of_every_group_composes(group: str) -> None:
    for file in sorted((CONF / group).glob("*.yaml")):
        value = f"[{file.stem}]" if group == "logger" else file.stem
        config = composed("train", f"{group}={value}")
        if group != "experiment":
            assert group in config


@pytest.mark.parametrize(
    ("overrides", "batch", "lr"),
    [
        (["model=dlrm", "trainer=2x8", "+fix_hp=max_bs"], 2752512, 24.0),
        (["model=moflow", "trainer=1x8", "+fix_hp=max_bs"], 3072, 3e-3),
        (["model=distilbert", "trainer=1x1", "+fix_hp=max_bs"], 96, 1.5e-4),
        (["model=distilbert", "trainer=2x8", "+fix_hp=max_bs"], 96, 5e-5),
        (["model=moflow", "trainer=1x1"], 3584, 1e-4),
        (["model=moflow", "trainer=2x8"], 3072, 3e-3),
        (["model=distilbert", "trainer=2x8"], 16, 5e-5),
        (["model=moflow", "trainer=1x2"], 512, 5e-4),
        (["model=moflow", "+fix_hp=max_bs", "hp.batch_size=64"], 64, 1e-4),
    ],
)
def test_the_published_hyper_parameters(overrides: list[str], batch: int, lr: float) -> None:
    config = composed("train", *overrides)
    assert (config.hp.batch_size, config.hp.lr) == (batch, lr)


def test_a_command_line_choice_wins_over_the_models_own() -> None:
    config = composed("train", "model=moflow", "datamodule=qm9_molecules", "precision=bf16")
    assert config.datamodule.name == "qm9_molecules"
    assert config.precision.name == "bf16"


@pytest.mark.parametrize("override", ["hardware.peak_flops={fp32:1e11}", "hardware.peak_flops.fp32=1e11"])
def test_peaks_of_a_cpu_may_be_given(override: str) -> None:
    cpu = ("experiment=mobilenet_quick", "hardware=cpu")
    changed, usual = composed("train", *cpu, override).hardware.peak_flops, composed("train", *cpu).hardware.peak_flops
    assert changed.fp32 == 1e11 and peaks_of("fp32", changed, None, "cpu").source == "datasheet"
    assert peaks_of("fp32", usual, None, "cpu").source == "measured"


def test_the_case_names_what_differs_from_the_default_as_published_rows_do() -> None:
    def changed(*overrides: str) -> str:
        return case_of(typed(composed("train", "output_dir=unused", *overrides)))["fix_hp"]

    assert changed("model=moflow") == "bs=3584,lr=0.0001"
    assert changed("model=moflow", "trainer=1x8") == "/"
    assert changed("model=moflow", "hp.batch_size=64", "hp.lr=0.001") == "bs=64,lr=0.001"
    assert changed("model=dlrm", "trainer=1x8", "+fix_hp=max_bs") == "bs=2097152"


def test_fix_hp_may_change_hp_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_fix_hp(composed("train", "+fix_hp=max_bs"))
    bad = tmp_path / "fix_hp"
    bad.mkdir()
    (bad / "greedy.yaml").write_text("fix_hp: {name: greedy}\nhp: {lr: 1}\nseed: 3\n")
    monkeypatch.setattr("src.config.settings.CONF", tmp_path)
    with pytest.raises(UserError, match=r"greedy\.yaml.*it also sets seed"):
        check_fix_hp(OmegaConf.create({"fix_hp": {"name": "greedy"}}))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["hp.batchsize=3"], "unknown key 'hp.batchsize', did you mean 'hp.batch_size'?"),
        (["model.task.temprature=1"], "did you mean 'model.task.temperature'?"),
        (["precison=amp"], "did you mean 'precision'?"),
        (["model=dlmr"], "model=dlmr: there is no such model, did you mean 'dlrm'?; choose from distilbert, dlrm"),
        (["hp.batch_size=many"], "hp.batch_size: Value 'many' of type 'str' could not be converted to Integer"),
    ],
)
def test_a_mistake_is_named_in_one_line(overrides: list[str], words: str) -> None:
    with pytest.raises(HydraException) as raised:
        composed("train", *overrides)
    line = explain(raised.value)
    assert words in line
    assert "\n" not in line


def test_a_missing_published_row_names_those_there_are() -> None:
    config = composed("train", "model=moflow", "trainer=1x2", "+fix_hp=max_bs")
    with pytest.raises(InterpolationKeyError) as raised:
        OmegaConf.resolve(config)
    assert explain(raised.value).startswith(
        "fix_hp=max_bs: no published row for moflow 1x2; there are moflow: 1x1, 1x8, 2x8"
    )


@pytest.mark.parametrize("entry", ["predict", "prepare"])
def test_the_other_entry_points_compose(entry: str) -> None:
    OmegaConf.resolve(composed(entry, "output_root=x" if entry == "prepare" else "output_dir=x"))


def test_runs_of_one_second_have_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except for ranks that torchrun started: they share one, until it starts them again."""
    monkeypatch.setattr("sys.argv", ["train.py"])
    folders = []
    for started in ({}, {}, {"TORCHELASTIC_RUN_ID": "1"}, {"TORCHELASTIC_RESTART_COUNT": "1"}):
        schema.claim.cache_clear()
        for name, value in started.items():
            monkeypatch.setenv(name, value)
        folders += [schema.claim(str(tmp_path / "run")) for _ in range(2)]
    assert [Path(folder).name for folder in folders] == ["run", "run", "run_2", "run_2", "run", "run", "run_2", "run_2"]


@pytest.mark.parametrize("entry", ["train", "predict", "prepare"])
def test_a_run_claims_its_folder(entry: str) -> None:
    schema.register()
    with initialize_config_dir(str(CONF), **BASE):
        config = compose(entry, return_hydra_config=True)
    assert OmegaConf.to_container(config.hydra.run)["dir"].startswith("${claim:")  # type: ignore[index]


def test_execution_choices_are_set_for_the_process() -> None:
    set_execution(composed("train", "execution.exchange=nccl", "execution.graph_gaps=off").execution, "cpu")
    assert (shared_memory.refusal(), graph_gaps.enabled) == ("execution.exchange=nccl", False)
    set_execution(composed("train").execution, "cpu")
    assert shared_memory.enabled and graph_gaps.enabled


def test_an_untried_torch_shares_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    assert shared_memory.refusal() is None
    monkeypatch.setattr(torch, "__version__", "3.0.0")
    assert shared_memory.refusal() == "torch 3.0.0 has not been tried"


def test_a_completed_config_is_frozen() -> None:
    config = complete(composed("train", "output_dir=x"))
    with pytest.raises(FrozenInstanceError):
        config.hp.lr = 1.0  # type: ignore[misc]
