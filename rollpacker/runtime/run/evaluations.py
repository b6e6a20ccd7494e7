"""What becomes of an evaluation that is over: its tables, its curves, a line on the screen, and the best checkpoint.

Invariant: the tables hold evaluations of policies up to the one that the run goes on from; those of later ones are
taken back before an attempt's first step. One that is made once more, because the checkpoint does not know of it, takes
the other's place when it is over, and not before. Only evaluations alike are compared, with each other and for the best
checkpoint: the section and the prompts of a set may differ between attempts.
"""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import DataError
from rollpacker.evaluation.comparison import Rewards, rewards_by_set
from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES
from rollpacker.metrics.mending import mend_tables
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.metrics.tables import EVALUATION_FOLDER, read_table
from rollpacker.runtime.run.evaluation_rows import Row, evaluation_tables
from rollpacker.runtime.run.held_out_sets import HeldOutSets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.rollout import Prompt
    from rollpacker.runtime.rollout.evaluation_record import EvaluationRecord
    from rollpacker.runtime.run.texts import TextKeeper


class Evaluations:
    """Writes the evaluations of one attempt.

    Args:
        config: Of the run.
        last_step: That the attempt goes on from. Those of later ones stay until `take_back`, which is to be called
            before the first evaluation.
        held_out: The prompts of each set.
        saved_steps: Gives the steps that have a checkpoint.
        texts: Reads responses.
        note: Shows a person a line.
        is_modelled: Whether the run's times are a model's.
    """

    best_step: int | None
    """After how many steps the best score so far was, when the attempt began; None without one. Only policies count
    that can be had: that of `model.path`, and those of checkpoints."""
    _best: float | None
    """The best score so far."""
    _first: dict[str, Rewards]
    """Of the first evaluation of each set that is like those of this attempt."""

    def __init__(
        self,
        config: RunConfig,
        last_step: int,
        held_out: Mapping[str, Collection[Prompt]],
        *,
        saved_steps: Callable[[], Collection[int]],
        texts: TextKeeper,
        note: Callable[[str], None],
        is_modelled: bool,
    ) -> None:
        self._config = config
        self._kinds = {
            rule.name: (len(held_out[rule.name]), rule.num_samples or 1, rule.temperature)
            for rule in config.evaluation.rules
        }
        self._saved_steps = saved_steps
        self._texts = texts
        self._note = note
        self._is_modelled = is_modelled
        folder = config.run.dir / EVALUATION_FOLDER
        for problem in mend_tables(folder, EVALUATION_TABLES, first_step=last_step + 1):
            note(problem)
        self._sets = HeldOutSets(folder, held_out)
        if self._sets.edited:
            note(
                f"Edited since their last evaluation: held-out prompts of {', '.join(sorted(self._sets.edited))}. "
                "Scores from before are not compared with later ones."
            )
        self._writer = MetricsWriter(folder, EVALUATION_TABLES)
        self.best_step, self._best, self._first = None, None, {}

    def close(self) -> None:
        self._writer.close()

    def make_durable(self) -> None:
        """Write everything through to the disk, ahead of a checkpoint."""
        self._writer.make_durable()

    def record(self, record: EvaluationRecord) -> tuple[Sequence[Row], Sequence[Row], bool]:
        """Write an evaluation and show it.

        Returns:
            Its rows of `evaluations` and of `evaluation_responses`, and whether no score was better so far.
        """
        texts = self._texts.of_evaluation(record)
        if self._writer.last_step == record.begin.step:
            self.take_back(record.begin.step)
        tables = evaluation_tables(record, self._config.evaluation, texts, self._first, is_modelled=self._is_modelled)
        self._first = rewards_by_set(tables["evaluation_responses"]) | self._first
        self._writer.write_step(record.begin.step, tables)
        self._sets.evaluated(record.begin.step)
        rows = tables["evaluations"]
        self._note(_line(record.begin.step if self._config.trains else None, rows))
        score = self._score(rows)
        is_best = score is not None and (self._best is None or score > self._best)
        self._best = score if is_best else self._best
        return rows, tables["evaluation_responses"], is_best

    def take_back(self, step: int) -> None:
        """Drop the evaluations of a step and of all later ones."""
        self._writer.truncate_after(step - 1)
        self.best_step, self._best = self._best_so_far()
        self._first = self._first_rewards()

    def of_step(self, step: int) -> tuple[Sequence[Row], Sequence[Row]]:
        """The rows that the tables have of one evaluation, as `record` returns them; none without it."""
        run_dir, steps = self._config.run.dir, (step, step)
        try:
            rows, responses = (read_table(run_dir, table, steps) for table in ("evaluations", "evaluation_responses"))
        except DataError:
            return (), ()
        return rows.to_pylist(), responses.to_pylist()

    def _score(self, rows: Sequence[Mapping[str, Any]]) -> float | None:
        """What checkpoints are ranked by: the mean reward of `run.best_by`, or over all sets; None if one was cut."""
        chosen = [row["reward_mean"] for row in self._ranking(rows)]
        return None if None in chosen else fmean(chosen)

    def _ranking(self, rows: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """The rows of an evaluation that its score is of."""
        return [row for row in rows if self._config.run.best_by in {None, row["set"]}]

    def _is_alike(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of `evaluations` is of a set as this attempt evaluates it, as far as is recorded."""
        kind = row["num_prompts"], row["num_samples"], row["temperature"]
        return self._kinds.get(row["set"]) == kind and self._sets.is_as_now(row["set"], row["step"])

    def _first_rewards(self) -> dict[str, Rewards]:
        """Of the first evaluation of each set by earlier attempts that is complete and like those of this one."""
        run_dir = self._config.run.dir
        first_steps: dict[str, int] = {}
        rewards: dict[str, Rewards] = {}
        try:
            for row in read_table(run_dir, "evaluations").to_pylist():  # by step
                if self._is_alike(row) and row["reward_mean"] is not None:
                    first_steps.setdefault(row["set"], row["step"])
            for step in sorted(set(first_steps.values())):
                responses = read_table(run_dir, "evaluation_responses", (step, step))
                rows = responses.select(["set", "prompt", "sample", "reward"]).to_pylist()
                rewards |= rewards_by_set(row for row in rows if first_steps.get(row["set"]) == step)
        except DataError:
            return {}
        return rewards

    def _best_so_far(self) -> tuple[int | None, float | None]:
        """The first step with the best score of earlier attempts, as far as what is ranked by is that of this one."""
        try:
            rows = read_table(self._config.run.dir, "evaluations").to_pylist()
        except DataError:
            return None, None
        by_step: dict[int, list[Row]] = {}
        for row in rows:
            by_step.setdefault(row["step"], []).append(row)
        usable_steps = {0, *self._saved_steps()}
        num_ranking = 1 if self._config.run.best_by else len(self._kinds)
        scores = {
            step: score
            for step, of_step in by_step.items()
            if step in usable_steps
            and len(ranking := self._ranking(of_step)) == num_ranking
            and all(map(self._is_alike, ranking))
            and (score := self._score(ranking)) is not None
        }
        return max(scores.items(), key=lambda each: (each[1], -each[0]), default=(None, None))


def _line(step: int | None, rows: Sequence[Row]) -> str:
    """Such as `Held out after 10 steps: aime24 0.312 +- 0.011 (30 x 32), +0.020 +- 0.008 since the first`."""
    scores = []
    for row in rows:
        if not row["is_complete"]:
            num_responses = row["num_prompts"] * row["num_samples"]
            scores.append(f"{row['set']} has no score: {row['num_unfinished']:,} of {num_responses:,} were stopped")
            continue
        error = row["se_given_prompts"] if row["se_given_prompts"] is not None else row["se_over_prompts"]
        error_text = "" if error is None else f" +- {error:.3f}"
        size = f"({row['num_prompts']} x {row['num_samples']})"
        scores.append(f"{row['set']} {row['reward_mean']:.3f}{error_text} {size}{_since_the_first(row)}")
    if step is None:
        return f"Held out: {', '.join(scores)}"
    when = "before training" if step == 0 else f"after {step} step{'s' if step > 1 else ''}"
    return f"Held out {when}: {', '.join(scores)}"


def _since_the_first(row: Row) -> str:
    given, over = row["se_diff_given_prompts"], row["se_diff_over_prompts"]
    error = given if given is not None else over
    if row["diff_to_first"] is None or error is None:
        return ""
    return f", {row['diff_to_first']:+.3f} +- {error:.3f} since the first"
