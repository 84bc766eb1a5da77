"""The errors a caller can do something about.

::

    FedCSError
    ├── SettingsError              the process cannot start with these settings
    ├── ServiceStartError          a service that was to be started did not come up
    ├── PlanFileError              a file of resource reports cannot be used
    ├── NotFoundError              there is no such thing
    │   └── Client-, Task-, Round-, Model-, Training-, KeyNotFoundError
    ├── NotAllowedError            not with this key
    │   └── NotSelectedError       the client has no slot in this round
    ├── ConflictError              not in this state
    │   ├── ClientExistsError, ModelNotReadyError, ModelExistsError
    │   ├── TaskOverError, RoundOpenError, EvaluationPendingError
    │   ├── NotScheduledError, RoundNotCollectingError
    │   ├── DeadlinePassedError, SlotNotOpenError, SlotClosedError, UpdateExistsError
    │   └── TrainingNotDoneError
    ├── UnacceptableError          understood, and refused
    │   ├── ScheduleTooLongError, BadTensorsError, DigestMismatchError
    │   └── ElapsedTimeError, IdempotencyKeyReusedError
    ├── ModelFileMissingError      the database refers to a model that the store has lost
    ├── WorkImpossibleError        a worker cannot do this work, however often it tries
    │   └── NetworkError, DataSetError, ImportRefusedError
    ├── ModelStoreAwayError        where model files are kept cannot be used now
    ├── TooLargeError              more bytes than allowed
    ├── StorageFullError           there is no room to keep it
    └── TooManyRequestsError       this key has asked too often

``cause`` is the machine-readable name, ``example`` a message for the documentation. What an error means in
HTTP is for the API to say.
"""

from typing import ClassVar


class FedCSError(Exception):
    """Anything the service refuses, said in a sentence for the caller."""

    cause: ClassVar[str]
    example: ClassVar[str] = ""


class SettingsError(FedCSError):
    """The process cannot start with these settings."""

    cause: ClassVar[str] = "BAD_SETTINGS"


class ServiceStartError(FedCSError):
    """A service that was to be started did not come up."""

    cause: ClassVar[str] = "SERVICE_NOT_STARTED"


class PlanFileError(FedCSError):
    """A file of resource reports cannot be used."""

    cause: ClassVar[str] = "BAD_PLAN_FILE"


class NotFoundError(FedCSError):
    """There is no such thing."""

    thing: ClassVar[str]

    def __init__(self, name: object) -> None:
        super().__init__(f"There is no {self.thing} {str(name)!r}.")


class ClientNotFoundError(NotFoundError):
    """No such client is enrolled."""

    cause: ClassVar[str] = "CLIENT_NOT_FOUND"
    thing: ClassVar[str] = "client"
    example: ClassVar[str] = "There is no client 'c1'."


class TaskNotFoundError(NotFoundError):
    """No such task."""

    cause: ClassVar[str] = "TASK_NOT_FOUND"
    thing: ClassVar[str] = "task"
    example: ClassVar[str] = "There is no task 'task-8f14e45fceea167a'."


class RoundNotFoundError(NotFoundError):
    """No such round."""

    cause: ClassVar[str] = "ROUND_NOT_FOUND"
    thing: ClassVar[str] = "round"
    example: ClassVar[str] = "There is no round 'round-c9f0f895fb98ab91'."


class ModelNotFoundError(NotFoundError):
    """No such version of the task's model."""

    cause: ClassVar[str] = "MODEL_NOT_FOUND"
    thing: ClassVar[str] = "model version"
    example: ClassVar[str] = "There is no model version '7'."


class TrainingNotFoundError(NotFoundError):
    """No such hosted training."""

    cause: ClassVar[str] = "TRAINING_NOT_FOUND"
    thing: ClassVar[str] = "training"
    example: ClassVar[str] = "There is no training 'training-45c48cce2e2d7fbd'."


class KeyNotFoundError(NotFoundError):
    """No such API key."""

    cause: ClassVar[str] = "KEY_NOT_FOUND"
    thing: ClassVar[str] = "key"
    example: ClassVar[str] = "There is no key 'd3d9446802a44259'."


class NotAllowedError(FedCSError):
    """The key is good, but not for this."""

    cause: ClassVar[str] = "FORBIDDEN"
    example: ClassVar[str] = "This key acts for the client 'c1' only."


class NotSelectedError(NotAllowedError):
    """The client has no slot in this round."""

    cause: ClassVar[str] = "NOT_SELECTED"
    example: ClassVar[str] = "The client 'c1' was not selected for the round 'round-c9f0f895fb98ab91'."


class ConflictError(FedCSError):
    """Not in the state that things are in."""


class ClientExistsError(ConflictError):
    """A client of this id is enrolled already."""

    cause: ClassVar[str] = "CLIENT_EXISTS"
    example: ClassVar[str] = "The client 'c1' is enrolled already."


class ModelNotReadyError(ConflictError):
    """The task has no initial model yet."""

    cause: ClassVar[str] = "MODEL_NOT_READY"
    example: ClassVar[str] = "The task has no initial model yet; wait for it, or set it."


class ModelExistsError(ConflictError):
    """The task has its initial model already."""

    cause: ClassVar[str] = "MODEL_EXISTS"
    example: ClassVar[str] = "The task has its initial model already, and it is another one."


class TaskOverError(ConflictError):
    """The task has ended, or no further round fits before its final deadline."""

    cause: ClassVar[str] = "TASK_OVER"
    example: ClassVar[str] = "The task is cancelled."


