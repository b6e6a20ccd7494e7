"""The tables of a run: one description per column, which its Parquet schema holds.

One table per grain: `steps` has a row per training step, `domains` a row per step and domain, `responses` a row per
response that was launched, aborted ones too, `intervals` a row per stretch of time in which an actor did one thing.
Evaluations have tables of their own, beside these and not among them, since they have steps of their own: the row of
step 10 says how good the policy is after ten of them, and it is there before step 10 begins.

Every number's unit stands in its field's metadata. Times of day never appear: `_at_s` columns count seconds since the
run began, on the driver's clock. Which attempt of a resumed run made a step is no column, so that a resumed modelled
run gives the bytes of an unbroken one: the event logs, one per attempt, record it. A resumed run lacks only the time
and the rows of the checkpoint that it resumed from, if the unbroken one wrote it too.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from rollpacker.metrics.account_schemas import ACCOUNT_TABLES
from rollpacker.metrics.columns import (
    DOMAIN,
    MODELLED,
    RESPONSE_TURNS,
    TableSchema,
    count,
    flag,
    number,
    numbers,
    seconds,
    text,
    tokens,
)
from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

_STEP = count("step", "Training step, from 0")
_ROUND = count("round", "Rollout round, from 0, never reused within a run")
_ROUND_KIND = text("round_kind", "plain (waits for all responses), short (they race), long, or async")

STEPS = TableSchema(
    name="steps",
    grain="One row per training step",
    columns=(
        _STEP,
        _ROUND,
        _ROUND_KIND,
        text("system", "Name of the scheduling policy, as in the configuration"),
        seconds("step_time_s", "From the start of the rollout until every engine holds the new weights"),
        seconds("rollout_time_s", "From the start of the rollout until its last response, without rewards after it"),
        seconds("exposed_reward_time_s", "From the end of the last response until rewards completed the batch"),
        seconds("train_time_s", "From the end of the rollout, or of hand_over, until the update was done"),
        seconds("stream_time_s", "Time that the trainer took for tokens_streamed, nearly all within the rollout"),
        seconds("weight_sync_time_s", "From the update until every engine confirmed the new weights"),
        seconds("weight_transfer_time_s", "Part of weight_sync_time_s: the transfer itself, without waking engines"),
        count("weight_sync_bytes", "What each engine received: the model's size, tied tensors once", unit="bytes"),
        number("weight_sync_gb_per_second", "weight_sync_bytes over weight_transfer_time_s, 1e9 bytes", unit="GB/s"),
        count("num_engines_lost_in_sync", "Engines that died, were too slow or held other weights than were sent"),
        seconds(
            "checkpoint_time_s",
            "Time of a checkpoint before the step, on shared GPUs also of their handover to the trainer and back; an "
            "attempt's last one has no row",
        ),
        seconds(
            "driver_time_s",
            "CPU time of the driver's process, all its threads, in the step and the checkpoint before it, most of it "
            "while engines or trainer work; 0 when modelled",
        ),
        seconds("finished_at_s", "End of the step, since the run began"),
        number("reward_mean", "Mean reward of the trained responses, as scored"),
        number("trained_reward_mean", "Mean of trained_reward over the trained responses"),
        count(
            "num_rewards_failed",
            "Scored responses, trained or not, whose check failed and gave 0: reward_reason is checker_crashed, "
            "wrong_result, not_finite, http_error, or timeout, which is no failure of the check of a sandbox's program",
        ),
        count("num_prompts", "Prompts in the trained batch"),
        count("num_responses", "Responses in the trained batch"),
        count("num_prompts_launched", "Prompts launched in the round; in an asynchronous one those trained or dropped"),
        count("num_prompts_dropped", "Those dropped: all their rewards were equal, or their environments failed"),
        count("num_responses_launched", "Responses launched, over all of num_prompts_launched"),
        count("num_aborted", "Responses stopped early because the batch was complete without them"),
        count("num_truncated", "Trained responses that were cut, at the length limit or in their environment"),
        number("response_length_mean_tokens", "Mean length of the trained responses", unit="tokens"),
        tokens("response_length_max_tokens", "Length of the longest trained response"),
        tokens(
            "tokens_generated",
            "Response tokens, of environments too; not those that were lost with an engine. In an asynchronous run of "
            "the groups that the step decided, earlier steps' tokens among them: only sums over many steps are rates",
        ),
        tokens("tokens_trained", "Response tokens in the trained batch; those of environments have no gradient"),
        tokens("tokens_wasted", "tokens_generated minus tokens_trained: aborted, dropped, or lost with environments"),
        tokens("tokens_dropped", "Those of tokens_wasted that the responses to dropped prompts had in the end"),
        tokens("tokens_streamed", "Those of tokens_trained that the trainer took in while the rollout still ran"),
        number(
            "tokens_per_second",
            "Tokens that the policy sampled, those of environments left out: of the step's responses over "
            "rollout_time_s. In an asynchronous run what engines generated since the last step's new weights, "
            "evaluations that fill the round too, without engines that were lost, over step_time_s; over "
            "rollout_time_s and exposed_reward_time_s where they share GPUs with the trainer",
            unit="tokens/s",
        ),
        count(
            "decode_slot_steps_busy",
            "Sum over forward passes of the decode slots in use. It leaves out engines that were lost in the round, as "
            "all columns down to tokens_per_sequence_pass do",
        ),
        count("decode_slot_steps_idle", "Sum over forward passes of the decode slots that stood idle"),
        number("bubble_ratio", "Idle share of the decode slots, 0 to 1; null where nothing decoded", is_nullable=True),
        number("requests_running_mean", "Requests that an engine ran in a forward pass, mean", unit="requests"),
        number("requests_waiting_mean", "Requests that waited at an engine during a pass, mean", unit="requests"),
        number("kv_cache_used_share", "Share of an engine's KV cache in use during a pass, mean, 0 to 1"),
        count("num_preemptions", "Requests that lost their place in an engine's KV cache and were recomputed"),
        tokens("prefix_query_tokens", "Prompt tokens looked up in engines' prefix caches; 0 where there are none"),
        tokens("prefix_hit_tokens", "Those of prefix_query_tokens that were found, and not computed again"),
        tokens("draft_tokens_verified", "Draft tokens that decode passes of the round verified"),
        tokens("draft_tokens_accepted", "Those of draft_tokens_verified that the policy would have sampled too"),
        number(
            "tokens_per_sequence_pass",
            "Tokens that a decode pass gained per sequence in it; null without speculative decoding",
            unit="tokens",
            is_nullable=True,
        ),
        count("tensor_parallel", "GPUs of each engine that finished the round"),
        count(
            "escalated_from",
            "GPUs of each engine that began the round, where larger ones finished it; null where none did",
            is_nullable=True,
        ),
        number(
            "parallelism_gain",
            "Tokens that the batch needed per second of rollout, over those of its kind's last rounds on the degree of "
            "before; null when there was none lately",
            is_nullable=True,
        ),
        seconds(
            "switch_time_s",
            "Part of weight_sync_time_s: engines of another degree take the place of those before, for the next step",
        ),
        count("num_engines_lent", "Engines whose GPUs went to the trainer before the round was over"),
        number(
            "lent_at_share",
            "Share of the requests that had finished when these engines were chosen, 0 to 1; null where none were",
            is_nullable=True,
        ),
        count("num_engines_lost", "Engines that failed, from the end of the last step to the end of this one"),
        count("num_engines_replaced", "Engines that joined in the place of lost ones in the same time"),
        count("num_engines", "Engines that worked when the round was over"),
        count("policy_version", "Version that the batch trains"),
        number(
            "staleness_mean",
            "How many versions behind policy_version the one was that generated a trained token; mean over tokens",
        ),
        count("staleness_max", "The same of the oldest trained token"),
        numbers("tokens_by_staleness", "Trained tokens by age; null where all are of policy_version", unit="tokens"),
        count("num_requests_continued", "Responses continued on another engine or version, from tokens that they had"),
        tokens("tokens_recomputed", "Tokens that these had: each was prefilled once more"),
        seconds("suspend_time_s", "Until engines had given back what was in flight, ahead of training or new weights"),
        number(
            "num_members_mean",
            "Engines of rollout workers that held the step's policy, mean over the step; null in a run without workers,"
            " as all columns down to trainer_idle_s",
            unit="engines",
            is_nullable=True,
        ),
        count("num_workers_wished", "Workers that were wished for at the end of the step", is_nullable=True),
        count("num_members_lost", "Engines of workers that went, whatever the reason", is_nullable=True),
        count("tokens_of_members", "Tokens that they generated, of environments too", unit="tokens", is_nullable=True),
        count(
            "tokens_saved",
            "Those of tokens_recomputed whose engine was lost: it had reported them, so nothing was generated again",
            unit="tokens",
            is_nullable=True,
        ),
        count("num_requests_moved", "Launches that took a response from one engine to another", is_nullable=True),
        seconds(
            "seeding_s",
            "From the round's beginning until local engines were lent for workers to go on; null also where none were",
            is_nullable=True,
        ),
        count("num_reclaims", "Orders to take lent engines back before the round was over", is_nullable=True),
        seconds(
            "member_idle_s",
            "From the round's last response to the step's end: workers had nothing to do; null if asynchronous, too",
            is_nullable=True,
        ),
        seconds("trainer_idle_s", "Time in which the trainer, engines lent to it, waited for groups", is_nullable=True),
        number("num_turns_mean", "num_turns of the trained responses; null without environments", is_nullable=True),
        seconds("environment_time_mean_s", "environment_time_s of the same, mean", is_nullable=True),
        count("num_environment_restarts", "Of all responses; null without environments", is_nullable=True),
        count("num_episodes_given_up", "Responses whose environment failed too often", is_nullable=True),
        count("long_queue_length", "Deferred prompts that wait for a long round, after the step"),
        count("num_prompts_deferred_at_once", "Prompts that joined the long queue by system.length_history, unraced"),
        numbers(
            "gpu_memory_peak_gb",
            "Most memory that torch held on a GPU in the step, 1e9 bytes, by role: engine, and trainer with its "
            "reference; the largest over the GPUs of the role; null without GPUs",
            unit="GB",
        ),
        number("loss", "Training loss; null when modelled", is_nullable=True),
        number("grad_norm", "Norm of the gradient before clipping; null when modelled", is_nullable=True),
        number("learning_rate", "Learning rate of the update; null when modelled", is_nullable=True),
        number(
            "clip_fraction",
            "Share clipped of tokens with a gradient; null where no token has one, and when modelled",
            is_nullable=True,
        ),
        number(
            "entropy",
            "Mean entropy of the policy per sampled token of the batch, left out of the loss or not; null when "
            "modelled",
            unit="nats",
            is_nullable=True,
        ),
        number(
            "surprisal",
            "Mean of minus the engines' log-probability of the tokens that policy_version sampled: as large as their "
            "entropy, but for chance, where they are drawn from the policy; null when modelled",
            unit="nats",
            is_nullable=True,
        ),
        number(
            "surprisal_z",
            "surprisal minus the same tokens' entropy in standard deviations: exact in plain and long rounds; in "
            "short ones, and with dynamic sampling, responses are selected, which shifts it; null when modelled",
            is_nullable=True,
        ),
        number(
            "kl_to_reference",
            "Mean KL (k3) of tokens with a gradient; null where no token has one, and without reference",
            unit="nats",
            is_nullable=True,
        ),
        number(
            "logprob_mismatch_max",
            "Largest absolute difference per token that policy_version sampled between engine and trainer; null when "
            "modelled",
            unit="nats",
            is_nullable=True,
        ),
        number(
            "logprob_mismatch_mean",
            "Mean absolute difference per token that policy_version sampled between engine and trainer; null when "
            "modelled",
            unit="nats",
            is_nullable=True,
        ),
        number(
            "mismatch_kl",
            "KL of what sampled a token and trainer, estimator k3, mean over stale tokens too; null when modelled",
            unit="nats",
            is_nullable=True,
        ),
        number(
            "mismatch_weight_mean",
            "What trainer.mismatch multiplies a token's policy loss by, mean; null without it",
            is_nullable=True,
        ),
        number("mismatch_weight_max", "The same of the token with the largest; null without it", is_nullable=True),
        number(
            "mismatch_bounded_share",
            "Share of tokens that trainer.mismatch truncates or masks, 0 to 1; null without it",
            is_nullable=True,
        ),
        number(
            "effective_sample_share",
            "Share of the tokens that is left of them as a sample of the policy, (sum w)^2 / (n sum w^2) of their "
            "ratios of trainer's and engine's probability, each within e^-20 to e^20: 1 where the two agree; null when "
            "modelled",
            is_nullable=True,
        ),
        MODELLED,
    ),
)

DOMAINS = TableSchema(
    name="domains",
    grain="One row per training step and domain, of the trained responses; by the domain's name within a step",
    columns=(
        _STEP,
        DOMAIN,
        count("num_prompts", "Prompts of the domain in the trained batch"),
        count("num_responses", "Responses of the domain in the trained batch"),
        number("reward_mean", "Mean reward of the domain's trained responses"),
        numbers("reward_parts_mean", "Mean of each part of the reward, without weights; null where it has no parts"),
        number("solve_rate", "Share of the domain's prompts with a trained response that has a reward above 0"),
        number(
            "no_signal_share",
            "Share of the domain's prompts whose trained responses all have the same reward: GRPO learns nothing there",
        ),
        number("response_length_mean_tokens", "Mean length of the domain's trained responses", unit="tokens"),
        tokens("response_length_p50_tokens", "Length that half of the domain's trained responses do not exceed"),
        tokens("response_length_p90_tokens", "Length that 90 % of the domain's trained responses do not exceed"),
        tokens("response_length_max_tokens", "Length of the domain's longest trained response"),
        number("truncated_share", "Share of the domain's trained responses that num_truncated counts"),
        number("staleness_mean", "As in `steps`, of the domain's trained tokens"),
        count("staleness_max", "The same of the domain's oldest trained token"),
        MODELLED,
    ),
)

RESPONSES = TableSchema(
    name="responses",
    grain="One row per launched response, aborted ones too",
    columns=(
        _STEP,
        count("round", "As in `steps`; in an asynchronous run the step that admitted it, so step - round is its age"),
        _ROUND_KIND,
        count("epoch", "Pass over the data, from 0"),
        text("prompt", "The id field of the prompt file"),
        DOMAIN,
        count("sample", "Index within the prompt's group, from 0"),
        text("engine", "Engine that generated it; if it moved, the last one"),
        count("policy_version", "Version that generated its last token"),
        count("first_policy_version", "Version that generated its first token"),
        tokens("num_prompt_tokens", "Length of the prompt"),
        tokens("length_tokens", "Length of the response; of an aborted one, what was generated until then"),
        text("finish_reason", "stop (end of sequence), length (length limit) or aborted"),
        seconds("launched_at_s", "When the driver asked for it, since the run began"),
        seconds("placed_at_s", "When its last engine was asked for its last turn; launched_at_s if it has one of each"),
        seconds("finished_at_s", "When the driver learned of its end, since the run began"),
        seconds("queue_time_s", "From placed_at_s until the engine's first forward pass for it"),
        seconds("generation_time_s", "From that pass to its last token; without earlier turns and earlier engines"),
        number("reward", "Its reward, as scored; null when it was not scored", is_nullable=True),
        number("trained_reward", "reward less what over-long shaping takes off; null if not scored", is_nullable=True),
        numbers("reward_parts", "Each part of the reward, without weights; null where it has none or was not scored"),
        text("reward_reason", "Why the reward is what it is, one word; null when not scored", is_nullable=True),
        seconds(
            "reward_time_s",
            "Time spent scoring, without waiting; its share of a request to reward.url; null when not scored",
            is_nullable=True,
        ),
        seconds("scored_at_s", "When the reward was known, since the run began; null when not", is_nullable=True),
        count("num_turns", "Turns that its environment answered; null without environments", is_nullable=True),
        seconds("environment_time_s", "That it waited for environments, those that failed too", is_nullable=True),
        count("num_environment_restarts", "Times that it began again as its environment failed", is_nullable=True),
        text("prompt_text", "What the policy saw, of the prompts that run.samples_per_step keeps", is_nullable=True),
        text("response_text", "What it answered, of the same; special tokens left out", is_nullable=True),
        RESPONSE_TURNS,
        count("race_rank", "1 for the first of its group to have a reward; null when not scored", is_nullable=True),
        flag("accepted", "True when it was trained"),
        flag("is_raced", "True in a short round, which launches more than it needs"),
        MODELLED,
    ),
)

INTERVALS = TableSchema(
    name="intervals",
    grain="One row per stretch of time in which an actor did one thing",
    columns=(
        text("actor", "Who, such as engine-0, trainer, reward-0, judge-0, environment or driver"),
        text("role", "engine, worker (an engine of a rollout worker), trainer, reward, judge, environment or driver"),
        text(
            "activity",
            "What: stages of the step (rollout, hand_over, train, quiesce, weight_sync, checkpoint), generate, score, "
            "stream, load_weights, switch, asleep, starting, catching_up; evicted, lost, turn or failed: a request was "
            "with an engine until it had to move, its environment answered, or failed. Of environments, start, reset "
            "or step: a request waited for a process or an answer; or why none came, such as environment_timeout",
        ),
        text("subject", "Of what is about one request, its name as round:prompt@epoch#sample", is_nullable=True),
        count(
            "num_tokens",
            "Of evicted, lost, turn and failed: what engine (as far as it has said so) and environment wrote of it",
            unit="tokens",
            is_nullable=True,
        ),
        _STEP,
        _ROUND,
        seconds("started_at_s", "Since the run began"),
        seconds("ended_at_s", "Since the run began"),
        MODELLED,
    ),
)

TABLES: Mapping[str, TableSchema] = MappingProxyType(
    {table.name: table for table in (STEPS, DOMAINS, RESPONSES, INTERVALS)}
)
"""The tables of training, by their names."""

ALL_TABLES: Mapping[str, TableSchema] = MappingProxyType({**TABLES, **EVALUATION_TABLES, **ACCOUNT_TABLES})
