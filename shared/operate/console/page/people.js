// Who uses what.
import { html } from "./vendor/htm-preact.js";
import { ago, count } from "./format.js";
import { Quotas } from "./edit.js";
import { useClock, useData } from "./live.js";
import { Nothing, Problem, Server, Table, Trim } from "./parts.js";

export function People({ me }) {
  useClock();
  const { data, error } = useData("people", "keys");
  if (!data) return html`<h1>People</h1>${error ? html`<${Problem} error=${error} />` : html`<div class="loading" />`}`;
  const keys = new Map();
  for (const k of data[1].keys) if (!k.revoked) keys.set(k.tenant + "\n" + k.principal, (keys.get(k.tenant + "\n" + k.principal) ?? 0) + 1);
  const rows = data[0].people.map((p) => ({ ...p, id: p.tenant + "\n" + p.principal }));
  const tenants = !me.tenant && new Set(rows.map((p) => p.tenant)).size > 1;
  const columns = [
    { head: "Who", cell: (p) => html`<${Trim} text=${p.principal} href=${`#/activity?since=168h&who=${encodeURIComponent(p.principal)}`} />`, sort: (p) => p.principal },
    ...(tenants ? [{ head: "Tenant", cell: (p) => p.tenant, sort: (p) => p.tenant }] : []),
    { head: "Servers", cell: (p) => p.servers.map((name, i) => html`${i ? ", " : ""}<${Server} key=${name} name=${name} />`) },
    { head: "Clients", wide: true, cell: (p) => p.clients.join(", ") || "–" },
    { head: "Calls", num: true, cell: (p) => count(p.calls), sort: (p) => p.calls },
    { head: "Failed", num: true, cell: (p) => html`<span class=${p.failed ? "bad" : ""}>${count(p.failed)}</span>`, sort: (p) => p.failed },
    { head: "Last call", num: true, cell: (p) => ago(p.last_call), sort: (p) => p.last_call },
    { head: "Keys", num: true, wide: true, cell: (p) => (keys.get(p.id) ? html`<a href=${"#/keys?who=" + encodeURIComponent(p.principal)}>${keys.get(p.id)}</a>` : "–") },
  ];
  return html`<h1>People</h1><${Problem} error=${error} />
    ${rows.length ? html`<${Table} caption="People" columns=${columns} rows=${rows} />` : html`<${Nothing}>Nobody has called a tool in the last seven days.<//>`}
    <p class="hint">Calls are of the last seven days.</p><${Quotas} me=${me} />`;
}
