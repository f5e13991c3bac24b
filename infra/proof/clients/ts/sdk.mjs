// What client.mjs needs of @modelcontextprotocol/sdk, under names that ../ts2/sdk.mjs has too.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { SSEClientTransport } from "@modelcontextprotocol/sdk/client/sse.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import {
  CreateMessageRequestSchema,
  ElicitRequestSchema,
  ListRootsRequestSchema,
  LoggingMessageNotificationSchema,
} from "@modelcontextprotocol/sdk/types.js";

export { StreamableHTTPClientTransport };

export const PACKAGE = "@modelcontextprotocol/sdk";
export const ENTRY = "@modelcontextprotocol/sdk/client/index.js";

/** How the client may choose its protocol version. */
export const MODES = { legacy: {} };
export const TRANSPORTS = { sse: SSEClientTransport, ws: WebSocketClientTransport };

const REQUESTS = {
  "sampling/createMessage": CreateMessageRequestSchema,
  "elicitation/create": ElicitRequestSchema,
  "roots/list": ListRootsRequestSchema,
};

export const newClient = (info, options = { capabilities: {} }) => new Client(info, options);
export const onRequest = (client, method, answer) => client.setRequestHandler(REQUESTS[method], answer);
export const onLog = (client, take) => client.setNotificationHandler(LoggingMessageNotificationSchema, take);
export const callTool = (client, params, options) => client.callTool(params, undefined, options);
