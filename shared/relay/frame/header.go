package frame

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"

	"github.com/dormouse-mcp/dormouse/shared/wire"
)

// The header of a frame as JSON, by hand: for a message both ends do little else than to
// write and to read these. What is written is what encoding/json makes of the tags of
// Frame, and it is read as that reads it, but that keys have to be written just
// so; a test compares them.

// write appends the header.
func (f *Frame) write(dst []byte) []byte {
	w := writer{append(dst, `{"v":`...)}
	w.b = strconv.AppendInt(w.b, int64(f.V), 10)
	w.b = wire.AppendString(append(w.b, `,"t":`...), string(f.Type))
	w.text("box", string(f.Box))
	w.number("gen", int64(f.Gen))
	w.text("token", f.Token)
	w.text("runner", f.Runner)
	w.number("link", f.Link)
	w.text("task", f.Task)
	w.text("session", string(f.Session))
	w.rare("questions", f.Questions, len(f.Questions) > 0)
	w.number("n", f.N)
	w.number("of", int64(f.Of))
	w.text("frame", f.Frame)
	w.rare("ids", f.IDs, len(f.IDs) > 0)
	w.rare("rounds", f.Rounds, len(f.Rounds) > 0)
	w.rare("tickets", f.Tickets, len(f.Tickets) > 0)
	w.text("ticket", f.Ticket)
	w.number("seq", f.Seq)
	w.items(f.Items)
	w.number("next", int64(f.Next))
	w.rare("closed", f.Closed, len(f.Closed) > 0)
	w.flag("fenced", f.Fenced)
	w.text("id", string(f.ID))
	w.number("round", int64(f.Round))
	w.number("base", int64(f.Base))
	w.text("principal", f.Principal)
	w.text("server", f.Server)
	w.text("level", f.Level)
	w.rare("subscribed", f.Subscribed, len(f.Subscribed) > 0)
	w.number("sent", f.Sent)
	w.number("notAfter", f.NotAfter)
	w.number("ackWithin", f.AckWithin)
	w.flag("inbox", f.Inbox)
	w.flag("again", f.Again)
	w.flag("looks", f.Looks)
	if len(f.Lens) > 0 {
		w.lens(f.Lens)
	}
	w.text("trace", f.Trace)
	w.text("question", f.Question)
	w.number("in", f.In)
	w.text("process", f.Process)
	w.text("phase", f.Phase)
	w.text("detail", f.Detail)
	w.text("era", f.Era)
	w.text("owner", f.Owner)
	w.number("size", f.Size)
	w.text("object", f.Object)
	w.text("url", f.URL)
	w.rare("header", f.Header, len(f.Header) > 0)
	w.number("saved", f.Saved)
	w.text("refused", string(f.Refused))
	return append(w.b, '}')
}

// writer writes members of objects, and leaves out those that have their zero value.
type writer struct{ b []byte }

// key begins a member.
func (w *writer) key(name string) {
	if w.b[len(w.b)-1] != '{' {
		w.b = append(w.b, ',')
	}
	w.b = append(append(append(w.b, '"'), name...), `":`...)
}

func (w *writer) text(name, s string) {
	if s != "" {
		w.key(name)
		w.b = wire.AppendString(w.b, s)
	}
}

func (w *writer) number(name string, n int64) {
	if n != 0 {
		w.key(name)
		w.b = strconv.AppendInt(w.b, n, 10)
	}
}

func (w *writer) flag(name string, on bool) {
	if on {
		w.key(name)
		w.b = append(w.b, "true"...)
	}
}

// rare writes what is seldom there, if it is.
func (w *writer) rare(name string, v any, there bool) {
	if there {
		w.key(name)
		w.b = appendJSON(w.b, v)
	}
}

func (w *writer) lens(lens []int) {
	w.key("lens")
	if lens == nil {
		w.b = append(w.b, "null"...)
		return
	}
	w.b = append(w.b, '[')
	for i, n := range lens {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.b = strconv.AppendInt(w.b, int64(n), 10)
	}
	w.b = append(w.b, ']')
}

func (w *writer) items(items []EventItem) {
	if len(items) == 0 {
		return
	}
	w.key("items")
	w.b = append(w.b, '[')
	for i, it := range items {
		if i > 0 {
			w.b = append(w.b, ',')
		}
		w.b = wire.AppendString(append(w.b, `{"ticket":`...), it.Ticket)
		w.text("stream", string(it.Stream))
		w.number("first", int64(it.First))
		w.flag("final", it.Final)
		w.flag("marked", it.Marked)
		w.lens(it.Lens)
		w.rare("asks", it.Asks, it.Asks != nil)
		w.b = append(w.b, '}')
	}
	w.b = append(w.b, ']')
}

func appendJSON(dst []byte, v any) []byte {
	b := bytes.NewBuffer(dst)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil { // strings, numbers and slices of them only
		panic("relay: a frame header that cannot be encoded: " + err.Error())
	}
	return b.Bytes()[:b.Len()-1] // without its newline
}

var errHeader = errors.New("it is not a JSON object with members of the right types")

// read reads a header.
func (f *Frame) read(head []byte) error {
	if !wire.Valid(head) || !readObject(head, f.member) {
		return errHeader
	}
	return nil
}

// readObject has each member of an object taken; it is false if raw is none, or one has
// the wrong type.
func readObject(raw []byte, member func(key []byte, v json.RawMessage) bool) bool {
	return wire.Tokens(raw, member)
}

