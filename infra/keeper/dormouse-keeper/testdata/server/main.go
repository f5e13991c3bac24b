// Server is what the tests run in a box. Each argument is a deed; it writes a line about each.
package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const memfdCreate = 319 // on amd64

func main() {
	for _, arg := range os.Args[1:] {
		verb, operand, _ := strings.Cut(arg, ":")
		said, err := do(verb, operand)
		if err != nil {
			said = "error " + err.Error()
		}
		fmt.Printf("%s %s\n", arg, said)
	}
}

func do(verb, operand string) (string, error) {
	switch verb {
	case "id":
		groups, err := os.Getgroups()
		return fmt.Sprint(os.Getuid(), os.Getgid(), groups), err
	case "where":
		return os.Getwd()
	case "env":
		return os.Getenv(operand), nil
	case "read":
		text, err := os.ReadFile(operand)
		return strings.TrimSpace(string(text)), err
	case "write":
		file, text, _ := strings.Cut(operand, "=")
		return "done", os.WriteFile(file, []byte(text), 0o600)
	case "remove":
		return "done", os.Remove(operand)
	case "pipe":
		return "done", syscall.Mkfifo(operand, 0o600)
	case "listen":
		_, err := net.Listen("unix", operand)
		return "done", err
	case "leave": // a process that writes for ever
		return "done", exec.Command(os.Args[0], "fill:"+operand).Start()
	case "tree":
		return tree(operand)
	case "map":
		return mapped(operand)
	case "dial":
		c, err := net.DialTimeout("tcp", operand, 20*time.Second)
		if err != nil {
			return "", err
		}
		defer c.Close()
		return returned(c.(*net.TCPConn))
	case "get":
		text, err := got(operand)
		return string(text), err
	case "fetch":
		return fetched(operand)
	case "send":
		c, err := net.Dial("udp", operand)
		if err != nil {
			return "", err
		}
		defer c.Close()
		if _, err := c.Write([]byte("x")); err != nil {
			return "", err
		}
		_, err = c.Read(make([]byte, 1))
		return "answered", err
	case "socket":
		n := map[string][3]int{"raw": {syscall.AF_INET, syscall.SOCK_RAW, 1}, "packet": {syscall.AF_PACKET, syscall.SOCK_RAW, 0x300}, "netfilter": {syscall.AF_NETLINK, syscall.SOCK_RAW, 12}}[operand]
		fd, err := syscall.Socket(n[0], n[1], n[2])
		if err == nil {
			syscall.Close(fd)
		}
		return "opened", err
	case "unix":
		c, err := net.Dial("unix", operand)
		if err == nil {
			c.Close()
		}
		return "connected", err
	case "call":
		n, err := strconv.Atoi(operand)
		if err != nil {
			return "", err
		}
		if _, _, errno := syscall.Syscall6(uintptr(n), 1, 0, 0, 0, 0, 0); errno != 0 {
			return "", errno
		}
		return "done", nil
	case "use":
		mb, err := strconv.Atoi(operand)
		b := make([]byte, mb<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM) // while a signal may come, Go takes this wait for no deadlock
		<-make(chan string)
		return string(b), err
	case "fill":
		f, err := os.Create(operand)
		for err == nil {
			_, err = f.Write(make([]byte, 1<<20))
		}
		return "", err
	case "hog":
		return "", hog(operand)
	case "fork":
		n, err := strconv.Atoi(operand)
		ran := 0
		for ; err == nil && ran < n; ran++ {
			err = exec.Command(os.Args[0], "until:TERM").Start()
		}
		return fmt.Sprint(ran - 1), nil
	case "until":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("waits")
		<-c
		return "told", nil
	case "echo":
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			fmt.Println(in.Text())
		}
		return "closed", in.Err()
	case "serve":
		return "closed", serve()
	case "hold", "tell", "hear", "push", "pushed", "open", "line", "append", "temporary", "whole":
		return keep(verb, operand)
	case "address":
		all, err := net.LookupHost(operand)
		return strings.Join(all, " "), err
	case "timer":
		d, err := time.ParseDuration(operand)
		<-time.After(d)
		if up := time.Since(begun); up < 0 || up > time.Hour {
			return fmt.Sprint("it runs since ", up), err
		}
		return "fired", err
	case "processes":
		all, err := filepath.Glob("/proc/[0-9]*")
		return fmt.Sprint(len(all)), err
	case "count":
		counted++
		return fmt.Sprint(counted, " as ", os.Getpid()), nil
	case "mcp":
		return "ended", speak()
	case "exit":
		n, err := strconv.Atoi(operand)
		if err == nil {
			os.Exit(n)
		}
		return "", err
	}
	return "", fmt.Errorf("no deed %q", verb)
}

