"""DLRM by FBGEMM and TorchRec, and NVIDIA's from the clone that the user names. All rows have one id of each table."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.beside.assignment import Assignment, Prepared
from benchmarks.beside.peers.common import (
    Once,
    batches,
    fused,
    in_graph,
    over,
    remember_loss,
    set_precision,
    training_step,
)
from benchmarks.beside.peers.reference import folder_of, identity, stand_in

DIM, BOTTOM, TOP = 128, [512, 256, 128], [1024, 1024, 512, 256, 1]
LOSS_SCALE, RATE = 65536.0, 1e-3
EXTENSIONS = {
    "fused_embedding": ["pytorch_embedding_ops.cpp", "gather_gpu_fused_pytorch_impl.cu"],
    "interaction_ampere": [
        "dot_based_interact_ampere/pytorch_ops.cpp",
        "dot_based_interact_ampere/dot_based_interact_pytorch_types.cu",
    ],
    "sparse_gather": ["sparse_gather/sparse_pytorch_ops.cpp", "sparse_gather/gather_gpu.cu"],
}
HALF = ["-DCUDA_HAS_FP16=1", "-D__CUDA_NO_HALF_OPERATORS__", "-D__CUDA_NO_HALF_CONVERSIONS__",
        "-D__CUDA_NO_HALF2_OPERATORS__"]  # fmt: skip # as its setup.py has them


def torchrec_training(assignment: Assignment, device: torch.device) -> Prepared:
    """Trains with FBGEMM's table-batched embedding, whose backward pass updates the tables, and TorchRec's layers."""
    from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

    set_precision(assignment.case.precision)
    datamodule, pool = batches(assignment, device)
    tables = [table.cardinality for table in datamodule.layout.tables]
    half = assignment.case.precision == "amp"
    embedding = table_batched(tables, half, device)
    count = len(tables)
    compiled = "compiled" in assignment.variant and device.type == "cuda"
    layers: list[Any] = [
        DenseArch(datamodule.layout.num_numerical, BOTTOM, device),
        InteractionArch(count).to(device),
        OverArch(DIM + count * (count + 1) // 2, TOP, device),
    ]
    bottom, interaction, top = (torch.compile(layer) if compiled else layer for layer in layers)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimizer = torch.optim.SGD(parameters, RATE, **fused(device))
    offsets = torch.arange(count * assignment.batch_size + 1, dtype=torch.int32, device=device)

    def loss(batch: Any) -> Tensor:
        embedded = embedding(batch.ids, offsets).view(-1, count, DIM)
        dense = bottom(batch.numerical)
        logits = top(interaction(dense, embedded.to(dense.dtype)))
        return F.binary_cross_entropy_with_logits(logits.squeeze(-1).float(), batch.labels)

    step = training_step(loss, optimizer, assignment.case.precision, device, scale=LOSS_SCALE)
    graphed = "graph" in assignment.variant
    clicks = [b._replace(numerical=b.numerical.float()) for b in (batch.clicks() for batch in pool)]
    eager = over(step, clicks[:1] if graphed else clicks)
    return Prepared(
        Once(lambda: in_graph(eager, device)) if graphed else eager,
        "casts, loss scaling, SGD of layers and tables; decoded clicks lie on the GPU",
        ["torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "triton"],
        ["FBGEMM's embedding is called without TorchRec's KeyedJaggedTensor, which costs host time"],
    )


def table_batched(tables: list[int], half: bool, device: torch.device) -> Any:
    """Returns FBGEMM's embedding of all tables with fused SGD; its rate takes the loss scale back."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    on_gpu = device.type == "cuda"
    place = EmbeddingLocation.DEVICE if on_gpu else EmbeddingLocation.HOST
    computing = ComputeDevice.CUDA if on_gpu else ComputeDevice.CPU
    embedding = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, DIM, place, computing) for rows in tables],
        optimizer=EmbOptimType.EXACT_SGD,
        learning_rate=RATE / (LOSS_SCALE if half else 1),
        output_dtype=SparseType.FP16 if half and on_gpu else SparseType.FP32,
        device=device,
    )
    embedding.init_embedding_weights_uniform(-0.01, 0.01)
    return embedding


