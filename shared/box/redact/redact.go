// Package redact replaces secrets in text that a program has printed.
package redact

import (
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"html"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

const (
	minSecret = 6 // bytes; a shorter value counts as a word, not as a secret
	minWord   = 8 // bytes; a shorter word of a value is no secret by itself
	minPart   = 3 // bytes; a shorter beginning or end of a secret is not hidden
	// Hidden replaces a secret.
	Hidden = "***"
)

// Redactor replaces the values of a server's environment in text. It finds values in all forms in
// which programs print them: plain, base64, hexadecimal, and escaped for URLs, JSON or HTML. It
// also finds single lines and words of a value, and passwords in a value. It ignores white space,
// because programs break lines within secrets. It replaces users and passwords in all URLs.
type Redactor struct {
	mu      sync.Mutex
	all     map[string]bool          // all secrets in all their forms, without white space
	secrets atomic.Pointer[[]string] // the keys of the map all, longest first
}

// New makes a Redactor for the values of env that have six bytes or more. The argument marked has
// the names of variables whose values are secrets at any length.
func New(env map[string]string, marked []string) *Redactor {
	r := &Redactor{all: map[string]bool{}}
	for name, value := range env {
		r.add(value, slices.Contains(marked, name))
	}
	r.sort()
	return r
}

// Hide adds a secret, at any length. Hide is safe for concurrent use with all methods.
func (r *Redactor) Hide(value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if plain := withoutSpace(value); plain != "" && !r.all[plain] {
		r.add(value, true)
		r.sort()
	}
}

// HideProxy adds the password in the URL of a proxy, which may lack its scheme.
func (r *Redactor) HideProxy(value string) {
	_, rest, ok := strings.Cut(value, "://")
	if !ok {
		rest = value
	}
	for _, password := range passwordOf(rest) {
		r.Hide(password)
	}
}

func (r *Redactor) add(value string, marked bool) {
	if len(value) < minSecret && !marked {
		return
	}
	for _, part := range partsOf(value) {
		for _, form := range formsOf(part) {
			r.all[withoutSpace(form)] = true
		}
	}
	if plain := withoutSpace(value); plain != "" && (marked || len(plain) >= minSecret) {
		r.all[plain] = true
	}
}

func (r *Redactor) sort() {
	secrets := slices.Collect(maps.Keys(r.all))
	slices.SortFunc(secrets, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b))
	})
	r.secrets.Store(&secrets)
}

// settings matches assignments to names that sound secret, for example in a connection string or a
// query.
var settings = regexp.MustCompile(`(?i)(?:pass|pwd|token|key|secret|auth|cred|sig)\w*\s*[=:]\s*["']?([^\s;&,"']{4,})`)

// partsOf returns a value and those parts of it that programs may print alone.
func partsOf(value string) []string {
	parts := []string{value}
	for line := range strings.Lines(value) {
		parts = append(parts, strings.TrimSpace(line))
	}
	parts = slices.DeleteFunc(parts, func(s string) bool { return len(withoutSpace(s)) < minSecret })
	for word := range strings.FieldsSeq(value) {
		if len(word) >= minWord {
			parts = append(parts, word)
		}
	}
	for _, found := range settings.FindAllStringSubmatch(value, -1) {
		parts = append(parts, found[1])
	}
	if _, rest, ok := strings.Cut(value, "://"); ok {
		parts = append(parts, passwordOf(rest)...)
	}
	return parts
}

// passwordOf returns the password in a URL, given without its scheme: as it is written, and
// unescaped.
func passwordOf(rest string) (parts []string) {
	authority := rest[:cmp.Or(strings.IndexAny(rest, "/?#")+1, len(rest)+1)-1]
	at := strings.LastIndexByte(authority, '@')
	if at < 0 {
		return nil
	}
	user, password, both := strings.Cut(authority[:at], ":")
	said := password
	if !both {
		said = user // a URL may have a token in the place of the user, and no password
	}
	plain, err := url.PathUnescape(said)
	for _, s := range []string{said, plain} {
		if err == nil && len(s) > minPart {
			parts = append(parts, s)
		}
	}
	return parts
}

// formsOf returns a secret in all forms in which programs print it.
func formsOf(s string) []string {
	forms := []string{s, html.EscapeString(s), quoted(strconv.Quote(s)), quoted(strconv.QuoteToASCII(s))}
	if text, err := json.Marshal(s); err == nil {
		forms = append(forms, quoted(string(text)))
	}
	for _, escaped := range []string{
		url.QueryEscape(s), url.PathEscape(s), strings.ReplaceAll(url.QueryEscape(s), "+", "%20"),
		strings.NewReplacer("+", "%20", "%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*").Replace(url.QueryEscape(s)),
	} {
		forms = append(forms, escaped, lowerHex.ReplaceAllStringFunc(escaped, strings.ToLower))
	}
	if len(s) < minSecret {
		return forms
	}
	code := hex.EncodeToString([]byte(s))
	forms = append(forms, code, strings.ToUpper(code))
	// In a longer text, such as user:password, up to two bytes before the secret affect its first
	// base64 characters, and the text after it affects its last ones. The form has only the
	// characters between them.
	for before := range 3 {
		from, to := (before*8+5)/6, (before+len(s))*8/6
		for _, form := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			forms = append(forms, form.EncodeToString([]byte(strings.Repeat("x", before) + s))[from:to])
		}
	}
	return forms
}

