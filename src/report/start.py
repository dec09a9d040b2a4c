"""Where the time before the first steady step of runs went: a table, and a picture with a bar for each run."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from src.errors import UserError
from src.report.record import Record
from src.report.table import aligned
from src.system.colours import START
from src.system.pictures import FAINT, INK, save_picture, style_axes

Runs = Sequence[tuple[str, Record]]
ROW = 0.42  # inches of a bar
LABEL = 32  # most characters of a run's name in the picture


def checked(runs: Runs) -> Runs:
    """Returns the runs. Raises UserError for one that had no first step, or whose record is older than its parts."""
    for name, record in runs:
        if record.start is None or not record.start.parts_s:
            raise UserError(f"{name}: its record does not say where its start went; give runs with a first step")
    return runs


def seconds_of(record: Record) -> dict[str, float]:
    """Returns the parts that took time, in order."""
    assert record.start is not None
    return {part: value for part, value in record.start.parts_s.items() if value}


def start_table(runs: Runs) -> str:
    """Returns a Markdown table of the runs: seconds of each part, and until the first and the first steady step."""
    parts = [part for part in START if any(part in seconds_of(record) for _, record in checked(runs))]
    lines = [["run", *parts, "first step at", "steady from"]]
    for name, record in runs:
        seconds, start = seconds_of(record), record.start
        assert start is not None
        cells = [f"{seconds[part]:.2f}" if part in seconds else "" for part in parts]
        ends = ["" if end is None else f"{end:.2f}" for end in (start.first_step_s, start.steady_from_s)]
        lines.append([name, *cells, *ends])
    return "Seconds from the start of the command, rank 0\n\n" + "\n".join(
        aligned(lines, [True] + [False] * (len(parts) + 2))
    )


def labels(names: Sequence[str]) -> list[str]:
    """Returns names of runs without the folders that all are in; of long ones the end."""
    paths = [Path(name) for name in names]
    common = 0
    while (
        len(names) > 1 and all(len(p.parts) > common + 1 for p in paths) and len({p.parts[common] for p in paths}) == 1
    ):
        common += 1
    short = [Path(*path.parts[common:]).as_posix() for path in paths]
    return [label if len(label) <= LABEL else f"…{label[1 - LABEL :]}" for label in short]


def start_picture(runs: Runs, path: Path) -> None:
    """Writes a picture: a run's bar goes from the start of the command to its first steady step.

    Raises UserError where the file cannot be written, or for a run without a start.
    """
    seconds = [seconds_of(record) for _, record in checked(runs)]
    bars = list(zip(labels([name for name, _ in runs]), seconds, strict=True))
    height = 1.15 + ROW * len(bars)
    picture = Figure(figsize=(8.0, height), dpi=150, facecolor="white")
    longest = max(len(name) for name, _ in bars)
    left = min(0.40, 0.03 + 0.0115 * longest)
    axes = picture.add_axes((left, 0.48 / height, 0.97 - left, ROW * len(bars) / height))
    last = max(sum(seconds.values()) for _, seconds in bars)
    for row, (_, seconds) in enumerate(bars):
        begin = 0.0
        for part, duration in seconds.items():
            axes.barh(row, duration, left=begin, height=0.62, color=START[part], edgecolor="white", linewidth=0.6)
            begin += duration
        axes.text(begin + 0.01 * last, row, f"{begin:.1f} s", va="center", size=9, color=INK)
    axes.set(xlim=(0, 1.09 * last), ylim=(len(bars) - 0.5, -0.5), yticks=range(len(bars)))
    style_axes(axes)
    axes.grid(axis="y", visible=False)
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.7)
    axes.tick_params(axis="y", length=0)
    axes.set_yticklabels([name for name, _ in bars], size=9, color=INK)
    axes.set_xlabel("seconds from the start of the command to the first steady step", size=9, color=FAINT)
    present = [part for part in START if any(part in seconds for _, seconds in bars)]
    handles = [Patch(color=START[part]) for part in present]
    picture.legend(handles, present, loc="upper left", ncols=len(present), frameon=False, fontsize=8,
                   bbox_to_anchor=(0.01, 1 - 0.08 / height), handlelength=0.9, columnspacing=1.0)  # fmt: skip
    save_picture(picture, path)