def nvidia(assignment: Assignment, device: torch.device) -> Prepared:
    """Trains as its scripts/main.py does, with its CUDA extensions and its CudaGraphWrapper."""
    folder, amp, on_gpu = folder_of(assignment), assignment.case.precision == "amp", device.type == "cuda"
    set_precision(assignment.case.precision)
    datamodule, pool = batches(assignment, device)
    model = nvidia_model(folder, [table.cardinality for table in datamodule.layout.tables], amp, device)
    from dlrm.scripts.main import CudaGraphWrapper  # pyright: ignore[reportMissingImports]

    layers = [*model.top_model.parameters(), *model.bottom_model.mlp.parameters()]
    of_layers = torch.optim.SGD(layers, RATE, **fused(device))
    of_tables = torch.optim.SGD(model.bottom_model.embeddings.parameters(), RATE)
    scaler = torch.amp.GradScaler(device.type, LOSS_SCALE, growth_interval=10**9, enabled=amp)
    loss_of = nn.BCEWithLogitsLoss()

    def zero_grad(_: Any) -> None:
        for parameter in model.parameters():
            parameter.grad = None

    def forward_backward(network: Any, numerical: Tensor, ids: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.float16, amp):
            loss = loss_of(network(numerical, ids, [assignment.batch_size]).squeeze(), labels)
        scaler.scale(loss).backward()
        return loss

    trainer = CudaGraphWrapper(model, forward_backward, lambda m: m, zero_grad, cuda_graphs=True) if on_gpu else None

    def step(batch: tuple[Tensor, ...]) -> None:
        if trainer is not None:
            trainer.stream.wait_stream(torch.cuda.current_stream())  # in place of its wait for the GPU in each step
            loss = trainer.train_step(*batch)
            torch.cuda.current_stream().wait_stream(trainer.stream)
        else:
            zero_grad(model)
            loss = forward_backward(model, *batch)
        scaler.step(of_layers)
        scaler.unscale_(of_tables)
        of_tables.step()
        scaler.update()
        remember_loss(loss)

    clicks = [batch.clicks() for batch in pool]
    ids = [batch.ids.view(len(datamodule.layout.tables), -1).t().contiguous().long() for batch in clicks]
    ready = [(batch.numerical.float(), batch_ids, batch.labels) for batch, batch_ids in zip(clicks, ids, strict=True)]
    return Prepared(
        over(step, ready),
        "copying the batch into its graph, casts, loss scaling, SGD of layers and tables; clicks lie on the GPU",
        [],
        ["its option of torch's layers in place of apex's, torch's fused SGD in place of apex's",
         "its extensions are compiled for this GPU; its schedule of the learning rate is left out"],
        reference=identity(folder),
    )  # fmt: skip


def nvidia_model(folder: Path, tables: list[int], amp: bool, device: torch.device) -> Any:
    """Returns its network; on a CPU with its own parts of plain torch."""
    on_gpu = device.type == "cuda"
    stand_in(["apex", "apex.optimizers", "apex.mlp", "dllogger"])
    if on_gpu:
        build_extensions(folder)
    else:
        stand_in(["dlrm.cuda_ext", "dlrm.cuda_ext.fused_gather_embedding"])
        torch.Tensor.cuda = lambda self, *_, **__: self
    from dlrm.model.distributed import DistributedDlrm  # pyright: ignore[reportMissingImports]

    return DistributedDlrm(
        num_numerical_features=13, categorical_feature_sizes=tables, bottom_mlp_sizes=BOTTOM, top_mlp_sizes=TOP,
        embedding_dim=DIM, embedding_type="joint_fused" if on_gpu else "joint",
        interaction_op="cuda_dot" if on_gpu else "dot", use_cpp_mlp=False, fp16=amp, device=device.type,
    )  # fmt: skip


def build_extensions(folder: Path) -> None:
    """Compiles its CUDA extensions for this GPU, outside the clone, and makes them importable under its names."""
    from torch.utils.cpp_extension import load

    major, minor = torch.cuda.get_device_capability()
    target = f"arch=compute_{major}{minor},code=sm_{major}{minor}"
    for name, sources in EXTENSIONS.items():
        files = [str(folder / "dlrm/cuda_src" / source) for source in sources]
        flags = [*(HALF if name.startswith("interaction") else []), "-gencode", target]
        built: Any = load(name, files, extra_cuda_cflags=flags)
        sys.modules[f"dlrm.cuda_ext.{name}"] = built
