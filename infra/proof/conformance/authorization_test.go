//go:build conformance

package conformance

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
	"github.com/dormouse-mcp/dormouse/infra/proof/internal/webuser"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/store/dynamostore/dynamotest"
)

// The suite's scenarios for authorization servers ask Dormouse's for its metadata, and
// for a token, with a user who signs in. The suite's other scenarios about authorization
// test clients. The test counts the checks, because the suite exits 0 even if it has left
// a scenario out.
//
// The client is public. With a confidential client the suite would fail: it sends no
// secret to a server that also has public clients.
func TestAuthorizationScenariosPass(t *testing.T) {
	suite := installSuite(t)
	own := programtest.Own(t, filepath.Join("conformance", "native"), ".", "./servers/native")
	t.Chdir(programtest.Root(t)) // where DynamoDB Local is kept
	server := dynamotest.Server{Running: os.Getenv(dynamotest.Variable)}
	t.Cleanup(server.Stop)
	endpoint, err := server.Endpoint()
	commontest.OK(t, err)
	want := map[string]int{"authorization-server-metadata-endpoint": 2, "authorization-code-grant": 1}
	var rows []row
	for store, flags := range map[string][]string{"SQLite": nil, "DynamoDB": {"--store", "dynamodb:conformance?endpoint=" + endpoint + "&region=local"}} {
		callback, address := commontest.FreeAddress(t), commontest.FreeAddress(t)
		client := map[string]any{"name": "suite", "redirect_uris": []string{"http://" + callback + "/callback"}}
		settings := map[string]any{"access": map[string]any{"clients": map[string]any{"suite": client}}}
		servers := map[string]any{"counter": nativeServer("everything")}
		url := own.Host(t, servers, settings, append(flags, "--listen", address, "--access", "oauth")...)["counter"].URL
		for _, revision := range []string{revision2025, revision2026} {
			t.Run(store+", "+revision, func(t *testing.T) {
				results := suite.authorize(t, "authorization-"+store+"-"+revision, callback, "--url", "http://"+address, "--resource", url, "--client-id", "suite", "--spec-version", revision)
				for _, problem := range problemsOf(results) {
					t.Error(problem)
				}
				for _, s := range results {
					if s.count(success) != want[s.name] {
						t.Errorf("%s: %d checks succeeded, want %d", s.name, s.count(success), want[s.name])
					}
				}
				rows = append(rows, row{"authorization, " + store + ", " + revision, results})
			})
		}
	}
	t.Logf("lanes:\n%s", table(rows))
}

// authorize runs the scenarios for authorization servers. A user opens the URL that the
// suite prints, and is redirected to the suite's callback, which listens at the address
// callback.
func (s suite) authorize(t *testing.T, lane, callback string, arguments ...string) []scenario {
	t.Helper()
	dir := filepath.Join(toolsDir(t), "results", lane)
	programtest.Empty(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
	defer cancel()
	_, port, err := net.SplitHostPort(callback)
	commontest.OK(t, err)
	arguments = append([]string{s.script, "authorization", "--port", port, "--output-dir", filepath.Join(dir, "checks")}, arguments...)
	cmd := exec.CommandContext(ctx, s.node, arguments...)
	cmd.WaitDelay = 5 * time.Second
	stdout, err := cmd.StdoutPipe()
	commontest.OK(t, err)
	cmd.Stderr = cmd.Stdout
	commontest.OK(t, cmd.Start())
	var said strings.Builder
	visited := signIn(ctx, io.TeeReader(stdout, &said))
	err = cmd.Wait()
	programtest.Write(t, filepath.Join(dir, "output.txt"), []byte(said.String()))
	if exit := (*exec.ExitError)(nil); visited != nil || ctx.Err() != nil || (err != nil && !errors.As(err, &exit)) {
		t.Fatalf("%s: %v, %v, %v\n%s", cmd, err, visited, ctx.Err(), &said)
	}
	results, err := readResultsOf(filepath.Join(dir, "checks"), authorizationFolder(), requirements{scored: []string{"authorization-server-metadata-endpoint", "authorization-code-grant"}})
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, &said)
	}
	return results
}

// signIn reads the suite's output to its end. When the suite waits for its callback,
// signIn opens the URL that the suite printed before.
func signIn(ctx context.Context, output io.Reader) (err error) {
	link, url := regexp.MustCompile(`^http\S+/authorize\?\S+$`), ""
	for lines := bufio.NewScanner(output); lines.Scan(); {
		if link.MatchString(lines.Text()) {
			url = lines.Text()
		}
		if strings.HasPrefix(lines.Text(), "Callback server started") {
			_, err = webuser.New(webuser.Ada()).Visit(ctx, url, "")
		}
	}
	return err
}
