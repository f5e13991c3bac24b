package held

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

const (
	firstPages = time.Minute        // pages of the first list that come within this time after its first page are accepted
	remembered = 7 * 24 * time.Hour // a held tool that the server no longer lists is forgotten after this time
	seenAgain  = time.Hour          // precision of heldTool.Seen
	mostHeld   = 256                // how many held tools a record has at most
	heldBytes  = 256 << 10          // bytes of the held tools together
)

type record struct {
	Source string     `json:"source"`         // what the server runs, without a version
	Lock   string     `json:"lock,omitempty"` // fingerprint of the lock file's entry that Tools came from, or were written to
	Since  time.Time  `json:"since"`          // of the last acceptance
	Open   time.Time  `json:"open,omitzero"`  // until when the tools of further pages are accepted, as part of the first list
	Tools  []tool     `json:"tools"`          // the accepted tools; nil: no list is accepted yet
	Held   []heldTool `json:"held,omitempty"`
}

type heldTool struct {
	Tool  tool      `json:"tool"`
	Since time.Time `json:"since"`
	Seen  time.Time `json:"seen"`
}

// tool is a tool as the server wrote it. A record keeps it as a string: encoding/json would
// change the bytes of a json.RawMessage, and a list must have the same bytes each time.
type tool = string

func (r record) accepts() bool { return r.Tools != nil }

// encode returns the record in the form for the store.
func (r record) encode() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err = w.Write(text); err == nil {
		err = w.Close()
	}
	return out.Bytes(), err
}

func decode(data []byte) (r record, err error) {
	in, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return r, err
	}
	text, err := io.ReadAll(in)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// nameOf returns the name of a tool. ok is false for an entry of a list that has no name.
func nameOf(t tool) (name string, ok bool) { return wire.String(wire.Lookup([]byte(t), "name")) }

// find returns the index of the tool with a name, -1 if there is none.
func find(tools []tool, name string) int {
	return slices.IndexFunc(tools, func(t tool) bool {
		has, ok := nameOf(t)
		return ok && has == name
	})
}

// same reports whether two tools have the same meaning. The order of keys, spaces and escapes do not
// count; every character of a text does.
func same(a, b tool) bool { return a == b || bytes.Equal(canonical(a), canonical(b)) }

// canonical returns JSON with sorted keys.
func canonical(raw tool) []byte {
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return []byte(raw)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return []byte(raw) // does not happen: v was decoded from JSON
	}
	return out
}

func hashOf(t tool) string {
	sum := sha256.Sum256(canonical(t))
	return hex.EncodeToString(sum[:12])
}

// fingerprint returns a hash of a set of tools. Their order does not count.
func fingerprint(tools []tool) string {
	hashes := make([]string, len(tools))
	for i, t := range tools {
		hashes[i] = hashOf(t)
	}
	slices.Sort(hashes)
	sum := sha256.New()
	for _, h := range hashes {
		sum.Write([]byte(h))
	}
	return hex.EncodeToString(sum.Sum(nil)[:12])
}

// listed updates the record with a list that the server gave, or with a page of one. The result
// accepted reports whether listed has accepted the tools of the list, because they belong to the
// server's first list. The result news reports whether the record has changed.
func (r *record) listed(pin storage.Pin, list json.RawMessage, now time.Time) (accepted, news bool) {
	tools := toolsOf(list)
	more := wire.Lookup(list, "nextCursor") != nil
	switch {
	case !r.accepts() && len(tools) == 0:
		return false, false // perhaps the server is not set up yet, so its first list comes later
	case !r.accepts():
		r.Source, r.Since, r.Tools = pin.Source, now, tools
		if more {
			r.Open = now.Add(firstPages)
		}
		return true, true
	case now.Before(r.Open):
		for _, t := range tools {
			if name, _ := nameOf(t); find(r.Tools, name) < 0 {
				r.Tools, accepted = append(r.Tools, t), true
			}
		}
		if !more {
			r.Open, accepted = time.Time{}, true
		}
	}
	return accepted, r.hold(tools, now) || accepted
}

// toolsOf returns the tools of a list. Of several tools with one name it returns the first.
func toolsOf(list json.RawMessage) (tools []tool) {
	seen := map[string]bool{}
	for raw := range wire.Elements(wire.Lookup(list, "tools")) {
		if name, ok := nameOf(tool(raw)); ok && !seen[name] {
			seen[name] = true
			tools = append(tools, tool(raw))
		}
	}
	return tools
}

// hold records the tools of a list that differ from the accepted ones. It reports whether the record
// has changed. A held tool stays even if the server lists the accepted version again, so that a server
// cannot hide it from operators.
func (r *record) hold(tools []tool, now time.Time) (news bool) {
	if fresh := slices.DeleteFunc(slices.Clone(r.Held), func(h heldTool) bool { return now.Sub(h.Seen) > remembered }); len(fresh) < len(r.Held) {
		r.Held, news = fresh, true
	}
	size := 0
	for _, h := range r.Held {
		size += len(h.Tool)
	}
	for _, t := range tools {
		name, _ := nameOf(t)
		if i := find(r.Tools, name); i >= 0 && same(r.Tools[i], t) {
			continue
		}
		i := slices.IndexFunc(r.Held, func(h heldTool) bool { has, _ := nameOf(h.Tool); return has == name })
		switch {
		case i < 0 && len(r.Held) < mostHeld && size+len(t) <= heldBytes:
			r.Held, news = append(slices.Clip(r.Held), heldTool{t, now, now}), true
			size += len(t)
		case i < 0: // no room to record the tool, which is held back all the same
		case !same(r.Held[i].Tool, t) && size-len(r.Held[i].Tool)+len(t) <= heldBytes:
			size += len(t) - len(r.Held[i].Tool)
			r.Held = slices.Clone(r.Held)
			r.Held[i], news = heldTool{t, now, now}, true
		case now.Sub(r.Held[i].Seen) > seenAgain:
			r.Held = slices.Clone(r.Held)
			r.Held[i].Seen, news = now, true
		}
	}
	return news
}

// show returns a list with the accepted tools in place of those that the server lists.
func (r record) show(list json.RawMessage) json.RawMessage {
	var left []string
	for _, t := range toolsOf(list) {
		name, _ := nameOf(t)
		if i := find(r.Tools, name); i >= 0 {
			left = append(left, r.Tools[i])
		}
	}
	list, _ = wire.Replace(list, json.RawMessage("["+strings.Join(left, ",")+"]"), "tools")
	return list
}
