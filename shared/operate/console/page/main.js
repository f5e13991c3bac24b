// The console: the frame around all views, and the way between them.
import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { get, onStack, showOnly, signOut, whoami } from "./api.js";
import { onSignedOut, poll, useClock, useLive } from "./live.js";
import * as oauth from "./oauth.js";
import { at } from "./format.js";
import { Elsewhere, Problem } from "./parts.js";
import { Activity } from "./activity.js";
import { Costs } from "./costs.js";
import { Keys } from "./keys.js";
import { OneServer } from "./server.js";
import { People } from "./people.js";
import { Servers } from "./servers.js";
import { SignIn } from "./signin.js";

const views = { "": ["Servers", Servers], activity: ["Activity", Activity], people: ["People", People], costs: ["Costs", Costs], keys: ["Keys", Keys] };

/** The place that the address names: its parts, and its query. */
function place() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query)) };
}

function usePlace() {
  const [now, set] = useState(place);
  useEffect(() => {
    const moved = () => set(place());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return now;
}

const said = { live: "live", lost: "not connected", paused: "paused", starting: "connecting", often: "every 20 s", seldom: "every minute" };
const Live = () => {
  const state = useLive();
  return html`<span class="live ${state}" role="status"><i aria-hidden="true"></i>${said[state]}</span>`;
};

/** A bar across while nothing is heard: all that is shown may be old. */
function Lost() {
  useClock();
  const state = useLive();
  const since = useRef();
  if (state !== "lost") return (since.current = undefined, null);
  since.current ??= new Date();
  return html`<p class="lost-bar" role="alert">Dormouse does not answer since ${at(since.current.toISOString())}. What you see is from before; the page goes on by itself.</p>`;
}

const schemes = { auto: "Colours of the system", light: "Light", dark: "Dark" };
const kept = () => localStorage.getItem("scheme") ?? "auto";
const paint = (scheme) => (document.documentElement.className = scheme === "auto" ? "" : scheme);

function Scheme() {
  const [scheme, set] = useState(kept);
  const next = { auto: "light", light: "dark", dark: "auto" }[scheme];
  const turn = () => {
    localStorage.setItem("scheme", next);
    paint(next);
    set(next);
  };
  return html`<button type="button" class="quiet icon" onClick=${turn} aria-label=${`${schemes[scheme]}; change to ${schemes[next]}`} title=${schemes[scheme]}>
    <svg viewBox="0 0 16 16" aria-hidden="true"><circle cx="8" cy="8" r="6.200" fill="none" stroke="currentColor" stroke-width="1.500" />${scheme !== "light" && html`<path d="M8 1.800a6.200 6.200 0 0 1 0 12.400z" fill="currentColor" />`}${scheme === "dark" && html`<circle cx="8" cy="8" r="6" fill="currentColor" />`}</svg></button>`;
}

/** The choice of one tenant, for a visitor who sees several. */
function Tenants({ chosen, choose }) {
  const [all, set] = useState([]);
  useEffect(() => {
    if (!chosen) Promise.all([get("keys"), get("people")]).then(([{ keys }, { people }]) => set([...new Set([...keys, ...people].map((r) => r.tenant))].sort()), () => {});
  }, []);
  const of = chosen && !all.includes(chosen) ? [chosen, ...all] : all;
  return of.length > 1 && html`<select class="tenants" aria-label="Tenant" value=${chosen} onChange=${(e) => choose(e.target.value)}><option value="">all tenants</option>${of.map((t) => html`<option key=${t} value=${t}>${t}</option>`)}</select>`;
}

// What a stack writes into its logs and keeps nowhere else.
const logged = { activity: "calls", people: "who called", costs: "what was used" };

function Frame({ me, leave }) {
  const { parts, query } = usePlace();
  const one = parts[0] === "server";
  const [tenant, setTenant] = useState("");
  const choose = (t) => (showOnly(t), setTenant(t));
  useEffect(() => () => showOnly(""), []);
  const [title, Own] = views[one ? "" : parts[0]] ?? [];
  const View = onStack(me) && logged[parts[0]] && !(parts[0] === "activity" && me.search_usd_per_gb) ? () => html`<h1>${title}</h1><${Elsewhere} me=${me} what=${logged[parts[0]]} />` : Own;
  useEffect(() => {
    document.title = `${one ? parts[1] : title ?? "Not found"} · Dormouse`;
    document.getElementById("main")?.scrollTo(0, 0);
  }, [parts.join("/")]);
  return html`<a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), document.getElementById("main").focus())}>Skip to the content</a>
    <header><a class="name" href="#/"><img src=${new URL("icon.svg", import.meta.url).href} alt="" width="22" height="22" />Dormouse</a>
      <nav aria-label="Views">${Object.entries(views).filter(([path]) => path !== "costs" || parts[0] === "costs").map(([path, [name]]) => html`<a key=${path} href=${"#/" + path} aria-current=${(one ? "" : parts[0]) === path ? "page" : undefined}>${name}</a>`)}</nav>
      <div class="who"><${Live} />${!me.tenant && !onStack(me) && html`<${Tenants} chosen=${tenant} choose=${choose} />`}<span class="tenant" title=${me.tenant && "tenant " + me.tenant}>${me.tenant ? html`<span class="trim">${me.principal}</span> · ${me.role}` : "this machine"}</span><${Scheme} /><button type="button" class="quiet small" onClick=${leave}>Sign out</button></div></header>
    <${Lost} /><main id="main" tabindex="-1" key=${tenant}>${one ? html`<${OneServer} key=${parts[1]} me=${me} name=${parts[1]} tab=${parts[2] ?? "tools"} query=${query} />`
      : View ? html`<${View} me=${me} query=${query} />` : html`<h1>There is nothing here</h1><p><a href="#/">All servers</a></p>`}</main>`;
}

function App() {
  const [me, setMe] = useState();
  const [error, setError] = useState();
  const { parts } = usePlace();
  const entered = (who) => {
    if (parts[0] === "sign-in") location.hash = "#/";
    if (onStack(who)) poll();
    setMe(who);
  };
  const [refused, setRefused] = useState();
  useEffect(() => {
    onSignedOut(() => setMe(null));
    const outside = (e) => (e.status === 401 || e.status === 403 ? setMe(null) : setError(e));
    oauth.finish().then((who) => (who ? entered(who) : whoami().then(entered, outside)), (e) => (setRefused(e), setMe(null)));
  }, []);
  if (error) return html`<main class="door"><h1>Dormouse</h1><${Problem} error=${error} /></main>`;
  if (me === undefined) return null;
  if (!me) return html`<${SignIn} entered=${entered} refused=${refused} how=${parts[0] === "sign-in" ? parts[1] : undefined} />`;
  return html`<${Frame} me=${me} leave=${async () => (await signOut(), oauth.forget(), setMe(null))} />`;
}

paint(kept());
render(html`<${App} />`, document.getElementById("app"));
