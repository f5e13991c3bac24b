# workerd without wrangler: one worker, its Durable Objects in SQLite on disk. The socket's address and
# the folder are given on the command line.
using Workerd = import "/workerd/workerd.capnp";

const config :Workerd.Config = (
  services = [
    (name = "main", worker = .bench),
    (name = "objects", disk = (path = "/nonexistent", writable = true)),
  ],
  sockets = [(name = "http", address = "127.0.0.1:0", http = (), service = "main")],
);

const bench :Workerd.Worker = (
  modules = [
    (name = "worker.mjs", esModule = embed "bundle.mjs"),
    (name = "cloudflare:email", esModule = embed "email.mjs"),
  ],
  compatibilityDate = "2026-01-01",
  compatibilityFlags = ["nodejs_compat"],
  durableObjectNamespaces = [(className = "Bench", uniqueKey = "bench", enableSql = true)],
  durableObjectStorage = (localDisk = "objects"),
  bindings = [(name = "BENCH", durableObjectNamespace = "Bench")],
);
