import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from sweeps.report.make import write_report
from sweeps.report.markup import VOID, Markup, element, section, table
from sweeps.report.source import read_sweep
from sweeps.report.sweep_settings import setting_tables
from tests.sweeps.report.makers import ABOUT, Made, make_folder

HOSTILE = "zero <script>alert(\"x\")</script> & 'more'"


class Checker(HTMLParser):
    """Nesting, ids and everything that would leave the page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.identities: list[str] = []
        self.names: list[str] = []
        self.outside: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.identities.append(value or "")
            if name.split(":")[-1] in ("href", "src") and not (value or "").startswith(("#", "data:")):
                self.outside.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    trials = [
        Made("base", diagnosed=True),
        *(Made("zero", seed=seed, diagnosed=True) for seed in range(2)),
        Made("random_noise 0.1", value=0.1, config={"intervention": {"sigma": 0.1}}),
        Made("random_noise 0.3", value=0.3, config={"intervention": {"sigma": 0.3}}),
        Made("state_passing", finished=False, failure="out of memory <at once>"),
    ]
    root = make_folder(tmp_path_factory.mktemp("page") / "sweep", trials)
    report = write_report(read_sweep(root))
    assert all(path.is_file() for path in report.files)
    return (root / "report" / "report.html").read_text()


def test_the_page_is_whole_and_leaves_nothing_to_the_network(whole: str) -> None:
    checked = Checker(whole)
    assert checked.outside == []
    assert "script" not in checked.names and "@import" not in whole and not re.search(r"url\((?!#)", whole)
    assert len(set(checked.identities)) == len(checked.identities), "an id comes twice"


def test_the_page_says_what_is_asked_and_how_to_run_it_again(whole: str) -> None:
    text = " ".join(Checker(whole).text)
    for said in ("Does it work?", ABOUT["paper_found"], ABOUT["contradicts"], "python -m sweeps.run made_up"):
        assert str(said) in text
    assert "8 windows of 8 documents, 16384 bytes each; 1 to 2 seeds (trial.seed)" in text


def test_the_page_has_table_figures_and_their_sentences(whole: str) -> None:
    checked = Checker(whole)
    text = " ".join(checked.text)
    assert checked.names.count("figure") == 1 + 1 + 1 + 5 + 1
    assert checked.names.count("figcaption") == checked.names.count("figure")
    assert {"th", "caption", "thead"} <= set(checked.names)
    for said in ("Excess NLL", "Effective Remembrance", "Size of the state", "Distance to the states", "vs zero, %"):
        assert said in text


def test_failed_trials_and_what_was_left_out_are_said(whole: str) -> None:
    text = " ".join(Checker(whole).text)
    assert "state_passing (seed 0): out of memory <at once>" in text
    assert "coverage was left out: no states were kept" in text


def test_a_sweep_without_results_still_has_a_page(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sweep", [Made("zero", finished=False)])
    report = write_report(read_sweep(root))
    assert [path.name for path in report.files][-1] == "report.html"
    text = " ".join(Checker((root / "report" / "report.html").read_text()).text)
    assert "No trial has finished." in text and "zero (seed 0): it did not run to its end" in text


def test_a_hostile_name_is_text_everywhere(tmp_path: Path) -> None:
    trials = [
        Made("base"),
        Made(HOSTILE, arm="zero"),
        Made(HOSTILE, arm="zero", seed=1, finished=False),
    ]
    root = make_folder(tmp_path / "sweep", trials, question=f"Is {HOSTILE} shown?", command=f"run {HOSTILE}")
    write_report(read_sweep(root))
    checked = Checker((root / "report" / "report.html").read_text())
    assert "script" not in checked.names
    assert sum(HOSTILE in text for text in checked.text) >= 4


def test_elements_escape_what_is_no_markup() -> None:
    assert element("p", "a < b", element("b", "&"), class_='"x"') == '<p class="&quot;x&quot;">a &lt; b<b>&amp;</b></p>'
    assert element("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert section("one", "Nothing", "", Markup()) == ""
    assert isinstance(table(["a"], [["<"]], "c"), Markup) and "<th scope" in table(["a"], [["<"]], "c")


def test_settings_that_differ_are_told_from_those_shared(tmp_path: Path) -> None:
    trials = [
        Made("base"),
        Made("random_noise 0.1", config={"intervention": {"sigma": 0.1}}),
        Made("random_noise 0.3", config={"intervention": {"sigma": 0.3}}),
        *(Made("zero", seed=seed) for seed in (0, 1)),
    ]
    found = setting_tables(read_sweep(make_folder(tmp_path / "sweep", trials)).plan["trials"])
    assert found.names == ["intervention.sigma", "trial.seed"]
    assert found.differing == {
        "base": ["-", "0"],
        "random_noise 0.1": ["0.1", "0"],
        "random_noise 0.3": ["0.3", "0"],
        "zero": ["-", "0, 1"],
    }
    assert found.shared["trial.context"] == "64" and found.shared["optimizer.peak_lr"] == "0.0003"
    assert "intervention.beta" not in found.shared, "no trial uses it"


def test_the_command_writes_the_report_of_a_folder_alone(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sweep", [Made("base"), Made("zero", finished=False, failure="killed")])
    done = run_command(root)
    assert done.returncode == 0, done.stderr
    assert "failed: zero (seed 0): killed" in done.stdout and "report.html" in done.stdout
    assert (root / "report" / "summary.csv").is_file()


def test_the_command_says_what_a_folder_lacks(tmp_path: Path) -> None:
    done = run_command(tmp_path)
    assert done.returncode == 2
    sentence = (
        f"{tmp_path} is no folder of a sweep: it has no sweep.json that this version can read; name one below runs/"
    )
    assert done.stderr == f"error: {sentence}\n"
    assert not (tmp_path / "report").exists()


def run_command(folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "sweeps.report", str(folder)], capture_output=True, text=True)


def test_the_report_of_a_search_lists_what_its_plan_does_not(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "sweep", [Made("base"), Made("zero")])
    best = json.loads((make_folder(tmp_path / "other", [Made("tbtt")]) / "sweep.json").read_text())["trials"]
    plan = read_sweep(root).plan
    (root / "report").mkdir()
    (root / "report" / "plan.json").write_text(json.dumps({**plan, "trials": [*plan["trials"], *best]}))
    assert [one.label for one in read_sweep(root).failed] == ["tbtt"]
    (root / "report" / "plan.json").write_text(json.dumps({**plan, "identity": "another", "trials": best}))
    assert [one.label for one in read_sweep(root).results] == ["base", "zero"], "a report of another sweep counts not"
