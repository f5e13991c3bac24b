// The official TypeScript SDK, of any release of both generations, as a program that takes steps;
// ../../doc.go has them.
//
//   node client.mjs --url http://127.0.0.1:8080/echo/mcp --transport http
//   node client.mjs --url http://127.0.0.1:8080/echo/sse --transport sse

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";

const LIMIT_MS = 20_000;
const FIRST = "@modelcontextprotocol/sdk";
const SECOND = "@modelcontextprotocol/client";
const { dependencies } = JSON.parse(readFileSync(new URL("package.json", import.meta.url)));
const first = FIRST in dependencies;

/** What the program needs of the SDK, whose generations have it in different places. */
async function load() {
  if (!first) return import(SECOND);
  const parts = ["client/index.js", "client/streamableHttp.js", "client/sse.js", "types.js"];
  return Object.assign({}, ...(await Promise.all(parts.map((part) => import(`${FIRST}/${part}`)))));
}

/** The version of the SDK that is really loaded. */
function version() {
  const manifest = `node_modules/${first ? FIRST : SECOND}/package.json`;
  return JSON.parse(readFileSync(new URL(manifest, import.meta.url))).version;
}

function must(holds, text) {
  if (!holds) throw new Error(text);
}

const { values: flags } = parseArgs({ options: { url: { type: "string" }, transport: { type: "string" } } });
const sdk = await load();
const warnings = [];
const warn = (...words) => warnings.push(words.map((word) => String(word?.stack ?? word)).join(" "));
console.warn = console.error = warn;
process.on("warning", warn);

const client = new sdk.Client({ name: "dormouse-client-ts", version: "1.0.0" }, { capabilities: {} });
client.onerror = warn;
let pushed = 0;
let whenPushed = () => {};
const changed = first ? sdk.ToolListChangedNotificationSchema : "notifications/tools/list_changed";
client.setNotificationHandler(changed, () => {
  pushed += 1;
  whenPushed();
});

async function call(name, args) {
  const result = await client.callTool({ name, arguments: args });
  must(!result.isError, `the tool answered an error: ${JSON.stringify(result.content)}`);
  return result.content[0].text;
}

const STEPS = {
  async connect() {
    const Transport = flags.transport === "sse" ? sdk.SSEClientTransport : sdk.StreamableHTTPClientTransport;
    await client.connect(new Transport(new URL(flags.url)));
  },
  async list() {
    const { tools } = await client.listTools();
    must(tools.some(({ name }) => name === "echo"), "no tool echo");
  },
  async call() {
    must((await call("echo", { message: "🐭" })) === "Echo: 🐭", "another answer than the call's");
  },
  async slow() {
    const answer = await call("trigger-long-running-operation", { duration: 3, steps: 1 });
    must(answer.includes("completed"), "no answer of the slow call");
  },
  async push() {
    const before = pushed;
    await call("push", {});
    while (pushed === before) await new Promise((resolve) => (whenPushed = resolve));
  },
  async close() {
    await client.close();
  },
};

function within(promise) {
  let timer;
  const expiry = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing within ${LIMIT_MS} ms`)), LIMIT_MS);
  });
  return Promise.race([promise, expiry]).finally(() => clearTimeout(timer));
}

for await (const step of createInterface({ input: process.stdin })) {
  const begin = performance.now();
  const line = { client: `ts-${version()}`, check: step, ok: true, ms: 0 };
  try {
    await within(STEPS[step]());
    must(warnings.length === 0, "");
  } catch (error) {
    line.ok = false;
    line.error = [error.message, ...warnings.map((text) => `the SDK said: ${text}`)].filter(Boolean).join("; ");
  }
  warnings.length = 0;
  line.ms = Math.round(performance.now() - begin);
  process.stdout.write(`${JSON.stringify(line)}\n`);
}
process.exit(0);
