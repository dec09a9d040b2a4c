"""The commands of report.py: for each the options that it has, and what it does with them."""

import argparse
from pathlib import Path

from src.errors import UserError
from src.published import about, rows
from src.report import convergence
from src.report.compare import regressions, text
from src.report.compare.build import compare, compare_each
from src.report.load import load
from src.report.rows import published_row
from src.report.scaling import scaling, scaling_table
from src.report.stability import ended, stability, stability_table
from src.report.table import Table, section
from src.system.files import write_text


def add_runs(parser: argparse.ArgumentParser, number: str = "+") -> None:
    what = "run folder, its result.json, a record file, a sweep, or a folder of runs"
    parser.add_argument("runs", nargs=number, type=Path, metavar="RUN", help=what)


def put(written: str, output: Path | None) -> None:
    """Prints a text, or writes it into a file."""
    if output:
        write_text(output, written)
    else:
        print(written, end="")


def compare_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare runs of one kind and unit. Runs that differ in their seed alone are one group, with mean, standard "
        "deviation and n; the first group is what the others are compared with."
    )
    add_runs(parser)
    parser.add_argument("--format", choices=[*text.VIEWS, "html"], default="markdown", help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="file to write")
    parser.add_argument("--interactive", action="store_true", help="with html: tooltips and zoom, 0.9 MB more")
    parser.add_argument("--no-published", dest="published", action="store_false", help="leave out the published rows")
    parser.add_argument(
        "--against", nargs="+", type=Path, metavar="OLD", help="runs before a change: check each figure of each case"
    )
    parser.add_argument(
        "--fail-below", type=_ratio, metavar="RATIO", help="with --against: exit code 1 below this ratio (0.97)"
    )


def run_compare(options: argparse.Namespace) -> int:
    """Prints or writes a comparison; returns 1 where `--against` finds a regression, else 0."""
    if options.against:
        return _against(options)
    if options.fail_below is not None:
        raise UserError("--fail-below needs --against OLD: the runs to be compared with")
    if options.interactive and options.format != "html":
        raise UserError("--interactive needs --format html")
    if options.format == "html":
        from src.report.compare.page import pages  # its charts take a while to load

        loaded = load(options.runs)
        is_folder = len(options.runs) == 1  # of a sweep or of runs, which may have several models
        compared = compare_each(loaded, options.published) if is_folder else [compare(loaded, options.published)]
        put(pages(compared, options.interactive), options.output)
    else:
        comparison = compare(load(options.runs), options.published)
        put(text.VIEWS[options.format](comparison), options.output)
    return 0


def _against(options: argparse.Namespace) -> int:
    views = {"markdown": regressions.table, "json": regressions.as_json}
    if options.format not in views:
        raise UserError(f"--against has no {options.format}: choose from {', '.join(views)}")
    below = 0.97 if options.fail_below is None else options.fail_below
    checks = regressions.check(load(options.runs), load(options.against), below)
    put(views[options.format](checks), options.output)
    return int(any(check.regressed for check in checks))


def _ratio(value: str) -> float:
    try:
        if 0 < (ratio := float(value)) <= 1:
            return ratio
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{value!r} is not a ratio above 0 and up to 1")


def stability_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print mean, standard deviation and range over the seeds of one case, at each evaluation."
    add_runs(parser)
    parser.add_argument("--format", choices=("markdown", "csv"), default="markdown", help="default: %(default)s")
    parser.add_argument("--output", type=Path, help="file to write")
    parser.add_argument("--picture", type=Path, help="png file to write: the seeds' curves, over the published ones")


def run_stability(options: argparse.Namespace) -> int:
    loaded = load(options.runs)
    spreads = stability(loaded)
    if options.picture:
        from src.report.plots import stability_picture  # matplotlib takes a second to load

        stability_picture([record for _, record in ended(loaded)], spreads, options.picture)
    put(stability_table(spreads, options.format), options.output)
    return 0


def rcp_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print reference convergence points: epochs and samples to a target over three seeds or more, as MLPerf counts "
        "them. The runs of one batch differ in seed and hardware alone."
    )
    add_runs(parser)
    parser.add_argument("--target", type=float, help="of the final metric (default: that of the runs)")
    parser.add_argument("--benchmark", metavar="NAME", help="its name in json (default: the model's)")
    formats = "markdown", "json"
    parser.add_argument(
        "--format", choices=formats, default="markdown", help="json: MLCommons' form (default: markdown)"
    )
    parser.add_argument("--output", type=Path, help="file to write")


def run_rcp(options: argparse.Namespace) -> int:
    points = convergence.points(load(options.runs), options.target)
    is_json = options.format == "json"
    put(convergence.as_json(points, options.benchmark) if is_json else convergence.as_table(points), options.output)
    return 0


def scaling_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print weak and strong scaling: the speed-ups over one device; 1x1 runs are among the runs."
    add_runs(parser)
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    parser.add_argument("--picture", type=Path, help="png file to write, one model's")
    parser.add_argument("--no-published", dest="published", action="store_false", help="leave out the published rows")


def run_scaling(options: argparse.Namespace) -> int:
    points = scaling(load(options.runs).runs, options.published)
    table = scaling_table(points)
    if options.picture:
        models = sorted({point.model for point in points})
        if len(models) > 1:
            raise UserError(f"--picture shows one model, these runs are of {', '.join(models)}: give the runs of one")
        from src.report.plots import scaling_picture  # matplotlib takes a second to load

        scaling_picture(points, options.picture)
    put(table, options.output)
    return 0


def start_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print where the time before the first steady step went, of each run."
    add_runs(parser)
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    parser.add_argument("--picture", type=Path, help="png file to write: a bar for each run")


def run_start(options: argparse.Namespace) -> int:
    from src.report.start import start_picture, start_table  # matplotlib takes a second to load

    runs = load(options.runs).runs
    table = start_table(runs)
    if options.picture:
        start_picture(runs, options.picture)
    put(table, options.output)
    return 0


def published_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the published rows: as printed and corrected, their sources and the arithmetic."
    parser.add_argument("model", nargs="?", help="a model's rows alone")
    parser.add_argument("--output", type=Path, help="Markdown file to write")


def run_published(options: argparse.Namespace) -> int:
    models = list(dict.fromkeys(row.model for row in rows()))
    if options.model not in (None, *models):
        raise UserError(f"no published rows of the model '{options.model}': there are those of {', '.join(models)}")
    parts = []
    for model in models if options.model is None else [options.model]:
        words = "\n".join(f"- {name.capitalize()}: {text}" for name, text in about(model).items())
        parts.append(f"## {model}\n\n{words}\n")
        for kind in ("train", "predict"):
            entries = rows(model, kind)
            if entries:
                table = Table(model, kind, entries[0].unit, [published_row(row) for row in entries])
                parts.append(f"### {model}, {kind}\n\n{section(table)}")
    put("\n".join(parts), options.output)
    return 0


def verify_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compute the derived figures of records and comparisons again, and check what their fields imply. "
        "Exit code 1 where a figure is wrong."
    )
    add_runs(parser)
    parser.add_argument("--seal", action="store_true", help="add new files to digests.txt in the folder of results")


def run_verify(options: argparse.Namespace) -> int:
    """Prints what is wrong, how much was checked, and what could not be; returns 1 where a figure is wrong, else 0."""
    from src.report.verify import described, seal, verify  # which needs numpy: help is shown without

    if options.seal:
        for folder in options.runs:
            print(f"{folder}/digests.txt: {seal(folder)} files added")
    verified = verify(options.runs)
    print(described(verified))
    return int(any(result.wrong for result in verified))