var lowerHex = regexp.MustCompile(`%[0-9A-F]{2}`)

func quoted(s string) string { return s[1 : len(s)-1] }

func withoutSpace(s string) string { return string(flatten(s).text) }

// flat is a text without its white space.
type flat struct {
	text []byte
	at   []int // the offset of each byte of text in the original
}

func flatten(s string) flat {
	f := flat{make([]byte, 0, len(s)), make([]int, 0, len(s))}
	for i := range len(s) {
		if c := s[i]; c != ' ' && c != '\t' && c != '\r' && c != '\n' {
			f.text, f.at = append(f.text, c), append(f.at, i)
		}
	}
	return f
}

// span is the position of a secret: the index of its first byte, and the index after its last
// byte.
type span struct{ from, to int }

// find returns the positions of the secrets in a text, in order, with overlapping ones merged.
func (r *Redactor) find(f flat) []span {
	var all []span
	text := string(f.text)
	for _, secret := range *r.secrets.Load() {
		for i := 0; ; {
			j := strings.Index(text[i:], secret)
			if j < 0 {
				break
			}
			i += j + len(secret)
			all = append(all, span{i - len(secret), i})
		}
	}
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	merged := all[:0]
	for _, s := range all {
		if n := len(merged); n > 0 && s.from < merged[n-1].to {
			merged[n-1].to = max(merged[n-1].to, s.to)
			continue
		}
		merged = append(merged, s)
	}
	return merged
}

var userinfo = regexp.MustCompile(`://[^/\s"'<>]*@`)

// Text returns s with all secrets replaced by [Hidden].
func (r *Redactor) Text(s string) string {
	f := flatten(s)
	var out strings.Builder
	last := 0
	for _, secret := range r.find(f) {
		out.WriteString(s[last:f.at[secret.from]])
		out.WriteString(Hidden)
		last = f.at[secret.to-1] + 1
	}
	out.WriteString(s[last:])
	return userinfo.ReplaceAllString(out.String(), "://"+Hidden+"@")
}

// begun looks for the beginning of a secret at the end of f. begun returns the offset of the
// beginning, or the length of f if there is none. Beginnings shorter than minimum do not count.
func (r *Redactor) begun(f flat, minimum int) int {
	first := len(f.text)
	for _, secret := range *r.secrets.Load() {
		for i := max(0, len(f.text)-len(secret)+1); i <= len(f.text)-minimum && i < first; i++ {
			if f.text[i] == secret[0] && strings.HasPrefix(secret, string(f.text[i:])) {
				first = i
			}
		}
	}
	return first
}

// Before returns how many bytes of s can be printed before more text has come. The bytes after them
// may begin a secret. If wholeLines is set, Before counts complete lines only.
func (r *Redactor) Before(s []byte, wholeLines bool) int {
	f := flatten(string(s))
	spans, end := r.find(f), len(s)
	least := 1
	if wholeLines {
		least = minPart // do not keep back a line for every letter that could begin a secret
	}
	if i := r.begun(f, least); i < len(f.text) {
		end = f.at[i]
	}
	for was := -1; was != end; {
		was = end
		for _, secret := range slices.Backward(spans) {
			if f.at[secret.from] < end && end <= f.at[secret.to-1] {
				end = f.at[secret.from]
			}
		}
		if wholeLines {
			end = strings.LastIndexByte(string(s[:end]), '\n') + 1
		}
	}
	return end
}

// Begin replaces the end of a secret at the beginning of s. It is for a text whose earlier part was
// cut off, perhaps in the middle of a secret.
func (r *Redactor) Begin(s string) string {
	f := flatten(s)
	for _, secret := range *r.secrets.Load() {
		for i := 1; i <= len(secret)-minPart; i++ {
			if strings.HasPrefix(string(f.text[:min(len(f.text), len(secret)-i)]), secret[i:]) {
				return Hidden + s[f.at[len(secret)-i-1]+1:]
			}
		}
	}
	return s
}

// End replaces the beginning of a secret at the end of s, because the process may have stopped in the
// middle of a secret. The beginning must have three bytes, or six if a line end follows it.
func (r *Redactor) End(s string) string {
	f := flatten(s)
	i := r.begun(f, minPart)
	if i == len(f.text) || strings.HasSuffix(s, "\n") && len(f.text)-i < minSecret {
		return s
	}
	return s[:f.at[i]] + Hidden
}
