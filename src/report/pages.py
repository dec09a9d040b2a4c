"""Pages made of templates: their figures are those of records and of published rows.

`docs/templates/PATH.jinja` makes PATH, counted from the repository's root. `Figures` holds what a template can call.
"""

from pathlib import Path

import jinja2

from src.errors import UserError
from src.report.figures import Figures

NOTE = "<!-- Made by `python report.py --docs` from {}: edit that. -->\n\n"


def made_pages(folder: Path) -> dict[Path, str]:
    """Returns the text of each page that `folder`/../templates makes, by its path; nothing where there are none.

    Raises UserError that names the template's line for whatever is wrong in it.
    """
    templates = folder.parent / "templates"
    root, pages = folder.parent.parent, {}
    for file in sorted(templates.rglob("*.jinja")):
        page = file.relative_to(templates).with_suffix("")
        pages[root / page] = NOTE.format(file.relative_to(root).as_posix()) + _made(file, Figures(folder, page))
    return pages


def _made(file: Path, figures: Figures) -> str:
    environment = jinja2.Environment(
        extensions=["jinja2.ext.do"],
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    try:
        template = environment.from_string(file.read_text(encoding="utf-8"), globals=figures.names())
        return template.render()
    except jinja2.TemplateSyntaxError as error:
        raise UserError(f"{file}: line {error.lineno}: {error.message}") from None
    except (jinja2.TemplateError, AttributeError, TypeError, UserError) as error:
        raise UserError(f"{file}: line {_line(error)}: {error}") from None


def _line(error: BaseException) -> int:
    """Returns the line of the template in which a call failed: the innermost one that jinja compiled."""
    line, place = 0, error.__traceback__
    while place:
        line = place.tb_lineno if place.tb_frame.f_code.co_filename == "<template>" else line
        place = place.tb_next
    return line
