"""``FEDCS_OPERATOR_KEY`` is changed one process after another; who has a key of their own notices nothing."""

from pathlib import Path

from tests.integration.cell import as_client, assert_problem, without_key
from tests.running_service import OPERATOR_KEY, running_service

NEW_KEY = f"new-{OPERATOR_KEY}"


def test_the_operator_key_is_changed_while_another_process_answers(tmp_path: Path) -> None:
    with running_service(tmp_path, operator_key=NEW_KEY) as changed:
        with running_service(tmp_path) as unchanged:
            made = unchanged.post("/keys", json={"scope": "manage", "name": "orchestrator"}).json()
            form = {
                "grant_type": "client_credentials",
                "client_id": made["key_id"],
                "client_secret": made["api_key"],
            }
            once = {"Idempotency-Key": "enrolment"}
            with as_client(unchanged, made["api_key"]) as orchestrator:
                enrolled = orchestrator.post("/clients", json={}, headers=once)
                assert enrolled.status_code == 201
            with without_key(unchanged) as orchestrator:
                token = orchestrator.post("/oauth2/token", data=form).json()["access_token"]
            with as_client(unchanged, token) as orchestrator:
                assert orchestrator.get("/clients").status_code == 200
            with as_client(unchanged, NEW_KEY) as operator:
                assert_problem(operator.get("/clients"), 401, "UNAUTHENTICATED")

        with as_client(changed, OPERATOR_KEY) as operator:
            assert_problem(operator.get("/clients"), 401, "UNAUTHENTICATED")
        with as_client(changed, token) as orchestrator:
            assert_problem(orchestrator.get("/clients"), 401, "UNAUTHENTICATED")
        with as_client(changed, made["api_key"]) as orchestrator:
            assert orchestrator.post("/clients", json={}, headers=once).content == enrolled.content
        with without_key(changed) as orchestrator:
            token = orchestrator.post("/oauth2/token", data=form).json()["access_token"]
        with as_client(changed, token) as orchestrator:
            assert orchestrator.get("/clients").status_code == 200
