"""What the installing scripts do to the machine and to .venv, with programs of our own as Python, uv and apt-get."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.launch.commands import put_programs
from tests.slurm.requirement import cannot_run

ROOT = Path(__file__).parents[1]
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
NO_GPUS = "exit 9"

# Makes environments, and is their Python.
PYTHON = r"""
case "$*" in
    *"-m venv"*)
        echo "$*" >>made
        mkdir -p .venv/bin .venv/lib/python3/site-packages
        cp "$0" .venv/bin/python
        [[ -z "${KILLED:-}" ]] || exit 137
        touch .venv/bin/pip
        ;;
    *"-m ensurepip"*) touch .venv/bin/pip ;;
    *"-m pip install"*) [[ -e .venv/bin/pip ]] && cp "$(command -v a-uv)" .venv/bin/uv ;;
    "-m pip config list") [[ ! -f pip-settings ]] || cat pip-settings ;;
    *"-m pip"*) [[ -e .venv/bin/pip ]] ;;
    "-c import ensurepip, venv") [[ -z "${BARE:-}" || -e installed ]] ;;
    *version_info*%d*) echo 3.11 ;;
esac
"""

# Keeps a torch that is there, unless another build is asked for; else takes that of this machine.
UV = r"""
[[ "$*" != --version ]] || { echo "uv 1.0"; exit; }
env >uv-environment
packages=.venv/lib/python3/site-packages
case "$*" in
    *--no-deps*) ;;
    *"--torch-backend cpu"*) rm -rf $packages/torch-*; mkdir $packages/torch-2+cpu.dist-info ;;
    *)
        compgen -G "$packages/torch-*" >/dev/null && exit
        if nvidia-smi; then build=cu1; else build=cpu; fi
        mkdir $packages/torch-2+$build.dist-info
        ;;
