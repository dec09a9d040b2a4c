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
    graphs = training_graphs._of_module[getattr(fast, "distilbert", fast)]
    assert len(graphs.pairs) == 1 and graphs.replays == 3
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
