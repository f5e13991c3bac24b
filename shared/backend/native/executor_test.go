package native_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/native"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// far is a server that runs elsewhere and resumes the stream of a call. After the first
// step it asks the client a question that is not on that stream. The first function that
// executes the call stops after some steps.
type far struct {
	answered []string // names of questions with their answers
}

const farSteps, farStops = 6, 3

func (f *far) Send(ctx context.Context, r native.Request) (json.RawMessage, *wire.Error) {
	if r.Method != wire.MethodToolsCall {
		return json.RawMessage(`{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{},"logging":{}}}`), nil
	}
	from := 0
	state, later := wire.String(wire.Lookup(r.Params, "requestState"))
	if _, err := fmt.Sscan(state, &from); later && err != nil {
		return nil, &wire.Error{Code: wire.CodeInternal, Message: err.Error()}
	}
	for i := from + 1; i <= farSteps; i++ {
		r.Say(fmt.Appendf(nil, `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"step %d"}}`, i))
		r.Note(fmt.Sprint(i))
		if later {
			continue
		}
		switch i {
		case 1:
			r.Ask(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%q,"method":"roots/list"}`, storage.ForwardID("x-1")))
			time.Sleep(15 * time.Second) // so that the item is renewed
		case farStops:
			<-ctx.Done()
			return nil, &wire.Error{Code: wire.CodeInternal, Message: "stopped"}
		}
	}
	return json.RawMessage(`{"content":[]}`), nil
}

func (f *far) Tell(context.Context, native.Request) {}

func (f *far) Forward(_ context.Context, _ native.Request, name string, response []byte) error {
	f.answered = append(f.answered, name+" "+string(wire.Lookup(response, "result")))
	return nil
}

// A server repeats the events of a call's stream to the function that goes on with the
// call. That function leaves out the repeated events, and nothing else. The log of the
// call also has questions that were not on the stream.
func TestFunctionThatGoesOnLeavesOutWhatIsRepeated(t *testing.T) {
	inTime(t, func(t *testing.T, w *world) {
		elsewhere := &far{}
		w.hosted = native.Hosted{Remote: elsewhere}
		c := w.legacy(everything)
		store := w.open()
		w.open = func() storage.Store { return mortal(store, 5, false) } // the second renewal of the item
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		first := c.do(c.request("POST", toolCall("1", "any", "{}", "")).WithContext(ctx))
		w.open = func() storage.Store { return store }
		commontest.Contains(t, "it came to", `"result"`, c.lives(t, first))
		all := strings.Join(slices.Concat(first.messages(t), c.poll(first.lastID(t)).messages(t)), "\n")
		for i := range farSteps {
			if n := strings.Count(all, fmt.Sprintf(`"step %d"`, i+1)); n != 1 {
				t.Errorf("step %d is there %d times:\n%s", i+1, n, all)
			}
		}
		if n := strings.Count(all, "roots/list"); n != 1 || len(elsewhere.answered) != 1 {
			t.Errorf("the client was asked %d times; the server got %q", n, elsewhere.answered)
		}
		w.settled()
	})
}
