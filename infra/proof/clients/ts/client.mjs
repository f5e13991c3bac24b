// The official TypeScript SDK as a test client, of both generations (see sdk.mjs): runs a fixed list of checks against one MCP
// endpoint that hosts server-everything, and prints one JSON line for each.
//
//   node client.mjs --url http://127.0.0.1:8080/mcp --transport http
//   node client.mjs --url http://127.0.0.1:8080/sse --transport sse
//   node client.mjs --url ws://127.0.0.1:8081/local?server=everything --transport ws
//
// The last needs Node 22, or node --experimental-websocket. With --mode auto or pin, which the second
// generation has, it must speak the era without sessions, and what that era has not got is left out.
// Exit code: 0 all checks passed, 1 some failed, 2 wrong usage. The same checks, under the same
// names, are in ../py/client.py and ../gosdk/main.go.

import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { parseArgs } from "node:util";

import {
  callTool,
  ENTRY,
  MODES,
  newClient,
  onLog,
  onRequest,
  PACKAGE,
  StreamableHTTPClientTransport,
  TRANSPORTS,
} from "./sdk.mjs";

const HANDSHAKE_VERSION = "2025-11-25";
const MODERN_VERSION = "2026-07-28";
const CHECK_TIMEOUT_MS = 60_000;
const CANCEL_PROMPT_MS = 3_000;

// API Gateway takes frames of up to 32 KiB from WebSocket clients, and the clients send each
// message in one frame; in JSON this text grows to up to 2.4 times its size.
const ECHO_BYTES = 256 * 1024;
const SOCKET_ECHO_BYTES = 12 * 1024;

const UNICODE_SAMPLES = [
  "plain ascii",
  "",
  "emoji 🐭💤 family 👨‍👩‍👧‍👦 flag 🇨🇭 skin 👍🏽",
  "right to left: שלום עולם, مرحبا بالعالم \u202Eoverride\u202C",
  "four bytes: 𝄞 𠜎 𐍈; three: 漢字 ‱; two: éß",
  "combining: e\u0301 vs \u00E9, Z\u0351\u036B",
  "quotes \" ' ` and backslashes \\ \\\\ \\\" \\u0041 \\n",
  "json in json: {\"a\":[1,\"\\\"\"]}",
  "line ends: \n \r \r\n U+0085 \u0085 U+2028 \u2028 U+2029 \u2029 end",
  "sse in data: \ndata: x\n\nevent: message\nid: 7\n\n:",
  "controls: \u0000 \u0001 \u001F \u007F \uFEFF \uFFFD \uFFFE",
  "markup </script><!-- & &amp; %20 +",
];

/** Remembers what arrived and lets a check wait for the first item that fits. */
class Arrivals {
  #items = [];
  #waiters = new Set();

  push(item) {
    this.#items.push(item);
    for (const look of this.#waiters) look(item);
  }

  /** Resolves with the first item, old or new, for which fits is true. */
  async wait(fits, ms, what) {
    const known = this.#items.find(fits);
    if (known !== undefined) return known;
    let look;
    try {
      return await within(ms, what, new Promise((resolve) => {
        look = (item) => fits(item) && resolve(item);
        this.#waiters.add(look);
      }));
    } finally {
      this.#waiters.delete(look);
    }
  }

  clear() {
    this.#items = [];
  }
}

function within(ms, what, promise) {
  let timer;
  const expiry = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing within ${ms} ms`)), ms);
  });
  return Promise.race([promise, expiry]).finally(() => clearTimeout(timer));
}

function must(condition, text) {
  if (!condition) throw new Error(text);
}

function mustEqual(got, want, what) {
  if (got === want) return;
  let at = 0;
  while (at < got?.length && got[at] === want[at]) at += 1;
  const cut = (s) => JSON.stringify(typeof s === "string" ? s.slice(at, at + 40) : s);
  throw new Error(`${what}: got ${cut(got)}, want ${cut(want)} (at ${at}; lengths ${got?.length}, ${want?.length})`);
}

/** Exactly `bytes` bytes of UTF-8, with characters of every width so that a cut in one shows. */
function textOfBytes(bytes) {
  const unit = 'aé漢🐭"\\\n\u2028';
  const width = Buffer.byteLength(unit);
  return unit.repeat(Math.floor(bytes / width)) + "x".repeat(bytes % width);
}

/** The SDK client and all that the server asked it or told it. */
class Session {
  logs = new Arrivals();
  samplingPrompts = [];
  elicitations = [];
  rootsAsked = 0;
  deleteStatus = undefined;
  arrived = [];
  roots = [
    { uri: "file:///srv/one", name: "one" },
    { uri: "file:///srv/zw%C3%A9i", name: "zwéi 🌱" },
  ];

  /** label is in all that this client says, so that what belongs to another one shows. */
  constructor(url, kind, mode, label) {
    this.kind = kind;
    this.modern = mode !== "legacy";
    this.label = label;
    this.transport = this.#newTransport(new URL(url));
    const told = this.transport.setProtocolVersion?.bind(this.transport);
    this.transport.setProtocolVersion = (version) => {
      this.version = version;
      told?.(version);
    };
    this.client = newClient(
      { name: "dormouse-client-ts", version: "1.0.0" },
      { capabilities: { sampling: {}, elicitation: { form: {} }, roots: { listChanged: true } }, ...MODES[mode] },
    );
    this.#answerServer();
  }

  #newTransport(url) {
    if (this.kind !== "http") return new TRANSPORTS[this.kind](url);
    return new StreamableHTTPClientTransport(url, {
      fetch: async (target, init) => {
        const response = await fetch(target, init);
        if (init?.method === "DELETE") this.deleteStatus = response.status;
        return response;
      },
    });
  }

  #answerServer() {
    onRequest(this.client, "sampling/createMessage", async ({ params }) => {
      const prompt = params.messages[0].content.text;
      this.samplingPrompts.push(prompt);
      return {
        model: "test-model",
        role: "assistant",
        stopReason: "endTurn",
        content: { type: "text", text: `sampled by ${this.label} 🐭 "${prompt}"` },
      };
    });
    onRequest(this.client, "elicitation/create", async ({ params }) => {
      this.elicitations.push(params);
      return { action: "accept", content: { name: "Ada “🐭” Løvelace", check: true, integer: 17 } };
    });
    onRequest(this.client, "roots/list", async () => {
      this.rootsAsked += 1;
      return { roots: this.roots };
    });
    onLog(this.client, ({ params }) => this.logs.push(params));
  }

  /** What comes before the names of tools and prompts, and before URIs, at the address of all servers. */
  get prefix() {
    return this.one ? `${this.one}__` : "";
  }

  get scheme() {
    return this.one ? `dormouse://${this.one}/` : "";
  }

