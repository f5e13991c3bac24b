// The tools of the benchmark in a Durable Object for each session.
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { McpAgent } from "agents/mcp";
import { z } from "zod";

const text = (said) => ({ content: [{ type: "text", text: said }] });

export class Bench extends McpAgent {
  server = new McpServer({ name: "echo", version: "1.0.0" });

  async init() {
    this.server.registerTool("echo", { description: "Say it back", inputSchema: { message: z.string() } },
      async ({ message }) => text(`Echo: ${message}`));
    this.server.registerTool("fill", { description: "Answer with so many bytes", inputSchema: { bytes: z.number() } },
      async ({ bytes }) => text("x".repeat(bytes)));
    this.server.registerTool("slow",
      { description: "Answer late", inputSchema: { milliseconds: z.number(), progress: z.boolean().optional() } },
      async ({ milliseconds, progress }, extra) => {
        const progressToken = extra._meta?.progressToken;
        if (progress && progressToken !== undefined) {
          await extra.sendNotification({ method: "notifications/progress", params: { progressToken, progress: 1 } });
        }
        await new Promise((done) => setTimeout(done, milliseconds));
        return text("Echo: slow");
      });
  }
}

export default Bench.serve("/mcp", { binding: "BENCH" });
