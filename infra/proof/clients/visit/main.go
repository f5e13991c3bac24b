// Command visit goes through the pages of a sign-in as ada, whose password is lovelace,
// and prints the URL at which a client is called back.
//
//	visit http://127.0.0.1:8080/authorize?... http://127.0.0.1:5000/done
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/dormouse-mcp/dormouse/infra/proof/internal/webuser"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	page, err := webuser.New(webuser.Ada()).Visit(ctx, os.Args[1], os.Args[2])
	if err == nil && page.Text != "" {
		err = fmt.Errorf("the sign-in ends at %s: %s", page.URL, page.Text)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_, _ = fmt.Fprintln(os.Stdout, page.URL)
}
