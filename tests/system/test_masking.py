"""What counts as a secret, and that nothing else is touched."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from src.config import schema
from src.config.secrets import find, watch
from src.config.settings import CONF
from src.config.versions import BASE
from src.errors import UserError
from src.system import masking
from src.system.masking import MASK, MaskingFilter, Secrets, mask_error, masked, masked_text
from src.system.secret_names import names_secret
from src.trained import with_secrets
from tests.support.composing import composed
from tests.support.planted import Maker

VARIABLE, VALUE = "REPRISE_TEST_VARIABLE", "shibboleth-7731"
HEX = "0a" * 20


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, VALUE)
    monkeypatch.setattr(masking, "_secrets", Secrets())
    yield


def made(**keys: Any) -> DictConfig:
    return OmegaConf.create(keys)


def resolved(config: DictConfig) -> Any:
    """Returns the config as it is in a record."""
    watch(config)
    return masked(OmegaConf.to_container(config, resolve=True))


@pytest.mark.parametrize(
    "key",
    ["api_key", "apiKey", "WANDB_API_KEY", "apikey", "hf_token", "token", "access_key_id", "secret", "client_secret",
     "password", "db_password", "credentials", "auth", "private_key", "logger.wandb.api_key", "pwd", "smtp_pass",
     "apitoken", "accesskey", "tokens", "wandb_key", "ssh_key", "AccountKey", "X-Api-Key", "githubToken", "cookie"],
)  # fmt: skip
def test_a_key_is_named_like_a_secret(key: str) -> None:
    assert names_secret(key)
    assert masked_text(f"+{key}=open sesame") == f"+{key}={MASK}"


@pytest.mark.parametrize(
    "key",
    ["tokenizer", "max_tokens", "num_tokens", "token_dim", "pad_token", "mask_token", "flops_per_token", "vocabulary",
     "author", "key", "keys", "monkey", "secretary", "passes", "basic", "datamodule",
     "forward_pass", "compass", "sort_key", "primary_key", "monitor_key", "full_key", "special_tokens", "keyboard"],
)  # fmt: skip
def test_a_key_is_not_named_like_a_secret(key: str) -> None:
    assert not names_secret(key)
    assert masked_text(f"+{key}=open sesame") == f"+{key}=open sesame"


@pytest.mark.parametrize(
    "key",
    [HEX, f"wandb_v1_{'aB3_' * 19}a", Maker("x")(86), f"hf_{'q' * 34}", f"sk-proj-{'a1' * 20}", f"ghp_{'a1' * 18}",
     f"github_pat_{'a1' * 20}", "AKIA" + "A1" * 8, "AIza" + "a1-_b" * 7, f"xoxb-{'12' * 8}", f"glpat-{'a1' * 10}",
     f"eyJ{'a1' * 9}.eyJ{'b2' * 9}.{'c3' * 9}"],
)  # fmt: skip
def test_a_value_looks_like_a_key(key: str) -> None:
    assert masked({"note": [key, f"it is {key}, he said"]}) == {"note": [MASK, f"it is {MASK}, he said"]}
    assert masked_text(f"note={key}") == f"note={MASK}"


@pytest.mark.parametrize(
    "text",
    ["hp.lr=1e-3", f"model.revision={HEX}", f"datamodule.sha1={HEX}", f"digest={'0a' * 32}", "data_root=/home/auth/x",
     "model=se3_transformer", f"weights=/risk-free/sk-learn/{'q' * 40}", "url=https://host/x@y",
     f"weights=/cache/{HEX}/x", f"weights=/cache/{HEX}", f"weights=/{'aB3-' * 21}aB/x", "token=${oc.env:TOKEN}",
     "x={api_key: ${oc.env:WANDB_API_KEY}}", "password=", "unexpected keyword argument 'x'", ""],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked_text(text) == text
    assert masked({"revision": HEX, "text": text}) == {"revision": HEX, "text": text}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a={_target_: x, api_key: 'abc d', b: 3}", f"a={{_target_: x, api_key: {MASK}, b: 3}}"),
        ("url=https://me:pw@host/x", f"url=https://me:{MASK}@host/x"),
        ("init(password=foo, x=1)", f"init(password={MASK}, x=1)"),
        ('{"api_key": "foo"}', f'{{"api_key": {MASK}}}'),
        ("token=${oc.env:TOKEN,open-sesame}", f"token={MASK}"),
        ("+credentials.user=me", f"+credentials.user={MASK}"),
    ],
)
def test_a_secret_within_a_text(text: str, expected: str) -> None:
    assert masked_text(text) == expected


def test_all_that_stands_under_a_secret_key_is_masked() -> None:
    config = {"auth": {"user": "me", "pins": [1234, None, True]}, "logger": [{"api_key": "x"}], "token": 7}
    assert masked(config) == {
        "auth": {"user": MASK, "pins": [MASK, None, True]},
        "logger": [{"api_key": MASK}],
        "token": 7,
    }


def test_values_of_the_environment_become_interpolations_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_TEST_RATE", "0.5")
    config = made(
        plain="${oc.env:REPRISE_TEST_VARIABLE}",
        within="/data/${oc.env:REPRISE_TEST_VARIABLE}/x",
        number="${oc.decode:${oc.env:REPRISE_TEST_RATE}}",
        absent="${oc.env:REPRISE_TEST_ABSENT,fallback}",
        copy="${within}",
        half="${number}",
        deep={"list": ["${plain}", 0.5, "0.5"], "all": "${deeper}"},
        deeper={"x": "${plain}", "y": 1},
        literal=f"/elsewhere/{VALUE}",
        other="${literal2}",
        literal2="fallback",
    )
    name = f"${{oc.env:{VARIABLE}}}"
    assert resolved(config) == {
        "plain": name,
        "within": f"/data/{name}/x",
        "number": "${oc.decode:${oc.env:REPRISE_TEST_RATE}}",
        "absent": "${oc.env:REPRISE_TEST_ABSENT,fallback}",
        "copy": f"/data/{name}/x",
        "half": "${number}",
        "deep": {"list": [name, 0.5, "0.5"], "all": {"x": name, "y": 1}},
        "deeper": {"x": name, "y": 1},
        "literal": f"/elsewhere/{name}",
        "other": "fallback",
        "literal2": "fallback",
    }
    assert OmegaConf.to_container(config, resolve=True)["within"] == f"/data/{VALUE}/x"  # type: ignore[index,call-overload]


def test_what_is_masked_can_be_resolved_again() -> None:
    config = made(root="${oc.env:REPRISE_TEST_VARIABLE}", model={"weights": "${root}/weights"})
    watch(config)
    OmegaConf.resolve(config)
    kept = masked(OmegaConf.to_container(config.model), "model")
    assert VALUE not in str(kept)
    assert OmegaConf.create(kept).weights == f"{VALUE}/weights"


def test_a_typed_number_of_the_environment_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPRISE_TEST_RATE", "0.0517")
    config = composed("train", "hp.lr=${oc.env:REPRISE_TEST_RATE}", "output_dir=run")
    watch(config)
    OmegaConf.resolve(config)
    assert config.hp.lr == 0.0517
    assert masked(OmegaConf.to_container(config))["hp"]["lr"] == "${oc.env:REPRISE_TEST_RATE}"


def test_texts_lose_the_secrets_of_the_config() -> None:
    watch(made(x="${oc.env:REPRISE_TEST_VARIABLE}", api_key="open-sesame", short={"api_key": "a"}))
    told = f"cannot open {VALUE} with open-sesame, a"
    assert masked_text(told) == f"cannot open ${{oc.env:{VARIABLE}}} with {MASK}, a"
    try:
        try:
            raise FileNotFoundError(2, "No such file", f"/data/{VALUE}")
        except OSError as cause:
            raise UserError(told) from cause
    except UserError as error:
        mask_error(error)
        assert not {VALUE, "open-sesame"} & {*str(error).split(), *str(error.__cause__).split("'")}
        assert VALUE not in str(error.__cause__) and "No such file" in str(error.__cause__)


def test_an_error_that_came_while_another_was_handled_loses_both_their_secrets() -> None:
    watch(made(api_key="open-sesame"))
    try:
        try:
            raise ValueError("with open-sesame")
        except ValueError:
            raise KeyError("again with open-sesame") from None
    except KeyError as error:
        mask_error(error)
        assert error.args == (f"again with {MASK}",)
        assert error.__context__ is not None and error.__context__.args == (f"with {MASK}",)


def test_a_secret_that_begins_another_one_leaves_nothing_of_it() -> None:
    secrets = Secrets(values={"open-sesame": MASK, "open-sesame-again": MASK})
    assert secrets.text("say open-sesame-again or open-sesame") == f"say {MASK} or {MASK}"


@pytest.mark.parametrize("written", ["open/sesame?", "open%2Fsesame%3F", "open%2fsesame%3f", "open/sesame%3f"])
def test_a_secret_is_masked_as_addresses_write_it(written: str) -> None:
    assert Secrets(values={"open/sesame?": MASK}).text(f"at {written}") == f"at {MASK}"


def test_log_records_lose_the_secrets_of_the_config(caplog: pytest.LogCaptureFixture) -> None:
    watch(made(x="${oc.env:REPRISE_TEST_VARIABLE}"))
    caplog.handler.addFilter(MaskingFilter())
    logging.getLogger("some.library").warning("got %s and %d", VALUE, 3)
    assert caplog.messages == [f"got ${{oc.env:{VARIABLE}}} and 3"]


def test_a_config_forgets_the_secrets_of_the_one_before() -> None:
    watch(made(x="${oc.env:REPRISE_TEST_VARIABLE}", api_key="open-sesame"))
    watch(made(x="literal"))
    assert masked({"x": VALUE, "y": "open-sesame"}) == {"x": VALUE, "y": "open-sesame"}


def test_the_environment_is_read_as_before_afterwards() -> None:
    find(made(x="${oc.env:REPRISE_TEST_VARIABLE}"))
    assert made(x="${oc.env:REPRISE_TEST_VARIABLE}").x == VALUE


@pytest.mark.parametrize("left_out", [MASK, f"https://{MASK}@host", f"${{oc.env:{VARIABLE}}}"])
def test_what_a_checkpoint_leaves_out_has_to_be_given_again(left_out: str) -> None:
    trained = {"network": {"size": 3, "parts": [1, {"of": 2}]}, "hub": {"address": left_out}}
    config = {"network": {"size": 4}, "hub": {"address": "new"}}
    asked = "model.task", "x.ckpt", ["seed=1", "+model.task.hub.address=new"]
    assert with_secrets(trained, config, *asked) == trained | {"hub": {"address": "new"}}
    message = r"^x.ckpt does not hold model.task.hub.address, .* give it again as model.task.hub.address=VALUE$"
    with pytest.raises(UserError, match=message):
        with_secrets(trained, config, "model.task", "x.ckpt", ["seed=1"])  # the default is not what it was trained with
    with pytest.raises(UserError, match=r"^x.ckpt does not hold model.task.1, "):
        with_secrets([0, left_out], config, "model.task", "x.ckpt", [])


@pytest.mark.parametrize("entry", ["train", "predict", "prepare"])
def test_hydra_itself_writes_no_config(entry: str) -> None:
    """It would do so before any code of ours runs, and on every rank."""
    schema.register()
    with initialize_config_dir(str(CONF), **BASE):
        assert compose(entry, return_hydra_config=True).hydra.output_subdir is None


FILES = sorted(path.relative_to(CONF) for path in CONF.rglob("*.yaml"))
CHOICES = [
    ("train", f"{folder}={path.stem}") if folder != "fix_hp" else ("train", f"+fix_hp={path.stem}")
    for folder in ("model", "experiment", "logger", "callbacks", "fix_hp")
    for path in sorted((CONF / folder).glob("*.yaml"))
]


@pytest.mark.parametrize("file", FILES, ids=str)
def test_no_key_of_a_shipped_file_is_masked(file: Path) -> None:
    plain = OmegaConf.to_container(OmegaConf.load(CONF / file), resolve=False)
    assert Secrets().masked(plain) == plain


@pytest.mark.parametrize(("entry", "choice"), [*CHOICES, ("predict", "model=moflow"), ("prepare", "datamodule=qm9")])
@pytest.mark.slow
def test_nothing_of_a_shipped_config_is_masked(entry: str, choice: str) -> None:
    config = composed(entry, choice)
    assert find(config) == Secrets()
    plain = OmegaConf.to_container(config, resolve=False)
    assert Secrets().masked(plain) == plain
    if entry == "train" and "fix_hp" not in choice:
        OmegaConf.update(config, "output_dir", "run")
        OmegaConf.resolve(config)
        plain = OmegaConf.to_container(config)
        assert Secrets().masked(plain) == plain
