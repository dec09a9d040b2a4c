"""No file that a run leaves holds a secret that the run was given."""

import json
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from src.system.masking import MASK
from tests.support import warm
from tests.support.refusing import Command, EntryPoint
from tests.support.tiny_mobilenet import tiny_overrides

pytestmark = pytest.mark.slow

VARIABLES = {"REPRISE_TEST_NOTE": "shibboleth-7731", "REPRISE_TEST_WIDTH": "0.1250625"}
LITERAL, SHAPED = "open-sesame-4502", f"hf_{'q' * 34}"
SECRETS = [*VARIABLES.values(), LITERAL, SHAPED]
GIVEN = [
    f"+model.api_key={LITERAL}",
    f"+model.hub={{url:'https://me:{LITERAL}@host/',password:{LITERAL}}}",
    f"+model.shaped={SHAPED}",
    "+model.copy=${note}",
    "note=${oc.env:REPRISE_TEST_NOTE}",
    "model.task.network.width_multiplier='${oc.decode:${oc.env:REPRISE_TEST_WIDTH}}'",
]
SHORT = ["fit.max_steps=2", "fit.final_evaluation=false", "fit.eval_every_n_epochs=null"]


def run(entry: str, *arguments: str, variables: dict[str, str] = VARIABLES) -> subprocess.CompletedProcess[str]:
    return warm.run(entry, *arguments, env=warm.usual() | variables | {"WANDB_SILENT": "true"})


def tiny(home: Path, *overrides: str) -> list[str]:
    return [*tiny_overrides(home), *SHORT, *overrides]


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yields the bytes of every file, and of every part of the zip archives that checkpoints are."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        yield str(path.relative_to(folder)), path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield from ((f"{path.name}/{name}", archive.read(name)) for name in archive.namelist())


def leaks(folder: Path) -> list[tuple[str, str]]:
    return [(name, word) for name, data in contents(folder) for word in SECRETS if word.encode() in data]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a run with each logger that was given all kinds of secrets."""
    home = tmp_path_factory.mktemp("home")
    ended = run("train.py", *tiny(home, *GIVEN, "logger=[csv,tensorboard,wandb]"))
    assert ended.returncode == 0, ended.stderr
    (home / "printed.txt").write_text(ended.stdout + ended.stderr)
    return home


def test_no_file_of_a_run_holds_a_secret(home: Path) -> None:
    names = {name for name, _ in contents(home)}
    expected = {"result.json", "train.log", "metrics.csv", "checkpoints/last.ckpt", ".hydra/config.yaml",
                ".hydra/overrides.yaml", ".hydra/hydra.yaml"}  # fmt: skip
    expected |= {"printed.txt", "/data.pkl", ".wandb"}
    assert {word for word in expected if any(name.endswith(word) for name in names)} == expected
    assert any("tfevents" in name for name in names)
    assert leaks(home) == []


def test_the_record_says_what_was_given_all_the_same(home: Path) -> None:
    record = json.loads((home / "run" / "result.json").read_text())
    assert record["config"]["note"] == record["config"]["model"]["copy"] == "${oc.env:REPRISE_TEST_NOTE}"
    assert record["config"]["model"]["hub"] == {"url": f"https://me:{MASK}@host/", "password": MASK}
    assert record["config"]["model"]["shaped"] == record["config"]["model"]["api_key"] == MASK
    assert {f"+model.api_key={MASK}", "note=${oc.env:REPRISE_TEST_NOTE}"} <= {*record["environment"]["overrides"]}
    assert f"+model.api_key={MASK}" in record["environment"]["command"]
    assert "note: ${oc.env:REPRISE_TEST_NOTE}" in (home / "printed.txt").read_text()


def test_a_prediction_is_given_again_what_its_checkpoint_leaves_out(
    home: Path, tmp_path: Path, refused: EntryPoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a checkpoint names of the environment is not looked up: somebody else may have written it."""
    asked = ["model=mobilenet_v1", "datamodule=image_synthetic", "datamodule.image_size=32", "hardware=cpu",
             f"ckpt_path={home / 'run' / 'checkpoints' / 'last.ckpt'}", f"output_root={tmp_path}",
             "num_samples=8", "batch_size=8", "warmup_batches=0", "benchmark=true"]  # fmt: skip
    with monkeypatch.context() as patched:
        for name, value in VARIABLES.items():
            patched.setenv(name, value)
        lacks = refused("predict.py", *asked, *tiny_sizes())
    assert "give it again as model.task.network.width_multiplier=VALUE" in lacks
    done = run("predict.py", *asked, *tiny_sizes(), GIVEN[-1])
    assert done.returncode == 0, done.stderr
    assert leaks(tmp_path) == []


