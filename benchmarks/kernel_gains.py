"""What each kernel and execution option wins: steps with it, and with plain torch in its place. Needs a GPU.

Steps are of training, or batches of generation and prediction. `MODEL by torch.compile` is the plain network, compiled
with max-autotune, which takes minutes.

python -m benchmarks.kernel_gains OUT [PATTERN ...] [option=value ...]     runs what matches, for example 'dlrm*'
python -m benchmarks.kernel_gains OUT                                      prints the table of the runs in OUT

Each run is a process of its own and leaves OUT/NAME/result.json and OUT/NAME.txt, what it printed; `data_root=DIR` has
ZINC-250k and QM9.
"""

import json
import runpy
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.dlrm_kernels import CARDINALITIES, HOTNESS, MAX_ROWS

PREDICTED = ["logger=none", "benchmark=true", "precision=amp"]
BARE = [
    "logger=none",
    "callbacks=bare",
    "fit.max_steps=200",
    "fit.eval_every_n_epochs=null",
    "fit.final_evaluation=false",
]
RESIDENT = ["datamodule=criteo_resident", "datamodule.pool_batches=2", "datamodule.steps_per_epoch=220", "hp.lr=1"]
TOKENS = ["+fix_hp=max_bs", "model.task.weights=random", "datamodule=token_synthetic", "datamodule.length=512"]
MODELS = {
    "moflow": ["model=moflow", "hp.batch_size=512", "hp.lr=5e-4", "precision=amp"],
    "se3": ["model=se3_transformer", "hp.batch_size=240", "precision=amp"],
    "dlrm": ["model=dlrm", *RESIDENT, "precision=amp"],
    "distilbert": ["model=distilbert", *TOKENS, "fit.evaluate_first=false", "precision=bf16"],
    "mobilenet": ["model=mobilenet_v1", "datamodule=image_synthetic", "precision=amp"],
    "dcnv2": [
        "model=dlrm_dcnv2",
        *RESIDENT[:-1],
        f"datamodule.cardinalities={[*CARDINALITIES]}".replace(" ", ""),
        f"datamodule.hotness={[*HOTNESS]}".replace(" ", ""),
        f"datamodule.max_rows={MAX_ROWS}",
        "precision=amp",
    ],
    "quality": ["experiment=moflow_quality"],
    "generation": ["model=moflow", "batch_size=2048", "num_samples=204800"],
    "prediction": ["model=se3_transformer", "batch_size=240", "num_samples=48000", "datamodule.predict=train"],
}
INFERENCE = "generation", "prediction"
NAMES = {  # of execution.kernels
    "moflow": ("conv", "graph_conv", "atom_flow", "bond_flow", "adam"),
    "se3": ("conv", "attention", "norm", "linear", "radial", "adam"),
    "dlrm": ("tables", "interaction", "mlp", "sgd"),
    "distilbert": ("embedding", "layer", "adam"),
    "distilbert packed": ("embedding", "layer", "adam", "deferred_rows"),
    "mobilenet": ("body", "sgd"),
    "dcnv2": ("tables", "interaction", "mlp", "adagrad"),
    "quality": ("conv", "graph_conv", "atom_flow", "bond_flow", "discrepancy", "adam"),
    "generation": ("conv", "graph_conv", "atom_flow", "bond_flow"),
    "prediction": ("conv", "attention", "norm", "linear", "radial"),
}
AUTOTUNED = {"mode": "max-autotune-no-cudagraphs", "dynamic": False}
PACKED = ("datamodule.length=null", "datamodule.padding=packed")
SE3, DISTILBERT, MOBILENET = (f"src.models.{name}" for name in ("se3_transformer", "distilbert", "mobilenet_v1"))


class Piece(NamedTuple):
    """What a run goes without: options of the command, or functions, by module and name."""

    options: tuple[str, ...] = ()
    replaced: Mapping[str, Any] = MappingProxyType({})


def never(*arguments: Any, **options: Any) -> Any:
    """In place of a question whether kernels can be used."""
    return None


def compile_whole(task: Any) -> None:
    task.network.compile(**AUTOTUNED)


def compile_se3(task: Any) -> None:
    """Compiles the network as one graph: e3nn's tables, whose making would break it, are made before."""
    from src.models.se3_transformer.basis import pair_basis

    pairs = [(i, o) for i in range(4) for o in range(4)]
    pair_basis(torch.ones(1, 3, device="cuda" if torch.cuda.is_available() else "cpu"), pairs)
    compile_whole(task)


