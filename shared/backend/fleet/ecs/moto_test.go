package ecs

import (
	"bufio"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/fleet"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// motoVersion is pinned only here. The package index chooses the versions of moto's
// dependencies.
const motoVersion = "5.2.5"

const howToGetMoto = `this test runs against moto, an emulator of AWS written in Python, which it installs into .tools: install Python 3.10 or newer with venv and pip ("apt-get install python3-venv"), and see that a package index is within reach, or start one yourself ("pip install 'moto[server]' && moto_server") and set MOTO_ENDPOINT=http://127.0.0.1:5000`

// The same author wrote the fleet and the fake of the other tests. moto is the work of
// others. It knows neither client tokens nor Spot, and its tasks move one step each time
// that they are described.
func TestMotoRunsListsAndStopsATask(t *testing.T) {
	endpoint := moto(t)
	c := config(nil)
	c.Endpoint, c.HTTPClient = endpoint, nil
	name := "c" + strings.ToLower(regexp.MustCompile(`\W`).ReplaceAllString(t.Name(), ""))
	commontest.OK(t, newRequests(c).ask(t.Context(), "CreateCluster", map[string]string{"clusterName": name}, &struct{}{}))
	c.Cluster = name
	c.Subnets, c.SecurityGroups = ids(t, endpoint, "DescribeSubnets", "subnetId"), ids(t, endpoint, "DescribeSecurityGroups", "groupId")
	x, err := New(c)
	commontest.OK(t, err)
	for _, token := range []string{"first", "second"} {
		if id, err := x.Run(t.Context(), taskFor(token)); err != nil || id != "ecs/"+token {
			t.Fatalf("id %q, %v", id, err)
		}
	}
	var definitions struct{ TaskDefinitionArns []string }
	if err := x.api.ask(t.Context(), "ListTaskDefinitions", struct{}{}, &definitions); err != nil || len(definitions.TaskDefinitionArns) != 1 {
		t.Errorf("definitions %+v, %v; want one", definitions, err)
	}
	commontest.OK(t, x.Stop(t.Context(), "ecs/first", "idle"))
	states := map[string]fleet.Status{}
	list, err := x.Tasks(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("tasks %+v, %v; want two", list, err)
	}
	for _, s := range list {
		states[s.ID] = s
		if s.Box != "acme/echo" || s.Server != "echo" {
			t.Errorf("%+v", s)
		}
	}
	if s := states["ecs/first"]; s.State != fleet.Stopped || s.Reason != "idle" {
		t.Errorf("first: %+v", s)
	}
	if s := states["ecs/second"]; s.State == fleet.Stopped {
		t.Errorf("second: %+v", s)
	}
	if err := x.Stop(t.Context(), "nobody", "late"); err != nil {
		t.Error(err)
	}
}

// ids lists the resources of one kind in a new account of AWS, by EC2's query API.
func ids(t *testing.T, endpoint, action, element string) []string {
	t.Helper()
	form := url.Values{"Action": {action}, "Version": {"2016-11-15"}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	commontest.OK(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/ec2/aws4_request, SignedHeaders=host, Signature=0")
	res, err := http.DefaultClient.Do(r)
	commontest.OK(t, err)
	defer func() { _ = res.Body.Close() }()
	var found []string
	d := xml.NewDecoder(res.Body)
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		commontest.OK(t, err)
		if start, ok := token.(xml.StartElement); ok && start.Name.Local == element {
			var id string
			commontest.OK(t, d.DecodeElement(&id, &start))
			found = append(found, id)
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s: none", action)
	}
	return found[:1]
}

// moto starts a moto server that ends with the test, and returns its endpoint.
func moto(t *testing.T) string {
	t.Helper()
	if endpoint := os.Getenv("MOTO_ENDPOINT"); endpoint != "" {
		return endpoint
	}
	dir, err := installMoto(t.Context())
	if err != nil {
		t.Fatalf("%v\n%s", err, howToGetMoto)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "bin", "python"), "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", "0")
	cmd.Env = append(os.Environ(), "AWS_ACCESS_KEY_ID=test", "AWS_SECRET_ACCESS_KEY=test", "PYTHONUNBUFFERED=1")
	out, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
	})
	return readEndpoint(t, out)
}

// readEndpoint waits for the line in which moto prints its address.
func readEndpoint(t *testing.T, out io.Reader) string {
	t.Helper()
	said, found := &strings.Builder{}, make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		address := regexp.MustCompile(`http://127\.0\.0\.1:\d+`)
		for lines.Scan() {
			if at := address.FindString(lines.Text()); at != "" {
				found <- at
				_, _ = io.Copy(io.Discard, out)
				return
			}
			fmt.Fprintln(said, lines.Text())
		}
		close(found)
	}()
	select {
	case at, ok := <-found:
		if !ok {
			t.Fatalf("moto ended: %s\n%s", said, howToGetMoto)
		}
		return at
	case <-time.After(2 * time.Minute):
		t.Fatal("moto does not listen after 2 minutes")
		return ""
	}
}

// installMoto returns the folder of a Python environment with moto. The first run makes
// it, and runs at the same time wait for the first.
func installMoto(ctx context.Context) (string, error) {
	tools, err := filepath.Abs(filepath.Join("..", "..", "..", "..", ".tools", "moto"))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(tools, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(tools, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil { //nolint:gosec // a small number
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	dir := filepath.Join(tools, motoVersion)
	stamp := filepath.Join(dir, ".installed")
	if _, err := os.Stat(stamp); err == nil {
		return dir, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for _, command := range [][]string{
		{"python3", "-m", "venv", dir},
		{filepath.Join(dir, "bin", "python"), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "moto[server]==" + motoVersion},
	} {
		if out, err := exec.CommandContext(ctx, command[0], command[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(command, " "), err, out)
		}
	}
	return dir, os.WriteFile(stamp, nil, 0o644)
}
