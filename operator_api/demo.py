"""``fedcs demo``: the main job as far as it is built, on a cell like the paper's.

Starts the service, sends it the resource reports of one round's candidates, and compares the policies.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from operator_api.announcement import Announcement, read_announcement
from operator_api.plan_report import render_html
from operator_api.plan_view import print_plan
from services.charts.gantt import draw_gantt
from services.contract.plans import Candidate, PlanRequest, PlanResponse
from services.domain.candidates import draw_candidates
from services.domain.cell import PAPER_CLIENTS, PAPER_MODEL_SIZE_BYTES, PAPER_REQUEST_FRACTION, Cell
from services.domain.selection import POLICIES
from services.errors import ServiceStartError

_ROUND_DEADLINE_S = 180
_MODEL_SIZE_BYTES = PAPER_MODEL_SIZE_BYTES["cifar10"]


def run_demo(console: Console, out: Path, seed: int) -> None:
    """Plan one round with every policy through HTTP; print the comparison and save the pictures."""
    candidates = _draw_cell(seed)
    console.print(
        f"A cell of {PAPER_CLIENTS} clients; {len(candidates)} of them are asked for their resources. "
        f"The round lasts {_ROUND_DEADLINE_S} s, the model has {_MODEL_SIZE_BYTES / 1e6:g} MB."
    )
    with _running_service() as service:
        console.print(f"The service answers at {service.url}.\n")
        requests = {
            policy: PlanRequest(
                policy=policy,
                round_deadline_s=_ROUND_DEADLINE_S,
                model_size_bytes=_MODEL_SIZE_BYTES,
                seed=seed,
                candidates=candidates,
            )
            for policy in POLICIES
        }
        plans = {policy: _post_plan(service, request) for policy, request in requests.items()}
    print_plan(console, requests["fedcs"], plans["fedcs"])
    console.print(_comparison(plans))
    out.mkdir(parents=True, exist_ok=True)
    for policy, plan in plans.items():
        (out / f"{policy}.html").write_text(render_html(requests[policy], plan), encoding="utf-8")
        (out / f"{policy}.png").write_bytes(draw_gantt(requests[policy], plan, "png"))
    console.print(f"\nThe schedules as pages and pictures: {out}/")


def _draw_cell(seed: int) -> list[Candidate]:
    rng = np.random.default_rng(seed)
    reports = Cell().draw_reports(PAPER_CLIENTS, rng)
    return [
        Candidate(
            client_id=f"client-{client}",
            throughput_bps=float(reports.throughput_bps[client]),
            compute_samples_per_s=float(reports.compute_samples_per_s[client]),
            data_samples=int(reports.data_samples[client]),
        )
        for client in draw_candidates(PAPER_CLIENTS, PAPER_REQUEST_FRACTION, rng)
    ]


@contextmanager
def _running_service() -> Iterator[Announcement]:
    with tempfile.TemporaryDirectory(prefix="fedcs-demo-") as data_dir:
        command = [sys.executable, "-m", "operator_api", "up", "--port", "0", "--data-dir", data_dir]
        log_path = Path(data_dir) / "service.log"
        with (
            log_path.open("w") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,  # noqa: S603
        ):
            try:
                assert process.stdout is not None
                announcement = read_announcement(process.stdout)
                if announcement is None:
                    raise ServiceStartError(f"the service did not start:\n{log_path.read_text()}")
                yield announcement
            finally:
                process.terminate()


def _post_plan(service: Announcement, request: PlanRequest) -> PlanResponse:
    response = httpx.post(
        f"{service.url}/plans",
        content=request.model_dump_json(),
        headers={
            "Authorization": f"Bearer {service.operator_key}",
            "Content-Type": "application/json",
        },
        timeout=60,
    )
    response.raise_for_status()
    return PlanResponse.model_validate_json(response.content)


def _comparison(plans: dict[str, PlanResponse]) -> Table:
    table = Table(title="One round, four policies", title_justify="left")
    for name in ("policy", "clients", "distribution s", "in all s", "what it does"):
        table.add_column(name, justify="right" if name.endswith("s") and name != "what it does" else "left")
    for policy, plan in plans.items():
        table.add_row(
            policy,
            str(len(plan.slots)),
            f"{plan.distribution_s:.1f}",
            f"{plan.total_s:.1f}",
            POLICIES[policy].summary,
        )
    return table
