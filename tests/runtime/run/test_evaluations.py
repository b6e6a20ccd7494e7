"""With which evaluation of earlier attempts a resumed run compares its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

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
    rules = [SimpleNamespace(name=name, num_samples=None, temperature=1.0) for name in ("math", "code")]
    config = SimpleNamespace(
        run=SimpleNamespace(dir=tmp_path, best_by=None), evaluation=SimpleNamespace(rules=rules), trains=True
    )
    held_out = {name: [prompt(key) for key in PROMPTS] for name in ("math", "code")}
    opened = Evaluations(config, 6, held_out, texts=None, note=print, is_modelled=False)
    opened.close()
    assert opened._first == {
        "math": {("math/p0", 0): 0.4, ("math/p1", 0): 0.4},
        "code": {("code/p0", 0): 0.2, ("code/p1", 0): 0.2},
    }
    assert steps_read == [(0, 0), (4, 4)]


def test_a_set_whose_prompts_were_edited_is_not_compared_with_evaluations_from_before_now_or_later(
    tmp_path: Path,
) -> None:
    steps = {step: {"math": (1.0, step / 10), "code": (1.0, 0.5)} for step in (0, 2, 4, 6)}
    write_evaluations(tmp_path, steps)
    rules = [SimpleNamespace(name=name, num_samples=None, temperature=1.0) for name in ("math", "code")]
    config = SimpleNamespace(
        run=SimpleNamespace(dir=tmp_path, best_by="math"), evaluation=SimpleNamespace(rules=rules), trains=True
    )
    before = {name: [prompt(key) for key in PROMPTS] for name in ("math", "code")}
    now = before | {"math": [prompt(PROMPTS[0]), prompt(PROMPTS[1], answer="43")]}
    HeldOutSets(tmp_path / EVALUATION_FOLDER, before).evaluated(2)

    def opened(held_out: dict[str, list[Prompt]], notes: list[str]) -> Evaluations:
        attempt = Evaluations(config, 6, held_out, texts=None, note=notes.append, is_modelled=False)
        attempt.close()
        return attempt

    notes: list[str] = []
    assert {name: rewards[f"{name}/p0", 0] for name, rewards in opened(before, notes)._first.items()} == {
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
    assert (attempt._first["math"]["math/p0", 0], attempt.best_step, len(notes)) == (0.4, 6, 1)
