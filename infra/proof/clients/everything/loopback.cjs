// server-everything has no option for the address it listens on and would bind every interface.
// Loaded with `node --require`, this binds it to 127.0.0.1, and once it listens prints where, as
// one JSON line of the form that `dormouse run --json` prints.
"use strict";

const net = require("node:net");

const listen = net.Server.prototype.listen;

net.Server.prototype.listen = function (port, ...rest) {
  const options = typeof port === "object" && port !== null ? port : { port };
  this.once("listening", () => {
    const path = process.argv.includes("sse") ? "/sse" : "/mcp";
    const url = `http://127.0.0.1:${this.address().port}${path}`;
    process.stdout.write(`${JSON.stringify({ kind: "ready", url })}\n`);
  });
  const callback = rest.find((arg) => typeof arg === "function");
  return listen.call(this, { ...options, host: "127.0.0.1" }, ...(callback ? [callback] : []));
};
