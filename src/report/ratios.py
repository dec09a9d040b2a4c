"""The picture of README: what was timed in turn with other code, every case."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.ticker import FixedLocator, NullLocator

from src.report.beside import PRECISIONS
from src.report.in_turn import Comparison, Ratio
from src.system.pictures import CURVES, FAINT, INK, new_picture, save_picture, style_axes

NAMES = {"moflow": "MoFlow", "se3_transformer": "SE(3)-Transformer", "dlrm": "DLRM", "distilbert": "DistilBERT",
         "mobilenet_v1": "MobileNetV1"}  # fmt: skip
MARKS = ("o", "s", "D", "^", "v")  # beside the colours, for who cannot tell these apart
TICKS = (0.5, 1, 1.5, 2, 3, 4, 6, 8, 10, 15, 20, 30)


@dataclass(frozen=True)
class Row:
    """A case: its words, our rate over that of the fastest other code in each round, and that code."""

    model: str
    words: str
    ratio: Ratio
    other: str


def rows(comparisons: Sequence[Comparison]) -> list[Row]:
    """Returns a row for each case that has a ratio, the greatest first."""
    cases = []
    for comparison in comparisons:
        best, case = comparison.fastest, comparison.case
        if best is None or best.ours_over_it is None:
            continue
        verb, *middle, _, _ = case.name.split("_")  # the last are batch and precision
        precision = PRECISIONS.get(case.precision, case.precision)
        words = f"{' '.join([verb, *middle])}, batch {case.batch_size:,}, {precision}"
        cases.append(Row(case.model, words, best.ours_over_it, best.side))
    return sorted(cases, key=lambda row: row.ratio.median, reverse=True)


def ratios_picture(comparisons: Sequence[Comparison], path: Path) -> None:
    """Writes a picture with a line for each case: the median of the rounds' ratios, their least and greatest.

    Raises UserError where the file cannot be written.
    """
    cases = rows(comparisons)
    models = [*NAMES]  # so that a model has one colour in all pictures
    picture = new_picture(8.4, 1.3 + 0.175 * len(cases))
    axes = picture.subplots()
    axes.axvline(1, color=INK, linewidth=1)
    for height, row in enumerate(cases):
        ratio, number = row.ratio, models.index(row.model)
        colour = CURVES[number]
        axes.plot([ratio.least, ratio.greatest], [height, height], color=colour, linewidth=2.4, alpha=0.45)
        axes.plot(ratio.median, height, color=colour, marker=MARKS[number], markersize=5, linestyle="none")
        axes.annotate(f"{ratio.median:.2f}", (ratio.greatest, height), xytext=(5, 0), textcoords="offset points",
                      va="center", size=7, color=INK)  # fmt: skip
    axes.set_xscale("log")
    low = min(0.93, *(row.ratio.least * 0.97 for row in cases))
    high = 1.12 * max(row.ratio.greatest for row in cases)
    axes.set(xlim=(low, high), ylim=(len(cases) - 0.4, -0.6))
    axes.xaxis.set(major_locator=FixedLocator([tick for tick in TICKS if low <= tick <= high]),
                   minor_locator=NullLocator())  # fmt: skip
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(cases)), [f"{NAMES[row.model]}: {row.words}" for row in cases])
    style_axes(axes, "both")
    axes.tick_params(axis="y", labelsize=7, length=0, colors=INK)
    axes.grid(axis="y", visible=False)
    rounds = "our rate / that of the fastest other code: median of the rounds, from the least to the greatest"
    axes.set_xlabel(f"{rounds}; logarithmic", size=7.5, color=FAINT, loc="right")
    gpus = " and ".join(sorted({gpu for comparison in comparisons for gpu in comparison.gpus}))
    picture.suptitle(f"All {len(cases)} cases timed in turn with other code, on one {gpus}", x=0.02, ha="left",
                     size=11, weight="bold", color=INK)  # fmt: skip
    save_picture(picture, path)
