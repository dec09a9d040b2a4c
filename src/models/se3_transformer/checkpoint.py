"""Conversion of weights from and to NVIDIA's layout (DeepLearningExamples, DGLPyTorch/DrugDiscovery/SE3Transformer).

In NVIDIA's code the fuse level decides which pairs of degrees share a radial network, and the parameters' names:
`conv` (all pairs), `conv_out.<degree>` or `conv_in.<degree>` (one degree out or in), `conv.<in>,<out>` (one pair). The
rows of a radial network's last matrix are (channel out, channel in, frequency); the frequencies run over the pairs. A
fused network multiplies its (0, 0) pair by the constant harmonic of degree 0, an unfused one by 1. Our radial networks
multiply by the harmonic unless (0, 0) is their only pair.

Weights whose Wigner 3j symbols have another sign in NVIDIA's version of e3nn change sign (`signs`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from torch import Tensor

from src.errors import UserError
from src.models.se3_transformer.attention import AttentionBlockSE3
from src.models.se3_transformer.basis import Pair, num_frequencies
from src.models.se3_transformer.conv import ConvSE3
from src.models.se3_transformer.fiber import Fiber
from src.models.se3_transformer.network import SE3Transformer, SE3TransformerPooled
from src.models.se3_transformer.norm import NormSE3
from src.models.se3_transformer.radial import Group
from src.models.se3_transformer.signs import NVIDIA_E3NN, Y_0, Triple, negated_symbols, symbol_signs
from src.system.reading import read_weights
from src.training.checkpoints import read_checkpoint, shown

Fuse = Literal["full", "partial", "none"]
FUSES: tuple[Fuse, ...] = get_args(Fuse)
Network = SE3Transformer | SE3TransformerPooled
Weights = dict[str, Tensor]


def load_nvidia(path: Path, network: Network, e3nn: str = NVIDIA_E3NN) -> None:
    """Loads a checkpoint of NVIDIA's training script into the network.

    The file may also be its state_dict as safetensors. `e3nn` is the version of e3nn that the checkpoint was trained
    with. Raises UserError, naming the key, for any other file and for a checkpoint of another network.
    """
    state_dict = read_tensors(path)
    try:
        network.load_state_dict(from_nvidia(state_dict, network, e3nn))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_tensors(path: Path) -> Mapping[str, Tensor]:
    """Returns the state_dict of a checkpoint or a safetensors file. Raises UserError for any other file."""
    if path.suffix != ".safetensors":
        return read_checkpoint(path)["state_dict"]
    return read_weights(path)


def from_nvidia(state_dict: Mapping[str, Tensor], network: Network, e3nn: str = NVIDIA_E3NN) -> Weights:
    """Returns the network's state_dict with the weights of NVIDIA's `state_dict` of any fuse level.

    Convolutions may differ in fuse level, as in low_memory networks from before September 2022. A radial network that
    NVIDIA shares and this network does not is repeated. `e3nn` is the version that `state_dict` was trained with.
    Raises UserError, naming the key, for a checkpoint of another network or with less sharing than this network, and
    for a version of e3nn whose symbols are unknown.
    """
    unread, negated = dict(state_dict), negated_symbols(e3nn, _layers(network)[0].max_degree)

    def take(key: str, shape: torch.Size) -> Tensor:
        tensor = unread.pop(key, None)
        if tensor is None or tensor.shape != shape:
            actual = shown(None if tensor is None else tensor.shape)
            raise UserError(
                f"checkpoint of another network: {key} is {actual} in the checkpoint and {shown(shape)} in this "
                "network; build the network with the checkpoint's sizes"
            )
        return tensor

    ours = {}
    for our_key, nvidia_shapes in _plain_keys(network):
        ours[our_key] = torch.cat([take(key, shape) for key, shape in nvidia_shapes.items()])
    for conv in _convolutions(network):
        layouts = [conv.nvidia_radials(fuse) for fuse in FUSES]
        radials = next((layout for layout in layouts if all(r.matrix in state_dict for r in layout)), layouts[0])
        tensors = {key: take(key, shape) for radial in radials for key, shape in radial.shapes().items()}
        ours |= convert(tensors, radials, conv.our_radials(), negated)
    if unread:
        raise UserError(
            f"checkpoint of another network: {min(unread)} is absent in this network; "
            "build the network with the checkpoint's sizes"
        )
    return ours


def to_nvidia(network: Network, fuse: Fuse = "full", e3nn: str = NVIDIA_E3NN) -> Weights:
    """Returns the network's weights in NVIDIA's layout at this fuse level.

    NVIDIA's code uses `full` with tensor cores, `partial` without, `none` with low_memory. The layout is that of its
    code since September 2022 (commit 2517f619); before, the last convolution was fused at every level. `e3nn` is the
    version that NVIDIA's code will run with. Raises UserError if radial networks are less shared than the fuse level
    needs, and for a version of e3nn whose symbols are unknown.
    """
    negated = negated_symbols(e3nn, _layers(network)[0].max_degree)
    ours, nvidia = network.state_dict(), {}
    for our_key, nvidia_shapes in _plain_keys(network):
        parts = ours[our_key].split([shape[0] for shape in nvidia_shapes.values()])
        nvidia |= dict(zip(nvidia_shapes, parts, strict=True))
    for conv in _convolutions(network):
        nvidia |= convert(ours, conv.our_radials(), conv.nvidia_radials(fuse), negated)
    return nvidia


@dataclass(frozen=True)
class Radial:
    """One radial network in one of the two layouts.

    hidden: key prefix of its hidden layers, with names and shapes in `hidden_shapes`.
    matrix: key of its last matrix, [group.num_weights, mid_channels].
    channels_out_first: whether that matrix's rows have NVIDIA's order. harmonic: factor of its (0, 0) pair.
    """

    group: Group
    hidden: str
    hidden_shapes: dict[str, torch.Size]
    matrix: str
    channels_out_first: bool
    harmonic: float

    def shapes(self) -> dict[str, torch.Size]:
        mid_channels = self.hidden_shapes["0.bias"][0]
        hidden = {self.hidden + name: shape for name, shape in self.hidden_shapes.items()}
        return {**hidden, self.matrix: torch.Size([self.group.num_weights, mid_channels])}

    def unpack(self, matrix: Tensor) -> dict[Pair, Tensor]:
        """Returns each pair's rows as [frequencies, channels in, channels out, mid], scaled to a harmonic of 1."""
        pairs = list(self.group.pairs())
        sizes = [num_frequencies(pair) for pair in pairs]
        if self.channels_out_first:
            c_out, c_in = self.group.outputs.equal_channels or 0, self.group.inputs.equal_channels or 0
            parts = [
                part.permute(2, 1, 0, 3) for part in matrix.unflatten(0, (c_out, c_in, sum(sizes))).split(sizes, 2)
            ]
        else:
            rows = [size * self.group.size(pair) for size, pair in zip(sizes, pairs, strict=True)]
            parts = [
                part.unflatten(0, (num_frequencies(pair), self.group.inputs.channels(pair[0]), -1))
                for part, pair in zip(matrix.split(rows), pairs, strict=True)
            ]
        return {pair: part * self.harmonic if pair == (0, 0) else part for pair, part in zip(pairs, parts, strict=True)}

    def pack(self, by_pair: Mapping[Pair, Tensor]) -> Tensor:
        """Inverts `unpack`."""
        parts = [by_pair[pair] / self.harmonic if pair == (0, 0) else by_pair[pair] for pair in self.group.pairs()]
        if self.channels_out_first:
            return torch.cat([part.permute(2, 1, 0, 3) for part in parts], 2).flatten(0, 2)
        return torch.cat([part.flatten(0, 2) for part in parts])


