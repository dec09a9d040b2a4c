"""Prepares raw Criteo click logs as a split binary directory, on all cores, in bounded memory: docs/guides/criteo.md.

Text is read once. The first pass writes fixed-size records, and runs of counted ids; the runs are merged into
vocabularies; the last pass writes the records' columns. Every pass is a set of jobs that each leave a result file, so
that an interrupted preparation resumes.
"""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from rich.progress import Progress

from src.config.ranges import Count, Seed
from src.datamodules.clicks.columns import BucketFiles, Slice, Target, Vocabulary, write_bucket, write_slice
from src.datamodules.clicks.feature_spec import FeatureSpec
from src.datamodules.clicks.jobs import Call, Jobs
from src.datamodules.clicks.raw import count_lines, estimated_rows, raw_files, spans
from src.datamodules.clicks.records import Files, Scattering, scatter
from src.datamodules.clicks.text import NUM_IDS, RECORD, BadLog
from src.datamodules.clicks.vocabulary import RunOnDisk, merge, write_table
from src.datamodules.download import sha256_of
from src.errors import UserError
from src.system.files import is_made, sole_maker, write_text
from src.system.progress import item_progress
from src.system.reading import read_json
from src.system.workers import WorkerPool, cpu_count

LAYOUT = 1
HELD_OUT = 7  # the last 1/HELD_OUT of the rows of a single file is not for training
MAX_WORKERS = 16  # together they need less than 4 GiB
MAX_BUCKETS = 1 << 16
SCRATCH_BYTES = RECORD.itemsize + 140  # most bytes a row on disk: its record, counted ids and columns
HELD_OUT_SPLITS = ("test", "validation")
VocabularyOf = Literal["train", "all"]


@dataclass(frozen=True)
class Sizes:
    """Sizes of the parts of the work. A worker's memory grows with `rows`. The order of the rows depends on them."""

    span_bytes: int = 480 << 20  # about four pieces
    rows: int = 1 << 19


def prepare_criteo(
    raw: Path,
    folder: Path,
    *,
    frequency_limit: Count = 15,
    vocabulary: VocabularyOf = "train",
    seed: Seed = 0,
    workers: Count | None = None,
    sizes: Sizes = Sizes(),  # noqa: B008  (frozen)
) -> Path:
    """Prepares `folder` as a split binary directory of the raw files unless it exists; returns it.

    `raw` is the folder of day_0 ... day_23 or of train.txt, or a file like train.txt; plain or .gz. Ids that occur less
    than `frequency_limit` times become 0, as missing ones do. `vocabulary` selects the rows in which they are counted:
    the training rows, or all (as published). An interrupted preparation leaves `.<folder>.partial`, which the next call
    resumes. One of several processes prepares, the others wait. Raises UserError for bad input, for a folder that was
    prepared from other files or settings, and for a full disk.
    """
    files = raw_files(raw)
    origin = {
        "layout": LAYOUT,
        "files": [[path.name, path.stat().st_size] for path in files],
        "frequency_limit": frequency_limit,
        "vocabulary": vocabulary,
        "seed": seed,
        "cut": [sizes.span_bytes, sizes.rows],
    }
    with sole_maker(folder) as lock:
        if is_made(folder):
            shutil.rmtree(_partial(folder), ignore_errors=True)  # left if one was killed when all was done
        else:
            _make(folder, files, origin, sizes, min(workers or cpu_count(), MAX_WORKERS), lock)
        if dict(FeatureSpec.load(folder).metadata).get("origin") != origin:
            raise UserError(f"{folder} was prepared from other files or settings: delete it to prepare it again")
    return folder


def _partial(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.partial")


def _make(
    folder: Path, files: list[Path], origin: Mapping[str, Any], sizes: Sizes, workers: int, lock: list[int]
) -> None:
    partial = _partial(folder)
    try:
        _begin(partial, origin, files)
        # The workers keep the lock: if this process is killed, the next one must not write while they still do.
        with item_progress() as bars, WorkerPool(workers, keep=lock) as pool:
            _Preparation(partial, files, origin, sizes, pool, bars).run()
        (partial / "out").rename(folder)
        shutil.rmtree(partial)
    except BadLog:
        shutil.rmtree(partial)  # a corrected log is another input
        raise
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({error.strerror or error}): make room, or give another folder"
        ) from error


