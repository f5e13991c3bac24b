package box

import (
	"strconv"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

func TestNumbersInAProcessAreNotToBeGuessed(t *testing.T) {
	for scope, most := range map[Scope]int64{ScopeSession: 1<<31 - 1, ScopePrincipal: 1<<53 - 1, ScopeShared: 1<<53 - 1} {
		draw := numbers(scope)
		seen := map[int64]bool{}
		var high, odd int
		for range 1000 {
			n := draw()
			if n < 1 || n > most {
				t.Fatalf("scope %s: drew %d, want 1 to %d", scope, n, most)
			}
			seen[n] = true
			if n > most/2 {
				high++
			}
			odd += int(n % 2)
		}
		// A correct generator fails here once in more than a billion runs.
		if len(seen) < 990 || high < 400 || high > 600 || odd < 400 || odd > 600 {
			t.Errorf("scope %s: of 1000 numbers %d are different, %d high, %d odd", scope, len(seen), high, odd)
		}
	}
}

// A request that was sent again has a second number, which the process answers.
func TestNumbersOfOpenRequestsAreDifferent(t *testing.T) {
	k := newTalk(t)
	draws := []int64{7, 7, 7, 8, 8, 9, 7, 10}
	k.draw = func() int64 {
		n := draws[0]
		draws = draws[1:]
		return n
	}
	own := k.own()
	first := k.request(&stream{id: "a", open: 1}, `{"jsonrpc":"2.0","id":1,"method":"m"}`)
	second := k.request(&stream{id: "b", open: 1}, `{"jsonrpc":"2.0","id":2,"method":"m"}`)
	again := k.renumber(first)
	commontest.SameIn(t, "numbers", []int64{7, 8, 9, 10}, []int64{own, first.number, second.number, again})
	answer := `{"jsonrpc":"2.0","id":` + strconv.FormatInt(again, 10) + `,"result":{}}`
	if !k.said(answer) || k.said(answer) {
		t.Error("the answer is not taken once")
	}
	k.wantOut(`a!: {"jsonrpc":"2.0","id":1,"result":{}}`)
}

func TestServerSaysNothingThatIsReadInTwoWays(t *testing.T) {
	r := newRig(t, "normal")
	for name, test := range map[string]struct{ says, fails string }{
		"a response under two ids":  {`{"jsonrpc":"2.0","id":$ID,"ID":99,"result":{}}`, `member "ID" is refused`},
		"the second id comes first": {`{"jsonrpc":"2.0","ID":99,"id":$ID,"result":{}}`, `member "ID" is refused`},
		"two results":               {`{"jsonrpc":"2.0","id":$ID,"result":{},"RESULT":{}}`, `member "RESULT" is refused`},
	} {
		t.Run(name, func(t *testing.T) {
			stream := r.call(strconv.Quote(name), "say", strconv.Quote(test.says+"\n"))
			r.fails(stream, "", test.fails)
		})
	}
	stream := r.call("1", "say", strconv.Quote(`{"jsonrpc":"2.0","id":$ID,"result":{"a":1},"session":"other","params":{"_meta":1}}`+"\n"))
	commontest.EqualIn(t, "the client is told", `{"jsonrpc":"2.0","id":1,"result":{"a":1}}`, string(r.final(t, stream).Raw))
}

func TestClientTellsProgressOfItsOwnQuestionsOnly(t *testing.T) {
	c := newCrowd(t, ScopeShared)
	const init = `{"sampling":{}}`
	asks := `{"jsonrpc":"2.0","id":0,"method":"sampling/createMessage","params":{"_meta":{"progressToken":0}}}`
	call := c.callAs("ann/1", "1", "say", strconv.Quote(asks+"\n"), withInit(init))
	c.hear("ann/1", call) // the question
	for _, session := range []string{"mallory/1", "ann/1"} {
		c.as(session, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":0,"progress":1,"message":"`+session+`"}}`)
	}
	c.as("mallory/1", `{"jsonrpc":"2.0","method":"notifications/x","params":{"_meta":{"progressToken":2}}}`)
	var said []string
	for _, line := range c.lines("ann/1") {
		switch method, _ := wire.String(wire.Lookup(line, "method")); method {
		case wire.NotifyProgress:
			message, _ := wire.String(wire.Lookup(line, "params", "message"))
			said = append(said, message)
		case "notifications/x":
			if token := string(wire.Lookup(line, "params", "_meta", "progressToken")); token == "2" {
				t.Error("a notification has the progress token of a call of another client")
			}
		}
	}
	if len(said) != 1 || said[0] != "ann/1" {
		t.Errorf("progress of the question was told by %q, want ann/1 alone", said)
	}
}