def tiny_sizes() -> list[str]:
    return [text for text in tiny_overrides(Path()) if text.startswith("datamodule.")]


def test_an_error_of_a_rank_does_not_tell_a_secret(tmp_path: Path) -> None:
    text = f"'${{note}} {LITERAL} {SHAPED}'"
    wrong = f"+callbacks.wrong={{_target_:tests.support.talking.Talker,variables:[],texts:[{text}],fails:true}}"
    ended = run("train.py", *tiny(tmp_path, *GIVEN, wrong, "trainer=1x2"))
    assert ended.returncode == 1
    (tmp_path / "printed.txt").write_text(ended.stdout + ended.stderr)
    assert "Refused: all is wrong:" in ended.stderr
    record = json.loads((tmp_path / "run" / "result.json").read_text())
    assert record["error"]["message"].removeprefix("rank 0: ").removeprefix("rank 1: ").startswith("all is wrong:")
    assert leaks(tmp_path) == []


def test_a_mistake_does_not_tell_a_secret(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_TEST_NOTE", VARIABLES["REPRISE_TEST_NOTE"])
    ended = command("train.py", *tiny(tmp_path, "hp.lr=${oc.env:REPRISE_TEST_NOTE}"))
    assert ended.code == 2 and ended.err.startswith("error: ") and "REPRISE_TEST_NOTE" in ended.err
    assert not any(word in ended.out + ended.err for word in SECRETS)


def sweeping(home: Path, *overrides: str) -> list[str]:
    mine = [text for text in tiny(home, *GIVEN, "seed=1") if not text.startswith("output_dir=")]
    return ["-m", *mine, *overrides, f"hydra.sweep.dir={home / 'sweep'}"]


def test_no_file_of_a_sweep_holds_a_secret_and_the_sweep_asks_for_it(tmp_path: Path, refused: EntryPoint) -> None:
    sweep = tmp_path / "sweep"
    needed = "+model.password=0.125", "model.task.network.width_multiplier=${model.password}"  # else the job fails
    asked = sweeping(tmp_path, *needed)
    ended = run("train.py", *asked)
    assert ended.returncode == 0, ended.stderr
    (tmp_path / "printed.txt").write_text(ended.stdout + ended.stderr)
    assert (sweep / "multirun.yaml").exists() and leaks(tmp_path) == []
    file = sweep / "0" / "job.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"state": "waiting"}))
    lacks = refused("train.py", "-m", f"sweep.resume={sweep}")
    assert f"{file.parent}: the job was given a secret, which is not kept; give all overrides" in lacks
    again = run("train.py", *asked, f"sweep.resume={sweep}")
    assert again.returncode == 0, again.stderr
    assert json.loads(file.read_text())["state"] == "done"
    assert not (sweep / "1").exists() and leaks(tmp_path) == []


def test_no_file_of_a_search_holds_a_secret(tmp_path: Path) -> None:
    """Its job is refused at once."""
    search = "hydra/sweeper=search", "hydra.sweeper.trials=1", "hydra.sweeper.maximize=p_train", "hp.lr=-1,-2"
    ended = run("train.py", *sweeping(tmp_path, *search))
    assert ended.returncode == 2 and "hp.lr=-" in ended.stdout, ended.stderr
    (tmp_path / "printed.txt").write_text(ended.stdout + ended.stderr)
    files = {path.name for path in (tmp_path / "sweep").rglob("*")}
    assert {"multirun.yaml", "search.db", "job.json", "log.txt"} <= files
    assert leaks(tmp_path) == []
