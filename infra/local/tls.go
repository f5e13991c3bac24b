package local

import (
	"context"
	"net"

	"github.com/dormouse-mcp/dormouse/infra/local/certs"
	"github.com/dormouse-mcp/dormouse/infra/local/journal"
)

// certificatesFolder is the folder in the data folder with the certificates that a certificate
// authority has issued, and their keys.
const certificatesFolder = "certificates"

// secured has the certificates of a machine's endpoints. It is nil for a machine without TLS.
type secured struct {
	m *machine
	*certs.Certs
}

// secure sets the certificates of the endpoints. It returns nil if the configuration names none.
// Call it before the endpoints are opened.
func secure(m *machine) (s *secured, err error) {
	if !m.cfg.TLS.Secure() {
		return nil, nil
	}
	s = &secured{m: m}
	failed := func(err error) { s.missing(err, "clients get the certificate before it, until that one expires") }
	if s.Certs, err = certs.Open(m.cfg.TLS, m.folder.File(certificatesFolder), failed); err == nil {
		m.public.tls, m.public.shows = s.Config(), s.Current
	}
	return s, err
}

// start opens the address for plain HTTP, if it can, and gets the first certificate from the
// authority. Call it when the endpoints are served, because the authority calls them to check the
// domain.
func (s *secured) start(ctx context.Context) {
	if s == nil {
		return
	}
	if s.Redirect != "" {
		var lc net.ListenConfig
		if plain, err := lc.Listen(ctx, "tcp", s.Redirect); err == nil {
			s.m.serve(plain, s.Plain(s.m.public.address(0)), nil)
		} else { // certificates do not need this port: the authority can also check the domain on the port of the endpoint
			s.m.log.Warn("callers over HTTP are not sent to HTTPS", "error", err)
		}
	}
	go func() {
		if err := s.Prepare(); err != nil && ctx.Err() == nil {
			s.missing(err, s.Domain+" must lead to this machine, and the authority must reach port 443 or 80 of it; a connection a minute later tries again")
		}
	}()
}

// missing reports to the log and the journal that there is no certificate, and what the operator
// can do.
func (s *secured) missing(err error, hint string) {
	s.m.log.Error("no certificate", "error", err)
	s.m.recorder.Record(journal.Event{Kind: journal.CertificateFailed, Reason: "no certificate: " + err.Error(), Hint: hint})
}
