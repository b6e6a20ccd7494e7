"""What answers the turns of a policy: the `environment` section."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from rollpacker.config.python_names import START_LIMIT_S
from rollpacker.config.sections.base import (
    NOT_IN_FINGERPRINT,
    Count,
    Flag,
    Kind,
    OnlyWith,
    Positive,
    PositiveSeconds,
    Section,
)
from rollpacker.config.sections.losses import TURN_ADVANTAGES
from rollpacker.config.sections.reward_checks import NAMED_IN_PYTHON

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


class EnvironmentSection(Section):
    """What answers the turns of a policy: a response is then a trajectory of several turns."""

    name: Literal["gym", "tools", "loop", "verifiers"]
    """`gym`: a Python class with GEM's or gymnasium's interface whose actions and observations are texts. It has
    reset(seed, options) -> (observation, info), of which either parameter may be missing, and step(action) ->
    (observation, reward, terminated, truncated, info). `options` are the other fields of the prompt's line.
    `tools`: Python functions that the model may call. A turn without a call is the answer, which the reward scores.
    `loop`: an agent loop of your own, with verl's names (see rollpacker.environments.agent_loop).
    `verifiers`: a taskset of the package `verifiers`, 0.4 or later, as it is published; its own rewards count."""
    env: str | None = None
    """The class, or a function that makes one: my_env.py:Maze, package.module:Maze or gymnasium:make. What it prints on
    standard output is dropped: have it write a log file of its own. The package has, in rollpacker.environments,
    walk_turns:WalkTurns, frozen_lake:FrozenLake, sokoban_mini:SokobanMini, and delayed:Delayed, which makes another one
    slow, hang or crash; calculator and python_tool are for environment=tools.
    With environment=verifiers the id of a taskset, as vf-eval takes it: reverse-text, or one of those that bring other
    libraries' environments, textarena and openenv (pip install 'verifiers[ta,openenv]'), or nemo_gym, with the address
    of a server in environment.arguments={taskset: {dataset: FILE, task: {resources_url: ADDRESS}}}."""
    python: Annotated[
        str | None, Kind("a path"), OnlyWith("environment.name", "gym", "verifiers"), NOT_IN_FINGERPRINT
    ] = None
    """The interpreter that environments run in, where they need other packages than engines do, as `verifiers` does:
    DIR/bin/python. null is the run's own."""
    arguments: Annotated[
        dict[str, Any],
        Kind("a mapping of each parameter of the class to its value"),
        OnlyWith("environment.name", "gym", "loop", "verifiers"),
    ] = Field(default_factory=dict)
    """Given to the class by name. With environment=verifiers what vf-eval takes below --env, such as
    {taskset: {dataset_split: train}, agent: {runtime: {type: docker}}}. Unless these say otherwise, agents run on this
    machine, and send their conversation, with the taskset's tools, straight to the policy."""
    tools: Annotated[
        tuple[str, ...], Kind("a list of FILE.py:NAME or MODULE:NAME"), OnlyWith("environment.name", "tools")
    ] = ()
    """The functions: my_tools.py:search, or package.module:search; the package has
    rollpacker.environments.calculator:calculate and rollpacker.environments.python_tool:python. The chat template tells
    the model of each what its type hints and its Google docstring say. What a call returns, or why it failed, is the
    next message; a call that never returns ends the trajectory's attempt after turn_timeout_s.
    Tools of one file share its state, and a process goes from one trajectory to the next: what a trajectory leaves in
    a module, its function reset_tools() clears, called as each begins. prepare_tools() is called once in a process."""
    tool_parser: Annotated[
        Literal["hermes", "llama3_json", "qwen3_coder", "pythonic", "deepseek_v3", "deepseek_v31"],
        OnlyWith("environment.name", "tools", "verifiers"),
    ] = "hermes"
    """How the model writes calls, of a taskset's tools too, by vLLM's names. `hermes`: JSON between <tool_call> tags,
    as Qwen2.5, Qwen3 and Hermes do. `llama3_json`: JSON from the beginning of the turn on, as Llama 3 does.
    `qwen3_coder`: <function=...> and <parameter=...> tags, as Qwen3-Coder does. `pythonic`: a list of calls in Python,
    as Llama 3.2 and 4 do. `deepseek_v3`, `deepseek_v31`: JSON between DeepSeek's own tags."""
    loop: str | None = None
    """The class: my_loop.py:Guess, or package.module:Guess. It has `async def run(self, sampling_params, **kwargs)`,
    which calls `await self.server_manager.generate(prompt_ids=..., sampling_params=sampling_params)` for each turn and
    returns prompt_ids, response_ids and response_mask. kwargs has raw_prompt (the messages), prompt_ids and the other
    fields of the prompt's line. Each call goes on from all tokens before. With reward=environment its reward_score is
    the reward; another reward scores the last turn."""
    isolation: Annotated[Literal["bubblewrap", "rlimits"], NOT_IN_FINGERPRINT] = "rlimits"
    """Of the processes of environments. `bubblewrap`, as for reward=sandbox: no network, no other processes, the file
    system read-only, with a home and a /tmp of their own in memory. Of the user's home and of /tmp they see Python, the
    working directory, what environment.env, tools, loop and arguments name, and Hugging Face's caches, to which nothing
    can be downloaded; none of these may be all of the home or of /tmp. `rlimits`, the default, does not isolate:
    much that environments start, such as browsers and containers, and services that they call would not work isolated,
    and not every machine has user namespaces. With either, each process may have 16 GiB of memory; files mapped to be
    read or shared, and address space that is only reserved, as by browsers, are not counted."""
    network: Annotated[Flag, OnlyWith("environment.isolation", "bubblewrap"), NOT_IN_FINGERPRINT] = False
    """Whether isolated environments may use the network, this machine's services too. Their own address 127.0.0.1 works
    without it."""
    pass_variables: Annotated[tuple[str, ...], Kind("a list of names of variables"), NOT_IN_FINGERPRINT] = ()
    """Variables of the run that its environments see, such as [OPENAI_API_KEY, HTTPS_PROXY], with any isolation. Others
    that they see are PATH, HOME, LANG, TZ, LD_LIBRARY_PATH, PYTHON* and places of Hugging Face's caches; and no GPU,
    unless CUDA_VISIBLE_DEVICES is named."""
    max_turns: Count = Field(20, ge=1)
    """That a policy writes in a trajectory. rollout.max_response_tokens counts all its tokens, those of the environment
    too; only what the policy wrote is trained."""
    max_open: Annotated[Count, NOT_IN_FINGERPRINT] = Field(64, ge=1, le=10_000)
    """Environments that are open at a time, each in a process of its own; other trajectories wait. As many more may be
    open where an asynchronous run evaluates, for held-out prompts."""
    nodes: Annotated[Literal["first", "all"], NOT_IN_FINGERPRINT] = "first"
    """`first`: processes of environments run on the first node, beside the driver. `all`: on all nodes of the run, each
    new one where the fewest are open; trajectories of a node that is lost begin again on the others. Rollout workers
    take none. With cluster.environment_nodes they run on nodes of their own, spread in the same way."""
    starts_per_minute: Annotated[Positive | None, NOT_IN_FINGERPRINT] = None
    """Resets that begin in a minute, at most, evenly spread: for a service that bears no more. null is no limit."""
    max_restarts: Annotated[Count, NOT_IN_FINGERPRINT] = Field(2, ge=0)
    """How often a trajectory begins again whose environment crashed or took too long. A prompt with too few others left
    for its group is then dropped, and counted."""
    reset_timeout_s: Annotated[PositiveSeconds, NOT_IN_FINGERPRINT] = 60.0
    """For a reset, from the moment at which it begins. Where there is no process, it waits for a core to start one on,
    and for the start, which may take two minutes, or as long as a reset if that is longer; none of this is counted."""
    turn_timeout_s: Annotated[PositiveSeconds, NOT_IN_FINGERPRINT] = 60.0
    """For a step."""
    episode_timeout_s: Annotated[PositiveSeconds, NOT_IN_FINGERPRINT] = 600.0
    """For all answers of a trajectory together; what engines take is not counted."""

    @property
    def start_limit_s(self) -> float:
        """How long the start of a process may take."""
        return max(START_LIMIT_S, self.reset_timeout_s)

    @property
    def opening_timeout_s(self) -> float:
        """How long no start may be heard of while some are waited for: one ahead may be over just before its limit."""
        return 2 * self.start_limit_s

    @property
    def longest_call_s(self) -> float:
        """How long an environment may take to answer."""
        return max(self.reset_timeout_s, self.turn_timeout_s)

    @field_validator("env", "tools", "loop")
    @classmethod
    def _names_something(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("name") == "verifiers" and info.field_name == "env":
            return value  # an id, which is looked for where the package is
        for each in (value,) if isinstance(value, str) else value or ():
            if not re.fullmatch(NAMED_IN_PYTHON, each):
                raise ValueError(
                    f"environment.{info.field_name} names nothing in Python by {each}.\n"
                    "A class or a function is named FILE.py:NAME or PACKAGE.MODULE:NAME.\nCorrect it."
                )
        return value

    @field_validator("pass_variables")
    @classmethod
    def _names_variables(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for each in value:
            if not (each.isascii() and each.isidentifier()):
                raise ValueError(
                    f"environment.pass_variables names no variable by {each!r}.\n"
                    "It takes names alone; their values are the run's.\nExport it before the run, and give its name."
                )
        return value

    @model_validator(mode="after")
    def _names_what_answers(self) -> Self:
        key = _KEYS[self.name]
        others = [each for each in _KEYS.values() if each != key and getattr(self, each)]
        if not getattr(self, key) or others:
            problem = f"with environment.{others[0]}" if others else f"without environment.{key}"
            raise ValueError(
                f"environment={self.name} {problem}.\n"
                f"It takes environment.{key}={_EXAMPLES[self.name]}, and not what other environments take.\nCorrect it."
            )
        return self

    @property
    def speaks_first(self) -> bool:
        """Whether the first turn follows an observation, which then opens it."""
        return self.name == "gym"

    @property
    def interpreter(self) -> str | None:
        """The Python of its processes; None is the run's own, which tools and loops need."""
        return self.python if self.name in {"gym", "verifiers"} else None

    @property
    def has_agents_elsewhere(self) -> bool:
        """Whether agents of `verifiers` run in containers or on other machines."""
        roles = [each for each in self.arguments.values() if isinstance(each, dict)]
        runtimes = [each["runtime"] for each in roles if isinstance(each.get("runtime"), dict)]
        return self.name == "verifiers" and any(each.get("type", "subprocess") != "subprocess" for each in runtimes)

    @property
    def has_prompts(self) -> bool:
        """Whether it has prompts of its own, for a run without data.path."""
        return self.name == "verifiers"


_KEYS = {"gym": "env", "tools": "tools", "loop": "loop", "verifiers": "env"}
"""Which names what answers, by the section's name."""

_EXAMPLES = {
    "gym": "my_env.py:Maze",
    "tools": "[my_tools.py:search]",
    "loop": "my_loop.py:Guess",
    "verifiers": "reverse-text",
}


def check_environment(config: RunConfig) -> None:
    """Refuse what a run with environments, real or modelled, cannot have; raises `ValueError`."""
    reward, environment, modelled = config.reward, config.environment, config.modelled_environment
    if "environment" in reward.names and (environment is None or reward.names != ("environment",)):
        raise ValueError(
            "reward=environment without an environment.\n"
            "It is the sum of what environments give for the turns of a response.\n"
            "Choose environment=gym, verifiers or loop, or another reward."
            if environment is None
            else f"reward=environment with reward.domains={{{', '.join(map(': '.join, reward.domains.items()))}}}.\n"
            "Environments give the rewards of all domains.\nLeave out reward.domains, or choose another reward."
        )
    if config.trainer.advantage in TURN_ADVANTAGES and environment is None:
        raise ValueError(
            f"trainer.advantage={config.trainer.advantage} without an environment.\n"
            "It is made from the rewards of single turns, which only environments give.\n"
            "Choose environment=gym with environment.env, or trainer.advantage=group_std."
        )
    if environment is not None:
        written, refused = f"environment={environment.name}", _refused_with(environment, config)
    elif modelled is not None:
        written, refused = f"workload.environment.name={modelled.name}", ()
    else:
        return
    for key, is_set, reason, remedy in (
        *refused,
        (
            "evaluation.when=fill",
            config.evaluation.when == "fill",
            "Held-out trajectories beside a round would take its places among the open environments.",
            "Set evaluation.when=alone.",
        ),
    ):
        if is_set:
            raise ValueError(f"{written} with {key}.\n{reason}\n{remedy}")


def _refused_with(environment: EnvironmentSection, config: RunConfig) -> tuple[tuple[str, bool, str, str], ...]:
    """What real environments cannot have: a key, whether it is so, the reason and what to do."""
    reward = config.reward
    return (
        (
            f"reward={reward.name_of()}",
            environment.name in {"gym", "verifiers"} and reward.names != ("environment",),
            "A trajectory's reward is the sum of what its environment gives.",
            "Choose reward=environment.",
        ),
        (
            "reward=environment",
            environment.name == "tools" and "environment" in reward.names,
            "Tools give no reward: the answer that follows them has one.",
            "Choose the reward of the answer, such as reward=math.",
        ),
        (
            f"environment.nodes=all and cluster.environment_nodes.num_nodes={config.num_environment_nodes}",
            config.num_environment_nodes > 0 and environment.nodes == "all",
            "Environments run on nodes of their own, or on all nodes of the run.",
            "Leave one of them out.",
        ),
        (
            "environment.isolation=bubblewrap and agents that run elsewhere",
            environment.isolation == "bubblewrap" and environment.has_agents_elsewhere,
            "What starts containers listens where isolated environments do not see it.",
            "Leave out `runtime` in environment.arguments, or set environment.isolation=rlimits.",
        ),
        (
            "backend.name=sim",
            config.backend.name == "sim",
            "A modelled run has no text for an environment to answer.",
            "Choose backend=ray, or model an environment by workload.environment (workload=agents).",
        ),
    )