esac
"""

APT_GET = r"""
[[ "$*" != indextargets* ]] || exit 0
echo "$*" >>apt
touch installed
! flock --nonblock "$0" true || echo "without the lock: $*" >>apt
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Of what installs, with the programs that it calls in `bin`."""
    for name in (
        "Makefile",
        ".ci/install.sh",
        ".ci/registries.sh",
        "slurm/install_packages.sh",
        "slurm/install_apptainer.sh",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".ci/constraints.txt").write_text("trl==1.0\nuv==1.0\n")
    (tmp_path / "pyproject.toml").touch()
    put_programs(tmp_path / "bin", {"a-python": PYTHON, "a-uv": UV, "nvidia-smi": NO_GPUS})
    return tmp_path


def make(checkout: Path, *targets: str, **variables: str) -> None:
    environment = {"PATH": f"{checkout}/bin:{os.environ['PATH']}", **variables}
    subprocess.run(["make", "PYTHON=a-python", *targets], cwd=checkout, env=environment, check=True)


def torch_of(checkout: Path) -> str:
    [torch] = checkout.glob(".venv/lib/python3/site-packages/torch-*")
    return torch.name.removesuffix(".dist-info")


def num_made(checkout: Path) -> int:
    return len((checkout / "made").read_text().splitlines())


@pytest.mark.parametrize("before", [["test"], ["demo", "test"]])
def test_on_gpus_the_demo_has_their_torch_whatever_was_installed_before(checkout: Path, before: list[str]) -> None:
    put_programs(checkout / "bin", {"nvidia-smi": "true"})
    for purpose in before:
        make(checkout, f".venv/.{purpose}")
    assert torch_of(checkout) == "torch-2+cpu"
    make(checkout, ".venv/.demo")
    assert torch_of(checkout) == "torch-2+cu1"
    make(checkout, ".venv/.test")
    assert torch_of(checkout) == "torch-2+cpu", "that of vLLM for processors, which the tests take"


@pytest.mark.parametrize("purposes", [["demo", "test"], ["test", "demo"]])
def test_without_gpus_one_environment_serves_demo_and_tests(checkout: Path, purposes: list[str]) -> None:
    stamps = [f".venv/.{purpose}" for purpose in purposes]
    for stamp in stamps:
        make(checkout, stamp)
    assert num_made(checkout) == 1
    assert all((checkout / stamp).exists() for stamp in stamps)


def test_on_gpus_the_demo_takes_their_torch_although_a_machine_without_them_has_installed_it(checkout: Path) -> None:
    make(checkout, ".venv/.demo")
    assert torch_of(checkout) == "torch-2+cpu"
    put_programs(checkout / "bin", {"nvidia-smi": "true"})
    make(checkout, ".venv/.demo")
    assert torch_of(checkout) == "torch-2+cu1"
    make(checkout, ".venv/.demo")
    assert num_made(checkout) == 2


def test_an_environment_whose_making_was_interrupted_is_made_again(checkout: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        make(checkout, ".venv/.demo", KILLED="1")
    (checkout / ".venv/left").touch()
    make(checkout, ".venv/.demo")
    assert num_made(checkout) == 2
    assert not (checkout / ".venv/left").exists()


def test_an_environment_of_uv_which_has_no_pip_is_kept_and_gets_one(checkout: Path) -> None:
    packages = checkout / ".venv/lib/python3/site-packages/mine"
    packages.mkdir(parents=True)
    (checkout / ".venv/bin").mkdir()
    shutil.copy(checkout / "bin/a-python", checkout / ".venv/bin/python")
    make(checkout, ".venv/.demo")
    assert packages.exists()
    assert not (checkout / "made").exists()


MIRROR = {
    "global.cert": "/etc/mirror.pem",
    "global.index-url": "https://mirror.test/simple",
    "global.trusted-host": "mirror.test:8443",
}
MIRROR_OF_UV = {
    "UV_DEFAULT_INDEX": "https://mirror.test/simple",
    "UV_INSECURE_HOST": "mirror.test:8443",
    "SSL_CERT_FILE": "/etc/mirror.pem",
}


@pytest.mark.parametrize(
    ("settings", "variables", "told"),
    [
        ({}, {}, {}),
        (MIRROR, {}, MIRROR_OF_UV),
        (
            {"global.extra-index-url": r"\nhttps://b.test\nhttps://c.test"},
            {},
            {"UV_INDEX": "https://b.test https://c.test", "UV_INDEX_STRATEGY": "unsafe-best-match"},
        ),
        (MIRROR, {"UV_INDEX": "https://own.test"}, {"UV_INDEX": "https://own.test"}),
        (MIRROR, {"SSL_CERT_FILE": "/etc/own.pem"}, MIRROR_OF_UV | {"SSL_CERT_FILE": "/etc/own.pem"}),
    ],
    ids=["nothing", "mirror", "more", "uv's own", "certificates"],
)
def test_uv_takes_the_registries_that_pip_is_configured_for(
    checkout: Path, settings: Mapping[str, str], variables: Mapping[str, str], told: Mapping[str, str]
) -> None:
    (checkout / "pip-settings").write_text("".join(f"{key}='{value}'\n" for key, value in settings.items()))
    make(checkout, ".venv/.demo", **variables)
    seen = dict(line.split("=", 1) for line in (checkout / "uv-environment").read_text().splitlines())
    assert {name: seen[name] for name in seen if name.startswith(("UV_", "SSL_CERT_FILE"))} == told


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("index-url", "https://variable.test"),
        ("trusted-host", "install.test"),
        ("extra-index-url", "https://b.test https://c.test"),
        ("find-links", "/wheels"),
        ("no-such-key", ""),
    ],
)
def test_of_pips_settings_variables_win_and_then_those_of_its_command_install(
    tmp_path: Path, key: str, value: str
) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = https://global.test\ntrusted-host = global.test\nfind-links = /wheels\n"
        "[install]\ntrusted-host = install.test\nextra-index-url =\n  https://b.test\n  https://c.test\n"
    )
    own = {name: text for name, text in os.environ.items() if not name.startswith("PIP_")}
    environment = own | {"PIP_CONFIG_FILE": f"{tmp_path}/pip.conf", "PIP_INDEX_URL": "https://variable.test"}
    script = f". {ROOT}/.ci/registries.sh; pip_setting {shlex.quote(sys.executable)} {key}"
    assert subprocess.check_output(["bash", "-euo", "pipefail", "-c", script], env=environment, text=True) == value


@pytest.mark.parametrize(
    ("script", "programs"),
    [
        ([".ci/install.sh", "demo"], {}),
        (["slurm/install_packages.sh"], {"apptainer": "echo apptainer"}),
        (["slurm/install_apptainer.sh", "apptainer"], {"dpkg-deb": "true"}),
    ],
    ids=["environment", "slurm", "apptainer"],
)
def test_no_two_scripts_run_apt_get_at_the_same_time(
    checkout: Path, script: list[str], programs: Mapping[str, str]
) -> None:
    if "dpkg-deb" in programs and not KEYRING.is_file():
        cannot_run("This machine is not a Debian, on which Apptainer is installed.")
    # a machine that has nothing of what is installed, Slurm above all
    tools = "bash cp dirname env flock grep head id mkdir mktemp realpath rm touch true"
    for tool in tools.split():
        (checkout / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    machine = {"apt-get": APT_GET, "dpkg-query": "exit 1", "sudo": '[[ "$1" != -n ]] || shift; exec "$@"'}
    put_programs(checkout / "bin", {**machine, **programs})
    environment = {"PATH": f"{checkout}/bin", "PYTHON": "a-python", "BARE": "1"}
    subprocess.run(["bash", *script], cwd=checkout, env=environment, check=False)
    [file] = checkout.rglob("apt")
    update, install = file.read_text().splitlines()
    assert update.startswith("-o DPkg::Lock::Timeout=300 update")
    assert install.startswith("-o DPkg::Lock::Timeout=300 install")