  /** Notes what comes in from here on, before the SDK has it. */
  tap() {
    const take = this.transport.onmessage;
    this.transport.onmessage = (message, ...rest) => {
      this.arrived.push(message);
      take(message, ...rest);
    };
  }

  async call(name, args = {}, options = {}) {
    const result = await callTool(this.client, { name: this.prefix + name, arguments: args }, {
      timeout: CHECK_TIMEOUT_MS,
      ...options,
    });
    must(!result.isError, `tool ${name} answered an error: ${JSON.stringify(result.content).slice(0, 300)}`);
    return result.content.map((part) => part.text ?? "").join("\n");
  }

  async echo(message) {
    const marked = message && `${message} (${this.label})`;
    mustEqual(await this.call("echo", { message: marked }), `Echo: ${marked}`, "echo");
  }
}

/** Every page of a list; a cursor seen twice or more than 100 pages is an error. */
async function allPages(fetchPage, key) {
  const items = [];
  const seen = new Set();
  for (let cursor; ; ) {
    const page = await fetchPage(cursor === undefined ? undefined : { cursor });
    items.push(...page[key]);
    cursor = page.nextCursor;
    if (cursor === undefined) return items;
    must(!seen.has(cursor) && seen.size < 100, `${key}: paging does not end (cursor ${cursor})`);
    seen.add(cursor);
  }
}

function mustHold(items, field, wanted, what, prefix) {
  wanted = wanted.map((name) => prefix + name);
  const names = items.map((item) => item[field]);
  must(new Set(names).size === names.length, `${what}: a name comes twice: ${names}`);
  for (const name of wanted) must(names.includes(name), `${what}: no ${name} among ${names}`);
}

async function checkInitialize(s) {
  await s.client.connect(s.transport, { timeout: CHECK_TIMEOUT_MS });
  s.connected = true;
  s.tap();
  if (!s.cold) {
    mustEqual(s.client.getServerVersion()?.name, s.one ? "dormouse" : "mcp-servers/everything", "serverInfo.name");
    mustEqual(s.client.getServerVersion()?.version, s.one ? "1" : "2.0.0", "serverInfo.version");
  }
  const version = s.client.getNegotiatedProtocolVersion?.() ?? s.version;
  mustEqual(version, s.modern ? MODERN_VERSION : HANDSHAKE_VERSION, "negotiated version");
  must(s.kind !== "http" || s.modern === !s.transport.sessionId, `session id ${s.transport.sessionId} does not fit version ${version}`);
  const capabilities = s.client.getServerCapabilities() ?? {};
  for (const name of ["tools", "prompts", "resources", "logging"]) {
    must(capabilities[name], `capability ${name} is missing`);
  }
}

