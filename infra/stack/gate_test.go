//go:build walk

package stack_test

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// Checkov finds nothing in the templates but what has its reason beside the resource.
func TestASecurityTeamsGatePasses(t *testing.T) {
	dir, err := install(t.Context(), "checkov", []string{"checkov==3.2.459"})
	if err != nil {
		t.Fatalf("%v\n%s", err, howToGetSAM)
	}
	args := []string{"--framework", "cloudformation", "--compact", "--skip-download", "--output", "json"}
	for _, file := range append([]string{root("template.yaml")}, others(t)...) {
		args = append(args, "--file", file)
	}
	out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "bin", "checkov"), args...).Output() //nolint:gosec // installed above
	if len(out) == 0 {
		t.Fatal(err)
	}
	type check struct {
		ID       string `json:"check_id"`
		Name     string `json:"check_name"`
		File     string `json:"file_path"`
		Resource string
		Result   struct {
			Reason string `json:"suppress_comment"`
		} `json:"check_result"`
	}
	var report struct {
		Results struct {
			Failed  []check `json:"failed_checks"`
			Skipped []check `json:"skipped_checks"`
			Passed  []check `json:"passed_checks"`
		}
	}
	commontest.OK(t, json.Unmarshal(out, &report))
	for _, c := range report.Results.Failed {
		t.Errorf("%s %s: %s: %s", c.File, c.Resource, c.ID, c.Name)
	}
	for _, c := range report.Results.Skipped {
		if len(strings.TrimSpace(c.Result.Reason)) < 15 {
			t.Errorf("%s %s: %s is skipped without a reason", c.File, c.Resource, c.ID)
		}
	}
	if passed, skipped := len(report.Results.Passed), len(report.Results.Skipped); passed < 100 || skipped == 0 {
		t.Errorf("%d checks passed and %d are skipped, so this test shows nothing", passed, skipped)
	}
}
