"""The record of PaddlePaddle/benchmark's OtherFrame harness: one flat JSON object per run.

FINAL_RESULT is the rate over all devices after warm-up: `steady.p_train` of a training record, `throughput` of a
predict record. JOB_FAIL_FLAG is 1 and FINAL_RESULT 0 if the run is not 'done' or the figure is missing. `bs` in the
names is the batch of one device, `fp` the precision that was run; Paddle's own scripts write fp32 or fp16 there.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import NamedTuple

from src.errors import UserError
from src.report.record import Record

# Paddle's directions are 0 (computer vision), 1 (language) and 2 (recommendation). We add 3 for molecules, and 4 for
# models without an entry below.
MOLECULES, OTHERS = 3, 4


class Mission(NamedTuple):
    """Paddle's names for a model: the prefix of its records, model, task and direction."""

    repo: str
    model: str
    mission_name: str
    direction_id: int


MISSIONS = {
    "mobilenet_v1": Mission("clas", "MobileNetV1", "图像分类", 0),
    "distilbert": Mission("nlp", "DistilBERT", "文本分类", 1),
    "dlrm": Mission("rec", "DLRM", "推荐排序", 2),
    "moflow": Mission("mol", "MoFlow", "分子生成", MOLECULES),
    "se3_transformer": Mission("mol", "SE3Transformer", "分子性质预测", MOLECULES),
}


@dataclass(frozen=True, kw_only=True)
class PaddleRecord:
    """Paddle's fields, in its order. `index` 1 is a speed; UNIT is None in old files, which lack it."""

    log_file: str
    model_name: str
    mission_name: str
    direction_id: int
    run_mode: str
    index: int
    gpu_num: int
    FINAL_RESULT: float | int
    JOB_FAIL_FLAG: int
    UNIT: str | None = None

    def to_json(self) -> str:
        """Returns the record as one line of JSON for Paddle's database."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)


def paddle_record(record: Record) -> PaddleRecord:
    """Returns the Paddle record of a run; it is written to a file named `log_file`."""
    case = record.case
    mission = MISSIONS.get(case.model, Mission("other", case.model, "其他", OTHERS))
    batch = case.batch_size or 0
    if case.batch_per == "global":
        batch //= record.ranks
    mode = "sp" if record.ranks == 1 else "mp"
    steady = record.steady.p_train if record.steady else None
    rate = (steady if record.kind == "train" else record.throughput) if record.status == "done" else None
    size = f"bs{batch}_{case.precision}"
    return PaddleRecord(
        log_file=f"{mission.repo}_{mission.model}_{mode}_{size}_{record.ranks}_speed",
        model_name=f"{mission.repo}_{mission.model}_{size}",
        mission_name=mission.mission_name,
        direction_id=mission.direction_id,
        run_mode=mode,
        index=1,
        gpu_num=record.ranks,
        FINAL_RESULT=round(rate, 3) if rate else 0,
        JOB_FAIL_FLAG=0 if rate else 1,
        UNIT=f"{record.unit}/s",
    )


def parse_paddle(text: str) -> PaddleRecord:
    """Returns the record in a Paddle result file; accepts the misspelt FILNAL_RESULT of some of its scripts.

    Raises UserError for text that is not a JSON object and for a field that is missing or unknown.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"Paddle record: line {error.lineno} is not JSON ({error.msg}): give a result file") from error
    if not isinstance(data, dict):
        raise UserError("Paddle record: not a JSON object: give a result file")
    if "FILNAL_RESULT" in data:
        data["FINAL_RESULT"] = data.pop("FILNAL_RESULT")
    names = [f.name for f in fields(PaddleRecord)]
    if unknown := sorted(set(data) - set(names)):
        raise UserError(f"Paddle record: unknown field '{unknown[0]}': the fields are {', '.join(names)}")
    if missing := [name for name in names if name not in data and name != "UNIT"]:
        raise UserError(f"Paddle record: field '{missing[0]}' is missing: give the file of a complete run")
    return PaddleRecord(**data)
