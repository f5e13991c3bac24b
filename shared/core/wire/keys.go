package wire

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Some keys decide to which call a message belongs or what the message does. This package
// refuses a message in which two readers of JSON could find different values for one of these
// keys. encoding/json ignores the case of keys. Other readers end a key at a NUL. If a key comes
// twice, some readers take the first value, some the last, some both.

// fold appends a form of the key that is the same for all keys which some reader takes for equal. Each
// letter becomes the first of its group in Unicode's simple folding. The Turkish letters ı and İ become
// I, as in C# and Java. What follows a NUL is left out.
func fold(dst, key []byte) []byte {
	for i := 0; i < len(key); {
		c := key[i]
		switch {
		case c == 0:
			return dst
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRune(key[i:])
			dst = utf8.AppendRune(dst, foldRune(r))
			i += n
			continue
		case 'a' <= c && c <= 'z':
			c -= 'a' - 'A'
		}
		dst = append(dst, c)
		i++
	}
	return dst
}

func foldRune(r rune) rune {
	if r == 'ı' || r == 'İ' {
		return 'I'
	}
	for {
		next := unicode.SimpleFold(r)
		if next <= r {
			return next
		}
		r = next
	}
}

// place is an object in which some keys decide what the message means. The field keys maps both forms of
// each such key, the exact and the folded one, to the exact one.
type place struct {
	name string
	keys map[string]string
}

var (
	atTop  = place{"a message", deciding("jsonrpc", "id", "method", "params", "result", "error")}
	ofMeta = place{"params._meta", deciding(MetaProgressToken, MetaProtocolVersion, MetaClientCapabilities, MetaClientInfo,
		MetaLogLevel, MetaSubscriptionID, MetaRelatedTask, MetaIdempotencyKey, MetaIdempotencyLife)}
	ofAny     = place{"params", deciding("_meta", "progressToken", "requestId")}
	ofMCPsOwn = place{"params of a method of MCP", deciding("_meta", "progressToken", "requestId", "name", "uri", "arguments",
		"cursor", "level", "task", "taskId", "protocolVersion", "capabilities", "clientInfo", "inputResponses", "requestState", "idempotencyKey")}
)

func deciding(names ...string) map[string]string {
	keys := make(map[string]string, 2*len(names))
	for _, name := range names {
		keys[name], keys[strings.ToUpper(name)] = name, name
	}
	return keys
}

// named returns the key of p that has this exact or folded form, "" if there is none.
func (p *place) named(form []byte) string { return p.keys[string(form)] }

// checkParams refuses params in which two readers could find different values.
func (m *Message) checkParams() error {
	if m.Kind == Response || m.Params == nil || m.Params[0] != '{' {
		return nil
	}
	where := &ofAny
	if ofMCP(m.Method) {
		where = &ofMCPsOwn
	}
	meta, err := checkKeys(m.Params, where)
	if err == nil && meta != nil && meta[0] == '{' {
		_, err = checkKeys(meta, &ofMeta)
	}
	return err
}

// ofMCP reports whether the specification has this method among those that a client calls.
func ofMCP(method string) bool {
	switch method {
	case MethodInitialize, MethodSetLevel, MethodToolsList, MethodToolsCall, MethodPromptsList, MethodPromptsGet,
		MethodResourcesList, MethodResourceTemplatesList, MethodResourcesRead, MethodSubscribe, MethodUnsubscribe,
		MethodComplete, MethodDiscover, MethodListen, MethodTasksGet, MethodTasksResult, MethodTasksList,
		MethodTasksCancel, MethodTasksUpdate:
		return true
	default:
		return false
	}
}

// manyKeys is how many keys of an object checkKeys compares with all others. The keys after these are
// kept in a map, so that thousands of them cost no quadratic time.
const manyKeys = 16

// checkKeys refuses an object with "__proto__", or with a key that comes twice, whatever
// its case. It also refuses a key that only [fold] turns into one of the given place. It returns
// the value of "_meta".
func checkKeys(object []byte, where *place) (meta []byte, err error) {
	var room [128]byte
	var ends [manyKeys]int // where each of the first keys ends in folded
	folded, n := room[:0], 0
	var many map[string]bool // the keys after the first manyKeys
	for i := 1; ; {
		m, next, ok := nextMember(object, i)
		if !ok {
			return meta, nil
		}
		i = next
		key := decoded(m.key)
		before := len(folded)
		name := where.named(key)
		if name != "" && string(key) == name {
			folded = append(folded, key...) // a folded key has no lower-case letter, so none equals this key
		} else {
			folded = fold(folded, key)
			name = where.named(folded[before:])
		}
		this := folded[before:]
		twice := many[string(this)]
		for j, start := 0, 0; j < n; j++ {
			twice = twice || bytes.Equal(this, folded[start:ends[j]])
			start = ends[j]
		}
		switch {
		case name != "" && string(key) != name:
			return nil, invalid("key %q of %s is refused, because a server could take it for %q: write %q", string(key), where.name, name, name)
		case string(key) == "__proto__":
			return nil, invalid("key %q of %s is refused, because JavaScript could take what is in it for more keys", string(key), where.name)
		case twice:
			return nil, invalid("key %q comes twice in %s, send it once", string(key), where.name)
		case name == "_meta":
			meta = object[m.start:m.end:m.end]
		}
		if n < manyKeys {
			ends[n] = len(folded)
			n++
			continue
		}
		if many == nil {
			many = map[string]bool{}
		}
		many[string(this)] = true
		folded = folded[:before]
	}
}

// decoded returns the key that a JSON string token stands for.
func decoded(token []byte) []byte {
	key := token[1 : len(token)-1]
	if bytes.IndexByte(key, '\\') < 0 {
		return key
	}
	s, _ := unescape(token)
	return []byte(s)
}
