package relay_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/dormouse-mcp/dormouse/shared/backend/relayserver"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/frametest"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
	"github.com/dormouse-mcp/dormouse/shared/mcp/sessions"
	"github.com/dormouse-mcp/dormouse/shared/store/storagetest"
)

// chunkHost is a relay function with a store, in which the box b/s is awake.
type chunkHost struct {
	t       testing.TB
	memory  *storagetest.Memory
	handler *relayserver.Handler
	ticket  func(stream storage.StreamID) string
	rng     *rand.Rand
	sent    int64
}

func newChunkHost(t testing.TB, seed uint64) *chunkHost {
	t.Helper()
	sealer := newSealer(t)
	h := &chunkHost{t: t, memory: storagetest.NewMemory(), rng: rand.New(rand.NewPCG(seed, 0))}
	h.handler = relayserver.NewHandler(relayserver.Config{Store: h.memory, Sealer: sealer})
	h.ticket = func(stream storage.StreamID) string {
		return sealer.Seal(storage.Address{Session: "s1", Stream: stream, Box: "b/s"}, 1)
	}
	commontest.OK(t, h.memory.SaveBox(t.Context(), storage.Box{ID: "b/s", State: storage.Awake, Gen: 1, Runner: "r", Conn: "c", Link: 1}))
	return h
}

// frame returns an events frame with one event, and its stream.
func (h *chunkHost) frame(raw []byte) (frametest.Frame, storage.StreamID) {
	h.sent++
	stream := storage.StreamID(fmt.Sprintf("stream%d", h.sent))
	return frametest.Frame{
		Type: frame.TypeEvents, Box: "b/s", Gen: 1, Seq: h.sent, Session: "s1", Payload: raw,
		Items: []frame.EventItem{{Ticket: h.ticket(stream), Stream: stream, First: 1, Final: true, Lens: []int{len(raw)}}},
	}, stream
}

// handle gives the relay function a message and checks the type of the answer.
func (h *chunkHost) handle(message []byte, want frame.Type) {
	h.t.Helper()
	if len(message) > frame.MaxFrame || !utf8.Valid(message) {
		h.t.Fatalf("a message of %d bytes, UTF-8 %v", len(message), utf8.Valid(message))
	}
	reply, err := h.handler.Frame(h.t.Context(), "c", message)
	commontest.OK(h.t, err)
	if f, err := frametest.Decode(reply); err != nil || f.Type != want {
		h.t.Fatalf("answered with %.100q, want %s", reply, want)
	}
}

