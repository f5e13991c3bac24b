package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// BenchmarkSealed compares two reference servers with themselves sealed, all behind "dormouse
// run": as their package, sealed, and as an image. The rounds are interleaved. Each has the time
// from initialize to the answer of the first call, with the start of the process; the median of a
// hundred calls; and the memory of the processes without that of files. It installs the servers
// from npm and PyPI, before it measures. The metrics are medians of the rounds.
func BenchmarkSealed(b *testing.B) {
	for name, of := range references() {
		b.Run(name, func(b *testing.B) {
			ref, _ := of.image(b)
			plain := map[string]any{"command": of.words[0], "args": of.words[1:]}
			seal := map[string]any{"box": map[string]any{"sealed": true}}
			machine, ways := hosted(b, map[string]any{
				"plain": plain, "sealed": map[string]any{"command": of.words[0], "args": of.words[1:], "x-dormouse": seal},
				"image": map[string]any{"command": "docker", "args": []string{"run", "-i", "--rm", ref}, "x-dormouse": seal},
			})
			for _, url := range ways { // once, for the installs
				measured(b, machine, url, of.tool)
			}
			figures := map[string][]float64{}
			for b.Loop() {
				for way, url := range ways {
					start, call, mb := measured(b, machine, url, of.tool)
					for unit, v := range map[string]float64{"start-ms": start, "call-ms": call, "MB": mb} {
						figures[way+"-"+unit] = append(figures[way+"-"+unit], v)
					}
				}
			}
			for unit, all := range figures {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// reference is a server that others wrote, and that many know.
type reference struct {
	words            []string // that start it
	install, command []string // of its image; DIR stands for the folder of the install
	program, tool    string
}

func references() map[string]reference {
	return map[string]reference{
		"everything": {[]string{"npx", "-y", "@modelcontextprotocol/server-everything@2026.8.31"}, []string{"npm", "install", "--silent", "--prefix", "DIR", "@modelcontextprotocol/server-everything@2026.8.31"}, []string{"DIR/node_modules/@modelcontextprotocol/server-everything/dist/index.js"}, "node", `"echo","arguments":{"message":"x"}`},
		"time":       {[]string{"uvx", "mcp-server-time@2026.10.19"}, []string{"python3", "-m", "pip", "install", "--quiet", "--target", "DIR", "mcp-server-time==2026.10.19"}, []string{"-m", "mcp_server_time"}, "python3", `"get_current_time","arguments":{"timezone":"UTC"}`},
	}
}

func (of reference) image(b *testing.B) (ref string, command *exec.Cmd) {
	b.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "keeper-bench") //nolint:usetesting // a box has a /tmp of its own
	must(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) }) // it is in a folder for temporary files
	in := func(words []string) []string {
		return strings.Split(strings.ReplaceAll(strings.Join(words, "\n"), "DIR", dir), "\n")
	}
	install := in(of.install)
	if out, err := exec.CommandContext(b.Context(), install[0], install[1:]...).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	program, more := interpreter(b, of.program, dir)
	args, env := append([]string{program}, in(of.command)...), []string{"PYTHONPATH=" + dir}
	ref = push(b, served(b), v1.Config{Entrypoint: args, Env: env}, copied(b, append(more, program, dir)...))
	return ref, &exec.Cmd{Path: program, Args: args, Env: append(os.Environ(), env...)}
}

// BenchmarkThaw compares the plain start of two reference servers with their start in a box,
// and with going on from their memory there: each from the start of the process to the answer
// of a call. The rounds are interleaved, and the metrics are medians. A freeze is measured to
// the end of its image.
func BenchmarkThaw(b *testing.B) {
	for name, of := range references() {
		b.Run(name, func(b *testing.B) {
			ref, plain := of.image(b)
			keeper, store := filepath.Join(built(b), "dormouse-keeper"), b.TempDir()
			begin := func() *sleeper {
				return sleeping(b, &exec.Cmd{Path: keeper, Args: []string{keeper, "run", "--control", "3", "--store", store, ref}}).ready(b)
			}
			begin()
			var image []byte
			figures := map[string][]float64{}
			since := func(unit string, began time.Time) {
				figures[unit] = append(figures[unit], float64(time.Since(began))/1e6)
			}
			for b.Loop() {
				began := time.Now()
				cmd := *plain
				in, err := cmd.StdinPipe()
				out, failed := cmd.StdoutPipe()
				must(b, errors.Join(err, failed, cmd.Start()))
				answered(b, in, bufio.NewReader(out), of.tool, true)
				since("plain-ms", began)
				_ = errors.Join(cmd.Process.Kill(), cmd.Wait()) // by the signal

				began = time.Now()
				s := begin().starts(b)
				answered(b, s.in, s.out, of.tool, true)
				since("sealed-ms", began)

				began = time.Now()
				image = s.freezes(b)
				since("freeze-ms", began)

				began = time.Now()
				s = begin().goesOn(b, image)
				answered(b, s.in, s.out, of.tool, false)
				since("thaw-ms", began)
				_ = errors.Join(s.cmd.Process.Kill(), s.cmd.Wait()) // by the signal
			}
			for unit, all := range figures {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2], unit)
			}
			plainMS, thawMS := figures["plain-ms"], figures["thaw-ms"]
			b.ReportMetric(thawMS[len(thawMS)/2]/plainMS[len(plainMS)/2], "thaw/plain")
			b.ReportMetric(float64(len(image))/(1<<20), "image-MB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// answered has a server answer a call, and before it initialize if that is the first.
func answered(b *testing.B, in io.Writer, out *bufio.Reader, tool string, first bool) {
	b.Helper()
	if first {
		_, err := fmt.Fprintln(in, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`+"\n"+`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		must(b, err)
	}
	if _, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":"call","method":"tools/call","params":{"name":%s}}`+"\n", tool); err != nil {
		b.Fatal(err)
	}
	for {
		line, err := out.ReadString('\n')
		if err != nil || strings.Contains(line, `"error"`) {
			b.Fatalf("%s: %v", line, err)
		}
		if strings.Contains(line, `"id":"call"`) {
			return
		}
	}
}

// hosted runs dormouse, and returns its process and the URLs of the servers.
func hosted(b *testing.B, servers map[string]any) (pid int, urls map[string]string) {
	b.Helper()
	text, err := json.Marshal(map[string]any{"mcpServers": servers})
	dir := b.TempDir()
	file := filepath.Join(dir, "servers.json")
	if err = errors.Join(err, os.WriteFile(file, text, 0o600)); err != nil {
		b.Fatal(err)
	}
	cmd := &exec.Cmd{Path: filepath.Join(built(b), "dormouse"), Args: []string{"dormouse", "run", "--json", "--servers", file, "--listen", "127.0.0.1:0", "--sockets", "127.0.0.1:0", "--data", filepath.Join(dir, "state")}}
	cmd.Env = append(os.Environ(), "DORMOUSE_CACHE="+as{os.Getuid(), ""}.folder(b))
	log := follow(b, cmd)
	log.wait(b, `"kind":"ready"`, len(servers))
	urls = map[string]string{}
	for _, line := range log.all {
		var ready struct{ Kind, Name, URL string }
		if json.Unmarshal([]byte(line), &ready) == nil && ready.Kind == "ready" {
			urls[ready.Name] = ready.URL
		}
	}
	return cmd.Process.Pid, urls
}

// measured opens a session, calls its server a hundred times, and ends it.
func measured(b *testing.B, machine int, url, tool string) (start, call, mb float64) {
	b.Helper()
	session := ""
	ask := func(method, body string) {
		res, err := speaks(b.Context(), method, url, session, body)
		must(b, err)
		text, err := io.ReadAll(res.Body)
		if err = errors.Join(err, res.Body.Close()); err != nil || res.StatusCode >= 300 || strings.Contains(string(text), `"error"`) || strings.Contains(string(text), `"isError":true`) {
			b.Fatalf("%v, %s: %s", err, res.Status, text)
		}
		session = cmp.Or(session, res.Header.Get("Mcp-Session-Id"))
	}
	began := time.Now()
	ask(http.MethodPost, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`)
	ask(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	var took []float64
	for n := range 100 {
		at := time.Now()
		ask(http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%s}}`, n+2, tool))
		took = append(took, float64(time.Since(at))/1e6)
		if n == 0 {
			start = float64(time.Since(began)) / 1e6
		}
	}
	slices.Sort(took)
	for _, pid := range children(b, machine) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)) // it may have ended
		for _, found := range regexp.MustCompile(`(?m)^Pss_(?:Anon|Shmem):\s+(\d+)`).FindAllSubmatch(text, -1) {
			kb, _ := strconv.Atoi(string(found[1])) // the kernel wrote it
			mb += float64(kb) / 1024
		}
	}
	ask(http.MethodDelete, "")
	until(func() bool { return len(children(b, machine)) == 0 })
	return start, took[50], mb
}

