package relayserver_test

import (
	"bytes"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// headersWith returns the headers of a request that asks for a connection.
func headersWith(name, pass string) http.Header {
	h := http.Header{"Host": {"relay.example.com"}, "Upgrade": {"websocket"}}
	h.Set(name, pass)
	return h
}

func sealerOf(t *testing.T, fill byte) *relayserver.Sealer {
	t.Helper()
	s, err := relayserver.NewSealer(bytes.Repeat([]byte{fill}, 32))
	commontest.OK(t, err)
	return s
}

func TestAPassAdmitsForAWeekWhateverTheCaseOfItsHeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := sealerOf(t, 1)
		pass := s.Pass("acme/echo")
		time.Sleep(7*24*time.Hour - time.Second)
		for _, name := range []string{"Dormouse-Pass", "dormouse-pass", "DORMOUSE-PASS"} {
			commontest.CheckIn(t, name, s.Admit(headersWith(name, pass)))
		}
		time.Sleep(3 * time.Second)
		if err := s.Admit(headersWith("Dormouse-Pass", pass)); !errors.Is(err, storage.Unauthenticated) {
			t.Errorf("after a week: %v", err)
		}
	})
}

func TestAStrangerIsNotAdmitted(t *testing.T) {
	s := sealerOf(t, 1)
	ticket := s.Seal(storage.Address{Session: "s", Box: "acme/echo"}, 1)
	pass := []byte(s.Pass("acme/echo"))
	pass[len(pass)/2] ^= 1
	for what, headers := range map[string]http.Header{
		"no headers":               nil,
		"no pass":                  headersWith("Dormouse-Other", s.Pass("acme/echo")),
		"an empty pass":            headersWith("Dormouse-Pass", ""),
		"noise":                    headersWith("Dormouse-Pass", "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkw"),
		"a pass that was changed":  headersWith("Dormouse-Pass", string(pass)),
		"a pass of another secret": headersWith("Dormouse-Pass", sealerOf(t, 2).Pass("acme/echo")),
		"a ticket":                 headersWith("Dormouse-Pass", ticket),
		"a pass behind noise":      {"Dormouse-Pass": {"x", s.Pass("acme/echo")}},
	} {
		if err := s.Admit(headers); !errors.Is(err, storage.Unauthenticated) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
