//go:build clients && browser

package clients

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/programtest"
)

// browserVariable names the browser, if it is not on the PATH.
const browserVariable = "DORMOUSE_TEST_BROWSER"

// A user signs in with a real browser, at Dormouse's pages and at oidc-provider's. The
// browser obeys Dormouse's policies: forms may lead to the client, and other sites can
// neither frame nor read Dormouse's pages.
func TestABrowserSignsIn(t *testing.T) {
	dir := nodeModules(t, "browser")
	programtest.Copy(t, filepath.Join("browser", "browser.mjs"), filepath.Join(dir, "browser.mjs"))
	two := counter()
	two["other"] = two["counter"] // so that a user has to choose
	own := programtest.Host(t, two, "--listen", commontest.FreeAddress(t), "--access", "oauth")["counter"].URL
	r := newRun(t, "browser", streamable, []string{
		programtest.Tool(t, "node", programtest.NodeHelp), filepath.Join(dir, "browser.mjs"),
		"--browser", browser(t), "--own", own, "--elsewhere", hostWithProvider(t),
	})
	r.checks = []string{
		"any name", "refused", "agreed before", "two tabs", "a name that is none", "choice of a server", "an application's own scheme",
		"in a window of a web page", "provider", "denied at the provider", "in a frame", "a page of another origin",
	}
	r.start(t)
	r.report(t)
}

// browser returns the path of a browser that is based on Chromium.
func browser(t *testing.T) string {
	t.Helper()
	if path := os.Getenv(browserVariable); path != "" {
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatalf("no Chromium or Chrome is on the PATH: install one (on Debian: apt install chromium), or name it in %s", browserVariable)
	return ""
}
