from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.launch.doctor.findings import fine, problem
from rollpacker.launch.doctor.node_report import PROOF, NodeReport, report
from rollpacker.launch.doctor.nodes import NodesSeen, ask_nodes, check_nodes, merged
from tests.launch.commands import install_command
from tests.launch.doctor.test_gpus import NONE as NO_GPUS
from tests.launch.doctor.test_gpus import WELL as GPUS
from tests.launch.doctor.test_limits import WELL as LIMITS

ONE = NodeReport(node="n1", version="0.1.0", time=1001.0, proof="abc", can_write=True, limits=LIMITS, gpus=GPUS)
TWO = replace(ONE, node="n2")
WELL = NodesSeen(num_nodes=2, reports=(ONE, TWO), proof="abc", asked_at=1000.0, answered_at=1002.0, complaint="")


def test_nodes_that_agree_are_told_in_one_line_each_subject() -> None:
    findings = list(check_nodes(WELL, object_store_mb=256, gpus_per_node=2))

    assert {finding.level for finding in findings} == {"ok"}
    assert [finding.subject for finding in findings[:3]] == ["nodes", "shared files", "clocks"]
    assert all(finding.text.startswith("each node: ") for finding in findings[3:])


@pytest.mark.parametrize(
    ("seen", "subject", "level", "words"),
    [
        (
            replace(
                WELL, reports=(ONE,), complaint="srun: x\nslurmstepd: error: execve(): No such file or directory\n"
            ),
            "nodes",
            "problem",
            "1 of 2 answer (n1); srun says: slurmstepd: error: execve()",
        ),
        (replace(WELL, reports=(), complaint=""), "nodes", "problem", "0 of 2 answer (none); srun says: nothing"),
        (replace(WELL, reports=(ONE, replace(TWO, version="0.2.0"))), "nodes", "problem", "0.1.0 and 0.2.0"),
        (replace(WELL, reports=(ONE, replace(TWO, proof=""))), "shared files", "problem", "n2 cannot see"),
        (replace(WELL, reports=(ONE, replace(TWO, can_write=False))), "shared files", "problem", "n2 cannot write"),
        (replace(WELL, reports=(ONE, replace(TWO, time=1062.0))), "clocks", "warning", "n2 by +60 s"),
        (replace(WELL, reports=(replace(ONE, time=900.0), TWO)), "clocks", "warning", "n1 by -100 s"),
        (
            replace(WELL, reports=(ONE, replace(TWO, gpus=replace(GPUS, visible=None)))),
            "GPUs",
            "problem",
            "n2: Slurm gave 2",
        ),
        (
            replace(WELL, reports=(ONE, replace(TWO, limits=replace(LIMITS, shared_bytes_free=0)))),
            "shared memory",
            "problem",
            "n2: only 0 MB",
        ),
    ],
)
def test_the_node_that_differs_is_named(seen: NodesSeen, subject: str, level: str, words: str) -> None:
    (found,) = (finding for finding in check_nodes(seen, object_store_mb=256, gpus_per_node=2) if finding.level != "ok")

    assert (found.subject, found.level) == (subject, level)
    assert words in found.text
    assert found.remedy


def test_what_some_nodes_share_is_told_once_for_them() -> None:
    bad = problem("disk", "full", "Free some.")

    texts = [finding.text for finding in merged({"n1": [bad], "n2": [fine("disk", "free")], "n3": [bad]})]

    assert texts == ["n1, n3: full", "n2: free"]


def test_a_node_reads_the_proof_and_writes_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    (tmp_path / PROOF).write_text("abc")

    seen = report(tmp_path)

    assert (seen.node, seen.proof, seen.can_write) == ("n7", "abc", True)
    assert (tmp_path / "seen-by-n7").exists()
    assert (report(tmp_path / "elsewhere").proof, report(tmp_path / "elsewhere").can_write) == ("", False)


def test_srun_starts_one_task_per_node_beside_whatever_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_gpus = replace(TWO, gpus=NO_GPUS)
    (tmp_path / "lines").write_text(f"{ONE.to_json()}\n{without_gpus.to_json()}\n")
    (tmp_path / "work").mkdir()
    install_command(tmp_path, "srun", f'echo "$*" > {tmp_path}/call; cat {tmp_path}/lines', monkeypatch)

    seen = ask_nodes(tmp_path / "work" / "run", 2)

    call = (tmp_path / "call").read_text()
    assert "--overlap --nodes=2 --ntasks-per-node=1" in call
    assert seen.reports == (ONE, without_gpus)
    assert list((tmp_path / "work").iterdir()) == []


def test_lines_of_a_task_prolog_are_no_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["Welcome to the cluster", ONE.to_json(), '{"module": "cuda"}', "", TWO.to_json(), "17"]
    (tmp_path / "lines").write_text("\n".join(lines))
    install_command(tmp_path, "srun", f"cat {tmp_path}/lines", monkeypatch)

    assert [each.node for each in ask_nodes(tmp_path, 2).reports] == ["n1", "n2"]


def test_nodes_are_checked_also_where_run_dir_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lines").write_text(f"{replace(ONE, proof='', can_write=False).to_json()}\n")
    install_command(tmp_path, "srun", f"cat {tmp_path}/lines", monkeypatch)

    seen = ask_nodes(Path("/proc/run"), 1)

    findings = list(check_nodes(seen, object_store_mb=256, gpus_per_node=2))
    assert "GPUs" in [finding.subject for finding in findings]
    assert "shared files" not in [finding.subject for finding in findings], "the check of files has told it"


def test_a_srun_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_command(tmp_path, "srun", "echo 'srun: error: Unable to create step' >&2; exit 1", monkeypatch)

    assert ask_nodes(tmp_path, 2).complaint == "srun: error: Unable to create step"
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    assert ask_nodes(tmp_path, 2).complaint == "there is no command `srun` here"
