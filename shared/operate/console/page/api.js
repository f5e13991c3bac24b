// Requests to the API of operators (docs/http-api.md), and to hosted servers.

export class Refusal extends Error {
  constructor(status, code, message) {
    super(message);
    Object.assign(this, { status, code });
  }
}

// sent makes a request with the header that only this page can send.
async function sent(path, { method = "GET", body, signal, headers } = {}) {
  let response;
  try {
    response = await fetch(path, { method, body, signal, cache: "no-store", headers: { "X-Dormouse-Console": "1", ...headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "away", "Dormouse does not answer");
  }
  if (response.ok) return response;
  const text = await response.text();
  let told;
  try {
    told = JSON.parse(text).error;
  } catch {}
  throw new Refusal(response.status, told?.code, told?.message ?? `the answer is ${response.status}`);
}

const json = (value) => (value === undefined ? undefined : JSON.stringify(value));

let only = ""; // the tenant that a visitor who sees all wants to see
export const showOnly = (tenant) => (only = tenant);
/** Reports whether the visitor sees one tenant of several. */
export const narrow = () => only !== "";
const narrowed = (path) => (only ? `${path}${path.includes("?") ? "&" : "?"}tenant=${encodeURIComponent(only)}` : path);

export const whoami = async () => (await sent("api/v1/")).json();
export const get = async (path, signal) => (await sent("api/v1/" + narrowed(path), { signal })).json();
export const act = async (method, path, body) => (await sent("api/v1/" + path, { method, body: json(body) })).json();
export const signIn = async (key) => (await sent("session", { method: "POST", body: json({ key }) })).json();
export const signOut = () => sent("session", { method: "DELETE" });

/** Yields each line of a response that goes on. */
export async function* lines(path, signal) {
  const { body } = await sent("api/v1/" + narrowed(path), { signal });
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const all = (rest + value).split("\n");
    rest = all.pop();
    for (const line of all) if (line) yield JSON.parse(line);
  }
}

const version = "2026-07-28";

/** Reports whether functions answer, which know no more than the store. */
export const onStack = (me) => me.place === "stack";

/** Returns the URL of the endpoint, below which the servers are. */
export const endpoint = (me) => me?.url ?? new URL("..", location.href.split(/[?#]/)[0]).href.replace(/\/$/, "");

const made = new Map(); // keys by server, until they are old

/** Returns a key for one server where callers need one and the visitor's own is not sent. */
async function keyFor(me, server) {
  if (me.access === "open" || (me.tenant && !me.user && !onStack(me))) return undefined;
  const before = made.get(server);
  if (before?.until > Date.now()) return before.key;
  const { key } = await act("POST", "keys", { principal: me.tenant ? me.principal : "console", servers: [server], life_seconds: 900 });
  made.set(server, { key, until: Date.now() + 600000 });
  return key;
}

/** Sends one request of MCP to a server, which may wake it, and returns the result. */
export async function ask(me, server, method, params) {
  const key = await keyFor(me, server);
  const meta = {
    "io.modelcontextprotocol/protocolVersion": version,
    "io.modelcontextprotocol/clientInfo": { name: "console", version: "1" },
    "io.modelcontextprotocol/clientCapabilities": {},
  };
  const name = encodeURIComponent(server);
  const response = await sent(onStack(me) ? `../${name}/mcp` : "mcp/" + name, {
    method: "POST",
    body: json({ jsonrpc: "2.0", id: 1, method, params: { ...params, _meta: meta } }),
    headers: {
      "Content-Type": "application/json", Accept: "application/json, text/event-stream",
      "MCP-Protocol-Version": version, "Mcp-Method": method, ...(params.name && { "Mcp-Name": params.name }), ...(key && { Authorization: "Bearer " + key }),
    },
  });
  const text = await response.text();
  const messages = response.headers.get("Content-Type").startsWith("text/event-stream")
    ? text.split(/\r?\n\r?\n/).map((event) => event.split(/\r?\n/).filter((l) => l.startsWith("data:")).map((l) => l.slice(5)).join("\n")).filter((data) => data.trim())
    : [text];
  const answer = messages.map((m) => JSON.parse(m)).find((m) => m.id === 1 && (m.result || m.error));
  if (!answer) throw new Refusal(0, "away", "the server ended the answer before its result");
  if (answer.error) throw new Refusal(0, answer.error.code, answer.error.message);
  return answer.result;
}
