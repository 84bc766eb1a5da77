"""The errors that the service reports to its callers and operators.

``cause`` is the machine-readable name, ``example`` a message for the documentation. The API maps errors to
HTTP status codes.
"""

from collections.abc import Sequence
from typing import ClassVar


class FedCSError(Exception):
    """Base class. The message is a sentence for the caller."""

    cause: ClassVar[str]
    example: ClassVar[str] = ""


class SettingsError(FedCSError):
    """A setting is missing or invalid, so the process cannot start."""

    cause: ClassVar[str] = "BAD_SETTINGS"


class ServiceStartError(FedCSError):
    """A service process did not start."""

    cause: ClassVar[str] = "SERVICE_NOT_STARTED"


class PlanFileError(FedCSError):
    """A file of resource reports is invalid."""

    cause: ClassVar[str] = "BAD_PLAN_FILE"


class RetryLaterError(FedCSError):
    """The same request may succeed after ``retry_after_s``."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotFoundError(FedCSError):
    """The resource does not exist."""

    thing: ClassVar[str]

    def __init__(self, name: object) -> None:
        super().__init__(f"There is no {self.thing} {str(name)!r}.")


class ClientNotFoundError(NotFoundError):
    """The client is not enrolled."""

    cause: ClassVar[str] = "CLIENT_NOT_FOUND"
    thing: ClassVar[str] = "client"
    example: ClassVar[str] = "There is no client 'c1'."


class TaskNotFoundError(NotFoundError):
    """The task does not exist."""

    cause: ClassVar[str] = "TASK_NOT_FOUND"
    thing: ClassVar[str] = "task"
    example: ClassVar[str] = "There is no task 'task-8f14e45fceea167a'."


class RoundNotFoundError(NotFoundError):
    """The round does not exist."""

    cause: ClassVar[str] = "ROUND_NOT_FOUND"
    thing: ClassVar[str] = "round"
    example: ClassVar[str] = "There is no round 'round-c9f0f895fb98ab91'."


class ModelNotFoundError(NotFoundError):
    """The task has no such model version."""

    cause: ClassVar[str] = "MODEL_NOT_FOUND"
    thing: ClassVar[str] = "model version"
    example: ClassVar[str] = "There is no model version '7'."


class TrainingNotFoundError(NotFoundError):
    """The hosted training does not exist."""

    cause: ClassVar[str] = "TRAINING_NOT_FOUND"
    thing: ClassVar[str] = "training"
    example: ClassVar[str] = "There is no training 'training-45c48cce2e2d7fbd'."


class KeyNotFoundError(NotFoundError):
    """The API key does not exist."""

    cause: ClassVar[str] = "KEY_NOT_FOUND"
    thing: ClassVar[str] = "key"
    example: ClassVar[str] = "There is no key 'd3d9446802a44259'."


class CellNotFoundError(NotFoundError):
    """No such cell."""

    cause: ClassVar[str] = "CELL_NOT_FOUND"
    thing: ClassVar[str] = "cell"
    example: ClassVar[str] = "There is no cell 'north'."


class NotAllowedError(FedCSError):
    """The key is valid but does not permit this request."""

    cause: ClassVar[str] = "FORBIDDEN"
    example: ClassVar[str] = "This key acts for the client 'c1' only."


class NotSelectedError(NotAllowedError):
    """The client has no slot in this round."""

    cause: ClassVar[str] = "NOT_SELECTED"
    example: ClassVar[str] = "The client 'c1' was not selected for the round 'round-c9f0f895fb98ab91'."


class ConflictError(FedCSError):
    """The current state does not permit the request."""


class ClientExistsError(ConflictError):
    """A client with this id is already enrolled."""

    cause: ClassVar[str] = "CLIENT_EXISTS"
    example: ClassVar[str] = "The client 'c1' is already enrolled."


class TooManyKeysError(ConflictError):
    """The client has reached the maximum number of keys."""

    cause: ClassVar[str] = "TOO_MANY_KEYS"
    example: ClassVar[str] = "The client 'c1' has 5 keys. Revoke one first."


class ModelNotReadyError(ConflictError):
    """The task has no initial model yet."""

    cause: ClassVar[str] = "MODEL_NOT_READY"
    example: ClassVar[str] = (
        "The task has no initial model yet. Wait for a worker to create it, or upload one."
    )


class ModelExistsError(ConflictError):
    """The task already has an initial model."""

    cause: ClassVar[str] = "MODEL_EXISTS"
    example: ClassVar[str] = "The task has its initial model already, and it is another one."


class TaskOverError(ConflictError):
    """The task has ended, or no further round fits before its final deadline."""

    cause: ClassVar[str] = "TASK_OVER"
    example: ClassVar[str] = "The task is cancelled."


class TaskNotOverError(ConflictError):
    """The task has not ended, and this can be done to ended tasks only."""

    cause: ClassVar[str] = "TASK_NOT_OVER"
    example: ClassVar[str] = "The task is running; finish or cancel it first."


class NoDataSetError(ConflictError):
    """The task has no data set, and this needs one."""

    cause: ClassVar[str] = "NO_DATASET"
    example: ClassVar[str] = "The task has no dataset, so no accuracy is measured."


class EvaluationExistsError(ConflictError):
    """The client has evaluated this model version already."""

    cause: ClassVar[str] = "EVALUATION_EXISTS"
    example: ClassVar[str] = "The client 'c1' has evaluated version 3 already."


class RoundOpenError(ConflictError):
    """The task has an open round."""

    cause: ClassVar[str] = "ROUND_OPEN"
    example: ClassVar[str] = "The task has an open round, 'round-c9f0f895fb98ab91'."


class EvaluationPendingError(ConflictError):
    """The task has a target accuracy, and its newest model is still being evaluated."""

    cause: ClassVar[str] = "EVALUATION_PENDING"
    example: ClassVar[str] = (
        "The newest model is still being evaluated against the target accuracy. Try again later."
    )


class CellExistsError(ConflictError):
    """There is a cell of this id already."""

    cause: ClassVar[str] = "CELL_EXISTS"
    example: ClassVar[str] = "There is a cell 'north' already."


class CellInUseError(ConflictError):
    """The cell has clients, or a round holds resource blocks of it."""

    cause: ClassVar[str] = "CELL_IN_USE"
    example: ClassVar[str] = "There are clients in the cell 'north'; move them first."


class ResourceBlocksBusyError(ConflictError, RetryLaterError):
    """Other rounds hold the resource blocks that the task needs, or a task that waits comes first.

    ``cell_ids``: the cells in which the task waits for blocks.
    """

    cause: ClassVar[str] = "RESOURCE_BLOCKS_BUSY"
    example: ClassVar[str] = "The cell 'north' has no 10 free resource blocks."

    def __init__(self, message: str, retry_after_s: float, cell_ids: Sequence[str] = ()) -> None:
        super().__init__(message, retry_after_s)
        self.cell_ids = cell_ids


class NotScheduledError(ConflictError):
    """The round has no schedule yet."""

    cause: ClassVar[str] = "NOT_SCHEDULED"
    example: ClassVar[str] = "The round has no schedule: no clients have been selected yet."


class RoundNotCollectingError(ConflictError):
    """The round does not accept updates."""

    cause: ClassVar[str] = "ROUND_NOT_COLLECTING"
    example: ClassVar[str] = "The round is aggregated and does not accept updates."


class DeadlinePassedError(ConflictError):
    """The update arrived after the upload deadline."""

    cause: ClassVar[str] = "DEADLINE_PASSED"
    example: ClassVar[str] = "The upload ended at 181.2 s of the round, the deadline was 180 s."


class SlotNotOpenError(ConflictError, RetryLaterError):
    """The upload window of the client's slot is not open yet."""

    cause: ClassVar[str] = "SLOT_NOT_OPEN"
    example: ClassVar[str] = "The slot opens at 36.9 s of the round; it is 12 s."


