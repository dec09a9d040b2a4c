"""Sixty forms of secrets are masked in every kind of text, and by their value elsewhere; what is no secret stays."""

import json
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from omegaconf import OmegaConf

from src.config.secrets import watch
from src.system import leak_rules, masking
from src.system.masking import MASK, Secrets, masked, masked_overrides, masked_text, watch_process
from tests.reliability.secrets import parts, quoted
from tests.support import ROOT
from tests.support.planted import FORMS, Maker, planted, under_keys

TEXTS: dict[str, Callable[[str], str]] = {
    "alone": str,
    "in a sentence": lambda text: f"cannot open it ({text}), ask somebody",
    "override": lambda text: f"+model.x={quoted(text)}",
    "override of a list": lambda text: f"+model.x=[{quoted(text)},{quoted('b')}]",
    "JSON": lambda text: json.dumps({"x": [text, 1]}),
    "YAML": lambda text: yaml.dump({"x": {"y": text}}, width=10_000),
    "repr": lambda text: f"ValueError({text!r})",
    "a line of many": lambda text: f"first\n{text}\nlast",
}


@pytest.fixture(autouse=True)
def nothing_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_secrets", Secrets())


def held(secret: str, text: str) -> set[str]:
    return {part for part in parts(secret) if part in text}


def test_there_are_sixty_forms() -> None:
    assert len(FORMS) >= 60


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_masked(name: str, kind: str) -> None:
    text, secret = next((text, secret) for form, text, secret in planted(kind) if form == name)
    written = masked_text(TEXTS[kind](text))
    assert held(secret, written) == set() and MASK in written


QUOTINGS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "Hydra": quoted,
    "URL": lambda value: f"https://host/{quote(value, safe='')}/x",
    "URL with slashes": quote,
    "repr": repr,
    "JSON": json.dumps,
    "ASCII": ascii,
    "YAML": lambda value: yaml.dump([value], default_style='"', width=10_000),
    "double quotes": lambda value: '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"',
}
AWKWARD = [
    "correct-horse",
    "pässwörd-ключ",
    'it\'s "so"-called',
    "back\\slash/and/more",
    "line one\nline two & <three>",
]


@pytest.mark.parametrize("way", QUOTINGS)
@pytest.mark.parametrize("value", AWKWARD)
def test_a_value_of_a_secret_key_is_masked_in_any_quoting(value: str, way: str) -> None:
    watch(OmegaConf.create({"model": {"smtp_pass": value}}))
    written = masked_text(f"told of {QUOTINGS[way](value)} today")
    assert MASK in written and held(value, written) == set()
    assert masked({"x": f"so {value}", value: 1}) == {"x": f"so {MASK}", MASK: 1}


