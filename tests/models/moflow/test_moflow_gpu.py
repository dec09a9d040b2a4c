"""MoFlow on a GPU: the CUDA graph, compiled steps and the fast modules give the eager results."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from src.gpu.cuda_graphs import Graphed
from src.gpu.replace import Kernels
from src.models.moflow.actnorm import kept_statistics, reused_statistics
from src.models.moflow.atom import LogDet
from src.models.moflow.fast import accelerate
from src.models.moflow.flow import Limit
from src.models.moflow.generated_molecules import GeneratedMolecules
from src.models.moflow.network import MoFlow
from src.molecules.encode import EncodingError, encode
from src.molecules.vocabulary import ZINC250K
from src.report.record import Record
from src.run import train
from tests.support.tiny_run import SMILES, tiny_config

# torch warns about TF32, with other words in every release.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

CUDA = torch.device("cuda")
# With Adam's own eps of 1e-8 a gradient that is zero but for rounding moves its weight by the whole learning rate.
ON_GPU = [
    "hardware=auto", "precision=fp32", "+model.task.optimizer.eps=0.01", "execution.graph_warmup_steps=3",
    "fit.final_evaluation=false", "fit.eval_every_n_epochs=null", "measure.window=1",
]  # fmt: skip


def trained(home: Path, *overrides: str) -> tuple[Record, dict[str, Tensor]]:
    """Trains on the GPU, 8 or 9 steps per epoch; returns the record and the weights of the last checkpoint."""
    home.mkdir(exist_ok=True)
    record = train(tiny_config(home, *ON_GPU, *overrides))
    checkpoint = torch.load(home / "outputs" / "moflow" / "run" / "checkpoints" / "last.ckpt", weights_only=False)
    return record, {name: value.cpu() for name, value in checkpoint["state_dict"].items() if "network." in name}


def values(record: Record, name: str) -> list[Any]:
    """Returns one value for every step."""
    return [row[name] for row in record.history if name in row]


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives every molecule the same dequantisation noise, drawn once per shape, so that a graph only reads it."""
    drawn: dict[tuple[int, ...], Tensor] = {}

    def share(values: Tensor) -> Tensor:
        shape = tuple(values.shape[1:])
        if shape not in drawn:
            generator = torch.Generator().manual_seed(0)
            drawn[shape] = torch.rand(shape, generator=generator).to(values.device)
        return drawn[shape]

    def dequantise(self: MoFlow, x: Tensor, adj: Tensor, noise: bool) -> tuple[Tensor, Tensor]:
        width = self.noise_scale * noise
        return x + width * share(x), adj + width * share(adj)

    monkeypatch.setattr(MoFlow, "dequantise", dequantise)


@pytest.fixture
def exact_products() -> Iterator[None]:
    """Turns TF32 off."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


def molecules() -> tuple[Tensor, Tensor]:
    """Returns the tiny run's molecules on the GPU."""
    graphs = []
    for smiles in SMILES:
        try:
            graphs.append(encode(smiles, ZINC250K))
        except EncodingError:
            continue
    nodes, edges = (torch.stack([torch.from_numpy(graph[i]) for graph in graphs]) for i in (0, 1))
    return nodes.to(CUDA), edges.to(CUDA)


