"""A literal evaluation of NVIDIA's SE(3)-Transformer from its state_dict-Transformer section 2).

Features are {degree: [rows, channels, 2 degree + 1]}; attention is a loop over nodes. The Wigner 3j symbols are those
of e3nn 0.3.3, as in NVIDIA's code, unless others are passed.
"""

import math
import re

import torch
from e3nn import o3
from torch import Tensor
from torch.nn import functional as F

from src.batches.molecular_graphs import Graph
from tests.support.se3_small import ByDegree
from tests.support.se3_symbols import Symbols, of_e3nn_0_3_3

State = dict[str, Tensor]


def basis(rel_pos: Tensor, d_in: int, d_out: int, symbols: Symbols) -> Tensor:
    """Returns the angular basis [edges, component in, J, component out]."""
    columns = []
    for j in range(abs(d_in - d_out), d_in + d_out + 1):
        harmonics = o3.spherical_harmonics(j, rel_pos, normalize=True)
        columns.append(torch.einsum("mlk,em->elk", symbols(j, d_in, d_out).to(rel_pos.dtype), harmonics))
    return torch.stack(columns, 2)


def below(state: State, prefix: str) -> State:
    """Returns the entries whose keys begin with the prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def radial(net: State, scalars: Tensor) -> Tensor:
    """Evaluates an MLP by the module numbers in its keys; modules with a vector as weight are layer norms."""
    numbers = sorted({int(key.split(".")[0]) for key in net})
    for number in numbers[:-1]:
        weight, bias = net[f"{number}.weight"], net[f"{number}.bias"]
        if weight.dim() == 2:
            scalars = F.linear(scalars, weight, bias)
        else:
            scalars = F.layer_norm(scalars, weight.shape, weight, bias)
        if f"{number + 1}.weight" not in net:
            scalars = scalars.relu()
    return scalars @ net[f"{numbers[-1]}.weight"].T


def conv(
    state: State,
    nodes: ByDegree,
    edges: ByDegree,
    graph: Graph,
    fiber_out: dict[int, int],
    symbols: Symbols = of_e3nn_0_3_3,
) -> ByDegree:
    """Returns the messages of a convolution for each edge, with self-interaction if `state` has any."""
    rel_pos = graph.positions[graph.dst] - graph.positions[graph.src]
    scalars = torch.cat([*[edges[d].flatten(1) for d in edges if d == 0], rel_pos.norm(dim=1, keepdim=True)], 1)
    features = {d: torch.cat([x[graph.src], *[edges[e] for e in edges if e == d > 0]], 1) for d, x in nodes.items()}
    messages: ByDegree = {}
    for name in {key.split(".radial_func")[0] for key in state if ".radial_func" in key}:
        numbers = [int(number) for number in re.findall(r"\d+", name)]
        ins = numbers[:1] if name.startswith("conv_in") or len(numbers) == 2 else sorted(nodes)
        outs = numbers[-1:] if name.startswith("conv_out") or len(numbers) == 2 else sorted(fiber_out)
        weights = radial(below(state, f"{name}.radial_func.net."), scalars)
        weights = weights.unflatten(1, (fiber_out[outs[0]], features[ins[0]].shape[1], -1))
        first = 0
        for d_out in outs:
            for d_in in ins:
                angular = basis(rel_pos, d_in, d_out, symbols)
                if name == "conv.0,0":
                    angular = torch.ones_like(angular)
                part = weights[..., first : first + angular.shape[2]]
                message = torch.einsum("eoif,eil,elfk->eok", part, features[d_in], angular)
                messages[d_out] = messages.get(d_out, 0) + message
                first += angular.shape[2]
    for degree, kernel in below(state, "to_kernel_self.").items():
        messages[int(degree)] = messages[int(degree)] + kernel @ nodes[int(degree)][graph.dst]
    return messages


def attention(value: ByDegree, key: ByDegree, query: ByDegree, graph: Graph, num_heads: int) -> ByDegree:
    def heads(features: ByDegree) -> Tensor:
        return torch.cat([x.reshape(len(x), num_heads, -1) for x in features.values()], 2)

    keys, queries = heads(key), heads(query)
    size = sum(x[0].numel() for x in key.values())
    result = {d: x.new_zeros(len(queries), *x.shape[1:]) for d, x in value.items()}
    for node in range(len(queries)):
        edges = (graph.dst == node).nonzero().flatten()
        if len(edges):
            weights = ((keys[edges] * queries[node]).sum(2) / math.sqrt(size)).softmax(0)
            for degree, x in value.items():
                by_head = x[edges].unflatten(1, (num_heads, -1))
                result[degree][node] = (weights[:, :, None, None] * by_head).sum(0).flatten(0, 1)
    return result


def linear(state: State, features: ByDegree) -> ByDegree:
    return {
        int(key.split(".")[-1]): weight @ features[int(key.split(".")[-1])] for key, weight in sorted(state.items())
    }


def block(state: State, nodes: ByDegree, edges: ByDegree, graph: Graph, num_heads: int, symbols: Symbols) -> ByDegree:
    query = linear(below(state, "to_query."), nodes)
    hidden = {int(key[-1]): weight for key, weight in state.items() if key.startswith("project.")}
    values = {d: weight.shape[1] - (nodes[d].shape[1] if d in nodes else 0) for d, weight in hidden.items()}
    fiber_out = {d: count + (query[d].shape[1] if d in query else 0) for d, count in values.items()}
    messages = conv(below(state, "to_key_value."), nodes, edges, graph, fiber_out, symbols)
    value = {d: messages[d][:, : values[d]] for d in sorted(values)}
    key = {d: messages[d][:, values[d] :] for d in sorted(query)}
    attended = attention(value, key, query, graph, num_heads)
    joined = {d: torch.cat([x, *[nodes[n] for n in nodes if n == d]], 1) for d, x in attended.items()}
    return linear(below(state, "project."), joined)


def norm(state: State, nodes: ByDegree) -> ByDegree:
    result, first = {}, 0
    for degree in sorted(nodes):
        lengths = nodes[degree].norm(dim=2).clamp(min=2**-24)
        columns = slice(first, first := first + lengths.shape[1])
        weight, bias = (state[f"group_norm.{name}"][columns] for name in ("weight", "bias"))
        new = F.layer_norm(lengths, lengths.shape[1:], weight, bias).relu()
        result[degree] = nodes[degree] / lengths[:, :, None] * new[:, :, None]
    return result


def predict(
    state: State,
    graph: Graph,
    nodes: ByDegree,
    edges: ByDegree,
    num_heads: int,
    channels_out: int,
    symbols: Symbols = of_e3nn_0_3_3,
) -> Tensor:
    """Evaluates the pooled network: blocks and norms, a convolution to scalars, the maximum over nodes, two layers."""
    modules = below(state, "transformer.graph_modules.")
    last = max(int(key.split(".")[0]) for key in modules)
    for number in range(last):
        module = below(modules, f"{number}.")
        is_norm = "group_norm.weight" in module
        nodes = norm(module, nodes) if is_norm else block(module, nodes, edges, graph, num_heads, symbols)
    messages = conv(below(modules, f"{last}."), nodes, edges, graph, {0: channels_out}, symbols)[0].squeeze(2)
    summed = messages.new_zeros(len(graph.positions), channels_out).index_add(0, graph.dst, messages)
    pooled = torch.stack([part.amax(0) for part in summed.split(graph.graph_ptr.diff().tolist())])
    hidden = F.linear(pooled, state["mlp.0.weight"], state["mlp.0.bias"]).relu()
    return F.linear(hidden, state["mlp.2.weight"], state["mlp.2.bias"])
