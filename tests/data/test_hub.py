"""Names of models and data sets, with a cache laid out as the real one, and with a Hub on this machine."""

import http.server
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.record import CONFIG_FILE, to_yaml
from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError, UserError
from rollpacker.data.file_listing import data_files
from rollpacker.data.hub import with_pinned_names
from rollpacker.data.prompts import load_prompts
from tests.data.files import write_cached, write_parquet

ROWS = [{"question": "6 x 7", "answer": "#### 42"}]
WEIGHTS = {"config.json": "{}", "model.safetensors": ""}
OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "hub"


def run_config(*words, model="Qwen/Tiny"):
    return compose([f"model.path={model}", "data.path=prompts.jsonl", "run.dir=runs/x", *words])


def error_of(config):
    with pytest.raises(UserError) as caught:
        with_pinned_names(config, can_download=False)
    return str(caught.value)


def recorded(config):
    """Pin the names of a run that begins, and record them."""
    begun = with_pinned_names(config, can_download=False)
    begun.run.dir.mkdir(parents=True)
    (begun.run.dir / CONFIG_FILE).write_text(to_yaml(begun))
    return begun


def test_a_model_by_name_is_pinned_to_the_commit_that_the_cache_has(cache):
    snapshot = write_cached(cache, "model", "Qwen/Tiny", WEIGHTS, OLD)
    config = with_pinned_names(run_config(), can_download=False)
    assert str(config.model.path) == f"Qwen/Tiny@{OLD}"
    assert config.model.directory == snapshot


def test_a_run_resumes_with_the_commit_that_it_recorded(cache):
    write_cached(cache, "model", "Qwen/Tiny", WEIGHTS, OLD)
    begun = recorded(run_config())
    write_cached(cache, "model", "Qwen/Tiny", WEIGHTS, NEW)
    assert with_pinned_names(run_config(), can_download=False) == begun
    other = with_pinned_names(run_config("run.dir=runs/y"), can_download=False)
    assert str(other.model.path) == f"Qwen/Tiny@{NEW}"


def test_a_name_without_a_revision_keeps_the_commit_of_its_own_key_beside_other_revisions(cache):
    write_cached(cache, "model", "Qwen/Tiny", WEIGHTS, NEW)
    write_cached(cache, "model", "Qwen/Tiny", WEIGHTS, OLD)
    for commit in (NEW, OLD):
        write_cached(cache, "dataset", "o/d", {"t.jsonl": "", "u.jsonl": ""}, commit)
    words = [
        f"data.path=[hf://o/d@{NEW}/t.jsonl,hf://o/d/t.jsonl,hf://o/d/u.jsonl]",
        f"evaluation.path=hf://o/d@{NEW}/u.jsonl",
        "reward.domains.qa=judge",
        f"reward.judge.model.path=Qwen/Tiny@{NEW}",
    ]
    begun = recorded(run_config(*words))
    assert str(begun.model.path) == f"Qwen/Tiny@{OLD}"
    assert [file.hub_name.revision for file in begun.data.path] == [NEW, OLD, OLD]
    assert with_pinned_names(run_config(*words), can_download=False) == begun


def test_data_by_name_is_read_from_the_cache(cache, tmp_path):
    parquet = write_parquet(tmp_path / "x.parquet", ROWS)
    write_cached(cache, "dataset", "openai/gsm8k", {"main/train-00000-of-00001.parquet": parquet, "README.md": ""}, OLD)
    write_cached(cache, "model", "Qwen/Tiny", WEIGHTS)
    config = run_config(
        "data.path=hf://openai/gsm8k",
        "data.columns={prompt:question,ground_truth:answer}",
        "data.answer_after='####'",
        "data.domain=math",
    )
    config = with_pinned_names(config, can_download=False)
    assert config.model_dump(mode="json")["data"]["path"] == f"hf://openai/gsm8k@{OLD}"
    assert [prompt.reference.text for prompt in load_prompts(config.data.files)] == ["42"]


@pytest.mark.parametrize(
    ("inside", "files", "words"),
    [
        ("", ["a/t.csv", "b/t.csv"], ["The folder hf://o/d holds several", "Name its folder: hf://o/d/a"]),
        ("/a", ["a/test.csv", "a/train.csv"], ["hf://o/d/a has several splits"]),
        ("", ["README.md"], ["The folder hf://o/d holds no data"]),
        ("", ["a/t.csv", "a/t.jsonl"], ["Name the file that is meant: hf://o/d/a/t."]),
        ("/a", ["a/t-0-of-2.csv"], ["hf://o/d/a/t-0-of-2.csv is one of 2 parts"]),
        ("", ["a/t.csv.gz"], ["hf://o/d/a/t.csv.gz is packed"]),
        ("/a", ["a/t.tsv"], ["hf://o/d/a/t.tsv has tabs"]),
        ("/a/t.tsv", ["a/t.tsv"], ["hf://o/d/a/t.tsv has tabs"]),
    ],
)
def test_mistakes_in_a_cached_data_set_name_it_as_the_configuration_does(cache, inside, files, words):
    write_cached(cache, "dataset", "o/d", dict.fromkeys(files, "x"))
    with pytest.raises(DataError) as caught:
        data_files(PromptFile(path=f"hf://o/d{inside}"))
    for word in words:
        assert word in str(caught.value)
    assert str(cache) not in str(caught.value)


