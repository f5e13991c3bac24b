"""API Gateway and Lambda in front of run-mcp-servers-with-aws-lambda, on loopback.

A thread for each request stands for an environment of its own. usage: gateway.py PORT COMMAND [ARG...]
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

from mcp.client.stdio import StdioServerParameters
from mcp_lambda import APIGatewayProxyEventV2Handler, StdioServerAdapterRequestHandler

port, command, *args = sys.argv[1:]
handler = APIGatewayProxyEventV2Handler(
    StdioServerAdapterRequestHandler(StdioServerParameters(command=command, args=args))
)
context = SimpleNamespace(
    function_name="bench", aws_request_id="bench", get_remaining_time_in_millis=lambda: 29_000
)


class Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        result = handler.handle(
            {
                "version": "2.0",
                "headers": {name.lower(): value for name, value in self.headers.items()},
                "requestContext": {"http": {"method": self.command, "path": self.path}},
                "body": body,
            },
            context,
        )
        said = (result.get("body") or "").encode()
        self.send_response(result["statusCode"])
        for name, value in result["headers"].items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    do_POST = do_GET = do_DELETE = answer

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server(("127.0.0.1", int(port)), Gateway).serve_forever()