def make_network(kernels: Kernels = "auto", **changes: Any) -> MoFlow:
    """Returns a small network on the GPU with noise added to every parameter."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "bond_hidden": (32, 32), "num_bond_flows": 3, "gnn_channels": 16, "atom_hidden": (32, 16), "num_atom_flows": 5,
    }  # fmt: skip
    network = MoFlow(**sizes, **changes)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return accelerate(network, kernels).to(CUDA)


def test_graph_and_compilation_give_the_losses_and_weights_of_the_eager_step(same_noise: None, tmp_path: Path) -> None:
    """Within rounding of float32 over two epochs; the graph is replayed from the fourth step on."""
    eager, weights = trained(tmp_path / "eager", "fit.max_epochs=2", "execution.graph=off", "execution.compile=off")
    losses = values(eager, "loss")
    assert len(losses) > 10
    assert losses[-1] < losses[0]
    for graph, compiled in (("on", "off"), ("off", "on"), ("on", "on")):
        choice = [f"execution.graph={graph}", f"execution.compile={compiled}"]
        record, again = trained(tmp_path / f"{graph}_{compiled}", "fit.max_epochs=2", *choice)
        assert values(record, "loss") == pytest.approx(losses, rel=1e-4), choice
        assert values(record, "grad_norm") == pytest.approx(values(eager, "grad_norm"), rel=1e-2), choice
        assert record.samples == eager.samples
        torch.testing.assert_close(again, weights, rtol=1e-3, atol=1e-4)


def test_the_loss_on_generated_molecules_is_that_of_the_eager_step_in_a_graph(
    same_noise: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same latents at every step, and rows of padding that are drawn as molecules have them."""
    drawn: dict[tuple[int, ...], Tensor] = {}

    def latents(self: GeneratedMolecules, network: MoFlow, *shape: int) -> tuple[Tensor, Tensor]:
        if shape not in drawn:
            drawn[shape] = torch.randn(self.molecules, *shape, generator=torch.Generator().manual_seed(0)).to(CUDA)
        return 0.7 * drawn[shape], torch.zeros([self.molecules, *(1 for _ in shape)], device=CUDA)

    monkeypatch.setattr(GeneratedMolecules, "_latents", latents)
    loss = "{_target_:src.models.moflow.generated_molecules.GeneratedMolecules,molecules:64}"
    overrides = [f"model.task.generated_molecules={loss}", "model.task.network.padding=encoded", "fit.max_epochs=2"]
    runs = []
    for choice in ("off", "on"):
        record, _ = trained(tmp_path / choice, *overrides, f"execution.graph={choice}", f"execution.compile={choice}")
        runs.append([values(record, name) for name in ("loss", "orphans", "wrong_elements", "discrepancy")])
    assert len(runs[0][0]) > 10
    for eager, captured in zip(*runs, strict=True):
        assert captured == pytest.approx(eager, rel=1e-3, abs=1e-4)


def test_a_graph_draws_new_noise_at_every_step(tmp_path: Path) -> None:
    """With all training molecules in one batch and a learning rate of 0, losses differ by noise and rounding only."""
    overrides = ["hp.lr=0", "fit.max_epochs=12", "hp.batch_size=70", "execution.graph=on", "execution.compile=off"]
    record, _ = trained(tmp_path, *overrides)
    losses = values(record, "loss")
    assert len(losses) == 12
    replayed = losses[3:]
    assert max(replayed) - min(replayed) > 1e-3
    assert len(set(replayed)) > len(replayed) // 2


def test_mixed_precision_trains_in_a_graph(tmp_path: Path) -> None:
    overrides = ["precision=amp", "fit.max_epochs=10", "hp.lr=2e-3", "execution.graph=on", "execution.compile=on"]
    record, weights = trained(tmp_path, *overrides)
    losses, scales = values(record, "loss"), values(record, "loss_scale")
    assert None not in losses  # a record holds None for values that are not finite
    assert sum(losses[-8:]) < sum(losses[:8]) - 8 * 0.05
    assert None not in scales and min(scales) >= 1
    assert all(value.isfinite().all() for value in weights.values())
    assert all(value.dtype != torch.float16 for value in weights.values())


@pytest.mark.parametrize("logdet", ["published", "exact"])
def test_the_fast_modules_equal_the_plain_ones(logdet: str, exact_products: None) -> None:
    batch = molecules()
    results = []
    for kernels in ("off", "auto"):
        network = make_network(kernels, logdet=logdet)
        torch.manual_seed(1)  # the same noise
        latent = network(*batch)
        loss = network.loss(latent)
        loss.backward()
        gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
        results.append((loss, tuple(latent), gradients))
    torch.testing.assert_close(results[0], results[1], rtol=1e-3, atol=1e-4)


