"""Progress on a terminal, a pseudo-terminal here, and in a pipe."""

import fcntl
import os
import re
import struct
import sys
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from omegaconf import open_dict

from src.callbacks.progress import in_words, of, time_left
from src.run import train
from src.system.progress import byte_progress, item_progress, working
from tests.support.tiny_run import tiny_config

BAR = "━"


def on_terminal(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns what `work` sends to stdout and stderr while they are a terminal of 24 rows and 120 columns."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    with (
        ThreadPoolExecutor(1) as reader, os.fdopen(slave, "w", encoding="utf-8") as terminal,
        monkeypatch.context() as patched,
    ):  # fmt: skip
        sent = reader.submit(read_all, master)
        patched.setenv("TERM", "xterm")
        patched.setattr(sys, "stdout", terminal)
        patched.setattr(sys, "stderr", terminal)
        work()
        terminal.close()
        return sent.result()


def read_all(terminal: int) -> str:
    """Returns what a pseudo-terminal was sent, once its other side is closed."""
    sent = b""
    with suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as file:  # its end is an error
        while block := file.read(1 << 16):
            sent += block
    return sent.decode()


def tiny(home: Path, *overrides: str) -> None:
    config = tiny_config(home, "fit.max_steps=4", "measure.window=1", *overrides)
    with open_dict(config):
        config.callbacks.progress = {"_target_": "src.callbacks.progress.Progress", "every_s": 0.0}
    train(config)


@pytest.mark.slow
def test_training_in_a_pipe_prints_plain_lines(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny(tmp_path)
    printed = capfd.readouterr()
    assert "\r" not in printed.out + printed.err and "\x1b" not in printed.out + printed.err
    lines = printed.out.splitlines()
    steps = [line for line in lines if line.startswith("epoch 1 of 1, step ")]
    assert [line.split(", ")[1] for line in steps] == ["step 2 of 8", "step 3 of 8", "step 4 of 8"]  # losses come late
    assert ", loss " in steps[0] and ", molecules_per_s " in steps[0]
    assert all(re.search(r", \d+ s left$", line) for line in steps)
    assert "evaluation: batch 1 of 1" in lines


def test_the_time_left_is_that_of_the_steps_left_or_of_the_time_limit() -> None:
    assert time_left(60.0, 30, 60, []) == 120.0
    assert time_left(60.0, 30, 60, [50.0]) == time_left(60.0, 30, float("inf"), [50.0]) == 50.0
    assert time_left(60.0, 30, 0, [-1.0]) == 0.0
    assert time_left(60.0, 0, 60, []) is None and time_left(60.0, 30, float("inf"), []) is None
    assert [in_words(seconds) for seconds in (39.6, 5000.0, 7200.0)] == ["40 s", "83 min", "2.0 h"]


@pytest.mark.slow
def test_training_on_a_terminal_draws_bars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(partial(tiny, tmp_path), monkeypatch)
    assert "\rEpoch 0:" in text and "loss=" in text
    assert "epoch 1 of 1" not in text


@pytest.mark.slow
def test_after_a_resume_the_bar_has_the_step_of_the_total_and_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    tiny(tmp_path)
    more = f"ckpt_path={tmp_path / 'outputs' / 'moflow' / 'run' / 'checkpoints' / 'last.ckpt'}", "fit.max_steps=8"
    text = on_terminal(partial(tiny, tmp_path, *more, f"output_dir={tmp_path / 'bar'}"), monkeypatch)
    bars = re.findall(r"\rEpoch 0:[^\r]*", text)
    assert {re.findall(r" (\d/\S) \[", bar)[0] for bar in bars} == {"4/8", "8/8"} and "left=" in bars[-1]
    capfd.readouterr()
    tiny(tmp_path, *more, f"output_dir={tmp_path / 'lines'}")
    lines = [line for line in capfd.readouterr().out.splitlines() if line.startswith("epoch ")]
    assert [line.split(", ")[1] for line in lines] == ["step 6 of 8", "step 7 of 8", "step 8 of 8"]
    assert all(re.search(r", \d+ s left$", line) for line in lines)


def test_long_work_in_a_pipe_prints_a_line_when_it_is_due_and_at_the_end(capfd: pytest.CaptureFixture[str]) -> None:
    with item_progress(every_s=0.0) as progress:
        bar = progress.add_task("encoding [my] file", total=3000)
        progress.advance(bar, 1000)
        progress.update(bar, completed=3000)
    with item_progress() as progress:  # shorter than the 10 s between two lines
        for _ in progress.track(range(5), description="reading"):
            pass
    with byte_progress() as progress:
        progress.update(progress.add_task("data.zip", total=3 << 20), completed=3 << 20)
    with working("downloading [x] with pip"), item_progress(disable=True) as progress:
        progress.advance(progress.add_task("hidden", total=1))
    assert capfd.readouterr().err.splitlines() == [
        "encoding [my] file: 1,000 of 3,000, 0 s", "encoding [my] file: 3,000 of 3,000, 0 s", "reading: 5 of 5, 0 s",
        "data.zip: 3 of 3 MiB, 0 s", "downloading [x] with pip",
    ]  # fmt: skip


def test_long_work_on_a_terminal_draws_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode() -> None:
        with item_progress() as progress:
            progress.advance(progress.add_task("encoding", total=3), 3)

    text = on_terminal(encode, monkeypatch)
    assert BAR in text and "3/3" in text and "3 of 3" not in text


def test_an_unknown_total_is_not_printed() -> None:
    assert of("step", 1200, float("inf")) == of("step", 1200, -1) == "step 1,200"
    assert of("epoch", 1, 10) == "epoch 1 of 10"
