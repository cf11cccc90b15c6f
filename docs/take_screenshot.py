"""Take a picture of the overlaid curves in the real MLflow UI, in a real headless Chromium.

    python docs/take_screenshot.py --uri sqlite:///mlflow.db --experiment noise_scale --out curves.png

Starts `mlflow ui` on a free port of this machine, opens the chart view that the sweep shares with its experiment
(perplexity against log position, one line per trial), waits until every line is drawn, saves a PNG, ends both. Needs
the Debian packages `chromium` and `chromium-driver` and the extra `dev`. Prints how many lines the page drew.
"""

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from storage.tracking_view import VIEW_TAG, view_filter, view_path

WINDOW = (1600, 1143)
"""Outer size in pixels; the page itself is 143 pixels lower."""
SERVER_START_S = 120
DRAWING_S = 120
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
# The assistant's panel and the note about shared views cover a third of the page.
CLOSE_BUTTONS = ", ".join(
    f"[data-component-id='mlflow.{name}']"
    for name in ("assistant.chat_panel.close", "experiment_page.shared_view.dismiss")
)
# Runs with a laid-out line in the chart of the curve: Plotly binds each line to its trace, and the UI names the run in
# it. (The UI draws every run twice, once for smoothing; a chart that is still loading has no path yet.)
LINES_DRAWN = """
const drawn = Array.from(document.querySelectorAll('.scatterlayer .trace'))
    .filter(node => node.querySelector('path.js-line[d*="L"], path.js-line[d*="C"]'))
    .map(node => node.__data__[0].trace._input)
    .filter(trace => trace.metricKey === 'ppl_by_position');
return new Set(drawn.map(trace => trace.uuid)).size;
"""


def main(arguments: list[str] | None = None) -> int:
    """Take the screenshot; exit code 0 when every trial with a curve is drawn."""
    options = _parse(arguments)
    experiment, expected = _what_to_draw(options.uri, options.experiment)
    with mlflow_ui(options.uri) as address, _chromium() as browser:
        drawn = shoot(browser, address + view_path(experiment), expected, options.out)
    print(f"{drawn} lines drawn, {options.out}")
    return 0 if drawn == expected else 1


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--uri", default="sqlite:///mlflow.db", help="tracking store (default: %(default)s)")
    parser.add_argument("--experiment", default="noise_scale", help="name of the sweep (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/images/mlflow_curves.png"), help="PNG (default: %(default)s)"
    )
    return parser.parse_args(arguments)


def _what_to_draw(uri: str, name: str) -> tuple[str, int]:
    """(experiment id, number of trials of its latest sweep that have a curve)."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(name)
    if experiment is None or VIEW_TAG not in experiment.tags:
        raise SystemExit(f"{uri} has no sweep {name!r}; run the sweep first")
    runs = client.search_runs([experiment.experiment_id], view_filter(experiment.tags[VIEW_TAG]))
    return experiment.experiment_id, sum("ppl_by_position" in run.data.metrics for run in runs)


@contextmanager
def mlflow_ui(uri: str) -> Iterator[str]:
    """A running `mlflow ui` on a free port of this machine; gives its address, ends it afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [*command, "--backend-store-uri", uri],
            env={**os.environ, **quiet},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_for_server(server, f"http://127.0.0.1:{port}")
            yield f"http://127.0.0.1:{port}"
        finally:
            # The server and the workers it started are the group that begins with its own process id.
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=30)


def _wait_for_server(server: subprocess.Popen[bytes], address: str) -> None:
    deadline = time.monotonic() + SERVER_START_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise SystemExit(f"mlflow ui ended at once with code {server.returncode}")
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    raise SystemExit(f"mlflow ui did not answer at {address} within {SERVER_START_S} s")


@contextmanager
def _chromium() -> Iterator[webdriver.Chrome]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        raise SystemExit("no Chromium here; install the Debian packages chromium and chromium-driver")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={WINDOW[0]},{WINDOW[1]}"):
            options.add_argument(flag)
        browser = webdriver.Chrome(options=options, service=Service(driver))
        try:
            yield browser
        finally:
            browser.quit()


def shoot(browser: webdriver.Chrome, address: str, expected: int, path: Path) -> int:
    """Open the page, wait for `expected` lines (or for the time to run out), save it; return the lines drawn."""
    browser.set_window_size(*WINDOW)
    browser.get(address)
    wait = WebDriverWait(browser, DRAWING_S, ignored_exceptions=())
    try:
        wait.until(lambda page: page.execute_script(LINES_DRAWN) >= expected)
    except TimeoutException:
        seen = path.with_suffix(".failed.png")
        browser.save_screenshot(str(seen))
        drawn = browser.execute_script(LINES_DRAWN)
        raise SystemExit(f"{drawn} of {expected} lines were drawn in {DRAWING_S} s; what was seen: {seen}") from None
    for button in browser.find_elements(By.CSS_SELECTOR, CLOSE_BUTTONS):
        browser.execute_script("arguments[0].click()", button)
    # The chart grows into the room that was won, and Plotly lays its axes out once more.
    time.sleep(2.5)
    path.parent.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(path))
    return int(browser.execute_script(LINES_DRAWN))


if __name__ == "__main__":
    raise SystemExit(main())