// member takes one member, with its key in quotes; it is false if it has the wrong type.
func (f *Frame) member(key []byte, v json.RawMessage) bool {
	switch string(key) {
	case `"v"`:
		return readNumber(v, &f.V)
	case `"t"`:
		return readText(v, &f.Type)
	case `"box"`:
		return readText(v, &f.Box)
	case `"gen"`:
		return readNumber(v, &f.Gen)
	case `"token"`:
		return readText(v, &f.Token)
	case `"runner"`:
		return readText(v, &f.Runner)
	case `"link"`:
		return readNumber(v, &f.Link)
	case `"task"`:
		return readText(v, &f.Task)
	case `"session"`:
		return readText(v, &f.Session)
	case `"questions"`:
		return readRare(v, &f.Questions)
	case `"n"`:
		return readNumber(v, &f.N)
	case `"of"`:
		return readNumber(v, &f.Of)
	case `"frame"`:
		return readText(v, &f.Frame)
	case `"ids"`:
		return readRare(v, &f.IDs)
	case `"rounds"`:
		return readRare(v, &f.Rounds)
	case `"tickets"`:
		return readRare(v, &f.Tickets)
	case `"ticket"`:
		return readText(v, &f.Ticket)
	case `"seq"`:
		return readNumber(v, &f.Seq)
	case `"items"`:
		return readItems(v, &f.Items)
	case `"next"`:
		return readNumber(v, &f.Next)
	case `"closed"`:
		return readRare(v, &f.Closed)
	case `"fenced"`:
		return readFlag(v, &f.Fenced)
	default:
		return f.memberOfDelivery(key, v)
	}
}

func (f *Frame) memberOfDelivery(key []byte, v json.RawMessage) bool {
	switch string(key) {
	case `"id"`:
		return readText(v, &f.ID)
	case `"round"`:
		return readNumber(v, &f.Round)
	case `"base"`:
		return readNumber(v, &f.Base)
	case `"principal"`:
		return readText(v, &f.Principal)
	case `"server"`:
		return readText(v, &f.Server)
	case `"level"`:
		return readText(v, &f.Level)
	case `"subscribed"`:
		return readRare(v, &f.Subscribed)
	case `"sent"`:
		return readNumber(v, &f.Sent)
	case `"notAfter"`:
		return readNumber(v, &f.NotAfter)
	case `"ackWithin"`:
		return readNumber(v, &f.AckWithin)
	case `"inbox"`:
		return readFlag(v, &f.Inbox)
	case `"again"`:
		return readFlag(v, &f.Again)
	case `"looks"`:
		return readFlag(v, &f.Looks)
	case `"lens"`:
		return readLens(v, &f.Lens)
	case `"trace"`:
		return readText(v, &f.Trace)
	case `"question"`:
		return readText(v, &f.Question)
	case `"in"`:
		return readNumber(v, &f.In)
	default:
		return f.memberOfReport(key, v)
	}
}

func (f *Frame) memberOfReport(key []byte, v json.RawMessage) bool {
	switch string(key) {
	case `"process"`:
		return readText(v, &f.Process)
	case `"phase"`:
		return readText(v, &f.Phase)
	case `"detail"`:
		return readText(v, &f.Detail)
	case `"era"`:
		return readText(v, &f.Era)
	case `"owner"`:
		return readText(v, &f.Owner)
	case `"size"`:
		return readNumber(v, &f.Size)
	case `"object"`:
		return readText(v, &f.Object)
	case `"url"`:
		return readText(v, &f.URL)
	case `"header"`:
		return readRare(v, &f.Header)
	case `"saved"`:
		return readNumber(v, &f.Saved)
	case `"refused"`:
		return readText(v, &f.Refused)
	default:
		return true // of a newer version
	}
}

func (it *EventItem) member(key []byte, v json.RawMessage) bool {
	switch string(key) {
	case `"ticket"`:
		return readText(v, &it.Ticket)
	case `"stream"`:
		return readText(v, &it.Stream)
	case `"first"`:
		return readNumber(v, &it.First)
	case `"final"`:
		return readFlag(v, &it.Final)
	case `"marked"`:
		return readFlag(v, &it.Marked)
	case `"lens"`:
		return readLens(v, &it.Lens)
	case `"asks"`:
		return readRare(v, &it.Asks)
	default:
		return true
	}
}

// Each of these reads one value, which is valid JSON. A null changes nothing.

func readText[T ~string](v json.RawMessage, to *T) bool {
	s, ok := wire.String(v)
	if ok {
		*to = T(s)
	}
	return ok || isNull(v)
}

func readNumber[T ~int | ~int64](v json.RawMessage, to *T) bool {
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err == nil {
		*to = T(n)
	}
	return err == nil || isNull(v)
}

func readFlag(v json.RawMessage, to *bool) bool {
	switch string(v) {
	case "true":
		*to = true
	case "false":
		*to = false
	default:
		return isNull(v)
	}
	return true
}

func readLens(v json.RawMessage, to *[]int) bool {
	return wire.Elements(v, func(v json.RawMessage) bool {
		*to = append(*to, 0)
		return readNumber(v, &(*to)[len(*to)-1])
	}) || isNull(v)
}

func readItems(v json.RawMessage, to *[]EventItem) bool {
	return wire.Elements(v, func(v json.RawMessage) bool {
		*to = append(*to, EventItem{})
		return readObject(v, (*to)[len(*to)-1].member) || isNull(v)
	}) || isNull(v)
}

func readRare[T any](v json.RawMessage, to *T) bool {
	var t T // to the decoder it has to be on the heap, where no frame need be
	err := json.Unmarshal(v, &t)
	if err == nil && !isNull(v) {
		*to = t
	}
	return err == nil
}

func isNull(v json.RawMessage) bool { return string(v) == "null" }
