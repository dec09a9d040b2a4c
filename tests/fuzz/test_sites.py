"""Every place that reads a file belongs to a reader that is tried on damage (test_readers.py), or says why it does not.

A place is a function of src that calls one of READS. What a function of `src/system/reading.py` reads is counted where
it is called.
"""

import ast
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from src.datamodules.clicks.feature_spec import SPLITS
from src.errors import UserError
from src.system import reading
from tests.fuzz.test_readers import READERS
from tests.support import ROOT

# By the last name of a call, or by its last two where the last alone says too little.
READS = {
    "open", "read_text", "read_bytes", "fromfile", "memmap", "loadtxt", "genfromtxt", "open_memmap", "load_file",
    "safe_open", "is_zipfile", "ZipFile", "TarFile", "GzipFile", "BZ2File", "LZMAFile", "Unpickler", "safe_load",
    "unsafe_load", "full_load", "read_csv", "scan_csv", "read_parquet", "scan_parquet", "read_json", "read_ipc",
    "read_excel", "read_feather", "read_pickle", "SDMolSupplier", "SmilesMolSupplier", "ForwardSDMolSupplier",
    "MolFromMolFile", "MolFromPDBFile", "MolFromMol2File", "MolFromXYZFile", "imread", "decode_jpeg", "parse_file",
    "mmap", "ConfigParser", "from_file", "from_pretrained", "file_digest", "compose", "json.load", "json.loads",
    "np.load", "torch.load", "pickle.load", "pickle.loads", "yaml.load", "OmegaConf.load", "tomllib.load",
    "tomllib.loads", "csv.reader", "csv.DictReader", "joblib.load", "shelve.open", "sqlite3.connect",
    "ElementTree.parse",
    *(name for name in vars(reading) if name.startswith(("read_", "open_", "parsed_"))),
}  # fmt: skip
OURS = "it was written by this process, or by a worker of it, for itself"
CODE = "it is a file of this project"
CONFIG = "it is a config that the user wrote, which is trusted as code is (SECURITY.md)"
KERNEL = "it is a file of the kernel"
WRITES = "it opens a file to write it"
SUMMED = "its SHA-256 is compared with one in the code before it is read"
BYTES = "it takes bytes as they are, of any content, or text that only has to be UTF-8"
RESULT = "it is a committed result"
WHY = {OURS, CODE, CONFIG, KERNEL, WRITES, SUMMED, BYTES, RESULT}