class SlotClosedError(ConflictError):
    """The upload window of the client's slot is closed."""

    cause: ClassVar[str] = "SLOT_CLOSED"
    example: ClassVar[str] = "The slot closed at 53.9 s of the round; it is 60 s."


class ChannelNotGrantedError(ConflictError, RetryLaterError):
    """The channel is not granted to the client; call ready, and upload when it is."""

    cause: ClassVar[str] = "CHANNEL_NOT_GRANTED"
    example: ClassVar[str] = "The channel is granted to another client. Call ready, and wait for the grant."


class TimeNotMonotonicError(ConflictError):
    """A call on a simulated clock says an earlier time than the one before."""

    cause: ClassVar[str] = "TIME_NOT_MONOTONIC"
    example: ClassVar[str] = "elapsed_s is 12, and the round has come to 15.5 s."


class NotOnReadyError(ConflictError):
    """The round does not grant the channel: clients upload in the planned order."""

    cause: ClassVar[str] = "NOT_ON_READY"
    example: ClassVar[str] = "The round has dispatch 'scheduled': upload in the slot."


class UpdateExistsError(ConflictError):
    """The client already sent a different update for this round."""

    cause: ClassVar[str] = "UPDATE_EXISTS"
    example: ClassVar[str] = "The client 'c1' already sent a different update for this round."