// interpreter returns the path of a program of this machine, and what it and the modules in
// dir need beside themselves.
func interpreter(b *testing.B, name, dir string) (program string, more []string) {
	b.Helper()
	program, err := exec.LookPath(name)
	if err == nil && name == "python3" {
		var out []byte
		out, err = exec.CommandContext(b.Context(), program, "-c", "import sys, sysconfig; print(sys.executable); print(sysconfig.get_path('stdlib'))").Output()
		program, more = strings.Fields(string(out) + " . .")[0], strings.Fields(string(out) + " . .")[1:2]
	}
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	must(b, err)
	of := []string{program}
	for _, root := range append(slices.Clone(more), dir) {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".so") && name == "python3" {
				of = append(of, path)
			}
			return err
		})
		must(b, err)
	}
	libraries, err := exec.CommandContext(b.Context(), "ldd", of...).Output()
	must(b, err)
	for _, found := range regexp.MustCompile(`(?m)(?:=>|^\s)\s*(/\S+)`).FindAllStringSubmatch(string(libraries), -1) {
		more = append(more, found[1])
	}
	return program, more
}

// copied is a layer of files and folders of this machine.
func copied(b *testing.B, paths ...string) v1.Layer {
	b.Helper()
	var out bytes.Buffer
	w, has := tar.NewWriter(&out), map[string]bool{}
	for _, root := range paths {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || has[path] {
				return err
			}
			if n := d.Name(); d.IsDir() && (n == "test" || n == "site-packages" || n == "tests") && path != root {
				return fs.SkipDir
			}
			has[path] = true
			info, err := os.Stat(path)
			if err != nil {
				return nil //nolint:nilerr // a link to nowhere
			}
			h, err := tar.FileInfoHeader(info, "")
			if err != nil || !info.IsDir() && !info.Mode().IsRegular() {
				return err
			}
			h.Name, h.Format = strings.TrimPrefix(path, "/"), tar.FormatPAX // with times that are not rounded, which Python compares
			if err := w.WriteHeader(h); err != nil || info.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			_, err = w.Write(text)
			return err
		})
		must(b, err)
	}
	must(b, w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil })
	must(b, err)
	return l
}
