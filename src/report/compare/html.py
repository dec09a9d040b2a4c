"""Parts of an HTML page: texts, tables, and folded sections."""

from collections.abc import Sequence
from html import escape

from src.report.compare.charts import plain


def text(content: str) -> str:
    """Returns a text as HTML."""
    return escape(plain(content))


def listed(texts: Sequence[str]) -> str:
    """Returns texts as a list; '' without any."""
    return f"<ul>{''.join(f'<li>{text(item)}</li>' for item in texts)}</ul>" if texts else ""


def folded(title: str, content: str, inside: str = "") -> str:
    """Returns a folded section, with a word on what is inside it; '' without content."""
    more = f' <span class="inside">{text(inside)}</span>' if inside else ""
    return f"<details><summary><h2>{text(title)}</h2>{more}</summary>{content}</details>" if content else ""


def table(lines: Sequence[Sequence[str]], texts: int, caption: str) -> str:
    """Returns a table in a box that scrolls under its first column; the first of `lines` are headers.

    Args:
        texts: the number of columns that are text; the others are numbers.
    """
    kinds = [' class="text"' if i < texts else "" for i in range(len(lines[0]))]
    head = "".join(f'<th scope="col"{kind}>{text(cell)}</th>' for kind, cell in zip(kinds, lines[0], strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{text(cell)}</td>" for kind, cell in zip(kinds, line, strict=True)) + "</tr>"
        for line in lines[1:]
    )
    return (
        f'<div class="wide" tabindex="0"><table><caption><span>{text(caption)}</span></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
