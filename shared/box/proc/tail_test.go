package proc

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dormouse-mcp/dormouse/shared/box/redact"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestStderrKeepsTheEnd(t *testing.T) {
	for _, write := range []int{1, 7, 1000, maxKept - 1, maxKept, 3 * maxKept} {
		var r Tail
		var all strings.Builder
		for i := 0; all.Len() < 3*maxKept; i++ {
			part := strings.Repeat(string(rune('a'+i%26)), write)
			all.WriteString(part)
			if n, err := r.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatalf("Write says %d, %v", n, err)
			}
		}
		text, cut := r.Text(0)
		if s := all.String(); text != s[len(s)-maxKept:] || !cut {
			t.Errorf("in writes of %d bytes it keeps %d bytes that are not the end (cut: %v)", write, len(text), cut)
		}
	}
}

func TestSecretsCutByTheRingAreHiddenToo(t *testing.T) {
	const secret = "sk-0123456789"
	hide := redact.New(map[string]string{"API_KEY": secret}, nil)
	for end := range len(secret) {
		// The secrets fill the tail, which shows three characters for each. The kept
		// output begins and ends in the middle of a secret, at another byte each time.
		var r Tail
		_, _ = r.Write([]byte(strings.Repeat(secret, 2*maxKept/len(secret)) + secret[:end]))
		if got := strings.ReplaceAll(r.Since(0, hide), redact.Hidden, ""); len(got) > 4 {
			t.Errorf("cut %d bytes into a secret the tail shows %q", end, got)
		}
	}
}

func TestTailSinceAnEarlierTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hide := redact.New(nil, nil)
		var r Tail
		_, _ = r.Write([]byte(strings.Repeat("old ", maxKept)))
		before := r.Total()
		time.Sleep(2 * lately)
		commontest.EqualIn(t, "old output counts as new", before, r.Lately())
		_, _ = r.Write([]byte("new "))
		time.Sleep(lately / 2)
		_, _ = r.Write([]byte("output"))
		for _, first := range []int64{before, r.Lately()} {
			commontest.Equal(t, "new output", r.Since(first, hide))
		}
		commontest.EqualIn(t, "bytes of all of it", MaxTail, len(r.Since(0, hide)))
	})
}

func TestLogHoldsNoSecretHoweverItIsWritten(t *testing.T) {
	const secret, key = "hunter22-and-more", "-----BEGIN KEY-----\nabcdefgh\nijklmnop\n-----END KEY-----"
	hide := redact.New(map[string]string{"API_KEY": secret, "PRIVATE": key}, []string{"PRIVATE"})
	text := "before " + secret + " after\n" + key + "\n" + strings.Repeat("x", maxLogLine-7) + secret + strings.Repeat("y", 100) + "\n" +
		strings.Repeat(secret, 3000) + "\nthe end is " + secret[:9]
	for size := range 40 {
		var kept bytes.Buffer
		d := NewLog(struct {
			io.Writer
			io.Closer
		}{&kept, io.NopCloser(nil)}, hide)
		for rest := []byte(text); len(rest) > 0; {
			n := min(len(rest), 1+size*size*7)
			_, err := d.Write(rest[:n])
			commontest.OK(t, err)
			rest = rest[n:]
		}
		d.Close("over")
		got := kept.String()
		for _, part := range []string{"hunter", "abcdefgh", "ijklmnop", "BEGIN KEY"} {
			if strings.Contains(got, part) {
				t.Fatalf("in pieces of %d bytes it says %q", 1+size*size*7, part)
			}
		}
		if !strings.HasPrefix(got, "before *** after\n***") || strings.Count(got, "x") < maxLogLine-7 {
			t.Fatalf("in pieces of %d bytes too much is hidden: %.80s", 1+size*size*7, got)
		}
	}
}

func TestLastWordsAreTheLineThatSaysTheReason(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ tail, want string }{
		"nothing":         {"", ""},
		"no telling word": {"first line\nsecond line", "second line"},
		"an error before the usage": {
			"Error: the token is missing\nUsage: server [options]\n  --token  your token", "Error: the token is missing",
		},
		"a script that npm lacks": {"npm error Missing script: \"start\"\nnpm error\nnpm error To see a list of scripts, run:\nnpm error   npm run", `npm error Missing script: "start"`},
		"node without a module": {`node:internal/modules/cjs/loader:1210
  throw err;
  ^

Error: Cannot find module 'nope'
Require stack:
- /srv/[eval]
    at Module._resolveFilename (node:internal/modules/cjs/loader:1207:15)
    at Module._load (node:internal/modules/cjs/loader:1038:27) {
  code: 'MODULE_NOT_FOUND',
  requireStack: [ '/srv/[eval]' ]
}

Node.js v20.20.2`, "Error: Cannot find module 'nope'"},
		"mcp-remote": {`[15989] Using transport strategy: http-first
[15989] Connection error: TypeError: fetch failed
    at fetch (/srv/node_modules/undici/index.js:155:10) {
  [cause]: Error: connect ECONNREFUSED 127.0.0.1:3333
      at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1611:16) {
    errno: -111,
    code: 'ECONNREFUSED',
    syscall: 'connect',
    address: '127.0.0.1',
    port: 3333
  }
}
[15989] Fatal error: TypeError: fetch failed
    at fetch (/srv/node_modules/undici/index.js:155:10) {
  [cause]: Error: connect ECONNREFUSED 127.0.0.1:3333
      at TCPConnectWrap.afterConnect [as oncomplete] (node:net:1611:16) {
    errno: -111,
    code: 'ECONNREFUSED',
    syscall: 'connect',
    address: '127.0.0.1',
    port: 3333
  }
}`, "[15989] Fatal error: TypeError: fetch failed (cause: Error: connect ECONNREFUSED 127.0.0.1:3333)"},
		"a group of exceptions": {`  + Exception Group Traceback (most recent call last):
  |   File "/srv/main.py", line 6, in <module>
  |     raise me from None
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/main.py", line 5, in h
    |     raise ConnectionError("no route")
    | ConnectionError: no route
    +------------------------------------`, "ConnectionError: no route"},
		"uv behind a proxy": {
			`error: Failed to fetch: https://index.example/simple/nope/
  cause: error sending request for url (https://index.example/simple/nope/)
  cause: client error (Connect)
  cause: invalid peer certificate: UnknownIssuer

hint: Consider enabling use of system TLS certificates with the --system-certs option`,
			"cause: invalid peer certificate: UnknownIssuer (hint: Consider enabling use of system TLS certificates with the --system-certs option)",
		},
		"causes of Java": {`Exception in thread "main" java.lang.RuntimeException: cannot start
	at Main.main(Main.java:3)
Caused by: java.net.UnknownHostException: db
	at java.base/java.net.Socket.connect(Socket.java:1)
	... 1 more`, "Caused by: java.net.UnknownHostException: db"},
	} {
		commontest.EqualIn(t, name, c.want, LastWords(c.tail))
	}
}
