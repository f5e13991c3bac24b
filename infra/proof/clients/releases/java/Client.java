// The official Java SDK, of any release, as a program that takes steps; ../../doc.go has them.
//
//     java -cp '.:lib/*' Client --url http://127.0.0.1:8080/echo/mcp --transport http
//     java -cp '.:lib/*' Client --url http://127.0.0.1:8080/echo/sse --transport sse
//     java -cp '.:lib/*' Client --url http://127.0.0.1:8080/echo/sse --transport sse-below
//
// The SDK takes a base URL and a path. They are the host and the whole path; with sse-below
// the base is the URL of the server, and the path its last part.

import io.modelcontextprotocol.client.McpClient;
import io.modelcontextprotocol.client.McpSyncClient;
import io.modelcontextprotocol.client.transport.HttpClientSseClientTransport;
import io.modelcontextprotocol.spec.McpClientTransport;
import io.modelcontextprotocol.spec.McpSchema;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.logging.Handler;
import java.util.logging.Level;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.logging.SimpleFormatter;

public class Client {
  private static final Duration LIMIT = Duration.ofSeconds(20);

  private final Queue<String> warnings = new ConcurrentLinkedQueue<>();
  private final Semaphore pushed = new Semaphore(0);
  private final McpSyncClient client;

  private Client(McpClientTransport transport) {
    client =
        McpClient.sync(transport)
            .clientInfo(new McpSchema.Implementation("dormouse-client-java", "1.0.0"))
            .requestTimeout(LIMIT)
            .initializationTimeout(LIMIT)
            .toolsChangeConsumer(tools -> pushed.release())
            .build();
  }

  public static void main(String[] args) throws Exception {
    Map<String, String> flags = Map.of(args[0], args[1], args[2], args[3]);
    new Client(transport(flags.get("--url"), flags.get("--transport"))).run();
    System.exit(0); // the threads of the SDK need not end
  }

  private static McpClientTransport transport(String url, String kind) throws Exception {
    int at = kind.equals("sse-below") ? url.lastIndexOf('/') + 1 : url.indexOf('/', "https://".length());
    String base = url.substring(0, at);
    String path = url.substring(at);
    if (!kind.equals("http")) return HttpClientSseClientTransport.builder(base).sseEndpoint(path).build();
    // The oldest releases have no such class.
    Object builder = Class.forName("io.modelcontextprotocol.client.transport.HttpClientStreamableHttpTransport")
            .getMethod("builder", String.class).invoke(null, base);
    builder = builder.getClass().getMethod("endpoint", String.class).invoke(builder, path);
    return (McpClientTransport) builder.getClass().getMethod("build").invoke(builder);
  }

  private void run() throws Exception {
    collectWarnings();
    BufferedReader steps = new BufferedReader(new InputStreamReader(System.in));
    for (String step = steps.readLine(); step != null; step = steps.readLine()) {
      long begin = System.nanoTime();
      String error = null;
      try {
        take(step);
        if (!warnings.isEmpty()) error = "the SDK logged: " + String.join(" | ", warnings);
      } catch (Throwable thrown) {
        error = thrown + "; cause: " + thrown.getCause() + "; the SDK logged: " + String.join(" | ", warnings);
      }
      warnings.clear();
      long ms = (System.nanoTime() - begin) / 1_000_000;
      String line = "{\"client\":\"java-" + version() + "\",\"check\":\"" + step + "\",\"ok\":" + (error == null) + ",\"ms\":" + ms;
      byte[] bytes = (line + (error == null ? "" : ",\"error\":" + quoted(error)) + "}\n").getBytes(StandardCharsets.UTF_8);
      System.out.write(bytes);
      System.out.flush();
    }
  }

  private void take(String step) throws Exception {
    switch (step) {
      case "connect" -> client.initialize();
      case "list" -> must(client.listTools().tools().stream().anyMatch(tool -> tool.name().equals("echo")), "no tool echo");
      case "call" -> must(call("echo", Map.of("message", "🐭")).equals("Echo: 🐭"), "another answer than the call's");
      case "slow" -> must(call("trigger-long-running-operation", Map.of("duration", 3, "steps", 1)).contains("completed"), "no answer of the slow call");
      case "push" -> {
        call("push", Map.of());
        must(pushed.tryAcquire(LIMIT.toSeconds(), TimeUnit.SECONDS), "nothing was pushed");
      }
      case "close" -> must(client.closeGracefully(), "the client did not close");
      default -> throw new IllegalArgumentException("there is no step " + step);
    }
  }

  private String call(String tool, Map<String, Object> arguments) {
    McpSchema.CallToolResult result = client.callTool(new McpSchema.CallToolRequest(tool, arguments));
    must(!Boolean.TRUE.equals(result.isError()), "the tool answered an error: " + result.content());
    return ((McpSchema.TextContent) result.content().get(0)).text();
  }

  private static void must(boolean holds, String text) {
    if (!holds) throw new IllegalStateException(text);
  }

  /** Takes what the SDK logs, warnings and worse, from slf4j by way of java.util.logging. */
  private void collectWarnings() {
    Logger root = Logger.getLogger("");
    Arrays.stream(root.getHandlers()).forEach(root::removeHandler);
    root.addHandler(
        new Handler() {
          @Override
          public void publish(LogRecord record) {
            if (record.getLevel().intValue() < Level.WARNING.intValue()) return;
            String text = record.getLoggerName() + ": " + new SimpleFormatter().formatMessage(record);
            warnings.add(record.getThrown() == null ? text : text + ": " + record.getThrown());
          }

          @Override
          public void flush() {}

          @Override
          public void close() {}
        });
  }

  /** The version of the SDK that is really loaded. */
  private static String version() throws Exception {
    Path jar = Path.of(McpClient.class.getProtectionDomain().getCodeSource().getLocation().toURI());
    return jar.getFileName().toString().replaceAll("^mcp(-core)?-|\\.jar$", "");
  }

  private static String quoted(String text) {
    StringBuilder json = new StringBuilder("\"");
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') json.append('\\').append(c);
      else if (c < ' ') json.append(String.format("\\u%04x", (int) c));
      else json.append(c);
    }
    return json.append('"').toString();
  }
}
