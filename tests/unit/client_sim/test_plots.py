"""Whether pictures are pictures; how they look is for eyes."""

import struct

import numpy as np
import pytest

from client_sim.fleet import Fleet
from client_sim.plots import draw_accuracy, draw_cell, draw_clients_per_round, draw_simulated_round
from client_sim.results import RunRecord
from client_sim.round_simulation import round_rng, simulate_round
from client_sim.scenario import Behaviour, load_scenario
from tests.unit.client_sim.run_records import round_record, run_record
from tests.unit.client_sim.schedules import paper_schedule


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


def runs() -> list[RunRecord]:
    rng = np.random.default_rng(0)
    made = []
    for policy, mean in (("fedcs", 12), ("fedlim", 5)):
        rounds = [
            round_record(
                number,
                received=int(rng.poisson(mean)),
                accuracy=0.1 + 0.7 * (1 - np.exp(-number * mean / 150)) + float(rng.normal(0, 0.01)),
            )
            for number in range(1, 41)
        ]
        made.append(run_record(policy, rounds))
    return made


def test_lines_of_runs() -> None:
    both = runs()
    assert size_of(draw_accuracy(both)) == size_of(draw_clients_per_round(both)) == (960, 540)
    assert draw_accuracy(both) == draw_accuracy(both)
    assert draw_accuracy(both) != draw_accuracy(both[:1])


def test_trials_are_drawn_as_their_mean_with_a_band() -> None:
    def trial(seed: int, *received: int) -> RunRecord:
        rounds = [
            round_record(number, received=count, accuracy=count / 10)
            for number, count in enumerate(received, 1)
        ]
        return run_record("fedcs", rounds, seed=seed)

    for draw in (draw_accuracy, draw_clients_per_round):
        same, apart = [trial(0, 5, 5), trial(1, 5, 5)], [trial(0, 4, 4), trial(1, 6, 6)]
        assert draw(same) != draw(apart), "the means are equal, the bands are not"
        assert draw(same) != draw(same[:1])
        size_of(draw([trial(0), trial(1, 5), trial(2, 5, 6, 7)]))


def test_runs_that_have_nothing_to_show() -> None:
    empty = run_record("fedcs", [])
    untrained = run_record("fedlim", [round_record(1)])
    for draw in (draw_accuracy, draw_clients_per_round):
        size_of(draw([empty, untrained]))


@pytest.mark.parametrize("policy", ["fedcs", "fl"])
def test_a_round_as_it_went(policy: str) -> None:
    schedule = paper_schedule(policy)
    as_planned = draw_simulated_round(schedule, simulate_round(schedule, Behaviour(), round_rng(0, 1)))
    played = simulate_round(schedule, Behaviour(uncertainty=0.2, dropout=0.2), round_rng(0, 1))
    as_it_went = draw_simulated_round(schedule, played)
    assert size_of(as_planned) == size_of(as_it_went)
    assert as_planned != as_it_went


def test_a_round_without_slots() -> None:
    size_of(draw_simulated_round(paper_schedule().model_copy(update={"slots": []}), []))


@pytest.mark.parametrize("clients", [1, 60, 3000])
def test_the_map_of_a_cell(clients: int) -> None:
    small = load_scenario("small")
    cell = small.cell.model_copy(update={"clients": clients})
    fleet = Fleet.draw(small.model_copy(update={"cell": cell}), "cell")
    unmarked = draw_cell(fleet, cell.radius_m, [], "Round 1")
    assert unmarked != draw_cell(fleet, cell.radius_m, [fleet.client_id(clients - 1)], "Round 1")
    size_of(unmarked)
