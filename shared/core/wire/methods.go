package wire

// Methods that a client calls. Legacy ones exist up to 2025-11-25, modern ones from
// 2026-07-28 on.
const (
	MethodInitialize            = "initialize"               // legacy: opens a session
	MethodPing                  = "ping"                     // legacy, both directions
	MethodSetLevel              = "logging/setLevel"         // legacy
	MethodToolsList             = "tools/list"               // paged
	MethodToolsCall             = "tools/call"               // params.name is the tool
	MethodPromptsList           = "prompts/list"             // paged
	MethodPromptsGet            = "prompts/get"              // params.name is the prompt
	MethodResourcesList         = "resources/list"           // paged
	MethodResourceTemplatesList = "resources/templates/list" // paged
	MethodResourcesRead         = "resources/read"           // params.uri
	MethodSubscribe             = "resources/subscribe"      // legacy; params.uri
	MethodUnsubscribe           = "resources/unsubscribe"    // legacy; params.uri
	MethodComplete              = "completion/complete"      // params.ref, params.argument
	MethodDiscover              = "server/discover"          // modern: the content of initialize's result
	MethodListen                = "subscriptions/listen"     // modern: a stream of changes
	MethodTasksGet              = "tasks/get"                // 2025-11-25 and tasks extension
	MethodTasksResult           = "tasks/result"             // 2025-11-25 only
	MethodTasksList             = "tasks/list"               // 2025-11-25 only
	MethodTasksCancel           = "tasks/cancel"             // 2025-11-25 and tasks extension
	MethodTasksUpdate           = "tasks/update"             // tasks extension only
)

// Methods a server calls: JSON-RPC requests to the client in the legacy era,
// entries of inputRequests in the modern one.
const (
	MethodCreateMessage = "sampling/createMessage" // the client asks its model
	MethodElicit        = "elicitation/create"     // from 2025-06-18: the client asks its user
	MethodRootsList     = "roots/list"             // the client's folders
)

// Notifications a client sends.
const (
	NotifyInitialized  = "notifications/initialized"        // legacy: the handshake is over
	NotifyRootsChanged = "notifications/roots/list_changed" // legacy
)

// Notifications either side sends.
const (
	NotifyCancelled = "notifications/cancelled" // params.requestId
	NotifyProgress  = "notifications/progress"  // params.progressToken
)

// Notifications a server sends.
const (
	NotifyMessage             = "notifications/message"                    // a log line
	NotifyToolsChanged        = "notifications/tools/list_changed"         // list again
	NotifyPromptsChanged      = "notifications/prompts/list_changed"       // list again
	NotifyResourcesChanged    = "notifications/resources/list_changed"     // list again
	NotifyResourceUpdated     = "notifications/resources/updated"          // params.uri
	NotifyElicitationComplete = "notifications/elicitation/complete"       // 2025-11-25 only
	NotifyTaskStatus          = "notifications/tasks/status"               // 2025-11-25 only
	NotifyTasks               = "notifications/tasks"                      // tasks extension only
	NotifyAcknowledged        = "notifications/subscriptions/acknowledged" // modern: first on a listen stream
)

// Keys of _meta, in params and results.
const (
	MetaProgressToken      = "progressToken"                              // string or integer, in params
	MetaProtocolVersion    = "io.modelcontextprotocol/protocolVersion"    // modern: must be in params
	MetaClientCapabilities = "io.modelcontextprotocol/clientCapabilities" // modern: must be in params
	MetaClientInfo         = "io.modelcontextprotocol/clientInfo"         // modern, in params
	MetaLogLevel           = "io.modelcontextprotocol/logLevel"           // modern, in params
	MetaServerInfo         = "io.modelcontextprotocol/serverInfo"         // modern, in results
	MetaSubscriptionID     = "io.modelcontextprotocol/subscriptionId"     // modern, on a listen stream
	MetaRelatedTask        = "io.modelcontextprotocol/related-task"       // 2025-11-25 tasks
	MetaIdempotencyKey     = "io.modelcontextprotocol/idempotencyKey"     // of a tools/call; SEP-3182 has it in params
	MetaIdempotencyLife    = "dormouse/idempotencyTtlMs"                  // how long that key is kept
)

// Values of the member resultType in a modern result. A result without it is complete.
const (
	ResultComplete      = "complete"       // the answer
	ResultInputRequired = "input_required" // the server asks for input; the client sends the request again with it
	ResultTask          = "task"           // tasks extension only
)

// OfExtension reports whether a method belongs to an extension: no version of MCP has it, as a request
// or as a notification. The methods of the tasks extension count as MCP's.
func OfExtension(method string) bool {
	return !ofMCP(method) && !sentByServers(method) && method != NotifyInitialized && method != NotifyRootsChanged
}
