package display

import (
	"fmt"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// take counts an event for the status line, and prints it.
func (t *Terminal) take(e journal.Event) {
	e = plainEvent(e)
	t.count(e)
	if t.opts.Screen {
		t.bottom.note(e)
	}
	if e.Kind == journal.Call {
		if t.rush.printSum(&t.printer, e.Time); !t.rush.admit(e.Time) {
			return
		}
	}
	if t.opts.Screen {
		t.people(e)
	} else {
		t.record(e)
	}
}

func (t *Terminal) count(e journal.Event) {
	s := &t.seen
	switch e.Kind {
	case journal.BoxWake:
		s.awake[e.PID] = true
	case journal.BoxSleep, journal.BoxCrash:
		delete(s.awake, e.PID)
	case journal.Call:
		s.calls++
		switch {
		case e.Failed():
			s.failed++
		case e.Refusal != "":
			s.refused++
		}
	}
	if e.Session != "" && len(s.sessions) < maxSessions {
		s.sessions[e.Session] = true
	}
}

// people prints an event as lines for people.
func (t *Terminal) people(e journal.Event) {
	switch e.Kind {
	case journal.ServerSaved:
		t.line(e.Time, e.Name, "saved, so it starts anew")
	case journal.ServerStarting:
		text := "starting"
		if who := t.whom(e); who != "" {
			text += ", for " + who
		}
		t.line(e.Time, e.Name, text)
	case journal.ServerReady:
		text := "ready after " + span(e.Duration)
		if e.Install >= time.Second {
			text = "installed in " + span(e.Install) + ", " + text
		}
		t.line(e.Time, e.Name, joined(", ", text, e.Detail))
	case journal.ServerFailed:
		t.line(e.Time, e.Name, t.red("failed")+": "+e.Reason)
		for _, at := range e.Lines {
			t.hint(at)
		}
		t.hint(lastLines(e.Name))
	case journal.ServerRefused:
		t.line(e.Time, e.Name, t.yellow("refused")+": "+e.Detail)
	case journal.ServerAsleep:
		text := "asleep"
		if e.Duration >= time.Second {
			text += " after " + roughly(e.Duration)
		}
		t.line(e.Time, e.Name, text)
	case journal.ServersChanged, journal.ServersRefused:
		t.line(e.Time, e.Name, joined(": ", e.Detail, e.Reason))
	case journal.ToolsHeld:
		t.line(e.Time, e.Name, t.yellow("held back")+": "+e.Detail)
		for _, line := range e.Lines {
			t.hint(line)
		}
		t.hint(e.Hint)
	case journal.Call:
		t.call(e)
	case journal.Refused:
		t.line(e.Time, e.Name, joined(" ", t.yellow("refused"), t.sender(e))+": "+e.Reason)
	case journal.RefusedAgain, journal.ServerInstalling: // t.bottom shows what is being installed
	case journal.FolderWell:
		t.line(e.Time, "", e.Detail)
	case journal.LogLost, journal.FolderTrouble, journal.CertificateFailed:
		t.line(e.Time, "", t.red("failed")+": "+e.Reason)
		t.hint(e.Hint)
	default:
		t.process(e)
	}
}

// process prints an event of a box or another process of dormouse.
func (t *Terminal) process(e journal.Event) {
	switch {
	case e.Kind == journal.BoxCrash:
		t.line(e.Time, e.Name, t.red("failed")+": the process of its box ended: "+e.Reason)
	case t.opts.Verbose && e.Kind != journal.ServerStopped && e.Kind != journal.ProcessCount:
		text := e.Kind
		if e.PID != 0 {
			text += fmt.Sprintf("  pid %d", e.PID)
		}
		if e.Duration != 0 {
			text += "  " + span(e.Duration)
		}
		if e.Detail != "" {
			text += "  " + e.Detail
		}
		t.line(e.Time, e.Name, t.dim(text))
	}
}

// call prints one call of a tool.
func (t *Terminal) call(e journal.Event) {
	var parts []string
	if who := e.Principal; who != "" && !t.begun.Open {
		t.who = min(max(t.who, length(who)), maxWho)
		parts = append(parts, pad(who, t.who))
	}
	t.tool = min(max(t.tool, length(e.Tool)), maxTool)
	parts = append(parts, pad(e.Tool, t.tool))
	took := fmt.Sprintf("%8s", span(e.Duration))
	if e.Reason == "" {
		t.line(e.Time, e.Name, strings.Join(append(parts, took), "  "))
		return
	}
	if e.Refusal != "" {
		t.line(e.Time, e.Name, strings.Join(append(parts, t.yellow("refused"), took, joined(", ", e.Reason, t.sender(e))), "  "))
		return
	}
	t.line(e.Time, e.Name, strings.Join(append(parts, t.red("failed"), took, e.Reason), "  "))
	t.hint(lastLines(e.Name))
}

// sender says who was refused, for example "ada of acme, key 7h2k, from 192.0.2.7".
func (t *Terminal) sender(e journal.Event) string {
	from := func(word, text string) string {
		if text == "" {
			return ""
		}
		return word + " " + text
	}
	who := joined(" ", e.Principal, from("of", e.Tenant))
	if e.Kind == journal.Call { // the line begins with the principal
		who = from("tenant", e.Tenant)
	}
	return joined(", ", who, joined(", ", from("key", e.Key), from("from", e.Address)))
}

// lastLines tells the user how to see the last output of a server.
func lastLines(server string) string { return "its last lines: dormouse logs " + server + " -n 20" }

// whom names the principal and the client of an event. At an open endpoint it names the client
// only, because all principals are the same.
func (t *Terminal) whom(e journal.Event) string {
	who := e.Principal
	if t.begun.Open {
		who = ""
	}
	switch {
	case who == "":
		return e.Client
	case e.Client == "":
		return who
	default:
		return who + " (" + e.Client + ")"
	}
}
