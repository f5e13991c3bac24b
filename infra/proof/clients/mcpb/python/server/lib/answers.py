"""A bundled dependency."""

import json
import os
import sys


def answer(method):
    return {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "snake", "version": "0.1.0"}},
        "tools/list": {"tools": [{"name": "given", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": json.dumps([os.environ["TOKEN"], *sys.argv[1:]])}]},
    }.get(method)
