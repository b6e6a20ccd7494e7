"""Rewards of the user's own that cannot be used are refused before anything starts, each with what is wrong."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.sections.reward_checks import url_check
from tests.cli.inputs import tree_of
from tests.rewards.servers import reward_server

RUN = ["model.path=model", "data.path=prompts.jsonl"]

MINE = """
import math, os, time

LIMIT = 3

def score(response, ground_truth):
    return float(ground_truth in response), "found" if ground_truth in response else "not_found"

def is_short(prompt, response, row, is_truncated):
    return {"score": len(response) < 20, "num_characters": len(response)}

def of_an_answer(answer):
    return 1.0

def fail(response):
    return 1 / 0

def hang(response):
    time.sleep(1000)

def die(response):
    os._exit(3)

def leave(response):
    raise SystemExit("no licence")

def grow(response):
    return float(len(bytes(5 << 30)))

def nan(response):
    return math.nan

def nothing(response):
    pass

def text(response):
    return "good"

async def fail_later(response):
    raise KeyError("level")
"""

BAD_FUNCTIONS: dict[str, tuple[str, list[str]]] = {
    "no name": ("mine.py", ["reward.function=mine.py names no function", "Write reward.function=mine.py:score"]),
    "no file": ("nowhere.py:score", ["cannot be used: there is no file nowhere.py"]),
    "a misspelt name": ("mine.py:scoer", ["mine.py has no `scoer`; it has `score`"]),
    "no module": ("no_such.module:score", ["ModuleNotFoundError: No module named 'no_such'"]),
    "no function": ("mine.py:LIMIT", ["`LIMIT` of mine.py is 3, which is no function"]),
    "another parameter": ("mine.py:of_an_answer", ["its parameter `answer` is none of prompt, response, ground_truth"]),
    "an import that raises": ("broken.py:score", ["No module named 'no_such_library' (broken.py, line 1)"]),
    "an import of no Python": ("prompts.py:score", ["importing prompts.py raised SyntaxError"]),
    "one that raises": ("mine.py:fail", ["on the first prompt, 'p0', it raised ZeroDivisionError", "mine.py, line 16"]),
    "one that raises later": ("mine.py:fail_later", ["it raised KeyError: 'level'"]),
    "one that hangs": ("mine.py:hang", ["it took longer than 0.3 s", "Make it faster, or raise reward.timeout_s."]),
    "one that dies": ("mine.py:die", ["its process died", "Correct it."]),
    "one that exits": ("mine.py:leave", ["it raised SystemExit: no licence", "Correct it."]),
    "one that takes much memory": ("mine.py:grow", ["it raised MemoryError", "A call may take 4 GiB of address space"]),
    "NaN": ("mine.py:nan", ["it returned nan", "A function returns a finite number"]),
    "nothing": ("mine.py:nothing", ["it returned None, which is no score"]),
    "a text": ("mine.py:text", ["it returned 'good', which is no score"]),
}

BAD_WORDS: dict[str, tuple[list[str], list[str]]] = {
    "a weight that is NaN": (["reward.parts={a: {name: math, weight: nan}}"], ["reward.parts.a.weight=nan"]),
    "a weight that is a text": (["reward.parts={a: {name: math, weight: big}}"], ["reward.parts.a.weight=big"]),
    "weights of 0": (["reward.parts={a: {name: math, weight: 0}}"], ["Every part of reward.parts has weight 0"]),
    "a part without a check": (["reward.parts={a: {weight: 2}}"], ["reward.parts.a has no check", "name: math"]),
    "a part of two checks": (
        ["reward.parts={a: {name: math, url: 'http://host:1'}}"],
        ["reward.parts.a has name and url", "A part has one check"],
    ),
    "a part of no known name": (["reward.parts={a: {name: mth}}"], ["reward.parts.a.name=mth", "'math', 'walk'"]),
    "a part that is a judge": (["reward.parts={a: {name: judge}}"], ["reward.parts.a.name=judge", "'math', 'walk'"]),
    "a part with an unknown key": (
        ["reward.parts={a: {name: math, wieght: 2}}"],
        ["`reward.parts.a.wieght` is not a key"],
    ),
    "a part with an odd name": (["reward.parts={a b: {name: math}}"], ["reward.parts has a part named 'a b'"]),
    "a part whose function is missing": (
        ["reward.parts={a: {name: math}, b: {function: mine.py:gone}}"],
        ["reward.parts.b.function=mine.py:gone cannot be used: mine.py has no `gone`"],
    ),
    "parts that are a number": (["reward.parts=5"], ["reward.parts=5", "a mapping of each part"]),
    "two rewards": (
        ["reward.function=mine.py:score", "reward.parts={a: {name: math}}"],
        ["reward.function and reward.parts are both set"],
    ),
    "a name and a function": (
        ["reward=walk", "reward.function=mine.py:score"],
        ["reward.name=walk and reward.function are both set", "choose reward=math, which it replaces"],
    ),
    "a modelled reward and a function": (
        ["reward=modelled", "reward.function=mine.py:score"],
        ["reward.name=modelled and reward.function are both set"],
    ),
    "a URL without http": (["reward.url=localhost:5000"], ["reward.url=localhost:5000 is no URL", "http://HOST"]),
    "a password in a URL": (
        ["reward.url=http://me:secret@localhost:5000"],
        ["reward.url has a user or a password", "Requests are sent without"],
    ),
    "a password in a URL that is none": (
        ["reward.url=http://me:secret@:5000"],
        ["reward.url has a user or a password"],
    ),
    "a password in what cannot be split": (["reward.url='http://me:secret@[::1/x'"], ["reward.url is no URL"]),
    "a password in what cannot be read": (
        ["reward.url=http://me:secret@[::1/x"],
        ["`reward.url` cannot be read", """Write 'reward.url="VALUE"'"""],
    ),
    "a password in a mapping that cannot be read": (
        ["reward.domains={math: http://me:secret@[::1/x}"],
        ["`reward.domains` cannot be read"],
    ),
    "a password with a slash too few": (
        ["reward.domains={math: 'http:/me:secret@localhost:5000'}"],
        ["reward.domains.math is no URL"],
    ),
    "a password without a slash": (
        ["reward.domains={math: 'http:me:secret@localhost:5000'}"],
        ["reward.domains.math names no function"],
    ),
    "a password in what is to be a function": (
        ["reward.function='http://me:secret@localhost:5000/score.py'"],
        ["reward.function names no function", "PACKAGE.MODULE:NAME. Correct it."],
    ),
    "a port that is none": (["reward.url=http://localhost:70000/x"], ["is no URL", "below 65536"]),
    "a host that is none": (["reward.url=http://local..host/x"], ["reward.url=http://local..host/x is no URL"]),
    "a path of other letters": (["reward.url='http://localhost/ü'"], ["is no URL", "a path in ASCII"]),
    "a check of a domain that is none": (
        ["reward.domains.math=mth"],
        ["reward.domains.math=mth is no check", "Write reward.domains.math=math."],
    ),
    "a function of a domain that is missing": (
        ["reward.domains.math=nowhere.py:score"],
        ["reward.domains.math=nowhere.py:score cannot be used: there is no file nowhere.py"],
    ),
    "the key of another tool": (["reward.custom_rm_path=mine.py"], ["`reward.function`", "Write reward.function="]),
}


@pytest.fixture
def folder(workdir: Path) -> Path:
    (workdir / "mine.py").write_text(MINE)
    (workdir / "broken.py").write_text("import no_such_library")
    (workdir / "prompts.py").write_bytes((workdir / "prompts.jsonl").read_bytes() + b"{")
    return workdir


@pytest.fixture
def closed_port() -> Iterator[int]:
    """One that nobody listens at, and nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def refused(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """The message of a command that is refused and leaves nothing behind."""
    before = tree_of(folder)
    assert main(words) == 2
    assert tree_of(folder) == before
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("case", BAD_FUNCTIONS)
def test_a_function_that_cannot_score_is_refused_with_exit_code_2(
    case: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, expected = BAD_FUNCTIONS[case]
    limit_s = 0.3 if case == "one that hangs" else 30
    message = refused(folder, capsys, ["check", *RUN, f"reward.function={source}", f"reward.timeout_s={limit_s}"])
    for part in (*expected, f"reward.function={source}"):
        assert part in message


@pytest.mark.parametrize("case", BAD_WORDS)
def test_a_bad_reward_is_refused_with_exit_code_2(case: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, expected = BAD_WORDS[case]
    message = refused(folder, capsys, ["check", *RUN, *words])
    assert "secret" not in message
    for part in expected:
        assert part in message


def test_a_host_may_have_letters_that_are_sent_in_other_signs() -> None:
    assert url_check("reward.url", "http://bücher.example:81/%C3%BC").source == "http://bücher.example:81/%C3%BC"


def test_a_server_that_is_not_there_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], closed_port: int
) -> None:
    message = refused(folder, capsys, ["check", *RUN, f"reward.url=http://127.0.0.1:{closed_port}/get_reward"])
    assert "no score comes from there: Connection refused" in message
    assert "Start the server, or correct the URL" in message


@pytest.mark.parametrize(
    ("status", "remedy"),
    [
        (401, "Have the server accept requests without credentials"),
        (403, "Have the server accept requests without credentials"),
        (404, "Correct the path of the URL"),
        (405, "Correct the path of the URL"),
        (429, "Raise the server's limit on requests"),
        (500, "Mend the server"),
    ],
)
def test_a_server_that_refuses_is_answered_with_what_to_do(
    status: int, remedy: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with reward_server(lambda _question: (status, {})) as (url, _):
        message = refused(folder, capsys, ["check", *RUN, f"reward.url={url}"])
    assert f"it answered with status {status}" in message
    assert remedy in message
    assert "Start the server" not in message


def test_a_server_of_another_kind_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with reward_server(lambda _question: (200, {"score": 1.0})) as (url, _):
        message = refused(folder, capsys, ["check", *RUN, f"reward.url={url}"])
    assert "its answer has no list `rewards` of 1" in message
    assert "timeout_s" not in message


def test_a_function_that_takes_answers_is_refused_where_no_prompt_has_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "q.jsonl").write_text('{"question": "1 + 1 =", "answer": "2"}\n' * 3)
    words = ["check", RUN[0], "data.path=q.jsonl", "data.domain=mine", "reward.function=mine.py:score"]
    message = refused(folder, capsys, [*words, "data.columns={prompt: question}", "rollout.num_prompts=1"])
    assert "q.jsonl, line 1: neither the prompt" in message
    assert "that reward.function=mine.py:score scores has a `ground_truth`, which that function takes" in message
    assert "Other fields of this line: `answer`" in message
    assert "name the column that has it ('data.columns={ground_truth:answer}'" in message


def test_a_function_with_a_default_takes_prompts_without_answers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "lax.py").write_text("def score(response, ground_truth=''):\n    return len(response + ground_truth)")
    (folder / "q.jsonl").write_text('{"prompt": "1 + 1 =", "domain": "mine"}\n')
    for source in ("lax.py:score", "mine.py:is_short"):
        words = ["check", RUN[0], "data.path=q.jsonl", "rollout.num_prompts=1", f"reward.function={source}"]
        assert main(words) == 0
        assert "ground_truth" not in capsys.readouterr().out


