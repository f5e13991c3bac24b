// Looks at the console as people do, in Chromium, and prints a line of JSON for each check.
//
//   node console.mjs '{"stack": false, "base": "http://127.0.0.1:1", "data": "folder", "dormouse": "program", "servers": ["one"], "file": "servers.json", "shots": "folder"}'
//
// The machine needs keys. The program makes them, has fifty sessions opened, and calls tools.
// With stack, functions serve the machine, and so its console is that of a stack. With oauth,
// users sign in with any name, and the groups sre and eng have roles.

import { execFileSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { createRequire } from "node:module";
import { join } from "node:path";
import npmChromium from "@sparticuz/chromium";
import { chromium } from "playwright-core";

const { stack, oauth, base, data, dormouse, servers, file, shots, browser: own } = JSON.parse(process.argv[2]);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

const want = (ok, ...said) => {
  if (!ok) throw new Error(said.map((s) => (typeof s === "string" ? s : JSON.stringify(s))).join(" "));
};
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
async function until(what, test, seconds = 60) {
  for (const end = Date.now() + seconds * 1000; ;) {
    const got = await test();
    if (got) return got;
    want(Date.now() < end, "waited in vain until", what);
    await pause(100);
  }
}

const run = (...args) => execFileSync(dormouse, [...args, "--data", data], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }).trim();
const key = (who, role = "user", tenant = "acme") => run("keys", "create", who, "--all-servers", "--role", role, "--tenant", tenant);

const modern = (client) => ({ "io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": { name: client, version: "1" }, "io.modelcontextprotocol/clientCapabilities": {} });
async function post(server, bearer, message, headers = {}) {
  const response = await fetch(`${base}/${server}/mcp`, {
    method: "POST", body: JSON.stringify({ jsonrpc: "2.0", id: 1, ...message }),
    headers: { authorization: `Bearer ${bearer}`, "content-type": "application/json", accept: "application/json, text/event-stream", ...headers },
  });
  const text = await response.text();
  return { status: response.status, text, session: response.headers.get("mcp-session-id") };
}
const call = (server, bearer, name, args, client = "claude-code") =>
  post(server, bearer, { method: "tools/call", params: { _meta: modern(client), name, arguments: args } }, { "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call", "mcp-name": name });
const list = (server, bearer) => post(server, bearer, { method: "tools/list", params: { _meta: modern("cursor") } }, { "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list" });
async function open(server, bearer, client) {
  const { status, text, session } = await post(server, bearer, { method: "initialize", params: { protocolVersion: "2025-11-25", capabilities: {}, clientInfo: { name: client, version: "1" } } });
  want(status === 200, "initialize:", text);
  // A session whose client never says this is over after a minute.
  const said = await post(server, bearer, { id: undefined, method: "notifications/initialized" }, { "mcp-session-id": session, "mcp-protocol-version": "2025-11-25" });
  want(said.status === 202, "initialized:", said.status, said.text);
}

// ---- What there is to see

const people = Object.fromEntries(["ada", "bob", "carol"].map((who) => [who, key(who)]));
const clients = ["claude-code", "cursor", "vscode"];
for (let i = 0; i < (oauth ? 0 : 50); i++) {
  await open(servers[i % servers.length], Object.values(people)[i % 3], clients[i % 3]);
}
await list("weather", people.ada);
for (const server of servers.slice(0, oauth ? 1 : 4)) {
  for (const who of ["ada", "bob"]) await call(server, people[who], "get_forecast", { city: "Oslo" });
}
for (let i = 0; i < 12; i++) await call("weather", people.ada, "get_alerts", {}, "cursor");
await call("weather", people.bob, "divide", { a: 1, b: 0 });
await call("billing", people.carol, "pay", {});
const stranger = key("stranger-sam", "user", "globex");
await call("weather", stranger, "get_forecast", { city: "Rome" });
const wordy = "agent-of-the-continuous-integration-of-the-payments-team-in-oslo";
await call("weather", key(wordy), "get_forecast", { city: "Rome" }, "a-client-with-a-name-that-is-longer-than-a-column");

// ---- The browser

const browser = await chromium.launch({ executablePath: own || (await npmChromium.executablePath()), args: ["--no-sandbox"] });

