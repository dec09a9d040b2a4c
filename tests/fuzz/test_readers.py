"""Every reader of files is tried on random damage: it returns what is valid, or raises one printable line.

`python -m tests.fuzz.test_readers 100000 [READER ...]` tries more than the tests do.
"""

import gzip
import io
import json
import math
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from src.config.trained import plain_values
from src.datamodules import prepared
from src.datamodules.clicks import own_rows, raw, text
from src.datamodules.clicks.feature_spec import FILE, SPLITS, FeatureSpec
from src.datamodules.graphs import files
from src.datamodules.graphs.own_splits import OwnSplit, shared_split
from src.datamodules.graphs.parse import parse
from src.datamodules.graphs.prepare import load_graphs, load_own_graphs, parse_chunk
from src.datamodules.images.cifar10_files import read_cifar10
from src.datamodules.molecules import own as own_molecules
from src.datamodules.molecules import smiles_file, smiles_rows
from src.datamodules.text.tables import read_table
from src.datamodules.text.vocabulary import Vocabulary
from src.errors import LONGEST, UserError
from src.gpu.tuned_products import TORCHS, read_choices
from src.models.dlrm.network import MLP
from src.molecules.encode import encode_chunk
from src.molecules.vocabulary import ZINC250K
from src.printable import printable
from src.report.beside import page
from src.report.in_turn import read_comparison
from src.report.record import read_record
from src.report.text import summary
from src.report.verify import verify_file
from src.training.checkpoints import compare, read_checkpoint, trained_config
from tests.fuzz import binary_readers
from tests.support import ROOT
from tests.support.fuzzing import damaged

INPUTS = 100  # of each reader in the slow tests
WORST_S = 20.0  # for one input

XYZ = b"""3
energy=-76.4 charge=0 label="a water"
O 0.0 0.0 0.117
H 0.0 0.757 -0.469
H 0.0 -0.757 -0.469
5
Properties=species:S:1:pos:R:3:mag:R:1 dipole=1e-3
C 0 0 0 1
H .63 .63 .63 1
H -.63 -.63 .63 1
H -.63 .63 -.63 1
H .63 -.63 -.63 1
"""
SDF = b"""water
  made 3D

  3  2  0  0  0  0  0  0  0  0999 V2000
    0.0000    0.0000    0.1170 O   0  0
    0.0000    0.7570   -0.4690 H   0  0
    0.0000   -0.7570   -0.4690 H   0  0
  1  2  1  0
  1  3  1  0
M  END
>  <logp>
-1.38

$$$$
"""
SMILES = b"CC(=O)Oc1ccccc1C(=O)O aspirin\nCn1cnc2c1c(=O)n(C)c(=O)n2C\n\nC[N+](C)(C)CC(=O)[O-]\nO=[N+]([O-])c1ccccc1\n"
CSV = b'smiles,logp,name\nCCO,-0.3,"ethanol, dry"\nc1ccccc1,2.1,benzene\nCC(=O)O,-0.17,\n'
SENTENCES = b'text,label\n"a fine, long film",1\nboring,0\n"said ""no""",1\n'
TSV = b'text\tlabel\na fine film\tgood\n"boring" or "not"\tbad\n'
QUOTED = 'text;label\n"said ""no""\nagain";"good"\nboring;bad\n'.encode("utf-16")
JSONL = b'{"text": "a fine film", "label": 1}\n{"text": "boring", "label": "bad"}\n'
TOKENIZER = (
    b'{"added_tokens": [{"id": 0, "content": "[PAD]"}], "normalizer": {"type": "BertNormalizer", "lowercase": false, '
    b'"strip_accents": null}, "pre_tokenizer": {"type": "BertPreTokenizer"}, "model": {"type": "WordPiece", "vocab": '
    b'{"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "a": 4, "film": 5, "##e": 6}}}'
)
CLICKS = b"clicked,age,site\n1,30,a\n0,,b\n1,-4.5e3,\n,2,a\n0,1,c\n1,7,d\n"
CRITEO = (b"1\t" + b"\t".join(b"%d" % n for n in range(-2, 11)) + b"\t" + b"\t".join([b"68fd1e64"] * 25) + b"\t\n") * 3


