"""NVIDIA's SE(3)-Transformer in RFdiffusion and the RoseTTAFolds beside this project's package. Needs a GPU.

SE3_CLONES=FOLDER python -m benchmarks.dropin [tf32] [backward] [recorded] CASE LENGTH [CASE LENGTH ..]

FOLDER has clones of the projects (tests/dropin/originals.py; their Python files are enough). A case is a network of
tests/dropin/cases.py on a chain of LENGTH residues, its graph made anew in every call, or `module`: RFdiffusion's whole
network, one denoising step. Both sides have the same random weights and torch functions in DGL's place. `backward`
adds the gradients of weights and features; `recorded` has our side of `module` run as CUDA graphs
(src/dropin/recording.py), and names those that do. Products are IEEE float32 unless `tf32` is given.

Each case is a process of its own and prints a line of JSON: seconds of the first call, milliseconds of later ones (the
median of rounds in which the sides take turns), peak memory of the first two calls (allocated, reserved), and the
largest difference over the largest entry; of `module` also each side's from float64.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from src.dropin.recording import record, report
from tests.dropin import rfdiffusion
from tests.dropin.cases import CASES, OURS, Case, built
from tests.dropin.originals import original
from tests.dropin.rfdiffusion import Step, plain_graph

ROUNDS, ROUND_S, LIMIT_S = 7, 0.4, 150
FLAGS = "tf32", "backward", "recorded"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # a CPU is for trying the cases
NEIGHBOURS = {"rfaa": 128}  # topk graphs of 64 else; "full" graphs of all pairs


def main() -> None:
    words = sys.argv[1:]
    flags = [word for word in words if word in FLAGS]
    rest = [word for word in words if word not in flags]
    if rest[:1] == ["--one"]:
        print(json.dumps(run(rest[1], int(rest[2]), *(name in flags for name in FLAGS))), flush=True)
        return
    for name, length in zip(rest[::2], rest[1::2], strict=True):
        command = [sys.executable, "-m", "benchmarks.dropin", "--one", name, length, *flags]
        try:
            process = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
            print(process.stdout.strip() or json.dumps({"case": name, "failed": process.returncode}), flush=True)
        except subprocess.TimeoutExpired as error:
            print(json.dumps({"case": name, "failed": f"over {LIMIT_S} s", "so far": str(error.stdout)[-2000:]}))


def run(name: str, length: int, tf32: bool, backward: bool, recorded: bool = False) -> dict[str, Any]:
    """Returns a case's figures."""
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    x = torch.randn(64, 64, device=DEVICE)
    torch.nn.functional.layer_norm(x @ x, (64,)).relu().cumsum(0)  # no side pays for the start of CUDA
    networks: list[nn.Module] = []
    both, exact = (
        (network_sides(name, length), None)
        if name != "module"
        else module_sides(length, networks if recorded else None)
    )
    sides = dict(zip(("ours", "theirs"), both, strict=True))
    result: dict[str, Any] = {"case": name, "length": length, "tf32": tf32, "backward": backward, "recorded": recorded,
                              "gpu": torch.cuda.get_device_name() if DEVICE == "cuda" else DEVICE,
                              "torch": torch.__version__}  # fmt: skip
    outputs: dict[str, dict[str, Tensor]] = {}
    steps: dict[str, Callable[[], Any]] = {}
    for parts in ("first_call_s", "second_call_s", "peak_mib", "reserved_mib"):
        result[parts] = {}
    with nullcontext() if backward else torch.inference_mode():
        for side, (call, weights) in sides.items():
            steps[side] = step_of(call, weights, backward)
            before, reserved = memory(reset=True)
            for part in ("first_call_s", "second_call_s"):
                wait()
                begin = time.perf_counter()
                outputs[side] = {key: x.detach().clone() for key, x in steps[side]().items()}
                wait()
                result[part][side] = round(time.perf_counter() - begin, 4)
            most, most_reserved = memory()
            result["peak_mib"][side] = round((most - before) / 2**20, 1)
            result["reserved_mib"][side] = round((most_reserved - reserved) / 2**20, 1)
        result["difference"] = difference(outputs["ours"], outputs["theirs"])
        if exact is not None:
            torch.set_default_dtype(torch.float64)
            outputs["float64"] = exact()
            torch.set_default_dtype(torch.float32)
            result["error"] = {side: difference(outputs[side], outputs["float64"]) for side in sides}
        result["finite"] = all(bool(x.isfinite().all()) for x in outputs["theirs"].values())
        rounds: dict[str, list[float]] = {side: [] for side in steps}
        for _ in range(ROUNDS):
            for side, step in steps.items():
                rounds[side].append(timed(step))
        result["ms"] = {side: round(statistics.median(times), 3) for side, times in rounds.items()}
        result["spread"] = {side: [round(min(times), 3), round(max(times), 3)] for side, times in rounds.items()}
        result["speed-up"] = round(result["ms"]["theirs"] / result["ms"]["ours"], 2)
        if networks:
            result["modules"] = report(networks[0]).splitlines()
        if DEVICE == "cuda":
            result["kernels"] = {side: launches(step) for side, step in steps.items()}
    return result


