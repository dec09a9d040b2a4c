"""Which keys are named like that of a secret, whatever their letter case and wherever words meet in them."""

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
WORDS = {
    *("secret", "secrets", "password", "passwords", "passwd", "passphrase", "passcode", "credential", "credentials"),
    *("auth", "authorization", "bearer", "cookie", "cookies", "jwt"),
}
PAIRS = {("amz", "signature")}  # of an address that Amazon has signed
# Two words that people also write as one.
KINDS = (
    r"api|app|access|account|auth|private|secret|signing|encryption|master|service|client|session|user|bot|db|deploy"
)
ONE_WORD = re.compile(rf".*(?:password|passwd|passphrase|secret)s?|.*(?:{KINDS}|ssh|wandb|license)keys?"
                      rf"|.*(?:{KINDS}|bearer|refresh|oauth|id|hf|git(?:hub|lab)?|csrf|web)tokens?")  # fmt: skip
# `wandb_key` is a secret, `sort_key` is none: those of services and of encryption are.
OF_A_KEY = {
    *KINDS.split("|"), "wandb", "ssh", "hf", "huggingface", "openai", "anthropic", "nvidia", "ngc", "aws", "gcp",
    "google", "azure", "github", "gitlab", "slack", "stripe", "comet", "neptune", "mlflow", "clearml", "kaggle", "s3",
    "storage", "rsa", "pgp", "gpg", "ssl", "tls", "decryption", "hmac", "license", "webhook", "admin", "root",
    "database", "consumer", "shared", "subscription", "server", "host",
}  # fmt: skip
OF_A_TEXT = {"pad", "cls", "mask", "eos", "bos", "sep", "unk", "start", "end", "special", "per", "each", "next", "num",
             "max", "min", "n", "stop", "added", "extra", "new"}  # fmt: skip
NOT_A_PASS = {"forward", "backward", "first", "second", "last", "one", "two", "single", "high", "low", "band", "full",
              "per", "each"}  # fmt: skip
HASHES = {"commit", "revision", "sha", "hash", "digest", "checksum", "fingerprint"}
NUMBERS = re.compile(r"[-+.\d_e\s\[\](),]*", re.IGNORECASE)  # one or a list of them
NOTHING = ("", "null", "None", "none", "true", "false", "True", "False", "***", "...")


def names_secret(key: Any, value: Any = "x") -> bool:
    """Returns whether a key is named like a secret; `num_tokens`, `pad_token` and a number under `token` are not."""
    return any(_names_secret([word.lower() for word in WORD.findall(part)], value) for part in _parts(str(key)))


def names_hash(key: Any) -> bool:
    """Returns whether a key is named like that of a hash, such as `revision`."""
    words = [word.lower() for word in WORD.findall(str(key)) if not word.isdigit()]
    return bool(words) and words[-1] in HASHES


def _parts(key: str) -> list[str]:
    return [] if key.startswith(("/", "./", "~/")) else re.split(r"[./@]", key)  # a path is no key


def _names_secret(words: list[str], value: Any) -> bool:
    if WORDS & {*words} or any(ONE_WORD.fullmatch(word) for word in words):
        return True
    pairs = {*pairwise(words)}
    if PAIRS & pairs or any(last in ("key", "keys") and first in OF_A_KEY for first, last in pairs):
        return _is_text(value)
    if not words or not _is_text(value):
        return False
    last, others = words[-1], {*words[:-1]}
    if last in ("token", "tokens"):
        return not OF_A_TEXT & others
    if last in ("pass", "pwd"):
        return not NOT_A_PASS & others and not str(value).startswith(("/", "~/"))
    return False


def _is_text(value: Any) -> bool:
    """Returns whether a value is a text, or holds one, that is not a number."""
    if isinstance(value, Mapping):
        return any(_is_text(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_is_text(item) for item in value)
    return isinstance(value, str) and not NUMBERS.fullmatch(value)
