"""The generated result files: docs/results/rows.csv and beside.csv, and the pages of templates."""

from pathlib import Path

from src.errors import UserError
from src.report.beside import as_csv as sides_csv
from src.report.beside import in_order
from src.report.in_turn import read_comparison
from src.report.pages import made_pages
from src.report.record import Record, check_file_names, read_record
from src.report.scaling import commit_of
from src.report.table import as_csv, tables
from src.system.files import write_text


def write_docs(folder: Path) -> list[Path]:
    """Writes the generated files of a folder of results, and the pages of templates; returns those written.

    `folder`/rows.csv has a row for each of `folder`/records/*.json and for each published row of their models,
    `folder`/beside.csv one for each side of `folder`/beside/*.json, ratios.png all of their ratios, and limits.png how
    far from the chip's limit they train.
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
    refuse_wrong(verify([folder]))
    for path, text in written.items():
        write_text(path, text)
    if comparisons:
        from src.report.limits import limits_picture, standings  # which need matplotlib
        from src.report.ratios import ratios_picture

        pictures = [folder / "ratios.png"]
        ratios_picture(comparisons, pictures[0])
        if cases := standings(comparisons, {file.stem: record for file, (_, record) in zip(files, runs, strict=True)}):
            pictures.append(folder / "limits.png")
            gpus = {gpu for comparison in comparisons for gpu in comparison.gpus}
            limits_picture(cases, " and ".join(sorted(gpus)), pictures[1])
        return [*written, *pictures]
    return list(written)


def _commit(record: Record) -> str:
    changed = " with changes" if (record.environment.get("git") or {}).get("dirty") else ""
    return f"{(commit_of(record) or 'unknown')[:7]}{changed}"
