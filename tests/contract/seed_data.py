"""Clients with reports, tasks and rounds in many states, for schemathesis to begin with."""

import httpx

from tests.contract.known_resources import SeedData
from tests.integration.cell import (
    as_client,
    create_task,
    enrol,
    fresh_name,
    open_round,
    report_all,
    set_model,
    upload,
)

CLIENTS = 6
LONG = {"round_deadline_s": 1e6, "idle_timeout_s": 1e6, "dataset": "generated"}


def prepare_cell(operator: httpx.Client) -> SeedData:
    """Put the service in the middle of its work."""
    labels = {"cell": fresh_name("cell")}
    keys = enrol(operator, CLIENTS, labels)
    report_all(operator, list(keys))
    terms = [LONG, LONG | {"report_window_s": 1e6}]
    tasks = [create_task(operator, labels=labels, **item)["task_id"] for item in terms]
    set_model(operator, tasks[1])
    open_round(operator, tasks[1])
    rounds: dict[str, list[str]] = {}
    for clock in ("wall", "simulated"):
        for uploads in range(5):
            terms_of_clock = {"clock": clock, "allow_busy_clients": True, **LONG}
            task_id = create_task(operator, labels=labels, **terms_of_clock)["task_id"]
            set_model(operator, task_id)
            opened = open_round(operator, task_id)
            selected = [slot["client_id"] for slot in opened["schedule"]["slots"]]
            for client_id in selected[:uploads]:
                elapsed_s = "10" if clock == "simulated" else None
                with as_client(operator, keys[client_id]) as client:
                    sent = upload(client, opened["round_id"], client_id, fedcs_elapsed_s=elapsed_s)
                assert sent.status_code == 201, sent.text
            if uploads < 2:
                operator.post(f"/rounds/{opened['round_id']}/close").raise_for_status()
            tasks.append(task_id)
            rounds[opened["round_id"]] = selected
    return SeedData(client_keys=keys, tasks=tasks, rounds=rounds)
