// The official TypeScript SDK signs in by itself at an endpoint with --access oauth, in both generations.
//
//   node signin.mjs --url http://127.0.0.1:8080/counter/mcp --visit PROGRAM [--mode auto] [--document URL] [--revoke] [--step-up]
//
// PROGRAM goes through the pages (../visit). This one lists the tools, calls the first one, then loses its access
// token and calls again, for which it has to refresh. The client registers itself, or with --document it is the
// client of that client ID metadata document. With --revoke it revokes its grant, sees that its token is refused,
// and signs in once more. With --step-up it only calls the tool, which needs a scope that its token has not. It prints
// one JSON object: the protocol version, the number of tools, of sign-ins, of answers of the token endpoint and of
// failed calls, the status that the revoked token got, and what the tool has said.

import { execFileSync } from "node:child_process";
import { MODES, PACKAGE, StreamableHTTPClientTransport, callTool, newClient } from "./sdk.mjs";

const argument = (name) => (process.argv.includes("--" + name) ? process.argv[process.argv.indexOf("--" + name) + 1] : undefined);
const url = new URL(argument("url"));
const mode = MODES[argument("mode") ?? "legacy"];
const redirect = "http://127.0.0.1:5000/done";
const second = PACKAGE === "@modelcontextprotocol/client";

/** Goes through the pages as ada, and returns the query with which the client is called back. */
const visit = (target) => new URL(execFileSync(argument("visit"), [target.href, redirect], { encoding: "utf8" }).trim()).searchParams;

let client, tokens, verifier, called, version, transport;
let logins = 0;
let answers = 0;
const provider = {
  redirectUrl: redirect,
  clientMetadataUrl: argument("document"),
  clientMetadata: { client_name: "typescript", redirect_uris: [redirect], token_endpoint_auth_method: "none", grant_types: ["authorization_code", "refresh_token"], response_types: ["code"] },
  clientInformation: () => client,
  saveClientInformation: (given) => void (client = given),
  tokens: () => tokens,
  saveTokens: (given) => void ((tokens = given), answers++),
  redirectToAuthorization: async (target) => void ((called = visit(target)), logins++),
  saveCodeVerifier: (given) => void (verifier = given),
  codeVerifier: () => verifier,
  invalidateCredentials: (what) => {
    if (what === "all" || what === "tokens") tokens = undefined;
    if (what === "all" || what === "client") client = undefined;
  },
};

/** Connects, and signs in first if the client has to. */
async function connect() {
  transport = new StreamableHTTPClientTransport(url, { authProvider: provider });
  const told = transport.setProtocolVersion?.bind(transport);
  transport.setProtocolVersion = (given) => void ((version = given), told?.(given));
  const mcp = newClient({ name: "signin", version: "1" }, { capabilities: {}, ...mode });
  try {
    await mcp.connect(transport);
    return mcp;
  } catch (error) {
    await finish(error);
  }
  return connect();
}

/** Ends a sign-in to which an error has led. */
async function finish(error) {
  if (!called) throw error;
  const query = called;
  called = undefined;
  await transport.finishAuth(second ? query : query.get("code"));
}

let mcp = await connect();
const { tools } = await mcp.listTools();
let failed = 0;
let text;
async function call() {
  const result = await callTool(mcp, { name: tools[0].name, arguments: {} });
  if (result.isError) failed++;
  text = result.content[0]?.text;
}
if (process.argv.includes("--step-up")) {
  try {
    await call();
  } catch (error) {
    await finish(error);
    await call();
  }
  console.log(JSON.stringify({ logins, failed, scope: tokens.scope, text }));
  process.exit(0);
}
await call();
tokens = { ...tokens, access_token: tokens.access_token.slice(0, -4) + "AAAA" }; // as if it had expired
await call();
const { scope } = tokens;

/** Sends a request of its own with a token until it is refused, and returns the status. */
async function refused(token) {
  const body = JSON.stringify({ jsonrpc: "2.0", id: 1, method: "ping" });
  const headers = { Authorization: `Bearer ${token}`, "Content-Type": "application/json", Accept: "application/json, text/event-stream" };
  for (const end = Date.now() + 60_000; ; ) {
    const { status } = await fetch(url, { method: "POST", headers, body });
    if (status === 401 || Date.now() > end) return status;
    await new Promise((done) => setTimeout(done, 500));
  }
}

let revoked;
if (process.argv.includes("--revoke")) {
  const { access_token, refresh_token } = tokens;
  await fetch(new URL("/revoke", url), { method: "POST", body: new URLSearchParams({ token: refresh_token, client_id: client.client_id }) });
  revoked = await refused(access_token);
  try {
    await call();
    throw new Error("a call with a revoked token got an answer");
  } catch (error) {
    await finish(error);
  }
  mcp = await connect();
  await call();
}
await mcp.close();
version = mcp.getNegotiatedProtocolVersion?.() ?? version;
console.log(JSON.stringify({ version, tools: tools.length, logins, tokens: answers, failed, scope, revoked }));
process.exit(0);
