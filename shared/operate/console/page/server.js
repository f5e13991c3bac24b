// One server: its plots, tools, sessions, output, settings and starts.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { act, ask, endpoint, lines, onStack } from "./api.js";
import { ago, at, count, ends, ms, short, since, size, some } from "./format.js";
import { Clients, KeyFor, SetValue, Turn } from "./edit.js";
import { useClock, useData } from "./live.js";
import { Choice, Copy, Dialog, Do, Elsewhere, Nothing, Problem, Snippet, State, Sure, Table, Trim, serverLink, stateOf, stop } from "./parts.js";
import { Calls, Latency, Wakes } from "./plot.js";
import { TryTool } from "./tool.js";

const path = (name) => "servers/" + encodeURIComponent(name);
const spans = { "1h": [3600, "1m", "a minute"], "24h": [86400, "15m", "in 15 minutes"], "168h": [604800, "2h", "in 2 hours"], "720h": [2592000, "6h", "in 6 hours"] };

function Plots({ name }) {
  const [span, set] = useState("24h");
  const [seconds, step, each] = spans[span];
  const { data, error } = useData(`series?server=${encodeURIComponent(name)}&since=${span}&step=${step}&sum=true`);
  return html`<section class="stack" aria-label="Plots"><div class="row end"><${Choice} label="Time" value=${span} set=${set} options=${[["1h", "1 h"], ["24h", "24 h"], ["168h", "7 d"], ["720h", "30 d"]]} /></div>
    <${Problem} error=${error} />
    <div class="plots">${data && html`<${Calls} series=${data[0]} seconds=${seconds} each=${each} /><${Latency} series=${data[0]} seconds=${seconds} /><${Wakes} series=${data[0]} seconds=${seconds} each=${each} />`}</div></section>`;
}

function Connect({ me, server, close }) {
  const open = me.access === "open" || me.sign_in;
  const makes = !open && me.role === "operator";
  const [made, setMade] = useState();
  return html`<${Dialog} title=${"Connect a client to " + server.name} close=${close}>
    ${me.sign_in && html`<p>The client opens a browser, in which its user signs in at ${me.sign_in}.</p>`}
    ${makes && !made ? html`<${KeyFor} server=${server.name} made=${setMade} />`
      : html`<h3>Address</h3><${Snippet} text=${endpoint(me) + server.path} label="address" />
        <${Clients} server=${server.name} apiKey=${made?.key ?? (open ? "" : "KEY")} what=${made ? `The key of ${made.principal} is in it. Copy it now: it cannot be shown again.` : !open && "Callers need an API key: an operator makes one, and it stands in the place of KEY."} />`}<//>`;
}

// Characters that nobody sees, or that change the order of others.
const hidden = /[\p{C}\p{Zl}\p{Zp}\p{Variation_Selector}\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0]/gu;
const visible = (text) => text.replace(hidden, (c) => (c === "\n" || c === "\t" ? c : `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`));

function Word({ text, op, marked }) {
  const shown = marked ? html`<mark title="This may be an instruction to a model, or hide text">${visible(text)}</mark>` : visible(text);
  return op === "+" ? html`<ins>${shown}</ins>` : op === "-" ? html`<del>${shown}</del>` : html`<span>${shown}</span>`;
}

