// API keys: make, rotate, revoke.
import { html, useState } from "./vendor/htm-preact.js";
import { act } from "./api.js";
import { ago, onDay } from "./format.js";
import { useClock, useData } from "./live.js";
import { Dialog, Nothing, Problem, Snippet, Sure, Table, Trim } from "./parts.js";

const roles = { user: "calls servers", viewer: "sees, without output of servers", auditor: "sees, and reads what is kept for auditors", operator: "calls, sees and acts" };

function Made({ made, close }) {
  return html`<${Dialog} title="The new key" close=${close}><p>Copy it now: it cannot be shown again.</p><${Snippet} text=${made.key} label="key" />
    <p class="hint">Clients send it as <code>Authorization: Bearer KEY</code>. It acts as ${made.principal}.</p><div class="row end"><button type="button" class="first" onClick=${close}>Done</button></div><//>`;
}

function Create({ me, servers, close, made }) {
  const [error, setError] = useState();
  const [every, setEvery] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    try {
      if (!every && !form.get("server")) throw new Error("Choose the servers that the key is for.");
      made(await act("POST", "keys", {
        principal: form.get("who").trim(), role: form.get("role"), servers: every ? ["*"] : form.getAll("server"),
        tenant: form.get("tenant")?.trim() || undefined, life_seconds: Number(form.get("days")) * 86400,
      }));
    } catch (e) {
      setError(e);
    }
  };
  return html`<${Dialog} title="Make a key" close=${close}><${Problem} error=${error} /><form onSubmit=${submit}>
    <div class="field"><label for="who">Who</label><input id="who" name="who" required autocomplete="off" aria-describedby="who-about" autofocus /><p class="hint" id="who-about">Sessions belong to this name.</p></div>
    ${!me.tenant && html`<div class="field"><label for="tenant">Tenant <span class="muted">optional</span></label><input id="tenant" name="tenant" placeholder="default" autocomplete="off" /></div>`}
    <fieldset><legend>Role</legend>${Object.entries(roles).map(([role, what], i) => html`<label key=${role} class="check"><input type="radio" name="role" value=${role} checked=${i === 0} /> ${role} <span class="muted">${what}</span></label>`)}</fieldset>
    <fieldset><legend>Servers</legend><label class="check"><input type="checkbox" checked=${every} onChange=${(e) => setEvery(e.target.checked)} /> every server</label>
      ${!every && servers.map((s) => html`<label key=${s.name} class="check"><input type="checkbox" name="server" value=${s.name} /> ${s.name}</label>`)}</fieldset>
    <div class="field"><label for="days">Days until it ends</label><input id="days" name="days" type="number" min="0" max="36500" defaultValue="30" required aria-describedby="days-about" /><p class="hint" id="days-about">0: until it is revoked.</p></div>
    <div class="row end"><button type="button" class="quiet" onClick=${close}>Cancel</button><button class="first">Make it</button></div></form><//>`;
}

export function Keys({ me, query }) {
  useClock();
  const { data, error, again } = useData("keys", "servers");
  const [open, setOpen] = useState();
  if (!data) return html`<h1>Keys</h1>${error ? html`<${Problem} error=${error} />` : html`<div class="loading" />`}`;
  const acts = me.role === "operator";
  const rows = data[0].keys.filter((k) => !query.who || k.principal === query.who);
  const close = () => setOpen();
  const columns = [
    { head: "Who", cell: (k) => html`<${Trim} text=${k.principal} /><span class="narrow hint"><code>${k.id}</code> ${k.servers.includes("*") ? "all servers" : k.servers.join(", ")}</span>`, sort: (k) => k.principal },
    { head: "Role", class: "middle", cell: (k) => k.role, sort: (k) => k.role },
    { head: "Servers", wide: true, cell: (k) => (k.servers.includes("*") ? "all" : k.servers.join(", ")) },
    ...(me.tenant ? [] : [{ head: "Tenant", wide: true, cell: (k) => k.tenant, sort: (k) => k.tenant }]),
    { head: "Last used", num: true, wide: true, cell: (k) => ago(k.last_used), sort: (k) => k.last_used },
    { head: "Ends", class: "light", cell: (k) => (k.revoked ? html`<span class="muted">revoked ${onDay(k.revoked)}</span>` : onDay(k.expires)), sort: (k) => k.expires ?? "9" },
    { head: "Key", wide: true, cell: (k) => html`<code>${k.id}</code>` },
  ];
  if (acts) {
    columns.push({ head: "", label: "Actions", class: "actions", cell: (k) => !k.revoked && html`<div class="row"><button type="button" class="quiet small" aria-label=${`Rotate ${k.id} of ${k.principal}`} onClick=${() => setOpen({ rotate: k })}>Rotate</button><button type="button" class="quiet small" aria-label=${`Revoke ${k.id} of ${k.principal}`} onClick=${() => setOpen({ revoke: k })}>Revoke</button></div>` });
  }
  const rotate = async () => {
    const { key } = await act("POST", `keys/${open.rotate.id}/rotate`, { grace_seconds: 86400 });
    setTimeout(() => setOpen({ made: key }));
  };
  return html`<div class="title"><h1>${me.sign_in ? "Keys and sign-in" : "Keys"}</h1>${query.who && html`<span>of ${query.who} · <a href="#/keys">all</a></span>`}<div class="row end">${acts && html`<button type="button" class="first" onClick=${() => setOpen({ create: true })}>Make a key</button>`}</div></div>
    <${Problem} error=${error} />
    ${rows.length ? html`<${Table} caption="Keys" columns=${columns} rows=${rows} />` : html`<${Nothing}>There are no keys.${me.access === "open" && " Callers on this machine need none."}<//>`}
    ${me.sign_in && html`<p class="hint">Callers need no key: they sign in at ${me.sign_in}.</p>`}
    ${open?.create && html`<${Create} me=${me} servers=${data[1].servers.filter((s) => s.path)} close=${close} made=${(key) => (again(), setOpen({ made: key }))} />`}
    ${open?.made && html`<${Made} made=${open.made} close=${close} />`}
    ${open?.rotate && html`<${Sure} title="Rotate this key?" word="Rotate" close=${close} done=${again} to=${rotate} say=${`${open.rotate.principal} gets a new key. The old one is good for another 24 hours.`} />`}
    ${open?.revoke && html`<${Sure} title="Revoke this key?" word="Revoke" close=${close} done=${again} to=${() => act("DELETE", "keys/" + open.revoke.id)} say=${`Every endpoint refuses ${open.revoke.principal}'s key within 30 seconds.`} />`}`;
}
