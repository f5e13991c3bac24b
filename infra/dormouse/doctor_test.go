package dormouse

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dormouse-mcp/dormouse/shared/box/sandbox"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// compare compares a text with a golden file.
func compare(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		commontest.OK(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	if diff := cmp.Diff(string(want), got); err != nil || diff != "" {
		t.Errorf("%s: %v (-want +got; -update accepts it):\n%s", path, err, diff)
	}
}

// steady replaces what depends on the machine in the output of doctor.
func steady(text string) string {
	for _, r := range [][2]string{
		{`[0-9.]+ GB free`, "20.0 GB free"},
		{`127\.0\.0\.1:[0-9]+`, "127.0.0.1:PORT"},
		{`[✓✗] sandbox .*\n( +→.*\n)?`, "✓ sandbox       what this system has\n"},
	} {
		text = regexp.MustCompile(r[0]).ReplaceAllString(text, r[1])
	}
	return text
}

func TestDoctorSaysWhatIsWrongAndChangesNothing(t *testing.T) {
	t.Setenv("DORMOUSE_CACHE", "")
	d := newDesk(t, `-- servers.json --
{"mcpServers": {
  "everything": {"command": "npx", "args": ["-y", "everything@1.0.0"]},
  "time": {"command": "uvx", "args": ["mcp-server-time@0.6.2"]},
  "own": {"command": "./own"},
  "off": {"command": "./none", "disabled": true},
  "gone": {"command": "mcp-gone"},
  "weather": {"command": "npx", "env": {"KEY": "${WEATHER_KEY}", "TOO": "${WEATHER_KEY}"}}
}}
`)
	for name, version := range map[string]string{"node": "v18.1.0", "npx": "11.0.0", "python3": "Python 3.11.7", "uv": "uv 0.9.1 (x 2026-01-01)"} {
		d.file("bin/"+name, "#!/bin/sh\necho '"+version+"'\n", 0o700)
	}
	d.file("own", "#!/bin/sh\n", 0o700)
	before := d.tree()
	printed, code := d.run("doctor --listen 127.0.0.1:0")
	commontest.EqualIn(t, "exit code", exitFailed, code)
	compare(t, filepath.Join(d.testdata, "doctor-desk.txt"), steady(printed))
	// With the name of a server, doctor reports only what concerns that server.
	printed, code = d.run("doctor gone --listen 127.0.0.1:0")
	if want := "✗ path          mcp-gone is not on the PATH"; code != exitFailed || !strings.Contains(printed, want) || strings.Contains(printed, "WEATHER_KEY") || strings.Contains(printed, "✗ node") || !strings.Contains(printed, "✓ node          18.1.0 (DIR/bin/node), too old; no server of the file needs it") {
		t.Errorf("doctor gone: %d %s", code, printed)
	}
	for line, want := range map[string]string{
		"doctor tine":                   "no server tine: did you mean time?",
		"doctor --servers none.json":    "no servers file: create it with dormouse add or dormouse import, or name another with --servers",
		"doctor --store sqlite:bin/npx": "DIR/bin/npx is not a session store",
		"doctor --url nowhere":          "--url \"nowhere\" is no URL",
	} {
		t.Run(line, func(t *testing.T) {
			if printed, code := d.run(line + " --listen 127.0.0.1:0"); code != exitFailed || !strings.Contains(printed, want) || strings.Contains(printed, "those of tine") {
				t.Errorf("%s: %d %s", line, code, printed)
			}
		})
	}
	commontest.SameIn(t, "its files", before, d.tree())
}

// tree returns the names of all files of the desk.
func (d *desk) tree() (names []string) {
	d.t.Helper()
	err := filepath.WalkDir(d.dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	})
	commontest.OK(d.t, err)
	return names
}

