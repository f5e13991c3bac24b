package stack_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// elsewhere returns the variables that functions read and the template does not set, with
// the reasons.
func elsewhere() map[string]string {
	return map[string]string{
		"DORMOUSE_EMULATOR": "one machine",
		"DORMOUSE_IDLE":     "one machine; deployed, the default counts, and what the servers file has",
	}
}

// read lists the variables that functions read: the constants below functions/ that
// begin with Env.
func read(t *testing.T) []string {
	t.Helper()
	var names []string
	for name, f := range sources(t) {
		if !strings.HasPrefix(name, "functions/") {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, ident := range spec.Names {
				if !strings.HasPrefix(ident.Name, "Env") || i >= len(spec.Values) {
					continue
				}
				if lit, ok := spec.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
					value, err := strconv.Unquote(lit.Value)
					commontest.OK(t, err)
					names = append(names, value)
				}
			}
			return true
		})
	}
	return names
}

func TestFunctionsReadWhatTheTemplateSetsAndTheTemplateSetsWhatTheyRead(t *testing.T) {
	s, known := expand(t), read(t)
	if len(known) < 10 {
		t.Fatalf("functions read %v only, so this test shows nothing", known)
	}
	for _, f := range []string{"Http", "Socket", "Relay", "Sweep", "Oauth", "Console"} {
		set, _ := dig(s.get(t, f+"Function", "AWS::Lambda::Function"), "Environment", "Variables").(object)
		for _, name := range slices.Sorted(maps.Keys(set)) {
			if strings.HasPrefix(name, "DORMOUSE_") && !slices.Contains(known, name) {
				t.Errorf("%s has %s, which nobody reads", f, name)
			}
			if why, ok := elsewhere()[name]; ok {
				t.Errorf("%s has %s, which is not for AWS: %s", f, name, why)
			}
		}
		for _, name := range known {
			if f != "Console" && (name == "DORMOUSE_DASHBOARD" || name == "DORMOUSE_CALL_LOGS") {
				continue // only the console is given these
			}
			if _, ok := set[name]; !ok && elsewhere()[name] == "" {
				t.Errorf("%s reads %s, which the template does not set", f, name)
			}
		}
	}
	for name := range elsewhere() {
		if !slices.Contains(known, name) {
			t.Errorf("nobody reads %s any more", name)
		}
	}
}

// Whoever may read a function's settings reads its secrets, and so does its program: a
// function has those that it uses.
func TestAFunctionHasNoSecretThatItDoesNotUse(t *testing.T) {
	s := expandAs(t, root("template.yaml"), "Access=idp", "ClientSecret=idp", "ConnectSecrets=connect")
	s.params["Access"], s.params["ClientSecret"], s.params["ConnectSecrets"] = "idp", "idp", "connect"
	// Callers show tokens to these, and these act for callers at third parties.
	takes, acts := "Http Socket Oauth Console", "Http Socket Relay Oauth"
	for _, f := range []string{"Http", "Socket", "Relay", "Sweep", "Oauth", "Console", "Setup"} {
		set, _ := dig(s.get(t, f+"Function", "AWS::Lambda::Function"), "Environment", "Variables").(object)
		for name, who := range map[string]string{"DORMOUSE_CLIENT_SECRET": takes, "DORMOUSE_CONNECT_SECRETS": acts, "DORMOUSE_SECRET": "Http Socket Relay Sweep Oauth Console"} {
			value := s.value(set[name])
			has := strings.HasPrefix(value, "{{resolve:") || strings.HasPrefix(value, "Tickets.")
			commontest.EqualIn(t, fmt.Sprintf("%s of %s is %q", name, f, value), slices.Contains(strings.Fields(who), f), has)
		}
		if access := s.value(set["DORMOUSE_ACCESS"]); f != "Setup" && (access == "idp") != slices.Contains(strings.Fields(takes), f) {
			t.Errorf("%s takes callers by %s", f, access)
		}
	}
}
