"""Makes what a configuration's environments run in, and the tokenizer of prompts that they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import DataError
from rollpacker.data.tokenization import PromptTokenizer
from rollpacker.data.turns import TurnRenderer
from rollpacker.environments.hosts import EnvironmentHost, EnvironmentHosts
from rollpacker.environments.pool import EnvironmentPool
from rollpacker.environments.starting import starter_of
from rollpacker.environments.trial import first_observation, tool_schemas
from rollpacker.protocols.environment import EnvironmentParts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.rollout import Prompt

_OBSERVATION = "RollPackerSays"
"""A word that no template writes or changes."""

GRACE_S = 10.0
"""How much longer than the scheduler's limits a call may take."""


def make_environments(
    config: RunConfig, tokenizer: PromptTokenizer, hosts: Sequence[EnvironmentHost] = ()
) -> EnvironmentParts:
    """Make them, on hosts if there are some, else here; processes start as trajectories need them."""
    from rollpacker.engines.end_tokens import end_tokens  # with transformers, which the tokenizer has loaded

    section = config.environment
    assert section is not None
    keeps_special = section.name == "tools"
    return EnvironmentParts(
        service=EnvironmentHosts(hosts) if hosts else make_pool(config),
        texts=TurnRenderer(tokenizer, keeps_special=keeps_special, end_tokens=end_tokens(config.model.directory)),
        gives_rewards="environment" in config.reward.names,
        longest_call_s=max(section.opening_timeout_s, section.longest_call_s),
    )


def make_pool(config: RunConfig) -> EnvironmentPool:
    """Make what runs environments on one node.

    Raises:
        UserError: They cannot start on it.
    """
    section = config.environment
    assert section is not None
    return EnvironmentPool(
        starter_of(config),
        limit_s=section.longest_call_s + GRACE_S,
        sends_tokens=section.name in {"loop", "verifiers"},
        limits={
            call: f"environment.{call}_timeout_s={limit_s:g}, or what was left of "
            f"environment.episode_timeout_s={section.episode_timeout_s:g}"
            for call, limit_s in (("reset", section.reset_timeout_s), ("turn", section.turn_timeout_s))
        },
    )


def try_observation(config: RunConfig, tokenizer: PromptTokenizer, prompt: Prompt) -> None:
    """Render an observation behind a turn, and before the first one where the environment speaks first.

    A tokenizer that cannot write the word that is looked for, as one of few words cannot, shows nothing.

    Raises:
        DataError: The chat template does not take it, or leaves it out.
        ConfigError: The environment, asked for what it says first, does not say it.
    """
    section = config.environment
    if section is None or section.name == "loop":  # which renders for itself
        return
    if _OBSERVATION not in tokenizer.token_texts(tokenizer.encode_text(_OBSERVATION)):
        return
    answers_calls = section.name == "tools" or (section.name == "verifiers" and prompt.row.get("tools"))
    role = "tool" if answers_calls else "user"
    _try_following(config, tokenizer, prompt, role, [tokenizer.eos_token_id])
    if not section.speaks_first:
        return
    try:
        _try_following(config, tokenizer, prompt, role, [])
    except DataError:
        said = first_observation(config, prompt)
        if said and isinstance(said, str):
            raise
        TurnRenderer(tokenizer).observation(prompt, said, [])  # nothing, which is always taken, or messages


def _try_following(
    config: RunConfig, tokenizer: PromptTokenizer, prompt: Prompt, role: str, turn: Sequence[int]
) -> None:
    message = {"role": role, "content": _OBSERVATION}
    following = TurnRenderer(tokenizer).observation(prompt, [message], turn)
    if _OBSERVATION not in (text := tokenizer.token_texts(following)):
        assert config.environment is not None
        raise DataError(
            f"The chat template leaves out a message of the role `{role}` behind a {'turn' if turn else 'prompt'}: it "
            f"writes {text[-200:]!r}.",
            f"What environment={config.environment.name} answers is such a message, which the model would never see.",
            "Give another template by data.chat_template.",
        )


def make_tokenizer(config: RunConfig) -> PromptTokenizer:
    """Load the tokenizer of a run's prompts.

    Raises:
        UserError: As `PromptTokenizer`, or a tool cannot be used.
    """
    section = config.environment
    has_tools = section is not None and section.name == "tools"
    return PromptTokenizer(
        config.model.directory,
        config.data,
        opens_answer=section is None or not section.speaks_first,
        tools=tool_schemas(config) if has_tools else (),
    )
