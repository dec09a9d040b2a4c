"""What the benchmark of kernels' gains goes without is there, under the names that it has."""

from pkgutil import resolve_name

import pytest
from hydra.utils import get_class

from benchmarks.kernel_gains import MODELS, PIECES, program_of
from tests.support.composing import composed

NAMED = {name: piece for name, piece in PIECES.items() if "execution.kernels=[" in " ".join(piece.options)}


@pytest.mark.parametrize("name", NAMED)
def test_kernels_that_a_run_keeps_are_the_models(name: str) -> None:
    program = program_of(name).removesuffix(".py")
    config = composed(program, *MODELS[name.split()[0]], *NAMED[name].options)
    ours = get_class(config.model.task._target_).replacements  # type: ignore[attr-defined]
    optimisers = {"adam", "sgd", "adagrad", "deferred_rows"}
    assert {*config.execution.kernels} <= {*ours, *optimisers}


def test_functions_that_a_run_goes_without_are_there() -> None:
    for path in {path for piece in PIECES.values() for path in piece.replaced}:
        owner, _, function = path.rpartition(".")
        assert hasattr(resolve_name(owner), function), path
