package local

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"gopkg.in/natefinch/lumberjack.v2"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// The size of an audit file in MiB at which the next one begins, and how many earlier ones
// are kept.
const (
	auditSize = 100
	auditKept = 20
)

// audited is a line of the audit file: the call of a tool, or a refused request. It has names
// that a client chose, and neither arguments nor results nor texts of errors, which a server
// writes.
type audited struct {
	Time      time.Time `json:"time"` // of its end
	Tenant    string    `json:"tenant"`
	Principal string    `json:"principal"`
	Server    string    `json:"server"`
	Tool      string    `json:"tool"`
	Client    string    `json:"client,omitempty"`
	MS        float64   `json:"ms"`
	Outcome   string    `json:"outcome"`        // done, failed or refused
	Code      string    `json:"code,omitempty"` // if Dormouse refused the call or gave it up
	Woke      bool      `json:"woke,omitempty"` // it started a box
	BytesIn   int       `json:"bytes_in,omitempty"`
	BytesOut  int       `json:"bytes_out,omitempty"`
	Session   string    `json:"session,omitempty"`
	Trace     string    `json:"trace,omitempty"` // as in the log
	Key       string    `json:"key,omitempty"`   // ID of the API key
	Address   string    `json:"address,omitempty"`
	Refusal   string    `json:"refusal,omitempty"` // why it was refused
	Reason    string    `json:"reason,omitempty"`  // of a refusal, in our words
}

// openAudit opens the audit file, which only its owner may read, and appends to it.
func openAudit(path string) (io.WriteCloser, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		err = f.Chmod(0o600) // of a file that was there
		_ = f.Close()        // nothing was written
	}
	if err != nil {
		return nil, fmt.Errorf("--audit: %w", err)
	}
	return &lumberjack.Logger{Filename: path, MaxSize: auditSize, MaxBackups: auditKept}, nil
}

// audit returns a printer that writes a line for each call of a tool and each refusal.
func audit(to io.Writer) func(journal.Event) {
	enc := json.NewEncoder(to)
	enc.SetEscapeHTML(false)
	return func(e journal.Event) {
		if e.Kind != journal.Call && e.Kind != journal.Refused {
			return
		}
		outcome, reason := "done", ""
		switch {
		case e.Refusal != "" || e.Kind == journal.Refused:
			outcome, reason = "refused", e.Reason
		case e.Reason != "" || e.Code != "":
			outcome = "failed"
		}
		_ = enc.Encode(audited{ // a file that cannot be written to is reported by bestEffortLog
			Time: e.Time.UTC(), Tenant: e.Tenant, Principal: e.Principal, Server: e.Name, Tool: e.Tool, Client: e.Client,
			MS: float64(e.Duration.Microseconds()) / 1000, Outcome: outcome, Code: e.Code, Woke: e.Wakes > 0,
			BytesIn: e.In, BytesOut: e.Out, Session: e.Session, Trace: e.Trace, Key: e.Key, Address: e.Address, Refusal: e.Refusal, Reason: reason,
		})
	}
}
