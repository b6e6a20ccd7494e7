"""Facts that drivers report to the machines, in the past tense. The union `Event` is closed.

A driver reports what happened, in the order in which it learned of it, and nothing else. Late facts are legal: an
abort can lose the race with the last token, and the machines ignore what no longer matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from rollpacker.core.environment_events import EnvironmentBegan, EnvironmentFailed, EnvironmentStepped, TurnFinished
from rollpacker.core.ids import Domain, EngineId, PromptId, RequestId, VersionSpan, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJoined:
    """An engine is up and holds a policy."""

    engine: EngineId
    policy_version: int
    """That it holds, by checksum."""
    gpus: tuple[int, ...] = ()
    """The run's GPUs that it works on, counted over all nodes, ascending; empty if it shares none with the trainer."""
    kv_tokens: int = 0
    """Capacity of its KV cache; 0 where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUpdated:
    """An engine holds another policy version, by checksum; of a member: as ordered.

    Nothing is in flight on it, unless engines keep requests (`system.interrupt=keep`): those go on under this version.
    """

    engine: EngineId
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLost:
    """An engine died; every request that ran on it is gone. What comes in its place joins under a name of its own."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRetired:
    """An engine sleeps, as ordered by `UseParallelism` or `SwitchEngines`; nothing was in flight on it."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsOpened:
    """An attempt of the run has started, with an engine in each of its slots; slots of an earlier one are no more."""

    slots: tuple[EngineId, ...]
    """Places for engines of all degrees, by the names of their first engines."""
    are_replaceable: bool = True
    """False: a lost engine leaves its slot empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsChanged:
    """Other slots than before are in use, or have GPUs that are the trainer's."""

    in_use: tuple[EngineId, ...]
    """Of the degree in use."""
    withheld: tuple[EngineId, ...] = ()
    """Of these, the ones whose GPUs are the trainer's for now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotVacated:
    """An engine was seen to fail. If it had joined, `EngineLost` follows, after the facts that it reported before."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStarted:
    """An engine that was ordered is up.

    One of `StartEngine` holds its weights, and `EngineJoined` follows when it can be used; one of `StartMember` holds
    none yet.
    """

    engine: EngineId
    kv_tokens: int = 0
    """Of a member, the capacity of its KV cache; 0 where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStartFailed:
    """An engine that `StartEngine` or `StartMember` ordered did not come up."""

    engine: EngineId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerArrived:
    """A rollout worker has joined the run; it has no engine yet."""

    worker: WorkerId
    num_engines: int
    """That fit on its GPUs, at least 1."""
    leaves_in_s: float | None = None
    """Until its job's time limit; None where it has none, or none is known."""
    mismatch: str = ""
    """Why its engines would not be those of this run, as a sentence; empty if they would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeGiven:
    """A rollout worker will be taken away; 0 seconds: at once. Of several ends that are known the first one counts."""

    worker: WorkerId
    leaves_in_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """A rollout worker is gone, and all of its engines with it."""

    worker: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPublished:
    """A policy version lies ready for the engines of workers, newer than all before; it is what rounds begin with."""

    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """An engine of a worker did not get a policy version, or holds other weights by checksum."""

    engine: EngineId
    policy_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired:
    """The time of a `SetTimer` has come."""

    timer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """The pipeline wants the batch of a training step."""

    step: int
    """From 0, one more than the last."""
    policy_version: int
    """The version that every engine holds now; in a synchronous run every trained token of the step comes from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyUpdated:
    """In an asynchronous run, engines are to get the next step's policy; nothing is launched until then.

    Where trainer and engines take turns on GPUs, it comes before the update, and otherwise after it.
    """

    step: int
    """That is trained."""
    policy_version: int
    """That the engines will hold."""
    empties_engines: bool = False
    """Before the next step they sleep, or all that they have generated is saved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOffered:
    """Between two steps, every engine holds the policy after so many of them: it may be evaluated now."""

    step: int
    """Finished steps, from 0."""
    policy_version: int
    """That every engine holds."""
    is_last: bool
    """No step comes after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesWanted:
    """The batch is complete, and the engines are needed for what comes next; only an evaluation may keep them."""

    step: int
    """That the batch is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsDrawn:
    """The prompt order answered a `DrawPrompts`."""

    domain: Domain
    prompts: tuple[PromptId, ...]
    """In order. Fewer than asked for only when the domain's data has ended."""
    is_exhausted: bool
    """True when the domain has no further prompt in this run (a limited number of epochs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseFinished:
    """An engine generated a response to its end."""

    request: RequestId
    engine: EngineId
    num_tokens: int
    spans: tuple[VersionSpan, ...]
    """Which versions produced its tokens, in order; together they are the response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseAborted:
    """An engine confirmed that it stopped a request early."""

    request: RequestId
    engine: EngineId
    num_tokens: int
    """Tokens generated before the stop, all wasted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseEvicted:
    """An engine let go of a request that it had not finished, as ordered by `Evict`.

    Late, as a finish may be, once the request's group is decided or the request runs elsewhere.
    """

    request: RequestId
    engine: EngineId
    num_tokens: int
    """Generated so far, and kept: the engine that goes on recomputes their KV cache by a prefill."""


class CaseRun(NamedTuple):
    """How one test case of a sandboxed program went."""

    case: int
    """Index among the prompt's test cases."""
    time_s: float
    """Until it ended or was stopped."""
    is_passed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardComputed:
    """A finished response has its reward."""

    request: RequestId
    reward: float
    case_runs: tuple[CaseRun, ...] = ()
    """Empty where nothing runs in a sandbox."""


