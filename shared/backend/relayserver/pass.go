package relayserver

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// passLife is how long a pass is valid. A runner shows a pass when it opens a connection, so that
// strangers are refused without a read of the store. It gets its first pass in [frame.EnvPass] and a
// fresh one with each welcome. The hello, not the pass, says which runner a connection belongs to.
const passLife = 7 * 24 * time.Hour

// Pass returns a pass for the runners of a box. The pass is valid for 7 days.
func (s *Sealer) Pass(box storage.BoxID) string {
	return s.passes.Seal([]byte(strconv.FormatInt(time.Now().Add(passLife).Unix(), 10) + " " + string(box)))
}

// Admit checks the pass in the headers of a request for a connection. It returns
// Unauthenticated if the request has no pass, or if the pass has expired or was not sealed
// with a secret of s.
func (s *Sealer) Admit(h http.Header) error {
	plain, ok := s.passes.Open(h.Get(frame.PassHeader))
	if !ok {
		return storage.Errorf(storage.Unauthenticated, "a connection to the relay has no pass of this deployment")
	}
	until, box, _ := strings.Cut(string(plain), " ")
	expires, err := strconv.ParseInt(until, 10, 64)
	if err != nil || time.Now().Unix() > expires {
		return storage.Errorf(storage.Unauthenticated, "the pass of box %s has expired", box)
	}
	return nil
}
