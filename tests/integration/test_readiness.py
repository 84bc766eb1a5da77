"""``GET /readyz`` when what the service depends on comes and goes."""

from datetime import timedelta
from pathlib import Path

import redis
from sqlalchemy import create_engine, make_url, text

from services.domain.jobs import QUEUES, JobKind
from services.storage.database import Database
from services.storage.migration import downgrade, migrate
from tests.databases import new_database
from tests.integration.cell import assert_problem, create_task
from tests.integration.storage import factories
from tests.redis_server import eventually, redis_server
from tests.running_service import running_service


def test_without_its_broker_the_service_is_degraded_and_still_takes_work(tmp_path: Path) -> None:
    with redis_server(tmp_path) as (port, server):
        url = f"redis://127.0.0.1:{port}/0"
        with running_service(tmp_path / "data", broker_url=url) as service:
            ready = service.get("/readyz")
            assert ready.status_code == 200
            assert ready.json() == {
                "status": "ready",
                "checks": {
                    "database": "ok",
                    "migrations": "ok",
                    "disk": "ok",
                    "model_store": "ok",
                    "broker": "ok",
                    "workers": "none is running",
                },
            }
            queue = QUEUES[JobKind.INITIALIZE_MODEL]
            create_task(service)
            with redis.Redis(port=port) as broker:
                assert eventually(lambda: broker.llen(queue) == 1)

            server.kill()
            server.wait()
            degraded = service.get("/readyz")
            assert (degraded.status_code, degraded.json()["status"]) == (200, "degraded")
            assert degraded.json()["checks"]["broker"].startswith("not reached")
            create_task(service)

            with redis_server(tmp_path, port), redis.Redis(port=port) as broker:
                assert eventually(lambda: service.get("/readyz").json()["status"] == "ready")
                assert eventually(lambda: broker.llen(queue) >= 1), "what was made meanwhile is published"


def test_not_ready_when_the_database_is_gone(tmp_path: Path, postgres_url: str) -> None:
    url = new_database("postgresql", tmp_path, postgres_url)
    with running_service(tmp_path, database_url=url) as service:
        assert service.get("/readyz").status_code == 200
        server = create_engine(postgres_url, isolation_level="AUTOCOMMIT")
        with server.connect() as connection:
            connection.execute(text(f"DROP DATABASE {make_url(url).database} WITH (FORCE)"))
        server.dispose()
        problem = assert_problem(service.get("/readyz"), 503, "NOT_READY")
        assert problem["detail"].startswith("database: ")
        assert "password" not in problem["detail"]
        assert service.get("/healthz").status_code == 200


def test_not_ready_when_the_database_file_is_gone(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        assert service.get("/readyz").status_code == 200
        for file in tmp_path.glob("fedcs.sqlite*"):
            file.unlink()
        problem = assert_problem(service.get("/readyz"), 503, "NOT_READY")
        assert problem["detail"].startswith("database: ")
        (tmp_path / "fedcs.sqlite").touch()
        assert_problem(service.get("/readyz"), 503, "NOT_READY")
        assert not (tmp_path / "fedcs.sqlite").stat().st_size


def test_not_ready_while_the_database_has_an_older_shape(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        database = Database(f"sqlite:///{tmp_path}/fedcs.sqlite")
        downgrade(database, "base")
        problem = assert_problem(service.get("/readyz"), 503, "NOT_READY")
        assert problem["detail"].startswith("migrations: ")
        migrate(database)
        assert service.get("/readyz").status_code == 200
        assert service.post("/clients", json={}).status_code == 201
        database.close()


def test_a_worker_that_cannot_do_all_jobs_is_named_with_its_host(tmp_path: Path) -> None:
    with (
        redis_server(tmp_path) as (port, _),
        running_service(tmp_path / "data", broker_url=f"redis://127.0.0.1:{port}/0") as service,
    ):
        database = Database(f"sqlite:///{tmp_path}/data/fedcs.sqlite")

        def workers_say(life: timedelta, **problems: list[str]) -> tuple[str, str]:
            now = database.now()
            with database.unit_of_work() as uow:
                for host, of_host in problems.items():
                    uow.workers.report(factories.worker(host), of_host, now, now + life)
                uow.commit()
            ready = service.get("/readyz")
            assert ready.status_code == 200
            return ready.json()["status"], ready.json()["checks"]["workers"]

        minute = timedelta(minutes=1)
        assert workers_say(minute) == ("ready", "none is running")
        assert workers_say(minute, good=[], bad=[]) == ("ready", "ok")
        assert workers_say(minute, bad=["no folder"]) == ("degraded", "bad (process 4711): no folder")
        assert workers_say(minute, bad=[]) == ("ready", "ok")
        assert workers_say(timedelta(microseconds=1), bad=["no folder"]) == ("ready", "ok"), "it is dead"
        create_task(service)
        now = database.now()
        with database.unit_of_work() as uow:
            (job,) = uow.jobs.to_publish(now, timedelta(0), most=1)
            uow.refusals.add(job.job_id, "worker-good", "no memory", now, now + minute)
            uow.commit()
        assert workers_say(minute) == ("degraded", "good (process 4711): no memory")
        database.close()
