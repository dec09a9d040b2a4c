"""The loop around NVIDIA's network makes the published step: groups normalised apart, their gradients averaged."""

from argparse import Namespace

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from benchmarks.moflow_original import noise
from benchmarks.moflow_original_training import Batch, Training, shares
from src.models.moflow.network import MoFlow
from tests.support.tiny_moflow import make_molecules, make_network

GROUP, GROUPS = 8, 3
ASKED = Namespace(lr=1e-2, precision="tf32", group=GROUP, network="ours")


class Small:
    """A small network in the loop, with given noise."""

    def __init__(self, network: MoFlow) -> None:
        self.modules = network
        self.network, self.drawn = network, list[Tensor]()
        self.clipped = [value for name, value in network.named_parameters() if name != "ln_var"]
        self.ln_var = network.ln_var

    def bits(self, batch: Batch, graph: bool) -> Tensor:
        with noise(self.drawn.pop(0), self.drawn.pop(0)):
            return torch.stack(self.network.bits_per_dim(self.network(*batch)))


def test_a_step_in_groups_is_the_step_of_a_whole_batch_normalised_in_groups() -> None:
    batch = make_molecules(GROUPS * GROUP)
    whole, parts, first = make_network(norm_batch=GROUP), make_network(), make_network()
    parts.load_state_dict(whole.state_dict())
    drawn = [torch.rand_like(tensor) for tensor in whole.one_hot(*batch)]
    small = Small(parts)
    small.drawn = [tensor[GROUP * part : GROUP * (part + 1)] for part in range(GROUPS) for tensor in drawn]
    before = {name: value.clone() for name, value in parts.state_dict().items()}
    training = Training(small, ASKED, torch.device("cpu"), world=1)  # type: ignore[arg-type]
    bits = training.gradients(batch)

    with noise(*drawn):
        expected = torch.stack(whole.bits_per_dim(whole(*batch)))
    expected.sum().backward()
    for name, grad in zip(dict(parts.named_parameters()), training.grads, strict=True):
        torch.testing.assert_close(grad, dict(whole.named_parameters())[name].grad)  # Adam would hide a factor
    parts.load_state_dict(before)
    small.drawn = [tensor[GROUP * part : GROUP * (part + 1)] for part in range(GROUPS) for tensor in drawn]
    training(batch)
    clip_grad_norm_([value for name, value in whole.named_parameters() if name != "ln_var"], 1.0)
    torch.optim.Adam(whole.parameters(), 1e-2, betas=(0.9, 0.99)).step()
    torch.testing.assert_close(bits, expected.detach())
    trained = dict(whole.named_parameters())
    assert any(not torch.equal(before[name], value) for name, value in trained.items())
    for name, value in parts.named_parameters():
        torch.testing.assert_close(value, trained[name], msg=lambda text, name=name: f"{name}: {text}")

    first.load_state_dict(before)
    with noise(*(tensor[:GROUP] for tensor in drawn)):
        first(*(tensor[:GROUP] for tensor in batch))
    for name, value in first.named_buffers():
        torch.testing.assert_close(dict(parts.named_buffers())[name], value)  # rank 0's first group alone


def test_ranks_share_whole_batches_and_drop_the_rest() -> None:
    nodes, edges = torch.arange(23)[:, None], torch.arange(23)[:, None, None]
    of_ranks = [list(shares(torch.arange(23), nodes, edges, 8, rank, 2)) for rank in range(2)]
    assert [len(batches) for batches in of_ranks] == [2, 2]
    taken = torch.cat([batch[0].flatten() for batches in of_ranks for batch in batches])
    assert sorted(taken.tolist()) == list(range(16))
