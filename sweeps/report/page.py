"""The report as one self-contained page: no script, no network, made to be read on a phone and on paper too."""

import datetime
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from storage.files import write_text
from sweeps.report import tables
from sweeps.report.figure_spec import FigureSpec, basis_of
from sweeps.report.legend import legend
from sweeps.report.markup import Markup, element, joined, section, table
from sweeps.report.rendering import inline_svg
from sweeps.report.results import FailedTrial
from sweeps.report.source import Sweep
from sweeps.report.sweep_settings import setting_tables

PAGE = "report.html"
_STYLE = Path(__file__).with_name("page.css")
_LIBRARIES = ("torch", "ray", "deepspeed", "mlflow", "numpy", "matplotlib")


def write_page(folder: Path, sweep: Sweep, rows: Sequence[tables.Row], figures: Sequence[FigureSpec]) -> Path:
    """Write `report.html`; return its path."""
    path = folder / PAGE
    write_text(path, page(sweep, rows, figures))
    return path


def page(sweep: Sweep, rows: Sequence[tables.Row], figures: Sequence[FigureSpec]) -> str:
    """The whole page as HTML."""
    shown = {figure.name: _figure(figure, headed=figure.title != sweep.name) for figure in figures}
    first = [shown.pop(name, Markup()) for name in ("comparison", "scale", "differences")]
    body = [
        element("header", _header(sweep)),
        element(
            "main",
            section("question", "What is asked", *_question(sweep)),
            section("comparison", "Perplexity by position", first[0] or element("p", "No trial has finished.")),
            section("summary", "Summary", *_summary(sweep, rows)),
            section("by-value", "Against the swept value", first[1]),
            section("differences", "Differences to the controls", first[2]),
            section("diagnostics", "Diagnostics", _gallery(list(shown.values())), *_left_out(sweep)),
            section("failed", "Trials that did not finish", *_failed(sweep.failed)),
            section("settings", "Settings", *_settings(sweep)),
            section("again", "To run it again", *_again(sweep)),
        ),
        element("footer", element("p", _made_with())),
    ]
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{sweep.name}: {sweep.plan['question']}"),
        # An empty icon, or a browser would ask for one.
        element("link", rel="icon", href="data:,"),
        element("style", Markup(_STYLE.read_text())),
    ]
    whole = element("html", element("head", *head), element("body", *body), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _header(sweep: Sweep) -> Markup:
    facts = f"sweep {sweep.name}, preset {sweep.plan['preset']}"
    if sweep.results:
        facts += f"; {basis_of(sweep.results, sweep.seeds_of)}"
    return joined([element("h1", str(sweep.plan["question"])), element("p", facts, class_="facts")])


def _question(sweep: Sweep) -> list[Markup]:
    about = sweep.about
    asked = f"The paper found (arXiv:2507.02782{', ' + about['figure'] if about.get('figure') else ''}):"
    parts = [element("p", str(about["why"]))] if about.get("why") else []
    for heading, key in ((asked, "paper_found"), ("What would contradict it:", "contradicts")):
        if about.get(key):
            parts.append(element("p", element("strong", heading), " ", str(about[key])))
    return parts


def _figure(figure: FigureSpec, *, headed: bool) -> Markup:
    """A figure with its sentence; `headed` where its title is not said already."""
    several = len(figure.panels) > 1
    pictures = [
        Markup(
            inline_svg(
                panel, f"{figure.name}-{number}", f"{figure.title}: {panel.heading}" if several else figure.title
            )
        )
        for number, panel in enumerate(figure.panels)
    ]
    caption = element(
        "figcaption",
        element("h3", figure.title) if headed else "",
        element("p", figure.explanation),
        element("p", "; ".join((figure.basis, *figure.remarks)) + ".", class_="facts"),
    )
    return element(
        "figure",
        caption,
        element("div", *pictures, class_="panels several" if several else "panels"),
        legend(figure.legend),
        class_="wide" if several else "single",
    )


def _gallery(figures: Sequence[Markup]) -> Markup:
    return element("div", *figures, class_="gallery") if figures else Markup()


def _summary(sweep: Sweep, rows: Sequence[tables.Row]) -> list[Markup]:
    if not rows:
        return []
    shown = tables.all_cells(rows)
    best = [number for number, row in enumerate(rows) if row["best"]]
    headings = list(shown[0])
    words = 1 + ("group" in headings)
    caption = "Report split; intervals of 95 %"
    whole = table(headings, [list(row.values()) for row in shown], caption, strong=best, left=words)
    remarks = [*tables.notes(rows), *tables.seed_remarks(rows, sweep.seeds_of), basis_of(sweep.results, sweep.seeds_of)]
    return [whole, element("ul", *(element("li", remark) for remark in remarks), class_="facts")]


def _left_out(sweep: Sweep) -> list[Markup]:
    """Diagnostics that could not be had, once each, with the reason."""
    reasons = {
        (name, reason): None for raw in sweep.raw for name, reason in raw.get("diagnostics_left_out", {}).items()
    }
    lines = [element("li", f"{name.replace('_', ' ')} was left out: {reason}") for name, reason in reasons]
    return [element("ul", *lines, class_="facts")] if lines else []


def _failed(failed: Sequence[FailedTrial]) -> list[Markup]:
    return [element("ul", *(element("li", tables.failed_line(trial)) for trial in failed))] if failed else []


def _settings(sweep: Sweep) -> list[Markup]:
    found = setting_tables(sweep.plan["trials"])
    parts = []
    if found.names:
        lines = [[label, *values] for label, values in found.differing.items()]
        parts.append(table(["trials", *found.names], lines, "Settings that differ", left=len(found.names) + 1))
    lines = [[name, value] for name, value in found.shared.items()]
    shared = table(["setting", "value"], lines, "Settings that all trials share", left=2)
    return [*parts, element("details", element("summary", "Settings that all trials share"), shared)]


def _again(sweep: Sweep) -> list[Markup]:
    command = str(sweep.plan.get("command", ""))
    lines = [element("pre", element("code", command), tabindex="0")] if command else []
    # Trials that ran before the setting had this name wrote `scan`.
    ran = [(raw["device"], raw["workers"], raw.get("kernel", raw.get("scan"))) for raw in sweep.raw]
    made = sorted({f"{device}, workers: {workers}, kernel: {kernel}" for device, workers, kernel in ran})
    seconds = sum(result.seconds for result in sweep.results)
    facts = [
        f"Identity {sweep.plan['identity']}; folder {sweep.root}.",
        f"{len(sweep.results)} of {len(sweep.plan['trials'])} trials finished, {seconds / 60:.0f} minutes in all"
        + (f" (on {'; '.join(made)})." if made else "."),
        "Beside this page: the summary as CSV, JSON and Markdown, curves and diagnostics as CSV and Parquet, and every "
        "figure as PNG and SVG.",
    ]
    return [*lines, *(element("p", fact) for fact in facts)]


def _made_with() -> str:
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    here = f"Python {platform.python_version()}, {platform.system()} on {platform.machine()}"
    found = [f"{name} {_version(name)}" for name in _LIBRARIES if _version(name)]
    return f"Page written {today} where these were installed: {', '.join([here, *found])}."


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
