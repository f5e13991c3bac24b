package frame_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/frame"
	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

func samples() []frame.Frame {
	return []frame.Frame{
		frame.Hello{Sender: frame.Sender{Box: "t/s", Gen: 1, Runner: "r"}, Token: "<&>", Link: 1, Questions: map[storage.ID][]string{"s": {"q"}}},
		frame.Pull{},
		frame.Taken{Tickets: []string{"a"}},
		frame.Ask{},
		frame.Return{},
		frame.Status{},
		frame.Bye{},
		frame.Whole{},
		frame.Events{Seq: 2, Session: "s", Items: []frame.EventItem{{Ticket: "t", First: 1, Lens: []int{1, 2}}}, Payload: []byte("a\nb")},
		frame.Snapshot{Op: frame.Put, Owner: "s", Size: 7},
		frame.Snapshot{Op: frame.Get},
		frame.Snapshot{Op: frame.Done},
		frame.Snapshot{Op: frame.Forget},
		frame.Welcome{},
		frame.Fenced{},
		frame.Nudge{},
		frame.Look{},
		frame.Deliver{Lens: []int{0, 1}, Init: json.RawMessage{}, Raw: []byte("r")},
		frame.May{},
		frame.Pulled{},
		frame.Ack{},
		frame.ByeOK{},
		frame.Answer{},
		frame.Stop{},
		frame.Halt{},
		frame.Drain{},
		frame.Kept{},
		frame.PartOK{},
		frame.Part{Frame: "f", N: 1, Of: 2, Payload: []byte("\u2028\n")},
	}
}

