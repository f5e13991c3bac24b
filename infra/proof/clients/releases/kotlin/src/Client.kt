// The official Kotlin SDK, of releases since 0.8, as a program that takes steps; ../../../doc.go has
// them.
//
//     java -cp '.:lib/*' ClientKt --url http://127.0.0.1:8080/echo/mcp --transport http

import io.ktor.client.HttpClient
import io.ktor.client.engine.cio.CIO
import io.ktor.client.plugins.HttpTimeout
import io.ktor.client.plugins.sse.SSE
import io.modelcontextprotocol.kotlin.sdk.client.Client
import io.modelcontextprotocol.kotlin.sdk.client.ClientOptions
import io.modelcontextprotocol.kotlin.sdk.client.StreamableHttpClientTransport
import io.modelcontextprotocol.kotlin.sdk.types.ClientCapabilities
import io.modelcontextprotocol.kotlin.sdk.types.Implementation
import io.modelcontextprotocol.kotlin.sdk.types.Method
import io.modelcontextprotocol.kotlin.sdk.types.TextContent
import io.modelcontextprotocol.kotlin.sdk.types.ToolListChangedNotification
import java.util.concurrent.ConcurrentLinkedQueue
import java.util.logging.Handler
import java.util.logging.Level
import java.util.logging.LogRecord
import java.util.logging.Logger
import kotlin.system.exitProcess
import kotlin.time.Duration.Companion.seconds
import kotlinx.coroutines.CompletableDeferred
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import kotlinx.serialization.json.buildJsonObject
import kotlinx.serialization.json.put

private val LIMIT = 20.seconds

/** What the SDK logs, warnings and worse, from slf4j by way of java.util.logging. */
private object Warnings : Handler() {
    val texts = ConcurrentLinkedQueue<String>()

    override fun publish(record: LogRecord) {
        if (record.level.intValue() >= Level.WARNING.intValue()) {
            texts += "${record.loggerName}: ${record.message} ${record.thrown ?: ""}"
        }
    }

    override fun flush() {}

    override fun close() {}
}

private class Program(url: String) {
    private val http = HttpClient(CIO) {
        install(SSE)
        install(HttpTimeout) { requestTimeoutMillis = 60_000 }
    }
    private val transport = StreamableHttpClientTransport(http, url)
    private val client =
        object : Client(Implementation("dormouse-client-kotlin", "1.0.0"), ClientOptions(ClientCapabilities())) {
            override fun onError(error: Throwable) {
                Warnings.texts += "onError: $error"
            }
        }
    private val pushed = Channel<Unit>(Channel.UNLIMITED)

    init {
        client.setNotificationHandler<ToolListChangedNotification>(Method.Defined.NotificationsToolsListChanged) {
            pushed.trySend(Unit)
            CompletableDeferred(Unit)
        }
    }

    suspend fun take(step: String) {
        when (step) {
            "connect" -> client.connect(transport)
            "list" -> check(client.listTools().tools.any { it.name == "echo" }) { "no tool echo" }
            "call" -> check(call("echo", mapOf("message" to "🐭")) == "Echo: 🐭") { "another answer than the call's" }
            "slow" -> check("completed" in call("trigger-long-running-operation", mapOf("duration" to 3, "steps" to 1)))
            "push" -> {
                while (pushed.tryReceive().isSuccess) Unit
                call("push", emptyMap())
                pushed.receive()
            }
            "close" -> client.close()
            else -> error("there is no step $step")
        }
    }

    private suspend fun call(tool: String, arguments: Map<String, Any?>): String {
        val result = checkNotNull(client.callTool(tool, arguments))
        check(result.isError != true) { "the tool answered an error: ${result.content}" }
        return (result.content.first() as TextContent).text ?: ""
    }
}

/** The version of the SDK that is really loaded. */
private fun version(): String =
    Regex("kotlin-sdk-client-jvm-(.*)\\.jar").find(Client::class.java.protectionDomain.codeSource.location.path)!!.groupValues[1]

fun main(args: Array<String>): Unit = runBlocking {
    // The SDK's logging library prints a line to stdout when it begins.
    val out = System.out
    System.setOut(System.err)
    val root = Logger.getLogger("")
    root.handlers.forEach(root::removeHandler)
    root.addHandler(Warnings)
    val program = Program(args[args.indexOf("--url") + 1])
    for (step in generateSequence(::readLine)) {
        val begin = System.nanoTime()
        val errors = mutableListOf<String>()
        try {
            withTimeout(LIMIT) { program.take(step) }
        } catch (error: Throwable) {
            errors += "$error; cause: ${error.cause}"
        }
        while (true) errors += "the SDK said: ${Warnings.texts.poll() ?: break}"
        val line = buildJsonObject {
            put("client", "kotlin-${version()}")
            put("check", step)
            put("ok", errors.isEmpty())
            put("ms", (System.nanoTime() - begin) / 1_000_000)
            if (errors.isNotEmpty()) put("error", errors.joinToString("; "))
        }
        out.println(line)
    }
    exitProcess(0)
}
