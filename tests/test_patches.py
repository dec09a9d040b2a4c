"""Each patch does what it promises, and with its switch or another version the package is as it is."""

import ast
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Transformer
from omegaconf import OmegaConf

from src import patches
from tests.support import ROOT
from tests.support.started import LIMIT_S

TORCHMETRICS = """
import sys
from src.patches import OPTIONAL, install
install()
import torchmetrics
print(torchmetrics.MeanMetric()(1.0).item(), *(name for name in OPTIONAL if name in sys.modules))
import scipy.signal, matplotlib.pyplot
from lightning_utilities.core.imports import RequirementCache
print(bool(RequirementCache("scipy")))
"""


def printed(code: str, **environment: str) -> list[str]:
    """Returns the lines that code prints in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", code]
    ended = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.slow
def test_torchmetrics_loads_nothing_that_nobody_uses_and_others_still_can() -> None:
    assert printed(TORCHMETRICS, REPRISE_PLAIN_START="") == ["1.0", "True"]


LOADED = """
import sys
from importlib import import_module
from src.patches import install
install()
for module in ("hydra_plugins.reprise", "src.run"):
    import_module(module)
for model in ("dlrm", "distilbert", "mobilenet_v1", "moflow", "se3_transformer"):
    import_module(f"src.models.{model}.task")
import torch
torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1).step()  # asks for torch._dynamo
late = {"torch._dynamo.config", "matplotlib", "transformers", "torchvision", "scipy", "polars", "pandas", "wandb",
        "torchrec", "sympy", "src.report.compare.page", "src.sweep.status"}
print(*late & set(sys.modules))
"""


@pytest.mark.slow
def test_a_training_loads_nothing_that_its_first_step_does_not_need() -> None:
    assert printed(LOADED, REPRISE_PLAIN_START="") == [""]


@pytest.mark.slow
def test_with_its_switch_torchmetrics_is_imported_as_it_is() -> None:
    first, last = printed(TORCHMETRICS, REPRISE_PLAIN_START="1")
    assert first.startswith("1.0 ") and "scipy" in first and last == "True"


DYNAMO = """
import sys
from src.patches import install
install()
import pytorch_lightning as pl, torch
from lightning_fabric.wrappers import _unwrap_compiled
from src.models.moflow.flow import compiled_later
from src.system.later_dynamo import eagerly, is_eager, is_imported
net = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
assert _unwrap_compiled(net) == (net, None)
net(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
with eagerly():
    compiled_later(torch.nn.functional.relu, {})(torch.ones(1))
    print(is_imported(), is_eager())
compiled = torch.compile(net, backend="eager")
assert torch.allclose(compiled(torch.ones(1, 2)), net(torch.ones(1, 2)))
assert _unwrap_compiled(compiled)[0] is net
with eagerly():
    print(torch._dynamo.eval_frame._stance.stance)
compiled(torch.ones(1, 2)).sum().backward()
optimizer.step()
optimizer.zero_grad()
print(is_imported(), torch._dynamo is sys.modules["torch._dynamo"], torch._dynamo.config.__name__)
"""


@pytest.mark.slow
def test_dynamo_is_imported_once_something_is_compiled() -> None:
    assert printed(DYNAMO, REPRISE_PLAIN_START="") == ["False True", "force_eager", "True True torch._dynamo.config"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import torch._dynamo.config; torch._dynamo.config.suppress_errors; torch._dynamo.reset()",
        "from torch._dynamo import config, trace_rules; config.suppress_errors; trace_rules.clear_lru_cache()",
        "import torch; torch._dynamo.trace_rules.clear_lru_cache(); torch._dynamo.reset(); torch._inductor.config",
        "import warnings; warnings.simplefilter('ignore'); import torch._inductor.compile_fx; torch._dynamo.reset()",
        "import torch, inspect; inspect.getmodule(torch.add); torch.compiler.reset()",
    ],
)
def test_dynamo_can_be_imported_in_every_way(code: str) -> None:
    assert not printed(f"from src.patches import install; install(); {code}", REPRISE_PLAIN_START="")


E3NN = """
import sys
from src.patches import install
install()
import torch
from e3nn import o3
print("sympy" in sys.modules)
angles = torch.linspace(0.1, 3, 5, dtype=torch.float64)
x, z, y = (torch.sin(angles) * torch.sin(angles), torch.sin(angles) * torch.cos(angles), torch.cos(angles))
by_angles = o3.spherical_harmonics_alpha_beta([0, 1, 2, 3], angles, angles)  # Legendre polynomials, by sympy
print(torch.allclose(by_angles, o3.spherical_harmonics([0, 1, 2, 3], torch.stack([x, y, z], -1), normalize=True,
                                                       normalization="integral")), "sympy" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("switch", "is_loaded"), [("", "False"), ("1", "True")])
def test_e3nn_imports_sympy_for_polynomials_unless_switched_off(switch: str, is_loaded: str) -> None:
    assert printed(E3NN, REPRISE_PLAIN_START=switch) == [is_loaded, "True True"]


@pytest.mark.parametrize(("switch", "output_root"), [("", "2024_11"), ("1", "202411")])
def test_numbers_of_the_command_line_keep_their_text_unless_switched_off(switch: str, output_root: str) -> None:
    command = [sys.executable, "train.py", "model=moflow", "output_root=2024_11", "--cfg", "job"]
    environment = os.environ | {"REPRISE_PLAIN_OVERRIDES": switch}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert not ended.stderr  # no warning of what a newer Hydra will not do any more
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("output_root:"))
    assert line.partition(": ")[2].strip("'") == output_root


