"""A headless Chromium, driven over a pipe: what a page logs, asks for and shows, at any width, in light and dark."""

import json
import os
import shutil
import subprocess
import tempfile
from types import TracebackType
from typing import Any, Self

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

LOOK = """(() => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const images = [...document.images].filter(image => image.complete && !image.naturalWidth).map(image => image.src);
  return {wide, images, title: document.title, background: getComputedStyle(document.body).backgroundColor};
})()"""


class Browser:
    """One Chromium process with one tab. `visit` returns what went wrong on a page."""

    def __enter__(self) -> Self:
        assert CHROMIUM is not None
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # its last children may still write
        to_read, self.out = os.pipe()
        self.into, to_write = os.pipe()

        def take_descriptors() -> None:  # Chromium reads commands from 3 and writes replies to 4
            reading, writing = os.dup(to_read), os.dup(to_write)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        flags = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
        self.process = subprocess.Popen(
            [CHROMIUM, *flags, "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"],
            preexec_fn=take_descriptors,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.number, self.rest, self.events = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *error: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        os.close(self.into)
        self.profile.cleanup()

    def message(self) -> dict[str, Any]:
        """The next message of Chromium's; messages end with a zero byte."""
        while b"\0" not in self.rest:
            data = os.read(self.into, 1 << 16)
            if not data:
                raise RuntimeError("Chromium went away")
            self.rest += data
        one, _, self.rest = self.rest.partition(b"\0")
        return json.loads(one)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its result; events that come first are kept."""
        self.number += 1
        session = {"sessionId": self.session} if hasattr(self, "session") else {}
        sent = {"id": self.number, "method": method, "params": params, **session}
        os.write(self.out, json.dumps(sent).encode() + b"\0")
        while (found := self.message()).get("id") != self.number:
            self.events.append(found)
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']}")
        return found["result"]

    def view(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Look at pages in a window of this size, from now on."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def visit(self, address: str) -> dict[str, Any]:
        """Load a page; return its title, errors, requests, broken pictures, and by how much it is too wide."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.message())
        found = self.call("Runtime.evaluate", expression=LOOK, returnByValue=True)["result"]["value"]
        events = [(event.get("method"), event.get("params", {})) for event in self.events]
        found["errors"] = [
            str(params.get("entry", params.get("exceptionDetails", params)))
            for method, params in events
            if (method == "Log.entryAdded" and params["entry"]["level"] == "error")
            or (method == "Runtime.consoleAPICalled" and params["type"] == "error")
            or method == "Runtime.exceptionThrown"
            or (method == "Network.loadingFailed" and not params.get("canceled"))
        ]
        found["requests"] = [p["request"]["url"] for method, p in events if method == "Network.requestWillBeSent"]
        return found

    def value(self, script: str) -> Any:
        """What a script gives in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def picture(self) -> bytes:
        """The window as PNG."""
        import base64

        return base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
