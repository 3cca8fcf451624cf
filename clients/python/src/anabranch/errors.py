"""The errors that calls raise: one class for each reason. Generated from error.proto by generate_errors.py."""

# ruff: noqa: PLC0414 (type checkers take an alias of the same name as an export)

from __future__ import annotations

from anabranch._wire.errors import AnabranchError as AnabranchError
from anabranch._wire.errors import Diverged as Diverged
from anabranch._wire.errors import IncompatibleVersion as IncompatibleVersion
from anabranch._wire.errors import NoLocalServer as NoLocalServer
from anabranch._wire.errors import RecorderClosed as RecorderClosed
from anabranch._wire.errors import SpoolFull as SpoolFull
from anabranch._wire.errors import StepTooLarge as StepTooLarge
from anabranch._wire.errors import Unreachable as Unreachable


class InvalidRequest(AnabranchError):
    """INVALID_ARGUMENT. A field violates its rule. The `google.rpc.BadRequest` lists at most 20 fields, and
    fewer if they do not fit. Metadata: `violations_left_out` (number of fields that are not listed; unset if all
    are).
    """


class InvalidPageToken(AnabranchError):
    """INVALID_ARGUMENT. The page token was not returned by a call with the same filter and order."""


class MessageTooLarge(AnabranchError):
    """RESOURCE_EXHAUSTED. A message exceeds 1 MiB or 131,072 values."""


class TrajectoryNotFound(AnabranchError):
    """NOT_FOUND. No trajectory has this id (or this uid), or it was deleted. Metadata: `trajectory_id`."""


class StepNotFound(AnabranchError):
    """NOT_FOUND. The trajectory has no step with this number. Metadata: `trajectory_id`, `step_number`,
    `next_step_number`.
    """


class CheckpointNotFound(AnabranchError):
    """NOT_FOUND. No step in the requested range has the requested states. Metadata: `trajectory_id`."""


class TagNotFound(AnabranchError):
    """NOT_FOUND. The trajectory has no tag with this name. Metadata: `trajectory_id`, `tag`."""


class StateNotFound(AnabranchError):
    """NOT_FOUND when a state is read, FAILED_PRECONDITION when a step refers to it: no state with this digest is
    stored, or the step has no state of this name. Metadata: `digest`; for a state of a step instead
    `trajectory_id`, `step_number`, `name`.
    """


class TrajectoryExists(AnabranchError):
    """ALREADY_EXISTS. The id is in use. It may belong to a deleted trajectory whose steps are kept for branches
    or whose rows are still being removed. Metadata: `trajectory_id`.
    """


class RequestIdReused(AnabranchError):
    """ALREADY_EXISTS. The request id was used for a different request of the same RPC. Metadata: `request_id`."""


class UnexpectedPosition(AnabranchError):
    """FAILED_PRECONDITION. The end of the trajectory differs from `expected_next_step_number`. Metadata:
    `next_step_number`.
    """


class WriterFenced(AnabranchError):
    """FAILED_PRECONDITION. Another writer holds the trajectory, or a newer epoch was granted. Metadata:
    `writer_id`, `writer_epoch`.
    """


class StepConflict(AnabranchError):
    """ALREADY_EXISTS. A step with this number is stored with different content. Metadata: `step_number`,
    `next_step_number`.
    """


class StepGap(AnabranchError):
    """OUT_OF_RANGE. The step number is beyond the end of the trajectory. Metadata: `step_number`,
    `next_step_number` (the expected number).
    """


class TrajectorySealed(AnabranchError):
    """FAILED_PRECONDITION. The trajectory is sealed and accepts no more steps. Branch it to continue. Metadata:
    `status`, `next_step_number`.
    """


class StateConflict(AnabranchError):
    """ALREADY_EXISTS. The step has a different state with this name. Metadata: `step_number`, `state_name`."""


class BranchPointBeyondEnd(AnabranchError):
    """OUT_OF_RANGE. The branch point is not a stored step. Metadata: `step_number`, `next_step_number`."""


class HasBranches(AnabranchError):
    """FAILED_PRECONDITION. The resource has branches that would not be deleted with it, and `on_branches` is
    REFUSE. Metadata: `branch_ids` (up to 20 trajectories or runs, separated by commas).
    """


class TrajectoryDeleted(AnabranchError):
    """ABORTED. The trajectory was deleted while it was read or written. Metadata: `trajectory_id`."""


class RangeBeyondEnd(AnabranchError):
    """OUT_OF_RANGE. The range begins beyond the end of the trajectory or of the state. Metadata:
    `next_step_number` or `size`.
    """


class TagMoved(AnabranchError):
    """FAILED_PRECONDITION. The tag does not point to `expected_step_number`. Metadata: `step_number` (the
    current step; -1 if the tag does not exist).
    """


