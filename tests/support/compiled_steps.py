"""Prints counts of compiled graphs as JSON for test_compile.py; without shape checks, which would compile too."""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import torch
from torch._dynamo.testing import CompileCounterWithBackend

sys.path.insert(0, str(Path(__file__).parents[2]))

import tests.support.patched_start  # noqa: F401
from src.config.complete import complete
from src.measure.clock import Clock
from src.models.moflow.generated_molecules import GeneratedMolecules
from src.models.moflow.network import MoFlow
from src.models.moflow.task import MoFlowTask
from src.run import build, fit, quieten
from tests.support.tiny_moflow import make_molecules, make_network
from tests.support.tiny_run import tiny_config


def run(bond_flows: int, atom_flows: int, logdet: str) -> dict[str, float]:
    """Returns the number of graphs compiled for training and generation, and the largest deviation from eager."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    molecules = make_molecules(4)
    results = []
    for compiled in (False, True):
        network = make_network(logdet=logdet, num_bond_flows=bond_flows, num_atom_flows=atom_flows)
        if compiled:
            network.compile_steps(backend=counter)
        torch.manual_seed(0)
        latent = network(*molecules)
        loss = network.loss(latent)
        loss.backward()
        gradients = [p.grad for p in network.parameters() if p.grad is not None]
        statistics = [buffer.double() for buffer in network.buffers()]
        with torch.no_grad():
            generated = network.eval().reverse(latent.z_atom.detach(), latent.z_bond.detach())
        results.append([loss, *latent, *gradients, *statistics, *generated])
    pairs = zip(*results, strict=True)
    return {
        "graphs": counter.frame_count,
        "deviation": max((a - b).abs().max().item() for a, b in pairs),
    }


def sample_many_sizes() -> int:
    """Returns the number of batch sizes sampled; beyond torch's default graph limit, fullgraph raises an error."""
    torch._dynamo.reset()
    network = make_network(num_bond_flows=2, num_atom_flows=1).eval()
    network.compile_steps(backend="eager", dynamic=False)
    return sum(len(network.sample(size, 0.3)[0]) == size for size in range(1, 6))


def separate_uses() -> float:
    """Returns the largest deviation from eager of the gradients with generated molecules."""
    torch._dynamo.reset()
    gradients = []
    for compiled in (False, True):
        network = make_network(logdet="exact", num_bond_flows=2, num_atom_flows=2, kernels="off").train()
        if compiled:
            network.compile_steps(backend="aot_eager", dynamic=False)
        task = MoFlowTask(network, torch.optim.Adam, generated_molecules=GeneratedMolecules(molecules=6))
        task.register_buffer("most_bonds", torch.tensor([0.0, 4.0, 1.0]).double(), persistent=False)
        torch.manual_seed(1)
        task.loss(make_molecules(5))["loss"].backward()
        gradients.append([p.grad / p.grad.abs().max() for p in network.parameters() if p.grad is not None])
    return max((a - b).abs().max().item() for a, b in zip(*gradients, strict=True))


def graphs_of_a_run(home: Path) -> list[int]:
    """Returns the graphs compiled for an evaluation, before the final one, and in all; its last batch is smaller."""
    torch._dynamo.reset()
    job = build(complete(tiny_config(home, "model.task.eval_batch=16", "model.task.final_molecules=24")), Clock())
    counter, graphs = CompileCounterWithBackend("eager"), list[int]()
    network, evaluate = job.task.network, job.task.evaluate_last
    assert isinstance(network, MoFlow)
    network.compile_steps(backend=counter, dynamic=False)
    task = cast(MoFlowTask, job.task)
    with torch.no_grad():
        task.eval().validation_step(task.example_batch(4), 0)
    task.generate(4)
    task.train()
    graphs.append(counter.frame_count)
    job.task.evaluate_last = lambda datamodule: (graphs.append(counter.frame_count), evaluate(datamodule))[1]
    fit(job)
    return [*graphs, counter.frame_count]


torch.set_num_threads(1)
quieten()
with TemporaryDirectory() as home:
    graphs = graphs_of_a_run(Path(home))
print(json.dumps([run(3, 2, "published"), run(1, 2, "exact"), sample_many_sizes(), graphs, separate_uses()]))
