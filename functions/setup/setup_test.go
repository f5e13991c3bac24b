package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

// account stands for Systems Manager, Lambda and CloudFormation.
type account struct {
	*httptest.Server
	t         *testing.T
	parameter string            // "": it is not there
	functions map[string]string // the environment of the http function; nil: it is not there
	puts      int
	refuses   string // a request that is answered with AccessDeniedException
	denies    int    // and so are so many requests of any kind
	said      strings.Builder
	answer    struct {
		Status, Reason, PhysicalResourceId string //nolint:revive,staticcheck // as CloudFormation writes them
		NoEcho                             bool
		Data                               map[string]string
	}
}

func newAccount(t *testing.T) *account {
	a := &account{t: t}
	a.Server = httptest.NewServer(a)
	t.Cleanup(a.Close)
	for name, value := range map[string]string{"DORMOUSE_EMULATOR": "", "AWS_ENDPOINT_URL": a.URL, "AWS_REGION": "eu-west-1", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"} {
		t.Setenv(name, value)
	}
	return a
}

func (a *account) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var q struct {
		Name, Type, Value string
		Overwrite         bool
		Names             []string
	}
	if r.URL.Path == "/answer" {
		if r.Method != http.MethodPut || r.Header.Get("Content-Type") != "" {
			a.t.Errorf("CloudFormation gets %s with the content type %q, for which its URL is not signed", r.Method, r.Header.Get("Content-Type"))
		}
		a.answer.Data, a.answer.Reason = nil, ""
		commontest.Check(a.t, json.Unmarshal(body, &a.answer))
		return
	}
	what := r.Header.Get("X-Amz-Target")
	if strings.HasPrefix(r.URL.Path, "/2015-03-31/functions/stack-http/configuration") {
		what = "configuration"
	} else if err := json.Unmarshal(body, &q); err != nil {
		a.t.Error(err)
	}
	if what == a.refuses || a.denies > 0 {
		a.denies--
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprint(w, `{"__type":"AccessDeniedException","Message":"not allowed"}`)
		return
	}
	switch what {
	case "configuration":
		if a.functions == nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"Environment": map[string]any{"Variables": a.functions}})
	case "AmazonSSM.GetParameters":
		if len(q.Names) != 1 || q.Names[0] != "/dormouse.tickets/stack" {
			a.t.Errorf("it reads %q", q.Names)
		}
		got := map[string]any{"InvalidParameters": q.Names}
		if a.parameter != "" {
			got = map[string]any{"Parameters": []any{map[string]string{"Value": a.parameter}}}
		}
		_ = json.NewEncoder(w).Encode(got)
	case "AmazonSSM.PutParameter":
		if q.Name != "/dormouse.tickets/stack" || q.Type != "SecureString" || !q.Overwrite {
			a.t.Errorf("it writes %s as %s, over an old one: %v", q.Name, q.Type, q.Overwrite)
		}
		a.parameter, a.puts = q.Value, a.puts+1
		_, _ = fmt.Fprint(w, "{}")
	default:
		a.t.Errorf("it calls %s %s %s", r.Method, r.URL.Path, what)
	}
}

// deploys handles a request of CloudFormation twice, as a repeated one does, and returns the
// attributes.
func (a *account) deploys(request, from, to string) (current, other string) {
	a.t.Helper()
	properties := func(other string) json.RawMessage {
		return json.RawMessage(`{"ServiceToken":"arn","Name":"/dormouse.tickets/stack","Function":"stack-http","Other":"` + other + `"}`)
	}
	e := event{RequestType: request, ResourceType: "Custom::Tickets", ResponseURL: a.URL + "/answer", RequestID: "r", LogicalResourceID: "Tickets", ResourceProperties: properties(to)}
	if request != "Create" {
		e.PhysicalResourceID, e.OldResourceProperties = "/dormouse.tickets/stack", properties(from)
	}
	log := slog.New(slog.NewTextHandler(&a.said, nil))
	var once string
	for i := range 2 {
		if err := handle(a.t.Context(), log, e); err != nil || a.answer.Status != "SUCCESS" || a.answer.PhysicalResourceId != "/dormouse.tickets/stack" || !a.answer.NoEcho {
			a.t.Fatalf("%s from %q to %q: %+v, %v", request, from, to, a.answer, err)
		}
		if i == 0 {
			once = fmt.Sprint(a.answer.Data)
		} else if twice := fmt.Sprint(a.answer.Data); twice != once {
			a.t.Errorf("%s from %q to %q gives %s, and then %s", request, from, to, once, twice)
		}
	}
	for _, secret := range a.answer.Data {
		if secret != "" && strings.Contains(a.said.String(), secret) {
			a.t.Errorf("the log has a secret: %s", &a.said)
		}
	}
	return a.answer.Data["Current"], a.answer.Data["Other"]
}

