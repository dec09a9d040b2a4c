"""Runs Hydra's entry points: registers the schema, and turns a user's mistake into one line and exit code 2."""

import atexit
import errno
import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from src import patches
from src.config import schema
from src.config.explain import explain, overrides_first, unknown_option
from src.config.hydra_files import remove_unbegun
from src.config.secrets import watch
from src.config.values import check_sections
from src.errors import UserError
from src.launch.failures import is_told
from src.measure import starting
from src.printable import printable, tell
from src.system import openmp
from src.system.group import Unmet, agent, check_variables, rank, speaks, started_by
from src.system.interpreter import is_command, is_watched, safe_path
from src.system.loading import keep_loaded, load_torch_ahead
from src.system.masking import mask_error, mask_process, masked_text, watch_process
from src.system.pipes import flush_all, outlive_readers
from src.system.signals import end_with_parent

DEBUGGING = "HYDRA_FULL_ERROR" in os.environ  # the person wants to see tracebacks
MISTAKES = (UserError, HydraException, OmegaConfBaseException, OSError)

LEAVING_S = 5.0  # of a rank that failed: torchrun's agent kills the others 30 s after it

_failures: list[Exception] = []
_was_interrupted = False


class Unexpected(BaseException):
    """Carries an error of a job past Hydra, which would print all overrides with it, and secrets among them."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def run_job(job: Callable[[DictConfig], object], config: DictConfig, fields: type | None = None) -> None:
    """Runs one job. A user's mistake is printed as one line and ends this job, not the others of a sweep.

    Args:
        fields: the dataclass with the types of the config's values, which are then checked before torch is imported.
    """
    keep_loaded()
    starting.ended("config")
    watch(config)
    mask_process()
    try:
        if fields is not None:
            check_sections(config, fields)
        job(config)
    except Exception as error:
        mask_error(error)
        if not isinstance(error, MISTAKES) or is_ours(error):
            raise Unexpected(error) from error
        _failures.append(error)
        if started_by() is None:  # else other ranks share the folder
            remove_unbegun()
        end_if_interrupted()
        fail(explain(error), isinstance(error, Unmet))


def failures() -> Sequence[Exception]:
    """Returns the mistakes that have ended jobs of this process so far."""
    return _failures


def run_entry_point(main: Callable[[], None], complete: Callable[[list[str]], list[str]] = list) -> None:
    """Runs a `hydra.main` function; prints one line and exits with 2 for what the user can mend.

    Args:
        complete: adds to the command's arguments what they imply.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note_interrupt)
    try:
        begin(complete)
    except KeyboardInterrupt:
        end_if_interrupted()
        raise
    run_main(main)
    leave()


def leave() -> None:
    """Ends a command that has succeeded, without freeing its memory piece by piece as the interpreter's end does.

    As there, threads are waited for, exit functions are called, and files are flushed; objects are not finalised.
    Returns, so that the interpreter ends the process, where torch is not loaded, something watches the process or has
    begun the command inside it (runpy), or REPRISE_PLAIN_START is set.
    """
    is_outermost = sys._getframe(2).f_back is None  # the file that called `run_entry_point`
    is_plain = "torch" not in sys.modules or os.environ.get("REPRISE_PLAIN_START")
    if is_plain or not is_outermost or not is_command() or is_watched():
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if flush_all():
        os._exit(0)


def end_as_command(main: Callable[[], None]) -> None:
    """Does what remains of a command in a fork of it, and returns; ends the process where a command would fail."""
    try:
        run_main(main)
    except BaseException as error:
        end_now(error)
    atexit._run_exitfuncs()


def run_main(main: Callable[[], None]) -> None:
    """Runs a command that has begun; ends as it is to end."""
    unexpected: Exception | None = None
    try:
        try:
            main()
            if is_in_group() and not _failures:
                gc.collect()  # captured graphs hold on to the group
                # NCCL may hang where the interpreter's end does it.
                sys.modules["torch"].distributed.destroy_process_group()
        except Unexpected as caught:
            unexpected = caught.error
        except MISTAKES as error:
            end_if_interrupted()
            mask_error(error)
            if is_ours(error):
                raise
            sys.exit(fail(explain(error)))
        except ValueError as error:
            if not isinstance(error.__cause__, UserError):  # of the log file, which logging.config wraps
                raise
            sys.exit(fail(str(error.__cause__)))
        except KeyboardInterrupt:
            end_if_interrupted()
            raise
        if unexpected is not None:
            end_if_interrupted()
            raise unexpected
        if _failures:
            sys.exit(2)
    except BaseException as error:
        if is_in_group():
            end_now(error)
        raise


def begin(complete: Callable[[list[str]], list[str]]) -> None:
    """Prepares this process for Hydra, and checks and completes its arguments."""
    starting.ended("interpreter")
    gc.disable()  # until a job begins: Hydra's check of an override may import the model
    outlive_readers()
    watch_process()
    os.environ |= safe_path()
    try:
        check_variables()
    except UserError as error:  # no rank is known
        tell(f"error: {printable(str(error))}")
        sys.exit(2)
    if (parent := agent()) is not None:
        end_with_parent(parent, signal.SIGTERM)
    schema.register()
    patches.install()
    openmp.install()
    if message := unknown_option(sys.argv[1:]):
        sys.exit(fail(message))
    try:
        sys.argv[1:] = complete(overrides_first(sys.argv[1:]))
    except UserError as error:
        sys.exit(fail(str(error)))
    if {"--cfg", "-c"} & set(sys.argv):
        sys.argv.append("--resolve")  # a config is asked for to see its values
    if not any(argument.startswith("-") for argument in sys.argv[1:]):  # else a sweep or a question, without torch
        load_torch_ahead()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors come to us as exceptions instead of Hydra's own print-out


def note_interrupt(*_: object) -> NoReturn:
    """Does what Python does for Ctrl-C, and keeps that it came: in a `__del__` the KeyboardInterrupt would be lost."""
    global _was_interrupted
    _was_interrupted = True
    raise KeyboardInterrupt


def end_if_interrupted() -> None:
    """Ends the process where Ctrl-C came before a run or after it; within, it is an Interrupted."""
    if _was_interrupted and not DEBUGGING:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def is_in_group() -> bool:
    """Returns whether this process has joined others as a rank."""
    distributed = sys.modules["torch"].distributed if "torch" in sys.modules else None
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def end_now(error: BaseException) -> NoReturn:
    """Ends a rank that cannot go on, as the interpreter would, but tidies nothing up: on GPUs it hung in that while
    others waited for it. What is to be done at exit gets LEAVING_S.
    """
    faulthandler.dump_traceback_later(LEAVING_S, exit=True)
    if lightning := sys.modules.get("lightning_fabric.utilities.distributed"):
        atexit.unregister(lightning._destroy_dist_connection)  # it waits for ranks that wait for this one
    code = error.code if isinstance(error, SystemExit) else 1
    if not isinstance(error, SystemExit) and (DEBUGGING or not is_told()):
        sys.excepthook(type(error), error, error.__traceback__)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def is_ours(error: Exception) -> bool:
    """Returns whether a traceback helps: someone asked for it, or a system error names no file and is no full disk."""
    if not isinstance(error, OSError) or isinstance(error, HydraException):
        return DEBUGGING
    return DEBUGGING or (error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT))


def fail(message: str, is_unmet: bool = False) -> int:
    """Prints the line on stderr, once for ranks that have not met, and returns the exit code of a user's mistake."""
    if speaks(is_unmet, is_in_group()):
        which = f"rank {rank()}: " if rank() and not is_unmet else ""
        tell(f"error: {which}{printable(masked_text(message))}")
    return 2
