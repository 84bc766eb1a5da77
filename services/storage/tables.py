"""The tables. Whatever must never be false is a constraint here, not only a check in code.

Rows refer to one another by ``serial`` numbers; the ids that callers see are strings.
"""

from sqlalchemy import (
    Boolean,
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
from services.domain.jobs import JobKind, JobState
from services.domain.rounds import OPEN_STATES, CandidateOutcome, RoundState, SlotOutcome
from services.domain.tasks import AggregationRule, Clock, PartitionScheme, SlotEnforcement, TaskState
from services.domain.trainings import TrainingState
from services.storage.columns import Json, Moment, Serial, choice

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

clients = Table(
    "clients",
    metadata,
    Column("serial", Serial, primary_key=True),
    Column("client_id", String(128), nullable=False, unique=True),
    Column("enrolled_at", Moment, nullable=False),
    CheckConstraint("length(client_id) > 0", name="client_id_not_empty"),
    sqlite_autoincrement=True,  # a serial never comes back, so no report can fall to another client
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
    Column("created_at", Moment, nullable=False),
    Column("revoked_at", Moment),
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
    Column("observed_at", Moment, nullable=False),
    Column("received_at", Moment, nullable=False),
    Column("radio", Json),
    # The upper bounds keep out NaN, which PostgreSQL puts above all numbers.
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
    Column("created_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("outcome", Text),
    Column("model_version", Integer),
    Column("rounds", Integer, nullable=False),
    Column("elapsed_s", Float, nullable=False),
    Column("first_round_at", Moment),
    # What the operator set: the fields of TaskTerms.
    Column("name", String(128), nullable=False),
    Column("model", String(128), nullable=False),
    Column("dataset", String(128)),
    *choice("partition_scheme", PartitionScheme),
    Column("local_epochs", Integer, nullable=False),
    Column("batch_size", Integer, nullable=False),
    Column("learning_rate", Float, nullable=False),
    Column("learning_rate_decay", Float, nullable=False),
    *choice("aggregation", AggregationRule),
    Column("policy", String(32), nullable=False),
    Column("round_deadline_s", Float, nullable=False),
    Column("final_deadline_s", Float),
    Column("request_fraction", Float, nullable=False),
    Column("target_accuracy", Float),
    *choice("clock", Clock),
    Column("report_max_age_s", Float, nullable=False),
    Column("report_window_s", Float, nullable=False),
    Column("model_size_bytes", BigInteger),
    Column("selection_s", Float, nullable=False),
    Column("aggregation_s", Float, nullable=False),
    Column("resource_blocks", Integer, nullable=False),
    Column("auto_advance", Boolean, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("labels", Json, nullable=False),
    Column("min_clients", Integer, nullable=False),
    Column("min_updates", Integer, nullable=False),
    *choice("slot_enforcement", SlotEnforcement),
    Column("slot_grace_s", Float, nullable=False),
    Column("idle_timeout_s", Float, nullable=False),
    Column("max_update_norm", Float),
    CheckConstraint("round_deadline_s > 0", name="deadline_positive"),
    CheckConstraint("request_fraction > 0 AND request_fraction <= 1", name="fraction_in_range"),
    CheckConstraint("rounds >= 0 AND elapsed_s >= 0", name="progress_not_negative"),
    CheckConstraint("min_clients >= 1 AND min_updates >= 1", name="minima_positive"),
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
    Column("created_at", Moment, nullable=False),
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
    Column("evaluated_at", Moment, nullable=False),
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
    Column("opened_at", Moment, nullable=False),
    Column("window_ends_at", Moment),
    Column("started_at", Moment),
    Column("upload_deadline_at", Moment),
    Column("active_at", Moment, nullable=False),
    Column("ended_at", Moment),
    Column("outcome", String(64)),
    Column("selected", Integer, nullable=False),
    Column("received", Integer, nullable=False),
    Column("distribution_ns", BigInteger),
    Column("elapsed_ns", BigInteger),
    Column("upper_bound", Integer),
    Column("duration_s", Float),
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
    # At most one round of a task is under way.
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
    sqlite_with_rowid=False,
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
    Column("model_fetched_at", Moment),
    Column("uploaded_at", Moment),
    Column("elapsed_s", Float),
    Column("actual_update_s", Float),
    Column("actual_upload_s", Float),
    Column("rejections", Integer, nullable=False),
    Column("last_rejection", Text),
    ForeignKeyConstraint(["round_serial", "client_id"], ["candidates.round_serial", "candidates.client_id"]),
    UniqueConstraint("round_serial", "order"),
    CheckConstraint("upload_end_ns = upload_start_ns + upload_ns", name="upload_adds_up"),
    CheckConstraint("window_end_ns - window_start_ns = upload_ns", name="window_adds_up"),
    CheckConstraint("outcome <> 'received' OR uploaded_at IS NOT NULL", name="received_when"),
)

updates = Table(
    "updates",
    metadata,
    Column("round_serial", Serial, primary_key=True),
    Column("client_id", String(128), primary_key=True),
    Column("digest", String(64), nullable=False, index=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("data_samples", BigInteger, nullable=False),
    Column("received_at", Moment, nullable=False),
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
    Column("subject_key", String(256), nullable=False, unique=True),  # the same work is never asked for twice
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("token", Integer, nullable=False),
    Column("lease_expires_at", Moment),
    Column("published_at", Moment),
    Column("created_at", Moment, nullable=False),
    Column("finished_at", Moment),
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

trainings = Table(
    "trainings",
    metadata,
    Column("training_id", String(64), primary_key=True),
    Column("round_serial", Serial, nullable=False),
    Column("client_id", String(128), nullable=False),
    Column("partition", BigInteger, nullable=False),
    *choice("state", TrainingState),
    Column("created_at", Moment, nullable=False),
    Column("ended_at", Moment),
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
    Column("at", Moment, nullable=False),
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
    Column("created_at", Moment, nullable=False, index=True),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(64), nullable=False),
    Column("expires_at", Moment, nullable=False),
)
