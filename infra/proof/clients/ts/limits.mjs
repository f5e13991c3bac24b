// The official TypeScript SDK goes on after a call that a limit refuses, in both generations.
//
//   node limits.mjs --url http://127.0.0.1:8080/counter/mcp
//
// It calls the first tool until a limit refuses it, waits as long as the answer says, and calls again. It
// prints one JSON object: the calls that were done before, the text of the refusal, and whether the tool
// could be called afterwards.

import { StreamableHTTPClientTransport, callTool, newClient } from "./sdk.mjs";

const mcp = newClient({ name: "limits", version: "1" });
await mcp.connect(new StreamableHTTPClientTransport(new URL(process.argv[process.argv.indexOf("--url") + 1])));
const { tools } = await mcp.listTools();
const call = () => callTool(mcp, { name: tools[0].name, arguments: {} });
let done = 0;
let answer;
while (!(answer = await call()).isError && done < 1000) done++;
await new Promise((later) => setTimeout(later, 1000 * (answer._meta?.["dormouse/limit"]?.retryAfterSeconds ?? 0)));
const again = await call();
await mcp.close();
console.log(JSON.stringify({ done, text: answer.content[0].text, again: !again.isError }));
process.exit(0);