def convert(
    tensors: Mapping[str, Tensor], sources: list[Radial], targets: list[Radial], negated: frozenset[Triple]
) -> Weights:
    """Returns the parameters of the radial networks `targets` from those of `sources`, for the same pairs of degrees.

    `negated`: triples whose symbols have opposite signs in the two. Raises UserError if a target shares hidden layers
    between pairs whose sources have different ones.
    """
    by_pair, source_of = {}, {}
    for source in sources:
        for pair, rows in source.unpack(tensors[source.matrix]).items():
            by_pair[pair] = rows * rows.new_tensor(symbol_signs(pair, negated))[:, None, None, None]
        source_of |= dict.fromkeys(source.group.pairs(), source)
    parameters = {}
    for target in targets:
        used = {source_of[pair].hidden: None for pair in target.group.pairs()}
        for name in target.hidden_shapes:
            values = [tensors[hidden + name] for hidden in used]
            if any(not torch.equal(value, values[0]) for value in values):
                other = next(hidden for hidden in used if not torch.equal(tensors[hidden + name], values[0]))
                raise UserError(
                    f"{next(iter(used))}{name} and {other}{name} differ, but {target.hidden}{name} must equal both: "
                    "convert to a network with sharing=pairwise, or to fuse=none"
                )
            parameters[target.hidden + name] = values[0]
        parameters[target.matrix] = target.pack(by_pair)
    return parameters