/** The tools that are held back, and how they differ from what was accepted. */
function Held({ me, server, done }) {
  const { data, error, again } = useData(path(server.name) + "/held");
  const held = data?.[0]?.held ?? [];
  const accept = (tools) => () => act("POST", path(server.name) + "/accept", { tools: Object.fromEntries(tools.map((t) => [t.name, t.hash])) });
  const taken = () => (again(), done());
  if (!held.length) return html`<${Problem} error=${error} />`;
  return html`<section class="held" aria-label="Held tools"><div class="row spread"><h2>${some(held.length, "tool is", "tools are")} held back</h2>
      ${me.role === "operator" && held.length > 1 && html`<${Do} to=${accept(held)} done=${taken}>Accept all<//>`}</div>
    <p class="hint">Clients see what was accepted. Accept a tool only if you want models to read it as it is here.</p>
    ${held.map((t) => html`<article key=${t.name} class=${t.marked ? "marked" : ""}><div class="row spread"><h3><code>${visible(t.name)}</code> ${t.kind} <span class="muted">${ago(t.since)}</span></h3>
      ${me.role === "operator" && html`<${Do} kind="small" label=${"Accept " + t.name} to=${accept([t])} done=${taken}>Accept<//>`}</div>
      <dl>${t.parts.map((p) => html`<div key=${p.path}><dt><code>${visible(p.path)}</code></dt><dd>${p.words.map((w, i) => html`<${Word} key=${i} ...${w} />`)}</dd></div>`)}</dl></article>`)}</section>`;
}

function Tools({ me, server, query }) {
  // Without a record there is nothing to ask for.
  const { data, error, again } = useData(server.tools === undefined ? "" : path(server.name) + "/tools");
  const [trying, setTrying] = useState();
  const [asked, setAsked] = useState(); // of a server whose answers are not recorded
  const tools = data?.[0]?.tools ?? asked;
  useEffect(() => {
    if (query.try && tools) setTrying(tools.find((t) => t.name === query.try) ?? tools[0]);
  }, [query.try, !tools]);
  const close = () => {
    setTrying();
    if (query.try) location.replace(serverLink(server.name, "tools"));
  };
  const calls = me.role === "operator";
  if ((error || data) && !tools) {
    return html`<${Nothing}>${!error || error.code === "not_found" ? "Nobody has asked this server for its tools yet." : error.message}${calls && html` <${Do} to=${async () => setAsked((await ask(me, server.name, "tools/list", {})).tools)} done=${again}>Ask it<//>`}<//>`;
  }
  if (!tools) return html`<div class="loading" />`;
  if (!tools.length) return html`<${Nothing}>This server has no tools.<//>`;
  return html`<p class="hint">As the server said ${data?.[0] ? ago(data[0].taken) : "now"}. Looking at them wakes nothing.</p>
    <ul class="tools">${tools.map((t) => html`<li key=${t.name}><div><h2>${t.title ?? t.name}${t.title && html` <code>${t.name}</code>`}</h2><p>${t.description?.split("\n")[0]}</p>
      <p class="arguments">${Object.keys(t.inputSchema?.properties ?? {}).map((a) => html`<code key=${a}>${a}${t.inputSchema.required?.includes(a) ? "" : "?"}</code> `)}</p></div>
      ${calls && html`<button type="button" class="small" aria-label=${"Try " + t.name} onClick=${() => setTrying(t)}>Try</button>`}</li>`)}</ul>
    ${trying && html`<${TryTool} me=${me} server=${server.name} tool=${trying} close=${close} />`}`;
}

function Sessions({ me, server }) {
  const { data, error, again } = useData(`sessions?limit=1000&server=${encodeURIComponent(server.name)}`, "processes");
  const [ending, setEnding] = useState();
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<div class="loading" />`;
  const of = new Map();
  for (const p of [...(data[1].processes ?? [])].reverse()) for (const id of p.sessions) of.set(id, p);
  const rows = data[0].sessions.map((s) => ({ ...s, process: of.get(s.id) })).sort((a, b) => (a.last_message < b.last_message ? 1 : -1));
  const tenants = !me.tenant && new Set(rows.map((s) => s.tenant)).size > 1;
  // A stack knows the boxes that are up, and not the processes in them.
  const stack = onStack(me), up = new Map((data[1].boxes ?? []).map((b) => [b.box, b.state]));
  const words = { ready: "awake", started: "starting", staging: "starting", exited: "failed" };
  const state = (s) => (s.state === "ended" ? "off" : stack ? up.get(s.tenant + "/" + s.server) ?? "asleep" : words[s.process?.state] ?? "asleep");
  const columns = [
    { head: "Who", cell: (s) => html`<${Trim} text=${s.principal} href=${"#/activity?who=" + encodeURIComponent(s.principal)} />`, sort: (s) => s.principal },
    ...(tenants ? [{ head: "Tenant", wide: true, cell: (s) => s.tenant, sort: (s) => s.tenant }] : []),
    { head: "Client", wide: true, cell: (s) => html`<${Trim} text=${s.client ?? "–"} />`, sort: (s) => s.client },
    { head: stack ? "Box" : "State", cell: (s) => (s.state === "ended" ? "ended" : html`<${State} of=${state(s)} more=${s.process && state(s) === "awake" ? since(s.process.since) : ""} />`), sort: state },
    ...(stack ? [] : [{ head: "Memory", num: true, wide: true, cell: (s) => size(s.process?.memory_bytes), sort: (s) => s.process?.memory_bytes }]),
    { head: "Last message", num: true, wide: true, cell: (s) => ago(s.last_message), sort: (s) => s.last_message },
    { head: "Until", wide: true, cell: (s) => ends(s.expires), sort: (s) => s.expires },
    { head: "Session", wide: true, cell: (s) => html`<code title=${s.id}>${short(s.id)}</code>` },
  ];
  if (me.role === "operator") {
    columns.push({ head: "", label: "Actions", class: "actions", cell: (s) => html`<div class="row">
      ${!stack && html`<a class="button quiet small wide" href=${serverLink(server.name, "log") + "?of=" + s.id} aria-label=${"Log of " + short(s.id)}>Log</a>`}
      ${state(s) === "awake" && html`<${Do} kind="quiet small" label=${"Stop " + short(s.id)} to=${() => stop("sessions/" + s.id)} done=${again}>Stop<//>`}
      ${s.state !== "ended" && html`<button type="button" class="quiet small" aria-label=${"End " + short(s.id)} onClick=${() => setEnding(s)}>End</button>`}</div>` });
  }
  return html`<${Problem} error=${error} />${rows.length ? html`<${Table} caption=${some(rows.length, "session", "sessions")} columns=${columns} rows=${rows} below=${(s) => s.process?.detail && s.process.state !== "staging" && html`<div class="why"><p>${s.process.detail.split("\n")[0]}</p></div>`} />` : html`<${Nothing}>Nobody has a session with this server.<//>`}
    ${ending && html`<${Sure} title="End this session?" word="End it" close=${() => setEnding()} done=${again} to=${() => act("DELETE", "sessions/" + ending.id)}
      say=${`${ending.principal}'s session with ${ending.client ?? "a client"} ends for good, with what the server remembers for it. Stopping would keep the session.`} />`}`;
}

const mostLines = 2000;

function Log({ me, server, query }) {
  const [shown, setShown] = useState([]);
  const [follow, setFollow] = useState(true);
  const [error, setError] = useState();
  const [visible, setVisible] = useState(!document.hidden);
  const box = useRef();
  const of = query.of ?? server.name;
  useEffect(() => {
    const changed = () => setVisible(!document.hidden);
    document.addEventListener("visibilitychange", changed);
    return () => document.removeEventListener("visibilitychange", changed);
  }, []);
  useEffect(() => {
    if (me.role !== "operator" || !visible) return;
    const gone = new AbortController();
    let kept = [], timer;
    const show = () => {
      timer = undefined;
      kept = kept.slice(-mostLines);
      setShown(kept);
    };
    (async () => {
      try {
        setError();
        for await (const o of lines(`logs?of=${encodeURIComponent(of)}&lines=200${follow ? "&follow=true" : ""}`, gone.signal)) {
          kept.push(...o.text.replace(/\n$/, "").split("\n").map((text) => ({ text, process: o.process, began: o.began })));
          timer ??= setTimeout(show, 50);
        }
        show();
      } catch (e) {
        if (!gone.signal.aborted) setError(e);
      }
    })();
    return () => (gone.abort(), clearTimeout(timer));
  }, [of, follow, visible]);
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [shown]);
  if (me.role !== "operator") return html`<${Nothing}>What servers write is shown to operators only. Your key is of role ${me.role}.<//>`;
  let last;
  return html`<div class="row spread"><p class="hint">stderr of ${of === server.name ? "all processes" : html`session <code>${short(of)}</code> · <a href=${serverLink(server.name, "log")}>all</a>`}</p>
      <label class="check"><input type="checkbox" checked=${follow} onChange=${(e) => setFollow(e.target.checked)} /> Follow</label></div>
    <${Problem} error=${error} />
    <div class="log" ref=${box} role="log" tabindex="0" aria-label=${"Output of " + server.name}>${shown.length ? shown.map((l, i) => {
      const head = l.process + l.began !== last && html`<div class="process">${short(l.process)} · since ${at(l.began)}</div>`;
      last = l.process + l.began;
      return html`${head}<div key=${i} class=${l.text.startsWith("--- ") ? "muted" : ""}>${l.text}</div>`;
    }) : html`<div class="muted">It has written nothing.</div>`}</div>`;
}

const seconds = (n, none) => (n ? some(n, "second", "seconds") : none);

function Settings({ me, server }) {
  const [setting, setSetting] = useState();
  const { data, error, again } = useData(me.role === "operator" && path(server.name) + "/settings");
  if (me.role !== "operator") return html`<${Nothing}>Settings are shown to operators only. Your key is of role ${me.role}.<//>`;
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<div class="loading" />`;
  const s = data[0], box = s.box ?? {};
  const rows = [
    ["Command", s.native ? `${s.native}, in Go, within Dormouse` : html`<code>${[s.command, ...(s.args ?? [])].join(" ")}</code>`],
    ["Folder", s.cwd && html`<code>${s.cwd}</code>`],
    ["Variables", s.variables?.length && html`<ul class="plain">${s.variables.map((v) => html`<li key=${v}><code>${v}</code> <span class="muted">••••••</span>${me.edits && html` <button type="button" class="quiet small" aria-label=${"Set " + v} onClick=${() => setSetting({ name: v })}>Set</button>`}</li>`)}</ul>`],
    ["Sleeps after", seconds(s.idle_seconds, "the default time of this machine")],
    ["May take to start", seconds(s.startup_timeout_sec)],
    ["A tool may take", seconds(s.tool_timeout_sec, "any time")],
    ["Network", box.offline ? "off" : undefined],
    ["Profile", box.profile],
    ["A process serves", box.scope && { session: "one session", principal: "the sessions of one principal", shared: "the sessions of one tenant" }[box.scope]],
    ["Memory", box.memory_mb && `${box.memory_mb} MB`],
    ["Processors", box.cpus],
  ].filter(([, v]) => v);
  return html`<dl class="settings">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl><p class="hint">They stand in the servers file, whose changes are read at once. Values of variables are never shown.</p>
    ${me.edits && !s.native && !s.remote && html`<div class="row"><button type="button" onClick=${() => setSetting({ name: "" })}>Set a variable</button></div>`}
    ${setting && html`<${SetValue} server=${server.name} name=${setting.name} close=${() => setSetting()} done=${again} />`}`;
}

function Starts({ server }) {
  const { data, error } = useData(path(server.name) + "/starts");
  if (!data) return error ? html`<${Problem} error=${error} />` : html`<div class="loading" />`;
  const columns = [
    { head: "Time", class: "light", cell: (s) => at(s.time) },
    { head: "For", cell: (s) => s.principal || "–" },
    { head: "Client", wide: true, cell: (s) => s.client || "–" },
    { head: "Install", num: true, wide: true, cell: (s) => (s.install_ms ? ms(s.install_ms) : "–") },
    { head: "Ready after", num: true, cell: (s) => (s.failed ? "–" : ms(s.duration_ms)) },
    { head: "Outcome", cell: (s) => html`<${State} of=${s.failed ? "failed" : "awake"} more=${s.failed ? s.phase?.replaceAll("_", " ") : ""} />` },
  ];
  const rows = data[0].starts;
  return rows.length ? html`<${Table} caption=${"The last " + some(rows.length, "start", "starts")} columns=${columns} rows=${rows} id=${(s) => s.time + s.session} below=${(s) => s.reason && html`<p class="reason">${s.reason}</p>`} />`
    : html`<${Nothing}>No process of this server was started in the last days.<//>`;
}

const stored = { tools: ["Tools", Tools], sessions: ["Sessions", Sessions] };
const tabs = { ...stored, log: ["Log", Log], settings: ["Settings", Settings], starts: ["Starts", Starts] };

export function OneServer({ me, name, tab, query }) {
  useClock();
  const { data, error, again } = useData("servers");
  const [connecting, setConnecting] = useState(false);
  const [setting, setSetting] = useState(false);
  if (!data) return html`<h1>${name}</h1>${error ? html`<${Problem} error=${error} />` : html`<div class="loading" />`}`;
  const server = data[0].servers.find((s) => s.name === name);
  if (!server) return html`<h1>${name}</h1><${Nothing}>There is no such server, or your key is not for it. <a href="#/">All servers</a><//>`;
  const stack = onStack(me), there = stack ? stored : tabs, View = there[tab]?.[1];
  const says = { tools: server.tools, sessions: server.sessions };
  return html`<div class="title"><h1>${name}</h1><${State} of=${stateOf(server)} more=${server.state === "awake" && server.processes > 1 ? "×" + server.processes : server.state === "asleep" && server.last_message ? since(server.last_message) : ""} />
      <div class="row end deeds">${me.edits && server.state !== "not served" && html`<${Turn} server=${server} done=${again} />`}${me.role === "operator" && (server.processes > 0 || (stack && server.boxes > 0)) && html`<${Do} to=${() => stop(path(name))} done=${again}>Stop<//>`}
      ${server.path && html`<button type="button" onClick=${() => setConnecting(true)}>Connect</button>`}
      ${server.path && me.role === "operator" && html`<a class="button first" href=${serverLink(name, "tools") + "?try=" + encodeURIComponent(" ")}>Try a tool</a>`}</div></div>
    ${server.path && html`<p class="address"><code>${endpoint(me) + server.path}</code><${Copy} text=${endpoint(me) + server.path} label="Copy the address" /></p>`}
    ${server.why && html`<div class=${server.state === "off" ? "why calm" : "why"}><p>${server.why}</p>${me.edits && server.state === "not served" && html`<div class="row"><button type="button" class="small" onClick=${() => setSetting(true)}>Set a variable</button></div>`}</div>`}
    ${setting && html`<${SetValue} server=${name} name="" close=${() => setSetting(false)} done=${again} />`}
    ${server.held > 0 && html`<${Held} me=${me} server=${server} done=${again} />`}
    ${server.path && html`${!stack && html`<${Plots} name=${name} />`}
    <nav class="tabs" aria-label=${"Parts of " + name}>${Object.entries(there).map(([t, [title]]) => html`<a key=${t} href=${serverLink(name, t)} aria-current=${t === tab ? "page" : undefined}>${title}${says[t] !== undefined && html` <span class="muted">${count(says[t])}</span>`}</a>`)}</nav>
    ${View ? html`<${View} me=${me} server=${server} query=${query} />` : html`<${Nothing}>There is nothing here.<//>`}
    ${stack && html`<${Elsewhere} me=${me} what="calls, starts and the output of servers" />`}`}
    ${connecting && html`<${Connect} me=${me} server=${server} close=${() => setConnecting(false)} />`}`;
}
