"""What a checkpoint of an asynchronous run holds of responses under way: `rollouts.json` and `rollouts.npz`.

The arrays hold the tokens of all requests one after the other, so that a response is whole numbers of tokens in both; a
resumed run goes on from the last one. A request with a response and no verdict is scored again.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from rollpacker.core.commands import DropPrompt
from rollpacker.core.errors import CheckpointError
from rollpacker.core.events import CaseRun
from rollpacker.core.ids import EngineId, PromptId, RequestId, VersionSpan
from rollpacker.paths import read_bytes
from rollpacker.protocols.rollout import FinishReason, Response, Turn, Verdict
from rollpacker.runtime.rollout.episodes import EnvironmentStay, Episode
from rollpacker.runtime.rollout.request_book import COUNTERS, RequestBook, RequestRecord, Stretch

if TYPE_CHECKING:
    from pathlib import Path

_ROWS, _ARRAYS = "rollouts.json", "rollouts.npz"


def save_rollouts(folder: Path, book: RequestBook) -> None:
    """Write the requests of a book into a checkpoint's folder; nothing in flight is on an engine."""
    records = list(book.requests.values())
    kept = [record.kept for record in records if record.kept is not None]
    rows = {
        "requests": [_row(record) for record in records],
        "dropped": [[command.round, command.prompt] for command in book.dropped],
        "episodes": [
            [request, [each.turns, each.waited_s, each.num_restarts]] for request, each in book.episodes.items()
        ],
        "stretches": [asdict(each) for each in book.stretches],
        "stays": [[each.request, each.activity, each.began_at_s, each.ended_at_s] for each in book.stays],
        "counters": {name: getattr(book, name) for name in COUNTERS},
    }
    (folder / _ROWS).write_text(json.dumps(rows) + "\n")
    np.savez(
        folder / _ARRAYS,
        token_ids=np.concatenate([np.empty(0, np.int32), *(response.token_ids for response in kept)]),
        logprobs=np.concatenate([np.empty(0, np.float32), *(response.logprobs for response in kept)]),
    )


def load_rollouts(folder: Path) -> RequestBook:
    """Read what `save_rollouts` wrote; an empty book where it wrote nothing. The checkpoint is whole.

    Raises:
        CheckpointError: Another version of rollpacker wrote it.
    """
    file = folder / _ROWS
    if not file.exists():
        return RequestBook()
    try:
        with np.load(folder / _ARRAYS) as arrays:
            return _book(json.loads(read_bytes(file)), arrays["token_ids"], arrays["logprobs"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{file} is of another format: {type(error).__name__}: {error}.",
            "It holds all that a run needs to go on with its responses.",
            "Resume with the version of rollpacker that wrote the checkpoint, or choose a fresh run.dir.",
        ) from error


def _book(rows: dict[str, Any], token_ids: np.ndarray[Any, Any], logprobs: np.ndarray[Any, Any]) -> RequestBook:
    book = RequestBook()
    book.dropped = [DropPrompt(round=number, prompt=PromptId(*prompt)) for number, prompt in rows["dropped"]]
    book.episodes = {RequestId.from_list(request): _episode(row) for request, row in rows["episodes"]}
    book.stretches = [_stretch(row) for row in rows["stretches"]]
    book.stays = [_stay(row) for row in rows["stays"]]
    for name in COUNTERS:
        setattr(book, name, rows["counters"][name])
    begin = 0
    for row in rows["requests"]:
        end = begin + (row["kept"]["num_tokens"] if row["kept"] else 0)
        record = _record(row, token_ids[begin:end], logprobs[begin:end])
        book.requests[record.request] = record
        begin = end
    book.count_scored()
    return book


def _row(record: RequestRecord) -> dict[str, Any]:
    kept = record.kept
    return {
        "request": record.request,
        "engine": record.engine,
        "launched_at_s": record.launched_at_s,
        "placed_at_s": record.placed_at_s,
        "finished_at_s": record.finished_at_s,
        "scored_at_s": record.scored_at_s,
        "race_rank": record.race_rank,
        "came_back": record.response is not None,
        "kept": kept
        and {
            "engine": kept.engine,
            "num_tokens": kept.num_tokens,
            "finish_reason": kept.finish_reason.value,
            "spans": kept.spans,
            "queue_time_s": kept.queue_time_s,
            "generation_time_s": kept.generation_time_s,
        },
        "verdict": asdict(record.verdict) if record.verdict else None,
    }


def _episode(row: list[Any]) -> Episode:
    turns, waited_s, num_restarts = row
    return Episode(turns=[Turn(*turn) for turn in turns], waited_s=waited_s, num_restarts=num_restarts)


def _stretch(row: dict[str, Any]) -> Stretch:
    return Stretch(**row | {"request": RequestId.from_list(row["request"])})


def _stay(row: list[Any]) -> EnvironmentStay:
    name, activity, began_at_s, ended_at_s = row
    request = RequestId.from_list(name)
    return EnvironmentStay(request=request, activity=activity, began_at_s=began_at_s, ended_at_s=ended_at_s)


def _record(row: dict[str, Any], token_ids: np.ndarray[Any, Any], logprobs: np.ndarray[Any, Any]) -> RequestRecord:
    request = RequestId.from_list(row["request"])
    kept = row["kept"] and Response(
        request=request,
        engine=EngineId(row["kept"]["engine"]),
        finish_reason=FinishReason(row["kept"]["finish_reason"]),
        token_ids=token_ids,
        logprobs=logprobs,
        spans=tuple(VersionSpan(*span) for span in row["kept"]["spans"]),
        queue_time_s=row["kept"]["queue_time_s"],
        generation_time_s=row["kept"]["generation_time_s"],
    )
    return RequestRecord(
        request=request,
        engine=EngineId(row["engine"]),
        launched_at_s=row["launched_at_s"],
        placed_at_s=row["placed_at_s"],
        begun=None if row["came_back"] else kept,
        response=kept if row["came_back"] else None,
        finished_at_s=row["finished_at_s"],
        verdict=_verdict(row["verdict"]) if row["verdict"] else None,
        scored_at_s=row["scored_at_s"],
        race_rank=row["race_rank"],
    )


def _verdict(row: dict[str, Any]) -> Verdict:
    case_runs = tuple(CaseRun(*run) for run in row["case_runs"])
    return Verdict(**row | {"request": RequestId.from_list(row["request"]), "case_runs": case_runs})