class DigestMismatch(AnabranchError):
    """INVALID_ARGUMENT. The content does not have the digest that the request states. Metadata:
    `expected_digest`, `digest`.
    """


class StateCorrupt(AnabranchError):
    """DATA_LOSS. A stored state does not have its digest any more: the storage is damaged. Metadata: `digest`."""


class StorageFull(AnabranchError):
    """RESOURCE_EXHAUSTED. The disk is full. Nothing was written; reads still work. Comes with RetryInfo."""


class DatabaseUnavailable(AnabranchError):
    """UNAVAILABLE. The database does not respond. A write that was not acknowledged may have been stored: send
    it again. Comes with RetryInfo.
    """


class ServerDraining(AnabranchError):
    """UNAVAILABLE. The server is shutting down. Everything that it had read is committed and acknowledged.
    Reconnect. Comes with RetryInfo.
    """


class SlowReader(AnabranchError):
    """RESOURCE_EXHAUSTED. The client read too slowly. Continue from `next_step_number`. Metadata:
    `next_step_number`.
    """


class Unimplemented(AnabranchError):
    """UNIMPLEMENTED. The RPC does not exist, or the protocol cannot carry it (bidirectional streams require
    HTTP/2). Metadata: `rpc` (its path) and `version` (of the server), if the RPC does not exist.
    """


class Cancelled(AnabranchError):
    """CANCELLED. The caller cancelled the call."""


class DeadlineExceeded(AnabranchError):
    """DEADLINE_EXCEEDED. The deadline of the caller passed. A write that was not acknowledged may have been
    stored: send it again.
    """


class Internal(AnabranchError):
    """INTERNAL. A defect of the server. Metadata: `error_id`; the log of the server has the details under this
    id.
    """


class ExperimentNotFound(AnabranchError):
    """NOT_FOUND. No experiment has this id or name, or it was deleted. Metadata: `experiment`."""


class RunNotFound(AnabranchError):
    """NOT_FOUND. No run has this id or name, or it was deleted. Metadata: `run`."""


class StageNotFound(AnabranchError):
    """NOT_FOUND. No stage has this id or number, or no stage has a model checkpoint. Metadata: `stage` or `run`."""


class ExperimentExists(AnabranchError):
    """ALREADY_EXISTS. An experiment with this id or name exists. Metadata: `experiment`."""


class RunExists(AnabranchError):
    """ALREADY_EXISTS. A run with this id, or with this name in the experiment, exists. Metadata: `run`, `run_id`
    (id of the existing run).
    """


class ConfigMismatch(AnabranchError):
    """FAILED_PRECONDITION. With if_exists RETURN_EXISTING: the run was created with a different config or plan,
    or another request created the trajectory. Metadata: `run_id`, `fields` (paths, separated by commas),
    `trajectory_id`.
    """


class NoMainTrajectory(AnabranchError):
    """FAILED_PRECONDITION. The run has no main trajectory to branch or compare. Metadata: `run_id`."""


class IllegalTransition(AnabranchError):
    """FAILED_PRECONDITION. The verb, or the new status of an environment, is not allowed in the current status.
    Metadata: `status` (the current status), and `verb` or `requested_status`.
    """


class ResultConflict(AnabranchError):
    """ALREADY_EXISTS. The verb has already taken effect, with a different message or result; for a rollout also
    with different metrics, timings or validations. Metadata: `status`, and `verb` (except for an environment).
    """


class RunDeleted(AnabranchError):
    """ABORTED. The run was deleted while it was watched. Metadata: `run_id`."""


class TaskNotFound(AnabranchError):
    """NOT_FOUND. The catalogue has no task with this id. Metadata: `task`."""


class GroupNotFound(AnabranchError):
    """NOT_FOUND. No group has this id or number, or it was deleted. Metadata: `group`."""


class RolloutNotFound(AnabranchError):
    """NOT_FOUND. No rollout has this id, or it was deleted. Metadata: `rollout`."""


class EnvironmentNotFound(AnabranchError):
    """NOT_FOUND. No environment has this id, or it was deleted. Metadata: `environment`."""


class RolloutExists(AnabranchError):
    """ALREADY_EXISTS. The requested id belongs to another rollout. Metadata: `rollout`."""


class EnvironmentExists(AnabranchError):
    """ALREADY_EXISTS. The requested id belongs to an environment of another run. Metadata: `environment`."""


class LeaseLost(AnabranchError):
    """FAILED_PRECONDITION. The attempt no longer holds the rollout: its lease expired, or the rollout was
    released, retried or cancelled. Stop working on it. Metadata: `rollout`, `attempt` (the current attempt),
    `status`.
    """


class RunActive(AnabranchError):
    """FAILED_PRECONDITION. Rollouts of the resource to delete are INITIALIZING or RUNNING, and `cancel_live` is
    not set. Metadata: `rollouts` (their number).
    """