def finite(*arrays: Any) -> None:
    for array in arrays:
        assert np.isfinite(np.asarray(array, np.float64)).all()


def smiles_list(path: Path) -> None:
    rows = smiles_rows.rows_of(path)
    arrays, bad = encode_chunk([row.smiles for row in rows][:20], ZINC250K)
    assert len(arrays.published) + len(bad) == min(len(rows), 20)
    for _, error in bad:
        str(error).encode()


def molecules(path: Path) -> None:
    entries = files.entries_of(path)
    assert not np.isinf(entries.targets).any()
    parsed = parse_chunk(parse, entries.contents[:6])
    finite(parsed.arrays.positions)


def table(path: Path) -> None:
    data = read_table(path, "text", "label", labelled=True)
    assert all(sentence.strip() for sentence in data.texts) and len(data.texts) == len(data.labels)


def tokenizer(path: Path) -> None:
    data = Vocabulary(str(path.parent / "tokenizer.json")).encode(["a fine film"], "here")
    assert len(data.ids) == data.starts[-1]


def clicks(path: Path) -> None:
    columns = {"label": "clicked", "numerical": ["age"], "categorical": ["site"]}
    data, _ = own_rows.read_clicks(own_rows.ClickColumns(str(path), **columns, held_out_share=0.4, form=2))
    finite(data.numbers or [0])
    assert set(data.labels) <= {0, 1}


def criteo(path: Path) -> None:
    for block in raw.blocks(raw.Span(path, 0, path.stat().st_size)):
        records = text.parse(block.text)
        if records is None:
            raise text.explain(block.text[text.PAD :].tobytes(), 1, str(path))
        finite(records["numerical"])


def feature_spec(path: Path) -> None:
    path.replace(path.with_name(FILE))
    FeatureSpec.load(path.parent)


def cifar10(path: Path) -> None:
    for images in read_cifar10(path).values():
        assert images.pixels.dtype == np.uint8 and 0 <= images.labels.min() <= images.labels.max() < 10


def checkpoint(path: Path) -> None:
    content = read_checkpoint(path)
    trained_config(content, path)
    task = torch.nn.ModuleDict({"network": NETWORK})
    compare(content, path, task)
    task.load_state_dict(content["state_dict"])
    run = content.get("run_config")
    if isinstance(run, dict) and isinstance(run.get("datamodule"), dict):
        dict(plain_values(run["datamodule"]))


def record(path: Path) -> None:
    shown = summary(read_record(path), {"record": path})
    assert printable(shown) == shown
    shown.encode()


def comparison(path: Path) -> None:
    shown = page([read_comparison(path)])
    assert printable(shown) == shown
    verify_file(path)


def molecules_meta(path: Path) -> None:
    folder = prepared_folder(path, "encoded", lambda home: encoded_folder(home))
    data = own_molecules.load_own(folder, own_molecules.Settings(38, rare_below=1), 0.3, 0, ())
    assert len(data.smiles) == len(data.nodes)


def products(path: Path) -> None:
    read_choices(path)


def graphs_meta(path: Path) -> None:
    folder = prepared_folder(path, "graphs", graphs_folder)
    load_graphs(folder, lambda total: shared_split(total, 0.2, 0.2, 0))
    load_own_graphs(folder, OwnSplit(val_share=0.2, test_share=0.2))


def prepared_folder(path: Path, name: str, make: Callable[[Path], Path]) -> Path:
    """Returns a prepared folder, made once in a process, with `path` as its meta.json."""
    if name not in FOLDERS:
        FOLDERS[name] = make(Path(HOME.name))
    path.replace(FOLDERS[name] / prepared.META)
    return FOLDERS[name]


def encoded_folder(home: Path) -> Path:
    (home / "my.smiles").write_bytes(SMILES)
    return smiles_file.load(
        home / "smiles", file=home / "my.smiles", workers=1, held_out_share=0.3, rare_below=1
    ).folder