def test_a_note_says_how_many_prompts_have_no_answer_for_a_function_or_a_server(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": str(number), "prompt": "?", "ground_truth": "1" if number % 2 else ""} for number in range(5)]
    (folder / "q.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["check", RUN[0], "data.path=q.jsonl", "data.domain=mine", "rollout.num_prompts=1"]
    with reward_server(lambda question: (200, {"rewards": [1.0] * len(question["query"])})) as (url, _):
        for check in ("function=mine.py:score", f"url={url}"):
            assert main([*words, f"reward.{check}"]) == 0
            text = " ".join(capsys.readouterr().out.split())
            assert f"reward.{check}: 3 of the 5 prompts that it scores have no ground_truth, the first in q.js" in text


def test_a_function_that_cannot_be_imported_is_told_with_the_mistakes_of_the_prompts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(folder, capsys, ["check", RUN[0], "data.path=nothing.jsonl", "reward.function=mine.py:scoer"])
    assert "2 mistakes" in message
    assert "nothing.jsonl" in message
    assert "reward.function=mine.py:scoer cannot be used: mine.py has no `scoer`; it has `score`" in message


@pytest.mark.parametrize(
    ("words", "mistake"),
    [
        (["check", *RUN], "on the first prompt"),
        (["check", *RUN, "evaluation.path=nothing.jsonl"], "on the first prompt"),
        (["check", *RUN, "evaluation.path=unseen.jsonl"], "on the first prompt"),
        (["check", RUN[0], "data.path=nothing.jsonl"], "nothing.jsonl"),
        (["evaluate", RUN[0], "evaluation.path=nothing.jsonl"], "nothing.jsonl"),
        (["evaluate", RUN[0], "evaluation.path=other.jsonl"], "ground_truth"),
    ],
)
def test_a_function_is_imported_once_whichever_prompts_are_wrong(
    words: list[str],
    mistake: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    (folder / "other.jsonl").write_text('{"id": "a", "domain": "code", "prompt": "1 + 1 ="}')
    (folder / "unseen.jsonl").write_text('{"id": "a", "domain": "math", "prompt": "91 + 2 =", "ground_truth": "93"}')
    imports = tmp_path_factory.mktemp("counted") / "imports"
    (folder / "counted.py").write_text(
        f"with open({str(imports)!r}, 'a') as file:\n    file.write('x')\ndef fail(response):\n    return 1 / 0\n"
    )
    assert mistake in refused(folder, capsys, [*words, "reward.domains={math: counted.py:fail}"])
    assert imports.read_text() == "x"


def test_check_says_what_scores(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = "reward.parts={accuracy: {function: mine.py:score}, format: {function: mine.py:is_short, weight: 0.2}}"
    before = tree_of(folder)
    assert main(["check", *RUN, parts]) == 0
    assert "math by accuracy + format" in capsys.readouterr().out
    assert tree_of(folder) == before


def test_a_function_scores_a_file_of_responses_and_its_parts_are_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "answers.jsonl").write_text(
        "".join(json.dumps({"id": key, "response": text}) + "\n" for key, text in (("p0", "It is 1"), ("p1", "3")))
    )
    parts = "reward.parts={accuracy: {function: mine.py:score}, format: {function: mine.py:is_short, weight: 0.5}}"
    words = ["score", "data.path=prompts.jsonl", "responses=answers.jsonl", "reward.timeout_s=20"]
    assert main([*words, "out=scores.jsonl", parts]) == 0
    assert [json.loads(line) for line in (folder / "scores.jsonl").read_text().splitlines()] == [
        {
            "id": "p0",
            "reward": 1.5,
            "reason": "found",
            "parts": {"accuracy": 1.0, "format": 1.0, "format.num_characters": 7.0},
        },
        {
            "id": "p1",
            "reward": 0.5,
            "reason": "not_found",
            "parts": {"accuracy": 0.0, "format": 1.0, "format.num_characters": 1.0},
        },
    ]
    said = capsys.readouterr().out
    assert "Reward accuracy + format" in said
    assert "mean of accuracy" in said


def test_a_server_scores_a_file_of_responses(folder: Path) -> None:
    (folder / "answers.jsonl").write_text('{"id": "p0", "response": "It is 1"}\n')
    with reward_server(lambda question: (200, {"rewards": [len(question["query"])]})) as (url, questions):
        words = ["score", "data.path=prompts.jsonl", "responses=answers.jsonl", f"reward.url={url}"]
        assert main([*words, "out=scores.jsonl", "reward.timeout_s=20"]) == 0
    assert json.loads((folder / "scores.jsonl").read_text()) == {"id": "p0", "reward": 1.0, "reason": "scored"}
    assert questions[-1] == {"query": ["0 + 1 =It is 1"], "prompts": ["0 + 1 ="], "labels": ["1"]}
