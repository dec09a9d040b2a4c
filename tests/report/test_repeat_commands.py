"""The commands under "Repeat" of a result page compose the configs of the kept records."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from benchmarks.beside.__main__ import parsed
from src.config.complete import load_hardware
from src.config.from_file import GONE
from src.config.trained import OF_PREDICTIONS, is_given
from tests.support import ROOT
from tests.support.composing import composed

RESULTS = ROOT / "docs" / "results"
RECORDS = RESULTS / "records"
SEPARATOR = "\x1f"
# A run's folders; and where a data set or vocabulary lies. What is downloaded if none is named is the same file.
FOLDERS = re.compile(r"data_root|output_(dir|root)|ckpt_path|datamodule\.data_dir|.*\.(dirpath|save_dir)")
FILES = {"datamodule.raw": None, "datamodule.vocabulary": "distilbert-base-uncased", "datamodule.source": ...,
         "datamodule.source.split_file": "official", "model.task.weights": ...}  # fmt: skip
WITHOUT_A_KEY = ("callbacks.rng._target_", *GONE)  # what every run has now, or none
OF_A_CHECKPOINT = ("datamodule.", "model.task.", "model.hp.", "precision.")


def blocks(page: Path) -> str:
    """Returns the indented lines of a page that run a script of docs/results."""
    lines = re.findall(r"^    (.*docs/results/\w+\.sh .*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return "\n".join(line for line in lines if 'GPUS="1 8"' not in line)  # was not measured


def logged(page: Path, folder: Path) -> list[list[str]]:
    """Returns the words of every command that a page's lines run, on a machine with eight GPUs."""
    log, python, smi = folder / "log", folder / "python", folder / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    python.write_text(f'#!/bin/sh\nfor word in "$@"; do printf "%s\\037" "$word"; done >> {log}\necho >> {log}\n')
    smi.write_text("#!/bin/sh\nfor i in 0 1 2 3 4 5 6 7; do echo GPU $i; done\n")
    for program in (python, smi):
        program.chmod(0o755)
    (folder / "docs").symlink_to(ROOT / "docs")
    variables = {**os.environ, "PYTHON": str(python), "PATH": f"{smi.parent}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-e", "-c", blocks(page)], cwd=folder, env=variables, check=True, stdout=subprocess.DEVNULL)
    return [line.removesuffix(SEPARATOR).split(SEPARATOR) for line in log.read_text().splitlines()]


