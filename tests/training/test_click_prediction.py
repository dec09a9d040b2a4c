"""The base of models of clicks, with a network that is not DLRM."""

from pathlib import Path

import pytest
from torch import Tensor, nn

from src.batches.clicks import Clicks
from src.measure.roofline import Cost
from src.run import train
from src.training.click_prediction import ClickPredictionTask
from tests.support.composing import composed, prediction_of


class Logistic(nn.Module):
    def __init__(self, tables: object, num_numerical: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_numerical, 1)

    def forward(self, clicks: Clicks) -> Tensor:
        return self.linear(clicks.numerical.float())[:, 0]


class LogisticTask(ClickPredictionTask):
    def cost(self) -> Cost:
        return Cost(4, 12, 8, 16)


@pytest.mark.slow
def test_a_network_of_ones_own_trains_and_predicts(tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    file.write_text("\n".join(["click,size,colour", *(f"{row % 2},{row % 2},red" for row in range(60)), ""]))
    here = f"{__package__ or 'tests.training'}.test_click_prediction"
    sgd = "{_target_:torch.optim.SGD,_partial_:true,lr:1.0}"
    made = f"{{_target_:{here}.LogisticTask,optimizer:{sgd},network:{{_target_:{here}.Logistic,_partial_:true}}}}"
    common = (
        "model=dlrm", "datamodule=click_file", f"datamodule.source.file={file}", "datamodule.source.label=click",
        "datamodule.source.numerical=[size]", "datamodule.source.categorical=[colour]", "~model.task",
        f"+model.task={made}", "hardware=cpu", "precision=fp32", f"output_root={tmp_path}",
        f"data_root={tmp_path / 'data'}",
    )  # fmt: skip
    run = "logger=none", "~callbacks.progress", "pictures=false", "hp.batch_size=8", "fit.max_epochs=2"
    record = train(composed("train", *common, *run, f"output_dir={tmp_path / 'run'}"))
    assert record.final_metric is not None
    assert (record.final_metric.name, record.final_metric.value) == ("auc", 1.0)
    checkpoint = f"ckpt_path={tmp_path / 'run' / 'checkpoints' / 'last.ckpt'}"
    predicted = prediction_of([*common, checkpoint, f"output_dir={tmp_path / 'predicted'}"])
    assert predicted.final_metric is not None and predicted.final_metric.value == 1
