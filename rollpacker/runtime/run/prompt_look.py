"""Checks the tokens of prompts before a run starts: how many are too long, or hold unknown text, and which are left.

A run tokenizes all of its prompts as it starts. `rollpacker check` takes a sample, spread evenly over the files, that
needs a few seconds; where the sample is all prompts, what would stop the run is an error here, too. A run that is
resumed is refused if what is left of its prompts is not what its checkpoint was written with. Tokens are made in a
process of its own, which can be ended when it takes too long. That is a fork: it has all that is loaded here, and loads
only what tokenizers need.
"""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import signal
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

from rollpacker.data.fitting import fit_prompts
from rollpacker.data.held_out import load_held_out
from rollpacker.data.order import is_of, keys_of
from rollpacker.environments.factory import make_tokenizer, try_observation
from rollpacker.environments.prompts import prompts_to_train
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
    except multiprocessing.TimeoutError:
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
    except multiprocessing.TimeoutError:
        return None
    return keys


def _in_other_process(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function there; raises what it raises, and `TimeoutError` of multiprocessing after `LOOK_S`."""
    ignores_ctrl_c = (signal.SIGINT, signal.SIG_IGN)  # this process ends the other one
    with multiprocessing.get_context("fork").Pool(1, signal.signal, ignores_ctrl_c) as pool:
        return pool.apply_async(function, arguments).get(LOOK_S)


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
