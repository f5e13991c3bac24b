package stack_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// queries returns what Logs Insights is asked: by the saved queries and by the dashboard,
// without their sources.
func queries(t *testing.T, s stack) map[string]string {
	t.Helper()
	all, s := map[string]string{}, s.nested(t, "Seen")
	for name, r := range s.resources {
		if r["Type"] == "AWS::Logs::QueryDefinition" {
			all[name] = s.value(dig(r, "Properties", "QueryString"))
		}
	}
	var board struct {
		Widgets []struct {
			Properties struct{ Title, Query string }
		}
	}
	commontest.OK(t, json.Unmarshal([]byte(s.value(s.get(t, "Dashboard", "AWS::CloudWatch::Dashboard")["DashboardBody"])), &board))
	for _, w := range board.Widgets {
		if q := w.Properties.Query; q != "" {
			all[w.Properties.Title] = regexp.MustCompile(`^(SOURCE '[^']*' \| )+`).ReplaceAllString(q, "")
		}
	}
	if len(all) < 10 {
		t.Fatalf("there are only %d queries", len(all))
	}
	return all
}

// A query for a field that no line has shows nothing, which looks like a quiet stack.
func TestQueriesAskForFieldsThatAreLogged(t *testing.T) {
	written := written(t)
	words := strings.Fields("msg filter fields stats sort desc asc limit by as and or in like ispresent coalesce pct sum count latest bin h d")
	for name, query := range queries(t, expand(t)) {
		text := regexp.MustCompile(`'[^']*'`).ReplaceAllStringFunc(query, func(value string) string {
			if value = strings.Trim(value, "'"); !written[value] && !strings.HasPrefix(value, "PUT THE") && value != "tools/call" {
				t.Errorf("%s: no line has %q", name, value)
			}
			return ""
		})
		made := map[string]bool{}
		for _, as := range regexp.MustCompile(`\bas (\w+)`).FindAllStringSubmatch(text, -1) {
			made[as[1]] = true
		}
		for _, field := range regexp.MustCompile(`@?\b[a-z][a-z0-9_]*\b`).FindAllString(regexp.MustCompile(`\d+[hd]\b`).ReplaceAllString(text, ""), -1) {
			if !slices.Contains(words, field) && !made[field] && !written[field] && !strings.HasPrefix(field, "@") {
				t.Errorf("%s: no line has the field %s", name, field)
			}
		}
	}
}

// An alarm or a dashboard that nobody asked for costs money and tells nobody anything.
func TestAStackPaysForNoAlarmThatReachesNobody(t *testing.T) {
	s := expand(t)
	count := func(s stack, kinds ...string) (n int) {
		for _, r := range s.resources {
			if c := r["Condition"]; slices.Contains(kinds, fmt.Sprint(r["Type"])) && (c == nil || s.holds(object{"Condition": c})) {
				n++
			}
		}
		return n
	}
	alarms := []string{"AWS::CloudWatch::Alarm", "AWS::Logs::MetricFilter", "AWS::SNS::Topic"}
	for email, want := range map[string]bool{"": false, "me@example.com": true} {
		t.Run(email, func(t *testing.T) {
			s.params["AlarmEmail"] = email
			commontest.EqualIn(t, fmt.Sprintf("AlarmEmail=%s: alarms", email), want, s.holds(object{"Condition": s.resources["Watch"]["Condition"]}))
			commontest.EqualIn(t, fmt.Sprintf("AlarmEmail=%s: alarms are not nested", email), want, count(s, alarms...) > 0)
		})
	}
	if n := count(s.nested(t, "Watch"), alarms...); n < 18 {
		t.Errorf("with an address there are %d resources of alarms", n)
	}
	page, err := os.ReadFile(root("docs/aws/deploy.md"))
	commontest.OK(t, err)
	if n := count(s.nested(t, "Watch"), "AWS::CloudWatch::Alarm"); n != 16 || !strings.Contains(string(page), "`AlarmEmail` makes sixteen;") {
		t.Errorf("with an address there are %d alarms; docs/aws/deploy.md says how many", n)
	}
	for shown, want := range map[string]int{"off": 0, "dashboard": 1, "on": 1} {
		t.Run(shown, func(t *testing.T) {
			s.params["Metrics"] = shown
			commontest.EqualIn(t, fmt.Sprintf("Metrics=%s: dashboards", shown), want, count(s.nested(t, "Seen"), "AWS::CloudWatch::Dashboard"))
		})
	}
}
