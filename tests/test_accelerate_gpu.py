"""Other people's models with fast modules on a GPU, in their own loops: CUDA graphs, accumulation, Trainer, compile."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from src.acceleration import accelerate
from src.gpu import training_graphs
from tests.test_accelerate import BATCH, MASKS, classifier

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def timm_model() -> Any:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("mobilenetv1_100", num_classes=10)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "bn" in name and name.endswith("bias"):
                parameter.add_(1 + torch.randn_like(parameter))  # so that some outputs of ReLU6 reach 6
    return model.cuda().train()


def distilbert() -> Any:
    return nn.Module.cuda(classifier(2))


def loss_of(model: nn.Module, seed: int) -> Tensor:
    """Returns the loss of a random batch."""
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    if hasattr(model, "distilbert"):
        ids = torch.randint(1, 40, (3, 9), generator=generator).cuda()
        mask = MASKS["padded"]
        assert mask is not None
        return model(input_ids=ids, attention_mask=mask.cuda(), labels=BATCH.labels.cuda()).loss
    images = torch.randn(8, 3, 64, 64, generator=generator).cuda().to(dtype)
    return F.cross_entropy(model(images), torch.arange(8, device="cuda"))


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.double() for name, p in model.named_parameters() if p.grad is not None}


def assert_near(fast: nn.Module, plain: nn.Module, exact: nn.Module) -> None:
    """Raises AssertionError where the fast model's gradients or statistics are off by more than plain torch's five."""
    sides = [gradients(m) | {k: b.double() for k, b in m.named_buffers()} for m in (fast, plain, exact)]
    assert sides[0].keys() == sides[1].keys() == sides[2].keys()
    largest = max(float(value.abs().max()) for value in sides[2].values())
    for name, value in sides[2].items():
        errors = [float((side[name] - value).abs().max()) for side in sides[:2]]
        assert errors[0] < 5 * errors[1] + 2e-5 * largest, (name, *errors)


@pytest.mark.parametrize("make", [distilbert, timm_model])
def test_steps_as_graphs_agree_with_float64(make: Any) -> None:
    """Six batches: the first ones run eagerly, the last as graphs, each gradient added to those before."""
    fast, plain = accelerate(make()), make()
    exact = deepcopy(plain).double()
    for seed in range(6):
        for model in (fast, plain, exact):
            loss_of(model, seed).backward()
    graphs = training_graphs._of_module[fast]
    assert len(graphs.pairs) >= 1 and graphs.replays >= 2
    assert_near(fast, plain, exact)


@pytest.mark.parametrize("make", [distilbert, timm_model])
def test_two_forward_passes_before_a_backward_pass(make: Any) -> None:
    fast, plain = accelerate(make()), make()
    exact = deepcopy(plain).double()
    for model in (fast, plain, exact):
        for seed in range(5):
            loss_of(model, seed).backward()
        model.zero_grad()
        (loss_of(model, 7) + 2 * loss_of(model, 8)).backward()
    assert_near(fast, plain, exact)


def mixed(seed: int) -> dict[str, Tensor]:
    """Returns a batch of 16 sentences of 1 to 12 or, for odd seeds, 40 tokens, padded to the longest."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 41 if seed % 2 else 13, (16,), generator=generator)
    mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
    ids = torch.randint(1, 40, mask.shape, generator=generator) * mask
    labels = torch.randint(2, (16,), generator=generator)
    return {name: x.cuda() for name, x in {"input_ids": ids, "attention_mask": mask, "labels": labels}.items()}


def long_classifier() -> Any:
    return nn.Module.cuda(classifier(2, max_position_embeddings=64))


def test_batches_of_changing_shapes_train_as_the_plain_model() -> None:
    """24 steps of an optimiser: eager ones, captures, replays of several sizes; each model's loss, step by step."""
    models = accelerate(long_classifier()), long_classifier().double()
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9) for model in models]
    for seed in range(24):
        losses = []
        for model, optimizer in zip(models, optimizers, strict=True):
            loss = model(**mixed(seed)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        assert losses[0] == pytest.approx(losses[1], rel=1e-2, abs=1e-3), seed
    graphs = training_graphs._of_module[models[0]]
    assert len(graphs.pairs) >= 2 and graphs.replays >= 10


@pytest.mark.parametrize("scaled", [False, True])
def test_gradients_of_replays_under_autocast(scaled: bool) -> None:
    """Two batches are accumulated, unscaled and clipped; gradients that are kept do not change."""
    fast, eager = accelerate(long_classifier()), accelerate(long_classifier(), graphs=False)
    scaler = torch.amp.GradScaler("cuda", enabled=scaled, init_scale=1024.0)
    kept: list[tuple[Tensor, Tensor]] = []
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in (fast, eager)]
    for step in range(8):
        for model, optimizer in zip((fast, eager), optimizers, strict=True):
            for seed in (2 * step, 2 * step + 1):
                with torch.autocast("cuda", torch.float16 if scaled else torch.bfloat16):
                    loss = model(**mixed(seed % 4)).loss
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for (name, a), (_, b) in zip(gradients(fast).items(), gradients(eager).items(), strict=True):
            assert float((a - b).abs().max()) < 0.03 * float(b.abs().max()) + 1e-4, (step, name)
        if kept:
            assert torch.equal(*kept[-1])
        gradient = fast.classifier.weight.grad
        kept.append((gradient, gradient.clone()))
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    assert all(torch.equal(*pair) for pair in kept)
    assert training_graphs._of_module[fast].replays >= 4


