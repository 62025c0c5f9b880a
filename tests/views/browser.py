"""A headless Chromium that the tests start, and what they ask it."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")
WINDOW = (1400, 900)


@contextmanager
def started() -> Iterator[Any]:
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="the page is driven with selenium, which is not installed"
    )
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("no browser here: the page is tried in Chromium (Debian's packages chromium and chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "hide-scrollbars",
        f"window-size={WINDOW[0]},{WINDOW[1]}",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


class Opened:
    """A page in the browser, and the ways of a person with it."""

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver = driver
        driver.get(path.as_uri())

    def script(self, code: str) -> Any:
        return self.driver.execute_script(code)

    def text(self, selector: str) -> str:
        return str(self.script(f"return document.querySelector({selector!r}).innerText"))

    def count(self, selector: str) -> int:
        return int(self.script(f"return document.querySelectorAll({selector!r}).length"))

    def state(self, name: str) -> str:
        return str(self.script(f"return document.body.dataset.{name}"))

    def click(self, selector: str) -> None:
        self.driver.find_element("css selector", selector).click()

    def hover(self, selector: str, x: float, y: float, *, click: bool = False) -> None:
        """Move the mouse to a place in an element, counted from its upper left corner."""
        from selenium.webdriver import ActionChains

        target = self.driver.find_element("css selector", selector)
        size = target.size
        moved = ActionChains(self.driver, duration=0).move_to_element_with_offset(
            target, round(x - size["width"] / 2), round(y - size["height"] / 2)
        )
        (moved.click() if click else moved).perform()

    def hover_node(self, node: int) -> None:
        place = self.script(f"return window.foldloom.placeOfNode({node})")
        self.hover("#examples", place["x"], place["y"])

    def hover_step(self, schedule: int, step: int) -> None:
        box = self.script(f"return window.foldloom.boxOfStep({schedule}, {step})")
        canvas = f".loom:nth-child({schedule + 1}) canvas"
        self.hover(canvas, box["left"] + box["width"] / 2, box["top"] + box["height"] / 2)

    def press(self, key: str, selector: str = "body") -> None:
        self.driver.find_element("css selector", selector).send_keys(key)

    def problems(self) -> list[Any]:
        """What the console has to say, which should be nothing."""
        return list(self.driver.get_log("browser"))

    def picture(self) -> Picture:
        return Picture(self.driver.get_screenshot_as_png())

    def box(self, selector: str) -> tuple[int, int, int, int]:
        box = self.script(
            f"const box = document.querySelector({selector!r}).getBoundingClientRect();"
            "return [box.left, box.top, box.right, box.bottom].map(Math.round)"
        )
        return tuple(box)


class Picture:
    """A screenshot as rows of pixels: enough of PNG for what a browser writes, eight bits a channel without interlacing."""

    def __init__(self, png: bytes) -> None:
        self.width, self.height, _, kind = struct.unpack(">IIBB", png[16:26])
        channels = {2: 3, 6: 4}[kind]
        chunks, at = b"", 8
        while at < len(png):
            length = struct.unpack(">I", png[at : at + 4])[0]
            if png[at + 4 : at + 8] == b"IDAT":
                chunks += png[at + 8 : at + 8 + length]
            at += 12 + length
        self.rows = _unfiltered(zlib.decompress(chunks), self.width * channels, channels)
        self._channels = channels

    def pixel(self, x: int, y: int) -> tuple[int, int, int]:
        start = x * self._channels
        red, green, blue = self.rows[y][start : start + 3]
        return red, green, blue

    def colours(self, left: int, top: int, right: int, bottom: int) -> set[tuple[int, int, int]]:
        return {
            self.pixel(x, y) for y in range(top, min(bottom, self.height)) for x in range(left, min(right, self.width))
        }


def _unfiltered(data: bytes, stride: int, channels: int) -> list[bytearray]:
    rows: list[bytearray] = []
    before = bytearray(stride)
    for start in range(0, len(data), stride + 1):
        kind, row = data[start], bytearray(data[start + 1 : start + 1 + stride])
        for n in range(stride):
            left = row[n - channels] if n >= channels else 0
            above = before[n]
            corner = before[n - channels] if n >= channels else 0
            if kind == 1:
                row[n] = (row[n] + left) & 255
            elif kind == 2:
                row[n] = (row[n] + above) & 255
            elif kind == 3:
                row[n] = (row[n] + (left + above) // 2) & 255
            elif kind == 4:
                guess = left + above - corner
                distances = (abs(guess - left), abs(guess - above), abs(guess - corner))
                row[n] = (row[n] + (left, above, corner)[distances.index(min(distances))]) & 255
        rows.append(row)
        before = row
    return rows
