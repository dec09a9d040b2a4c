"""The command line of report.py."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from src.errors import UserError
from src.report.docs import write_docs
from src.report.paddle import paddle_record
from src.report.record import Record, check_file_names, read_record
from src.report.scaling import scaling, scaling_table
from src.report.table import as_csv, as_json, markdown, tables
from src.system.files import write_text

DOCS = Path("docs/results")
VIEWS = {"markdown": markdown, "csv": as_csv, "json": as_json}

WHAT = """Print the results of runs next to the published ones, one row per run.

  python report.py outputs/moflow/*                      # a table; folders without a record are left out
  python report.py RUN --format csv --output runs.csv
  python report.py RUN --format paddle                   # a file in Paddle's form in the run's folder
  python report.py scaling RUN ... --picture scaling.png # runs on 1, 2, 4 ... devices; report.py scaling --help
  python report.py --docs                                # the tables of docs/results/full, from their records
"""


class Parser(argparse.ArgumentParser):
    """Says a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns 0, or 2 after one line on stderr for a mistake of the user."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    is_scaling = arguments[:1] == ["scaling"]
    try:
        options = _scaling_parser().parse_args(arguments[1:]) if is_scaling else _parser().parse_args(arguments)
        if is_scaling:
            _scaling(options)
            return 0
        if bool(options.runs) == (options.docs is not None):
            raise UserError("give run folders or record files, or --docs alone")
        if options.docs is not None:
            print(*write_docs(options.docs), sep="\n")
            return 0
        paths = _with_records(options.runs)
        runs = [(_label(path), read_record(path)) for path in paths]
        if options.format == "paddle":
            _paddle(paths, [record for _, record in runs], options.output)
            return 0
        text = VIEWS[options.format](tables(runs, published=options.published))
        if options.output:
            write_text(options.output, text)
        else:
            print(text, end="")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="report.py",
        usage="report.py RUN ... [options]",
        description=WHAT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="run folder, its result.json, or a record file"
    )
    parser.add_argument("--format", choices=[*VIEWS, "paddle"], default="markdown", help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="file to write; with paddle a folder (default: that of each run)")
    parser.add_argument("--no-published", dest="published", action="store_false", help="leave out the published rows")
    parser.add_argument(
        "--docs",
        nargs="?",
        type=Path,
        const=DOCS,
        metavar="FOLDER",
        help=f"write the tables of {DOCS}/full from {DOCS}/records",
    )
    return parser


def _scaling_parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="report.py scaling", description="Print weak and strong scaling: the speed-ups over one device."
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="as for report.py; 1x1 runs among them")
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    parser.add_argument("--picture", type=Path, help="png file to write, one model's")
    parser.add_argument("--no-published", dest="published", action="store_false", help="leave out the published rows")
    return parser


def _scaling(options: argparse.Namespace) -> None:
    runs = [(_label(path), read_record(path)) for path in _with_records(options.runs)]
    points = scaling(runs, options.published)
    text = scaling_table(points)
    if options.picture:
        models = sorted({point.model for point in points})
        if len(models) > 1:
            raise UserError(f"--picture shows one model, these runs are of {', '.join(models)}: give the runs of one")
        from src.report.plots import scaling_picture  # matplotlib takes a second to load

        scaling_picture(points, options.picture)
    if options.output:
        write_text(options.output, text)
    else:
        print(text, end="")


def _with_records(paths: Sequence[Path]) -> list[Path]:
    """Returns the paths but for folders without a record, which it names on stderr. Raises UserError if none is left.

    One path alone is meant, whatever is in it.
    """
    empty = [path for path in paths if path.is_dir() and not (path / "result.json").exists()]
    if len(paths) == 1 or not empty:
        return list(paths)
    if len(empty) == len(paths):
        raise UserError(f"none of the {len(paths)} folders has a result.json: give the folders of runs")
    folders = "1 folder" if len(empty) == 1 else f"{len(empty)} folders"
    print(f"note: {folders} without a record left out: {', '.join(map(str, empty))}", file=sys.stderr)
    return [path for path in paths if path not in empty]


def _label(path: Path) -> str:
    return str(path.parent if path.name == "result.json" else path)


def _paddle(paths: Sequence[Path], records: Sequence[Record], output: Path | None) -> None:
    """Writes one file per record, then prints each as a line of JSON; Paddle reads the last line."""
    texts = {}
    for path, record in zip(paths, records, strict=True):
        check_file_names(record, path, "model", "precision")
        paddle = paddle_record(record)
        file = (output or (path if path.is_dir() else path.parent)) / paddle.log_file
        if file in texts:
            raise UserError(f"{path}: its Paddle record would overwrite {file} of another run: report them one by one")
        texts[file] = paddle.to_json()
    for file, text in texts.items():
        write_text(file, text + "\n")
    print(*texts.values(), sep="\n")
