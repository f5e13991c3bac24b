package dynamostore

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// dynamoDBLocal is the DynamoDB that the tests of this package run against: one
// that DYNAMODB_ENDPOINT names, or DynamoDB Local, started by the first test that
// needs it. It is fetched once, into .tools, because its licence does not allow it
// to be here.
var dynamoDBLocal server

func TestMain(m *testing.M) {
	code := m.Run()
	dynamoDBLocal.stop()
	os.Exit(code)
}

type server struct {
	once    sync.Once
	url     string
	err     error
	process *exec.Cmd
	input   io.Closer
}

// start returns the endpoint.
func (s *server) start() (string, error) {
	s.once.Do(func() {
		if s.url = os.Getenv("DYNAMODB_ENDPOINT"); s.url != "" {
			return
		}
		var dir string
		if dir, s.err = fetch(); s.err == nil {
			s.err = s.run(dir)
		}
	})
	return s.url, s.err
}

// run starts the process and waits until it says which port it has. It ends when
// its input does, also if the tests are killed.
func (s *server) run(dir string) error {
	lib := filepath.Join(dir, "lib")
	s.process = exec.CommandContext(context.Background(), "java", "-Djava.library.path="+lib,
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

func (s *server) stop() {
	if s.input == nil {
		return
	}
	_ = s.input.Close()
	_ = s.process.Process.Kill()
	_ = s.process.Wait()
}

const howToGet = `these tests run against DynamoDB Local: install a JDK (17 or newer) and Maven ("apt-get install default-jdk-headless maven", "brew install openjdk maven"), or start one yourself ("docker run -p 8000:8000 amazon/dynamodb-local") and set DYNAMODB_ENDPOINT=http://127.0.0.1:8000`

// fetch brings DynamoDB Local to a folder named for what it is made from, and
// returns the folder.
func fetch() (string, error) {
	for _, program := range []string{"java", "javac", "mvn"} {
		if _, err := exec.LookPath(program); err != nil {
			return "", fmt.Errorf("%s is not on the PATH: %s", program, howToGet)
		}
	}
	source := filepath.Join("testdata", "dynamodblocal")
	version := sha256.New()
	for _, name := range []string{"pom.xml", "Loopback.java"} {
		b, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			return "", err
		}
		version.Write(b)
	}
	tools, err := filepath.Abs(filepath.Join("..", "..", ".tools", "dynamodb-local"))
	if err != nil {
		return "", err
	}
	dir := filepath.Join(tools, fmt.Sprintf("%x", version.Sum(nil)[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(tools, 0o755); err != nil {
		return "", err
	}
	// It becomes visible as a whole: another run may be here at the same time.
	part, err := os.MkdirTemp(tools, "part-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(part) }()
	lib := filepath.Join(part, "lib")
	if err := do("mvn", "-q", "-B", "-f", filepath.Join(source, "pom.xml"), "dependency:copy-dependencies", "-DoutputDirectory="+lib); err != nil {
		return "", fmt.Errorf("fetch DynamoDB Local from Maven Central: %w", err)
	}
	if err := do("javac", "-d", part, "-cp", filepath.Join(lib, "*"), filepath.Join(source, "Loopback.java")); err != nil {
		return "", err
	}
	if err := os.Rename(part, dir); err != nil && !errors.Is(err, os.ErrExist) {
		if _, statErr := os.Stat(dir); statErr != nil {
			return "", err
		}
	}
	return dir, nil
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

// dial returns a client of the DynamoDB under test.
func dial(t *testing.T) *dynamodb.Client {
	t.Helper()
	url, err := dynamoDBLocal.start()
	if err != nil {
		t.Fatal(err)
	}
	return client(url, nil)
}

// client returns a client; transport may be nil.
func client(url string, transport dynamodb.HTTPClient) *dynamodb.Client {
	return dynamodb.New(dynamodb.Options{
		Region: "us-east-1", BaseEndpoint: &url, HTTPClient: transport,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "local", SecretAccessKey: "local"}, nil
		}),
	})
}

// newTable makes a table of a test's own. Nothing is ever deleted from it for its
// age: what has expired is still there.
func newTable(t *testing.T, c *dynamodb.Client) string {
	t.Helper()
	name := "t" + session.NewNonce()
	create, _, err := TableDefinition(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.CreateTable(t.Context(), create); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := c.DeleteTable(context.WithoutCancel(t.Context()), &dynamodb.DeleteTableInput{TableName: &name}); err != nil {
			t.Error(err)
		}
	})
	return name
}

// open makes a Store on a table of its own. The machine may be busy, so it is
// more patient than usual.
func open(t *testing.T, o Options) *Store {
	t.Helper()
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	c := dial(t)
	return New(c, newTable(t, c), o)
}
