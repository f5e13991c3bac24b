package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// BenchmarkSealed compares two reference servers with themselves in a box, one after the other
// in each round: the time to the answer of the first call, a further call, and memory without that of files. It
// installs them from npm and PyPI. The metrics are medians of the rounds.
func BenchmarkSealed(b *testing.B) {
	for name, of := range map[string]struct {
		install, command []string // DIR stands for the folder of the install
		program, tool    string
	}{
		"everything": {[]string{"npm", "install", "--silent", "--prefix", "DIR", "@modelcontextprotocol/server-everything@2026.8.31"}, []string{"DIR/node_modules/@modelcontextprotocol/server-everything/dist/index.js"}, "node", `"echo","arguments":{"message":"x"}`},
		"time":       {[]string{"python3", "-m", "pip", "install", "--quiet", "--target", "DIR", "mcp-server-time==2026.10.19"}, []string{"-m", "mcp_server_time"}, "python3", `"get_current_time","arguments":{"timezone":"UTC"}`},
	} {
		b.Run(name, func(b *testing.B) {
			a := as{1000, ""}
			dir, err := os.MkdirTemp("/var/tmp", "keeper-bench") //nolint:usetesting // a box has a /tmp of its own
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = os.RemoveAll(dir) }) // it is in a folder for temporary files
			in := func(words []string) []string {
				return strings.Split(strings.ReplaceAll(strings.Join(words, "\n"), "DIR", dir), "\n")
			}
			install := in(of.install)
			if out, err := exec.CommandContext(b.Context(), install[0], install[1:]...).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			program, more := interpreter(b, of.program, dir)
			ref := push(b, served(b), v1.Config{Entrypoint: append([]string{program}, in(of.command)...), Env: []string{"PYTHONPATH=" + dir}}, copied(b, append(more, program, dir)...))
			store := a.folder(b)
			if out, err := a.command(keeperRole, "pull", "--store", store, ref).CombinedOutput(); err != nil {
				b.Fatalf("%v: %s", err, out)
			}
			figures := map[string][]float64{}
			for b.Loop() {
				plain := exec.CommandContext(b.Context(), program, in(of.command)...)
				plain.Env = append(os.Environ(), "PYTHONPATH="+dir)
				for way, cmd := range map[string]*exec.Cmd{"plain": plain, "sealed": a.command(keeperRole, "run", "--store", store, ref)} {
					start, call, mb := measured(b, cmd, of.tool)
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

// measured starts a server, calls it a hundred times, and ends it.
func measured(b *testing.B, cmd *exec.Cmd, tool string) (start, call, mb float64) {
	b.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	began, lines := time.Now(), bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	ask := func(id int, what string) {
		_, err := fmt.Fprintf(in, `{"jsonrpc":"2.0","id":%d,%s}`+"\n", id, what)
		for line := ""; err == nil && !strings.Contains(line, fmt.Sprintf(`"id":%d`, id)) || strings.Contains(line, `"method"`); {
			line, err = lines.ReadString('\n')
		}
		if err != nil {
			b.Fatalf("%v: %s", err, errs.String())
		}
	}
	ask(1, `"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`)
	if _, err := io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n"); err != nil {
		b.Fatal(err)
	}
	var took []float64
	for n := range 100 {
		at := time.Now()
		ask(n+2, `"method":"tools/call","params":{"name":`+tool+`}`)
		took = append(took, float64(time.Since(at))/1e6)
		if n == 0 {
			start = float64(time.Since(began)) / 1e6
		}
	}
	slices.Sort(took)
	for _, pid := range append(children(b, cmd.Process.Pid), cmd.Process.Pid) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)) // it may have ended
		for _, found := range regexp.MustCompile(`(?m)^Pss_(?:Anon|Shmem):\s+(\d+)`).FindAllSubmatch(text, -1) {
			kb, _ := strconv.Atoi(string(found[1])) // the kernel wrote it
			mb += float64(kb) / 1024
		}
	}
	_ = errors.Join(in.Close(), cmd.Process.Kill(), cmd.Wait()) // by the signal
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
	if err != nil {
		b.Fatal(err)
	}
	of := []string{program}
	for _, root := range append(slices.Clone(more), dir) {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".so") && name == "python3" {
				of = append(of, path)
			}
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	libraries, err := exec.CommandContext(b.Context(), "ldd", of...).Output()
	if err != nil {
		b.Fatal(err)
	}
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
			h.Name = strings.TrimPrefix(path, "/")
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
		if err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(out.Bytes())), nil })
	if err != nil {
		b.Fatal(err)
	}
	return l
}
