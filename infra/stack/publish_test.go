package stack_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// SAM's alias gets a new version when the code changes, and with none of its settings when
// only a parameter does: it hashes Ref and Sub, not their values. Functions behind an alias
// would go on with an old image or limit after such a deployment. docs/aws/upgrades.md says
// so, which is why there is no alias. If a later SAM publishes these too, this test fails.
func TestSAMPublishesNoVersionForAParameter(t *testing.T) {
	python := tools(t).python
	raw, err := os.ReadFile(root("template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	const function, parameters = "      FunctionName: !Sub ${AWS::StackName}-http\n", "\nParameters:\n"
	if strings.Count(string(raw), function) != 1 || strings.Count(string(raw), parameters) != 1 {
		t.Fatal("the template is another one than this test changes")
	}
	// Each way takes some seconds of a Python process.
	for settings, changes := range map[string]map[string]bool{
		"AutoPublishAlias: live": {"CodeUri=s3://bucket/other": true, "ImageTag=other": false, "IdleSeconds=30": false},
		"AutoPublishAlias: live\n      AutoPublishAliasAllProperties: true":      {"CodeUri=s3://bucket/other": true, "ImageTag=other": false, "IdleSeconds=30": false},
		"AutoPublishAlias: live\n      AutoPublishCodeSha256: !Ref RevisionTest": {"CodeUri=s3://bucket/other": false, "ImageTag=other": false, "RevisionTest=other": true},
	} {
		t.Run(settings, func(t *testing.T) {
			t.Parallel()
			changed := strings.Replace(string(raw), function, function+"      "+settings+"\n", 1)
			changed = strings.Replace(changed, parameters, parameters+"  RevisionTest: { Type: String, Default: one }\n", 1)
			file := filepath.Join(t.TempDir(), "template.yaml")
			if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
			before := published(t, python, file)
			for change, want := range changes {
				if after := published(t, python, file, change); (after != before) != want {
					t.Errorf("%s: the version is %s, was %s; want another one: %v", change, after, before, want)
				}
			}
		})
	}
}

// published returns the logical name of the one version in the expanded template.
func published(t *testing.T, python, file string, values ...string) string {
	t.Helper()
	var template struct{ Resources map[string]object }
	if err := json.Unmarshal(run(t, python, slices.Concat([]string{filepath.Join("testdata", "expand.py"), file}, values)...), &template); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name, r := range template.Resources {
		if r["Type"] == "AWS::Lambda::Version" {
			names = append(names, name)
		}
	}
	if len(names) != 1 {
		t.Fatalf("the template has the versions %q", names)
	}
	return names[0]
}