# Why a place needs no reader, or the reader that is tried on it; of a function, or of all in a file or folder.
PLACES: dict[str, str] = {
    "src/callbacks/loggers.py:_log_to_tensorboard": OURS,
    "src/callbacks/mllog.py:MLLog._write": WRITES,
    "src/config/complete.py": CODE,
    "src/config/explain.py": CODE,
    "src/config/hydra_files.py:is_of_a_mistake": OURS,
    "src/config/reference.py": CODE,
    "src/config/searched.py": OURS,
    "src/config/settings.py": CONFIG,
    "src/config/trained.py": "checkpoint",
    "src/trained.py:open_trained": CODE,
    "src/datamodules/clicks/check.py:expect_checked": "checked.json",
    "src/datamodules/clicks/check.py:_check_chunk": BYTES,
    "src/datamodules/clicks/columns.py": OURS,
    "src/datamodules/clicks/feature_spec.py:_Reader.__init__": "feature_spec",
    "src/datamodules/clicks/jobs.py:Jobs.results": OURS,
    "src/datamodules/clicks/own.py:ClickFileDataModule.known_labels": SUMMED,
    "src/datamodules/clicks/own.py:ClickFileDataModule.values": SUMMED,
    "src/datamodules/clicks/prepare.py": OURS,
    "src/datamodules/clicks/raw.py:estimated_rows": BYTES,
    "src/datamodules/clicks/raw.py:_opened": "criteo",
    "src/datamodules/clicks/records.py": WRITES,
    "src/datamodules/clicks/split_binary.py:_opened": BYTES,
    "src/datamodules/clicks/synthetic_files.py": WRITES,
    "src/datamodules/clicks/vocabulary.py": OURS,
    "src/datamodules/download.py:sha256_of": BYTES,
    "src/datamodules/download.py:_unpack": SUMMED,
    "src/datamodules/fingerprint.py": BYTES,
    "src/datamodules/graphs/prepare.py:load_graphs": "graphs_meta",
    "src/datamodules/graphs/prepare.py:load_own_graphs": "graphs_meta",
    "src/datamodules/graphs/prepare.py:_graph_data": "graphs_meta",
    "src/datamodules/graphs/sdf.py:_properties": "molecules.sdf",
    "src/datamodules/graphs/qm9.py:_read": SUMMED,
    "src/datamodules/graphs/qm9_dgl.py:_read": "qm9_edge",
    "src/datamodules/images/cifar10.py:CIFAR10DataModule.setup": SUMMED,
    "src/datamodules/images/cifar10_files.py": "cifar10",
    "src/datamodules/images/check.py:content": BYTES,
    "src/datamodules/images/check.py": "image",
    "src/datamodules/images/decode.py:load": "image",
    "src/datamodules/images/decode.py:decode_whole": "cifar10",
    "src/datamodules/images/decode.py:reduced": "image",
    "src/datamodules/images/decode.py:by_pillow": "image",
    "src/datamodules/images/rendering.py:jpeg_orientation": "image",
    "src/datamodules/molecules/encoded.py:stored": "molecules_meta",
    "src/datamodules/molecules/own.py:load_own": OURS,
    "src/datamodules/molecules/qm9.py:_read": SUMMED,
    "src/datamodules/molecules/zinc250k.py:_read": SUMMED,
    "src/datamodules/prepared.py:_read_meta": "graphs_meta",
    "src/datamodules/splits.py:read_split": "held_out",
    "src/datamodules/tables.py:_content": "sentences.gz",
    "src/datamodules/tables.py:_header": "sentences.csv",
    "src/datamodules/tables.py:_is_quoted": "sentences.tsv",
    "src/datamodules/tables.py:_parquet": "sentences.parquet",
    "src/datamodules/tables.py:_parsed": "sentences.jsonl",
    "src/datamodules/tables.py:_records": "sentences.csv",
    "src/datamodules/text/data.py:TokenData.load": "tokens",
    "src/datamodules/text/sst2_files.py:_unpack": "sst2.zip",
    "src/datamodules/text/sst2_files.py:read_tsv": "sst2.tsv",
    "src/datamodules/text/tokenizer.py:_object": "tokenizer",
    "src/datamodules/text/vocabulary.py:_read": "vocabulary",
    "src/datamodules/text_files.py:decoded": "smiles_list",
    "src/datamodules/text_files.py:text_of": "smiles_list",
    "src/datamodules/url.py": WRITES,
    "src/gpu/kernel_archive.py:pack": WRITES,
    "src/gpu/kernel_archive.py:parsed": "kernels.zip",
    "src/gpu/kernel_archive.py:unpack": "kernels.zip",
    "src/gpu/precompile.py": CODE,
    "src/gpu/tuned_products.py:read_choices": "products",
    "src/launch/devices.py:cpu_flags": KERNEL,
    "src/launch/failures.py:another_failed": OURS,
    "src/launch/failures.py:read": OURS,
    "src/measure/cpu_peaks.py:read": "cpu_peaks",
    "src/measure/environment.py:cpu_name": KERNEL,
    "src/measure/loop.py:peaks_in": CODE,
    "src/measure/roofline.py:datasheet": CODE,
    "src/measure/sources.py": CODE,
    "src/measure/starting.py:process_creation_s": KERNEL,
    "src/pretrained/weights.py:places_in": "export",
    "src/pretrained/weights.py:weights_difference": OURS,
    "src/models/distilbert/export.py:exported.from_transformers": OURS,
    "src/system/distribution.py": CODE,
    "src/training/sentence_prediction.py:read_input": BYTES,
    "src/models/distilbert/weights.py:read_config": "weights.config",
    "src/models/distilbert/weights.py:read_tensors": "weights.bin",
    "src/models/se3_transformer/checkpoint.py:read_tensors": "weights.safetensors",
    "src/training/image_predictor.py:ImagePredictor.pixels": BYTES,
    "src/molecules/distances.py:chemnet": CODE,
    "src/published": CODE,
    "src/report/compare/page.py:_pictures": BYTES,
    "src/report/compare/pictures.py:_is_png": BYTES,
    "src/report/compare/varied.py:as_number": CONFIG,
    "src/report/in_turn.py": "comparison",
    "src/report/json_files.py": "record",
    "src/report/paddle.py:mission_of": CODE,
    "src/report/pages.py": CODE,
    "src/report/record.py": "record",
    "src/report/stability.py": CODE,
    "src/report/wandb_run.py:_table": OURS,
    "src/report/verify.py:_sha256": BYTES,
    "src/report/verify.py:_listed": RESULT,
    "src/report/verify.py": "record",
    "src/report/job.py:read_job": OURS,
    "src/sweep/largest.py": CONFIG,
    "src/sweep/outcome.py:last_line": BYTES,
    "src/sweep/supervise.py:supervise": WRITES,
    "src/sweep/supervise.py:oom_kills": KERNEL,
    "src/sweep/supervise.py:": OURS,
    "src/system/files.py": WRITES,
    "src/system/group.py": KERNEL,
    "src/system/leak_rules.py": CODE,
    "src/system/openmp.py": KERNEL,
    "src/system/pipes.py": WRITES,
    "src/system/run_log.py": WRITES,
    "src/system/signals.py": KERNEL,
    "src/system/tables.py": WRITES,
    "src/system/workers.py:cgroup_quotas": KERNEL,
    "src/system/workers.py": OURS,
    "src/training/checkpoints.py": "checkpoint",
}


