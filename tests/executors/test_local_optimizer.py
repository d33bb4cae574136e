"""The optimizer: AdamW by hand, clipping, steps that are skipped, ranks."""

from __future__ import annotations

from math import inf, nan, sqrt

import pytest
import torch
from torch import Tensor

from swingshift.executors.local.optimizer import Optimizer
from swingshift.executors.rl.options import LearningOptions

LEARNING = LearningOptions(weight_decay=0.1, beta1=0.9, beta2=0.99, max_grad_norm=100.0)
RATE = 0.5


def parameter(*values: float) -> Tensor:
    """Return a parameter."""
    return torch.tensor(values, requires_grad=True)


def one_step(optimizer: Optimizer, weight: Tensor, *gradient: float) -> float | None:
    """Make a step with a gradient and return its norm."""
    weight.grad = torch.tensor(gradient)
    return optimizer.step(1)


def test_the_first_step_is_as_long_as_the_learning_rate() -> None:
    """By hand: decay by 0.5 x 0.1, then 0.5 against the sign of the gradient."""
    weight = parameter(2.0, -2.0)
    optimizer = Optimizer([weight], LEARNING, RATE)

    assert one_step(optimizer, weight, 3.0, 4.0) == pytest.approx(5.0)
    assert weight.tolist() == pytest.approx([2.0 * 0.95 - 0.5, -2.0 * 0.95 - 0.5])
    assert weight.grad is None
    assert optimizer.steps == 1
    assert optimizer.state()["0.exp_avg"].tolist() == pytest.approx([0.3, 0.4])
    assert optimizer.state()["0.exp_avg_sq"].tolist() == pytest.approx([0.09, 0.16])


def test_the_second_step_remembers_the_first() -> None:
    """By hand, without decay: means 0.9 x 0.1 - 0.1 and 0.99 x 0.01 + 0.01, bias-corrected."""
    weight = parameter(0.0)
    optimizer = Optimizer([weight], LearningOptions(weight_decay=0.0, beta2=0.99), RATE)
    one_step(optimizer, weight, 1.0)
    one_step(optimizer, weight, -1.0)

    second = (-0.01 / 0.19) / sqrt(0.0199 / 0.0199)
    assert weight.tolist() == pytest.approx([-0.5 - 0.5 * second], rel=1e-5)


def test_a_gradient_is_clipped_to_its_norm_over_all_parameters() -> None:
    """By hand: (3, 4) has norm 5 and becomes (0.6, 0.8); the norm is told as it was."""
    weights = [parameter(0.0), parameter(0.0)]
    optimizer = Optimizer(weights, LearningOptions(max_grad_norm=1.0), RATE)
    weights[0].grad, weights[1].grad = torch.tensor([3.0]), torch.tensor([4.0])

    assert optimizer.step(1) == pytest.approx(5.0)
    means = [optimizer.state()[f"{index}.exp_avg"].item() for index in (0, 1)]
    assert means == pytest.approx([0.06, 0.08], rel=1e-4)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    """Neither weights nor moments nor the count, and the next step is a first one."""
    weight = parameter(1.0, 2.0)
    optimizer = Optimizer([weight], LEARNING, RATE)

    assert one_step(optimizer, weight, 1.0, bad) is None
    assert weight.tolist() == [1.0, 2.0]
    assert weight.grad is None
    assert optimizer.steps == 0
    assert not any(tensor.any() for tensor in optimizer.state().values())
    one_step(optimizer, weight, 1.0, 1.0)
    assert weight.tolist() == pytest.approx([0.95 - 0.5, 1.9 - 0.5])


def test_state_is_there_before_the_first_step() -> None:
    """And does not grow with it; parameters that need no gradient have none."""
    weight, frozen = parameter(1.0, 2.0, 3.0), torch.zeros(5)
    optimizer = Optimizer([weight, frozen], LEARNING, RATE)
    before = optimizer.state()
    one_step(optimizer, weight, 1.0, 1.0, 1.0)

    assert {name: tensor.shape for name, tensor in before.items()} == {
        "0.exp_avg": (3,),
        "0.exp_avg_sq": (3,),
    }
    assert all(optimizer.state()[name] is tensor for name, tensor in before.items())
    assert optimizer.gradient_bytes == 12


def test_another_optimizer_goes_on_from_the_state_and_the_count() -> None:
    """Its next step equals the one that the first would have made."""
    first, second = parameter(1.0), parameter(1.0)
    whole, half = Optimizer([first], LEARNING, RATE), Optimizer([second], LEARNING, RATE)
    one_step(whole, first, 1.0)
    for name, tensor in half.state().items():
        tensor.copy_(whole.state()[name])
    half.set_steps(whole.steps)
    second.data.copy_(first.data)

    one_step(whole, first, -0.25)
    one_step(half, second, -0.25)

    assert torch.equal(first, second)
    assert half.steps == 2


def test_gradients_are_summed_over_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a parameter for which this rank had nothing to train on."""

    def all_reduce(tensor: Tensor) -> None:
        tensor += torch.tensor([1.0, 2.0, 3.0])

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    weights = [parameter(0.0, 0.0), parameter(0.0)]
    optimizer = Optimizer(weights, LEARNING, RATE)
    weights[0].grad = torch.tensor([1.0, 1.0])

    assert optimizer.step(2) == pytest.approx(sqrt(4.0 + 9.0 + 9.0))
    assert optimizer.state()["0.exp_avg"].tolist() == pytest.approx([0.2, 0.3])
    assert optimizer.state()["1.exp_avg"].tolist() == pytest.approx([0.3])
