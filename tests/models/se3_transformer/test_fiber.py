"""Fibers: their operations, and the flat layout against features by degree."""

import pytest
import torch
from torch.testing import assert_close

from src.errors import UserError
from src.models.se3_transformer import Fiber
from tests.support.se3_small import random_features

UNEQUAL = Fiber({2: 3, 0: 4, 1: 2})


def test_a_fiber_is_an_ordered_map_of_degrees() -> None:
    assert list(UNEQUAL) == [0, 1, 2] and UNEQUAL.degrees == (0, 1, 2) and len(UNEQUAL) == 3
    assert UNEQUAL.items() == ((0, 4), (1, 2), (2, 3))
    assert [UNEQUAL.channels(degree) for degree in range(4)] == [4, 2, 3, 0]
    assert UNEQUAL.num_features == 4 + 2 * 3 + 3 * 5
    assert UNEQUAL.max_degree == 2 and Fiber({}).max_degree == -1
    assert 1 in UNEQUAL and 3 not in UNEQUAL


def test_equal_fibers_have_equal_hashes() -> None:
    assert Fiber.create(3, 5) == Fiber({2: 5, 1: 5, 0: 5}) != Fiber.create(2, 5)
    assert {Fiber.create(2, 3): "a"}[Fiber({0: 3, 1: 3})] == "a"


def test_sum_restriction_and_division() -> None:
    assert UNEQUAL + Fiber({0: 1, 3: 2}) == Fiber({0: 5, 1: 2, 2: 3, 3: 2})
    assert UNEQUAL.restricted(Fiber({0: 9, 2: 9})) == Fiber({0: 4, 2: 3})
    assert UNEQUAL.divided(2) == Fiber({0: 2, 1: 1, 2: 1})
    assert Fiber.create(3, 4).equal_channels == 4
    assert UNEQUAL.equal_channels is None and Fiber({}).equal_channels is None


def test_columns_are_ordered_by_degree_component_and_channel() -> None:
    features = random_features(UNEQUAL, 3)
    flat = UNEQUAL.flatten(features)
    assert flat.shape == (3, UNEQUAL.num_features)
    begins = {0: 0, 1: 4, 2: 10}
    for degree, channels in UNEQUAL.items():
        for component in range(2 * degree + 1):
            for channel in range(channels):
                column = begins[degree] + component * channels + channel
                assert torch.equal(flat[:, column], features[degree][:, channel, component])
        assert torch.equal(UNEQUAL.part(flat, degree), features[degree].transpose(1, 2))
    assert_close(UNEQUAL.unflatten(flat), features, rtol=0, atol=0)


def test_parts_are_views() -> None:
    flat = torch.zeros(2, UNEQUAL.num_features)
    UNEQUAL.part(flat, 1).fill_(1)
    UNEQUAL.unflatten(flat)[2].fill_(1)
    assert flat.sum() == 2 * (6 + 15)


@pytest.mark.parametrize("channels", [{-1: 2}, {0: 0}])
def test_invalid_fibers_are_refused(channels: dict[int, int]) -> None:
    with pytest.raises(UserError, match="give degrees >= 0 with channels >= 1"):
        Fiber(channels)


def test_features_of_another_fiber_are_refused() -> None:
    features = random_features(UNEQUAL, 3)
    with pytest.raises(UserError, match=r"Fiber\(\{0: 4, 1: 2, 2: 3\}\) needs"):
        UNEQUAL.flatten(features | {1: features[1][:, :1]})
