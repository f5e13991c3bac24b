// What changes the servers file, and the limits of tenants.
import { html, useState } from "./vendor/htm-preact.js";
import { act } from "./api.js";
import { money } from "./format.js";
import { useData } from "./live.js";
import { Dialog, Do, Nothing, Problem, Snippet, Table } from "./parts.js";

/** A form in a dialog. send gets its data, and the dialog closes unless that fails. */
function Form({ title, word, busyWord = word, close, done, send, children }) {
  const [error, setError] = useState();
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const data = new FormData(event.target);
    setBusy(true);
    setError();
    try {
      const said = await send(data);
      done?.(said);
      close();
    } catch (e) {
      setError(e);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} close=${close}><${Problem} error=${error} /><form onSubmit=${submit}>${children}
    <div class="row end"><button type="button" class="quiet" onClick=${close}>Cancel</button><button class="first" disabled=${busy}>${busy ? busyWord : word}</button></div></form><//>`;
}

/** Adds a server, by all that dormouse add takes. */
export function Add({ close, done }) {
  const send = (form) => act("POST", "servers", {
    name: form.get("name").trim(), what: form.get("what").trim(),
    env: form.get("env").split("\n").map((l) => l.trim()).filter(Boolean),
  });
  return html`<${Form} title="Add a server" word="Add" busyWord="Installing and starting…" close=${close} done=${done} send=${send}>
    <div class="field"><label for="what">What</label><input id="what" name="what" required autocomplete="off" spellcheck="false" autofocus aria-describedby="what-about" placeholder="npx -y @modelcontextprotocol/server-everything" /><p class="hint" id="what-about">What you would type behind <code>dormouse add</code>: a command, a URL, or a name in the registry.</p></div>
    <div class="field"><label for="name">Name</label><input id="name" name="name" autocomplete="off" spellcheck="false" aria-describedby="name-about" /><p class="hint" id="name-about">Of the server in its address. A name in the registry needs none.</p></div>
    <div class="field"><label for="env">Variables <span class="muted">optional</span></label><textarea id="env" name="env" rows="3" autocomplete="off" spellcheck="false" aria-describedby="env-about"></textarea><p class="hint" id="env-about">NAME=VALUE, one on a line. They go into .env, which only the user of this machine can read.</p></div><//>`;
}

/** Sets a variable of a server. name is the variable, "" for a new one. */
export function SetValue({ server, name, close, done }) {
  const send = (form) => act("POST", `servers/${encodeURIComponent(server)}/value`, { name: name || form.get("name").trim(), value: form.get("value") });
  return html`<${Form} title=${name ? `Set ${name}` : "Set a variable"} word="Set" close=${close} done=${done} send=${send}>
    ${!name && html`<div class="field"><label for="name">Variable</label><input id="name" name="name" required pattern="[A-Za-z_][A-Za-z0-9_]*" autocomplete="off" spellcheck="false" autofocus /></div>`}
    <div class="field"><label for="value">Value</label><input id="value" name="value" type="password" autocomplete="off" required aria-describedby="value-about" /><p class="hint" id="value-about">It goes into .env and is never shown. The next process of ${server} gets it.</p></div><//>`;
}

/** Switches a server off or on. */
export const Turn = ({ server, done }) => {
  const off = server.state === "off";
  return html`<${Do} to=${() => act("POST", `servers/${encodeURIComponent(server.name)}/switch`, { on: off })} done=${done}>${off ? "Switch on" : "Switch off"}<//>`;
};

const limits = [
  ["principal", "Calls of one person", "60/m", (v) => v],
  ["concurrent", "Calls of one person at once", "4", Number],
  ["boxes", "Boxes that run", "8", Number],
  ["month_usd", "Dollars a month, at the prices of AWS", "20", Number],
];

function SetQuota({ quota, close, done }) {
  const send = (form) => {
    const change = {};
    for (const [key, , , read] of limits) {
      const text = form.get(key).trim(), before = String(quota.limits[key] ?? "");
      if (text !== before) change[key] = text === "" ? null : read(text);
    }
    return act("POST", "quotas/" + encodeURIComponent(quota.tenant), change);
  };
  return html`<${Form} title=${`Limits of ${quota.tenant}`} word="Set" close=${close} done=${done} send=${send}>
    ${limits.map(([key, title, example]) => html`<div class="field" key=${key}><label for=${key}>${title}</label><input id=${key} name=${key} defaultValue=${quota.limits[key] ?? ""} placeholder=${`no limit; for example ${example}`} autocomplete="off" /></div>`)}<//>`;
}

