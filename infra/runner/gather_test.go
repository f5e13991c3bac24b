package runner

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// written counts the writes of a log, and keeps what they wrote.
type written struct {
	mu    sync.Mutex
	count int
	text  strings.Builder
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count++
	return w.text.Write(p)
}

func (w *written) times() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// messages are those of the lines.
func (w *written) messages() string {
	var all []string
	for line := range strings.Lines(w.String()) {
		_, rest, _ := strings.Cut(line, `"msg":"`)
		message, _, _ := strings.Cut(rest, `"`)
		all = append(all, message)
	}
	return strings.Join(all, " ")
}

func TestLinesOfTheLogAreWrittenTogetherAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out written
		log := slog.New(newGathered(&out))
		log.Info("one")
		log.With("k", "v").WithGroup("g").Info("two", "a", 1)
		time.Sleep(gatherFor - time.Millisecond)
		synctest.Wait()
		if out.times() != 0 {
			t.Error("a line was written at once")
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if got := out.messages(); out.times() != 1 || got != "one two" {
			t.Errorf("%d writes of %q", out.times(), got)
		}
		if !strings.Contains(out.String(), `"k":"v","g":{"a":1}`) {
			t.Errorf("attributes are lost: %s", out.String())
		}
		log.Info("three")
		time.Sleep(gatherFor)
		synctest.Wait()
		if got := out.messages(); got != "one two three" {
			t.Errorf("later there was %q", got)
		}
	})
}

func TestAWarningIsWrittenAtOnceBehindWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out written
		log := slog.New(newGathered(&out))
		log.Info("one")
		log.With("k", "v").Warn("two")
		if got := out.messages(); got != "one two" {
			t.Errorf("%q was written", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if out.times() != 1 {
			t.Errorf("%d writes", out.times())
		}
	})
}

func TestManyLinesDoNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out written
		log := slog.New(newGathered(&out))
		for range 2 * maxGathered / 50 {
			log.Info("line")
		}
		if out.times() == 0 || out.times() > 5 {
			t.Errorf("%d writes", out.times())
		}
	})
}
