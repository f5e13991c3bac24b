package stack_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// Spans are sent only if a collector is named. The function that sends them has no secret of
// the stack, and may only write its own log.
func TestTheTracesFunctionHasNoRightAndNoSecret(t *testing.T) {
	s := expand(t)
	function := s.get(t, "TracesFunction", "AWS::Lambda::Function")
	variables, _ := dig(function, "Environment", "Variables").(object)
	for name := range variables {
		if !strings.HasPrefix(name, "OTEL_") {
			t.Errorf("it has %s", name)
		}
	}
	if variables["OTEL_EXPORTER_OTLP_ENDPOINT"] == nil {
		t.Errorf("it has no endpoint: %v", variables)
	}
	for _, r := range s.resources {
		p, _ := r["Properties"].(object)
		if r["Type"] == "AWS::IAM::ManagedPolicy" && slices.Contains(s.list(p["Roles"]), "TracesRole") {
			t.Errorf("it has a shared policy: %v", p)
		}
	}
	for _, p := range s.get(t, "TracesRole", "AWS::IAM::Role")["Policies"].([]any) {
		for _, st := range s.statements(dig(p, "PolicyDocument")) {
			if !slices.Equal(st.actions, []string{"logs:CreateLogStream", "logs:PutLogEvents"}) || !slices.Equal(st.resources, []string{"TracesLogs.Arn"}) {
				t.Errorf("it may do %+v", st)
			}
		}
	}
	wants := map[string]string{"HttpLogs": "request", "SocketLogs": "socket", "RelayLogs": "frame", "BoxLogs": "deliver"}
	for name, r := range s.resources {
		if strings.HasPrefix(name, "Traces") || r["Type"] == "AWS::Logs::SubscriptionFilter" {
			if r["Condition"] != "HasOtlp" {
				t.Errorf("%s exists without a collector", name)
			}
		}
		if r["Type"] != "AWS::Logs::SubscriptionFilter" {
			continue
		}
		p, _ := r["Properties"].(object)
		group, pattern := s.value(p["LogGroupName"]), s.value(p["FilterPattern"])
		if msg := wants[group]; msg == "" || !strings.Contains(pattern, `$.msg = "`+msg+`"`) {
			t.Errorf("%s sends lines of %s that fit %s", name, group, pattern)
		}
		delete(wants, group)
	}
	if len(wants) > 0 {
		t.Errorf("no line of %v is sent", slices.Collect(maps.Keys(wants)))
	}
}
