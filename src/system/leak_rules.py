"""Forms of the keys and tokens of services: the rules of gitleaks, which its project keeps up to date.

    python -m src.system.leak_rules gitleaks.toml LICENSE v8.30.1

takes gitleaks.json of this folder anew from a release of github.com/gitleaks/gitleaks (files config/gitleaks.toml and
LICENSE). Taken are rules whose form tells by itself: others look for a service's name before any word, which key names
cover here, and cost Python's `re` seconds on long texts. Go's mid-pattern `(?i)` is one of the whole rule here.
"""

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

RULES = Path(__file__).with_name("gitleaks.json")
OF_A_NAME = r"[\w.-]{0,50}?"  # before a service's name
TOKEN_END = r"""(?:[\x60'"\s;]|\\[nr]|$)"""  # in gitleaks: without the commas and brackets of YAML and calls
LEFT_OUT = ("generic-api-key", "curl-auth-header", "curl-auth-user", "kubernetes-secret-yaml")
LONG = re.compile(r"\S{16}")


def rule_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yields where keys and tokens of known services stand in a text."""
    if not LONG.search(text):
        return
    small = text.lower()
    for rule, keywords in _rules().items():
        if any(word in small for word in keywords):
            yield from (match.span() for match in _compiled(rule).finditer(text))


@cache
def _rules() -> dict[str, list[str]]:
    """Returns the rules and the words of which a text that fits has one."""
    return {regex: keywords for regex, keywords in json.loads(RULES.read_text(encoding="utf-8"))["rules"].values()}


@cache
def _compiled(regex: str) -> re.Pattern[str]:
    return re.compile(regex)


def taken(source: str) -> dict[str, tuple[str, list[str]]]:
    """Returns regular expression and keywords of each rule of a gitleaks.toml that is used, as Python writes them."""
    import tomllib

    rules = dict[str, tuple[str, list[str]]]()
    for rule in tomllib.loads(source)["rules"]:
        regex = rule.get("regex", OF_A_NAME)
        if OF_A_NAME in regex or rule["id"] in LEFT_OUT:
            continue
        regex = regex.replace(TOKEN_END, "(?![A-Za-z0-9])")
        ignores_case = "(?i)" in regex
        regex = ("(?i)" if ignores_case else "") + regex.replace("(?i)", "").replace(r"\z", r"\Z").replace("[[", r"[\[")
        rules[rule["id"]] = regex, [word.lower() for word in rule["keywords"]]
    return rules


if __name__ == "__main__":
    toml, licence, version = sys.argv[1:]
    of = {
        "source": f"config/gitleaks.toml of github.com/gitleaks/gitleaks {version}, by src/system/leak_rules.py",
        "licence": Path(licence).read_text(encoding="utf-8").splitlines(),
        "rules": taken(Path(toml).read_text(encoding="utf-8")),
    }
    RULES.write_text(json.dumps(of, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