def gradients_at_full_size(
    kernels: Kernels, dtype: torch.dtype, batch: int, logdet: LogDet, seed: int
) -> dict[str, Tensor]:
    """Returns loss, gradients and running statistics of the published sizes with few steps, in float64.

    With the exact log-determinant the flows also run backwards, with kept statistics, from a quarter as many latents.
    """
    torch.manual_seed(seed)
    network = accelerate(MoFlow(num_bond_flows=2, num_atom_flows=3, logdet=logdet), kernels).to(CUDA)
    nodes = torch.randint(0, 10, (batch, 38), dtype=torch.uint8, device=CUDA)
    edges = torch.randint(0, 40, (batch, 38, 38), device=CUDA).clamp(max=3).to(torch.uint8)
    network.initialize(nodes, edges)
    torch.manual_seed(1)
    keeping = kept_statistics(network) if logdet == "exact" else nullcontext()
    with torch.autocast("cuda", dtype, dtype != torch.float32), keeping:
        if logdet == "published":
            loss = network.loss(network(nodes, edges))
        else:
            latent, limit = network(nodes, edges), Limit()
            z_atom, z_bond = (torch.randn_like(z[: batch // 4]) for z in latent[:2])
            _, adj = network.one_hot(nodes[: batch // 4], edges[: batch // 4])
            with reused_statistics(network):
                bonds, atoms = network.continuous_bonds(z_bond, limit), network.continuous_atoms(z_atom, adj, limit)
            loss = network.loss(latent) + bonds.square().mean() + atoms.square().mean() + limit.beyond / 1000
    (1024 * loss).backward()
    values = {name: p.grad for name, p in network.named_parameters()} | {"loss": loss.detach()}
    values |= {name: value for name, value in network.named_buffers() if "running" in name}
    return {name: value.double() for name, value in values.items() if value is not None}


@pytest.mark.parametrize("logdet", ["published", "exact"])
@pytest.mark.parametrize("batch", [512, 777])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernels_of_the_published_sizes_round_as_plain_torch(
    dtype: torch.dtype, batch: int, logdet: LogDet, exact_products: None
) -> None:
    """Against plain torch in float32; equal bits each time. Wrong is what is wrong for other numbers too.

    For where a ReLU's input is rounded to the other side of 0, the whole gradient of an element is missing or added.
    """
    wrong = rounded_otherwise(dtype, batch, logdet, seed=0)
    assert not wrong or not wrong.keys() & rounded_otherwise(dtype, batch, logdet, seed=1).keys(), wrong


def rounded_otherwise(dtype: torch.dtype, batch: int, logdet: LogDet, seed: int) -> dict[str, list[float]]:
    """Returns the errors of kernels and of plain torch where the former are larger than allowed.

    Allowed are thrice plain torch's errors in `dtype`, the largest of the same weights in all steps: one is chance.
    """
    exact = gradients_at_full_size("off", torch.float32, batch, logdet, seed)
    plain = gradients_at_full_size(["conv", "graph_conv"], dtype, batch, logdet, seed)
    fast, again = (gradients_at_full_size("auto", dtype, batch, logdet, seed) for _ in range(2))
    assert exact.keys() == plain.keys() == fast.keys()
    assert all(torch.equal(fast[name], again[name]) for name in fast)
    errors, allowed = dict[str, list[float]](), dict[str, float]()
    for name, value in exact.items():
        errors[name] = [float((values[name] - value).norm() / value.norm()) for values in (fast, plain)]
        allowed[kind_of(name)] = max(errors[name][1], allowed.get(kind_of(name), 0.0))
    wrong = {}
    for name, (error, _) in errors.items():
        is_void = (
            logdet == "published" and "bond_flow" in name and name.endswith(("convs.0.bias", "convs.1.bias"))
        )  # BatchNorm subtracts it again
        if error > (1e-4 if dtype == torch.float32 else 2e-3) + 3 * allowed[kind_of(name)] and not is_void:
            wrong[name] = errors[name]
    return wrong


def kind_of(name: str) -> str:
    """Returns a parameter's name without the number of its step."""
    return re.sub(r"\d+", "N", name, count=1)


@pytest.mark.parametrize("graph", ["off", "on"])
def test_a_resumed_run_gives_the_losses_and_weights_of_an_uninterrupted_one(graph: str, tmp_path: Path) -> None:
    """With random noise. Rounding differs: the uninterrupted run replays while the resumed one warms up again."""
    choice = [f"execution.graph={graph}", "execution.compile=off"]
    straight, weights = trained(tmp_path / "straight", "fit.max_epochs=2", *choice)
    trained(tmp_path / "halves", "fit.max_epochs=1", *choice)
    checkpoint = tmp_path / "halves" / "outputs" / "moflow" / "run" / "checkpoints" / "last.ckpt"
    resumed, again = trained(tmp_path / "halves", "fit.max_epochs=2", f"ckpt_path={checkpoint}", *choice)
    losses = values(resumed, "loss")
    assert losses == pytest.approx(values(straight, "loss")[-len(losses) :], rel=1e-4)
    torch.testing.assert_close(again, weights, rtol=1e-3, atol=1e-4)


def test_captured_sampling_draws_new_molecules_at_every_call_and_repeats_with_a_seed() -> None:
    network = make_network().eval()
    with torch.inference_mode():
        sample = Graphed(lambda: network.sample(64, 1.0), graph=True)
        sample.warm_up()
        torch.manual_seed(3)
        first, second = (sample()[0].clone() for _ in range(2))
        torch.manual_seed(3)
        again = sample()[0].clone()
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert (first != second).any(1).sum() > 32