class Scattered(NamedTuple):
    """The result of the first pass: its files, the number of rows of each bucket, and the held-out rows in order."""

    files: BucketFiles
    rows: list[int]
    held_out: list[Slice]


class _Preparation:
    """One preparation in the folder `partial`: `work` has intermediate files, `out` becomes the result."""

    def __init__(
        self,
        partial: Path,
        files: list[Path],
        origin: Mapping[str, Any],
        sizes: Sizes,
        pool: WorkerPool,
        bars: Progress,
    ) -> None:
        self.work, self.out, done = partial / "work", partial / "out", partial / "done"
        for folder in (self.work, self.out, done):
            folder.mkdir(exist_ok=True)
        self.files, self.origin, self.sizes = files, origin, sizes
        self.jobs = Jobs(done, pool, bars)
        self.spans = [span for path in files for span in spans(path, sizes.span_bytes)]

    def run(self) -> None:
        trained = self.files if len(self.files) == 1 else self.files[:-1]
        jobs = [Call(f"rows{i}", estimated_rows, (path,)) for i, path in enumerate(trained)]
        expected = sum(self.jobs.results("estimating rows", jobs))
        buckets = min(-(-expected // self.sizes.rows), MAX_BUCKETS)
        self.scatter(self.training_rows(), buckets)
        scattered = self.collate(buckets)
        spec = self.columns(scattered, self.vocabularies())
        spec.write(self.out)

    def training_rows(self) -> list[int]:
        """Returns the number of rows of each span, from its first, that are for training."""
        if len(self.files) > 1:
            return [0 if span.path == self.files[-1] else sys.maxsize for span in self.spans]
        lines = self.jobs.results(
            "counting rows", [Call(f"lines{i}", count_lines, (s,)) for i, s in enumerate(self.spans)]
        )
        total = sum(lines)
        training = total - total // HELD_OUT
        if total < 2 * HELD_OUT:
            raise UserError(
                f"{self.files[0]} has {total} rows: give {2 * HELD_OUT} or more, so that "
                f"{' and '.join(HELD_OUT_SPLITS)} have a row each"
            )
        firsts = np.cumsum([0, *lines[:-1]])
        return [max(0, training - int(first)) for first in firsts]

    def scatter(self, training: list[int], buckets: int) -> None:
        rows, seed, count_all = self.sizes.rows, self.origin["seed"], self.origin["vocabulary"] == "all"
        jobs = [
            Call(
                f"deal{number}",  # an earlier version's name: preparations that it began can be resumed
                scatter,
                (span, number, Scattering(count, buckets, rows, seed, count_all), self.parts(number)),
            )
            for number, (span, count) in enumerate(zip(self.spans, training, strict=True))
        ]
        self.jobs.results("reading", jobs)

    def parts(self, number: int) -> Files:
        return Files.of(self.work, number)

    def collate(self, buckets: int) -> Scattered:
        """Transposes the spans' indices by piece into one index file by bucket."""
        files = BucketFiles(self.work, self.work / "spans.npy", self.work / "index")
        indices = [np.load(self.parts(number).index) for number in range(len(self.spans))]
        np.save(files.spans, np.repeat(np.arange(len(indices)), [len(index) for index in indices]))
        with files.index.open("wb") as file:
            for begin in range(0, buckets + 1, 64):
                np.concatenate([index[:, begin : begin + 64] for index in indices]).T.tofile(file)
        held_out = [
            Slice(self.parts(number).records, begin, end)
            for number, index in enumerate(indices)
            for begin, end in index[:, -2:].tolist()
            if end > begin
        ]
        rows = sum(np.diff(index[:, :-1].astype(np.int64)).sum(axis=0) for index in indices)
        return Scattered(files, np.atleast_1d(rows).tolist(), held_out)

    def vocabularies(self) -> list[Vocabulary]:
        bounds = [
            (self.parts(number).runs, piece)
            for number in range(len(self.spans))
            for piece in np.load(self.parts(number).bounds).tolist()
        ]
        limit = self.origin["frequency_limit"]
        runs = [[RunOnDisk(path, piece[c], piece[c + 1]) for path, piece in bounds] for c in range(NUM_IDS)]
        kept = [self.work / f"{c}.kept" for c in range(NUM_IDS)]
        counts = self.jobs.results(
            "counting ids", [Call(f"merge{c}", merge, (runs[c], limit, kept[c])) for c in range(NUM_IDS)]
        )
        tables = [self.work / f"{c}.table" for c in range(NUM_IDS)]
        jobs = [Call(f"table{c}", write_table, (kept[c], tables[c])) for c in range(NUM_IDS)]
        # One at a time, because the ids of one column may take a gibibyte.
        self.jobs.results("numbering ids", jobs, max_parallel=1)
        dtypes = FeatureSpec.of([count + 1 for count in counts]).dtypes
        return [Vocabulary(*arguments) for arguments in zip(tables, counts, dtypes, strict=True)]

    def columns(self, scattered: Scattered, vocabularies: list[Vocabulary]) -> FeatureSpec:
        """Runs the last pass, which writes into files of their final size."""
        seed = self.origin["seed"]
        held_out = sum(part.end - part.begin for part in scattered.held_out)
        rows = {"train": sum(scattered.rows), "test": held_out - held_out // 2, "validation": held_out // 2}
        spec = FeatureSpec.of([vocabulary.kept + 1 for vocabulary in vocabularies])
        for split, count in rows.items():
            (self.out / split).mkdir(exist_ok=True)
            for file, width in spec.bytes_per_row("train").items():
                with (self.out / split / Path(file).name).open("ab") as column:
                    column.truncate(count * width)
        jobs = []
        first = 0
        for bucket, count in enumerate(scattered.rows):
            target = Target(self.out / "train", first)
            jobs.append(Call(f"bucket{bucket}", write_bucket, (scattered.files, bucket, seed, target, vocabularies)))
            first += count
        for part, target in self.held_out(scattered.held_out, rows["test"]):
            name = f"{target.folder.name}{target.first}"
            jobs.append(Call(name, write_slice, (part, target, vocabularies)))
        self.jobs.results("writing", jobs)
        files = sorted(self.out.rglob("*.bin"))
        hashed = [Call(f"sha256_{path.parent.name}_{path.stem}", sha256_of, (path,)) for path in files]
        checksums = self.jobs.results("computing checksums", hashed)
        sums = {str(path.relative_to(self.out)): sha256 for path, sha256 in zip(files, checksums, strict=True)}
        return replace(spec, metadata={"origin": dict(self.origin), "rows": rows, "sha256": sums})

    def held_out(self, parts: list[Slice], tested: int) -> Iterator[tuple[Slice, Target]]:
        """Yields held-out slices and their targets: the first `tested` rows are for `test`, others `validation`."""
        row = 0
        for part in parts:
            cut = min(max(tested - row, 0), part.end - part.begin) + part.begin
            if cut > part.begin:
                yield part._replace(end=cut), Target(self.out / HELD_OUT_SPLITS[0], row)
            if cut < part.end:
                yield part._replace(begin=cut), Target(self.out / HELD_OUT_SPLITS[1], row + cut - part.begin - tested)
            row += part.end - part.begin


def _begin(partial: Path, origin: Mapping[str, Any], files: list[Path]) -> None:
    """Creates the folder of a preparation, or checks that an existing one has the same origin."""
    note = partial / "origin.json"
    if note.exists():
        if read_json(note, f"delete {partial} to begin again") != origin:
            raise UserError(f"{partial} was begun with other files or settings: delete it to begin again")
        return
    partial.mkdir(parents=True, exist_ok=True)
    rows = sum(map(estimated_rows, files))
    needed, free = rows * SCRATCH_BYTES, shutil.disk_usage(partial).free
    if needed > free:
        shutil.rmtree(partial)
        raise UserError(
            f"{partial.parent} has {free / 2**30:.0f} GiB free, about {needed / 2**30:.0f} are needed for {rows:,} "
            f"rows: make room, or give another folder"
        )
    write_text(note, json.dumps(origin))
