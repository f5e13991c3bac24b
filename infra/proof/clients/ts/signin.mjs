// The official TypeScript SDK signs in by itself at an endpoint with --access oauth, in both generations.
//
//   node signin.mjs --url http://127.0.0.1:8080/counter/mcp --visit PROGRAM
//
// PROGRAM goes through the pages (../visit). This one lists the tools, calls the first one, then loses its access
// token and calls again, for which it has to refresh. It prints one JSON object: the number of tools, of
// sign-ins, and of answers of the token endpoint.

import { execFileSync } from "node:child_process";
import { PACKAGE, StreamableHTTPClientTransport, callTool, newClient } from "./sdk.mjs";

const argument = (name) => process.argv[process.argv.indexOf("--" + name) + 1];
const url = new URL(argument("url"));
const redirect = "http://127.0.0.1:5000/done";
const second = PACKAGE === "@modelcontextprotocol/client";

/** Goes through the pages as ada, and returns the query with which the client is called back. */
const visit = (target) => new URL(execFileSync(argument("visit"), [target.href, redirect], { encoding: "utf8" }).trim()).searchParams;

let client, tokens, verifier, called;
let logins = 0;
let answers = 0;
const provider = {
  redirectUrl: redirect,
  clientMetadata: { client_name: "typescript", redirect_uris: [redirect], token_endpoint_auth_method: "none", grant_types: ["authorization_code", "refresh_token"], response_types: ["code"] },
  clientInformation: () => client,
  saveClientInformation: (given) => void (client = given),
  tokens: () => tokens,
  saveTokens: (given) => void ((tokens = given), answers++),
  redirectToAuthorization: async (target) => void ((called = visit(target)), logins++),
  saveCodeVerifier: (given) => void (verifier = given),
  codeVerifier: () => verifier,
};

async function connect() {
  const transport = new StreamableHTTPClientTransport(url, { authProvider: provider });
  const mcp = newClient({ name: "signin", version: "1" });
  await mcp.connect(transport);
  return mcp;
}

const first = new StreamableHTTPClientTransport(url, { authProvider: provider });
try {
  await newClient({ name: "signin", version: "1" }).connect(first);
} catch (error) {
  if (!called) throw error;
}
await first.finishAuth(second ? called : called.get("code"));
const mcp = await connect();
const { tools } = await mcp.listTools();
let failed = 0;
const call = async () => void ((await callTool(mcp, { name: tools[0].name, arguments: {} })).isError && failed++);
await call();
tokens = { ...tokens, access_token: tokens.access_token.slice(0, -4) + "AAAA" }; // as if it had expired
await call();
await mcp.close();
console.log(JSON.stringify({ tools: tools.length, logins, tokens: answers, failed, scope: tokens.scope }));
process.exit(0);
