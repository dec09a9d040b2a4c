"""Mistakes drawn from the types of a config's keys: each is refused in one printable line before anything starts.

`python -m tests.config.test_drawn_mistakes 300` draws as many over the five models, and prints what was not refused.
"""

import random
import sys
from collections import Counter
from collections.abc import Iterator
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from omegaconf import OmegaConf

from src.cli import MISTAKES
from src.config.explain import explain
from src.config.hints import members
from src.config.ranges import Range
from src.config.schema import TrainConfig
from src.config.values import check_training, parameters_of, target_of
from src.errors import LONGEST
from src.launch.devices import check_devices, check_graph
from src.printable import printable
from tests.support.composing import composed

BASE = ("hardware=cpu", "output_dir=out", "logger=csv")
MODELS = {
    "moflow": (),
    "se3_transformer": (),
    "dlrm": (),
    "distilbert": ("model.task.weights=random", "precision=fp32"),
    "mobilenet_v1": (),
}
SHARED = ("hydra", "sweep")  # not of a job


def typed_keys(config: Any) -> Iterator[tuple[str, Any]]:
    """Yields the keys of a config that have a type, with it: those of the schema and of the classes that it names."""
    plain: Any = OmegaConf.to_container(config)

    def walk(prefix: str, values: dict[Any, Any], types: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            key, hint = f"{prefix}{name}", types[name].hint if name in types else Any
            section = next((member for member in members(hint) if hasattr(member, "__dataclass_fields__")), None)
            if name in SHARED and not prefix:
                continue
            if isinstance(value, dict) and "_target_" in value:
                yield from [(key, object)] * ("." in key)  # a group takes names alone
                yield from walk(f"{key}.", value, dict(parameters_of(target_of(key, value["_target_"]))))
            elif isinstance(value, dict):
                yield from walk(f"{key}.", value, dict(parameters_of(section)) if section else {})
            elif hint is not Any and name != "_target_":
                yield key, hint

    yield from walk("", plain, dict(parameters_of(TrainConfig)))


def wrong_values(hint: Any) -> list[str]:
    """Returns texts of values that a type does not allow: other types, beyond both ends, and null where it is none."""
    if hint is object:
        return ["3", "text", "[1]", "true"]
    kinds = [kind for kind in members(hint) if kind is not NoneType]
    texts = [] if NoneType in members(hint) else ["null"]
    plain = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in kinds]
    limits = [limit for kind in kinds for limit in getattr(kind, "__metadata__", ())]
    if len(kinds) == 1 and plain[0] in (int, float):
        texts += ["text", "[1]", "{a:1}", "true", "nan", "inf", "1e380", str(2**63 - 1), str(-(2**63)), "-1e39"]
        for limit in limits:
            if isinstance(limit, Range) and limit.also is None:
                texts += [str(limit.least - 1)] * (limit.least > -1e38) + [str(limit.most + 1)] * (limit.most < 1e38)
                texts += [str(limit.above)] * (limit.above > -1e38) + [str(limit.below)] * (limit.below < 1e38)
        if plain[0] is float:  # a large whole number is one
            texts = [text for text in texts if text not in (str(2**63 - 1), str(-(2**63)))]
        if any(isinstance(limit, Range) and limit.least < -1e38 and limit.above < -1e38 for limit in limits):
            texts = [text for text in texts if not text.startswith("-")]
    elif plain == [bool]:
        texts += ["perhaps", "[true]", "{a:true}"]  # OmegaConf takes 2 for true
    elif any(get_origin(part) is Literal for part in [*plain, *limits]):
        texts += ["nonsense", "[nonsense]", "{a:b}", "3.5"]
    elif plain == [str]:
        texts += ["[a]", "{a:b}"]
    elif len(plain) == 1:  # a list or a mapping
        texts += ["3", "text"]
    return texts


def near(name: str, draw: random.Random) -> str:
    """Returns a name with a letter twice."""
    place = draw.randrange(len(name))
    return name[: place + 1] + name[place:]


def mistakes(model: str, count: int, seed: int = 0) -> Iterator[str]:
    """Yields overrides that are mistakes, drawn at random."""
    draw = random.Random(f"{model} {seed}")
    config = composed("train", f"model={model}", *BASE, *MODELS[model])
    keys = [(key, hint) for key, hint in typed_keys(config) if hint is object or wrong_values(hint)]
    groups = [f"+{group}.x={value}" for group in ("callbacks", "logger") for value in ("3", "null", "[1]", "{a:1}")]
    others = [*groups, "+x=3", "+fit.x={a:1}", "+trainer.x=1", "trainer.devices=1024", "trainer.name=3x3"]
    others += ["execution.graph=on", "model.task=null"]
    for _ in range(count):
        key, hint = draw.choice(keys)
        kind = draw.random()
        if kind < 0.1:
            yield draw.choice(others)
        elif kind < 0.3 and "." in key:
            parent, _, name = key.rpartition(".")
            yield f"+{parent}.{near(name, draw)}=1"
        else:
            yield f"{key}={draw.choice(wrong_values(hint))}"


def failure(model: str, override: str) -> str | None:
    """Returns what a mistake led to that is not one printable line; None where it is refused as it should be."""
    try:
        config = composed("train", f"model={model}", *BASE, *MODELS[model], override)
        check_training(config)
        check_devices(config.trainer, "cpu")
        check_graph(config.execution, "cpu")
    except MISTAKES as error:
        line = explain(error)
        is_line = line and printable(line) == line and "\n" not in line and len(line) <= LONGEST
        return None if is_line else f"not one printable line: {line!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "is accepted"


def failures(model: str, count: int, seed: int = 0) -> list[str]:
    results = [(override, failure(model, override)) for override in mistakes(model, count, seed)]
    return [f"model={model} {override}: {what}" for override, what in results if what]


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_drawn_mistake_is_refused_in_one_line(model: str) -> None:
    assert failures(model, 20) == []


def main(count: int) -> int:
    numbers = Counter(model for _, model in zip(range(count), list(MODELS) * count, strict=False))
    lines = [line for model, number in numbers.items() for line in failures(model, number)]
    print(f"{count} mistakes, {len(lines)} not refused in one line", *lines, sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