/** The limits of tenants. */
export function Quotas({ me }) {
  const { data, error, again } = useData("quotas");
  const [open, setOpen] = useState();
  if (!data) return error?.code === "not_here" ? null : html`<${Problem} error=${error} />`;
  const { quotas, on } = data[0];
  const columns = [
    { head: "Tenant", cell: (q) => q.tenant },
    { head: "A person", cell: (q) => q.limits.principal ?? "–" },
    { head: "At once", num: true, wide: true, cell: (q) => q.limits.concurrent ?? "–" },
    { head: "Boxes", num: true, wide: true, cell: (q) => q.limits.boxes ?? "–" },
    { head: "A month", num: true, wide: true, cell: (q) => (q.limits.month_usd ? `${money(q.usd)} of ${money(q.limits.month_usd)}` : "–") },
  ];
  if (me.role === "operator" && (!me.tenant || me.tenant === "default")) columns.push({ head: "", label: "Actions", class: "actions", cell: (q) => html`<button type="button" class="quiet small" aria-label=${"Set limits of " + q.tenant} onClick=${() => setOpen(q)}>Set</button>` });
  return html`<section class="stack"><h2>Limits</h2>${!on && html`<p class="hint">No limit holds: the servers file has no <code>x-dormouse.limits</code>, where <code>{}</code> is enough.</p>`}
    ${quotas.length ? html`<${Table} caption="Limits" columns=${columns} rows=${quotas} id=${(q) => q.tenant} />` : html`<${Nothing}>There is no tenant yet.<//>`}</section>
    ${open && html`<${SetQuota} quota=${open} close=${() => setOpen()} done=${again} />`}`;
}

/** How each client connects to a server, with a key if there is one. */
export function Clients({ server, apiKey, what }) {
  const [all, setAll] = useState();
  const [chosen, choose] = useState("claude-code");
  const [error, setError] = useState();
  if (!all && !error) {
    act("POST", `servers/${encodeURIComponent(server)}/clients`, { key: apiKey }).then((a) => setAll(a.clients), setError);
    return html`<div class="loading" />`;
  }
  if (error) return html`<${Problem} error=${error} />`;
  const client = all.find((c) => c.name === chosen);
  return html`<div class="field"><label for="client">Client</label><select id="client" value=${chosen} onChange=${(e) => choose(e.target.value)}>${all.map((c) => html`<option key=${c.name} value=${c.name}>${c.title}</option>`)}</select></div>
    ${client.ways.map((w, i) => (w.how === "click" && /^[a-z]+:/.test(w.text)
      ? html`<p key=${i}><a class="button first" href=${w.text}>Add to ${client.title}</a></p>`
      : html`<div key=${i} class="stack tight"><h3>${w.how === "run" ? "In a terminal" : w.how === "click" ? "In its settings" : html`In <code>${w.file.replace("CONFIG/", "~/.config/")}</code>`}</h3><${Snippet} text=${w.text} label=${w.how === "run" ? "command" : "entry"} /></div>`))}
    ${what && html`<p class="hint">${what}</p>`}`;
}

/** Makes a key for one server and one person, and fills it into the entry of the client. */
export function KeyFor({ server, made }) {
  const [error, setError] = useState();
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      made(await act("POST", "keys", { principal: form.get("who").trim(), role: "user", servers: [server], life_seconds: Number(form.get("days")) * 86400 }));
    } catch (e) {
      setError(e);
    }
  };
  return html`<${Problem} error=${error} /><form onSubmit=${submit}>
    <p>Callers need an API key. This one is for ${server} only.</p>
    <div class="field"><label for="who">Who</label><input id="who" name="who" required autocomplete="off" autofocus /></div>
    <div class="field"><label for="days">Days until it ends</label><input id="days" name="days" type="number" min="1" max="36500" defaultValue="30" required /></div>
    <div class="row end"><button class="first">Make a key and fill it in</button></div></form>`;
}
