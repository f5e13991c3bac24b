package dormouse

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/local"
)

const dynamodb = "dynamodb:"

// useTable creates the table of a store on DynamoDB if it does not exist. It returns the name of
// the store with its region.
func useTable(ctx context.Context, store string, getenv func(string) string) (name string, err error) {
	where, ok := strings.CutPrefix(store, dynamodb)
	if !ok {
		return store, nil
	}
	location, keys, err := local.Table(where, getenv)
	if err != nil {
		return "", fmt.Errorf("--store %s: %w", store, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := location.EnsureTable(ctx, keys); err != nil {
		return "", fmt.Errorf("--store %s: %w", store, err)
	}
	return dynamodb + location.String(), nil
}
