"""Curves of scores: separation of two classes, calibration, log loss."""

import numpy as np
import pytest

from src.measure.curves import POINTS, calibration, drawn_points, log_loss, separation


def test_the_curves_of_a_few_rows_are_those_counted_by_hand() -> None:
    """From the highest score down: click, none, then a click and none with the same score, none."""
    curves = separation(np.array([0.2, 0.9, 0.5, 0.8, 0.5]), np.array([0, 1, 1, 0, 0]))
    assert curves.recall.tolist() == [0, 0.5, 0.5, 1, 1]
    assert curves.false_positives.tolist() == pytest.approx([0, 0, 1 / 3, 2 / 3, 1])
    assert curves.precision.tolist() == pytest.approx([1, 1, 0.5, 0.5, 0.4])
    assert curves.average_precision == pytest.approx(0.5 * 1 + 0.5 * 0.5)


def test_constant_scores_separate_nothing() -> None:
    curves = separation(np.full(10, 0.3), np.arange(10) < 4)
    assert curves.average_precision == pytest.approx(0.4)
    assert (curves.recall.tolist(), curves.false_positives.tolist()) == ([0, 1], [0, 1])


def test_groups_of_a_calibration_have_their_means_and_intervals() -> None:
    random = np.random.default_rng(0)
    scores = random.random(1000)
    labels = random.random(1000) < scores
    groups = calibration(scores, labels)
    assert groups.count.tolist() == [100] * 10
    first = scores < np.sort(scores)[100]
    assert (groups.score[0], groups.share[0]) == pytest.approx((scores[first].mean(), labels[first].mean()))
    low, high = groups.interval
    assert ((low <= groups.share) & (groups.share <= high)).all()
    assert ((low <= groups.score) & (groups.score <= high)).mean() > 0.7
    assert (low >= 0).all() and (high <= 1).all()
    assert len(calibration(scores[:99], labels[:99]).count) == 1


def test_log_loss_is_finite_and_in_nats() -> None:
    assert log_loss(np.array([0.5, 0.5]), np.array([0, 1])) == pytest.approx(np.log(2))
    assert np.isfinite(log_loss(np.array([0.0, 1.0]), np.array([1, 0])))


def test_long_curves_are_drawn_by_fewer_points() -> None:
    points = drawn_points(10**6)
    assert points[0] == 0 and points[-1] == 10**6 - 1 and len(points) <= 2 * POINTS
    assert drawn_points(5).tolist() == [0, 1, 2, 3, 4]
