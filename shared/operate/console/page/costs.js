// What AWS would have billed for the work of this machine.
import { html, useState } from "./vendor/htm-preact.js";
import { count, money, onDay } from "./format.js";
import { useData } from "./live.js";
import { Choice, Nothing, Problem, Server, Table, Trim } from "./parts.js";
import { Cost } from "./plot.js";

const day = 86400;

function byDay(shares, days) {
  const of = new Map(shares.map((s) => [s.day, s.usd]));
  const today = Math.floor(Date.now() / 1000 / day) * day;
  const times = Array.from({ length: days }, (_, i) => today - (days - 1 - i) * day);
  return [times, times.map((t) => of.get(new Date(t * 1000).toISOString().slice(0, 10)) ?? 0)];
}

function Shares({ title, name, shares, all, cell }) {
  const rows = shares.filter((s) => s.usd > 0).sort((a, b) => b.usd - a.usd);
  const columns = [
    { head: name, cell: (s) => cell(s) },
    { head: "Dollars", num: true, cell: (s) => money(s.usd) },
    { head: "Share", num: true, cell: (s) => `${Math.round((100 * s.usd) / all)} %` },
  ];
  return html`<section><h2>${title}</h2>${rows.length ? html`<${Table} caption=${title} columns=${columns} rows=${rows} id=${(s) => cell.id(s)} />` : html`<${Nothing}>Nothing yet.<//>`}</section>`;
}

const byServer = Object.assign((s) => (s.server ? html`<${Server} name=${s.server} />` : html`<span class="muted">starts and connections</span>`), { id: (s) => s.server ?? "" });
const byPerson = Object.assign((s) => (s.principal ? html`<${Trim} text=${s.principal} />` : html`<span class="muted">boxes, which all share</span>`), { id: (s) => s.principal ?? "" });
const byTenant = Object.assign((s) => s.tenant ?? html`<span class="muted">nobody's</span>`, { id: (s) => s.tenant ?? "" });

const savings = [
  { head: "Server", cell: (s) => html`<${Server} name=${s.server} />` },
  { head: "idle_seconds", num: true, cell: (s) => `${count(s.shorter_seconds)} for ${count(s.idle_seconds)}` },
  { head: "Would save a week", num: true, cell: (s) => money(s.usd) },
  { head: "More starts", num: true, cell: (s) => count(s.wakes) },
];

export function Costs({ me }) {
  const [days, setDays] = useState(30);
  const of = (by) => `bill?since=${days * 24}h&by=${by}`;
  const { data, error } = useData(of("day"), of("server"), of("principal"), of("tenant"), "savings");
  const [perDay, server, person, tenant, idle] = data ?? [];
  return html`<div class="title"><h1>Costs</h1><div class="row end"><${Choice} label="Time" value=${days} set=${setDays} options=${[[7, "7 d"], [30, "30 d"], [90, "90 d"]]} /></div></div>
    <${Problem} error=${error} />
    ${!data ? !error && html`<div class="loading" />` : html`<p class="lead"><b>${money(perDay.usd)}</b> would AWS have billed since ${onDay(perDay.since)}. This machine bills nothing.</p>
    <div class="plots one"><${Cost} days=${byDay(perDay.shares, days)} show=${money} /></div>
    ${idle.savings.length > 0 && html`<section class="stack"><h2>What a shorter sleep would save</h2><${Table} caption="Savings" columns=${savings} rows=${idle.savings} id=${(s) => s.server} />
      <p class="hint">The calls of the last seven days, repeated with boxes that sleep earlier. Set <code>x-dormouse.idle_seconds</code> of the server. More starts mean that more calls wait for one.</p></section>`}
    <div class="columns"><${Shares} title="By server" name="Server" shares=${server.shares} all=${server.usd} cell=${byServer} />
      <${Shares} title="By person" name="Who" shares=${person.shares} all=${person.usd} cell=${byPerson} />
      ${!me.tenant && tenant.shares.filter((s) => s.tenant).length > 1 && html`<${Shares} title="By tenant" name="Tenant" shares=${tenant.shares} all=${tenant.usd} cell=${byTenant} />`}</div>
    <p class="hint">At the published prices of ${perDay.prices}, without free tiers. Days are whole days in UTC.</p>`}`;
}