def test_sweepers_of_others_get_plain_numbers() -> None:
    """Hydra's Optuna plug-in saves them as yaml."""
    patches.install(patches.HYDRA)
    (override,) = OverridesParser.create().parse_overrides(["hp.lr=choice(1e-2,2e-2)"])
    values = [*override.sweep_iterator(transformer=Transformer.encode)]
    assert OmegaConf.to_yaml(OmegaConf.create(values)) == "- 0.01\n- 0.02\n"
    assert [*override.sweep_string_iterator()] == ["1e-2", "2e-2"]


@pytest.mark.parametrize(
    "patch", [patches.HYDRA, patches.TORCHMETRICS, patches.DYNAMO, patches.E3NN], ids=lambda patch: patch.apply.__name__
)
def test_an_untried_version_is_left_as_it_is(patch: patches.Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[str] = []
    untried = patch._replace(tried={name: ("0.0.",) for name in patch.tried}, apply=lambda: applied.append("it"))
    monkeypatch.setattr(patches, "installed", [])
    patches.install(untried)
    assert not applied
    tried = untried._replace(tried={name: (version(name),) for name in patch.tried})
    patches.install(tried, tried)
    assert len(applied) == 1


def patched_in(path: Path) -> list[str]:
    """Returns the assignments of a module to private names of what it imports from other packages."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    foreign = [node for node in imports if not (getattr(node, "module", None) or "").startswith("src")]
    names = {(alias.asname or alias.name).split(".")[0] for node in foreign for alias in node.names}
    assigned = [target for node in ast.walk(tree) if isinstance(node, ast.Assign) for target in node.targets]
    private = [target for target in assigned if re.search(r"\._[a-z]\w*$|\.__dict__\[", ast.unparse(target))]
    return [text for target in private if (text := ast.unparse(target)).split(".")[0] in names]


def test_no_other_module_patches_a_package() -> None:
    modules = [path for folder in ("src", "hydra_plugins") for path in (ROOT / folder).rglob("*.py")]
    patched = {str(path.relative_to(ROOT)): names for path in modules if (names := patched_in(path))}
    assert list(patched) == ["src/patches.py"] and len(patched["src/patches.py"]) == 4, patched


COMPOSED = """
import runpy, sys
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from src import cli

compose, times = ConfigLoaderImpl._load_configuration_impl, []

def counted(*arguments, **options):
    times.append(None)
    return compose(*arguments, **options)

def shown(job, config, fields=None):
    print(f"composed {len(times)} times", OmegaConf.to_yaml(HydraConfig.get()), OmegaConf.to_yaml(config), sep="\\n")

def sweep(self, config_name, task_function, overrides):
    print(f"composed {len(times)} times", config_name, overrides)

ConfigLoaderImpl._load_configuration_impl, cli.run_job, Hydra.multirun = counted, shown, sweep
sys.argv[0] = "train.py"
runpy.run_path("train.py", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("overrides", "times"),
    [
        (["model=dlrm", "hp.lr=0.5"], [1]),
        (["seed=1,2"], []),
        pytest.param(["hydra.mode=RUN"], [1], marks=pytest.mark.slow),
        pytest.param(["-m", "seed=1,2"], [2], marks=pytest.mark.slow),  # one is refused
        pytest.param(["-m", "seed=1"], [1], marks=pytest.mark.slow),
        pytest.param(["hydra.mode=MULTIRUN", "seed=1,2"], [2], marks=pytest.mark.slow),
        pytest.param(["no_key=1"], [], marks=pytest.mark.slow),
        pytest.param(["model=none"], [], marks=pytest.mark.slow),
    ],
)
def test_a_run_s_config_is_composed_once_and_as_hydra_does(
    overrides: list[str], times: list[int], tmp_path: Path
) -> None:
    folders = [f"output_root={tmp_path}", f"hydra.run.dir={tmp_path}/run", f"hydra.sweep.dir={tmp_path}/sweep"]
    ended = [
        subprocess.run(
            [sys.executable, "-c", COMPOSED, *overrides, *folders],
            cwd=ROOT, env=os.environ | {"REPRISE_PLAIN_START": switch}, capture_output=True, text=True, timeout=LIMIT_S,
        )
        for switch in ("", "1")
    ]  # fmt: skip
    counted = [[int(number) for number in re.findall(r"^composed (\d+) times", run.stdout, re.M)] for run in ended]
    results = [re.sub(r"composed \d+ times", "", run.stdout) for run in ended]
    assert counted[0] == times and len(counted[1]) == len(times), ended[0].stderr
    assert results[0] == results[1] and ended[0].stderr == ended[1].stderr
    assert ended[0].returncode == ended[1].returncode == (0 if times else 2)


SOURCES = """
import sys
from src.patches import install
install()
import inspect, torch
from torch._library.utils import get_source
def called():
    return get_source(2)
here = inspect.getframeinfo(inspect.currentframe()); told = called()
print(told == f"{here.filename}:{here.lineno}", get_source.__module__)
frame = torch.nn.Linear(1, 1).named_parameters().gi_frame
print(torch.library.inspect.getmodule(frame) is inspect.getmodule(frame) is torch.nn.modules.module)
@torch.library.custom_op("test_patches::same", mutates_args=())
def same(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
print(same(torch.ones(1)).item())
"""


@pytest.mark.slow
@pytest.mark.parametrize(("switch", "module"), [("", "src.patches"), ("1", "torch._library.utils")])
def test_an_operator_s_source_is_told_as_torch_does(switch: str, module: str) -> None:
    assert printed(SOURCES, REPRISE_PLAIN_START=switch) == [f"True {module}", "True", "1.0"]
