"""Other people's models with `accelerate`, beside the same models untouched. Needs a GPU, transformers and timm.

python -m benchmarks.outside_models [rates] distilbert mobilenet se3      cases, or all whose name begins so

Each case is a process of its own and prints one line of JSON: errors against float64 on random inputs first (the fast
model's and the untouched one's; not with `rates`), then milliseconds a training step: the median of rounds in which all
sides take turns.
"""

import json
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from src.acceleration import accelerate, explain

ROUNDS, LIMIT_S = 5, 280
BEGUN_BY_S = 75  # no side is begun later, from the first one on
BATCHES = 3  # that errors are taken of
MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")


@dataclass
class Case:
    """A model's training step: `loss(model, batch)` of batches in turn, with an optimiser."""

    model: Callable[[], nn.Module]
    batches: Callable[[], Sequence[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    dtype: torch.dtype  # of autocast
    checked: Callable[[int], Any]  # a smaller batch by seed, for float64
    steps: int = 20  # of a round
    modes: Sequence[str] = MODES
    scaled: bool = False
    variants: dict[str, Callable[[Any], Any]] | None = None  # of an untouched side's batches, by name


def main() -> None:
    words = sys.argv[1:]
    if words[:1] == ["--one"]:
        print(json.dumps(run(words[1], with_errors=len(words) == 2)), flush=True)
        return
    only = [word for word in words if word == "rates"]
    wanted = tuple(word for word in words if word != "rates") or ("distilbert", "mobilenet", "se3")
    for name in [case for case in CASES if case.startswith(wanted)]:
        command = [sys.executable, "-m", "benchmarks.outside_models", "--one", name, *only]
        try:
            process = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
            print(process.stdout.strip() or json.dumps({"case": name, "failed": process.returncode}), flush=True)
        except subprocess.TimeoutExpired as error:
            print(json.dumps({"case": name, "failed": f"over {LIMIT_S} s", "so far": str(error.stdout)[-2000:]}))


def run(name: str, with_errors: bool = True) -> dict[str, Any]:
    """Returns a case's figures; what fails in a part of it is in the part's place."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.benchmark = True
    case = CASES[name]()
    result: dict[str, Any] = {"case": name, "gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    for dtype in (torch.float32, case.dtype) if with_errors else ():
        result[f"errors {str(dtype).removeprefix('torch.')}"] = tried(lambda dtype=dtype: errors(case, dtype))
    torch.set_float32_matmul_precision("high")
    sides: dict[str, Callable[[], None]] = {}
    result["ms"], result["seconds"], begin = {}, {}, time.perf_counter()
    for side, make in all_sides(case):
        started = time.perf_counter()
        if started - begin > BEGUN_BY_S:
            result["ms"][side] = "not begun: too late"
            continue
        step = tried(lambda make=make: warmed(make()))
        if isinstance(step, str):
            result["ms"][side] = step
        else:
            sides[side] = step
        result["seconds"][side] = round(time.perf_counter() - started, 1)
    result["report"] = str(explain(accelerate(case.model()))).splitlines()
    rounds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(ROUNDS):
        for side, step in sides.items():
            rounds[side].append(timed(step, case.steps))
    for side, times in rounds.items():
        result["ms"][side] = round(statistics.median(times), 3)
        result.setdefault("spread", {})[side] = [round(min(times), 3), round(max(times), 3)]
    times = {side: ms for side, ms in result["ms"].items() if isinstance(ms, float)}
    compiled = [ms for side, ms in times.items() if side.startswith("compiled")]
    fast = [ms for side, ms in times.items() if side.startswith("accelerate")]
    if compiled and fast:
        result["over the best compiled"] = round(min(compiled) / min(fast), 3)
        result["memory_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 1)
    return result


def tried(function: Callable[[], Any]) -> Any:
    """Returns the function's value, or its error as text."""
    try:
        return function()
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"[:600]


def all_sides(case: Case) -> Iterator[tuple[str, Callable[[], Callable[[], None]]]]:
    """Yields the sides' names and what makes their steps."""
    base = case.model()
    yield "accelerate", lambda: step_of(case, accelerate(deepcopy(base)))
    yield "eager", lambda: step_of(case, deepcopy(base))
    for mode in case.modes[:2]:
        yield f"compiled {mode}", lambda mode=mode: step_of(case, deepcopy(base), mode)
    for name, change in (case.variants or {}).items():
        for mode in case.modes[:2]:
            yield f"compiled {mode}, {name}", lambda mode=mode, c=change: step_of(case, deepcopy(base), mode, c)
    yield "accelerate compiled", lambda: step_of(case, accelerate(deepcopy(base)), "default")
    yield "accelerate without graphs", lambda: step_of(case, accelerate(deepcopy(base), graphs=False))
    for mode in case.modes[2:]:
        yield f"compiled {mode}", lambda mode=mode: step_of(case, deepcopy(base), mode)


def step_of(
    case: Case, model: nn.Module, mode: str | None = None, change: Callable[[Any], Any] = lambda batch: batch
) -> Callable[[], None]:
    """Returns a function that takes a training step with the next batch."""
    model = model.cuda().train()
    optimizer = case.optimizer(model)
    called: Any = model if mode is None else torch.compile(model, mode=mode)
    scaler = torch.amp.GradScaler("cuda", enabled=case.scaled)
    batches, count = [change(batch) for batch in case.batches()], 0

    def step() -> None:
        nonlocal count
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", case.dtype):
            loss = case.loss(called, batches[count % len(batches)])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        count += 1

    return step


def warmed(step: Callable[[], None]) -> Callable[[], None]:
    for _ in range(24):
        step()
    torch.cuda.synchronize()
    return step


def timed(step: Callable[[], None], steps: int) -> float:
    """Returns milliseconds a step, by events around `steps` of them after two more."""
    for _ in range(2):
        step()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / steps


def errors(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Returns the errors of the fast and of the untouched model against float64, relative, medians of some batches.

    Without dropout, over six steps, so that graphs take part: of the last loss, of all gradients by their norm, of the
    gradient whose largest error is largest, and of the running statistics.
    """
    of_batches = [errors_of(case, dtype, seed) for seed in range(BATCHES)]
    names = of_batches[0]["fast"]
    return {
        side: {name: statistics.median(errors[side][name] for errors in of_batches) for name in names}
        for side in ("fast", "plain")
    }


def errors_of(case: Case, dtype: torch.dtype, seed: int) -> dict[str, dict[str, float]]:
    torch.manual_seed(seed)
    base = case.model().cuda().train()
    for module in base.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch = case.checked(seed)
    sides = {"exact": base.double(), "plain": deepcopy(base).float(), "fast": accelerate(deepcopy(base).float())}
    values, buffers = {}, {}
    for side, model in sides.items():
        kind = torch.float64 if side == "exact" else dtype
        cast = torch.autocast("cuda", dtype) if kind not in (torch.float32, torch.float64) else nullcontext()
        inputs, loss = cast_batch(batch, torch.float64) if side == "exact" else batch, torch.zeros(())
        for _ in range(6):
            model.zero_grad()
            with cast:
                loss = case.loss(model, inputs)
            loss.backward()
        values[side] = {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}
        values[side]["loss"] = loss.detach().double()
        buffers[side] = {name: buffer.double() for name, buffer in model.named_buffers()}
    exact = values["exact"]
    assert exact.keys() == values["fast"].keys() == values["plain"].keys()
    largest = max(gradient.abs().max().item() for name, gradient in exact.items() if name != "loss")

    def distance(side: str, name: str) -> float:
        return (values[side][name] - exact[name]).abs().max().item()

    def norm(tensors: Iterable[Tensor]) -> float:
        return sum(tensor.square().sum().item() for tensor in tensors) ** 0.5

    gradients = [name for name in exact if name != "loss"]
    return {
        side: {
            "loss": distance(side, "loss") / exact["loss"].abs().item(),
            "gradients' norm": norm(values[side][name] - exact[name] for name in gradients)
            / norm(exact[name] for name in gradients),
            "worst gradient": max(
                distance(side, name) / max(exact[name].abs().max().item(), 0.01 * largest) for name in gradients
            ),
            "statistics": max(
                [
                    ((buffers[side][name] - buffer).abs().max() / buffer.abs().max().clamp_min(1e-6)).item()
                    for name, buffer in buffers["exact"].items()
                ]
                or [0.0]
            ),
        }
        for side in ("fast", "plain")
    }


def cast_batch(batch: Any, dtype: torch.dtype) -> Any:
    """Returns a nest of tensors with floating-point ones in `dtype`."""
    return tree_map(lambda x: x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x, batch)


def distilbert(sentences: int, length: int, mixed: bool) -> Case:
    from transformers.models.distilbert.configuration_distilbert import DistilBertConfig
    from transformers.models.distilbert.modeling_distilbert import DistilBertForSequenceClassification

    def batch(count: int, seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(1000, 30000, (count, length), generator=generator)
        low = min(8, length) if mixed else length
        lengths = torch.randint(low, length + 1, (count,), generator=generator)
        mask = (torch.arange(length) < lengths[:, None]).long()
        labels = torch.randint(2, (count,), generator=generator)
        tensors = {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}
        return {name: tensor.cuda() for name, tensor in tensors.items()}

    variants = {"no mask": lambda batch: {k: v for k, v in batch.items() if k != "attention_mask"}}
    return Case(
        model=lambda: DistilBertForSequenceClassification(DistilBertConfig()),
        batches=lambda: [batch(sentences, seed) for seed in range(4)],
        loss=lambda model, given: model(**given).loss,
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True),
        dtype=torch.bfloat16,
        checked=lambda seed: batch(8, 9 + seed),
        steps=5 if sentences * length > 20000 else 20,
        modes=MODES[:2] if mixed else MODES,  # max-autotune takes minutes
        variants=None if mixed else variants,
    )


def mobilenet(images: int) -> Case:
    import timm  # pyright: ignore[reportMissingImports]

    def batch(count: int, seed: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        pixels = torch.randn(count, 3, 224, 224, generator=generator).cuda()
        return pixels.contiguous(memory_format=torch.channels_last), torch.randint(
            1000, (count,), generator=generator
        ).cuda()

    def make() -> nn.Module:
        return timm.create_model("mobilenetv1_100").to(memory_format=torch.channels_last)

    return Case(
        model=make,
        batches=lambda: [batch(images, seed) for seed in range(4)],
        loss=lambda model, given: nn.functional.cross_entropy(model(given[0]).float(), given[1]),
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, fused=True),
        dtype=torch.float16,
        checked=lambda seed: batch(8, 9 + seed),
        modes=MODES[:2] if images > 64 else MODES,
        scaled=True,
    )


def se3(molecules: int) -> Case:
    from src.models.se3_transformer import Graph, SE3TransformerPooled

    def batch(count: int, seed: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(seed)
        atoms, ring = 18, torch.arange(18)
        first = atoms * torch.arange(count)[:, None]
        here, there = (first + ring).flatten(), (first + (ring + 1) % atoms).flatten()
        src, dst = torch.cat([here, there]), torch.cat([there, here])
        positions = 2 * torch.randn(count * atoms, 3, generator=generator)
        graph = Graph.build(positions, src, dst, [atoms] * count)
        nodes = torch.randn(count * atoms, 6, generator=generator).cuda()
        edges = torch.randn(len(src), 4, generator=generator).cuda()
        target = torch.randn(count, 1, generator=generator).cuda()
        return Graph(*(tensor.cuda() for tensor in graph[:7]), distinct=True), nodes, edges, target

    return Case(
        model=SE3TransformerPooled,
        batches=lambda: [batch(molecules, seed) for seed in range(4)],
        loss=lambda model, given: (model(*given[:3]).float() - given[3]).abs().mean(),
        optimizer=lambda model: torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True),
        dtype=torch.float16,
        checked=lambda seed: batch(8, 9 + seed),
        steps=10,
        modes=("default",),
        scaled=True,
    )


CASES: dict[str, Callable[[], Case]] = {
    "distilbert_padded_96x512": lambda: distilbert(96, 512, False),
    "distilbert_mixed_32x128": lambda: distilbert(32, 128, True),
    "mobilenet_64": lambda: mobilenet(64),
    "mobilenet_256": lambda: mobilenet(256),
    "se3_240": lambda: se3(240),
}

if __name__ == "__main__":
    main()
