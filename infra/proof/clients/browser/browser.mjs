// A real browser signs in, as a person does who has been sent there by a client.
//
//   node browser.mjs --browser /usr/bin/chromium --own http://127.0.0.1:1/counter/mcp --elsewhere http://127.0.0.1:2/counter/mcp
//
// At --own users sign in with any name; at --elsewhere, at an identity provider where ada has the password
// lovelace. The program is the client, which listens on loopback. It prints a line of JSON for each check.

import { createHash, randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { chromium } from "playwright-core";

const flag = (name) => process.argv[process.argv.indexOf("--" + name) + 1];
const servers = { own: new URL(flag("own")), elsewhere: new URL(flag("elsewhere")) };

const want = (ok, ...said) => {
  if (!ok) throw new Error(said.map((s) => (typeof s === "string" ? s : JSON.stringify(s))).join(" "));
};

// The client: its page for answers tells the window that has opened it, as clients in web pages do.
const client = createServer((request, response) => {
  response.setHeader("content-type", "text/html");
  response.end(request.url.startsWith("/done")
    ? "<title>done</title><script>window.opener?.postMessage(location.search, '*')</script>signed in"
    : "<title>client</title>");
});
await new Promise((listening) => client.listen(0, "127.0.0.1", listening));
// Another host than the server's, so that nothing works by being of one site.
const home = `http://localhost:${client.address().port}`;
const done = `${home}/done`;

async function register(server, redirect) {
  const answer = await fetch(new URL("/register", server), { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ client_name: "browser", redirect_uris: [redirect], token_endpoint_auth_method: "none" }) });
  want(answer.status === 201, "register:", answer.status);
  return (await answer.json()).client_id;
}

/** Begins a sign-in: where to send the browser, and what the client keeps. */
async function begin(server, { redirect = done, resource = server.href } = {}) {
  const id = await register(server, redirect);
  const verifier = randomBytes(32).toString("base64url");
  const state = randomBytes(8).toString("base64url");
  const to = new URL("/authorize", server);
  to.search = new URLSearchParams({ response_type: "code", client_id: id, redirect_uri: redirect, state, code_challenge: createHash("sha256").update(verifier).digest("base64url"), code_challenge_method: "S256", ...(resource && { resource }) });
  return { id, verifier, state, to: to.href, server, redirect };
}

/** Redeems the code of an answer, and calls a tool with the token. */
async function redeem(flow, query) {
  want(query.get("state") === flow.state && query.get("iss") === flow.server.origin, "the answer is", String(query));
  const answer = await fetch(new URL("/token", flow.server), { method: "POST", body: new URLSearchParams({ grant_type: "authorization_code", client_id: flow.id, code: query.get("code"), redirect_uri: flow.redirect, code_verifier: flow.verifier }) });
  want(answer.status === 200, "token:", answer.status, await answer.clone().text());
  const { access_token } = await answer.json();
  const body = { jsonrpc: "2.0", id: 1, method: "initialize", params: { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: "browser", version: "1" } } };
  const used = await fetch(flow.server, { method: "POST", headers: { authorization: `Bearer ${access_token}`, "content-type": "application/json", accept: "application/json, text/event-stream" }, body: JSON.stringify(body) });
  want(used.status === 200, "initialize:", used.status, await used.text());
}

const browser = await chromium.launch({ executablePath: flag("browser"), args: ["--no-sandbox"] });

/** A new browser profile with one page. Whatever a policy of ours blocks fails the check. */
async function person(run) {
  const context = await browser.newContext();
  context.setDefaultTimeout(10000);
  const blocked = [];
  context.on("console", (message) => {
    if (/content security policy|refused to/i.test(message.text())) blocked.push(message.text());
  });
  try {
    await run(await context.newPage(), context);
    want(blocked.length === 0, "the browser says:", blocked);
  } catch (error) {
    throw new Error(`${error.message}${blocked.length ? `; the browser says: ${blocked}` : ""}`);
  } finally {
    await context.close();
  }
}

const allow = (page) => page.click("button[value=allow]");
const arrival = async (page) => (await page.waitForURL((url) => url.href.startsWith(done)), new URL(page.url()).searchParams);
const signIn = async (page, name = "ada") => (await page.fill("input[name=name]", name), page.click("button"));

/** Signs in at the provider, where the user also agrees once. */
async function atProvider(page, password) {
  await page.fill("input[name=name]", "ada");
  await page.fill("input[name=password]", password);
  await page.click("button");
}

