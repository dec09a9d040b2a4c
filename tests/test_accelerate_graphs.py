"""Hugging Face's classifier as graphs of packed tokens, on a CPU: in Triton's interpreter, replays run again."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.acceleration import accelerate, restore
from src.gpu import training_graphs
from src.models.distilbert.fast import hugging_face, packing
from src.models.distilbert.fast.packing import BUCKET, PackedMemory, pack
from tests.support.hugging_face import mask_of, random_sentences
from tests.support.rerun_graphs import rerun_graphs  # noqa: F401
from tests.test_accelerate import classifier


@pytest.fixture
def soon(rerun_graphs: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Lets the first call be the capture, of few tokens."""
    monkeypatch.setattr(packing, "BUCKET", 8)
    monkeypatch.setattr(hugging_face, "SHORTEST", 8)
    monkeypatch.setattr(training_graphs, "WARMUP", 0)


def batch(lengths: list[int], length: int = 9, seed: int = 0) -> dict[str, Tensor]:
    sentences = random_sentences(lengths, length, seed)
    return {"input_ids": sentences.ids.long(), "attention_mask": mask_of(sentences), "labels": sentences.labels}


def replays(model: Any) -> int:
    graphs = training_graphs._of_module.get(model)
    return 0 if graphs is None else graphs.replays


def assert_same_gradients(fast: nn.Module, plain: nn.Module) -> None:
    gradients, wanted = ({n: p.grad for n, p in model.named_parameters()} for model in (fast, plain))
    torch.testing.assert_close(gradients, wanted, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float32])
def test_tokens_are_packed_on_the_device_as_on_the_host(dtype: torch.dtype, rerun_graphs: None) -> None:  # noqa: F811
    ids = torch.randint(1, 90, (5, 2060), generator=torch.Generator().manual_seed(0))
    mask = torch.rand(5, 2060, generator=torch.Generator().manual_seed(1)) < torch.rand(5, 1)
    mask[:, 0] = True
    memory, wanted = PackedMemory(ids.numel(), ids.device), pack(ids, mask)
    assert wanted is not None
    memory.ids.fill_(-7)
    memory.start(ids, mask.to(dtype))
    assert memory.lengths(5) == mask.sum(1).tolist()
    packed, positions, starts = memory.inputs(5, wanted.total)
    assert torch.equal(starts, wanted.starts) and len(packed) == len(wanted.ids)
    assert torch.equal(packed[: wanted.total], wanted.ids[: wanted.total])
    assert torch.equal(positions[: wanted.total], wanted.positions[: wanted.total])
    assert not packed[wanted.total :].any() and not positions[wanted.total :].any()
    mask[3, 0] = False
    memory.start(ids.t().contiguous().t(), mask.to(dtype))
    assert memory.lengths(5)[3] == -1 and min(memory.lengths(5)[:3]) > 0


@pytest.mark.slow
def test_a_batch_of_any_mask_agrees_with_the_plain_model(soon: None) -> None:
    fast, plain = accelerate(classifier()), classifier()
    gaps = batch([7, 3, 5])
    gaps["attention_mask"][0, 2] = 0
    left = batch([7, 3, 5])
    left["attention_mask"] = left["attention_mask"].flip(1)
    unlabelled = {name: x for name, x in batch([2, 9, 4], seed=1).items() if name != "labels"}
    unmasked = {name: x for name, x in batch([9, 9, 9]).items() if name != "attention_mask"}
    # Graphs replay all but the sentences that begin with padding.
    for number, tensors in enumerate([batch([7, 3, 5]), gaps, unlabelled, batch([9, 9, 9]), unmasked, left]):
        for model in (fast, plain):
            model.zero_grad()
        outputs = [model(**tensors) for model in (fast, plain)]
        torch.testing.assert_close(outputs[0].logits, outputs[1].logits, rtol=1e-4, atol=2e-5)
        assert outputs[0].keys() == outputs[1].keys()
        for output in outputs:
            (output.logits.exp().sum() if output.loss is None else output.loss).backward()
        assert_same_gradients(fast, plain)
        assert replays(fast) == min(number + 1, 5)


