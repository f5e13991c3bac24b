"""The official Python SDK signs in by itself at an endpoint with --access oauth, for mcp 1.x and 2.x.

    python signin.py --url http://127.0.0.1:8080/counter/mcp --visit PROGRAM [--mode auto] [--document URL] [--revoke] [--step-up]

PROGRAM goes through the pages (../visit). This one lists the tools, calls the first one, then loses its
access token and calls again, for which it has to refresh. The client registers itself, or with --document
it is the client of that client ID metadata document. With --revoke it revokes its grant, sees that its
token is refused, and signs in once more. With --step-up it only calls the tool, which needs a scope that
its token has not. It prints one JSON object: the protocol version, the number of tools, of sign-ins, of
answers of the token endpoint and of failed calls, the status that the revoked token got, and what the tool
has said. --mode is for mcp 2.x.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
from contextlib import asynccontextmanager
from urllib.parse import parse_qs, urljoin, urlsplit

import anyio
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

IS_V2 = importlib.metadata.version("mcp").startswith("2.")
if IS_V2:
    import httpx2 as httpx
    from mcp import Client
    from mcp.shared.auth import AuthorizationCodeResult
else:
    import httpx

REDIRECT = "http://127.0.0.1:5000/done"


class Storage:
    def __init__(self):
        self.tokens, self.client, self.answers = None, None, 0

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens, self.answers = tokens, self.answers + 1

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client


@asynccontextmanager
async def connected(url, web, mode):
    """A client that calls tools, and its protocol version."""
    transport = streamable_http_client(url, http_client=web)
    if IS_V2:
        async with Client(transport, mode=mode) as client:
            yield client, client.protocol_version
        return
    async with transport as streams, ClientSession(streams[0], streams[1]) as session:
        yield session, (await session.initialize()).protocolVersion


async def refused(url, token):
    """Sends a request of its own with a token until it is refused, and returns the status."""
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    async with httpx.AsyncClient(headers=headers) as web:
        for _ in range(120):
            status = (await web.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})).status_code
            if status == 401:
                break
            await anyio.sleep(0.5)
    return status


async def main(url, visit, mode, document, revoke, step_up):
    storage, called, logins = Storage(), {}, 0

    async def redirect(target):
        nonlocal called, logins
        back = subprocess.check_output([visit, target, REDIRECT], text=True)
        called, logins = parse_qs(urlsplit(back.strip()).query), logins + 1

    async def callback():
        code, state = called["code"][0], called["state"][0]
        return AuthorizationCodeResult(code=code, state=state, iss=called["iss"][0]) if IS_V2 else (code, state)

    metadata = OAuthClientMetadata(client_name="python", redirect_uris=[REDIRECT], token_endpoint_auth_method="none")
    auth = OAuthClientProvider(url, metadata, storage, redirect, callback, client_metadata_url=document)
    result = {}
    async with httpx.AsyncClient(auth=auth, timeout=30) as web, connected(url, web, mode) as (client, version):
        tools = (await client.list_tools()).tools
        answers = [await client.call_tool(tools[0].name, {})]
        result["text"] = answers[0].content[0].text
        if not step_up:
            auth.context.token_expiry_time = 1  # the client believes that its token has expired
            answers.append(await client.call_tool(tools[0].name, {}))
        if revoke:
            form = {"token": storage.tokens.refresh_token, "client_id": storage.client.client_id}
            async with httpx.AsyncClient() as plain:
                await plain.post(urljoin(url, "/revoke"), data=form)
            result["revoked"] = await refused(url, storage.tokens.access_token)
            answers.append(await client.call_tool(tools[0].name, {}))
        failed = [r for r in answers if getattr(r, "isError", None) or getattr(r, "is_error", None)]
    result |= {"version": version, "tools": len(tools), "logins": logins, "tokens": storage.answers}
    print(json.dumps(result | {"failed": len(failed), "scope": storage.tokens.scope}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--visit", required=True)
    parser.add_argument("--mode", default="legacy")
    parser.add_argument("--document")
    parser.add_argument("--revoke", action="store_true")
    parser.add_argument("--step-up", action="store_true")
    args = parser.parse_args()
    anyio.run(main, args.url, args.visit, args.mode, args.document, args.revoke, args.step_up)