// parts returns the messages of some frames in an order in which a network may bring them:
// shuffled, each once or twice, the parts of several frames mixed.
func (h *chunkHost) parts(frames ...[][]byte) [][]byte {
	var all [][]byte
	for _, parts := range frames {
		for _, p := range parts {
			for range 1 + h.rng.IntN(2) {
				all = append(all, p)
			}
		}
	}
	h.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// upward sends events to the host as a runner does, all at once. It checks that they are
// in the log byte for byte.
func (h *chunkHost) upward(raws ...[]byte) {
	h.t.Helper()
	var frames, wholes [][]byte
	var long [][][]byte
	var streams []storage.StreamID
	for n, raw := range raws {
		f, stream := h.frame(raw)
		streams = append(streams, stream)
		data := frametest.Encode(f)
		if len(data) <= frame.MaxFrame {
			frames = append(frames, data)
			continue
		}
		name := fmt.Sprintf("%d.%s", n, stream)
		parts := frame.Pieces(data)
		for i, piece := range parts {
			parts[i] = frame.Encode(frame.Part{Sender: frame.Sender{Box: "b/s", Gen: 1, Runner: "r"}, Frame: name, N: int64(i), Of: len(parts), Payload: piece})
		}
		long = append(long, parts)
		wholes = append(wholes, frametest.Encode(frametest.Frame{Type: frame.TypeWhole, Box: "b/s", Gen: 1, Runner: "r", Frame: name, Of: len(parts)}))
	}
	for _, p := range h.parts(long...) {
		h.handle(p, frame.TypePartOK)
	}
	for _, message := range h.parts(append(frames, wholes...)) {
		h.handle(message, frame.TypeAck)
	}
	for n, stream := range streams {
		page, err := h.memory.Read(h.t.Context(), "s1", stream, 0, 10)
		if err != nil || len(page.Events) != 1 || !bytes.Equal(page.Events[0].Raw, raws[n]) {
			h.t.Errorf("event of %d bytes: the log has %d events, or other bytes: %v", len(raws[n]), len(page.Events), err)
		}
	}
}

func TestCharactersOfEveryLengthStraddleEveryEdge(t *testing.T) {
	h := newChunkHost(t, 1)
	for _, char := range []string{"x", "é", "€", "😀"} {
		for shift := range len(char) {
			h.upward([]byte(strings.Repeat("x", shift) + strings.Repeat(char, 330_000/len(char))))
		}
	}
}

func TestMessagesOfSizesAtTheLimits(t *testing.T) {
	h := newChunkHost(t, 2)
	f, _ := h.frame(nil)
	head := len(frametest.Encode(f)) + len("\n") + 5 // lens has six digits, not one
	sizes := []int{1, 2, 3, 4, 5, frame.MaxFrame - head - 1, frame.MaxFrame - head, frame.MaxFrame - head + 1, frame.MaxFrame - 1, frame.MaxFrame, frame.MaxFrame + 1}
	for d := -4; d <= 4; d++ {
		sizes = append(sizes, frame.MaxPiece+d, 2*frame.MaxPiece+d, 2*frame.MaxPiece-head+d)
	}
	for _, size := range sizes {
		h.upward(bytes.Repeat([]byte("x"), size))
	}
}

func TestMessageOfSixteenMebibytesGoesToTheHost(t *testing.T) {
	newChunkHost(t, 3).upward([]byte(strings.Repeat("aé€😀x\t", frame.MaxMessage/12) + strings.Repeat("y", frame.MaxMessage%12)))
}

func TestLongMessagesGoSideBySide(t *testing.T) {
	for seed := range uint64(12) {
		h := newChunkHost(t, seed)
		var raws [][]byte
		for range 2 + h.rng.IntN(4) {
			raws = append(raws, randomText(h.rng, 1+h.rng.IntN(500_000)))
		}
		h.upward(raws...)
	}
}

// randomText returns valid UTF-8 of about size bytes, with characters of all lengths.
func randomText(rng *rand.Rand, size int) []byte {
	b := make([]byte, 0, size+4)
	for len(b) < size {
		r := []rune{'a', '\t', 0, '"', 'é', '€', '\u2028', '😀', utf8.MaxRune}[rng.IntN(9)]
		for range 1 + rng.IntN(9) {
			b = utf8.AppendRune(b, r)
		}
	}
	return b
}

func TestMessageOverSixteenMebibytesIsRefusedByTheHost(t *testing.T) {
	backend := relayserver.NewBackend(relayserver.Config{Store: storagetest.NewMemory()})
	d := sessions.Delivery{Raw: make([]byte, frame.MaxMessage+1)}
	_, err := backend.Deliver(t.Context(), d, storage.Box{State: storage.Awake})
	if !errors.Is(err, storage.TooLarge) || !strings.Contains(err.Error(), "16777217") || !strings.Contains(err.Error(), "16777216") {
		t.Errorf("got %v", err)
	}
}

func TestFourMebibyteArgumentAndFiveMebibyteResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCutWorld(t, cutPoint{frame: -1}, 9)
		id := w.open()
		begun := time.Now()
		w.call(id, 1, cutCall{Label: "long", Pad: cutPad(4 << 20), Result: 5 << 20})
		if took := time.Since(begun); took > 20*time.Second {
			t.Errorf("it took %s", took)
		}
		w.close()
		w.settled(1)
	})
}
