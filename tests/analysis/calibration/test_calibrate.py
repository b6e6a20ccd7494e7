"""The command: one small campaign with real modelled runs, the file that it writes, and bad input."""

from pathlib import Path

import pytest
import yaml

from rollpacker.analysis.calibration.campaign import calibrate
from rollpacker.analysis.calibration.reference import Row
from rollpacker.analysis.calibration.report import FITTED_TO, Compared, how_to_take, summary, table, write_hardware
from rollpacker.analysis.processes import open_processes
from rollpacker.cli.main import main
from rollpacker.config.roots import conf_dir
from rollpacker.config.sections.modelled import HardwareSection

BASE = """# A node.
name: h800
memory_gb: 80
memory_gb_per_s: 3350
tflops: 989
nvlink_gb_per_s: 800
network_gb_per_s: 50
"""
ROW = Row("Fig 10c", "7B", "verl", "mix", "plain", "weight_sync", 5.0)


class Seen:
    """Counts runs and keeps titles."""

    def __init__(self):
        self.num_runs, self.titles = 0, []

    def stage(self, title):
        self.titles.append(title)

    def advance(self):
        self.num_runs += 1


def test_a_written_file_is_a_hardware_option_with_every_residual_and_can_be_fitted_again(tmp_path):
    out = tmp_path / "fitted.yaml"
    compared = [Compared(ROW, 5.2), Compared(ROW._replace(quantity="reward", weight=0.0), 9.0)]
    for value in (0.004, 0.005):
        base = out.read_text() if out.exists() else BASE
        write_hardware(out, base, {"step_overhead_s": value}, compared, origin="on a day")
        section = HardwareSection.model_validate(yaml.safe_load(out.read_text()))
        assert section.step_overhead_s == value
        assert section.memory_gb == 80
        assert section.fitted_to is not None
        assert section.fitted_to.endswith("14B runs, in fitted.yaml")
        assert section.name == "fitted", "so that nobody takes its values for those of the option h800"
    text = out.read_text()
    assert text.count("# fitted on a day") == 1
    assert "+4%" in text
    assert "+80%  not fitted" in text
    assert len(table(compared)) == 3
    assert summary(compared).startswith("1 of 1 fitted rows are within 10%")


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("/x/hardware/fitted.yaml", "a run takes it by hydra.searchpath=[file:///x] hardware=fitted"),
        ("/x/fitted.yaml", "as DIR/hardware/fitted.yaml a run takes it by hydra.searchpath=[file://DIR]"),
        ("/x/hardware/h800.yaml", "as DIR/hardware/NAME.yaml a run"),
        (conf_dir() / "hardware/h800.yaml", "a run takes it by hardware=h800"),
    ],
)
def test_how_a_run_takes_the_file_is_said(out, words):
    assert how_to_take(Path(out)).startswith(words)


def test_the_packaged_option_says_that_it_is_fitted_to_what_a_calibration_says():
    option = yaml.safe_load((conf_dir() / "hardware/h800.yaml").read_text())
    assert option["fitted_to"] == FITTED_TO


def test_a_campaign_models_its_runs_and_compares_them_with_the_paper():
    watcher = Seen()
    with open_processes(1) as processes:
        values, [compared] = calibrate([ROW], 0, processes, watcher)
    assert watcher.num_runs == 2
    assert watcher.titles == ["trials 1 to 1 of the parameters", "trials 2 to 2 of the parameters"]
    assert values["step_overhead_s"] > 0
    assert 0.5 < compared.predicted / ROW.value < 2


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ([], ["`out` is not set", "Add out="]),
        (["out=x.yaml", "jbs=2"], ["jbs=2", "jobs=..."]),
        (["out=x.yaml", "jobs=0"], ["jobs=0", "at least 1"]),
        (["out=x.yaml", "reference=nowhere"], ["nowhere", "left out, it is the one that is installed"]),
        (["out=x.yaml", "hardware=h100"], ["hardware=h100", "It takes reference=..., rounds=..., jobs=..., out=..."]),
        (["out=no/such/x.yaml"], ["no/such", "Create the folder"]),
        (["out=fitted", "reference=nowhere"], ["out=fitted does not end in .yaml"]),
    ],
)
def test_bad_input_is_told_before_anything_runs_from_any_folder(words, parts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *words]) == 2
    message = capsys.readouterr().err
    assert all(part in message for part in parts)
    assert not Path("x.yaml").exists()