/** A new browser profile with one page. It fails for errors in the console, and for requests to others. */
async function person(use, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, ...options });
  context.setDefaultTimeout(60000);
  const wrong = [], asked = [];
  const { expects = [] } = options;
  context.on("request", (request) => {
    asked.push(request);
    if (!options.others && !request.url().startsWith(base + "/") && !request.url().startsWith("blob:")) wrong.push("a request to " + request.url());
  });
  context.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !expects.some((e) => message.text().includes(e))) wrong.push(message.text());
  });
  context.on("weberror", (error) => wrong.push(String(error.error())));
  context.on("dialog", (dialog) => (wrong.push("a dialog: " + dialog.message()), dialog.dismiss()));
  const page = await context.newPage();
  try {
    const note = await use(page, context, asked);
    want(wrong.length === 0, "the browser says:", wrong);
    return note;
  } catch (error) {
    await page.screenshot({ path: join(shots, "failed.png") }).catch(() => {});
    throw new Error(`${error.message}${wrong.length ? `; the browser says: ${wrong}` : ""}`);
  } finally {
    await context.close();
  }
}

const operator = stack && key("olga", "operator");
const link = () => (stack ? execFileSync(dormouse, ["open", "--url", base, "--key", operator], { encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] }) : run("open")).split("\n")[0];
const ready = (page) => page.getByText(stack ? "every 20 s" : "live", { exact: true }).waitFor();
const enter = async (page) => (await page.goto(link()), await ready(page));
async function signIn(page, bearer) {
  await page.goto(base + "/console/");
  await page.getByLabel("API key").fill(bearer);
  await page.getByRole("button", { name: "Sign in" }).click();
  await ready(page);
}
const views = stack ? {
  servers: "#/", tools: "#/server/weather/tools", sessions: "#/server/weather/sessions", activity: "#/activity", keys: "#/keys",
} : {
  servers: "#/", tools: "#/server/weather/tools", sessions: "#/server/weather/sessions", log: "#/server/weather/log", settings: "#/server/weather/settings",
  starts: "#/server/billing/starts", activity: "#/activity", people: "#/people", costs: "#/costs", keys: "#/keys",
};
async function go(page, hash) {
  await page.evaluate((h) => (location.hash = h), hash);
  await pause(50);
  await until("the view is there", () => page.evaluate(() => !document.querySelector(".loading") && document.querySelector("h1")));
  await page.waitForFunction(() => document.querySelector("main").innerText.length > 40);
  await pause(150); // plots are drawn after their data
}
const text = (page) => page.evaluate(() => document.body.innerText);
async function clean(page, ...where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run());
  want(!violations.length, ...where, violations.map((v) => v.id + ": " + v.nodes[0].html));
}
const everything = async (page) => {
  let all = "";
  for (const hash of Object.values(views)) {
    await go(page, hash);
    all += await text(page);
  }
  return all;
};

