"""Preemption by QOS, as recorded from a Slurm 22.05."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollpacker.launch.doctor.preemption import parse_qos, preemption_of, read_qos
from rollpacker.launch.doctor.slurm import check_slurm
from tests.launch.commands import install_command
from tests.launch.doctor.test_slurm import PARTITION, _job, _site
from tests.launch.doctor.test_worker_partition import texts_on

RECORDED = """\
normal|00:00:00|cluster|spot,slow
spot|00:01:08|cancel|
slow|1-01:01:01|within,requeue|
hard|00:00:05|suspend|
own|00:02:00|within|
"""
QOS = parse_qos(RECORDED)


def _by_qos(**settings: str) -> Any:
    return _site(PreemptType="preempt/qos", **{"PreemptMode": "REQUEUE", **settings})


def _preemption(qos: str | None, **settings: str) -> tuple[str, int | None] | None:
    found = preemption_of(_by_qos(**settings), PARTITION, QOS, qos)
    return None if found is None else (found.mode, found.grace_s)


def test_the_qos_of_a_job_says_how_and_when_it_loses_its_nodes_and_not_its_partition() -> None:
    assert _preemption("spot") == ("CANCEL", 68)
    assert _preemption("SPOT") == ("CANCEL", 68), "names have no case"
    assert _preemption("slow") == ("REQUEUE", 90061)
    assert _preemption("normal") is None, "no QOS preempts it"
    assert _preemption("normal", PreemptMode="WITHIN,REQUEUE") == ("REQUEUE", 0), "by jobs of the same QOS"
    assert _preemption("spot", PreemptMode="OFF") is None


@pytest.mark.parametrize(("name", "words"), [(None, "which no key names"), ("gone", "of which sacctmgr says nothing")])
def test_of_a_qos_that_is_not_known_no_number_is_said(name: str | None, words: str) -> None:
    (found,) = (each for each in check_slurm(_by_qos(), _job(qos=name), QOS) if each.subject == "preemption")

    assert found.level == "ok"
    assert found.text == f"jobs of gpu lose their nodes (as their QOS says, {words}) some time after SIGURG"


def test_the_surrounding_jobs_qos_counts_where_the_configuration_names_none() -> None:
    (found,) = (each for each in check_slurm(_by_qos(), _job(), QOS, "spot") if each.subject == "preemption")

    assert found.text == "jobs of gpu with qos=spot lose their nodes (CANCEL) 68 s after SIGURG"


def test_workers_lose_their_nodes_as_their_own_qos_says() -> None:
    texts = {}
    for name in ("spot", "hard"):
        qos = QOS | parse_qos("urgent|00:00:00|cluster|spot,hard")
        texts[name] = texts_on(_by_qos(), "cluster.qos=normal", f"elastic.job.qos={name}", qos=qos)
    assert texts["spot"]["workers: loss"] == "jobs of gpu with qos=spot lose their nodes (CANCEL) 68 s after SIGURG"
    assert "the next one of the array" in texts["spot"]["workers: queue"]
    assert texts["hard"]["workers: loss"].startswith("jobs of gpu with qos=hard are stopped in place (SUSPEND)")


@pytest.mark.parametrize("answer", ["exit 1", "echo 'a|b'"])
def test_accounting_is_asked_only_where_the_qos_decides_and_may_not_answer(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_command(tmp_path, "sacctmgr", f"echo '{RECORDED}'", monkeypatch)
    assert read_qos(_by_qos()) == QOS
    assert read_qos(_site()) == {}
    install_command(tmp_path, "sacctmgr", answer, monkeypatch)
    assert read_qos(_by_qos()) == {}
    found = preemption_of(_by_qos(), PARTITION, {}, "spot")
    assert found is not None
    assert (found.mode, found.grace_s) == ("as their QOS says, of which sacctmgr says nothing", None)
