"""The list of cases has every value that types name, and each of its commands is a command."""

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from omegaconf import OmegaConf

from src.config.hints import words_of
from src.config.ranges import Count, Limit, Share
from src.config.schema import TrainConfig
from src.config.values import check_values
from tests.options.bases import BASES, DATAMODULES, EXPERIMENTS
from tests.options.cases import Case, cases, left_out
from tests.options.values import alternatives, group_options, options_of
from tests.support.composing import composed


@dataclass
class Section:
    kind: Annotated[str, Literal["a", "b", "c"]] = "b"
    is_on: bool = False
    share: Share = 0.3
    most: Limit = 5
    every: Count | None = None
    plain: Count = 3


@dataclass
class Config:
    section: Section = field(default_factory=Section)


SOME = "mobilenet_v1/quick", "dlrm/published"  # the others take seconds to compose


@pytest.fixture(scope="module")
def some() -> list[Case]:
    return cases(composed, names=SOME)


@pytest.fixture(scope="module")
def all_cases() -> list[Case]:
    return cases(composed)


def options(every: list[Case]) -> set[str]:
    return {case.option for case in every}


def test_a_new_option_is_enumerated_by_its_type() -> None:
    overrides = [option.override for option in options_of(OmegaConf.structured(Config), Config)]
    assert overrides == [
        "section.kind=a", "section.kind=c", "section.is_on=true", "section.share=0", "section.most=-1",
        "section.every=2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("hint", "current", "comment", "expected"),
    [
        (float | None, 0.0, "strength; 1: the paper's", ["null", "1"]),
        (Any, None, "as published; or {_target_: src.x.Y, interval: step}", ["{_target_:src.x.Y,interval:step}"]),
        (list[str] | None, None, """or two SMILES, '["CCO","CCN"]'""", ['["CCO","CCN"]']),
        (Share, 0.5, "of the rows; 7: all", ["0"]),  # no value that the type does not allow
    ],
)
def test_comments_name_values(hint: Any, current: Any, comment: str, expected: list[str]) -> None:
    assert alternatives(hint, current, comment) == expected


def test_every_choice_of_the_schema_is_tried(some: list[Case]) -> None:
    texts = options(some)
    for part in fields(TrainConfig):
        section = part.type
        if not (is_dataclass(section) and isinstance(section, type)):
            continue
        for name, hint in get_type_hints(section, include_extras=True).items():
            key = f"{part.name}.{name}"
            named = [
                value for argument in get_args(hint) if get_origin(argument) is Literal for value in get_args(argument)
            ]
            named += ["true", "false"] if hint is bool else []
            tried = {value for value in named if f"{key}={value}" in texts}
            assert len(tried) >= len(named) - 1 or left_out(f"{key}={named[0]}"), f"{key}: {words_of(hint)}"


def test_every_option_of_a_group_is_tried(some: list[Case]) -> None:
    for group in ("precision", "callbacks", "logger", "hardware"):
        assert {f"{group}={name}" for name in group_options(group)} <= options(some), group


def test_every_datamodule_experiment_and_model_is_tried_or_has_a_reason() -> None:
    assert set(group_options("datamodule")) == set(DATAMODULES)
    quick = {text.partition("=")[2] for base in BASES.values() for text in base.overrides if "experiment=" in text}
    assert set(group_options("experiment")) == set(EXPERIMENTS) | quick
    assert set(group_options("model")) == {base.model for base in BASES.values()}


@pytest.mark.slow
def test_every_datamodule_and_experiment_has_a_case(all_cases: list[Case]) -> None:
    assert {f"datamodule={name}" for name in DATAMODULES} <= options(all_cases)
    assert {f"experiment={name}" for name in EXPERIMENTS} <= options(all_cases)


@pytest.mark.parametrize(
    "option",
    [
        "dlrm/published: model.task.network.interaction=dcnv2", "dlrm/published: hp.accumulate=2 hp.batch_size=2048",
        "mobilenet_v1/quick: model.task.augment=null", "mobilenet_v1/quick: model.task.mixup=1",
        "mobilenet_v1/quick: fit.ema_decay=0.9", "mobilenet_v1/quick: trainer=1x2 execution.exchange=nccl",
        "mobilenet_v1/quick: model.task.optimizer=torch.optim.Adagrad",
    ],
)  # fmt: skip
def test_a_case_is_there(some: list[Case], option: str) -> None:
    assert option in {case.name for case in some}


GENERATED = "{_target_:src.models.moflow.generated_molecules.GeneratedMolecules}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        "moflow/published: model.task.network.conv_lu=1", f"moflow/quick: model.task.generated_molecules={GENERATED}",
        "moflow/published: model.task.temperature=[0.4,0.2]", "moflow/published: predict model.predict.optimise=plogp",
        "dlrm/quick: model.task.engine=torchrec",
        "distilbert/published: model.task.r_drop=1.0", "distilbert/quick: datamodule.padding=bucketed",
        "se3_transformer/published: execution.kernels=off", "se3_transformer/quick: execution.kernels=[norm]",
        "se3_transformer/quick: datamodule.edges.kind=full", "se3_transformer/quick: fit.ema_decay=0.9",
    ],
)  # fmt: skip
def test_a_case_of_another_model_is_there(all_cases: list[Case], option: str) -> None:
    assert option in {case.name for case in all_cases}


@pytest.mark.slow
def test_cases_of_a_twin_compare_with_its_base(all_cases: list[Case]) -> None:
    names = {case.name for case in all_cases}
    for case in all_cases:
        assert not case.twin or case.twin in names
    twins = {case.name: case.twin for case in all_cases}
    assert twins["moflow/quick: execution.kernels=off"] == "moflow/quick: as it is"
    assert not twins["distilbert/quick: execution.kernels=off"]  # whose dropout is another one
    assert twins["moflow/quick: model.task.target=1"] == "moflow/quick: execution.compile=off"  # as it runs too


def test_a_cpu_has_small_networks_and_no_graphs() -> None:
    small = cases(composed, "cpu", ["mobilenet_v1/quick"])
    assert all("on" not in case.graphs for case in small if case.train)
    assert all("hardware=cpu" in case.train for case in small if case.train and "experiment=" not in case.option)


@pytest.mark.slow
def test_every_command_composes_and_its_values_are_allowed(all_cases: list[Case]) -> None:
    for case in all_cases:
        if case.train:
            overrides = [text for text in case.train if not text.startswith("data_root=")]
            config = composed("train", *overrides, "data_root=data", "output_dir=out")
            check_values("", config, TrainConfig)
