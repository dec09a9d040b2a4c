"""A headless Chromium, driven by its DevTools protocol, to look at pages as readers do."""

import asyncio
import base64
import io
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from PIL import Image

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS = 60


class Tab:
    """A tab: commands by `send`, the addresses it asked for in `requested`, its complaints in `complaints`."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._session, self._last = socket, None, 0
        self.requested: list[str] = []
        self.complaints: list[str] = []
        self._seen: set[str] = set()

    async def open(self) -> None:
        target = await self.send("Target.createTarget", url="about:blank")
        attached = await self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Log", "Runtime"):
            await self.send(f"{domain}.enable")

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Returns the result of a command. Raises RuntimeError for an error of the browser."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        await self._socket.send_str(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        while True:
            answer = await self._receive()
            if answer.get("id") == self._last:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]

    async def goto(self, page: Path) -> None:
        """Opens a file and waits until it is loaded."""
        self._seen.discard("Page.loadEventFired")
        await self.send("Page.navigate", url=page.resolve().as_uri())
        while "Page.loadEventFired" not in self._seen:
            await self._receive()

    async def look(self, width: int, scheme: str = "light", media: str = "screen") -> None:
        """Sets the window's width in CSS pixels, light or dark, screen or print."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.send("Emulation.setEmulatedMedia", media=media, features=features)

    async def value(self, script: str) -> Any:
        """Returns the value of a JavaScript expression, after its promise if it is one."""
        answer = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    async def _receive(self) -> dict[str, Any]:
        answer = json.loads((await self._socket.receive(timeout=SECONDS)).data)
        method = answer.get("method", "")
        self._seen.add(method)
        if method == "Network.requestWillBeSent":
            self.requested.append(answer["params"]["request"]["url"])
        if method == "Log.entryAdded":
            self.complaints.append(answer["params"]["entry"]["text"])
        if method == "Runtime.exceptionThrown":
            self.complaints.append(str(answer["params"]["exceptionDetails"]))
        return answer


@asynccontextmanager
async def tab() -> AsyncIterator[Tab]:
    """Yields a tab of a new browser, which is ended with the block."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory() as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--hide-scrollbars",
            f"--user-data-dir={profile}", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "HOME": profile},
        )  # fmt: skip
        try:
            assert process.stderr is not None
            address = None
            while address is None:
                line = await asyncio.wait_for(process.stderr.readline(), SECONDS)
                if not line:
                    raise RuntimeError("the browser ended before it listened")
                address = re.search(rb"ws://\S+", line)
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(address[0].decode(), max_msg_size=0) as socket,
            ):
                new_tab = Tab(socket)
                await new_tab.open()
                yield new_tab
        finally:
            process.kill()
            await process.wait()


async def screenshot(page: Path, output: Path, width: int, height: int, scheme: str = "light") -> None:
    """Writes the upper `height` pixels of a page in a window of that width, as a PNG of 200 colours."""
    async with tab() as browser:
        await browser.look(width, scheme)
        await browser.goto(page)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        taken = await browser.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    picture = Image.open(io.BytesIO(base64.b64decode(taken["data"])))
    picture.convert("RGB").quantize(200, dither=Image.Dither.NONE).save(output, optimize=True)


if __name__ == "__main__":  # python -m tests.support.browser PAGE PNG WIDTH HEIGHT [light|dark]
    arguments = sys.argv[1:]
    asyncio.run(
        screenshot(Path(arguments[0]), Path(arguments[1]), int(arguments[2]), int(arguments[3]), *arguments[4:])
    )
