package relayserver

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// hello answers a hello. A runner with f.Invited was started without the environment of its server,
// and gets it now, with the secrets. If the server is not configured any more, hello answers an
// invited runner with Fenced and leaves the record as it is.
func (r runner) hello(ctx context.Context, f frame.Hello) (frame.Frame, error) {
	first := false
	var launch map[string]string
	var refusal error
	b, v, err := r.change(ctx, func(b storage.Box) (storage.Box, decision) {
		first = b.State == storage.Starting
		next, v := hello(b, f, r.conn, time.Now())
		if v != refuse && f.Invited {
			if launch, refusal = r.h.launch(b); refusal != nil {
				return b, refuse
			}
		}
		return next, v
	})
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		r.h.Log.WarnContext(ctx, "an invited runner gets no launch", "box", f.Box, "generation", f.Gen, "error", refusal)
	}
	if v == refuse {
		return frame.Fenced{Link: f.Link}, nil
	}
	if v == ignore {
		return nil, nil
	}
	if err := r.answers(ctx, f); err != nil {
		return nil, err
	}
	if launch != nil && r.h.Resolve != nil {
		secrets, err := r.h.Resolve(ctx, b)
		if err != nil {
			return nil, err
		}
		maps.Copy(launch, secrets)
	}
	return frame.Welcome{Gen: b.Gen, Link: f.Link, Ticket: r.h.Sealer.Pass(b.ID), Retire: !first && r.h.outdated(b.Server, f.Digest), Launch: launch}, nil
}

// outdated reports whether a runner was started with another definition of its server than this
// instance has. hello does not call it for the first hello of a runner: a newer instance may
// have started the runner.
func (h *Handler) outdated(server, digest string) bool {
	return h.Definition != nil && digest != "" && h.Definition(server) != digest
}

// answers posts again the answers to the questions that the runner still has open: it may have lost
// them between two connections. It skips sessions of other boxes. It stops after
// storage.MaxBatchEvents sessions and questions, because each may cost a read.
func (r runner) answers(ctx context.Context, f frame.Hello) error {
	room := storage.MaxBatchEvents
	for id, questions := range f.Questions {
		if room -= 1 + len(questions); room < 0 {
			r.h.Log.WarnContext(ctx, "a runner has more open questions than one hello may ask for", "box", f.Box, "sessions", len(f.Questions))
			return nil
		}
		s, _, err := r.h.Store.Load(ctx, id, f.Box)
		if errors.Is(err, storage.NotFound) || err == nil && s.Box() != f.Box {
			continue
		}
		if err != nil {
			return err
		}
		answers, err := r.h.Store.Answers(ctx, id, questions)
		if err != nil {
			return err
		}
		for _, a := range answers {
			if err := r.h.post(ctx, r.conn, answerFrame(a)); err != nil {
				return err
			}
		}
	}
	return nil
}
