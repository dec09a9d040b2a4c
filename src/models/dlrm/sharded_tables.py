"""One rank's share of the tables inside TorchRec: look up, exchange, update. Import it when TorchRec is wanted."""

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
from src.models.dlrm.sharded_pieces import Piece, initialise, pieces
from src.models.dlrm.sharded_plan import Placement, Plan, Rule, bag_name, bags, quiet


class Found(NamedTuple):
    """What a rank has looked up for the samples of all ranks."""

    context: Any  # TorchRec's of this batch
    features: Any  # the ids that it was asked for
    pooled: list[Tensor]  # for each kind of sharding, with the autograd graph whose backward is FBGEMM's update
    sent: list[Tensor]  # the same as leaves, in the dtype that travels; `grad` is what came back


class RankTables:
    """TorchRec's sharded tables of this rank, initialised. Every rank makes them, and calls what they have.

    Args:
        seed: the same on all ranks.
        watched: gives what becomes 1 where one of this rank's gradients overflows, if somebody looks at them all.
    """

    def __init__(
        self, plan: Plan, dim: int, optimizer: Rule, eps: float, device: torch.device, seed: int,
        watched: Callable[[], Tensor | None],
    ) -> None:  # fmt: skip
        self.plan, self.dim, self.optimizer, self.eps, self.device = plan, dim, optimizer, eps, device
        self.collection = make_collection(plan, dim, optimizer, eps, device)
        self.waiting, self.watched = Waiting(device), watched
        self.pending: list[Found] = []
        self.inputs: dict[int, dict[str, Any]] = {}  # lengths and offsets by size of batch
        self.order: tuple[Tensor, Tensor] | None = None
        for number in range(len(plan)):
            for piece in self.weights(number):
                initialise(piece, self.shape(number), (seed, number))
        # FBGEMM's data parallel tables have an ordinary gradient and no optimiser.
        copies = [number for number, placement in enumerate(plan) if placement.sharding == "data_parallel"]
        self.copies = {number: self.weights(number)[0].values for number in copies}
        adagrad = optimizer == "adagrad"
        self.copied_squares = {n: torch.zeros_like(values) for n, values in self.copies.items() if adagrad}

    def shape(self, number: int) -> tuple[int, int]:
        return self.plan[number].table.cardinality, self.dim

    def weights(self, number: int) -> list[Piece]:
        """This rank's parts of a table."""
        return pieces(self.collection.state_dict()[f"embedding_bags.{bag_name(number)}.weight"])

    def squares(self, number: int) -> list[Piece]:
        """This rank's parts of what Adagrad has accumulated for a table."""
        if number in self.copied_squares:
            return pieces(self.copied_squares[number])
        states: Any = self.collection.fused_optimizer.state_dict()["state"]
        own = states.get(f"embedding_bags.{bag_name(number)}.weight", {})
        return pieces(own[f"{bag_name(number)}.momentum1"]) if own else []

    def begin(
        self, ids: Int32[Tensor, " ids"], batch: int, dtype: torch.dtype
    ) -> Callable[[], Float[Tensor, "{batch} tables {self.dim}"]]:
        """Looks up and exchanges. What it returns gives this rank's vectors, whose backward leaves gradients here."""
        found = self.look_up(ids, batch, dtype)
        if torch.is_grad_enabled():
            with self.waiting():
                vectors = self.delivered(found, batch)
            vectors.register_hook(lambda _: self.pending.append(found))  # only what has a gradient is pending
        else:
            vectors = self.delivered(found, batch)
        return lambda: vectors

    def targets(self) -> None:
        """TorchRec sends the gradients itself; see `Embeddings.targets`."""

    def look_up(self, ids: Int32[Tensor, " ids"], batch: int, dtype: torch.dtype) -> Found:
        """Sends the ids to the ranks that hold their rows, which look them up."""
        context = self.collection.create_context()
        features = self.collection.input_dist(context, self.features(ids, batch)).wait().wait()
        pooled = self.collection.compute(context, features)
        sent = [found.detach().to(dtype).requires_grad_(torch.is_grad_enabled()) for found in pooled]
        return Found(context, features, pooled, sent)

    def delivered(self, found: Found, batch: int) -> Float[Tensor, "{batch} tables {self.dim}"]:
        """What the ranks found for this rank's samples. Its backward leaves the gradients in `found.sent`."""
        received = self.collection.output_dist(found.context, found.sent).wait()
        vectors = received.values().view(batch, len(self.plan), self.dim)
        if self.order is None:
            names = received.keys()
            order = torch.tensor([names.index(bag_name(i)) for i in range(len(self.plan))], device=self.device)
            self.order = order, order.argsort()
        return Permuted.apply(vectors, *self.order)  # type: ignore[return-value]

    def features(self, ids: Int32[Tensor, " ids"], batch: int) -> KeyedJaggedTensor:
        """TorchRec's form of the ids, with sizes that the host knows already."""
        if batch not in self.inputs:
            hotness = [placement.table.hotness for placement in self.plan]
            lengths = torch.tensor(hotness, dtype=torch.int32, device=self.device).repeat_interleave(batch)
            per_key = [batch * own for own in hotness]
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
        """1 where a pending gradient of any rank is infinite or NaN, otherwise 0."""
        flag = self.watched()
        if flag is None:
            gradients = [gradient for found in self.pending for gradient in gradients_of(found)]
            finite = [gradient.isfinite().all() for gradient in gradients]
            flag = 1 - torch.stack(finite).all().float() if finite else torch.zeros((), device=self.device)
        flag = flag.clone()
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        return flag

    def update(self, rate: Tensor, found_inf: Tensor | None, loss_scale: Tensor | None) -> None:
        """One optimiser step; see `Embeddings.update`. Adagrad's arguments are read by the host."""
        pending, self.pending = self.pending, []
        # The rate goes into the gradient where the rule is linear: it stays on the device.
        factor, host_rate = rate, 1.0
        if self.optimizer == "adagrad":
            scale = torch.ones_like(rate) if loss_scale is None else loss_scale
            factor, host_rate = 1 / scale, float(rate * scale)
        for found in pending:
            gradients = [gradient.float() * factor for gradient in gradients_of(found)]
            if found_inf is not None:  # an infinite one times a rate of 0 would be NaN
                gradients = [gradient.masked_fill_(found_inf != 0, 0) for gradient in gradients]
            self._apply(found, gradients, host_rate)

    def _apply(self, found: Found, gradients: list[Tensor], rate: float) -> None:
        """One optimiser step with the gradients of what was found, in float32."""
        pooled = found.pooled
        if self.optimizer == "adagrad":
            # FBGEMM takes the learning rate of an update at the lookup, and that was before it was known.
            optimizer: Any = self.collection.fused_optimizer
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            with torch.enable_grad():
                pooled = self.collection.compute(found.context, found.features)
        torch.autograd.backward(pooled, gradients)
        for number, values in self.copies.items():
            gradient: Any = self.collection.embedding_bags[bag_name(number)].weight.grad
            if self.optimizer == "adagrad":
                squares = self.copied_squares[number].addcmul_(gradient, gradient)
                values.addcdiv_(gradient, squares.sqrt().add_(self.eps), value=-rate)
            else:
                values.sub_(gradient, alpha=rate)
        for number in self.copies:  # only now: they are parts of one tensor, and so are their gradients
            weight: Any = self.collection.embedding_bags[bag_name(number)].weight
            weight.grad = None


def gradients_of(found: Found) -> list[Tensor]:
    """What came back for each lookup; zeros where no sample of this rank's rows had a part in the loss."""
    return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in found.sent]


class Permuted(torch.autograd.Function):
    """Tables in another order; backward gathers, where index_select's own would add with atomics."""

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
    """TorchRec's sharded module for the plan, with its optimiser in FBGEMM's backward; weights are not set."""
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
    """TorchRec's maker of a placement. Its fused kernel is the one with the optimiser in its backward."""
    if placement.sharding == "data_parallel":
        return torchrec_plan.data_parallel()
    if placement.sharding == "row_wise":
        return torchrec_plan.row_wise(compute_kernel="fused")
    if placement.sharding == "column_wise":
        return torchrec_plan.column_wise(ranks=list(placement.ranks), compute_kernel="fused")
    return torchrec_plan.table_wise(rank=placement.ranks[0], compute_kernel="fused")
