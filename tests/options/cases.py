"""The list of cases: each option of each base case once, with what its runs must agree with."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from omegaconf import DictConfig, OmegaConf

from src.config.schema import PredictConfig, TrainConfig
from tests.options.bases import BASES, COMMON, DATAMODULES, EXPERIMENTS, Base
from tests.options.values import Option, group_options, kernels_of, optimizers, options_of, schedules

Compose = Callable[..., DictConfig]
GRAPHS = ("off", "on")


@dataclass(frozen=True)
class Case:
    """One option, and how it is tried.

    name: `MODEL/SIZE: OVERRIDE`.
    base: the case whose data, seed and checkpoint it has, of BASES.
    train: the overrides of train.py; () where nothing is trained.
    graphs: the values of execution.graph that it is trained with, whose losses must agree.
    predict: the overrides of predict.py, run on the checkpoint of `base` or, with `train`, on its own; None: not run.
    prepare: the overrides of prepare.py, run first; None: not run.
    twin: the name of the case whose losses it must have too; "" for none.
    not_tried: the reason, for what cannot be tried here.
    """

    name: str
    base: str
    train: tuple[str, ...] = ()
    graphs: tuple[str, ...] = GRAPHS
    predict: tuple[str, ...] | None = None
    prepare: tuple[str, ...] | None = None
    twin: str = ""
    not_tried: str = ""
    gpus: int = 1
    timeout_s: float = 240.0

    @property
    def option(self) -> str:
        return self.name.partition(": ")[2]


# Options that must not change a loss: they say how the same mathematics is run, or what is looked at meanwhile.
SAME_LOSSES = (
    "execution.compile=*", "execution.graph_gaps=*", "execution.graph_warmup_steps=*", "execution.exchange=*",
    "execution.deterministic=*", "model.task.network.low_memory=*",
    "model.task.network.norm_batch=null", "model.task.engine=*", "model.task.target=*",
    "fit.max_time_s=*", "fit.evaluate_first=*", "fit.eval_every_n_*", "fit.checkpoint_every_n_*",
    "fit.final_evaluation=*", "fit.ema_decay=*", "precision.loss_scale_growth_steps=*", "measure.*", "logger=*",
    "callbacks=*", "pictures=*", "trainer=1x1", "datamodule.threads=*", "datamodule.prefetch=*", "datamodule.check=*",
    "datamodule.test_batch_size=*", "datamodule.val_batches=*", "datamodule.predict=*", "hardware=auto",
)  # fmt: skip
SAME_LOSSES_OF = {"moflow": ("execution.kernels=*",)}  # by model: kernels of others draw another dropout, or round
# Compared at a low rate in fp32: at the published one the loss of this small batch goes from 1.1 to 2.5 in the first
# step, and a difference of 1e-6 of the loss becomes one of 2e-3 in the second and of 0.12 in the eighth, on an H200.
AMPLIFIED = "se3_transformer/*: execution.kernels=*"
CALM = "precision=fp32", "hp.lr=1e-5"
# Options that are not enumerated, by their reason.
LEFT_OUT = {
    "what every case is run with": ("execution.graph=*", "fit.max_steps=*", "fit.max_epochs=*"),
    "files and folders, whose reading is tried as datamodule=...": (
        "*.file=*", "*.data_dir=*", "*.raw=*", "*.source.dev=*", "*.vocabulary=*", "model.task.weights=*",
        "*.text=*", "*.label=*", "ckpt_path=*", "output*=*", "data_root=*", "note=*", "*.input=*", "*.sha256=*",
        "*.split_file=*", "*.mirror=*", "*.save_dir=*", "*.path=*", "datamodule.source={*",
    ),
    "other keys' values, or set by groups": ("callbacks.*", "logger.*"),
    "between ranks, tried with trainer=1x2": ("execution.gradient_dtype=*", "execution.exchange=*"),
    "of sweeps and resumed runs, which tests/sweep and tests/reliability run": (
        *("sweep.*", "resume=*", "accept_changes=*", "fix_hp=*"),
    ),
    "numbers that identify the published case": ("model.paddle.*", "model.hp.*", "model.recipe.*", "seed=*", "*seed=*"),
    "data of another shape, as datamodule=... gives": (
        "datamodule.hotness=*", "datamodule.cardinalities=*", "*.generate.hotness=*", "*.generate.cardinalities=*",
        "datamodule.generate.max_rows=null", "model.task.num_numerical=*", "model.task.tables=*",
    ),
    "the precision's own parts, tried as precision=...": ("precision.matmul=*", "precision.lightning=*",
                                                          "precision.cudnn_tf32=*", "hardware.*"),
}  # fmt: skip
OWN_DATA = ("datamodule.generate.*", "datamodule.source.*", "datamodule.prepare.*")  # prepared anew, in its own folder
QUICK = (  # on the quick case of each model alone
    "fit.*", "precision.*", "hp.*", "model.task.target=*", "model.task.schedule*", "execution.graph_gaps=*",
    "execution.graph_warmup_steps=*", "datamodule.*",
)  # fmt: skip
HOST = ("measure.*", "pictures=*", "logger=*", "callbacks=*", "trainer=*", "hardware=*")  # one run each
COMPILED = "precision=*", "execution.*"  # where MoFlow is compiled, in a minute each
PREDICTED = ("model.*", "precision=*", "datamodule=*")  # whose checkpoint predict.py reads too
ONCE = "mobilenet_v1/quick"  # where what no model knows of is tried


def matches(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def cases(compose: Compose, device: str = "cuda", names: Sequence[str] = tuple(BASES)) -> list[Case]:
    """Returns every case, those of a base together and the base first.

    Args:
        compose: composes the config of an entry point with overrides.
        device: "cuda", or "cpu" for networks of the smallest sizes and no CUDA graphs.
        names: the bases.
    """
    all_cases = [case for name in names for case in _of_base(name, compose, device)]
    assert len({case.name for case in all_cases}) == len(all_cases), "two cases have one name"
    return all_cases


def _of_base(name: str, compose: Compose, device: str) -> Iterator[Case]:
    base, on_cpu = BASES[name], device == "cpu"
    command = command_of(base, device)
    graphs = ("off",) if on_cpu else GRAPHS
    quick = name.endswith("/quick") or f"{base.model}/quick" not in BASES
    first = f"{name}: as it is"

    calm = f"{name}: {' '.join(CALM)}"

    def of(option: str, *more: str, **fields: object) -> Case:
        if matches(f"{name}: {option}", [AMPLIFIED]):
            more, fields = (*more, *CALM), {"twin": calm} | fields
        uncompiled = ("execution.compile=off",) if base.compiles and not matches(option, COMPILED) else ()
        overrides = (*command, *more, *uncompiled) if more else command
        fields = {"graphs": graphs, "predict": uncompiled if matches(option, PREDICTED) else None} | fields
        if matches(option, (*SAME_LOSSES, *SAME_LOSSES_OF.get(base.model, ()))):
            fields.setdefault("twin", f"{name}: execution.compile=off" if uncompiled else first)
        return Case(f"{name}: {option}", name, train=overrides, **fields)  # type: ignore[arg-type]

    yield Case(first, name, command, graphs, predict=(), prepare=())
    if AMPLIFIED.startswith(f"{base.model}/"):
        yield of(" ".join(CALM), *CALM)
    config = compose("train", *command)
    for option in options_of(config, TrainConfig):
        text = option.override
        if left_out(text) or text.startswith("model.predict.") or (matches(text, QUICK) and not quick):
            continue
        if matches(text, HOST) and name != ONCE:
            continue
        yield of(text, *overrides_for(option, config), **fields_of(text))
    yield from _of_groups(of, name, config)
    for kernels in kernels_of(config):
        yield of(f"execution.kernels=[{kernels}]", f"execution.kernels=[{kernels}]", *kernels_need(config))
    for number in (2, 8):
        batch = config.hp.batch_size // number
        more = f"hp.accumulate={number}", f"hp.batch_size={batch}"
        additive = () if base.additive in (None, "as it is") else (base.additive,)
        twin = f"{name}: {base.additive}" if base.additive else ""
        yield of(" ".join(more), *more, *additive, twin=twin, predict=())
    yield from _predictions(name, compose, quick)
    if quick:
        yield from _of_data(name, command, device, graphs)
        yield from _of_ranks(of, name, on_cpu)


def left_out(option: str) -> bool:
    return any(matches(option.lstrip("+"), patterns) for patterns in LEFT_OUT.values())


def fields_of(option: str) -> dict[str, object]:
    return {"graphs": ("auto",)} if matches(option, HOST) else {}


def replacing(config: DictConfig, key: str, value: str) -> list[str]:
    """Returns the overrides that put a mapping in the place of another one, or of null; Hydra would merge the two."""
    if OmegaConf.select(config, key) is None:
        return [f"{key}={value}"]
    return [f"~{key}", f"+{key}={value}"]


def overrides_for(option: Option, config: DictConfig) -> list[str]:
    """Returns the overrides that try an option, with those that it needs to mean anything."""
    text = option.override
    needs = {
        "fit.stop_at_target=true": [
            f"model.task.target={'{energy:1000}' if config.model.name == 'se3_transformer' else 0}"
        ],
        "fit.eval_every_n_steps=": ["fit.eval_every_n_epochs=null"],
        "model.task.network.embeddings.optimizer=adagrad": ["hp.lr=0.01"],  # SGD's rate is far too high for it
    }
    needs["execution.kernels="] = kernels_need(config)
    before = next((more for start, more in needs.items() if text.startswith(start)), [])
    data_root = ["data_root=FOLDER_OF_CASE"] if matches(text.lstrip("+"), OWN_DATA) else []
    if option.value.startswith("{") and not option.is_new:
        return [*data_root, *replacing(config, option.key, option.value)]
    return [*before, text, *data_root]


def kernels_need(config: DictConfig) -> list[str]:
    """Returns what gives the plain modules the same losses in each run: some add with atomics, in another order."""
    return ["execution.deterministic=true"] if config.model.name in ("se3_transformer", "mobilenet_v1") else []


def _of_groups(of: Callable[..., Case], name: str, config: DictConfig) -> Iterator[Case]:
    for precision in group_options("precision"):
        if precision != config.precision.name:
            yield of(f"precision={precision}", f"precision={precision}")
    if name.endswith("/quick") or name.startswith("dlrm_dcnv2"):
        for value in schedules():
            if str(config.model.task.get("schedule", {}) and config.model.task.schedule._target_) not in value:
                more = replacing(config, "model.task.schedule", value)
                yield of(f"model.task.schedule={value}", *more, predict=None)
        for optimizer in optimizers():
            if optimizer != config.model.task.optimizer._target_:
                value = f"{{_target_:{optimizer},_partial_:true,lr:${{hp.lr}}}}"
                more = replacing(config, "model.task.optimizer", value)
                yield of(f"model.task.optimizer={optimizer}", *more, "hp.lr=1e-3")
        for callbacks in group_options("callbacks"):
            early = ["callbacks.profile.first_step=8"] if callbacks == "profile" else []
            yield of(f"callbacks={callbacks}", f"callbacks={callbacks}", *early, graphs=("auto",))
    if name == ONCE:
        for logger in group_options("logger"):
            yield of(f"logger={logger}", f"logger={logger}", graphs=("auto",), predict=(f"logger={logger}",))
        for hardware in group_options("hardware"):
            small = ["datamodule.image_size=32"] if hardware == "cpu" else []
            yield of(f"hardware={hardware}", f"hardware={hardware}", *small, graphs=("auto",))
        yield of("trainer=1x1", "trainer=1x1", graphs=("auto",))
    if name.endswith("/published"):
        yield of("+fix_hp=max_bs", "+fix_hp=max_bs", graphs=("auto",), timeout_s=240.0)
    if name == ONCE:
        search = "+fix_hp=auto", "fix_hp.most=64", "fix_hp.steps=4", "fix_hp.file=FOLDER_OF_CASE/fix_hp.yaml"
        for choose in ("batch_size", "p_core"):
            yield of(f"+fix_hp=auto fix_hp.choose={choose}", *search, f"fix_hp.choose={choose}", graphs=("auto",),
                     timeout_s=400.0)  # fmt: skip


def _of_data(name: str, command: tuple[str, ...], device: str, graphs: tuple[str, ...]) -> Iterator[Case]:
    """Yields the other datamodules and experiments of a base's model."""
    rest = tuple(text for text in command if not text.startswith(("datamodule", "~datamodule")))
    for option, data in DATAMODULES.items():
        title = f"{name}: datamodule={option}"
        if isinstance(data, str):
            if name == "moflow/quick" and option in ("zinc250k", "qm9_molecules"):
                yield Case(title, name, not_tried=data)
            if name == "se3_transformer/quick" and option.startswith("qm9") and option != "qm9_molecules":
                yield Case(title, name, not_tried=data)
        elif data[0] == name:
            overrides = f"datamodule={option}", *data[1:], "data_root=FOLDER_OF_CASE"
            if option == "image_files":
                yield Case(title, name, predict=(*overrides[:-1], "num_samples=8"))
                continue
            predict = None if option.startswith("token_") else ()  # those have no text to judge
            prepare = tuple(text for text in overrides if text.startswith("data"))
            yield Case(title, name, (*rest, *overrides), graphs, predict=predict, prepare=prepare)
    tiny = BASES[name].tiny if device == "cpu" else ()
    for option, experiment in EXPERIMENTS.items():
        if experiment[0] == name:
            train = (f"experiment={option}", *COMMON, *experiment[1:], *tiny, "data_root=FOLDER_OF_CASE")
            yield Case(f"{name}: experiment={option}", name, train, graphs, predict=())


