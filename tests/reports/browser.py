"""Headless Chromium for tests, driven over its debugging pipe: no driver program, no network port, no package.

Everything a page does is on record: console messages, exceptions, policy violations, and every request it tried.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60  # seconds; generous, as a loaded machine is no reason to fail
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--remote-debugging-pipe",
)  # fmt: skip


def executable() -> str:
    """Where Chromium is. Without one the test is skipped, and fails where CI is set: there it must be installed."""
    named = os.environ.get("LEADLINE_CHROMIUM")
    found = next((path for name in ((named,) if named else NAMES) if (path := shutil.which(name))), None)
    if found is None:
        reason = "no Chromium found: install it (Debian: apt-get install chromium) or name it in LEADLINE_CHROMIUM"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class Browser:
    """One headless Chromium with one page. `events` holds what the page did since `open`, as (method, params)."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="leadline-chromium-")
        child_in, self._to = os.pipe()
        self._from, child_out = os.pipe()
        # The browser speaks on descriptors 3 and 4, wherever ours happen to be.
        command = f'exec "$0" "$@" 3<&{child_in} 4>&{child_out}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, executable(), *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            pass_fds=(child_in, child_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_in)
        os.close(child_out)
        self._buffer = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[tuple[str, dict[str, Any]]] = []
        target = next(t for t in self._targets() if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, page: Path, fragment: str = "") -> None:
        """Load a file afresh and wait until it stands."""
        # By way of a blank page: the same file with another fragment would not be loaded again.
        self._navigate("about:blank")
        self.events.clear()
        self._navigate(page.resolve().as_uri() + (f"#{fragment}" if fragment else ""))
        self.settle()

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page (the debugger's right, not the page's policy's)."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a person would: letters, "Enter", "Escape"."""
        codes = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
        for key in keys:
            code, text = codes.get(key, (ord(key.upper()) if len(key) == 1 else 0, key))
            shared = {
                "key": key,
                "windowsVirtualKeyCode": code,
                "modifiers": 8 if key.isupper() and len(key) == 1 else 0,
            }
            self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **shared)
            self.call("Input.dispatchKeyEvent", type="keyUp", **shared)
        self.settle()

    def settle(self) -> None:
        """Wait until the page has handled what it was given and drawn a frame."""
        self.run("new Promise(done => { requestAnimationFrame(() => setTimeout(done, 30)); setTimeout(done, 2000); })")

    def view(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Set the window's size in CSS pixels and the colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Console messages, exceptions, log entries and issues (policy violations among them) since `open`."""
        bad = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded", "Audits.issueAdded")
        return [f"{method}: {json.dumps(params)[:600]}" for method, params in self.events if method in bad]

    def requests(self) -> list[str]:
        """The addresses the page asked for since `open`, its own file first."""
        sent = [params["request"]["url"] for method, params in self.events if method == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith("about:")]

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol and its answer."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._receive()
            if found.get("id") == self._last:
                assert "error" not in found, f"{method}: {found['error']}"
                answer: dict[str, Any] = found["result"]
                return answer

    def _targets(self) -> list[dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            found: list[dict[str, Any]] = self.call("Target.getTargets")["targetInfos"]
            if any(target["type"] == "page" for target in found):
                return found
            time.sleep(0.1)
        raise AssertionError("Chromium opened no page")

    def _navigate(self, url: str) -> None:
        loader = self.call("Page.navigate", url=url)["loaderId"]
        loaded = {"name": "load", "loaderId": loader}
        while not any(
            method == "Page.lifecycleEvent" and loaded.items() <= params.items() for method, params in self.events
        ):
            self._receive()

    def _receive(self) -> dict[str, Any]:
        """The next message; events are kept on the way."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], PATIENCE)
            assert ready, "Chromium does not answer"
            piece = os.read(self._from, 1 << 20)
            assert piece, f"Chromium ended with {self._process.poll()}"
            self._buffer += piece
        raw, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append((message["method"], message.get("params", {})))
        return message