// Decode reads each header as encoding/json does: it refuses what encoding/json refuses,
// and finds the same fields in the rest. Encode writes them again.
func FuzzDecode(f *testing.F) {
	types := map[frame.Type]reflect.Type{}
	for _, one := range samples() {
		types[frame.Kind(one)] = reflect.TypeOf(one)
		f.Add(frame.Encode(one))
	}
	f.Add([]byte(`{"v":2,"t":"x"}`))
	f.Add([]byte(`{"v":1,"t":"pull","n":1e2,"x":"\ud800\u0000","y":[[[[]]]]}`))
	f.Add([]byte(`{"v":1,"t":"taken","tickets":["` + "\xff" + `",null],"Tickets":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		head, payload, _ := bytes.Cut(data, []byte("\n"))
		var kind struct {
			V int        `json:"v"`
			T frame.Type `json:"t"`
		}
		wrong := json.Unmarshal(head, &kind)
		want := reflect.New(reflect.TypeFor[struct{}]())
		if known, ok := types[kind.T]; ok {
			want = reflect.New(known)
		}
		if wrong == nil {
			wrong = json.Unmarshal(head, want.Interface())
		}
		if d, ok := want.Interface().(*frame.Deliver); ok && wrong == nil {
			if parts, fit := frame.Split(payload, d.Lens); !fit || len(parts) != 2 {
				wrong = errors.New("its lengths do not fit")
			}
		}
		read, err := frame.Decode(data)
		if readable := wrong == nil && kind.V == frame.Version && kind.T != ""; readable != (err == nil) {
			t.Fatalf("%q: encoding/json says %v of version %d and type %q, Decode says %v", head, wrong, kind.V, kind.T, err)
		}
		if err != nil {
			commontest.Equal(t, storage.Invalid, storage.CodeOf(err))
			return
		}
		again, err := frame.Decode(frame.Encode(read))
		commontest.OK(t, err)
		commontest.Same(t, read, again, cmpopts.EquateEmpty())
		if frame.Kind(read) != kind.T {
			t.Fatalf("%q: type %q, want %q", head, frame.Kind(read), kind.T)
		}
		if types[kind.T] == nil {
			return
		}
		got := reflect.New(types[kind.T]).Elem()
		got.Set(reflect.ValueOf(read))
		for _, behind := range []string{"Payload", "Init", "Raw", "Op"} { // not from the header
			if field := got.FieldByName(behind); field.IsValid() {
				field.SetZero()
			}
		}
		commontest.SameIn(t, string(head), want.Elem().Interface(), got.Interface(), cmpopts.EquateEmpty())
	})
}

// A hostile runner might write a header of 17 MB whose values would take gigabytes of memory.
func TestDecodeRefusesAHeaderOfMillionsOfValues(t *testing.T) {
	for name, values := range map[string][3]string{
		"items":     {`{"v":1,"t":"events","items":[`, `{},`, `{}]}`},
		"no items":  {`{"v":1,"t":"events","items":[`, `null,`, `null]}`},
		"lengths":   {`{"v":1,"t":"events","items":[{"lens":[`, `0,`, `0]}]}`},
		"tickets":   {`{"v":1,"t":"taken","tickets":[`, `"",`, `""]}`},
		"questions": {`{"v":1,"t":"events","items":[{"asks":{"questions":[`, `{},`, `{}]}}]}`},
	} {
		t.Run(name, func(t *testing.T) {
			head := []byte(values[0] + strings.Repeat(values[1], (frame.MaxJoined-200)/len(values[1])) + values[2])
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := frame.Decode(head)
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; storage.CodeOf(err) != storage.Invalid || n > 1<<20 {
				t.Errorf("%s: %d bytes of memory, %v", name, n, err)
			}
		})
	}
}

func TestDecodeRefusesAHeaderOfAnyDepth(t *testing.T) {
	for _, open := range []string{`[`, `{"a":`} {
		for _, begin := range []string{`{"v":1,"t":"pull","x":`, `{"t":"pull","v":1,"x":`} {
			head := begin + strings.Repeat(open, frame.MaxJoined/len(open))
			if _, err := frame.Decode([]byte(head)); storage.CodeOf(err) != storage.Invalid {
				t.Errorf("%s and %d times %s: %v", begin, frame.MaxJoined/len(open), open, err)
			}
		}
	}
}

// A frame of any text is cut into parts that are text too and that the gateway accepts.
// They join byte for byte, in any order, even if any part comes twice.
func FuzzCutAssemble(f *testing.F) {
	f.Add("x", 3, uint(0))
	f.Add("é", 60_001, uint(1))
	f.Add("a€", 90_000, uint(7))
	f.Add("😀", 80_000, uint(3))
	f.Add("x😀é", 100_003, uint(5))
	f.Add("\n\x00", 200_000, uint(11))
	f.Fuzz(func(t *testing.T, text string, times int, start uint) {
		if times < 0 || len(text) == 0 || times > 1_000_000/len(text) || !utf8.ValidString(text) {
			return
		}
		encoded := frame.Encode(frame.Events{Payload: []byte(strings.Repeat(text, times))})
		pieces := frame.Cut(encoded, "tenant/server", "name")
		if len(pieces) == 1 {
			commontest.EqualIn(t, "a frame that is short enough stays as it is", true, bytes.Equal(pieces[0], encoded))
			return
		}
		var a frame.Assembler
		for i := range pieces {
			piece := pieces[(uint(i)+start)%uint(len(pieces))]
			if len(piece) > frame.MaxFrame || !utf8.Valid(piece) {
				t.Fatalf("piece %d has %d bytes, UTF-8 %t", i, len(piece), utf8.Valid(piece))
			}
			read, err := frame.Decode(piece)
			part, ok := read.(frame.Part)
			if err != nil || !ok || part.Box != "tenant/server" || part.Of != len(pieces) {
				t.Fatalf("piece %d is %+v: %v", i, part, err)
			}
			if i < len(pieces)-1 {
				if _, done, err := a.Add(part); done || err != nil {
					t.Fatalf("done after %d of %d parts, %v", i+1, len(pieces), err)
				}
			}
			whole, done, err := a.Add(part)
			if err != nil || done != (i == len(pieces)-1) {
				t.Fatalf("done %t after %d of %d parts, %v", done, i+1, len(pieces), err)
			}
			if done && !bytes.Equal(whole, encoded) {
				t.Error("the joined frame is another")
			}
		}
	})
}