class RunningRequest(NamedTuple):
    """How far one request is."""

    request: RequestId
    num_prompt_tokens: int
    num_generated_tokens: int


class EngineProgress(NamedTuple):
    """How far the requests of one engine are."""

    engine: EngineId
    kv_tokens_capacity: int
    running: tuple[RunningRequest, ...]
    """Waiting ones too, in launch order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressMeasured:
    """How far every engine's requests are; answers `MeasureProgress`. Those that just finished may be missing."""

    round: int
    engines: tuple[EngineProgress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesReturned:
    """Lent engines are awake again and hold the round's policy, as ordered by `ReclaimEngines`."""

    round: int
    engines: tuple[EngineId, ...]
    """Without those that did not wake, which are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesSwitched:
    """Engines of another degree have joined and those of before have retired, as ordered by `SwitchEngines`."""

    round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMeasured:
    """Where the time of a step went, in a run with rollout workers; comes before the next `StepStarted`."""

    step: int
    train_s: float
    """That the trainer worked on the step."""
    trainer_idle_s: float
    """That the trainer, its engines lent, waited for groups."""
    fleet_idle_s: float
    """From the round's last response to the end of the step: serving workers had nothing to do."""
    local_engine_s: float
    """Busy time of the engines on the trainer's allocation, summed over them, each as many as its GPUs are engines of
    the configured degree."""
    member_engine_s: float
    """Busy time of the engines of workers, the same."""
    local_tokens: int
    """That the former generated."""
    member_tokens: int
    """That the latter generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMeasured:
    """What a round cost; comes once per round, after its `EndRound` and before the next `StepStarted`."""

    round: int
    num_preemptions: int
    """Over the engines of the trainer's allocation: workers have a degree of their own."""
    rollout_time_s: float
    """From `BeginRound` to the last response that the batch needed; what only the reward took after it is left out."""
    num_tokens: int
    """Of the responses that the batch needed: accepted ones, and those of prompts that were dropped for their equal
    rewards. What was generated beside them and aborted is no progress."""
    switch_time_s: float = 0.0
    """To put engines of another degree in the place of those before, ahead of the round; 0 where none changed."""
    lengths_tokens: tuple[int, ...] = ()
    """Of its responses, in launch order, aborted ones too."""


class DraftPasses(NamedTuple):
    """Decode passes of an engine over batches of one range of sizes and with one draft length, together.

    A pass verifies the draft tokens of its sequences and adds one more token to each, so it gains `num_sequence_passes`
    plus `num_accepted` tokens.
    """

    max_sequences: int
    """The largest batch of the range: that of the `DraftRule` that held for the passes."""
    draft_length: int
    """Draft tokens that a sequence could have; 0 is plain decoding."""
    num_passes: int
    num_sequence_passes: int
    """Over passes, the sequences in them."""
    num_drafted: int
    """Draft tokens that were verified."""
    num_accepted: int
    """Of these."""
    time_s: float
    """Of the passes, drafting included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftsMeasured:
    """What an engine's decode passes gained and took in a round.

    Comes once per engine that has rules for them, after the round's `EndRound` and before its `RoundMeasured`.
    """

    round: int
    engine: EngineId
    passes: tuple[DraftPasses, ...]
    """Each range of batch sizes and draft length at most once."""


WorkerEvent = WorkerArrived | NoticeGiven | WorkerLeft | PolicyPublished | FetchFailed | EnginesReturned | StepMeasured
"""What only a run with rollout workers has."""

MAY_STRAND: Final = frozenset(
    {
        EngineLost,
        EngineStartFailed,
        EnginesReturned,
        EnginesSwitched,
        EnvironmentStepped,
        PromptsDrawn,
        ResponseEvicted,
        SlotsChanged,
    }
)
"""Facts after which a request may wait for an engine while none is there, or to come."""

Event = (
    EngineJoined
    | EngineUpdated
    | EngineLost
    | EngineRetired
    | SlotsOpened
    | SlotsChanged
    | SlotVacated
    | EngineStarted
    | EngineStartFailed
    | TimerFired
    | StepStarted
    | PolicyUpdated
    | EvaluationOffered
    | EnginesWanted
    | PromptsDrawn
    | ResponseFinished
    | ResponseAborted
    | ResponseEvicted
    | TurnFinished
    | EnvironmentBegan
    | EnvironmentStepped
    | EnvironmentFailed
    | RewardComputed
    | ProgressMeasured
    | EnginesSwitched
    | DraftsMeasured
    | RoundMeasured
    | WorkerEvent
)
