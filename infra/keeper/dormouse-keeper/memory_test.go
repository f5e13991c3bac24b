package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The servers count in memory only. The one of Node also gives its process a random name.
var (
	nodeCounter = nodeServer(`let n = 0
const name = require("crypto").randomBytes(8).toString("hex")
const look = () => "process " + name + ": count " + ++n + "."`)
	pythonCounter = pythonServer(`n = 0
def look():
    global n
    n += 1
    return "count %d." % n`)
)

// Servers of Node and Python go on counting over five sleeps and an end of dormouse run. Their
// secret is on no disk, and in nothing that a user may add to the report of a fault.
func TestMemoryLastsOverSleepsAndRestarts(t *testing.T) {
	a := as{1000, ""}
	programs, data := built(t), a.folder(t)
	const secret = "hunter2-hunter2-hunter2"
	servers := map[string]any{}
	for name, of := range map[string][2]string{"node": {"node", nodeCounter}, "python": {"/usr/bin/python3", pythonCounter}} {
		script := filepath.Join(data, name+".txt")
		must(t, os.WriteFile(script, []byte(of[1]), 0o644))
		servers[name] = map[string]any{
			"command": of[0], "args": []string{script}, "env": map[string]string{"TOKEN": "${SECRET}"},
			"x-dormouse": map[string]any{"idle_seconds": 1, "record": "off", "box": map[string]any{"memory": "keep"}},
		}
	}
	t.Setenv("SECRET", secret)
	count := 0
	for life := range 2 {
		t.Run(fmt.Sprint("life ", life), func(t *testing.T) {
			log, call := a.hosts(t, programs, data, servers)
			for n := range 3 {
				count++
				for name := range servers {
					if out, err := call(name); err != nil || !strings.Contains(out, fmt.Sprintf("count %d.", count)) {
						t.Errorf("%s, want count %d: %v: %s", name, count, err, out)
					}
				}
				for name := range servers {
					log.wait(t, " "+name+" asleep", n+1)
				}
			}
			for _, args := range []string{"doctor --json", "ps --json", "list --json", "logs node"} {
				cmd := a.command(filepath.Join(programs, "dormouse"), append(strings.Fields(args), "--data", filepath.Join(data, "state"))...)
				if out, _ := cmd.CombinedOutput(); len(out) == 0 || bytes.Contains(out, []byte(secret)) { // doctor fails where it finds a fault
					t.Errorf("dormouse %s has the secret, or says nothing: %s", args, out)
				}
			}
			log.mu.Lock()
			defer log.mu.Unlock()
			if strings.Contains(strings.Join(log.all, "\n"), secret) {
				t.Error("the log has the secret")
			}
		})
	}
	images := 0
	err := filepath.WalkDir(filepath.Join(data, "state"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if strings.HasSuffix(path, ".memory") {
			images++
		}
		text, err := os.ReadFile(path)
		if bytes.Contains(text, []byte(secret)) {
			err = errors.Join(err, fmt.Errorf("%s has the secret", path))
		}
		return err
	})
	must(t, err)
	equal(t, "images", len(servers), images)
}