class RoundOpenError(ConflictError):
    """The task has a round that is not over."""

    cause: ClassVar[str] = "ROUND_OPEN"
    example: ClassVar[str] = "The task has an open round, 'round-c9f0f895fb98ab91'."


class EvaluationPendingError(ConflictError):
    """A task with a target accuracy waits for the evaluation of its newest model."""

    cause: ClassVar[str] = "EVALUATION_PENDING"
    example: ClassVar[str] = "The newest model is being evaluated; it may have reached the target."


class NotScheduledError(ConflictError):
    """The round has no schedule yet."""

    cause: ClassVar[str] = "NOT_SCHEDULED"
    example: ClassVar[str] = "The round has no schedule: no clients have been selected yet."


class RoundNotCollectingError(ConflictError):
    """The round takes no updates."""

    cause: ClassVar[str] = "ROUND_NOT_COLLECTING"
    example: ClassVar[str] = "The round is aggregated and takes no updates."


class DeadlinePassedError(ConflictError):
    """The update came after the upload deadline."""

    cause: ClassVar[str] = "DEADLINE_PASSED"
    example: ClassVar[str] = "The upload ended at 181.2 s of the round, the deadline was 180 s."


class SlotNotOpenError(ConflictError):
    """The client's own window has not begun."""

    cause: ClassVar[str] = "SLOT_NOT_OPEN"
    example: ClassVar[str] = "The slot opens at 36.9 s of the round; it is 12 s."

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SlotClosedError(ConflictError):
    """The client's own window is over."""

    cause: ClassVar[str] = "SLOT_CLOSED"
    example: ClassVar[str] = "The slot closed at 53.9 s of the round; it is 60 s."


class UpdateExistsError(ConflictError):
    """The client has sent another update for this round."""

    cause: ClassVar[str] = "UPDATE_EXISTS"
    example: ClassVar[str] = "The client 'c1' has sent another update for this round already."


class TrainingNotDoneError(ConflictError):
    """The hosted training has no result (yet, or any more)."""

    cause: ClassVar[str] = "TRAINING_NOT_DONE"
    example: ClassVar[str] = "The training is waiting."


class UnacceptableError(FedCSError):
    """The request is understood, and refused for what it says."""


class ScheduleTooLongError(UnacceptableError):
    """The selected clients would not be done within a lifetime."""

    cause: ClassVar[str] = "SCHEDULE_TOO_LONG"
    example: ClassVar[str] = "the 2 clients that 'fl' takes would need more than 18 years to upload"


class BadTensorsError(UnacceptableError):
    """A file of tensors is damaged, or not the model's."""

    cause: ClassVar[str] = "BAD_TENSORS"
    example: ClassVar[str] = "tensor 'fc.weight': shape [3, 4], expected [4, 3]"


class DigestMismatchError(UnacceptableError):
    """The bytes that arrived are not those that were announced."""

    cause: ClassVar[str] = "DIGEST_MISMATCH"
    example: ClassVar[str] = "The body does not have the SHA-256 digest that Content-Digest announces."


class ElapsedTimeError(UnacceptableError):
    """Elapsed time comes with the request on simulated tasks, and only there."""

    cause: ClassVar[str] = "ELAPSED_TIME"
    example: ClassVar[str] = "The task goes by the wall clock: Fedcs-Elapsed-S is for simulated ones."


class IdempotencyKeyReusedError(UnacceptableError):
    """An Idempotency-Key came again with another request."""

    cause: ClassVar[str] = "IDEMPOTENCY_KEY_REUSED"
    example: ClassVar[str] = "The Idempotency-Key 'k1' was used for another request."


class ModelFileMissingError(FedCSError):
    """The store does not have a model file, though it should: it was lost, or restored from an older copy."""

    cause: ClassVar[str] = "MODEL_FILE_MISSING"
    example: ClassVar[str] = f"The model file {'0f' * 32} is missing; restore it from a backup."

    def __init__(self, digest: str) -> None:
        super().__init__(f"The model file {digest} is missing; restore it from a backup.")


class WorkImpossibleError(FedCSError):
    """A worker cannot do this work, however often it tries; the message says what to do."""

    cause: ClassVar[str] = "WORK_IMPOSSIBLE"


class NetworkError(WorkImpossibleError):
    """There is no such network, or the model does not fit it."""


class DataSetError(WorkImpossibleError):
    """The data set cannot be read, or is too small."""


class ImportRefusedError(WorkImpossibleError):
    """A network or data set of one's own may not or cannot be imported."""


class ModelStoreAwayError(FedCSError):
    """Where model files are kept cannot be used now; later it may."""

    cause: ClassVar[str] = "MODEL_STORE_AWAY"
    example: ClassVar[str] = "The model store s3://models cannot be used: connection refused."


class TooLargeError(FedCSError):
    """More bytes than are allowed."""

    cause: ClassVar[str] = "BODY_TOO_LARGE"
    example: ClassVar[str] = "The body is larger than 67108864 bytes."


class StorageFullError(FedCSError):
    """There is no room to keep what came: the disk, or the database, is full."""

    cause: ClassVar[str] = "STORAGE_FULL"
    example: ClassVar[str] = "The service has no room left; nothing was kept."

    def __init__(self) -> None:
        super().__init__(self.example)


class TooManyRequestsError(FedCSError):
    """The key has asked too often."""

    cause: ClassVar[str] = "TOO_MANY_REQUESTS"
    example: ClassVar[str] = "This key may ask 50 per 1 second."

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
