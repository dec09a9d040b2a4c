"""What a template of a page can call: figures of records, of published rows and of comparisons, and table rows."""

import os
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from src.errors import UserError, shortened
from src.published import PublishedRow, paper_table, rows
from src.report.beside import PRECISIONS, in_order, rate_text, short, summary
from src.report.in_turn import Comparison, Side, read_comparison
from src.report.record import Record, read_record
from src.report.scaling import LINEAR, Point, batches, commit_of, machine_of, published_points, rate_of
from src.report.text import summary as printed_at_end

Row = TypeVar("Row", PublishedRow, Point)
Shown = TypeVar("Shown", "Figure", str)
RATES = ("p_core", "throughput")  # of a published row, the first that it has
METRICS = {"nuv": ".1f"}  # how a quality is printed, where not with four decimals


@dataclass(frozen=True)
class Figure:
    """A number and how it is printed.

    Attributes:
        corrected: its correct value, where a publisher's was wrong.
        record: the name of the record that it stems from.
        suffix: what is printed behind it.
        of: the published row, or measured reference, that it stems from.
    """

    value: float
    style: str = ",.0f"
    factor: float = 1.0
    corrected: float | None = None
    record: str = ""
    suffix: str = ""
    of: PublishedRow | None = None

    @property
    def best(self) -> float:
        return self.value if self.corrected is None else self.corrected

    def __str__(self) -> str:
        text = self._printed(self.value)
        if self.corrected is not None:
            text += f" ({self._printed(self.corrected)} corrected)"
        return text + self.suffix

    def _printed(self, value: float) -> str:
        return format(value * self.factor, self.style).rstrip(".")  # a style with "#" leaves "145."


