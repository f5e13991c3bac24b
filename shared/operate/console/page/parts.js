// The parts that views are made of.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { act } from "./api.js";

const shapes = {
  awake: html`<circle cx="6" cy="6" r="5" fill="currentColor" />`,
  asleep: html`<circle cx="6" cy="6" r="4.2" fill="none" stroke="currentColor" stroke-width="1.6" />`,
  starting: html`<g><circle cx="6" cy="6" r="4.2" fill="none" stroke="currentColor" stroke-width="1.6" /><path d="M6 1.500a4.500 4.500 0 0 1 0 9z" fill="currentColor" /></g>`,
  "failed last time": html`<path d="M2 2l8 8M10 2l-8 8" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" />`,
  failed: html`<path d="M2 2l8 8M10 2l-8 8" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" />`,
  "never started": html`<circle cx="6" cy="6" r="4.2" fill="none" stroke="currentColor" stroke-width="1.6" stroke-dasharray="2 2" />`,
  other: html`<path d="M2 6h8" stroke="currentColor" stroke-width="2.2" stroke-linecap="round" />`,
};

/** A state, by shape, word and colour. */
export function State({ of, more }) {
  const kind = of.replaceAll(" ", "-");
  return html`<span class="state ${kind}"><svg viewBox="0 0 12 12" aria-hidden="true">${shapes[of] ?? shapes.other}</svg>${of}${more && html`<span class="more"> ${more}</span>`}</span>`;
}

/** The state of a server in words: also whether it has ever worked. */
export const stateOf = (s) => s.start || s.state;

export const Problem = ({ error }) => error && html`<p class="problem" role="alert">${error.message ?? error}</p>`;

/** What is shown while there is nothing to show. */
export const Nothing = ({ children }) => html`<p class="nothing">${children}</p>`;

/** What is shown in place of what a stack does not keep. */
export const Elsewhere = ({ me, what }) => html`<${Nothing}>A stack does not keep ${what}: its functions write a line for each call into their logs.${me.dashboard && html` <a href=${me.dashboard} target="_blank" rel="noreferrer">The dashboard in CloudWatch</a> sums them up. It needs a user of the account, and reads the logs for $0.005 a GB.`}<//>`;

/**
 * A table. A column has head, cell(row), and may have sort(row), num, wide (left out where
 * there is little room) and label, its name where head is no text.
 */
export function Table({ caption, columns, rows, below, id = (row) => row.id }) {
  const [order, setOrder] = useState({});
  const column = columns[order.column];
  const sorted = column ? [...rows].sort((a, b) => {
    const [x, y] = [column.sort(a), column.sort(b)];
    return (x === y ? 0 : (x ?? -1) < (y ?? -1) ? -1 : 1) * order.way;
  }) : rows;
  const turn = (i) => setOrder(order.column !== i ? { column: i, way: columns[i].num ? -1 : 1 } : { column: i, way: -order.way });
  const kind = (c) => `${c.num ? "num" : ""} ${c.wide ? "wide" : ""} ${c.class ?? ""}`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="unseen">${caption}</caption>
      <thead><tr>${columns.map((c, i) => html`<th scope="col" key=${i} class=${kind(c)} aria-sort=${order.column === i ? (order.way > 0 ? "ascending" : "descending") : undefined}>
        ${c.sort ? html`<button class="sort" onClick=${() => turn(i)}>${c.head}<span aria-hidden="true">${order.column === i ? (order.way > 0 ? "▴" : "▾") : ""}</span></button>`
          : c.head || html`<span class="unseen">${c.label}</span>`}</th>`)}</tr></thead>
      <tbody>${sorted.map((row) => {
        const under = below?.(row);
        return html`<tr key=${id(row)} class=${under ? "has-below" : ""}>${columns.map((c, i) => (i === 0 ? html`<th scope="row" class=${kind(c)}>${c.cell(row)}</th>` : html`<td class=${kind(c)}>${c.cell(row)}</td>`))}</tr>
        ${under && html`<tr class="below" key=${id(row) + "+"}><td colspan=${columns.length}>${under}</td></tr>`}`;
      })}</tbody>
    </table></div>`;
}

/** A button that does something, and says why it could not. */
export function Do({ to, children, kind = "", label, done }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState();
  const run = async () => {
    setBusy(true);
    setError();
    try {
      await to();
      done?.();
    } catch (e) {
      setError(e);
    }
    setBusy(false);
  };
  return html`<button type="button" class=${kind} disabled=${busy} onClick=${run} aria-label=${label}>${children}</button>${error && html`<span class="problem" role="alert">${error.message}</span>`}`;
}

/** A dialog, which opens at once. */
export function Dialog({ title, close, children }) {
  const ref = useRef(), gone = useRef(false);
  useEffect(() => {
    const before = document.activeElement;
    const own = ref.current;
    own.showModal();
    return () => {
      gone.current = true;
      own.close(); // while it is open, nothing behind it takes the focus
      before?.focus?.();
    };
  }, []);
  return html`<dialog ref=${ref} aria-labelledby="dialog-title" onClose=${() => gone.current || close()}>
    <div class="head"><h2 id="dialog-title">${title}</h2><button type="button" class="quiet" aria-label="Close" onClick=${close}>✕</button></div>
    ${children}
  </dialog>`;
}

/** Asks before something that cannot be undone. */
export function Sure({ title, say, word, to, close, done }) {
  return html`<${Dialog} title=${title} close=${close}><p>${say}</p><div class="row end">
    <button type="button" class="quiet" onClick=${close}>Cancel</button>
    <${Do} kind="danger" to=${to} done=${() => (close(), done?.())}>${word}<//></div><//>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text).then(() => setDone(true), () => {});
    setTimeout(() => setDone(false), 2000);
  };
  return html`<button type="button" class="quiet small" onClick=${copy} aria-label=${label}>${done ? "Copied" : "Copy"}</button>`;
}

export const Snippet = ({ text, label }) => html`<div class="snippet"><pre tabindex="0" aria-label=${label}><code>${text}</code></pre><${Copy} text=${text} label=${"Copy " + label} /></div>`;

/** A choice of one of few. options are pairs of value and text. */
export function Choice({ label, options, value, set }) {
  return html`<div class="choice" role="group" aria-label=${label}>${options.map(([v, text]) => html`<button type="button" key=${v} aria-pressed=${v === value} onClick=${() => set(v)}>${text}</button>`)}</div>`;
}

export const stop = (path) => act("POST", path + "/stop", {});
export const serverLink = (name, tab) => `#/server/${encodeURIComponent(name)}${tab ? "/" + tab : ""}`;
/** A name that others chose. One that is too long is cut, and shown whole where the pointer rests. */
export const Trim = ({ text, href }) => (href ? html`<a class="trim" href=${href} title=${text}>${text}</a>` : html`<span class="trim" title=${text}>${text}</span>`);
export const Server = ({ name }) => html`<${Trim} text=${name} href=${serverLink(name)} />`;
