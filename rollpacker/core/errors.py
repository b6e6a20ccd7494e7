"""Every error of the package. The process exit code follows from the branch.

    RollpackerError
    ├── UserError         exit 2   the user's mistake
    │   ├── ConfigError            a key, a value or a combination in the configuration
    │   ├── DataError              the prompt file or another input file
    │   ├── ModelError             the model directory
    │   └── CheckpointError        a checkpoint that cannot be resumed
    ├── WorldError        exit 1   the world's failure
    │   ├── DeadlineExceeded       something did not answer in time
    │   ├── EngineFailed           an engine, trainer or reward process died or raised
    │   │   └── EngineRaised       it raised: the same work may fail again on another one
    │   ├── RepeatedFailure        engines fail alike, one after the other, with the same weights
    │   ├── PolicyDiverged         the loss, a gradient or a weight is no finite number
    │   ├── WrongSampling          engines draw tokens from another distribution than the policy's
    │   ├── WeightSyncFailed       an engine holds other weights than the trainer sent
    │   └── StorageFailed          a file could not be written (disk full, quota, permission)
    ├── Preempted          exit 75  the run left its machines in good order: a checkpoint says where to go on
    ├── Interrupted       exit 128 + the signal: Ctrl-C (130), SIGTERM (143) or SIGHUP (129) ended the run
    └── InternalError     exit 70  our bug: please report it with the event log
        ├── ImpossibleEvent        a machine was told something that cannot have happened
        ├── InvariantViolated      a machine's state contradicts itself
        ├── ForeignVersion         a batch holds tokens of another policy version
        └── ReplayDiverged         a log fed into fresh machines gave other commands

Errors cross process boundaries, so each one pickles: its constructor arguments are its `args`.
"""

from __future__ import annotations

EXIT_INTERRUPTED = 130
"""Of Ctrl-C where no run hears it: 128 + SIGINT, as shells report it."""


class RollpackerError(Exception):
    """An error in three parts: what was wrong with its value, what is allowed, what to do."""

    exit_code = 1

    def __init__(self, problem: str, allowed: str = "", remedy: str = "") -> None:
        super().__init__(problem, allowed, remedy)
        self.problem = problem
        self.allowed = allowed
        self.remedy = remedy

    def __str__(self) -> str:
        return "\n".join(part for part in (self.problem, self.allowed, self.remedy) if part)


class UserError(RollpackerError):
    exit_code = 2


class ConfigError(UserError):
    pass


class DataError(UserError):
    pass


class ModelError(UserError):
    pass


class CheckpointError(UserError):
    pass


class WorldError(RollpackerError):
    exit_code = 1


class DeadlineExceeded(WorldError):
    pass


class EngineFailed(WorldError):
    pass


class EngineRaised(EngineFailed):
    pass


class RepeatedFailure(WorldError):
    pass


class PolicyDiverged(WorldError):
    pass


class WrongSampling(WorldError):
    pass


class WeightSyncFailed(WorldError):
    pass


class StorageFailed(WorldError):
    pass


class Preempted(RollpackerError):
    exit_code = 75
    """EX_TEMPFAIL of sysexits.h: try again. It requeues nothing: `runtime.job.attempts` asks for that by a file."""


class Interrupted(RollpackerError):
    def __init__(self, problem: str, allowed: str = "", remedy: str = "", number: int = 2) -> None:
        """`number` is the signal's; 2 is SIGINT."""
        super().__init__(problem, allowed, remedy)
        self.args = (problem, allowed, remedy, number)
        self.exit_code = 128 + number


class InternalError(RollpackerError):
    exit_code = 70

    def __init__(
        self, problem: str, allowed: str = "", remedy: str = "This is a bug: please report it with the run's event log."
    ) -> None:
        super().__init__(problem, allowed, remedy)


class ImpossibleEvent(InternalError):
    pass


class InvariantViolated(InternalError):
    pass


class ForeignVersion(InternalError):
    pass


class ReplayDiverged(InternalError):
    pass
