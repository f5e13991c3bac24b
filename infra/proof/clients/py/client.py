"""The official Python SDK as a test client, for mcp 1.x and for mcp 2.x in all its modes.

Runs a fixed list of checks against one MCP endpoint that hosts server-everything, and prints one
JSON line for each:

    python client.py --url http://127.0.0.1:8080/mcp --transport http
    python client.py --url http://127.0.0.1:8080/sse --transport sse
    python client.py --url ws://127.0.0.1:8081/local?server=everything --transport ws

mcp 2.x has no WebSocket. Its mode is legacy unless --mode says otherwise: with auto or 2026-07-28 it
must speak the era without sessions, and what that era has not got is left out. Exit code: 0 all checks passed, 1 some failed, 2 wrong usage. The same checks, under the same
names, are in ../ts/client.mjs and ../gosdk/main.go.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import sys
import time
import warnings
from contextlib import AsyncExitStack
from datetime import timedelta

import anyio
import mcp.types as types
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

SDK_VERSION = importlib.metadata.version("mcp")
IS_V2 = SDK_VERSION.startswith("2.")

if IS_V2:
    import httpx2 as httpx
    from mcp import Client, MCPDeprecationWarning

    # Sampling, roots and logging are what is tested here, deprecated or not.
    warnings.simplefilter("ignore", MCPDeprecationWarning)
else:
    import httpx
    from mcp.client.websocket import websocket_client

CHECK_TIMEOUT = 60.0
CANCEL_PROMPT = 3.0
HANDSHAKE_VERSION = "2025-11-25"
MODERN_VERSION = "2026-07-28"

# API Gateway takes frames of up to 32 KiB from WebSocket clients, and the clients send each message
# in one frame; in JSON this text grows to up to 2.4 times its size.
ECHO_BYTES = 256 * 1024
SOCKET_ECHO_BYTES = 12 * 1024

UNICODE_SAMPLES = [
    "plain ascii",
    "",
    "emoji 🐭💤 family 👨‍👩‍👧‍👦 flag 🇨🇭 skin 👍🏽",
    "right to left: שלום עולם, مرحبا بالعالم \u202eoverride\u202c",
    "four bytes: 𝄞 𠜎 𐍈; three: 漢字 ‱; two: éß",
    "combining: e\u0301 vs \u00e9, Z\u0351\u036b",
    "quotes \" ' ` and backslashes \\ \\\\ \\\" \\u0041 \\n",
    'json in json: {"a":[1,"\\""]}',
    "line ends: \n \r \r\n U+0085 \u0085 U+2028 \u2028 U+2029 \u2029 end",
    "sse in data: \ndata: x\n\nevent: message\nid: 7\n\n:",
    "controls: \u0000 \u0001 \u001f \u007f \ufeff \ufffd \ufffe",
    "markup </script><!-- & &amp; %20 +",
]


class CheckError(Exception):
    """A check did not find what it wanted."""


def must(condition: object, text: str) -> None:
    if not condition:
        raise CheckError(text)


def must_equal(got: object, want: object, what: str) -> None:
    if got == want:
        return
    if not (isinstance(got, str) and isinstance(want, str)):
        raise CheckError(f"{what}: got {got!r}, want {want!r}")
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    raise CheckError(
        f"{what}: got {got[at : at + 40]!r}, want {want[at : at + 40]!r} (at {at}; lengths {len(got)}, {len(want)})"
    )


def text_of_bytes(size: int) -> str:
    """Exactly size bytes of UTF-8, with characters of every width so that a cut in one shows."""
    unit = 'aé漢🐭"\\\n\u2028'
    times, rest = divmod(size, len(unit.encode()))
    return unit * times + "x" * rest


def wire(value: object) -> dict:
    """The JSON form of an SDK type: its names are the same in both major versions."""
    return value.model_dump(by_alias=True, mode="json", exclude_none=True)


class Session:
    """The SDK client and all that the server asked it or told it.

    The SDK's context managers must be left by the task that entered them, so one task, own(),
    holds them; open() and close() only talk to it and can therefore be given up on.
    """

    def __init__(self, url: str, kind: str, mode: str, cold: bool, one: str) -> None:
        self.url = url
        self.one = one  # the URL has all servers, among them the one of this name
        # What comes before the names of tools and prompts there, and before URIs.
        self.prefix, self.scheme = (f"{one}__", f"dormouse://{one}/") if one else ("", "")
        self.cold = cold  # the server has yet to start, and need not say who it is
        self.kind = kind
        self.mode = mode
        self.modern = mode != "legacy"
        # In all that this client says, so that what belongs to another one shows.
        self.label = f"py-{SDK_VERSION} over {kind}"
        self.sdk: ClientSession | None = None
        self.caller: object = None  # who calls tools: in the modern era one that answers questions in rounds
        self.initialized: dict = {}
        self.session_id: str | None = None
        self.delete_status: int | None = None
        self.sampling_prompts: list[str] = []
        self.elicitations: list[dict] = []
        self.roots_asked = 0
        self.roots = [
            {"uri": "file:///srv/one", "name": "one"},
            {"uri": "file:///srv/zw%C3%A9i", "name": "zwéi 🌱"},
        ]
        self.logs: list[dict] = []
        self.log_arrived = anyio.Event()
        self.failure: Exception | None = None
        self._opened = anyio.Event()
        self._closing = anyio.Event()
        self._closed = anyio.Event()

    async def own(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                await self._connect(stack)
                self._opened.set()
                await self._closing.wait()
        except Exception as error:  # reported by the check that waits for it
            self.failure = error
        finally:
            self.sdk = None
            self._opened.set()
            self._closed.set()

    async def open(self) -> None:
        await self._opened.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        self._closing.set()
        await self._closed.wait()
        if self.failure is not None:
            raise self.failure

    async def _transport(self, stack: AsyncExitStack) -> object:
        """What the SDK connects through: a context manager that gives the two streams first."""
        if self.kind == "sse":
            return sse_client(self.url)
        if self.kind == "ws":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                return websocket_client(self.url)
        http = await stack.enter_async_context(
            httpx.AsyncClient(
                timeout=httpx.Timeout(30, read=300),  # the SDK's own defaults
                event_hooks={"response": [self._note_response]},
            )
        )
        return streamable_http_client(self.url, http_client=http)

    async def _connect(self, stack: AsyncExitStack) -> None:
        transport = await self._transport(stack)
        callbacks = {
            "sampling_callback": self._sample,
            "elicitation_callback": self._elicit,
            "list_roots_callback": self._list_roots,
            "logging_callback": self._log,
            "client_info": types.Implementation(name="dormouse-client-py", version="1.0.0"),
        }
        if IS_V2:
            client = Client(transport, mode=self.mode, read_timeout_seconds=CHECK_TIMEOUT, **callbacks)
            self.sdk = (await stack.enter_async_context(client)).session
            self.caller = client if self.modern else self.sdk
            if self.modern:
                self.initialized = {
                    "protocolVersion": client.protocol_version,
                    "serverInfo": client.server_info and wire(client.server_info),
                    "capabilities": wire(client.server_capabilities),
                }
            else:
                self.initialized = wire(self.sdk.initialize_result)
        else:
            read, write, *_ = await stack.enter_async_context(transport)
            session = ClientSession(read, write, read_timeout_seconds=timedelta(seconds=CHECK_TIMEOUT), **callbacks)
            session = await stack.enter_async_context(session)
            self.initialized = wire(await session.initialize())
            self.sdk = self.caller = session

    async def _note_response(self, response: httpx.Response) -> None:
        self.session_id = response.headers.get("mcp-session-id", self.session_id)
        if response.request.method == "DELETE":
            self.delete_status = response.status_code

    async def _sample(self, _context: object, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
        prompt = wire(params)["messages"][0]["content"]["text"]
        self.sampling_prompts.append(prompt)
        return types.CreateMessageResult.model_validate(
            {
                "model": "test-model",
                "role": "assistant",
                "stopReason": "endTurn",
                "content": {"type": "text", "text": f'sampled by {self.label} 🐭 "{prompt}"'},
            }
        )

    async def _elicit(self, _context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.elicitations.append(wire(params))
        return types.ElicitResult(
            action="accept", content={"name": "Ada “🐭” Løvelace", "check": True, "integer": 17}
        )

    async def _list_roots(self, _context: object) -> types.ListRootsResult:
        self.roots_asked += 1
        return types.ListRootsResult.model_validate({"roots": self.roots})

    async def _log(self, params: types.LoggingMessageNotificationParams) -> None:
        self.logs.append(wire(params))
        self.log_arrived.set()
        self.log_arrived = anyio.Event()

    async def call(self, name: str, arguments: dict | None = None, **options: object) -> str:
        result = wire(await self.caller.call_tool(self.prefix + name, arguments or {}, **options))
        must(not result.get("isError"), f"tool {name} answered an error: {str(result['content'])[:300]}")
        return "\n".join(part.get("text", "") for part in result["content"])

    async def echo(self, message: str) -> None:
        marked = message and f"{message} ({self.label})"
        must_equal(await self.call("echo", {"message": marked}), f"Echo: {marked}", "echo")


async def all_pages(fetch_page, key: str) -> list[dict]:
    """Every page of a list; a cursor seen twice or more than 100 pages is an error."""
    items: list[dict] = []
    seen: set[str] = set()
    params = None
    while True:
        page = wire(await fetch_page(params=params))
        items += page[key]
        cursor = page.get("nextCursor")
        if cursor is None:
            return items
        must(cursor not in seen and len(seen) < 100, f"{key}: paging does not end (cursor {cursor})")
        seen.add(cursor)
        params = types.PaginatedRequestParams(cursor=cursor)


def must_hold(items: list[dict], field: str, wanted: list[str], what: str, prefix: str) -> None:
    names = [item[field] for item in items]
    must(len(set(names)) == len(names), f"{what}: a name comes twice: {names}")
    for name in (prefix + name for name in wanted):
        must(name in names, f"{what}: no {name} among {names}")


async def check_initialize(s: Session) -> None:
    await s.open()
    if s.modern:
        must_equal(s.initialized["protocolVersion"], MODERN_VERSION, "negotiated version")
        must(s.session_id is None, "an answer names a session")
    if s.cold or s.mode == MODERN_VERSION:
        return  # nobody has said yet who the server is; this client takes the version for granted
    must_equal(s.initialized["serverInfo"]["name"], "dormouse" if s.one else "mcp-servers/everything", "serverInfo.name")
    must_equal(s.initialized["serverInfo"]["version"], "1" if s.one else "2.0.0", "serverInfo.version")
    if not s.modern:
        must_equal(s.initialized["protocolVersion"], HANDSHAKE_VERSION, "negotiated version")
        must(s.kind != "http" or s.session_id, "the answer to initialize names no session")
    for name in ("tools", "prompts", "resources", "logging"):
        must(name in s.initialized["capabilities"], f"capability {name} is missing")


async def check_list(s: Session) -> None:
    tools = await all_pages(s.sdk.list_tools, "tools")
    wanted = [
        "echo",
        "get-roots-list",
        "toggle-simulated-logging",
        "trigger-elicitation-request",
        "trigger-long-running-operation",
        "trigger-sampling-request",
    ]
    must_hold(tools, "name", wanted, "tools", s.prefix)
    must(all(tool["inputSchema"]["type"] == "object" for tool in tools), "a tool has no object inputSchema")
    prompts = await all_pages(s.sdk.list_prompts, "prompts")
    must_hold(prompts, "name", ["simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"], "prompts", s.prefix)
    resources = await all_pages(s.sdk.list_resources, "resources")
    must_hold(resources, "uri", ["demo://resource/static/document/architecture.md"], "resources", s.scheme)
    templates = await all_pages(s.sdk.list_resource_templates, "resourceTemplates")
    must_hold(templates, "uriTemplate", ["demo://resource/dynamic/text/{resourceId}"], "resource templates", s.scheme)


async def check_echo_unicode(s: Session) -> None:
    for sample in UNICODE_SAMPLES:
        await s.echo(sample)


async def check_echo_large(s: Session) -> None:
    size = SOCKET_ECHO_BYTES if s.kind == "ws" else ECHO_BYTES
    text = text_of_bytes(size)
    must_equal(len(text.encode()), size, "size of the argument")
    await s.echo(text)


async def check_echo_20(s: Session) -> None:
    async with anyio.create_task_group() as tg:
        for i in range(20):
            tg.start_soon(s.echo, f"call {i} 🐭")


async def check_progress(s: Session) -> None:
    steps = 5
    seen: list[str] = []

    async def on_progress(progress: float, total: float | None, _message: str | None) -> None:
        seen.append(f"{progress:g}/{total:g}")

    arguments = {"duration": 1, "steps": steps}
    answer = await s.call("trigger-long-running-operation", arguments, progress_callback=on_progress)
    seen.append("result")
    want = [f"{i + 1}/{steps}" for i in range(steps)] + ["result"]
    must_equal(" ".join(seen), " ".join(want), "progress")
    must(f"Steps: {steps}." in answer, f"unexpected result: {answer}")


async def check_sampling(s: Session) -> None:
    prompt = f'what is "U+2028"? \u2028 🐭 asks {s.label}'
    answer = await s.call("trigger-sampling-request", {"prompt": prompt, "maxTokens": 50})
    asked = f"Resource trigger-sampling-request context: {prompt}"
    must_equal("|".join(s.sampling_prompts), asked, "prompt that reached the client")
    result = json.loads(answer[answer.index("{") :])
    must_equal(result["content"]["text"], f'sampled by {s.label} 🐭 "{asked}"', "sampled text in the result")
    must_equal(result["model"], "test-model", "model in the result")


async def check_elicitation(s: Session) -> None:
    answer = await s.call("trigger-elicitation-request")
    must_equal(len(s.elicitations), 1, "questions that reached the client")
    must("name" in s.elicitations[0]["requestedSchema"]["properties"], "the question carries no schema")
    for line in ("- Name: Ada “🐭” Løvelace", "- Agreed to terms: true", "- Favorite Integer: 17"):
        must(line in answer, f"the result lacks {line}: {answer}")


async def check_roots(s: Session) -> None:
    listed = await s.call("get-roots-list")
    must(s.roots_asked > 0, "the server never asked for the roots")
    for root in s.roots:
        must(f"{root['name']}\n   URI: {root['uri']}" in listed, f"{root['uri']} is not in: {listed}")
    if s.modern:
        return  # nothing tells a server that they have changed
    s.roots = [*s.roots, {"uri": "file:///srv/three", "name": "three"}]
    await s.sdk.send_roots_list_changed()
    # The server asks again on its own time; nothing else tells when it has the new list.
    deadline = time.monotonic() + CHECK_TIMEOUT / 2
    while "file:///srv/three" not in listed:
        must(time.monotonic() < deadline, f"the server did not learn the new roots: {listed}")
        await anyio.sleep(0.05)
        listed = await s.call("get-roots-list")


async def check_logging(s: Session) -> None:
    await s.sdk.set_logging_level("debug")
    s.logs.clear()
    if (await s.call("toggle-simulated-logging")).startswith("Stopped"):
        await s.call("toggle-simulated-logging")
    try:
        found: list[dict] = []
        with anyio.move_on_after(CHECK_TIMEOUT / 2):
            while not (found := [log for log in s.logs if is_simulated(log)]):
                await s.log_arrived.wait()
        must(found, "no log message arrived")
        must(found[0]["level"], "a log message has no level")
    finally:
        await s.call("toggle-simulated-logging")


def is_simulated(log: dict) -> bool:
    return re.search(r"level[ -]message", str(log["data"]), re.IGNORECASE) is not None


async def check_cancel(s: Session) -> None:
    scope = anyio.CancelScope()
    cancelled_at: list[float] = []
    # mcp 1.x has no way to cancel a call: one sends the notification oneself, and the id of the
    # request about to be sent is known to the session only.
    request_id = None if IS_V2 else s.sdk._request_id

    async def on_progress(*_progress: object) -> None:
        if not cancelled_at:
            cancelled_at.append(time.monotonic())
            scope.cancel()

    with scope:
        arguments = {"duration": 10, "steps": 20}
        await s.call("trigger-long-running-operation", arguments, progress_callback=on_progress)
    must(cancelled_at and scope.cancelled_caught, "a cancelled call ended in a result")
    if request_id is not None:
        await s.sdk.send_notification(
            types.ClientNotification(
                types.CancelledNotification(
                    params=types.CancelledNotificationParams(requestId=request_id, reason="check cancel")
                )
            )
        )
    took = time.monotonic() - cancelled_at[0]
    must(took < CANCEL_PROMPT, f"the cancelled call ended only after {took * 1000:.0f} ms")
    await s.echo("after cancel")


async def check_ping(s: Session) -> None:
    await s.sdk.send_ping()


async def check_close(s: Session) -> None:
    await s.close()
    must(s.kind != "http" or s.modern or s.delete_status in range(200, 300), f"DELETE answered {s.delete_status}")


CHECKS = [
    ("initialize", check_initialize),
    ("list", check_list),
    ("echo-unicode", check_echo_unicode),
    ("echo-large", check_echo_large),
    ("echo-20", check_echo_20),
    ("progress", check_progress),
    ("sampling", check_sampling),
    ("elicitation", check_elicitation),
    ("roots", check_roots),
    ("logging", check_logging),
    ("cancel", check_cancel),
    ("ping", check_ping),
    ("close", check_close),
]

# Without sessions there is no log level of one, and no ping.
LEGACY_ONLY = ("logging", "ping")


def error_text(error: BaseException) -> str:
    """The text of an error, and for the groups that anyio raises that of every member."""
    if isinstance(members := getattr(error, "exceptions", None), tuple):
        return "; ".join(error_text(member) for member in members)
    return str(error) or type(error).__name__


async def run_check(session: Session, name: str, check) -> bool:
    begin = time.monotonic()
    line = {"client": f"py-{SDK_VERSION}", "check": name, "ok": True, "ms": 0}
    try:
        if session.sdk is None and name != "initialize":
            why = f" ({error_text(session.failure)})" if session.failure else ""
            raise CheckError(f"not run: there is no session{why}")
        with anyio.fail_after(CHECK_TIMEOUT):
            await check(session)
    except TimeoutError:
        line |= {"ok": False, "error": f"{name}: not done within {CHECK_TIMEOUT:g} s"}
    except Exception as error:
        line |= {"ok": False, "error": error_text(error)}
    line["ms"] = round((time.monotonic() - begin) * 1000)
    print(json.dumps(line), flush=True)
    return line["ok"]


async def run(url: str, kind: str, mode: str, cold: bool, one: str) -> int:
    session = Session(url, kind, mode, cold, one)
    async with anyio.create_task_group() as tg:
        tg.start_soon(session.own)
        checks = [(name, check) for name, check in CHECKS if not (session.modern and name in LEGACY_ONLY)]
        outcomes = [await run_check(session, name, check) for name, check in checks]
        tg.cancel_scope.cancel()
    return 0 if all(outcomes) else 1


def main() -> int:
    parser = argparse.ArgumentParser(description="Check one MCP endpoint with the Python SDK.")
    parser.add_argument("--url", required=True)
    parser.add_argument("--transport", choices=["http", "sse"] + ["ws"] * (not IS_V2), default="http")
    parser.add_argument("--mode", choices=["legacy"] + ["auto", MODERN_VERSION] * IS_V2, default="legacy")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--one", default="")
    args = parser.parse_args()
    return anyio.run(run, args.url, args.transport, args.mode, args.cold, args.one)


if __name__ == "__main__":
    sys.exit(main())
