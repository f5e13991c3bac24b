package frame

import (
	"bytes"
	stdjson "encoding/json"
	"errors"

	"github.com/segmentio/encoding/json"

	"github.com/dormouse-mcp/dormouse/shared/core/storage"
)

// Encode returns a frame as bytes. Use [Cut] to split a long frame.
func Encode(f Frame) []byte {
	payload, rest := payloadOf(f)
	b := make([]byte, 0, usualHeader+len(payload)+len(rest))
	b = append(append(append(b, begin...), f.kind()...), '"')
	fields := len(b)
	b, err := json.Append(b, f, json.EscapeHTML|json.SortMapKeys)
	if err != nil { // impossible: every type of a header's fields has a form in JSON
		panic("relay: a frame header that cannot be encoded: " + err.Error())
	}
	if b[fields+1] == '}' {
		b = append(b[:fields], '}')
	} else {
		b[fields] = ','
	}
	if len(payload)+len(rest) > 0 {
		b = append(append(append(b, '\n'), payload...), rest...)
	}
	return b
}

// usualHeader is room for most headers, in bytes.
const usualHeader = 512

// begin is the start of every frame that Encode writes. Other writers may put the
// members of the header in another order.
const begin = `{"v":1,"t":"`

// payloadOf returns the payload of a frame, which may be in two pieces.
func payloadOf(f Frame) (payload, rest []byte) {
	switch f := f.(type) {
	case Events:
		return f.Payload, nil
	case Status:
		return f.Payload, nil
	case Return:
		return f.Payload, nil
	case Deliver:
		return f.Init, f.Raw
	case Answer:
		return f.Payload, nil
	case Part:
		return f.Payload, nil
	default:
		return nil, nil
	}
}

// Decode reads a frame. The payload of the frame aliases data. Errors: storage.Invalid, also for a frame
// of another version.
func Decode(data []byte) (Frame, error) {
	head, payload, _ := bytes.Cut(data, []byte{'\n'})
	if crowded(head) {
		return nil, storage.Errorf(storage.Invalid, "relay frame of %d bytes has a header of %d bytes with more than any runner says", len(data), len(head))
	}
	kind, err := kindOf(head)
	if err != nil {
		return nil, err
	}
	f, err := decode(kind, head, payload)
	if err != nil {
		return nil, unreadable(len(data), err)
	}
	return f, nil
}

// crowded reports whether decoding a header might take far more memory than its bytes.
func crowded(head []byte) bool {
	if len(head) <= maxValues {
		return false
	}
	values := 0
	for _, mark := range []byte("[{,") {
		values += bytes.Count(head, []byte{mark})
	}
	return len(head) > maxHeader || values > maxValues
}

func unreadable(size int, err error) error {
	return storage.Errorf(storage.Invalid, "relay frame of %d bytes has no readable header", size).Because(err)
}

// kindOf reads the type of a frame from its header. For a header that Encode wrote it need not parse
// JSON.
func kindOf(head []byte) (Type, error) {
	if rest, ok := bytes.CutPrefix(head, []byte(begin)); ok {
		kind, _, ok := bytes.Cut(rest, []byte{'"'})
		if ok && plain(kind) && !bytes.Contains(rest, []byte(`"t":`)) && !bytes.Contains(rest, []byte(`"v":`)) {
			return Type(kind), nil
		}
	}
	var f struct {
		V    int  `json:"v"`
		Type Type `json:"t"`
	}
	if err := unmarshal(head, &f); err != nil {
		return "", unreadable(len(head), err)
	}
	switch {
	case f.V == 0 || f.Type == "":
		return "", storage.Errorf(storage.Invalid, "a message of %d bytes is JSON but no relay frame", len(head))
	case f.V != Version:
		return "", storage.Errorf(storage.Invalid, "relay frame of type %q has version %d, and this side speaks version %d", Clip(string(f.Type)), f.V, Version)
	}
	return f.Type, nil
}

// plain reports whether text consists of lower-case letters and hyphens, which JSON
// never escapes.
func plain(text []byte) bool {
	for _, c := range text {
		if c != '-' && (c < 'a' || c > 'z') {
			return false
		}
	}
	return len(text) > 0
}

func decode(kind Type, head, payload []byte) (Frame, error) {
	if decoder := decoders[kind]; decoder != nil {
		return decoder(head, payload)
	}
	_, err := read[struct{}](head)
	return Other{kind}, err
}

type decoder func(head, payload []byte) (Frame, error)

var decoders = map[Type]decoder{
	TypeEvents:  carrier(func(f *Events) *[]byte { return &f.Payload }),
	TypeStatus:  carrier(func(f *Status) *[]byte { return &f.Payload }),
	TypeReturn:  carrier(func(f *Return) *[]byte { return &f.Payload }),
	TypeDeliver: deliver,
	TypeAnswer:  carrier(func(f *Answer) *[]byte { return &f.Payload }),
	TypePart:    carrier(func(f *Part) *[]byte { return &f.Payload }),

	Get:    snapshot(Get),
	Put:    snapshot(Put),
	Done:   snapshot(Done),
	Forget: snapshot(Forget),

	TypeHello:   bare[Hello],
	TypePull:    bare[Pull],
	TypeTaken:   bare[Taken],
	TypeAsk:     bare[Ask],
	TypeBye:     bare[Bye],
	TypeWhole:   bare[Whole],
	TypeWelcome: bare[Welcome],
	TypeFenced:  bare[Fenced],
	TypeNudge:   bare[Nudge],
	TypeLook:    bare[Look],
	TypeMay:     bare[May],
	TypePulled:  bare[Pulled],
	TypeAck:     bare[Ack],
	TypeByeOK:   bare[ByeOK],
	TypeStop:    bare[Stop],
	TypeHalt:    bare[Halt],
	TypeYield:   bare[Yield],
	TypeDrain:   bare[Drain],
	TypePartOK:  bare[PartOK],
	TypeKept:    bare[Kept],
}

// carrier returns the decoder of a type of frame whose payload is in the given field.
func carrier[F Frame](field func(*F) *[]byte) decoder {
	return func(head, payload []byte) (Frame, error) {
		f, err := read[F](head)
		*field(&f) = payload
		return f, err
	}
}

func deliver(head, payload []byte) (Frame, error) {
	f, err := read[Deliver](head)
	parts, ok := Split(payload, f.Lens)
	if err == nil && (!ok || len(parts) != 2) {
		err = errors.New("its lengths do not fit its payload")
	}
	if err == nil {
		f.Init, f.Raw = parts[0], parts[1]
	}
	return f, err
}

func snapshot(op Type) decoder {
	return func(head, _ []byte) (Frame, error) {
		f, err := read[Snapshot](head)
		f.Op = op
		return f, err
	}
}

// bare decodes a frame without a payload.
func bare[F Frame](head, _ []byte) (Frame, error) { return read[F](head) }

func read[F any](head []byte) (f F, err error) {
	err = unmarshal(head, &f)
	return f, err
}

// unmarshal is json.Unmarshal for headers that a hostile runner may have written. The fast
// decoder does not limit the depth, and millions of brackets would overflow the stack. So
// encoding/json, which limits the depth, decodes headers with many brackets.
func unmarshal(head []byte, v any) error {
	if bytes.Count(head, []byte{'['})+bytes.Count(head, []byte{'{'}) > 1000 {
		return stdjson.Unmarshal(head, v)
	}
	return json.Unmarshal(head, v)
}
