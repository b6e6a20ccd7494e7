"""With which evaluations of earlier attempts a resumed run compares its own, and which of them is the best."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rollpacker.core.ids import Domain
from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.metrics.tables import EVALUATION_FOLDER
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt
from rollpacker.runtime.run import evaluations
from rollpacker.runtime.run.evaluations import Evaluations
from rollpacker.runtime.run.held_out_sets import HeldOutSets

NOTHING = {"int": 0, "float": 0.0, "bool": False, "text": ""}
PROMPTS = ("p0", "p1")


def prompt(key: str, answer: str = "42") -> Prompt:
    words = ({"role": "user", "content": "How many?"},)
    return Prompt(key=key, domain=Domain("math"), messages=words, text=None, reference=AnswerReference(text=answer))


def row(table: str, **values: object) -> dict[str, object]:
    columns = EVALUATION_TABLES[table].columns
    return {column.name: None if column.is_nullable else NOTHING[column.type] for column in columns} | values


def write_evaluations(run_dir: Path, scores: dict[int, dict[str, tuple[float, float | None]]]) -> None:
    """By step and set: the temperature, and the reward of each response; None of a set that was cut."""
    writer = MetricsWriter(run_dir / EVALUATION_FOLDER, EVALUATION_TABLES)
    for step, sets in scores.items():
        rows: dict[str, list[dict[str, object]]] = {table: [] for table in EVALUATION_TABLES}
        for name, (temperature, reward) in sets.items():
            kind = {"num_prompts": len(PROMPTS), "num_samples": 1, "temperature": temperature, "reward_mean": reward}
            rows["evaluations"].append(row("evaluations", step=step, set=name, **kind))
            if reward is not None:
                of_set = {"step": step, "set": name, "reward": reward, "response_text": "words " * 100}
                rows["evaluation_responses"] += [
                    row("evaluation_responses", prompt=prompt, **of_set) for prompt in PROMPTS
                ]
        writer.write_step(step, rows)
    writer.close()


def config_and_sets(run_dir: Path, *names: str, best_by: str | None = None) -> tuple[Any, dict[str, list[Prompt]]]:
    """A run's configuration with some held-out sets, and their prompts."""
    rules = [SimpleNamespace(name=name, num_samples=None, temperature=1.0) for name in names]
    run = SimpleNamespace(dir=run_dir, best_by=best_by)
    config = SimpleNamespace(run=run, evaluation=SimpleNamespace(rules=rules), trains=True)
    return config, {name: [prompt(key) for key in PROMPTS] for name in names}


def open_evaluations(
    config: Any,
    held_out: dict[str, list[Prompt]],
    *,
    saved_steps: Collection[int] = (2, 4, 6),
    note: Callable[[str], None] = print,
) -> Evaluations:
    """Those of an attempt that goes on from step 6, before its first step."""
    text_keeper: Any = None
    opened = Evaluations(
        config, 6, held_out, saved_steps=lambda: saved_steps, texts=text_keeper, note=note, is_modelled=False
    )
    opened.take_back(7)
    opened.close()
    return opened


def test_each_set_is_compared_with_its_first_complete_evaluation_alike_and_no_other_step_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores: dict[int, dict[str, tuple[float, float | None]]] = {
        0: {"math": (0.5, 0.1), "code": (1.0, 0.2)},  # of math at another temperature
        2: {"math": (1.0, None), "code": (1.0, 0.3)},
        4: {"math": (1.0, 0.4), "code": (1.0, 0.5)},
        6: {"math": (1.0, 0.6), "code": (1.0, 0.7)},
    }
    write_evaluations(tmp_path, scores)
    steps_read, read = [], evaluations.read_table

    def read_table(run_dir: Path, table: str, steps: tuple[int, int] | None = None) -> object:
        if table == "evaluation_responses":
            steps_read.append(steps)
        return read(run_dir, table, steps)

    monkeypatch.setattr(evaluations, "read_table", read_table)
    config, held_out = config_and_sets(tmp_path, "math", "code")
    opened = open_evaluations(config, held_out)
    assert opened._first == {
        "math": {("p0", 0): 0.4, ("p1", 0): 0.4},
        "code": {("p0", 0): 0.2, ("p1", 0): 0.2},
    }
    assert steps_read == [(0, 0), (4, 4)]


def test_a_set_whose_prompts_were_edited_is_not_compared_with_evaluations_from_before_now_or_later(
    tmp_path: Path,
) -> None:
    steps = {step: {"math": (1.0, step / 10), "code": (1.0, 0.5)} for step in (0, 2, 4, 6)}
    write_evaluations(tmp_path, steps)
    config, before = config_and_sets(tmp_path, "math", "code", best_by="math")
    now = before | {"math": [prompt(PROMPTS[0]), prompt(PROMPTS[1], answer="43")]}
    HeldOutSets(tmp_path / EVALUATION_FOLDER, before).evaluated(2)

    def opened(held_out: dict[str, list[Prompt]], notes: list[str]) -> Evaluations:
        return open_evaluations(config, held_out, note=notes.append)

    notes: list[str] = []
    assert {name: rewards["p0", 0] for name, rewards in opened(before, notes)._first.items()} == {
        "math": 0.0,
        "code": 0.5,
    }
    assert notes == []
    attempt = opened(now, notes)
    assert [each.partition(".")[0] for each in notes] == [
        "Edited since their last evaluation: held-out prompts of math"
    ]
    assert (attempt._first.keys(), attempt.best_step) == ({"code"}, None)
    attempt._sets.evaluated(4)
    attempt._sets.evaluated(6)
    attempt = opened(now, notes)
    assert (attempt._first["math"]["p0", 0], attempt.best_step, len(notes)) == (0.4, 6, 1)


def test_the_best_score_of_one_set_is_kept_when_another_set_is_added(tmp_path: Path) -> None:
    write_evaluations(tmp_path, {0: {"math": (1.0, 0.1)}, 2: {"math": (1.0, 0.6)}, 4: {"math": (1.0, 0.3)}})
    by_math = open_evaluations(*config_and_sets(tmp_path, "math", "code", best_by="math"))
    assert (by_math.best_step, by_math._best) == (2, 0.6)
    assert open_evaluations(*config_and_sets(tmp_path, "math", "code", best_by="code")).best_step is None
    assert open_evaluations(*config_and_sets(tmp_path, "math", "code")).best_step is None, "of a mean over one set only"


@pytest.mark.parametrize(
    ("saved_steps", "best"), [((2, 4), (2, 0.6)), ((4,), (4, 0.4)), ((6,), (0, 0.3)), ((), (0, 0.3))]
)
def test_a_score_counts_as_the_best_when_its_policy_is_in_a_checkpoint_or_the_first(
    tmp_path: Path, saved_steps: tuple[int, ...], best: tuple[int, float]
) -> None:
    steps = {0: 0.3, 2: 0.6, 4: 0.4, 6: 0.2}
    write_evaluations(tmp_path, {step: {"math": (1.0, reward)} for step, reward in steps.items()})
    opened = open_evaluations(*config_and_sets(tmp_path, "math"), saved_steps=saved_steps)
    assert (opened.best_step, opened._best) == best
