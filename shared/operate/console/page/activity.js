// Who called what, and what failed.
import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { get, lines, onStack } from "./api.js";
import { at, money, ms, size, some } from "./format.js";
import { useClock, useData } from "./live.js";
import { Choice, Dialog, Do, Nothing, Problem, Server, Table, Trim, serverLink } from "./parts.js";

const names = { who: "principal", server: "server", tool: "tool" };

function pathOf(query, limit) {
  const asked = new URLSearchParams({ limit, since: query.since ?? "24h" });
  for (const [ours, theirs] of Object.entries(names)) if (query[ours]) asked.set(theirs, query[ours]);
  if (query.failed) asked.set("failed", "true");
  return "calls?" + asked;
}

/** What the newest calls said, for those who may read it. */
function Bodies({ query, close }) {
  const [all, set] = useState();
  const [error, setError] = useState();
  useEffect(() => {
    const left = new AbortController();
    (async () => {
      const found = [];
      for await (const b of lines(pathOf(query, 40).replace(/^calls/, "bodies"), left.signal)) found.push(b);
      set(found);
    })().catch((e) => e.name === "AbortError" || setError(e));
    return () => left.abort();
  }, []);
  const text = (of) => (of === undefined ? "–" : JSON.stringify(of, null, 2));
  return html`<${Dialog} title="Arguments and results" close=${close}><${Problem} error=${error} />
    ${!all ? !error && html`<div class="loading" />` : !all.length && html`<${Nothing}>Nothing is kept for your role in this time.<//>`}
    ${all?.map((b, i) => html`<section key=${i}><h3>${at(b.time)} · ${b.principal ?? "–"} · ${b.server} · ${b.tool ?? "–"} · ${b.outcome ?? "–"}</h3>
      ${b.left_out && html`<p class="hint">Left out: ${b.left_out}</p>`}<pre tabindex="0" aria-label="arguments">${text(b.arguments)}</pre><pre tabindex="0" aria-label="result">${text(b.result)}</pre></section>`)}<//>`;
}

/** Begins no cell as a formula of a spreadsheet. */
const cell = (value) => `"${String(value ?? "").replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""')}"`;

async function save(query) {
  const columns = ["time", "tenant", "principal", "server", "tool", "client", "duration_ms", "failed", "refusal", "code", "reason", "key", "address", "woke", "bytes_in", "bytes_out", "session", "trace"];
  const rows = [columns.join(",")];
  for (let after = "", pages = 0; pages < 100; pages++) {
    const { calls, next } = await get(pathOf(query, 1000) + (after && "&after=" + after));
    rows.push(...calls.map((c) => columns.map((name) => (["number", "boolean"].includes(typeof c[name]) ? c[name] : cell(c[name]))).join(",")));
    if (!(after = next)) break;
  }
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([rows.join("\r\n") + "\r\n"], { type: "text/csv" }));
  link.download = "calls.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

