"""MoFlow's two normalisations: ActNorm, initialised from the first batch, and BatchNorm, which can run on one row."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, distributed, nn
from torch.nn import functional as F

BATCH_NORM_MOMENTUM = 0.1
BATCH_NORM_EPS = 1e-5


class ActNorm(nn.Module):
    """y = scale (v + loc) per channel; the identity until `initialize_alike` is called.

    `shape` is the parameters' shape as it broadcasts against the values: (channels,) where channels come last,
    (channels, 1) where one more dimension follows.
    """

    initialized: Bool[Tensor, ""]

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(shape))
        self.scale = nn.Parameter(torch.ones(shape))
        self.register_buffer("initialized", torch.tensor(False))

    def forward(self, v: Float[Tensor, "batch *sample"]) -> tuple[Float[Tensor, "batch *sample"], Float[Tensor, ""]]:
        """Returns the normalised values and the log-determinant, which is the same for every sample."""
        elements_per_channel = math.prod(v.shape[1:]) // self.loc.numel()
        return self.scale * (v + self.loc), elements_per_channel * self.scale.abs().log().sum()

    def reverse(self, y: Float[Tensor, "batch *sample"]) -> Float[Tensor, "batch *sample"]:
        """Inverts `forward`."""
        return y / self.scale - self.loc

    def reduced(self, v: Float[Tensor, "batch *sample"]) -> list[int]:
        """Returns the dimensions of the values over which a channel is normalised."""
        shape = (1,) * (v.dim() - self.loc.dim()) + tuple(self.loc.shape)
        return [dim for dim, size in enumerate(shape) if size == 1]

    @torch.no_grad()
    def start_from(self, mean: Float[Tensor, " channels"], std: Float[Tensor, " channels"]) -> None:
        """Sets loc and scale so that channels of these means and standard deviations get mean 0 and 1."""
        self.loc.copy_(-mean.view_as(self.loc))
        self.scale.copy_(1 / (std + 1e-6).view_as(self.scale))
        self.initialized.fill_(True)


@torch.no_grad()
def initialize_alike(norms: Sequence[ActNorm], values: Sequence[Float[Tensor, "batch *sample"]]) -> None:
    """Initialises the same ActNorm of several networks, each of which has values of its own, on all ranks.

    All get the mean of the networks' means and the mean of their standard deviations, as NVIDIA's devices do. Every
    rank must bring as many networks.
    """
    moments = [torch.stack(torch.std_mean(v.double(), norm.reduced(v))) for norm, v in zip(norms, values, strict=True)]
    both = torch.stack(moments).mean(0)
    if distributed.is_available() and distributed.is_initialized():
        both /= distributed.get_world_size()
        distributed.all_reduce(both)
    std, mean = both
    for norm in norms:
        norm.start_from(mean, std)


class BatchNorm(nn.Module):
    """torch's BatchNorm over dimension 1 with default settings, for any number of dimensions.

    It can run on a single channel, which the fast atom step needs. It does not count batches: the momentum is fixed,
    and counting would cost one more kernel per layer. With `group`, a training batch is normalised in parts of that
    many rows of dimension 0, as if each were on a device of its own; the running statistics take the parts' mean.
    `kept_statistics` says what `keeps` and `reuses` are for.
    """

    running_mean: Float[Tensor, " channels"]
    running_var: Float[Tensor, " channels"]

    def __init__(self, num_channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(num_channels))
        self.bias = nn.Parameter(torch.zeros(num_channels))
        self.register_buffer("running_mean", torch.zeros(num_channels))
        self.register_buffer("running_var", torch.ones(num_channels))
        self.group: int | None = None
        self.keeps = self.reuses = False
        self.kept_mean: Tensor | None = None
        self.kept_var: Tensor | None = None
        self.kept_matrices: Sequence[Tensor] = ()  # of the convolutions around this layer and the next ones, if fast

    def forward(
        self, values: Float[Tensor, "batch channels *features"], row: Int64[Tensor, " 1"] | None = None
    ) -> Float[Tensor, "batch channels *features"]:
        """Returns normalised values. With `row` that channel alone is updated; `values` may hold no other."""
        weight, bias, mean, var = self.weight, self.bias, self.running_mean, self.running_var
        if self.reuses:
            assert self.kept_mean is not None and self.kept_var is not None
            mean, var = self.kept_mean, self.kept_var
        alone = row is not None and values.shape[1] == 1
        if row is not None and alone:
            weight, bias = weight.index_select(0, row), bias.index_select(0, row)
            if len(mean) > 1:  # a training forward with a row has kept that row's statistics alone
                mean, var = mean.index_select(0, row), var.index_select(0, row)
        elif row is not None:
            mean, var = mean.clone(), var.clone()
        if self.reuses:
            return normalised_with(values, mean, var, weight, bias)
        if self.training and self.group is not None and len(values) > self.group:
            normalised, batch_mean, batch_var = grouped_batch_norm(values, self.group, mean, var, weight, bias)
            if self.keeps:
                self.kept_mean, self.kept_var = batch_mean, batch_var
        elif self.training and self.keeps:
            self.kept_mean, self.kept_var = moments(values.to(weight.dtype))
            normalised = normalised_with(values, self.kept_mean, self.kept_var, weight, bias)
            update_running(mean, var, self.kept_mean, self.kept_var, values.numel() // values.shape[1])
        else:
            how = (self.training, BATCH_NORM_MOMENTUM, BATCH_NORM_EPS)
            normalised = F.batch_norm(values, mean, var, weight, bias, *how)
        if row is not None and self.training:
            own_mean, own_var = (mean, var) if alone else (mean.index_select(0, row), var.index_select(0, row))
            self.running_mean.index_copy_(0, row, own_mean)
            self.running_var.index_copy_(0, row, own_var)
        return normalised


def grouped_batch_norm(
    values: Float[Tensor, "batch channels *features"],
    group: int,
    running_mean: Float[Tensor, " channels"],
    running_var: Float[Tensor, " channels"],
    weight: Float[Tensor, " channels"],
    bias: Float[Tensor, " channels"],
) -> tuple[Float[Tensor, "batch channels *features"], Float[Tensor, " channels"], Float[Tensor, " channels"]]:
    """Returns values normalised in groups of `group` rows, and the groups' mean of their means and biased variances.

    Moves the running statistics to the latter, with unbiased variances.
    """
    groups = values.to(weight.dtype).unflatten(0, (-1, group))
    dims = [dim for dim in range(groups.dim()) if dim not in (0, 2)]
    variance, mean = torch.var_mean(groups, dims, correction=0, keepdim=True)
    per_channel = (1, 1, -1) + (1,) * (groups.dim() - 3)
    scale = torch.rsqrt(variance + BATCH_NORM_EPS) * weight.view(per_channel)
    normalised = (groups - mean) * scale + bias.view(per_channel)
    batch_mean, batch_var = mean.mean(0).flatten(), variance.mean(0).flatten()
    update_running(running_mean, running_var, batch_mean, batch_var, groups[0].numel() // groups.shape[2])
    return normalised.flatten(0, 1).to(values.dtype), batch_mean, batch_var


def moments(values: Float[Tensor, "batch channels *features"]) -> tuple[Float[Tensor, " channels"], ...]:
    """Returns mean and biased variance of every channel."""
    dims = [dim for dim in range(values.dim()) if dim != 1]
    variance, mean = torch.var_mean(values, dims, correction=0)
    return mean, variance


@torch.no_grad()
def update_running(
    running_mean: Float[Tensor, " channels"],
    running_var: Float[Tensor, " channels"],
    batch_mean: Float[Tensor, " channels"],
    batch_var: Float[Tensor, " channels"],
    count: int,
) -> None:
    """Moves running statistics towards those of `count` values, with the unbiased variance."""
    running_mean.lerp_(batch_mean, BATCH_NORM_MOMENTUM)
    running_var.lerp_(batch_var * (count / (count - 1)), BATCH_NORM_MOMENTUM)


def normalised_with(
    values: Float[Tensor, "batch channels *features"],
    mean: Float[Tensor, " channels"],
    var: Float[Tensor, " channels"],
    weight: Float[Tensor, " channels"],
    bias: Float[Tensor, " channels"],
) -> Float[Tensor, "batch channels *features"]:
    """Returns values normalised with given statistics, to which gradients go too."""
    scale = weight * torch.rsqrt(var + BATCH_NORM_EPS)
    per_channel = (1, -1) + (1,) * (values.dim() - 2)
    return ((values - mean.view(per_channel)) * scale.view(per_channel) + bias.view(per_channel)).to(values.dtype)


@contextmanager
def batch_norms_with(network: nn.Module, flag: str) -> Iterator[list[BatchNorm]]:
    """Sets a flag of every BatchNorm of `network` while it is open; yields them."""
    layers = [module for module in network.modules() if isinstance(module, BatchNorm)]
    for layer in layers:
        setattr(layer, flag, True)
    try:
        yield layers
    finally:
        for layer in layers:
            setattr(layer, flag, False)


@contextmanager
def kept_statistics(network: nn.Module) -> Iterator[None]:
    """Lets every BatchNorm of `network` keep a training batch's statistics and their graph, for `reused_statistics`."""
    with batch_norms_with(network, "keeps") as layers:
        try:
            yield
        finally:
            for layer in layers:
                layer.kept_mean = layer.kept_var = None
                layer.kept_matrices = ()


@contextmanager
def reused_statistics(network: nn.Module) -> Iterator[None]:
    """Makes every BatchNorm of `network` normalise with the statistics that it kept.

    So the flow runs backwards exactly as it ran forwards. The running statistics would not do to train on: they follow
    the weights some steps later, and a loss can be lowered in that time that rises again when they have followed.
    """
    with batch_norms_with(network, "reuses"):
        yield
