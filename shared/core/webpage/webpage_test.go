package webpage_test

import (
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
	"github.com/dormouse-mcp/dormouse/shared/core/webpage"
)

func TestPageLoadsAndRunsNothing(t *testing.T) {
	w := httptest.NewRecorder()
	webpage.Write(w, 403, webpage.Page{Title: `<b onclick="x">`, Body: webpage.Text(`"<script>'&`)})
	body, policy := w.Body.String(), w.Header().Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "form-action 'none'", "frame-ancestors 'none'", "base-uri 'none'"} {
		commontest.Contains(t, "the policy", want, policy)
	}
	if w.Code != 403 || w.Header().Get("Cache-Control") != "no-store" || !strings.Contains(body, "&lt;b onclick=&#34;x&#34;&gt;") ||
		!strings.Contains(body, "<p>&#34;&lt;script&gt;&#39;&amp;</p>") || strings.Contains(body, "<script") || strings.Contains(body, "url(") {
		t.Errorf("status %d, %v\n%s", w.Code, w.Header(), body)
	}
	_, nonce, _ := strings.Cut(policy, "'nonce-")
	nonce, _, _ = strings.Cut(nonce, "'")
	if len(nonce) < 20 || !strings.Contains(body, `<style nonce="`+nonce+`">`) {
		t.Errorf("the style has another nonce than %s", policy)
	}
}

func TestARefusalSaysWhatTheAuthorizationServerSays(t *testing.T) {
	for query, want := range map[string]string{
		"code=x": "", "": "there is no code in its answer", "error=access_denied&code=x": "it says access_denied",
		"error=access_denied&error_description=not+%22assigned%22%0A%C3%A4": "it says access_denied: not ?assigned???",
		"error_description=" + strings.Repeat("x", 9000) + "&error=a":       "it says a: " + strings.Repeat("x", 509),
	} {
		q, err := url.ParseQuery(query)
		commontest.OK(t, err)
		commontest.EqualIn(t, query, want, webpage.Refusal(q))
	}
}
