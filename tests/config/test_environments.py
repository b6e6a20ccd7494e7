"""What a run with environments may and may not name, by the message that refuses it."""

from __future__ import annotations

import pytest

from rollpacker.core.errors import ConfigError
from tests.sim.composed import composed

REAL = ("model.path=model", "data.path=prompts.jsonl", "system=verl")
GYM, TOOLS, LOOP = "environment.env=own.py:Maze", "environment.tools=[own.py:search]", "environment.loop=own.py:Guess"


@pytest.mark.parametrize(
    "words",
    [
        ("environment=gym", GYM),
        ("environment=tools", TOOLS, "environment.tool_parser=llama3_json"),
        ("environment=loop", LOOP),
        ("environment=loop", LOOP, "reward=environment", "environment.arguments={depth: 3}"),
        ("environment=verifiers", "environment.env=owner/reverse-text@0.1", "environment.python=vf/bin/python"),
    ],
)
def test_what_answers_is_named_by_the_key_of_its_kind(words: tuple[str, ...]):
    assert composed(*REAL, *words).environment is not None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("environment=gym",), r"environment=gym without environment\.env"),
        (("environment=tools",), r"takes environment\.tools=\[my_tools\.py:search\]"),
        (("environment=tools", TOOLS, LOOP), r"environment=tools with environment\.loop"),
        (("environment=tools", "environment.tools=[search]"), "names nothing in Python by search"),
        (("environment=tools", TOOLS, "reward=environment"), "Tools give no reward"),
        (("environment=tools", TOOLS, "environment.tool_parser=hermess"), "hermes"),
        (("environment=gym", GYM, "reward=math"), r"Choose reward=environment"),
        (("environment=gym", GYM, "data.path=null"), r"data\.path=null with backend\.name=ray"),
        (("environment=gym", GYM, "environment.pass_variables=[my-key]"), "names no variable by 'my-key'"),
        (("environment=gym", GYM, "environment.isolation=none"), "bubblewrap.*rlimits"),
        (
            ("environment=gym", GYM, "cluster.environment_nodes.num_nodes=1", "environment.nodes=all", "cluster=slurm"),
            r"environment\.nodes=all and cluster\.environment_nodes\.num_nodes=1",
        ),
        (
            (
                *("environment=verifiers", "environment.env=reverse-text", "environment.isolation=bubblewrap"),
                "environment.arguments={agent: {runtime: {type: docker}}}",
            ),
            r"(?s)agents that run elsewhere.*Leave out `runtime`.*environment\.isolation=rlimits",
        ),
        (("environment=verifiers",), r"takes environment\.env=reverse-text"),
        (("environment=verifiers", "environment.env=reverse-text", "reward=math"), r"Choose reward=environment"),
    ],
)
def test_another_name_or_reward_is_refused_with_what_to_choose(words: tuple[str, ...], says: str):
    with pytest.raises(ConfigError, match=says):
        composed(*REAL, *words)


def test_a_run_without_prompt_file_takes_the_prompts_that_verifiers_has():
    words = ("model.path=model", "environment=verifiers", "environment.env=reverse-text")
    assert composed(*words).takes_prompts_of_environment
    assert not composed(*words, "data.path=own.jsonl").takes_prompts_of_environment