@pytest.mark.slow
def test_weights_and_batches_that_change_are_read(soon: None) -> None:
    """Each batch has other tokens in the same memory; each step changes the weights in place."""
    models = accelerate(classifier()), classifier()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    for seed, lengths in enumerate([[7, 3, 5], [8, 2, 4], [2, 8, 8], [8, 3, 2]]):
        for model in models:
            model.zero_grad()
            (2 * model(**batch(lengths, seed=seed)).loss).backward()
        assert_same_gradients(*models)
        for optimizer in optimizers:
            optimizer.step()
    assert replays(models[0]) == 4
    pairs = training_graphs._of_module[models[0]].pairs
    assert len(pairs) == 3  # before the problem type is set, of 16 and of 24 tokens


@pytest.mark.slow
def test_passes_between_forward_and_backward_leave_the_packed_tokens(soon: None) -> None:
    """A second forward pass, one without gradients and one in evaluation, of other tokens."""
    fast, plain = accelerate(classifier()), classifier()
    for model in (fast, plain):
        first = model(**batch([7, 3, 5])).loss
        second = model(**batch([2, 9, 4], seed=1)).loss
        with torch.no_grad():
            model(**batch([9, 2, 2], seed=2))
            model.eval()(**batch([1, 2, 3], seed=3))
        model.train()
        (first + second).backward()
    assert_same_gradients(fast, plain)
    assert replays(fast) == 1


@pytest.mark.slow
def test_a_backward_pass_after_its_tokens_are_gone_is_refused(soon: None) -> None:
    model = accelerate(classifier())
    first = model(**batch([7, 3, 5])).loss
    first.backward(retain_graph=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_graphs, "WARMUP", 9)
        model(**batch([7, 3], seed=1))  # runs eagerly, but packs
    with pytest.raises(RuntimeError, match="graphs=False"):
        first.backward()


@pytest.mark.slow
def test_gradients_accumulate_and_are_scaled(soon: None) -> None:
    fast, plain = accelerate(classifier()), classifier()
    for model in (fast, plain):
        for seed in range(3):
            (1024 * model(**batch([7, 3, 5], seed=seed)).loss / 3).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert_same_gradients(fast, plain)


@pytest.mark.slow
def test_in_bfloat16_the_weights_are_cast_before_each_replay(soon: None) -> None:
    models = accelerate(classifier()), accelerate(classifier(), graphs=False)
    for seed in range(2):
        for model in models:
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(**batch([7, 3, 5], seed=seed)).loss
            assert loss.dtype == torch.float32
            loss.backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.01)
        for fast, eager in zip(*(model.parameters() for model in models), strict=True):
            torch.testing.assert_close(fast.grad, eager.grad, rtol=0.02, atol=0.02 * float(eager.grad.abs().max()))
    assert replays(models[0]) == 2 and replays(models[1]) == 0


@pytest.mark.slow
def test_the_heads_hooks_and_other_losses_are_the_plain_models(soon: None) -> None:
    model, calls = accelerate(classifier()), []
    handle = model.classifier.register_forward_hook(lambda *_: calls.append(1))
    model(**batch([7, 3, 5]))
    assert calls == [1] and not replays(model)
    handle.remove()
    values = torch.rand(3, generator=torch.Generator().manual_seed(0))
    fast, plain = (mapped(num_labels=1) for mapped in (lambda **o: accelerate(classifier(**o)), classifier))
    for side in (fast, plain):
        side(**{**batch([7, 3, 5]), "labels": values}).loss.backward()
    assert_same_gradients(fast, plain)
    assert replays(fast) == 1 and fast.config.problem_type == plain.config.problem_type == "regression"
    assert len(fast(**batch([7, 3, 5]), return_dict=False)) == 2
    restore(fast)
    assert fast not in training_graphs._of_module


def test_packing_leaves_room_after_a_full_batch(rerun_graphs: None) -> None:  # noqa: F811
    memory = PackedMemory(6, torch.device("cpu"))
    memory.start(torch.ones(2, 3, dtype=torch.int64), torch.ones(2, 3))
    assert memory.lengths(2) == [3, 3] and F.pad(torch.ones(6), (0, BUCKET)).equal(memory.ids.float())
