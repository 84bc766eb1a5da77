"""Who may still take a job, and what is said of hosts that cannot do one."""

from datetime import UTC, datetime, timedelta

import pytest

from services.domain.jobs import Refusal, Worker, WorkerIdentity, describe_problems, has_other_worker

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=30)
ME = WorkerIdentity("w-me", "here", 1, ("train",))


def worker(name: str, *problems: str, queues: tuple[str, ...] = ("aggregate", "train")) -> Worker:
    return Worker(f"w-{name}", name, 7, queues, problems, NOW, NOW, LATER)


def refusal(name: str, error: str = "no data") -> Refusal:
    return Refusal("job-1", f"w-{name}", error, NOW, LATER)


@pytest.mark.parametrize(
    ("live", "refused_by", "may"),
    [
        ([], set(), False),
        ([worker("me")], set(), False),
        ([worker("me"), worker("a")], set(), True),
        ([worker("me"), worker("a")], {"w-a"}, False),
        ([worker("me"), worker("a"), worker("b")], {"w-a"}, True),
        ([worker("me"), worker("a", queues=("aggregate",))], set(), False),
        ([worker("me"), worker("a", "a problem")], set(), True),
    ],
)
def test_another_live_worker_of_the_queue_may_take_a_job_it_has_not_refused(
    live: list[Worker], refused_by: set[str], may: bool
) -> None:
    assert has_other_worker("train", live, refused_by, ME) is may


def test_nothing_is_said_of_workers_without_problems() -> None:
    assert describe_problems([worker("a")], [refusal("dead")]) == ""


def test_each_problem_of_a_host_is_said_once_with_its_name() -> None:
    live = [worker("a", "no folder", "no store"), worker("b"), worker("c")]
    refusals = [refusal("a", "no folder"), refusal("a", "no memory"), refusal("c", "no memory")]
    assert describe_problems(live, refusals) == (
        "a (process 7): no folder; no store; no memory | c (process 7): no memory"
    )


def test_of_many_workers_with_problems_a_few_are_described_and_the_others_counted() -> None:
    said = describe_problems([worker(f"host-{number}", "no folder") for number in range(8)], [])
    assert said.count("no folder") == 5
    assert said.endswith("| and 3 more workers")