class Figures:
    """What a template can call; each name of a record is that of a file in `folder`/records, without its ending.

    Raises UserError where there is no such record, or where a published row is not given by what is said of it.
    """

    def __init__(self, folder: Path, page: Path) -> None:
        self.folder = folder
        self.turns = os.path.relpath("docs/results/beside", page.parent)
        self.records = os.path.relpath("docs/results/records", page.parent)
        self.read: dict[str, Record] = {}

    def names(self) -> dict[str, Any]:
        """Returns the public functions by their names."""
        attributes = [name for name in dir(type(self)) if name[0] != "_" and name not in ("names", "file", "record")]
        return {name: getattr(self, name) for name in attributes if callable(getattr(self, name))}

    def file(self, name: str) -> Path:
        return self.folder / "records" / f"{name}.json"

    def record(self, name: str) -> Record:
        if name not in self.read:
            self.read[name] = read_record(self.file(name))
        return self.read[name]

    def rate(self, name: str) -> Figure:
        """Samples per second: of steady training, or of prediction."""
        record = self.record(name)
        return self._figure(name, record.throughput if record.kind == "predict" else rate_of(record))

    def whole(self, name: str) -> Figure:
        """Samples per second of the whole training run."""
        return self._figure(name, self.record(name).p_whole)

    def quality(self, name: str, style: str = "") -> Figure:
        """The final metric."""
        metric = self.record(name).final_metric
        default = METRICS.get(metric.name, ".4f") if metric else ""
        return self._figure(name, metric.value if metric else None, style or default)

    def metric(self, name: str, key: str, style: str = ".4f", factor: float = 1.0) -> Figure:
        """A metric of the last evaluation, in another unit where `factor` is one."""
        values = [row[key] for row in self.record(name).history if key in row]
        return self._figure(name, values[-1] if values else None, style, factor)

    def judged(self, name: str, key: str, group: str, style: str = ".1f") -> Figure:
        """A figure of a prediction's quality, such as the `nuv` of the molecules as `drawn`."""
        values = [
            figure.value for figure in self.record(name).quality or () if (figure.name, figure.group) == (key, group)
        ]
        return self._figure(name, values[-1] if values else None, style)

    def gpus(self, *names: str) -> str:
        """The GPUs that each of the runs used: H200, or 2 x H100. Raises UserError for runs of several kinds."""
        records = [self.record(name) for name in names]
        used = {(_chip(gpu), record.ranks) for record in records for gpu in record.environment.get("gpus") or ()}
        if len(used) != 1:
            raise UserError(f"{', '.join(names)}: of {len(used)} kinds or numbers of GPUs, one is needed")
        model, number = used.pop()
        return f"{number} x {model}" if number > 1 else model

    def seconds(self, name: str, phase: str = "") -> Figure:
        """From the start of the process to its record; of a phase, those spent in it."""
        record = self.record(name)
        return self._figure(name, record.phases_s.get(phase) if phase else record.e2e_time_s)

    def minutes(self, name: str) -> Figure:
        """From the start of the process to its record."""
        return replace(self.seconds(name), style=".1f", factor=1 / 60)

    def gib(self, name: str) -> Figure:
        """The most memory that the run reserved on a GPU."""
        mem = self.record(name).mem
        return self._figure(name, mem.peak_reserved_gib if mem else None, ".1f")

    def latency_ms(self, name: str) -> Figure:
        """The mean time of a batch."""
        latency = self.record(name).latency_s
        return self._figure(name, latency.mean if latency else None, ".2f", 1e3)

    def exposed_ms(self, name: str) -> Figure:
        """Communication of a step that compute did not hide, mean of the ranks."""
        exchange = self.record(name).communication
        exposed = exchange.exposed_s if exchange else None
        return self._figure(name, exposed.get("mean") if exposed else None, ".2f", 1e3)

    def speed_up(self, name: str, one: str = "") -> Figure:
        """The rate over that of one device: of the record of the same name with _x1, or of `one`.

        Raises UserError where the two are of other commits or machines, or it is more than linear beyond noise.
        """
        one = one or f"{name.rpartition('_x')[0]}_x1"
        for what, of in (("commit", commit_of), ("machine", machine_of)):
            both = [of(self.record(record_name)) for record_name in (name, one)]
            if both[0] != both[1]:
                raise UserError(f"{name} is of {what} {both[0]}, {one} of {both[1]}: measure both in one run")
        speed_up = self.rate(name).value / self.rate(one).value
        devices = self.record(name).ranks / self.record(one).ranks
        if speed_up > LINEAR * max(devices, 1):
            raise UserError(
                f"{name} is {speed_up:.2f} times as fast as {one}, on {devices:g} times the devices: measure both again"
            )
        return Figure(speed_up, ".2f", record=name)

    def efficiency(self, name: str, devices: int, one: str = "") -> Figure:
        """The speed-up over one device in percent of the number of devices."""
        return Figure(self.speed_up(name, one).value / devices, ".1f", 100.0, record=name)

    def over_one(self, name: str, one: str = "") -> Figure:
        """The rate, and its speed-up behind it."""
        return replace(self.rate(name), suffix=f" ({self.speed_up(name, one)}x)")

    def commit(self, name: str) -> str:
        """A link to the record, by its commit."""
        return f"[{(commit_of(self.record(name)) or 'unknown')[:7]}]({self.records}/{name}.json)"

    def printed(self, name: str) -> str:
        """What the run printed at its end, but for its files."""
        return printed_at_end(self.record(name), {}).strip()

    def linked(self, figure: Figure) -> str:
        """The figure, as a link to its record."""
        text = str(replace(figure, suffix=""))
        return f"[{text}]({self.records}/{figure.record}.json){figure.suffix.replace('(', '').replace(')', '')}"

    def row(self, case: str, figure: Figure | str, *cells: object, record: str = "") -> str:
        """A table's row: the case, our figure, its record, and further cells.

        Raises UserError for a published figure of another batch, precision or number of GPUs.
        """
        record = figure.record if isinstance(figure, Figure) else record
        for cell in cells:
            if isinstance(cell, Figure) and cell.of:
                run = self.record(record)
                ours = (run.ranks, *batches(run.case.batch_size, run.case.batch_per, run.ranks), run.case.precision)
                _check_alike(record, ours, cell.of)
        return "|".join(
            ["", *(f" {cell} " if str(cell) else " " for cell in (case, figure, self.commit(record), *cells)), ""]
        )

    def published(self, model: str, kind: str = "train", name: str = "", source: str = "", **fields: Any) -> Figure:
        """A figure of the one published row of a model whose fields are these; `source` is a part of its source.

        `name` is p_core, throughput, final_metric, latency_s.mean ...: by default the row's rate.
        """
        fields = {"trainer": "1x1", "measured": False, **fields}
        names = [name] if name else RATES
        candidates = [row for row in rows(model, kind) if source in row.source and any(map(row.figure, names))]
        row = _one(candidates, fields)
        return _of_row(row, next(figure_name for figure_name in names if row.figure(figure_name)))

    def published_row(self, figure: Figure) -> str:
        """A table's row of a published figure: its case, its GPUs, the figure and its source."""
        row = _row_of(figure)
        per = (" each" if row.batch_per == "device" else " in all") if row.world_size > 1 else ""
        printed, true = (PRECISIONS.get(name, name) for name in (row.precision, row.true_precision))
        precision = true if true == printed else f"{true} (printed as {printed})"
        case = [row.kind, f"batch {row.batch_size:,}{per}", precision, *filter(None, [row.variant])]
        gpus = f"{row.world_size} x {_gpu(row.hardware)}" if row.world_size > 1 else _gpu(row.hardware)
        return f"| {', '.join(case)} | {gpus} | {figure} | [{row.source}]({row.url}) |"

    def with_gpu(self, figure: Figure) -> Figure:
        """A published figure and its GPU, and its precision where it was printed wrongly."""
        row = _row_of(figure)
        printed = f", printed as {row.precision}" if row.true_precision != row.precision else ""
        return replace(figure, suffix=f" ({_gpu(row.hardware)}{printed})")

    def published_speed_up(self, model: str, samples: int, config: str, precision: str, source: str = "") -> Figure:
        """The published speed-up of a configuration, such as "A100-80G 1x8", with as many samples on each device.

        Behind it are the GPU, the precision and the samples.
        """
        points = [point for point in published_points(model) if point.kind == "weak" and source in point.source]
        chosen = _one(points, {"samples": samples, "config": config, "precision": precision})
        case = f"{_gpu(config.split()[0])}, {PRECISIONS.get(precision, precision)}, batch {samples:,}"
        return Figure(chosen.speed_up, ".2f", suffix=f"x ({case})")

    def beside(self, model: str) -> str:
        """The table of ours and the fastest other code of each case, timed in one run; nothing where there is none."""
        comparisons = self._comparisons(model)
        return summary(comparisons) if comparisons else ""

    def speed_ups(self, *verbs: str, model: str = "*") -> list[Figure]:
        """How many times as fast ours is as the fastest other code, of every case that does this: train, predict ..."""
        best = [comparison.fastest for comparison in self._comparisons(model) if comparison.case.verb in verbs]
        ratios = [Figure(side.ours_over_it.median, ".2f") for side in best if side and side.ours_over_it]
        if not ratios:
            raise UserError(f"docs/results/beside has no case of {model} to {' or '.join(verbs)}: measure one")
        return ratios

    def row_in_turn(self, words: str, model: str, name: str, *cells: object) -> str:
        """A table's row of a case timed in turn: its words, both rates, ratio, ratios of all cases, further cells.

        Raises UserError for a published figure of another batch, precision or number of GPUs.
        """
        comparison, best = self._in_turn(model, name)
        case, ratio = comparison.case, best.ours_over_it
        assert ratio is not None  # of the fastest
        ours = (1, *batches(case.batch_size, case.batch_per, 1), case.precision)
        for cell in cells:
            if isinstance(cell, Figure) and cell.of:
                _check_alike(f"{model} {name}", ours, cell.of)
        every = self.speed_ups(case.verb, model=model)
        texts = [
            words,
            *(rate_text(side) for side in (comparison.sides[0], best)),
            f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.greatest:.2f})",
            f"{self.span(every)} ({len(every)})",
            f"[{short(comparison)}]({self.turns}/{model}_{name}.json)",
            *cells,
        ]
        return "|".join(["", *(f" {text} " if str(text) else " " for text in texts), ""])

    def timed_on(self, model: str = "*") -> str:
        """The GPU of all cases timed in turn. Raises UserError for several kinds."""
        used = {_chip(gpu) for comparison in self._comparisons(model) for gpu in comparison.gpus}
        if len(used) != 1:
            raise UserError(f"docs/results/beside has cases of {model} on {len(used)} kinds of GPUs, one is needed")
        return used.pop()

    def theirs(self, model: str, name: str) -> Figure:
        """The rate of the fastest other code in a case timed in turn."""
        rate = self._in_turn(model, name)[1].throughput
        assert rate is not None  # of the fastest
        return Figure(rate)

    def _in_turn(self, model: str, name: str) -> tuple[Comparison, Side]:
        for comparison in self._comparisons(model):
            if comparison.case.name == name and comparison.fastest is not None:
                return comparison, comparison.fastest
        raise UserError(f"docs/results/beside has no {model} {name} with a ratio: measure it")

    def _comparisons(self, model: str) -> list[Comparison]:
        return [
            read_comparison(file) for file in sorted((self.folder / "beside").glob(f"{model}_*.json"), key=in_order)
        ]

    def papers(self, name: str) -> str:
        """The table in src/published/papers/`name`.yaml."""
        table = paper_table(name)
        columns, lines = table["columns"], table["rows"]
        texts = [columns, ["---", *["--:"] * (len(columns) - 1)], *lines]
        return "\n".join(
            f"| {' | '.join(map(str, line))} |".replace("|  |", "| |").replace("|  |", "| |") for line in texts
        )

    def paper(self, name: str, method: str, column: str) -> str:
        """The cell of a method in the table in src/published/papers/`name`.yaml."""
        table = paper_table(name)
        cells = [cell for row in table["rows"] if row[0] == method
                 for title, cell in zip(table["columns"], row, strict=True) if title == column]  # fmt: skip
        if len(cells) != 1:
            raise UserError(f"papers/{name}.yaml has {len(cells)} cells of {method!r} under {column!r}, one is needed")
        return str(cells[0])

    def millions(self, figure: Figure | str, digits: int = 3) -> Figure | str:
        """The figure in millions; an empty cell stays one."""
        return figure if isinstance(figure, str) else replace(figure, style=f"#.{digits}g", factor=1e-6)

    def styled(self, figure: Figure, style: str) -> Figure:
        """The figure by a format of Python's."""
        return replace(figure, style=style)

    def percent(self, figure: Figure, digits: int = 2) -> Figure:
        """A share in percent."""
        return replace(figure, style=f".{digits}f", factor=100.0, suffix="%")

    def each(self, figure: Callable[..., Shown], pattern: str, *further: Any) -> list[Shown]:
        """A figure, or the GPUs, of each record whose name matches; `further` are what the figure asks for besides."""
        return [figure(file.stem, *further) for file in sorted((self.folder / "records").glob(f"{pattern}.json"))]

    def mean(self, figures: Sequence[Figure]) -> Figure:
        return replace(figures[0], value=statistics.mean(figure.value for figure in figures))

    def median(self, figures: Sequence[Figure]) -> Figure:
        return replace(figures[0], value=statistics.median(figure.value for figure in figures))

    def span(self, figures: Sequence[Figure]) -> str:
        """The least and the greatest."""
        return f"{self.least(figures)} to {self.greatest(figures)}"

    def spread(self, figures: Sequence[Figure]) -> str:
        """Mean and standard deviation of figures of several seeds."""
        deviation = replace(figures[0], value=statistics.stdev(figure.value for figure in figures))
        return f"{self.mean(figures)} ± {deviation}"

    def least(self, figures: Sequence[Figure]) -> Figure:
        return min(figures, key=lambda figure: figure.best)

    def greatest(self, figures: Sequence[Figure]) -> Figure:
        return max(figures, key=lambda figure: figure.best)

    def _figure(self, name: str, value: float | None, style: str = ",.0f", factor: float = 1.0) -> Figure:
        if value is None:
            raise UserError(f"{self.file(name)}: does not have this figure")
        return Figure(value, style, factor, record=name)