// The deed "serve" keeps these in memory, and a thaw must bring them back.
var (
	begun   = time.Now()
	counted int
	held    = map[string]net.Conn{}
	opened  = map[string]*os.File{}
	pushed  = map[string]chan error{}
)

// keep does a deed about what is held by a name: NAME=OPERAND.
func keep(verb, what string) (string, error) {
	name, operand, _ := strings.Cut(what, "=")
	buf := make([]byte, 1<<16)
	switch verb {
	case "hold": // a connection to an address
		c, err := net.DialTimeout("tcp", operand, 20*time.Second)
		held[name] = c
		return "held", err
	case "tell": // it, and do not wait for an answer
		_, err := io.WriteString(held[name], operand)
		return "told", err
	case "hear": // three bytes
		if err := held[name].SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			return "", err
		}
		n, err := io.ReadFull(held[name], buf[:3])
		if errors.Is(err, os.ErrDeadlineExceeded) { // the connection has neither bytes nor an end
			return "hung", nil
		}
		return string(buf[:n]), err
	case "push": // sends as much as the connection takes, in the background
		pushed[name] = make(chan error, 1)
		go func() {
			var err error
			for err == nil {
				_, err = held[name].Write(buf)
			}
			pushed[name] <- err
		}()
		return "begun", nil
	case "pushed":
		return "", <-pushed[name]
	case "open":
		f, err := os.Open(operand)
		opened[name] = f
		return "opened", err
	case "append": // to a file that stays open
		f := opened[name]
		if f == nil {
			var err error
			if f, err = os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
				return "", err
			}
			opened[name] = f
		}
		_, err := io.WriteString(f, operand)
		return "done", err
	case "temporary": // a file that stays open, without its name
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return "", err
		}
		opened[name] = f
		_, err = f.WriteString("temporary")
		return "done", errors.Join(err, os.Remove(name))
	case "whole": // returns what is in an open file
		n, err := opened[name].ReadAt(buf[:9], 0)
		return string(buf[:n]), err
	case "line": // the next bytes of an open file
		n, err := opened[name].Read(buf[:4])
		return string(buf[:n]), err
	}
	return "", fmt.Errorf("no deed %q", verb)
}

// serve does the deed of each line.
func serve() error {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 2<<20)
	for in.Scan() {
		verb, operand, _ := strings.Cut(in.Text(), ":")
		said, err := do(verb, operand)
		if err != nil {
			said = "error " + err.Error()
		}
		fmt.Printf("%s %s\n", in.Text(), said)
	}
	return in.Err()
}

// speak is an MCP server with one tool, which says what the server sees.
func speak() error {
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var m struct {
			ID     any    `json:"id"`
			Method string `json:"method"`
			Params struct {
				ProtocolVersion string `json:"protocolVersion"`
			} `json:"params"`
		}
		if err := json.Unmarshal(in.Bytes(), &m); err != nil {
			return err
		}
		var result any
		switch m.Method {
		case "initialize":
			result = map[string]any{"protocolVersion": m.Params.ProtocolVersion, "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]string{"name": "sealed", "version": "1"}}
		case "tools/list":
			result = map[string]any{"tools": []any{map[string]any{"name": "look", "inputSchema": map[string]string{"type": "object"}}}}
		case "tools/call":
			version, _ := os.ReadFile("/proc/version")
			text := fmt.Sprintf("%d %s %v %s kept %d, not %d", os.Getpid(), os.Getenv("GREETING"), os.Args[1:], version, starts("/starts"), starts("/tmp/starts"))
			result = map[string]any{"content": []any{map[string]string{"type": "text", "text": text}}}
		default:
			if m.ID == nil {
				continue
			}
			if err := out.Encode(map[string]any{"jsonrpc": "2.0", "id": m.ID, "error": map[string]any{"code": -32601, "message": "not here"}}); err != nil {
				return err
			}
			continue
		}
		if err := out.Encode(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result}); err != nil {
			return err
		}
	}
	return in.Err()
}

