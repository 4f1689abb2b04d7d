"""A browser driven over a pipe in the DevTools protocol.

The browser reads commands from descriptor 3 and answers on 4 (``--remote-debugging-pipe``), JSON texts separated by zero bytes.
This needs no free port, no driver and no package, and a browser whose pipe is closed exits by itself.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
TIMEOUT = 60.0
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--disable-gpu",
    # No traffic of the browser itself, and no host can be resolved.
    "--disable-background-networking", "--disable-sync", "--disable-component-update", "--disable-default-apps",
    "--disable-extensions", "--disable-domain-reliability", "--disable-client-side-phishing-detection", "--disable-quic",
    "--disable-breakpad", "--metrics-recording-only", "--no-pings", "--password-store=basic", "--use-mock-keychain",
    # One process for all tabs, rather than two or three for each.
    "--renderer-process-limit=1", "--disable-site-isolation-trials",
    "--disable-features=SpareRendererForSitePerProcess,OptimizationHints,MediaRouter,Translate,InterestFeedContentSuggestions,AutofillServerCommunication",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    # Containers often have only 64 MB of shared memory; pages in the background must run at full speed.
    "--disable-dev-shm-usage", "--disable-background-timer-throttling", "--disable-renderer-backgrounding",
    "--hide-scrollbars", "--force-color-profile=srgb", "--window-size=1280,900",
)  # fmt: skip


class BrowserError(Exception):
    """The browser did not start, did not answer in time, or refused a command."""


def find_browser() -> str | None:
    """Return the path of a browser: TRUEUP_CHROMIUM, or one on the search path."""
    named = os.environ.get("TRUEUP_CHROMIUM")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A headless browser with a temporary profile."""

    def __init__(self, program: str) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="trueup-browser-", ignore_cleanup_errors=True)
        self._buffer = bytearray()
        self._answers: dict[int, dict] = {}
        self._pages: dict[str, Page] = {}
        self._last = 0
        self._pid: int | None = None
        self._start(program)
        try:
            self.version = self.call("Browser.getVersion")["product"]
        except BrowserError:
            self.close()
            raise

    def _start(self, program: str) -> None:
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # Move away from 3 and 4, which may be among them.
        far = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (theirs_in, theirs_out)]
        home = Path(self._home.name)
        flags = [*FLAGS, f"--user-data-dir={home / 'profile'}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
        self._log = home / "stderr"
        self._pid = os.posix_spawn(
            program, [program, *flags, "about:blank"],
            {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "XDG_CACHE_HOME": str(home), "TZ": "UTC"},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, str(self._log), os.O_WRONLY | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, far[0], 3),
                (os.POSIX_SPAWN_DUP2, far[1], 4),
            ],
            setpgroup=0,
        )  # fmt: skip
        for end in (theirs_in, theirs_out, *far):
            os.close(end)

    def call(self, method: str, session: str | None = None, /, **parameters) -> dict:
        """Send a command and wait for its answer; events in between are recorded by their page."""
        self._last += 1
        mine = self._last
        message = {"id": mine, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        self._write(json.dumps(message).encode() + b"\0")
        self.wait(lambda: mine in self._answers, method)
        answer = self._answers.pop(mine)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait(self, done, what: str, timeout: float = TIMEOUT) -> None:
        """Read messages until ``done()``."""
        until = time.monotonic() + timeout
        while not done():
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise BrowserError(f"no answer in {timeout:g} s: {what}")
            self._read()

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except BrokenPipeError:
            raise self._gone() from None

    def _read(self) -> None:
        piece = os.read(self._in, 1 << 20)
        if not piece:
            raise self._gone()
        self._buffer += piece
        *whole, rest = self._buffer.split(b"\0")
        self._buffer = rest
        for text in whole:
            message = json.loads(text)
            if message.get("id") == 0:
                continue  # the answer to a dialog dismissed
            if "id" in message:
                self._answers[message["id"]] = message
            elif page := self._pages.get(message.get("sessionId", "")):
                page.record(message["method"], message["params"])

    def _gone(self) -> BrowserError:
        said = self._log.read_text(errors="replace")[-2000:] if self._log.exists() else ""
        return BrowserError(f"the browser has exited; its last output:\n{said}")

    def send(self, method: str, session: str, **parameters) -> None:
        """Send a command without waiting for its answer."""
        self._write(json.dumps({"id": 0, "method": method, "params": parameters, "sessionId": session}).encode() + b"\0")

    @contextlib.contextmanager
    def page(self, path: Path | None = None, **looks):
        """Yield a new tab, with a file opened if a path is given. Tabs share a profile: pages store nothing in it."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        try:
            page.prepare(**looks)
            if path is not None:
                page.open(path)
            yield page
        finally:
            del self._pages[session]
            self.call("Target.closeTarget", targetId=target)

    def close(self) -> None:
        """Close the browser, and kill its process group if it does not exit."""
        with contextlib.suppress(BrowserError, OSError):
            self.call("Browser.close")
        for end in (self._out, self._in):
            os.close(end)
        if not self._ended(10):
            os.killpg(self._pid, signal.SIGKILL)  # its own group: itself and the processes it has started
            self._ended(10)
        self._home.cleanup()

    def _ended(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if os.waitpid(self._pid, os.WNOHANG)[0]:
                return True
            time.sleep(0.02)
        return False


class Page:
    """A tab with its recorded requests, errors and dialogs."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self._loaded = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.dialogs: list[str] = []

    def call(self, method: str, **parameters) -> dict:
        """Send a command to this tab."""
        return self._browser.call(method, self._session, **parameters)

    def record(self, event: str, parameters: dict) -> None:
        """Record an event."""
        if event == "Page.loadEventFired":
            self._loaded += 1
        elif event == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif event == "Page.javascriptDialogOpening":
            self.dialogs.append(parameters["message"])
            self._browser.send("Page.handleJavaScriptDialog", self._session, accept=False)
        elif event == "Runtime.exceptionThrown":
            thrown = parameters["exceptionDetails"]
            self.errors.append(thrown.get("exception", {}).get("description") or thrown["text"])
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(item.get("value", item.get("description"))) for item in parameters["args"]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif event == "Audits.issueAdded":
            self.errors.append(json.dumps(parameters["issue"]))

    def prepare(self, *, width: int = 1280, height: int = 900, dark: bool = False, scripts: bool = True) -> None:
        """Record all events, disable the network, and set size and colour scheme."""
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        self.size(width, height)
        self.look(dark=dark)
        if not scripts:
            self.call("Emulation.setScriptExecutionDisabled", value=True)

    def size(self, width: int, height: int = 900) -> None:
        """Set the size of the window; a narrow window is a phone."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def look(self, *, dark: bool = False, media: str = "screen") -> None:
        """Set the preferred colour scheme and the medium."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def open(self, path: Path) -> None:
        """Open a file from disk and wait until it is loaded."""
        before = self._loaded
        answer = self.call("Page.navigate", url=path.as_uri())
        if "errorText" in answer:
            raise BrowserError(f"{path}: {answer['errorText']}")
        self._browser.wait(lambda: self._loaded > before, f"loading {path.name}")

    def do(self, script: str, *values):
        """Run the body of a function in the page with the values as `given`, and return its result."""
        source = f"(async (given) => {{ {script} }})({json.dumps(list(values))})"
        answer = self.call("Runtime.evaluate", expression=source, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(answer["exceptionDetails"].get("exception", {}).get("description", str(answer)))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until the page is redrawn."""
        self.do("await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));")

    def click(self, selector: str) -> None:
        """Click in the middle of the first matching element, which must be visible."""
        spot = self.do(
            "const one = document.querySelector(given[0]); if (!one) { return null; }"
            "one.scrollIntoView({block: 'center', inline: 'center'}); const box = one.getBoundingClientRect();"
            "const at = [box.x + box.width / 2, box.y + box.height / 2], hit = document.elementFromPoint(...at);"
            "return hit && (one.contains(hit) || hit.contains(one)) ? at : null;",
            selector,
        )
        if spot is None:
            raise BrowserError(f"nothing to click: {selector}")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=spot[0], y=spot[1], button="left", clickCount=1)
        self.settle()

    def press(self, key: str) -> None:
        """Press a key: Enter, Tab, Escape or space."""
        codes = {"Enter": (13, "\r", "Enter"), "Tab": (9, "", "Tab"), " ": (32, " ", "Space"), "Escape": (27, "", "Escape")}
        number, text, code = codes[key]
        common = {"key": key, "code": code, "windowsVirtualKeyCode": number, "nativeVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

    def type(self, selector: str, text: str) -> None:
        """Replace the content of a field by typing."""
        self.click(selector)
        self.do("document.querySelector(given[0]).select();", selector)
        self.call("Input.insertText", text=text)
        self.settle()

    def pdf(self, **settings) -> bytes:
        """Print on A4."""
        paper = {"paperWidth": 8.27, "paperHeight": 11.69, "preferCSSPageSize": True, "printBackground": True}
        return base64.b64decode(self.call("Page.printToPDF", **paper, **settings)["data"])
