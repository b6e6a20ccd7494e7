"""Programs in a real pool of sandboxes, for tests and benchmarks: prompts are written to files, as a run has them."""

import json
from collections import Counter

from rollpacker.config.sections.data import PromptFile
from rollpacker.config.sections.sandbox import SandboxSection
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.data.prompts import load_prompts
from rollpacker.protocols.reward import ScoringRequest
from rollpacker.rewards.sandbox.worker import SandboxRewardWorker


def fenced(source):
    return f"Here it is.\n\n```python\n{source}\n```\n"


def write_prompts(folder, lines):
    """Give references by id."""
    path = folder / f"prompts-{len(list(folder.iterdir()))}.jsonl"
    filled = [{"domain": "code", "prompt": "Write it.", **line} for line in lines]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in filled))
    return {prompt.key: prompt.reference for prompt in load_prompts([PromptFile(path=path)])}


def request_of(sample, reference, response, *, key="p", limits_s=(), is_truncated=False):
    return ScoringRequest(
        request=RequestId(round=0, prompt=PromptId(epoch=0, key=key), sample=sample),
        domain="code",
        prompt_text="",
        response_text=response,
        is_truncated=is_truncated,
        reference=reference,
        case_limits_s=limits_s,
    )


class Pool:
    """A worker that is closed at the end."""

    def __init__(self, **values):
        self.worker = SandboxRewardWorker(SandboxSection(**values))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_error):
        await self.worker.close()

    async def score(self, *requests):
        """Give the verdicts in the order of the requests."""
        await self.worker.score(requests)
        verdicts = []
        while len(verdicts) < len(requests):
            verdicts += await self.worker.collect()
        assert Counter(verdict.request for verdict in verdicts) == Counter(request.request for request in requests)
        by_request = {verdict.request: verdict for verdict in verdicts}
        return [by_request[request.request] for request in requests]


async def reasons_of(folder, cases, *, limits_s=(), **pool):
    """Give the reason of each of (fields of a prompt, program), from a pool of two workers or as it is given."""
    references = write_prompts(folder, [{**fields, "id": str(index)} for index, (fields, _) in enumerate(cases)])
    requests = [
        request_of(index, references[str(index)], fenced(program), limits_s=limits_s)
        for index, (_, program) in enumerate(cases)
    ]
    async with Pool(**{"num_workers": 2} | pool) as opened:
        return [verdict.reason for verdict in await opened.score(*requests)]


async def verdicts_that_differ(tmp_path, cases, *, is_right):
    """Give the cases of (tests, program) whose verdict is another, with its reason."""
    reasons = await reasons_of(tmp_path, [({"test": test}, program) for test, program in cases])
    return [(*case, reason) for case, reason in zip(cases, reasons, strict=True) if (reason == "correct") != is_right]
