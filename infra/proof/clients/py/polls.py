"""The official Python SDKs as clients that poll, mcp 1.x and mcp 2.x in its legacy mode.

Calls the tools of a plan one after the other and prints one JSON line for each, with all that
came: the text of the result, the progress, the log messages since the last line, and what the SDK
complained of:

    python polls.py --url URL --plan '[{"check":"one","tool":"poll","arguments":{"n":1}}]'

A step with "until" ends when a log message with that text has come. Exit code: 0 every call ended
in a result, 1 some did not. ../ts/polls.mjs and ../gosdk take the same plan.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import warnings
from contextlib import AsyncExitStack
from datetime import timedelta

import anyio
import mcp.types as types
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

SDK_VERSION = importlib.metadata.version("mcp")
IS_V2 = SDK_VERSION.startswith("2.")

if IS_V2:
    from mcp import Client, MCPDeprecationWarning

    # Logging is how the server speaks on the standalone stream, deprecated or not.
    warnings.simplefilter("ignore", MCPDeprecationWarning)

CALL_TIMEOUT = 300.0


class Poller:
    """The SDK client and what it was told."""

    def __init__(self) -> None:
        self.sdk: ClientSession | None = None
        self.logs: list[str] = []
        self.odd: list[str] = []
        self.log_arrived = anyio.Event()

    async def connect(self, stack: AsyncExitStack, url: str) -> None:
        transport = streamable_http_client(url)
        callbacks = {"logging_callback": self._log, "message_handler": self._note}
        if IS_V2:
            client = Client(transport, mode="legacy", read_timeout_seconds=CALL_TIMEOUT, **callbacks)
            self.sdk = (await stack.enter_async_context(client)).session
            return
        read, write, _ = await stack.enter_async_context(transport)
        timeout = timedelta(seconds=CALL_TIMEOUT)
        session = ClientSession(read, write, read_timeout_seconds=timeout, **callbacks)
        self.sdk = await stack.enter_async_context(session)
        await self.sdk.initialize()

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logs.append(str(params.data))
        self.log_arrived.set()
        self.log_arrived = anyio.Event()

    async def _note(self, message: object) -> None:
        """An error that belongs to no call comes here, among much else."""
        if isinstance(message, Exception):
            self.odd.append(str(message))

    async def run(self, step: dict) -> dict:
        progress: list[float] = []

        async def on_progress(done: float, _total: float | None, _message: str | None) -> None:
            progress.append(done)

        arguments = step.get("arguments", {})
        result = await self.sdk.call_tool(step["tool"], arguments, progress_callback=on_progress)
        while (until := step.get("until")) and until not in self.logs:
            with anyio.fail_after(CALL_TIMEOUT):
                await self.log_arrived.wait()
        return {"text": "\n".join(part.text for part in result.content), "progress": progress}

    def take(self) -> dict:
        """What has come since the last time."""
        taken = {"logs": self.logs, "odd": self.odd}
        self.logs, self.odd = [], []
        return taken


async def run(url: str, plan: list[dict]) -> int:
    poller, code = Poller(), 0
    async with AsyncExitStack() as stack:
        await poller.connect(stack, url)
        for step in plan:
            try:
                outcome = await poller.run(step)
            except Exception as error:
                code = 1
                outcome = {"error": str(error) or type(error).__name__}
            line = {"client": f"py-{SDK_VERSION}", "check": step["check"]} | outcome | poller.take()
            print(json.dumps(line), flush=True)
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description="Poll one MCP endpoint with the Python SDK.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--plan", required=True, type=json.loads)
    args = parser.parse_args()
    return anyio.run(run, args.url, args.plan)


if __name__ == "__main__":
    sys.exit(main())