def step_of(call: Step, weights: list[Tensor], backward: bool) -> Step:
    """Returns a function that calls the network, and takes gradients of a weighted sum of its outputs if asked."""
    if not backward:
        return call

    slopes: dict[str, Tensor] = {}

    def step() -> dict[str, Tensor]:
        out = {key: x for key, x in call().items() if x.requires_grad}
        for key, x in out.items():
            if key not in slopes:
                slopes[key] = torch.randn(x.shape, generator=torch.Generator().manual_seed(9)).to(x.device)
        gradients = torch.autograd.grad(list(out.values()), weights, [slopes[key] for key in out], allow_unused=True)
        of_weights = {f"gradient {i}": x for i, x in enumerate(gradients) if x is not None}
        return {**out, **of_weights}

    return step


def module_sides(length: int, recorded: list[nn.Module] | None) -> tuple[list[tuple[Step, list[Tensor]]], Step]:
    """Returns both sides of RFdiffusion's whole network, and what it gives in float64.

    Our network is recorded and added to the list, if there is one.
    """
    *both, (exact, _) = rfdiffusion.sides(
        length, DEVICE, None if recorded is None else lambda x: recorded.append(record(x))
    )
    return both, exact


def network_sides(name: str, length: int) -> list[tuple[Step, list[Tensor]]]:
    """Returns our network of a case and the project's, each with its weights and features, which get gradients."""
    case = next(case for case in CASES if case.name == name)
    return [network_side(case, length, theirs) for theirs in (False, True)]


def network_side(case: Case, length: int, theirs: bool) -> tuple[Step, list[Tensor]]:
    package = original(case.project) if theirs else OURS
    network = built(package, case).to(DEVICE)
    positions = rfdiffusion.chain(length)[:, 1].to(DEVICE)
    src, dst = ends(positions, "full" in case.name, NEIGHBOURS.get(case.name, 64))
    generator = torch.Generator().manual_seed(5)
    nodes, edges = (
        {
            str(degree): torch.randn(rows, count, 2 * degree + 1, generator=generator).to(DEVICE).requires_grad_()
            for degree, count in sizes.items()
        }
        for sizes, rows in ((case.inputs, length), (case.edges, len(src)))
    )
    make = plain_graph if theirs else package.graph

    def call() -> dict[str, Tensor]:
        graph = make((src, dst), num_nodes=length)
        graph.edata["rel_pos"] = positions[dst] - positions[src]
        return dict(network(graph, dict(nodes), dict(edges)))  # theirs adds the lengths to the dictionary

    return call, [*network.parameters(), *nodes.values(), *edges.values()]


def ends(positions: Tensor, is_full: bool, neighbours: int) -> tuple[Tensor, Tensor]:
    """Returns the edges of all pairs, or of the nearest residues and of those within 32 of the chain."""
    count = len(positions)
    place = torch.arange(count, device=positions.device)
    apart = (place - place[:, None]).abs()
    chosen = apart > 0
    if not is_full:
        distances = torch.cdist(positions, positions) + 999.9 * torch.eye(count, device=positions.device)
        nearest = distances.topk(min(neighbours, count), largest=False).indices
        chosen = torch.zeros_like(chosen).scatter(1, nearest, True) | (chosen & (apart < 32))
    src, dst = chosen.nonzero(as_tuple=True)
    return src, dst


def difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> dict[str, float]:
    """Returns the largest differences of outputs over their largest entries, and the largest of all gradients."""
    assert ours.keys() == theirs.keys()
    ours = {name: x.to(theirs[name].dtype) for name, x in ours.items()}
    largest: dict[str, float] = {}
    for name, value in theirs.items():
        relative = ((ours[name] - value).abs().amax() / value.abs().amax().clamp_min(1e-30)).item()
        key = name.partition(" ")[0]
        largest[key] = max(largest.get(key, 0.0), float(f"{relative:.2g}"))
    return largest


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def memory(reset: bool = False) -> tuple[int, int]:
    """Returns the most bytes allocated, and taken from the device, since the last reset.

    A graph's memory counts in the call that captures it.
    """
    if DEVICE == "cpu":
        return 0, 0
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


def launches(step: Callable[[], Any]) -> int:
    """Returns the number of kernels and copies of a call on the GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        wait()
    return sum(event.count for event in profile.key_averages() if "CUDA" in str(event.device_type))


def timed(step: Callable[[], Any]) -> float:
    """Returns milliseconds a call, from begin to end of as many as fit a round."""
    wait()
    begin = time.perf_counter()
    step()
    wait()
    count = max(1, min(50, int(ROUND_S / (time.perf_counter() - begin))))
    begin = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return 1000 * (time.perf_counter() - begin) / count


if __name__ == "__main__":
    main()