func TestANewStackGetsASecretAndKeepsIt(t *testing.T) {
	a := newAccount(t)
	first, other := a.deploys("Create", "", "")
	if len(first) != 64 || other != "" || a.puts != 1 {
		t.Fatalf("%q, %q, %d writes", first, other, a.puts)
	}
	if again, _ := a.deploys("Update", "", ""); again != first || a.puts != 1 {
		t.Errorf("an update changed the secret from %s to %s, with %d writes", first, again, a.puts)
	}
	a.parameter += "\n" // as a backup may have it
	a.deploys("Delete", "", "")
	if again, _ := a.deploys("Create", "", ""); again != first {
		t.Error("a stack of the same name, whose table was left, has another secret")
	}
	if other, _ := newAccount(t).deploys("Create", "", ""); other == first {
		t.Error("two stacks have one secret")
	}
}

// Releases up to 0.1.0-alpha.3 had the secret in Secrets Manager, and its value in the
// environment of functions.
func TestAnUpgradeKeepsTheSecretsThatFunctionsHave(t *testing.T) {
	old, second := strings.Repeat("ab", 32), strings.Repeat("cd", 32)
	for which, want := range map[string]string{"": "", pending: second, previous: second} {
		a := newAccount(t)
		a.functions = map[string]string{"DORMOUSE_SECRET": old, "DORMOUSE_OTHER_SECRET": want}
		if current, other := a.deploys("Create", "", which); current != old || other != want {
			t.Errorf("in the step %q: %s and %q, want %s and %q", which, current, other, old, want)
		}
	}
}

// At each step of a replacement, and of a deployment that is taken back, functions open what
// the functions before and after it seal.
func TestTheSecretIsReplacedInThreeDeploymentsAndEachIsTakenBack(t *testing.T) {
	a := newAccount(t)
	first, _ := a.deploys("Create", "", "")
	_, next := a.deploys("Update", "", pending)
	if next == "" || next == first {
		t.Fatalf("the next secret is %q", next)
	}
	check := func(from, to, current, other string) {
		t.Helper()
		if c, o := a.deploys("Update", from, to); c != current || o != other {
			t.Errorf("from %q to %q: %s and %q, want %s and %q", from, to, c, o, current, other)
		}
	}
	check(pending, previous, next, first)
	check(previous, pending, first, next) // taken back
	check(pending, previous, next, first)
	check(previous, "", next, "")
	check("", previous, next, first) // taken back
	check(previous, "", next, "")
	if current, third := a.deploys("Update", "", pending); current != next || third == "" || third == first || third == next {
		t.Errorf("the second replacement begins with %s and %s", current, third)
	}
	check(pending, "", next, "") // given up
}

func (a *account) creates(ctx context.Context, kind string) error {
	e := event{RequestType: "Create", ResourceType: kind, ResponseURL: a.URL + "/answer", RequestID: "r", ResourceProperties: json.RawMessage(`{"Name":"/dormouse.tickets/stack","Function":"stack-http","Other":""}`)}
	return handle(ctx, slog.New(slog.DiscardHandler), e)
}

func TestWhatCannotBeMadeFailsTheDeployment(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(*account)
		kind string
		want string
	}{
		"no secret":     {func(a *account) { a.parameter = "secret" }, "Custom::Tickets", "holds no secret of 32 bytes"},
		"read refused":  {func(a *account) { a.refuses = "AmazonSSM.GetParameters" }, "Custom::Tickets", "AccessDeniedException: not allowed"},
		"write refused": {func(a *account) { a.refuses = "AmazonSSM.PutParameter" }, "Custom::Tickets", "AccessDeniedException: not allowed"},
		"no function":   {func(a *account) { a.refuses = "configuration" }, "Custom::Tickets", "the secret of the function stack-http cannot be read: status 400"},
		"another kind":  {func(*account) {}, "Custom::Other", "this release knows no resource of the kind Custom::Other"},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAccount(t)
			c.set(a)
			if err := a.creates(t.Context(), c.kind); err != nil || a.answer.Status != "FAILED" || !strings.Contains(a.answer.Reason, c.want) || a.answer.PhysicalResourceId == "" {
				t.Errorf("%+v, %v; want %s", a.answer, err, c.want)
			}
		})
	}
}

// The rights of a role that was just made are not everywhere yet.
func TestRightsThatComeLaterAreWaitedFor(t *testing.T) {
	a := newAccount(t)
	a.denies = 1
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := a.creates(ctx, "Custom::Tickets"); err != nil || a.answer.Status != "SUCCESS" || a.puts != 1 {
		t.Errorf("%+v, %v", a.answer, err)
	}
}
