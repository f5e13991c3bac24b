package transport_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/tools/txtar"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// TestTranscripts replays the stories in testdata, in virtual time. A story is prose, then
// requests and the responses to them, in order. Each request is served by a handler that
// was made for it. Random words have names (SESSION-1, STREAM-1, NONCE-1) in the order in
// which they appear. Headers that begin with Story- are not sent:
//
//	Story-Wait  time that passes before the request
//	Story-Cut   the client goes after this time
//	Story-Took  on a response, how long it was held
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	update := flag.Lookup("update").Value.String() == "true"
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			story, err := txtar.ParseFile(file)
			commontest.OK(t, err)
			told := &txtar.Archive{Comment: story.Comment}
			bubble(t, func(t *testing.T, w *world) { told.Files = tell(t, w, story.Files) })
			if update {
				commontest.OK(t, os.WriteFile(file, txtar.Format(told), 0o644))
			} else {
				commontest.SameIn(t, "see -update", string(txtar.Format(story)), string(txtar.Format(told)))
			}
		})
	}
}

var _ = flag.Bool("update", false, "write what was answered into the transcripts")

func tell(t *testing.T, w *world, files []txtar.File) (told []txtar.File) {
	storyTools(w)
	w.opts.Sealer = newSealer(t)
	names := &aliases{words: map[string]string{}, count: map[string]int{}}
	for _, f := range files {
		number, isRequest := strings.CutSuffix(f.Name, ".request")
		if !isRequest {
			continue
		}
		a := w.story(names.resolve(string(f.Data)))
		told = append(told, f, txtar.File{Name: number + ".response", Data: []byte(names.hide(a))})
	}
	return told
}

func storyTools(w *world) {
	progress := func(n int) string {
		return `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":` + strconv.Itoa(n) + `}}`
	}
	const result = `{"content":[{"type":"text","text":"done"}]}`
	w.backend.tool("echo", func(r run) { r.end(result) })
	w.backend.tool("steps", func(r run) {
		for i := range 3 {
			time.Sleep(2 * time.Second)
			r.append(progress(i+1), false)
		}
		time.Sleep(2 * time.Second)
		r.end(result)
	})
	w.backend.tool("long", func(r run) { time.Sleep(time.Minute); r.end(result) })
	w.backend.tool("install", func(r run) {
		w.outside(r.session).append(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, false)
		r.end(result)
	})
}

func (w *world) story(text string) *answer {
	head, body, _ := strings.Cut(text, "\n\n")
	body = strings.TrimSuffix(body, "\n")
	raw := fmt.Sprintf("%s\r\nContent-Length: %d\r\n\r\n%s", strings.ReplaceAll(head, "\n", "\r\n"), len(body), body)
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(raw)))
	commontest.OKIn(w.t, text, err)
	wait, _ := time.ParseDuration(r.Header.Get("Story-Wait"))
	cut, _ := time.ParseDuration(r.Header.Get("Story-Cut"))
	maps.DeleteFunc(r.Header, func(name string, _ []string) bool { return strings.HasPrefix(name, "Story-") })
	time.Sleep(wait)
	c := w.begin(r)
	if cut > 0 {
		time.Sleep(cut)
		c.cut()
	}
	return c.end()
}

// aliases gives random words names that stay the same from run to run.
type aliases struct {
	words map[string]string // by name
	count map[string]int
}

func (n *aliases) name(kind, word string) {
	if word == "" || slices.Contains(slices.Collect(maps.Values(n.words)), word) {
		return
	}
	n.count[kind]++
	n.words[fmt.Sprintf("%s-%d", kind, n.count[kind])] = word
}

var aliasForm = regexp.MustCompile(`(SESSION|STREAM|NONCE)-\d+`)

func (n *aliases) resolve(text string) string {
	return aliasForm.ReplaceAllStringFunc(text, func(name string) string {
		if word, ok := n.words[name]; ok {
			return word
		}
		return strings.ToLower(strings.ReplaceAll(name, "-", ""))
	})
}

func (n *aliases) hide(a *answer) string {
	n.name("SESSION", a.header.Get(wire.HeaderSessionID))
	for _, line := range strings.Split(a.body, "\n") {
		if id, err := storage.ParseEventID(strings.TrimPrefix(line, "id: ")); err == nil {
			n.name("STREAM", string(id.Stream))
			n.name("NONCE", id.Nonce)
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\n", a.status, http.StatusText(a.status))
	for _, name := range slices.Sorted(maps.Keys(a.header)) {
		fmt.Fprintf(&b, "%s: %s\n", name, strings.Join(a.header[name], ", "))
	}
	if a.took > 0 {
		fmt.Fprintf(&b, "Story-Took: %s\n", a.took)
	}
	b.WriteString("\n" + a.body)
	if json.Valid([]byte(a.body)) {
		b.WriteString("\n")
	}
	text := b.String()
	for name, word := range n.words {
		text = strings.ReplaceAll(text, word, name)
	}
	return text
}
