package main

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRunReportsEveryCheckAndExitsOneWhenNothingIsServed(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--url", server.URL}, &stdout, &stderr); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	var got, want []string
	for decoder := json.NewDecoder(&stdout); decoder.More(); {
		var line outcome
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if line.OK || line.Error == "" {
			t.Errorf("check %s: ok %t, error %q; want a failure that says why", line.Check, line.OK, line.Error)
		}
		got = append(got, line.Check)
	}
	for _, c := range allChecks() {
		want = append(want, c.name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("checks reported (-want +got):\n%s", diff)
	}
}

func TestRunRefusesWhatItCannotDo(t *testing.T) {
	for name, args := range map[string][]string{
		"no url":            {},
		"unknown flag":      {"--url", "http://127.0.0.1/", "--nope"},
		"unknown transport": {"--url", "http://127.0.0.1/", "--transport", "stdio"},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := run(t.Context(), args, &stdout, &stderr); code != 2 {
				t.Errorf("exit code %d, want 2", code)
			}
			if stdout.Len() > 0 || stderr.Len() == 0 {
				t.Errorf("stdout %q, stderr %q; want only a usage message", &stdout, &stderr)
			}
		})
	}
}

func TestWiretapNotesOrderHoweverTheBodyIsCut(t *testing.T) {
	const stream = ": keep-alive\n\nid: 1\nretry: 5\ndata: \n\n" +
		`data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":1,"total":2}}` + "\r\n\r\n" +
		`data:{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{}}` + "\n\n" +
		`data: {"jsonrpc":"2.0","method":"notifications/progress","params":{"progress":2,"total":2}}` + "\n\n" +
		`data: {"jsonrpc":"2.0","id":"a","result":{"text":"é"}}`
	for _, size := range []int{1, 2, 7, 64, len(stream)} {
		tap := &wiretap{}
		body := &tappedBody{ReadCloser: io.NopCloser(strings.NewReader(stream)), tap: tap}
		passed, err := readIn(body, size)
		if err != nil {
			t.Fatal(err)
		}
		if passed != stream {
			t.Errorf("reads of %d: the body was changed to %q", size, passed)
		}
		if diff := cmp.Diff([]string{"1/2", "2/2", "result"}, tap.noted()); diff != "" {
			t.Errorf("reads of %d (-want +got):\n%s", size, diff)
		}
	}
}

func TestWantTextNamesWhereTextsPart(t *testing.T) {
	err := wantText("abcX", "abcdef", "echo")
	if err == nil || !strings.Contains(err.Error(), `got "X", want "def" (at byte 3; lengths 4, 6)`) {
		t.Errorf("got %v", err)
	}
	if err := wantText("same", "same", "echo"); err != nil {
		t.Errorf("equal texts: %v", err)
	}
}

// readIn reads everything, at most size bytes at a time.
func readIn(r io.Reader, size int) (string, error) {
	var all []byte
	for chunk := make([]byte, size); ; {
		n, err := r.Read(chunk)
		all = append(all, chunk[:n]...)
		if err == io.EOF {
			return string(all), nil
		}
		if err != nil {
			return string(all), err
		}
	}
}
