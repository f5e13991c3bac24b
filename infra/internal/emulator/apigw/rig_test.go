package apigw

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/internal/emulator/lambda"
	"github.com/dormouse-mcp/dormouse/infra/local/localtest"
)

func TestMain(m *testing.M) { os.Exit(localtest.Main(m)) }

// newPool returns a pool of one function, "echo", whose program is
// [localtest.EchoProgram].
func newPool(t testing.TB, change func(*lambda.FunctionConfig)) *lambda.Pool {
	t.Helper()
	f := lambda.FunctionConfig{Name: "echo", Path: localtest.EchoProgram(t), Timeout: localtest.Patience}
	if change != nil {
		change(&f)
	}
	pool, err := lambda.NewPool(lambda.PoolConfig{SleepAfter: time.Hour, Functions: []lambda.FunctionConfig{f}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), localtest.Patience)
		defer cancel()
		if err := pool.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return pool
}
