package display

import (
	"fmt"
	"slices"
	"strings"
)

// Start prints the first block: the servers, their addresses, and what the user can do.
func (t *Terminal) Start(s Start) {
	s = s.plain()
	t.do(func() {
		t.begun = s
		for _, server := range s.Servers {
			t.name = max(t.name, length(server.Name))
		}
		t.first(s)
		t.bottom.started = true
	})
}

func (t *Terminal) first(s Start) {
	served := len(slices.DeleteFunc(slices.Clone(s.Servers), func(s Server) bool { return s.Address == "" }))
	of := Count(len(s.Servers), "server") + " of " + s.File
	if served < len(s.Servers) {
		of = fmt.Sprintf("%d of %s", served, of)
	}
	head := []string{strings.TrimSpace("dormouse " + t.opts.Version), of, s.Who}
	t.say("%s", joined(" · ", head...))
	t.say("")
	t.addresses(s)
	if s.One != "" && served > 1 {
		t.say("  all at one address: %s", s.One)
	}
	t.say("")
	hint := func(what, command string) {
		if command != "" {
			t.say("  %s  %s", pad(what, t.name), command)
		}
	}
	if len(s.Clients) > 0 {
		hint("console", s.Console)
		hint("clients", s.Clients[0])
		t.say("")
	}
	for _, note := range s.Notes {
		t.say("%s", note)
	}
	if len(s.Notes) > 0 {
		t.say("")
	}
	rests := "Nothing runs until a message comes."
	if len(s.Preparing) > 0 {
		t.say("Installed now, and started once: %s.", strings.Join(s.Preparing, ", "))
		rests = "Nothing else runs until a message."
	}
	keys := "Ctrl-C ends it."
	if t.opts.Keys {
		keys = "c clients · r reload · v more · q quit"
	}
	if !t.opts.Screen {
		t.say("%s", rests)
		return
	}
	t.say("%s      %s", rests, keys)
	t.say("")
}

// addresses lists the servers, each with its address and tools.
func (t *Terminal) addresses(s Start) {
	wide := 0
	text := make([]string, len(s.Servers))
	for i, server := range s.Servers {
		switch {
		case server.Off:
			text[i] = "off"
		case server.Why != "":
			text[i] = "not served: " + server.Why
		default:
			text[i] = server.Address
			wide = max(wide, length(text[i]))
		}
	}
	for i, server := range s.Servers {
		line := "  " + pad(server.Name, t.name) + "  "
		switch {
		case server.Why != "":
			t.say("%s%s   %s", line, text[i], server.Place)
		case server.Tools != "":
			t.say("%s%s   %s", line, pad(text[i], wide), server.Tools)
		default:
			t.say("%s%s", line, text[i])
		}
	}
}

// clients prints how to connect clients, after the user has pressed a key.
func (t *Terminal) clients() {
	t.say("")
	for _, line := range t.begun.Clients {
		t.say("  %s", line)
	}
	for _, s := range t.begun.Servers {
		if s.Address != "" {
			t.say("  %s  %s", pad(s.Name, t.name), s.Address)
		}
	}
	t.say("")
}
