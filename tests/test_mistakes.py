"""Mistakes that people make in a command: one line that names the key and the way out, exit code 2, nothing written."""

from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.refusing import EntryPoint

NO = "/no/where"
MISTAKES = [
    # names of keys
    ("train.py hp.learning_rate=0.1", "unknown key 'hp.learning_rate', did you mean 'hp.lr'?"),
    ("train.py lr=0.1", "unknown key 'lr', did you mean 'hp.lr'?"),
    ("train.py bs=8", "did you mean 'hp.batch_size'?"),
    ("train.py hp.batchsize=3", "did you mean 'hp.batch_size'?"),
    ("train.py batch_size=8", "did you mean 'hp.batch_size'?"),
    ("train.py epochs=3", "did you mean 'fit.max_epochs'?"),
    ("train.py max_epochs=3", "did you mean 'fit.max_epochs'?"),
    ("train.py gpus=2", "did you mean 'trainer=1xN'?"),
    ("train.py dataset=qm9", "did you mean 'datamodule'?"),
    ("train.py checkpoint=last.ckpt", "did you mean 'ckpt_path'?"),
    ("predict.py ckpt=last.ckpt", "did you mean 'ckpt_path'?"),
    ("predict.py n=10", "did you mean 'num_samples'?"),
    ("prepare.py datamodul=zinc250k", "did you mean 'datamodule'?"),
    # groups and their choices
    ("train.py model=se3", "did you mean 'se3_transformer'?; choose from distilbert, dlrm, "),
    ("train.py model=bert", "did you mean 'distilbert'?"),
    ("train.py model=mobilenet", "did you mean 'mobilenet_v1'?"),
    ("train.py datamodule=imagefolder", "did you mean 'image_folder'?"),
    ("train.py precision=16", "precision=16: there is no such precision, did you mean 'bf16'?"),
    ("train.py trainer=8", "trainer=8: there is no such trainer, did you mean '1x8'?"),
    ("train.py fix_hp=max_bs", "write +fix_hp=..."),
    ("train.py model=moflow trainer=1x2 +fix_hp=max_bs", "no published row for moflow 1x2; there are"),
    ("predict.py trainer=1x2", "trainer is no group of this command; see --help"),
    ("prepare.py model=moflow", "model is no group of this command; see --help"),
    ("prepare.py datamodule=zinc", "did you mean 'zinc250k'?"),
    # the form of the command
    ("train.py --lr 0.1", "there is no option --lr; give keys as KEY=VALUE without dashes"),
    ("train.py hp.lr 0.1", "'hp.lr' has no value: write KEY=VALUE without spaces"),
    ("train.py hp.lr=0.1,0.2", "has several values: add -m for a sweep"),
    ("train.py hp.batch_size=[", "'hp.batch_size=[' cannot be read"),
    ("prepare.py zinc250k", "'zinc250k' has no value: write KEY=VALUE"),
    ("report.py", "give run folders or record files"),
    (f"report.py {NO}", f"cannot read {NO} (No such file or directory): give a run folder with a result.json"),
    ("report.py --format xml run", "invalid choice: 'xml' (choose from"),
    # values: most are in tests/config/test_values.py
    ("train.py hp.lr=-1", "hp.lr=-1.0 is not allowed; expected a number of 0 or more"),
    ("predict.py num_samples=0", "num_samples=0 is not allowed; expected a whole number of 1 or more, or null"),
    ("prepare.py seed=-1", "seed=-1 is not allowed; expected a whole number of 0 to 4294967295"),
    ("train.py output_dir=", "output_dir= is not allowed; expected a text"),
    ("train.py trainer=null", "trainer=null: there is no such trainer; choose from 1x1, "),
    ("predict.py precision=1.5", "precision=1.5: there is no such precision"),
    ("train.py hp.lr=fast", "hp.lr: Value 'fast' of type 'str' could not be converted to Float"),
    ("train.py hp.batch_size=8k", "hp.batch_size: Value '8k'"),
    ("predict.py output=molecules.doc", "the ending must be .csv"),
    ("train.py hardware=cpu execution.graph=on", "execution.graph=on needs an NVIDIA GPU; give execution.graph=auto"),
    ("predict.py hardware=cpu execution.graph=on", "execution.graph=on needs an NVIDIA GPU"),
    # what is not there, or does not belong together, in all five models
    ("train.py ckpt_path=no.ckpt", "no.ckpt: there is no such checkpoint; give the path of a last.ckpt or best.ckpt"),
    ("predict.py ckpt_path=no.ckpt", "no.ckpt: there is no such checkpoint"),
    ("predict.py ckpt_path=no.ckpt datamodule.predict=dev", "no.ckpt: there is no such checkpoint"),
    ("train.py model.task._target_=gone.Task", "model.task._target_=gone.Task is no class or function"),
    ("train.py datamodule=smiles_file", "datamodule.source.file has no value; give it as datamodule.source.file=VALUE"),
    (f"train.py datamodule=smiles_file datamodule.source.file={NO}", f"datamodule.source.file={NO} does not exist"),
    ("train.py model=moflow datamodule=qm9", "MoFlow needs molecules; give datamodule=zinc250k"),
    ("train.py model=se3_transformer datamodule=zinc250k", "needs atoms in space; give datamodule=qm9"),
    (
        f"train.py model=se3_transformer datamodule=molecule_file datamodule.task=gap datamodule.source.file={NO}.xyz",
        f"{NO}.xyz",
    ),
    ("train.py model=dlrm datamodule=cifar10", "DLRM needs clicks; give datamodule=criteo"),
    ("train.py model=dlrm", "has no feature_spec.yaml: prepare it with `prepare.py datamodule=criteo"),
    ("train.py model=distilbert datamodule=qm9 precision=fp32 model.task.weights=random", "DistilBERT needs"),
    (f"train.py model=distilbert datamodule.raw={NO} precision=fp32 model.task.weights=random", NO),
    ("train.py model=mobilenet_v1 datamodule=sst2", "MobileNetV1 needs images; give datamodule=imagenet"),
    (f"train.py model=mobilenet_v1 datamodule=image_folder datamodule.data_dir={NO}", f"cannot read {NO}/train"),
    (f"prepare.py datamodule=criteo datamodule.raw={NO}", f"{NO} has neither day_0 ... day_23"),
]


EVERY = 8  # of these, one is among the fast tests


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        pytest.param(*mistake, id=mistake[0], marks=[pytest.mark.slow] if number % EVERY else [])
        for number, mistake in enumerate(MISTAKES)
    ],
)
def test_a_mistake(
    typed: str,
    expected: str,
    tmp_path: Path,
    refused: EntryPoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def download(*_: object) -> None:
        raise AssertionError("data was asked for")

    for name in ("download._wheel", "url.download"):
        monkeypatch.setattr(f"src.datamodules.{name}", download)
    script, *words = typed.split()
    output, data = tmp_path / "outputs", tmp_path / "data"
    folders = [f"data_root={data}", f"output_root={output}", "hydra/job_logging=none"]
    claimed = set(ROOT.glob("outputs/*/*"))  # by a value that another replaces
    line = refused(script, *words, *(folders if script != "report.py" else []))
    assert expected in line
    assert set(ROOT.glob("outputs/*/*")) == claimed
    assert {path for path in tmp_path.rglob("*") if path.is_file() or path.parent == output} == set()