class MessageTimeout(AnabranchError):
    """DEADLINE_EXCEEDED. A message of the request was not complete 30 s after its first byte. Nothing of that
    message was stored; complete messages before it were handled.
    """


class BranchTooDeep(AnabranchError):
    """FAILED_PRECONDITION. A branch would be deeper than 10,000. Metadata: `trajectory_id` (the owner of the
    branch point), `depth` (of that trajectory).
    """


class TooManyConnections(AnabranchError):
    """UNAVAILABLE. As many connections are open as the server accepts, and all of them have calls under way.
    Nothing was done. Comes with RetryInfo.
    """


class NoAttempt(AnabranchError):
    """FAILED_PRECONDITION. A verdict, metrics, timings or environments were sent for an attempt that has not
    begun. Metadata: `rollout`, `attempt` (the last one that began; 0: none).
    """


class RolloutConflict(AnabranchError):
    """ALREADY_EXISTS. A rollout of that group and number was created with other values. Metadata: `rollout`,
    `fields` (names of the fields that differ, separated by commas).
    """


class QueueClosed(AnabranchError):
    """FAILED_PRECONDITION. CreateRollouts would create a rollout in a stage whose queue is closed. Metadata:
    `stage`.
    """


class StepCorrupt(AnabranchError):
    """DATA_LOSS. Stored steps do not have their checksum any more: the storage is damaged. Metadata:
    `first_step_number`, `next_step_number` (the damaged steps, end exclusive). Other steps of the trajectory can
    be read.
    """


class StageNotClaimable(AnabranchError):
    """FAILED_PRECONDITION. CreateRollouts with `claim` would create a rollout that cannot be claimed, because
    the stage or its run has ended, or the run is paused. Metadata: `stage`, `stage_status`, `run_status`.
    """


class ClaimsTooLarge(AnabranchError):
    """FAILED_PRECONDITION. The claims of CreateRollouts do not fit into one response. Metadata: `rollouts` (how
    many of the rollouts that would be created, from the first on, fit).
    """


class StatePruned(AnabranchError):
    """FAILED_PRECONDITION. Retention removed this state from its step; the step still has its name, digest and
    size. Metadata: `trajectory_id`, `step_number`, `name`, `digest`, `pruned_time`.
    """


class RetentionPolicyNotFound(AnabranchError):
    """NOT_FOUND. No retention policy with this name is stored. Metadata: `retention_policy`."""


class SqliteOnly(AnabranchError):
    """FAILED_PRECONDITION. The call works on SQLite only, and the database is Postgres."""


class ArchiveInvalid(AnabranchError):
    """INVALID_ARGUMENT. The archive is damaged, cut off, of another version or namespace, or was not written by
    an export. Metadata: `place`.
    """


class ImportConflict(AnabranchError):
    """ALREADY_EXISTS. Another resource with the id, the name or the number is stored. Metadata: `resource`."""


class ImportSuperseded(AnabranchError):
    """ABORTED. Another import of the same trajectory has begun, or the import was idle for a day. Metadata:
    `trajectory_id`.
    """


class StorageLost(AnabranchError):
    """UNAVAILABLE. The file of the SQLite database, or its log, was removed, renamed, replaced, emptied,
    overwritten or given another name (by a hard link or a mount) while it was served. It is unknown whether the
    call was stored. The server exits. Comes with RetryInfo.
    """


class DatabaseReadOnly(AnabranchError):
    """UNAVAILABLE. The database accepts no writes: an operator made it read-only, or it is a standby. Nothing
    was stored. Comes with RetryInfo.
    """


class BackupInProgress(AnabranchError):
    """RESOURCE_EXHAUSTED. The server makes one copy of its database at a time, and another caller reads it.
    Comes with RetryInfo.
    """


class MemoryFull(AnabranchError):
    """RESOURCE_EXHAUSTED. The memory of the server is nearly full, so it accepts no message of more than 4 KiB.
    Nothing of the message was stored. Comes with RetryInfo.
    """


class Unauthenticated(AnabranchError):
    """UNAUTHENTICATED. The call has no credential, or one that is not accepted (any more). Metadata: `fault`
    (missing, malformed, repeated, expired, unknown, revoked, algorithm, signature, key_unknown, issuer,
    audience, claims, not_yet_valid, untrusted, names or changed).
    """


class PermissionDenied(AnabranchError):
    """PERMISSION_DENIED. The credential does not allow the call: its subject has no role, its role is too low,
    it is not for the namespace, or another principal holds the rollout. Metadata: `needed_role` and `role`
    (held), or `namespace`, or `rollout`.
    """


class ApiKeyNotFound(AnabranchError):
    """NOT_FOUND. No API key has this id. Metadata: `key_id`."""


