"""Stands in for the trainer: commits what a worker would, on the same database and model store."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from services.domain.clipping import AggregationRecord
from services.domain.jobs import Job, JobKind, JobState
from services.domain.tasks import Score
from services.protocol.aggregation import finish_aggregation
from services.protocol.evaluation import finish_evaluation
from services.protocol.initialization import finish_initialization
from services.protocol.jobs import finish_training
from services.storage.database import Database
from services.storage.model_store import Blob, LocalModelStore
from tests.integration.cell import make_model


class Worker:
    """A worker in this process. It is told of nothing: it looks for the job it is to do."""

    def __init__(self, database_url: str, model_store: Path) -> None:
        self.database = Database(database_url)
        self.models = LocalModelStore(model_store)

    def waiting(self, kind: JobKind, subject: str) -> list[Job]:
        """The jobs of this kind that nobody has claimed, about a task, a round or a training."""
        with self.database.reading() as store:
            jobs = store.jobs.to_publish(_now(), timedelta(0), 10_000)
        return [job for job in jobs if job.kind is kind and subject in job.subject.values()]

    def claim(self, kind: JobKind, subject: str, lease_s: float = 60.0) -> Job:
        """Claim the one job of this kind about this subject."""
        (job,) = self.waiting(kind, subject)
        return self.take(job, lease_s)

    def take(self, job: Job, lease_s: float = 60.0) -> Job:
        """Claim a job that waits."""
        with self.database.unit_of_work() as uow:
            claimed = uow.jobs.claim(job.job_id, _now(), timedelta(seconds=lease_s))
            uow.commit()
        assert claimed is not None
        return claimed

    def state_of(self, job: Job) -> JobState:
        """What has become of a job."""
        with self.database.reading() as store:
            found = store.jobs.get(job.job_id)
        assert found is not None
        return found.state

    def initialize(self, job: Job, seed: int = 0) -> bool:
        """Commit an initial model; whether the job was still this worker's."""
        blob = self._keep(make_model(seed))
        with self.database.unit_of_work() as uow:
            done = finish_initialization(uow, job, blob, _now())
            uow.commit()
        return done

    def train(self, job: Job, seed: int = 0) -> bool:
        """Commit a trained update; whether the job was still this worker's."""
        blob = self._keep(make_model(seed))
        with self.database.unit_of_work() as uow:
            training = uow.trainings.get(job.subject["training_id"])
            done = finish_training(uow, job, training, blob, _now())
            uow.commit()
        return done

    def aggregate(self, job: Job, seed: int = 0, left_out: Mapping[str, str] | None = None) -> bool:
        """Commit an aggregated model, and who is not in it; whether the job was still this worker's."""
        blob = self._keep(make_model(seed))
        with self.database.unit_of_work() as uow:
            done = finish_aggregation(uow, job, blob, AggregationRecord(outliers=left_out or {}), _now())
            uow.commit()
        return done

    def evaluate(self, job: Job, accuracy: float, loss: float | None = 1.0) -> bool:
        """Commit a measurement of one part; whether the job was still this worker's."""
        score = Score(100, round(100 * accuracy), None if loss is None else 100 * loss)
        with self.database.unit_of_work() as uow:
            done = finish_evaluation(uow, job, score, _now())
            uow.commit()
        return done

    def close(self) -> None:
        """Close the connections."""
        self.database.close()

    def _keep(self, content: bytes) -> Blob:
        with self.models.receive() as incoming:
            incoming.write(content)
            return incoming.save()


def _now() -> datetime:
    return datetime.now(UTC)
