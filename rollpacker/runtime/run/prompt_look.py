"""Checks the tokens of prompts before a run starts: how many are too long, or hold unknown text, and which are left.

A run tokenizes all of its prompts as it starts. `rollpacker check` takes a sample, spread evenly over the files, that
needs a few seconds; where the sample is all prompts, what would stop the run is an error here, too. A run that is
resumed is refused if what is left of its prompts is not what its checkpoint was written with. Tokens are made in a
process of its own, which can be ended when it takes too long: `python -m` this, PARENT_PID. It is no fork: this process
may have threads of libraries, and a lock that one of them holds would stay locked in the copy for ever.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import WorldError
from rollpacker.data.fitting import fit_prompts
from rollpacker.data.held_out import load_held_out
from rollpacker.data.order import is_of, keys_of
from rollpacker.environments.factory import make_tokenizer, try_observation
from rollpacker.environments.prompts import prompts_to_train
from rollpacker.processes.lifetimes import set_parent_death_signal
from rollpacker.processes.package_modules import path_of_package
from rollpacker.runtime.rollout.scheduling import check_supply

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rollpacker.config.schema import RunConfig
    from rollpacker.core.ids import Domain
    from rollpacker.protocols.rollout import Prompt

MOST_PROMPTS = 20_000
"""About 3 s of one core at 500 tokens each."""


LOOK_S = 120.0
"""A tokenizer without a fast implementation may be a hundred times slower."""


def notes_of_tokens(config: RunConfig) -> list[str]:
    """Tokenize the prompts of a real run, or some of them.

    Raises:
        UserError: The tokenizer, the template or the prompts cannot be used, or too few prompts are left.
    """
    try:
        notes: list[str] = _in_other_process(_look, config)
    except subprocess.TimeoutExpired:
        return [f"The prompts' tokens were not counted: that takes longer than {LOOK_S:g} s."]
    return notes


def may_resume(config: RunConfig, prompts: Sequence[Prompt], order: Mapping[str, object]) -> bool:
    """Tell whether a run may go on from a checkpoint's order of prompts.

    Prompts are tokenized only where some of the order are missing: the order is without those that are too long. Those
    that the points of a sweep share are tokenized once. Where that takes too long the answer is True, and the run
    compares them once its workers have started.

    Args:
        config: Of the run.
        prompts: That it trains on, with those that are too long.
        order: A snapshot of `rollpacker.data.order`.

    Raises:
        UserError: As `notes_of_tokens`.
    """
    if is_of(order, keys_of(prompts)) or len(prompts) > MOST_PROMPTS:
        return True
    sections = config.model_dump_json(include={"model", "data", "environment"})
    texts = "".join(repr((prompt.key, prompt.as_written)) for prompt in prompts)
    digest = hashlib.sha256(f"{sections}{texts}".encode(errors="surrogatepass")).digest()
    keys = _keys_that_fit(_Tokenization(digest=digest, config=config))
    return keys is None or is_of(order, keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tokenization:
    """What the tokens of a run's prompts depend on; the same for the points of a sweep over other settings."""

    digest: bytes
    config: RunConfig = field(compare=False)


@functools.lru_cache(maxsize=8)
def _keys_that_fit(tokenization: _Tokenization) -> Mapping[Domain, Sequence[str]] | None:
    """Each domain's prompts that are not too long; None where that takes too long to say."""
    try:
        keys: Mapping[Domain, Sequence[str]] = _in_other_process(_fitting_keys, tokenization.config)
    except subprocess.TimeoutExpired:
        return None
    return keys


def _in_other_process(function: Callable[[RunConfig], Any], config: RunConfig) -> Any:
    """Call a function of this module there; raises what it raises, and `TimeoutExpired` after `LOOK_S`.

    Raises:
        WorldError: The process died.
    """
    process = subprocess.run(  # noqa: S603  # our own module
        [sys.executable, "-P", "-m", __name__, str(os.getpid())],
        input=pickle.dumps((function.__name__, config)),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path_of_package()},
        start_new_session=True,  # Ctrl-C comes here, and ends that process as well
        timeout=LOOK_S,
        check=False,
    )
    if process.returncode:
        raise WorldError(
            f"The process that tokenizes the prompts ended with code {process.returncode}.",
            "",
            "What it printed says more; without a word it was killed, mostly for want of memory.",
        )
    is_error, result = pickle.loads(process.stdout)  # noqa: S301  # from our own process
    if is_error:
        raise result
    return result


def _main() -> None:
    """Be the other process: read a function's name and its argument, and write whether it raised, and what it gave."""
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    name, config = pickle.load(sys.stdin.buffer)  # noqa: S301  # from our own process
    try:
        answer: tuple[bool, Any] = (False, {"_look": _look, "_fitting_keys": _fitting_keys}[name](config))
    except Exception as error:  # noqa: BLE001  # the process boundary: the parent raises it again
        error.add_note(traceback.format_exc())
        answer = (True, error)
    with answers:
        pickle.dump(answer, answers)


def _fitting_keys(config: RunConfig) -> Mapping[Domain, Sequence[str]]:
    prompts, _ = prompts_to_train(config)
    fitting = fit_prompts(prompts, make_tokenizer(config), config.data)
    return keys_of(each.prompt for each in fitting.prompts.values())


def _look(config: RunConfig) -> list[str]:
    tokenizer = make_tokenizer(config)
    if config.trains:
        prompts, notes = prompts_to_train(config)
    else:
        notes = []
        prompts = tuple(chain.from_iterable(load_held_out(config.evaluation).values()))
    step = -(-len(prompts) // MOST_PROMPTS)
    fitting = fit_prompts(prompts[::step], tokenizer, config.data)
    for each in list(fitting.prompts.values())[:1]:
        try_observation(config, tokenizer, each.prompt)
    if step == 1:
        check_supply(config, Counter(each.prompt.domain for each in fitting.prompts.values()))
        return [*notes, *fitting.notes(config.data)]
    return [*notes, *(f"Of every {step}th prompt: {note}" for note in fitting.notes(config.data))]


if __name__ == "__main__":
    _main()
