"""One rank's embedding tables in TorchRec: lookup, exchange, update. Importing it imports TorchRec."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from jaxtyping import Float, Int32
from torch import Tensor, distributed
from torchrec.distributed import sharding_plan as torchrec_plan
from torchrec.distributed.comm import get_local_size
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from src.gpu.waiting import Waiting
from src.models.dlrm.pieces import Piece, Start, initialise
from src.models.dlrm.sharded_pieces import pieces
from src.models.dlrm.sharded_plan import Placement, Plan, Rule, bag_name, bags, quiet


class Lookup(NamedTuple):
    """One rank's lookup for the samples of all ranks."""

    context: Any  # TorchRec's context of this batch
    features: Any  # all ranks' ids of this rank's rows
    pooled: list[Tensor]  # one per kind of sharding, with the autograd graph whose backward is FBGEMM's update
    sent: list[Tensor]  # `pooled` as leaves, in the dtype of the exchange; their `grad` comes from all ranks


class TorchRecTables:
    """TorchRec's sharded tables of this rank, initialised. All ranks construct it and call its methods in order.

    Args: as of `TableWiseTables`.
    """

    def __init__(
        self, plan: Plan, dim: int, optimizer: Rule, eps: float, device: torch.device, start: Start,
        kernel_overflow: Callable[[], Tensor | None],
    ) -> None:  # fmt: skip
        self.plan, self.dim, self.optimizer, self.eps, self.device = plan, dim, optimizer, eps, device
        self.collection = make_collection(plan, dim, optimizer, eps, device)
        self.waiting, self.kernel_overflow = Waiting(device), kernel_overflow
        self.pending: list[Lookup] = []
        self.inputs: dict[int, dict[str, Any]] = {}  # lengths and offsets by batch size
        self.order: tuple[Tensor, Tensor] | None = None
        for number in range(len(plan)):
            for piece in self.weights(number):
                initialise(piece, self.shape(number), start, number)
        # FBGEMM's data parallel tables have an ordinary gradient and no optimiser.
        replicated = [number for number, placement in enumerate(plan) if placement.sharding == "data_parallel"]
        self.replicas = {number: self.weights(number)[0].values for number in replicated}
        adagrad = optimizer == "adagrad"
        self.replica_squares = {n: torch.zeros_like(values) for n, values in self.replicas.items() if adagrad}

    def shape(self, number: int) -> tuple[int, int]:
        return self.plan[number].table.cardinality, self.dim

    def weights(self, number: int) -> list[Piece]:
        """Returns this rank's parts of a table."""
        return pieces(self.collection.state_dict()[f"embedding_bags.{bag_name(number)}.weight"])

    def squares(self, number: int) -> list[Piece]:
        """Returns this rank's parts of a table's squares accumulated by Adagrad."""
        if number in self.replica_squares:
            return pieces(self.replica_squares[number])
        states: Any = self.collection.fused_optimizer.state_dict()["state"]
        state = states.get(f"embedding_bags.{bag_name(number)}.weight", {})
        return pieces(state[f"{bag_name(number)}.momentum1"]) if state else []

    def start_lookup(
        self, ids: Int32[Tensor, " ids"], batch: int, dtype: torch.dtype
    ) -> Callable[[], Float[Tensor, "{batch} tables {self.dim}"]]:
        """Looks up and exchanges; returns a function that returns this rank's vectors.

        Their backward pass appends to `pending`.
        """
        lookup = self.look_up(ids, batch, dtype)
        if torch.is_grad_enabled():
            with self.waiting():
                vectors = self.exchanged_vectors(lookup, batch)
            vectors.register_hook(lambda _: self.pending.append(lookup))  # only if the vectors get a gradient
        else:
            vectors = self.exchanged_vectors(lookup, batch)
        return lambda: vectors

    def gradient_slots(self) -> None:
        """TorchRec sends the gradients itself; see `Embeddings.gradient_slots`."""

    def look_up(self, ids: Int32[Tensor, " ids"], batch: int, dtype: torch.dtype) -> Lookup:
        """Sends ids to the ranks that hold their rows, and looks up the ids received."""
        context = self.collection.create_context()
        features = self.collection.input_dist(context, self.features(ids, batch)).wait().wait()
        pooled = self.collection.compute(context, features)
        sent = [part.detach().to(dtype).requires_grad_(torch.is_grad_enabled()) for part in pooled]
        return Lookup(context, features, pooled, sent)

    def exchanged_vectors(self, lookup: Lookup, batch: int) -> Float[Tensor, "{batch} tables {self.dim}"]:
        """Returns the vectors of this rank's samples. The backward pass sets the gradients of `lookup.sent`."""
        received = self.collection.output_dist(lookup.context, lookup.sent).wait()
        vectors = received.values().view(batch, len(self.plan), self.dim)
        if self.order is None:
            names = received.keys()
            order = torch.tensor([names.index(bag_name(i)) for i in range(len(self.plan))], device=self.device)
            self.order = order, order.argsort()
        return Permuted.apply(vectors, *self.order)  # type: ignore[return-value]

    def features(self, ids: Int32[Tensor, " ids"], batch: int) -> KeyedJaggedTensor:
        """Returns the ids as TorchRec's KeyedJaggedTensor, with all sizes given, so that the host reads none."""
        if batch not in self.inputs:
            hotness = [placement.table.hotness for placement in self.plan]
            lengths = torch.tensor(hotness, dtype=torch.int32, device=self.device).repeat_interleave(batch)
            per_key = [batch * num_ids for num_ids in hotness]
            self.inputs[batch] = {
                "keys": [bag_name(number) for number in range(len(self.plan))],
                "lengths": lengths,
                "offsets": torch.cat([lengths.new_zeros(1), lengths.cumsum(0, dtype=torch.int32)]),
                "stride": batch,
                "length_per_key": per_key,
                "offset_per_key": [sum(per_key[:i]) for i in range(len(per_key) + 1)],
            }
        return KeyedJaggedTensor(values=ids, **self.inputs[batch])

    def overflowed(self) -> Float[Tensor, ""]:
        """Returns 1 if a pending gradient of any rank is infinite or NaN, otherwise 0."""
        flag = self.kernel_overflow()
        if flag is None:
            gradients = [gradient for lookup in self.pending for gradient in gradients_of(lookup)]
            finite = [gradient.isfinite().all() for gradient in gradients]
            flag = 1 - torch.stack(finite).all().float() if finite else torch.zeros((), device=self.device)
        flag = flag.clone()
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        return flag

    def update(self, rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor | None) -> None:
        """Takes one optimiser step; see `Embeddings.update`. With Adagrad the host reads the arguments."""
        pending, self.pending = self.pending, []
        # SGD is linear in the gradient, so the rate is multiplied into it and stays on the device.
        factor, host_rate = rate, 1.0
        if self.optimizer == "adagrad":
            scale = torch.ones_like(rate) if loss_scale is None else loss_scale
            factor, host_rate = 1 / scale, float(rate * scale)
        for lookup in pending:
            gradients = [gradient.float() * factor for gradient in gradients_of(lookup)]
            if found_inf is not None:  # inf times a rate of 0 would be NaN
                gradients = [gradient.masked_fill_(found_inf != 0, 0) for gradient in gradients]
            self._apply(lookup, gradients, host_rate)

    def _apply(self, lookup: Lookup, gradients: list[Tensor], rate: float) -> None:
        """Takes one optimiser step with the float32 gradients of `lookup.pooled`."""
        pooled = lookup.pooled
        if self.optimizer == "adagrad":
            # FBGEMM takes an update's learning rate at the lookup, so look up again now that the rate is known.
            optimizer: Any = self.collection.fused_optimizer
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            with torch.enable_grad():
                pooled = self.collection.compute(lookup.context, lookup.features)
        torch.autograd.backward(pooled, gradients)
        for number, values in self.replicas.items():
            gradient: Any = self.collection.embedding_bags[bag_name(number)].weight.grad
            if self.optimizer == "adagrad":
                squares = self.replica_squares[number].addcmul_(gradient, gradient)
                values.addcdiv_(gradient, squares.sqrt().add_(self.eps), value=-rate)
            else:
                values.sub_(gradient, alpha=rate)
        for number in self.replicas:  # after all updates: the gradients are views of one tensor
            weight: Any = self.collection.embedding_bags[bag_name(number)].weight
            weight.grad = None


