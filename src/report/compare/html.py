"""Parts of an HTML page: texts, tables, and folded sections."""

from collections.abc import Sequence
from html import escape

from src.report.compare.charts import plain

HALF = 22  # letters of a name and its figure in half of that
PHONE = 40  # letters in the width of a phone
FIRST = 14  # letters that the first column has room for at least


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


def _letters(lines: Sequence[Sequence[str]], texts: int) -> int:
    """Returns the letters that a table is wide: headers and texts break between words, numbers do not."""
    columns = list(zip(*lines, strict=True))
    words = [max(map(len, column[0].split()), default=0) for column in columns]
    cells = [max((len(word) for cell in column[1:] for word in (cell.split() if i < texts else [cell])), default=0)
             for i, column in enumerate(columns)]  # fmt: skip
    return sum(max(pair) + 3 for pair in zip(words, cells, strict=True)) + max(0, FIRST - cells[0]) * (texts > 0)


def table(lines: Sequence[Sequence[str]], texts: int, caption: str, has_cards: bool = True) -> str:
    """Returns a table in a box that scrolls under its first column; the first of `lines` are headers.

    Args:
        texts: the number of columns that are text; the others are numbers.
        has_cards: whether on a phone each line of a wide table is a card, with the header beside each figure.
    """
    is_wide = has_cards and _letters(lines, texts) > PHONE
    kinds = [' class="text"' if i < texts else "" for i in range(len(lines[0]))]
    head = "".join(f'<th scope="col"{kind}>{text(cell)}</th>' for kind, cell in zip(kinds, lines[0], strict=True))
    named = [f' data-of="{text(name)}"' if is_wide else "" for name in lines[0]]
    names = [kind + name for kind, name in zip(kinds, named, strict=True)]
    beside = [len(name + cell) for line in lines[1:] for name, cell in zip(lines[0][1:], line[1:], strict=True)]
    is_long = max(beside, default=0) > HALF
    cards = (' class="cards long"' if is_long else ' class="cards"') if is_wide else ""
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{text(cell)}</td>" for kind, cell in zip(names, line, strict=True)) + "</tr>"
        for line in lines[1:]
    )
    return (
        f'<div class="wide" tabindex="0"><table{cards}><caption><span>{text(caption)}</span></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
