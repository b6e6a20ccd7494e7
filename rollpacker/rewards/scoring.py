"""Scores given responses from a file: `rollpacker score`, to try a reward on one's data before training on it.

Invariant: the output has one line per line of the responses, in their order, and appears whole or not at all. The
verdicts come from the very workers that a run uses.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.data.domains import refuse_unknown_domains
from rollpacker.data.file_listing import data_files
from rollpacker.data.jsonl import shown
from rollpacker.data.prompts import read_prompts
from rollpacker.data.rows import read_rows
from rollpacker.metrics.outputs import check_output, open_output
from rollpacker.paths import real_path
from rollpacker.protocols.reward import ScoringRequest
from rollpacker.protocols.rollout import Prompt
from rollpacker.rewards.factory import check_references, make_reward_worker
from rollpacker.rewards.judge.reading import check_rubrics, dialogue
from rollpacker.rewards.sandbox.sandbox_check import check_sandbox
from rollpacker.rewards.scores import mean_parts
from rollpacker.rewards.trial import try_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollpacker.config.sections.judge import JudgeSection
    from rollpacker.config.sections.reward import RewardSection
    from rollpacker.protocols.reward import RewardWorker
    from rollpacker.protocols.rollout import Verdict


_OTHER_FILE = "Delete the line, or name the prompt file it belongs to"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSummary:
    """The scores of a file of responses."""

    num_responses: int
    reward_mean: float
    parts_mean: dict[str, float]
    """By the part's name, without weights; of the responses that have it."""
    num_by_reason: dict[str, int]
    """The most frequent first."""


def score_file(
    reward: RewardSection,
    files: Sequence[PromptFile],
    responses_path: Path,
    out_path: Path,
    *,
    open_judge: Callable[[JudgeSection], RewardWorker] | None = None,
    can_replace: bool = True,
) -> ScoreSummary:
    """Score lines of `id, response` into lines of `id, reward, reason`, with `parts` where the reward has some.

    Args:
        reward: Which reward, with its workers and time limit.
        files: The prompt files, for the references.
        responses_path: Read as prompt files are, with `id` and `response`; several rows may name the same prompt.
        out_path: Created, replaced or, if it is a stream, written to at the end.
        open_judge: Loads the LLM judge, where the reward has one.
        can_replace: Whether `out_path` may be a file that exists.

    Raises:
        UserError: A line of either file is wrong, a prompt is none for the reward, or programs cannot be run here;
            nothing has been scored then.
        StorageFailed: The output cannot be written.
    """
    if responses_path.is_dir():
        raise DataError(
            f"The response file {responses_path} is a directory", "Allowed: a file", "Name a file in that directory"
        )
    _refuse_inputs(
        out_path, *(each for file in files for each in data_files(file)), responses_path, *_own_files(reward)
    )
    check_output(out_path, can_replace=can_replace)
    data_names = ", ".join(file.written for file in files)
    prompts, legal_ids, remedy = dict[str, Prompt](), f"an id from {data_names}", _OTHER_FILE
    for line, prompt in read_prompts(files):
        if "id" in line.made and remedy == _OTHER_FILE:
            legal_ids += f"; rows without `id` have made ones, such as {prompt.key!r} of {prompt.line}"
            remedy = "Give the prompts a field `id`, or name them by their made ids"
        prompts[prompt.key] = prompt
    domains = list(dict.fromkeys(prompt.domain for prompt in prompts.values()))
    refuse_unknown_domains("reward.domains", reward.domains, domains, data_names)
    check_references(reward, prompts.values())
    try_checks(reward, tuple(prompts.values()))
    if "sandbox" in reward.names:
        check_sandbox(reward.sandbox)
    check_rubrics(reward, prompts.values())
    requests = _read_responses(reward, responses_path, prompts, f"Allowed: {legal_ids}", remedy)
    verdicts = asyncio.run(_score(reward, requests, open_judge))
    lines = [
        json.dumps(
            {"id": verdict.request.prompt.key, "reward": verdict.reward, "reason": verdict.reason}
            | ({"parts": verdict.parts} if verdict.parts else {})
        )
        for verdict in verdicts
    ]
    with open_output(out_path) as file:
        file.write("".join(f"{line}\n" for line in lines).encode())
    return ScoreSummary(
        num_responses=len(verdicts),
        reward_mean=sum(verdict.reward for verdict in verdicts) / len(verdicts),
        parts_mean=mean_parts(verdicts),
        num_by_reason=dict(Counter(verdict.reason for verdict in verdicts).most_common()),
    )


async def _score(
    reward: RewardSection,
    requests: Sequence[ScoringRequest],
    open_judge: Callable[[JudgeSection], RewardWorker] | None,
) -> list[Verdict]:
    """Give the verdicts in the order of the requests."""
    judge = None
    if reward.has_judge:
        assert open_judge is not None
        judge = open_judge(reward.judge)
    worker = make_reward_worker(reward, judge)
    verdicts: dict[RequestId, Verdict] = {}
    try:
        await worker.score(requests)
        while len(verdicts) < len(requests):
            verdicts |= {verdict.request: verdict for verdict in await worker.collect()}
    finally:
        await worker.close()
    return [verdicts[request.request] for request in requests]


def _read_responses(
    reward: RewardSection, path: Path, prompts: Mapping[str, Prompt], legal_ids: str, remedy: str
) -> list[ScoringRequest]:
    requests: list[ScoringRequest] = []
    for line in read_rows(PromptFile(path=path), kind="response file"):
        key = line.identifier()
        prompt = prompts.get(key)
        if prompt is None:
            nearest = difflib.get_close_matches(key, prompts, n=1)
            raise line.error(
                f"the id {key!r} is not in the prompt file",
                legal_ids,
                f"Did you mean {nearest[0]!r}?" if nearest else remedy,
            )
        response = line.require("response")
        if not isinstance(response, str):
            raise line.error(f"`response` is {shown(response)}", "Allowed: a string", "Write the response as text")
        requests.append(
            ScoringRequest(
                request=RequestId(round=0, prompt=PromptId(epoch=0, key=key), sample=len(requests)),
                domain=prompt.domain,
                prompt_text=_prompt_text(reward, prompt),
                response_text=response,
                is_truncated=False,
                reference=prompt.reference,
                row=prompt.row,
                prompt=prompt.as_written,
            )
        )
    return requests


def _prompt_text(reward: RewardSection, prompt: Prompt) -> str:
    """The prompt as the reward of its domain reads it."""
    if reward.is_judged(prompt.domain):
        return dialogue(prompt)
    return "\n".join(message["content"] for message in prompt.messages)


def _own_files(reward: RewardSection) -> list[Path]:
    """Give the files that a user has written for the reward."""
    checks = [each.check for scoring in reward.scorings for each in scoring]
    places = [check.source.rpartition(":")[0] for check in checks if check.kind == "function"]
    functions = [place if place.endswith(".py") else f"{place.replace('.', '/')}.py" for place in places]
    template = reward.judge.template if reward.has_judge else None
    return [*map(Path, functions), *([template] if template is not None else [])]


def _refuse_inputs(out_path: Path, *inputs: Path) -> None:
    for path in inputs:
        if real_path(out_path) == real_path(path):
            raise DataError(
                f"out={out_path} is one of the input files", "Allowed: another file", "Choose another name for out"
            )