def _predictions(name: str, compose: Compose, quick: bool) -> Iterator[Case]:
    """Yields the options of predict.py, on the checkpoint of the base."""
    config = compose("predict", f"model={BASES[name].model}")
    uncompiled = ("execution.compile=off",) if BASES[name].compiles else ()
    for option in options_of(config, PredictConfig):
        text = option.override
        others = text.lstrip("+").startswith(("model.", "datamodule.", "precision.", "logger", "pictures"))
        if left_out(text) or (others and not text.startswith("model.predict.")):
            continue
        if not quick and not text.startswith(("model.predict.", "benchmark=", "evaluate=")):
            continue
        sizes = "num_samples=40", "batch_size=16"
        if text.startswith("num_samples="):
            sizes = sizes[1:]
        sizes = sizes if text.startswith("execution.") else (*uncompiled, *sizes)
        small = ("model.predict.optimise_molecules=200", "model.predict.optimise_starts=4", "num_samples=8")
        more = small if text.startswith("model.predict.optimise=") else ()
        if text.startswith(("execution.", "warmup_batches", "model.predict.repeats")):
            more = ("benchmark=true",)
        if text.startswith("model.predict.protocol="):
            more = ("benchmark=true",)
        if text.startswith("benchmark="):
            more = ("model.predict.repeats=20",) if "repeats" in config.model.predict else ()
        yield Case(f"{name}: predict {text}", name, predict=(*sizes, *more, text))
    for graph in ("on", "off") if quick else ():
        overrides = *uncompiled, "num_samples=40", "batch_size=16", "benchmark=true", f"execution.graph={graph}"
        yield Case(f"{name}: predict execution.graph={graph}", name, predict=overrides)
    for precision in group_options("precision"):
        overrides = f"precision={precision}", *uncompiled, "num_samples=40", "batch_size=16"
        yield Case(f"{name}: predict precision={precision}", name, predict=overrides)