const checks = {
  "the link works once": () => person(async (page, context) => {
    const used = link();
    await page.goto(used);
    await ready(page);
    const [cookie] = await context.cookies();
    want(cookie.httpOnly && cookie.sameSite === "Strict" && cookie.path === "/console/", cookie);
    want(!page.url().includes("ticket"), "the address keeps the ticket");
    await person(async (other) => {
      await other.goto(used);
      await other.getByText("This link was used already").waitFor();
      await other.getByText("dormouse open").waitFor();
    }, { expects: ["401"] });
  }),

  views: () => person(async (page) => {
    await page.goto(base + "/console/");
    await page.getByLabel("API key").waitFor();
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
      await page.screenshot({ path: join(shots, `${stack ? "stack-" : ""}door-1280-${scheme}.png`) });
      await clean(page, "the door", scheme);
    }
    await enter(page);
    for (const scheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
      for (const width of [400, 800, 1280]) {
        await page.setViewportSize({ width, height: 860 });
        for (const [name, hash] of Object.entries(views)) {
          await go(page, hash);
          await page.screenshot({ path: join(shots, `${stack ? "stack-" : ""}${name}-${width}-${scheme}.png`) });
          const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          want(over <= 0, name, "is", over, "pixels wider than", width);
          if (width === 800 || (width === 400 && scheme === "dark")) continue; // their parts and colours are those of the others
          await clean(page, name, scheme, width);
        }
      }
    }
    await go(page, views.tools);
    want((await page.getByText("onerror=alert(1)").count()) === 1 && (await page.locator("main img").count()) === 0, "a description is taken for markup");
    want(!(await everything(page)).includes("a-value-that-nobody-sees"), "the value of a variable is shown");
    await go(page, "#/server/tickets/tools");
    await page.getByText("Nobody has asked this server").or(page.getByRole("button", { name: "Try divide" })).waitFor();
    await page.getByRole("button", { name: "Connect" }).click();
    const dialog = await page.evaluate(() => (({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector("dialog")));
    want(dialog <= 0, "the dialog is", dialog, "pixels wider than its frame");
    await clean(page, "connect");
    await page.screenshot({ path: join(shots, "connect.png") });
  }, { expects: ["401"] }),

  live: () => person(async (page, _, asked) => {
    await enter(page);
    await page.locator(".tile", { hasText: "Calls" }).waitFor(); // "live" may be there before the answer with the figures
    const calls = () => page.evaluate(() => Number([...document.querySelectorAll(".tile")].find((t) => t.innerText.startsWith("Calls")).querySelector("dd").innerText));
    const before = await calls(), begun = asked.length;
    await call("weather", people.ada, "get_forecast", { city: "Bern" });
    await until("a call shows itself", async () => (await calls()) === before + 1);
    want(asked.length - begun < 20, "it took", asked.length - begun, "requests");
  }),

  "a tool is tried": () => person(async (page) => {
    await enter(page);
    await go(page, "#/server/weather/tools");
    await page.getByRole("button", { name: "Try get_forecast" }).click();
    await page.getByLabel("city").fill("Zürich");
    await page.getByRole("button", { name: "Call", exact: true }).click();
    await page.getByText("Sunny in Zürich, 21 degrees").waitFor();
    want((await page.getByLabel("city").inputValue()) === "Zürich", "the arguments are gone after the call");
    await clean(page);
    await page.screenshot({ path: join(shots, stack ? "stack-try.png" : "try.png") });
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Try divide" }).click();
    await page.getByLabel("a", { exact: true }).fill("1");
    await page.getByLabel("b", { exact: true }).fill("0");
    await page.keyboard.press("Enter");
    await page.getByText("The tool says that it failed").waitFor();
  }),

  keyboard: () => person(async (page) => {
    await enter(page);
    await page.reload();
    await ready(page);
    const press = (k) => page.keyboard.press(k);
    const focus = () => page.evaluate(() => (document.activeElement.getAttribute("aria-label") || document.activeElement.innerText || "").trim());
    const tabTo = async (name) => {
      for (let i = 0; i < 120; i++) {
        await press("Tab");
        if ((await focus()) === name) return want(await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle !== "none"), name, "does not show that it has the focus");
      }
      want(false, "Tab does not lead to", name);
    };
    await tabTo("Skip to the content");
    await press("Enter");
    want(await page.evaluate(() => document.activeElement.id === "main"), "the content has not the focus");
    await tabTo("Server");
    await press("Enter");
    want((await page.evaluate(() => document.querySelector("th[aria-sort]").innerText)).startsWith("Server"), "the table is not sorted");
    await tabTo("weather");
    await press("Enter");
    await page.getByRole("heading", { name: "weather" }).waitFor();
    await tabTo("Try divide");
    await press("Enter");
    await page.getByLabel("a", { exact: true }).waitFor();
    await page.keyboard.type("6");
    await press("Tab");
    await page.keyboard.type("3");
    await press("Enter");
    await page.getByLabel("Answer").getByText("2", { exact: true }).waitFor();
    await press("Escape");
    await until("the focus is back", async () => (await focus()) === "Try divide");
  }),

  "stop and end": () => person(async (page) => {
    await enter(page);
    await call("github", people.ada, "get_forecast", { city: "Oslo" });
    await go(page, "#/server/github/sessions");
    const rows = () => page.locator("tbody tr").count();
    const before = await rows();
    await page.getByRole("button", { name: "Stop", exact: true }).click();
    await until("nothing runs", async () => (await page.locator("tbody .state.awake").count()) === 0, 60);
    await page.getByRole("button", { name: /^End / }).first().click();
    await page.getByRole("button", { name: "End it" }).click();
    await until("a session has ended", async () => (await page.getByText("ended", { exact: true }).count()) === 1 || (await rows()) === before - 1);
  }),

  keys: () => person(async (page) => {
    await enter(page);
    await go(page, "#/keys");
    await page.getByRole("button", { name: "Make a key" }).click();
    await page.getByLabel("Who").fill("dora");
    if (!stack) await page.getByRole("textbox", { name: /^Tenant/ }).fill("acme"); // a key is of one tenant already
    want(!(await page.getByLabel("every server").isChecked()) && (await page.getByLabel("Days").inputValue()) === "30", "the form presets a wide key");
    await page.getByRole("button", { name: "Make it" }).click();
    await page.getByText("Choose the servers that the key is for.").waitFor();
    await page.getByLabel("weather", { exact: true }).check();
    await page.getByRole("button", { name: "Make it" }).click();
    const made = await page.getByLabel("key", { exact: true }).innerText();
    want((await call("weather", made, "get_forecast", { city: "Oslo" })).status === 200, "the key is not good");
    await page.getByRole("button", { name: "Done" }).click();
    want(!(await text(page)).includes(made), "the key is still shown");
    await page.getByRole("button", { name: /^Rotate .* of dora$/ }).click();
    await page.getByRole("button", { name: "Rotate", exact: true }).click();
    const next = await page.getByLabel("key", { exact: true }).innerText();
    want(next !== made, "the key is the old one");
    await page.getByRole("button", { name: "Done" }).click();
    for (let left = 2; left > 0; left--) {
      await page.getByRole("button", { name: /^Revoke .* of dora$/ }).first().click();
      await page.getByRole("button", { name: "Revoke", exact: true }).click();
      await until("a key is revoked", async () => (await page.getByRole("button", { name: /^Revoke .* of dora$/ }).count()) === left - 1);
    }
  }),

  reload: () => person(async (page) => {
    await enter(page);
    const again = page.getByRole("button", { name: "Reload the servers file" });
    await again.click();
    await page.getByText("The servers file is as it was.").waitFor();
    const before = readFileSync(file, "utf8");
    writeFileSync(file, before.replace('"mcpServers":{', '"mcpServers":{"added":{"command":"node","args":["x.mjs"]},'));
    await again.click();
    await page.getByRole("row", { name: /^added/ }).waitFor();
    writeFileSync(file, before);
    await again.click();
    await until("the server is gone", async () => (await page.getByRole("row", { name: /^added/ }).count()) === 0);
  }),

  viewer: () => person(async (page) => {
    await signIn(page, key("vic", "viewer"));
    const all = await everything(page);
    want(all.includes("exited with code 1 before it answered initialize"), "a viewer does not see that billing has failed");
    for (const secret of ["ZeroDivisionError", "Traceback", "listening", "called:"]) want(!all.includes(secret), "a viewer sees", secret);
    for (const name of [/^Stop/, /^End /, /^Try/, /^Rotate/, /^Revoke/, "Make a key", "Last lines"]) want((await page.getByRole("button", { name }).count()) === 0, "a viewer has a button", String(name));
    const status = await page.evaluate(async () => (await fetch("api/v1/servers/weather/stop", { method: "POST", headers: { "X-Dormouse-Console": "1" } })).status);
    want(status === 403, "stop is answered with", status);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByLabel("API key").waitFor();
  }, { expects: ["401", "403"] }),

  tenants: () => person(async (page) => {
    await signIn(page, key("olga", "operator", "globex"));
    const all = await everything(page);
    for (const name of ["ada", "bob", "carol", "acme"]) want(!new RegExp(`\\b${name}\\b`).test(all), "another tenant's", name, "is shown");
    want(all.includes("stranger-sam"), "its own calls are missing");
    await go(page, "#/activity?who=ada");
    await page.getByText("No calls in this time.").waitFor();
    const session = JSON.parse(run("sessions", "--json", "--server", "weather")).find((s) => s.tenant === "acme");
    const answers = await page.evaluate(async (id) => {
      const ask = async (method, path) => (await fetch("api/v1/" + path, { method, headers: { "X-Dormouse-Console": "1" } })).status;
      return [await ask("DELETE", "sessions/" + id), await ask("POST", `sessions/${id}/stop`)];
    }, session.id);
    want(answers.every((status) => status === 404), answers);
  }, { expects: ["401", "404"] }),

  "one tenant": () => person(async (page) => {
    await enter(page);
    await page.getByLabel("Tenant", { exact: true }).selectOption("globex");
    await until("only its sessions are counted", async () => (await page.locator(".tile", { hasText: "Sessions" }).locator("dd").innerText()) === "1");
    const all = await everything(page);
    for (const name of ["ada", "bob", "carol"]) want(!new RegExp(`\\b${name}\\b`).test(all), "another tenant's", name, "is shown");
    want(all.includes("stranger-sam"), "its own calls are missing");
    await go(page, "#/people");
    await page.getByLabel("Tenant", { exact: true }).selectOption("");
    await page.getByRole("row", { name: /^ada/ }).waitFor();
  }),

  "pages of others": () => person(async (page) => {
    await enter(page);
    // The same machine by another name is another site, as a page of others is.
    await page.goto(base.replace("127.0.0.1", "localhost") + "/console/");
    const got = await page.evaluate(async (at) => {
      const ask = (options) => fetch(at + "/console/api/v1/stop", { method: "POST", ...options }).then((r) => r.status, () => "blocked");
      return [await ask({ credentials: "include", mode: "no-cors" }), await ask({ credentials: "include", headers: { "X-Dormouse-Console": "1" } })];
    }, base);
    want(got.every((answer) => answer === "blocked" || answer === 0), got);
  }, { others: true, expects: ["Content Security Policy", "Refused to connect", "401", "Failed to load", "violates"] }),

  hidden: () => person(async (page, context, asked) => {
    await page.clock.install();
    await page.goto(link());
    await ready(page);
    await page.clock.runFor("02:00");
    await pause(1500);
    const before = asked.length;
    want(before > 20, "a visible page asks for nothing");
    const show = (hidden) => page.evaluate((h) => {
      Object.defineProperty(document, "hidden", { configurable: true, get: () => h });
      document.dispatchEvent(new Event("visibilitychange"));
    }, hidden);
    for (const hash of ["#/", "#/server/weather/log"]) {
      await page.evaluate((h) => (location.hash = h), hash);
      await pause(1000);
      await show(true);
      await pause(500);
      const begun = asked.length;
      await page.clock.runFor("10:00");
      await call("weather", people.ada, "get_forecast", { city: "Bern" });
      await pause(1500);
      want(asked.length === begun, "a hidden page asks:", asked.slice(begun).map((r) => r.url()));
      await show(false);
      await until("it goes on", async () => asked.length > begun);
    }
  }),
};

