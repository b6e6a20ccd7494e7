"""What lies in `out`: a page of all that is there, no figure without numbers, a list that fits a terminal."""

import shutil

from rollpacker.analysis.exhibits import EXHIBITS
from rollpacker.analysis.numbers import Claim, Numbers
from rollpacker.analysis.writing import summary, write_exhibit, write_page
from rollpacker.cli.main import main
from tests.analysis.written_runs import write_run


def test_the_page_shows_what_is_in_the_folder_whatever_the_last_command_drew(tmp_path):
    words = [f"runs={tmp_path}/runs", f"out={tmp_path}/out"]
    for system, times in (("verl", [9.0]), ("tail", [6.0])):
        write_run(tmp_path / "runs" / system, system, times)
    for system in ("verl", "rollpacker", "rlhfuse"):
        write_run(tmp_path / "runs" / f"14B-{system}", system, [9.0], model="Qwen2.5-14B")
    page = tmp_path / "out" / "index.html"
    assert main(["analysis", "table2", *words]) == 0
    assert 'section id="table2"' in page.read_text()
    assert 'section id="fig09"' not in page.read_text()
    assert main(["analysis", "fig09", *words]) == 0
    text = page.read_text()
    assert text.index('section id="table2"') < text.index('section id="fig09"')
    assert "ours 1.5 x (measured)" in text
    assert '<img src="table2.png"' in text
    shutil.rmtree(tmp_path / "runs" / "tail")
    write_run(tmp_path / "runs" / "tail", "tail", [3.0])
    assert main(["analysis", "table2", *words]) == 0
    assert "ours 3 x (measured)" in page.read_text()
    assert "ours 1.5 x (measured)" not in page.read_text()


def test_the_page_counts_how_the_claims_of_an_exhibit_stand(tmp_path):
    for system, times in (("verl", [9.0]), ("tail", [6.0])):
        write_run(tmp_path / "runs" / system, system, times)
    assert main(["analysis", "table2", f"runs={tmp_path}/runs", f"out={tmp_path}"]) == 0
    lines = (tmp_path / "table2.txt").read_text().splitlines()
    num_unknown = sum(line.endswith("; no runs") for line in lines)
    assert f'<span class="unknown">{num_unknown} no runs</span>' in (tmp_path / "index.html").read_text()


def test_a_summary_says_what_holds_of_its_exhibit():
    without_claims, chosen = EXHIBITS["scaling"], EXHIBITS["flash_fig01b"]
    claim = Claim(text="", paper=1.0, ours=None, unit="x")
    for exhibit, claims in ((without_claims, []), (chosen, [claim])):
        said = summary(exhibit, Numbers(points=[], claims=claims))
        assert ("`reproduced` is within" in said) == bool(claims)
        assert ("the fastest of three splits" in said) == (exhibit is chosen)


def test_an_exhibit_that_has_no_number_any_more_keeps_no_figure(tmp_path):
    for name in ("ladder.png", "ladder.pdf", "table2.png"):
        (tmp_path / name).write_text("of an earlier command")
    write_exhibit(EXHIBITS["ladder"], Numbers(points=[]), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"ladder.csv", "ladder.txt", "table2.png"}
    page = write_page([EXHIBITS["ladder"]], tmp_path)
    assert f"{EXHIBITS['ladder'].title}</a></td><td>no runs</td>" in page.read_text()


def test_the_list_of_exhibits_fits_a_terminal(capsys):
    assert main(["analysis", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert all(any(line.startswith(name) for line in lines) for name in EXHIBITS)