def _of_ranks(of: Callable[..., Case], name: str, on_cpu: bool) -> Iterator[Case]:
    """Yields runs on two GPUs, or on two processes of a CPU."""
    epochs = [] if name.startswith(("dlrm", "mobilenet")) else ["fit.max_epochs=8"]  # a step has more samples
    twin = f"{name}: trainer=1x2"
    of_two = {"gpus": 2, "timeout_s": 300.0, "predict": ()}
    for more in ((), ("execution.exchange=nccl",), ("execution.gradient_dtype=bf16",), ("hp.accumulate=2",)):
        text = " ".join(("trainer=1x2", *more))
        same = {"twin": twin} if more == ("execution.exchange=nccl",) else {}
        yield of(text, "trainer=1x2", *more, *epochs, **of_two, **same)
    if name.startswith("dlrm/"):
        more = "trainer=1x2", "model.task.engine=torchrec"
        yield of(" ".join(more), *more, graphs=("auto",), twin=twin, **of_two)
        if not on_cpu:
            yield of(" ".join((*more, "execution.graph=on")), *more, graphs=("on",), **of_two)


def command_of(base: Base, device: str) -> tuple[str, ...]:
    """Returns the overrides of train.py for a base case."""
    command = (*base.overrides, *COMMON)
    return (*command, *base.tiny, "hardware=cpu", "precision=fp32", "fit.max_steps=8") if device == "cpu" else command
