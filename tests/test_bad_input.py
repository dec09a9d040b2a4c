"""What bad input gets: one line on stderr that names file, row or key and says what to do, exit code 2, no debris."""

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from src.datamodules.molecules.smiles_file import load
from src.models.moflow.network import MoFlow
from src.report.record import read_record
from src.run import train
from src.system.files import sole_run
from src.training.checkpoints import write_checkpoint
from tests.support import ROOT
from tests.support.limits import limited_files
from tests.support.refusing import EntryPoint, the_error_line
from tests.support.tiny_distilbert import tiny_overrides as tiny_sentences
from tests.support.tiny_run import tiny_config, tiny_overrides, write_smiles

pytestmark = pytest.mark.slow

TINY: dict[str, Any] = {
    "bond_hidden": (8, 8), "num_bond_flows": 2, "gnn_channels": 8, "atom_hidden": (8, 8), "num_atom_flows": 3,
}  # fmt: skip


def tiny(home: Path, *overrides: str) -> list[str]:
    """Returns a tiny run that needs no log files of Hydra."""
    return [*tiny_overrides(home), "hydra/job_logging=none", "hydra/hydra_logging=none", *overrides]


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("C1CC", "does not parse"),
        ("C*", "has a wildcard in place of an atom"),
        ("C" * 39, "has too many atoms: 39, and at most 38 fit (datamodule.source.max_atoms)"),
    ],
)
def test_a_bad_molecule(smiles: str, reason: str, tmp_path: Path, refused: EntryPoint) -> None:
    file = write_smiles(tmp_path / "my.smiles")
    lines = file.read_text().splitlines()
    lines[2] = smiles
    file.write_text("\n".join(lines) + "\n")
    for script in ("train.py", "prepare.py"):
        arguments = tiny(tmp_path) if script == "train.py" else tiny_prepare(tmp_path)
        line = refused(script, *arguments, "datamodule.source.skip_bad=false")
        remedy = "correct the file, or leave such molecules out: datamodule.source.skip_bad=true"
        assert line == f"{file} line 3: '{smiles}' {reason}; {remedy}"
        assert files_below(tmp_path / "data") <= {"smiles_file"}


def tiny_prepare(home: Path, *overrides: str) -> list[str]:
    mine = ("datamodule", "+datamodule", "data_root", "output_root", "hydra/")
    return [text for text in tiny(home) if text.startswith(mine)] + list(overrides)


def test_a_missing_molecule_file(tmp_path: Path, refused: EntryPoint) -> None:
    line = refused("prepare.py", *tiny_prepare(tmp_path, f"datamodule.source.file={tmp_path / 'none.smiles'}"))
    assert line.startswith(f"datamodule.source.file={tmp_path / 'none.smiles'} does not exist; give a file")


def test_an_altered_prepared_file(tmp_path: Path, refused: EntryPoint) -> None:
    prepared = load(
        tmp_path / "data" / "smiles_file", file=write_smiles(tmp_path / "my.smiles"), workers=1, rare_below=1
    ).folder
    nodes = prepared / "nodes.npy"
    whole = nodes.read_bytes()
    for damaged in (whole[:-100], whole[:-1] + bytes([whole[-1] ^ 1])):
        nodes.write_bytes(damaged)
        line = refused("train.py", *tiny(tmp_path))
        assert line == f"{nodes} is missing, truncated or altered: delete {prepared} to prepare it again"


