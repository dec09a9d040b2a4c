"""The Paddle record has the fields, names and flags of Paddle's harness."""

import json
from dataclasses import replace

import pytest

from src.report.paddle import paddle_record
from src.report.record import Case, Record


@pytest.fixture
def mobilenet(trained: Record, case: Case) -> Record:
    variant = replace(case, model="mobilenet_v1", datamodule="imagenet", precision="fp32", batch_size=64)
    return replace(trained, case=variant, unit="images")


def test_fields_are_complete_and_in_order(mobilenet: Record) -> None:
    assert list(json.loads(paddle_record(mobilenet).to_json()).items()) == [
        ("log_file", "clas_MobileNetV1_sp_bs64_fp32_1_speed"),
        ("model_name", "clas_MobileNetV1_bs64_fp32"),
        ("mission_name", "图像分类"),
        ("direction_id", 0),
        ("run_mode", "sp"),
        ("index", 1),
        ("gpu_num", 1),
        ("FINAL_RESULT", 10200.432),
        ("JOB_FAIL_FLAG", 0),
        ("UNIT", "images/s"),
    ]


def test_a_run_on_several_devices_is_named_by_the_batch_of_one(mobilenet: Record) -> None:
    shared = replace(mobilenet, ranks=8, case=replace(mobilenet.case, batch_size=512, batch_per="global"))
    for record in (replace(mobilenet, ranks=8), shared):
        made = paddle_record(record)
        assert (made.log_file, made.run_mode) == ("clas_MobileNetV1_mp_bs64_fp32_8_speed", "mp")
        assert (made.model_name, made.gpu_num) == ("clas_MobileNetV1_bs64_fp32", 8)


@pytest.mark.parametrize(
    ("model", "name", "direction"),
    [
        ("distilbert", "nlp_DistilBERT", 1),
        ("dlrm", "rec_DLRM", 2),
        ("moflow", "mol_MoFlow", 3),
        ("new", "other_new", 4),
    ],
)
def test_each_model_has_its_prefix_and_direction(
    trained: Record, case: Case, model: str, name: str, direction: int
) -> None:
    made = paddle_record(replace(trained, case=replace(case, model=model)))
    assert (made.model_name, made.direction_id) == (f"{name}_bs512_amp", direction)


def test_a_prediction_reports_its_throughput(predicted: Record) -> None:
    assert paddle_record(predicted).FINAL_RESULT == 13333.3


def test_failures_are_flagged(mobilenet: Record, out_of_memory: Record) -> None:
    for record in (replace(mobilenet, status="interrupted"), replace(mobilenet, steady=None), out_of_memory):
        made = paddle_record(record)
        assert (made.JOB_FAIL_FLAG, made.FINAL_RESULT) == (1, 0)
    slow = replace(mobilenet, steady=replace(mobilenet.steady, p_train=0.25) if mobilenet.steady else None)
    assert (paddle_record(slow).JOB_FAIL_FLAG, paddle_record(slow).FINAL_RESULT) == (0, 0.25)
