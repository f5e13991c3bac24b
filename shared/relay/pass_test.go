package relay_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// headersWith are those of a $connect event.
func headersWith(t *testing.T, name, pass string) json.RawMessage {
	t.Helper()
	raw, err := json.Marshal(map[string]string{"Host": "relay.example.com", name: pass, "Upgrade": "websocket"})
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func sealerOf(t *testing.T, fill byte) *relay.Sealer {
	t.Helper()
	s, err := relay.NewSealer(bytes.Repeat([]byte{fill}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAPassAdmitsForAWeekWhateverTheCaseOfItsHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sealerOf(t, 1)
		pass := s.Pass("acme/echo")
		time.Sleep(7*24*time.Hour - time.Second)
		for _, name := range []string{"Dormouse-Pass", "dormouse-pass", "DORMOUSE-PASS"} {
			if err := s.Admit(headersWith(t, name, pass)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		time.Sleep(3 * time.Second)
		if err := s.Admit(headersWith(t, "Dormouse-Pass", pass)); !errors.Is(err, session.Unauthenticated) {
			t.Errorf("after a week: %v", err)
		}
	})
}

func TestAStrangerIsNotAdmitted(t *testing.T) {
	s := sealerOf(t, 1)
	ticket := s.Seal(session.Address{Session: "s", Box: "acme/echo"}, 1)
	pass := []byte(s.Pass("acme/echo"))
	pass[len(pass)/2] ^= 1
	for what, headers := range map[string]json.RawMessage{
		"no headers":               nil,
		"null":                     json.RawMessage("null"),
		"no pass":                  headersWith(t, "Dormouse-Other", s.Pass("acme/echo")),
		"an empty pass":            headersWith(t, "Dormouse-Pass", ""),
		"noise":                    headersWith(t, "Dormouse-Pass", "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkw"),
		"a pass that was changed":  headersWith(t, "Dormouse-Pass", string(pass)),
		"a pass of another secret": headersWith(t, "Dormouse-Pass", sealerOf(t, 2).Pass("acme/echo")),
		"a ticket":                 headersWith(t, "Dormouse-Pass", ticket),
		"a list":                   json.RawMessage(`{"Dormouse-Pass":["x"]}`),
	} {
		if err := s.Admit(headers); !errors.Is(err, session.Unauthenticated) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestARunnerConnectsWithTheNewestPass(t *testing.T) {
	var passes []string
	noted := func(c *relay.RunnerConfig) {
		c.Pass = "first"
		dial := c.Dial
		c.Dial = func(ctx context.Context, url string, header http.Header) (relay.Conn, error) {
			passes = append(passes, header.Get("Dormouse-Pass"))
			return dial(ctx, url, header)
		}
	}
	onBench(t, func(b *bench) {
		b.connected()
		b.send(relay.Frame{Type: relay.Welcome, Gen: benchGen, Link: b.expect(relay.Hello).Link, Ticket: "second"})
		b.emptyInbox()
		b.conn.cut()
		b.send(relay.Frame{Type: relay.Welcome, Gen: benchGen, Link: b.reconnected().Link}) // of a host that gives none
		b.nothing()
		b.conn.cut()
		b.reconnected()
		if want := []string{"first", "second", "second"}; !slices.Equal(passes, want) {
			t.Errorf("connected with %q, want %q", passes, want)
		}
	}, noted)
}
