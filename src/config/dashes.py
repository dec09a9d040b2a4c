"""Options with dashes for keys that people write so."""

from collections.abc import Sequence


def as_keys(arguments: Sequence[str], keys: Sequence[str]) -> list[str]:
    """Returns the arguments with `--KEY VALUE` and `--KEY=VALUE` of these keys as KEY=VALUE."""
    given: list[str] = []
    rest = iter(arguments)
    for text in rest:
        key, equals, value = text.removeprefix("--").partition("=")
        if not text.startswith("--") or key not in keys:
            given.append(text)
        else:
            given.append(f"{key}={value if equals else next(rest, '')}")
    return given


def add_model_keys(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with `++` before the model's keys, which export.py's config has none of."""
    return [f"++{text}" if text.startswith("model.") else text for text in arguments]