def test_a_downloaded_file_with_another_checksum(tmp_path: Path, refused: EntryPoint) -> None:
    file = tmp_path / "data" / "zinc250k" / "zinc250k.smiles"
    file.parent.mkdir(parents=True)
    write_smiles(file)
    line = refused("prepare.py", f"data_root={tmp_path / 'data'}", f"output_root={tmp_path}", "hydra/job_logging=none")
    assert line.startswith(f"{file} is truncated or altered: sha256 ")
    assert line.endswith("; delete it, or give another data_dir")
    assert files_below(file.parent) == {file.name}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint of a tiny network."""
    path = tmp_path / "last.ckpt"
    state = {f"network.{name}": value for name, value in MoFlow(**TINY).state_dict().items()}
    torch.save({"state_dict": state}, path)
    return path


def test_a_checkpoint_of_another_architecture(checkpoint: Path, tmp_path: Path, refused: EntryPoint) -> None:
    shape = r"a checkpoint of another architecture: "
    for other, difference in (("gnn_channels=9", " is "), ("num_atom_flows=4", " is absent there and ")):
        wider = f"model.task.network.{other}"
        train = refused("train.py", *tiny(tmp_path, f"ckpt_path={checkpoint}", wider))
        predict = refused("predict.py", f"ckpt_path={checkpoint}", *tiny_predict(tmp_path), wider)
        for line in (train, predict):
            assert line.startswith(f"{checkpoint}: {shape}")
            assert difference in line
            assert line.endswith("; use the model config it was trained with")


def tiny_predict(home: Path, *overrides: str) -> list[str]:
    mine = ("model.task.network", "precision", "hardware", "output_root", "hydra/")
    return [text for text in tiny(home) if text.startswith(mine)] + [
        "num_samples=4", "batch_size=4", "warmup_batches=0", *overrides,
    ]  # fmt: skip


def test_a_checkpoint_of_another_model(checkpoint: Path, tmp_path: Path, refused: EntryPoint) -> None:
    content = torch.load(checkpoint)
    torch.save(content | {"model_config": {"name": "dlrm", "task": {}}}, checkpoint)
    line = refused("predict.py", f"ckpt_path={checkpoint}", "model=moflow", *tiny_predict(tmp_path))
    assert line == f"{checkpoint} is a checkpoint of dlrm; leave out model=moflow"


class Executes:
    """Makes a folder when it is unpickled without care."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_a_checkpoint_whose_config_names_foreign_code(checkpoint: Path, tmp_path: Path, refused: EntryPoint) -> None:
    config = {"name": "moflow", "task": {"_target_": "os.mkdir", "path": str(tmp_path / "made")}}
    torch.save(torch.load(checkpoint) | {"model_config": config}, checkpoint)
    line = refused("predict.py", f"ckpt_path={checkpoint}", *tiny_predict(tmp_path))
    assert line.startswith(f"{checkpoint}: model.task._target_ is 'os.mkdir'")
    assert not (tmp_path / "made").exists()


def test_resume_of_a_damaged_checkpoint_names_it(checkpoint: Path, tmp_path: Path, refused: EntryPoint) -> None:
    folder = tmp_path / "outputs" / "moflow" / "before" / "checkpoints"
    write_checkpoint(torch.load(checkpoint), folder / "last.ckpt")
    write_checkpoint(torch.load(checkpoint), folder / "best.ckpt")
    data = bytearray((folder / "last.ckpt").read_bytes())
    data[5000] ^= 1
    (folder / "last.ckpt").write_bytes(data)
    line = refused("train.py", *tiny(tmp_path, f"output_root={tmp_path / 'outputs'}", "resume=true"))
    assert line.startswith(f"{folder / 'last.ckpt'}: damaged")
    assert line.endswith(f"go on from the one before it, {folder / 'best.ckpt'}")


