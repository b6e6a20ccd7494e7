"""None escapes, none passes, no process is left, and the pool goes on."""

import os
import secrets
import socket
import threading
from contextlib import contextmanager

import pytest

from rollpacker.processes.lifetimes import children_of, tree_of
from tests.rewards.sandbox import attacks
from tests.rewards.sandbox.programs import Pool, request_of, write_prompts

BOUNDS = {"num_workers": 2, "memory_mb": 192, "processes": 16, "files_mb": 8, "output_mb": 1}
"""Two programs at a time keep a small machine busy, also while one of them sleeps."""
LIMIT_S = 0.3
MEMORY_S = 30.0
"""For programs that the limit of memory ends, which takes half of the other one where nothing else runs."""


@contextmanager
def server_that_tells(secret):
    """Give the port of a server that tells everybody."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(secret.encode())

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A secret, in reach of who is outside."""
    secret = secrets.token_hex(8)
    monkeypatch.setenv("ROLLPACKER_SECRET", secret)
    file = tmp_path / "secret"
    file.write_text(secret)
    tmp_path.chmod(0o755)
    assertions = {
        "equal": f"got == {secret!r}",
        "between": "3.14 < got < 3.15",
        "near": "abs(got - 2.5) < 1e-9",
        "within": f"{secret!r} in got",
        "attribute": f"got.word == {secret!r}",
        "item": f"got['word'] == {secret!r}",
    }
    cases = {
        "function": {
            "entry_point": "f",
            "test_cases": [{"args": [1], "expected": secret}, {"args": [2], "expected": 1.0}],
        },
        "stdin": {"test_cases": [{"input": "1\n", "output": secret}]},
        **{f"asserted-{word}": {"test_cases": [f"got = f(1)\nassert {test}"]} for word, test in assertions.items()},
    }
    references = write_prompts(tmp_path, [{"id": key, **fields} for key, fields in cases.items()])
    with server_that_tells(secret) as port:
        yield secret, references, {"file": str(file), "outside": str(tmp_path / "written"), "port": port}


def filled(source, places):
    for name, value in places.items():
        source = source.replace(f"<{name}>", str(value))
    return source


async def test_no_attack_passes_escapes_or_leaves_anything(world, tmp_path):
    secret, references, places = world
    programs = [("function", name, source) for name, source in attacks.FUNCTION.items()]
    programs += [("stdin", name, filled(source, places)) for name, source in attacks.STDIN.items()]
    programs += [("asserted-equal", name, source) for name, source in attacks.ASSERTED.items()]
    assertions = [key for key in references if key.startswith("asserted")]
    programs += [(key, "equal and more", attacks.ASSERTED["equal and more"]) for key in assertions[1:]]
    assert len(programs) >= 80
    async with Pool(**BOUNDS) as pool:
        verdicts = await pool.score(
            *(
                request_of(
                    index, references[style], source, limits_s=(MEMORY_S if name.startswith("memory") else LIMIT_S,)
                )
                for index, (style, name, source) in enumerate(programs)
            )
        )
        found = {(style, name): verdict for (style, name, _), verdict in zip(programs, verdicts, strict=True)}
        assert [
            (key, verdict.reason) for key, verdict in found.items() if verdict.reward or verdict.reason == "correct"
        ] == []
        assert [key for key, verdict in found.items() if verdict.reason == "checker_crashed"] == []
        assert not (tmp_path / "written").exists()
        supervisors = pool.worker.pids
        assert [list(tree_of(pid)) for pid in supervisors] == [[pid] for pid in supervisors], "a process is left"
        reasons = {key[1]: verdict.reason for key, verdict in found.items()}
        assert {name: reasons[name] for name in ("output", "memory", "memory of a tree", "loop", "sleep", "stop")} == {
            "output": "output",
            "memory": "memory",
            "memory of a tree": "memory",
            "loop": "timeout",
            "sleep": "timeout",
            "stop": "timeout",
        }
        again = await pool.score(
            *(request_of(index, references["stdin"], f"print({secret!r})") for index in range(4)),
            request_of(4, references["function"], f"def f(x): return {secret!r} if x == 1 else 1"),
            request_of(5, references["asserted-equal"], f"def f(x): return {secret!r}"),
        )
        assert {verdict.reason for verdict in again} == {"correct"}, "the secret itself is right"
        assert pool.worker.pids == supervisors, "a supervisor was lost"
    assert [pid for pid in supervisors if children_of(os.getpid()).count(pid)] == []
