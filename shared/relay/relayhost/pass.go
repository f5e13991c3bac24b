package relayhost

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/relay/frame"
	"github.com/dormouse-mcp/dormouse/shared/session"
)

// A pass is the word with which a runner opens connections. The host seals it for a
// box and an expiry, so that the relay function refuses strangers without a read of the
// store. A runner gets its first pass in [EnvPass] and a fresh one with each welcome.
// A pass proves nothing more: who a connection belongs to is said by its hello.
const passLife = 7 * 24 * time.Hour

// Pass seals a pass for the runners of a box.
func (s *Sealer) Pass(box session.BoxID) string {
	return s.passes.Seal([]byte(strconv.FormatInt(time.Now().Add(passLife).Unix(), 10) + " " + string(box)))
}

// Admit reads the pass from the headers of a request that asks for a connection. It is
// Unauthenticated if there is none, or one that was not sealed with this secret or has
// expired.
func (s *Sealer) Admit(h http.Header) error {
	plain, ok := s.passes.Open(h.Get(frame.PassHeader))
	if !ok {
		return session.Errorf(session.Unauthenticated, "a connection to the relay has no pass of this deployment")
	}
	until, box, _ := strings.Cut(string(plain), " ")
	expires, err := strconv.ParseInt(until, 10, 64)
	if err != nil || time.Now().Unix() > expires {
		return session.Errorf(session.Unauthenticated, "the pass of box %s has expired", box)
	}
	return nil
}