/** Looks at a page without scripts, in both colours and on a phone. */
async function look(page, name) {
  for (const scheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: scheme, reducedMotion: "reduce" });
    for (const width of [390, 1280]) {
      await page.setViewportSize({ width, height: 860 });
      await page.screenshot({ path: join(shots, `${stack ? "stack-" : ""}${name}-${width}-${scheme}.png`) });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      want(over <= 0, name, "is", over, "pixels wider than", width);
      await clean(page, name, scheme, width);
    }
  }
}

// What a person gets who opens an address in a browser.
const pages = {
  "pages of addresses": () => person(async (page, context) => {
    const as = (bearer) => context.setExtraHTTPHeaders(bearer ? { authorization: `Bearer ${bearer}` } : {});
    for (const [name, path, status] of [["root", "/", 200], ["address", "/weather/mcp", 401], ["all", "/mcp", 401]]) {
      await as("");
      want((await page.goto(base + path)).status() === status, path, "without a key");
      await look(page, `page-${name}-stranger`);
      want(!(await text(page)).includes("get_forecast"), "a stranger sees tools");
      await as(people.ada);
      want((await page.goto(base + path)).status() === 200, path, "with a key");
      await look(page, `page-${name}`);
    }
    const reader = key("reader"); // whose session has called nothing yet
    await list("weather", reader); // an earlier check has stopped the server, which forgets its lists
    await as(reader);
    let said = "";
    for (let tries = 0; tries < 50 && !said.includes("get_forecast"); tries++) { // lists are kept soon after their answer
      await page.goto(base + "/weather/mcp");
      said = await text(page);
      if (!said.includes("get_forecast")) await pause(200);
    }
    want(said.includes("get_forecast") && said.includes("The weather of the coming days in a city") && (await page.locator("main img").count()) === 0, said);
    for (const client of ["Cursor", "VS Code", "LM Studio"]) await page.getByRole("link", { name: `Add to ${client}` }).waitFor();
    await page.getByText("Claude Code").click();
    await page.getByText(`claude mcp add --transport http weather ${base}/weather/mcp`).waitFor();
    await as("");
    await page.getByRole("link", { name: "console" }).click();
    await page.waitForURL((url) => url.pathname.includes("/console/"));
    want((await page.goto(base + "/nothing/here/at-all")).status() === 404, "a path of nothing");
    await look(page, "page-nothing");
  }, { expects: ["401", "404"] }),
};

