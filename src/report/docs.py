"""The generated result files: docs/results/rows.csv and beside.csv, and the pages of templates."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from src.errors import UserError
from src.report.beside import as_csv as sides_csv
from src.report.beside import in_order
from src.report.in_turn import Comparison, read_comparison
from src.report.pages import made_pages
from src.report.record import Record, check_file_names, read_record
from src.report.scaling import commit_of
from src.report.table import as_csv, tables
from src.system.files import write_text


def write_docs(folder: Path) -> list[Path]:
    """Writes the generated files of a folder of results, and the pages of templates; returns those written.

    `folder`/rows.csv has a row for each of `folder`/records/*.json and for each published row of their models,
    `folder`/beside.csv one for each side of `folder`/beside/*.json, ratios.png all of their ratios, and limits.png how
    far from the chip's limit they train. Of `folder`/beside/GPU/*.json and records/GPU/*.json there is limits_GPU.png.
    src/report/pages.py says which templates make which pages.

    Raises UserError for a folder without records, a broken record or comparison, figures that contradict each other
    (`src.report.verify`), and a mistake in a template; nothing is written then.
    """
    from src.report.verify import refuse_wrong, verify  # which needs numpy: other commands are quicker without

    files = sorted((folder / "records").glob("*.json"), key=in_order)
    if not files:
        raise UserError(f"{folder / 'records'}: no records (*.json) there: copy a run's result.json into it")
    runs = []
    for file in files:
        record = read_record(file)
        check_file_names(record, file, "model")  # it names the page
        runs.append((f"records/{file.name}, {_commit(record)}", record))
    comparisons = [read_comparison(file) for file in sorted((folder / "beside").glob("*.json"), key=in_order)]
    written = {folder / "rows.csv": as_csv(tables(runs))} | made_pages(folder)
    if comparisons:
        written[folder / "beside.csv"] = sides_csv(comparisons)
    pictures = _pictures(folder, comparisons) if comparisons else {}
    refuse_wrong(verify([folder]))
    for path, text in written.items():
        write_text(path, text)
    for path, draw in pictures.items():
        draw(path)
    return [*written, *pictures]


def _pictures(folder: Path, comparisons: Sequence[Comparison]) -> dict[Path, Callable[[Path], None]]:
    """Returns what draws each picture."""
    from src.report.limits import limits_picture, standings  # which need matplotlib
    from src.report.ratios import ratios_picture

    pictures: dict[Path, Callable[[Path], None]] = {folder / "ratios.png": partial(ratios_picture, comparisons)}
    for name in ["", *sorted(path.name for path in (folder / "beside").iterdir() if path.is_dir())]:
        of_gpu = [read_comparison(file) for file in sorted((folder / "beside" / name).glob("*.json"), key=in_order)]
        records = {file.stem: read_record(file) for file in (folder / "records" / name).glob("*.json")}
        if cases := standings(of_gpu, records):
            gpus = " and ".join(sorted({gpu for comparison in of_gpu for gpu in comparison.gpus}))
            pictures[folder / f"limits{name and '_'}{name}.png"] = partial(limits_picture, cases, gpus)
    return pictures


def _commit(record: Record) -> str:
    changed = " with changes" if (record.environment.get("git") or {}).get("dirty") else ""
    return f"{(commit_of(record) or 'unknown')[:7]}{changed}"
