package sessions

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/core/wire"
)

// answered takes a client's response to a question, which is a request of the server to the client. The
// id of a question is "q-" and a UUID if a process waits for the answer, and else comes from
// [storage.QuestionID] or [storage.ForwardID]. answered ignores a response with an id of another form. A
// client can make up a "q-" id, so answered bounds the bytes of all answers.
func (u *use) answered(ctx context.Context, m wire.Message) error {
	question, _ := wire.String(m.ID)
	if _, ok := storage.Forwards(question); ok {
		if !u.caller.Server.InPlace {
			return nil
		}
		return u.manager.backend.Answer(ctx, storage.Answer{Session: u.session.ID, Question: question, Raw: m.Raw}, u.box)
	}
	stream, round, suspends := storage.Suspends(question)
	if suspends {
		if asked, err := u.asked(ctx, stream, round, question); err != nil || !asked {
			return err
		}
	} else if !strings.HasPrefix(question, "q-") || len(question) > maxQuestion || u.box.State == storage.Asleep && !u.caller.Server.Remembers {
		return nil
	}
	full := false
	err := u.update(ctx, func(s *storage.Session) bool {
		now := time.Now()
		if now.Sub(s.Answers.Since) > u.manager.limits.EventAge {
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
		return err
	}
	if suspends || !u.caller.Server.Remembers {
		return u.answer(ctx, m)
	}
	a, err := u.keep(ctx, question, m)
	if err == nil && a.Raw != nil {
		_, err = u.deliver(ctx, Delivery{Raw: a.Raw, Wakes: true})
	}
	return err
}

// asked reports whether a suspended call of the session waits for the answer to this question, or
// soon will. A client may answer a question before the call's item is marked as suspended.
func (u *use) asked(ctx context.Context, stream storage.StreamID, round int, question string) (bool, error) {
	it, err := u.manager.store.Item(ctx, u.box.ID, stream)
	switch {
	case err == nil:
		return it.Address.Session == u.session.ID && (it.Asks(question) || it.State == storage.Taken && round == it.Round+1), nil
	case !errors.Is(err, storage.NotFound):
		return false, err
	}
	// A call that an instance executes without a box gets its storage.Item only after a second. Before
	// that, its questions are of the first round.
	tail, err := u.manager.store.Tail(ctx, u.session.ID, stream)
	return err == nil && tail.Last > 0 && !tail.Final && round == 1, storage.IgnoreNotFound(err)
}

// maxQuestion bounds the id of a question, in bytes. Boxes make ids of 38 bytes.
const maxQuestion = 64

// maxAnswers bounds the answers of a session's client within [Limits.EventAge], in bytes.
const maxAnswers = 64 << 20

// answer stores a client's response to a question, then passes it on. It drops the response if the process
// that asked no longer runs, unless a suspended call waits for it.
func (u *use) answer(ctx context.Context, m wire.Message) error {
	question, ok := wire.String(m.ID)
	_, _, suspends := storage.Suspends(question)
	if !ok || u.box.State == storage.Asleep && !suspends {
		return nil
	}
	a, err := u.keep(ctx, question, m)
	if err != nil || a.Raw == nil {
		return err
	}
	return u.manager.backend.Answer(ctx, a, u.box)
}

// keep stores a client's response to a question. It returns the first response that the question
// has got, because only that one counts. Raw is nil if the first response has expired.
func (u *use) keep(ctx context.Context, question string, m wire.Message) (storage.Answer, error) {
	a := storage.Answer{Session: u.session.ID, Question: question, Raw: m.Raw, Expires: time.Now().Add(u.manager.limits.EventAge)}
	if _, _, suspends := storage.Suspends(question); suspends {
		a.Expires = time.Now().Add(storage.MaxAsk) // the call waits for the answers to all its questions, and another one may come much later
	}
	first, err := u.manager.store.PutAnswer(ctx, a)
	if err != nil {
		return a, err
	}
	if !first {
		// The client repeats its answer, or an earlier PutAnswer failed after its write. Send
		// the stored answer, because the box may lack it; a box ignores an answer that it has
		// already.
		kept, err := u.manager.store.Answers(ctx, u.session.ID, []string{question})
		if err != nil || len(kept) == 0 {
			return storage.Answer{}, err
		}
		a = kept[0]
	}
	return a, nil
}
