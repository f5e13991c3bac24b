// What ../ts/client.mjs needs of @modelcontextprotocol/client. Its default mode is legacy.

import { Client, SSEClientTransport, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

export { StreamableHTTPClientTransport };

export const PACKAGE = "@modelcontextprotocol/client";
export const ENTRY = "@modelcontextprotocol/client";

/** How the client may choose its protocol version. */
export const MODES = {
  legacy: {},
  auto: { versionNegotiation: { mode: "auto" } },
  pin: { versionNegotiation: { mode: { pin: "2026-07-28" } } },
};
export const TRANSPORTS = { sse: SSEClientTransport };

export const newClient = (info, options = { capabilities: {} }) => new Client(info, options);
export const onRequest = (client, method, answer) => client.setRequestHandler(method, answer);
export const onLog = (client, take) => client.setNotificationHandler("notifications/message", take);
export const callTool = (client, params, options) => client.callTool(params, options);
