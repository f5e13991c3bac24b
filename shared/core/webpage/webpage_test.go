package webpage_test

import (
	"net/http/httptest"
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
		!strings.Contains(body, "<p>&#34;&lt;script&gt;&#39;&amp;</p>") || strings.Contains(body, "<script") || strings.Contains(webpage.Style(), "url(") {
		t.Errorf("status %d, %v\n%s", w.Code, w.Header(), body)
	}
	_, nonce, _ := strings.Cut(policy, "'nonce-")
	nonce, _, _ = strings.Cut(nonce, "'")
	if len(nonce) < 20 || !strings.Contains(body, `<style nonce="`+nonce+`">`) {
		t.Errorf("the style has another nonce than %s", policy)
	}
}
