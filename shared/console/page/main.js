// The console: the frame around all views, and the way between them.
import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { get, signOut } from "./api.js";
import { useLive } from "./live.js";
import { Problem } from "./parts.js";
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

const said = { live: "live", lost: "not connected", paused: "paused", starting: "connecting" };
const Live = () => {
  const state = useLive();
  return html`<span class="live ${state}" role="status"><i aria-hidden="true"></i>${said[state]}</span>`;
};

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

function Frame({ me, leave }) {
  const { parts, query } = usePlace();
  const one = parts[0] === "server";
  const [title, View] = views[one ? "" : parts[0]] ?? [];
  useEffect(() => {
    document.title = `${one ? parts[1] : title ?? "Not found"} · Dormouse`;
    document.getElementById("main")?.scrollTo(0, 0);
  }, [parts.join("/")]);
  return html`<a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), document.getElementById("main").focus())}>Skip to the content</a>
    <header><a class="name" href="#/"><img src=${new URL("icon.svg", import.meta.url).href} alt="" width="22" height="22" />Dormouse</a>
      <nav aria-label="Views">${Object.entries(views).map(([path, [name]]) => html`<a key=${path} href=${"#/" + path} aria-current=${(one ? "" : parts[0]) === path ? "page" : undefined}>${name}</a>`)}</nav>
      <div class="who"><${Live} />${me.tenant && html`<span class="tenant" title=${"tenant " + me.tenant}>${me.principal} · ${me.role}</span>`}<${Scheme} /><button type="button" class="quiet small" onClick=${leave}>Sign out</button></div></header>
    <main id="main" tabindex="-1">${one ? html`<${OneServer} key=${parts[1]} me=${me} name=${parts[1]} tab=${parts[2] ?? "tools"} query=${query} />`
      : View ? html`<${View} me=${me} query=${query} />` : html`<h1>There is nothing here</h1><p><a href="#/">All servers</a></p>`}</main>`;
}

function App() {
  const [me, setMe] = useState();
  const [error, setError] = useState();
  const { parts } = usePlace();
  useEffect(() => {
    get("").then(setMe, (e) => (e.status === 401 || e.status === 403 ? setMe(null) : setError(e)));
  }, []);
  if (error) return html`<main class="door"><h1>Dormouse</h1><${Problem} error=${error} /></main>`;
  if (me === undefined) return null;
  const entered = (who) => {
    if (parts[0] === "sign-in") location.hash = "#/";
    setMe(who);
  };
  if (!me) return html`<${SignIn} entered=${entered} used=${parts[0] === "sign-in"} />`;
  return html`<${Frame} me=${me} leave=${async () => (await signOut(), setMe(null))} />`;
}

paint(kept());
render(html`<${App} />`, document.getElementById("app"));