def graphs_folder(home: Path) -> Path:
    (home / "my.xyz").write_bytes(XYZ)
    return files.load(home / "graphs", file=home / "my.xyz", workers=1).folder


HOME = TemporaryDirectory()
FOLDERS: dict[str, Path] = {}
NETWORK = MLP([3, 4, 2])


def archive(**members: bytes) -> bytes:
    """Returns a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def archives() -> list[bytes]:
    """Returns archives of the official binary and Python files, two images each, and one of NaN as pixels."""
    import pickle

    pixels = np.arange(2 * 3072).reshape(2, 3072)
    binary = b"".join(bytes([n]) + row.astype(np.uint8).tobytes() for n, row in enumerate(pixels))
    contents = [{b"data": pixels.astype(np.uint8), b"labels": [3, 4]}, {b"data": pixels * math.nan, b"labels": [3, 4]}]
    contents += [{b"data": pixels.astype(np.uint8), b"labels": [1.5, math.nan]}, {b"data": [1, 2], b"labels": "ab"}]
    pickles = [pickle.dumps(content, protocol=2) for content in contents]
    return [archive(**{"data_batch_1.bin": binary, "test_batch.bin": binary})] + [
        archive(data_batch_1=content, test_batch=content) for content in pickles
    ]


def pictures() -> bytes:
    """Returns an archive of two images."""
    return archive(**{f"{split}/cat/1.png": binary_readers.picture("PNG", 32, 32) for split in ("train", "test")})


def checkpoints() -> list[bytes]:
    """Returns what torch.save writes of valid content and of wrong shapes."""
    weights = {f"network.{name}": value for name, value in NETWORK.state_dict().items()}
    config = {"name": "dlrm", "task": {"_target_": "src.models.dlrm.task.DLRMTask"}}
    contents: list[Any] = [
        {"state_dict": weights, "model_config": config, "run_config": {"datamodule": {"source": {"file": "x"}}}},
        {"state_dict": {3: torch.ones(2)}},
        {"state_dict": {**weights, "network.more": torch.tensor([math.nan])}},
        {"state_dict": {name: value.reshape(-1) for name, value in weights.items()}},
        {"state_dict": {name: value.int() for name, value in weights.items()}},
        {"state_dict": weights, "model_config": {"name": 3, "task": [1]}},
        {"state_dict": weights, "model_config": {"name": "x", "task": {"_target_": ["a"]}}, "run_config": 5},
        {"state_dict": weights, "run_config": {"datamodule": {3: {None: 4}}}},
        {"state_dict": []},
        [],
        {"state_dict": {"network.x": torch.eye(3).to_sparse()}},
    ]
    saved = []
    for content in contents:
        buffer = io.BytesIO()
        torch.save(content, buffer)
        saved.append(buffer.getvalue())
    return saved


def specs() -> list[bytes]:
    with TemporaryDirectory() as folder:
        FeatureSpec.of([10, 300, 70_000], 3, [1, 2, 1]).write(Path(folder))
        return [(Path(folder) / FILE).read_bytes()]


def parquets() -> list[bytes]:
    """Returns what polars writes of a table, uncompressed and compressed."""
    columns = {"text": ["a fine film", "boring", None], "label": [1, 0, None], "score": [0.5, None, 2.0]}
    saved = []
    for compression in ("uncompressed", "zstd"):
        buffer = io.BytesIO()
        pl.DataFrame(columns).write_parquet(buffer, compression=compression)
        saved.append(buffer.getvalue())
    return saved


def metas(make: Callable[[Path], Path]) -> list[bytes]:
    with TemporaryDirectory() as folder:
        return [(make(Path(folder)) / prepared.META).read_bytes()]


Reader = tuple[Callable[[Path], None], str, Callable[[], list[bytes]]]
READERS: dict[str, Reader] = {
    "smiles_list": (smiles_list, "my.smiles", lambda: [SMILES]),
    "molecules.smiles": (molecules, "my.smi", lambda: [SMILES]),
    "molecules.xyz": (molecules, "my.xyz", lambda: [XYZ]),
    "molecules.sdf": (molecules, "my.sdf", lambda: [SDF, SDF * 2]),
    "molecules.csv": (molecules, "my.csv", lambda: [CSV]),
    "sentences.csv": (table, "my.csv", lambda: [SENTENCES, QUOTED]),
    "sentences.tsv": (table, "my.tsv", lambda: [TSV, TSV.replace(b"\tbad", b"")]),
    "sentences.gz": (table, "my.csv.gz", lambda: [gzip.compress(SENTENCES), gzip.compress(QUOTED)]),
    "sentences.parquet": (table, "my.parquet", parquets),
    "sentences.jsonl": (table, "my.jsonl", lambda: [JSONL]),
    "tokenizer": (tokenizer, "tokenizer.json", lambda: [TOKENIZER]),
    "clicks": (clicks, "my.csv", lambda: [CLICKS]),
    "criteo": (criteo, "day_0", lambda: [CRITEO]),
    "feature_spec": (feature_spec, "new.yaml", specs),
    "cifar10": (cifar10, "cifar.tar", lambda: [*archives(), *binary_readers.packed(archives()), pictures()]),
    "checkpoint": (checkpoint, "last.ckpt", checkpoints),
    "record": (record, "result.json", lambda: [path.read_bytes() for path in sorted(RECORDS.rglob("*.json"))[:6]]),
    "comparison": (
        comparison,
        "beside.json",
        lambda: [path.read_bytes() for path in sorted(BESIDE.glob("*.json"))[::7]],
    ),
    "molecules_meta": (molecules_meta, "new.json", lambda: metas(encoded_folder)),
    "products": (products, "new.json", lambda: [json.dumps({"1280_768_768": 3, "64_64_64": TORCHS}).encode()]),
    "graphs_meta": (graphs_meta, "new.json", lambda: metas(graphs_folder)),
    **binary_readers.READERS,
}
RECORDS = ROOT / "docs" / "results" / "records"
BESIDE = ROOT / "docs" / "results" / "beside"


def failures(name: str, count: int, folder: Path) -> Iterator[tuple[int, str]]:
    """Yields the number of each input that a reader neither reads nor refuses in one line, and what happened."""
    read, file, made = READERS[name]
    seeds = made()
    for split in SPLITS:
        (folder / split).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        path = folder / file
        path.write_bytes(damaged(seeds, number))
        begin = time.monotonic()
        try:
            with redirect_stderr(io.StringIO()):  # progress
                read(path)
        except UserError as error:
            line = str(error)
            if printable(line) != line or "\n" in line or len(line) > LONGEST:
                yield number, f"not one printable line: {line[:200]!r}"
        except Exception as error:
            yield number, f"{type(error).__name__}: {str(error)[:200]!r}"
        if time.monotonic() - begin > WORST_S:
            yield number, f"took {time.monotonic() - begin:.0f} s"


@pytest.mark.parametrize("count", [10, pytest.param(INPUTS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_in_one_line(name: str, count: int, tmp_path: Path) -> None:
    assert list(failures(name, count, tmp_path)) == []


def main(count: int, names: list[str]) -> int:
    """Tries readers on `count` inputs each; prints what failed, by kind, and how long it took."""
    total = 0
    for name in names or READERS:
        begin = time.monotonic()
        with TemporaryDirectory() as folder:
            failed = list(failures(name, count, Path(folder)))
        kinds = Counter(what for _, what in failed)
        total += len(failed)
        print(f"{name}: {count:,} inputs, {len(failed):,} failures, {time.monotonic() - begin:.0f} s", flush=True)
        for what, times in kinds.most_common(8):
            print(f"    {times:,} x {what} (input {next(number for number, kind in failed if kind == what)})")
    return int(total > 0)


if __name__ == "__main__":
    from rdkit import RDLogger

    RDLogger.DisableLog("rdApp.*")  # pyright: ignore[reportAttributeAccessIssue]
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
