// A form for the arguments of a tool, and what the tool answers.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ask } from "./api.js";
import { ms } from "./format.js";
import { Dialog, Problem } from "./parts.js";

const kind = (schema) => (schema.enum ? "enum" : [].concat(schema.type ?? "any").find((t) => t !== "null"));

function Field({ name, schema, needed }) {
  const id = "argument-" + name, about = schema.description && id + "-about";
  const common = { id, name, "aria-describedby": about };
  const given = schema.default === undefined ? "" : typeof schema.default === "object" ? JSON.stringify(schema.default) : String(schema.default);
  const input = () => {
    switch (kind(schema)) {
      case "enum":
        return html`<select ...${common} required=${needed}>${!needed && html`<option value=""></option>`}${schema.enum.map((v) => html`<option value=${JSON.stringify(v)} selected=${v === schema.default}>${String(v)}</option>`)}</select>`;
      case "boolean":
        return html`<select ...${common} required=${needed}>${!needed && html`<option value=""></option>`}<option value="true" selected=${schema.default === true}>yes</option><option value="false" selected=${schema.default === false}>no</option></select>`;
      case "integer":
      case "number":
        return html`<input ...${common} type="number" step=${kind(schema) === "integer" ? 1 : "any"} min=${schema.minimum} max=${schema.maximum} required=${needed} defaultValue=${given} />`;
      case "string":
        return html`<input ...${common} type="text" required=${needed} defaultValue=${given} autocomplete="off" />`;
      default:
        return html`<textarea ...${common} rows="3" required=${needed} placeholder="JSON" spellcheck="false">${given}</textarea>`;
    }
  };
  return html`<div class="field"><label for=${id}>${schema.title ?? name}${needed ? "" : html` <span class="muted">optional</span>`}</label>${input()}${about && html`<p class="hint" id=${about}>${schema.description}</p>`}</div>`;
}

function argumentsOf(form, properties) {
  const all = {};
  for (const [name, schema] of Object.entries(properties)) {
    const text = form.get(name);
    if (text === "" || text === null) continue;
    try {
      all[name] = kind(schema) === "string" ? text : JSON.parse(text);
    } catch {
      throw new Error(`${name} is not JSON`);
    }
  }
  return all;
}

const piece = (c) => {
  switch (c.type) {
    case "text":
      return c.text;
    case "resource":
      return c.resource.text ?? `[resource ${c.resource.uri}]`;
    case "resource_link":
      return `[resource ${c.uri}]`;
    default:
      return `[${c.type} ${c.mimeType ?? ""}, ${Math.round(((c.data?.length ?? 0) * 3) / 4)} bytes]`;
  }
};

function textOf(result) {
  if (result.resultType === "input_required") return "The tool asks its user something, which the console cannot answer. Call it from a client.";
  if (result.resultType === "task") return "The call takes long and goes on as a task. Activity has its end.";
  if (!result.content?.length && result.structuredContent !== undefined) return JSON.stringify(result.structuredContent, null, 2);
  return (result.content ?? []).map(piece).join("\n");
}

export function TryTool({ me, server, tool, close }) {
  const [answer, setAnswer] = useState();
  const [busy, setBusy] = useState(false);
  const first = useRef();
  const properties = tool.inputSchema?.properties ?? {};
  useEffect(() => first.current?.querySelector("input, select, textarea")?.focus(), []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setAnswer();
    const begun = performance.now();
    try {
      const args = argumentsOf(new FormData(event.target), properties);
      const result = await ask(me, server, "tools/call", { name: tool.name, arguments: args });
      setAnswer({ took: performance.now() - begun, result });
    } catch (error) {
      setAnswer({ error });
    }
    setBusy(false);
  };
  return html`<${Dialog} title=${"Try " + tool.name} close=${close}>
    ${tool.description && html`<p class="hint">${tool.description.split("\n")[0]}</p>`}
    <form onSubmit=${submit} ref=${first}>${Object.entries(properties).map(([name, schema]) => html`<${Field} key=${name} name=${name} schema=${schema} needed=${tool.inputSchema.required?.includes(name)} />`)}
      <div class="row end"><button class="first" disabled=${busy}>${busy ? "Calling…" : "Call"}</button></div></form>
    <div role="status">${answer?.result && html`<p class="row spread"><b class=${answer.result.isError ? "bad" : "good"}>${answer.result.isError ? "The tool says that it failed" : "Done"}</b><span class="muted">${ms(answer.took)}</span></p><pre class="answer" tabindex="0" aria-label="Answer">${textOf(answer.result)}</pre>`}</div>
    <${Problem} error=${answer?.error} /><//>`;
}
