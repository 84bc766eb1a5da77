"""An API process whose host's clock is an hour ahead does no harm while it lives, and none by its death."""

import time
from pathlib import Path

from tests.databases import new_database
from tests.integration.rounds_setup import quick_round, round_in_state, upload_as
from tests.running_service import service_process

_HOUR = "3600"


def test_a_reconciler_that_is_ahead_closes_no_round_early_and_leaves_no_lease_behind(
    tmp_path: Path, postgres_url: str
) -> None:
    url = new_database("postgresql", tmp_path, postgres_url)
    log = tmp_path / "service.log"
    module = "tests.faults.chaos.skewed_clock"
    with (
        service_process(tmp_path, log, module=module, test_skew_s=_HOUR, database_url=url) as (_, ahead),
        service_process(tmp_path, log, database_url=url) as (service, _),
    ):
        opened, keys = quick_round(service, round_deadline_s=600)
        time.sleep(2)  # the reconciler has looked at it several times
        ((client_id, key),) = keys.items()
        sent = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s=None)
        assert sent.status_code == 201, sent.text
        ahead.kill()
        ahead.wait()
        opened, _ = quick_round(service, round_deadline_s=1)
        over = round_in_state(service, opened["round_id"], "failed")
        assert over["outcome"] == "TOO_FEW_UPDATES"
