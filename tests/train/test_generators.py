"""The random generators of a training process."""

import random

import numpy as np
import torch

from ninefold.engine.generators import fork_rng, seeds_of
from ninefold.engine.parallel import RankContext

ALONE = RankContext(0, 1, torch.device("cpu"))


def test_the_gpus_of_a_process_are_seeded_differently_and_the_first_as_the_process():
    seeds = seeds_of([2, 0, 1], seed=5)
    assert seeds[2] == 5
    assert len(set(seeds.values())) == 3


def test_what_is_drawn_apart_is_the_same_each_time_and_leaves_the_generators_as_they_were():
    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.randn()), float(torch.rand(()))

    np.random.randn()  # NumPy keeps the second normal number of a pair
    with fork_rng(ALONE):
        first = drawn()
    expected = drawn()
    assert drawn() != expected
    with fork_rng(ALONE):
        assert drawn() == first
    with fork_rng(RankContext(1, 2, ALONE.device)):
        assert drawn() != first
