"""Checks the tokens of prompts for `rollpacker check`: how many prompts are too long, or hold unknown text.

A run tokenizes all of its prompts as it starts. The check takes a sample, spread evenly over the files, that needs a
few seconds; where the sample is all prompts, what would stop the run is an error here, too. It runs in a process of its
own, which can be ended when it takes too long. That is a fork: it has all that is loaded here, and loads only what
tokenizers need.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING

from rollpacker.data.fitting import fit_prompts
from rollpacker.data.held_out import load_held_out
from rollpacker.environments.factory import make_tokenizer, try_observation
from rollpacker.environments.prompts import prompts_to_train
from rollpacker.runtime.rollout.scheduling import check_supply

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

MOST_PROMPTS = 20_000
"""About 3 s of one core at 500 tokens each."""


LOOK_S = 120.0
"""A tokenizer without a fast implementation may be a hundred times slower."""


def notes_of_tokens(config: RunConfig) -> list[str]:
    """Tokenize the prompts of a real run, or some of them.

    Raises:
        UserError: The tokenizer, the template or the prompts cannot be used, or too few prompts are left.
    """
    ignores_ctrl_c = (signal.SIGINT, signal.SIG_IGN)  # this process ends the other one
    with multiprocessing.get_context("fork").Pool(1, signal.signal, ignores_ctrl_c) as pool:
        try:
            return pool.apply_async(_look, (config,)).get(LOOK_S)
        except multiprocessing.TimeoutError:
            return [f"The prompts' tokens were not counted: that takes longer than {LOOK_S:g} s."]


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