def test_a_gradient_is_no_copy_of_the_graphs_memory() -> None:
    model = accelerate(long_classifier())
    addresses = []
    for _ in range(7):
        model(**mixed(0)).loss.backward()
        addresses.append({p.grad.data_ptr() for p in model.parameters()})
        model.zero_grad()
    assert addresses[-1] == addresses[-2]
    slots = training_graphs._of_module[model].memories.values()
    assert addresses[-1] == {slot.data_ptr() for memory in slots for slot in memory.slots if slot is not None}


def test_evaluation_between_forward_and_backward_leaves_the_packed_tokens() -> None:
    fast, plain = accelerate(long_classifier()), long_classifier()
    exact = deepcopy(plain).double()
    for model in (fast, plain, exact):
        for _ in range(5):
            model(**mixed(0)).loss.backward()
        model.zero_grad()
        loss = model(**mixed(1)).loss
        with torch.no_grad():
            model(**mixed(2))
            model.eval()(**mixed(3))
        model.train()
        loss.backward()
    assert_near(fast, plain, exact)


def test_left_padding_and_parameters_changed_too_early() -> None:
    fast, plain = accelerate(long_classifier()), long_classifier()
    for seed in range(5):
        fast(**mixed(0)).loss.backward()
        left = {**mixed(seed), "attention_mask": mixed(seed)["attention_mask"].flip(1)}
        torch.testing.assert_close(fast(**left).logits, plain(**left).logits)
    loss = fast(**mixed(0)).loss
    with torch.no_grad():
        fast.classifier.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_a_backward_pass_after_its_activations_are_gone_is_refused() -> None:
    model = accelerate(distilbert())
    for seed in range(4):
        loss_of(model, seed).backward()
    first = loss_of(model, 4)
    first.backward(retain_graph=True)
    loss_of(model, 5).backward()
    with pytest.raises(RuntimeError, match="graphs=False"):
        first.backward()


def test_dropout_differs_between_replays_and_is_off_in_evaluation() -> None:
    model = nn.Module.cuda(accelerate(classifier(1, dropout=0.3)))
    losses = []
    for _ in range(6):
        losses.append(loss_of(model, 0))
        losses[-1].backward()
    assert len({float(loss) for loss in losses[-3:]}) == 3
    model.eval()
    assert float(loss_of(model, 0)) == float(loss_of(model, 0))


@pytest.mark.parametrize("make", [distilbert, timm_model])
def test_torch_compile_composes(make: Any) -> None:
    model = accelerate(make())
    wanted = float(loss_of(deepcopy(model), 0))
    compiled = torch.compile(model)
    assert float(loss_of(compiled, 0)) == pytest.approx(wanted, rel=1e-4)  # type: ignore[arg-type]


def test_hugging_faces_trainer_trains_it_as_the_plain_one(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from transformers import Trainer, TrainingArguments

    mask = MASKS["padded"]
    assert mask is not None
    rows = [
        {"input_ids": BATCH.ids[i].long(), "attention_mask": mask[i], "labels": BATCH.labels[i]} for i in range(3)
    ] * 8
    losses = []
    for model in (classifier(2), accelerate(classifier(2))):
        options = TrainingArguments(
            str(tmp_path), per_device_train_batch_size=6, max_steps=12, logging_steps=1, report_to=[],
            save_strategy="no", learning_rate=1e-3,
        )  # fmt: skip
        trainer = Trainer(model=model, args=options, train_dataset=rows)  # type: ignore[arg-type]
        trainer.train()
        losses.append([line["loss"] for line in trainer.state.log_history if "loss" in line])
    assert losses[1] == pytest.approx(losses[0], rel=1e-3) and losses[1][-1] < losses[1][0]