// What only the console of a stack has to hold.
const ofAStack = {
  "an hour": () => person(async (page, _, asked) => {
    await page.clock.install();
    await page.goto(link());
    await ready(page);
    const requests = () => asked.filter((r) => r.url().includes("/api/")).length;
    const hour = async (touch) => {
      const begun = requests();
      for (let i = 0; i < 180; i++) {
        if (touch) await page.mouse.wheel(0, 1);
        await page.clock.runFor("00:20");
        await pause(20);
      }
      return requests() - begun;
    };
    const touched = await hour(true), left = await hour(false);
    want(touched > 60 && touched <= 182, "a page that is touched asks", touched, "times in an hour");
    want(left > 20 && left <= 80, "a page that is left asks", left, "times in an hour");
    return `${touched} requests while it is touched, ${left} while it is not`;
  }),

  // There is no CloudWatch here, so the browser answers in its place.
  "a search": () => person(async (page, _, asked) => {
    const found = { time: new Date().toISOString(), tenant: "acme", principal: "ada", server: "weather", tool: "get_forecast", duration_ms: 12, failed: true, reason: "no such city" };
    await page.route("**/console/api/v1/", async (route) => {
      const answer = await route.fetch();
      await route.fulfill({ response: answer, json: { ...(await answer.json()), search_usd_per_gb: 0.005 } });
    });
    await page.route("**/console/api/v1/calls?*", (route) => route.fulfill({ json: { calls: [found], search: { bytes: 2e9, usd: 0.01 } } }));
    await enter(page);
    await go(page, "#/activity");
    await page.getByText("for $0.005 a GB").waitFor();
    await pause(500);
    const searches = () => asked.filter((r) => r.url().includes("api/v1/calls")).length;
    want(searches() === 0, "the page searches unasked");
    await page.getByRole("button", { name: "Search the logs" }).click();
    await page.getByText("no such city").waitFor();
    await page.getByText("2000 MB of logs, and AWS bills $0.0100").waitFor();
    await clean(page);
    await page.screenshot({ path: join(shots, "stack-search.png") });
    await page.getByLabel("Failed only").check();
    await pause(500);
    want(searches() === 1 && !(await text(page)).includes("no such city"), "another question shows the answer of the one before, or asks by itself");
  }),

  "stop and end": () => person(async (page) => {
    await enter(page);
    await call("github", people.ada, "get_forecast", { city: "Oslo" });
    await go(page, "#/server/github/sessions");
    await page.getByRole("button", { name: "Stop", exact: true }).click();
    await until("nothing runs", async () => (await page.reload(), await pause(500), await page.locator("tbody tr").count()) > 0 && (await page.locator("tbody .state.awake").count()) === 0, 60);
    await page.getByRole("button", { name: /^End / }).first().click();
    await page.getByRole("button", { name: "End it" }).click();
    await until("a session has ended", async () => (await page.getByText("ended", { exact: true }).count()) > 0);
  }),
};
/** Goes from the door to the page of the provider, and gives it a name and groups. */
async function atTheProvider(page, name, groups) {
  await page.goto(base + "/console/");
  await page.getByRole("button", { name: "Sign in", exact: true }).click();
  await page.getByLabel("Name").fill(name);
  await page.getByLabel("Groups").fill(groups);
  await page.getByRole("button").click();
}

