// Package dynamotest gives tests a DynamoDB: one that runs already, or DynamoDB
// Local. The first test that asks starts DynamoDB Local, and the end of the test run
// stops it. The package downloads DynamoDB Local once, into .tools of the module,
// because its licence does not allow this repository to contain it.
package dynamotest

import (
	"bufio"
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed local/pom.xml local/Loopback.java
var sources embed.FS

// Variable is the environment variable with the URL of a DynamoDB that runs already.
const Variable = "DYNAMODB_ENDPOINT"

// Server is a DynamoDB for the tests of one package. Each package has one Server and
// stops it in its TestMain. It is safe for concurrent use.
type Server struct {
	// Running is the URL of a DynamoDB that runs already: the value of [Variable]. If
	// it is empty, Endpoint starts DynamoDB Local.
	Running string

	once    sync.Once
	url     string
	err     error
	process *exec.Cmd
	input   io.Closer
}

// Endpoint returns the URL of the DynamoDB, and starts DynamoDB Local first if
// needed. It returns the same result each time.
func (s *Server) Endpoint() (string, error) {
	s.once.Do(func() {
		if s.url = s.Running; s.url != "" {
			return
		}
		var dir string
		if dir, s.err = fetch(); s.err == nil {
			s.err = s.run(dir)
		}
	})
	return s.url, s.err
}

// run starts the process and waits until it prints its port. The process ends when its
// stdin ends, even if the tests are killed.
func (s *Server) run(dir string) error {
	lib := filepath.Join(dir, "lib")
	// The process lives for some seconds, so optimizing its code would take longer than it saves.
	s.process = exec.CommandContext(context.Background(), "java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Djava.library.path="+lib,
		"-cp", dir+string(os.PathListSeparator)+filepath.Join(lib, "*"), "Loopback")
	var stderr strings.Builder
	s.process.Stderr = &stderr
	input, err := s.process.StdinPipe()
	if err != nil {
		return err
	}
	output, err := s.process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.process.Start(); err != nil {
		return err
	}
	s.input = input
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if port, found := strings.CutPrefix(lines.Text(), "port "); found {
			s.url = "http://127.0.0.1:" + port
			go func() { _, _ = io.Copy(io.Discard, output) }()
			return nil
		}
	}
	err = s.process.Wait()
	return fmt.Errorf("DynamoDB Local does not start: %w\n%s", err, stderr.String())
}

// Stop ends the process, if one was started.
func (s *Server) Stop() {
	if s.input == nil {
		return
	}
	_ = s.input.Close()
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

const howToGet = `these tests run against DynamoDB Local: install a JDK (17 or newer) and Maven ("apt-get install default-jdk-headless maven", "brew install openjdk maven"), or start one yourself ("docker run -p 8000:8000 amazon/dynamodb-local") and set DYNAMODB_ENDPOINT=http://127.0.0.1:8000`

// fetch downloads and builds DynamoDB Local in a folder named by the hash of its
// sources, and returns the folder.
func fetch() (string, error) {
	for _, program := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s is not on the PATH: %s", program, howToGet)
		}
	}
	tools, err := toolsFolder()
	if err != nil {
		return "", err
	}
	// Concurrent test runs wait for the first one.
	lock, err := os.OpenFile(filepath.Join(tools, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil { //nolint:gosec // a small number
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	part, err := os.MkdirTemp(tools, "part-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(part) }()
	version := sha256.New()
	for _, name := range []string{"pom.xml", "Loopback.java"} {
		b, err := sources.ReadFile("local/" + name)
		if err != nil {
			return "", err
		}
		version.Write(b)
		if err := os.WriteFile(filepath.Join(part, name), b, 0o600); err != nil {
			return "", err
		}
	}
	dir := filepath.Join(tools, fmt.Sprintf("%x", version.Sum(nil)[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	lib := filepath.Join(part, "lib")
	if err := do("mvn", "-q", "-B", "-f", filepath.Join(part, "pom.xml"), "dependency:copy-dependencies", "-DoutputDirectory="+lib); err != nil {
		return "", fmt.Errorf("fetch DynamoDB Local from Maven Central: %w", err)
	}
	if err := do("javac", "-d", part, "-cp", filepath.Join(lib, "*"), filepath.Join(part, "Loopback.java")); err != nil {
		return "", err
	}
	return dir, os.Rename(part, dir) // only a complete download gets this name
}

// toolsFolder returns .tools/dynamodb-local of the module that the test is in.
func toolsFolder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			tools := filepath.Join(dir, ".tools", "dynamodb-local")
			return tools, os.MkdirAll(tools, 0o755)
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the folder of the test, so there is no place for DynamoDB Local")
		}
		dir = parent
	}
}

func do(program string, args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", program, err, out)
	}
	return nil
}
