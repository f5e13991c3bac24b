// What ../ts/polls.mjs needs of @modelcontextprotocol/client, in its default mode, which is legacy.

import { Client } from "@modelcontextprotocol/client";

export { StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

export const PACKAGE = "@modelcontextprotocol/client";
export const ENTRY = "@modelcontextprotocol/client";

export const newClient = (info) => new Client(info, { capabilities: {} });
export const onLog = (client, take) => client.setNotificationHandler("notifications/message", take);
export const callTool = (client, params, options) => client.callTool(params, options);