async function checkList(s) {
  const { client } = s;
  const tools = await allPages((page) => client.listTools(page), "tools");
  mustHold(tools, "name", [
    "echo",
    "get-roots-list",
    "toggle-simulated-logging",
    "trigger-elicitation-request",
    "trigger-long-running-operation",
    "trigger-sampling-request",
  ], "tools", s.prefix);
  must(tools.every((tool) => tool.inputSchema.type === "object"), "a tool has no object inputSchema");
  const prompts = await allPages((page) => client.listPrompts(page), "prompts");
  mustHold(prompts, "name", ["simple-prompt", "args-prompt", "completable-prompt", "resource-prompt"], "prompts", s.prefix);
  const resources = await allPages((page) => client.listResources(page), "resources");
  mustHold(resources, "uri", ["demo://resource/static/document/architecture.md"], "resources", s.scheme);
  const templates = await allPages((page) => client.listResourceTemplates(page), "resourceTemplates");
  mustHold(templates, "uriTemplate", ["demo://resource/dynamic/text/{resourceId}"], "resource templates", s.scheme);
}

async function checkEchoUnicode(s) {
  for (const sample of UNICODE_SAMPLES) await s.echo(sample);
}

async function checkEchoLarge(s) {
  const size = s.kind === "ws" ? SOCKET_ECHO_BYTES : ECHO_BYTES;
  const text = textOfBytes(size);
  mustEqual(Buffer.byteLength(text), size, "size of the argument");
  await s.echo(text);
}

async function checkEcho20(s) {
  await Promise.all(Array.from({ length: 20 }, (_, i) => s.echo(`call ${i} 🐭`)));
}

/**
 * Over HTTP+SSE and WebSocket this SDK drops progress that comes in together with the result: it
 * forgets who waits for progress before it hands it on. Whether all has come is seen before that.
 */
async function checkProgress(s) {
  const steps = 5;
  const seen = [];
  s.arrived = [];
  const answer = await s.call("trigger-long-running-operation", { duration: 1, steps }, {
    // The SDK of the modern era also tells of the rounds of a call here, without a total: the
    // server asks for the roots a moment after its start, in whatever call is under way then.
    onprogress: ({ progress, total }) => total === undefined || seen.push(`${progress}/${total}`),
  });
  seen.push("result");
  const want = [...Array.from({ length: steps }, (_, i) => `${i + 1}/${steps}`), "result"].join(" ");
  const came = s.arrived.flatMap(({ method, params, result }) => {
    if (method === "notifications/progress") return [`${params.progress}/${params.total}`];
    return result && result.resultType !== "input_required" ? ["result"] : [];
  });
  mustEqual(came.join(" "), want, "progress that came in");
  if (s.kind === "http") mustEqual(seen.join(" "), want, "progress");
  must(answer.includes(`Steps: ${steps}.`), `unexpected result: ${answer}`);
}

async function checkSampling(s) {
  const prompt = `what is "U+2028"? \u2028 🐭 asks ${s.label}`;
  const answer = await s.call("trigger-sampling-request", { prompt, maxTokens: 50 });
  const asked = `Resource trigger-sampling-request context: ${prompt}`;
  mustEqual(s.samplingPrompts.join("|"), asked, "prompt that reached the client");
  const result = JSON.parse(answer.slice(answer.indexOf("{")));
  mustEqual(result.content.text, `sampled by ${s.label} 🐭 "${asked}"`, "sampled text in the result");
  mustEqual(result.model, "test-model", "model in the result");
}

async function checkElicitation(s) {
  const answer = await s.call("trigger-elicitation-request");
  mustEqual(s.elicitations.length, 1, "questions that reached the client");
  must(s.elicitations[0].requestedSchema.properties.name, "the question carries no schema");
  for (const line of ["- Name: Ada “🐭” Løvelace", "- Agreed to terms: true", "- Favorite Integer: 17"]) {
    must(answer.includes(line), `the result lacks ${line}: ${answer}`);
  }
}

