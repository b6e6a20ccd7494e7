"""Orders that the machines give to drivers, in the imperative. The union `Command` is closed.

A driver carries out every command once and in order, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, WorkerId


class RoundKind(StrEnum):
    """How a round treats its prompts (paper, section 3)."""

    PLAIN = "plain"
    """Every response of every prompt is waited for: the synchronous baseline."""
    SHORT = "short"
    """More prompts and responses than needed race; the slow ones are aborted and their prompts deferred."""
    LONG = "long"
    """Deferred prompts run to their end, without speculation."""
    ASYNC = "async"
    """Responses go on over several steps; a batch is made of those that are complete."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawPrompts:
    """Take the next prompts of a domain from the prompt order; answered by one `PromptsDrawn`."""

    domain: Domain
    num_prompts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginRound:
    """A round starts; its `Launch` commands follow at once, with dynamic sampling some of them later."""

    round: int
    step: int
    kind: RoundKind
    num_prompts_launched: int
    """With dynamic sampling, without those that take the place of dropped ones."""
    num_prompts_needed: int
    """Prompts in the batch; what is launched beyond it is speculation. With dynamic sampling it may turn out smaller
    when the data ends."""
    num_responses_launched: int
    """Per prompt."""
    num_responses_needed: int
    """Per prompt, the GRPO group."""

    @property
    def races(self) -> bool:
        """Whether more is under way than is trained, so that what ends first is in the batch."""
        return (
            self.kind is RoundKind.ASYNC
            or self.num_prompts_launched > self.num_prompts_needed
            or self.num_responses_launched > self.num_responses_needed
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Generate one response on an engine; one that was evicted goes on from the tokens that it has."""

    request: RequestId
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Stop a request; answered by `ResponseAborted`, or by `ResponseFinished` if the abort lost the race.

    A request that was told to leave its engine before is answered for once: by either of these or by `ResponseEvicted`.
    """

    request: RequestId
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Take a request off an engine and keep its tokens; answered by `ResponseEvicted`, and a `Launch` follows that.

    If it was done before, the answer is `ResponseFinished`. If an `Abort` comes after it, nothing is launched.
    """

    request: RequestId
    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEnvironment:
    """Reset an environment for a trajectory, which begins, or begins again without what it had."""

    request: RequestId
    call: int
    """Its number among the calls to the request's environments, which the answer carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnvironment:
    """Give the environment of a trajectory the turn that the policy wrote last."""

    request: RequestId
    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEnvironment:
    """Let go of the environment of a trajectory, whatever it does; an answer that is on its way is late."""

    request: RequestId
    reason: str
    """`finished`, `stopped` where the trajectory is not needed any more, or how the environment failed."""
    begins_again: bool = False
    """The trajectory gets another one; else, if its environment failed, it is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResponse:
    """Compute the reward of a finished response; answered by `RewardComputed`."""

    request: RequestId
    case_limits_s: tuple[float, ...] = ()
    """How long each test case may run; the last one holds for all further cases. Empty: the reward's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptGroup:
    """A prompt won its place in the batch: its group may be trained from now on."""

    round: int
    """Of its requests; in an asynchronous run, in which a round is a step, an earlier one than the batch's perhaps."""
    prompt: PromptId
    samples: tuple[int, ...]
    """Indices of the accepted samples, ascending; exactly the group size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferPrompts:
    """These prompts wait for a long round and never raced: their history says that they are long."""

    round: int
    """That they were drawn for."""
    prompts: tuple[PromptId, ...]
    """In the order in which they join the long queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropPrompt:
    """Never train or queue a prompt: its group's rewards are all equal (DAPO), or its environment keeps failing."""

    round: int
    prompt: PromptId


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRound:
    """The batch is complete."""

    round: int
    step: int
    """That the batch is for."""
    prompts: tuple[PromptId, ...]
    """The accepted prompts in launch order: the canonical order of the batch, whatever order they finished in."""
    long_queue_length: int
    """Deferred prompts that wait for a long round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginEvaluation:
    """The policy is evaluated on the held-out sets; the `Launch` commands follow at once.

    After a `BeginRound` it fills that round: its requests are launched behind those of training, as there is room.
    """

    step: int
    """Finished steps."""
    num_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvaluation:
    """Every held-out response has its reward, or what has none was stopped: the engines were wanted for too long."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureProgress:
    """Ask every engine how far its requests are; answered by one `ProgressMeasured`."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LendEngines:
    """Choose these engines to be lent to the trainer until the step's weights are published (paper, section 4.4).

    Their requests are evicted; `StreamGroups` follows when the last one has left.
    """

    round: int
    engines: tuple[EngineId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGroups:
    """Let accepted groups stream to the trainer from now on."""

    round: int
    engines: tuple[EngineId, ...] = ()
    """Lent engines, which are empty, sleep, and leave their GPUs to it. Empty: it has GPUs of its own, idle so far."""
    groups_per_call: int | None = None
    """The trainer gets so many at a time at most; None: all that are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseParallelism:
    """Generate the next round on engines of another tensor-parallel degree.

    Carried out between rounds: each new engine is reported by `EngineJoined`, then each old one by `EngineRetired`.
    """

    tensor_parallel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EscalateTail:
    """Choose engines of a larger tensor-parallel degree for the rest of a round.

    Requests are evicted from all engines; `SwitchEngines` follows when the last one has left.
    """

    round: int
    tensor_parallel: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchEngines:
    """Let engines of another degree take the place of those of now, which are empty, in the midst of a round.

    Each new engine whose GPUs are not lent is reported by `EngineJoined`, then each old one by `EngineRetired`, and
    then `EnginesSwitched`.
    """

    round: int
    tensor_parallel: int


class DraftRule(NamedTuple):
    """How many draft tokens of each sequence a decode pass verifies, for batches of some sizes."""

    max_sequences: int
    """Holds for batches of up to so many sequences, and of more than the rule before it."""
    draft_length: int
    """Of every pass but the trials; 0 is plain decoding."""
    trial_length: int
    """Of each `trial_every`-th pass."""
    trial_every: int
    """Counted by an engine over all its passes under a rule for these sizes, earlier orders' too; 0 is never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UseDraftLengths:
    """Decode by these rules from now on, on every engine, before it gets its next `Launch`."""

    rules: tuple[DraftRule, ...]
    """Ascending in `max_sequences`; larger batches than the last rule's decode plainly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer:
    """Report `TimerFired` at a time, once; a timer of this name that has not fired yet is moved."""

    timer: str
    at_s: float
    """Seconds since the run began; one that has passed is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEngine:
    """Start a fresh engine in a slot; answered by `EngineStarted` or `EngineStartFailed`."""

    slot: EngineId
    engine: EngineId
    """Its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelStart:
    """Give up the start of an engine: its GPUs are wanted. An answer that is on its way is late."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMember:
    """Start an engine of a rollout worker; answered by `EngineStarted` or `EngineStartFailed`."""

    worker: WorkerId
    engine: EngineId
    """Its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPolicy:
    """Have an engine of a worker fetch a published policy; answered by `EngineUpdated` or `FetchFailed`.

    It takes the place of an earlier order to the engine, which is not answered, or late. Nothing is in flight on it.
    """

    engine: EngineId
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DismissWorker:
    """Have a rollout worker leave: from now on it has no engine, and what was in flight there is launched elsewhere.

    Answered by `WorkerLeft`; whatever else it, or an engine of its, still says is late.
    """

    worker: WorkerId
    reason: str
    """As a sentence."""
    may_return: bool
    """Whether its element may have another life."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WishWorkers:
    """Have so many rollout workers, no more, as far as the cluster has room for them."""

    num_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimEngines:
    """Take lent engines back from the trainer in the middle of a round, what it has learned kept.

    Answered by `EnginesReturned`; groups stream again after the next `StreamGroups`.
    """

    round: int
    engines: tuple[EngineId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailWithoutEngines:
    """The run fails: no engine is left that could go on, and none is to come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailRun:
    """The run fails: every prompt of a round was dropped, or as many were launched as may be and places are open."""

    round: int
    num_prompts_launched: int
    num_prompts_dropped: int
    num_prompts_needed: int
    """Places of the batch that are open; where every prompt was dropped, as many as were launched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    """All data has been trained, or dropped; there is no further round. An open round has no batch then."""


Command = (
    DrawPrompts
    | BeginRound
    | Launch
    | Abort
    | Evict
    | OpenEnvironment
    | StepEnvironment
    | CloseEnvironment
    | ScoreResponse
    | AcceptGroup
    | DeferPrompts
    | DropPrompt
    | EndRound
    | BeginEvaluation
    | EndEvaluation
    | MeasureProgress
    | LendEngines
    | StreamGroups
    | UseParallelism
    | EscalateTail
    | SwitchEngines
    | UseDraftLengths
    | SetTimer
    | StartEngine
    | CancelStart
    | StartMember
    | FetchPolicy
    | DismissWorker
    | WishWorkers
    | ReclaimEngines
    | FailWithoutEngines
    | FailRun
    | EndRun
)
