"""The advice on a function of the user's own that cannot score its first prompt."""

import pytest

from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt
from rollpacker.rewards import trial
from rollpacker.rewards.trial import try_checks

MINE = """
import errno, mmap, os

import numpy


class OutOfMemoryError(RuntimeError):
    pass


def take(response):
    bytes(5 << 30)

def take_an_array(response):
    numpy.empty(5 << 30, dtype=numpy.int8)

def take_a_mapping(response):
    mmap.mmap(-1, 5 << 30)

def take_a_tensor(response):
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes.")

def fill_a_gpu(response):
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

def seat(response):
    raise ValueError("cannot allocate seats")
"""

TRAINING = """
import rollpacker

def score(response):
    return 1.0

rollpacker.train("reward=math", reward=score)
"""

PROMPT = Prompt(
    key="p0",
    domain=Domain("math"),
    messages=({"role": "user", "content": "2 + 2"},),
    text=None,
    reference=AnswerReference(text="4"),
)


@pytest.mark.parametrize(
    ("name", "is_advised"),
    [
        ("take", True),
        ("take_an_array", True),
        ("take_a_mapping", True),
        ("take_a_tensor", True),
        ("fill_a_gpu", False),
        ("seat", False),
    ],
)
def test_the_limit_of_memory_is_told_to_a_function_that_reached_it_alone(tmp_path, name, is_advised):
    (tmp_path / "mine.py").write_text(MINE)
    with pytest.raises(ConfigError) as raised:
        try_checks(RewardSection(function=f"{tmp_path}/mine.py:{name}"), [PROMPT])
    assert ("A call may take 4 GiB of address space" in str(raised.value)) == is_advised


@pytest.mark.parametrize(
    ("text", "limit_s", "problem", "remedy"),
    [
        (MINE, 120.0, "has no `score`", "Correct the name or the function."),
        (MINE, 0.01, "not ready after 0.01 s", "Load less there, or have a server score (reward.url)."),
        (TRAINING, 120.0, "ConfigError (mine.py, line 7): ", 'Put the call under `if __name__ == "__main__":`.'),
    ],
)
def test_the_last_line_says_what_to_do_about_an_import_that_failed(
    tmp_path, monkeypatch, *, text, limit_s, problem, remedy
):
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setattr(trial, "START_LIMIT_S", limit_s)
    with pytest.raises(ConfigError) as raised:
        try_checks(RewardSection(function=f"{tmp_path}/mine.py:score"), [PROMPT])
    assert problem in str(raised.value)
    assert str(raised.value).splitlines()[-1] == remedy
