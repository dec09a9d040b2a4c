"""A callback and a logger of somebody else's that tell whatever they were given."""

import json
import logging
import os
import socket
import sys
import warnings
from argparse import Namespace
from typing import Any

import pytorch_lightning as pl
from pytorch_lightning.loggers import Logger


class Refused(Exception):
    """An error that makes its message of other things than its arguments, as many libraries' do."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self.told = told

    def __str__(self) -> str:
        return "\n".join(["all is wrong:", *self.told])


class Talker(pl.Callback):
    """Prints, logs and warns of environment variables and texts when training begins; may fail with them."""

    def __init__(self, variables: list[str], texts: list[str], fails: bool = False) -> None:
        self.told = [*(os.environ[name] for name in variables), *texts]
        self.fails = fails

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        for text in self.told:
            print("printed", text)
            print("printed", repr(text), file=sys.stderr)
            logging.getLogger("talker").warning("logged %s", text)
            warnings.warn(f"warned {text}", stacklevel=1)
        try:
            raise KeyError(*self.told)
        except KeyError:
            logging.getLogger("talker").exception("logged with its traceback")
        if self.fails:
            error = Refused(self.told)
            error.add_note(" ".join(self.told))
            raise error


class SocketLogger(Logger):
    """Sends all that it gets to a port of this machine, as JSON."""

    def __init__(self, port: int, password: str) -> None:
        super().__init__()
        self.password, self.to = password, socket.create_connection(("127.0.0.1", port))

    @property
    def name(self) -> str:
        return "socket"

    @property
    def version(self) -> str:
        return "0"

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        self._send({"hyperparameters": params if isinstance(params, dict) else vars(params)})

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self._send({"metrics": metrics, "step": step})

    def finalize(self, status: str) -> None:
        self.to.close()

    def _send(self, data: Any) -> None:
        self.to.sendall(json.dumps(data, default=str).encode() + b"\n")