def compile_steps(task: Any) -> None:
    task.network.compile_steps(**AUTOTUNED)


def transposed(x: Tensor, length: int | None = None, dtype: torch.dtype | None = None) -> Tensor:
    shape = x.shape[1], length or len(x)
    out = x.new_zeros(shape, dtype=dtype) if shape[1] > len(x) else x.new_empty(shape, dtype=dtype)
    out[:, : len(x)].copy_(x.t())
    return out


def in_order(device: torch.device) -> Any:
    """Returns a side stream without a stream."""
    from src.gpu.side_stream import SideStream

    return SideStream(torch.device("cpu"))


saved: dict[int, Any] = {}  # of a forward pass for its backward pass, by the address of a tensor that both have


def flash(q: Tensor, k: Tensor, v: Tensor, options: Any, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
    """Computes attention over sentences of equal length by torch's flash attention."""
    shape = options.sentences.count, options.sentences.longest, options.num_heads, -1
    heads = [x.unflatten(0, shape[:2]).unflatten(2, shape[2:]).transpose(1, 2) for x in (q, k, v)]
    out, logs, *rest = torch.ops.aten._scaled_dot_product_flash_attention(*heads, options.drop.p)
    saved[logs.data_ptr()] = heads, out, rest
    return out.transpose(1, 2).flatten(2).flatten(0, 1), logs


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, logs: Tensor, grads: tuple[Tensor, ...], options: Any,
    numbers: Tensor | None,
) -> Tensor:  # fmt: skip
    heads, result, rest = saved.pop(logs.data_ptr())
    above = grad.unflatten(0, (result.shape[0], -1)).unflatten(2, (options.num_heads, -1)).transpose(1, 2)
    gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        above, *heads, result, logs, *rest[:4], options.drop.p, False, *rest[4:6]
    )
    for target, gradient in zip(grads, gradients, strict=True):
        target.copy_(gradient.transpose(1, 2).flatten(2).flatten(0, 1))
    return torch.cat([target.sum(0, keepdim=True, dtype=torch.float32) for target in grads], 1)


def add_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float, drop: Any) -> tuple[Tensor, Tensor]:
    dropped, mask = torch.native_dropout(x, drop.p, True) if drop.p else (x, None)
    added = residual + dropped
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):  # it would compute in float32
        out, mean, rest = torch.native_layer_norm(added, list(weight.shape), weight, bias, eps)
    saved[mean.data_ptr()] = mask, added, rest, weight, bias
    return out, mean


def add_norm_backward(
    grad: Tensor, x: Tensor, residual: Tensor, weight: Tensor, mean: Tensor, drop: Any, partials: Tensor
) -> tuple[Tensor, Tensor]:
    mask, added, rest, weight, bias = saved.pop(mean.data_ptr())
    of_sum, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
        grad, added, list(weight.shape), mean, rest, weight, bias, [True, True, True]
    )
    of_x = of_sum if mask is None else torch.ops.aten.native_dropout_backward(of_sum, mask, 1 / (1 - drop.p))
    partials.zero_()
    partials[0].copy_(torch.cat([of_weight, of_bias, of_x.sum(0)]))
    return of_x, of_sum


def gelu_backward(grad: Tensor, x: Tensor, partials: Tensor) -> Tensor:
    out = torch.ops.aten.gelu_backward(grad, x)
    partials.zero_()
    partials[0].copy_(out.sum(0))
    return out


def sum_by_id(grad: Tensor, ids: Tensor, out: Tensor, padding: int) -> Tensor:
    return out.copy_(torch.ops.aten.embedding_dense_backward(grad, ids.long(), len(out), padding, False))


def stem(images: Tensor, weight: Tensor, stride: int) -> Any:
    """Computes MobileNetV1's first convolution and its statistics by cuDNN and torch."""
    from src.models.mobilenet_v1.fast.norm import Partials

    kernel = weight.unflatten(1, (3, 3, -1)).permute(0, 3, 1, 2)
    out = F.conv2d(images.permute(0, 3, 1, 2).to(weight.dtype), kernel, None, stride, 1).permute(0, 2, 3, 1)
    pixels = out.flatten(0, 2).float()
    variance, mean = torch.var_mean(pixels, 0, correction=0)
    count = torch.full_like(mean, len(pixels))
    return out, Partials(torch.stack([mean, variance * len(pixels), count])[None], len(pixels))


