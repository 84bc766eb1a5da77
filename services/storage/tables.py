"""The tables. Invariants are constraints here, not only checks in code.

Rows refer to one another by ``serial`` numbers; the ids that callers see are strings.
"""

from sqlalchemy import (
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.types import BigInteger

from services.access import Scope
from services.domain.jobs import JobKind, JobState, TrainingState
from services.domain.noise_scale import NoiseEstimate
from services.domain.radio import RadioModel
from services.domain.rounds import OPEN_STATES, CandidateOutcome, RoundState, RoundTerms, SlotOutcome
from services.domain.tasks import TaskOutcome, TaskState, TaskTerms
from services.storage.sql import Choice, Json, JsonOf, Serial, UtcDateTime, choice

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_open_states = ", ".join(f"'{state.value}'" for state in OPEN_STATES)

cells = Table(
    "cells",
    metadata,
    Column("cell_id", String(64), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("resource_blocks", Integer, nullable=False),
    Column("radio", JsonOf(RadioModel), nullable=False),
    CheckConstraint("resource_blocks > 0", name="blocks_positive"),
)

clients = Table(
    "clients",
    metadata,
    Column("serial", Serial, primary_key=True),
    Column("client_id", String(128), nullable=False, unique=True),
    Column("enrolled_at", UtcDateTime, nullable=False),
    Column("cell_id", ForeignKey("cells.cell_id"), nullable=False, index=True),
    CheckConstraint("length(client_id) > 0", name="client_id_not_empty"),
    sqlite_autoincrement=True,  # serials are not reused, so a report cannot belong to another client
)

client_labels = Table(
    "client_labels",
    metadata,
    Column("client_serial", ForeignKey("clients.serial", ondelete="CASCADE"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("value", String(128), nullable=False),
    Index(None, "name", "value", "client_serial"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", String(32), primary_key=True),
    Column("digest", LargeBinary(32), nullable=False),
    *choice("scope", Scope),
    Column("name", String(128), nullable=False),
    Column("client_serial", ForeignKey("clients.serial", ondelete="CASCADE"), index=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("revoked_at", UtcDateTime),
    Column("replaces", String(32)),  # the key that is revoked when this one is first used; null afterwards
    Index(None, "replaces", unique=True),
    CheckConstraint("(scope = 'client') = (client_serial IS NOT NULL)", name="client_keys_have_a_client"),
)

resource_reports = Table(
    "resource_reports",
    metadata,
    Column("serial", Serial, primary_key=True),
    Column("client_serial", ForeignKey("clients.serial", ondelete="CASCADE"), nullable=False),
    Column("task_serial", ForeignKey("tasks.serial", ondelete="CASCADE")),
    Column("throughput_bps", Float, nullable=False),
    Column("compute_samples_per_s", Float, nullable=False),
    Column("data_samples", BigInteger, nullable=False),
    Column("report_resource_blocks", Integer, nullable=False),
    Column("observed_at", UtcDateTime, nullable=False),
    Column("received_at", UtcDateTime, nullable=False),
    Column("radio", Json),
    Column("cell_id", String(64)),  # that the client said it is in; stays when the cell is removed
    # The upper bounds reject NaN, which PostgreSQL sorts above all numbers.
    CheckConstraint("throughput_bps > 0 AND throughput_bps < 1e18", name="throughput_positive"),
    CheckConstraint("compute_samples_per_s > 0 AND compute_samples_per_s < 1e18", name="compute_positive"),
    CheckConstraint("data_samples >= 0", name="data_not_negative"),
    CheckConstraint("report_resource_blocks > 0", name="blocks_positive"),
    Index(None, "client_serial", "observed_at", "serial"),
)

tasks = Table(
    "tasks",
    metadata,
    Column("serial", Serial, primary_key=True),
    Column("task_id", String(64), nullable=False, unique=True),
    *choice("state", TaskState, index=True),
    Column("created_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("outcome", Choice(TaskOutcome)),
    Column("model_version", Integer),
    Column("rounds", Integer, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("first_round_at", UtcDateTime),
    Column("terms", JsonOf(TaskTerms), nullable=False),
    Column("detail", Text),
    CheckConstraint("rounds >= 0 AND elapsed_s >= 0", name="progress_not_negative"),
    CheckConstraint(
        "(state IN ('finished', 'failed', 'cancelled')) = (ended_at IS NOT NULL)", name="end_known"
    ),
    CheckConstraint(
        "state NOT IN ('ready', 'running', 'finished') OR model_version IS NOT NULL", name="ready_with_model"
    ),
)

model_versions = Table(
    "model_versions",
    metadata,
    Column("task_serial", ForeignKey("tasks.serial"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, index=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("state_digest", String(64), index=True),  # the aggregator's state after this version
    Column("evaluation_error", Text),
    Column(
        "encoded_digest", String(64), index=True
    ),  # of the model as clients download it, if that is encoded
    Column("encoded_size_bytes", BigInteger),
    Column("upload_size_bytes", BigInteger),  # scheduled for an encoded update
    Column("download_size_bytes", BigInteger),  # scheduled for the encoded model
    Column("noise_estimate", JsonOf(NoiseEstimate)),  # of the updates up to this version
    CheckConstraint("version >= 0 AND size_bytes > 0", name="numbers_in_range"),
)

evaluations = Table(
    "evaluations",
    metadata,
    Column("task_serial", Serial, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("accuracy", Float, nullable=False),
    Column("loss", Float),
    Column("samples", BigInteger, nullable=False),
    Column("evaluated_at", UtcDateTime, nullable=False),
    ForeignKeyConstraint(
        ["task_serial", "version"], ["model_versions.task_serial", "model_versions.version"]
    ),
    CheckConstraint("accuracy >= 0 AND accuracy <= 1 AND samples > 0", name="numbers_in_range"),
)

evaluation_parts = Table(
    "evaluation_parts",
    metadata,
    Column("task_serial", Serial, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("samples", BigInteger, nullable=False),
    Column("correct", BigInteger, nullable=False),
    Column("loss_sum", Float),
    ForeignKeyConstraint(
        ["task_serial", "version"], ["model_versions.task_serial", "model_versions.version"]
    ),
    CheckConstraint("0 <= correct AND correct <= samples", name="numbers_in_range"),
)

device_evaluations = Table(
    "device_evaluations",
    metadata,
    Column("task_serial", Serial, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("client_id", String(128), primary_key=True),  # stays when the client is removed
    Column("accuracy", Float, nullable=False),
    Column("loss", Float),
    Column("samples", BigInteger, nullable=False),
    Column("received_at", UtcDateTime, nullable=False),
    ForeignKeyConstraint(
        ["task_serial", "version"], ["model_versions.task_serial", "model_versions.version"]
    ),
    CheckConstraint("accuracy >= 0 AND accuracy <= 1 AND samples > 0", name="numbers_in_range"),
)

rounds = Table(
    "rounds",
    metadata,
    Column("serial", Serial, primary_key=True),
    Column("round_id", String(64), nullable=False, unique=True),
    Column("task_serial", ForeignKey("tasks.serial"), nullable=False),
    Column("number", Integer, nullable=False),
    *choice("state", RoundState, index=True),
    Column("model_version", Integer, nullable=False),
    Column("clients", Integer, nullable=False),
    Column("asked", Integer, nullable=False),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("window_ends_at", UtcDateTime),
    Column("started_at", UtcDateTime),
    Column("upload_deadline_at", UtcDateTime),
    Column("active_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("outcome", String(64)),
    Column("selected", Integer, nullable=False),
    Column("received", Integer, nullable=False),
    Column("distribution_ns", BigInteger),
    Column("elapsed_ns", BigInteger),
    Column("upper_bound", Integer),
    Column("duration_s", Float),
    Column("task_elapsed_s", Float),
    Column("terms", JsonOf(RoundTerms), nullable=False),
    Column("median_update_norm", Float),
    Column("median_statistics_norm", Float),
    Column("latest_ns", BigInteger),
    UniqueConstraint("task_serial", "number"),
    ForeignKeyConstraint(
        ["task_serial", "model_version"], ["model_versions.task_serial", "model_versions.version"]
    ),
    CheckConstraint(
        "0 <= received AND received <= selected AND selected <= asked AND asked <= clients",
        name="counts_nested",
    ),
    CheckConstraint(f"(state IN ({_open_states})) = (ended_at IS NULL)", name="end_known"),
    CheckConstraint(
        "state = 'requesting' OR state = 'cancelled' OR started_at IS NOT NULL", name="start_known"
    ),
    # A task has at most one open round.
    Index(
        "uq_rounds_open",
        "task_serial",
        unique=True,
        sqlite_where=text(f"state IN ({_open_states})"),
        postgresql_where=text(f"state IN ({_open_states})"),
    ),
)

candidates = Table(
    "candidates",
    metadata,
    Column("round_serial", ForeignKey("rounds.serial"), primary_key=True),
    Column("client_id", String(128), primary_key=True),  # stays when the client is removed
    Column("position", Integer, nullable=False),
    *choice("outcome", CandidateOutcome),
    Column("throughput_bps", Float),
    Column("compute_samples_per_s", Float),
    Column("data_samples", BigInteger),
    Column("update_ns", BigInteger),
    Column("upload_ns", BigInteger),
    Column("cost_ns", BigInteger),
    Column("cell_id", String(64), nullable=False),  # when it was drawn; stays when the cell is removed
    Column("expected_throughput_bps", Float),  # null: as reported
    Column("expected_compute_samples_per_s", Float),
    sqlite_with_rowid=False,
)

round_cells = Table(
    "round_cells",
    metadata,
    Column("round_serial", ForeignKey("rounds.serial", ondelete="CASCADE"), primary_key=True),
    Column("cell_id", String(64), primary_key=True),  # stays when the cell is removed
    Column("resource_block_first", Integer, nullable=False),
    Column("resource_block_count", Integer, nullable=False),
    Column("distribution_ns", BigInteger),
    Column("elapsed_ns", BigInteger),
    CheckConstraint("resource_block_first >= 0 AND resource_block_count > 0", name="blocks_in_range"),
)

held_blocks = Table(
    "held_blocks",
    metadata,
    # The key is what makes it impossible to give a block to two rounds.
    Column("cell_id", ForeignKey("cells.cell_id"), primary_key=True),
    Column("block", Integer, primary_key=True, autoincrement=False),
    Column("round_serial", ForeignKey("rounds.serial", ondelete="CASCADE"), nullable=False, index=True),
    CheckConstraint("block >= 0", name="block_not_negative"),
    sqlite_with_rowid=False,
)

allocations = Table(
    "allocations",
    metadata,
    Column("round_serial", ForeignKey("rounds.serial", ondelete="CASCADE"), primary_key=True),
    Column("cell_id", ForeignKey("cells.cell_id", ondelete="CASCADE"), primary_key=True),
    Column("resource_block_first", Integer, nullable=False),
    Column("resource_block_count", Integer, nullable=False),
    Column("held_from", UtcDateTime, nullable=False),
    Column("held_until", UtcDateTime),
    Index(None, "cell_id", "held_until"),
    Index(
        "ix_allocations_live",
        "round_serial",
        sqlite_where=text("held_until IS NULL"),
        postgresql_where=text("held_until IS NULL"),
    ),
    CheckConstraint("resource_block_first >= 0 AND resource_block_count > 0", name="blocks_in_range"),
    CheckConstraint("held_until >= held_from", name="ends_later"),
)

waiting_tasks = Table(
    "waiting_tasks",
    metadata,
    Column("task_serial", ForeignKey("tasks.serial", ondelete="CASCADE"), primary_key=True),
    Column("since", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),  # null: until it is served
    Column("overtaken", Integer, nullable=False),
    Column("cell_ids", Json, nullable=False),  # in which it wants blocks
    CheckConstraint("overtaken >= 0", name="overtaken_not_negative"),
)

slots = Table(
    "slots",
    metadata,
    Column("round_serial", Serial, primary_key=True),
    Column("client_id", String(128), primary_key=True, index=True),
    Column("order", Integer, nullable=False),
    Column("data_samples", BigInteger, nullable=False),
    Column("update_ns", BigInteger, nullable=False),
    Column("upload_ns", BigInteger, nullable=False),
    Column("upload_start_ns", BigInteger, nullable=False),
    Column("upload_end_ns", BigInteger, nullable=False),
    Column("window_start_ns", BigInteger, nullable=False),
    Column("window_end_ns", BigInteger, nullable=False),
    Column("time_slot_first", BigInteger, nullable=False),
    Column("time_slot_count", BigInteger, nullable=False),
    *choice("outcome", SlotOutcome),
    Column("model_fetched_at", UtcDateTime),
    Column("uploaded_at", UtcDateTime),
    Column("elapsed_s", Float),
    Column("actual_update_s", Float),
    Column("actual_upload_s", Float),
    Column("rejections", Integer, nullable=False),
    Column("last_rejection", Text),
    Column("weight", BigInteger),
    Column("update_norm", Float),
    Column("statistics_norm", Float),
    Column("update_scale", Float),
    Column("statistics_scale", Float),
    Column("cell_id", String(64), nullable=False),
    Column("ready_ns", BigInteger),
    Column("fresh_upload_ns", BigInteger),
    Column("granted_ns", BigInteger),
    Column("grant_expires_ns", BigInteger),
    Column("lapses", Integer, nullable=False),
    Column("replaces", String(128)),  # stays when the client is removed
    ForeignKeyConstraint(["round_serial", "client_id"], ["candidates.round_serial", "candidates.client_id"]),
    ForeignKeyConstraint(["round_serial", "cell_id"], ["round_cells.round_serial", "round_cells.cell_id"]),
    UniqueConstraint("round_serial", "cell_id", "order"),
    CheckConstraint("upload_end_ns = upload_start_ns + upload_ns", name="upload_adds_up"),
    CheckConstraint("window_end_ns - window_start_ns = upload_ns", name="window_adds_up"),
    CheckConstraint("outcome <> 'received' OR uploaded_at IS NOT NULL", name="received_when"),
    CheckConstraint("granted_ns IS NULL OR ready_ns IS NOT NULL", name="ready_when_granted"),
    CheckConstraint(
        "grant_expires_ns IS NULL OR (granted_ns IS NOT NULL AND outcome = 'pending')", name="granted_when"
    ),
    # One client at a time holds the channel of a cell.
    Index(
        "uq_slots_channel",
        "round_serial",
        "cell_id",
        unique=True,
        sqlite_where=text("grant_expires_ns IS NOT NULL"),
        postgresql_where=text("grant_expires_ns IS NOT NULL"),
    ),
)

updates = Table(
    "updates",
    metadata,
    Column("round_serial", Serial, primary_key=True),
    Column("client_id", String(128), primary_key=True),
    Column("digest", String(64), nullable=False, index=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("data_samples", BigInteger, nullable=False),
    Column("received_at", UtcDateTime, nullable=False),
    ForeignKeyConstraint(["round_serial", "client_id"], ["slots.round_serial", "slots.client_id"]),
    CheckConstraint("size_bytes > 0 AND data_samples > 0", name="numbers_positive"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("serial", Serial, primary_key=True),
    Column("job_id", String(64), nullable=False, unique=True),
    *choice("kind", JobKind),
    *choice("state", JobState),
    Column("task_serial", ForeignKey("tasks.serial"), nullable=False, index=True),
    Column("round_serial", ForeignKey("rounds.serial"), index=True),
    Column("subject", Json, nullable=False),
    Column("subject_key", String(256), nullable=False, unique=True),  # no two jobs for the same work
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("token", Integer, nullable=False),
    Column("lease_expires_at", UtcDateTime),
    Column("published_at", UtcDateTime),
    Column("created_at", UtcDateTime, nullable=False),
    Column("finished_at", UtcDateTime),
    Column("error", Text),
    CheckConstraint("attempts <= max_attempts AND attempts >= 0", name="attempts_capped"),
    CheckConstraint("(state = 'leased') = (lease_expires_at IS NOT NULL)", name="lease_known"),
    Index(
        "ix_jobs_unfinished",
        "state",
        sqlite_where=text("state IN ('waiting', 'leased')"),
        postgresql_where=text("state IN ('waiting', 'leased')"),
    ),
)

job_refusals = Table(
    "job_refusals",
    metadata,
    Column("job_id", ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True),
    Column("worker_id", String(64), primary_key=True),  # stays when the worker has stopped
    Column("error", Text, nullable=False),
    Column("refused_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", String(64), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("queues", Json, nullable=False),
    Column("problems", Json, nullable=False),
    Column("started_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    CheckConstraint("expires_at > seen_at", name="expires_later"),
)

trainings = Table(
    "trainings",
    metadata,
    Column("training_id", String(64), primary_key=True),
    Column("round_serial", Serial, nullable=False),
    Column("client_id", String(128), nullable=False),
    Column("partition", BigInteger, nullable=False),
    *choice("state", TrainingState),
    Column("created_at", UtcDateTime, nullable=False),
    Column("ended_at", UtcDateTime),
    Column("digest", String(64), index=True),
    Column("size_bytes", BigInteger),
    Column("error", Text),
    ForeignKeyConstraint(["round_serial", "client_id"], ["slots.round_serial", "slots.client_id"]),
    UniqueConstraint("round_serial", "client_id"),
    CheckConstraint("(state = 'done') = (digest IS NOT NULL)", name="done_with_update"),
    CheckConstraint("partition >= 0", name="partition_not_negative"),
)

events = Table(
    "events",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(64), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("task_id", String(64)),
    Column("round_id", String(64)),
    Column("client_id", String(128)),
    Column("data", Json, nullable=False),
)

event_counter = Table(
    "event_counter",
    metadata,
    Column("counter", Integer, primary_key=True, autoincrement=False),
    Column("last_number", BigInteger, nullable=False),
    CheckConstraint("counter = 1", name="one_row"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("key_id", String(32), primary_key=True),
    Column("idempotency_key", String(256), primary_key=True),
    Column("fingerprint", LargeBinary(32), nullable=False),
    Column("status", Integer, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Column("created_at", UtcDateTime, nullable=False, index=True),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(64), nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
)
