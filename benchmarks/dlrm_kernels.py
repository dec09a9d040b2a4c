"""Times DLRM's kernels on an NVIDIA GPU: `python -m benchmarks.dlrm_kernels [dcnv2] [BATCH ...]`.

Batches are 65536 if not given. The tables are the published ones (frequency limit 15, 15.6 GiB), or with `dcnv2` those
of DLRM-DCNv2 with 214 ids a sample (104 million rows, 100 GiB with squares), whose kernels are timed in half precision.
Ids and numericals are those of src/datamodules/clicks/synthetic.py.
`backward` is the time of forward and backward together minus forward. A multiply-add counts as 2 floating-point
operations; GB/s use the fewest bytes that a kernel must move.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from src.batches.clicks import ClickLayout, Clicks
from src.datamodules.clicks.synthetic import ClickDistribution, tables_of
from src.measure.replay import device_ms
from src.models.dlrm.embeddings import PlainEmbeddings
from src.models.dlrm.fast import accelerate, interaction
from src.models.dlrm.fast import mlp as mlps
from src.models.dlrm.fast import tables as embeddings
from src.models.dlrm.fast.cross import cross_net
from src.models.dlrm.fast.embeddings import FastEmbeddings
from src.models.dlrm.network import DLRM, CrossNet

DIM = 128
CARDINALITIES = (40000000, 39060, 17295, 7424, 20265, 3, 7122, 1543, 63, 40000000, 3067956, 405282, 10, 2209, 11938,
                 155, 4, 976, 14, 40000000, 40000000, 40000000, 590152, 12973, 108, 36)  # fmt: skip
HOTNESS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
MAX_ROWS = 20_000_000


class Row(NamedTuple):
    """One line of the table; floating-point operations and bytes are those of forward and of backward."""

    name: str
    forward_ms: float
    backward_ms: float | None
    flops: tuple[float, float] | None = None
    bytes: tuple[float, float] | None = None


def main() -> None:
    """Prints one line for each kernel, precision and batch size."""
    torch.set_float32_matmul_precision("high")
    words = sys.argv[1:]
    is_dcnv2 = "dcnv2" in words
    sizes = (CARDINALITIES, HOTNESS, MAX_ROWS) if is_dcnv2 else (None, None, None)
    layout = ClickLayout.of(tables_of(*sizes))
    distribution = ClickDistribution(layout, 0)
    with torch.device("cuda"):
        of_dcnv2 = {"interaction": "dcnv2", "embeddings": partial(PlainEmbeddings, optimizer="adagrad")}
        network = DLRM(layout.tables, **of_dcnv2) if is_dcnv2 else accelerate(DLRM(layout.tables))  # type: ignore[arg-type]
    rows_of = rows_of_dcnv2 if is_dcnv2 else rows
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print("| kernel | numbers | batch | forward ms | backward ms | TFLOP/s | backward | GB/s | backward |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for batch in [int(word) for word in words if word != "dcnv2"] or [65536]:
        sample = distribution.sample(batch, 0, test=False, device=torch.device("cuda"))
        clicks = Clicks(sample.labels.float(), sample.numerical.half(), distribution.table_major(sample.ids))
        for dtype in (torch.float16,) if is_dcnv2 else (torch.float16, torch.float32):
            for row in rows_of(network, clicks, dtype):
                print(f"| {' | '.join(cells(row, dtype, batch))} |", flush=True)


def rows(network: DLRM, clicks: Clicks, dtype: torch.dtype) -> list[Row]:
    """Times the kernels of a training step."""
    batch, tables = len(clicks.labels), network.tables
    weights, size = list(network.embeddings.parameters()), dtype.itemsize
    vectors = batch * len(tables) * DIM
    dense = torch.randn(batch, DIM, device="cuda", dtype=dtype)
    sparse = torch.randn(batch, len(tables), DIM, device="cuda", dtype=dtype)
    gradient, overflow = (
        torch.randn(len(tables), batch, DIM, device="cuda", dtype=dtype),
        torch.zeros((), device="cuda"),
    )
    order = embeddings.row_order(tables, clicks.ids, batch)
    distinct = len(order.keys.unique())
    rule = embeddings.Rule(torch.zeros((), device="cuda"), overflow, torch.ones((), device="cuda"), [], 0.0)

    def update() -> None:
        embeddings.apply(weights, tables, order, gradient.transpose(0, 1), rule)

    measured = [
        Row("look up", device_ms(lambda: embeddings.look_up(weights, tables, clicks.ids, batch, dtype)), None,
            bytes=(vectors * (4 + size), 0)),
        Row("order ids", device_ms(lambda: embeddings.row_order(tables, clicks.ids, batch)), None),
        Row(f"update {distinct} rows", device_ms(update), None,
            bytes=(vectors * size + 8 * DIM * distinct, 0)),
    ]  # fmt: skip
    forward, both = timed(lambda d, s: interaction.dot_features(d, s, overflow), [dense, sparse])
    read, features = (vectors + batch * DIM) * size, batch * network.interaction.num_features * size
    measured.append(Row("dot", forward, both - forward, bytes=(read + features, 2 * read + features)))
    return [*measured, dot_of_rows(network, clicks, dtype), *mlp_rows(network, clicks, dtype),
            *first_layer_rows(network, clicks, dtype)]  # fmt: skip


def dot_of_rows(network: DLRM, clicks: Clicks, dtype: torch.dtype) -> Row:
    """Times the interaction that reads the tables' rows."""
    batch, embeddings = len(clicks.labels), cast(FastEmbeddings, network.embeddings)
    dense = torch.randn(batch, DIM, device="cuda", dtype=dtype)

    def features(dense: Tensor) -> Tensor:
        embeddings.pending.clear()
        return interaction.GatheredFeatures.apply(dense, embeddings, clicks.ids, None, *embeddings.weights)  # type: ignore[return-value]

    forward, both = timed(features, [dense])
    rows, vectors = batch * len(network.tables) * DIM * 4, batch * len(network.tables) * DIM * dtype.itemsize
    narrow = batch * (DIM + network.interaction.num_features) * dtype.itemsize
    return Row("dot of rows", forward, both - forward,
               bytes=(rows + narrow, rows + vectors + narrow + batch * DIM * dtype.itemsize))  # fmt: skip


