package sessions

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// answered takes a client's response to a question of the server, and ignores one that answers no
// question. The id of a question is "q-" and a UUID if a process waits for the answer; otherwise
// [storage.QuestionID] or [storage.ForwardID] has made it. A client can make up an id of the first
// form, so answered bounds the bytes of all answers.
func (h *Manager) answered(ctx context.Context, c Caller, s storage.Session, box storage.Box, m wire.Message) (storage.Session, error) {
	question, _ := wire.String(m.ID)
	if _, ok := storage.Forwards(question); ok {
		if !c.Server.InPlace {
			return s, nil
		}
		return s, h.backend.Answer(ctx, storage.Answer{Session: s.ID, Question: question, Raw: m.Raw}, box)
	}
	stream, round, suspends := storage.Suspends(question)
	if suspends {
		if asked, err := h.asked(ctx, s, box.ID, stream, round, question); err != nil || !asked {
			return s, err
		}
	} else if !strings.HasPrefix(question, "q-") || len(question) > maxQuestion || box.State == storage.Asleep && !c.Server.Remembers {
		return s, nil
	}
	full := false
	s, err := h.update(ctx, s, func(s *storage.Session) bool {
		now := time.Now()
		if now.Sub(s.Answers.Since) > h.limits.EventAge {
			s.Answers = storage.AnswerCount{Since: now}
		}
		if full = s.Answers.Bytes+len(m.Raw) > maxAnswers; full {
			return false
		}
		s.Answers.Bytes += len(m.Raw)
		return true
	})
	if err == nil && full {
		err = storage.Errorf(storage.TooLarge, "the answers of this session have over %d bytes in a day; open another session", maxAnswers)
	}
	if err != nil {
		return s, err
	}
	if suspends || !c.Server.Remembers {
		return s, h.answer(ctx, s, box, m)
	}
	a, err := h.keep(ctx, s, question, m)
	if err == nil && a.Raw != nil {
		_, err = h.deliverWith(ctx, c, s, box, Delivery{Raw: a.Raw, Wakes: true})
	}
	return s, err
}

// asked reports whether a suspended call of the session asks this question, or may be about to: a
// client may get the first question of a round and answer it before the call's item says so.
func (h *Manager) asked(ctx context.Context, s storage.Session, box storage.BoxID, stream storage.StreamID, round int, question string) (bool, error) {
	it, err := h.store.Item(ctx, box, stream)
	switch {
	case err == nil:
		return it.Address.Session == s.ID && (it.Asks(question) || it.State == storage.Taken && round == it.Round+1), nil
	case !errors.Is(err, storage.NotFound):
		return false, err
	}
	// During its first second, a call that a function executes has no item.
	tail, err := h.store.Tail(ctx, s.ID, stream)
	return err == nil && tail.Last > 0 && !tail.Final && round == 1, storage.IgnoreNotFound(err)
}

// maxQuestion bounds the id of a question, in bytes. The ids that boxes make have 38.
const maxQuestion = 64

// maxAnswers bounds the answers of a session's client within [Limits.EventAge], in bytes.
const maxAnswers = 64 << 20

// answer stores a client's response to a question, then passes it on. It drops a response to a
// process that no longer runs. A suspended call has no process, and takes the response at any time.
func (h *Manager) answer(ctx context.Context, s storage.Session, box storage.Box, m wire.Message) error {
	question, ok := wire.String(m.ID)
	_, _, suspends := storage.Suspends(question)
	if !ok || box.State == storage.Asleep && !suspends {
		return nil
	}
	a, err := h.keep(ctx, s, question, m)
	if err != nil || a.Raw == nil {
		return err
	}
	return h.backend.Answer(ctx, a, box)
}

// keep stores a client's response to a question, and returns the response that counts. That is
// the first one. Raw is nil if it has expired.
func (h *Manager) keep(ctx context.Context, s storage.Session, question string, m wire.Message) (storage.Answer, error) {
	a := storage.Answer{Session: s.ID, Question: question, Raw: m.Raw, Expires: time.Now().Add(h.limits.EventAge)}
	if _, _, suspends := storage.Suspends(question); suspends {
		a.Expires = time.Now().Add(storage.MaxAsk) // the client may answer another question of the round much later
	}
	first, err := h.store.PutAnswer(ctx, a)
	if err != nil {
		return a, err
	}
	if !first {
		// Either the client repeats its answer, or an earlier PutAnswer has written it and then
		// failed. In the second case the box may not have got the answer. So send the stored
		// answer; the box ignores one that it has already.
		kept, err := h.store.Answers(ctx, s.ID, []string{question})
		if err != nil || len(kept) == 0 {
			return storage.Answer{}, err
		}
		a = kept[0]
	}
	return a, nil
}
