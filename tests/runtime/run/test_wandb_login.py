"""`tracker.wandb_mode=online`: where the key may come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.config.sections.run import TrackerSection
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.run.trackers import check_trackers, make_trackers


def test_wandb_online_needs_its_key_before_the_run_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    section = TrackerSection(wandb=True, wandb_mode="online")
    with pytest.raises(ConfigError, match="WANDB_API_KEY is not set") as raised:
        make_trackers(section, tmp_path / "run", "run-1", {})
    assert "wandb sync" in raised.value.remedy
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    check_trackers(section)


def test_wandb_online_takes_what_wandb_login_wrote(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    section, file = TrackerSection(wandb=True, wandb_mode="online"), tmp_path / "netrc"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", "~/netrc")
    monkeypatch.setenv("WANDB_CONFIG_DIR", "~")
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    for of_others in ("", "machine github.com\n  login user\n  password secret\n", "machine\n"):
        file.write_text(of_others)
        with pytest.raises(ConfigError, match="nor is anybody logged in"):
            check_trackers(section)
    from wandb.sdk.lib.settings_file import SettingsFiles
    from wandb.sdk.lib.wbauth.wbnetrc import write_netrc_auth

    file.unlink()
    write_netrc_auth(host="https://wandb.example.edu", api_key="0" * 40)
    with pytest.raises(ConfigError, match="nor is anybody logged in"):
        check_trackers(section)
    settings = SettingsFiles(global_settings=tmp_path / "settings", local_settings=tmp_path / "local")
    settings.set("base_url", "https://wandb.example.edu", globally=True)
    settings.save()
    check_trackers(section)
    monkeypatch.setenv("WANDB_BASE_URL", "https://api.wandb.ai")
    with pytest.raises(ConfigError, match="nor is anybody logged in"):
        check_trackers(section)
