// Plots over time, drawn by uPlot in the colours of the page.
import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import { count, ms, quantile } from "./format.js";

const colour = (name) => {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.className = "colour-" + name;
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
};

const faint = (text, by) => text.replace(/^rgb\((.*)\)$/, `rgba($1, ${by})`);

/** rows are [times, ...values]; series are {name, colour, bars, fill}; the axis reaches to least. */
function Plot({ title, said, rows, series, show = count, least = 1 }) {
  const box = useRef(), plot = useRef();
  const half = (rows[0][1] - rows[0][0]) / 2;
  const draw = () => {
    plot.current?.destroy();
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    plot.current = new window.uPlot({
      width: box.current.clientWidth, height: 120, padding: [8, 14, 0, 0], legend: { show: false },
      cursor: { show: false }, select: { show: false },
      scales: { x: { range: (_, from, to) => [from - half, to + half] }, y: { range: (_, __, top) => [0, Math.max(top * 1.1, least)] } },
      axes: [
        { ...axis, grid: { show: false }, space: 70, size: 24, values: (u, splits, _, __, step) => splits.map((s) => new Intl.DateTimeFormat(undefined, step >= 86400 ? { month: "short", day: "numeric" } : { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }).format(new Date(s * 1000))) },
        { ...axis, size: 52, space: 28, values: (_, splits) => splits.map((v) => (show === count && !Number.isInteger(v) ? "" : show(v))) },
      ],
      series: [{}, ...series.map((s, i) => {
        const stroke = colour(s.colour);
        return s.bars
          ? { stroke, width: 0, fill: stroke, paths: window.uPlot.paths.bars({ size: [0.7, 20] }), points: { show: false } }
          : { stroke, width: 1.6, spanGaps: true, fill: s.fill && faint(stroke, 0.12), points: { show: rows[i + 1].filter((v) => v !== null).length < 30, size: 4, fill: stroke } };
      })],
    }, rows, box.current);
  };
  useEffect(() => {
    if (!window.uPlot) return;
    draw();
    const wide = new ResizeObserver(() => plot.current?.width !== box.current.clientWidth && box.current.clientWidth && plot.current.setSize({ width: box.current.clientWidth, height: 120 }));
    wide.observe(box.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const schemes = new MutationObserver(draw);
    scheme.addEventListener("change", draw);
    schemes.observe(document.documentElement, { attributeFilter: ["class"] });
    return () => {
      wide.disconnect();
      schemes.disconnect();
      scheme.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [JSON.stringify(rows)]);
  return html`<figure class="plot"><figcaption><span>${title}</span>${series.length > 1 && html`<span class="keys">${series.map((s) => html`<span key=${s.name}><i class="swatch colour-${s.colour}" aria-hidden="true"></i>${s.name}</span>`)}</span>`}</figcaption>
    <div ref=${box} class="canvas" role="img" aria-label=${`${title}: ${said}`}></div></figure>`;
}

/** Fills the steps in which nothing happened. */
function steps(series, seconds, make) {
  const step = series.step_seconds, end = Math.floor(Date.now() / 1000 / step) * step;
  const found = new Map();
  for (const b of series.buckets) found.set(new Date(b.time) / 1000, b);
  const times = [];
  for (let t = end - seconds + step; t <= end; t += step) times.push(t);
  return [times, ...make.map((value) => times.map((t) => value(found.get(t))))];
}

const total = (series, key) => series.buckets.reduce((n, b) => n + b[key], 0);

export function Calls({ series, seconds, each }) {
  return html`<${Plot} title=${"Calls " + each} said=${`${total(series, "calls")} calls, ${total(series, "failed")} failed, ${total(series, "refused")} refused`}
    rows=${steps(series, seconds, [(b) => b?.calls ?? 0, (b) => b?.failed ?? 0, (b) => b?.refused ?? 0])} series=${[{ name: "calls", colour: "calls", bars: true }, { name: "failed", colour: "failed", bars: true }, { name: "refused", colour: "second", bars: true }]} />`;
}

export function Latency({ series, seconds }) {
  const part = (p) => (b) => (b?.calls ? quantile(b.durations, series.bounds_ms, p) : null);
  return html`<${Plot} title="Time of a call" said="median and 95th percentile" show=${ms} least=${10}
    rows=${steps(series, seconds, [part(0.5), part(0.95)])} series=${[{ name: "p50", colour: "calls", fill: true }, { name: "p95", colour: "second" }]} />`;
}

export function Wakes({ series, seconds, each }) {
  return html`<${Plot} title=${"Wakes " + each} said=${`${total(series, "wakes")} wakes`}
    rows=${steps(series, seconds, [(b) => b?.wakes ?? 0])} series=${[{ name: "wakes", colour: "second", bars: true }]} />`;
}

export function Cost({ days, show }) {
  return html`<${Plot} title="Dollars a day" said=${`${days[0].length} days`} rows=${days} show=${show} least=${0.001} series=${[{ name: "dollars", colour: "calls", bars: true }]} />`;
}
