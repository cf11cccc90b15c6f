"""The page in a real browser: at the width of a desk and of a phone, and on paper."""

import base64
import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from docs.take_screenshot import FLAGS
from sweeps.report.make import write_report
from sweeps.report.source import read_sweep
from tests.sweeps.report.makers import Made, make_folder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="needs the Debian package chromium"),
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs the Debian package chromium-driver"),
]

A4_PIXELS = 688
"""Width of a page between its margins, at 96 pixels an inch."""
PICTURES = """
return Array.from(document.querySelectorAll('.panels > svg')).map(picture => {
    const box = picture.getBoundingClientRect();
    return {width: box.width, height: box.height, right: box.right, drawn: picture.querySelectorAll('path').length};
});
"""
WIDE_BOXES = """
return Array.from(document.querySelectorAll('.scroll')).filter(box => box.scrollWidth > box.clientWidth).length;
"""
SMALLEST_TEXT = """
const texts = Array.from(document.querySelectorAll('.panels > svg text'));
return Math.min(...texts.map(text => text.getBoundingClientRect().height));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    sizes = ("small", "large")
    arms = ("base", "zero", "state_passing", "correlated_noise_with_a_name_that_is_far_too_long_for_a_phone")
    trials = [Made(f"{size} {arm}", group=size, diagnosed=True) for size in sizes for arm in arms]
    trials.append(Made("small tbtt", group="small", finished=False, failure="x" * 300))
    root = make_folder(
        tmp_path_factory.mktemp("browser") / "sweep", trials, command="python -m sweeps.run " + "y" * 300
    )
    write_report(read_sweep(root))
    return f"file://{root}/report/report.html"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def open_at(browser: webdriver.Chrome, page: str, width: int) -> list[dict[str, Any]]:
    """Open the page at this width; what the browser asked for meanwhile."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("performance")
    browser.get(page)
    time.sleep(0.5)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("width", [1280, 360])
def test_the_page_fits_its_window_and_asks_for_nothing(browser: webdriver.Chrome, page: str, width: int) -> None:
    asked = [request["request"]["url"] for request in open_at(browser, page, width)]
    assert [url for url in asked if not url.startswith("data:")] == [page]
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    pictures = browser.execute_script(PICTURES)
    assert len(pictures) == 2 + 2 + 2 * 5 + 6
    for picture in pictures:
        assert picture["width"] >= 300 and picture["height"] >= 120 and picture["right"] <= width
        assert picture["drawn"] > 5


def test_on_a_phone_tables_scroll_in_their_own_box_and_text_can_be_read(browser: webdriver.Chrome, page: str) -> None:
    open_at(browser, page, 360)
    assert browser.execute_script(WIDE_BOXES) >= 1
    assert browser.execute_script(SMALLEST_TEXT) >= 7


def test_the_page_can_be_printed(browser: webdriver.Chrome, page: str) -> None:
    open_at(browser, page, A4_PIXELS)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.execute_script("return document.documentElement.scrollWidth") <= A4_PIXELS
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert printed.startswith(b"%PDF-") and len(printed) > 50_000
    assert printed.count(b"/Type /Page\n") > 1


def test_every_picture_and_table_has_a_name_for_a_screen_reader(browser: webdriver.Chrome, page: str) -> None:
    open_at(browser, page, 1280)
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named: dict[str, list[str]] = {}
    for node in tree:
        if not node.get("ignored"):
            named.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    pictures = [name for role in ("image", "img") for name in named.get(role, [])]
    assert len(pictures) == 20 and all(pictures)
    assert named["table"] and all(named["table"])
    assert len(named["columnheader"]) >= 10 and len(named["rowheader"]) >= 8
