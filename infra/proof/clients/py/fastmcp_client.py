"""FastMCP's client as a test client: runs a few of the checks of client.py, under the same names,
against one MCP endpoint that hosts server-everything, and prints one JSON line for each.

    python fastmcp_client.py --url http://127.0.0.1:8080/mcp

Exit code: 0 all checks passed, 1 some failed.
"""

import argparse
import asyncio
import json
import logging
import sys
import time
from importlib.metadata import version

from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult

CHECK_TIMEOUT = 60
NAME = f"fastmcp-{version('fastmcp')}"


def must(condition: object, text: str) -> None:
    if not condition:
        raise AssertionError(text)


def must_equal(got: object, want: object, what: str) -> None:
    must(got == want, f"{what}: got {got!r:.200}, want {want!r:.200}")


class Session:
    """The client and all that the server asked it."""

    def __init__(self, url: str, one: str) -> None:
        # What comes before names, and before URIs, if the URL has all servers, among them one.
        self.prefix, self.scheme = (f"{one}__", f"dormouse://{one}/") if one else ("", "")
        self.prompts: list[str] = []
        self.questions = 0
        self.client = Client(
            url,
            sampling_handler=self.sample,
            elicitation_handler=self.elicit,
            roots=["file:///srv/one"],
            timeout=CHECK_TIMEOUT,
        )

    async def sample(self, messages: list, *_rest: object) -> str:
        self.prompts.append(messages[0].content.text)
        return "sampled by fastmcp"

    async def elicit(self, _message: str, _response_type: object, *_rest: object) -> ElicitResult:
        self.questions += 1
        return ElicitResult(action="accept", content={"name": "Ada “🐭” Løvelace", "check": True, "integer": 17})

    async def call(self, tool: str, arguments: dict | None = None, **options: object) -> str:
        result = await self.client.call_tool(self.prefix + tool, arguments or {}, **options)
        return "\n".join(part.text for part in result.content)


async def check_initialize(s: Session) -> None:
    await s.client.__aenter__()
    must(s.client.is_connected(), "it is not connected")


async def check_list(s: Session) -> None:
    tools = {tool.name for tool in await s.client.list_tools()}
    wanted = {s.prefix + name for name in ("echo", "trigger-elicitation-request", "get-roots-list")}
    must(wanted <= tools, f"tools: {tools}")
    prompts = {prompt.name for prompt in await s.client.list_prompts()}
    must(f"{s.prefix}simple-prompt" in prompts, f"prompts: {prompts}")
    resources = {str(resource.uri) for resource in await s.client.list_resources()}
    must(f"{s.scheme}demo://resource/static/document/architecture.md" in resources, f"resources: {resources}")


async def check_echo_unicode(s: Session) -> None:
    for text in ("plain", "🐭💤 שלום 漢字 \u2028 \n \"quoted\"", "x" * 256 * 1024):
        must_equal(await s.call("echo", {"message": text}), f"Echo: {text}", "echo")


async def check_progress(s: Session) -> None:
    seen: list[str] = []

    async def note(progress: float, total: float | None, _message: str | None) -> None:
        seen.append(f"{progress:g}/{total or 0:g}")

    await s.call("trigger-long-running-operation", {"duration": 1, "steps": 5}, progress_handler=note)
    must_equal(seen, [f"{i}/5" for i in range(1, 6)], "progress")


async def check_sampling(s: Session) -> None:
    answer = await s.call("trigger-sampling-request", {"prompt": "what?", "maxTokens": 50})
    must_equal(s.prompts, ["Resource trigger-sampling-request context: what?"], "prompts")
    must("sampled by fastmcp" in answer, f"the result lacks it: {answer}")


async def check_elicitation(s: Session) -> None:
    answer = await s.call("trigger-elicitation-request")
    must_equal(s.questions, 1, "questions that reached the client")
    must("- Name: Ada “🐭” Løvelace" in answer and "- Favorite Integer: 17" in answer, f"unexpected: {answer}")


async def check_roots(s: Session) -> None:
    must("URI: file:///srv/one" in await s.call("get-roots-list"), "the root is not listed")


async def check_close(s: Session) -> None:
    await s.client.__aexit__(None, None, None)


CHECKS = {
    "initialize": check_initialize,
    "list": check_list,
    "echo-unicode": check_echo_unicode,
    "progress": check_progress,
    "sampling": check_sampling,
    "elicitation": check_elicitation,
    "roots": check_roots,
    "close": check_close,
}


async def run(url: str, one: str) -> int:
    session, failed = Session(url, one), 0
    for name, check in CHECKS.items():
        begin = time.monotonic()
        line = {"client": NAME, "check": name, "ok": True, "ms": 0}
        try:
            await asyncio.wait_for(check(session), CHECK_TIMEOUT)
        except Exception as error:  # whatever it is, it is what the check came to
            line |= {"ok": False, "error": str(error) or type(error).__name__}
            failed = 1
        line["ms"] = round((time.monotonic() - begin) * 1000)
        print(json.dumps(line), flush=True)
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description="Check one MCP endpoint with FastMCP.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--transport", choices=["http"], default="http")
    parser.add_argument("--one", default="")
    logging.disable(logging.WARNING)
    args = parser.parse_args()
    return asyncio.run(run(args.url, args.one))


if __name__ == "__main__":
    sys.exit(main())
