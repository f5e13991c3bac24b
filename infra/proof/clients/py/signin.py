"""The official Python SDK signs in by itself at an endpoint with --access oauth, for mcp 1.x and 2.x.

    python signin.py --url http://127.0.0.1:8080/counter/mcp --visit PROGRAM

PROGRAM goes through the pages (../visit). This one lists the tools, calls the first one, then loses its
access token and calls again, for which it has to refresh. It prints one JSON object: the number of
tools, of sign-ins, and of answers of the token endpoint.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import subprocess
from urllib.parse import parse_qs, urlsplit

import anyio
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientMetadata

IS_V2 = importlib.metadata.version("mcp").startswith("2.")
if IS_V2:
    import httpx2 as httpx
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


async def main(url, visit):
    storage, called, logins = Storage(), {}, 0

    async def redirect(target):
        nonlocal called, logins
        back = subprocess.check_output([visit, target, REDIRECT], text=True)
        called, logins = parse_qs(urlsplit(back.strip()).query), logins + 1

    async def callback():
        code, state = called["code"][0], called["state"][0]
        return AuthorizationCodeResult(code=code, state=state, iss=called["iss"][0]) if IS_V2 else (code, state)

    metadata = OAuthClientMetadata(client_name="python", redirect_uris=[REDIRECT], token_endpoint_auth_method="none")
    auth = OAuthClientProvider(url, metadata, storage, redirect, callback)
    async with httpx.AsyncClient(auth=auth, timeout=30) as web:
        async with streamable_http_client(url, http_client=web) as streams, ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            tools = (await session.list_tools()).tools
            first = await session.call_tool(tools[0].name, {})
            auth.context.token_expiry_time = 1  # the client believes that its token has expired
            second = await session.call_tool(tools[0].name, {})
            failed = [r for r in (first, second) if getattr(r, "isError", None) or getattr(r, "is_error", None)]
    print(json.dumps({"tools": len(tools), "logins": logins, "tokens": storage.answers, "failed": len(failed), "scope": storage.tokens.scope}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--visit", required=True)
    args = parser.parse_args()
    anyio.run(main, args.url, args.visit)
