"""Reads the yaml files of this folder: published tables in their own layout, one list per row.

A file has `shared` (values of every row of the file), `tables`, for a model `about` (its task, data and metric, a line
each), and `urls` (addresses of sources by what their names begin with); a table has
  source       the document and the table in it
  shared       values of every row of this table
  columns      the names of a row's values: fields of PublishedRow, `latency_s.p90`, `final_metric.value` and the like
  rows         one list per row, '/' for a value that the table does not give
  printed      for figures printed in another unit, {figure: {unit: molecules/ms, times: 1000}}; `unit` is a comment
  corrections  [{where: {column: value}, figures: [...], times: 1/16, why: one line}]: the printed figure x `times`, a
               number or a fraction. `value: ...` instead of `times` gives the corrected figure; "batch / mean latency"
               means that quotient. Without `where` the correction applies to every row of the table
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from src.errors import UserError
from src.published.row import FIGURES, PERCENTILES, Correction, PublishedMetric, PublishedRow
from src.system.home import CONF

MODELS = CONF / "model"
CHOICES = {
    "model": tuple(sorted(file.stem for file in MODELS.glob("*.yaml"))),
    "kind": ("train", "predict"),
    "precision": ("fp32", "tf32", "amp", "fp16", "bf16"),
    "hardware": ("a100_40g", "a100_80g", "v100_16g", "v100_32g", "h100_80g", "h200"),
    "batch_per": ("device", "global"),
    "trainer": ("1x1", "1x2", "1x4", "1x8", "1x16", "2x8"),
}
COMPOSED = ("latency_s", "final_metric", "corrected")  # fields composed of several values
SCALARS = tuple(f.name for f in fields(PublishedRow) if f.name not in COMPOSED)
REQUIRED = tuple(f.name for f in fields(PublishedRow) if f.default is MISSING and f.default_factory is MISSING)
LATENCIES = tuple(f"latency_s.{part}" for part in PERCENTILES)
METRIC = tuple(f"final_metric.{f.name}" for f in fields(PublishedMetric))
NUMBERS = (*FIGURES, *LATENCIES, "final_metric.value", "final_metric.target")
BATCH_OVER_LATENCY = "batch / mean latency"
FILE_KEYS = ("shared", "about", "urls", "tables")
TABLE_KEYS = ("source", "shared", "columns", "rows", "printed", "corrections")


def read(path: Path) -> list[PublishedRow]:
    """Returns the rows of one yaml file in its order. Raises UserError with file, table and row of a mistake."""
    try:
        document = OmegaConf.to_container(OmegaConf.load(path))
    except YAMLError as error:
        raise UserError(f"{path.name}: not yaml ({' '.join(str(error).split())}); correct the syntax") from error
    if not isinstance(document, dict) or set(document) - set(FILE_KEYS) or not document.get("tables"):
        raise UserError(f"{path.name}: must hold `tables`, may hold `shared`, `about` and `urls`, and nothing else")
    rows: list[PublishedRow] = []
    for number, table in enumerate(document["tables"], start=1):
        shared = {**document.get("shared", {}), **_url(table, document.get("urls", {}))}
        rows += _table(table, shared, f"{path.name}, table {number}")
    return rows


def _url(table: Any, urls: Mapping[str, str]) -> dict[str, str]:
    source = str(table.get("source", "")) if isinstance(table, Mapping) else ""
    return next(({"url": url} for start, url in urls.items() if source.startswith(start)), {})


def _table(table: Mapping[str, Any], shared: Mapping[str, Any], where: str) -> list[PublishedRow]:
    """Returns the rows of one table; `where` names it in errors."""
    if unknown := sorted(set(table) - set(TABLE_KEYS)):
        raise UserError(f"{where}: unknown key {unknown[0]!r}; a table has {', '.join(TABLE_KEYS)}")
    if missing := [key for key in ("source", "columns", "rows") if key not in table]:
        raise UserError(f"{where}: {missing[0]!r} is missing")
    common = {**shared, **table.get("shared", {}), "source": table["source"]}
    corrections = table.get("corrections", [])
    used: set[int] = set()
    rows: list[PublishedRow] = []
    for number, values in enumerate(table["rows"], start=1):
        try:
            flat = _flat(common, table["columns"], values)
            matching = [i for i, c in enumerate(corrections) if c.get("where", {}).items() <= flat.items()]
            rows.append(_row(flat, table.get("printed", {}), [corrections[i] for i in matching]))
        except KeyError as error:
            raise UserError(f"{where} row {number}: {error} is missing (row, printed or corrections)") from error
        except (ValueError, TypeError, AttributeError) as error:
            raise UserError(f"{where} row {number}: {error}") from error
        used.update(matching)
    if unused := sorted(set(range(len(corrections))) - used):
        raise UserError(f"{where}: correction {unused[0] + 1} applies to no row; correct its `where`")
    return rows


def _flat(common: Mapping[str, Any], columns: list[str], values: list[Any]) -> dict[str, Any]:
    """Returns one row as a checked mapping from column to printed value, without values '/'."""
    if len(values) != len(columns):
        raise ValueError(f"{len(values)} values for {len(columns)} columns")
    printed = {key: value for key, value in zip(columns, values, strict=True) if value != "/" or key == "fix_hp"}
    flat = {**common, **printed}
    if unknown := sorted(set(flat) - {*SCALARS, *LATENCIES, *METRIC}):
        raise ValueError(f"unknown column {unknown[0]!r}")
    if missing := [key for key in REQUIRED if key not in flat]:
        raise ValueError(f"{missing[0]!r} is missing")
    if flat.get("measured") and not flat.get("command"):
        raise ValueError("'command' is missing, which repeats a measured row")
    for key, choices in CHOICES.items():
        if flat[key] not in choices:
            raise ValueError(f"{key} is {flat[key]!r}; must be one of {', '.join(choices)}")
    if not str(flat.get("url", "https://")).startswith("https://"):
        raise ValueError(f"url is {flat['url']!r}; must begin with https://")
    for key in NUMBERS:
        if key in flat and (isinstance(flat[key], bool) or not isinstance(flat[key], int | float) or flat[key] <= 0):
            raise ValueError(f"{key} is {flat[key]!r}; must be a number above 0, or '/'")
    if "batch_size" in flat and (type(flat["batch_size"]) is not int or flat["batch_size"] < 1):
        raise ValueError(f"batch_size is {flat['batch_size']!r}; must be a whole number above 0, or '/'")
    return flat | {key: float(flat[key]) for key in NUMBERS if key in flat}


def _row(flat: Mapping[str, Any], printed: Mapping[str, Any], corrections: list[Mapping[str, Any]]) -> PublishedRow:
    """Returns the row in our units, with its corrections."""
    converted = dict(flat)
    for figure, entry in printed.items():
        converted |= {key: _times(value, str(entry["times"])) for key, value in flat.items() if _belongs(key, figure)}
    latency = {part: converted[f"latency_s.{part}"] for part in PERCENTILES if f"latency_s.{part}" in flat}
    metric = None
    if "final_metric.value" in flat:
        metric = PublishedMetric(flat["final_metric.name"], flat["final_metric.value"], flat.get("final_metric.target"))
    scalars: dict[str, Any] = {key: converted[key] for key in SCALARS if key in flat}
    row = PublishedRow(**scalars, latency_s=latency or None, final_metric=metric)
    return replace(row, corrected=_corrected(row, corrections))


def _corrected(row: PublishedRow, corrections: list[Mapping[str, Any]]) -> dict[str, Correction]:
    """Returns the corrections of this row's figures; `precision` can be corrected by `value` only."""
    corrected: dict[str, Correction] = {}
    for entry in corrections:
        if ("times" in entry) == ("value" in entry):
            raise ValueError("a correction has either `times` or `value`")
        for name in entry["figures"]:
            if name == "precision":
                corrected[name] = Correction(str(entry["value"]), entry["why"])
            elif (figure := row.figure(name)) is not None:
                corrected[name] = Correction(_corrected_value(row, figure, entry), entry["why"])
    return corrected


def _corrected_value(row: PublishedRow, printed: float, entry: Mapping[str, Any]) -> float:
    """Returns the corrected value of a figure, in our units."""
    if "times" in entry:
        return _times(printed, str(entry["times"]))
    if entry["value"] == BATCH_OVER_LATENCY:
        if row.batch_size is None or row.latency_s is None:
            raise ValueError(f"{BATCH_OVER_LATENCY!r} needs batch_size and latency_s.mean")
        return row.batch_size / row.latency_s["mean"]
    return float(entry["value"])


def _belongs(key: str, figure: str) -> bool:
    """Returns whether the column is the figure or a part of it ('latency_s.p90' is part of 'latency_s')."""
    return key == figure or key.startswith(f"{figure}.")


def _times(value: float, factor: str) -> float:
    """Returns the exact decimal product, so that 0.1 x 3 is 0.3; `factor` may be a fraction such as '1/16'."""
    return float(Fraction(str(value)) * Fraction(factor))
