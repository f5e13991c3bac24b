"""The official Python SDK goes on after a call that a limit refuses, for mcp 1.x and 2.x.

    python limits.py --url http://127.0.0.1:8080/counter/mcp

It calls the first tool until a limit refuses it, waits as long as the answer says, and calls again.
It prints one JSON object: the calls that were done before, the text of the refusal, and whether the
tool could be called afterwards.
"""

from __future__ import annotations

import argparse
import json

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


def failed(result):
    return bool(getattr(result, "isError", None) or getattr(result, "is_error", None))


async def main(url):
    async with streamable_http_client(url) as streams, ClientSession(streams[0], streams[1]) as session:
        await session.initialize()
        tool = (await session.list_tools()).tools[0].name
        done = 0
        while not failed(answer := await session.call_tool(tool, {})) and done < 1000:
            done += 1
        await anyio.sleep((answer.meta or {}).get("dormouse/limit", {}).get("retryAfterSeconds", 0))
        again = await session.call_tool(tool, {})
        print(json.dumps({"done": done, "text": answer.content[0].text, "again": not failed(again)}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    anyio.run(main, parser.parse_args().url)
