"""Options that somebody chose stand for their values, wherever their files are."""

import shutil
from pathlib import Path

import pytest
import yaml

from rollpacker.analysis.calibration.fit import PARAMETERS
from rollpacker.analysis.calibration.reference import Row
from rollpacker.analysis.calibration.report import Compared, write_hardware
from rollpacker.config.chosen_options import changed_hardware, chosen_options, values_of
from rollpacker.config.compose import compose
from rollpacker.config.roots import conf_dir
from rollpacker.config.sections.modelled import HardwareSection
from rollpacker.core.errors import ConfigError

RUN = ["backend=sim", "model=qwen2.5-7b", "run.dir=x"]


def test_an_option_of_a_folder_of_one_s_own_is_found_where_the_words_say(tmp_path: Path) -> None:
    (tmp_path / "hardware").mkdir()
    text = (conf_dir() / "hardware/h100.yaml").read_text().replace("name: h100", "name: mine")
    (tmp_path / "hardware/mine.yaml").write_text(text)
    chosen = chosen_options([*RUN, f"hydra.searchpath=[file://{tmp_path}]", "hardware=mine"])
    assert chosen["hydra.searchpath"] == f"[file://{tmp_path}]"
    assert values_of(chosen)["hardware"]["name"] == "mine"
    del chosen["hydra.searchpath"]
    with pytest.raises(ConfigError, match="`mine` is not an option of the group `hardware`"):
        values_of(chosen)


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ([], ("h800", [])),
        (["hardware=h100", "hardware.memory_gb=24"], ("", [])),
        (["hardware.num_nodes=1", "engine.num_engines=8"], ("h800", [])),
        (["hardware.memory_gb=24", "hardware.step_overhead_s=0.01"], ("h800", ["memory_gb", "step_overhead_s"])),
        (["hardware.name=mine", "hardware.memory_gb=24"], ("h800", ["memory_gb"])),
        (["hardware.name=mine", "hardware.pcie_gb_per_s=32"], ("h800", ["pcie_gb_per_s"])),
        (["hardware.name=mine", "hardware.step_overhead_s=0.05"], ("h800", ["step_overhead_s"])),
        (["hardware.fitted_to=ours", "hardware.memory_gb=24"], ("", [])),
    ],
    ids=str,
)
def test_keys_of_the_hardware_are_compared_with_the_option_whose_fit_it_has(
    words: list[str], changed: tuple[str, list[str]]
) -> None:
    hardware = compose([*RUN, *words]).hardware
    assert hardware is not None
    assert changed_hardware(hardware) == changed


@pytest.mark.parametrize("stem", ["fitted", "h800"])
@pytest.mark.parametrize("is_option_fitted_again", [False, True])
def test_of_a_file_that_a_calibration_wrote_only_what_data_sheets_say_is_compared(
    stem: str, is_option_fitted_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged, out = tmp_path / "conf/hardware/h800.yaml", tmp_path / f"{stem}.yaml"
    shutil.copytree(conf_dir() / "hardware", packaged.parent)
    compared = [Compared(Row("Fig 10c", "7B", "verl", "mix", "plain", "weight_sync", 5.0), 5.2)]
    for module in ("config.chosen_options", "analysis.calibration.report"):
        monkeypatch.setattr(f"rollpacker.{module}.conf_dir", lambda: tmp_path / "conf")
    low, high = ({each.key: getattr(each, end) for each in PARAMETERS} for end in ("low", "high"))
    if is_option_fitted_again:
        write_hardware(packaged, packaged.read_text(), low, compared, origin="on a day")
    write_hardware(out, packaged.read_text(), high, compared, origin="on a day")
    hardware = HardwareSection.model_validate(yaml.safe_load(out.read_text()))
    assert changed_hardware(hardware) == ("h800", [])
    assert changed_hardware(hardware.model_copy(update={"memory_gb": 24})) == ("h800", ["memory_gb"])