async function checkRoots(s) {
  const listed = await s.call("get-roots-list");
  must(s.rootsAsked > 0, "the server never asked for the roots");
  for (const { name, uri } of s.roots) {
    must(listed.includes(`${name}\n   URI: ${uri}`), `${uri} is not in: ${listed}`);
  }
  if (s.modern) return; // nothing tells a server that they have changed
  s.roots = [...s.roots, { uri: "file:///srv/three", name: "three" }];
  await s.client.sendRootsListChanged();
  // The server asks again on its own time; nothing else tells when it has the new list.
  const deadline = performance.now() + CHECK_TIMEOUT_MS / 2;
  for (let text = listed; !text.includes("file:///srv/three"); ) {
    must(performance.now() < deadline, `the server did not learn the new roots: ${text}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
    text = await s.call("get-roots-list");
  }
}

async function checkLogging(s) {
  await s.client.setLoggingLevel("debug", { timeout: CHECK_TIMEOUT_MS });
  s.logs.clear();
  const toggled = await s.call("toggle-simulated-logging");
  if (toggled.startsWith("Stopped")) await s.call("toggle-simulated-logging");
  try {
    const isSimulated = ({ data }) => /level[ -]message/i.test(String(data));
    const { level } = await s.logs.wait(isSimulated, 30_000, "log message");
    must(typeof level === "string" && level !== "", "a log message has no level");
  } finally {
    await s.call("toggle-simulated-logging");
  }
}

async function checkCancel(s) {
  const controller = new AbortController();
  let cancelledAt;
  const call = s.call("trigger-long-running-operation", { duration: 10, steps: 20 }, {
    signal: controller.signal,
    onprogress: () => {
      cancelledAt ??= performance.now();
      controller.abort("check cancel");
    },
  });
  const outcome = await call.then(() => "a result", () => "an error");
  mustEqual(outcome, "an error", "a cancelled call ended in");
  must(cancelledAt !== undefined, "the call failed before it was cancelled");
  const took = performance.now() - cancelledAt;
  must(took < CANCEL_PROMPT_MS, `the cancelled call ended only after ${Math.round(took)} ms`);
  await s.echo("after cancel");
}

async function checkPing(s) {
  await s.client.ping({ timeout: CHECK_TIMEOUT_MS });
}

async function checkClose(s) {
  const closed = new Promise((resolve) => (s.client.onclose = resolve));
  try {
    await s.transport.terminateSession?.();
  } finally {
    await s.client.close();
  }
  await closed;
  if (s.kind !== "http" || s.modern) return;
  must(s.deleteStatus >= 200 && s.deleteStatus < 300, `DELETE answered ${s.deleteStatus}`);
}

const CHECKS = [
  ["initialize", checkInitialize],
  ["list", checkList],
  ["echo-unicode", checkEchoUnicode],
  ["echo-large", checkEchoLarge],
  ["echo-20", checkEcho20],
  ["progress", checkProgress],
  ["sampling", checkSampling],
  ["elicitation", checkElicitation],
  ["roots", checkRoots],
  ["logging", checkLogging],
  ["cancel", checkCancel],
  ["ping", checkPing],
  ["close", checkClose],
];

// Without sessions there is no log level of one, and no ping.
const LEGACY_ONLY = ["logging", "ping"];

/** The version of the SDK that is really loaded, not the one the lock file asks for. */
function sdkVersion() {
  const require = createRequire(import.meta.url);
  for (let dir = dirname(require.resolve(ENTRY)); ; dir = dirname(dir)) {
    try {
      const { name, version } = require(join(dir, "package.json"));
      if (name === PACKAGE) return version;
    } catch (error) {
      if (error.code !== "MODULE_NOT_FOUND") throw error;
    }
    must(dirname(dir) !== dir, "the SDK has no package.json");
  }
}

async function runCheck(session, check, run) {
  const begin = performance.now();
  const line = { client: `ts-${sdkVersion()}`, check, ok: true, ms: 0 };
  try {
    await within(CHECK_TIMEOUT_MS, check, run(session));
  } catch (error) {
    line.ok = false;
    line.error = String(error?.message ?? error);
  }
  line.ms = Math.round(performance.now() - begin);
  process.stdout.write(`${JSON.stringify(line)}\n`);
  return line.ok;
}

async function main() {
  const { values } = parseArgs({
    options: {
      url: { type: "string" },
      transport: { type: "string", default: "http" },
      mode: { type: "string", default: "legacy" },
      cold: { type: "boolean", default: false }, // the server has yet to start, and need not say who it is
      one: { type: "string", default: "" }, // the URL has all servers, among them the one of this name
    },
  });
  const { url, transport, mode } = values;
  if (!url || !["http", ...Object.keys(TRANSPORTS)].includes(transport) || !(mode in MODES)) {
    const transports = ["http", ...Object.keys(TRANSPORTS)].join("|");
    process.stderr.write(`usage: node client.mjs --url URL --transport ${transports} --mode ${Object.keys(MODES).join("|")}\n`);
    return 2;
  }
  const session = new Session(url, transport, mode, `ts-${sdkVersion()} over ${transport}`);
  session.cold = values.cold;
  session.one = values.one;
  let failed = 0;
  for (const [name, run] of CHECKS) {
    if (session.modern && LEGACY_ONLY.includes(name)) continue;
    const check = session.connected || name === "initialize" ? run : () => Promise.reject(new Error("not run: there is no session"));
    if (!(await runCheck(session, name, check))) failed += 1;
  }
  return failed === 0 ? 0 : 1;
}

// Leftover sockets of a check that timed out must not keep the process alive.
process.exit(await main());