def gradients_of(lookup: Lookup) -> list[Tensor]:
    """Returns the gradients of `lookup.sent`; zeros where it has none."""
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in lookup.sent]


class Permuted(torch.autograd.Function):
    """Reorders tables; its backward pass gathers, while that of index_select adds with atomics."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return vectors.index_select(1, order)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0].index_select(1, *ctx.saved_tensors), None, None


@quiet()
def make_collection(
    plan: Plan, dim: int, optimizer: Rule, eps: float, device: torch.device
) -> ShardedEmbeddingBagCollection:
    """Returns TorchRec's sharded module for the plan, with the optimiser in FBGEMM's backward and weights unset."""
    group, world_size = distributed.group.WORLD, distributed.get_world_size()
    assert group is not None
    collection = bags([placement.table for placement in plan], dim)
    kind = EmbOptimType.EXACT_SGD if optimizer == "sgd" else EmbOptimType.EXACT_ADAGRAD
    parameters = torchrec_plan.construct_module_sharding_plan(
        collection,
        {bag_name(number): generator(placement) for number, placement in enumerate(plan)},
        local_size=get_local_size(world_size),
        world_size=world_size,
        device_type=device.type,
    )
    sharder = EmbeddingBagCollectionSharder({"optimizer": kind, "learning_rate": 1.0, "eps": eps})
    return sharder.shard(collection, parameters, ShardingEnv.from_process_group(group), device)  # type: ignore[return-value]


def generator(placement: Placement) -> Any:
    """Returns TorchRec's sharding generator. The fused kernel has the optimiser in its backward."""
    if placement.sharding == "data_parallel":
        return torchrec_plan.data_parallel()
    if placement.sharding == "row_wise":
        return torchrec_plan.row_wise(compute_kernel="fused")
    if placement.sharding == "column_wise":
        return torchrec_plan.column_wise(ranks=list(placement.ranks), compute_kernel="fused")
    return torchrec_plan.table_wise(rank=placement.ranks[0], compute_kernel="fused")
