"""Clients, reports, tasks, rounds, models, updates, jobs and events."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
JSON = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "clients",
        sa.Column("serial", SERIAL, nullable=False),
        sa.Column("client_id", sa.String(length=128), nullable=False),
        sa.Column("enrolled_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("length(client_id) > 0", name=op.f("ck_clients_client_id_not_empty")),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_clients")),
        sa.UniqueConstraint("client_id", name=op.f("uq_clients_client_id")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "event_counter",
        sa.Column("counter", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("last_number", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("counter = 1", name=op.f("ck_event_counter_one_row")),
        sa.PrimaryKeyConstraint("counter", name=op.f("pk_event_counter")),
    )
    op.create_table(
        "events",
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("task_id", sa.String(length=64), nullable=True),
        sa.Column("round_id", sa.String(length=64), nullable=True),
        sa.Column("client_id", sa.String(length=128), nullable=True),
        sa.Column("data", JSON, nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_events")),
    )
    op.create_table(
        "idempotency_keys",
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("idempotency_key", sa.String(length=256), nullable=False),
        sa.Column("fingerprint", sa.LargeBinary(length=32), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("answer", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key_id", "idempotency_key", name=op.f("pk_idempotency_keys")),
    )
    op.create_index(op.f("ix_idempotency_keys_created_at"), "idempotency_keys", ["created_at"])
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("holder", sa.String(length=64), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )
    op.create_table(
        "tasks",
        sa.Column("serial", SERIAL, nullable=False),
        sa.Column("task_id", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("model_version", sa.Integer(), nullable=True),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("elapsed_s", sa.Float(), nullable=False),
        sa.Column("first_round_at", sa.BigInteger(), nullable=True),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("model", sa.String(length=128), nullable=False),
        sa.Column("dataset", sa.String(length=128), nullable=True),
        sa.Column("partition_scheme", sa.String(32), nullable=False),
        sa.Column("local_epochs", sa.Integer(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("learning_rate", sa.Float(), nullable=False),
        sa.Column("learning_rate_decay", sa.Float(), nullable=False),
        sa.Column("aggregation", sa.String(32), nullable=False),
        sa.Column("policy", sa.String(length=32), nullable=False),
        sa.Column("round_deadline_s", sa.Float(), nullable=False),
        sa.Column("final_deadline_s", sa.Float(), nullable=True),
        sa.Column("request_fraction", sa.Float(), nullable=False),
        sa.Column("target_accuracy", sa.Float(), nullable=True),
        sa.Column("clock", sa.String(32), nullable=False),
        sa.Column("report_max_age_s", sa.Float(), nullable=False),
        sa.Column("report_window_s", sa.Float(), nullable=False),
        sa.Column("model_size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("selection_s", sa.Float(), nullable=False),
        sa.Column("aggregation_s", sa.Float(), nullable=False),
        sa.Column("resource_blocks", sa.Integer(), nullable=False),
        sa.Column("auto_advance", sa.Boolean(), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("labels", JSON, nullable=False),
        sa.Column("min_clients", sa.Integer(), nullable=False),
        sa.Column("min_updates", sa.Integer(), nullable=False),
        sa.Column("slot_enforcement", sa.String(32), nullable=False),
        sa.Column("slot_grace_s", sa.Float(), nullable=False),
        sa.Column("idle_timeout_s", sa.Float(), nullable=False),
        sa.CheckConstraint(
            "(state IN ('finished', 'failed', 'cancelled')) = (ended_at IS NOT NULL)",
            name=op.f("ck_tasks_end_known"),
        ),
        sa.CheckConstraint("aggregation IN ('weighted', 'uniform')", name=op.f("ck_tasks_aggregation_known")),
        sa.CheckConstraint("clock IN ('wall', 'simulated')", name=op.f("ck_tasks_clock_known")),
        sa.CheckConstraint(
            "partition_scheme IN ('iid', 'non_iid')", name=op.f("ck_tasks_partition_scheme_known")
        ),
        sa.CheckConstraint(
            "slot_enforcement IN ('deadline', 'strict')", name=op.f("ck_tasks_slot_enforcement_known")
        ),
        sa.CheckConstraint(
            "state IN ('initializing', 'ready', 'running', 'finished', 'failed', 'cancelled')",
            name=op.f("ck_tasks_state_known"),
        ),
        sa.CheckConstraint(
            "state NOT IN ('ready', 'running', 'finished') OR model_version IS NOT NULL",
            name=op.f("ck_tasks_ready_with_model"),
        ),
        sa.CheckConstraint("min_clients >= 1 AND min_updates >= 1", name=op.f("ck_tasks_minima_positive")),
        sa.CheckConstraint(
            "request_fraction > 0 AND request_fraction <= 1", name=op.f("ck_tasks_fraction_in_range")
        ),
        sa.CheckConstraint("round_deadline_s > 0", name=op.f("ck_tasks_deadline_positive")),
        sa.CheckConstraint("rounds >= 0 AND elapsed_s >= 0", name=op.f("ck_tasks_progress_not_negative")),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_tasks")),
        sa.UniqueConstraint("task_id", name=op.f("uq_tasks_task_id")),
    )
    op.create_index(op.f("ix_tasks_state"), "tasks", ["state"])
    op.create_table(
        "api_keys",
        sa.Column("key_id", sa.String(length=32), nullable=False),
        sa.Column("digest", sa.LargeBinary(length=32), nullable=False),
        sa.Column("scope", sa.String(32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("client_serial", SERIAL, nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "(scope = 'client') = (client_serial IS NOT NULL)",
            name=op.f("ck_api_keys_client_keys_have_a_client"),
        ),
        sa.CheckConstraint("scope IN ('read', 'manage', 'client')", name=op.f("ck_api_keys_scope_known")),
        sa.ForeignKeyConstraint(
            ["client_serial"], ["clients.serial"], name=op.f("fk_api_keys_client_serial"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("key_id", name=op.f("pk_api_keys")),
    )
    op.create_index(op.f("ix_api_keys_client_serial"), "api_keys", ["client_serial"])
    op.create_table(
        "client_labels",
        sa.Column("client_serial", SERIAL, nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(
            ["client_serial"],
            ["clients.serial"],
            name=op.f("fk_client_labels_client_serial"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("client_serial", "name", name=op.f("pk_client_labels")),
    )
    op.create_index(
        op.f("ix_client_labels_name_value_client_serial"),
        "client_labels",
        ["name", "value", "client_serial"],
    )
    op.create_table(
        "model_versions",
        sa.Column("task_serial", SERIAL, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "version >= 0 AND size_bytes > 0", name=op.f("ck_model_versions_numbers_in_range")
        ),
        sa.ForeignKeyConstraint(
            ["task_serial"], ["tasks.serial"], name=op.f("fk_model_versions_task_serial")
        ),
        sa.PrimaryKeyConstraint("task_serial", "version", name=op.f("pk_model_versions")),
    )
    op.create_index(op.f("ix_model_versions_digest"), "model_versions", ["digest"])
    op.create_table(
        "resource_reports",
        sa.Column("serial", SERIAL, nullable=False),
        sa.Column("client_serial", SERIAL, nullable=False),
        sa.Column("task_serial", SERIAL, nullable=True),
        sa.Column("throughput_bps", sa.Float(), nullable=False),
        sa.Column("compute_samples_per_s", sa.Float(), nullable=False),
        sa.Column("data_samples", sa.BigInteger(), nullable=False),
        sa.Column("report_resource_blocks", sa.Integer(), nullable=False),
        sa.Column("observed_at", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("radio", JSON, nullable=True),
        sa.CheckConstraint(
            "compute_samples_per_s > 0 AND compute_samples_per_s < 1e18",
            name=op.f("ck_resource_reports_compute_positive"),
        ),
        sa.CheckConstraint("data_samples >= 0", name=op.f("ck_resource_reports_data_not_negative")),
        sa.CheckConstraint("report_resource_blocks > 0", name=op.f("ck_resource_reports_blocks_positive")),
        sa.CheckConstraint(
            "throughput_bps > 0 AND throughput_bps < 1e18",
            name=op.f("ck_resource_reports_throughput_positive"),
        ),
        sa.ForeignKeyConstraint(
            ["client_serial"],
            ["clients.serial"],
            name=op.f("fk_resource_reports_client_serial"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["task_serial"],
            ["tasks.serial"],
            name=op.f("fk_resource_reports_task_serial"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_resource_reports")),
    )
    op.create_index(
        op.f("ix_resource_reports_client_serial_observed_at_serial"),
        "resource_reports",
        ["client_serial", "observed_at", "serial"],
    )
    op.create_table(
        "evaluations",
        sa.Column("task_serial", SERIAL, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("accuracy", sa.Float(), nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("evaluated_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "accuracy >= 0 AND accuracy <= 1 AND samples > 0", name=op.f("ck_evaluations_numbers_in_range")
        ),
        sa.ForeignKeyConstraint(
            ["task_serial", "version"],
            ["model_versions.task_serial", "model_versions.version"],
            name=op.f("fk_evaluations_task_serial_version"),
        ),
        sa.PrimaryKeyConstraint("task_serial", "version", name=op.f("pk_evaluations")),
    )
    op.create_table(
        "rounds",
        sa.Column("serial", SERIAL, nullable=False),
        sa.Column("round_id", sa.String(length=64), nullable=False),
        sa.Column("task_serial", SERIAL, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("model_version", sa.Integer(), nullable=False),
        sa.Column("clients", sa.Integer(), nullable=False),
        sa.Column("asked", sa.Integer(), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("window_ends_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("upload_deadline_at", sa.BigInteger(), nullable=True),
        sa.Column("active_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.String(length=64), nullable=True),
        sa.Column("selected", sa.Integer(), nullable=False),
        sa.Column("received", sa.Integer(), nullable=False),
        sa.Column("distribution_ns", sa.BigInteger(), nullable=True),
        sa.Column("elapsed_ns", sa.BigInteger(), nullable=True),
        sa.Column("upper_bound", sa.Integer(), nullable=True),
        sa.Column("duration_s", sa.Float(), nullable=True),
        sa.CheckConstraint(
            "(state IN ('requesting', 'scheduled', 'collecting', 'aggregating')) = (ended_at IS NULL)",
            name=op.f("ck_rounds_end_known"),
        ),
        sa.CheckConstraint(
            "state = 'requesting' OR state = 'cancelled' OR started_at IS NOT NULL",
            name=op.f("ck_rounds_start_known"),
        ),
        sa.CheckConstraint(
            "state IN ('requesting', 'scheduled', 'collecting', 'aggregating', 'aggregated', 'failed', 'cancelled')",
            name=op.f("ck_rounds_state_known"),
        ),
        sa.CheckConstraint(
            "0 <= received AND received <= selected AND selected <= asked AND asked <= clients",
            name=op.f("ck_rounds_counts_nested"),
        ),
        sa.ForeignKeyConstraint(
            ["task_serial", "model_version"],
            ["model_versions.task_serial", "model_versions.version"],
            name=op.f("fk_rounds_task_serial_model_version"),
        ),
        sa.ForeignKeyConstraint(["task_serial"], ["tasks.serial"], name=op.f("fk_rounds_task_serial")),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_rounds")),
        sa.UniqueConstraint("round_id", name=op.f("uq_rounds_round_id")),
        sa.UniqueConstraint("task_serial", "number", name=op.f("uq_rounds_task_serial_number")),
    )
    op.create_index(op.f("ix_rounds_state"), "rounds", ["state"])
    op.create_index(
        "uq_rounds_open",
        "rounds",
        ["task_serial"],
        unique=True,
        sqlite_where=sa.text("state IN ('requesting', 'scheduled', 'collecting', 'aggregating')"),
        postgresql_where=sa.text("state IN ('requesting', 'scheduled', 'collecting', 'aggregating')"),
    )
    op.create_table(
        "candidates",
        sa.Column("round_serial", SERIAL, nullable=False),
        sa.Column("client_id", sa.String(length=128), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("throughput_bps", sa.Float(), nullable=True),
        sa.Column("compute_samples_per_s", sa.Float(), nullable=True),
        sa.Column("data_samples", sa.BigInteger(), nullable=True),
        sa.Column("update_ns", sa.BigInteger(), nullable=True),
        sa.Column("upload_ns", sa.BigInteger(), nullable=True),
        sa.Column("cost_ns", sa.BigInteger(), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('ASKED', 'SELECTED', 'DEADLINE', 'NO_DATA', 'NO_REPORT')",
            name=op.f("ck_candidates_outcome_known"),
        ),
        sa.ForeignKeyConstraint(["round_serial"], ["rounds.serial"], name=op.f("fk_candidates_round_serial")),
        sa.PrimaryKeyConstraint("round_serial", "client_id", name=op.f("pk_candidates")),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "jobs",
        sa.Column("serial", SERIAL, nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("task_serial", SERIAL, nullable=False),
        sa.Column("round_serial", SERIAL, nullable=True),
        sa.Column("subject", JSON, nullable=False),
        sa.Column("subject_key", sa.String(length=256), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("token", sa.Integer(), nullable=False),
        sa.Column("lease_expires_at", sa.BigInteger(), nullable=True),
        sa.Column("published_at", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(state = 'leased') = (lease_expires_at IS NOT NULL)", name=op.f("ck_jobs_lease_known")
        ),
        sa.CheckConstraint(
            "kind IN ('initialize_model', 'train_client', 'aggregate_round', 'evaluate_model')",
            name=op.f("ck_jobs_kind_known"),
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'leased', 'done', 'failed', 'cancelled')", name=op.f("ck_jobs_state_known")
        ),
        sa.CheckConstraint(
            "attempts <= max_attempts AND attempts >= 0", name=op.f("ck_jobs_attempts_capped")
        ),
        sa.ForeignKeyConstraint(["round_serial"], ["rounds.serial"], name=op.f("fk_jobs_round_serial")),
        sa.ForeignKeyConstraint(["task_serial"], ["tasks.serial"], name=op.f("fk_jobs_task_serial")),
        sa.PrimaryKeyConstraint("serial", name=op.f("pk_jobs")),
        sa.UniqueConstraint("job_id", name=op.f("uq_jobs_job_id")),
        sa.UniqueConstraint("subject_key", name=op.f("uq_jobs_subject_key")),
    )
    op.create_index(op.f("ix_jobs_round_serial"), "jobs", ["round_serial"])
    op.create_index(op.f("ix_jobs_task_serial"), "jobs", ["task_serial"])
    op.create_index(
        "ix_jobs_unfinished",
        "jobs",
        ["state"],
        sqlite_where=sa.text("state IN ('waiting', 'leased')"),
        postgresql_where=sa.text("state IN ('waiting', 'leased')"),
    )
    op.create_table(
        "slots",
        sa.Column("round_serial", SERIAL, nullable=False),
        sa.Column("client_id", sa.String(length=128), nullable=False),
        sa.Column("order", sa.Integer(), nullable=False),
        sa.Column("data_samples", sa.BigInteger(), nullable=False),
        sa.Column("update_ns", sa.BigInteger(), nullable=False),
        sa.Column("upload_ns", sa.BigInteger(), nullable=False),
        sa.Column("upload_start_ns", sa.BigInteger(), nullable=False),
        sa.Column("upload_end_ns", sa.BigInteger(), nullable=False),
        sa.Column("window_start_ns", sa.BigInteger(), nullable=False),
        sa.Column("window_end_ns", sa.BigInteger(), nullable=False),
        sa.Column("time_slot_first", sa.BigInteger(), nullable=False),
        sa.Column("time_slot_count", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("model_fetched_at", sa.BigInteger(), nullable=True),
        sa.Column("uploaded_at", sa.BigInteger(), nullable=True),
        sa.Column("elapsed_s", sa.Float(), nullable=True),
        sa.Column("actual_update_s", sa.Float(), nullable=True),
        sa.Column("actual_upload_s", sa.Float(), nullable=True),
        sa.Column("rejections", sa.Integer(), nullable=False),
        sa.Column("last_rejection", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "outcome <> 'received' OR uploaded_at IS NOT NULL", name=op.f("ck_slots_received_when")
        ),
        sa.CheckConstraint(
            "outcome IN ('pending', 'received', 'late', 'rejected', 'missed')",
            name=op.f("ck_slots_outcome_known"),
        ),
        sa.CheckConstraint(
            "upload_end_ns = upload_start_ns + upload_ns", name=op.f("ck_slots_upload_adds_up")
        ),
        sa.CheckConstraint(
            "window_end_ns - window_start_ns = upload_ns", name=op.f("ck_slots_window_adds_up")
        ),
        sa.ForeignKeyConstraint(
            ["round_serial", "client_id"],
            ["candidates.round_serial", "candidates.client_id"],
            name=op.f("fk_slots_round_serial_client_id"),
        ),
        sa.PrimaryKeyConstraint("round_serial", "client_id", name=op.f("pk_slots")),
        sa.UniqueConstraint("round_serial", "order", name=op.f("uq_slots_round_serial_order")),
    )
    op.create_index(op.f("ix_slots_client_id"), "slots", ["client_id"])
    op.create_table(
        "trainings",
        sa.Column("training_id", sa.String(length=64), nullable=False),
        sa.Column("round_serial", SERIAL, nullable=False),
        sa.Column("client_id", sa.String(length=128), nullable=False),
        sa.Column("partition", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("digest", sa.String(length=64), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(state = 'done') = (digest IS NOT NULL)", name=op.f("ck_trainings_done_with_update")
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'done', 'failed', 'cancelled')", name=op.f("ck_trainings_state_known")
        ),
        sa.CheckConstraint("partition >= 0", name=op.f("ck_trainings_partition_not_negative")),
        sa.ForeignKeyConstraint(
            ["round_serial", "client_id"],
            ["slots.round_serial", "slots.client_id"],
            name=op.f("fk_trainings_round_serial_client_id"),
        ),
        sa.PrimaryKeyConstraint("training_id", name=op.f("pk_trainings")),
        sa.UniqueConstraint("round_serial", "client_id", name=op.f("uq_trainings_round_serial_client_id")),
    )
    op.create_index(op.f("ix_trainings_digest"), "trainings", ["digest"])
    op.create_table(
        "updates",
        sa.Column("round_serial", SERIAL, nullable=False),
        sa.Column("client_id", sa.String(length=128), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("data_samples", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("size_bytes > 0 AND data_samples > 0", name=op.f("ck_updates_numbers_positive")),
        sa.ForeignKeyConstraint(
            ["round_serial", "client_id"],
            ["slots.round_serial", "slots.client_id"],
            name=op.f("fk_updates_round_serial_client_id"),
        ),
        sa.PrimaryKeyConstraint("round_serial", "client_id", name=op.f("pk_updates")),
    )
    op.create_index(op.f("ix_updates_digest"), "updates", ["digest"])

    op.execute("INSERT INTO event_counter (counter, last_number) VALUES (1, 0)")


def downgrade() -> None:
    """Drop the tables with their indexes and everything in them."""
    for table in (
        "updates",
        "trainings",
        "slots",
        "jobs",
        "candidates",
        "rounds",
        "evaluations",
        "resource_reports",
        "model_versions",
        "client_labels",
        "api_keys",
        "tasks",
        "leases",
        "idempotency_keys",
        "events",
        "event_counter",
        "clients",
    ):
        op.drop_table(table)