class TrainingNotDoneError(ConflictError):
    """The hosted training has no result: it is not finished, or its result was deleted."""

    cause: ClassVar[str] = "TRAINING_NOT_DONE"
    example: ClassVar[str] = "The training is waiting."


class UnacceptableError(FedCSError):
    """The content of the request is invalid."""


class BadTensorsError(UnacceptableError):
    """A safetensors file is damaged or does not match the model."""

    cause: ClassVar[str] = "BAD_TENSORS"
    example: ClassVar[str] = "tensor 'fc.weight': shape [3, 4], expected [4, 3]"


class DigestMismatchError(UnacceptableError):
    """The body does not match its ``Content-Digest``."""

    cause: ClassVar[str] = "DIGEST_MISMATCH"
    example: ClassVar[str] = "The body does not have the SHA-256 digest that Content-Digest announces."


class ElapsedTimeError(UnacceptableError):
    """``Fedcs-Elapsed-S`` is missing on a simulated task, or was sent on a wall-clock task."""

    cause: ClassVar[str] = "ELAPSED_TIME"
    example: ClassVar[str] = "The task goes by the wall clock: Fedcs-Elapsed-S is for simulated ones."


class DataSamplesError(UnacceptableError):
    """The update claims more samples than the client reported."""

    cause: ClassVar[str] = "DATA_SAMPLES"
    example: ClassVar[str] = "Fedcs-Data-Samples is 500, and the client reported 200 for this round."


class EncodingMismatchError(UnacceptableError):
    """An update came in another encoding than the round's."""

    cause: ClassVar[str] = "ENCODING_MISMATCH"
    example: ClassVar[str] = "Fedcs-Encoding is 'float32', and updates of this round are 'int8'."


class IdempotencyKeyReusedError(UnacceptableError):
    """The Idempotency-Key was already used for a different request."""

    cause: ClassVar[str] = "IDEMPOTENCY_KEY_REUSED"
    example: ClassVar[str] = "The Idempotency-Key 'k1' was used for another request."


class ModelFileMissingError(FedCSError):
    """A model file is missing in the store: it was lost, or an older backup was restored."""

    cause: ClassVar[str] = "MODEL_FILE_MISSING"
    example: ClassVar[str] = f"The model file {'0f' * 32} is missing; restore it from a backup."

    def __init__(self, digest: str) -> None:
        super().__init__(f"The model file {digest} is missing; restore it from a backup.")


class WorkImpossibleError(FedCSError):
    """No worker can do the job, and a retry does not help. The message says what to do."""

    cause: ClassVar[str] = "WORK_IMPOSSIBLE"


class NetworkError(WorkImpossibleError):
    """The network does not exist, or the model does not fit it."""


class DataSetError(WorkImpossibleError):
    """The data set does not exist, or it is too small."""


class HostError(FedCSError):
    """The host cannot do the job; another host may. The message says what to do."""

    cause: ClassVar[str] = "HOST_ERROR"


class DataSetUnavailableError(HostError):
    """The data set cannot be read on this host."""


class ImportRefusedError(HostError):
    """A user-defined network or data set is not allowed or cannot be imported on this host."""


class DeviceError(HostError):
    """The device of this host cannot be used."""


class ModelStoreUnavailableError(FedCSError):
    """The model store cannot be reached or used; a retry may succeed."""

    cause: ClassVar[str] = "MODEL_STORE_AWAY"
    example: ClassVar[str] = "The model store s3://models cannot be used: connection refused."


class TooLargeError(FedCSError):
    """The body exceeds the size limit."""

    cause: ClassVar[str] = "BODY_TOO_LARGE"
    example: ClassVar[str] = "The body is larger than 67108864 bytes."


class StorageFullError(FedCSError):
    """The disk or the database is full."""

    cause: ClassVar[str] = "STORAGE_FULL"
    example: ClassVar[str] = "The service has no room left; nothing was kept."

    def __init__(self) -> None:
        super().__init__(self.example)


class ServiceBusyError(RetryLaterError):
    """Too many slow requests are running."""

    cause: ClassVar[str] = "SERVICE_BUSY"
    example: ClassVar[str] = "50 charts and plans are being made. Ask again later."


class TooManyRequestsError(RetryLaterError):
    """The caller exceeded its rate limit."""

    cause: ClassVar[str] = "TOO_MANY_REQUESTS"
    example: ClassVar[str] = "The rate limit is 50 per 1 second."
