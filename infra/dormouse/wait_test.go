package dormouse

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/operate/api"
)

// waiting runs a test with waits for two servers in virtual time.
func waiting(t *testing.T, width func() int, test func(w *waits, out *commontest.Lines)) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		out := &commontest.Lines{}
		w := &waits{
			out: out, width: width, begun: time.Now(), stop: make(chan struct{}), gone: make(chan struct{}),
			rows: []wait{{name: "memory", phase: "resolving"}, {name: "time", phase: "resolving"}},
		}
		go w.show()
		test(w, out)
	})
}

func TestAWaitHasAFaceWithin200Milliseconds(t *testing.T) {
	waiting(t, func() int { return 80 }, func(w *waits, out *commontest.Lines) {
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if got := out.Take(); !strings.HasSuffix(got, "memory  resolving … 0.1 s\ntime    resolving … 0.1 s") {
			t.Errorf("at 0.2 s: %q", got)
		}
		w.phase("memory", "installing 98 packages")
		time.Sleep(1800 * time.Millisecond)
		synctest.Wait()
		commontest.Contains(t, "at 2 s", "memory  installing 98 packages … 1.9 s", out.Take())
		w.over("time", "2 tools")
		time.Sleep(18 * time.Second)
		synctest.Wait()
		commontest.Contains(t, "at 20 s", "memory  installing 98 packages … 19 s\ntime    2 tools  2.0 s", out.Take())
		w.end(false)
		commontest.EqualIn(t, "at the end", "\r\x1b[1A\x1b[J", out.Take())
	})
}

func TestAWaitInAPipeIsALineForEachPhase(t *testing.T) {
	waiting(t, nil, func(w *waits, out *commontest.Lines) {
		time.Sleep(2 * time.Second)
		w.phase("memory", "installing 98 packages")
		time.Sleep(18 * time.Second)
		w.over("time", "2 tools")
		w.end(true)
		want := "memory: resolving\ntime: resolving\nmemory: installing 98 packages\ntime: resolving … 10 s\nmemory: installing 98 packages … 12 s\ntime: 2 tools, 20 s\n"
		commontest.Equal(t, want, out.Take())
	})
}

func TestAShortWaitShowsNothing(t *testing.T) {
	waiting(t, func() int { return 80 }, func(w *waits, out *commontest.Lines) {
		time.Sleep(unseen / 2)
		w.end(false)
		if got := out.Take(); got != "" {
			t.Errorf("%q", got)
		}
	})
	in, out, err := os.Pipe()
	commontest.OK(t, err)
	(&terminal{err: onTerminal(out)}).waits("starting", "one").end(false)
	_ = out.Close()
	if got, err := io.ReadAll(in); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
}

func TestCallTellsTheTimeThatWasWaited(t *testing.T) {
	t.Parallel()
	begun := noon()
	for name, test := range map[string]struct {
		call         time.Duration
		ready, asked time.Time
		want         string
	}{
		"awake":               {10 * time.Millisecond, time.Time{}, begun.Add(time.Second), "10 ms"},
		"woken by its list":   {10 * time.Millisecond, begun.Add(20 * time.Second), begun.Add(20300 * time.Millisecond), "10 ms, after waking for 20 s"},
		"woken by the call":   {3010 * time.Millisecond, begun.Add(3100 * time.Millisecond), begun.Add(100 * time.Millisecond), "10 ms, after waking for 3.1 s"},
		"ended in the middle": {time.Millisecond, begun.Add(3 * time.Second), begun, "0 ms, after waking for 3.0 s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			commontest.Equal(t, test.want, waited(test.call, test.ready, begun, test.asked))
		})
	}
}

func TestCallChecksItsArgumentsBeforeItSendsThem(t *testing.T) {
	t.Parallel()
	all, err := toolsOf(toolsNamed(`{"name":"add","inputSchema":{"type":"object","properties":{"a":{"type":"number","description":"the first"},"how":{"enum":["fast","slow"]}},"required":["a"]}}`))
	commontest.OK(t, err)
	for line, want := range map[string]string{
		"":             "without a, which it needs; add takes a=number [how=any]",
		"a=1 how=well": "enum",
		"a=1 how=fast": "",
	} {
		t.Run(line, func(t *testing.T) {
			c := &callCommand{Arguments: strings.Fields(line)}
			_, err := c.arguments(&terminal{}, all[0])
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", line, err, want)
			}
		})
	}
	answers := []string{"one", "1"}
	var said bytes.Buffer
	by := &terminal{err: &said, ask: func(question string, _ bool) (answer string, err error) {
		if question != "add needs a, a number (the first): " {
			t.Errorf("it asks %q", question)
		}
		answer, answers = answers[0], answers[1:]
		return answer, nil
	}}
	args, err := (&callCommand{}).arguments(by, all[0])
	if err != nil || string(args["a"]) != "1" || said.String() != "want a number\n" {
		t.Errorf("%v, %v, %q", args, err, said.String())
	}
}

// toolsNamed returns a list of tools.
func toolsNamed(raws ...string) api.Tools {
	list := api.Tools{Server: "one"}
	for _, raw := range raws {
		list.Tools = append(list.Tools, json.RawMessage(raw))
	}
	return list
}
