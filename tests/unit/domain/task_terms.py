"""The terms of a task as the paper has them, and of its round, for tests to change."""

from services.domain.rounds import terms_of_round
from services.domain.tasks import Clock, PartitionScheme, SlotEnforcement, TaskTerms

TERMS = TaskTerms(
    name="",
    model="paper-cnn",
    dataset=None,
    partition_scheme=PartitionScheme.IID,
    local_epochs=5,
    batch_size=50,
    learning_rate=0.25,
    learning_rate_decay=0.99,
    aggregation="weighted",
    policy="fedcs",
    round_deadline_s=180.0,
    final_deadline_s=None,
    request_fraction=0.1,
    target_accuracy=None,
    clock=Clock.WALL,
    report_max_age_s=3600.0,
    report_window_s=0.0,
    model_size_bytes=None,
    selection_s=0.0,
    aggregation_s=0.0,
    resource_blocks=10,
    auto_advance=False,
    seed=0,
    labels={},
    min_clients=1,
    min_updates=1,
    slot_enforcement=SlotEnforcement.DEADLINE,
    slot_grace_s=1.0,
    idle_timeout_s=3600.0,
    max_update_norm=None,
)
ROUND_TERMS = terms_of_round(TERMS, model_size_bytes=18_300_000)
