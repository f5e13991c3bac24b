package shared_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

var (
	// readVariable matches names of variables in the source: those that belong to Dormouse, AWS or
	// OpenTelemetry, and any that is read. A name that ends with _ is the beginning of names.
	readVariable = regexp.MustCompile(`"((?:DORMOUSE|OTEL|AWS)_[A-Z0-9_]+)[="]|\b(?:[gG]etenv|LookupEnv|only|get|lookup)\("([A-Z][A-Z0-9_]+)"|\benv:"([A-Z0-9_]+)"`)
	pageVariable = regexp.MustCompile("`([A-Z][A-Z0-9_]+\\*?)`")
	// elsewhere matches the names that a library reads, and those that code assembles.
	elsewhere = regexp.MustCompile(`^(LISTEN_FDS|LISTEN_PID|NOTIFY_SOCKET|OTEL_.*)$`)
)

// sources returns the text of the product's Go files.
func sources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, f := range load(t, "..") {
		if f.test || strings.HasPrefix(f.path, "infra/proof/") || strings.HasPrefix(f.path, "infra/internal/emulator/") || strings.HasSuffix(f.dir, "test") {
			continue
		}
		text, err := os.ReadFile("../" + f.path)
		commontest.OK(t, err)
		all.Write(text)
	}
	return all.String()
}

func TestTheEnvironmentPageHasEveryVariable(t *testing.T) {
	source, named := sources(t), map[string]bool{}
	for _, name := range pageVariable.FindAllStringSubmatch(fileOf(t, "../docs/environment.md"), -1) {
		named[name[1]] = true
		if !strings.Contains(source, strings.TrimSuffix(name[1], "*")) && !elsewhere.MatchString(name[1]) {
			t.Errorf("docs/environment.md has %s, which no program reads", name[1])
		}
	}
	onPage := func(name string) bool {
		for n := range named {
			begin, is := strings.CutSuffix(n, "*")
			if n == name || is && strings.HasPrefix(name, begin) || strings.HasSuffix(name, "_") && strings.HasPrefix(n, name) {
				return true
			}
		}
		return false
	}
	read := readVariable.FindAllStringSubmatch(source, -1)
	if len(read) < 50 {
		t.Errorf("the programs read %d variables; is their form another?", len(read))
	}
	for _, name := range read {
		if name := name[1] + name[2] + name[3]; !onPage(name) {
			t.Errorf("docs/environment.md does not have %s", name)
		}
	}
}
