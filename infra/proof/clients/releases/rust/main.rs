//! The official Rust SDK, of any release, as a program that takes steps; ../../doc.go has them.
//!
//!     rmcp-release --url http://127.0.0.1:8080/echo/mcp --transport http
//!
//! Each release has a manifest and a lock file. Arguments of calls come from JSON, because the names
//! of their types differ between releases.

use std::{
    error::Error,
    io::{self, BufRead, Write},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rmcp::{ClientHandler, RoleClient, ServiceExt, service::NotificationContext, service::RunningService, transport::StreamableHttpClientTransport};
use serde_json::{Value, json};
use tokio::sync::Notify;

const LIMIT: Duration = Duration::from_secs(20);

#[derive(Clone, Default)]
struct Handler(Arc<Notify>);

impl ClientHandler for Handler {
    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.0.notify_one();
    }
}

/// What the SDK logs, warnings and worse.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<u8>>>);

impl Write for Warnings {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Client = RunningService<RoleClient, Handler>;
type Outcome = Result<(), Box<dyn Error>>;

fn must(holds: bool, text: &str) -> Outcome {
    if holds { Ok(()) } else { Err(text.into()) }
}

async fn call(client: &Client, tool: &str, arguments: Value, want: &str) -> Outcome {
    let params = serde_json::from_value(json!({"name": tool, "arguments": arguments}))?;
    let result = serde_json::to_value(client.call_tool(params).await?)?;
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    must(text.contains(want) && result["isError"] != json!(true), &format!("the tool answered {result}"))
}

async fn take(step: &str, url: &str, handler: &Handler, client: &mut Option<Client>) -> Outcome {
    if step == "connect" {
        *client = Some(handler.clone().serve(StreamableHttpClientTransport::from_uri(url.to_owned())).await?);
        return Ok(());
    }
    if step == "close" {
        client.take().ok_or("there is no connection")?.cancel().await?;
        return Ok(());
    }
    let client = client.as_ref().ok_or("there is no connection")?;
    match step {
        "list" => must(client.list_all_tools().await?.iter().any(|tool| tool.name == "echo"), "no tool echo"),
        "call" => call(client, "echo", json!({"message": "🐭"}), "Echo: 🐭").await,
        "slow" => call(client, "trigger-long-running-operation", json!({"duration": 3, "steps": 1}), "completed").await,
        "push" => {
            call(client, "push", json!({}), "soon").await?;
            handler.0.notified().await;
            Ok(())
        }
        _ => Err(format!("there is no step {step}").into()),
    }
}

#[tokio::main]
async fn main() {
    let warnings = Warnings::default();
    let writer = warnings.clone();
    tracing_subscriber::fmt().with_max_level(tracing::Level::WARN).with_ansi(false).with_writer(move || writer.clone()).init();
    let url = std::env::args().skip_while(|argument| argument != "--url").nth(1).expect("--url is missing");
    let (handler, mut client) = (Handler::default(), None);
    for step in io::stdin().lock().lines().map_while(Result::ok) {
        let begin = Instant::now();
        let outcome = tokio::time::timeout(LIMIT, take(&step, &url, &handler, &mut client)).await.unwrap_or_else(|_| Err("nothing came in time".into()));
        let said = String::from_utf8_lossy(&std::mem::take(&mut *warnings.0.lock().unwrap())).into_owned();
        let mut line = json!({"client": concat!("rust-", env!("CARGO_PKG_VERSION")), "check": step, "ok": true, "ms": begin.elapsed().as_millis() as u64});
        if outcome.is_err() || !said.is_empty() {
            line["ok"] = json!(false);
            line["error"] = json!(format!("{}; the SDK logged: {said}", outcome.err().map(|error| error.to_string()).unwrap_or_default()));
        }
        println!("{line}");
    }
    std::process::exit(0);
}
