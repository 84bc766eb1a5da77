"""The adaptive deadline of a round: chosen from the reports and the noise of the updates."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from services.domain.deadlines import DRAWS, DeadlineLimits, choose_deadline, round_deadline_s
from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.noise_scale import FIRST_NOISE_SCALE
from services.domain.resources import LocalWork, Positions, estimate_times
from services.domain.rounds import Round, RoundCell
from services.domain.selection import POLICIES, Candidates, make_policy
from services.domain.tasks import DeadlineMode, Task
from services.protocol.candidates import clients_passed_over, expected_reports
from services.protocol.transitions import elapsed_at
from services.storage.database import Store


def local_work(task: Task, round_: Round, cell: RoundCell) -> LocalWork:
    """What a client in this cell has to do."""
    return LocalWork(
        round_.terms.upload_size_bytes,
        task.terms.local_epochs,
        cell.resource_block_count,
        round_.terms.download_size_bytes,
    )


def selection_deadline(
    store: Store, task: Task, round_: Round, cells: Sequence[RoundCell], now: datetime
) -> Round:
    """The round with the deadline to select clients with; with a fixed deadline, the round as it is.

    Clients and totals are means over several draws from all clients with fresh reports.
    """
    if round_.terms.deadline_mode is DeadlineMode.FIXED:
        return round_
    noise = store.models.get(task.serial, round_.model_version).noise_estimate
    noise_scale = FIRST_NOISE_SCALE if noise is None else noise.noise_scale
    limits = DeadlineLimits(
        round_.terms.overhead_ns,
        to_ns(_longest_s(task, now)),
        min_clients=task.terms.min_clients,
        failed_ns=to_ns(task.terms.min_round_deadline_s),
    )
    policy = make_policy(round_.terms.policy, round_.terms.policy_parameters)
    draws = _draw(store, task, round_, cells, now)
    choice = choose_deadline(draws, policy, noise_scale, limits, [task.terms.seed, round_.number])
    terms = replace(
        round_.terms,
        round_deadline_s=to_seconds(choice.deadline_ns),
        noise_scale=noise_scale,
        deadline_tradeoff=choice.points,
    )
    return replace(round_, terms=terms)


def with_own_deadline(store: Store, task: Task, round_: Round, spent_ns: int, now: datetime) -> Round:
    """Store the deadline of a round whose distribution and uploads take this long; 0: nobody is selected."""
    if round_.terms.deadline_mode is DeadlineMode.FIXED:
        return round_
    deadline_s = round_deadline_s(
        round_.terms.overhead_ns + spent_ns if spent_ns else 0,
        task.terms.deadline_slack,
        least_s=task.terms.min_round_deadline_s,
        longest_s=_longest_s(task, now),
    )
    return store.rounds.change(round_, terms=replace(round_.terms, round_deadline_s=deadline_s))


def _longest_s(task: Task, now: datetime) -> float:
    """The task's longest deadline, or what its final deadline leaves."""
    if task.terms.final_deadline_s is None:
        return task.terms.round_deadline_s
    left_s = task.terms.final_deadline_s - elapsed_at(task, now)
    return min(task.terms.round_deadline_s, max(left_s, task.terms.min_round_deadline_s))


def _draw(
    store: Store, task: Task, round_: Round, cells: Sequence[RoundCell], now: datetime
) -> list[list[Candidates]]:
    """Draws of as many clients as the round asked, each by cell."""
    clients = store.clients.serials_with(task.terms.labels, [cell.cell_id for cell in cells])
    for passed_over in clients_passed_over(store, task, round_.number).serials.values():
        clients = clients.without(passed_over)
    known, reports = store.reports.newest(
        clients.serials,
        task.serial,
        observed_since=now - timedelta(seconds=task.terms.report_max_age_s),
        received_since=None,
    )
    in_cell = [clients.cell_ids[number] for number in clients.in_cell[known].tolist()]
    reports = expected_reports(store, task, clients.serials[known], in_cell, reports)
    cell_ids = np.array(in_cell)
    history = None
    if POLICIES[round_.terms.policy].uses_history:
        ids = store.clients.ids_of(clients.serials[known])
        names = [ids.get(serial, "") for serial in clients.serials[known].tolist()]
        history = store.rounds.history(task.serial, names)
    times = [estimate_times(reports, local_work(task, round_, cell)) for cell in cells]
    everyone = [
        Candidates(of_cell.scaled(round_.terms.planning_factor), reports, history) for of_cell in times
    ]
    rng = np.random.default_rng([task.terms.seed, round_.number, 1])

    def draw() -> list[Candidates]:
        drawn: Positions = rng.choice(len(known), size=min(round_.asked, len(known)), replace=False)
        drawn = drawn[reports.data_samples[drawn] > 0]
        return [
            candidates.of(drawn[cell_ids[drawn] == cell.cell_id])
            for candidates, cell in zip(everyone, cells, strict=True)
        ]

    return [draw() for _ in range(DRAWS)] if len(known) else []