@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "text", "strange", "code"])
@pytest.mark.parametrize("script", ["train.py", "predict.py"])
def test_a_checkpoint_that_cannot_be_read(
    script: str, damage: str, checkpoint: Path, tmp_path: Path, refused: EntryPoint
) -> None:
    whole = checkpoint.read_bytes()
    checkpoint.unlink()
    if damage == "strange":
        torch.save([1, 2], checkpoint)
    elif damage == "code":
        torch.save({"state_dict": Executes(tmp_path / "made")}, checkpoint)
    elif damage != "missing":
        checkpoint.write_bytes({"cut": whole[: len(whole) // 2], "empty": b"", "text": b"epoch,step\n"}[damage])
    arguments = tiny(tmp_path) if script == "train.py" else tiny_predict(tmp_path)
    line = refused(script, *arguments, f"ckpt_path={checkpoint}")
    words = {
        "missing": "there is no such checkpoint; give",
        "strange": "holds no state_dict; give",
        "code": "it names posix.mkdir, which a checkpoint of numbers does not need and which was not run",
    }
    assert line.startswith(f"{checkpoint}: {words.get(damage, 'not a readable checkpoint (')}")
    assert not (tmp_path / "made").exists()


def test_a_batch_larger_than_the_split_of_a_published_data_set(tmp_path: Path, refused: EntryPoint) -> None:
    line = refused("train.py", *tiny_sentences(tmp_path), "hp.batch_size=1000")
    assert line.startswith("hp.batch_size=1000 on 1 rank(s) is larger than the training split of ")
    assert "; choose at most " in line


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("hardware=h200", "hardware=h200: no GPU is visible here; use hardware=auto or hardware=cpu"),
        ("precision=tf32", "precision=tf32 needs an NVIDIA GPU of compute capability 8.0 or later; use precision=fp32"),
    ],
)
def test_a_gpu_that_is_not_there(
    override: str, words: str, tmp_path: Path, refused: EntryPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert refused("train.py", *tiny(tmp_path, override)) == words
    assert refused("predict.py", *tiny_predict(tmp_path, override)) == words


def test_a_second_node_that_was_not_started(tmp_path: Path, refused: EntryPoint) -> None:
    arguments = tiny(tmp_path, "trainer=2x8", "note='two words'")
    line = refused("train.py", *arguments)
    assert line.startswith("trainer=2x8 is 16 processes, 1 started (no GPU here, they run on CPUs); start it with: ")
    torchrun, _, sbatch = line.partition("start it with: ")[2].partition("   or: ")
    host = socket.gethostname()
    torchrun, _, where = torchrun.partition(" (on each")
    assert where == f" of 2 nodes, {host} the first)"
    rendezvous = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={host}:29500", "--nproc-per-node=8"]
    assert shlex.split(torchrun) == ["torchrun", *rendezvous, "train.py", *arguments]
    *options, wrapped = shlex.split(sbatch)
    assert options == ["sbatch", "--nodes=2", "--ntasks-per-node=8", "--wrap"]
    assert shlex.split(wrapped) == ["srun", "--kill-on-bad-exit=1", "python", "train.py", *arguments]


def test_an_output_folder_that_cannot_be_written(tmp_path: Path, refused: EntryPoint) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    line = refused("train.py", *tiny(tmp_path, f"output_root={blocked}"))
    assert line.startswith(f"{blocked}")
    assert "Not a directory; give another folder or file, or free some space" in line
    line = refused("train.py", *tiny(tmp_path, f"output_dir={blocked}/run"))
    assert line == f"{blocked}/run: Not a directory; give another folder or file, or free some space"
    assert not (tmp_path / "data").exists()
    line = refused("predict.py", *tiny_predict(tmp_path, f"output={blocked}/molecules.csv"))
    assert line.startswith(f"cannot write {blocked} (File exists)")
    line = refused("prepare.py", *tiny_prepare(tmp_path, f"data_root={blocked}"))
    assert line.startswith(f"cannot write {blocked}/smiles_file")
    assert blocked.read_bytes() == b""


@pytest.mark.parametrize("room", [20_000, 10_000])
def test_a_disk_without_room_for_a_checkpoint(room: int, tmp_path: Path, refused: EntryPoint) -> None:
    """With the smaller room the record cannot be written either: the message still names the checkpoint."""
    folder = tmp_path / "outputs" / "moflow" / "run"
    train(tiny_config(tmp_path))
    before = {path: path.read_bytes() for path in (folder / "checkpoints").iterdir()}
    assert len(before) == 2
    with limited_files(room):
        line = refused("train.py", *tiny(tmp_path, f"output_dir={folder}", "resume=true", "fit.max_epochs=2"))
    assert re.fullmatch(
        rf"cannot write {folder}/checkpoints/\w+\.ckpt \(File too large\): .*another output folder", line
    )
    assert {path: path.read_bytes() for path in (folder / "checkpoints").iterdir()} == before
    assert read_record(folder).status == ("failed" if room == 20_000 else "done")


@pytest.mark.parametrize("key", ["output_dir", "hydra.run.dir"])
@pytest.mark.parametrize("script", ["train.py", "predict.py"])
def test_a_folder_in_which_another_run_writes(script: str, key: str, tmp_path: Path, refused: EntryPoint) -> None:
    folder = tmp_path / "run"
    arguments = tiny(tmp_path) if script == "train.py" else tiny_predict(tmp_path)
    with sole_run(folder):
        (folder / ".hydra").mkdir()
        line = refused(script, *arguments, f"{key}={folder}")
        assert files_below(folder) == {".hydra"}
    assert line == f"{folder}: another run is writing there; give another folder, or wait for its end"


def test_a_report_of_what_is_no_run(tmp_path: Path, refused: EntryPoint) -> None:
    assert refused("report.py", str(tmp_path / "no")) == (
        f"cannot read {tmp_path / 'no'} (No such file or directory): give a run folder with a result.json, or a "
        "record file"
    )
    half = tmp_path / "result.json"
    half.write_text('{"kind": "train",')
    assert refused("report.py", str(tmp_path)).startswith(f"{half}: line 1 is not JSON")


def test_the_process_itself_ends_with_2_and_says_one_line(tmp_path: Path) -> None:
    for mistake in ("model=dlmr", "hp.batchsize=3"):
        command = [sys.executable, "train.py", f"output_root={tmp_path}", mistake]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert ended.returncode == 2
        the_error_line(ended.stderr)
