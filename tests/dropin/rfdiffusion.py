"""RFdiffusion's whole network with random weights, with the package that it carries along or ours in its place."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from src.dropin import graphs
from tests.dropin.originals import clone, imported_from

Step = Callable[[], dict[str, Tensor]]
SIZES = {"num_layers": 1, "num_channels": 32, "num_degrees": 2, "n_heads": 4, "div": 4}
VECTORS = {"l1_in_features": 3, "l1_out_features": 2}
SE3 = {
    name: {**SIZES, **VECTORS, "l0_in_features": l0, "l0_out_features": l0, "num_edge_features": edges}
    for name, l0, edges in (("SE3_param_full", 8, 32), ("SE3_param_topk", 64, 64))
}
MODULE: dict[str, Any] = {  # RFdiffusion's config/inference/base.yaml
    "n_extra_block": 4, "n_main_block": 32, "n_ref_block": 4, "d_msa": 256, "d_msa_full": 64, "d_pair": 128,
    "d_templ": 64, "n_head_msa": 8, "n_head_pair": 4, "n_head_templ": 4, "d_hidden": 32, "d_hidden_templ": 32,
    "p_drop": 0.15, "d_t1d": 22, "d_t2d": 44, "T": 50, "use_motif_timestep": False, "freeze_track_motif": False,
    "input_seq_onehot": True, **SE3,
}  # fmt: skip


def chain(length: int) -> Tensor:
    """Returns N, CA and C of a random chain, [length, 3 atoms, 3]."""
    generator = torch.Generator().manual_seed(2)
    steps = torch.nn.functional.normalize(torch.randn(length, 3, generator=generator), dim=1)
    steps = steps + 0.5 * torch.nn.functional.normalize(torch.randn(3, generator=generator), dim=0)
    around = torch.randn(length, 3, 3, generator=generator)
    around[:, 1] = 0
    return 3.0 * steps.cumsum(0)[:, None] + around


def sides(
    length: int, device: str = "cpu", prepare: Callable[[Any], object] | None = None, **sizes: int
) -> list[tuple[Step, list[Tensor]]]:
    """Returns denoising steps of `length` residues: with our package, with theirs, and with ours in float64.

    Each comes with its weights, which are the same. `sizes` replace those of MODULE; `prepare` gets the first network.
    The last one must be called with torch's default dtype float64, which RFdiffusion's code makes tensors of; their
    package rounds its basis.
    """
    calls, weights = [], None
    for theirs in (False, True, False):
        network = network_of(theirs, **sizes)
        if weights is None:
            weights = network.state_dict()
        network.load_state_dict(weights, strict=True)
        dtype = torch.float64 if len(calls) == 2 else torch.float32
        network.to(device, dtype).eval()
        if prepare and not calls:
            prepare(network)
        calls.append(step(network, length, device, dtype))
    return calls


def network_of(theirs: bool, **sizes: int) -> Any:
    """Returns a network with random weights, also where a project starts them at zero; `sizes` replace MODULE's."""
    with rfdiffusion(theirs) as modules:
        torch.manual_seed(0)
        network = modules.RoseTTAFoldModule(**{**MODULE, **sizes})
    generator = torch.Generator().manual_seed(3)
    for parameter in network.parameters():
        if parameter.dim() > 1 and not parameter.any():
            parameter.data.normal_(0, 0.02, generator=generator)
    return network


def save_checkpoint(path: Path, **sizes: int) -> None:
    """Writes a random network with its configuration as run_inference.py reads it."""
    others = {"d_t1d": "preprocess", "d_t2d": "preprocess", "T": "diffuser"}
    config: dict[str, dict[str, Any]] = {"model": {}, "preprocess": {}, "diffuser": {}}
    for name, value in {**MODULE, **sizes}.items():
        config[others.get(name, "model")][name] = value
    del config["model"]["input_seq_onehot"]  # which is not in its base.yaml
    torch.save({"config_dict": config, "model_state_dict": network_of(False, **sizes).state_dict()}, path)


def step(network: Any, length: int, device: str, dtype: torch.dtype) -> tuple[Step, list[Tensor]]:
    generator = torch.Generator().manual_seed(4)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    places = torch.zeros(1, length, 27, 3, device=device, dtype=dtype)
    places[0, :, :3] = chain(length).to(device, dtype)
    places[0, :, 3:] = torch.nan  # unknown side chains, which the network does not read
    sequence = torch.zeros(1, length, 22, device=device, dtype=dtype)
    sequence[..., 21] = 1
    inputs = (noise(1, 1, length, 48), noise(1, 1, length, 25), sequence, places)
    templates = {"t1d": noise(1, 1, length, 22), "t2d": noise(1, 1, length, length, 44),
                 "xyz_t": places[None].nan_to_num(), "alpha_t": noise(1, 1, length, 30)}  # fmt: skip
    index = torch.arange(length, device=device)[None]
    frozen = torch.zeros(length, dtype=torch.bool, device=device)
    names = "msa", "pair", "xyz", "state", "alpha", "logits", "plddt"

    def call() -> dict[str, Tensor]:
        latent, full, *others = inputs
        out = network(latent.clone(), full.clone(), *others, index, torch.tensor(20), **templates, return_infer=True,
                      motif_mask=frozen)  # fmt: skip
        return dict(zip(names, out, strict=True))

    return call, list(network.parameters())


@contextmanager
def rfdiffusion(theirs: bool) -> Iterator[Any]:
    """Imports RFdiffusion's network anew within, with its own package or ours in `se3_transformer`'s place."""
    package = clone("RFdiffusion")
    assert package is not None, "SE3_CLONES names no folder with RFdiffusion"
    folder = package.parents[1]
    with imported_from(package, "rfdiffusion"):
        sys.path.insert(0, str(folder))
        before = dict(sys.modules)
        if theirs:
            sys.modules["dgl"].graph = plain_graph  # type: ignore[attr-defined]
        else:
            sys.modules["dgl"] = graphs  # the line that a user changes
            for name in ("", ".model", ".model.fiber"):
                sys.modules[f"se3_transformer{name}"] = import_module(f"src.dropin{name}")
        yield import_module("rfdiffusion.RoseTTAFoldModel")
        for name in [name for name in sys.modules if name.partition(".")[0] == "se3_transformer"]:
            del sys.modules[name]
        sys.modules.update(before)


def plain_graph(ends: tuple[Tensor, Tensor], num_nodes: int) -> graphs.Graph:
    """Returns a graph without checks, which the original does not pay for here."""
    return graphs.Graph(*ends, num_nodes)