func TestDoctorAsksTheEndpointAsAClientDoes(t *testing.T) {
	d := newDesk(t, "-- servers.json --\n{\"mcpServers\": {\"counter\": {\"x-dormouse\": {\"native\": \"counter\"}}}}\n")
	status, body, date := 0, "", ""
	place := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", date)
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	defer place.Close()
	const known = `{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no server doctor.none"}}`
	now := noon().Format(http.TimeFormat)
	for _, test := range []struct {
		status     int
		body, date string
		want       string
	}{
		{404, known, now, "✓ proxy         dormouse answers at http"},
		{404, known, noon().Add(-time.Hour).Format(http.TimeFormat), "differ by 1h0m0s"},
		{403, strings.Replace(known, "no server doctor.none", "x is not served: start with --public-url https://x", 1), now, "✗ proxy         x is not served: start with --public-url https://x"},
		{502, "<html>Bad Gateway</html>", now, "answers 502 Bad Gateway, and is no dormouse"},
	} {
		status, body, date = test.status, test.body, test.date
		if printed, _ := d.run("doctor --listen 127.0.0.1:0 --url " + place.URL); !strings.Contains(printed, test.want) {
			t.Errorf("%d %s: %s, want %s", test.status, test.body, printed, test.want)
		}
	}
}

func TestDoctorAsksAMachineThatIsUp(t *testing.T) {
	s := newShell(t)
	s.file("servers.json", `{"mcpServers":{"counter":{"x-dormouse":{"native":"counter"}}}}`)
	defer s.up()()
	printed, _ := s.run("doctor --data $DATA --servers $DATA/servers.json counter --json")
	for _, want := range []string{`"says": "dormouse run is up at http://127.0.0.1:`, `"says": "it answers dormouse run"`, `"says": "only you can read it"`, `"check": "handshake",
    "ok": true,
    "says": "counter 1, protocol 2025-11-25",
    "duration_ms"`, `"says": "1 tool"`} {
		commontest.Contains(t, "it", want, printed)
	}
	if err := os.Chmod(filepath.Join(s.data, "secret"), 0o644); err != nil { //nolint:gosec // this is what is wrong
		t.Fatal(err)
	}
	if printed, code := s.run("doctor --data $DATA --servers $DATA/servers.json"); code != exitFailed || !strings.Contains(printed, "✗ secret") || !strings.Contains(printed, "chmod 600 DATA/secret") {
		t.Errorf("%d %s", code, printed)
	}
}

func TestDoctorSaysWhichServersAreConfinedOrWhyTheyAreNot(t *testing.T) {
	file := filepath.Join(t.TempDir(), "servers.json")
	commontest.OK(t, os.WriteFile(file, []byte(`{"mcpServers":{"a":{"command":"npx","args":["x"]},"b":{"command":"npx","args":["x"],"x-dormouse":{"box":{"profile":"none"}}},"c":{"command":"npx","args":["x"]}}}`), 0o600))
	guests := func(listen string) []string {
		c := &doctorCommand{fileFlag: fileFlag{Servers: file}, served: served{Listen: listenAddress(listen)}}
		return (&doctor{doctorCommand: c, cfg: c.config(Program{}, file)}).guests()
	}
	if got := guests("127.0.0.1:8787"); got != nil {
		t.Errorf("guests on loopback are %q", got)
	}
	others := guests("0.0.0.0:8787")
	commontest.EqualIn(t, "guests", "a c", strings.Join(others, " "))
	d := &doctor{doctorCommand: &doctorCommand{}}
	whole := sandbox.Support{Limits: true, Landlock: 7, Seccomp: true}
	groups, lacks := whole, whole
	groups.Cgroups, lacks.Landlock = "/sys/fs/cgroup/a", 0
	for _, test := range []struct {
		has    sandbox.Support
		guests []string
		ok     bool
		says   string
	}{
		{whole, others, true, "it confines a, c, because not only you can call"},
		{lacks, others, false, "because the kernel has no landlock, it needs linux 5.13 with landlock among its lsm: a, c;"},
		{lacks, nil, true, "a watch bounds memory"},
		{groups, nil, true, "cgroups bound memory and processes"},
	} {
		if f := d.sandbox(test.has, test.guests); f.OK != test.ok || !strings.Contains(f.Says+f.Todo, test.says) {
			t.Errorf("%+v, want %s", f, test.says)
		}
	}
}