def test_a_held_out_set_has_one_name_whatever_its_revision(cache):
    write_cached(cache, "model", "Qwen/Tiny", WEIGHTS)
    write_cached(cache, "dataset", "o/MATH-1.5", {"main/test.jsonl": ""}, OLD)
    words = ["evaluation.path=[hf://o/MATH-1.5,hf://o/MATH-1.5/main]", "run.keep_best=true", "run.best_by=MATH-1.5"]
    config = run_config(*words)
    pinned = recorded(config)
    again = compose([f"config={pinned.run.dir}"])
    for each in (config, pinned, again):
        assert [rule.name for rule in each.evaluation.rules] == ["MATH-1.5", "main"]
    assert again == pinned


def test_everything_that_the_cache_lacks_is_said_at_once_with_the_command_that_fetches_it(cache):
    message = error_of(run_config("data.path=hf://openai/gsm8k/main", "model.download=never"))
    assert "model.path=Qwen/Tiny is no directory here" in message
    assert "hf download Qwen/Tiny" in message
    assert "data.path=hf://openai/gsm8k/main" in message
    assert "hf download openai/gsm8k --repo-type dataset" in message


def test_what_the_cache_lacks_is_named_by_the_key_that_names_it(cache):
    write_cached(cache, "model", "Qwen/Tiny", WEIGHTS)
    judged = ["reward.domains.qa=judge", "reward.judge.model.path=Qwen/Large"]
    message = error_of(run_config("evaluation.path=hf://openai/gsm8k/main", *judged))
    assert "evaluation.path=hf://openai/gsm8k/main" in message
    assert "reward.judge.model.path=Qwen/Large is no directory here" in message
    assert "with reward.judge.model.download=auto" in message
    assert "data.path" not in message


def test_a_cached_model_without_weights_is_not_there(cache):
    write_cached(cache, "model", "Qwen/Tiny", {"config.json": "{}"})
    assert "has it without all of its weights" in error_of(run_config())


def test_a_revision_that_the_cache_lacks_is_named(cache):
    write_cached(cache, "model", "Qwen/Tiny", WEIGHTS, OLD)
    assert f"hf download Qwen/Tiny --revision {NEW}" in error_of(run_config(model=f"Qwen/Tiny@{NEW}"))


class _Hub(http.server.BaseHTTPRequestHandler):
    """As much of the Hub as a download asks for: a repository of two files."""

    def do_HEAD(self):
        self._answer(is_head=True)

    def do_GET(self):
        self._answer(is_head=False)

    def _answer(self, *, is_head):
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if path.startswith("/api/models/Qwen/Tiny/tree/"):
            files = [{"type": "file", "path": name, "size": len(text), "oid": name} for name, text in WEIGHTS.items()]
            self._send(json.dumps(files).encode())
        elif path.startswith("/api/models/Qwen/Tiny"):
            self._send(json.dumps({"id": "Qwen/Tiny", "sha": NEW, "siblings": []}).encode())
        elif path == f"/Qwen/Tiny/resolve/{NEW}/{name}" and name in WEIGHTS:
            self._send(WEIGHTS[name].encode(), is_head=is_head, ETag=f'"{name}"', **{"X-Repo-Commit": NEW})
        else:
            self.send_error(404)

    def _send(self, body, *, is_head=False, **headers):
        self.send_response(200)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if not is_head:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_train_downloads_a_model_that_the_cache_lacks_and_check_does_not(tmp_path):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HUB_CACHE": str(tmp_path / "hub"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    program = (
        "import sys\n"
        "from rollpacker.config.compose import compose\n"
        "from rollpacker.core.errors import ModelError\n"
        "from rollpacker.data.hub import with_pinned_names\n"
        "config = compose(['model.path=Qwen/Tiny', 'data.path=x.jsonl', 'run.dir=x'])\n"
        "try:\n"
        "    with_pinned_names(config, can_download=False)\n"
        "except ModelError:\n"
        "    pinned = with_pinned_names(config, can_download=True)\n"
        "    print(pinned.model.path, *sorted(path.name for path in pinned.model.directory.iterdir()))\n"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            check=False,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    finally:
        server.shutdown()
        server.server_close()
    assert done.stdout.split() == [f"Qwen/Tiny@{NEW}", "config.json", "model.safetensors"], done.stderr
    assert "Downloading Qwen/Tiny" in done.stderr
