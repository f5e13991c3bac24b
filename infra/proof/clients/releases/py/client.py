"""The official Python SDK, of any release, as a program that takes steps; ../../doc.go has them.

    python client.py --url http://127.0.0.1:8080/echo/mcp --transport http
    python client.py --url http://127.0.0.1:8080/echo/sse --transport sse
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import logging
import sys
import time
from contextlib import AsyncExitStack, nullcontext

import anyio
from mcp import ClientSession
from mcp.client import streamable_http
from mcp.client.sse import sse_client

VERSION = importlib.metadata.version("mcp")
LIMIT = 20.0

if VERSION.startswith("2."):
    from mcp import Client


class Warnings(logging.Handler):
    """What the SDK logs, warnings and worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info and record.exc_info[1]
        self.texts.append(f"{record.name}: {record.getMessage()}" + (f": {error!r}" if error else ""))


def must(holds: object, text: str) -> None:
    if not holds:
        raise RuntimeError(text)


class Program:
    def __init__(self, url: str, transport: str, warnings: Warnings) -> None:
        self.url, self.transport, self.warnings = url, transport, warnings
        self.stack = AsyncExitStack()
        self.pushed, self.when_pushed = 0, anyio.Event()

    async def connect(self) -> None:
        if self.transport == "sse":
            transport = sse_client(self.url)
        elif hasattr(streamable_http, "streamable_http_client"):
            transport = streamable_http.streamable_http_client(self.url)
        else:
            transport = streamable_http.streamablehttp_client(self.url)
        if VERSION.startswith("2."):
            client = Client(transport, message_handler=self._message)
            self.session = await self.stack.enter_async_context(client)
            if client.protocol_version >= "2026":
                events = await self.stack.enter_async_context(client.listen(tools_list_changed=True))
                tasks = await self.stack.enter_async_context(anyio.create_task_group())
                self.stack.callback(tasks.cancel_scope.cancel)
                tasks.start_soon(self._listen, events)
            return
        read, write, *_ = await self.stack.enter_async_context(transport)
        self.session = await self.stack.enter_async_context(ClientSession(read, write, message_handler=self._message))
        await self.session.initialize()

    async def _listen(self, events: object) -> None:
        async for _ in events:
            self._push()

    async def _message(self, message: object) -> None:
        if isinstance(message, Exception):
            self.warnings.texts.append(f"the message handler got {message!r}")
        elif getattr(getattr(message, "root", message), "method", "") == "notifications/tools/list_changed":
            self._push()

    def _push(self) -> None:
        self.pushed += 1
        self.when_pushed.set()
        self.when_pushed = anyio.Event()

    async def list(self) -> None:
        tools = (await self.session.list_tools()).tools
        must(any(tool.name == "echo" for tool in tools), "no tool echo")

    async def call(self) -> None:
        must(await self._call("echo", {"message": "🐭"}) == "Echo: 🐭", "another answer than the call's")

    async def slow(self) -> None:
        answer = await self._call("trigger-long-running-operation", {"duration": 3, "steps": 1})
        must("completed" in answer, "no answer of the slow call")

    async def push(self) -> None:
        before = self.pushed
        await self._call("push", {})
        while self.pushed == before:
            await self.when_pushed.wait()

    async def close(self) -> None:
        await self.stack.aclose()

    async def _call(self, name: str, arguments: dict) -> str:
        result = (await self.session.call_tool(name, arguments)).model_dump(by_alias=True)
        must(not result["isError"], f"the tool answered an error: {result['content']}")
        return result["content"][0]["text"]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--transport", required=True)
    flags = parser.parse_args()
    warnings = Warnings()
    logging.getLogger().addHandler(warnings)
    program = Program(flags.url, flags.transport, warnings)
    while step := (await anyio.to_thread.run_sync(sys.stdin.readline)).strip():
        begin = time.monotonic()
        errors = []
        # These two enter and leave what the others happen in, so they must not be within a limit.
        limit = nullcontext() if step in ("connect", "close") else anyio.fail_after(LIMIT)
        try:
            with limit:
                await getattr(program, step)()
        except Exception as error:
            errors.append(repr(error))
        errors += [f"the SDK logged: {text}" for text in warnings.texts]
        warnings.texts.clear()
        line = {"client": f"py-{VERSION}", "check": step, "ok": not errors, "ms": round((time.monotonic() - begin) * 1000)}
        if errors:
            line["error"] = "; ".join(errors)
        print(json.dumps(line), flush=True)


anyio.run(main)