def stem_backward(g: Tensor, out: Tensor, slopes: Tensor, images: Tensor, weight: Tensor, stride: int) -> Tensor:
    p, q, r = slopes
    gradient = (p * g + q * out + r).to(g.dtype).permute(0, 3, 1, 2)
    kernel = weight.unflatten(1, (3, 3, -1)).permute(0, 3, 1, 2)
    inputs = images.permute(0, 3, 1, 2).to(g.dtype)
    of_weight = torch.ops.aten.convolution_backward(
        gradient, inputs, kernel, None, [stride] * 2, [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
    )[1]
    return of_weight.permute(0, 2, 3, 1).flatten(1).float()


DLRM = "src.models.dlrm"
TASK = "src.training.task.Task"
COMPILED = (
    ("moflow", "src.models.moflow.task.MoFlowTask", compile_steps),
    ("se3", TASK, compile_se3),
    ("dlrm", TASK, compile_whole),
    ("distilbert", TASK, compile_whole),
    ("mobilenet", TASK, compile_whole),
)
PIECES = {
    "moflow": Piece(),
    "moflow without compilation": Piece(("execution.compile=off",)),
    "moflow without CUDA graph": Piece(("execution.graph=off",)),
    "moflow without shorter graph gaps": Piece(("execution.graph_gaps=off",)),
    "moflow without kernels": Piece(("execution.kernels=off",)),
    "moflow without fold": Piece(replaced={"src.models.moflow.fast.conv.package": never}),
    "moflow without side stream": Piece(replaced={"src.models.moflow.network.side_stream": in_order}),
    "se3": Piece(),
    "se3 without CUDA graph": Piece(("execution.graph=off",)),
    "se3 without kernels": Piece(("execution.kernels=off",)),
    "se3 without contraction": Piece(replaced={f"{SE3}.fast.contraction.supported": never}),
    "se3 without edges": Piece(replaced={f"{SE3}.fast.edges.supported": never}),
    "se3 without rotations": Piece(replaced={f"{SE3}.fast.frames.package": never}),
    "se3 without transpose": Piece(replaced={f"{SE3}.fast.contraction.transposed": transposed}),
    "dlrm": Piece(),
    "dlrm without CUDA graph": Piece(("execution.graph=off",)),
    "dlrm without kernels": Piece(("execution.kernels=off",)),
    "dlrm without first layer": Piece(replaced={f"{DLRM}.fast.mlp.is_narrow": never}),
    "dlrm without side stream": Piece(replaced={f"{DLRM}.fast.tables.side_stream": in_order}),
    "distilbert": Piece(),
    "distilbert without CUDA graph": Piece(("execution.graph=off",)),
    "distilbert without kernels": Piece(("execution.kernels=off",)),
    "distilbert without attention": Piece(
        replaced={
            f"{DISTILBERT}.fast.attention.attend": flash,
            f"{DISTILBERT}.fast.attention.attend_backward": flash_backward,
        }
    ),
    "distilbert without add_norm": Piece(
        replaced={
            f"{DISTILBERT}.fast.rows.add_norm": add_norm,
            f"{DISTILBERT}.fast.rows.add_norm_backward": add_norm_backward,
        }
    ),
    "distilbert without gelu": Piece(
        replaced={f"{DISTILBERT}.fast.rows.gelu": F.gelu, f"{DISTILBERT}.fast.rows.gelu_backward": gelu_backward}
    ),
    "distilbert without sum_by_id": Piece(replaced={f"{DISTILBERT}.fast.rows.sum_by_id": sum_by_id}),
    "distilbert padded": Piece(("datamodule.length=16",)),
    "distilbert padded without gelu": Piece(
        ("datamodule.length=16",),
        {f"{DISTILBERT}.fast.rows.gelu": F.gelu, f"{DISTILBERT}.fast.rows.gelu_backward": gelu_backward},
    ),
    "distilbert padded without sum_by_id": Piece(
        ("datamodule.length=16",), {f"{DISTILBERT}.fast.rows.sum_by_id": sum_by_id}
    ),
    "distilbert packed": Piece(PACKED),
    "distilbert packed without head": Piece(PACKED, {f"{DISTILBERT}.fast.head.MAX_LABELS": 0}),
    "distilbert packed without sum_by_id": Piece(PACKED, {f"{DISTILBERT}.fast.rows.sum_by_id": sum_by_id}),
    "distilbert tf32": Piece(("precision=tf32",)),
    "distilbert tf32 without transpose": Piece(
        ("precision=tf32",), {f"{DISTILBERT}.fast.layer.transposed": transposed}
    ),
    "distilbert fp32": Piece(("precision=fp32", "fit.max_steps=60")),
    "distilbert fp32 without dense": Piece(
        ("precision=fp32", "fit.max_steps=60"), {f"{DISTILBERT}.fast.attention.is_dense": never}
    ),
    "mobilenet": Piece(),
    "mobilenet without CUDA graph": Piece(("execution.graph=off",)),
    "mobilenet without kernels": Piece(("execution.kernels=off",)),
    "mobilenet without stem": Piece(
        replaced={f"{MOBILENET}.fast.stem.forward": stem, f"{MOBILENET}.fast.stem.backward_weight": stem_backward}
    ),
    "mobilenet without measured tiles": Piece(
        replaced={f"{MOBILENET}.fast.tiles.TILES": {}, f"{MOBILENET}.fast.tiles.STRIPS": {}}
    ),
    "mobilenet without precompile": Piece(replaced={f"{MOBILENET}.fast.precompile.compile_all": never}),
    "dcnv2": Piece(),
    "quality": Piece(),
    "generation": Piece(),
    "prediction": Piece(),
    "prediction without rotations": Piece(replaced={f"{SE3}.fast.frames.package": never}),
    **{
        f"{model} by torch.compile": Piece(
            ("execution.kernels=off", "execution.compile=on"),
            {f"{task}.compile_network": function},
        )
        for model, task, function in COMPILED
    },
    **{
        f"{run} without {name}": Piece(
            (
                *(PACKED if "packed" in run else ()),
                f"execution.kernels=[{','.join(kept for kept in names if kept != name)}]",
            )
        )
        for run, names in NAMES.items()
        for name in names
    },
    **{
        f"{model} without products": Piece(("execution.products=off",))
        for model in ("moflow", "dlrm", "dcnv2", "distilbert")
    },
    "distilbert packed without products": Piece((*PACKED, "execution.products=off")),
    **{
        f"{model} without unordered sums": Piece(("execution.deterministic=true",))
        for model in MODELS
        if model not in INFERENCE
    },
}


def base_of(name: str) -> str:
    return name.split(" without ")[0].split(" by ")[0]


def program_of(name: str) -> str:
    return "predict.py" if name.split()[0] in INFERENCE else "train.py"


def replace(path: str, function: Any) -> None:
    """Puts `function` in the place of module.name or module.Class.name."""
    owner, _, name = path.rpartition(".")
    holder = resolve_name(owner)
    assert hasattr(holder, name), path
    setattr(holder, name, function)


def run_without(name: str, arguments: list[str]) -> None:
    """Runs train.py or predict.py in this process."""
    for path, function in PIECES[name].replaced.items():
        replace(path, function)
    sys.argv = [program_of(name), *arguments]
    runpy.run_path(program_of(name), run_name="__main__")


def table(out: Path) -> None:
    """Prints the median step of each run, how much longer it is than with everything, and the whole run's seconds."""
    steps, seconds = dict[str, float | None](), dict[str, float]()
    for name in PIECES:
        path = out / name.replace(" ", "_") / "result.json"
        if path.exists():
            record = json.loads(path.read_text())
            seconds[name], steady = record["e2e_time_s"], record.get("steady")
            latency = record["latency_s"] if record["kind"] == "predict" else steady and steady["step_time_s"]
            steps[name] = latency and 1e3 * latency["p50"]
    print("| | ms a step | longer by | s in all |\n|---|--:|--:|--:|")
    for name, step in steps.items():
        base = steps.get(base_of(name))
        longer = f"{step / base - 1:.1%}" if step and base and base_of(name) != name else ""
        print(f"| {name} | {step and f'{step:.3f}'} | {longer} | {seconds[name]:.0f} |")


def main(out: Path, arguments: list[str]) -> None:
    options = [word for word in arguments if "=" in word]
    patterns = [word for word in arguments if "=" not in word]
    for name in PIECES:
        if not any(fnmatch(name, pattern) for pattern in patterns):
            continue
        folders = f"output_dir={out / name.replace(' ', '_')}", f"output_root={out / 'hydra'}"
        bare = PREDICTED if program_of(name) == "predict.py" else BARE
        words = [*bare, *MODELS[name.split()[0]], *PIECES[name].options, *folders, *options]
        command = [sys.executable, "-m", "benchmarks.kernel_gains", "run", name, *words]
        log = out / f"{name.replace(' ', '_')}.txt"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            ended = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT)
        print(name, "done" if ended.returncode == 0 else log.read_text()[-4500:], flush=True)
    table(out)


if __name__ == "__main__":
    if sys.argv[1] == "run":
        run_without(sys.argv[2], sys.argv[3:])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
