"""Plants secrets of 60 forms in a run, a failing run and a sweep, and searches all that they left, printed and sent.

    python -m tests.reliability.secrets

prints how many planted secrets were found anywhere, and where.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from urllib.parse import quote

import yaml

from tests.support import ROOT
from tests.support.planted import planted, under_keys
from tests.support.tiny_mobilenet import tiny_overrides

SHORT = ["fit.max_steps=2", "fit.final_evaluation=false", "fit.eval_every_n_epochs=null"]
LOGGERS = "logger=[csv,tensorboard,wandb]"
PLACES = ("override", "file", "environment", "error", "logger")


@dataclass(frozen=True)
class Run:
    """How a command ended and what was planted in it: secrets by place and form."""

    secrets: dict[str, str]
    code: int
    printed: str
    sent: bytes
    folder: Path

    def leaks(self) -> list[tuple[str, str]]:
        """Returns which secrets were found where."""
        return sorted(
            (name, where)
            for where, data in self.contents()
            for name, secret in self.secrets.items()
            if any(part.encode() in data for part in parts(secret))
        )

    def contents(self) -> Iterator[tuple[str, bytes]]:
        """Yields what was printed and sent, and every file and every part of the zip archives that checkpoints are."""
        yield "printed", self.printed.encode()
        yield "sent", self.sent
        for path in sorted(path for path in self.folder.rglob("*") if path.is_file()):
            yield str(path.relative_to(self.folder)), path.read_bytes()
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    yield from ((f"{path.name}/{name}", archive.read(name)) for name in archive.namelist())


def parts(secret: str) -> set[str]:
    """Returns a secret as it may be written, and its halves: a secret cut at a comma is none any more."""
    lines = [line for line in secret.splitlines() if not line.startswith("-----")]
    halves = [half for line in lines for half in (line[: len(line) // 2], line[len(line) // 2 :]) if len(half) > 5]
    whole = [*lines, *halves]
    return {
        way(text)
        for text in whole
        for way in (str, quote, lambda text: json.dumps(text)[1:-1], lambda text: ascii(text)[1:-1])
    }


def quoted(text: str) -> str:
    """Returns a text as the value of an override."""
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), text) + "'"


def run(home: Path, *, fails: bool = False, sweep: bool = False) -> Run:
    """Runs `train.py` with secrets in overrides, a config file, the environment, an error and keys of loggers."""
    seed = f"{fails} {sweep} "
    forms = {place: [*planted(seed + place)] for place in PLACES}
    keys = {place: under_keys(seed + place) for place in PLACES}
    secrets = {f"{place}: {name}": secret for place in PLACES for name, _, secret in forms[place]}
    secrets |= {f"{place}: under {key}": secret for place in PLACES for key, secret in keys[place].items()}
    environment = {f"PLANTED_{i}": text for i, (_, text, _) in enumerate(forms["environment"])}
    named = {f"MY_{key.upper()}": secret for key, secret in keys["environment"].items()}
    group = home / "conf" / "planted"
    group.mkdir(parents=True)
    held = {
        "texts": [text for _, text, _ in forms["file"]],
        **keys["file"],
        "again": [*map(quote, keys["file"].values())],
    }
    (group / "all.yaml").write_text("# @package model.of_a_file\n" + yaml.dump(held))
    talker = {
        "_target_": "tests.support.talking.Talker",
        "variables": [*environment, *named],
        "texts": [
            *(text for _, text, _ in forms["error"]),
            *(f"'{key}': {value!r}" for key, value in keys["error"].items()),
        ],
        "fails": fails,
    }
    (group / "talker.yaml").write_text("# @package callbacks.talker\n" + yaml.dump(talker))
    notes = "\n".join(text for _, text, _ in forms["logger"])
    tags = [text for _, text, secret in forms["logger"] if len(text) < 64 and "\n" not in text]
    told = {"notes": notes, "tags": tags, "config": {"planted": notes, **keys["logger"]}}
    (group / "wandb.yaml").write_text("# @package logger.wandb\n" + yaml.dump(told))
    with Listener() as listener:
        password = quoted(keys["logger"]["pwd"])
        logger = f"{{_target_:tests.support.talking.SocketLogger,port:{listener.port},password:{password}}}"
        command = [
            *(["-m"] if sweep else []), f"hydra.searchpath=[file://{home / 'conf'}]",
            *(text for text in tiny_overrides(home) if not (sweep and text.startswith("output_dir="))), *SHORT, LOGGERS,
            "+planted=[all,talker,wandb]", f"+logger.socket={logger}",
            *(f"+model.planted_{i}={quoted(text)}" for i, (_, text, _) in enumerate(forms["override"])),
            *(f"+model.keys.{key}={quoted(secret)}" for key, secret in keys["override"].items()),
            f"+model.again={quoted(' '.join(keys['override'].values()))}",
            f"note={quoted('of ' + ', '.join(map(quote, keys['override'].values())))}",
            f"+model.of_environment=[{','.join(f'${{oc.env:{name}}}' for name in environment)}]",
            *([f"hydra.sweep.dir={home / 'sweep'}", "seed=1"] if sweep else []),
        ]  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "train.py", *command],
            cwd=ROOT, env=os.environ | environment | named | {"OMP_NUM_THREADS": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    shutil.rmtree(home / "conf")
    return Run(secrets, ended.returncode, ended.stdout + ended.stderr, listener.got, home)


class Listener:
    """Takes all that is sent to a port of this machine while the block runs."""

    def __enter__(self) -> "Listener":
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port, self.got = self.server.getsockname()[1], b""
        self.thread = Thread(target=self._listen, daemon=True)
        self.thread.start()
        return self

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(1 << 16):
                    self.got += data

    def __exit__(self, *_: object) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join()


def main(arguments: Sequence[str]) -> int:
    total = 0
    for name, how in {"run": {}, "failing run": {"fails": True}, "sweep": {"sweep": True}}.items():
        with tempfile.TemporaryDirectory() as folder:
            ended = run(Path(folder), **how)
            leaks = ended.leaks()
            secrets = {secret for secret, _ in leaks}
            total += len(secrets)
            files = len([*ended.contents()])
            print(f"{name}: {len(secrets)} of {len(ended.secrets)} planted secrets found in {files} files and streams")
            for secret, where in leaks if "-v" in arguments else []:
                print(f"  {secret}: {where}")
            if "-v" in arguments:
                print(ended.code, ended.printed[-3000:], len(ended.sent))
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