def _check_alike(name: str, ours: tuple[int, float, float, str], row: PublishedRow) -> None:
    theirs = (row.world_size, *batches(row.batch_size, row.batch_per, row.world_size), row.true_precision)
    if ours != theirs:
        texts = [f"{gpus} GPUs, batch {batch:,.0f} each, {precision}" for gpus, batch, _, precision in (ours, theirs)]
        raise UserError(f"{name} is of {texts[0]}, but {row.source} of {texts[1]}: print it with published_row")


def _row_of(figure: Figure) -> PublishedRow:
    if figure.of is None:
        raise UserError("this is not a published figure")
    return figure.of


def _chip(gpu: str) -> str:
    """Returns a product name without maker and memory: H100 for NVIDIA H100 80GB HBM3."""
    return re.sub(r"NVIDIA |[ -]\d+GB.*", "", gpu)


def _gpu(hardware: str) -> str:
    """Returns how a published GPU is printed: A100 80GB for a100_80g and A100-80G, H200 for h200."""
    return re.sub(r"(\d)G$", r"\1GB", re.sub("[_-]", " ", hardware).upper())


def _of_row(row: PublishedRow, name: str) -> Figure:
    """Returns a figure that a row has, with its correction."""
    value, best = row.figure(name), row.best(name)
    assert value is not None
    metric = row.final_metric if name == "final_metric" else None
    style = METRICS.get(metric.name, ".4f") if metric else ",.0f"
    style, factor, suffix = (".2f", 1e3, " ms") if name.startswith("latency_s") else (style, 1.0, "")
    return Figure(value, style, factor, corrected=None if best == value else best, suffix=suffix, of=row)


def _one(choice: Sequence[Row], fields: dict[str, Any]) -> Row:
    """Returns the one row with these fields."""
    matching = [row for row in choice if all(getattr(row, name) == value for name, value in fields.items())]
    if len(matching) != 1:
        conditions = ", ".join(f"{name}={value}" for name, value in fields.items())
        sources = "; ".join(shortened(row.source, 80) for row in matching) or "none"
        raise UserError(f"{len(matching)} published rows have {conditions}, one is needed: {sources}")
    return matching[0]
