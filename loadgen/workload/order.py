"""In which order a round goes through the levels."""

import numpy as np

from loadgen.scenario.model import Scenario
from loadgen.workload.seeds import derive


def order_of_levels(scenario: Scenario, *, round_: int) -> list[int]:
    """Return the numbers of the levels as listed, or shuffled anew for each round by the seed.

    Shuffled, what drifts with time (heat, a filling cache) does not always meet the same level.
    """
    numbers = list(range(len(scenario.levels)))
    if scenario.level_order == "listed":
        return numbers
    rng = np.random.default_rng(derive(scenario.seed, "level order", round_))
    return [int(number) for number in rng.permutation(numbers)]
