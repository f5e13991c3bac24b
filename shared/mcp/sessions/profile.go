package sessions

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// Profile is what a server says about itself to people. Fields that are not known are "".
type Profile struct {
	Title, Version string
	About          string // the server's description, or else its instructions for clients
	Tools          []ProfileTool
}

// ProfileTool is a tool as a Profile shows it.
type ProfileTool struct {
	Name        string `json:"name"`
	Title       string `json:"title"`
	Description string `json:"description"`
}

// Profile returns what the handshake record has about the caller's server, without waking a box. The
// Profile has only tools that the caller may see. The record may lag behind the server. Errors:
// Unavailable.
func (h *Manager) Profile(ctx context.Context, c Caller) (p Profile, err error) {
	if !c.Server.Record {
		return p, nil
	}
	hello, err := h.greeted(ctx, c, "", wire.V20251125)
	if err != nil {
		return p, err
	}
	say := func(path ...string) string {
		text, _ := wire.String(wire.Lookup(hello, path...))
		return text
	}
	p.Title, p.Version, p.About = say("serverInfo", "title"), say("serverInfo", "version"), say("serverInfo", "description")
	if p.About == "" {
		p.About = say("instructions")
	}
	parts, err := h.store.ListHandshakes(ctx, storage.RecordFor(c.Tenant, c.Server.Digest), wire.MethodToolsList+" ")
	if err != nil {
		return p, err
	}
	own := c.Server.whose(storage.Session{Principal: c.Principal}, wire.MethodToolsList)
	least, taken := math.MaxInt, time.Time{}
	for _, part := range parts {
		fields := strings.Split(part.Version, " ") // listPart has made part.Version
		if len(fields) != 4 || fields[3] != own {
			continue
		}
		// Take the list for the fewest capabilities: a server may offer more tools to clients that
		// declare more capabilities than usual.
		can := len(fields[2])
		if can > least || can == least && !part.Taken.After(taken) {
			continue
		}
		list, err := c.visible(ctx, h.parts.Held, wire.Lookup(part.Result, "list"))
		if err != nil {
			return p, err
		}
		var tools []ProfileTool
		if json.Unmarshal(wire.Lookup(list, "tools"), &tools) == nil {
			p.Tools, least, taken = tools, can, part.Taken
		}
	}
	return p, nil
}