const checks = {
  "any name": async (page) => {
    const flow = await begin(servers.own);
    await page.goto(flow.to);
    want((await page.textContent("h1")) === "Allow access?" && (await page.textContent("main")).includes("localhost"), await page.textContent("body"));
    want((await page.evaluate(() => getComputedStyle(document.querySelector("main")).maxWidth)) !== "none", "the page's style is not applied");
    await allow(page);
    await signIn(page);
    await redeem(flow, await arrival(page));
  },

  "refused": async (page) => {
    const flow = await begin(servers.own);
    await page.goto(flow.to);
    await page.click("button[value=deny]");
    const query = await arrival(page);
    want(query.get("error") === "access_denied" && query.get("state") === flow.state && !query.has("code"), String(query));
  },

  "agreed before": async (page) => {
    const [flow, other] = [await begin(servers.own), await begin(servers.own)];
    await page.goto(flow.to);
    await allow(page);
    await signIn(page);
    await redeem(flow, await arrival(page));
    await page.goto(flow.to);
    want((await page.textContent("h1")) === "Sign in", "asked twice for one client");
    await page.goto(other.to);
    want((await page.textContent("h1")) === "Allow access?", "not asked for another client");
  },

  "two tabs": async (page, context) => {
    const [first, second] = [await begin(servers.own), await begin(servers.own)];
    const other = await context.newPage();
    await page.goto(first.to);
    await other.goto(second.to);
    await allow(page);
    await allow(other);
    await signIn(other, "grace");
    await redeem(second, await arrival(other));
    await signIn(page);
    await redeem(first, await arrival(page));
  },

  "a name that is none": async (page) => {
    const flow = await begin(servers.own);
    await page.goto(flow.to);
    await allow(page);
    await page.evaluate(() => document.querySelector("input[name=name]").removeAttribute("pattern"));
    await signIn(page, "../ada");
    want((await page.textContent("h1")) === "Sign-in failed", await page.textContent("body"));
    await page.goBack();
    await signIn(page);
    await redeem(flow, await arrival(page));
  },

  "choice of a server": async (page) => {
    const flow = await begin(servers.own, { resource: "" });
    await page.goto(flow.to);
    await page.selectOption("select[name=server]", "counter");
    await allow(page);
    await signIn(page);
    await redeem(flow, await arrival(page));
  },

  "an application's own scheme": async (page) => {
    const flow = await begin(servers.own, { redirect: "cursor://anysphere.cursor-mcp/oauth/callback" });
    await page.goto(flow.to);
    await allow(page);
    const sent = page.waitForEvent("requestfailed", (r) => r.url().startsWith("cursor://")).catch(() => undefined);
    const answer = page.waitForResponse((r) => r.url().includes("/callback?"));
    await signIn(page);
    want((await (await answer).headerValue("location")).startsWith("cursor://"), "no redirect to the application");
    await Promise.race([sent, new Promise((r) => setTimeout(r, 500))]);
  },

  "in a window of a web page": async (page) => {
    const flow = await begin(servers.own);
    await page.goto(home);
    const opens = page.waitForEvent("popup");
    const told = page.evaluate((to) => new Promise((told) => {
      addEventListener("message", (event) => told(event.data));
      open(to, "sign-in", "popup");
    }), flow.to);
    const popup = await opens;
    await allow(popup);
    await signIn(popup);
    await redeem(flow, new URLSearchParams(await Promise.race([told, arrival(popup).then(() => new Promise((_, no) => setTimeout(() => no(new Error("the page was told nothing")), 2000)))])));
  },

  "provider": async (page) => {
    const flow = await begin(servers.elsewhere);
    await page.goto(flow.to);
    await allow(page);
    await atProvider(page, "wrong");
    want((await page.textContent("p")) === "Wrong name or password", await page.textContent("body"));
    await atProvider(page, "lovelace");
    await page.waitForSelector("button[value=deny]");
    await allow(page);
    await redeem(flow, await arrival(page));
    // Another client: the user agrees, and is still signed in.
    const next = await begin(servers.elsewhere);
    await page.goto(next.to);
    await allow(page);
    await redeem(next, await arrival(page));
    // The same one: no page at all.
    await page.goto(next.to);
    await arrival(page);
  },

  "denied at the provider": async (page) => {
    const flow = await begin(servers.elsewhere);
    await page.goto(flow.to);
    await allow(page);
    await atProvider(page, "lovelace");
    await page.click("button[value=deny]");
    const query = await arrival(page);
    want(query.get("error") === "access_denied" && !query.has("code"), String(query));
  },
};

/** What a browser is to block. */
const blocks = {
  "in a frame": async (page) => {
    const flow = await begin(servers.own);
    await page.goto(home);
    await page.evaluate((to) => document.body.append(Object.assign(document.createElement("iframe"), { src: to })), flow.to);
    await page.waitForTimeout(500);
    const inside = page.frames().find((f) => f !== page.mainFrame());
    want(!(await inside.content()).includes("Allow access?"), "the page is shown in a frame");
  },

  "a page of another origin": async (page) => {
    const flow = await begin(servers.own);
    await page.goto(home);
    const got = await page.evaluate(async ({ at, to }) => {
      const headers = { "MCP-Protocol-Version": "2025-11-25" };
      const metadata = await fetch(new URL("/.well-known/oauth-authorization-server", at), { headers });
      const registered = await fetch(new URL("/register", at), { method: "POST", headers: { ...headers, "content-type": "application/json" }, body: '{"redirect_uris":["http://localhost/done"]}' });
      const token = await fetch(new URL("/token", at), { method: "POST", headers, body: new URLSearchParams({ grant_type: "refresh_token", refresh_token: "no", client_id: "no" }) });
      const pages = await Promise.all(["/authorize", "/callback?state=x", "/login"].map((path) => fetch(new URL(path, at)).then(() => "read", () => "blocked")));
      return { metadata: (await metadata.json()).issuer, registered: registered.status, token: token.status, pages: [...pages, await fetch(to).then(() => "read", () => "blocked")] };
    }, { at: servers.own.href, to: flow.to });
    want(got.metadata === servers.own.origin && got.registered === 201 && got.token === 400 && got.pages.every((p) => p === "blocked"), got);
  },
};

async function check(name, run) {
  const begun = Date.now();
  try {
    await run();
    console.log(JSON.stringify({ client: "browser", check: name, ok: true, ms: Date.now() - begun }));
  } catch (error) {
    process.exitCode = 1;
    console.log(JSON.stringify({ client: "browser", check: name, ok: false, ms: Date.now() - begun, error: error.message }));
  }
}

for (const [name, run] of Object.entries(checks)) await check(name, () => person(run));
for (const [name, run] of Object.entries(blocks)) {
  await check(name, async () => {
    const context = await browser.newContext();
    await run(await context.newPage());
    await context.close();
  });
}
await browser.close();
client.close();
