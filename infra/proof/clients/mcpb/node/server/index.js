// The least server: one tool, which says what the process was given.
const lines = require("node:readline").createInterface({ input: process.stdin });
const results = {
  initialize: () => ({ protocolVersion: "2025-11-25", capabilities: { tools: {} }, serverInfo: { name: "noted", version: "1.2.0" } }),
  "tools/list": () => ({ tools: [{ name: "given", inputSchema: { type: "object" } }] }),
  "tools/call": () => ({ content: [{ type: "text", text: JSON.stringify([process.env.API_KEY, ...process.argv.slice(2)]) }] }),
};
lines.on("line", (line) => {
  const { id, method } = JSON.parse(line);
  if (results[method]) console.log(JSON.stringify({ jsonrpc: "2.0", id, result: results[method]() }));
});
