package lambda_test

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/shared/core/commontest"
)

func TestAFunctionThatThePoolLacksIsAnError(t *testing.T) {
	p, err := lambda.NewPool(lambda.PoolConfig{Logger: slog.New(slog.DiscardHandler)})
	commontest.OK(t, err)
	defer func() { commontest.Check(t, p.Close(t.Context())) }()
	if _, err := p.Invoke(t.Context(), "nothing", []byte("{}")); !errors.Is(err, lambda.ErrUnknown) {
		t.Errorf("got %v", err)
	}
}
