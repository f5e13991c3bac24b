// An MCP server of skills (extension io.modelcontextprotocol/skills, SEP-2640), with the official
// TypeScript SDK. It speaks both eras. With the argument --http HOST:PORT it serves over HTTP,
// otherwise over stdio. A page of its lists has one entry.
//
// It also has the extension com.example/hello of a vendor, with a method of that name. The tool
// client_extensions returns the extensions that the client has declared.

import { createServer } from "node:http";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { McpServer, createMcpHandler } from "@modelcontextprotocol/server";
import { SkillsExtension, memorySkillFiles } from "@modelcontextprotocol/server/ext/skills";
import { serveStdio } from "@modelcontextprotocol/server/stdio";

const skill = (name, description) => `---\nname: ${name}\ndescription: ${description}\n---\n# ${name}\n\nRead references/GUIDE.md first.\n`;
const skills = await SkillsExtension.load(
  memorySkillFiles({
    "release-notes/SKILL.md": skill("release-notes", "Writes the notes of a release."),
    "release-notes/references/GUIDE.md": "# Guide\n\nOne line for each change.\n",
    "release-notes/references/TONE.md": "# Tone\n\nPlain.\n",
    "triage/SKILL.md": skill("triage", "Sorts new issues."),
    "triage/scripts/sort.sh": "#!/bin/sh\nsort\n",
  }),
  { pageSize: 1, strict: true },
);

// object is a schema that takes any object.
const object = { "~standard": { version: 1, vendor: "dormouse", validate: (value) => ({ value: value ?? {} }) } };

function server() {
  const mcp = new McpServer(
    { name: "skills", version: "1.0.0" },
    { capabilities: { tools: {}, resources: {}, extensions: { "com.example/hello": { greetings: { en: ["hello"] } } } } },
  );
  const declared = (ctx) => ctx.mcpReq?.envelope?.["io.modelcontextprotocol/clientCapabilities"] ?? mcp.server.getClientCapabilities();
  mcp.registerTool("client_extensions", { description: "Returns the extensions that the client has declared." }, (ctx) => ({
    content: [{ type: "text", text: JSON.stringify(declared(ctx)?.extensions ?? null) }],
  }));
  mcp.server.setRequestHandler("com.example/hello", { params: object }, (params) => ({ hello: params.name ?? "you" }));
  skills.attach(mcp);
  return mcp;
}

const [flag, address] = process.argv.slice(2);
if (flag === "--http") {
  const [host, port] = address.split(":");
  createServer(toNodeHandler(createMcpHandler(server))).listen(Number(port), host);
} else {
  serveStdio(server);
}