class CallerLimit(AnabranchError):
    """RESOURCE_EXHAUSTED. The caller does too much at once: its principal has too many calls, followers or
    watched subjects, or its address has too many connections that have not shown a valid credential. Nothing was
    done. Comes with RetryInfo. Metadata: `limit` (its name in GetServerInfo), `most`.
    """


BY_REASON: dict[str, type[AnabranchError]] = {
    "INVALID_REQUEST": InvalidRequest,
    "INVALID_PAGE_TOKEN": InvalidPageToken,
    "MESSAGE_TOO_LARGE": MessageTooLarge,
    "TRAJECTORY_NOT_FOUND": TrajectoryNotFound,
    "STEP_NOT_FOUND": StepNotFound,
    "CHECKPOINT_NOT_FOUND": CheckpointNotFound,
    "TAG_NOT_FOUND": TagNotFound,
    "STATE_NOT_FOUND": StateNotFound,
    "TRAJECTORY_EXISTS": TrajectoryExists,
    "REQUEST_ID_REUSED": RequestIdReused,
    "UNEXPECTED_POSITION": UnexpectedPosition,
    "WRITER_FENCED": WriterFenced,
    "STEP_CONFLICT": StepConflict,
    "STEP_GAP": StepGap,
    "TRAJECTORY_SEALED": TrajectorySealed,
    "STATE_CONFLICT": StateConflict,
    "BRANCH_POINT_BEYOND_END": BranchPointBeyondEnd,
    "HAS_BRANCHES": HasBranches,
    "TRAJECTORY_DELETED": TrajectoryDeleted,
    "RANGE_BEYOND_END": RangeBeyondEnd,
    "TAG_MOVED": TagMoved,
    "DIGEST_MISMATCH": DigestMismatch,
    "STATE_CORRUPT": StateCorrupt,
    "STORAGE_FULL": StorageFull,
    "DATABASE_UNAVAILABLE": DatabaseUnavailable,
    "SERVER_DRAINING": ServerDraining,
    "SLOW_READER": SlowReader,
    "UNIMPLEMENTED": Unimplemented,
    "CANCELLED": Cancelled,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "INTERNAL": Internal,
    "EXPERIMENT_NOT_FOUND": ExperimentNotFound,
    "RUN_NOT_FOUND": RunNotFound,
    "STAGE_NOT_FOUND": StageNotFound,
    "EXPERIMENT_EXISTS": ExperimentExists,
    "RUN_EXISTS": RunExists,
    "CONFIG_MISMATCH": ConfigMismatch,
    "NO_MAIN_TRAJECTORY": NoMainTrajectory,
    "ILLEGAL_TRANSITION": IllegalTransition,
    "RESULT_CONFLICT": ResultConflict,
    "RUN_DELETED": RunDeleted,
    "TASK_NOT_FOUND": TaskNotFound,
    "GROUP_NOT_FOUND": GroupNotFound,
    "ROLLOUT_NOT_FOUND": RolloutNotFound,
    "ENVIRONMENT_NOT_FOUND": EnvironmentNotFound,
    "ROLLOUT_EXISTS": RolloutExists,
    "ENVIRONMENT_EXISTS": EnvironmentExists,
    "LEASE_LOST": LeaseLost,
    "RUN_ACTIVE": RunActive,
    "MESSAGE_TIMEOUT": MessageTimeout,
    "BRANCH_TOO_DEEP": BranchTooDeep,
    "TOO_MANY_CONNECTIONS": TooManyConnections,
    "NO_ATTEMPT": NoAttempt,
    "ROLLOUT_CONFLICT": RolloutConflict,
    "QUEUE_CLOSED": QueueClosed,
    "STEP_CORRUPT": StepCorrupt,
    "STAGE_NOT_CLAIMABLE": StageNotClaimable,
    "CLAIMS_TOO_LARGE": ClaimsTooLarge,
    "STATE_PRUNED": StatePruned,
    "RETENTION_POLICY_NOT_FOUND": RetentionPolicyNotFound,
    "SQLITE_ONLY": SqliteOnly,
    "ARCHIVE_INVALID": ArchiveInvalid,
    "IMPORT_CONFLICT": ImportConflict,
    "IMPORT_SUPERSEDED": ImportSuperseded,
    "STORAGE_LOST": StorageLost,
    "DATABASE_READ_ONLY": DatabaseReadOnly,
    "BACKUP_IN_PROGRESS": BackupInProgress,
    "MEMORY_FULL": MemoryFull,
    "UNAUTHENTICATED": Unauthenticated,
    "PERMISSION_DENIED": PermissionDenied,
    "API_KEY_NOT_FOUND": ApiKeyNotFound,
    "CALLER_LIMIT": CallerLimit,
}
