//! The official Rust SDK as a test client: runs a few of the checks of ../py/client.py, under the
//! same names, against one MCP endpoint that hosts server-everything, and prints one JSON line each.
//!
//!     rmcp-client --mode initialize|auto --url http://127.0.0.1:8080/mcp --transport http
//!
//! With --one NAME the URL has all servers, among them the one of this name.
//!
//! With --mode auto it must speak the era without sessions. Exit code: 0 all checks passed, 1 not.

use std::{
    collections::HashMap,
    future::Future,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use rmcp::{
    ClientHandler, ClientLifecycleMode, ClientServiceExt, ErrorData, RoleClient,
    model::*,
    service::{NotificationContext, RequestContext, RunningService},
    transport::StreamableHttpClientTransport,
};
use serde_json::{Value, json};

const SDK: &str = "rmcp-3.9.0";
const CHECK_TIMEOUT: Duration = Duration::from_secs(60);

/// What the server told and asked.
#[derive(Clone, Default)]
struct Handler {
    progress: Arc<Mutex<Vec<String>>>,
    questions: Arc<Mutex<u32>>,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let mut config = ClientConfig::default();
        config.capabilities = serde_json::from_value(json!({"elicitation": {"form": {}}, "roots": {}})).unwrap_or_default();
        config
    }

    async fn create_elicitation(&self, _: ElicitRequestParams, _: RequestContext<RoleClient>) -> Result<ElicitResult, ErrorData> {
        *self.questions.lock().unwrap() += 1;
        let content = json!({"name": "Ada “🐭” Løvelace", "check": true, "integer": 17});
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
    }

    #[allow(deprecated)]
    async fn list_roots(&self, _: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        serde_json::from_value(json!({"roots": [{"uri": "file:///srv/one", "name": "one"}]}))
            .map_err(|e| ErrorData::internal_error(e.to_string(), None))
    }

    async fn on_progress(&self, p: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.progress.lock().unwrap().push(format!("{}/{}", p.progress, p.total.unwrap_or(0.0)));
    }
}

type Client = RunningService<RoleClient, Handler>;
type Outcome = Result<(), String>;

fn must(holds: bool, text: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(text.into()) }
}

fn words<E: std::fmt::Display>(error: E) -> String {
    error.to_string()
}

/// The name of a tool or prompt as it is at the URL.
fn named(name: &str) -> String {
    let mut arguments = std::env::args().skip_while(|argument| argument != "--one").skip(1);
    arguments.next().map_or(name.to_owned(), |one| format!("{one}__{name}"))
}

async fn call(client: &Client, tool: &str, arguments: Value) -> Result<String, String> {
    let mut params = CallToolRequestParams::new(named(tool));
    params.arguments = arguments.as_object().cloned();
    let result = serde_json::to_value(client.call_tool(params).await.map_err(words)?).map_err(words)?;
    let parts = result["content"].as_array().cloned().unwrap_or_default();
    let text: Vec<_> = parts.iter().filter_map(|part| part["text"].as_str().map(str::to_owned)).collect();
    must(result["isError"] != json!(true), format!("tool {tool} answered an error: {text:?}"))?;
    Ok(text.join("\n"))
}

async fn list(client: &Client) -> Outcome {
    let tools = client.list_all_tools().await.map_err(words)?;
    must(tools.iter().any(|t| t.name == named("echo")), "tools: no echo")?;
    let prompts = client.list_all_prompts().await.map_err(words)?;
    must(prompts.iter().any(|p| p.name == named("simple-prompt")), "prompts: no simple-prompt")?;
    let resources = client.list_all_resources().await.map_err(words)?;
    must(!resources.is_empty(), "there are no resources")
}

async fn echo(client: &Client) -> Outcome {
    for text in ["plain", "🐭💤 שלום 漢字 \u{2028} \n \"quoted\"", &"x".repeat(256 * 1024)] {
        let got = call(client, "echo", json!({"message": text})).await?;
        must(got == format!("Echo: {text}"), format!("echo: got {got:.200}"))?;
    }
    Ok(())
}

async fn progress(client: &Client, handler: &Handler) -> Outcome {
    handler.progress.lock().unwrap().clear();
    call(client, "trigger-long-running-operation", json!({"duration": 1, "steps": 5})).await?;
    let want: Vec<_> = (1..=5).map(|i| format!("{i}/5")).collect();
    // Handlers run beside the call and beside one another: their order proves nothing, and the last
    // of them may be later than the result.
    let deadline = Instant::now() + CHECK_TIMEOUT / 2;
    while handler.progress.lock().unwrap().len() < want.len() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut seen = handler.progress.lock().unwrap().clone();
    seen.sort();
    must(seen == want, format!("progress: {seen:?}"))
}

async fn elicitation(client: &Client, handler: &Handler) -> Outcome {
    let answer = call(client, "trigger-elicitation-request", json!({})).await?;
    must(*handler.questions.lock().unwrap() == 1, "the client was not asked once")?;
    must(answer.contains("- Name: Ada “🐭” Løvelace") && answer.contains("- Favorite Integer: 17"), format!("unexpected: {answer}"))
}

async fn roots(client: &Client) -> Outcome {
    let answer = call(client, "get-roots-list", json!({})).await?;
    must(answer.contains("URI: file:///srv/one"), format!("the root is not listed: {answer}"))
}

/// Runs a check and prints its line.
async fn run(name: &str, check: impl Future<Output = Outcome>) -> bool {
    let begin = Instant::now();
    let outcome = tokio::time::timeout(CHECK_TIMEOUT, check).await.unwrap_or_else(|_| Err(format!("{name}: not done in time")));
    let mut line = json!({"client": SDK, "check": name, "ok": outcome.is_ok(), "ms": begin.elapsed().as_millis() as u64});
    if let Err(error) = &outcome {
        line["error"] = json!(error);
    }
    println!("{line}");
    outcome.is_ok()
}

async fn connect(url: &str, auto: bool, handler: Handler) -> Result<Client, String> {
    let modern = ProtocolVersion::V_2026_07_28;
    let lifecycle = match auto {
        true => ClientLifecycleMode::Auto { preferred_versions: vec![modern.clone()], legacy_version: Some(ProtocolVersion::V_2025_11_25) },
        false => ClientLifecycleMode::Initialize,
    };
    let transport = StreamableHttpClientTransport::from_uri(url.to_owned());
    let client = handler.serve_with_lifecycle(transport, lifecycle).await.map_err(words)?;
    let version = client.peer_info().map(|info| info.protocol_version.clone());
    must((version == Some(modern)) == auto, format!("negotiated version {version:?}"))?;
    Ok(client)
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let flags: HashMap<&str, &str> = arguments.chunks(2).filter(|pair| pair.len() == 2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    let (Some(url), Some(mode)) = (flags.get("--url"), flags.get("--mode")) else {
        eprintln!("usage: rmcp-client --mode initialize|auto --url URL");
        return ExitCode::from(2);
    };
    let handler = Handler::default();
    let mut client = None;
    let connecting = async {
        client = Some(connect(url, *mode == "auto", handler.clone()).await?);
        Ok(())
    };
    let mut ok = run("initialize", connecting).await;
    if let Some(client) = client {
        ok &= run("list", list(&client)).await;
        ok &= run("echo-unicode", echo(&client)).await;
        ok &= run("progress", progress(&client, &handler)).await;
        ok &= run("elicitation", elicitation(&client, &handler)).await;
        ok &= run("roots", roots(&client)).await;
        ok &= run("close", async { client.cancel().await.map(|_| ()).map_err(words) }).await;
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
