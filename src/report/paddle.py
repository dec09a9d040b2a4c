"""The record of PaddlePaddle/benchmark's OtherFrame harness: one flat JSON object per run.

FINAL_RESULT is the rate over all devices after warm-up: `steady.p_train` of a training record, `throughput` of a
predict record. JOB_FAIL_FLAG is 1 and FINAL_RESULT 0 if the run is not 'done' or the figure is missing. `bs` in the
names is the batch of one device, `fp` the precision that was run; Paddle's own scripts write fp32 or fp16 there.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from src.report.record import Record
from src.system.home import CONF

# Paddle's directions are 0 (computer vision), 1 (language) and 2 (recommendation). We add 3 for molecules, and 4 for
# models whose yaml in conf/model has no `paddle`.
OTHERS = 4
MODELS = CONF / "model"


class Mission(NamedTuple):
    """Paddle's names for a model: the prefix of its records, model, task and direction."""

    repo: str
    model: str
    mission_name: str
    direction_id: int


@dataclass(frozen=True, kw_only=True)
class PaddleRecord:
    """Paddle's fields, in its order. `index` 1 is a speed."""

    log_file: str
    model_name: str
    mission_name: str
    direction_id: int
    run_mode: str
    index: int
    gpu_num: int
    FINAL_RESULT: float | int
    JOB_FAIL_FLAG: int
    UNIT: str

    def to_json(self) -> str:
        """Returns the record as one line of JSON for Paddle's database."""
        return json.dumps(asdict(self), ensure_ascii=False, allow_nan=False)


def paddle_record(record: Record) -> PaddleRecord:
    """Returns the Paddle record of a run; it is written to a file named `log_file`."""
    case = record.case
    mission = mission_of(case.model)
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


def mission_of(model: str) -> Mission:
    """Returns the `paddle` entry of conf/model/MODEL.yaml, or Paddle's names for another model."""
    file = MODELS / f"{model}.yaml"
    config: Any = OmegaConf.load(file) if file.exists() else {}
    return Mission(**config["paddle"]) if "paddle" in config else Mission("other", model, "其他", OTHERS)