// hog uses what its operand names until it may not.
func hog(what string) error {
	text := make([]byte, 1<<16)
	for n := 0; ; n++ {
		var err error
		switch what {
		case "memfd":
			var fd uintptr
			name, _ := syscall.BytePtrFromString("x")
			fd, _, errno := syscall.Syscall(memfdCreate, uintptr(unsafe.Pointer(name)), 0, 0)
			if errno != 0 {
				return errno
			}
			for range 64 {
				if _, err = syscall.Write(int(fd), text); err != nil {
					break
				}
			}
		case "mapping":
			var b []byte
			if b, err = syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED|syscall.MAP_ANON); err == nil {
				for i := 0; i < len(b); i += 4096 {
					b[i] = 1
				}
			}
		case "pipes":
			var p [2]int
			if err = syscall.Pipe2(p[:], syscall.O_NONBLOCK); err == nil {
				_, _ = syscall.Write(p[1], text)
			}
		case "sockets":
			var p [2]int
			if p, err = syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK, 0); err == nil {
				for range 4 {
					_, _ = syscall.Write(p[1], text)
				}
			}
		case "folders":
			err = os.Mkdir(fmt.Sprint("/dev/shm/a-folder-", n), 0o700)
		}
		if err != nil {
			return fmt.Errorf("after %d: %w", n, err)
		}
	}
}

// starts counts by a file, and returns how often it was there.
func starts(file string) int {
	text, _ := os.ReadFile(file) // there is no file at first
	if err := os.WriteFile(file, append(text, '.'), 0o600); err != nil {
		return -1
	}
	return len(text)
}

// returned sends a million bytes, and reads them back until the other end closes.
func returned(c *net.TCPConn) (string, error) {
	sent := bytes.Repeat([]byte("0123456789"), 100_000)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Write(sent)
		failed <- errors.Join(err, c.CloseWrite())
	}()
	got, err := io.ReadAll(c)
	if !bytes.Equal(got, sent) {
		err = errors.Join(err, fmt.Errorf("%d other bytes came back", len(got)))
	}
	return fmt.Sprintf("%d bytes came back", len(got)), errors.Join(err, <-failed)
}

// got fetches a URL over a connection of its own, whoever answers.
func got(url string) ([]byte, error) {
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	res, err := c.Get(url)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(res.Body)
}

// fetched gets BYTES@HOST:PORT by HTTP some times, and returns the median of the milliseconds.
func fetched(what string) (string, error) {
	size, at, _ := strings.Cut(what, "@")
	want, err := strconv.Atoi(size)
	var took []time.Duration
	for range 21 {
		begun := time.Now()
		text, err := got("http://" + at + "/" + size)
		if err != nil || len(text) != want {
			return "", fmt.Errorf("%d bytes: %w", len(text), err)
		}
		took = append(took, time.Since(begun))
	}
	slices.Sort(took)
	return fmt.Sprint(float64(took[len(took)/2].Microseconds()) / 1000), err
}

// tree lists what is below a folder: path, mode, owner, size or target, and time.
func tree(root string) (string, error) {
	var all []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		what := ""
		switch {
		case d.Type() == fs.ModeSymlink:
			what, err = os.Readlink(path)
		case d.Type().IsRegular():
			var text []byte
			text, err = os.ReadFile(path)
			what = string(text)
		}
		all = append(all, fmt.Sprintf("%s %v %d:%d %d %s", path, info.Mode(), st.Uid, st.Gid, info.ModTime().Unix(), what))
		return err
	})
	return strings.Join(all, "; "), err
}

func mapped(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(info.Size()), syscall.PROT_READ, syscall.MAP_PRIVATE)
	return string(b), err
}
