package relayserver

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// hello decides about a hello, and gives an invited runner its launch, with its secrets. A
// server that is not configured any more has no launch: the runner is fenced, and the
// record stays as it is. Secrets are asked for last, so that a runner that is fenced costs
// no request.
func (h *Handler) hello(ctx context.Context, conn string, f frame.Hello) (frame.Frame, error) {
	first := false
	var launch map[string]string
	var refusal error
	b, v, err := h.change(ctx, f.Box, func(b storage.Box) (storage.Box, decision) {
		first = b.State == storage.Starting
		next, v := hello(b, f, conn, time.Now())
		if v != refuse && f.Invited {
			if launch, refusal = h.launch(b); refusal != nil {
				return b, refuse
			}
		}
		return next, v
	})
	if err != nil {
		return nil, err
	}
	if refusal != nil {
		h.Log.WarnContext(ctx, "an invited runner gets no launch", "box", f.Box, "generation", f.Gen, "error", refusal)
	}
	if v == refuse {
		return frame.Fenced{Link: f.Link}, nil
	}
	if v == ignore {
		return nil, nil
	}
	if err := h.answers(ctx, conn, f); err != nil {
		return nil, err
	}
	if launch != nil && h.Resolve != nil {
		secrets, err := h.Resolve(ctx, b)
		if err != nil {
			return nil, err
		}
		maps.Copy(launch, secrets)
	}
	return frame.Welcome{Gen: b.Gen, Link: f.Link, Ticket: h.Sealer.Pass(b.ID), Retire: !first && h.outdated(b.Server, f.Digest), Launch: launch}, nil
}

// outdated reports whether a runner was started with another definition of its server
// than the one that this function has. hello does not ask about the first hello of a
// runner. While a deployment replaces functions, a newer function than this one may have
// started the runner. If hello asked, the two functions would start and retire runners in
// turn.
func (h *Handler) outdated(server, digest string) bool {
	return h.Definition != nil && digest != "" && h.Definition(server) != digest
}

// answers posts the clients' answers to the questions that a runner says are open. An
// answer that was posted while the runner was between two connections was lost. answers
// skips sessions of other boxes. It looks at no more than a batch's worth of sessions and
// questions, because each may cost a read.
func (h *Handler) answers(ctx context.Context, conn string, f frame.Hello) error {
	room := storage.MaxBatchEvents
	for id, questions := range f.Questions {
		if room -= 1 + len(questions); room < 0 {
			h.Log.WarnContext(ctx, "a runner has more open questions than one hello may ask for", "box", f.Box, "sessions", len(f.Questions))
			return nil
		}
		s, _, err := h.Store.Load(ctx, id, f.Box)
		if errors.Is(err, storage.NotFound) || err == nil && s.Box() != f.Box {
			continue
		}
		if err != nil {
			return err
		}
		answers, err := h.Store.Answers(ctx, id, questions)
		if err != nil {
			return err
		}
		for _, a := range answers {
			if err := h.post(ctx, conn, answerFrame(a)); err != nil {
				return err
			}
		}
	}
	return nil
}