@pytest.mark.parametrize("way", QUOTINGS)
def test_a_value_of_an_environment_variable_named_like_a_secret_is_masked(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("REPRISE_TEST_SMTP_PASS", "pässwörd-ключ")
    monkeypatch.setenv("REPRISE_TEST_DATABASE", "postgresql://me:open-sesame@db/x")
    watch_process()
    assert "pässwörd" not in masked_text(QUOTINGS[way]("pässwörd-ключ"))
    assert masked_text("it is open-sesame") == f"it is {MASK}"
    watch(OmegaConf.create({"x": 1}))
    assert masked_text("it is open-sesame") == f"it is {MASK}"


@pytest.mark.parametrize(
    ("name", "value"),
    [("SSH_AUTH_SOCK", "/tmp/ssh-x/agent.1"), ("PWD", "/home/me/work"), ("XAUTHORITY", "/home/me/.Xauthority"),
     ("TOKENIZERS_PARALLELISM", "disabled-here"), ("GITHUB_SHA", "0a" * 20), ("DB_PASSWORD", "short"),
     ("MAX_TOKENS", "100000000"), ("NOTE", "password-less")],
)  # fmt: skip
def test_other_variables_of_the_environment_stay(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    watch_process()
    assert masked_text(f"see {value} there") == f"see {value} there" or name == "GITHUB_SHA"
    assert value not in masking._secrets.values


@pytest.mark.parametrize("key", under_keys("x"))
def test_an_override_tells_a_secret_that_other_overrides_hold(key: str) -> None:
    value = under_keys("x")[key]
    written = masked_overrides(
        [f"+model.{key}={quoted(value)}", f"note='it is {value}'", f"x={quote(value)}", "seed=1"]
    )
    assert written == [f"+model.{key}='{MASK}'", f"note='it is {MASK}'", f"x={MASK}", "seed=1"]


def test_a_text_of_a_config_tells_a_secret_that_others_hold() -> None:
    watch(OmegaConf.create({"note": "word: password=open-sesame", "x": "see open-sesame"}))
    assert masked({"note": "it is open-sesame"}) == {"note": f"it is {MASK}"}


@pytest.mark.parametrize(
    "text",
    ["commit 1f3c5d7 of reprise", f"/cache/{'0a' * 20}/x", "run 8f2k1m3q of W&B", f"sha256:{'0a' * 32}",
     "123e4567-e89b-12d3-a456-426614174000", f"run: {'0a' * 16}", "outputs/moflow/2026-11-27_20-00-00/run",
     "events.out.tfevents.1732700000.hostname.4242.0", "git@github.com:me/project.git", "https://me@host/x",
     "https://host:8080/x@y", "https://host/x?seed=1&size=3", "CCOC1CCc2c1Nc1ccccc1N2C", "c1ccc2ccccc2c1",
     "BSYNRYMUTXBXSQ-UHFFFAOYSA-N", "torch.nn.modules.batchnorm.BatchNorm2dWithMomentum", "FlashAttention2WithSplitKV",
     "model=se3_transformer precision=amp +fix_hp=max_bs", "tokens: 512, max_tokens=100", "sentences of 512 tokens: 3",
     "datamodule=image_synthetic@x", "NVIDIA H200 141GB HBM3e", "num_tokens: [1, 2, 3]", "WANDB_API_KEY=...",
     "the backward pass: all-reduce overlaps", "token=${oc.env:TOKEN}", "password: null", "sort_key: name",
     "/data/auth/x.json: not valid", "/secret/place/x.csv, row 3: expected 4 columns", "learning rate 1e-3, seed 42",
     "libcudart-d0da41ae.so.11.0", "mobilenet_v1_1x2_amp_bs1024_lr0.05", "ghcr.io/me/image:v1.2@sha256:abcdef",
     "gpu-0123456789abcdef", "Linux-6.1.0-18-amd64-x86_64-with-glibc2.36",
     "manylinux_2_17_x86_64.manylinux2014_x86_64"],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked_text(text) == text
    assert masked({"x": text}) == {"x": text}


def test_every_rule_of_gitleaks_is_one_of_python_and_is_quick() -> None:
    rules = json.loads(leak_rules.RULES.read_text(encoding="utf-8"))
    assert "MIT License" in rules["licence"] and "v8" in rules["source"] and len(rules["rules"]) > 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(re.compile(regex) and words for regex, words in rules["rules"].values())


def test_rules_are_taken_as_python_reads_them() -> None:
    source = """
    [[rules]]
    id = "some"
    regex = '''\\bXY(?i)[a-z]{8}(?:[\\x60'"\\s;]|\\\\[nr]|$)'''
    keywords = ["XY"]
    [[rules]]
    id = "of-a-name"
    regex = '''[\\w.-]{0,50}?(?:some)[ \\t\\w.-]{0,20}'''
    keywords = ["some"]
    """
    assert leak_rules.taken(source) == {"some": ("(?i)\\bXY[a-z]{8}(?![A-Za-z0-9])", ["xy"])}


@pytest.mark.parametrize(
    "body", ["a", "a ", "password=", "password: ", "auth=[", "password='", ":// a:", "\n- ", "eyJ."]
)
def test_long_texts_take_no_long_time(body: str) -> None:
    """Where time grew with the square of the length, a million characters would take hours."""
    masked_text("password:" + body * (100_000 // len(body)))
    masked_text("token=" + "1" * 100_000 + "x")


def test_what_looks_random_is_masked_without_a_rule() -> None:
    assert masked_text(f"see {Maker('y')(24)}") == f"see {MASK}"


def pairs(value: Any, key: str = "x") -> Iterator[tuple[str, Any]]:
    """Yields the values of plain data with the last of their keys."""
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else ((key, item) for item in value):
            yield from pairs(item, name)
    else:
        yield key, value


@pytest.mark.slow
def test_no_committed_result_is_masked() -> None:
    files = sorted((ROOT / "docs" / "results").rglob("*.json"))
    contents = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for content in contents:
        if isinstance(content, dict):
            content.pop("times", None)  # compressed numbers, which a record gets after it was masked
    values = {pair for content in contents for pair in pairs(content)}
    assert len(files) > 200 and len(values) > 2000
    assert [pair for pair in values if masked(dict([pair])) != dict([pair])] == []
