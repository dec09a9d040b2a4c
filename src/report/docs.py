"""The result pages of the documentation: tables made from the records, words written by people."""

import re
from collections.abc import Mapping
from pathlib import Path

from src.errors import UserError
from src.report.record import check_file_names, read_record
from src.report.scaling import scaling, scaling_table
from src.report.table import section, tables
from src.system.files import write_text

MARKERS = {
    kind: (f"<!-- {kind} table: made by report.py --docs -->", f"<!-- end of {kind} table -->")
    for kind in ("train", "predict", "scaling")
}


def write_docs(folder: Path) -> list[Path]:
    """Makes the tables of `folder`/<model>.md anew from `folder`/records/*.json; returns the pages written.

    A table stands between two marker comments and replaces what stood there; everything else on the page is kept.
    A page or table that is not there yet is added; a table whose records are gone becomes empty. Raises UserError for
    a folder without records, a broken record, one whose model names no file, and a marker without its pair; no page is
    written then.
    """
    files = sorted((folder / "records").glob("*.json"), key=in_order)
    if not files:
        raise UserError(f"{folder / 'records'}: no records (*.json) there: copy a run's result.json into it")
    runs = []
    for file in files:
        record = read_record(file)
        check_file_names(record, file, "model")  # it names the page
        runs.append((f"[{file.stem}](records/{file.name})", record))
    made = tables(runs)
    pages = {folder / f"{table.model}.md": f"# {table.model}\n" for table in made}
    for path in sorted(folder.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if path in pages or any(begin in text for begin, _ in MARKERS.values()):
            pages[path] = text
    for path, text in pages.items():  # all of them before the first is written
        bodies = {table.kind: section(table) for table in made if table.model == path.stem}
        own = [run for run in runs if run[1].case.model == path.stem and run[1].kind == "train"]
        if any(record.ranks > 1 for _, record in own):
            bodies["scaling"] = scaling_table(scaling(own))
        pages[path] = _page(path, text, bodies)
    for path, text in pages.items():
        write_text(path, text)
    return list(pages)


def in_order(path: Path) -> list[str | int]:
    """A key by which names are in the order of the numbers in them: batch 64 before batch 512."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.stem)]


def _page(path: Path, text: str, bodies: Mapping[str, str]) -> str:
    """The page with its tables replaced, and those added that it lacks."""
    for kind, (begin, end) in MARKERS.items():
        if (text.count(begin), text.count(end)) not in ((0, 0), (1, 1)) or text.find(end) < text.find(begin):
            raise UserError(f"{path}: '{begin}' and '{end}' must stand there once, in this order: mend the page")
        body = f"{begin}\n\n{bodies.get(kind, '')}\n{end}"
        if begin in text:
            text = text.partition(begin)[0] + body + text.partition(end)[2]
        elif kind in bodies:
            text = f"{text.rstrip()}\n\n## {kind.capitalize()}\n\n{body}\n"
    return text