def name_of(node: ast.expr) -> str:
    """Returns the dotted name of what is called; the last part alone of the result of another call."""
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_read(call: ast.Call) -> bool:
    parts = name_of(call.func).split(".")
    return parts[-1] in READS or ".".join(parts[-2:]) in READS


def places_in(tree: ast.AST, prefix: str = "") -> Iterator[str]:
    """Yields the names of the functions in which something is read, as Class.function; `` for a module itself."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from places_in(node, f"{prefix}.{node.name}" if prefix else node.name)
        else:
            if isinstance(node, ast.Call) and is_read(node):
                yield prefix
            yield from places_in(node, prefix)


@cache
def places() -> list[str]:
    sites = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        if path.name != "reading.py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            sites += [f"{path.relative_to(ROOT)}:{name}" for name in dict.fromkeys(places_in(tree))]
    return sites


def entry_of(place: str) -> str | None:
    """Returns the entry of PLACES for a place: its own, its file's or its folder's."""
    file = place.partition(":")[0]
    return next((name for name in (place, file, *map(str, Path(file).parents)) if name in PLACES), None)


def test_every_place_that_reads_a_file_has_a_reader_or_a_reason() -> None:
    assert [place for place in places() if entry_of(place) is None] == []
    assert sorted({*PLACES.values()} - WHY - {*READERS}) == []


def test_a_new_place_is_found() -> None:
    code = "import json\nclass A:\n    def f(self, p):\n        return json.load(p)\nx = np.load('a')\ny = loads()"
    assert set(places_in(ast.parse(code))) == {"A.f", ""}


@pytest.mark.slow
def test_every_reader_of_a_place_runs_it(tmp_path: Path) -> None:
    """A reader that has ceased to come there would try nothing."""
    unread = []
    for name in sorted({*PLACES.values()} - WHY):
        ran = executed(name, tmp_path / name)
        for place in places():
            entry = entry_of(place)
            if entry is not None and entry == place and PLACES[entry] == name and place not in ran:
                unread.append(f"{name} does not run {place}")
    assert unread == []


def executed(name: str, folder: Path) -> set[str]:
    """Returns the places that a reader comes to with undamaged files."""
    read, file, made = READERS[name]
    folder.mkdir()
    ran: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and "/src/" in frame.f_code.co_filename:
            path = Path(frame.f_code.co_filename).relative_to(ROOT)
            ran.add(f"{path}:{frame.f_code.co_qualname.replace('.<locals>', '')}")

    for seed in made():
        (folder / file).write_bytes(seed)
        for split in SPLITS:
            (folder / split).mkdir(exist_ok=True)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            with redirect_stderr(StringIO()), suppress(UserError):
                read(folder / file)
        finally:
            sys.setprofile(before)
    return ran
