package serversfile_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/config/serversfile"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// A record of lists belongs to the program that gave them. What is only data, or a
// dependency, does not begin a new record.
func TestRecordBelongsToTheFilesThatAServerNames(t *testing.T) {
	folder := t.TempDir()
	at := func(name string) string { return filepath.Join(folder, name) }
	write := func(name, text string) {
		t.Helper()
		commontest.OK(t, os.MkdirAll(filepath.Dir(at(name)), 0o755))
		if err := os.WriteFile(at(name), []byte(text), 0o755); err != nil { //nolint:gosec // some are programs
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		"main.py", "tools.yaml", "bin/tool", "checkout/src/a.js", "checkout/node_modules/b.js", "checkout/.git/logs/HEAD",
		"auto/run.py",
	} {
		write(name, "1")
	}
	for name, mode := range map[string]os.FileMode{"notes.db": 0o600, "checkout/data.json": 0o600} {
		t.Run(name, func(t *testing.T) {
			write(name, "1")
			commontest.OK(t, os.Chmod(at(name), mode))
		})
	}
	write("servers.json", `{"mcpServers":{
		"script":{"command":"python3","args":["main.py","--config=tools.yaml","--db","notes.db"]},
		"path":{"command":"tool","env":{"PATH":"`+at("bin")+`"}},
		"checkout":{"command":"node","args":["src/a.js"],"x-dormouse":{"box":{"host_path":"`+at("checkout")+`"}}},
		"auto":{"command":"python3","args":["`+at("auto/run.py")+`"],"x-dormouse":{"box":{"host_path":"auto"}}}
	}}`)
	load := func() *serversfile.File {
		t.Helper()
		c, _, err := serversfile.LoadHere(at("servers.json"), func(name string) (string, bool) { return "/bin", name == "PATH" })
		commontest.OK(t, err)
		return c
	}
	file := load()
	accepted := at("accepted.json")
	commontest.OK(t, os.WriteFile(accepted, file.Marshal(), 0o600))
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			server, file string
			news         bool
		}{
			{"script", "main.py", true},
			{"script", "tools.yaml", true},
			{"script", "notes.db", false},
			{"path", "bin/tool", true},
			{"checkout", "checkout/src/a.js", true},
			{"checkout", "checkout/.git/logs/HEAD", true},
			{"checkout", "checkout/node_modules/b.js", false},
			{"checkout", "checkout/data.json", false},
			{"auto", "auto/run.py", true},
		} {
			s, _ := file.Server(c.server)
			kept := serversfile.NewRecord(s)
			commontest.EqualIn(t, c.server+": who asks often", s.RecordDigest(), kept.Digest())
			before, box, identity := s.RecordDigest(), s.Definition(), s.Digest
			commontest.EqualIn(t, c.server+": the same files", before, s.RecordDigest())
			commontest.OK(t, os.Chtimes(at(c.file), time.Time{}, time.Now().Add(time.Hour)))
			commontest.EqualIn(t, c.server+": the record is another after a change of "+c.file, c.news, s.RecordDigest() != before)
			time.Sleep(time.Second) // of the synctest clock: a look at the files is good for a moment
			commontest.EqualIn(t, c.server+": who asks often, after a change of "+c.file, s.RecordDigest(), kept.Digest())
			if again, _ := load().Server(c.server); again.Definition() != box || again.Digest != identity || again.RecordDigest() != s.RecordDigest() {
				t.Errorf("%s: a change of %s is a change of its box", c.server, c.file)
			}
			functions, err := serversfile.LoadAccepted(accepted)
			commontest.OK(t, err)
			if f, _ := functions.Server(c.server); f.RecordDigest() != s.RecordDigest() {
				t.Errorf("%s: the functions keep another record", c.server)
			}
			write(c.file, "2, which is longer")
		}
	})
	elsewhere, _, err := serversfile.Load(at("servers.json"), nil)
	commontest.OK(t, err)
	if s, _ := elsewhere.Server("script"); s.RecordDigest() != s.Digest {
		t.Error("a server that runs elsewhere has a record of files that are here")
	}
}
