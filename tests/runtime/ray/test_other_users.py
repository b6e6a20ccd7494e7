"""What other users of a node can do to a run's Ray: nothing. Neither user has any right that is not their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from socket import inet_aton

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can lend this process two other users' rights")

OWNER = 50_000 + os.getpid() % 5_000
STRANGER = OWNER + 5_000

RAY = """
import asyncio, json, sys
from pathlib import Path
from rollpacker.runtime.ray.private_folder import private_folder
from rollpacker.runtime.ray.cluster import RayCluster
from rollpacker.runtime.ray.node import NodeOffer, RayNode
from rollpacker.runtime.ray.rendezvous import Rendezvous

async def main(scratch):
    offer = NodeOffer(
        pin="node-0", name="here", address="127.0.0.1", num_cpus=1, num_gpus=0, memory_bytes=None, object_store_mb=80
    )
    folder = private_folder([scratch], {})
    head = RayNode(offer, grace_s=600, folder=folder, log=Path(scratch, "logs-of-the-run", "ray.log"))
    rendezvous = Rendezvous(head.folder)
    cluster = RayCluster(head, node_names=["here"], rendezvous=rendezvous, start_deadline_s=600, stage=lambda _: None)
    async with cluster:
        import os, ray, tempfile

        @ray.remote
        class Actor:
            def places(self):
                return ray.util.get_node_ip_address(), tempfile.gettempdir(), os.environ.get("GLOO_SOCKET_IFNAME")

        actor = Actor.remote()
        print(json.dumps([str(head.folder), cluster.address, *ray.get(actor.places.remote())]), flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main(sys.argv[1]))
"""
"""A Ray as a run on one node has it, with an actor; it ends with its standard input."""


class OwnersRay:
    """The Ray of one user, seen by another one."""

    def __init__(
        self, folder: Path, head_address: str, address: str, temporary_files: str, gloo_interface: str
    ) -> None:
        self.folder = folder
        self.head_address = head_address
        self.address = address
        self.temporary_files = Path(temporary_files)
        self.gloo_interface = gloo_interface

    @property
    def state_dump(self) -> Path:
        """What the raylet writes again every minute."""
        [dump] = self.folder.glob("**/logs/debug_state.txt")
        return dump


@pytest.fixture(scope="module")
def scratch():
    """Like /tmp: every user may make files in it, and none may rename another one's."""
    folder = Path(tempfile.mkdtemp(prefix="s-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def owners_ray(scratch):
    # The owner may read what root may, only for an interpreter that lies in root's home. The stranger may not.
    rights = ("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search")
    command = ("setpriv", f"--reuid={OWNER}", f"--regid={OWNER}", "--clear-groups", *rights)
    process = subprocess.Popen(
        [*command, sys.executable, "-c", RAY, str(scratch)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "HOME": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    try:
        folder, *places = json.loads(process.stdout.readline())
        yield OwnersRay(Path(folder), *places)
    finally:
        process.stdin.close()
        process.wait(60)


def as_stranger(*command: object) -> str:
    """Let the other user run a command; returns what it says, also of its failures."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True, text=True, check=False, cwd="/"
    )
    return done.stdout + done.stderr


def test_another_user_neither_lists_nor_reads_what_ray_writes(owners_ray):
    everything = [owners_ray.folder, *owners_ray.folder.glob("**/*")]
    assert len(everything) > 20, "this is not Ray's session"
    assert as_stranger("find", *everything, "-readable", "-o", "-writable").count("Permission denied") == len(
        everything
    )


def test_another_user_cannot_replace_a_log_or_the_token_by_a_link_of_his_own(owners_ray, scratch):
    theirs = scratch / "theirs"
    theirs.write_text("what only the owner may write")
    os.chown(theirs, OWNER, OWNER)
    theirs.chmod(0o600)
    link = scratch / "link"
    as_stranger("ln", "-s", theirs, link)
    assert link.is_symlink()
    for target in (owners_ray.state_dump, owners_ray.folder / "token", *owners_ray.folder.glob("**/sockets/*")):
        assert "Permission denied" in as_stranger("mv", "-fT", link, target)
        assert not target.is_symlink()
    assert link.is_symlink()


def test_another_user_creates_and_renames_nothing_in_any_folder_of_ray(owners_ray, scratch):
    folders = [path for path in (owners_ray.folder, *owners_ray.folder.glob("**/")) if path.is_dir()]
    assert {"logs", "sockets"} < {path.name for path in folders}
    for folder in folders:
        assert "denied" in as_stranger("touch", folder / "new")
        assert as_stranger("mv", "-T", folder, scratch / "away")
        assert as_stranger("ln", "-sfn", "/", folder)
        assert folder.is_dir()
        assert not folder.is_symlink()


def test_a_ray_of_one_node_is_met_on_the_loopback_alone(owners_ray):
    tables = [Path(name).read_text().splitlines()[1:] for name in ("/proc/net/tcp", "/proc/net/tcp6")]
    rows = [row.split() for table in tables for row in table]
    listening = [local for _, local, _, state, _, _, _, uid, *_ in rows if state == "0A" and int(uid) == OWNER]
    assert len(listening) >= 5, "GCS, raylet, its agents, workers and the run itself listen"
    loopback = inet_aton("127.0.0.1")[::-1].hex().upper()
    assert {local.partition(":")[0][-8:] for local in listening} == {loopback}
    assert owners_ray.address == "127.0.0.1"
    assert owners_ray.gloo_interface == "lo"


def test_temporary_files_of_actors_lie_where_no_other_user_comes(owners_ray):
    assert owners_ray.temporary_files.is_relative_to(owners_ray.folder)
    assert "Permission denied" in as_stranger("ls", owners_ray.temporary_files)


def test_who_has_another_token_or_none_gets_no_answer_from_a_ray(owners_ray, tmp_path):
    (tmp_path / "token").write_text("another")
    ask = "import ray, sys; print(len(ray._raylet.GcsClient(address=sys.argv[1]).get_all_node_info(timeout=60)))"
    answers = []
    for token_file in (owners_ray.folder / "token", tmp_path / "token", None):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        if token_file is not None:
            environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_file)}
        command = [sys.executable, "-c", ask, owners_ray.head_address]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        answers.append(done.stdout.strip() or done.stderr.strip().splitlines()[-1])
    assert answers[0] == "1"
    assert all("AuthenticationError" in answer for answer in answers[1:]), answers
