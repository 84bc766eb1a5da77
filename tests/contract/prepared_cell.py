"""Clients with reports, tasks and rounds in many states, for schemathesis to find in the lists."""

import httpx

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
LONG = {"round_deadline_s": 1e6, "idle_timeout_s": 1e6}


def prepare_cell(operator: httpx.Client) -> dict[str, str]:
    """Put the service in the middle of its work; the keys of the clients by their ids."""
    labels = {"cell": fresh_name("cell")}
    keys = enrol(operator, CLIENTS, labels)
    report_all(operator, list(keys))
    _ready_task(operator, labels=labels)
    open_round(operator, _ready_task(operator, labels=labels, report_window_s=1e6))
    for clock in ("wall", "simulated"):
        for uploads in range(5):
            opened = open_round(operator, _ready_task(operator, labels=labels, clock=clock))
            for slot in opened["schedule"]["slots"][:uploads]:
                elapsed_s = "10" if clock == "simulated" else None
                with as_client(operator, keys[slot["client_id"]]) as client:
                    sent = upload(client, opened["round_id"], slot["client_id"], fedcs_elapsed_s=elapsed_s)
                assert sent.status_code == 201, sent.text
            if uploads < 2:
                operator.post(f"/rounds/{opened['round_id']}/close").raise_for_status()
    return keys


def _ready_task(operator: httpx.Client, **terms: object) -> str:
    task_id: str = create_task(operator, **(LONG | terms))["task_id"]
    set_model(operator, task_id)
    return task_id
