// The official TypeScript SDKs as clients that poll: calls the tools of a plan one after the other
// and prints one JSON line for each, with all that came: the text of the result, the progress, the
// log messages since the last line, and what the SDK complained of.
//
//   node polls.mjs --url URL --plan '[{"check":"one","tool":"poll","arguments":{"n":1}}]'
//
// A step with "until" ends when a log message with that text has come. Exit code: 0 every call
// ended in a result, 1 some did not, 2 wrong usage. ../py/polls.py and ../gosdk take the same plan.
// It is run beside the sdk.mjs of the SDK to use.

import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { parseArgs } from "node:util";

import { ENTRY, PACKAGE, StreamableHTTPClientTransport, callTool, newClient, onLog } from "./sdk.mjs";

const CALL_TIMEOUT_MS = 300_000;

/** The version of the SDK that is really loaded, not the one the lock file asks for. */
function sdkVersion() {
  const require = createRequire(import.meta.url);
  for (let dir = dirname(require.resolve(ENTRY)); ; dir = dirname(dir)) {
    try {
      const { name, version } = require(join(dir, "package.json"));
      if (name === PACKAGE && version) return version;
    } catch (error) {
      if (error.code !== "MODULE_NOT_FOUND") throw error;
    }
    if (dirname(dir) === dir) throw new Error("the SDK has no package.json");
  }
}

class Poller {
  logs = [];
  odd = [];
  #heard = new Map();

  async connect(url) {
    this.client = newClient({ name: "dormouse-polls-ts", version: "1.0.0" });
    this.client.onerror = (error) => this.odd.push(String(error?.message ?? error));
    onLog(this.client, ({ params }) => {
      this.logs.push(String(params.data));
      this.#heard.get(String(params.data))?.();
    });
    this.transport = new StreamableHTTPClientTransport(new URL(url));
    await this.client.connect(this.transport);
  }

  async run({ tool, arguments: args = {}, until }) {
    const heard = until && new Promise((resolve) => this.#heard.set(until, resolve));
    const progress = [];
    const result = await callTool(this.client, { name: tool, arguments: args }, {
      timeout: CALL_TIMEOUT_MS,
      onprogress: (p) => progress.push(p.progress),
    });
    await heard;
    return { text: result.content.map((part) => part.text ?? "").join("\n"), progress };
  }

  /** What has come since the last time. */
  take() {
    const { logs, odd } = this;
    this.logs = [];
    this.odd = [];
    return { logs, odd };
  }

  async close() {
    await this.transport.terminateSession();
    await this.client.close();
  }
}

async function main() {
  const { values } = parseArgs({ options: { url: { type: "string" }, plan: { type: "string" } } });
  if (!values.url || !values.plan) {
    process.stderr.write("usage: node polls.mjs --url URL --plan JSON\n");
    return 2;
  }
  const poller = new Poller();
  const client = `ts-${sdkVersion()}`;
  let code = 0;
  await poller.connect(values.url);
  for (const step of JSON.parse(values.plan)) {
    let outcome;
    try {
      outcome = await poller.run(step);
    } catch (error) {
      code = 1;
      outcome = { error: String(error?.message ?? error) };
    }
    process.stdout.write(`${JSON.stringify({ client, check: step.check, ...outcome, ...poller.take() })}\n`);
  }
  await poller.close();
  return code;
}

process.exitCode = await main();