def mlp_rows(network: DLRM, clicks: Clicks, dtype: torch.dtype) -> list[Row]:
    """Times the MLPs."""
    batch, measured, x = len(clicks.labels), list[Row](), clicks.numerical.to(dtype)
    for name, mlp, inputs in (("bottom MLP", network.bottom, x), ("top MLP", network.top, None)):
        if inputs is None:
            inputs = torch.randn(batch, network.interaction.num_features, device="cuda", dtype=dtype).requires_grad_()
        macs = sum(a * b for a, b in zip(mlp.widths[:-1], mlp.widths[1:], strict=True)) * batch
        unwanted = 0 if inputs.requires_grad else mlp.widths[0] * mlp.widths[1] * batch
        forward, both = timed(lambda x, *p, mlp=mlp: mlps.mlp(x, mlp.logit, *p), [inputs, *parameters(mlp)])
        measured.append(Row(name, forward, both - forward, flops=(2 * macs, 4 * macs - 2 * unwanted)))
    return measured


def first_layer_rows(network: DLRM, clicks: Clicks, dtype: torch.dtype) -> list[Row]:
    """Times the gradients of the bottom MLP's first layer by one kernel, and by a kernel and a product."""
    (inputs, width), batch, x = network.bottom.widths[:2], len(clicks.labels), clicks.numerical.to(dtype)
    x = F.pad(x, (0, -inputs % mlps.ALIGNED))
    grad, activation = (torch.randn(batch, width, device="cuda", dtype=dtype) for _ in range(2))

    def apart() -> None:
        masked, _ = mlps.relu_backward(grad, activation, out=grad)
        mlps.product(masked.t(), x)

    read, written, flops = grad.nbytes + activation.nbytes + x.nbytes, grad.nbytes, 2 * batch * width * inputs
    ways: dict[str, tuple[Callable[[], object], int]] = {"first layer apart": (apart, read + 2 * written)}
    if mlps.is_narrow(x, inputs):
        ways["first layer"] = (lambda: mlps.first_layer_gradients(grad, activation, x, inputs), read)
    return [Row(name, device_ms(way), None, flops=(flops, 0), bytes=(size, 0)) for name, (way, size) in ways.items()]


