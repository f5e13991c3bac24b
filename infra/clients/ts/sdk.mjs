// What polls.mjs needs of @modelcontextprotocol/sdk, under names that ../ts2/sdk.mjs has too.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { LoggingMessageNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

export { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

export const PACKAGE = "@modelcontextprotocol/sdk";
export const ENTRY = "@modelcontextprotocol/sdk/client/index.js";

export const newClient = (info) => new Client(info, { capabilities: {} });
export const onLog = (client, take) => client.setNotificationHandler(LoggingMessageNotificationSchema, take);
export const callTool = (client, params, options) => client.callTool(params, undefined, options);
