package stack_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// versioned returns the functions that are reached through an alias.
func versioned() []string { return []string{"Http", "Socket", "Relay", "Sweep", "Oauth", "Console"} }

// SAM publishes a new version of a function if the template changes, but not if only the
// value of a parameter does. For a parameter, CloudFormation replaces the version,
// because the description has changed: it has the version number of Settings, which holds
// the parameters of functions.
func TestEveryChangeOfAFunctionIsPublished(t *testing.T) {
	s := expand(t)
	raw, err := os.ReadFile(root("template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const timeout = "      Timeout: 900\n      ReservedConcurrentExecutions"
	if strings.Count(string(raw), timeout) != 1 {
		t.Fatal("the template is another one than this test changes")
	}
	file := filepath.Join(t.TempDir(), "template.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(string(raw), timeout, strings.Replace(timeout, "900", "800", 1), 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	before := version(t, s, "Http")
	for change, after := range map[string]stack{"code": expandAs(t, root("template.yaml"), "CodeUri=s3://bucket/other"), "timeout": expandAs(t, file)} {
		if version(t, after, "Http") == before {
			t.Errorf("another %s has the version of the one before", change)
		}
	}
	if version(t, expandAs(t, root("template.yaml"), "IdleSeconds=30"), "Http") != before {
		t.Error("SAM publishes a version for a parameter: Settings is not needed any more")
	}
	settings := s.get(t, "Settings", "AWS::AppConfig::HostedConfigurationVersion")
	used := map[string]bool{}
	for _, name := range versioned() {
		p := maps.Clone(s.get(t, name+"Function", "AWS::Lambda::Function"))
		if of := s.value(s.get(t, version(t, s, name), "AWS::Lambda::Version")["Description"]); of != "settings Settings.VersionNumber" {
			t.Errorf("the version of %s is described as %q, so no parameter replaces it", name, of)
		}
		if got := s.value(dig(p, "Environment", "Variables", "SETTINGS")); got != "Settings.VersionNumber" {
			t.Errorf("%s has the settings %q: Lambda publishes no version of what has not changed", name, got)
		}
		delete(p, "ReservedConcurrentExecutions") // of all versions together
		s.uses(p, used)
	}
	want := slices.Sorted(maps.Keys(used))
	if len(want) < 20 {
		t.Fatalf("functions use %v only, so this test shows nothing", want)
	}
	listed := map[string]bool{}
	s.uses(settings["Content"], listed)
	if d := cmp.Diff(want, slices.Sorted(maps.Keys(listed))); d != "" {
		t.Errorf("parameters of functions (-) and in Settings (+):\n%s", d)
	}
}

// version returns the logical name of the version that the alias of a function names.
func version(t *testing.T, s stack, function string) string {
	t.Helper()
	name, _, _ := strings.Cut(s.value(s.get(t, function+"FunctionAliaslive", "AWS::Lambda::Alias")["FunctionVersion"]), ".")
	return name
}

// uses adds the parameters on which a value depends.
func (s stack) uses(v any, found map[string]bool) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			s.uses(one, found)
		}
	case object:
		for function, arg := range v {
			switch function {
			case "Ref":
				s.used(fmt.Sprint(arg), found)
			case "Condition":
				s.uses(s.conditions[fmt.Sprint(arg)], found)
			case "Fn::If":
				list := arg.([]any)
				s.uses(s.conditions[fmt.Sprint(list[0])], found)
				s.uses(list[1:], found)
			default:
				s.uses(arg, found)
			}
		}
	case string: // of Fn::Sub
		for _, name := range regexp.MustCompile(`\$\{([A-Za-z]+)\}`).FindAllStringSubmatch(v, -1) {
			s.used(name[1], found)
		}
	}
}

func (s stack) used(name string, found map[string]bool) {
	if _, parameter := s.params[name]; parameter && !strings.HasPrefix(name, "AWS::") {
		found[name] = true
	}
}
