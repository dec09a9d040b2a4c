"""Reads and writes feature_spec.yaml of split binary directories in NVIDIA's format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, NoReturn

import numpy as np
import yaml

from src.batches.clicks import DTYPES, NUMBER_DTYPES, ClickLayout, EmbeddingTable
from src.errors import UserError
from src.system.files import write_text
from src.system.reading import read_yaml

FILE = "feature_spec.yaml"
SPLITS = ("train", "test")
CHUNK_TYPE = "split_binary"


@dataclass(frozen=True)
class SplitFiles:
    """The files of one split, relative to the directory; `ids` in the order of the tables."""

    label: str
    numerical: str
    ids: tuple[str, ...]


@dataclass(frozen=True)
class FeatureSpec:
    """A split binary directory.

    Attributes:
        tables: categorical features in the order of the channel; a name is the feature's, `cat_0.bin` for example.
        dtypes: of each table's file: int8, int16 or int32.
        numerical: the names of the numerical features, in the order of their columns.
        label: the name of the label.
        splits: the files of `train` and of `test`.
        metadata: other information, such as how the directory was prepared.
        number_dtype: of the numerical features: float16, as NVIDIA's directories have it, or float32.
    """

    tables: tuple[EmbeddingTable, ...]
    dtypes: tuple[str, ...]
    numerical: tuple[str, ...]
    label: str
    splits: Mapping[str, SplitFiles]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    number_dtype: str = "float16"

    @classmethod
    def of(cls, cardinalities: Sequence[int], num_numerical: int = 13, hotness: Sequence[int] = ()) -> "FeatureSpec":
        """Returns the directory written for tables of these sizes; one id a row and table if `hotness` is not given."""
        sizes = zip(cardinalities, hotness or (1,) * len(cardinalities), strict=True)
        layout = ClickLayout.of([EmbeddingTable(f"cat_{i}.bin", *size) for i, size in enumerate(sizes)], num_numerical)
        splits = {
            split: SplitFiles(
                f"{split}/label.bin",
                f"{split}/numerical.bin",
                tuple(f"{split}/{table.name}" for table in layout.tables),
            )
            for split in SPLITS
        }
        numerical = tuple(f"num_{i}" for i in range(num_numerical))
        return cls(layout.tables, layout.dtypes, numerical, "label", splits)

    @property
    def num_numerical(self) -> int:
        return len(self.numerical)

    @cached_property
    def layout(self) -> ClickLayout:
        return ClickLayout(self.num_numerical, self.tables, self.dtypes, self.number_dtype)

    def bytes_per_row(self, split: str) -> dict[str, int]:
        """Returns the bytes of one row in each file of a split."""
        files = self.splits[split]
        ids = {
            file: table.hotness * np.dtype(dtype).itemsize
            for file, table, dtype in zip(files.ids, self.tables, self.dtypes, strict=True)
        }
        numbers = np.dtype(self.number_dtype).itemsize * self.num_numerical
        return {files.label: 1, files.numerical: numbers, **ids}

    def num_rows(self, folder: Path, split: str) -> int:
        """Returns the number of rows of a split, from the sizes of its files. Raises UserError if they do not agree."""
        rows: dict[str, int] = {}
        for file, width in self.bytes_per_row(split).items():
            path = folder / file
            try:
                size = path.stat().st_size
            except OSError as error:
                raise UserError(
                    f"cannot read {path} ({error.strerror}), a file of {folder / FILE}: prepare the data again"
                ) from error
            if size % width:
                raise UserError(
                    f"{path} has {size} bytes, not a multiple of the {width} bytes of a row: prepare or copy it again"
                )
            rows[file] = size // width
        first, *others = rows
        for other in others:
            if rows[other] != rows[first]:
                raise UserError(
                    f"{folder / other} has {rows[other]} rows, {first} has {rows[first]}: one is truncated, or its "
                    f"dtype in {FILE} is wrong"
                )
        return rows[first]

    def write(self, folder: Path) -> None:
        """Writes feature_spec.yaml. Raises UserError if it cannot be written."""
        features: dict[str, dict[str, Any]] = {}
        for table, dtype in zip(self.tables, self.dtypes, strict=True):
            features[table.name] = {"dtype": dtype, "cardinality": table.cardinality}
            if table.hotness != 1:
                features[table.name]["hotness"] = table.hotness
        features |= {name: {"dtype": self.number_dtype} for name in self.numerical}
        features[self.label] = {"dtype": "bool"}
        content = {
            "channel_spec": {
                "categorical": [table.name for table in self.tables],
                "numerical": list(self.numerical),
                "label": [self.label],
            },
            "feature_spec": features,
            "source_spec": {split: self._chunks(files) for split, files in self.splits.items()},
            "metadata": dict(self.metadata),
        }
        write_text(folder / FILE, yaml.safe_dump(content, sort_keys=False))

    def _chunks(self, files: SplitFiles) -> list[dict[str, Any]]:
        parts = [(list(self.numerical), files.numerical), ([self.label], files.label)]
        parts += [([table.name], file) for table, file in zip(self.tables, files.ids, strict=True)]
        return [{"type": CHUNK_TYPE, "features": features, "files": [file]} for features, file in parts]

    @classmethod
    def load(cls, folder: Path) -> "FeatureSpec":
        """Returns the specification of a directory. Raises UserError if it is invalid or does not match the files."""
        spec = _Reader(folder / FILE).spec()
        for split in SPLITS:
            spec.num_rows(folder, split)
        return spec


class _Reader:
    """Parses a feature_spec.yaml; errors name the invalid key."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content = self.mapping(read_yaml(path, "give a prepared folder"), "the file")
        self.channels = self.mapping(self.content.get("channel_spec"), "channel_spec")
        self.features = self.mapping(self.content.get("feature_spec"), "feature_spec")

    def spec(self) -> FeatureSpec:
        categorical, numerical, labels = (self.channel(name) for name in ("categorical", "numerical", "label"))
        if len(labels) != 1:
            self.refuse("channel_spec.label", f"has {len(labels)} features, not one")
        self.dtype(labels[0], "bool")
        number_dtype = self.dtype(numerical[0], *NUMBER_DTYPES)
        for name in numerical:
            self.dtype(name, number_dtype)  # they are in one file
        tables = tuple(self.table(name) for name in categorical)
        dtypes = tuple(self.table_dtype(table) for table in tables)
        sources = self.mapping(self.content.get("source_spec"), "source_spec")
        if set(sources) != set(SPLITS):
            self.refuse("source_spec", f"has {', '.join(map(str, sources)) or 'nothing'}, not exactly train and test")
        splits = {split: self.files(sources[split], split, categorical, numerical, labels[0]) for split in SPLITS}
        metadata = self.mapping(self.content.get("metadata") or {}, "metadata")
        return FeatureSpec(tables, dtypes, numerical, labels[0], splits, metadata, number_dtype)

    def channel(self, name: str) -> tuple[str, ...]:
        names = self.names(self.channels.get(name), f"channel_spec.{name}")
        for feature in names:
            self.mapping(self.features.get(feature), f"feature_spec.{feature}")
        return names

    def dtype(self, feature: str, *allowed: str) -> str:
        dtype = self.features[feature].get("dtype")
        if dtype not in allowed:
            self.refuse(f"feature_spec.{feature}.dtype", f"is {dtype!r}, not {' or '.join(allowed)}")
        return dtype

    def table(self, feature: str) -> EmbeddingTable:
        sizes = {"cardinality": self.features[feature].get("cardinality"), "hotness": 1}
        sizes["hotness"] = self.features[feature].get("hotness", 1)
        for key, value in sizes.items():
            if type(value) is not int or value < 1:
                self.refuse(f"feature_spec.{feature}.{key}", f"is {value!r}, not an integer above 0")
        return EmbeddingTable(feature, **sizes)

    def table_dtype(self, table: EmbeddingTable) -> str:
        dtype = self.dtype(table.name, *DTYPES)
        if table.cardinality - 1 > np.iinfo(dtype).max:
            self.refuse(f"feature_spec.{table.name}.cardinality", f"is {table.cardinality}, too many for {dtype}")
        return dtype

    def files(
        self, chunks: Any, split: str, categorical: tuple[str, ...], numerical: tuple[str, ...], label: str
    ) -> SplitFiles:
        by_features: dict[tuple[str, ...], str] = {}
        if not isinstance(chunks, list):
            self.refuse(f"source_spec.{split}", "is not a list of chunks")
        for number, content in enumerate(chunks):
            key = f"source_spec.{split}[{number}]"
            chunk = self.mapping(content, key)
            if chunk.get("type") != CHUNK_TYPE:
                self.refuse(f"{key}.type", f"is {chunk.get('type')!r}, not {CHUNK_TYPE}")
            features, files = self.names(chunk.get("features"), f"{key}.features"), chunk.get("files")
            if not isinstance(files, list) or len(files) != 1 or not isinstance(files[0], str):
                self.refuse(f"{key}.files", f"is {files!r}, not a list of one path")
            if not files[0].isprintable():
                self.refuse(f"{key}.files", f"has {files[0]!r}, which is no name of a file")
            if PurePath(files[0]).is_absolute() or ".." in PurePath(files[0]).parts:
                self.refuse(f"{key}.files", f"has {files[0]}, which is not inside the folder")
            if features not in {numerical, (label,), *((name,) for name in categorical)} or features in by_features:
                self.refuse(
                    f"{key}.features",
                    f"is {', '.join(features)}: every chunk is one categorical feature, all numerical ones in the "
                    f"order of channel_spec, or the label, each once",
                )
            by_features[features] = files[0]
        for features in (numerical, (label,), *((name,) for name in categorical)):
            if features not in by_features:
                self.refuse(f"source_spec.{split}", f"has no chunk for {', '.join(features)}")
        return SplitFiles(by_features[(label,)], by_features[numerical], tuple(by_features[(n,)] for n in categorical))

    def names(self, value: Any, key: str) -> tuple[str, ...]:
        if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
            self.refuse(key, "is not a list of feature names")
        if len(set(value)) != len(value):
            self.refuse(key, "has a feature twice")
        return tuple(value)

    def mapping(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.refuse(key, "is missing or not a mapping")
        return value

    def refuse(self, key: str, problem: str) -> NoReturn:
        raise UserError(f"{self.path}: {key} {problem}; correct it, or prepare the data set again")
