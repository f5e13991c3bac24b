package display

import (
	"cmp"
	"strconv"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// record prints an event as one line: the server, the kind of event, and names with values.
func (t *Terminal) record(e journal.Event) {
	kind, always := recordKind(e)
	if e.Kind == journal.RefusedAgain || e.Kind == journal.ServerStopped || e.Kind == journal.ProcessCount || !always && !t.opts.Verbose {
		return
	}
	principal := e.Principal
	if t.begun.Open {
		principal = ""
	}
	values := []string{"principal", principal, "client", e.Client, "tool", e.Tool}
	switch {
	case e.Kind == journal.Call, e.Kind == journal.ServerReady:
		values = append(values, "ms", strconv.FormatInt(e.Duration.Milliseconds(), 10))
	case e.Kind == journal.ServerAsleep && e.Duration > 0:
		values = append(values, "after", e.Duration.Round(time.Second).String())
	}
	if e.Install > 0 {
		values = append(values, "install_ms", strconv.FormatInt(e.Install.Milliseconds(), 10))
	}
	values = append(values, "what", e.Detail, "phase", e.Phase, "why", e.Reason, "do", e.Hint)
	if e.Refusal != "" || e.Kind == journal.Refused {
		values = append(values, "tenant", e.Tenant, "key", e.Key, "address", e.Address, "refusal", e.Refusal)
	}
	if e.PID != 0 && t.opts.Verbose {
		values = append(values, "pid", strconv.Itoa(e.PID))
	}
	if e.Kind != journal.ServerAsleep {
		values = append(values, "session", e.Session, "trace", e.Trace)
	}
	t.recordLine(e.Time, e.Name, kind, values...)
}

// recordKind returns the word for an event's kind. The result always is false for kinds that only a
// verbose Terminal prints; their word is e.Kind.
func recordKind(e journal.Event) (word string, always bool) {
	if e.Kind == journal.Call {
		switch {
		case e.Failed():
			return "call-failed", true
		case e.Refusal != "":
			return "call-refused", true
		}
		return "call", true
	}
	word, always = map[string]string{
		journal.ServerStarting: "starting", journal.ServerInstalling: "installing", journal.ServerReady: "ready",
		journal.ServerFailed: "failed", journal.ServerRefused: "network-refused", journal.ServerAsleep: "asleep",
		journal.ServersChanged: "servers-changed", journal.ServersRefused: "servers-refused",
		journal.Refused: "", journal.LogLost: "", journal.FolderTrouble: "", journal.FolderWell: "",
		journal.CertificateFailed: "", journal.BoxCrash: "", journal.ToolsHeld: "",
	}[e.Kind]
	return cmp.Or(word, e.Kind), always
}