export function Activity({ query, me }) {
  useClock();
  const stack = onStack(me); // calls are searched when somebody asks, because a search costs
  const path = pathOf(query, stack ? 1000 : 100);
  const { data, error } = useData(stack ? "" : path, "servers");
  const [found, setFound] = useState();
  const first = stack ? found?.path === path && found : data?.[0];
  const [older, setOlder] = useState([]);
  const [next, setNext] = useState();
  const [said, setSaid] = useState(false);
  useEffect(() => (setOlder([]), setNext()), [path]);
  const go = (change) => (location.hash = "#/activity?" + new URLSearchParams(Object.entries({ ...query, ...change }).filter(([, v]) => v)));
  const typed = (name) => (e) => go({ [name]: e.target.value.trim() });
  // New calls move the first page on; an older page that was asked for stays.
  const seen = new Set(), calls = [];
  for (const c of [...(first?.calls ?? []), ...older]) {
    const id = c.time + c.session + c.trace + c.tool;
    if (!seen.has(id)) seen.add(id), calls.push({ ...c, id });
  }
  const after = next ?? first?.next;
  const more = async () => {
    const page = await get(path + "&after=" + after);
    setOlder([...older, ...(older.length ? [] : first.calls), ...page.calls]);
    setNext(page.next ?? "");
  };
  const tenants = !me.tenant && new Set(calls.map((c) => c.tenant)).size > 1;
  const columns = [
    { head: "Time", class: "light", cell: (c) => at(c.time) },
    { head: "Who", cell: (c) => (c.principal ? html`<${Trim} text=${c.principal} href=${"#/activity?who=" + encodeURIComponent(c.principal)} />` : c.address || "–") },
    ...(tenants ? [{ head: "Tenant", wide: true, cell: (c) => c.tenant }] : []),
    { head: "Server", class: "middle", cell: (c) => (!c.server || (c.refusal && !c.tool) ? c.server || "–" : html`<${Server} name=${c.server} />`) },
    { head: "Tool", cell: (c) => html`<${Trim} text=${c.tool || "–"} /><span class="narrow"><${Server} name=${c.server} /></span>` },
    { head: "Client", wide: true, cell: (c) => html`<${Trim} text=${c.client || "–"} />` },
    { head: "Took", num: true, wide: true, cell: (c) => html`${c.woke && html`<span class="muted" title="It started a process">woke </span>`}${ms(c.duration_ms)}`, sort: (c) => c.duration_ms },
    { head: "Outcome", cell: (c) => html`<span class="outcome ${c.refusal ? "refused" : c.failed ? "bad" : "good"}">${c.refusal ? "refused" : c.failed ? "failed" : "done"}</span>`, sort: (c) => (c.refusal ? 2 : c.failed ? 1 : 0) },
  ];
  return html`<div class="title"><h1>Activity</h1><div class="row end"><${Choice} label="Time" value=${query.since ?? "24h"} set=${(since) => go({ since })} options=${[["1h", "1 h"], ["24h", "24 h"], ["168h", "7 d"]]} />
      ${stack ? html`<${Do} kind="first" to=${async () => setFound({ path, ...(await get(path)) })}>Search the logs<//>` : html`<${Do} to=${() => save(query)}>CSV<//>`}
      ${["auditor", "operator"].includes(me.role) && html`<button type="button" onClick=${() => setSaid(true)}>Arguments and results</button>`}</div></div>
    ${said && html`<${Bodies} query=${query} close=${() => setSaid(false)} />`}
    <form class="filters" role="search" aria-label="Calls" onSubmit=${(e) => e.preventDefault()}>
      <label>Who <input value=${query.who ?? ""} onChange=${typed("who")} autocomplete="off" /></label>
      <label>Server <select onChange=${typed("server")}><option value="">all</option>${(data?.[1].servers ?? []).filter((s) => s.path).map((s) => html`<option key=${s.name} selected=${s.name === query.server}>${s.name}</option>`)}</select></label>
      <label>Tool <input value=${query.tool ?? ""} onChange=${typed("tool")} autocomplete="off" /></label>
      <label class="check"><input type="checkbox" checked=${!!query.failed} onChange=${(e) => go({ failed: e.target.checked ? "true" : "" })} /> Failed only</label>
    </form>
    <${Problem} error=${error} />
    ${stack && html`<p class="hint" role="status">${first?.search ? `This search read ${size(first.search.bytes) === "–" ? "under 1 MB" : size(first.search.bytes)} of logs, and AWS bills ${money(first.search.usd)} for it.` : `A search reads the logs of the time, for $${me.search_usd_per_gb} a GB.`}</p>`}
    ${!first ? !stack && html`<div class="loading" />` : calls.length ? html`<${Table} caption=${some(calls.length, "call", "calls")} columns=${columns} rows=${calls} below=${(c) => (c.reason || c.refusal) && html`<p class="reason">${c.reason || c.refusal}${c.refusal && [c.tenant && ` · tenant ${c.tenant}`, c.key && ` · key ${c.key}`, c.address && ` · from ${c.address}`]}${!c.refusal && me.role === "operator" && !stack && html` · <a href=${serverLink(c.server, "log")} aria-label=${"Log of " + c.server}>Log</a>`}</p>`} />
      ${after && html`<div class="row center"><${Do} to=${more}>Older<//></div>`}` : html`<${Nothing}>No calls in this time.<//>`}
    <p class="hint">Names, times and outcomes of tool calls. Arguments and results are kept only of servers with <code>audit.bodies</code>, for keys of its role.${stack && " Calls that went on after their request are not in the list."}</p>`;
}
