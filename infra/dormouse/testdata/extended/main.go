// Command extended is an MCP server of one era with extensions of a vendor. It speaks over
// stdio, or with -http over Streamable HTTP. It tells what a client has declared, and echoes
// what a client sends, so that a test sees what has reached it.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sync"

	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func main() {
	modern := flag.Bool("modern", false, "speak 2026-07-28, and not 2025-11-25")
	address := flag.String("http", "", "`address` to listen at; then it prints a line when it is ready")
	extensions := flag.String("extensions", "{}", "`JSON` of the extensions that it declares")
	flag.Parse()
	s := &server{modern: *modern, far: *address != "", extensions: *extensions, clients: map[string]json.RawMessage{}}
	if *address != "" {
		log.Fatal(http.ListenAndServe(*address, s)) //nolint:gosec // it serves one test
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		m, err := wire.Parse(lines.Bytes())
		if err != nil {
			log.Fatal(err)
		}
		for _, raw := range s.take("", m) {
			fmt.Println(string(raw))
		}
	}
}

// server is the state of one process.
type server struct {
	modern     bool
	far        bool // it is reached over HTTP
	extensions string

	mu      sync.Mutex
	clients map[string]json.RawMessage // capabilities of legacy clients, by session
	notes   []string                   // params of the notifications that came
}

// take returns what the server sends because of a message. session is "" over stdio.
func (s *server) take(session string, m wire.Message) [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	result := func(format string, args ...any) [][]byte {
		return [][]byte{wire.ResultResponse(m.ID, fmt.Appendf(nil, format, args...))}
	}
	tick := wire.NewNotification("notifications/com.example/tick", json.RawMessage(`{"n":1.50}`))
	offers := `{"tools":{},"extensions":` + s.extensions + `}`
	switch {
	case m.Kind == wire.Notification && m.Method == "notifications/com.example/note":
		s.notes = append(s.notes, string(m.Params))
		if s.far {
			return nil // an answer to a notification has no stream
		}
		return [][]byte{tick}
	case m.Kind != wire.Request:
		return nil
	case m.Method == wire.MethodInitialize && !s.modern:
		s.clients[session] = wire.Lookup(m.Params, "capabilities")
		return result(`{"protocolVersion":"2025-11-25","capabilities":%s,"serverInfo":{"name":"extended","version":"1"}}`, offers)
	case m.Method == wire.MethodDiscover && s.modern:
		return result(`{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":%s,"ttlMs":0,"cacheScope":"private"}`, offers)
	case m.Method == wire.MethodToolsCall:
		declared := s.clients[session]
		if s.modern {
			declared = wire.Lookup(m.Params, "_meta", wire.MetaClientCapabilities)
		}
		seen := cmp.Or(string(wire.Lookup(declared, "extensions")), "none")
		return result(`{"resultType":"complete","content":[{"type":"text","text":%s}]}`, wire.AppendString(nil, seen))
	case m.Method == "com.example/hello":
		return append([][]byte{tick}, result(`{"got":%s,"ttlMs":7,"_meta":{"com.example/x":{"deep":[1.50]}}}`, m.Params)...)
	case m.Method == "com.example/notes":
		notes, err := json.Marshal(s.notes)
		if err != nil {
			log.Fatal(err)
		}
		return result(`{"notes":%s}`, notes)
	default:
		return [][]byte{wire.ErrorResponse(m.ID, &wire.Error{Code: wire.CodeMethodNotFound, Message: "extended does not know " + m.Method})}
	}
}

// ServeHTTP implements http.Handler. Each client of 2025-11-25 has a session.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	m, bad := wire.Parse(body)
	session := r.Header.Get(wire.HeaderSessionID)
	switch {
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	case err != nil || bad != nil || s.modern && r.Header.Get(wire.HeaderMethod) != m.Method || !s.modern && m.Method == wire.MethodDiscover:
		w.WriteHeader(http.StatusBadRequest)
		return
	case m.Method == wire.MethodInitialize && !s.modern:
		s.mu.Lock()
		session = fmt.Sprint("s", len(s.clients))
		s.mu.Unlock()
		w.Header().Set(wire.HeaderSessionID, session)
	}
	said := s.take(session, m)
	if len(said) == 0 {
		w.WriteHeader(http.StatusAccepted)
		return
	}
	w.Header().Set("Content-Type", wire.MediaSSE)
	for _, raw := range said {
		_, _ = fmt.Fprintf(w, "data: %s\n\n", raw) // the client may have gone
	}
}