def rows_of_dcnv2(network: DLRM, clicks: Clicks, dtype: torch.dtype) -> list[Row]:
    """Times the kernels of a training step besides the MLPs."""
    batch, tables, size = len(clicks.labels), network.tables, dtype.itemsize
    own = cast(PlainEmbeddings, network.embeddings)
    weights, squares = list(own.weights), list(own.accumulators.buffers())
    order = embeddings.row_order(tables, clicks.ids, batch)
    distinct = len(order.keys.unique())
    gradient = torch.randn(len(tables), batch, DIM, device="cuda", dtype=dtype)
    zero, one = torch.zeros((), device="cuda"), torch.ones((), device="cuda")
    rule = embeddings.Rule(zero, zero, one, squares, 1e-8)
    vectors = len(tables) * batch * DIM

    def update() -> None:
        embeddings.apply(weights, tables, order, gradient.transpose(0, 1), rule)

    measured = [
        Row("order ids", device_ms(lambda: embeddings.row_order(tables, clicks.ids, batch)), None),
        Row("look up", device_ms(lambda: embeddings.look_up(weights, tables, clicks.ids, batch, dtype, 1)), None,
            bytes=(len(clicks.ids) * DIM * 4 + vectors * size, 0)),
        Row(f"update {distinct} rows", device_ms(update, 4), None,
            bytes=(len(clicks.ids) * DIM * size + 16 * DIM * distinct, 0)),
    ]  # fmt: skip
    layers = cast(CrossNet, network.interaction).layers()
    matrices = [p for down, up in layers for p in (down.weight, up.weight, up.bias)]
    features = torch.randn(batch, 1 + len(tables), DIM, device="cuda", dtype=dtype)
    inputs = [features[:, 0].clone().requires_grad_(), features[:, 1:].requires_grad_(), *matrices]
    forward, both = timed(lambda d, s, *p: cross_net(d, s, zero, None, *p, has_room=True), inputs)
    macs = sum(2 * down.weight.numel() for down, _ in layers) * batch
    measured.append(Row("cross layers", forward, both - forward, flops=(2 * macs, 4 * macs)))
    return measured


def parameters(mlp: Any) -> list[Tensor]:
    return [parameter for layer in mlp.layers for parameter in (layer.weight, layer.bias)]


def timed(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[float, float]:
    """Milliseconds of forward, and of forward and backward together."""
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    if not leaves:
        leaves = [tensor.requires_grad_() for tensor in inputs]
    with torch.no_grad():
        forward = device_ms(lambda: function(*inputs))
        gradient = torch.randn_like(function(*inputs))
    return forward, device_ms(lambda: torch.autograd.grad(function(*inputs), leaves, gradient))


def cells(row: Row, dtype: torch.dtype, batch: int) -> list[str]:
    times = (row.forward_ms, row.backward_ms)
    shown = ["" if ms is None else f"{ms:.3f}" for ms in times]
    for work, unit in ((row.flops, 1e9), (row.bytes, 1e6)):
        shown += [
            f"{amount / ms / unit:.0f}" if ms and amount else ""
            for amount, ms in zip(work or (0, 0), times, strict=True)
        ]
    return [row.name, "half" if dtype == torch.float16 else "TF32", str(batch), *shown]


if __name__ == "__main__":
    main()