// Where users sign in at a provider. The one of this machine takes any name.
const withProvider = {
  "an operator signs in": () => person(async (page, context) => {
    await page.goto(base + "/console/#/activity");
    await page.getByRole("button", { name: "Sign in", exact: true }).waitFor();
    await page.screenshot({ path: join(shots, "door-provider.png") });
    await clean(page, "the door");
    await page.getByRole("button", { name: "Sign in", exact: true }).click();
    await page.getByLabel("Name").fill("sam");
    await page.getByLabel("Groups").fill("sre");
    await page.getByRole("button").click();
    await ready(page);
    want(page.url() === base + "/console/home#/activity", "the browser is at", page.url());
    want((await text(page)).includes("dev:sam · operator"), "the page does not say who has signed in");
    const cookie = (await context.cookies()).find((c) => c.name.startsWith("dormouse-console"));
    want(cookie.httpOnly && cookie.sameSite === "Strict", cookie);
    want(await page.evaluate(() => !JSON.stringify([localStorage, sessionStorage]).includes("da_")), "the page keeps a token");
    await go(page, "#/server/weather/tools");
    await page.getByRole("button", { name: "Ask it" }).click(); // nobody of this tenant has
    await page.getByRole("button", { name: "Try get_forecast" }).click();
    await page.getByLabel("city").fill("Oslo");
    await page.getByRole("button", { name: "Call", exact: true }).click();
    await page.getByText("Sunny in Oslo, 21 degrees").waitFor();
    await page.keyboard.press("Escape");
    await page.reload();
    await ready(page);
    await go(page, "#/keys");
    await page.getByText("they sign in at dev").waitFor();
  }, { expects: ["401"] }),

  "a viewer signs in": () => person(async (page) => {
    await atTheProvider(page, "vic", "eng");
    await ready(page);
    want((await page.getByRole("button", { name: /^Stop/ }).count()) === 0 && (await text(page)).includes("dev:vic · viewer"), "a viewer may stop servers");
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByRole("button", { name: "Sign in", exact: true }).waitFor();
  }, { expects: ["401"] }),

  "a stranger does not": () => person(async (page) => {
    await atTheProvider(page, "sue", "");
    await page.getByText("The sign-in was refused: you may not use the console; ask its operator for a role.").waitFor();
    want(!page.url().includes("state="), "the address keeps the answer");
    await page.goto(base + "/console/home?code=stolen&state=forged");
    await page.getByText("This sign-in was begun in another tab").waitFor();
  }, { expects: ["401"] }),

  "a grant ends": () => person(async (page) => {
    await atTheProvider(page, "tom", "sre");
    await ready(page);
    const grants = JSON.parse(run("grants", "list", "--json"));
    run("grants", "revoke", grants.find((g) => g.principal === "dev:tom").id);
    await until("the page shows the door", async () => (await page.reload(), await pause(1500), (await page.getByLabel("API key").count()) === 1), 120);
  }, { expects: ["401"] }),
};
Object.assign(withProvider, {
  ...pages,
  consent: () => person(async (page, context) => {
    const done = "http://127.0.0.1:9/done";
    const registered = await (await fetch(`${base}/register`, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ redirect_uris: [done], client_name: "An editor" }) })).json();
    const ask = new URL("/authorize", base);
    ask.search = new URLSearchParams({ response_type: "code", client_id: registered.client_id, redirect_uri: done, code_challenge: createHash("sha256").update("v".repeat(43)).digest("base64url"), code_challenge_method: "S256", resource: `${base}/weather/mcp` });
    await page.goto(ask.href);
    await page.getByText("call every tool that you may call").waitFor();
    await look(page, "page-consent");
    await page.getByRole("button", { name: "Allow" }).click();
    await page.getByLabel("Name").waitFor();
    await look(page, "page-sign-in");
    await page.goto(base + "/callback?state=none");
    await page.getByText("go back to your client").waitFor();
    await look(page, "page-sign-in-failed");
  }, { expects: ["400", "401"] }),
});
// What the console of a machine does.
const acts = {
  "add, switch and set": () => person(async (page) => {
    const { command, args } = JSON.parse(readFileSync(file, "utf8")).mcpServers.weather;
    await enter(page);
    await page.getByRole("button", { name: "Add a server" }).click();
    await page.getByLabel("What").fill("npx -y @modelcontextprotocol/server-everything");
    await page.getByRole("textbox", { name: "Name" }).fill("extra");
    await look(page, "console-add");
    await page.getByLabel("What").fill(`${command} '${args[0]}' broken`);
    await page.getByRole("button", { name: "Add", exact: true }).click();
    await page.locator("dialog .problem", { hasText: "extra was not added" }).waitFor({ timeout: 60000 });
    want(!readFileSync(file, "utf8").includes('"extra"'), "a server that does not start was added");
    await page.getByLabel("What").fill(`${command} '${args[0]}'`);
    await page.getByLabel("Variables").fill("EXTRA_TOKEN=a-value-that-nobody-sees");
    await page.getByRole("button", { name: "Add", exact: true }).click();
    await page.getByText(/added extra.*: 3 tools/).waitFor({ timeout: 60000 });
    await look(page, "console-servers");
    await go(page, "#/server/extra/settings");
    await page.getByRole("button", { name: "Set EXTRA_TOKEN" }).click();
    await page.getByLabel("Value").fill("another-value");
    await look(page, "console-value");
    await page.getByRole("button", { name: "Set", exact: true }).click();
    await until("the value is kept", () => readFileSync(join(file, "..", ".env"), "utf8").includes("another-value"));
    want(!(await text(page)).includes("another-value") && !readFileSync(file, "utf8").includes("another-value"), "the value is shown");
    await page.getByRole("button", { name: "Switch off" }).click();
    await page.getByRole("button", { name: "Switch on" }).waitFor();
    await look(page, "console-off");
    await page.getByRole("button", { name: "Switch on" }).click();
    await page.getByRole("button", { name: "Switch off" }).waitFor();
    await go(page, "#/");
    execFileSync(dormouse, ["remove", "extra", "--servers", file], { env: { ...process.env, DORMOUSE_DATA: data } });
    await until("the server is gone", async () => (await page.getByRole("row", { name: /^extra/ }).count()) === 0);
  }, { expects: ["400"] }),

  "a held tool is taken": () => person(async (page) => {
    const lists = async () => {
      const { text } = await list("recipes", people.ada);
      want(text.includes("get_alerts"), text);
      return text.includes("wipe");
    };
    want(!(await lists()), "the tool is there already");
    await call("recipes", people.ada, "get_alerts", {});
    want(!(await lists()), "a client sees what was not accepted");
    await enter(page);
    await go(page, "#/server/recipes/tools");
    const held = page.getByRole("region", { name: "Held tools" });
    await held.getByText("Ignore all previous instructions").waitFor();
    await clean(page);
    await held.getByRole("button", { name: "Accept wipe" }).click();
    await held.waitFor({ state: "detached" });
    await until("clients see the tool", lists);
  }),

  limits: () => person(async (page) => {
    await enter(page);
    await go(page, "#/people");
    await page.getByRole("button", { name: "Set limits of globex" }).click();
    await page.getByLabel("Calls of one person", { exact: true }).fill("60/m");
    await look(page, "console-limits");
    await page.getByRole("button", { name: "Set", exact: true }).click();
    await page.getByRole("row", { name: /^globex.*60\/m/ }).waitFor();
    want(run("quotas", "--tenant", "globex", "--json", "--servers", file).includes("60/m"), "the limit is not kept");
  }),

  "a key for a client": () => person(async (page) => {
    await enter(page);
    await go(page, "#/server/weather/tools");
    await page.getByRole("button", { name: "Connect" }).click();
    await page.getByLabel("Who").fill("dora");
    await look(page, "console-key-for");
    await page.getByRole("button", { name: "Make a key and fill it in" }).click();
    const line = await page.getByLabel("command", { exact: true }).innerText();
    const made = line.match(/dm_[\w-]+/)?.[0];
    want(made && line.startsWith("claude mcp add"), line);
    const kept = JSON.parse(run("keys", "list", "--json")).find((k) => made.includes(k.id));
    want(kept?.role === "user" && kept.servers.join() === "weather" && kept.expires, kept);
    await look(page, "console-connect");
    await page.getByLabel("Client", { exact: true }).selectOption("cursor");
    await page.getByRole("link", { name: "Add to Cursor" }).waitFor();
  }),
};
Object.assign(checks, pages, acts);
Object.assign(ofAStack, pages);
const shared = ["the link works once", "views", "a tool is tried", "keyboard", "keys", "pages of others", "hidden"];
const chosen = oauth ? withProvider : stack ? { ...Object.fromEntries(shared.map((name) => [name, checks[name]])), ...ofAStack } : checks;

for (const [check, run] of Object.entries(chosen)) {
  const begun = performance.now();
  try {
    const note = await run();
    console.log(JSON.stringify({ check, note: `${note ? note + "; " : ""}${((performance.now() - begun) / 1000).toFixed(1)} s` }));
  } catch (error) {
    console.log(JSON.stringify({ check, error: error.message }));
  }
}
await browser.close();
