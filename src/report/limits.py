"""The picture of how far from the chip's limit our code and the fastest other code train, every case timed in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.ticker import PercentFormatter

from src.report.beside import PRECISIONS
from src.report.in_turn import Comparison
from src.report.ratios import MARKS, NAMES
from src.report.record import Record
from src.system.pictures import CURVES, FAINT, INK, new_picture, save_picture, style_axes

BOUNDS = {"of_peak_bandwidth": "memory", "of_peak_flops": "arithmetic"}


@dataclass(frozen=True)
class Standing:
    """A case of training: shares of the roofline's rate that ours and the fastest other code reach, and its bound."""

    model: str
    words: str
    ours: float
    other: float
    bound: str


def standings(comparisons: Sequence[Comparison], records: Mapping[str, Record]) -> list[Standing]:
    """Returns a standing for each training case that has a ratio and our record on such a GPU, ours greatest first.

    The roofline's rate is that at which the datasheet's arithmetic or memory bandwidth is used up by the least FLOPs
    and bytes of a sample (the model's `cost`). `records` are by file name without its end.
    """
    cases = []
    for comparison in comparisons:
        best, case, rate = comparison.fastest, comparison.case, comparison.sides[0].throughput
        names = case.name, case.name.removeprefix("train_")  # DistilBERT's records leave the verb out
        record = next((records[file] for name in names if (file := f"{case.model}_{name}") in records), None)
        if case.verb != "train" or best is None or best.throughput is None or record is None or rate is None:
            continue
        if set(record.environment.get("gpus") or ()) != set(comparison.gpus):
            continue
        shares = {bound: getattr(record.utilisation, key, None) or 0.0 for key, bound in BOUNDS.items()}
        bound, steady = max(shares, key=shares.__getitem__), getattr(record.steady, "p_train", None)
        if not steady or not shares[bound]:
            continue
        _, *middle, _, _ = case.name.split("_")  # the last are batch and precision
        words = " ".join([*middle, f"batch {case.batch_size:,}, {PRECISIONS.get(case.precision, case.precision)}"])
        limit = steady / shares[bound]
        cases.append(Standing(case.model, words, rate / limit, best.throughput / limit, bound))
    return sorted(cases, key=lambda row: row.ours, reverse=True)


def limits_picture(cases: Sequence[Standing], gpu: str, path: Path) -> None:
    """Writes a picture with a line for each case, from the fastest other code's share to ours.

    Raises UserError where the file cannot be written.
    """
    models = [*NAMES]  # so that a model has one colour in all pictures
    picture = new_picture(8.4, 1.3 + 0.2 * len(cases))
    axes = picture.subplots()
    for height, case in enumerate(cases):
        number = models.index(case.model)
        how = {"color": CURVES[number], "marker": MARKS[number], "markersize": 5, "linestyle": "none"}
        axes.plot([case.other, case.ours], [height, height], color=CURVES[number], linewidth=2.4, alpha=0.45)
        axes.plot(case.other, height, markerfacecolor="white", **how)
        axes.plot(case.ours, height, **how)
        axes.annotate(f"{case.ours:.0%} of {case.bound}", (max(case.ours, case.other), height), xytext=(7, 0),
                      textcoords="offset points", va="center", size=7, color=INK)  # fmt: skip
    axes.axvline(1, color=INK, linewidth=1)
    axes.set(xlim=(0, 1.02), ylim=(len(cases) - 0.4, -0.6))
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_yticks(range(len(cases)), [f"{NAMES[case.model]}: {case.words}" for case in cases])
    style_axes(axes, "both")
    axes.tick_params(axis="y", labelsize=7, length=0, colors=INK)
    axes.grid(axis="y", visible=False)
    what = "share of the rate that uses up the datasheet's memory bandwidth or arithmetic; hollow: fastest other code"
    axes.set_xlabel(what, size=7.5, color=FAINT, loc="right")
    picture.suptitle(f"Training between the fastest other code and the limit of one {gpu}", x=0.02, ha="left",
                     size=11, weight="bold", color=INK)  # fmt: skip
    save_picture(picture, path)