@dataclass(frozen=True)
class Convolution:
    """A convolution of the network with its key prefixes in both layouts."""

    module: ConvSE3
    our_prefix: str
    nvidia_prefix: str
    max_degree: int

    def our_radials(self) -> list[Radial]:
        radials = []
        for number, module in enumerate(self.module.radial_groups()):
            prefix, harmonic = f"{self.our_prefix}groups.{number}.", 1.0 if module.group.is_scalar else Y_0
            hidden = f"{prefix}hidden.", self._hidden_shapes()
            radials.append(
                Radial(module.group, *hidden, f"{prefix}weight", channels_out_first=False, harmonic=harmonic)
            )
        return radials

    def nvidia_radials(self, fuse: Fuse) -> list[Radial]:
        radials = []
        for name, group in nvidia_groups(self.module.fiber_in, self.module.fiber_out, self.max_degree, fuse).items():
            prefix, harmonic = f"{self.nvidia_prefix}{name}.radial_func.net.", 1.0 if name == "conv.0,0" else Y_0
            last = f"{prefix}{len(next(self.module.radial_groups()).hidden)}.weight"
            radials.append(
                Radial(group, prefix, self._hidden_shapes(), last, channels_out_first=True, harmonic=harmonic)
            )
        return radials

    def _hidden_shapes(self) -> dict[str, torch.Size]:
        return {name: value.shape for name, value in next(self.module.radial_groups()).hidden.state_dict().items()}


def nvidia_groups(fiber_in: Fiber, fiber_out: Fiber, max_degree: int, fuse: Fuse) -> dict[str, Group]:
    """Returns NVIDIA's radial networks of a convolution by module name, at most at fuse level `fuse`."""
    all_degrees = tuple(range(max_degree + 1))
    can_join_in, can_join_out = (f.equal_channels and f.degrees == all_degrees for f in (fiber_in, fiber_out))
    if fuse == "full" and can_join_in and can_join_out:
        return {"conv": Group(fiber_in, fiber_out)}
    if fuse != "none" and can_join_in:
        return {f"conv_out.{degree}": Group(fiber_in, Fiber({degree: count})) for degree, count in fiber_out.items()}
    if fuse != "none" and can_join_out:
        return {f"conv_in.{degree}": Group(Fiber({degree: count}), fiber_out) for degree, count in fiber_in.items()}
    return {
        f"conv.{d_in},{d_out}": Group(Fiber({d_in: c_in}), Fiber({d_out: c_out}))
        for d_in, c_in in fiber_in.items()
        for d_out, c_out in fiber_out.items()
    }


def _layers(network: Network) -> tuple[SE3Transformer, str, str]:
    """Returns the network's transformer, and its key prefixes in both layouts."""
    if isinstance(network, SE3TransformerPooled):
        return network.transformer, "transformer.", "transformer.graph_modules."
    return network, "", "graph_modules."


def _convolutions(network: Network) -> Iterator[Convolution]:
    transformer, ours, nvidia = _layers(network)
    step = 2 if _has_norms(transformer) else 1
    for number, block in enumerate(transformer.blocks):
        assert isinstance(block, AttentionBlockSE3)
        prefixes = f"{ours}blocks.{number}.to_value_key.", f"{nvidia}{step * number}.to_key_value."
        yield Convolution(block.to_value_key, *prefixes, transformer.max_degree)
    prefixes = f"{ours}to_output.", f"{nvidia}{step * len(transformer.blocks)}."
    yield Convolution(transformer.to_output, *prefixes, transformer.max_degree)


def _plain_keys(network: Network) -> Iterator[tuple[str, dict[str, torch.Size]]]:
    """Yields our keys outside the radial networks, each with NVIDIA's keys and their shapes."""
    transformer, ours, nvidia = _layers(network)
    step = 2 if _has_norms(transformer) else 1
    renamed = {
        f"{ours}to_output.to_self.": f"{nvidia}{step * len(transformer.blocks)}.to_kernel_self.",
        "head.": "mlp.",
    }
    for number in range(len(transformer.blocks)):
        for layer in ("to_query", "project"):
            renamed[f"{ours}blocks.{number}.{layer}."] = f"{nvidia}{step * number}.{layer}."
    for key, value in network.state_dict().items():
        for prefix, nvidia_prefix in renamed.items():
            if key.startswith(prefix):
                yield key, {nvidia_prefix + key.removeprefix(prefix): value.shape}
    for number, norm in enumerate(transformer.norms):
        if isinstance(norm, NormSE3):
            module = f"{nvidia}{step * number + 1}."
            for name in ("weight", "bias"):
                counts = {f"{module}layer_norms.{degree}.{name}": count for degree, count in norm.fiber.items()}
                if norm.fiber.equal_channels:
                    counts = {f"{module}group_norm.{name}": sum(counts.values())}
                yield f"{ours}norms.{number}.{name}", {key: torch.Size([count]) for key, count in counts.items()}


def _has_norms(transformer: SE3Transformer) -> bool:
    return any(isinstance(norm, NormSE3) for norm in transformer.norms)
