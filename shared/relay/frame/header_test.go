package frame

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dormouse-mcp/dormouse/shared/session"
)

// filled is a frame with something in every field but the payload, also in those that
// come later.
func filled(t *testing.T, text string) Frame {
	t.Helper()
	var f Frame
	fill(t, reflect.ValueOf(&f).Elem(), text)
	f.V, f.Payload = Version, nil
	return f
}

func fill(t *testing.T, v reflect.Value, text string) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Int, reflect.Int64:
		v.SetInt(-1 << 60)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			if v.Type().Elem().Kind() == reflect.Uint8 {
				v.Index(i).SetUint('1')
				continue
			}
			fill(t, v.Index(i), text)
		}
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, key, text)
		fill(t, value, text)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i), text)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), text)
	default:
		t.Fatalf("a frame has a %s, which the test does not know", v.Kind())
	}
}

func byTags(t *testing.T, f Frame) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(f); err != nil {
		t.Fatal(err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func TestHeaderIsWhatTheTagsOfItsFieldsSay(t *testing.T) {
	for _, f := range []Frame{
		{V: Version},
		{V: Version, Type: Nudge, Items: []EventItem{{}}},
		filled(t, "plain"),
		filled(t, "<&> \" \\ é \u2028 \x00"),
	} {
		want := byTags(t, f)
		if diff := cmp.Diff(string(want), string(Encode(f))); diff != "" {
			t.Error(diff)
		}
		var got Frame
		if err := got.read(want); err != nil {
			t.Errorf("%v: %s", err, want)
		}
		if diff := cmp.Diff(f, got); diff != "" {
			t.Error(diff)
		}
	}
}

func TestTextThatIsNotUTF8IsWrittenSoThatItCanBeRead(t *testing.T) {
	f, err := Decode(Encode(Frame{Type: Status, Phase: "a\xffb"}))
	if err != nil || f.Phase != "a\uFFFDb" {
		t.Errorf("%q, %v", f.Phase, err)
	}
}

func TestHeaderWithAMemberOfTheWrongTypeIsRefused(t *testing.T) {
	for _, member := range []string{
		`"box":1`, `"gen":"1"`, `"gen":1.5`, `"fenced":0`, `"lens":{}`, `"lens":["1"]`, `"ids":"a"`,
		`"items":{}`, `"items":[1]`, `"items":[{"ticket":1}]`, `"questions":[]`, `"round":1e3`, `"n":9223372036854775808`,
	} {
		if _, err := Decode([]byte(`{"v":1,"t":"x",` + member + `}`)); session.CodeOf(err) != session.Invalid {
			t.Errorf("%s: %v", member, err)
		}
	}
}

// FuzzHeader compares what is read with what encoding/json reads. That takes keys in any
// case, and bytes that are not UTF-8.
func FuzzHeader(f *testing.F) {
	f.Add([]byte(`{"v":1,"t":"events","items":[{"ticket":"t","lens":[1, 2],"asks":null},null],"questions":{"s":["q"]}}`))
	f.Add([]byte(` { "v" : 1 , "t" : "\u0065" , "unknown" : [ { } , [ ] ] , "lens" : [ ] , "gen" : null } `))
	f.Add([]byte(`{"v":1,"v":2,"lens":[1,null],"header":{"a":"b"},"fenced":false}`))
	f.Fuzz(func(t *testing.T, head []byte) {
		var got, want Frame
		if got.read(head) != nil {
			return
		}
		twice := map[string]bool{} // of these encoding/json makes a mixture
		for _, key := range keys(head) {
			if key != string(bytes.ToLower([]byte(key))) || twice[key] || bytes.IndexByte(head, 0x5c) >= 0 {
				return
			}
			twice[key] = true
		}
		if err := json.Unmarshal(head, &want); err != nil {
			t.Fatalf("encoding/json: %v", err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Error(diff)
		}
	})
}

// keys are those of an object and of the objects in it.
func keys(raw []byte) (all []string) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	for {
		token, err := dec.Token()
		if err != nil {
			return all
		}
		if s, ok := token.(string); ok {
			all = append(all, s) // or a value, which does no harm
		}
	}
}
