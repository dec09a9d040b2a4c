"""Where secrets stand in a text: behind keys named like one, in addresses and headers, and what looks random."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from src.system.leak_rules import rule_spans
from src.system.secret_names import NOTHING, names_hash, names_secret

Span = tuple[int, int]
INTERPOLATION = re.compile(r"\$\{[^{},'\"]*\}")  # without a default, which would be a value
ASSIGNMENT = re.compile(r"[+~]{0,2}([\w./@-]+)=(.*)", re.DOTALL)
KEY = re.compile(r"(?<![\w./@-])([\w./@-]*\w)(\\*['\"`]?\]?[ \t]*(?::=|=>|[:=])[ \t]*)")
OPTION = re.compile(r"(?<![\w-])--([\w-]+)(['\"]?,?[ \t]+)(?=[^-\s])")
SCHEME = re.compile(r"(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey)[ \t]+", re.IGNORECASE)
BLOCK = re.compile(r"[|>]?[+-]?[ \t]*\n((?:[ \t]+\S[^\n]*(?:\n|$)|-[ \t][^\n]*(?:\n|$))+)")
QUOTED = re.compile(r"(\\*['\"])(.*?)(?<!\\)\1", re.DOTALL)
PLAIN = re.compile(r"\$\{[^{}]*\}|[^\s,{}\[\]'\"]+")
CLOSING = {"[": "]", "{": "}", "(": ")"}

ELSEWHERE = [
    re.compile(r"://[^/\s:@'\"]*:([^/\s'\"]+)@"),  # a password of an address
    re.compile(r"://(?=[^/\s@'\"]*\d)([^/\s:@'\"]{16,})@"),  # a token alone
    re.compile(r"(?<![\w/.:-])[\w.+-]+:([^\s:@/'\"]{4,})@(?=[\w-]+\.[\w.-]*[a-z])"),  # the same without https://
    re.compile(r"[?&;](?:sig|signature|code|key)=([^\s&'\"]{16,})"),
    re.compile(r"\b(?:Bearer|Basic|Token)[ \t]+(?=\S*[\dA-Z])([\w.~+/=-]{16,})"),
    re.compile(r"\blogin[ \t]+\S+[ \t]+password[ \t]+(\S+)"),  # .netrc
    re.compile(
        r"(?<![\w-])(wandb_v\d+_\w{20,}|hf_\w{30,}|sk-[\w-]{20,}|gh[pousr]_\w{30,}|github_pat_\w{20,}|glpat-[\w-]{20,}"
        r"|A(?:KIA|SIA)[0-9A-Z]{16}(?!\w)|AIza[\w-]{35}|xox[abeoprs]-[\w-]{10,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+)"
    ),  # the most common ones, whatever their exact form
    # A key of Weights & Biases by its length, maybe of a server of one's own; as a folder of a path it is a hash.
    re.compile(r"(?<![\w/-])(local-[0-9a-f]{40})(?![\w/-])"),
    re.compile(
        r"(-----BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-----|$))", re.S
    ),
]
HEX_40 = re.compile(r"(?<![\w/-])([0-9a-f]{40})(?![\w/-])")
RUN = re.compile(r"(?<![\w/.~-])[A-Za-z0-9_.~-]{19,}[A-Za-z0-9](?![\w/-])")
PIECE = re.compile(r"[A-Za-z0-9]{16,}")


@lru_cache(1024)  # a config's texts are looked at for every file
def secret_spans(text: str, is_hash: bool = False) -> list[Span]:
    """Returns where the secrets of a text begin and end, in order and without overlaps.

    Args:
        is_hash: whether it may be a hash, of 40 hexadecimal digits.
    """
    spans = list[Span]()
    if assignment := ASSIGNMENT.fullmatch(text):
        if is_secret(*assignment.groups()):
            return [assignment.span(2)]
        is_hash = is_hash or names_hash(assignment[1])
    spans += _behind_keys(text)
    spans += [match.span(1) for pattern in ELSEWHERE for match in pattern.finditer(text)]
    spans += rule_spans(text)
    spans += [match.span() for match in RUN.finditer(text) if looks_random(match[0])]
    if not is_hash:
        spans += [match.span(1) for match in HEX_40.finditer(text)]
    return _merged(spans)


def is_secret(key: str, value: str) -> bool:
    """Returns whether a text under a key is a secret: an interpolation only names one."""
    bare = value.strip("\"'\\ ")
    return bare not in NOTHING and not INTERPOLATION.fullmatch(bare) and names_secret(key, bare)


def looks_random(word: str) -> bool:
    """Returns whether letters and digits change so often that no name is likely; hexadecimal hashes do not count."""
    return any(_is_random(piece) for piece in PIECE.findall(word))


def _is_random(piece: str) -> bool:
    if len({*piece.lower()}) < 9 or re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", piece):  # few letters: a molecule
        return False
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in piece]
    changes = sum(a != b for a, b in pairwise(kinds)) / (len(piece) - 1)
    if len({*kinds}) == 3:
        words = sum(map(len, re.findall("[a-z]{4,}", piece)))  # of a name in CamelCase
        return changes >= 0.4 and words < 0.4 * len(piece)
    return "d" in kinds and len(piece) >= 20 and changes >= 0.25


def _behind_keys(text: str) -> Iterator[Span]:
    at = 0
    while match := KEY.search(text, at):
        at = match.end()
        if not names_secret(match[1]) or (match[1] == "pass" and text[match.start() - 1 : match.start()] == " "):
            continue  # of a sentence on the backward pass
        begin, end = _value(text, match)
        if is_secret(match[1], text[begin:end]):
            yield begin, end
            at = max(at, end)
    for match in OPTION.finditer(text):
        if names_secret(match[1]) and (value := QUOTED.match(text, match.end()) or PLAIN.match(text, match.end())):
            yield value.span()


def _value(text: str, key: re.Match[str]) -> Span:
    """Returns where the value behind a key stands: in quotes or brackets, on lines below, a line's rest, a word."""
    at = key.end()
    if scheme := SCHEME.match(text, at):
        at = scheme.end()
    elif block := BLOCK.match(text, at):
        return at, block.end()
    if quoted := QUOTED.match(text, at):
        return quoted.span()
    mark = text[key.start() - 1 : key.start()]
    is_within = (mark in ("'", '"') and mark not in key[2]) or (mark == "(" and ":" in key[2])
    if is_within and (end := text.find(CLOSING.get(mark, mark), at)) > at:
        return at, end  # key and value are within quotes
    if at < len(text) and text[at] in CLOSING:
        return at, _closing(text, at)
    plain = PLAIN.match(text, at)
    if plain is None:
        return at, at
    is_line = not text[text.rfind("\n", 0, key.start()) + 1 : key.start()].strip(" \t-\"'") and ":" in key[2]
    if not is_line or plain[0].startswith("${") or not names_secret(key[1], plain[0]):
        return plain.span()
    line = text[at:].partition("\n")[0].partition(" #")[0].rstrip()
    return at, at + len(line)


def _closing(text: str, begin: int) -> int:
    """Returns the end of what a bracket opens; that of the text where nothing closes it."""
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == text[begin]) - (text[at] == CLOSING[text[begin]])
        if depth == 0:
            return at + 1
    return len(text)


def _merged(spans: list[Span]) -> list[Span]:
    merged = list[Span]()
    for begin, end in sorted(span for span in spans if span[0] < span[1]):
        if merged and begin < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((begin, end))
    return merged
