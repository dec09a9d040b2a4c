"""The command line of report.py: its commands, and the table of runs beside published rows where none is named."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from src.errors import UserError
from src.report import commands, to_wandb
from src.report.docs import write_docs
from src.report.load import Loaded, load
from src.report.paddle import paddle_record
from src.report.record import check_file_names
from src.report.table import as_csv, as_json, markdown, tables
from src.system.files import write_text
from src.system.pipes import lost, outlive_readers

DOCS = Path("docs/results")
VIEWS = {"markdown": markdown, "csv": as_csv, "json": as_json}

WHAT = """Print the results of runs next to the published ones, one row per run.

  python report.py outputs/moflow                         # a table of all runs in a folder, or of runs by name
  python report.py compare RUN RUN ...                    # groups of seeds: mean and spread, and what differs
  python report.py compare NEW --against OLD              # exit code 1 where a figure fell below 97%
  python report.py stability RUN ...                      # mean, spread and range over seeds, at each evaluation
  python report.py rcp RUN ... --target 0.9               # epochs to a target over seeds, as MLPerf counts them
  python report.py scaling RUN ... --picture scaling.png  # runs on 1, 2, 4 ... devices
  python report.py start RUN ... --picture start.png      # where the time before the first steady step went
  python report.py verify RUN ...                         # figures computed again from the times of steps
  python report.py published moflow                       # published rows, with their corrections
  python report.py wandb RUN RUN ...                      # W&B runs of records, and a W&B report of their comparison
  python report.py RUN --format paddle                    # a file in Paddle's form in the run's folder
  python report.py --docs                                 # README and docs/results, from records and templates

RUN is a run's folder, its result.json, a record file, a sweep, or a folder of runs. Each command has its own --help.
"""

Command = tuple[Callable[[argparse.ArgumentParser], None], Callable[[Any], int]]
COMMANDS: Mapping[str, Command] = {
    "compare": (commands.compare_options, commands.run_compare),
    "stability": (commands.stability_options, commands.run_stability),
    "rcp": (commands.rcp_options, commands.run_rcp),
    "scaling": (commands.scaling_options, commands.run_scaling),
    "start": (commands.start_options, commands.run_start),
    "verify": (commands.verify_options, commands.run_verify),
    "published": (commands.published_options, commands.run_published),
    "wandb": (to_wandb.wandb_options, to_wandb.run_wandb),
}


class Parser(argparse.ArgumentParser):
    """Says a mistake in one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Returns 0, or 2 after one line on stderr for a mistake of the user, or 1 where `compare` found a regression.
    """
    outlive_readers()
    code = run(sys.argv[1:] if arguments is None else list(arguments))
    sys.stdout.flush()
    if lost:
        print(f"error: standard output cannot be written ({lost.pop()}): lines of it are lost", file=sys.stderr)
        return 2
    return code


def run(arguments: Sequence[str]) -> int:
    """Runs the command; returns the exit code."""
    name = arguments[0] if arguments and arguments[0] in COMMANDS else None
    try:
        if name is None:
            return _tables(_parser().parse_args(arguments))
        add_options, run_command = COMMANDS[name]
        parser = Parser(prog=f"report.py {name}", formatter_class=argparse.RawDescriptionHelpFormatter)
        add_options(parser)
        return run_command(parser.parse_args(arguments[1:]))
    except (UserError, OSError) as error:
        if isinstance(error, OSError) and error.filename is None:
            raise
        told = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        print(f"error: {told}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="report.py",
        usage="report.py [compare|stability|rcp|scaling|start|verify|published|wandb] RUN ... [options]",
        description=WHAT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands.add_runs(parser, "*")
    parser.add_argument("--format", choices=[*VIEWS, "paddle"], default="markdown", help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="file to write; with paddle a folder (default: that of each run)")
    parser.add_argument("--no-published", dest="published", action="store_false", help="leave out the published rows")
    parser.add_argument(
        "--docs",
        nargs="?",
        type=Path,
        const=DOCS,
        metavar="FOLDER",
        help=f"write the pages of {DOCS} and README from {DOCS}/records and docs/templates",
    )
    return parser


def _tables(options: argparse.Namespace) -> int:
    if bool(options.runs) == (options.docs is not None):
        raise UserError("give run folders or record files, or --docs alone")
    if options.docs is not None:
        print(*write_docs(options.docs), sep="\n")
        return 0
    loaded = load(options.runs)
    if options.format == "paddle":
        _paddle(loaded, options.output)
        return 0
    commands.put(VIEWS[options.format](tables(loaded.runs, published=options.published)), options.output)
    return 0


def _paddle(loaded: Loaded, output: Path | None) -> None:
    """Writes one file per record, then prints each as a line of JSON; Paddle reads the last line.

    Paddle's name of a run has neither its seed nor its options: runs of one name in one folder are numbered.
    """
    texts: dict[Path, str] = {}
    for path, (_, record) in zip(loaded.paths, loaded.runs, strict=True):
        check_file_names(record, path, "model", "precision")
        paddle = paddle_record(record)
        name, number = paddle.log_file, 1
        folder = output or (path if path.is_dir() else path.parent)
        while folder / name in texts:
            number += 1
            name = f"{paddle.log_file}.{number}"
        texts[folder / name] = replace(paddle, log_file=name).to_json()
    for file, text in texts.items():
        write_text(file, text + "\n")
    print(*texts.values(), sep="\n")