def jobs(words: list[str], model: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the name of the record and the overrides of each job of a command."""
    options = {word.partition("=")[0]: word.partition("=")[2] for word in words[1:]}
    rest = [word for word in words[1:] if word != "-m" and not word.startswith("hydra")]
    if "hydra.sweep.subdir" not in options:
        where = Path(options["output_dir"])
        yield "_".join([model_of(words, model), *where.parts[1:]]).replace("x1_published", "published_x1"), rest
        return
    rest = [word for word in rest if not word.startswith("batch_size=")]
    for value in options["batch_size"].split(","):
        name = options["hydra.sweep.subdir"].replace("${batch_size}", value)
        yield f"{model}_{name}", [*rest, f"batch_size={value}", f"output_dir=OUT/{name}"]


def model_of(words: list[str], model: str) -> str:
    named = [word.partition("=")[2] for word in words if word.startswith("model=")]
    experiments = {"moflow": "moflow", "se3": "se3_transformer", "dlrm": "dlrm", "distilbert": "distilbert",
                   "mobilenet": "mobilenet_v1"}  # fmt: skip
    named += [experiments[word.partition("=")[2].split("_")[0]] for word in words if word.startswith("experiment=")]
    return named[0] if named else model


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """Returns the values of a config by their dotted keys."""
    if not isinstance(config, dict) or not config:
        return {prefix: config}
    return {key: value for name, part in config.items() for key, value in flat(part, f"{prefix}.{name}").items()}


def named(config: Any) -> dict[str, Any]:
    return {key.removeprefix("."): value for key, value in flat(config).items()}


def config_of(entry: str, overrides: list[str], record: dict[str, Any]) -> dict[str, Any]:
    """Returns the values that a run of the command would have on the record's hardware, of its checkpoint too."""
    config = composed(entry, *overrides)
    config.hardware = load_hardware(record["case"]["hardware"])  # found at run time
    if entry == "train" and config.hp.batch_per == "global":
        config.datamodule.batch_size = config.hp.batch_size // (config.trainer.num_nodes * config.trainer.devices)
    values = named(OmegaConf.to_container(config, resolve=True))
    checkpoint = next((word.partition("=")[2] for word in overrides if word.startswith("ckpt_path=")), None)
    if checkpoint:
        run = RECORDS / f"moflow_{Path(checkpoint).parts[1]}.json"
        trained = named(json.loads(run.read_text(encoding="utf-8"))["config"])
        for part in OF_A_CHECKPOINT:
            keys = {key for key in values if key.startswith(part) and not is_kept(key, overrides)}
            values = {key: value for key, value in values.items() if key not in keys}
            values |= {
                key: value for key, value in trained.items() if key.startswith(part) and not is_kept(key, overrides)
            }
    return values


def is_kept(key: str, overrides: list[str]) -> bool:
    """Returns whether a prediction has this value from its command and not from its checkpoint."""
    return is_given(key, overrides) or key in [f"datamodule.{name}" for name in OF_PREDICTIONS]


def differences(ours: dict[str, Any], theirs: dict[str, Any], overrides: list[str]) -> list[str]:
    """Returns the keys whose values differ. A key that is newer than the record counts where the command names it.

    A checkpoint of MoFlow also holds the elements of its data.
    """
    ours = {"model.task.elements": theirs["model.task.elements"], **ours} if "model.task.elements" in theirs else ours
    lines = []
    for key in sorted((ours.keys() | theirs.keys()).difference(WITHOUT_A_KEY)):
        value, kept = ours.get(key, "absent"), theirs.get(key, "absent")
        if key.endswith("_target_"):  # a class may have another module since
            value, kept = (str(name).rpartition(".")[2] for name in (value, kept))
        if FOLDERS.fullmatch(key) or value == kept or (kept == "absent" and not is_given(key, overrides)):
            continue
        if key in FILES and (value == FILES[key] or None not in (value, kept)):
            continue
        lines.append(f"{key}: {value}, in the record {kept}")
    return lines


def pages() -> list[Path]:
    return [page for page in sorted(RESULTS.glob("*.md")) if blocks(page)]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, list[str]]]:
    """The words of each command of each page, with the model that the page is of."""
    return [(page.stem, words) for page in pages() for words in logged(page, tmp_path_factory.mktemp(page.stem))]


@pytest.mark.slow
def test_the_commands_of_the_pages_compose_the_configs_of_all_kept_records(
    commands: list[tuple[str, list[str]]],
) -> None:
    """But for folders. Commands of which no record is kept, such as those of eight GPUs, are not compared."""
    wrong, repeated = {}, set[str]()
    for model, words in commands:
        if words[0] not in ("train.py", "predict.py"):
            continue
        for name, overrides in jobs(words, "moflow" if model == "quality" else model):
            if not (RECORDS / f"{name}.json").exists():
                continue
            record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
            repeated.add(name)
            values = config_of(Path(words[0]).stem, overrides, record)
            wrong |= {name: lines} if (lines := differences(values, named(record["config"]), overrides)) else {}
    assert not wrong, "\n".join(f"{name}: {lines}" for name, lines in wrong.items())
    assert {file.stem for file in RECORDS.glob("*.json")} - repeated == set()


def test_the_commands_of_the_pages_repeat_all_kept_comparisons(commands: list[tuple[str, list[str]]]) -> None:
    """With as many rounds of as many seconds, the same peers and options, but for folders."""

    def asked(words: list[str]) -> dict[str, Any]:
        values = vars(parsed(words)) | {"out": None, "reference": None, "limit": None}
        options = [word for word in values["words"] or () if not word.startswith("data_root=")]
        return values | {"words": [re.sub("=[^=]*valid_idx_zinc.json$", "=official", word) for word in options]}

    repeated = {}
    for _, words in commands:
        if words[:2] == ["-m", "benchmarks.beside"]:
            repeated[f"{words[2]}_{words[3]}"] = asked(words[2:])
    kept = {
        file.stem: asked(shlex.split(json.loads(file.read_text(encoding="utf-8"))["command"])[3:])
        for file in (RESULTS / "beside").glob("*.json")
    }
    assert repeated == kept
